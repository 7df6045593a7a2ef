"""From a source to a config: lines, names, overrides, notices, and every mistake at once."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from determined import config, errors

GRID = """\
# grid.yaml
entrypoint_script: python3 train.py
hyperparameters:
    global_batch_size:
        type: categorical
        vals: [16, 32, 64]
    learning_rate: 1e-2
searcher:
    name: "grid"
    max_length:
        epochs: 20
"""

MNIST = """\
description: mnist_pytorch_const
hyperparameters:
    learning_rate: 0.001
    dropout: 0.5
    global_batch_size: 64
    n_filters1: 40
    n_filters2: 40
searcher:
    name: single
    metric: validation_error
    max_steps: 20
    smaller_is_better: true
entrypoint: model_def:MNistTrial
"""

WRONG = """\
name: x
hyperparameters:
  lr: {type: log, minval: 3, maxval: 1}
  n:
    type: intt
searcher:
  name: random
  max_step: 5
resources:
  slotz: 1
  priority: 1000
max_restarts: 1
max_restarts: 2
min_validation_period: -3
log_policies:
  - pattern: ok
  - pattern: (
"""


def test_the_grid_of_the_trainer_proposal_loads(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(GRID)
    loaded = config.load(path, to_run=True)
    assert loaded.entrypoint == "python3 train.py"
    assert loaded.searcher.name == "grid"
    assert loaded.searcher.metric is None
    assert loaded.as_dict()["searcher"]["max_length"] == {"epochs": 20}
    assert loaded.name == tmp_path.name
    assert loaded.notices == (f"entrypoint_script is now called entrypoint ({path}, line 2)",)
    values, _ = config.first_values(loaded.hyperparameters)
    assert values == {"global_batch_size": 16, "learning_rate": 0.01}


def test_the_config_of_the_mnist_tutorial_loads() -> None:
    loaded = config.load(MNIST, file="const.yaml")
    assert loaded.name == "mnist_pytorch_const"
    assert loaded.as_dict()["searcher"]["max_length"] == {"batches": 2000}
    assert loaded.entrypoint == "model_def:MNistTrial"
    assert loaded.notices == (
        "searcher.max_steps counts steps of 100 batches: 20 is now searcher.max_length: {batches: 2000}"
        " (const.yaml, line 11)",
        "description is also taken for the name, which is absent (const.yaml, line 1)",
    )


def test_every_mistake_is_reported_at_once_each_with_its_line() -> None:
    with pytest.raises(errors.InvalidConfigurationException) as caught:
        config.load(WRONG, file="const.yaml", overrides=["nonsense", "max_restarts=-1", "debug=maybe"])
    header, *sentences = str(caught.value).splitlines()
    assert header == f"const.yaml has {len(sentences)} mistakes:"
    assert sentences == [
        "  - --config nonsense must be written key=value, for example searcher.max_length.epochs=3",
        "  - debug must be true or false, not 'maybe' (--config debug)",
        "  - hyperparameters.lr.minval must be less than maxval, but 3 is not less than 1 (const.yaml, line 3)",
        "  - hyperparameters.n.type must be one of const, int, double, log, categorical, not 'intt';"
        " did you mean int? (const.yaml, line 5)",
        "  - searcher.max_trials is required (const.yaml, line 6)",
        "  - searcher.max_step is not a field (const.yaml, line 8)",
        "  - resources.slotz is not a field; did you mean slots? (const.yaml, line 10)",
        "  - resources.priority must be at most 99, not 1000 (const.yaml, line 11)",
        "  - max_restarts stands there twice (first in line 12) (const.yaml, line 13)",
        "  - min_validation_period must be a whole number of at least 0, not -3 (const.yaml, line 14)",
        "  - log_policies[1].pattern is not a regular expression: missing ), unterminated subpattern at position 0"
        " (const.yaml, line 17)",
    ]


def test_a_check_gives_the_mistakes_one_by_one() -> None:
    checked = config.check("max_restarts: -1\nfoo: 1\n", file="c.yaml")
    assert checked.config is None
    assert [(problem.path, problem.place.line) for problem in checked.problems] == [
        (("foo",), 2),
        (("max_restarts",), 1),
    ]
    assert config.check("name: x").config == config.load("name: x")


def test_a_mistake_in_a_merged_map_names_the_line_it_was_written_on() -> None:
    text = "data: {base: &base {priority: 0}}\nresources:\n  <<: *base\n"
    with pytest.raises(errors.InvalidConfigurationException, match=r"priority must be at least 1.*line 1"):
        config.load(text)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("", "the config is empty"),
        ("# nothing\n", "the config is empty"),
        ("- a\n- b\n", "must be a map of fields, not a list"),
        ("a: [\n", "is not valid YAML"),
        ("{", "is not valid YAML"),
        ("no-such-file.yaml", "no-such-file.yaml does not exist"),
        ("with\0nul.yaml", "cannot be read"),
    ],
)
def test_a_source_that_is_no_config_is_one_sentence(source: str, sentence: str) -> None:
    with pytest.raises(errors.InvalidConfigurationException) as caught:
        config.load(source)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_config(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.InvalidConfigurationException, match="cannot be read: Is a directory"):
        config.load(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        {"name": "x", "max_restarts": 3},
        "name: x\nmax_restarts: 3\n",
        '{"name": "x", "max_restarts": 3}',
        "{name: x, max_restarts: 3}",
    ],
)
def test_maps_yaml_and_json_say_the_same(source: Any) -> None:
    loaded = config.load(source)
    assert (loaded.name, loaded.max_restarts) == ("x", 3)


def test_a_json_file_is_read_as_json(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{\t"name": "\\ud83d\\ude00"}')
    assert config.load(path).name == "\U0001f600"


def test_the_name_comes_from_the_hint_if_the_config_says_nothing() -> None:
    assert config.load({}).name == "unnamed"
    assert config.load({}, name_hint="digits").name == "digits"
    assert config.load({"name": "a"}, name_hint="digits").name == "a"
    assert config.load({"description": "b"}, name_hint="digits").name == "b"


def test_an_entrypoint_is_demanded_only_to_run() -> None:
    assert config.load({}).entrypoint is None
    with pytest.raises(errors.InvalidConfigurationException, match="entrypoint is required to run"):
        config.load({}, to_run=True)


OVERRIDES: list[tuple[list[str], dict[str, Any]]] = [
    (["max_restarts=0"], {"max_restarts": 0}),
    (["data.a.b=x=y"], {"data": {"a": {"b": "x=y"}}}),
    (["data.a=1,b,2.5"], {"data": {"a": [1, "b", 2.5]}}),
    (["data.a=[1, 2]"], {"data": {"a": [1, 2]}}),
    (["data.a={x: 1, y: 2}"], {"data": {"a": {"x": 1, "y": 2}}}),
    (['data.a="1, 2"'], {"data": {"a": "1, 2"}}),
    (["data.a="], {"data": {"a": None}}),
    (["data.a=1e-3", "data.b=2"], {"data": {"a": 0.001, "b": 2}}),
    (["data.a=1", "data.a=2"], {"data": {"a": 2}}),
    (["labels=one"], {"labels": ["one"]}),
    (["environment.environment_variables=A=1"], {"environment": {"environment_variables": ["A=1"]}}),
    (
        ["volumes=/a:/b", "volumes=/c:/d,/e:/f"],
        {
            "bind_mounts": [
                {"host_path": "/a", "container_path": "/b"},
                {"host_path": "/c", "container_path": "/d"},
                {"host_path": "/e", "container_path": "/f"},
            ]
        },
    ),
    (["searcher.max_length.epochs=3"], {"searcher": {"max_length": {"epochs": 3}}}),
    (["searcher.max_length={epochs: 3}"], {"searcher": {"max_length": {"epochs": 3}}}),
    (["searcher.max_length=7"], {"searcher": {"max_length": 7}}),
    (["searcher.max_steps=7"], {"searcher": {"max_length": {"batches": 700}}}),
    (["min_validation_period=2"], {"min_validation_period": {"batches": 200}}),
    (["min_validation_period.epochs=2"], {"min_validation_period": {"epochs": 2}}),
    (["entrypoint_script=python3 x.py"], {"entrypoint": "python3 x.py"}),
    (
        ["hyperparameters.lr={type: double, minval: 0, maxval: 1}"],
        {"hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}}},
    ),
]


@pytest.mark.parametrize(("overrides", "same_as"), OVERRIDES, ids=str)
def test_an_override_is_as_if_it_had_been_written(overrides: list[str], same_as: dict[str, Any]) -> None:
    assert config.load({}, overrides=overrides) == config.load(same_as)


def test_an_override_replaces_the_unit_of_a_length_and_part_of_a_range() -> None:
    text = "searcher: {max_steps: 5}\nhyperparameters: {lr: {type: int, minval: 1, maxval: 9}}\n"
    loaded = config.load(text, overrides=["searcher.max_length.epochs=3", "hyperparameters.lr.minval=4"])
    assert loaded.as_dict()["searcher"]["max_length"] == {"epochs": 3}
    assert loaded.as_dict()["hyperparameters"]["lr"]["minval"] == 4


def test_an_override_counts_steps_like_the_file_does() -> None:
    loaded = config.load("batches_per_step: 10\n", overrides=["searcher.max_steps=7"])
    assert loaded.as_dict()["searcher"]["max_length"] == {"batches": 70}


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("a", "--config a must be written key=value"),
        ("=1", "--config  must be written key=value"),
        ("a..b=1", "--config a..b must be written key=value"),
        ("name.x=1", "--config name.x cannot be set: name is not a map"),
        ("data.a=[1", "--config data.a has a value that is not valid YAML"),
        ("data.a=!!python/name:os.system", "--config data.a has a value that is not allowed"),
        ("volumes=/a", "--config volumes must name volumes as host_path:container_path"),
        ("searcher.name=custom", "searcher.name custom is no longer offered"),
        ("nme=x", "nme is not a field; did you mean name? (--config nme)"),
    ],
)
def test_a_wrong_override_is_named(override: str, sentence: str) -> None:
    with pytest.raises(errors.InvalidConfigurationException) as caught:
        config.load({"name": "n"}, overrides=[override])
    assert sentence in str(caught.value)


def test_a_mistake_in_the_cluster_s_defaults_is_not_blamed_on_the_user() -> None:
    with pytest.raises(errors.InvalidConfigurationException) as caught:
        config.load("resources: {max_slots: 3}\n", file="c.yaml", defaults={"resources": {"priority": 0}})
    assert str(caught.value) == "resources.priority must be at least 1, not 0 (the cluster's defaults)"


def test_what_was_given_is_not_changed() -> None:
    written = {"searcher": {"max_steps": 3}, "log_policies": [{"pattern": "x"}]}
    before = repr(written)
    config.load(written, overrides=["searcher.name=single", "data.x=1"], defaults={"data": {"y": 1}})
    assert repr(written) == before
