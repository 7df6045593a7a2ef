"""Pools and their machines."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Path, Request
from starlette.responses import Response

from determined import errors
from determined.master.api import sending, submitting
from determined.master.api.access import Db
from determined.master.api.policy import Router, policy
from determined.master.lifecycle import queue
from determined.master.store import listings
from determined.master.store.database import Tx
from determined.wire.requests import EditAgent
from determined.wire.views import AgentView, PoolView, SlotView

router = Router()

AgentId = Annotated[str, Path(max_length=200, description="The machine's id.")]
# (pool, machine) to its slots, and which allocation holds each.
_Held = dict[tuple[str, str], dict[int, str]]


@router.get("/pools", dependencies=[policy("read")], response_model=list[PoolView])
async def list_pools(request: Request, db: Db) -> Response:
    """The places that run gangs."""
    state = request.app.state
    default = submitting.pools_of(request.app).default
    held = await db.read(_held)
    queued = await db.read(_queued, default)
    views = []
    for name, pool in state.settings.pools.items():
        nodes = _nodes(state.engine, name)
        views.append(
            PoolView(
                name=name,
                kind=pool.kind,
                policy=pool.scheduler,
                slots_total=sum(len(node.slots) for node in nodes),
                slots_used=sum(len(slots) for (its_pool, _), slots in held.items() if its_pool == name),
                agents=len(nodes),
                queued=queued.get(name, 0),
                is_default=name == default,
            )
        )
    return sending.several(request, views)


@router.get("/agents", dependencies=[policy("read")], response_model=list[AgentView])
async def list_agents(request: Request, db: Db) -> Response:
    """The machines of all pools."""
    held = await db.read(_held)
    return sending.several(request, [_view(request.app.state, *place, held) for place in _places(request.app.state)])


@router.patch("/agents/{id}", dependencies=[policy("admin")], response_model=AgentView)
async def edit_agent(id: AgentId, asked: EditAgent, request: Request, db: Db) -> Response:
    """Let a machine take work or not; a draining one finishes what it has."""
    state = request.app.state
    agent_id, pool, node = _find(state, id)
    await asyncio.to_thread(state.engine.machines.edit, pool, node.id, enabled=asked.enabled, draining=asked.drain)
    db.wake()
    return sending.answer(request, _view(state, agent_id, pool, node, await db.read(_held)))


@router.patch("/agents/{id}/slots/{slot}", dependencies=[policy("admin")], response_model=AgentView)
async def edit_slot(
    id: AgentId,
    slot: Annotated[int, Path(ge=0, le=2**31 - 1, description="The slot's number.")],
    asked: EditAgent,
    request: Request,
    db: Db,
) -> Response:
    """Let one slot take work or not."""
    state = request.app.state
    agent_id, pool, node = _find(state, id)
    if asked.enabled is not None:
        await asyncio.to_thread(state.engine.machines.edit_slot, pool, node, slot, asked.enabled)
        db.wake()
    elif slot not in node.slots:
        raise errors.NotFound(f"{id} has no slot {slot}")
    return sending.answer(request, _view(state, agent_id, pool, node, await db.read(_held)))


def _nodes(engine: Any, pool: str) -> list[Any]:
    return [*engine.nodes(pool)] if hasattr(engine, "nodes") else []


def _places(state: Any) -> list[tuple[str, str, Any]]:
    """Every machine: its id, which is its name where only one pool has it, its pool, and itself."""
    found = [(name, node) for name in state.settings.pools for node in _nodes(state.engine, name)]
    names = [node.id for _, node in found]
    return [(node.id if names.count(node.id) == 1 else f"{pool}:{node.id}", pool, node) for pool, node in found]


def _find(state: Any, agent_id: str) -> tuple[str, str, Any]:
    for place in _places(state):
        if place[0] == agent_id:
            return place
    raise errors.NotFound(f"there is no agent {agent_id}")


def _view(state: Any, agent_id: str, pool: str, node: Any, held: _Held) -> AgentView:
    machine = state.engine.machines.get(pool, node.id)
    slots = held.get((pool, node.id), {})
    device = getattr(state.pools.get(pool), "device", "cpu")
    return AgentView(
        id=agent_id,
        pool=pool,
        enabled=machine.enabled,
        draining=machine.draining or node.draining,
        slots=[
            SlotView(
                id=slot,
                device=str(device),
                enabled=machine.enabled and slot not in machine.disabled_slots,
                allocation_id=slots.get(slot),
            )
            for slot in node.slots
        ],
    )


def _held(tx: Tx) -> _Held:
    held: _Held = {}
    for allocation in listings.live_placements(tx):
        allocation_id, pool, placement = allocation
        for node, slots in placement.items():
            held.setdefault((pool, node), {}).update(dict.fromkeys(slots, allocation_id))
    return held


def _queued(tx: Tx, default_pool: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in queue.entries(tx):
        pool = entry.pool or default_pool
        counts[pool] = counts.get(pool, 0) + entry.waiting
    return counts
