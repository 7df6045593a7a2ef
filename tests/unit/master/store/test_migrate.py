"""Migrations: they make what the tables say, survive being killed, and refuse what is not theirs."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import sqlite3

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from determined.master.store import tables
from determined.master.store.database import make_engine
from determined.master.store.migrate import HEAD, DatabaseNotForUs, migrate

VERSIONS = pathlib.Path(tables.__file__).with_name("migrations") / "versions"


def schema(path: pathlib.Path) -> dict[str, list[str]]:
    """Everything in a database, each thing as the sorted pieces of what made it."""
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT name, coalesce(sql, '') FROM sqlite_master").fetchall()
    connection.close()
    return {
        # A column that was added later stands on the line of the one before.
        name: sorted(piece.strip().rstrip(",") for piece in re.split(r"\n|, (?=\w+ [A-Z]+)", sql) if piece.strip())
        for name, sql in found
        if "alembic_version" not in name
    }


def test_migrations_leave_exactly_the_tables(tmp_path: pathlib.Path) -> None:
    migrate(str(tmp_path / "migrated.db"))
    engine = make_engine(str(tmp_path / "made.db"))
    tables.metadata.create_all(engine)
    engine.dispose()
    migrated, made = schema(tmp_path / "migrated.db"), schema(tmp_path / "made.db")
    assert migrated.keys() == made.keys()
    assert migrated == made


def test_the_newest_revision_is_the_one_that_is_looked_for() -> None:
    revisions = sorted(path.name for path in VERSIONS.glob("[0-9]*.py"))
    assert revisions[-1].startswith(f"{HEAD}_")
    for path in VERSIONS.glob("[0-9]*.py"):
        revision = re.search(r'^revision = "(\w+)"$', path.read_text(), re.MULTILINE)
        assert revision is not None and path.name.startswith(f"{revision[1]}_")


def at(path: pathlib.Path, revision: str) -> None:
    """A database as an older version made it."""
    config = Config()
    config.set_main_option("script_location", str(VERSIONS.parent))
    config.attributes["engine"] = engine = make_engine(str(path))
    command.upgrade(config, revision)
    engine.dispose()


def test_an_older_database_is_brought_up_with_what_is_in_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "master.db"
    at(path, "0001")
    connection = sqlite3.connect(path)
    columns = connection.execute("PRAGMA table_info(trials)").fetchall()
    needed = [name for _, name, _, is_needed, default, _ in columns if is_needed and default is None]
    marks = ", ".join("?" * len(needed))
    connection.execute(f"INSERT INTO trials ({', '.join(needed)}) VALUES ({marks})", ["7"] * len(needed))
    connection.commit()
    connection.close()
    migrate(str(path))
    migrate(str(tmp_path / "new.db"))
    assert schema(path) == schema(tmp_path / "new.db")
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT id, crashes, log_labels FROM trials").fetchall() == [(7, 0, None)]
    connection.close()


def test_again_changes_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "master.db"
    migrate(str(path))
    before = schema(path)
    migrate(f"sqlite:///{path}")
    assert schema(path) == before


@pytest.mark.slow
def test_killed_after_any_statement_it_is_done_again_or_not_at_all(tmp_path: pathlib.Path) -> None:
    migrate(str(tmp_path / "undisturbed.db"))
    undisturbed = schema(tmp_path / "undisturbed.db")
    whole = [{}, undisturbed]
    for path in sorted(VERSIONS.glob("[0-9]*.py"))[:-1]:
        at(tmp_path / path.stem, path.name[:4])
        whole.append(schema(tmp_path / path.stem))
    statements = 0
    was_killed = True
    while was_killed:
        statements += 1
        path = tmp_path / f"{statements}.db"
        was_killed = _migrate_and_die(path, statements)
        if was_killed:
            left = schema(path) if path.exists() else {}
            assert left in whole, statements
        migrate(str(path))
        assert schema(path) == undisturbed, statements
        assert _integrity(path) == "ok"
    assert statements > 40


def _migrate_and_die(path: pathlib.Path, statements: int) -> bool:
    """Migrate in another process, which kills itself after so many statements; whether it came to that."""
    pid = os.fork()
    if pid == 0:
        done = 0

        @sa.event.listens_for(sa.Engine, "after_cursor_execute")
        def count(*_: object) -> None:
            nonlocal done
            done += 1
            if done == statements:
                os.kill(os.getpid(), signal.SIGKILL)

        status = 1
        try:
            migrate(str(path))
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def _integrity(path: pathlib.Path) -> str:
    connection = sqlite3.connect(path)
    (answer,) = connection.execute("PRAGMA integrity_check").fetchone()
    connection.close()
    return str(answer)


def test_a_newer_database_is_refused_with_one_sentence(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "master.db"
    migrate(str(path))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DatabaseNotForUs, match="written by a newer version of Resolute") as refused:
        migrate(str(path))
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == before


def test_a_database_of_something_else_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "master.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (id INTEGER)")
    connection.commit()
    connection.close()
    with pytest.raises(DatabaseNotForUs, match="songs"):
        migrate(str(path))
