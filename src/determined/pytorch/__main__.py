"""``python -m determined.pytorch module:TrialClass``: train a trial as its experiment configuration says.

What a ``module:Class`` entrypoint runs; a caller of the public API, not another way to train.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from determined import errors
from determined.config import units


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m determined.pytorch", description=__doc__)
    parser.add_argument("trial", metavar="MODULE:CLASS")
    parser.add_argument("--config", help="the experiment configuration; by default DET_EXPERIMENT_CONFIG")
    parser.add_argument("--resume", nargs="?", const="latest", help="latest (the default), a checkpoint's uuid or path")
    parser.add_argument("--test", action="store_true", help="one batch of training and validation only")
    options = parser.parse_args(arguments)
    try:
        run(options.trial, config=options.config, resume=options.resume, test=options.test)
    except errors.DeterminedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def run(entrypoint: str, *, config: str | None, resume: str | None, test: bool) -> None:
    from determined import pytorch

    trial_class = _import_trial(entrypoint)
    exp_conf = _load_config(config) if config else None
    with pytorch.init(exp_conf=exp_conf) as context:
        conf: Mapping[str, Any] = context.settings.exp_conf or {}
        trial = trial_class(context)
        pytorch.Trainer(trial, context).fit(
            checkpoint_period=_period(conf, "min_checkpoint_period"),
            validation_period=_period(conf, "min_validation_period"),
            reporting_period=units.Batch(int(conf.get("scheduling_unit") or 100)),
            checkpoint_policy=str(conf.get("checkpoint_policy") or "best"),
            latest_checkpoint=resume,
            step_zero_validation=bool(conf.get("perform_initial_validation")),
            test_mode=test,
            profiling_enabled=bool((conf.get("profiling") or {}).get("enabled")),
        )


def _import_trial(entrypoint: str) -> Any:
    module_name, separator, class_name = entrypoint.partition(":")
    if not separator or not module_name or not class_name:
        raise errors.InvalidConfigurationException(
            f"the entrypoint {entrypoint!r} must be MODULE:CLASS, such as model_def:MyTrial"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module_name.split(".")[0]:
            raise
        raise errors.InvalidConfigurationException(
            f"the entrypoint {entrypoint!r} names a module that is not in this folder: {module_name}"
        ) from error
    if not hasattr(module, class_name):
        raise errors.InvalidConfigurationException(f"the module {module_name} has no class {class_name}")
    return getattr(module, class_name)


def _load_config(path: str) -> dict[str, Any]:
    from determined import config

    return config.load(path).as_dict()


def _period(conf: Mapping[str, Any], field: str) -> units.TrainUnit | None:
    """A length of the configuration as a period; 0 means never."""
    length = conf.get(field) or {}
    kinds = {"batches": units.Batch, "epochs": units.Epoch, "records": units.Record}
    for name, number in length.items():
        if number:
            return kinds[name](number)
    return None


if __name__ == "__main__":
    sys.exit(main())
