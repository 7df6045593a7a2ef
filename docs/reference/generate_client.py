"""Makes docs/reference/client.md of the SDK's own names: `python docs/reference/generate_client.py`."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from determined.experimental import client

PAGE = pathlib.Path(__file__).parent / "client.md"

_INTRODUCTION = """\
# A master from Python

Made of `determined.experimental.client` itself.

A script that trains, and one that searches with it:

<!-- file: code/train.py -->
```python
import determined as det

with det.core.init() as context:
    rate = context.info.trial.hparams["rate"]
    for op in context.searcher.operations():
        for step in range(1, op.length + 1):
            loss = (rate - 0.3) ** 2 + 1 / step
            context.train.report_training_metrics(step, {"loss": loss})
        with context.checkpoint.store_path({"steps_completed": op.length}) as (path, uuid):
            (path / "rate.txt").write_text(str(rate))
        context.train.report_validation_metrics(op.length, {"loss": loss})
        op.report_completed(loss)
```

<!-- run -->
```python
from determined.experimental import client

config = {
    "name": "rates",
    "entrypoint": "python train.py",
    "hyperparameters": {"rate": {"type": "double", "minval": 0, "maxval": 1, "count": 3}},
    "searcher": {"name": "grid", "metric": "loss", "max_length": {"batches": 20}},
}
experiment = client.create_experiment(config, "code")
print(experiment.wait().value, len(experiment.list_trials()), "trials")

best = experiment.list_checkpoints(max_results=1)[0]  # by the searcher's metric, the best first
print("best rate", best.training.hparams["rate"])
folder = best.download("best")  # every file is compared with what was saved
print(open(f"{folder}/rate.txt").read())

table = experiment.metrics_to_pandas("training")  # complete, not thinned; needs resolute[export]
print(len(table), "reports, the last loss", table.loss.iloc[-1].round(2))
```

<!-- shows -->
```text
COMPLETED 3 trials
best rate 0.5
0.5
60 reports, the last loss
```

- The first call finds the master: `login(...)` if you called it, else `DET_MASTER`, else the one of this machine, which
  is started if there is none. `DET_USER` and `DET_PASS` sign in; `det user login` is remembered; the owner of this
  machine's master need not sign in.
- For several masters at once make objects of `Determined`: it has all these functions as methods.
- Handles (`Experiment`, `Trial`, ...) say what was true when they were fetched; `reload()` asks anew.
- What the master refuses is raised as a class of `determined.errors`, with the sentence the master gave.
"""


def page() -> str:
    """The whole page."""
    found = {name: getattr(client, name) for name in client.__all__}
    functions = [name for name in found if not inspect.isclass(found[name])]
    enums = [name for name in found if inspect.isclass(found[name]) and issubclass(found[name], enum.Enum)]
    classes = [name for name in found if name not in (*functions, *enums)]
    parts = [_INTRODUCTION, "## Functions\n"]
    parts += [line for name in functions for line in _function(f"client.{name}", found[name], "###")]
    parts += ["## Handles\n"]
    parts += [line for name in classes for line in _class(name, found[name])]
    parts += ["## Names\n"]
    parts += [line for name in enums for line in _enum(name, found[name])]
    return "\n".join(parts).rstrip() + "\n"


def _function(name: str, function: Any, level: str) -> Iterator[str]:
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    shown = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    yield f"{level} `{name}{_plain(str(shown))}`\n"
    yield inspect.cleandoc(function.__doc__ or "").replace("``", "`") + "\n"


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"### {name}\n"
    yield inspect.cleandoc(kind.__doc__ or "").replace("``", "`") + "\n"
    values = {field.name: "" for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}
    values |= {
        member: inspect.cleandoc(found.__doc__ or "")
        for member, found in vars(kind).items()
        if isinstance(found, property) and not member.startswith("_")
    }
    if values:
        yield "| attribute | |\n| --- | --- |"
        yield from (f"| `{member}` | {' '.join(says.split())} |" for member, says in values.items())
        yield ""
    # The functions above are its methods.
    for member, found in vars(kind).items() if kind is not client.Determined else ():
        if inspect.isfunction(found) and not member.startswith("_"):
            yield from _function(member, found, "####")


def _enum(name: str, kind: type[enum.Enum]) -> Iterator[str]:
    yield f"### {name}\n"
    yield inspect.cleandoc(kind.__doc__ or "") + "\n"
    yield ", ".join(f"`{member}`" for member in kind.__members__) + "\n"


def _plain(signature: str) -> str:
    """Defaults that are members of enums, as they are written."""
    for name in client.__all__:
        found = getattr(client, name)
        if inspect.isclass(found) and issubclass(found, enum.Enum):
            for member in found.__members__.values():
                signature = signature.replace(repr(member), f"{name}.{member.name}")
    return signature


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(page())
