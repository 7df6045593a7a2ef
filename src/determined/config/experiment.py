"""ExperimentConfig: everything one experiment asks for, as pure data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import pydantic
from typing_extensions import Self

from determined.config.environment import BindMount, Entrypoint, Environment, LogPolicy, Slurm
from determined.config.hparams import Hyperparameters, holds_ranges
from determined.config.length import Length
from determined.config.masking import mask
from determined.config.resources import Resources
from determined.config.searcher import Searcher, Single
from determined.config.section import (
    AtLeastOne,
    BrokenRule,
    Flag,
    FreeMap,
    Name,
    NotNegative,
    Number,
    Path,
    Section,
    Text,
    Texts,
    Whole,
)
from determined.config.storage import Storage, UsualStorage

BUILT_IN_LOG_POLICIES = (
    LogPolicy(name="CUDA OOM", pattern=".*CUDA out of memory.*"),
    LogPolicy(name="ECC Error", pattern=".*uncorrectable ECC error encountered.*"),
)
_PLATFORM = "Accepted for configs written for other clusters; has no effect."


class Reproducibility(Section):
    """What makes a run repeatable."""

    experiment_seed: Annotated[Whole, pydantic.Field(ge=0, le=2**31 - 1)] | None = pydantic.Field(
        None, description="Seed of the search and of every trial, 0 to 2147483647; absent: drawn at random."
    )


class Profiling(Section):
    """Measuring the machine and the training loop while a trial runs."""

    enabled: Flag = pydantic.Field(False, description="Whether to measure.")
    begin_on_batch: NotNegative = pydantic.Field(0, description="First batch that is measured.")
    end_after_batch: NotNegative | None = pydantic.Field(None, description="Last batch that is measured.")
    sync_timings: Flag = pydantic.Field(True, description="Whether to wait for the GPU before a clock is read.")

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        begin, end = written.get("begin_on_batch", 0), written.get("end_after_batch")
        if isinstance(begin, int) and isinstance(end, int) and end < begin:
            yield BrokenRule(("end_after_batch",), f"must not be less than begin_on_batch ({begin}), but is {end}")


class RetentionPolicy(Section):
    """How long things are kept."""

    log_retention_days: Annotated[Whole, pydantic.Field(ge=-1, le=32767)] | None = pydantic.Field(
        None, description="Days that logs are kept after the end; -1: for ever; absent: the master's setting."
    )


class Optimizations(Section):
    """How gradients are combined."""

    aggregation_frequency: AtLeastOne = pydantic.Field(
        1, description="Batches whose gradients are added up before the optimizer steps."
    )
    average_aggregated_gradients: Flag = pydantic.Field(
        True, description="Whether added gradients are divided by their number."
    )
    average_training_metrics: Flag = pydantic.Field(
        True, description="Whether training metrics are averaged over all ranks; otherwise the chief's are taken."
    )
    mixed_precision: Literal["O0", "O1", "O2", "O3"] = pydantic.Field(
        "O0", description="For trials of the oldest API: O0 is full precision, the others use native mixed precision."
    )
    gradient_compression: Flag = pydantic.Field(False, description="Horovod-only; has no effect.")
    tensor_fusion_threshold: NotNegative = pydantic.Field(64, description="Horovod-only; has no effect.")
    tensor_fusion_cycle_time: Number = pydantic.Field(1.0, description="Horovod-only; has no effect.")
    auto_tune_tensor_fusion: Flag = pydantic.Field(False, description="Horovod-only; has no effect.")
    grad_updates_size_file: Text | None = pydantic.Field(None, description="Horovod-only; has no effect.")


class Document(Section):
    """The root of a config file, which remembers what a reader of it should be told."""

    _notices: tuple[str, ...] = pydantic.PrivateAttr(())

    @property
    def notices(self) -> tuple[str, ...]:
        """What was understood differently from how it was written, and what has no effect; one sentence each."""
        return self._notices

    def as_dict(self, *, masked: bool = False) -> dict[str, Any]:
        """The whole config, defaults included, as plain maps and lists that load again to the same config.

        ``masked`` replaces secrets, for eyes and logs.
        """
        plain = self.model_dump(mode="json")
        return mask(plain) if masked else plain

    def with_notices(self, notices: Iterable[str]) -> Self:
        """The same config with these notices."""
        noted = self.model_copy()
        noted._notices = tuple(notices)
        return noted

    def __eq__(self, other: object) -> bool:
        # Notices tell how a config was written, not what it asks for.
        return type(self) is type(other) and isinstance(other, Document) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


class ExperimentConfig(Document):
    """One experiment: what to train, how long, which search, on what, and what to keep."""

    name: Name = pydantic.Field(
        "unnamed", description="Name shown in lists. If absent: the description, else the folder's name."
    )
    description: Text | None = pydantic.Field(None, description="A sentence about the experiment.")
    labels: Texts = pydantic.Field((), description="Words to find it by.")
    workspace: Text = pydantic.Field("", description="Workspace; goes with `project`.")
    project: Text = pydantic.Field("", description="Project in the workspace; goes with `workspace`.")
    entrypoint: Entrypoint | None = pydantic.Field(
        None,
        description="What each trial runs: `module:Class`, a command line for the shell, or a list of arguments."
        " Required to run.",
    )
    hyperparameters: Hyperparameters = pydantic.Field(
        Hyperparameters({}), description="Constants and ranges by name; see below."
    )
    searcher: Searcher = pydantic.Field(Single(), description="How hyperparameters are searched; see below.")
    data: FreeMap = pydantic.Field(
        {}, description="Anything the code wants to know, read as `context.config_data`. `data.secrets` is masked."
    )
    resources: Resources = pydantic.Field(Resources(), description="What each trial runs on.")
    min_validation_period: Length = pydantic.Field(
        Length(batches=0), description="Validate at least this often; 0: at the end only."
    )
    min_checkpoint_period: Length = pydantic.Field(
        Length(batches=0), description="Save a checkpoint at least this often; 0: only when needed."
    )
    checkpoint_policy: Literal["best", "all", "none"] = pydantic.Field(
        "best", description="After which validations to save a checkpoint: a new best, all, or none."
    )
    perform_initial_validation: Flag = pydantic.Field(False, description="Validate before the first batch.")
    checkpoint_storage: Storage = pydantic.Field(
        UsualStorage(), description="Where checkpoints are stored and how many are kept."
    )
    max_restarts: NotNegative = pydantic.Field(5, description="How often a trial that failed is started again.")
    reproducibility: Reproducibility = pydantic.Field(Reproducibility(), description="Seeds.")
    optimizations: Optimizations = pydantic.Field(Optimizations(), description="How gradients are combined.")
    profiling: Profiling = pydantic.Field(Profiling(), description="Measurements while a trial runs.")
    scheduling_unit: AtLeastOne = pydantic.Field(
        100, description="Batches between two reports of training metrics. Deprecated: the script may say it better."
    )
    records_per_epoch: NotNegative = pydantic.Field(
        0, description="Has no effect: the length of an epoch is asked of the data loader."
    )
    preemption_timeout: NotNegative | None = pydantic.Field(
        None, description="Seconds a trial has to save and leave when it must make room."
    )
    retention_policy: RetentionPolicy = pydantic.Field(RetentionPolicy(), description="How long logs are kept.")
    log_policies: tuple[LogPolicy, ...] = pydantic.Field(
        BUILT_IN_LOG_POLICIES, description="What to do when a line of a trial's log matches a pattern."
    )
    debug: Flag = pydantic.Field(False, description="Log more.")
    environment: Environment = pydantic.Field(Environment(), description="Variables and packages.")
    slurm: Slurm = pydantic.Field(
        Slurm(), description="How gangs are asked for on a Slurm pool, which there is none of; has no effect."
    )
    bind_mounts: tuple[BindMount, ...] = pydantic.Field((), description="Container-only; has no effect.")
    pbs: FreeMap | None = pydantic.Field(None, description=_PLATFORM)
    integrations: FreeMap | None = pydantic.Field(None, description=_PLATFORM)
    security: FreeMap | None = pydantic.Field(None, description=_PLATFORM)
    tensorboard_storage: FreeMap | None = pydantic.Field(None, description=_PLATFORM)

    @classmethod
    def broken_rules(cls, written: Mapping[str, Any]) -> Iterable[BrokenRule]:
        yield from both_or_neither(written, "workspace", "project")
        searcher = written.get("searcher")
        if isinstance(searcher, Mapping) and searcher.get("name") == "grid":
            yield from _ranges_without_count(written.get("hyperparameters"), ("hyperparameters",))


def both_or_neither(written: Mapping[str, Any], one: str, other: str) -> Iterable[BrokenRule]:
    """The rule that two fields go together."""
    for present, absent in ((one, other), (other, one)):
        if written.get(present) and not written.get(absent):
            yield BrokenRule((absent,), f"is required with {present}")


def _ranges_without_count(written: Any, path: Path) -> Iterable[BrokenRule]:
    if not isinstance(written, Mapping):
        return
    if "type" in written:
        if written["type"] in ("int", "double", "log") and written.get("count") is None:
            says = "is required by the grid searcher: the number of points to try"
            yield BrokenRule((*path, "count"), says)
        choices = written.get("vals") if written["type"] == "categorical" else None
        for number, choice in enumerate(choices if isinstance(choices, list) else ()):
            if holds_ranges(choice):
                yield from _ranges_without_count(choice, (*path, "vals", number))
        return
    for name, value in written.items():
        yield from _ranges_without_count(value, (*path, str(name)))
