"""What log policies and repeated crashes leave behind on a trial."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. A database made between two revisions, before the first release, may have them."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("trials")}
    for column in (
        sa.Column("crashes", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("log_labels", sa.Text(), nullable=True),
        sa.Column("excluded_nodes", sa.Text(), nullable=True),
    ):
        if column.name not in there:
            op.add_column("trials", column)
