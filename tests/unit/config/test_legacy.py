"""Old spellings become today's fields, each with a notice; what has no equivalent is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from determined import config, errors
from determined.config import legacy

PBT = {"name": "pbt", "metric": "loss", "population_size": 4, "num_rounds": 2, "steps_per_round": 3}

# What was written, what it becomes, and the beginning of each notice.
UPGRADES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {}, []),
    (
        {"searcher": {"name": "single", "max_steps": 20}},
        {"searcher": {"name": "single", "max_length": {"batches": 2000}}},
        ["searcher.max_steps counts steps of 100 batches"],
    ),
    (
        {"searcher": {"name": "single", "max_steps": 20}, "batches_per_step": 32},
        {"searcher": {"name": "single", "max_length": {"batches": 640}}, "scheduling_unit": 32},
        [
            "batches_per_step is now called scheduling_unit",
            "scheduling_unit is deprecated",
            "searcher.max_steps counts steps of 32 batches",
        ],
    ),
    (
        {"searcher": {"name": "adaptive_asha", "target_trial_steps": 5}},
        {"searcher": {"name": "adaptive_asha", "max_length": {"batches": 500}}},
        ["searcher.target_trial_steps counts steps"],
    ),
    (
        {"min_validation_period": 2, "min_checkpoint_period": 0},
        {"min_validation_period": {"batches": 200}, "min_checkpoint_period": {"batches": 0}},
        ["min_validation_period counts steps", "min_checkpoint_period counts steps"],
    ),
    ({"searcher": {"name": "single", "max_length": 20}}, {"searcher": {"name": "single", "max_length": 20}}, []),
    (
        {"entrypoint_script": "python3 train.py"},
        {"entrypoint": "python3 train.py"},
        ["entrypoint_script is now called entrypoint"],
    ),
    (
        {"description": "mnist"},
        {"description": "mnist", "name": "mnist"},
        ["description is also taken for the name, which is absent"],
    ),
    ({"description": "mnist", "name": "n"}, {"description": "mnist", "name": "n"}, []),
    ({"searcher": {"name": "asha"}}, {"searcher": {"name": "async_halving"}}, []),
    (
        {"searcher": {"name": "adaptive_simple", "max_steps": 4, "max_trials": 3}},
        {"searcher": {"name": "adaptive_asha", "max_length": {"batches": 400}, "max_trials": 3}},
        ["searcher.name adaptive_simple is now adaptive_asha", "searcher.max_steps counts steps"],
    ),
    (
        {"searcher": PBT},
        {"searcher": {**{k: v for k, v in PBT.items() if k[0] != "s"}, "length_per_round": {"batches": 300}}},
        ["searcher.steps_per_round counts steps"],
    ),
    (
        {"environment": {"image": {"gpu": "x"}, "environment_variables": {"gpu": ["A=1"]}}},
        {"environment": {"image": {"cuda": "x"}, "environment_variables": {"cuda": ["A=1"]}}},
        ["environment.image.gpu is now called", "environment.environment_variables.gpu is now called"],
    ),
    (
        {"checkpoint_storage": {"type": "shared_fs", "host_path": "/a", "checkpoint_path": "b"}},
        {"checkpoint_storage": {"type": "shared_fs", "host_path": "/a", "storage_path": "b"}},
        ["checkpoint_storage.checkpoint_path is now called"],
    ),
    (
        {"log_policies": [{"pattern": "x", "action": {"type": "cancel_retries"}}]},
        {"log_policies": [{"pattern": "x", "action": "cancel_retries"}]},
        ["log_policies[0].action is now the word alone"],
    ),
    ({"resources": {"agent_label": "a"}}, {"resources": {}}, ["resources.agent_label has no effect: choose machines"]),
    ({"resources": {"agent_label": ""}}, {"resources": {}}, []),
    ({"data_layer": {"type": "shared_fs"}}, {}, ["data_layer has no effect"]),
    ({"scheduling_unit": 5}, {"scheduling_unit": 5}, ["scheduling_unit is deprecated"]),
]


@pytest.mark.parametrize(("old", "new", "notices"), UPGRADES, ids=str)
def test_an_old_spelling_is_understood(old: dict[str, Any], new: dict[str, Any], notices: list[str]) -> None:
    before = repr(old)
    upgraded, told = legacy.upgrade(old)
    assert upgraded == new
    assert len(told) == len(notices)
    assert all(sentence.startswith(start) for sentence, start in zip(told, notices)), told
    assert repr(old) == before, "what was given is not changed"


@pytest.mark.parametrize("old", [case[0] for case in UPGRADES], ids=str)
def test_upgrading_twice_is_upgrading_once(old: dict[str, Any]) -> None:
    upgraded, _ = legacy.upgrade(old)
    assert legacy.upgrade(upgraded)[0] == upgraded


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"searcher": {"name": "adaptive"}}, "searcher.name adaptive is no longer offered: it spent a budget"),
    ({"searcher": {"name": "sync_halving"}}, "use name: async_halving"),
    ({"searcher": {"name": "custom"}}, "write a search method and name it as module:Class"),
    ({"searcher": {"max_steps": 0}}, "searcher.max_steps must be a whole number of at least 1, not 0"),
    ({"searcher": {"max_steps": "20"}}, "searcher.max_steps must be a whole number of at least 1, not '20'"),
    ({"searcher": {"max_steps": 3, "max_length": 5}}, "searcher.max_steps and searcher.max_length say the same"),
    ({"min_validation_period": -1}, "min_validation_period must be a whole number of at least 0, not -1"),
    ({"entrypoint_script": "a", "entrypoint": "b"}, "entrypoint_script is the old name of entrypoint, which is there"),
]


@pytest.mark.parametrize(("old", "sentence"), REFUSED, ids=str)
def test_what_has_no_equivalent_is_refused_with_the_reason(old: dict[str, Any], sentence: str) -> None:
    with pytest.raises(errors.InvalidConfigurationException) as caught:
        legacy.upgrade(old)
    assert sentence in str(caught.value)
    with pytest.raises(errors.InvalidConfigurationException) as caught:
        config.load(old)
    assert sentence in str(caught.value)


WITHOUT_EFFECT: list[tuple[dict[str, Any], str]] = [
    (
        {"bind_mounts": [{"host_path": "/a", "container_path": "b"}]},
        "bind_mounts has no effect: there are no containers",
    ),
    ({"environment": {"image": "x"}}, "environment.image has no effect: there are no containers here: code runs in"),
    ({"environment": {"pod_spec": {"a": 1}}}, "environment.pod_spec has no effect: nothing runs on Kubernetes"),
    ({"resources": {"slots": 4}}, "resources.slots has no effect"),
    ({"resources": {"shm_size": "4G"}}, "resources.shm_size has no effect"),
    ({"optimizations": {"tensor_fusion_threshold": 32}}, "optimizations.tensor_fusion_threshold has no effect"),
    ({"optimizations": {"gradient_compression": True}}, "optimizations.gradient_compression has no effect"),
    ({"records_per_epoch": 10}, "records_per_epoch has no effect"),
    ({"security": {"a": 1}}, "security has no effect"),
    ({"environment": {"proxy_ports": [{"proxy_port": 80}]}}, "environment.proxy_ports has no effect"),
    ({"slurm": {"sbatch_args": ["--time=1"]}}, "slurm has no effect: trials run on the master's machine"),
]


@pytest.mark.parametrize(("written", "notice"), WITHOUT_EFFECT, ids=str)
def test_a_field_without_effect_is_accepted_with_a_notice(written: dict[str, Any], notice: str) -> None:
    (told,) = config.load(written).notices
    assert told.startswith(notice)


def test_defaults_written_out_need_no_notice() -> None:
    storage = {"type": "shared_fs", "host_path": "/a"}
    loaded = config.load(config.load({"name": "x", "checkpoint_storage": storage}).as_dict())
    assert loaded.notices == ()
