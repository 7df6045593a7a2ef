"""Brings a database to the newest version of its tables."""

from __future__ import annotations

import pathlib

import sqlalchemy as sa

from determined import errors
from determined.master.store.database import make_engine

# The newest revision there is. A database that has it is opened without loading the machinery of migrations.
HEAD = "0002"

_MIGRATIONS = pathlib.Path(__file__).with_name("migrations")


class DatabaseNotForUs(errors.DeterminedError):
    """The database belongs to a newer version of Resolute, or to something else."""

    code = "database_not_for_us"


def migrate(url: str) -> None:
    """Create the tables, or bring them to the newest version, at an SQLAlchemy URL or a path to an SQLite file.

    Each revision is one transaction with the note that it was done: killed at any time, it is done again or not at all.
    Raises DatabaseNotForUs, and then has changed nothing.
    """
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            found = _revision(connection)
        if found == HEAD:
            return
        _upgrade(engine)
    finally:
        engine.dispose()


def _revision(connection: sa.Connection) -> str | None:
    """The revision of a database; None if it is empty."""
    names = set(sa.inspect(connection).get_table_names())
    found = None
    if "alembic_version" in names:
        found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    if found is None and names - {"alembic_version"}:
        raise DatabaseNotForUs(
            f"the database holds tables that are not Resolute's ({', '.join(sorted(names)[:3])}, ...); "
            "give the master a database of its own"
        )
    if found is not None and not [*_MIGRATIONS.glob(f"versions/{found}_*.py")]:
        raise DatabaseNotForUs(
            f"the database was written by a newer version of Resolute (its tables are at revision {found}, "
            f"this version knows {HEAD}); install that version again, or restore a backup made before"
        )
    return None if found is None else str(found)


def _upgrade(engine: sa.Engine) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["engine"] = engine
    command.upgrade(config, "head")
