"""From a config to a method, methods of one's own among them; the metric that counts."""

from __future__ import annotations

import importlib
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from determined import config, errors, search
from determined.search.method import Create, Exit, Extend, Finish, Stop

MINE = """
from determined.search import Create, Finish, Space

class Twice:
    def __init__(self, config, seed, times=2):
        self.space, self.seed, self.left = Space(config.hyperparameters), seed, times
    def start(self):
        return [Create(number, {"lr": 0.1 * number}, self.seed) for number in range(self.left)]
    def on_validation(self, trial, metrics):
        return []
    def on_exit(self, trial, exit):
        self.left -= 1
        return [] if self.left else [Finish()]
    def progress(self, trials):
        return 0.5
    def dump(self):
        return self.left
    def load(self, data):
        self.left = data

class Nothing:
    def __init__(self, config, seed):
        pass
"""


@pytest.fixture
def module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_search_method.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield "my_search_method"
    sys.modules.pop("my_search_method", None)


def build(**searcher: Any) -> search.SearchMethod:
    return search.build_method(config.load({"searcher": searcher}), 3)


def test_a_method_of_ones_own(module: str) -> None:
    method = build(name=f"{module}:Twice", options={"times": 3})
    assert method.start() == [Create(number, {"lr": 0.1 * number}, 3) for number in range(3)]
    assert method.unit is None
    for number in range(2):
        assert method.on_exit(number, Exit.COMPLETED) == []
    assert method.on_exit(2, Exit.COMPLETED) == [Finish()]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("no_such_module:X", {}, "searcher no_such_module:X cannot be imported: No module named"),
        ("my_search_method:Thrice", {}, "searcher my_search_method:Thrice cannot be imported"),
        ("my_search_method:Twice", {"time": 3}, "searcher my_search_method:Twice does not take (config, seed) and its"),
        ("my_search_method:Nothing", {}, "searcher my_search_method:Nothing is not a search method: it has no start"),
    ],
)
def test_what_is_no_method_is_refused(module: str, name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.InvalidConfigurationException) as refused:
        build(name=name, options=options)
    assert str(refused.value).startswith(says)


def test_the_metric_that_trials_are_ranked_by() -> None:
    def of(**searcher: Any) -> tuple[str | None, bool]:
        asked = config.load({"searcher": searcher})
        return search.metric_of(asked), search.is_smaller_better(asked)

    assert of(name="single") == (None, True)
    assert of(name="random", max_trials=3, metric="m", smaller_is_better=False) == ("m", False)
    objectives = [{"metric": "a", "smaller_is_better": False}, {"metric": "b"}]
    assert of(name="tpe", max_trials=3, objectives=objectives) == ("a", False)


def test_how_far_a_trial_trains_at_most() -> None:
    def of(**searcher: Any) -> tuple[float, str] | None:
        return search.max_length(config.load({"searcher": searcher}).searcher)

    asha = {"name": "asha", "metric": "m", "max_trials": 3}
    assert of(name="single") is None
    assert of(name="single", max_length=5) == (5, "")
    assert of(name="single", max_length={"records": 5}) == (5, "records")
    assert of(**asha, max_time=9, time_metric="seconds") == (9, "seconds")
    assert of(**asha, max_length={"epochs": 9}) == (9, "epochs")
    pbt = {"name": "pbt", "metric": "m", "population_size": 2, "num_rounds": 3, "length_per_round": {"epochs": 2}}
    assert of(**pbt) == (6, "epochs")


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"loss": 1, "accuracy": 2}, "loss"),
        ({"validation_loss": 1, "accuracy": 2}, "validation_loss"),
        ({"accuracy": 2, "batches": 5, "epochs": 1, "note": "x"}, "accuracy"),
        ({"accuracy": 2, "error": 1}, None),
        ({"batches": 5}, None),
    ],
)
def test_where_no_metric_is_named_the_loss_or_the_only_number_counts(metrics: Any, expected: str | None) -> None:
    assert search.pick_metric(metrics) == expected


def test_actions_come_back_from_text() -> None:
    for action in (Create(1, {"a": [1, None]}, 5, 2.5, 0), Extend(1, 3.0), Stop(1, "why"), Finish(), Finish("no")):
        assert search.action_from_data(json.loads(json.dumps(search.action_as_data(action)))) == action


def test_neither_torch_nor_optuna_is_loaded_before_a_search_asks_for_it() -> None:
    code = "import sys, determined.search; print([m for m in ('optuna', 'torch', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_optuna_the_sentence_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['optuna'] = None\n"
        "from determined import config, search\n"
        "asked = config.load({'searcher': {'name': 'tpe', 'metric': 'm', 'max_trials': 2}})\n"
        "try: search.build_method(asked, 0)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(
        "InvalidConfigurationException searcher tpe needs Optuna: pip install 'resolute[search]'"
    )
