"""The tables, as the newest migration leaves them. SQLite and PostgreSQL alike.

Times are seconds since 1970. Documents are JSON text, so that NaN and infinities survive and both databases store the
same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson
import sqlalchemy as sa

metadata = sa.MetaData()


class Document(sa.types.TypeDecorator[Any]):
    """A JSON document as text. NaN and infinities are kept: they are written as Python's json writes them."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else encode(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        return None if value is None else decode(value)


def encode(value: Any) -> str:
    """A document as text."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a number of more than 64 bits, half a character
        return json.dumps(value, separators=(",", ":"))
    # orjson writes null for what is no finite number: only documents that contain one pay for the slow way.
    if b"null" in text:
        return json.dumps(value, separators=(",", ":"))
    return text.decode()


def encode_many(values: Sequence[Any]) -> list[str]:
    """Many documents as texts."""
    try:
        texts = [text.decode() for text in map(orjson.dumps, values)]
    except TypeError:
        return [*map(encode, values)]
    return [*map(encode, values)] if "null" in "".join(texts) else texts


def decode(text: str) -> Any:
    """A document from its text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def _id() -> sa.Column[int]:
    return sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True)


def _time(name: str, nullable: bool = True) -> sa.Column[float]:
    return sa.Column(name, sa.Float(53), nullable=nullable)


def _flag(name: str, default: bool = False) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, default=default)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, default="")


settings = sa.Table(
    "settings",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", Document, nullable=False),
)

users = sa.Table(
    "users",
    metadata,
    _id(),
    sa.Column("username", sa.Text, nullable=False, unique=True),
    _text("display_name"),
    sa.Column("password_hash", sa.Text),
    _flag("admin"),
    _flag("active", True),
    _time("created_at", False),
)

tokens = sa.Table(
    "tokens",
    metadata,
    _id(),
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="CASCADE"), index=True),
    sa.Column("allocation_id", sa.Text, index=True),
    sa.Column("kind", sa.Text, nullable=False),  # session, access, allocation, setup
    _text("name"),
    sa.Column("hash", sa.Text, nullable=False, unique=True),
    sa.Column("scopes", Document, nullable=False),
    _time("created_at", False),
    _time("expires_at"),
    _time("revoked_at"),
    _time("last_used_at"),
)

workspaces = sa.Table(
    "workspaces",
    metadata,
    _id(),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    _flag("archived"),
    _flag("immutable"),
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="SET NULL")),
    _time("created_at", False),
)

projects = sa.Table(
    "projects",
    metadata,
    _id(),
    sa.Column("workspace_id", sa.ForeignKey("workspaces.id"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    _text("description"),
    _text("notes"),
    _flag("archived"),
    _flag("immutable"),
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="SET NULL")),
    _time("created_at", False),
    sa.UniqueConstraint("workspace_id", "name"),
)

experiments = sa.Table(
    "experiments",
    metadata,
    _id(),
    sa.Column("project_id", sa.ForeignKey("projects.id"), nullable=False),
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="SET NULL")),
    _text("name"),
    _text("description"),
    _text("notes"),
    sa.Column("labels", Document, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("wanted", sa.Text, nullable=False),
    _flag("archived"),
    sa.Column("progress", sa.Float(53), nullable=False, default=0.0),
    _text("searcher"),
    sa.Column("metric", sa.Text),
    _flag("smaller_is_better", True),
    _text("resource_pool"),
    sa.Column("slots_per_trial", sa.Integer, nullable=False, default=1),
    _flag("single_node"),  # all slots of a trial on one machine
    sa.Column("priority", sa.Integer),
    sa.Column("weight", sa.Float(53), nullable=False, default=1.0),
    sa.Column("max_slots", sa.Integer),
    sa.Column("max_restarts", sa.Integer, nullable=False, default=5),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("context_sha256", sa.Text),
    sa.Column("python", sa.Text),  # the submitter's interpreter, for pools on the same machine
    sa.Column("parent_id", sa.BigInteger),
    _flag("unmanaged"),
    sa.Column("external_id", sa.Text, unique=True),
    sa.Column("best_trial_id", sa.BigInteger),
    sa.Column("best_metric", sa.Float(53)),
    sa.Column("trial_count", sa.Integer, nullable=False, default=0),
    sa.Column("checkpoint_count", sa.Integer, nullable=False, default=0),
    sa.Column("checkpoint_size", sa.BigInteger, nullable=False, default=0),
    sa.Column("source_checkpoint", sa.Text),  # whose weights its trials begin with
    sa.Column("error", sa.Text),
    _time("queued_at", False),
    _time("created_at", False),
    _time("started_at"),
    _time("ended_at"),
    # The long ones last: SQLite reads a row up to the last column that is asked for.
    sa.Column("notices", Document, nullable=False),
    sa.Column("config", Document, nullable=False),  # merged and checked, as it is: views mask its secrets
    _text("written_config"),  # the YAML as it was submitted
    sa.Index("experiments_shown", "archived", "id"),
    sa.Index("experiments_in_project", "project_id", "archived", "id"),
    sa.Index("experiments_of_user", "user_id", "archived", "id"),
    sa.Index("experiments_by_state", "state", "wanted", "id"),
    sa.Index("experiments_by_metric", "best_metric", "id"),
    # An id names folders and processes outside of the database, so that none is ever given twice.
    sqlite_autoincrement=True,
)

