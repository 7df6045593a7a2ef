"""Handles of the SDK, on a real master behind a socket."""

from __future__ import annotations

import contextlib
import inspect
import os
import pathlib
from collections.abc import Iterator

import pytest

from determined import errors
from determined.client.enums import (
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
    ExperimentSortBy,
    ExperimentState,
    LogLevel,
    ModelSortBy,
    OrderBy,
    TrialSortBy,
    TrialState,
)
from determined.client.sdk import Determined
from determined.experimental import client
from determined.storage import FolderStorage
from tests.unit.master.api.listening import listening_on
from tests.unit.master.api.scenes import CONFIG, Run, many, submit
from tests.unit.master.api.serving import Master, serving
from tests.unit.master.api.test_logs import log_of, write

SEARCH = CONFIG.replace("name: single", "name: random\n  max_trials: 3\n  max_concurrent_trials: 3")


@pytest.fixture
def master(tmp_path: pathlib.Path) -> Iterator[tuple[Master, str]]:
    with serving(tmp_path) as started, listening_on(started) as url:
        yield started, url


@pytest.fixture
def environ(master: tuple[Master, str], tmp_path: pathlib.Path) -> dict[str, str]:
    return {
        "HOME": str(tmp_path),
        "DET_MASTER": master[1],
        "DET_SESSION_TOKEN": master[0].owner,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "DET_MASTER_DIR": str(tmp_path / "nobody"),
    }


@pytest.fixture
def det(environ: dict[str, str]) -> Iterator[Determined]:
    made = Determined(environ=environ)
    with contextlib.closing(made.master):
        yield made


