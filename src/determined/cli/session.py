"""Which master a command talks to, and for whom."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from determined import errors

if TYPE_CHECKING:
    from determined.client.autostart import LocalMaster
    from determined.client.credentials import Surroundings
    from determined.client.master import Master


_USUAL_PORT = 8080


def master(context: typer.Context) -> Master:
    """The master that was named (-m, DET_MASTER), else the one of this machine, which is started if it has to be."""
    # What speaks HTTP is not worth its import for --help.
    from determined.client import autostart
    from determined.client.master import Master
    from determined.client.transport import Session

    settings = context.find_root().obj
    around = surroundings(context)
    if settings.master:
        return Master(settings.master, _token(around, settings.master, settings.user))
    local = autostart.find_or_start(around, _on_a_free_port(settings.environ), _tell_of_start)
    token = _token(around, local.url, settings.user, local)
    return Master(local.url, session=Session(local.url, token, moved=autostart.whereabouts(around.state_folder)))


def address(context: typer.Context) -> str:
    """Where the master is that was named, else the one of this machine, which is started if it has to be."""
    from determined.client import autostart

    settings = context.find_root().obj
    if settings.master:
        return str(settings.master)
    return autostart.find_or_start(surroundings(context), _on_a_free_port(settings.environ), _tell_of_start).url


def surroundings(context: typer.Context) -> Surroundings:
    """What the environment says about masters and users."""
    from determined.client.credentials import Surroundings

    return Surroundings.of(context.find_root().obj.environ)


def tell(text: str) -> None:
    """Something people should know, and pipes should not."""
    from determined.cli import render

    print(render.sentences(text), file=sys.stderr, flush=True)


def request(model: Any, **fields: Any) -> Any:
    """A request to the master; what the options of a command got wrong is told as a wrong call."""
    import pydantic

    try:
        return model(**fields)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])).replace("_", " ")
        raise typer.BadParameter(f"{name}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


def _token(around: Surroundings, url: str, user: str | None, local: LocalMaster | None = None) -> str | None:
    """What shows who we are: a token given for this command, a sign-in of earlier, a password, this master's owner."""
    from determined.client import autostart
    from determined.client.credentials import Credentials
    from determined.client.master import Master

    if around.token:
        return around.token
    found = Credentials(around.config_folder).token(url, user)
    if found:
        return found
    if user and around.password:
        return Master(url).login(user, around.password).token
    local = local or autostart.find(around.state_folder)
    is_local = local is not None and local.url.rstrip("/") == Master(url).url
    if user and not is_local:
        raise errors.Unauthenticated(f"{user} is not signed in at {url}; sign in with: det -m {url} user login {user}")
    if local is None or not is_local:
        return None
    if user and Master(url, local.token).me().username != user:
        raise errors.Unauthenticated(f"{user} is not signed in at {url}; sign in with: det user login {user}")
    return local.token


def _on_a_free_port(environ: Mapping[str, str]) -> Mapping[str, str]:
    """For a master that nobody asked for: if somebody else has the usual port, it takes another."""
    import socket

    if environ.get("DET_MASTER_PORT") or environ.get("DET_MASTER_CONFIG"):
        return environ
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", _USUAL_PORT))
        except OSError:
            return {**environ, "DET_MASTER_PORT": "0"}
    return environ


def _tell_of_start(text: str) -> None:
    tell(f"{text}; 'det master down' stops it" if text.startswith("the master serves") else text)
