"""What follows when something of an experiment has changed, until nothing more follows.

A trial reports, ends, or is wanted otherwise; its search is told and answers with new trials and stops; trials that are
stopped may end at once, of which the search is told; and in the end the experiment itself may have ended. All of this
is one transaction.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from determined.master.lifecycle import searching
from determined.master.lifecycle.orders import REASONS, order_stop
from determined.master.records import Experiment, Trial
from determined.master.states import (
    ExperimentState,
    TrialState,
    Wanted,
    experiment_state,
    promoted_trial_state,
    settled_trial_state,
    wanted_of_trial,
)
from determined.master.store import allocations, changes, checkpoints, experiments, searches, trials
from determined.master.store.database import Tx
from determined.search.method import Action, Create, Exit, Extend, Finish, Stop

_UNENDED = tuple(state for state in TrialState if not state.has_ended)
_EXITS = {TrialState.COMPLETED: Exit.COMPLETED, TrialState.CANCELED: Exit.CANCELED, TrialState.ERROR: Exit.ERROR}


def task_id_of(trial_id: int) -> str:
    """What allocations, logs and the queue call a trial."""
    return f"trial-{trial_id}"


class Turn:
    """One change of an experiment and all that follows from it. Say what happened, then ``settle``."""

    def __init__(self, tx: Tx, experiment: Experiment) -> None:
        self.tx = tx
        self.experiment = experiment
        self._news: collections.deque[Callable[[], list[Action]]] = collections.deque()
        self._has_moved = False  # something other than a measure has changed

    # What can happen.

    def begin_search(self, actions: Iterable[Action]) -> None:
        """The search has said what it wants first."""
        first = [*actions]
        self._has_moved = True
        self._news.append(lambda: first)

    def validated(self, trial: Trial, metrics: Mapping[str, Any]) -> None:
        """A trial reported a validation that its search has not been told of."""
        self._news.append(lambda: searching.tell_validation(self.tx, self.experiment, trial.number, metrics))

    def ended(self, trial: Trial, state: TrialState, exit: Exit | None = None, **values: Any) -> None:
        """A trial has come to an end."""
        exit = exit or _EXITS[state]
        # Canceled with its whole experiment it may be taken up again with it: the search need not know.
        is_told = not trial.exit_told and not (state is TrialState.CANCELED and self.experiment.wanted.is_final)
        self._set(trial, state, exit=exit.value, exit_told=trial.exit_told or is_told, ended_at=self.tx.now, **values)
        self.resolve_copies(trial.number)
        if is_told:
            self._news.append(lambda: searching.tell_exit(self.tx, self.experiment, trial.number, exit))

    def moved(self, trial: Trial, state: TrialState, **values: Any) -> None:
        """A trial is somewhere else now, and has not ended."""
        self._set(trial, state, ended_at=None, exit=None, **values)

    def reconsider(self, trial: Trial) -> None:
        """What is wanted of a trial, or of all, has changed: do what can be done at once."""
        wanted = wanted_of_trial(self.experiment.wanted, trial.wanted)
        state = settled_trial_state(trial.state, wanted)
        if state.has_ended and not trial.state.has_ended:
            self.ended(trial, state)
        elif state is not trial.state:
            self.moved(trial, state)
        if state is TrialState.STOPPING and wanted in REASONS:
            allocation = allocations.live_of(self.tx, task_id_of(trial.id))
            if allocation is not None:
                order_stop(self.tx, allocation, REASONS[wanted])

    def reconsider_all(self) -> None:
        """The same for every trial of the experiment; many that hold nothing are moved together."""
        self._has_moved = True
        together: dict[TrialState, list[int]] = {}
        for trial_id, _, before, its_own in trials.brief(self.tx, self.experiment.id, _UNENDED):
            state = settled_trial_state(before, wanted_of_trial(self.experiment.wanted, its_own))
            if state is TrialState.STOPPING or (state.has_ended and not self.experiment.wanted.is_final):
                self.reconsider(trials.require(self.tx, trial_id))
            elif state is not before:
                together.setdefault(state, []).append(trial_id)
        for state, trial_ids in together.items():
            values: dict[str, Any] = {"state": state}
            if state.has_ended:
                values.update(exit=_EXITS[state].value, ended_at=self.tx.now)
            trials.update_all(self.tx, trial_ids, **values)
            changes.record(self.tx, "trial", trial_ids, self.experiment.id, state=state.value)

    def resolve_copies(self, number: int, has_let_go: bool = True) -> None:
        """Trials that wait for a checkpoint of this trial get it, if there is one, or if there will be none."""
        waiting = trials.waiting_for_copy(self.tx, self.experiment.id, number)
        if not waiting:
            return
        source = trials.by_number(self.tx, self.experiment.id, number)
        latest = checkpoints.get(self.tx, source.latest_checkpoint) if source and source.latest_checkpoint else None
        for trial_id, steps in waiting:
            if has_let_go or (latest is not None and latest.steps_completed >= steps):
                trials.update(
                    self.tx, trial_id, source_checkpoint=latest.uuid if latest else None, copy_from_steps=None
                )
                self.tx.changed("trial", trial_id, self.experiment.id)

    # What follows.

    def settle(self, whole: bool = False) -> Experiment:
        """Work out everything that follows, the experiment's own state last.

        ``whole``: also when nothing has happened in this turn.
        """
        self._work()
        if not (self._has_moved or whole):
            self._measure()
            return self.experiment
        while self._is_stuck():
            self._work()
        self._settle_experiment()
        return self.experiment

    def _work(self) -> None:
        while self._news:
            news = self._news.popleft()
            if self._search_listens():
                for action in news():
                    self._has_moved = True
                    self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Create():
                self._create(action)
            case Extend(trial=number, target=target):
                self._extend(number, target)
            case Stop(trial=number, reason=reason):
                trial = trials.by_number(self.tx, self.experiment.id, number)
                if trial is not None and not trial.state.has_ended and not trial.wanted.is_final:
                    trials.update(self.tx, trial.id, wanted=Wanted.ENOUGH, status=reason or trial.status)
                    self.reconsider(dataclasses.replace(trial, wanted=Wanted.ENOUGH))
            case Finish(failure=failure):
                self._finish(failure)

    def _create(self, action: Create) -> None:
        experiment = self.experiment
        state = settled_trial_state(TrialState.QUEUED, wanted_of_trial(experiment.wanted, Wanted.ACTIVE))
        copied = {"source_checkpoint": experiment.source_checkpoint, "copy_from_steps": None}
        if action.copy_of is not None:
            copied = self._copied(action.copy_of)
        trial_id = trials.insert(
            self.tx,
            {
                "experiment_id": experiment.id,
                "number": action.trial,
                "state": state,
                "wanted": Wanted.ACTIVE,
                "hparams": dict(action.hparams),
                "seed": action.seed,
                "target": action.target,
                "copy_of": action.copy_of,
                **copied,
                "exit": _EXITS[state].value if state.has_ended else None,
                "summary_metrics": {},
                "metadata": {},
                "queued_at": self.tx.now,
                "created_at": self.tx.now,
                "ended_at": self.tx.now if state.has_ended else None,
            },
        )
        experiments.add(self.tx, experiment.id, trial_count=1)
        self.tx.changed("trial", trial_id, experiment.id, state=state.value, number=action.trial)

    def _copied(self, number: int) -> dict[str, Any]:
        """Where a copy of a trial begins: at its latest checkpoint, or at the one it is about to report."""
        source = trials.by_number(self.tx, self.experiment.id, number)
        if source is None:
            return {"source_checkpoint": self.experiment.source_checkpoint, "copy_from_steps": None}
        latest = checkpoints.get(self.tx, source.latest_checkpoint) if source.latest_checkpoint else None
        is_old = latest is None or latest.steps_completed < source.searched_steps
        # The checkpoint of the steps that the search has just judged is reported after their metrics.
        return {
            "source_checkpoint": latest.uuid if latest else None,
            "copy_from_steps": source.searched_steps if is_old and source.state.has_allocation else None,
        }

    def _extend(self, number: int, target: float) -> None:
        trial = trials.by_number(self.tx, self.experiment.id, number)
        if trial is None or trial.state.has_ended:
            return
        trials.update(self.tx, trial.id, target=target)
        self.tx.changed("trial", trial.id, self.experiment.id, target=target)
        if trial.state is TrialState.WAITING:
            state = promoted_trial_state(wanted_of_trial(self.experiment.wanted, trial.wanted))
            if state.has_ended:
                self.ended(trial, state)
            else:
                self.moved(trial, state)

    def _finish(self, failure: str | None) -> None:
        searches.update(self.tx, self.experiment.id, is_over=True, failure=failure)
        if failure is None:
            return
        experiments.update(self.tx, self.experiment.id, error=failure)
        self.experiment = dataclasses.replace(self.experiment, error=failure)
        for trial in trials.of_experiment(self.tx, self.experiment.id, _UNENDED):
            if not trial.wanted.is_final:
                trials.update(self.tx, trial.id, wanted=Wanted.CANCELED)
                trial = dataclasses.replace(trial, wanted=Wanted.CANCELED)
            self.reconsider(trial)

    def _search_listens(self) -> bool:
        return not self.experiment.unmanaged and searches.require(self.tx, self.experiment.id).failure is None

    def _is_stuck(self) -> bool:
        """Whether nothing more can happen that would make the search say how to go on; if so, say it for it."""
        experiment = self.experiment
        if experiment.state.has_ended or experiment.unmanaged or experiment.wanted.is_final:
            return False
        search = searches.require(self.tx, experiment.id)
        if search.failure is not None:
            return False
        unended = {state for state in trials.states(self.tx, experiment.id) if not state.has_ended}
        if unended == {TrialState.WAITING}:
            for trial in trials.of_experiment(self.tx, experiment.id, unended):
                self.ended(trial, TrialState.COMPLETED)
            return True
        if not unended and not search.is_over:
            has_trials = experiments.require(self.tx, experiment.id).trial_count > 0
            self._finish(None if has_trials else "the search method created no trial")
            return True
        return False

    def _settle_experiment(self) -> None:
        experiment = self.experiment = experiments.require(self.tx, self.experiment.id)
        if experiment.state.has_ended:
            return
        search = searches.require(self.tx, experiment.id)
        states = trials.states(self.tx, experiment.id)
        if experiment.unmanaged and not states:
            return  # its first run is about to be registered
        state = experiment_state(experiment.wanted, states, search.is_over, search.failure is not None)
        values: dict[str, Any] = {}
        if state is not experiment.state:
            values["state"] = state
        if state.has_ended:
            values["ended_at"] = self.tx.now
            if state is ExperimentState.ERROR and experiment.error is None:
                values["error"] = _why_all_failed(self.tx, experiment.id)
        progress = self._progress(search.failure is None, state)
        if progress is not None and progress != experiment.progress:
            values["progress"] = progress
        if state.has_ended:
            searching.put_away(self.tx, experiment.id)
        if values:
            experiments.update(self.tx, experiment.id, **values)
            self.experiment = experiments.require(self.tx, experiment.id)
            self.tx.changed(
                "experiment",
                experiment.id,
                experiment.id,
                **{name: values[name] for name in ("state", "progress") if name in values},
            )

    def _progress(self, search_works: bool, state: ExperimentState) -> float | None:
        if state is ExperimentState.COMPLETED:
            return 1.0
        if not search_works:
            return None
        if self.experiment.unmanaged:
            done = trials.progress(self.tx, self.experiment.id)
            return sum(done.values()) / len(done) if done else 0.0
        return searching.progress(
            self.tx,
            self.experiment,
            lambda: trials.progress(self.tx, self.experiment.id),
            at_once=state is not self.experiment.state,
        )

    def _measure(self) -> None:
        """Nothing has moved: only its progress may have."""
        if self.experiment.state.has_ended:
            return
        progress = self._progress(searches.require(self.tx, self.experiment.id).failure is None, self.experiment.state)
        if progress is not None and progress != self.experiment.progress:
            experiments.update(self.tx, self.experiment.id, progress=progress)
            self.tx.changed("experiment", self.experiment.id, self.experiment.id, progress=progress)

    def _set(self, trial: Trial, state: TrialState, **values: Any) -> None:
        self._has_moved = True
        trials.update(self.tx, trial.id, state=state, **values)
        self.tx.changed("trial", trial.id, self.experiment.id, state=state.value)


def _why_all_failed(tx: Tx, experiment_id: int) -> str:
    failed = trials.of_experiment(tx, experiment_id, [TrialState.ERROR])
    if not failed:
        return "the search ended before any trial was trained"
    first = failed[0]
    reason = _in_a_line(first.error or "it failed")
    if len(failed) == 1:
        return f"its trial failed: {reason}"
    return f"none of its {len(failed)} trials succeeded; trial {first.id} says: {reason}"


def _in_a_line(error: str) -> str:
    """What went wrong, of all that was printed about it: the last line, but for those that only say where."""
    lines = error.strip().splitlines()
    told = [line for line in lines if line.strip() and not line[0].isspace()]
    return (told or lines)[-1].removeprefix("error: ")