# How the search of an experiment stands. Short, because every event changes it.
searches = sa.Table(
    "searches",
    metadata,
    sa.Column("experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("events", sa.Integer, nullable=False, default=0),  # how many it has been told
    _flag("is_over"),  # it creates no more trials
    sa.Column("unit", sa.Text),  # what targets are counted in
    sa.Column("failure", sa.Text),
)

# What SearchMethod.dump gave after so many events; later ones are replayed on top.
search_snapshots = sa.Table(
    "search_snapshots",
    metadata,
    sa.Column("experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("events", sa.Integer, nullable=False),
    sa.Column("state", Document, nullable=False),
)

# What a search was told and what it answered, in order: the experiment's history, from which it can be replayed.
search_events = sa.Table(
    "search_events",
    metadata,
    sa.Column("experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),  # start, validation, exit, continue
    sa.Column("trial", sa.Integer),
    sa.Column("told", Document),
    sa.Column("actions", Document, nullable=False),
    _time("time", False),
)

trials = sa.Table(
    "trials",
    metadata,
    _id(),
    sa.Column("experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE"), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("wanted", sa.Text, nullable=False),
    sa.Column("hparams", Document, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("target", sa.Float(53)),
    sa.Column("copy_of", sa.Integer),  # number of the trial whose latest checkpoint it starts from
    sa.Column("copy_from_steps", sa.BigInteger),  # while it waits for that checkpoint: of these steps, or later
    sa.Column("steps_completed", sa.BigInteger, nullable=False, default=0),
    sa.Column("progress", sa.Float(53), nullable=False, default=0.0),
    _text("status"),
    sa.Column("restarts", sa.Integer, nullable=False, default=0),
    sa.Column("losses", sa.Integer, nullable=False, default=0),  # attempts lost one after another
    _time("retry_at"),  # not to be started before
    sa.Column(
        "crashes", sa.Integer, nullable=False, default=0, server_default="0"
    ),  # the same one after another, without progress
    sa.Column("log_labels", Document),  # the log policies that were found
    sa.Column("excluded_nodes", Document),  # machines on which it is not to be started
    sa.Column("run_epoch", sa.Integer, nullable=False, default=0),
    sa.Column("latest_checkpoint", sa.Text),  # its own latest; where it goes on
    sa.Column("source_checkpoint", sa.Text),  # where it began: weights of another
    sa.Column("searched_steps", sa.BigInteger, nullable=False, default=-1),  # validations up to here were fed
    sa.Column("held_steps", sa.BigInteger),  # of a validation that is fed when a checkpoint has made it last
    sa.Column("best_metric", sa.Float(53)),
    sa.Column("best_step", sa.BigInteger),
    sa.Column("exit", sa.Text),  # how it ended, in the search's words
    _flag("exit_told"),  # the search knows that it ended, and hears no more of it
    sa.Column("error", sa.Text),
    sa.Column("external_id", sa.Text),
    _time("queued_at", False),
    _time("created_at", False),
    _time("started_at"),
    _time("ended_at"),
    sa.Column("latest_validation", Document),
    sa.Column("summary_metrics", Document, nullable=False),
    sa.Column("metadata", Document, nullable=False),
    sa.UniqueConstraint("experiment_id", "number"),
    sa.UniqueConstraint("experiment_id", "external_id"),
    sa.Index("trials_by_state", "experiment_id", "state"),
    sa.Index("trials_by_metric", "experiment_id", "best_metric"),
    sqlite_autoincrement=True,
)

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),  # job, command, notebook, tensorboard
    _text("name"),
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="SET NULL")),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("wanted", sa.Text, nullable=False),
    sa.Column("config", Document, nullable=False),
    _text("resource_pool"),
    sa.Column("slots", sa.Integer, nullable=False, default=0),
    sa.Column("priority", sa.Integer),
    sa.Column("weight", sa.Float(53), nullable=False, default=1.0),
    sa.Column("losses", sa.Integer, nullable=False, default=0),
    _time("retry_at"),
    sa.Column("run_epoch", sa.Integer, nullable=False, default=0),
    sa.Column("context_sha256", sa.Text),
    sa.Column("python", sa.Text),
    sa.Column("url", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("exit_code", sa.Integer),
    _time("queued_at", False),
    _time("created_at", False),
    _time("started_at"),
    _time("ended_at"),
)

allocations = sa.Table(
    "allocations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # "trial-12.3": the task's id and the run epoch
    sa.Column("task_id", sa.Text, nullable=False, index=True),  # "trial-12", or a task's id
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), index=True),
    sa.Column("experiment_id", sa.BigInteger, index=True),
    sa.Column("run_epoch", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False, index=True),  # assigned, running, stopping, ended
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("placement", Document, nullable=False),
    sa.Column("target", sa.Float(53)),
    sa.Column("from_checkpoint", sa.Text),
    sa.Column("stop_reason", sa.Text),
    _time("stop_asked_at"),
    sa.Column("early_exit", sa.Text),  # the training code said why it ends before its time
    sa.Column("outcome", sa.Text),
    sa.Column("exit_code", sa.Integer),
    _text("reason"),
    _time("heard_at"),  # when its node last spoke to us, by the master's clock
    _time("created_at", False),
    _time("started_at"),
    _time("ended_at"),
)

