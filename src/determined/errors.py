"""Every error a user of Resolute can see, in one tree.

An error says what happened, why, and what to do. Each class carries a stable ``code``; the master's API maps it to a
status and the client maps it back to the same class.
"""

from __future__ import annotations


class DeterminedError(Exception):
    """Something the user can act on; the message says what."""

    code = "error"


class InvalidExperimentException(DeterminedError):
    """The trial or the way it is trained breaks a rule of the API."""

    code = "invalid_experiment"


class InternalException(DeterminedError):
    """Something was asked for at a moment when there is no answer to it."""

    code = "internal"


class InvalidDataTypeException(DeterminedError):
    """A value has a type that cannot be used where it was given."""

    code = "invalid_data_type"

    def __init__(self, type_name: object, message: str = "") -> None:
        super().__init__(f"Invalid data type: {type_name}. {message}".strip())


class InvalidConfigurationException(DeterminedError):
    """The configuration is wrong; the message lists every mistake with its place."""

    code = "invalid_configuration"


class InvalidModelException(DeterminedError):
    """The model cannot be used the way it was given."""

    code = "invalid_model"


class InvalidCheckpointException(DeterminedError):
    """The checkpoint is damaged, incomplete, or does not belong to this model."""

    code = "invalid_checkpoint"


class CheckpointNotFound(DeterminedError):
    """There is no checkpoint with that name."""

    code = "checkpoint_not_found"


class CheckpointStateException(DeterminedError):
    """The checkpoint is in a state that forbids what was asked."""

    code = "checkpoint_state"


class NoDirectStorageAccess(DeterminedError):
    """The checkpoint storage cannot be reached from this machine."""

    code = "no_direct_storage_access"


class ProxiedDownloadFailed(DeterminedError):
    """The master could not hand over the checkpoint."""

    code = "proxied_download_failed"


class MultipleDownloadsFailed(DeterminedError):
    """Neither the storage nor the master could hand over the checkpoint."""

    code = "multiple_downloads_failed"


class NotFound(DeterminedError):
    """There is no such thing, or it is not for you to see."""

    code = "not_found"


class Refused(DeterminedError):
    """What was asked for cannot be done in the state that things are in."""

    code = "refused"


class Unauthenticated(DeterminedError):
    """Nobody is signed in, or the credential is no longer good."""

    code = "unauthenticated"


class Forbidden(DeterminedError):
    """Whoever is signed in may not do this."""

    code = "forbidden"


class StaleRunEpoch(DeterminedError):
    """This attempt of a trial is over; a later one has taken its place, and nothing of this one is taken any more."""

    code = "stale_run_epoch"


class BadRequest(DeterminedError):
    """The request itself cannot be understood."""

    code = "bad_request"


class TooLarge(DeterminedError):
    """The request is larger than the master takes."""

    code = "too_large"


class TooManyAttempts(DeterminedError):
    """Somebody has been guessing; try again later."""

    code = "too_many_attempts"


class MasterUnreachable(DeterminedError):
    """The master does not answer."""

    code = "master_unreachable"


class EnterpriseOnlyError(DeterminedError):
    """Kept for code that catches it; nothing here is reserved for paying users."""

    code = "enterprise_only"


class InvalidHP(DeterminedError):
    """Raised by user code: this combination of hyperparameters is not worth training."""

    code = "invalid_hp"

    def __init__(self, msg: str = "...") -> None:
        if not isinstance(msg, str):
            raise TypeError(f"det.InvalidHP takes a str, not {type(msg).__name__}; say why the values are invalid")
        super().__init__(msg)
        self.msg = msg
