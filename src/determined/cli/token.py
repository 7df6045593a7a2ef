"""`det token`: tokens for programs."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli import choose, render, session
from determined.cli.nouns import noun_app, verb
from determined.cli.output import formatted

if TYPE_CHECKING:
    from determined.wire.views import TokenView

app = noun_app("Tokens for programs.")

_SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@verb(app, "create")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What it is for.")] = "",
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="read, write, admin; default: read and write.")
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", "--expiration-days", help="For how long: 12h, 30d, 8w, or never.")
    ] = "30d",
    user: Annotated[str | None, typer.Option("--for", help="For another user; administrators may.")] = None,
) -> None:
    """Make a token. It is printed once, here and now."""
    from determined.wire import requests

    master = session.master(context)
    fields: dict[str, Any] = {"name": name, "expires_in_seconds": _lifetime(expires)}
    if scope:
        fields["scopes"] = scope
    if user:
        fields["user_id"] = choose.one("user", user, master.users(), lambda each: (each.id, each.username)).id
    made = master.create_token(session.request(requests.CreateToken, **fields))
    session.tell(f"token {made.id}, scopes {', '.join(made.scopes)}; it is not shown again")
    print(made.token)


@verb(app, "list", "ls")
@formatted
def list_tokens(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Ended ones too.")] = False,
    form: render.Format = render.Format.TABLE,
) -> None:
    """Show your tokens, without what is secret about them; administrators see everybody's."""
    found = session.master(context).tokens()
    rows = [_row(each, form) for each in found if everything or not _has_ended(each)]
    columns = ["id", "name", "kind", "scopes", "user", "created", "expires", "last_used"]
    render.listing(rows, columns, form, empty="No tokens.")


@verb(app, "revoke")
def revoke(
    context: typer.Context, token: Annotated[list[int], typer.Argument(metavar="ID...", help="Their ids.")]
) -> None:
    """End tokens at once."""
    master = session.master(context)
    for each in token:
        master.revoke_token(each)
        print(f"Token {each} revoked")


def _has_ended(token: TokenView) -> bool:
    return token.revoked_at is not None or (token.expires_at is not None and token.expires_at < time.time())


def _row(token: TokenView, form: render.Format) -> Mapping[str, Any]:
    if form not in (render.Format.TABLE, render.Format.CSV):
        return token.model_dump(exclude={"token"})
    row: dict[str, Any] = {
        **token.model_dump(exclude={"token"}),
        "scopes": " ".join(token.scopes),
        "user": token.user_id,
        "created": token.created_at,
        "expires": token.expires_at,
        "last_used": token.last_used_at,
    }
    if form is render.Format.TABLE:
        row["created"] = render.age(token.created_at)
        row["last_used"] = render.age(token.last_used_at) if token.last_used_at else "never"
        row["expires"] = "never" if token.expires_at is None else render.until(token.expires_at)
        if token.revoked_at:
            row["expires"] = "revoked"
    return row


def _lifetime(text: str) -> float | None:
    if text == "never":
        return None
    match = re.fullmatch(r"(\d+)([hdw]?)", text)
    if match is None or int(match[1]) == 0:
        raise typer.BadParameter(f"{text!r} is no time; write 12h, 30d, 8w, or never")
    return int(match[1]) * _SECONDS[match[2] or "d"]
