"""Trials: what they report to the search, and what people ask of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from determined import errors
from determined.master.lifecycle.consequences import Turn
from determined.master.operations import Operation, refusal_of_trial, wanted_after
from determined.master.records import Experiment, Trial
from determined.master.states import ExperimentState, TrialState, Wanted
from determined.master.store import allocations, checkpoints, experiments, searches, trials
from determined.master.store.database import Tx
from determined.search.method import Exit, pick_metric


def feed_validation(tx: Tx, trial: Trial, metrics: Mapping[str, Any], steps: int) -> Trial:
    """A trial reported a validation after so many steps; the trial as it is then.

    Call it for each row of the group "validation" in the transaction that stores the row, in order of steps. The best
    values of the trial and of its experiment are kept; the search is told once of each validation, also when the trial
    has gone back to a checkpoint and reports it again; of those of a trial with a target, when they have come to stay.
    """
    trial = trials.require(tx, trial.id)
    experiment = _with_metric(tx, experiments.require(tx, trial.experiment_id), metrics)
    values: dict[str, Any] = {"latest_validation": {**metrics, "batches": steps}}
    value = number(metrics.get(experiment.metric)) if experiment.metric else None
    if value is not None:
        # A checkpoint is usually reported after its metrics, but nothing forbids the other order.
        checkpoints.set_metric(tx, trial.id, steps, value)
        if is_better(value, trial.best_metric, experiment.smaller_is_better):
            values.update(best_metric=value, best_step=steps)
            if is_better(value, experiment.best_metric, experiment.smaller_is_better):
                experiments.update(tx, experiment.id, best_trial_id=trial.id, best_metric=value)
                tx.changed("experiment", experiment.id, experiment.id, best_trial_id=trial.id, best_metric=value)
    trials.update(tx, trial.id, **values)
    tx.changed("trial", trial.id, experiment.id, best_metric=values.get("best_metric", trial.best_metric))
    if steps > trial.searched_steps and not trial.exit_told:
        _feed_or_hold(tx, trial, steps)
    return trials.require(tx, trial.id)


def feed_held(tx: Tx, trial_id: int, up_to: int | None = None) -> None:
    """A validation that was held back has come to stay, if its steps are not more than ``up_to``: tell the search."""
    trial = trials.require(tx, trial_id)
    steps = trial.held_steps
    if steps is None or (up_to is not None and steps > up_to):
        return
    trials.update(tx, trial_id, held_steps=None, searched_steps=max(steps, trial.searched_steps))
    turn = Turn(tx, experiments.require(tx, trial.experiment_id))
    for at, metrics in trials.validations(tx, trial_id, at=steps):
        turn.validated(trial, {**metrics, "batches": at})
    turn.settle()


def _feed_or_hold(tx: Tx, trial: Trial, steps: int) -> None:
    """Tell the search of a validation; one that may be the last before a target waits until it is saved, too.

    What the search decides at a target (who goes on, who is copied) rests on the checkpoint that is made there. If the
    trial were to fail before it is, it would have to get there again.
    """
    if trial.held_steps is not None and trial.held_steps < steps:
        feed_held(tx, trial.id)
    trials.update(tx, trial.id, held_steps=steps)
    latest = checkpoints.latest_of_trial(tx, trial.id) if trial.target is not None else None
    if trial.target is None or (latest is not None and latest.steps_completed >= steps):
        feed_held(tx, trial.id)


def record_progress(tx: Tx, trial_id: int, progress: float, steps_completed: int | None = None) -> None:
    """How much of its training a trial has done; its experiment's progress follows, about once a second."""
    trial = trials.require(tx, trial_id)
    values: dict[str, Any] = {"progress": min(max(progress, 0.0), 1.0) if math.isfinite(progress) else trial.progress}
    if steps_completed is not None:
        values["steps_completed"] = steps_completed
    trials.update(tx, trial_id, **values)
    tx.changed("trial", trial_id, trial.experiment_id, **values)
    Turn(tx, experiments.require(tx, trial.experiment_id)).settle()


def record_early_exit(tx: Tx, allocation_id: str, reason: str, message: str = "") -> None:
    """The training code says that it ends before its time: "invalid_hp" or "user_requested_stop"."""
    allocation = allocations.require(tx, allocation_id)
    if allocation.early_exit is None:
        allocations.update(tx, allocation_id, early_exit=reason)
    if allocation.trial_id is None:
        return
    trial = trials.require(tx, allocation.trial_id)
    if message:
        trials.update(tx, trial.id, error=message)
    if reason == "user_requested_stop" and not trial.state.has_ended and not trial.wanted.is_final:
        trials.update(tx, trial.id, wanted=Wanted.ENOUGH)


def operate(tx: Tx, trial_id: int, operation: Operation) -> Trial:
    """Cancel or kill a trial; the search goes on without it. Raises Refused."""
    trial = trials.require(tx, trial_id)
    name = f"trial {trial_id}"
    refused = refusal_of_trial(operation, name, trial.state, trial.wanted)
    if refused:
        raise errors.Refused(refused)
    if operation is Operation.CONTINUE:
        return continue_trial(tx, trial_id)
    wanted = wanted_after(operation, trial.wanted, trial.state.has_ended)
    if wanted is not trial.wanted:
        trials.update(tx, trial_id, wanted=wanted)
        tx.changed("trial", trial_id, trial.experiment_id, wanted=wanted.value)
        turn = Turn(tx, experiments.require(tx, trial.experiment_id))
        turn.reconsider(dataclasses.replace(trial, wanted=wanted))
        turn.settle()
    return trials.require(tx, trial_id)


