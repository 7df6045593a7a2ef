"""From errors to answers: every error has a stable code, a sentence, and a status that follows from the code."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from determined import errors
from determined.wire.views import Problem

logger = logging.getLogger("determined.master")

STATUSES = {
    "not_found": 404,
    "checkpoint_not_found": 404,
    "refused": 409,
    "stale_run_epoch": 409,
    "checkpoint_state": 409,
    "unauthenticated": 401,
    "forbidden": 403,
    "bad_request": 400,
    "too_large": 413,
    "too_many_attempts": 429,
    "invalid_configuration": 422,
    "invalid_experiment": 422,
    "invalid_hp": 422,
    "invalid_checkpoint": 422,
    "store_unavailable": 503,
    "internal": 500,
    "error": 400,
}
_CODES = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "bad_request",
    408: "bad_request",
    409: "refused",
    413: "too_large",
    422: "bad_request",
    429: "too_many_attempts",
}


class Answer(JSONResponse):
    """JSON in which NaN and infinities survive, written as Python's json writes them."""

    def render(self, content: Any) -> bytes:
        try:
            text = orjson.dumps(content)
        except TypeError:  # whole numbers of more than 64 bits
            text = b"null"
        # orjson writes null for what is no finite number: only answers that contain one pay for the slow way.
        if b"null" in text:
            return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        return text


def problem(status: int, code: str, message: str, details: list[Any] | None = None) -> Response:
    """An error as an answer."""
    view = Problem(code=code, message=message, details=details or [])
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return Response(view.model_dump_json(), status, headers, "application/json")


def of(error: errors.DeterminedError) -> Response:
    """One of ours as an answer."""
    answer = problem(STATUSES.get(error.code, 400), error.code, str(error), getattr(error, "details", None))
    seconds = getattr(error, "retry_after_seconds", None)
    if seconds is not None:
        answer.headers["Retry-After"] = str(seconds)
    return answer


def unforeseen(error: BaseException, what: str) -> Response:
    """A fault of the master itself: a number to look for in its log, and nothing of what went wrong inside."""
    incident = os.urandom(4).hex()
    logger.error("%s failed (incident %s)", what, incident, exc_info=error)
    return problem(500, "internal", f"the master failed at this; its log says more about incident {incident}")


def install(app: FastAPI) -> None:
    """Make the app answer with problems."""

    async def ours(_: Request, error: Exception) -> Response:
        assert isinstance(error, errors.DeterminedError)
        return of(error)

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        messages = {404: "there is nothing at this address", 405: "this address does not take that method"}
        said = error.detail if error.status_code not in messages else messages[error.status_code]
        answer = problem(error.status_code, _CODES.get(error.status_code, "error"), str(said))
        for name, value in (error.headers or {}).items():
            answer.headers[name] = value
        return answer

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        # What was sent is not said back: it may hold a secret.
        found = [{"where": [str(part) for part in one["loc"]], "says": one["msg"]} for one in error.errors()]
        said = "; ".join(f"{'.'.join(one['where'])}: {one['says']}" for one in found[:5])
        return problem(422, "bad_request", f"the request cannot be understood: {said}", found[:50])

    app.add_exception_handler(errors.DeterminedError, ours)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
