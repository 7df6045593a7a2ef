"""What a trial or task tells the master: reports, in the order they were written, and what the master answers.

The chief rank and the node process each append their reports to a spool file of the allocation, one JSON object a line;
the number of a line is its sequence number. A shipper sends what the master has not acknowledged, as often as it takes:
the master takes each line once.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal, Union

import pydantic

from determined.wire.outcome import Ending


class _Message(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class MetricsReport(_Message):
    """Metrics of a group after so many steps; "training" and "validation" are the groups everybody has."""

    kind: Literal["metrics"] = "metrics"
    group: str
    steps_completed: int
    metrics: dict[str, Any]
    time: float


class CheckpointReport(_Message):
    """A checkpoint that is complete in its storage."""

    kind: Literal["checkpoint"] = "checkpoint"
    uuid: str
    steps_completed: int
    metadata: dict[str, Any] = {}
    resources: dict[str, int] = {}  # size by path
    storage: dict[str, Any] | None = None  # as in a config's checkpoint_storage; None: the master's own
    time: float


class CheckpointGoneReport(_Message):
    """A checkpoint that the training code deleted."""

    kind: Literal["checkpoint_gone"] = "checkpoint_gone"
    uuid: str
    time: float


class ProgressReport(_Message):
    """How much of the training is done, from 0 to 1."""

    kind: Literal["progress"] = "progress"
    progress: float
    steps_completed: int | None = None


class StatusReport(_Message):
    """What is going on, in a few words."""

    kind: Literal["status"] = "status"
    status: str


class MetadataReport(_Message):
    """The document that the training code keeps with its run."""

    kind: Literal["metadata"] = "metadata"
    metadata: dict[str, Any]


class EarlyExitReport(_Message):
    """The training code ends before its time, and says why."""

    kind: Literal["early_exit"] = "early_exit"
    reason: Literal["invalid_hp", "user_requested_stop"]
    message: str = ""


class UsageReport(_Message):
    """What the processes of the allocation on one machine use; written by the node process."""

    kind: Literal["usage"] = "usage"
    node_rank: int = 0
    time: float
    usage: dict[str, float]


Report = Annotated[
    Union[
        MetricsReport,
        CheckpointReport,
        CheckpointGoneReport,
        ProgressReport,
        StatusReport,
        MetadataReport,
        EarlyExitReport,
        UsageReport,
    ],
    pydantic.Field(discriminator="kind"),
]


class Source(str, enum.Enum):
    """Who wrote a spool."""

    CHIEF = "chief"
    NODE = "node"


class ReportBatch(_Message):
    """Lines of one spool, from line ``first`` (counted from 0) on."""

    run_epoch: int
    source: Source
    first: int
    reports: list[Report]


class StopReason(str, enum.Enum):
    """Why the master wants an allocation to stop."""

    PAUSED = "paused"
    CANCELED = "canceled"
    KILLED = "killed"
    PREEMPTED = "preempted"
    ENOUGH = "enough"  # the search knows what it wanted to know


class StopOrder(_Message):
    """Save and leave; after ``grace_seconds`` the processes are killed."""

    reason: StopReason
    grace_seconds: float


class ReportReply(_Message):
    """How many lines of that spool the master has for good, and what it wants."""

    acknowledged: int
    stop: StopOrder | None = None


class ExitReport(_Message):
    """The allocation has ended on this node, and its spools have so many lines."""

    run_epoch: int
    node_rank: int = 0
    ending: Ending
    lines: dict[Source, int] = {}
