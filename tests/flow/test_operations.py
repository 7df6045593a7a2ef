"""Pause, activate, cancel, kill, continue, fork and delete: at every moment of a trial, and across the master's death.

Every experiment here is one trial that waits for us at a moment of its life; what it reports is known beforehand.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from determined import errors
from determined.client.master import Master
from tests.flow import stub
from tests.flow.cluster import Cluster, cluster
from tests.flow.processes import wait_until
from tests.flow.test_kill_anything import metrics

HPARAMS = {"step_seconds": 0.01, "steps": 12, "every": 3}
HOOK = """
gate=${STUB_WAITS#*:}
while [ "${STUB_WAITS%%:*}" = start ] && [ ! -e "$gate" ]; do
    : > "$gate.here"
    sleep 0.05
done
"""

MOMENTS = ("start", "training", "checkpoint")
OPERATIONS = ("pause", "cancel", "kill")
# What has become of an experiment once its trial has left.
LEADS_TO = {"pause": "PAUSED", "cancel": "CANCELED", "kill": "CANCELED"}


class Case:
    """An experiment whose trial waits at a moment."""

    def __init__(self, started: Cluster, place: pathlib.Path, moment: str, operation: str) -> None:
        self.started, self.moment, self.operation = started, moment, operation
        self.gate = place / f"{moment}-{operation}"
        self.config = {
            "name": f"{operation} at {moment}",
            "entrypoint": "python stub.py",
            "hyperparameters": HPARAMS,
            "searcher": {"name": "single", "metric": "error"},
            "max_restarts": 0,
            "environment": {"environment_variables": [f"STUB_WAITS={moment}:{self.gate}"]},
        }
        self.id = started.submit(place / "code", self.config)

    @property
    def is_there(self) -> bool:
        return self.gate.with_name(f"{self.gate.name}.here").exists()

    @property
    def state(self) -> str:
        return self.started.master.experiment(self.id).state

    @property
    def trial(self) -> Any:
        (trial,) = self.started.trials(self.id)
        return trial

    @property
    def is_at_rest(self) -> bool:
        """Nothing of it holds a slot."""
        return all(each.ended_at is not None for each in self.started.master.trial_allocations(self.trial.id))

    def wait(self, is_so: Callable[[Case], bool], seconds: float = 30.0) -> None:
        assert wait_until(lambda: is_so(self), seconds), self

    def ask(self, operation: Any) -> None:
        self.started.master.operate_experiment(self.id, operation)

    def check_whole(self, experiment_id: int) -> None:
        """It has come to what an undisturbed one comes to, each row once."""
        (trial,) = self.started.trials(experiment_id)
        rows = metrics(self.started, trial.id)
        course = [*stub.course(HPARAMS)]
        trained = [
            (row.steps_completed, row.metrics["state"], row.metrics["loss"]) for row in rows if row.group == "training"
        ]
        assert trained == course, self
        validated = [(row.steps_completed, row.metrics["error"]) for row in rows if row.group == "validation"]
        assert validated == [(step, loss / 2) for step, _, loss in course if step % 3 == 0], self
        kept = self.started.master.trial_checkpoints(trial.id, limit=100).items
        assert max(each.steps_completed for each in kept if each.state == "COMPLETED") == 12

    def __repr__(self) -> str:
        return f"{self.operation} at {self.moment}: {self.started.master.experiment(self.id)}\n{self.started.log}"


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True], ids=["the master lives", "the master dies"])
def test_every_operation_at_every_moment(tmp_path: pathlib.Path, dies: bool) -> None:
    code = tmp_path / "code"
    code.mkdir()
    shutil.copy(stub.__file__, code / "stub.py")
    (code / "startup-hook.sh").write_text(HOOK)
    with cluster(tmp_path / "master", slots=9, DET_MASTER_WARM_START="false") as started:

        def master() -> Master:
            return started.master  # another one after each death

        def perhaps_die() -> None:
            if dies:
                started.kill()
                started.start()

        cases = [Case(started, tmp_path, moment, operation) for moment in MOMENTS for operation in OPERATIONS]
        for case in cases:
            case.wait(lambda case: case.is_there, 90)
            # What cannot be is refused, with the reason.
            with pytest.raises(errors.Refused, match=f"experiment {case.id} has not ended"):
                master().delete_experiment(case.id)
            with pytest.raises(errors.Refused, match=f"experiment {case.id} has not ended"):
                master().continue_experiment(case.id)

        for case in cases:
            case.ask(case.operation)
            case.ask(case.operation)  # twice is once
        perhaps_die()
        # Those who were killed go at once; those who save are let finish.
        for case in cases:
            if case.operation == "kill" or case.moment != "checkpoint":
                case.wait(lambda case: case.is_at_rest)
            else:
                assert not case.is_at_rest
            case.gate.touch()
        for case in cases:
            case.wait(lambda case: case.is_at_rest and case.state == LEADS_TO[case.operation])
            latest = {"start": 0, "training": 5, "checkpoint": 6}[case.moment]
            if case.operation == "kill" and case.moment != "start":
                latest = 3
            uuid = case.trial.latest_checkpoint
            saved = master().checkpoint(uuid).steps_completed if uuid else 0
            # The wish may arrive after the checkpoint was done: then it trains on for as long.
            is_late = case.moment == "checkpoint" and case.operation != "kill" and saved > latest
            assert saved == latest or is_late, case

        # All of them go on, each in its way, to the same end.
        for case in cases:
            if case.operation == "pause":
                case.ask("activate")
            else:
                with pytest.raises(errors.Refused, match=f"experiment {case.id} has ended"):
                    case.ask("activate")
                master().continue_experiment(case.id)
        perhaps_die()
        forks = {
            case.id: started.submit(code, case.config, parent_id=case.id) for case in cases if case.moment == "start"
        }
        for case in cases:
            assert started.wait(case.id).state == "COMPLETED", case
            case.check_whole(case.id)
            assert case.trial.restarts == 0
        for parent, fork in forks.items():
            assert started.wait(fork).state == "COMPLETED"
            cases[0].check_whole(fork)
            assert master().experiment(fork).parent_id == parent

        # And all are deleted, with all their files.
        trials = [trial.id for case in cases for trial in started.trials(case.id)]
        uuids = [each.uuid for case in cases for each in master().experiment_checkpoints(case.id, limit=100).items]
        for case in cases:
            master().delete_experiment(case.id)
        perhaps_die()
        assert wait_until(lambda: {each.id for each in master().experiments().items} == {*forks.values()}), started.log
        left = {path.name for path in started.folder.glob("*/*")}
        assert not left & {*uuids, *(f"trial-{trial}" for trial in trials)}
        for fork in forks.values():
            cases[0].check_whole(fork)
