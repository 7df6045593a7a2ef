"""Mistakes in a config: where each is, and one clear sentence about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pydantic

from determined import errors
from determined.config.section import closest

Path = tuple[Any, ...]

_SECRET_PLACES = ("secrets", "environment_variables", "registry_auth", "checkpoint_storage", "credential")
_OFTEN_MISPLACED = {
    "max_length": "searcher.max_length",
    "max_trials": "searcher.max_trials",
    "metric": "searcher.metric",
    "smaller_is_better": "searcher.smaller_is_better",
    "slots_per_trial": "resources.slots_per_trial",
    "slots": "resources.slots_per_trial",
    "max_slots": "resources.max_slots",
    "priority": "resources.priority",
    "resource_pool": "resources.resource_pool",
    "image": "environment.image",
    "environment_variables": "environment.environment_variables",
    "requirements": "environment.requirements",
    "seed": "reproducibility.experiment_seed",
    "experiment_seed": "reproducibility.experiment_seed",
    "aggregation_frequency": "optimizations.aggregation_frequency",
    "mixed_precision": "optimizations.mixed_precision",
    "learning_rate": "hyperparameters.learning_rate",
    "lr": "hyperparameters.lr",
    "global_batch_size": "hyperparameters.global_batch_size",
    "hparams": "hyperparameters",
    "command": "entrypoint",
    "secrets": "data.secrets",
}


class Place(NamedTuple):
    """Where something was written."""

    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        parts = [self.file or "", f"line {self.line}" if self.line else ""]
        return ", ".join(part for part in parts if part)


@dataclass
class Places:
    """The place of each value, by its path; what has none of its own is where the nearest value around it is."""

    by_path: dict[Path, Place]
    everything: Place = field(default_factory=Place)
    moved: dict[Path, Path] = field(default_factory=dict)

    def of(self, path: Path) -> Place:
        """The place of ``path``, or of the nearest value around it."""
        for length in range(len(path), 0, -1):
            start = path[:length]
            for candidate in (start, self.moved.get(start)):
                if candidate is not None and candidate in self.by_path:
                    return self.by_path[candidate]
        return Place(self.everything.file)

    def over(self, others: Places) -> Places:
        """Both; where both know a path, this one's place counts."""
        return Places(
            {**others.by_path, **self.by_path},
            self.everything if self.everything != Place() else others.everything,
            {**others.moved, **self.moved},
        )


class Problem(NamedTuple):
    """One mistake: the path of the value, how the sentence about it goes on, and where it was written."""

    path: Path
    says: str
    place: Place = Place()

    def __str__(self) -> str:
        subject = dotted(self.path) or "the config"
        place = str(self.place)
        return f"{subject} {self.says} ({place})" if place else f"{subject} {self.says}"


def dotted(path: Iterable[Any]) -> str:
    """A path as people write it: ``log_policies[0].pattern``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def explain(
    error: pydantic.ValidationError, written: Any, prefix: Path = (), places: Places | None = None
) -> list[Problem]:
    """Every mistake of a validation as a sentence; ``written`` is what was validated."""
    problems: dict[Problem, None] = {}
    for found in error.errors(include_url=False):
        path = _path(found["loc"], written)
        problem = _problem(found["type"], path, found.get("input"), found.get("ctx", {}), found["msg"])
        full = (*prefix, *problem.path)
        problems[Problem(full, problem.says, places.of(full) if places else Place())] = None
    return list(problems)


def as_exception(problems: Sequence[Problem], what: str = "the config") -> errors.InvalidConfigurationException:
    """One exception that lists every problem, in the order of the file."""
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.place.line or 0)
    sentences = list(dict.fromkeys(str(problem) for problem in ordered))
    if len(sentences) == 1:
        return errors.InvalidConfigurationException(sentences[0])
    listed = "\n".join(f"  - {sentence}" for sentence in sentences)
    return errors.InvalidConfigurationException(f"{what} has {len(sentences)} mistakes:\n{listed}")


def shown(value: Any, path: Path = ()) -> str:
    """A value as a sentence shows it: short, and not at all where it may be a secret."""
    if any(part in _SECRET_PLACES for part in path) and isinstance(value, str):
        return "this text"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _path(location: Path, written: Any) -> Path:
    """The path as written: without the marks of unions, and without steps that only the model has."""
    path: list[Any] = []
    for step in location:
        if isinstance(step, str) and step.startswith("#"):
            continue
        if isinstance(step, int) != isinstance(written, (list, tuple)):
            continue
        if isinstance(step, str) and not isinstance(written, Mapping):
            continue
        path.append(step)
        if isinstance(written, Mapping):
            # A part that is absent as a whole: the rest of the path is within what is missing.
            written = written.get(step, {})
        else:
            written = written[step] if step < len(written) else {}
    return tuple(path)


def _problem(kind: str, path: Path, value: Any, context: Mapping[str, Any], message: str) -> Problem:
    if kind == "unknown_key":
        return Problem(path, _about_unknown_key(path, context))
    if kind == "unknown_choice":
        choices: list[str] = context["choices"]
        chosen = value.get(context["field"]) if isinstance(value, Mapping) else value
        if isinstance(value, Mapping):
            path = (*path, context["field"])
            return Problem(path, f"must be one of {', '.join(choices)}, not {shown(chosen)}{_guess(chosen, choices)}")
        return Problem(path, f"must be a map, not {shown(value, path)}")
    if kind == "literal_error":
        choices = [choice.strip().strip("'") for choice in str(context["expected"]).replace(" or ", ", ").split(",")]
        says = f"must be one of {', '.join(choices)}, not {shown(value, path)}{_guess(value, choices)}"
        return Problem(path, says)
    return Problem(path, _says(kind, path, value, context, message))


def _says(kind: str, path: Path, value: Any, context: Mapping[str, Any], message: str) -> str:
    got = shown(value, path)
    match kind:
        case "rule":
            return message
        case "missing":
            return "is required"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"must be a whole number, not {got}{_quoted_number(value)}"
        case "float_type" | "float_parsing" | "finite_number":
            return f"must be a number, not {got}{_quoted_number(value)}"
        case "bool_type" | "bool_parsing":
            return f"must be true or false, not {got}"
        case "string_type":
            hint = " (put it in quotes)" if isinstance(value, (int, float)) else ""
            return f"must be text, not {got}{hint}"
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}, not {got}"
        case "greater_than":
            return f"must be more than {context['gt']:g}, not {got}"
        case "less_than_equal":
            return f"must be at most {context['le']:.16g}, not {got}"
        case "string_too_short":
            return "must not be empty"
        case "too_short":
            return "needs at least one entry"
        case "list_type" | "tuple_type":
            return f"must be a list, not {got}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"must be a map, not {got}"
        case "none_required":
            return f"must be absent, not {got}"
        case "string_pattern_mismatch":
            return f"must look like module:Class, not {got}"
        case "value_error":
            return str(context["error"])
        case _:
            return f"is wrong: {message}"


def _about_unknown_key(path: Path, context: Mapping[str, Any]) -> str:
    key = str(path[-1])
    suggestion = context.get("suggestion")
    if len(path) == 1 and key in _OFTEN_MISPLACED:
        suggestion = _OFTEN_MISPLACED[key]
    return f"is not a field; did you mean {suggestion}?" if suggestion else "is not a field"


def _guess(value: Any, choices: Iterable[str]) -> str:
    guess = closest(value, choices) if isinstance(value, str) else None
    return f"; did you mean {guess}?" if guess else ""


def _quoted_number(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    try:
        float(value)
    except ValueError:
        return ""
    return " (remove the quotes)"