def continue_trial(tx: Tx, trial_id: int) -> Trial:
    """Train a trial on from its latest checkpoint after it has ended. Its search hears no more of it."""
    trial = trials.require(tx, trial_id)
    refused = refusal_of_trial(Operation.CONTINUE, f"trial {trial_id}", trial.state, trial.wanted)
    if refused:
        raise errors.Refused(refused)
    experiment = experiments.require(tx, trial.experiment_id)
    reopen(tx, experiment)
    requeue(tx, trial, exit_told=True)
    Turn(tx, experiments.require(tx, experiment.id)).settle(whole=True)
    return trials.require(tx, trial_id)


def requeue(tx: Tx, trial: Trial, **values: Any) -> None:
    """A trial that has ended is to train again, with all its restarts."""
    turn = Turn(tx, experiments.require(tx, trial.experiment_id))
    is_paused = turn.experiment.wanted is Wanted.PAUSED
    turn.moved(
        trial,
        TrialState.PAUSED if is_paused else TrialState.QUEUED,
        wanted=Wanted.ACTIVE,
        restarts=0,
        crashes=0,
        excluded_nodes=None,
        losses=0,
        retry_at=None,
        error=None,
        queued_at=tx.now,
        **values,
    )
    if trial.copy_from_steps is not None and trial.copy_of is not None:
        source = trials.by_number(tx, trial.experiment_id, trial.copy_of)
        turn.resolve_copies(trial.copy_of, has_let_go=source is None or not source.state.has_allocation)


def reopen(tx: Tx, experiment: Experiment) -> Experiment:
    """Some trials of an experiment are to train again: one that had ended has not. Its search stays where it is."""
    if experiment.unmanaged:
        raise errors.Refused(
            f"experiment {experiment.id} was started by hand, not by this master; start its script again to go on"
        )
    if experiment.archived:
        raise errors.Refused(f"experiment {experiment.id} is archived and cannot be continued; unarchive it first")
    if experiment.state in (ExperimentState.DELETING, ExperimentState.DELETE_FAILED):
        raise errors.Refused(f"experiment {experiment.id} is being deleted and cannot be continued")
    if not experiment.state.has_ended:
        if experiment.wanted.is_final:
            raise errors.Refused(f"experiment {experiment.id} is about to end; wait for it, then continue it")
        return experiment
    if searches.require(tx, experiment.id).failure is None:
        searches.update(tx, experiment.id, is_over=True)
    experiments.update(
        tx,
        experiment.id,
        state=ExperimentState.ACTIVE,
        wanted=Wanted.ACTIVE,
        error=None,
        ended_at=None,
        queued_at=tx.now,
    )
    tx.changed("experiment", experiment.id, experiment.id, state=ExperimentState.ACTIVE.value)
    return experiments.require(tx, experiment.id)


def rewind_best(tx: Tx, trial: Trial, steps: int) -> None:
    """A trial goes back to a checkpoint: what was reported after it no longer counts among the best."""
    if trial.best_step is None or trial.best_step <= steps:
        return
    experiment = experiments.require(tx, trial.experiment_id)
    best: tuple[float | None, int | None] = (None, None)
    latest: dict[str, Any] | None = None
    for at, metrics in trials.validations(tx, trial.id, up_to=steps):
        latest = {**metrics, "batches": at}
        value = number(metrics.get(experiment.metric)) if experiment.metric else None
        if value is not None and is_better(value, best[0], experiment.smaller_is_better):
            best = (value, at)
    trials.update(tx, trial.id, best_metric=best[0], best_step=best[1], latest_validation=latest)
    if experiment.best_trial_id == trial.id:
        found = trials.best(tx, experiment.id, experiment.smaller_is_better)
        trial_id, value = found if found is not None else (None, None)
        experiments.update(tx, experiment.id, best_trial_id=trial_id, best_metric=value)
        tx.changed("experiment", experiment.id, experiment.id, best_trial_id=trial_id, best_metric=value)


def number(value: Any) -> float | None:
    """A metric as a number; NaN, and what is none, is None: it never wins."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return None
    return float(value)


def is_better(value: float, than: float | None, smaller_is_better: bool) -> bool:
    """Whether a value beats the best so far; of equals the earlier stays the best."""
    if than is None:
        return True
    return value < than if smaller_is_better else value > than


def exit_of(state: TrialState, invalid_hp: bool) -> Exit:
    """How a trial ended, in the search's words."""
    if invalid_hp and state is TrialState.ERROR:
        return Exit.INVALID_HP
    return {TrialState.COMPLETED: Exit.COMPLETED, TrialState.CANCELED: Exit.CANCELED}.get(state, Exit.ERROR)


def _with_metric(tx: Tx, experiment: Experiment, metrics: Mapping[str, Any]) -> Experiment:
    """The experiment, with the metric to judge by picked from its first validation if its config names none."""
    if experiment.metric is not None:
        return experiment
    metric = pick_metric(metrics)
    if metric is None:
        return experiment
    experiments.update(tx, experiment.id, metric=metric)
    return dataclasses.replace(experiment, metric=metric)
