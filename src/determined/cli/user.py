"""`det user`: who may sign in, and who is signed in here."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined import errors
from determined.cli import choose, render, session
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

if TYPE_CHECKING:
    from determined.client.master import Master
    from determined.wire.views import UserView

app = noun_app("Users: sign in and out, create, edit.")

Username = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]


@verb(app, "login")
def login(
    context: typer.Context,
    username: Annotated[str | None, typer.Argument(help="Who; asked for if absent.")] = None,
) -> None:
    """Sign in with a password; it is asked for, or comes from $DET_PASS or a pipe."""
    from determined.client.credentials import Credentials
    from determined.client.master import Master

    settings = context.find_root().obj
    around = session.surroundings(context)
    url = session.address(context)
    name = username or settings.user or typer.prompt("User", err=True)
    password = around.password or _password()
    signed_in = Master(url).login(name, password)
    Credentials(around.config_folder).remember(Master(url).url, name, signed_in.token)
    print(render.plain(f"Signed in as {signed_in.user.username} at {url}"))


@verb(app, "logout")
def logout(
    context: typer.Context,
    username: Annotated[str | None, typer.Argument(help="Who; default: whoever signed in last.")] = None,
) -> None:
    """Sign out: the token kept here ends."""
    from determined.client.credentials import Credentials
    from determined.client.master import Master

    around = session.surroundings(context)
    url = Master(session.address(context)).url
    credentials = Credentials(around.config_folder)
    name = username or context.find_root().obj.user or credentials.user(url)
    token = credentials.token(url, name)
    if name is None or token is None:
        raise errors.Unauthenticated(f"nobody is signed in at {url} from here")
    try:
        Master(url, token).logout()
    except errors.Unauthenticated:
        pass  # It has ended by itself.
    credentials.forget(url, name)
    print(render.plain(f"{name} signed out of {url}"))


@verb(app, "whoami")
def whoami(context: typer.Context) -> None:
    """Say who you are to the master."""
    master = session.master(context)
    me = master.me()
    print(render.plain(f"{me.username}{' (administrator)' if me.admin else ''} at {master.url}"))


@verb(app, "list", "ls")
@formatted
def list_users(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Deactivated ones too.")] = False,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show the users."""
    found = session.master(context).users()
    rows = [each.model_dump() for each in found if everything or each.active]
    render.listing(rows, ["id", "username", "display_name", "admin", "active"], form)


@verb(app, "create")
def create(
    context: typer.Context,
    username: Username,
    admin: Annotated[bool, typer.Option("--admin", help="May do everything.")] = False,
    display_name: Annotated[str, typer.Option("--display-name", help="The name people see.")] = "",
    no_password: Annotated[
        bool, typer.Option("--no-password", help="Set one later; until then nobody can sign in.")
    ] = False,
) -> None:
    """Make a user; the password is asked for, or read from stdin."""
    from determined.wire import requests

    master = session.master(context)
    made = master.create_user(
        session.request(
            requests.CreateUser,
            username=username,
            display_name=display_name,
            password=None if no_password else _new_password(),
            admin=admin,
        )
    )
    print(render.plain(f"Created user {made.username}"))


@verb(app, "change-password")
def change_password(
    context: typer.Context, username: Annotated[str | None, typer.Argument(help="Whose; default: your own.")] = None
) -> None:
    """Change a password; all sign-ins of that user end."""
    from determined.wire import requests

    master = session.master(context)
    me = master.me()
    user = _find(master, username) if username else me
    current = None
    if user.id == me.id and sys.stdin.isatty():
        current = typer.prompt(
            "Current password (empty if there is none)", default="", hide_input=True, err=True, show_default=False
        )
    body = session.request(
        requests.ChangePassword, password=_new_password(), current=current or os.environ.get("DET_PASS")
    )
    master.change_password(user.id, body)
    print(render.plain(f"The password of {user.username} is changed"))


@verb(app, "edit")
def edit(
    context: typer.Context,
    username: Username,
    display_name: Annotated[str | None, typer.Option("--display-name", help="The name people see.")] = None,
    name: Annotated[str | None, typer.Option("--username", help="The name to sign in with.")] = None,
    admin: Annotated[bool | None, typer.Option("--admin/--no-admin", help="Whether they may do everything.")] = None,
    active: Annotated[bool | None, typer.Option("--activate/--deactivate", help="Whether they may sign in.")] = None,
) -> None:
    """Change a user."""
    _edit(context, username, display_name=display_name, username=name, admin=admin, active=active)


@verb(app, "rename")
def rename(context: typer.Context, username: Username, new_name: str) -> None:
    """Change the name a user signs in with."""
    _edit(context, username, username=new_name)


@verb(app, "activate")
def activate(context: typer.Context, username: Username) -> None:
    """Let a user sign in again."""
    _edit(context, username, active=True)


@verb(app, "deactivate")
def deactivate(context: typer.Context, username: Username) -> None:
    """Keep a user from signing in; what is theirs stays."""
    _edit(context, username, active=False)


def _edit(context: typer.Context, who: str, **changes: Any) -> None:
    from determined.wire import requests

    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        raise typer.BadParameter("say what to change; --help lists what there is")
    master = session.master(context)
    user = _find(master, who)
    changed = master.edit_user(user.id, session.request(requests.EditUser, **given))
    print(render.plain(f"User {changed.username} changed"))


def _find(master: Master, name: str) -> UserView:
    return choose.one("user", name, master.users(), lambda user: (user.id, user.username))


def _password() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, err=True))
    return sys.stdin.readline().rstrip("\n")


def _new_password() -> str:
    """From somebody who types it twice, or from a pipe; never from an argument, which others can see."""
    if sys.stdin.isatty():
        return str(typer.prompt("New password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\n")
