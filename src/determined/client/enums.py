"""The names of states and orders, as scripts write them."""

from __future__ import annotations

import enum


class ExperimentState(str, enum.Enum):
    """Where an experiment is."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPING_COMPLETED = "STOPPING_COMPLETED"
    STOPPING_CANCELED = "STOPPING_CANCELED"
    STOPPING_ERROR = "STOPPING_ERROR"
    STOPPING_KILLED = "STOPPING_KILLED"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"
    DELETED = "DELETED"
    DELETING = "DELETING"
    DELETE_FAILED = "DELETE_FAILED"
    QUEUED = "QUEUED"
    PULLING = "PULLING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it will happen any more unless somebody asks."""
        return self.name in ("COMPLETED", "CANCELED", "ERROR", "DELETED", "DELETING", "DELETE_FAILED")


class TrialState(str, enum.Enum):
    """Where a trial is."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPING_COMPLETED = "STOPPING_COMPLETED"
    STOPPING_CANCELED = "STOPPING_CANCELED"
    STOPPING_ERROR = "STOPPING_ERROR"
    STOPPING_KILLED = "STOPPING_KILLED"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"
    QUEUED = "QUEUED"
    PULLING = "PULLING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"

    @property
    def has_ended(self) -> bool:
        """Whether it will train no more unless somebody asks."""
        return self.name in ("COMPLETED", "CANCELED", "ERROR")


class CheckpointState(str, enum.Enum):
    """Where a checkpoint is."""

    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    DELETED = "DELETED"
    PARTIALLY_DELETED = "PARTIALLY_DELETED"


class OrderBy(str, enum.Enum):
    """Smallest or largest first."""

    ASCENDING = "asc"
    DESCENDING = "desc"
    ASC = "asc"  # noqa: PIE796 - the same by its other name
    DESC = "desc"  # noqa: PIE796


class CheckpointSortBy(str, enum.Enum):
    """What checkpoints are sorted by."""

    UUID = "uuid"
    TRIAL_ID = "trial_id"
    BATCH_NUMBER = "steps_completed"
    END_TIME = "reported_at"
    STATE = "state"
    SEARCHER_METRIC = "searcher_metric"


class TrialSortBy(str, enum.Enum):
    """What trials are sorted by."""

    ID = "id"
    START_TIME = "started_at"
    END_TIME = "ended_at"
    STATE = "state"
    BEST_VALIDATION_METRIC = "best_metric"
    BATCHES_PROCESSED = "steps_completed"
    RESTARTS = "restarts"
    PROGRESS = "progress"


class ExperimentSortBy(str, enum.Enum):
    """What experiments are sorted by."""

    ID = "id"
    NAME = "name"
    DESCRIPTION = "description"
    START_TIME = "created_at"
    END_TIME = "ended_at"
    STATE = "state"
    NUM_TRIALS = "trial_count"
    PROGRESS = "progress"
    USER = "username"
    PROJECT_ID = "project_id"
    RESOURCE_POOL = "resource_pool"
    SEARCHER_METRIC_VAL = "best_metric"


class ModelSortBy(str, enum.Enum):
    """What models are sorted by."""

    NAME = "name"
    DESCRIPTION = "description"
    CREATION_TIME = "created_at"
    LAST_UPDATED_TIME = "updated_at"
    NUM_VERSIONS = "version_count"
    WORKSPACE = "workspace_id"


class LogLevel(str, enum.Enum):
    """How severe a line of a log is, the least severe first."""

    TRACE = "TRACE"
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


class DownloadMode(str, enum.Enum):
    """How a checkpoint comes: from its storage, through the master, or whichever works."""

    AUTO = "auto"
    DIRECT = "direct"
    MASTER = "master"
