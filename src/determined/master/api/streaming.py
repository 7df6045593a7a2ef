"""Metrics on their way out, as they are stored: no row is understood only to be written again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from determined.master.api import sending
from determined.master.api.access import Access
from determined.master.store import listings

_ROWS = 2000


async def metrics(db: Access, trial_id: int, group: str | None, takes_constants: bool) -> AsyncIterator[bytes]:
    """Every report of a trial in order of group and steps, one JSON object a line."""
    groups = [group] if group is not None else await db.read(listings.metric_groups, trial_id)
    for name in groups:
        after = -1
        while True:
            rows = await db.read(listings.raw_metrics, trial_id, name, after, _ROWS)
            if rows:
                start = f'{{"trial_id":{trial_id},"group":{json.dumps(name)},"steps_completed":'
                text = "".join(
                    f'{start}{steps},"metrics":{document},"time":{time!r},"run_epoch":{epoch}}}\n'
                    for steps, epoch, time, document in rows
                )
                yield sending.fit(text.encode(), takes_constants)
                after = rows[-1][0]
            if len(rows) < _ROWS:
                break
