"""Every route of the app, ready to be called, and who may call it.

A new route is written down here by whoever adds it: the tests fail until it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from fastapi import FastAPI

from determined.master.api.policy import API, GuardedRoute

PUBLIC = "anyone"
READ = "read"
READ_TOO = "read, and tokens of allocations"
READ_OWN = "read, and the token of this allocation"
WRITE = "write"
ADMIN = "admin"
ALLOCATION = "the token of this allocation"

EXPECTED = {
    "GET /health": PUBLIC,
    "GET /master": PUBLIC,
    "POST /auth/login": PUBLIC,
    "POST /auth/setup": PUBLIC,
    "POST /auth/logout": READ,
    "GET /openapi.json": READ,
    "GET /changes": READ,
    "GET /me": READ,
    "GET /users": READ,
    "POST /users": ADMIN,
    "GET /users/{id}": READ,
    "PATCH /users/{id}": WRITE,
    "POST /users/{id}/password": WRITE,
    "GET /tokens": READ,
    "POST /tokens": WRITE,
    "DELETE /tokens/{id}": WRITE,
    "GET /master/config": ADMIN,
    "GET /master/logs": ADMIN,
    "PUT /master/message": ADMIN,
    "POST /master/stop": ADMIN,
    "GET /workspaces": READ,
    "POST /workspaces": WRITE,
    "GET /workspaces/{id}": READ,
    "PATCH /workspaces/{id}": WRITE,
    "DELETE /workspaces/{id}": WRITE,
    "POST /workspaces/{id}/archive": WRITE,
    "POST /workspaces/{id}/unarchive": WRITE,
    "GET /projects": READ,
    "POST /projects": WRITE,
    "GET /projects/{id}": READ,
    "PATCH /projects/{id}": WRITE,
    "DELETE /projects/{id}": WRITE,
    "POST /projects/{id}/archive": WRITE,
    "POST /projects/{id}/unarchive": WRITE,
    "PUT /contexts/{sha256}": WRITE,
    "HEAD /contexts/{sha256}": READ_TOO,
    "GET /contexts/{sha256}": READ_TOO,
    "GET /contexts/{sha256}/files": READ_TOO,
    "GET /contexts/{sha256}/files/{path:path}": READ_TOO,
    "GET /models": READ,
    "POST /models": WRITE,
    "GET /models/{model}": READ,
    "PATCH /models/{model}": WRITE,
    "DELETE /models/{model}": WRITE,
    "POST /models/{model}/archive": WRITE,
    "POST /models/{model}/unarchive": WRITE,
    "GET /models/{model}/versions": READ,
    "POST /models/{model}/versions": WRITE,
    "GET /models/{model}/versions/{version}": READ,
    "PATCH /models/{model}/versions/{version}": WRITE,
    "DELETE /models/{model}/versions/{version}": WRITE,
    "GET /templates": READ,
    "GET /templates/{name}": READ,
    "PUT /templates/{name}": WRITE,
    "DELETE /templates/{name}": WRITE,
    "POST /experiments": WRITE,
    "GET /experiments": READ_TOO,
    "POST /experiments/bulk": WRITE,
    "GET /experiments/{id}": READ_TOO,
    "PATCH /experiments/{id}": WRITE,
    "DELETE /experiments/{id}": WRITE,
    "POST /experiments/{id}/move": WRITE,
    "POST /experiments/{id}/continue": WRITE,
    "POST /experiments/{id}/{operation}": WRITE,
    "GET /experiments/{id}/trials": READ_TOO,
    "GET /experiments/{id}/checkpoints": READ_TOO,
    "GET /experiments/{id}/config": READ_TOO,
    "GET /experiments/{id}/search-events": READ,
    "GET /experiments/{id}/best": READ_TOO,
    "GET /experiments/{id}/metrics": READ,
    "POST /search/preview": READ,
    "GET /trials/{id}": READ_TOO,
    "POST /trials/{id}/{operation}": WRITE,
    "GET /trials/{id}/metrics": READ_TOO,
    "GET /trials/{id}/metric-names": READ_TOO,
    "GET /trials/{id}/series": READ_TOO,
    "GET /trials/{id}/usage": READ,
    "GET /trials/{id}/logs": READ,
    "GET /trials/{id}/checkpoints": READ_TOO,
    "GET /trials/{id}/allocations": READ,
    "POST /checkpoints/delete": WRITE,
    "GET /checkpoints/{uuid}": READ_TOO,
    "PATCH /checkpoints/{uuid}/metadata": WRITE,
    "GET /checkpoints/{uuid}/files": READ_TOO,
    "GET /checkpoints/{uuid}/files/{path:path}": READ_TOO,
    "POST /tasks": WRITE,
    "GET /tasks": READ,
    "GET /tasks/{id}": READ,
    "DELETE /tasks/{id}": WRITE,
    "GET /tasks/{id}/config": READ,
    "GET /tasks/{id}/allocations": READ,
    "GET /tasks/{id}/logs": READ,
    "POST /tasks/{id}/{operation}": WRITE,
    "GET /jobs": READ,
    "GET /jobs/{job_id}": READ,
    "PATCH /jobs/{job_id}": WRITE,
    "GET /pools": READ,
    "GET /agents": READ,
    "PATCH /agents/{id}": ADMIN,
    "PATCH /agents/{id}/slots/{slot}": ADMIN,
    "POST /runs": WRITE,
    "GET /allocations/{allocation_id}": READ_OWN,
    "POST /allocations/{allocation_id}/reports": ALLOCATION,
    "POST /allocations/{allocation_id}/exit": ALLOCATION,
    "PUT /allocations/{allocation_id}/logs": ALLOCATION,
}

# A stream answers only when it ends; it has tests of its own.
STREAMS = {"GET /changes"}


class Call(NamedTuple):
    """A route, as the app has it and as it can be called."""

    name: str
    method: str
    path: str


def calls(app: FastAPI, allocation_id: str = "job-1.1") -> Iterator[Call]:
    """Every route of the app."""
    values = {"sha256": "0" * 64, "uuid": "0" * 36, "operation": "kill", "allocation_id": allocation_id, "version": "1"}
    for route in app.router.routes:
        assert isinstance(route, GuardedRoute)
        template = route.path.removeprefix(API)
        path = re.sub(r"\{(\w+)(:\w+)?\}", lambda found: values.get(found[1], "4242"), template)
        for method in sorted(route.methods or ()):
            yield Call(f"{method} {template}", method, path)
