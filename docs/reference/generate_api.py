"""Makes docs/reference/api.md of the docstrings and of api_examples.py: `python docs/reference/generate_api.py`."""

from __future__ import annotations

import enum
import inspect
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE / "api_examples.py"
PAGE = HERE / "api.md"
WIDTH = 100


class Cell(NamedTuple):
    """A piece of the examples file: its header, and what stands below it."""

    header: str
    body: str

    @property
    def names(self) -> list[str]:
        """The names in the header, in full: `.name` stands for another one of the class before it."""
        names: list[str] = []
        for name in self.header.split(", "):
            names.append(_owner(names[-1]) + name if name.startswith(".") else name)
        return names

    @property
    def promise(self) -> str:
        """What `#:` lines at its top say, for names that carry no docstring."""
        return " ".join(line[2:].strip() for line in self.body.splitlines() if line.startswith("#:"))

    @property
    def code(self) -> str:
        lines = [line for line in self.body.splitlines() if not line.startswith("#:")]
        return "\n".join(lines).strip() + "\n"


def cells() -> list[Cell]:
    _, *pieces = re.split(r"^# %% (.+)\n", EXAMPLES.read_text(), flags=re.MULTILINE)
    return [Cell(header.strip(), body) for header, body in zip(pieces[::2], pieces[1::2])]


def page() -> str:
    return "\n".join(part.rstrip("\n") + "\n" for cell in cells() for part in _part(cell))


def _part(cell: Cell) -> Iterator[str]:
    if cell.header == "[markdown]":
        yield "\n".join(line[2:] for line in cell.body.strip().splitlines())
        return
    if cell.header != "setting":
        yield f"### {_heading(cell.names)}"
        signatures = [text for name in _distinct(cell.names) if (text := _signature(name))]
        if signatures:
            yield "```text\n" + "\n".join(signatures) + "\n```"
        yield from _promises(cell)
    yield f"<!-- fragment -->\n```python\n{cell.code}```"


def _promises(cell: Cell) -> Iterator[str]:
    if cell.promise:
        yield cell.promise
        return
    said = {name: _documentation(name) for name in cell.names}
    missing = [name for name, text in said.items() if not text]
    if missing:
        raise SystemExit(f"{', '.join(missing)} has no docstring; write one, or a #: line in {EXAMPLES.name}")
    # The same class or function under several names is described once.
    if len(set(said.values())) == 1:
        yield next(iter(said.values()))
        return
    once: dict[str, list[str]] = {}
    for name, text in said.items():
        once.setdefault(text, []).append(name)
    for text, names in once.items():
        lead, *more = text.split("\n\n")
        short = dict.fromkeys(f"`{_last(name)}`" for name in names)
        yield "\n\n".join([f"- {', '.join(short)}: {lead}", *_indented(more)])


def _indented(paragraphs: list[str]) -> list[str]:
    return ["  " + paragraph.replace("\n", "\n  ") for paragraph in paragraphs]


def _heading(names: list[str]) -> str:
    """All names; those of the first one's class without the class."""
    first, *others = names
    owner = _owner(first)
    short = [name.removeprefix(owner) if name.startswith(f"{owner}.") and "." in owner else name for name in others]
    return ", ".join(f"`{name}`" for name in [first, *short])


def _owner(name: str) -> str:
    """The class that a name is, or is of."""
    return name if _last(name)[0].isupper() else name.rpartition(".")[0]


def _distinct(names: list[str]) -> Iterator[str]:
    """One name for each thing: aliases have the same signature."""
    seen: list[Any] = []
    for name in names:
        try:
            found = find(name)
        except AttributeError:
            continue
        if not any(found is other for other in seen):
            seen.append(found)
            yield name


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def find(name: str) -> Any:
    """What a dotted name stands for; raises AttributeError for one that only objects have."""
    import determined as det
    from determined import core, errors, pytorch

    found: Any = {"det": det, "core": core, "errors": errors, "pytorch": pytorch}[name.split(".")[0]]
    for part in name.split(".")[1:]:
        found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
    return found


def _documentation(name: str) -> str:
    try:
        found = find(name)
    except AttributeError:
        return ""
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    return (inspect.cleandoc(found.__doc__) if found.__doc__ else "").replace("``", "`")


def _signature(name: str) -> str:
    try:
        found = find(name)
    except AttributeError:
        return ""
    if isinstance(found, property):
        result = inspect.signature(found.fget).return_annotation if found.fget else ""
        return f"{name}: {_annotation(result)}"
    if inspect.isclass(found) and issubclass(found, enum.Enum):
        return f"{name}: {', '.join(member.name for member in found)}"
    is_class_method = isinstance(found, classmethod)
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    if not callable(found) or (inspect.isclass(found) and not _is_made_by_users(name)):
        return ""
    signature = inspect.signature(found)
    parameters = list(signature.parameters.values())
    if is_class_method or (parameters and parameters[0].name == "self"):
        parameters = parameters[1:]
    result = "" if inspect.isclass(found) else signature.return_annotation
    arrow = f" -> {_annotation(result)}" if result not in ("", inspect.Signature.empty, "None", None) else ""
    return _wrapped(name, list(_parameters(parameters)), arrow)


def _is_made_by_users(name: str) -> bool:
    """Whether a class's constructor is for users; the others are what our functions return, or are subclassed."""
    import determined as det
    from determined import core, errors, pytorch

    found = find(name)
    if issubclass(found, (errors.DeterminedError, pytorch.PyTorchTrialContext)):
        return found in (errors.InvalidHP, pytorch.CheckpointLoadContext)
    ours = (core.Context, core.TrainContext, core.CheckpointContext, core.SearcherContext, core.SearcherOperation)
    parts = (core.ProfilerContext, core.PreemptContext, core.ExperimentalCoreContext, core.StopLine)
    return found not in (*ours, *parts, pytorch.PyTorchExperimentalContext, det.ExperimentConfig)


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    named = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            named = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not named:
            named = True
            yield "*"
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = stars + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += (" = " if ":" in text else "=") + _default(parameter.default)
        yield text


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return "..." if callable(value) else repr(value)


def _wrapped(name: str, parameters: list[str], arrow: str) -> str:
    line = f"{name}({', '.join(parameters)}){arrow}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){arrow}"


if __name__ == "__main__":
    PAGE.write_text(page())
