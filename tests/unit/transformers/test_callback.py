from __future__ import annotations

import logging
import math
import pathlib
from typing import Any

import pytest
import torch
import transformers

from determined import core, errors
from determined.storage import FolderStorage
from determined.transformers import DetCallback
from tests.unit.transformers import tiny


def test_reports_what_the_trainer_logs_but_not_its_speed(tmp_path: pathlib.Path) -> None:
    with core.init() as context:
        tiny.train(context, tmp_path, max_steps=8, eval_strategy="steps", eval_steps=4)
    training, validation = tiny.rows(context, "training"), tiny.rows(context, "validation")
    assert [step for step, _ in training] == [4, 8, 8]
    assert training[0][1].keys() == {"loss", "grad_norm", "learning_rate", "batches", "epochs"}
    assert training[0][1]["batches"] == 4
    assert training[0][1]["epochs"] == pytest.approx(4 / tiny.STEPS_PER_EPOCH)
    assert training[2][1].keys() == {"train_loss"}
    assert [step for step, _ in validation] == [4, 8]
    assert all(metrics.keys() == {"eval_loss", "batches", "epochs"} for _, metrics in validation)


def with_group(metrics: dict[str, Any], group: str) -> dict[str, Any]:
    return {f"{group}.{name}": value for name, value in metrics.items() if name.endswith("loss")}


def without_group(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if name != "grad_norm"}


def test_reports_what_a_filter_leaves(tmp_path: pathlib.Path) -> None:
    seen = {}
    for filter_metrics in (with_group, without_group):
        with core.init() as context:
            settings = tiny.arguments(tmp_path, max_steps=4)
            callback = DetCallback(context, settings, filter_metrics)
            tiny.trainer(settings, callback).train()
        seen[filter_metrics] = tiny.rows(context, "training")[0][1].keys()
    assert seen[with_group] == {"training.loss", "batches", "epochs"}
    assert seen[without_group] == {"loss", "learning_rate", "batches", "epochs"}


def test_keeps_what_the_trainer_saves_as_a_checkpoint_that_loads(tmp_path: pathlib.Path) -> None:
    with core.init() as context:
        given = {"processing_class": tiny.tokenizer()}
        settings = tiny.arguments(tmp_path, max_steps=6, save_steps=3)
        callback = DetCallback(context, settings, user_data={"corpus": "v2"})
        context.checkpoint.retain(best=9, latest=9)
        trainer = tiny.trainer(settings, callback, **given)
        trainer.train()
        first, last = context.checkpoint.list()
        assert (first.steps_completed, last.steps_completed) == (3, 6)
        metadata = context.checkpoint.get_metadata(last.storage_id)
        assert metadata["user_data"] == {"corpus": "v2"}
        with context.checkpoint.restore_path(last.storage_id) as path:
            loaded = transformers.AutoModelForSequenceClassification.from_pretrained(path)
            assert transformers.AutoTokenizer.from_pretrained(path)("red cat")["input_ids"] == [2, 5]
    assert tiny.digest(loaded) == tiny.digest(trainer.model)


def test_keeps_the_best_and_the_latest_by_default(tmp_path: pathlib.Path) -> None:
    with core.init() as context:
        tiny.train(
            context, tmp_path, max_steps=6, save_steps=1, eval_strategy="steps", eval_steps=1, learning_rate=1e-9
        )
        losses = {step: metrics["eval_loss"] for step, metrics in tiny.rows(context, "validation")}
        kept = {entry.steps_completed for entry in context.checkpoint.list()}
    assert kept == {6, min(losses, key=lambda step: losses[step])}


