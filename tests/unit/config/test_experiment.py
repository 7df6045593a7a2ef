"""Which experiment configs are valid, what is wrong with those that are not, and what the defaults are."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from determined import config, errors
from determined.config import hparams, section, units
from determined.config.experiment import ExperimentConfig
from determined.config.length import Length

LOG = {"type": "log", "base": 10, "minval": -4, "maxval": -1}
ASHA = {"name": "adaptive_asha", "metric": "loss", "max_trials": 16}

VALID: list[dict[str, Any]] = [
    {},
    {"name": "x", "description": "d", "labels": ["a", "b"]},
    {"entrypoint": "model_def:Trial"},
    {"entrypoint": "python3 train.py"},
    {"entrypoint": ["python3", "train.py"]},
    {"hyperparameters": {"lr": 0.1, "layers": [1, 2], "nothing": None, "word": "relu", "flag": True}},
    {"hyperparameters": {"lr": {"type": "const", "val": {"a": 1}}}},
    {"hyperparameters": {"lr": LOG, "n": {"type": "int", "minval": 1, "maxval": 2, "count": 2}}},
    {"hyperparameters": {"opt": {"name": {"type": "categorical", "vals": ["sgd", None, {"a": 1}]}, "lr": LOG}}},
    {"hyperparameters": {"empty": {}}},
    {"hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1.5}}},
    {"searcher": {"name": "single", "max_length": 100}},
    {"searcher": {"name": "single", "max_length": {"records": 1}}},
    {"searcher": {"name": "random", "max_trials": 1, "max_concurrent_trials": 0}},
    {"searcher": {"name": "grid"}},
    {"searcher": {"name": "grid", "max_length": {"epochs": 20}}},
    {"searcher": {**ASHA, "max_length": {"epochs": 16}}},
    {"searcher": {**ASHA, "max_time": 100, "time_metric": "batches", "divisor": 3, "mode": "aggressive"}},
    {"searcher": {**ASHA, "max_length": {"batches": 9}, "bracket_rungs": [3, 2], "stop_once": False}},
    {"searcher": {"name": "async_halving", "metric": "loss", "max_trials": 3, "max_length": {"epochs": 4}}},
    {
        "searcher": {
            "name": "pbt",
            "metric": "loss",
            "population_size": 4,
            "num_rounds": 3,
            "length_per_round": {"epochs": 1},
        }
    },
    {"searcher": {"name": "tpe", "metric": "loss", "max_trials": 4, "pruner": "median"}},
    {"searcher": {"name": "gp", "objectives": [{"metric": "a"}, {"metric": "b"}], "max_trials": 4}},
    {"searcher": {"name": "my.search:Method", "options": {"depth": 3}}},
    {"searcher": {"name": "single", "source_trial_id": 5}},
    {"min_validation_period": {"epochs": 1}, "min_checkpoint_period": {"batches": 0}},
    {"data": {"anything": [1, {"goes": None}]}},
    {"workspace": "w", "project": "p"},
    {"checkpoint_storage": {"save_trial_best": 3}},
    {"checkpoint_storage": {"type": "shared_fs", "host_path": "/data", "storage_path": "sub"}},
    {"checkpoint_storage": {"type": "shared_fs", "host_path": "/data", "storage_path": "/data/sub"}},
    {"checkpoint_storage": {"type": "directory", "container_path": "/data"}},
    {"checkpoint_storage": {"type": "s3", "bucket": "b", "prefix": "a..b/c"}},
    {"checkpoint_storage": {"type": "gcs", "bucket": "b"}},
    {"checkpoint_storage": {"type": "azure", "container": "c", "connection_string": "x"}},
    {"checkpoint_storage": {"type": "azure", "container": "c", "account_url": "https://x", "credential": "y"}},
    {"checkpoint_storage": {"type": "my_package.store:Store", "options": {"a": 1}}},
    {"resources": {"slots_per_trial": 0, "max_slots": 4, "weight": 0.5, "priority": 99, "shm_size": "4G"}},
    {"environment": {"environment_variables": ["A=1", "B="], "image": "x"}},
    {"environment": {"environment_variables": {"cuda": ["A=b=c"]}, "image": {"cpu": "x"}}},
    {"environment": {"requirements": "requirements.txt", "proxy_ports": [{"proxy_port": 80}], "ports": {"a": 1}}},
    {"bind_mounts": [{"host_path": "/a", "container_path": "b"}]},
    {"log_policies": [{"name": "n", "pattern": "x.*", "action": "exclude_node"}, {"pattern": "y"}]},
    {"profiling": {"enabled": True, "begin_on_batch": 5, "end_after_batch": 5}},
    {"reproducibility": {"experiment_seed": 2**31 - 1}},
    {"retention_policy": {"log_retention_days": -1}, "preemption_timeout": 30},
    {"optimizations": {"aggregation_frequency": 4, "mixed_precision": "O1"}},
    {"max_restarts": 0, "debug": True, "checkpoint_policy": "none", "perform_initial_validation": True},
    {"max_restarts": 2.0},
    {"slurm": {"sbatch_args": ["--time=1"]}, "pbs": {"x": 1}, "integrations": {}, "security": {}},
]


@pytest.mark.parametrize("written", VALID, ids=str)
def test_a_valid_config_survives_being_written_and_read_again(written: dict[str, Any]) -> None:
    loaded = config.load(written)
    assert config.load(loaded.as_dict()) == loaded
    assert config.load(loaded) == loaded


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"nme": "x"}, "nme is not a field; did you mean name?"),
    ({"hyperparameter": {}}, "hyperparameter is not a field; did you mean hyperparameters?"),
    ({"max_length": 5}, "max_length is not a field; did you mean searcher.max_length?"),
    ({"slots_per_trial": 5}, "slots_per_trial is not a field; did you mean resources.slots_per_trial?"),
    ({"notices": []}, "notices is not a field"),
    ({"resources": {"slot_per_trial": 2}}, "resources.slot_per_trial is not a field; did you mean slots_per_trial?"),
    ({"name": 5}, "name must be text, not 5 (put it in quotes)"),
    ({"name": ""}, "name must not be empty"),
    ({"labels": "a"}, "labels must be a list, not 'a'"),
    ({"labels": [1]}, "labels[0] must be text, not 1 (put it in quotes)"),
    ({"data": []}, "data must be a map, not a list"),
    ({"entrypoint": []}, "entrypoint needs at least one entry"),
    ({"entrypoint": ""}, "entrypoint must not be empty"),
    ({"entrypoint": {"a": 1}}, "entrypoint must be text, not a map"),
    ({"workspace": "w"}, "project is required with workspace"),
    ({"project": "w"}, "workspace is required with project"),
    ({"debug": "yes"}, "debug must be true or false, not 'yes'"),
    ({"debug": 1}, "debug must be true or false, not 1"),
    ({"max_restarts": -1}, "max_restarts must be at least 0, not -1"),
    ({"max_restarts": "5"}, "max_restarts must be a whole number, not '5' (remove the quotes)"),
    ({"max_restarts": 1.5}, "max_restarts must be a whole number, not 1.5"),
    ({"max_restarts": True}, "max_restarts must be a whole number, not true"),
    ({"checkpoint_policy": "bst"}, "checkpoint_policy must be one of best, all, none, not 'bst'; did you mean best?"),
    ({"min_validation_period": {"epoch": 1}}, "min_validation_period.epoch is not a field; did you mean epochs?"),
    (
        {"min_validation_period": {"epochs": 1, "batches": 1}},
        "min_validation_period needs exactly one of batches, records or epochs, for example {epochs: 3}",
    ),
    ({"min_checkpoint_period": {"epochs": -1}}, "min_checkpoint_period.epochs must be at least 0, not -1"),
    ({"min_checkpoint_period": "5"}, "min_checkpoint_period must be a map, not '5'"),
    ({"hyperparameters": []}, "hyperparameters must be a map, not a list"),
    (
        {"hyperparameters": {"lr": {"type": "logg"}}},
        "hyperparameters.lr.type must be one of const, int, double, log, categorical, not 'logg'; did you mean log?",
    ),
    ({"hyperparameters": {"a": {"lr": {"type": 5}}}}, "hyperparameters.a.lr.type must be one of"),
    ({"hyperparameters": {"lr": {"type": "const"}}}, "hyperparameters.lr.val is required"),
    ({"hyperparameters": {"lr": {"type": "int", "minval": 1}}}, "hyperparameters.lr.maxval is required"),
    (
        {"hyperparameters": {"lr": {"type": "int", "minval": 1, "maxval": 1}}},
        "hyperparameters.lr.minval must be less than maxval, but 1 is not less than 1",
    ),
    (
        {"hyperparameters": {"lr": {"type": "int", "minval": 1, "maxval": 2.5}}},
        "hyperparameters.lr.maxval must be a whole number, not 2.5",
    ),
    (
        {"hyperparameters": {"lr": {"type": "double", "minval": "1", "maxval": 2.5}}},
        "hyperparameters.lr.minval must be a number, not '1' (remove the quotes)",
    ),
    ({"hyperparameters": {"lr": {**LOG, "base": 0}}}, "hyperparameters.lr.base must be more than 0, not 0"),
    ({"hyperparameters": {"lr": {**LOG, "maxval": 400}}}, "hyperparameters.lr.maxval is an exponent"),
    ({"hyperparameters": {"lr": {**LOG, "count": 0}}}, "hyperparameters.lr.count must be at least 1, not 0"),
    ({"hyperparameters": {"lr": {**LOG, "vals": []}}}, "hyperparameters.lr.vals is not a field"),
    ({"hyperparameters": {"x": {"type": "categorical", "vals": []}}}, "x.vals needs at least one entry"),
    ({"hyperparameters": {"x": {"type": "categorical", "vals": "ab"}}}, "x.vals must be a list, not 'ab'"),
    (
        {"searcher": {"name": "grid"}, "hyperparameters": {"a": {"lr": LOG}}},
        "hyperparameters.a.lr.count is required by the grid searcher: the number of points to try",
    ),
    ({"searcher": {"name": "gird"}}, "searcher.name must be one of single, random, grid"),
    ({"searcher": {"name": "gird"}}, "did you mean grid?"),
    ({"searcher": {"name": 5}}, "searcher.name must be one of"),
    ({"searcher": {"name": "no:"}}, "searcher.name must look like module:Class, not 'no:'"),
    ({"searcher": "grid"}, "searcher must be a map, not 'grid'"),
    ({"searcher": {"name": "single", "metric": ""}}, "searcher.metric must not be empty"),
    ({"searcher": {"name": "single", "max_length": 0}}, "searcher.max_length must be at least 1, not 0"),
    (
        {"searcher": {"name": "single", "max_length": {"epochs": 0}}},
        "searcher.max_length.epochs must be at least 1, not 0",
    ),
    ({"searcher": {"name": "random"}}, "searcher.max_trials is required"),
    ({"searcher": {"name": "random", "max_trials": 0}}, "searcher.max_trials must be at least 1, not 0"),
    ({"searcher": {"name": "grid", "max_trials": 5}}, "searcher.max_trials is not a field"),
    ({"searcher": ASHA}, "searcher.max_length is required, for example {epochs: 16} (or max_time and time_metric)"),
    ({"searcher": {**ASHA, "max_time": 3}}, "searcher.time_metric is required with max_time"),
    ({"searcher": {**ASHA, "time_metric": "x"}}, "searcher.max_time is required with time_metric"),
    ({"searcher": {**ASHA, "max_time": 3, "max_length": {"epochs": 1}}}, "searcher.max_time and max_length exclude"),
    ({"searcher": {**ASHA, "max_length": 3}}, "searcher.max_length needs a unit with this method"),
    ({"searcher": {"name": "adaptive_asha", "max_trials": 1, "max_length": {"epochs": 1}}}, "metric is required"),
    ({"searcher": {**ASHA, "max_length": {"epochs": 1}, "divisor": 1}}, "searcher.divisor must be more than 1, not 1"),
    ({"searcher": {**ASHA, "max_length": {"epochs": 1}, "mode": "x"}}, "searcher.mode must be one of aggressive"),
    ({"searcher": {"name": "tpe", "max_trials": 3}}, "searcher.metric is required (or objectives, for several)"),
    (
        {"searcher": {"name": "cmaes", "objectives": [{"metric": "a"}, {"metric": "b"}], "max_trials": 4}},
        "searcher.objectives are several, and cmaes works with one metric; use tpe, gp or qmc",
    ),
    (
        {"searcher": {**ASHA, "max_time": 9, "time_metric": "seconds", "stop_once": False}},
        "searcher.time_metric must be batches or epochs with stop_once: false",
    ),
    (
        {"searcher": {"name": "single", "source_trial_id": 1, "source_checkpoint_uuid": "x"}},
        "searcher.source_trial_id and source_checkpoint_uuid exclude each other; keep one",
    ),
    ({"checkpoint_storage": {"type": "hdfs"}}, "checkpoint_storage.type must be one of shared_fs, directory, s3"),
    ({"checkpoint_storage": {"type": "shared_fs"}}, "checkpoint_storage.host_path is required"),
    ({"checkpoint_storage": {"type": "shared_fs", "host_path": "a"}}, "host_path must be an absolute path, not 'a'"),
    (
        {"checkpoint_storage": {"type": "shared_fs", "host_path": "/a", "storage_path": "/ab"}},
        "checkpoint_storage.storage_path must lie inside host_path (/a)",
    ),
    (
        {"checkpoint_storage": {"type": "shared_fs", "host_path": "/a", "storage_path": "b/../../c"}},
        'checkpoint_storage.storage_path must not contain ".."',
    ),
    ({"checkpoint_storage": {"type": "s3", "bucket": "b", "prefix": "../x"}}, 'prefix must not contain ".."'),
    ({"checkpoint_storage": {"type": "azure", "container": "c"}}, "needs exactly one of connection_string and"),
    ({"checkpoint_storage": {"save_trial_best": -1}}, "checkpoint_storage.save_trial_best must be at least 0, not -1"),
    ({"checkpoint_storage": {"bucket": "b"}}, "checkpoint_storage.bucket is not a field"),
    ({"resources": {"priority": 0}}, "resources.priority must be at least 1, not 0"),
    ({"resources": {"priority": 100}}, "resources.priority must be at most 99, not 100"),
    ({"resources": {"weight": 0}}, "resources.weight must be more than 0, not 0"),
    ({"resources": {"shm_size": "4X"}}, 'resources.shm_size must be a number of bytes, or a size such as "4G"'),
    ({"environment": {"environment_variables": ["A"]}}, "environment_variables[0] must be written NAME=value"),
    ({"environment": {"environment_variables": 5}}, "environment_variables must be a list of NAME=value entries"),
    ({"environment": {"environment_variables": {"gpus": []}}}, "environment_variables.gpus is not a field"),
    ({"environment": {"image": 5}}, "environment.image must be text, or a map"),
    ({"environment": {"ports": {"a": 70000}}}, "environment.ports.a must be at most 65535, not 70000"),
    ({"bind_mounts": [{"host_path": "a", "container_path": "b"}]}, "bind_mounts[0].host_path must be an absolute path"),
    ({"bind_mounts": [{"host_path": "/a", "container_path": "."}]}, 'bind_mounts[0].container_path must not be "."'),
    ({"log_policies": [{"pattern": "("}]}, "log_policies[0].pattern is not a regular expression"),
    ({"log_policies": [{"pattern": "x", "action": "explode"}]}, "log_policies[0].action must be one of"),
    ({"log_policies": [{}]}, "log_policies[0] needs a name, a pattern, or both"),
    (
        {"profiling": {"begin_on_batch": 3, "end_after_batch": 2}},
        "profiling.end_after_batch must not be less than begin_on_batch (3), but is 2",
    ),
    ({"reproducibility": {"experiment_seed": 2**31}}, "reproducibility.experiment_seed must be at most 2147483647"),
    ({"retention_policy": {"log_retention_days": -2}}, "retention_policy.log_retention_days must be at least -1"),
    ({"optimizations": {"mixed_precision": "O4"}}, "optimizations.mixed_precision must be one of O0, O1, O2, O3"),
    ({"optimizations": {"aggregation_frequency": 0}}, "optimizations.aggregation_frequency must be at least 1, not 0"),
]


@pytest.mark.parametrize(("written", "sentence"), INVALID, ids=str)
def test_a_mistake_is_said_in_one_clear_sentence(written: dict[str, Any], sentence: str) -> None:
    with pytest.raises(errors.InvalidConfigurationException) as caught:
        config.load(written)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value), "one mistake, one sentence"
    assert "pydantic" not in str(caught.value)
    assert "#" not in str(caught.value)


def test_defaults_are_those_of_the_reference() -> None:
    loaded = config.load({})
    assert loaded.searcher.name == "single"
    assert loaded.searcher.smaller_is_better is True
    assert loaded.searcher.metric is None
    assert loaded.max_restarts == 5
    assert loaded.checkpoint_policy == "best"
    assert loaded.min_validation_period == Length(batches=0)
    assert loaded.resources.slots_per_trial == 1
    assert loaded.scheduling_unit == 100
    assert loaded.reproducibility.experiment_seed is None
    assert loaded.checkpoint_storage.save_experiment_best == 0
    assert loaded.checkpoint_storage.save_trial_best == 1
    assert loaded.checkpoint_storage.save_trial_latest == 1
    assert [policy.name for policy in loaded.log_policies] == ["CUDA OOM", "ECC Error"]
    assert config.load({"searcher": {"name": "random", "max_trials": 3}}).as_dict()["searcher"] == {
        "name": "random",
        "metric": None,
        "smaller_is_better": True,
        "max_length": None,
        "source_trial_id": None,
        "source_checkpoint_uuid": None,
        "max_trials": 3,
        "max_concurrent_trials": 16,
    }


@pytest.mark.parametrize("name", ["single", "grid", "random"])
def test_searchers_that_decide_nothing_by_it_need_no_metric(name: str) -> None:
    written = {"name": name, **({"max_trials": 2} if name == "random" else {})}
    assert config.load({"searcher": written}).searcher.metric is None


def test_null_is_unset_at_every_level_but_a_value_in_free_maps() -> None:
    loaded = config.load(
        {
            "name": None,
            "resources": {"slots_per_trial": None},
            "searcher": {"name": "single", "max_length": {"epochs": 3, "batches": None}},
            "checkpoint_storage": None,
            "hyperparameters": {"weight_decay": None},
            "data": {"path": None},
        }
    )
    assert loaded == config.load(
        {
            "searcher": {"max_length": {"epochs": 3}},
            "hyperparameters": {"weight_decay": None},
            "data": {"path": None},
        }
    )
    assert loaded.data == {"path": None}
    assert loaded.as_dict()["hyperparameters"] == {"weight_decay": None}


def test_the_plain_form_shows_hyperparameters_and_lengths_as_people_write_them() -> None:
    written = {
        "hyperparameters": {"lr": 0.1, "layers": [1, {"type": "x"}], "opt": {"name": "sgd"}},
        "searcher": {"max_length": {"epochs": 20}},
        "min_validation_period": {"records": 64},
    }
    plain = config.load(written).as_dict()
    assert plain["hyperparameters"] == written["hyperparameters"]
    assert plain["searcher"]["max_length"] == {"epochs": 20}
    assert plain["min_validation_period"] == {"records": 64}


def test_a_config_cannot_be_changed() -> None:
    loaded = config.load({})
    with pytest.raises(pydantic.ValidationError):
        loaded.name = "other"  # type: ignore[misc]


def test_lengths_become_units_and_zero_as_a_period_means_never() -> None:
    assert Length(epochs=3).as_unit() == units.Epoch(3)
    assert Length(records=640).as_unit() == units.Record(640)
    assert Length(batches=7).as_period() == units.Batch(7)
    assert Length(batches=0).as_period() is None
    assert config.load({"searcher": {"max_length": 9}}).searcher.length(units.Epoch) == units.Epoch(9)
    assert config.load({"searcher": {"max_length": {"epochs": 2}}}).searcher.length() == units.Epoch(2)
    assert config.load({}).searcher.length() is None


def test_variables_of_a_device_are_found_by_name() -> None:
    environment = config.load({"environment": {"environment_variables": ["A=1", "B=x=y", "A=2"]}}).environment
    assert environment.environment_variables.of("cuda") == {"A": "2", "B": "x=y"}


def test_sizes_are_bytes() -> None:
    assert config.load({"resources": {"shm_size": "4G"}}).resources.shm_size == 4 * 2**30
    assert config.load({"resources": {"shm_size": "512 MiB"}}).resources.shm_size == 512 * 2**20
    assert config.load({"resources": {"shm_size": 17}}).resources.shm_size == 17


def test_secrets_are_masked_in_views_only() -> None:
    written = {
        "data": {"secrets": {"token": "canary-1"}, "path": "x"},
        "checkpoint_storage": {"type": "s3", "bucket": "b", "secret_key": "canary-2", "access_key": "canary-3"},
        "environment": {"environment_variables": ["API_TOKEN=canary-4", "MODE=fast"]},
    }
    loaded = config.load(written)
    assert "canary" in str(loaded.as_dict())
    masked = loaded.as_dict(masked=True)
    assert "canary" not in str(masked)
    assert masked["environment"]["environment_variables"]["cpu"] == ["API_TOKEN=********", "MODE=fast"]
    assert masked["data"]["path"] == "x"


def test_mistakes_do_not_repeat_secrets() -> None:
    written = {
        "checkpoint_storage": {"type": "s3", "bucket": "b", "secret_key": ["canary"], "save_trial_best": "canary"},
        "environment": {"environment_variables": ["canary"], "registry_auth": "canary"},
    }
    with pytest.raises(errors.InvalidConfigurationException) as caught:
        config.load(written)
    assert "canary" not in str(caught.value)


def test_the_model_alone_tells_every_mistake_too() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        ExperimentConfig.model_validate({"max_restarts": -1, "workspace": "w", "resources": {"slotz": 1}})
    assert caught.value.error_count() == 3


def test_ranges_are_listed_with_their_paths() -> None:
    loaded = config.load(
        {"hyperparameters": {"a": 1, "b": {"lr": LOG}, "c": {"type": "int", "minval": 0, "maxval": 9}}}
    )
    assert [(path, type(found)) for path, found in loaded.hyperparameters.ranges()] == [
        (("b", "lr"), hparams.Log),
        (("c",), hparams.Int),
    ]


@pytest.mark.parametrize(("word", "meant"), [("max-restarts", "max_restarts"), ("Name", "name"), ("zzz", None)])
def test_a_guess_is_made_only_where_there_is_one(word: str, meant: str | None) -> None:
    assert section.closest(word, ExperimentConfig.model_fields) == meant
