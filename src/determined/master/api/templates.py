"""Templates."""

from __future__ import annotations

from determined.master.api.policy import Router

router = Router()