@pytest.mark.parametrize(
    "given",
    [
        {"save_strategy": "no", "eval_strategy": "steps", "eval_steps": 100},
        {"save_strategy": "no", "eval_strategy": "epoch"},
        {
            "save_strategy": "best",
            "eval_strategy": "epoch",
            "metric_for_best_model": "rise",
            "greater_is_better": False,
        },
        {"save_steps": 100, "eval_strategy": "epoch"},
    ],
)
def test_ends_with_one_evaluation_and_one_checkpoint_whatever_the_strategies(
    tmp_path: pathlib.Path, given: dict[str, Any]
) -> None:
    saves = []

    class Count(transformers.TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            saves.append(state.global_step)

    evaluations: list[int] = []

    def rise(found: Any) -> dict[str, float]:
        evaluations.append(1)
        return {"rise": float(len(evaluations))}

    with core.init() as context:
        settings = tiny.arguments(tmp_path, max_steps=8, **given)
        callback = DetCallback(context, settings)
        tiny.trainer(settings, callback, Count(), compute_metrics=rise).train()
        assert tiny.steps(context.checkpoint.list())[-1] == 8
    assert [step for step, _ in tiny.rows(context, "validation")][-1] == 8
    assert len(evaluations) == (1 if given["eval_strategy"] == "steps" else 2)
    assert saves.count(8) == 1


SCHEDULES: dict[str, dict[str, Any]] = {
    "steps": {"max_steps": 10, "eval_strategy": "steps", "eval_steps": 4, "save_steps": 3},
    "epochs": {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stops_when_asked_and_goes_on_as_if_nothing_had_been(tmp_path: pathlib.Path, schedule: str) -> None:
    given = SCHEDULES[schedule]
    with core.init(name="whole") as context:
        whole, _ = tiny.train(context, tmp_path / "whole", **given)
    undisturbed = tiny.rows(context, "validation")
    for step in (1, 4, 6, 7):  # the sixth ends an epoch
        name, output = f"asked-{step}", tmp_path / f"asked-{step}"
        with core.init(name=name) as context:
            _, callback = tiny.train(context, output, tiny.At(step, context.preempt.ask), **given)
            assert callback.was_preempted
            assert tiny.steps(context.checkpoint.list())[-1] == step
        assert context.run.label.state == "interrupted"
        with core.init(name=name, latest_checkpoint="latest") as context:
            resumed, callback = tiny.train(context, output, **given)
            assert not callback.was_preempted
        assert context.run.label.state == "completed"
        assert tiny.digest(resumed.model) == tiny.digest(whole.model), step
        assert tiny.rows(context, "validation") == undisturbed, step


def test_a_stop_in_the_last_step_is_the_end(tmp_path: pathlib.Path) -> None:
    with core.init() as context:
        _, callback = tiny.train(context, tmp_path, tiny.At(5, context.preempt.ask), max_steps=5)
    assert not callback.was_preempted
    assert context.run.label.state == "completed"


def test_a_checkpoint_at_the_end_of_an_epoch_comes_after_its_evaluation(tmp_path: pathlib.Path) -> None:
    order: list[str] = []

    class Watch(transformers.TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            order.append(f"evaluated at {state.global_step}")

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            order.append(f"saved at {state.global_step}")

    with core.init() as context:
        tiny.train(context, tmp_path, Watch(), num_train_epochs=1, eval_strategy="epoch", save_steps=6)
    assert order == ["evaluated at 6", "saved at 6"]


def test_a_finished_run_that_is_resumed_trains_no_further(tmp_path: pathlib.Path) -> None:
    given: dict[str, Any] = {
        "max_steps": 8,
        "lr_scheduler_type": "constant",
        "logging_strategy": "epoch",
        "weight_decay": 0.1,
    }
    with core.init(name="done") as context:
        whole, _ = tiny.train(context, tmp_path, **given)
    before = list(context.run.rows())
    with core.init(name="done", latest_checkpoint="latest") as context:
        again, _ = tiny.train(context, tmp_path, **given)
        assert tiny.steps(context.checkpoint.list()) == [8]
    assert tiny.digest(again.model) == tiny.digest(whole.model)
    assert again.state.global_step == 8
    assert list(context.run.rows()) == before


def test_refuses_to_start_over_a_run_that_goes_on(tmp_path: pathlib.Path) -> None:
    with core.init(name="on") as context:
        tiny.train(context, tmp_path, max_steps=4)
    with core.init(name="on", latest_checkpoint="latest") as context:
        settings = tiny.arguments(tmp_path, max_steps=8)
        callback = DetCallback(context, settings)
        assert settings.resume_from_checkpoint == callback.last_checkpoint == str(tmp_path / "checkpoint-4")
        trainer = tiny.trainer(settings, callback)
        with pytest.raises(ValueError, match=r"from step 4, but training begins at step 0; .*resume_from_checkpoint="):
            trainer.train()


def test_loads_the_newest_of_the_trainers_checkpoints_when_told_to(tmp_path: pathlib.Path) -> None:
    with core.init() as context:
        tiny.train(context, tmp_path, max_steps=4, save_steps=2)
    with core.init() as context:
        settings = tiny.arguments(tmp_path, max_steps=6)
        callback = DetCallback(context, settings)
        assert callback.last_checkpoint is None
        with pytest.raises(errors.CheckpointNotFound, match="no checkpoint-<steps> folder"):
            callback.load_last_checkpoint(tmp_path / "elsewhere")
        callback.load_last_checkpoint(tmp_path)
        assert callback.last_checkpoint == str(tmp_path / "checkpoint-4")


def test_a_configured_length_must_be_that_of_the_arguments(tmp_path: pathlib.Path) -> None:
    config = {"searcher": {"name": "single", "metric": "eval_loss", "max_length": {"batches": 5}}}
    with core.init(config=config) as context:
        with pytest.raises(ValueError, match="5 batches, but TrainingArguments has max_steps=4"):
            DetCallback(context, tiny.arguments(tmp_path, max_steps=4))
        tiny.train(context, tmp_path, max_steps=5, eval_strategy="steps", eval_steps=5)
        assert context.checkpoint.best_validation() is not None


def test_says_when_the_searchers_metric_was_never_measured(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with core.init(config={"searcher": {"name": "single", "metric": "accuracy"}}) as context:
        tiny.train(context, tmp_path, max_steps=2, eval_strategy="steps", eval_steps=2)
    assert "searcher.metric is accuracy, which no evaluation gave; it gave batches, epochs, eval_loss" in caplog.text


def test_an_evaluation_of_ones_own_has_a_group_of_its_own(tmp_path: pathlib.Path) -> None:
    with core.init() as context:
        trainer, _ = tiny.train(context, tmp_path, max_steps=3)
        found = trainer.evaluate(tiny.Texts(0, 8), metric_key_prefix="test")
    [(step, metrics)] = tiny.rows(context, "test")
    assert step == 3
    assert metrics["test_loss"] == found["test_loss"]


def test_another_value_for_the_same_step_is_not_reported(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with core.init() as context:
        trainer, _ = tiny.train(context, tmp_path, max_steps=2, eval_strategy="steps", eval_steps=2)
        trainer.evaluate()
        assert "measured again" not in caplog.text
        trainer.evaluate(tiny.Texts(0, 4))
    assert "eval_loss was measured again at step 2 and is not reported twice" in caplog.text
    assert len(tiny.rows(context, "validation")) == 1


def test_several_evaluation_sets_are_reported_together(tmp_path: pathlib.Path) -> None:
    with core.init() as context:
        settings = tiny.arguments(tmp_path, max_steps=2, eval_strategy="steps", eval_steps=2)
        trainer = tiny.trainer(settings, DetCallback(context, settings))
        trainer.eval_dataset = {"long": tiny.Texts(0, 16), "short": tiny.Texts(16, 24)}
        trainer.train()
    together: dict[str, Any] = {}
    for step, metrics in tiny.rows(context, "validation"):
        assert step == 2
        assert not together.keys() & metrics.keys()
        together.update(metrics)
    assert together.keys() == {"eval_long_loss", "eval_short_loss", "batches", "epochs"}


def test_a_checkpoint_that_cannot_be_kept_does_not_end_training(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = tmp_path / "storage"
    storage.write_text("a file where a folder should be")
    with core.init() as context:
        context.checkpoint.reopen(FolderStorage(storage), context.run.journal)
        trainer, _ = tiny.train(context, tmp_path / "out", max_steps=3)
    assert trainer.state.global_step == 3
    assert "A CHECKPOINT COULD NOT BE KEPT" in caplog.text


def test_shows_that_it_is_alive_while_it_trains_and_evaluates(tmp_path: pathlib.Path) -> None:
    beats = []

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            beats.append(context.beats[0])

        def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
            beats.append(context.beats[0])

    with core.init() as context:
        trainer, _ = tiny.train(context, tmp_path, Watch(), max_steps=4, eval_strategy="steps", eval_steps=2)
        assert len(beats) == len(set(beats)) == 4 + 2 * 2
        assert context.beats[0] == 0
        trainer.evaluate()
        assert context.beats[0] == 0


def test_warns_of_checkpoints_that_cannot_be_resumed_from(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), core.init() as context:
        DetCallback(context, tiny.arguments(tmp_path, save_only_model=True))
    assert "save_only_model=True leaves the optimizer out" in caplog.text


def test_nan_is_reported_as_it_is(tmp_path: pathlib.Path) -> None:
    class Broken(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            with torch.no_grad():
                next(iter(kwargs["model"].parameters())).fill_(math.nan)

    with core.init() as context:
        tiny.train(context, tmp_path, Broken(), max_steps=1, logging_steps=1, logging_nan_inf_filter=False)
    assert math.isnan(tiny.rows(context, "training")[0][1]["loss"])
