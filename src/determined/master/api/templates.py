"""Templates: pieces of configuration that others start from."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path

from determined import errors
from determined.config import places
from determined.config.masking import mask
from determined.config.problems import as_exception
from determined.master.api.access import Caller, Db
from determined.master.api.identity import Identity
from determined.master.api.policy import Router, policy
from determined.master.lifecycle import projects
from determined.master.records import Template
from determined.master.store import templates
from determined.master.store.database import Tx
from determined.wire.requests import SetTemplate
from determined.wire.views import TemplateView

router = Router()

Name = Annotated[str, Path(pattern="^[A-Za-z0-9_][A-Za-z0-9_ .-]{0,127}$", description="The template's name.")]


@router.get("/templates", dependencies=[policy("read")])
async def list_templates(db: Db) -> list[TemplateView]:
    """All templates."""
    return await db.read(_list)


@router.get("/templates/{name}", dependencies=[policy("read")])
async def get_template(name: Name, db: Db) -> TemplateView:
    """One template."""
    return show(await db.read(require, name))


@router.put("/templates/{name}", dependencies=[policy("write")])
async def set_template(name: Name, asked: SetTemplate, caller: Caller, db: Db) -> TemplateView:
    """Make a template, or give one another content."""
    written = places.read_yaml(asked.config, f"template {name}")
    if written.problems:
        raise as_exception(written.problems, f"template {name}")
    if not isinstance(written.data, dict):
        raise errors.InvalidConfigurationException(f"template {name} must be a map of fields, as a config is")
    return await db.write(_put, name, written.data, asked.workspace_id, caller)


@router.delete("/templates/{name}", dependencies=[policy("write")], status_code=204)
async def delete_template(name: Name, caller: Caller, db: Db) -> None:
    """Remove a template. What was started from it is as it was."""
    await db.write(_delete, name, caller)


def show(template: Template) -> TemplateView:
    """A template as the API shows one: secrets masked."""
    return TemplateView(
        name=template.name,
        config=mask(template.config),
        workspace_id=template.workspace_id,
        user_id=template.user_id,
    )


def require(tx: Tx, name: str) -> Template:
    """The template; raises NotFound."""
    found = templates.get(tx, name)
    if found is None:
        raise errors.NotFound(f"there is no template {name}")
    return found


def _list(tx: Tx) -> list[TemplateView]:
    return [show(template) for template in templates.everything(tx)]


def _put(tx: Tx, name: str, config: dict[str, Any], workspace_id: int | None, caller: Identity) -> TemplateView:
    if workspace_id is not None:
        projects.require_workspace(tx, workspace_id)
    found = templates.get(tx, name)
    if found is not None:
        caller.require_owner(found.user_id, f"template {name}")
    tx.changed("template", name)
    return show(templates.put(tx, name, config, workspace_id, caller.user_id))


def _delete(tx: Tx, name: str, caller: Identity) -> None:
    caller.require_owner(require(tx, name).user_id, f"template {name}")
    templates.delete(tx, name)
    tx.changed("template", name, deleted=True)
