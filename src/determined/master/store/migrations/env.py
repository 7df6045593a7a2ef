"""How Alembic runs our revisions: each in a transaction of its own, on SQLite, too."""

from __future__ import annotations

from alembic import context

with context.config.attributes["engine"].connect() as connection:
    # Python's SQLite driver would end transactions at each CREATE; our engine begins them itself.
    context.configure(connection=connection, transactional_ddl=True, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()
