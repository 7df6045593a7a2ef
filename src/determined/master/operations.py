"""What people may ask of an experiment, a trial or a task, when, and what to tell them when they may not. Pure."""

from __future__ import annotations

import enum

from determined.master.states import ExperimentState, TaskState, TrialState, Wanted


class Operation(str, enum.Enum):
    """What people ask for. EDIT is name, description, labels and notes; ADJUST is priority, weight and limits."""

    ACTIVATE = "activate"
    PAUSE = "pause"
    CANCEL = "cancel"
    KILL = "kill"
    DELETE = "delete"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"
    MOVE = "move"
    EDIT = "edit"
    ADJUST = "adjust"
    CONTINUE = "continue"
    FORK = "fork"


_WANTS = {
    Operation.ACTIVATE: Wanted.ACTIVE,
    Operation.PAUSE: Wanted.PAUSED,
    Operation.CANCEL: Wanted.CANCELED,
    Operation.KILL: Wanted.KILLED,
    Operation.CONTINUE: Wanted.ACTIVE,
}
_DONE = {
    Operation.ACTIVATE: "activated",
    Operation.PAUSE: "paused",
    Operation.CANCEL: "canceled",
    Operation.KILL: "killed",
    Operation.DELETE: "deleted",
    Operation.ARCHIVE: "archived",
    Operation.UNARCHIVE: "unarchived",
    Operation.MOVE: "moved",
    Operation.EDIT: "edited",
    Operation.ADJUST: "adjusted",
    Operation.CONTINUE: "continued",
    Operation.FORK: "forked",
}
_ENDING = {Wanted.CANCELED: "is being canceled", Wanted.KILLED: "is being killed", Wanted.ENOUGH: "is finishing"}
_ENDS = {Operation.CANCEL, Operation.KILL}
_GOES_ON = {Operation.ACTIVATE, Operation.PAUSE}


def refusal(
    operation: Operation, name: str, state: ExperimentState, wanted: Wanted, archived: bool = False
) -> str | None:
    """The sentence that says why an operation on an experiment is refused, or None if it is legal.

    ``name`` is how people know it ("experiment 7"). Asking again for what is so already is legal and changes nothing;
    so is canceling or killing what has ended.
    """
    done = _DONE[operation]
    if state is ExperimentState.DELETING and operation is not Operation.KILL:
        return f"{name} is being deleted and cannot be {done}"
    if state is ExperimentState.DELETE_FAILED and operation not in (Operation.DELETE, Operation.KILL, Operation.CANCEL):
        return f"{name} is half deleted and cannot be {done}; delete it again"
    if archived and operation in (Operation.MOVE, Operation.EDIT, Operation.CONTINUE):
        return f"{name} is archived and cannot be {done}; unarchive it first"
    if state.has_ended:
        if operation in _GOES_ON or operation is Operation.ADJUST:
            return f"{name} has ended ({state.value}) and cannot be {done}; {_instead(operation)}"
        return None
    if operation in (Operation.DELETE, Operation.ARCHIVE, Operation.CONTINUE):
        return f"{name} has not ended ({state.value}) and cannot be {done}; {_first(operation, wanted)}"
    if operation in _GOES_ON and wanted.is_final:
        return f"{name} {_ENDING[wanted]} and cannot be {done}"
    return None


def refusal_of_trial(operation: Operation, name: str, state: TrialState, wanted: Wanted) -> str | None:
    """The same for a trial: it may be killed, canceled, and, once it has ended, continued or forked."""
    if operation in _ENDS:
        return None
    if operation in (Operation.CONTINUE, Operation.FORK):
        if state.has_ended:
            return None
        return f"{name} has not ended ({state.value}) and cannot be {_DONE[operation]}; cancel it or wait for it"
    return f"{name} cannot be {_DONE[operation]} on its own; do it with its experiment"


def refusal_of_task(operation: Operation, name: str, state: TaskState, wanted: Wanted) -> str | None:
    """The same for a task: it may be killed, canceled, paused, activated, adjusted, and deleted once it has ended."""
    done = _DONE[operation]
    if operation in _ENDS:
        return None
    if operation is Operation.DELETE:
        return None if state.has_ended else f"{name} has not ended ({state.value}) and cannot be {done}; kill it first"
    if operation not in (*_GOES_ON, Operation.ADJUST):
        return f"{name} is no experiment and cannot be {done}"
    if state.has_ended:
        return f"{name} has ended ({state.value}) and cannot be {done}; start a new one"
    if operation in _GOES_ON and wanted.is_final:
        return f"{name} {_ENDING[wanted]} and cannot be {done}"
    return None


def wanted_after(operation: Operation, wanted: Wanted, has_ended: bool) -> Wanted:
    """What is wanted after a legal operation. Killing is stronger than canceling; what has ended is left as it was."""
    if operation is Operation.CONTINUE:
        return Wanted.ACTIVE
    if has_ended or operation not in _WANTS:
        return wanted
    if operation is Operation.CANCEL and wanted is Wanted.KILLED:
        return wanted
    return _WANTS[operation]


def _instead(operation: Operation) -> str:
    match operation:
        case Operation.ACTIVATE:
            return "continue it to train further"
        case Operation.PAUSE:
            return "there is nothing to pause"
        case _:
            return "it no longer waits for slots"


def _first(operation: Operation, wanted: Wanted) -> str:
    if wanted.is_final:
        return "it is about to: wait for it"
    if operation is Operation.CONTINUE:
        return "activate it if it is paused"
    return "cancel or kill it first"
