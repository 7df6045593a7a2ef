"""Answers on their way out: NaN and infinities for those who can read them, and long ones line by line.

JSON has no NaN. Programs that say ``nan=constants`` in their Accept header, as our client does, get it as Python's json
writes it, and so exactly; everybody else, browsers above all, gets the texts "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pydantic
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

NDJSON = "application/x-ndjson"


def takes_constants(request: Request) -> bool:
    """Whether the caller reads NaN as Python's json writes it."""
    return "nan=constants" in request.headers.get("accept", "")


def answer(request: Request, view: pydantic.BaseModel, status: int = 200) -> Response:
    """One thing."""
    return Response(fit(encode(view), takes_constants(request)), status, media_type="application/json")


def several(request: Request, views: Iterable[pydantic.BaseModel], status: int = 200) -> Response:
    """A list of things."""
    text = b"[" + b",".join(map(encode, views)) + b"]"
    return Response(fit(text, takes_constants(request)), status, media_type="application/json")


def lines(pieces: AsyncIterator[bytes]) -> Response:
    """Something long, line by line."""
    return StreamingResponse(
        pieces, media_type=NDJSON, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


def encode(view: pydantic.BaseModel) -> bytes:
    """A view as JSON with constants."""
    try:
        return view.model_dump_json().encode()
    except pydantic.PydanticUserError:
        raise
    except ValueError:  # half a character, which only escapes can say
        return json.dumps(view.model_dump(mode="json"), separators=(",", ":")).encode()


def fit(text: bytes, takes_constants: bool) -> bytes:
    """JSON, for somebody who can read constants or not."""
    # Only answers that contain one pay for the slow way; a text that says NaN is taken for one, and is not harmed.
    if takes_constants or (b"NaN" not in text and b"Infinity" not in text):
        return text
    return b"".join(_plain(line) for line in text.splitlines(keepends=True))


def _plain(line: bytes) -> bytes:
    if not line.strip():
        return line
    value: Any = json.loads(line, parse_constant=str)
    end = b"\n" if line.endswith(b"\n") else b""
    return json.dumps(value, separators=(",", ":")).encode() + end
