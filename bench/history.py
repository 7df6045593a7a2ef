"""A master's past: a real experiment of ten trials, multiplied in the database until there are thousands.

The first is made by a master as it makes any; its rows are then copied with other ids, by the database itself. All of
the tables that hold what a trial leaves are copied, its checkpoints' and its series' too. Its files are not.
"""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3

from bench.master import own_master
from determined.master.store import tables

TRIALS = 10  # of an experiment
ROWS = 100  # of metrics, of a trial
_SCRIPT = f"""
from determined import core

with core.init() as context:
    for step in range(1, {ROWS} * 9 // 10 + 1):
        context.train.report_training_metrics(step, {{"loss": 1 / step, "accuracy": 1 - 1 / step}})
        if step % 9 == 0:
            context.train.report_validation_metrics(step, {{"error": 1 / step}})
    with context.checkpoint.store_path({{"steps_completed": step}}) as (path, _):
        (path / "weights").write_bytes(bytes(1000))
"""
_CONFIG = {
    "name": "history",
    "entrypoint": "python train.py",
    "hyperparameters": {
        "x": {"type": "double", "minval": 0, "maxval": 1},
        "layers": {"type": "int", "minval": 1, "maxval": 8},
        "optimizer": {"type": "categorical", "vals": ["sgd", "adam", "lion"]},
    },
    "searcher": {"name": "random", "metric": "error", "max_trials": TRIALS},
    "max_restarts": 0,
}
# How the ids of a copy follow from those of the first; :trials is how many of them there are before it.
_IDS = {
    "experiment_id": "experiment_id + copy",
    "trial_id": "trial_id + copy * :trials",
    "best_trial_id": "best_trial_id + copy * :trials",
    "allocation_id": "'trial-' || (substr(allocation_id, 7) + copy * :trials) || '.1'",
    "task_id": "'trial-' || (substr(task_id, 7) + copy * :trials)",
    "uuid": "substr(uuid, 1, 28) || printf('%08x', copy)",
    "latest_checkpoint": "substr(latest_checkpoint, 1, 28) || printf('%08x', copy)",
}
_OWN_IDS = {
    "experiments": "id + copy",
    "trials": "id + copy * :trials",
    "allocations": "'trial-' || (substr(id, 7) + copy * :trials) || '.1'",
}
_COPIED = (
    tables.experiments,
    tables.searches,
    tables.search_snapshots,
    tables.search_events,
    tables.trials,
    tables.allocations,
    tables.spools,
    tables.checkpoints,
    tables.metrics,
    tables.series_buckets,
    tables.series_tails,
)


def seed(folder: pathlib.Path) -> None:
    """One experiment, in the folder of a master that serves no more."""
    code = folder.with_name(f"{folder.name}-code")
    code.mkdir()
    (code / "train.py").write_text(_SCRIPT)
    with own_master(folder) as master:
        master.wait(master.submit(code, _CONFIG))


def multiply(folder: pathlib.Path, experiments: int) -> dict[str, int]:
    """Make the one experiment so many; returns how many rows each of the larger tables has."""
    with contextlib.closing(sqlite3.connect(folder / "master.db", isolation_level=None)) as connection:
        for pragma in ("journal_mode = DELETE", "synchronous = OFF", "cache_size = -200000", "temp_store = MEMORY"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.execute("BEGIN")
        for table in _COPIED:
            _copy(connection, table.name, [column.name for column in table.columns], experiments)
        connection.execute("COMMIT")
        return {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in ("experiments", "trials", "metrics")
        }


def _copy(connection: sqlite3.Connection, table: str, columns: list[str], experiments: int) -> None:
    named = ", ".join(f'"{column}"' for column in columns)
    values = [_OWN_IDS.get(table, '"id"') if column == "id" else _IDS.get(column, f'"{column}"') for column in columns]
    connection.execute(f'CREATE TEMP TABLE "first" AS SELECT {named} FROM main."{table}"')
    connection.execute(
        "WITH RECURSIVE copies(copy) AS (SELECT 1 UNION ALL SELECT copy + 1 FROM copies WHERE copy < :copies) "
        f'INSERT INTO main."{table}" ({named}) SELECT {", ".join(values)} FROM copies CROSS JOIN "first" '
        "WHERE :copies > 0",
        {"trials": TRIALS, "copies": experiments - 1},
    )
    connection.execute('DROP TABLE "first"')
