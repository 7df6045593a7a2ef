"""Old spellings become today's fields, each with a notice; and what today's fields without effect are worth.

One pass over what was written, before it is checked: nothing else in Resolute knows an old spelling.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from determined.config.problems import Path, Problem, as_exception, dotted, shown

BATCHES_PER_STEP = 100

# Searchers that cannot be had any more, and why.
REFUSED_SEARCHERS = {
    "adaptive": "spent a budget of steps instead of creating a number of trials, which no present method does;"
    " use name: adaptive_asha with max_trials and max_length",
    "sync_halving": "made every trial of a rung wait for the slowest; use name: async_halving with num_rungs,"
    " max_trials and max_length",
    "custom": "needed a second process to drive the search; write a search method and name it as module:Class",
}

# Dropped because there is nothing they could do here.
_DROPPED = {
    ("resources", "agent_label"): "choose machines with resources.resource_pool",
    ("data_layer",): "read data in the data loaders",
    ("internal",): "it was written by tools of the predecessor",
    ("checkpoint_storage", "tensorboard_path"): "TensorBoard files lie beside the checkpoints",
}


class Ineffective(NamedTuple):
    """A field that is accepted and kept, but without effect: what happens instead, and the value that says nothing."""

    path: Path
    instead: str
    default: Any = None


_CONTAINER = "there are no containers here"
_WITHOUT_EFFECT: tuple[Ineffective, ...] = (
    Ineffective(("bind_mounts",), f"{_CONTAINER}: code sees the machine's own folders"),
    Ineffective(
        ("environment", "image"), f"{_CONTAINER}: code runs in the submitter's Python, or in environment.requirements"
    ),
    Ineffective(("environment", "force_pull_image"), _CONTAINER),
    Ineffective(("environment", "registry_auth"), _CONTAINER),
    Ineffective(("environment", "proxy_ports"), "the master passes no ports on; processes open the machine's own"),
    Ineffective(("environment", "ports"), f"{_CONTAINER}: processes open the machine's own ports"),
    Ineffective(("environment", "add_capabilities"), f"{_CONTAINER}: processes have the rights of their user"),
    Ineffective(("environment", "drop_capabilities"), f"{_CONTAINER}: processes have the rights of their user"),
    Ineffective(("environment", "pod_spec"), "nothing runs on Kubernetes here"),
    Ineffective(("resources", "devices"), f"{_CONTAINER}: processes see the machine's own devices"),
    Ineffective(("resources", "shm_size"), f"{_CONTAINER}: processes use the machine's own shared memory"),
    Ineffective(("resources", "native_parallel"), "the entrypoint decides how ranks are started"),
    Ineffective(("checkpoint_storage", "propagation"), f"{_CONTAINER}: the folder is used directly", "rprivate"),
    Ineffective(("optimizations", "gradient_compression"), "it was Horovod's; gradients are reduced by torch"),
    Ineffective(("optimizations", "tensor_fusion_threshold"), "it was Horovod's; torch groups gradients itself", 64),
    Ineffective(("optimizations", "tensor_fusion_cycle_time"), "it was Horovod's; torch groups gradients itself", 1),
    Ineffective(("optimizations", "auto_tune_tensor_fusion"), "it was Horovod's; torch groups gradients itself"),
    Ineffective(("optimizations", "grad_updates_size_file"), "it was Horovod's"),
    Ineffective(("records_per_epoch",), "the length of an epoch is asked of the data loader"),
    Ineffective(("pbs",), "there is no PBS pool"),
    Ineffective(("integrations",), "there are no integrations"),
    Ineffective(("security",), "processes run as the user who starts them"),
    Ineffective(("tensorboard_storage",), "TensorBoard files lie beside the checkpoints"),
)
EXPERIMENT_WITHOUT_EFFECT: tuple[Ineffective, ...] = (
    *_WITHOUT_EFFECT,
    Ineffective(("resources", "slots"), "the slots of an experiment's trials are resources.slots_per_trial"),
    Ineffective(("slurm",), "trials run on the master's machine"),
)
TASK_WITHOUT_EFFECT: tuple[Ineffective, ...] = (
    *_WITHOUT_EFFECT,
    Ineffective(("resources", "max_slots"), "a task runs on resources.slots"),
    Ineffective(("slurm",), "tasks run on the master's machine"),
)


class Notice(NamedTuple):
    """What was understood differently from how it was written."""

    path: Path
    says: str


@dataclass
class Upgraded:
    """A config with today's fields only; ``moved`` tells of new paths under which old ones they were written."""

    config: dict[str, Any]
    notices: list[Notice] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    moved: dict[Path, Path] = field(default_factory=dict)


