"""What a search would do, before anything is spent."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.responses import Response

from determined.config.experiment import ExperimentConfig
from determined.master.api import sending, submitting
from determined.master.api.policy import Router, policy
from determined.search.simulate import simulate
from determined.wire.requests import PreviewSearch
from determined.wire.views import PreviewRow, PreviewView

router = Router()


@router.post("/search/preview", dependencies=[policy("read", replays=False)], response_model=PreviewView)
async def preview_search(asked: PreviewSearch, request: Request) -> Response:
    """How many trials train for how long, and the hyperparameters of the first ones."""
    config = await asyncio.to_thread(submitting.preview, asked)
    return sending.answer(request, await asyncio.to_thread(_preview, config, asked.seed))


def _preview(config: ExperimentConfig, seed: int | None) -> PreviewView:
    chosen = config.reproducibility.experiment_seed if seed is None else seed
    found = simulate(config, 0 if chosen is None else chosen)
    return PreviewView(
        trials=found.trials,
        rows=[PreviewRow(trials=row.trials, target=row.target, unit=row.unit) for row in found.rows],
        total=found.total,
        examples=[dict(example) for example in found.examples],
        notices=[*config.notices, *found.notices],
    )
