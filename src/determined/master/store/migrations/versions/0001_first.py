"""The tables of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create everything."""
    op.create_table(
        "answers",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "changes",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("time", sa.Float(precision=53), nullable=False),
        sa.Column("noun", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("experiment_id", sa.BigInteger(), nullable=True),
        sa.Column("fields", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "contexts",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "counters",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "metrics",
        sa.Column("trial_id", sa.BigInteger(), nullable=False),
        sa.Column("group", sa.Text(), nullable=False),
        sa.Column("steps_completed", sa.BigInteger(), nullable=False),
        sa.Column("run_epoch", sa.Integer(), nullable=False),
        sa.Column("time", sa.Float(precision=53), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("trial_id", "group", "steps_completed"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "series_buckets",
        sa.Column("trial_id", sa.BigInteger(), nullable=False),
        sa.Column("group", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("bucket", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("min", sa.Float(precision=53), nullable=True),
        sa.Column("max", sa.Float(precision=53), nullable=True),
        sa.Column("last", sa.Float(precision=53), nullable=True),
        sa.Column("time", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("trial_id", "group", "name", "level", "bucket"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "series_tails",
        sa.Column("trial_id", sa.BigInteger(), nullable=False),
        sa.Column("group", sa.Text(), nullable=False),
        sa.Column("steps_completed", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("trial_id", "group"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "settings",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("username"),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("resource_pool", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=True),
        sa.Column("weight", sa.Float(precision=53), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("retry_at", sa.Float(precision=53), nullable=True),
        sa.Column("run_epoch", sa.Integer(), nullable=False),
        sa.Column("context_sha256", sa.Text(), nullable=True),
        sa.Column("python", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("queued_at", sa.Float(precision=53), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=True),
        sa.Column("ended_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_tasks_state"), "tasks", ["state"], unique=False)
    op.create_table(
        "tokens",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("allocation_id", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("expires_at", sa.Float(precision=53), nullable=True),
        sa.Column("revoked_at", sa.Float(precision=53), nullable=True),
        sa.Column("last_used_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hash"),
    )
    op.create_index(op.f("ix_tokens_allocation_id"), "tokens", ["allocation_id"], unique=False)
    op.create_index(op.f("ix_tokens_user_id"), "tokens", ["user_id"], unique=False)
    op.create_table(
        "workspaces",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("immutable", sa.Boolean(), nullable=False),
        sa.Column("user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("workspace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("updated_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["workspace_id"],
            ["workspaces.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("workspace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("immutable", sa.Boolean(), nullable=False),
        sa.Column("user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["workspace_id"],
            ["workspaces.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("workspace_id", "name"),
    )
    op.create_table(
        "templates",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["workspace_id"],
            ["workspaces.id"],
        ),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "experiments",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("project_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("progress", sa.Float(precision=53), nullable=False),
        sa.Column("searcher", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=True),
        sa.Column("smaller_is_better", sa.Boolean(), nullable=False),
        sa.Column("resource_pool", sa.Text(), nullable=False),
        sa.Column("slots_per_trial", sa.Integer(), nullable=False),
        sa.Column("single_node", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=True),
        sa.Column("weight", sa.Float(precision=53), nullable=False),
        sa.Column("max_slots", sa.Integer(), nullable=True),
        sa.Column("max_restarts", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("context_sha256", sa.Text(), nullable=True),
        sa.Column("python", sa.Text(), nullable=True),
        sa.Column("parent_id", sa.BigInteger(), nullable=True),
        sa.Column("unmanaged", sa.Boolean(), nullable=False),
        sa.Column("external_id", sa.Text(), nullable=True),
        sa.Column("best_trial_id", sa.BigInteger(), nullable=True),
        sa.Column("best_metric", sa.Float(precision=53), nullable=True),
        sa.Column("trial_count", sa.Integer(), nullable=False),
        sa.Column("checkpoint_count", sa.Integer(), nullable=False),
        sa.Column("checkpoint_size", sa.BigInteger(), nullable=False),
        sa.Column("source_checkpoint", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("queued_at", sa.Float(precision=53), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=True),
        sa.Column("ended_at", sa.Float(precision=53), nullable=True),
        sa.Column("notices", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("written_config", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["projects.id"],
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("external_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("experiments_by_metric", "experiments", ["best_metric", "id"], unique=False)
    op.create_index("experiments_by_state", "experiments", ["state", "wanted", "id"], unique=False)
    op.create_index("experiments_in_project", "experiments", ["project_id", "archived", "id"], unique=False)
    op.create_index("experiments_of_user", "experiments", ["user_id", "archived", "id"], unique=False)
    op.create_index("experiments_shown", "experiments", ["archived", "id"], unique=False)
    op.create_table(
        "search_events",
        sa.Column("experiment_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("trial", sa.Integer(), nullable=True),
        sa.Column("told", sa.Text(), nullable=True),
        sa.Column("actions", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("experiment_id", "number"),
    )
    op.create_table(
        "search_snapshots",
        sa.Column("experiment_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("experiment_id"),
    )
    op.create_table(
        "searches",
        sa.Column("experiment_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("is_over", sa.Boolean(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("experiment_id"),
    )
    op.create_table(
        "trials",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("experiment_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.Column("hparams", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.Float(precision=53), nullable=True),
        sa.Column("copy_of", sa.Integer(), nullable=True),
        sa.Column("copy_from_steps", sa.BigInteger(), nullable=True),
        sa.Column("steps_completed", sa.BigInteger(), nullable=False),
        sa.Column("progress", sa.Float(precision=53), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("retry_at", sa.Float(precision=53), nullable=True),
        sa.Column("run_epoch", sa.Integer(), nullable=False),
        sa.Column("latest_checkpoint", sa.Text(), nullable=True),
        sa.Column("source_checkpoint", sa.Text(), nullable=True),
        sa.Column("searched_steps", sa.BigInteger(), nullable=False),
        sa.Column("held_steps", sa.BigInteger(), nullable=True),
        sa.Column("best_metric", sa.Float(precision=53), nullable=True),
        sa.Column("best_step", sa.BigInteger(), nullable=True),
        sa.Column("exit", sa.Text(), nullable=True),
        sa.Column("exit_told", sa.Boolean(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("external_id", sa.Text(), nullable=True),
        sa.Column("queued_at", sa.Float(precision=53), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=True),
        sa.Column("ended_at", sa.Float(precision=53), nullable=True),
        sa.Column("latest_validation", sa.Text(), nullable=True),
        sa.Column("summary_metrics", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("experiment_id", "external_id"),
        sa.UniqueConstraint("experiment_id", "number"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_trials_state"), "trials", ["state"], unique=False)
    op.create_index("trials_by_metric", "trials", ["experiment_id", "best_metric"], unique=False)
    op.create_index("trials_by_state", "trials", ["experiment_id", "state"], unique=False)
    op.create_table(
        "allocations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("trial_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("experiment_id", sa.BigInteger(), nullable=True),
        sa.Column("run_epoch", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("placement", sa.Text(), nullable=False),
        sa.Column("target", sa.Float(precision=53), nullable=True),
        sa.Column("from_checkpoint", sa.Text(), nullable=True),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("stop_asked_at", sa.Float(precision=53), nullable=True),
        sa.Column("early_exit", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("heard_at", sa.Float(precision=53), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=True),
        sa.Column("ended_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_allocations_experiment_id"), "allocations", ["experiment_id"], unique=False)
    op.create_index(op.f("ix_allocations_state"), "allocations", ["state"], unique=False)
    op.create_index(op.f("ix_allocations_task_id"), "allocations", ["task_id"], unique=False)
    op.create_index(op.f("ix_allocations_trial_id"), "allocations", ["trial_id"], unique=False)
    op.create_table(
        "checkpoints",
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("trial_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("experiment_id", sa.BigInteger(), nullable=True),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("allocation_id", sa.Text(), nullable=True),
        sa.Column("steps_completed", sa.BigInteger(), nullable=False),
        sa.Column("resources", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("storage", sa.Text(), nullable=False),
        sa.Column("searcher_metric", sa.Float(precision=53), nullable=True),
        sa.Column("reported_at", sa.Float(precision=53), nullable=False),
        sa.Column("deleted_at", sa.Float(precision=53), nullable=True),
        sa.Column("globs", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("uuid"),
    )
    op.create_index(
        "checkpoints_of_experiment", "checkpoints", ["experiment_id", "state", "searcher_metric"], unique=False
    )
    op.create_index("checkpoints_of_trial", "checkpoints", ["trial_id", "steps_completed"], unique=False)
    op.create_index(op.f("ix_checkpoints_state"), "checkpoints", ["state"], unique=False)
    op.create_table(
        "model_versions",
        sa.Column("model_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("checkpoint_uuid", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("user_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(
            ["checkpoint_uuid"],
            ["checkpoints.uuid"],
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("model_id", "version"),
    )
    op.create_index(op.f("ix_model_versions_checkpoint_uuid"), "model_versions", ["checkpoint_uuid"], unique=False)
    op.create_table(
        "spools",
        sa.Column("allocation_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("acknowledged", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["allocation_id"], ["allocations.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("allocation_id", "source"),
    )