def upgrade(raw: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The same config with today's fields, and a notice for each old spelling.

    Raises ``InvalidConfigurationException`` for what has no equivalent any more.
    """
    upgraded = modernise(raw)
    if upgraded.problems:
        raise as_exception(upgraded.problems)
    name_from_description(upgraded)
    return upgraded.config, tuple(f"{dotted(notice.path)} {notice.says}" for notice in upgraded.notices)


def modernise(raw: Mapping[str, Any], batches_per_step: int | None = None) -> Upgraded:
    """Like ``upgrade``, for one layer of a config; mistakes are collected instead of raised."""
    upgraded = Upgraded(copy.deepcopy(dict(raw)))
    config = upgraded.config
    steps = batches_per_step or step_size(config)
    _drop(upgraded)
    _rename(upgraded, ("entrypoint_script",), ("entrypoint",))
    _rename(upgraded, ("batches_per_step",), ("scheduling_unit",))
    if config.get("scheduling_unit") not in (None, BATCHES_PER_STEP):
        says = "is deprecated; it still says after how many batches training metrics are reported"
        upgraded.notices.append(Notice(("scheduling_unit",), says))
    for period in ("min_validation_period", "min_checkpoint_period"):
        if is_count(config.get(period)):
            _count_in_steps(upgraded, (period,), (period,), steps)
    for section in ("image", "environment_variables"):
        _rename(upgraded, ("environment", section, "gpu"), ("environment", section, "cuda"))
    _rename(upgraded, ("checkpoint_storage", "checkpoint_path"), ("checkpoint_storage", "storage_path"))
    _searcher(upgraded, steps)
    _log_policies(upgraded)
    return upgraded


def name_from_description(upgraded: Upgraded) -> None:
    """Older configs had a description and no name."""
    config = upgraded.config
    if config.get("name") is None and isinstance(config.get("description"), str) and config["description"]:
        config["name"] = config["description"]
        upgraded.moved[("name",)] = ("description",)
        upgraded.notices.append(Notice(("description",), "is also taken for the name, which is absent"))


def step_size(config: Mapping[str, Any]) -> int:
    """How many batches one "step" of an old config is."""
    for name in ("batches_per_step", "scheduling_unit"):
        value = config.get(name)
        if isinstance(value, int) and is_count(value) and value > 0:
            return value
    return BATCHES_PER_STEP


def is_count(value: Any) -> bool:
    """Whether a written value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def without_effect(written: Any, fields: Iterable[Ineffective]) -> Iterator[Notice]:
    """A notice for each of ``fields`` that is set to something."""
    for path, instead, default in fields:
        value = at(written, path)
        if not _is_nothing(value) and value != default:
            yield Notice(path, f"has no effect: {instead}")


def at(config: Any, path: Path) -> Any:
    """The value at a path, or None."""
    for part in path:
        if not isinstance(config, Mapping):
            return None
        config = config.get(part)
    return config


def _is_nothing(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_nothing(inner) for inner in value.values())
    return value in (None, False, 0, "") or value == []


def _searcher(upgraded: Upgraded, steps: int) -> None:
    searcher = upgraded.config.get("searcher")
    if not isinstance(searcher, dict):
        return
    name = searcher.get("name")
    if isinstance(name, str) and name in REFUSED_SEARCHERS:
        upgraded.problems.append(
            Problem(("searcher", "name"), f"{name} is no longer offered: it {REFUSED_SEARCHERS[name]}")
        )
        del upgraded.config["searcher"]
        return
    if name == "asha":
        searcher["name"] = "async_halving"
    elif name == "adaptive_simple":
        searcher["name"] = "adaptive_asha"
        says = "adaptive_simple is now adaptive_asha, which does the same without waiting for the slowest trial"
        upgraded.notices.append(Notice(("searcher", "name"), says))
    for old in ("max_steps", "target_trial_steps"):
        if old in searcher:
            _count_in_steps(upgraded, ("searcher", old), ("searcher", "max_length"), steps)
    if "steps_per_round" in searcher:
        _count_in_steps(upgraded, ("searcher", "steps_per_round"), ("searcher", "length_per_round"), steps)


def _count_in_steps(upgraded: Upgraded, old: Path, new: Path, steps: int) -> None:
    """A number of steps at ``old`` becomes so many batches at ``new``."""
    parent = at(upgraded.config, old[:-1])
    count = parent.pop(old[-1])
    if count is None:
        return
    if not is_count(count) or count < 0 or (count < 1 and old != new):
        least = 0 if old == new else 1
        upgraded.problems.append(Problem(old, f"must be a whole number of at least {least}, not {shown(count)}"))
        return
    if parent.get(new[-1]) is not None:
        upgraded.problems.append(Problem(old, f"and {dotted(new)} say the same; keep {new[-1]}"))
        return
    parent[new[-1]] = {"batches": count * steps}
    upgraded.moved[new] = old
    says = f"counts steps of {steps} batches: {count} is now {dotted(new)}: {{batches: {count * steps}}}"
    upgraded.notices.append(Notice(old, says))


def _rename(upgraded: Upgraded, old: Path, new: Path) -> None:
    parent = at(upgraded.config, old[:-1])
    if not isinstance(parent, dict) or old[-1] not in parent:
        return
    value = parent.pop(old[-1])
    if value is None:
        return
    if parent.get(new[-1]) is not None:
        upgraded.problems.append(Problem(old, f"is the old name of {new[-1]}, which is there too; keep {new[-1]}"))
        return
    parent[new[-1]] = value
    upgraded.moved[new] = old
    upgraded.notices.append(Notice(old, f"is now called {dotted(new)}"))


def _drop(upgraded: Upgraded) -> None:
    for path, instead in _DROPPED.items():
        parent = at(upgraded.config, path[:-1])
        if isinstance(parent, dict) and not _is_nothing(parent.pop(path[-1], None)):
            upgraded.notices.append(Notice(path, f"has no effect: {instead}"))


def _log_policies(upgraded: Upgraded) -> None:
    policies = upgraded.config.get("log_policies")
    for number, policy in enumerate(policies if isinstance(policies, list) else ()):
        action = policy.get("action") if isinstance(policy, dict) else None
        if isinstance(action, dict) and set(action) == {"type"}:
            policy["action"] = action["type"]
            path = ("log_policies", number, "action")
            upgraded.notices.append(Notice(path, "is now the word alone, without a map"))