@pytest.fixture
def code(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "my-code"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("print('hi')")
    (folder / "sub" / "run.sh").write_text("true")
    (folder / "sub" / "run.sh").chmod(0o755)
    return folder


def test_an_experiment_is_submitted_with_its_code_and_changed(
    det: Determined, code: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "search.yaml").write_text(SEARCH + "resources: {slots_per_trial: 0}\n")
    experiment = det.create_experiment(tmp_path / "search.yaml", code)
    experiment.pause()
    assert experiment.name == "digits" and experiment.config["searcher"]["max_trials"] == 3
    assert (experiment.project_id, experiment.workspace_id, experiment.archived) == (1, 1, False)
    experiment.set_name("new")
    experiment.set_description("d")
    experiment.set_notes("n")
    experiment.set_labels({"b", "a"})
    experiment.add_label("c")
    experiment.add_label("c")
    experiment.remove_label("a")
    again = det.get_experiment(experiment.id)
    assert (again.name, again.description, again.notes, again.labels) == ("new", "d", "n", {"b", "c"})
    place = experiment.download_code(tmp_path / "there")
    assert (pathlib.Path(place) / "train.py").read_text() == "print('hi')"
    assert os.access(pathlib.Path(place) / "sub" / "run.sh", os.X_OK)
    experiment.kill()
    assert experiment.wait(0.05) in (ExperimentState.CANCELED, ExperimentState.ERROR)
    experiment.archive()
    assert experiment.archived
    experiment.unarchive()
    experiment.delete()
    assert (
        det.create_experiment({"name": "m", "entrypoint": "true", "searcher": {"name": "single"}}).config["name"] == "m"
    )


def test_every_mistake_is_raised(det: Determined, tmp_path: pathlib.Path) -> None:
    (tmp_path / "wrong.yaml").write_text("entrypoint: x\nresources: {slots_per_trail: 1}\nsearcher: {name: singel}\n")
    with pytest.raises(errors.InvalidConfigurationException, match=r"(?s)slots_per_trial\?.*line 2.*single\?.*line 3"):
        det.create_experiment(tmp_path / "wrong.yaml")
    with pytest.raises(errors.InvalidConfigurationException, match="cannot be read"):
        det.create_experiment(tmp_path / "nothing.yaml")
    with pytest.raises(errors.NotFound):
        det.get_experiment(99)


def test_experiments_are_listed(det: Determined, master: tuple[Master, str]) -> None:
    made = many(master[0], 205)
    assert [one.id for one in det.list_experiments()] == [one.id for one in reversed(made)]
    assert [one.id for one in det.list_experiments(ExperimentSortBy.ID, OrderBy.ASC)][:2] == [1, 2]
    assert det.list_experiments(states=[ExperimentState.RUNNING]) == []
    assert len(det.list_experiments(states=[ExperimentState.PAUSED], name="MAN", project_id=1)) == 205
    assert [one.id for one in det.list_experiments(experiment_ids=[3, 5])] == [5, 3]
    with pytest.raises(ValueError, match="paused"):
        det.get_experiment(1).wait()


def test_trials_metrics_logs_and_checkpoints(
    det: Determined, master: tuple[Master, str], tmp_path: pathlib.Path
) -> None:
    # All are kept: the master would remove the worst while it is looked at.
    keeping = {"searcher": {"name": "single", "metric": "loss"}, "checkpoint_storage": {"save_trial_best": 3}}
    run = Run(master[0], hparams={"lr": 0.5}, config=keeping)
    uuids = []
    for steps, loss in ((1, 0.5), (2, 0.1), (3, 0.9)):
        run.metrics(steps, "training", loss=loss * 2)
        run.metrics(steps, loss=loss, accuracy=steps / 10)
        uuids.append(run.checkpoint(steps, {"w.bin": b"x" * steps, "code/a.py": b"y"}))
    trial = det.get_trial(run.trial_id)
    assert (trial.hparams, trial.state, trial.experiment_id) == ({"lr": 0.5}, TrialState.RUNNING, run.experiment_id)
    assert trial.get_experiment().id == run.experiment_id and trial.summary_metrics["validation"]["loss"]["min"] == 0.1
    assert [row.metrics["loss"] for row in trial.iter_metrics("training")] == [1.0, 0.2, 1.8]
    assert len(list(det.iter_trials_metrics([run.trial_id]))) == 6
    assert trial.series("loss").steps == [1, 2, 3]

    best = trial.list_checkpoints()
    assert [one.uuid for one in best] == [uuids[1], uuids[0], uuids[2]]
    assert [one.uuid for one in trial.list_checkpoints(CheckpointSortBy.BATCH_NUMBER, OrderBy.DESC, 1)] == [uuids[2]]
    assert [one.uuid for one in trial.list_checkpoints("accuracy", OrderBy.ASCENDING)] == uuids
    experiment = det.get_experiment(run.experiment_id)
    assert [one.uuid for one in experiment.list_checkpoints(max_results=2)] == [uuids[1], uuids[0]]
    assert experiment.top_checkpoint("accuracy", smaller_is_better=False).uuid == uuids[2]
    for wrong in ({"sort_by": "loss"}, {"order_by": OrderBy.ASC}):
        with pytest.raises(AssertionError, match="go together"):
            trial.list_checkpoints(**wrong)
    with pytest.warns(FutureWarning):
        assert trial.select_checkpoint(latest=True).uuid == uuids[2]
    with pytest.warns(FutureWarning), pytest.raises(AssertionError):
        trial.select_checkpoint(latest=True, best=True)

    one = best[0]
    assert one.state is CheckpointState.COMPLETED and one.resources == {"w.bin": 2, "code/a.py": 1}
    assert one.training is not None and one.training.hparams == {"lr": 0.5} and one.training.trial_id == run.trial_id
    assert one.training.validation_metrics == {"avgMetrics": {"loss": 0.1, "accuracy": 0.2}}
    assert one.task_id == f"trial-{run.trial_id}" and one.report_time.year == 1970
    assert [row.steps_completed for row in one.get_metrics("validation")] == [1, 2]
    one.add_metadata({"a": 1, "b": {"c": 2}})
    one.remove_metadata(["a"])
    assert one.metadata == {"steps_completed": 2, "b": {"c": 2}}
    assert det.get_checkpoint(one.uuid[:10]).metadata == one.metadata
    with pytest.raises(errors.CheckpointStateException):
        det.get_checkpoint(uuids[2]).delete()
    det.get_checkpoint(uuids[0]).delete()
    assert det.get_checkpoint(uuids[0]).state is CheckpointState.DELETED
    with pytest.raises(errors.CheckpointStateException, match="deleted"):
        det.get_checkpoint(uuids[0]).download(tmp_path / "gone")

    write(log_of(master[0], run), *({"m": f"line {n}", "r": n % 2, "l": "INFO" if n else "ERROR"} for n in range(2005)))
    assert len(list(trial.iter_logs())) == 2005 and list(trial.iter_logs(head=2)) == ["line 0\n", "line 1\n"]
    assert list(trial.iter_logs(tail=1)) == ["line 2004\n"] and list(trial.iter_logs(min_level=LogLevel.ERROR)) == [
        "line 0\n"
    ]
    assert next(trial.iter_logs(rank_ids=[1], search_text="line 200")) == "line 2001\n"
    for bad in ({"head": 1, "tail": 1}, {"head": 1, "follow": True}, {"container_ids": ["x"]}):
        with pytest.raises(ValueError):
            list(trial.iter_logs(**bad))


@pytest.mark.parametrize("mode", [DownloadMode.AUTO, DownloadMode.DIRECT, "direct", "master"])
def test_a_checkpoint_is_downloaded_and_verified(
    det: Determined, master: tuple[Master, str], tmp_path: pathlib.Path, mode: DownloadMode
) -> None:
    run = Run(master[0])
    uuid = run.checkpoint(1, {"w.bin": os.urandom(3_000_000), "sub/empty": b""}, tmp_path / "kept")
    checkpoint = det.get_checkpoint(uuid)
    place = pathlib.Path(checkpoint.download(tmp_path / "there" / "c", mode))
    for path in ("w.bin", "sub/empty"):
        assert (place / path).read_bytes() == (tmp_path / "kept" / uuid / path).read_bytes()
    assert (place / "metadata.json").exists() and [*(tmp_path / "there").iterdir()] == [place]
    (place / "w.bin").write_bytes(b"mine")
    assert checkpoint.download(place, mode) == str(place) and (place / "w.bin").read_bytes() == b"mine"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(errors.CheckpointStateException, match="in the way"):
        checkpoint.download(tmp_path / "full", mode)


def test_a_damaged_checkpoint_is_not_taken(det: Determined, master: tuple[Master, str], tmp_path: pathlib.Path) -> None:
    uuid = Run(master[0]).checkpoint(1, {"w.bin": b"x" * 1000}, tmp_path / "kept")
    (tmp_path / "kept" / uuid / "w.bin").write_bytes(b"x" * 999 + b"y")
    for mode in (DownloadMode.DIRECT, DownloadMode.MASTER, DownloadMode.AUTO):
        with pytest.raises(errors.InvalidCheckpointException, match=r"w\.bin"):
            det.get_checkpoint(uuid).download(tmp_path / "there", mode)
        assert not (tmp_path / "there").exists()
    FolderStorage(tmp_path / "kept").delete(uuid)
    with pytest.raises(errors.MultipleDownloadsFailed):
        det.get_checkpoint(uuid).download(tmp_path / "there")
    with pytest.raises(errors.ProxiedDownloadFailed):
        det.get_checkpoint(uuid).download(tmp_path / "there", "master")


def test_trials_of_a_search(det: Determined, master: tuple[Master, str]) -> None:
    experiment = det.get_experiment(submit(master[0], SEARCH)["id"])
    assert [trial.id for trial in experiment.list_trials(TrialSortBy.ID, OrderBy.DESCENDING)] == [3, 2, 1]
    assert experiment.await_first_trial().id == 1 and len(experiment.list_trials(limit=2)) == 2
    trial = det.get_trial(2)
    trial.kill()
    assert trial.state is TrialState.CANCELED


def test_the_model_registry(det: Determined, master: tuple[Master, str]) -> None:
    run = Run(master[0])
    run.metrics(1, loss=1.0)
    uuid = run.checkpoint(1, {"w": b"x"})
    model = det.create_model("m", "first", {"a": 1}, ["l"])
    assert model.get_version() is None
    first = model.register_version(uuid)
    second = model.register_version(uuid)
    assert (first.model_version, second.model_version, first.checkpoint.uuid) == (1, 2, uuid)
    latest = model.get_version()
    assert latest is not None and latest.model_version == 2 and model.get_version(1) is not None
    assert [one.model_version for one in model.list_versions()] == [2, 1]
    first.set_name("v")
    first.set_notes("n")
    assert (first.name, first.notes) == ("v", "n") and len(list(first.iter_metrics("validation"))) == 1
    model.add_metadata({"b": 2})
    model.remove_metadata(["a"])
    model.set_labels(["x", "y"])
    model.set_description("d")
    found = det.get_model("m")
    assert (found.metadata, found.labels, found.description) == ({"b": 2}, ["x", "y"], "d")
    workspace = det.create_workspace("w")
    model.move_to_workspace("w")
    assert det.get_model(model.model_id).workspace_id == workspace.id
    det.create_model("another", labels=["x"])
    assert [one.name for one in det.list_models()] == ["another", "m"]
    assert [one.name for one in det.list_models(ModelSortBy.DESCRIPTION, OrderBy.DESC, workspace_names=["w"])] == ["m"]
    assert det.get_model_labels() == ["x", "y"]
    second.delete()
    assert len(model.list_versions()) == 1
    model.archive()
    assert model.archived
    model.unarchive()
    model.delete()
    with pytest.raises(errors.NotFound):
        det.get_model("m")


def test_workspaces_projects_users_and_pools(det: Determined) -> None:
    workspace = det.create_workspace("w")
    project = workspace.create_project("p", "about")
    assert [one.id for one in workspace.list_projects()] == [project.id]
    project.set_name("q")
    project.set_notes("n")
    assert (workspace.get_project("q").notes, det.get_project(project.id).workspace_id) == ("n", workspace.id)
    project.archive()
    project.unarchive()
    workspace.delete_project("q")
    det.delete_workspace("w")
    with pytest.raises(errors.NotFound):
        det.get_workspace("w")
    user = det.create_user("ann", False, "correct horse battery")
    user.change_display_name("Ann")
    user.deactivate()
    user.activate()
    user.rename("anna")
    assert det.get_user_by_name("anna").display_name == "Ann" and det.get_user_by_id(user.user_id).active
    assert {one.username for one in det.list_users()} >= {"anna", det.get_session_username()}
    assert [pool.name for pool in det.list_resource_pools()] == ["default"]


def test_signing_in_and_out(det: Determined, master: tuple[Master, str], environ: dict[str, str]) -> None:
    det.create_user("ann", False, "correct horse battery")
    anew = {name: value for name, value in environ.items() if name != "DET_SESSION_TOKEN"}
    with pytest.raises(errors.Unauthenticated, match="det user login"):
        Determined(environ=anew)
    with pytest.raises(errors.Unauthenticated):
        Determined(user="ann", password="wrong", environ=anew)
    ann = Determined(user="ann", password="correct horse battery", environ=anew)
    assert ann.whoami().username == "ann"
    again = Determined(environ=anew)
    assert again.get_session_username() == "ann", "who signed in is remembered"
    by_variables = Determined(environ={**anew, "DET_USER": "ann", "DET_PASS": "correct horse battery"})
    assert by_variables.get_session_username() == "ann"
    again.logout()
    with pytest.raises(errors.Unauthenticated):
        Determined(environ=anew)
    for one in (ann, again, by_variables):
        one.master.close()


def test_the_functions_are_the_methods() -> None:
    for name in client.__all__:
        function = getattr(client, name)
        if inspect.isclass(function) or name in ("login", "logout", "list_models", "get_models"):
            continue
        method = inspect.signature(getattr(Determined, name))
        without_self = [parameter for parameter in method.parameters.values() if parameter.name != "self"]
        assert list(inspect.signature(function).parameters.values()) == without_self, name
