"""Assignment: what a master asked of this process, read from the NodeSpec it wrote. Without a master there is none."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from determined import errors
from determined.core import uplink
from determined.core.checkpoint import Found, Publication, read_metadata
from determined.storage.base import CheckpointStorage
from determined.storage.build import build_storage
from determined.storage.folder import FolderStorage

if TYPE_CHECKING:
    from determined.client.transport import Session
    from determined.core.reporter import Reporter

# What asking the master for a checkpoint may take: whoever asks cannot go on without the answer.
_PATIENCE_SECONDS = 30.0


class Assignment:
    """A trial or a job of a master's."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec
        self._master: Mapping[str, Any] = spec["master"]

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Assignment | None:
        """What a NodeSpec asks for; None when no master wrote it."""
        return cls(spec) if spec.get("master") else None

    @property
    def is_trial(self) -> bool:
        """Whether it is to train, rather than a job of another kind."""
        return bool(self._spec.get("trial")) and self._master.get("task_type", "TRIAL") == "TRIAL"

    @property
    def spool(self) -> pathlib.Path:
        """Where the chief's reports go; the node process sends them on."""
        folder = self._spec.get("allocation_folder") or self._spec["run_folder"]
        return pathlib.Path(folder) / "chief.spool"

    @property
    def storage(self) -> Mapping[str, Any] | None:
        """Where checkpoints go; None: into the run's folder."""
        storage: Mapping[str, Any] | None = self._spec.get("checkpoint_storage")
        return storage

    @property
    def latest_checkpoint(self) -> str | None:
        """What to go on from, or to begin with."""
        latest: str | None = self._spec.get("latest_checkpoint")
        return latest

    @property
    def steps_completed(self) -> int:
        """Up to where this trial is trained; 0 when it begins, be it with another trial's weights."""
        return int((self._spec.get("trial") or {}).get("steps_completed") or 0)

    def was_reported(self, storage_id: str) -> bool:
        """Whether an earlier attempt came to tell of a checkpoint; yes where that cannot be known."""
        given = self._spec.get("allocation_folder")
        if given is None:
            return True
        for epoch in range(1, int(self._master["run_epoch"])):
            folder = pathlib.Path(given).with_name(f"{self._master['task_id']}.{epoch}")
            try:
                if storage_id.encode() in (folder / "chief.spool").read_bytes():
                    return True
            except OSError:
                if not folder.is_dir():
                    return True
        return False

    def session(self) -> Session:
        """A way to ask the master something."""
        from determined.client.transport import Session

        master = self._master
        return Session(
            master["url"],
            master["session_token"],
            verify=master.get("cert_file") or True,
            server_name=master.get("cert_name"),
        )

    def find(self, checkpoint: str | None, trial: int | str | None) -> Found:
        """A checkpoint that the master knows: by its id, or the best, else the latest, of a trial.

        Raises CheckpointNotFound when there is none, NoDirectStorageAccess when it cannot be reached from here.
        """
        from determined.client.master import Master

        session = self.session()
        try:
            master = Master(session.url, session=session)
            if checkpoint is not None:
                try:
                    chosen = master.checkpoint(checkpoint)
                except errors.NotFound:
                    raise errors.CheckpointNotFound(
                        f"the master knows no checkpoint {checkpoint}; name a trial with trial_id, or a folder"
                    ) from None
            elif trial is not None:
                try:
                    known = master.trial_checkpoints(int(trial)).items
                except errors.NotFound:
                    raise errors.CheckpointNotFound(f"the master knows no trial {trial}") from None
                except ValueError:
                    raise errors.CheckpointNotFound(f"a trial of a master has a number, not {trial!r}") from None
                there = [each for each in known if each.state.lower() == "completed"]
                if not there:
                    raise errors.CheckpointNotFound(f"trial {trial} has no checkpoint; train it first")
                # The best come first; one that was never validated is no better than the others.
                chosen = there[0]
                if chosen.searcher_metric is None:
                    chosen = max(there, key=lambda each: (each.steps_completed, each.reported_at))
            else:
                raise errors.CheckpointNotFound("on a cluster, say which trial's checkpoint to load: trial_id=...")
        finally:
            session.close()
        section = chosen.storage or self.storage
        if section is None:
            raise errors.NoDirectStorageAccess(f"the master does not say where checkpoint {chosen.uuid} is")
        return self.place(build_storage(section), chosen.uuid)

    def place(self, storage: CheckpointStorage, storage_id: str) -> Found:
        """A checkpoint of a storage, as a folder on this machine."""
        if not isinstance(storage, FolderStorage):
            raise errors.NoDirectStorageAccess(f"checkpoint {storage_id} is in no folder that this machine can see")
        # One that is kept elsewhere is named by its folder.
        path = pathlib.Path(storage.root / storage_id)
        if not path.is_dir():
            raise errors.CheckpointNotFound(
                f"checkpoint {path.name} is not in {path.parent}: it was deleted, or is on another machine"
            )
        return Found(path.name, path, int(read_metadata(path).get("steps_completed") or 0))


class Outbox:
    """What the chief tells the master besides metric rows."""

    def __init__(self, spool: uplink.Spool, reporter: Reporter, storage: Callable[[], Mapping[str, Any]]) -> None:
        self._spool = spool
        self._reporter = reporter
        self._storage = storage

    def tell(self, report: Mapping[str, Any]) -> None:
        """After the rows so far, without waiting; of several of a kind the last will do."""
        kind = str(report["kind"])
        self._reporter.run_soon(kind, lambda: self._spool.append(report))

    def published(self, publication: Publication) -> None:
        """A checkpoint is complete; on disk when this returns, as the checkpoint is."""
        self._spool.append(
            {
                "kind": "checkpoint",
                "uuid": publication.storage_id,
                "steps_completed": publication.steps_completed,
                "metadata": dict(publication.metadata),
                "resources": dict(publication.files),
                "storage": dict(self._storage()),
                "time": time.time(),
            },
            durable=True,
        )

    def deleted(self, storage_id: str) -> None:
        """A checkpoint is gone."""
        self._spool.append({"kind": "checkpoint_gone", "uuid": storage_id, "time": time.time()}, durable=True)


def describe_storage(storage: CheckpointStorage, given: Any) -> Mapping[str, Any]:
    """A storage as a config's section, for whoever looks for its checkpoints later."""
    if isinstance(given, Mapping):
        return given
    if isinstance(storage, FolderStorage):
        return {"type": "directory", "container_path": str(storage.root)}
    return {"type": "unknown"}
