"""Who may call a route. Every route says so, or the app refuses to start; the check comes before anything of the
request's body is read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Literal

import orjson
from fastapi import APIRouter, Depends, FastAPI, params
from fastapi.datastructures import DefaultPlaceholder
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from determined import errors
from determined.master.api import errors as problems
from determined.master.api import replay, sending
from determined.master.api.identity import ANYONE, Identity

API = "/api/v1"
MAX_DEPTH = 64
_READS = ("GET", "HEAD", "OPTIONS")

_DESCRIPTIONS = ("response_field", "secure_cloned_response_field")

Who = Literal["anyone", "read", "write", "admin", "allocation"]
Allocations = Literal["none", "own", "any"]


@dataclasses.dataclass(frozen=True)
class Policy:
    """Who may call a route.

    ``who``: "anyone" without a credential; "read" and "write" any active user whose credential has that scope (whose
    thing it is, is for the handler to ask: ``caller.require_owner``); "admin" administrators; "allocation" only the
    token of the allocation that the path names. ``allocations`` is about tokens of allocations on other routes: "own"
    lets in the one that the path names, "any" every one. ``replays``: a call sent again under its idempotency key is
    answered from memory; False where that is so by nature, or where the body is a stream.
    """

    who: Who
    allocations: Allocations = "none"
    replays: bool = True

    async def __call__(self) -> None:
        """Nothing: GuardedRoute asks ``check`` before the body is read. This makes it a dependency, to be declared."""

    def check(self, caller: Identity, allocation_id: str | None) -> None:
        """Raises Unauthenticated or Forbidden, or NotFound where even to know would be too much."""
        if self.who == "anyone":
            return
        if caller is ANYONE:
            raise errors.Unauthenticated("sign in first: det user login")
        if caller.kind == "allocation":
            if self.who == "allocation" or self.allocations == "own":
                if allocation_id != caller.allocation_id:
                    raise errors.NotFound(f"there is no allocation {allocation_id}, or it is not for you to see")
            elif self.allocations == "none":
                raise errors.Forbidden(
                    "the token of an allocation is good for its own reports and for looking things up"
                )
            return
        if self.who == "allocation":
            raise errors.Forbidden("only the allocation itself may do this, by its own token")
        if self.who == "admin" and not caller.is_admin:
            raise errors.Forbidden("only an administrator may do this, by a credential that has the scope admin")
        if self.who not in caller.scopes:
            raise errors.Forbidden(f"this credential has not the scope {self.who}")


def policy(who: Who, *, allocations: Allocations = "none", replays: bool = True) -> Any:
    """Declares who may call: ``@router.get("/x", dependencies=[policy("read")])``."""
    return Depends(Policy(who, allocations, replays))


class GuardedRoute(APIRoute):
    """A route that lets nobody in whom its policy does not."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **chosen: Any) -> None:
        # Said outright: the framework's own way for answers of no said class cannot write NaN.
        if isinstance(chosen.get("response_class", None), (DefaultPlaceholder, type(None))):
            chosen["response_class"] = problems.Answer
        super().__init__(path, endpoint, **chosen)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        # What the answer is made of describes it, and is left out of making it: that way loses NaN too.
        described = {name: getattr(self, name) for name in _DESCRIPTIONS if hasattr(self, name)}
        vars(self).update(dict.fromkeys(described))
        try:
            handle = super().get_route_handler()
        finally:
            vars(self).update(described)
        declared = declared_policy(self)

        async def guarded(request: Request) -> Response:
            if declared is None:
                raise errors.Forbidden("nobody may call this: it has no policy")
            # A credential that has ended must not keep anybody from signing in.
            caller = ANYONE if declared.who == "anyone" else await request.app.state.doorkeeper.admit(request)
            declared.check(caller, request.path_params.get("allocation_id", request.path_params.get("id")))
            request = BoundedRequest(request.scope, request.receive)
            request.state.caller = caller
            key = request.headers.get("idempotency-key")
            if key is None or not declared.replays or request.method in _READS:
                return _fitted(request, await handle(request))
            return _fitted(request, await replay.once(request, caller, key, self.status_code or 200, handle))

        return guarded


def _fitted(request: Request, answer: Response) -> Response:
    """The answer, for somebody who can read NaN as a constant or not."""
    if isinstance(answer, (problems.Answer, replay.Again)) and not sending.takes_constants(request):
        body = sending.fit(bytes(answer.body), False)
        if len(body) != len(answer.body):
            answer.body = body
            answer.headers["Content-Length"] = str(len(body))
    return answer


class BoundedRequest(Request):
    """A request whose JSON is parsed strictly, and not too deep."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parse(await self.body())
        return self._json


def parse(body: bytes) -> Any:
    """JSON, with NaN and infinities as Python's json writes them. Raises HTTPException for what is none."""
    try:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            value = json.loads(body)
            json.dumps(value, ensure_ascii=False).encode()  # half characters cannot be stored
    except (ValueError, RecursionError) as error:
        said = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise HTTPException(400, f"the body is not JSON: {said}") from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deep(value):
        raise HTTPException(400, f"the body is nested deeper than {MAX_DEPTH} levels")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner.extend(found for found in one.values() if isinstance(found, (dict, list)))
            elif isinstance(one, list):
                inner.extend(found for found in one if isinstance(found, (dict, list)))
        if not inner:
            return False
        level = inner
    return True


def Router() -> APIRouter:
    """A router of the API: below its prefix, every route guarded."""
    return APIRouter(prefix=API, route_class=GuardedRoute)


def declared_policy(route: BaseRoute) -> Policy | None:
    """What a route declares."""
    found = [
        one.dependency
        for one in getattr(route, "dependencies", ())
        if isinstance(one, params.Depends) and isinstance(one.dependency, Policy)
    ]
    return found[0] if len(found) == 1 else None


def include(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Take routers in; raises RuntimeError for a route that does not say who may call it."""
    for router in routers:
        for route in router.routes:
            if not isinstance(route, GuardedRoute) or declared_policy(route) is None:
                raise RuntimeError(f"{getattr(route, 'path', route)} does not say who may call it: give it one policy")
            app.router.routes.append(route)
    require_policies(app)


def require_policies(app: FastAPI) -> None:
    """Raises RuntimeError if the app has any route that is not guarded."""
    for route in app.router.routes:
        if not isinstance(route, GuardedRoute) or declared_policy(route) is None:
            raise RuntimeError(f"{getattr(route, 'path', route)} does not say who may call it: give it one policy")
