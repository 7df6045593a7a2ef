"""Laying configs over each other."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from determined import config
from determined.config.merge import merge, put

# The user's, the default, and what comes out.
MERGED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {}, {}),
    ({"a": 1}, {"a": 2, "b": 3}, {"a": 1, "b": 3}),
    ({"a": None}, {"a": 2}, {"a": 2}),
    ({"a": {"x": 1}}, {"a": {"x": 2, "y": 3}}, {"a": {"x": 1, "y": 3}}),
    ({"a": {"x": {}}}, {"a": {"x": {"z": 3}}}, {"a": {"x": {"z": 3}}}),
    ({"a": 1}, {"a": {"x": 2}}, {"a": 1}),
    ({"labels": ["a"]}, {"labels": ["b"]}, {"labels": ["a"]}),
    ({"data": {"x": None}}, {"data": {"x": 1, "y": 2}}, {"data": {"x": None, "y": 2}}),
    (
        {"min_validation_period": {"epochs": 1}},
        {"min_validation_period": {"batches": 5}},
        {"min_validation_period": {"epochs": 1}},
    ),
    (
        {"searcher": {"name": "single", "max_length": {"epochs": 1}}},
        {"searcher": {"name": "single", "max_length": {"batches": 5}, "metric": "m"}},
        {"searcher": {"name": "single", "max_length": {"epochs": 1}, "metric": "m"}},
    ),
    (
        {"searcher": {"name": "grid"}},
        {"searcher": {"name": "random", "max_trials": 5, "metric": "m"}},
        {"searcher": {"name": "grid", "metric": "m"}},
    ),
    (
        {"checkpoint_storage": {"save_trial_best": 4}},
        {"checkpoint_storage": {"type": "shared_fs", "host_path": "/a"}},
        {"checkpoint_storage": {"type": "shared_fs", "host_path": "/a", "save_trial_best": 4}},
    ),
    (
        {"checkpoint_storage": {"type": "s3", "bucket": "b"}},
        {"checkpoint_storage": {"type": "shared_fs", "host_path": "/a", "save_trial_best": 4}},
        {"checkpoint_storage": {"type": "s3", "bucket": "b", "save_trial_best": 4}},
    ),
    (
        {"hyperparameters": {"lr": {"type": "int", "minval": 1, "maxval": 2}, "n": {"a": 1}}},
        {"hyperparameters": {"lr": {"type": "int", "minval": 0, "count": 3}, "n": {"a": 2, "b": 3}}},
        {"hyperparameters": {"lr": {"type": "int", "minval": 1, "maxval": 2}, "n": {"a": 1, "b": 3}}},
    ),
    (
        {"hyperparameters": {"n": {"a": 1}}},
        {"hyperparameters": {"n": {"type": "const", "val": 2}}},
        {"hyperparameters": {"n": {"a": 1}}},
    ),
    ({"hyperparameters": {"wd": None}}, {"hyperparameters": {"wd": 0.1}}, {"hyperparameters": {"wd": None}}),
    (
        {"bind_mounts": [{"host_path": "/u", "container_path": "/c"}]},
        {"bind_mounts": [{"host_path": "/d", "container_path": "/c"}, {"host_path": "/d", "container_path": "/e"}]},
        {"bind_mounts": [{"host_path": "/u", "container_path": "/c"}, {"host_path": "/d", "container_path": "/e"}]},
    ),
    (
        {"log_policies": [{"name": "a", "pattern": "x"}]},
        {"log_policies": [{"name": "a", "pattern": "y"}, {"name": "b", "pattern": "z"}]},
        {"log_policies": [{"name": "a", "pattern": "x"}, {"name": "b", "pattern": "z"}]},
    ),
    (
        {"environment": {"environment_variables": ["A=1"]}},
        {"environment": {"environment_variables": ["A=2", "B=3"]}},
        {"environment": {"environment_variables": ["A=1", "B=3"]}},
    ),
    (
        {"environment": {"environment_variables": {"cuda": ["A=1"]}}},
        {"environment": {"environment_variables": ["A=2"]}},
        {"environment": {"environment_variables": {"cuda": ["A=1"], "cpu": ["A=2"], "rocm": ["A=2"]}}},
    ),
    (
        {"environment": {"ports": {"a": 1}, "proxy_ports": [{"proxy_port": 1}]}},
        {"environment": {"ports": {"a": 2, "b": 3}, "proxy_ports": [{"proxy_port": 1, "proxy_tcp": True}]}},
        {"environment": {"ports": {"a": 1, "b": 3}, "proxy_ports": [{"proxy_port": 1}]}},
    ),
    (
        {"resources": {"devices": [{"host_path": "/u", "container_path": "/c"}]}},
        {"resources": {"devices": [{"host_path": "/d", "container_path": "/x"}], "priority": 3}},
        {
            "resources": {
                "devices": [{"host_path": "/u", "container_path": "/c"}, {"host_path": "/d", "container_path": "/x"}],
                "priority": 3,
            }
        },
    ),
]


@pytest.mark.parametrize(("user", "default", "expected"), MERGED, ids=str)
def test_what_the_user_leaves_open_comes_from_the_default(
    user: dict[str, Any], default: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = repr((user, default))
    assert merge(user, default) == expected
    assert repr((user, default)) == before


keys = strategies.sampled_from(
    ["a", "b", "data", "hyperparameters", "searcher", "name", "type", "max_length", "epochs", "batches"]
    + ["min_validation_period", "checkpoint_storage", "log_policies", "environment", "environment_variables", "cpu"]
)
leaves = strategies.none() | strategies.integers(0, 3) | strategies.sampled_from(["A=1", "A=2", "B=1", "s3"])
configs = strategies.recursive(
    strategies.dictionaries(keys, leaves | strategies.lists(leaves, max_size=3), max_size=4),
    lambda inner: strategies.dictionaries(keys, inner | leaves | strategies.lists(inner, max_size=2), max_size=4),
    max_leaves=10,
)


@hypothesis.given(configs)
def test_a_config_merged_with_itself_or_nothing_is_itself(user: dict[str, Any]) -> None:
    assert merge(user, user) == user
    assert merge(user, {}) == user


@hypothesis.given(configs, configs)
def test_merging_the_same_default_again_changes_nothing(user: dict[str, Any], default: dict[str, Any]) -> None:
    once = merge(user, default)
    assert merge(once, default) == once


def test_put_makes_maps_on_the_way_and_replaces_the_unit_of_a_length() -> None:
    assert put({}, ("a", "b"), 1) == {"a": {"b": 1}}
    assert put({"a": {"c": 2}}, ("a", "b"), 1) == {"a": {"b": 1, "c": 2}}
    length = {"searcher": {"max_length": {"batches": 5}}}
    assert put(length, ("searcher", "max_length", "epochs"), 1) == {"searcher": {"max_length": {"epochs": 1}}}
    with pytest.raises(ValueError, match="a is not a map"):
        put({"a": 5}, ("a", "b"), 1)


def test_a_cluster_s_defaults_lie_under_a_config() -> None:
    loaded = config.load(
        {"name": "x", "resources": {"slots_per_trial": 2}},
        defaults={"resources": {"slots_per_trial": 8, "priority": 7}, "batches_per_step": 10, "max_restarts": None},
    )
    assert loaded.resources.slots_per_trial == 2
    assert loaded.resources.priority == 7
    assert loaded.scheduling_unit == 10
    assert loaded.max_restarts == 5
    assert loaded.notices == ()


def test_built_in_log_policies_are_replaced_by_name_and_switched_off_without_a_pattern() -> None:
    loaded = config.load({"log_policies": [{"name": "CUDA OOM"}, {"name": "mine", "pattern": "x"}]})
    assert [(policy.name, policy.pattern is None) for policy in loaded.log_policies] == [
        ("CUDA OOM", True),
        ("mine", False),
        ("ECC Error", False),
    ]
