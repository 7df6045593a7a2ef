"""Every public name that code written for this API may use exists, with the signature that code counts on.

The tables are the promise, written out: sections 1 to 18 of the specification. Where we take more, MORE lists it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, Union

import pytest

import determined as det
from determined import core, errors, pytorch
from determined.experimental import client

# Names whose presence is the promise: modules to import, and things to find in them.
MODULES = [
    "determined",
    "determined.core",
    "determined.errors",
    "determined.experimental",
    "determined.experimental.client",
    "determined.experimental.core_v2",
    "determined.keras",
    "determined.launch",
    "determined.launch.deepspeed",
    "determined.launch.horovod",
    "determined.launch.tensorflow",
    "determined.launch.torch_distributed",
    "determined.launch.wrap_rank",
    "determined.pytorch",
    "determined.pytorch.experimental",
    "determined.transformers",
]

# Names of section 1 that belong to parts which do not exist yet: the one that makes one moves it to MODULES.
NOT_YET = [
    "determined.pytorch.deepspeed",
    "determined.util",
]

VALUES: dict[str, Any] = {
    "det.__version__": str,
    "det.LOG_FORMAT": str,
    "det.core": core,
    "det.errors": errors,
    "det.pytorch": pytorch,
    "det.TrialContext": pytorch.PyTorchTrialContext,
    "det.ExperimentConfig": type,
    "det.experimental.Determined": client.Determined,
    "det.Batch": pytorch.Batch,
    "det.Batches": pytorch.Batch,
    "det.Epoch": pytorch.Epoch,
    "det.Epochs": pytorch.Epoch,
    "det.Record": type,
    "det.Records": type,
    "det.TrainUnit": pytorch.TrainUnit,
    "pytorch.TorchData": object,
    # Kept values: code stores and compares them.
    "pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH.value": 1,
    "pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH.value": 2,
    "pytorch.LRScheduler.StepMode.MANUAL_STEP.value": 3,
    "pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP.value": 4,
    "pytorch.Reducer.AVG": pytorch.Reducer,
    "pytorch.Reducer.SUM": pytorch.Reducer,
    "pytorch.Reducer.MAX": pytorch.Reducer,
    "pytorch.Reducer.MIN": pytorch.Reducer,
    "core.PreemptMode.WorkersAskChief": core.PreemptMode,
    "core.PreemptMode.ChiefOnly": core.PreemptMode,
    "core.PreemptMode.WorkersAskMaster": core.PreemptMode,
    "core.TensorboardMode.AUTO": core.TensorboardMode,
    "core.TensorboardMode.MANUAL": core.TensorboardMode,
    "core.DownloadMode.LocalWorkersShareDownload": core.DownloadMode,
    "core.DownloadMode.NoSharedDownload": core.DownloadMode,
    "core.EarlyExitReason.INVALID_HP": core.EarlyExitReason,
    "core.EarlyExitReason.USER_REQUESTED_STOP": core.EarlyExitReason,
    "core.SearcherMode.WorkersAskChief": core.SearcherMode,
    "core.SearcherMode.ChiefOnly": core.SearcherMode,
    "core.Unit.EPOCHS": core.Unit,
    "core.Unit.RECORDS": core.Unit,
    "core.Unit.BATCHES": core.Unit,
}

ERRORS = [
    "CheckpointNotFound",
    "CheckpointStateException",
    "EnterpriseOnlyError",
    "InternalException",
    "InvalidCheckpointException",
    "InvalidConfigurationException",
    "InvalidDataTypeException",
    "InvalidExperimentException",
    "InvalidHP",
    "InvalidModelException",
    "MultipleDownloadsFailed",
    "NoDirectStorageAccess",
    "ProxiedDownloadFailed",
]

# As a caller sees them: without self and cls. A class stands for its constructor.
SIGNATURES = {
    # 1. The package
    "det.get_cluster_info": "()",
    "det.import_from_path": "(path)",
    "det.InvalidHP": "(msg='...')",
    # 2. pytorch.init
    "pytorch.init": "(*, hparams=None, exp_conf=None, distributed=None, aggregation_frequency=1,"
    " enable_tensorboard_logging=True)",
    # 3. Trainer
    "pytorch.Trainer": "(trial, context)",
    "pytorch.Trainer.fit": "(checkpoint_period=None, validation_period=None, max_length=None,"
    " reporting_period=pytorch.Batch(100), checkpoint_policy='best', latest_checkpoint=None,"
    " step_zero_validation=False, test_mode=False, profiling_enabled=False)",
    "pytorch.Trainer.configure_profiler": "(sync_timings=True, enabled=False, begin_on_batch=0, end_after_batch=None)",
    # 4. Units
    "pytorch.Batch": "(value)",
    "pytorch.Epoch": "(value)",
    "pytorch.TrainUnit": "(value)",
    "det.Records": "(value)",
    # 5. PyTorchTrial
    "pytorch.PyTorchTrial": "(context)",
    "pytorch.PyTorchTrial.train_batch": "(batch, epoch_idx, batch_idx)",
    "pytorch.PyTorchTrial.build_training_data_loader": "()",
    "pytorch.PyTorchTrial.build_validation_data_loader": "()",
    "pytorch.PyTorchTrial.evaluate_batch": "(batch, batch_idx)",
    "pytorch.PyTorchTrial.evaluate_full_dataset": "(data_loader)",
    "pytorch.PyTorchTrial.evaluation_reducer": "()",
    "pytorch.PyTorchTrial.build_callbacks": "()",
    "pytorch.PyTorchTrial.get_batch_length": "(batch)",
    # 6. PyTorchTrialContext
    "pytorch.PyTorchTrialContext.wrap_model": "(model)",
    "pytorch.PyTorchTrialContext.wrap_optimizer": "(optimizer, backward_passes_per_step=1, fp16_compression=None,"
    " average_aggregated_gradients=None)",
    "pytorch.PyTorchTrialContext.wrap_lr_scheduler": "(lr_scheduler, step_mode, frequency=1)",
    "pytorch.PyTorchTrialContext.backward": "(loss, gradient=None, retain_graph=False, create_graph=False)",
    "pytorch.PyTorchTrialContext.step_optimizer": "(optimizer, clip_grads=None, auto_zero_grads=True, scaler=None)",
    "pytorch.PyTorchTrialContext.wrap_scaler": "(scaler)",
    "pytorch.PyTorchTrialContext.configure_apex_amp": "(models, optimizers, enabled=True, opt_level='O1',"
    " cast_model_type=None, patch_torch_functions=None, keep_batchnorm_fp32=None, master_weights=None,"
    " loss_scale=None, cast_model_outputs=None, num_losses=1, verbosity=1, min_loss_scale=None,"
    " max_loss_scale=2**24)",
    "pytorch.PyTorchTrialContext.get_per_slot_batch_size": "()",
    "pytorch.PyTorchTrialContext.get_global_batch_size": "()",
    "pytorch.PyTorchTrialContext.get_hparams": "()",
    "pytorch.PyTorchTrialContext.get_hparam": "(name)",
    "pytorch.PyTorchTrialContext.get_experiment_config": "()",
    "pytorch.PyTorchTrialContext.get_data_config": "()",
    "pytorch.PyTorchTrialContext.is_epoch_start": "()",
    "pytorch.PyTorchTrialContext.is_epoch_end": "()",
    "pytorch.PyTorchTrialContext.current_train_epoch": "()",
    "pytorch.PyTorchTrialContext.current_train_batch": "()",
    "pytorch.PyTorchTrialContext.get_trial_seed": "()",
    "pytorch.PyTorchTrialContext.get_initial_batch": "()",
    "pytorch.PyTorchTrialContext.get_experiment_id": "()",
    "pytorch.PyTorchTrialContext.get_trial_id": "()",
    "pytorch.PyTorchTrialContext.to_device": "(data)",
    "pytorch.PyTorchTrialContext.get_stop_requested": "()",
    "pytorch.PyTorchTrialContext.set_stop_requested": "(stop_requested)",
    "pytorch.PyTorchTrialContext.set_enable_tensorboard_logging": "(enable_tensorboard_logging)",
    "pytorch.PyTorchTrialContext.get_enable_tensorboard_logging": "()",
    "pytorch.PyTorchTrialContext.get_tensorboard_path": "()",
    "pytorch.PyTorchTrialContext.get_tensorboard_writer": "()",
    "pytorch.PyTorchTrialContext.set_profiler": "(*args, **kwargs)",
    "pytorch.PyTorchTrialContext.wrap_reducer": "(reducer, name=None, for_training=True, for_validation=True)",
    "pytorch.PyTorchTrialContext.reset_reducers": "()",
    "pytorch.PyTorchTrialContext.reduce_metrics": "(for_training)",
    "pytorch.PyTorchExperimentalContext.use_amp": "()",
    "pytorch.PyTorchExperimentalContext.disable_dataset_reproducibility_checks": "()",
    "pytorch.PyTorchExperimentalContext.disable_auto_to_device": "()",
    # 7. Callbacks
    "pytorch.PyTorchCallback": "()",
    "pytorch.PyTorchCallback.on_trial_startup": "(first_batch_idx, checkpoint_uuid)",
    "pytorch.PyTorchCallback.on_trial_shutdown": "()",
    "pytorch.PyTorchCallback.on_training_start": "()",
    "pytorch.PyTorchCallback.on_training_epoch_start": "(epoch_idx)",
    "pytorch.PyTorchCallback.on_training_epoch_end": "(epoch_idx)",
    "pytorch.PyTorchCallback.on_training_workload_end": "(avg_metrics, batch_metrics)",
    "pytorch.PyTorchCallback.on_validation_start": "()",
    "pytorch.PyTorchCallback.on_validation_epoch_start": "()",
    "pytorch.PyTorchCallback.on_validation_epoch_end": "(outputs)",
    "pytorch.PyTorchCallback.on_validation_end": "(metrics)",
    "pytorch.PyTorchCallback.on_checkpoint_load_start": "(checkpoint)",
    "pytorch.PyTorchCallback.on_checkpoint_save_start": "(checkpoint)",
    "pytorch.PyTorchCallback.on_checkpoint_end": "(checkpoint_dir)",
    "pytorch.PyTorchCallback.on_checkpoint_write_end": "(checkpoint_dir)",
    "pytorch.PyTorchCallback.on_checkpoint_upload_end": "(uuid)",
    "pytorch.PyTorchCallback.state_dict": "()",
    "pytorch.PyTorchCallback.load_state_dict": "(state_dict)",
    # 8. Data
    "pytorch.DataLoader": "(dataset, batch_size=1, shuffle=False, sampler=None, batch_sampler=None, num_workers=0,"
    " collate_fn=None, pin_memory=False, drop_last=False, timeout=0, worker_init_fn=None,"
    " multiprocessing_context=None, generator=None, *, prefetch_factor=None, persistent_workers=False)",
    "pytorch.DataLoader.get_data_loader": "(repeat=False, skip=0, num_replicas=1, rank=0)",
    "pytorch.DataLoader.__iter__": "()",
    "pytorch.DataLoader.__len__": "()",
    "pytorch.adapt_batch_sampler": "(batch_sampler, repeat=False, skip=0, num_replicas=1, rank=0)",
    "pytorch.RepeatSampler": "(sampler)",
    "pytorch.RepeatBatchSampler": "(batch_sampler)",
    "pytorch.DistributedSampler": "(sampler, num_workers, rank)",
    "pytorch.DistributedBatchSampler": "(batch_sampler, num_workers, rank)",
    "pytorch.SkipSampler": "(sampler, skip)",
    "pytorch.SkipBatchSampler": "(batch_sampler, skip)",
    "pytorch.ReproducibleShuffleSampler": "(sampler, seed)",
    "pytorch.ReproducibleShuffleBatchSampler": "(batch_sampler, seed)",
    "pytorch.data_length": "(data)",
    "pytorch.to_device": "(data, device, warned_types=None)",
    # 9. Metrics
    "pytorch.MetricReducer.reset": "()",
    "pytorch.MetricReducer.per_slot_reduce": "()",
    "pytorch.MetricReducer.cross_slot_reduce": "(per_slot_metrics)",
    # 10. Learning-rate schedulers
    "pytorch.LRScheduler": "(scheduler, step_mode, frequency=1)",
    "pytorch.LRScheduler.step": "(*args, **kwargs)",
    "pytorch.LRScheduler.get_last_lr": "()",
    "pytorch.LRScheduler.state_dict": "()",
    # 11. Checkpoints
    "pytorch.load_trial_from_checkpoint_path": "(path, trial_class=None, trial_kwargs=None, torch_load_kwargs=None,"
    " **kwargs)",
    "pytorch.CheckpointLoadContext": "(hparams=None, exp_conf=None)",
    # 14. The oldest API
    "pytorch.reset_parameters": "(model)",
    # 15. The proposed API
    "pytorch.TrainingContext.build_trial": "(trial_class, *args, **kwargs)",
    "pytorch.TrainingContext.train": "(trial, train_data=None, val_data=None, *, max_length=None,"
    " min_validation_period=None, min_checkpoint_period=None)",
    "pytorch.TrainingContext.fit": "(trial, train_data=None, val_data=None, *, max_length=None,"
    " min_validation_period=None, min_checkpoint_period=None)",
    "pytorch.TrainingContext.load_checkpoint_trial": "(trial_class, trial_id=None, checkpoint=None)",
    "pytorch.TrainingContext.predict": "(trial, data)",
    "pytorch.TrainingContext.__enter__": "()",
    "core.DistributedContext.shard_batch_size": "(n)",
    # 17. core
    "core.init": "(*, distributed=None, checkpoint_storage=None, preempt_mode=core.PreemptMode.WorkersAskChief,"
    " tensorboard_mode=core.TensorboardMode.AUTO)",
    "core.Context.alert": "(title=None, description=None, level='info')",
    "core.Context.__enter__": "()",
    "core.TrainContext.report_training_metrics": "(steps_completed, metrics, batch_metrics=None)",
    "core.TrainContext.report_validation_metrics": "(steps_completed, metrics)",
    "core.TrainContext.report_metrics": "(group, steps_completed, metrics)",
    "core.TrainContext.report_progress": "(progress)",
    "core.TrainContext.report_early_exit": "(reason)",
    "core.TrainContext.set_status": "(status)",
    "core.TrainContext.set_metadata": "(metadata)",
    "core.TrainContext.get_metadata": "()",
    "core.TrainContext.get_tensorboard_path": "()",
    "core.TrainContext.upload_tensorboard_files": "(selector=ANY, mangler=ANY)",
    "core.TrainContext.get_experiment_best_validation": "()",
    "core.CheckpointContext.store_path": "(metadata=None, *, shard=False)",
    "core.CheckpointContext.upload": "(ckpt_dir, metadata=None, *, shard=False, selector=None)",
    "core.CheckpointContext.download": "(storage_id, ckpt_dir,"
    " download_mode=core.DownloadMode.LocalWorkersShareDownload, *, selector=None)",
    "core.CheckpointContext.restore_path": "(storage_id,"
    " download_mode=core.DownloadMode.LocalWorkersShareDownload, *, selector=None)",
    "core.CheckpointContext.get_metadata": "(storage_id)",
    "core.CheckpointContext.delete": "(storage_id)",
    "core.DistributedContext": "(*, rank=None, size=None, local_rank=None, local_size=None, cross_rank=None,"
    " cross_size=None, chief_ip=None, pub_port=12360, pull_port=12376, port_offset=0, force_tcp=False)",
    "core.DistributedContext.from_torch_distributed": "(chief_ip=None)",
    "core.DistributedContext.from_horovod": "(hvd)",
    "core.DistributedContext.from_deepspeed": "()",
    "core.DistributedContext.from_tf_config": "()",
    "core.DistributedContext.get_rank": "()",
    "core.DistributedContext.get_local_rank": "()",
    "core.DistributedContext.get_size": "()",
    "core.DistributedContext.get_num_agents": "()",
    "core.DistributedContext.gather": "(stuff)",
    "core.DistributedContext.gather_local": "(stuff)",
    "core.DistributedContext.allgather": "(stuff)",
    "core.DistributedContext.allgather_local": "(stuff)",
    "core.DistributedContext.broadcast": "(stuff)",
    "core.DistributedContext.broadcast_local": "(stuff=None)",
    "core.DistributedContext.close": "()",
    "core.PreemptContext.should_preempt": "(auto_ack=True)",
    "core.PreemptContext.acknowledge_preemption_signal": "()",
    "core.SearcherContext.operations": "(searcher_mode=core.SearcherMode.WorkersAskChief, auto_ack=True)",
    "core.SearcherContext.get_configured_units": "()",
    "core.SearcherOperation.report_progress": "(length)",
    "core.SearcherOperation.report_completed": "(searcher_metric)",
    "core.ProfilerContext.on": "(sampling_interval=1, samples_per_report=10)",
    "core.ProfilerContext.off": "()",
    "core.ExperimentalCoreContext.report_task_using_checkpoint": "(checkpoint)",
    "core.ExperimentalCoreContext.report_task_using_model_version": "(model_version)",
}

# Section 20, the SDK: its page of the documentation is docs/reference/client.md.
CLIENT = {
    "login": "(master=None, user=None, password=None, cert_path=None, cert_name=None, noverify=False)",
    "logout": "()",
    "create_experiment": "(config, model_dir=None, includes=(), parent_id=None, project_id=None, template=None)",
    "get_experiment": "(experiment_id)",
    "list_experiments": "(sort_by=None, order_by=None, experiment_ids=None, labels=None, users=None, states=None,"
    " name=None, project_id=None)",
    "get_trial": "(trial_id)",
    "get_checkpoint": "(uuid)",
    "create_model": "(name, description='', metadata=None, labels=None, workspace_name=None)",
    "get_model": "(identifier)",
    "get_model_labels": "()",
    "iter_trials_metrics": "(trial_ids, group=None)",
    "create_workspace": "(name)",
    "get_workspace": "(name)",
    "list_workspaces": "()",
    "get_project": "(project_id)",
    "create_user": "(username, admin, password=None, remote=False)",
    "get_user_by_id": "(user_id)",
    "get_user_by_name": "(user_name)",
    "list_users": "(active=None)",
    "list_resource_pools": "()",
    **{
        f"Experiment.{name}": "()" for name in ("activate", "pause", "cancel", "kill", "archive", "unarchive", "delete")
    },
    "Experiment.reload": "()",
    "Experiment.set_name": "(name)",
    "Experiment.set_description": "(description)",
    "Experiment.set_notes": "(notes)",
    "Experiment.set_labels": "(labels)",
    "Experiment.add_label": "(label)",
    "Experiment.remove_label": "(label)",
    "Experiment.wait": "(interval=5.0)",
    "Experiment.await_first_trial": "(interval=0.1)",
    "Experiment.list_trials": "(sort_by=ANY, order_by=ANY, limit=None)",
    "Experiment.iter_trials": "(sort_by=ANY, order_by=ANY, limit=None)",
    "Experiment.list_checkpoints": "(sort_by=None, order_by=None, max_results=None)",
    "Experiment.top_checkpoint": "(sort_by=None, smaller_is_better=None)",
    "Experiment.top_n_checkpoints": "(limit, sort_by=None, smaller_is_better=None)",
    "Experiment.download_code": "(output_dir=None)",
    "Experiment.delete_tensorboard_files": "()",
    "Experiment.move_to_project": "(project_id)",
    "Trial.iter_logs": "(follow=False, *, head=None, tail=None, container_ids=None, rank_ids=None, stdtypes=None,"
    " min_level=None, timestamp_before=None, timestamp_after=None, sources=None, search_text=None)",
    "Trial.kill": "()",
    "Trial.list_checkpoints": "(sort_by=None, order_by=None, max_results=None)",
    "Trial.iter_metrics": "(group=None)",
    "Trial.select_checkpoint": "(latest=False, best=False, uuid=None, sort_by=None, smaller_is_better=None)",
    "Trial.get_experiment": "()",
    "Checkpoint.download": "(path=None, mode=ANY)",
    "Checkpoint.add_metadata": "(metadata)",
    "Checkpoint.remove_metadata": "(keys)",
    "Checkpoint.delete": "()",
    "Checkpoint.remove_files": "(globs)",
    "Checkpoint.get_metrics": "(group=None)",
    "Checkpoint.write_metadata_file": "(path)",
    "Model.register_version": "(checkpoint_uuid)",
    "Model.get_version": "(version=-1)",
    "Model.list_versions": "(order_by=ANY)",
    "Model.add_metadata": "(metadata)",
    "Model.remove_metadata": "(keys)",
    "Model.set_labels": "(labels)",
    "Model.set_description": "(description)",
    **{f"Model.{name}": "()" for name in ("archive", "unarchive", "delete")},
    "Model.move_to_workspace": "(workspace)",
    "ModelVersion.set_name": "(name)",
    "ModelVersion.set_notes": "(notes)",
    "ModelVersion.delete": "()",
    "ModelVersion.iter_metrics": "(group=None)",
}
CLIENT_ATTRIBUTES = {
    "Experiment": "id config state name description notes labels progress archived project_id workspace_id",
    "Trial": "id experiment_id hparams state summary_metrics",
    "Checkpoint": "uuid state resources metadata training report_time task_id",
    "Model": "model_id name description labels metadata archived workspace_id",
    "ModelVersion": "checkpoint model_version name notes",
    "ExperimentState": "ACTIVE PAUSED STOPPING_COMPLETED STOPPING_CANCELED STOPPING_ERROR STOPPING_KILLED COMPLETED"
    " CANCELED ERROR DELETED DELETING DELETE_FAILED QUEUED PULLING STARTING RUNNING",
    "TrialState": "ACTIVE PAUSED STOPPING_COMPLETED STOPPING_CANCELED STOPPING_ERROR STOPPING_KILLED COMPLETED"
    " CANCELED ERROR QUEUED PULLING STARTING RUNNING",
    "CheckpointState": "ACTIVE COMPLETED ERROR DELETED PARTIALLY_DELETED",
    "OrderBy": "ASC ASCENDING DESC DESCENDING",
    "CheckpointSortBy": "UUID TRIAL_ID BATCH_NUMBER END_TIME STATE SEARCHER_METRIC",
    "TrialSortBy": "ID START_TIME END_TIME STATE",
    "ExperimentSortBy": "ID NAME START_TIME END_TIME STATE PROGRESS USER",
    "ModelSortBy": "NAME DESCRIPTION CREATION_TIME LAST_UPDATED_TIME",
    "LogLevel": "TRACE DEBUG INFO WARNING ERROR CRITICAL",
}

# What we take beyond that; all of it may be left out.
MORE = {
    "pytorch.init": "(*, checkpoint_storage=None, name=None)",
    "pytorch.PyTorchTrialContext.wrap_model": "(strategy='ddp')",
    "pytorch.PyTorchTrialContext.to_device": "(warned_types=None)",
    "pytorch.PyTorchExperimentalContext.use_amp": "(dtype=None)",
    "pytorch.TrainingContext.train": "(*, validation_period=None, checkpoint_period=None,"
    " reporting_period=pytorch.Batch(100), checkpoint_policy='best', latest_checkpoint=None,"
    " step_zero_validation=False, test_mode=False, profiling_enabled=False)",
    "pytorch.TrainingContext.fit": "(*, validation_period=None, checkpoint_period=None,"
    " reporting_period=pytorch.Batch(100), checkpoint_policy='best', latest_checkpoint=None,"
    " step_zero_validation=False, test_mode=False, profiling_enabled=False)",
    "core.init": "(*, config=None, hparams=None, name=None, latest_checkpoint=None)",
    "core.DistributedContext.from_horovod": "(chief_ip=None)",
    "core.DistributedContext.from_deepspeed": "(chief_ip=None)",
    "core.DistributedContext.from_tf_config": "(chief_ip=None)",
    "core.TrainContext.report_early_exit": "(message='')",
}

# What is read, not called.
PROPERTIES = [
    "pytorch.PyTorchTrialContext.hparams",
    "pytorch.TrainingContext.training",
    "pytorch.TrainingContext.config_data",
    "core.SearcherOperation.length",
    *[f"det.ClusterInfo.{name}" for name in ("latest_checkpoint", "user_data", "trial", "gpu_uuids")],
    *[f"det.ClusterInfo.{name}" for name in ("container_addrs", "container_rank", "container_slot_counts")],
    *[f"det.TrialInfo.{name}" for name in ("trial_id", "experiment_id", "trial_seed", "hparams")],
    *[f"det.RendezvousInfo.{name}" for name in ("container_addrs", "container_rank", "container_slot_counts")],
    "det.ResourcesInfo.gpu_uuids",
]

# Attributes of objects that the library makes.
ATTRIBUTES = {
    "core.Context": "train checkpoint distributed preempt searcher profiler experimental info",
    "core.DistributedContext": "rank size local_rank local_size cross_rank cross_size",
    "pytorch.PyTorchTrialContext": "distributed device models optimizers lr_schedulers experimental profiler",
    "det.ClusterInfo": "master_url cluster_id agent_id slot_ids task_id allocation_id session_token task_type"
    " master_cert_name master_cert_file",
}

# Public in our modules, and ours alone.
OURS = [
    "core.StopLine",
    "core.import_from_path",
    "det.ClusterInfo",
    "pytorch.StopOnNaN",
    "pytorch.TrainingContext",
]


class Anything:
    """A default whose value is not promised, only that there is one."""

    def __eq__(self, other: object) -> bool:
        return other is not inspect.Parameter.empty

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "ANY"


NAMESPACE = {"det": det, "core": core, "pytorch": pytorch, "client": client, "ANY": Anything()}


def find(name: str) -> Any:
    """What a dotted name stands for; ``det`` is the package, the others as users import them."""
    found: Any = NAMESPACE[name.split(".")[0]]
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


def written(parameters: str) -> list[inspect.Parameter]:
    """The parameters of ``def f(...)`` as they stand in a table."""
    made: dict[str, Callable[..., Any]] = {}
    exec(f"def promised{parameters}: ...", dict(NAMESPACE), made)
    return list(inspect.signature(made["promised"]).parameters.values())


def actual(name: str) -> list[inspect.Parameter]:
    """The parameters that a caller gives, without their annotations."""
    owner, _, last = name.rpartition(".")
    signature = inspect.signature(find(name))
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    is_unbound = inspect.isclass(find(owner)) and inspect.isfunction(inspect.getattr_static(find(owner), last))
    return parameters[1:] if is_unbound else parameters


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    promised, ours = written(SIGNATURES[name]), actual(name)
    more = written(MORE.get(name, "()"))
    added = {parameter.name for parameter in more}
    assert [p for p in ours if p.name not in added] == promised
    # Order does not matter among those that are named by the caller.
    assert sorted((p for p in ours if p.name in added), key=str) == sorted(more, key=str)
    assert all(p.default is not inspect.Parameter.empty for p in more)


@pytest.mark.parametrize("name", CLIENT)
def test_signature_of_the_sdk(name: str) -> None:
    assert actual(f"client.{name}") == written(CLIENT[name])


@pytest.mark.parametrize("name", CLIENT_ATTRIBUTES)
def test_attributes_of_the_sdk(name: str) -> None:
    assert [one for one in CLIENT_ATTRIBUTES[name].split() if not hasattr(getattr(client, name), one)] == []


def test_what_is_added_belongs_to_something_promised() -> None:
    assert MORE.keys() <= SIGNATURES.keys()


@pytest.mark.parametrize("name", MODULES)
def test_module_exists(name: str) -> None:
    importlib.import_module(name)


@pytest.mark.parametrize("name", NOT_YET)
def test_module_that_does_not_exist_yet_moves_to_the_list_when_it_does(name: str) -> None:
    assert importlib.util.find_spec(name) is None


@pytest.mark.parametrize("name", VALUES)
def test_value(name: str) -> None:
    value, promised = find(name), VALUES[name]
    if isinstance(promised, type) and not (isinstance(value, type) and value is promised):
        assert isinstance(value, promised)
    else:
        assert value == promised


@pytest.mark.parametrize("name", PROPERTIES)
def test_property(name: str) -> None:
    owner, _, last = name.rpartition(".")
    # Fields of a NamedTuple are descriptors too.
    assert inspect.isdatadescriptor(inspect.getattr_static(find(owner), last))


@pytest.mark.parametrize("name", ERRORS)
def test_error_is_an_ordinary_exception(name: str) -> None:
    error = getattr(errors, name)
    assert issubclass(error, errors.DeterminedError) and issubclass(error, Exception)
    assert error.__doc__


def test_invalid_hp_takes_text_only() -> None:
    assert det.InvalidHP is errors.InvalidHP
    with pytest.raises(TypeError, match=r"det\.InvalidHP takes a str, not int"):
        det.InvalidHP(3)  # type: ignore[arg-type]


@pytest.fixture
def made(runs_dir: pathlib.Path) -> Iterator[dict[str, Any]]:
    """One of each, as a script has them."""
    with core.init() as core_context:
        yield {
            "core.Context": core_context,
            "core.DistributedContext": core_context.distributed,
            "pytorch.PyTorchTrialContext": pytorch.CheckpointLoadContext(),
            "det.ClusterInfo": det.ClusterInfo(
                master_url="http://127.0.0.1:8080",
                cluster_id="c",
                agent_id="a",
                slot_ids=[0],
                task_id="t",
                allocation_id="t.0",
                session_token="s",
                task_type="TRIAL",
            ),
        }


def test_attributes(made: dict[str, Any]) -> None:
    for kind, names in ATTRIBUTES.items():
        assert isinstance(made[kind], find(kind))
        missing = [name for name in names.split() if not hasattr(made[kind], name)]
        assert not missing, f"{kind} has no {', '.join(missing)}"
    assert made["core.Context"].info is None


@pytest.mark.parametrize("module", [det, core, pytorch], ids=lambda module: str(module.__name__))
def test_every_public_name_is_in_a_table(module: Any) -> None:
    prefix = "det" if module is det else module.__name__.rpartition(".")[2]
    known = {*SIGNATURES, *VALUES, *PROPERTIES, *OURS, *ATTRIBUTES}
    tabled = {name for name in known if name.startswith(f"{prefix}.")}
    firsts = {name.split(".")[1] for name in tabled}
    assert sorted(set(module.__all__) - firsts) == []
    assert sorted(name for name in firsts if not hasattr(module, name)) == []


@pytest.mark.parametrize(
    "kind", ["PyTorchTrial", "PyTorchCallback", "PyTorchExperimentalContext", "MetricReducer"], ids=str
)
def test_a_class_that_users_fill_in_has_no_other_hooks(kind: str) -> None:
    public = {name for name in vars(getattr(pytorch, kind)) if not name.startswith("_")}
    prefix = f"pytorch.{kind}."
    assert public == {name.removeprefix(prefix) for name in SIGNATURES if name.startswith(prefix)}


def test_the_package_has_these_names_without_a_further_import() -> None:
    names: list[Union[str, None]] = [det.__version__, det.core.__name__, det.errors.__name__]
    assert all(names)
