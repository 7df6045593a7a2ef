"""What people get wrong every day is told in one sentence or by their own traceback, and leads to the right state."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests import masters
from tests.flow.processes import wait_until
from tests.flow.test_cli_master import Place

pytestmark = pytest.mark.slow

MODEL = """
import torch
from torch import nn
from determined import pytorch

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.rand(2), torch.rand(1)

class Good(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Linear(2, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
    def build_training_data_loader(self):
        return pytorch.DataLoader(Points(), batch_size=2)
    def build_validation_data_loader(self):
        return pytorch.DataLoader(Points(), batch_size=2)
    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = (self.model(batch[0]) - batch[1]).pow(2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}
    def evaluate_batch(self, batch):
        return {"loss": (self.model(batch[0]) - batch[1]).pow(2).mean()}

class NeedsRate(Good):
    def __init__(self, context):
        super().__init__(context)
        self.rate = context.get_hparam("rate")

class Fails(Good):
    def train_batch(self, batch, epoch_idx, batch_idx):
        raise RuntimeError("no gradient today")
"""
SCRIPTS = {
    "rate.py": "import determined as det\nprint(det.get_cluster_info().trial.hparams['rate'])\n",
    "quiet.py": "print('done')\n",
    "save.py": "from determined import core\nwith core.init() as context:\n"
    "    context.train.report_validation_metrics(1, {'loss': 1.0})\n"
    "    with context.checkpoint.store_path({'steps_completed': 1}) as (path, _):\n"
    "        (path / 'a').write_text('a')\n",
    "other.py": "from determined import core\nwith core.init() as context:\n"
    "    context.train.report_validation_metrics(1, {'accuracy': 1.0})\n",
}
SINGLE = {"name": "single", "metric": "loss", "max_length": {"batches": 4}}
ASHA = {"name": "adaptive_asha", "metric": "loss", "max_trials": 2, "time_metric": "batches", "max_time": 8}

# A config, the state it leads to, and what `det experiment describe` says (a regular expression).
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no such module": (
        {"entrypoint": "nomodule:Trial"},
        "ERROR",
        r"its trial failed: the entrypoint 'nomodule:Trial' names a module that is not in this folder: nomodule",
    ),
    "no such class": (
        {"entrypoint": "model_def:Nope"},
        "ERROR",
        r"its trial failed: the module model_def has no class Nope",
    ),
    "no such script": (
        {"entrypoint": "python nosuch.py"},
        "ERROR",
        r"its trial failed: .*can't open file '.*/nosuch\.py'",
    ),
    "no such program": ({"entrypoint": ["nosuchprogram"]}, "ERROR", r"its trial failed: .*nosuchprogram"),
    "a hyperparameter that is not there": (
        {"entrypoint": "model_def:NeedsRate"},
        "ERROR",
        r"its trial failed: there is no hyperparameter 'rate' \(known: x\)[\s\S]*"
        r"model_def\.py, line \d+: self\.rate = context\.get_hparam\(\"rate\"\)",
    ),
    "the same in a script": (
        {"entrypoint": "python rate.py"},
        "ERROR",
        r"its trial failed: KeyError: 'rate'[\s\S]*Traceback[\s\S]*rate\.py\", line 2",
    ),
    "an exception in train_batch": (
        {"entrypoint": "model_def:Fails"},
        "ERROR",
        r"its trial failed: RuntimeError: no gradient today[\s\S]*Traceback[\s\S]*"
        r"raise RuntimeError\(\"no gradient today\"\)",
    ),
    "a script that never reports": (
        {"entrypoint": "python quiet.py"},
        "COMPLETED",
        r"note: no trial reported a number as validation metric loss \(searcher\.metric\)",
    ),
    "another metric than the searcher's": (
        {"entrypoint": "python other.py"},
        "COMPLETED",
        r"note: no trial reported a number as validation metric loss \(searcher\.metric\)",
    ),
    "another metric than a search lives by": (
        {"entrypoint": "python other.py", "searcher": ASHA},
        "ERROR",
        r"validation after 1 batches has no metric loss, which the search judges by; it has accuracy",
    ),
    "a storage that is no folder": (
        {"entrypoint": "python save.py", "checkpoint_storage": {"type": "shared_fs", "host_path": "{file}"}},
        "ERROR",
        r"its trial failed: checkpoint \S+ could not be saved in \S+: File exists; [\s\S]*save\.py, line 4",
    ),
    "a storage that cannot be made": (
        {"entrypoint": "python save.py", "checkpoint_storage": {"type": "shared_fs", "host_path": "/proc/nowhere"}},
        "ERROR",
        r"its trial failed: checkpoint \S+ could not be saved in /proc/nowhere: No such file or directory; ",
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("mistakes"))
    made.environ["DET_MASTER_SLOTS"] = "4"
    (made.project / "model_def.py").write_text(MODEL)
    for name, script in SCRIPTS.items():
        (made.project / name).write_text(script)
    with masters.stopped_afterwards(made.state):
        made.det("master", "up")
        yield made


@pytest.fixture(scope="module")
def experiments(place: Place) -> dict[str, int]:
    """All at once: they wait for each other only as far as slots go."""
    file = place.folder / "a-file"
    file.write_text("")
    found = {}
    for name, (config, _, _) in CASES.items():
        written = json.loads(json.dumps({"searcher": SINGLE, **config}).replace("{file}", str(file)))
        found[name] = place.create({"x": 1.0}, **written)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_told(place: Place, experiments: dict[str, int], name: str) -> None:
    _, state, says = CASES[name]
    experiment = experiments[name]
    word = place.det("e", "wait", str(experiment), code=0 if state == "COMPLETED" else 1)
    assert word == f"Experiment {experiment} {state.lower()}\n"
    described = place.det("e", "describe", str(experiment)) + place.said
    assert re.search(says, described), described
    # Of us there is nothing to be seen, and nothing of what is not theirs.
    assert "site-packages/determined" not in described and "/determined/" not in described
    assert "contextlib.py" not in described and "<frozen" not in described


def test_what_cannot_run_is_refused_before_it_is_created(place: Place) -> None:
    before = place.det("e", "list", "--all", "--json")
    config = pathlib.Path(place.config({"x": 1.0}, searcher=SINGLE))
    config.write_text(config.read_text().replace("entrypoint: python3 script.py\n", ""))
    place.det("e", "create", str(config), str(place.project), code=1)
    assert "entrypoint is required to run" in place.said
    config = pathlib.Path(place.config({"x": 1.0}, searcher=SINGLE, resources={"slots_per_trial": 64}))
    place.det("e", "create", str(config), str(place.project), code=1)
    assert re.search(r"slots_per_trial asks for 64 slots, and pool default has 4 slots in all; ask for 4", place.said)
    place.det("e", "create", str(config), str(place.folder / "nowhere"), code=1)
    assert "nowhere" in place.said and "Traceback" not in place.said
    assert place.det("e", "list", "--all", "--json") == before


def test_who_waits_is_told_what_for(place: Place) -> None:
    (place.project / "wait.py").write_text("import time\ntime.sleep(600)\n")
    first = place.create({"x": 1.0}, entrypoint="python wait.py", searcher=SINGLE, resources={"slots_per_trial": 3})
    second = place.create({"x": 1.0}, entrypoint="python wait.py", searcher=SINGLE, resources={"slots_per_trial": 2})
    assert wait_until(lambda: place.state_of(first) == "RUNNING", 60)
    assert place.state_of(second) == "QUEUED"
    assert wait_until(lambda: "1 of 4 is free" in place.det("j", "list"), 10), place.det("j", "list")
    place.det("e", "kill", f"{first}-{second}")
    place.det("e", "wait", str(second), code=1)