# How much of each spool of an allocation has been taken: each line once.
spools = sa.Table(
    "spools",
    metadata,
    sa.Column("allocation_id", sa.ForeignKey("allocations.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("acknowledged", sa.BigInteger, nullable=False, default=0),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("uuid", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False, index=True),  # completed, deleting, deleted, partially_deleted
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE")),
    sa.Column("experiment_id", sa.BigInteger),
    sa.Column("task_id", sa.Text),
    sa.Column("allocation_id", sa.Text),
    sa.Column("steps_completed", sa.BigInteger, nullable=False, default=0),
    sa.Column("resources", Document, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False, default=0),
    sa.Column("metadata", Document, nullable=False),
    sa.Column("storage", Document, nullable=False),
    sa.Column("searcher_metric", sa.Float(53)),  # the validation at exactly its step
    _time("reported_at", False),
    _time("deleted_at"),
    sa.Column("globs", Document),  # while deleting: only files that match one of these; absent: all
    sa.Index("checkpoints_of_trial", "trial_id", "steps_completed"),
    sa.Index("checkpoints_of_experiment", "experiment_id", "state", "searcher_metric"),
)

# The last number given to things that are numbered outside of the database, too: none is given twice.
counters = sa.Table(
    "counters",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)

# One row for each report; of a trial's steps in a group there is one row, of the newest run epoch.
metrics = sa.Table(
    "metrics",
    metadata,
    sa.Column("trial_id", sa.BigInteger, primary_key=True),
    sa.Column("group", sa.Text, primary_key=True),
    sa.Column("steps_completed", sa.BigInteger, primary_key=True),
    sa.Column("run_epoch", sa.Integer, nullable=False),
    _time("time", False),
    sa.Column("metrics", sa.Text, nullable=False),  # a document; encoded by hand because there are so many
    sqlite_with_rowid=False,
)

# Series thinned while they come in: each closed bucket of 8**level points of one metric.
series_buckets = sa.Table(
    "series_buckets",
    metadata,
    sa.Column("trial_id", sa.BigInteger, primary_key=True),
    sa.Column("group", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("level", sa.Integer, primary_key=True),
    sa.Column("bucket", sa.BigInteger, primary_key=True),
    sa.Column("first_step", sa.BigInteger, nullable=False),
    sa.Column("last_step", sa.BigInteger, nullable=False),
    sa.Column("min", sa.Float(53)),
    sa.Column("max", sa.Float(53)),
    sa.Column("last", sa.Float(53)),  # none is a number: min and max are of those that are
    _time("time", False),  # of the last
    sqlite_with_rowid=False,
)

# What is not in a closed bucket yet, of all metrics of a group: as it was after so many steps. Later rows come on top.
series_tails = sa.Table(
    "series_tails",
    metadata,
    sa.Column("trial_id", sa.BigInteger, primary_key=True),
    sa.Column("group", sa.Text, primary_key=True),
    sa.Column("steps_completed", sa.BigInteger, nullable=False),
    sa.Column("state", Document, nullable=False),
    sqlite_with_rowid=False,
)

contexts = sa.Table(
    "contexts",
    metadata,
    sa.Column("sha256", sa.Text, primary_key=True),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("files", Document, nullable=False),
    _time("created_at", False),
)

# What changed, for whoever watches; old rows are dropped.
changes = sa.Table(
    "changes",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    _time("time", False),
    sa.Column("noun", sa.Text, nullable=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("experiment_id", sa.BigInteger),
    sa.Column("fields", Document, nullable=False),
    sqlite_autoincrement=True,
)

# Answers to changing calls that carried an idempotency key.
answers = sa.Table(
    "answers",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),  # the caller's key, hashed with who and what
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    _time("created_at", False),
)

models = sa.Table(
    "models",
    metadata,
    _id(),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    _text("description"),
    _text("notes"),
    sa.Column("labels", Document, nullable=False),
    sa.Column("metadata", Document, nullable=False),
    _flag("archived"),
    sa.Column("workspace_id", sa.ForeignKey("workspaces.id")),
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="SET NULL")),
    _time("created_at", False),
    _time("updated_at", False),
)

model_versions = sa.Table(
    "model_versions",
    metadata,
    sa.Column("model_id", sa.ForeignKey("models.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("checkpoint_uuid", sa.ForeignKey("checkpoints.uuid"), nullable=False, index=True),
    _text("name"),
    _text("comment"),
    _text("notes"),
    sa.Column("labels", Document, nullable=False),
    sa.Column("metadata", Document, nullable=False),
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="SET NULL")),
    _time("created_at", False),
)

templates = sa.Table(
    "templates",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("config", Document, nullable=False),
    sa.Column("workspace_id", sa.ForeignKey("workspaces.id")),
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="SET NULL")),
)
