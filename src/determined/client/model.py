"""Model and ModelVersion: handles on the model registry of a master."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any, Union

from determined.client.checkpoint import Checkpoint
from determined.client.enums import OrderBy
from determined.client.master import Master
from determined.client.metrics import TrialMetrics
from determined.client.workspace import find_workspace
from determined.wire import requests
from determined.wire.views import ModelVersionView, ModelView


class ModelVersion:
    """One checkpoint, registered under a model."""

    def __init__(self, master: Master, view: ModelVersionView) -> None:
        self._master = master
        self._view = view

    @property
    def model_version(self) -> int:
        """Its number, from 1."""
        return self._view.version

    @property
    def model_id(self) -> int:
        """The model it belongs to."""
        return self._view.model_id

    @property
    def model_name(self) -> str:
        """The name of the model it belongs to."""
        return self._view.model_name

    @property
    def name(self) -> str:
        """What it is called, beside its number."""
        return self._view.name

    @property
    def notes(self) -> str:
        """What people wrote about it."""
        return self._view.notes

    @property
    def comment(self) -> str:
        """A sentence about it."""
        return self._view.comment

    @property
    def metadata(self) -> dict[str, Any]:
        """What was noted about it."""
        return self._view.metadata

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint."""
        return Checkpoint(self._master, self._master.checkpoint(self._view.checkpoint_uuid))

    def set_name(self, name: str) -> None:
        """Call it something."""
        self._edit(requests.EditVersion(name=name))

    def set_notes(self, notes: str) -> None:
        """Write about it."""
        self._edit(requests.EditVersion(notes=notes))

    def delete(self) -> None:
        """Take it out of the model. Its checkpoint stays."""
        self._master.delete_version(self.model_id, self.model_version)

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """What the trial of its checkpoint had reported up to it."""
        return self.checkpoint.get_metrics(group)

    def reload(self) -> None:
        """Fetch it again."""
        self._view = self._master.model_version(self.model_id, self.model_version)

    def _edit(self, body: requests.EditVersion) -> None:
        self._view = self._master.edit_version(self.model_id, self.model_version, body)

    def __repr__(self) -> str:
        return f"ModelVersion(model={self.model_name!r}, version={self.model_version})"


class Model:
    """A registered model: a name under which checkpoints become versions."""

    def __init__(self, master: Master, view: ModelView) -> None:
        self._master = master
        self._view = view

    @property
    def model_id(self) -> int:
        """Its number."""
        return self._view.id

    @property
    def name(self) -> str:
        """What it is called."""
        return self._view.name

    @property
    def description(self) -> str:
        """A sentence about it."""
        return self._view.description

    @property
    def labels(self) -> list[str]:
        """Words to find it by."""
        return self._view.labels

    @property
    def metadata(self) -> dict[str, Any]:
        """What was noted about it."""
        return self._view.metadata

    @property
    def archived(self) -> bool:
        """Whether it was put away."""
        return self._view.archived

    @property
    def workspace_id(self) -> int | None:
        """The workspace it is in."""
        return self._view.workspace_id

    @property
    def creation_time(self) -> datetime.datetime:
        """When it was made."""
        return datetime.datetime.fromtimestamp(self._view.created_at, datetime.timezone.utc)

    @property
    def last_updated_time(self) -> datetime.datetime:
        """When it, or one of its versions, was last changed."""
        return datetime.datetime.fromtimestamp(self._view.updated_at, datetime.timezone.utc)

    def register_version(self, checkpoint_uuid: str) -> ModelVersion:
        """Make a checkpoint its next version."""
        body = requests.RegisterVersion(checkpoint_uuid=checkpoint_uuid)
        return ModelVersion(self._master, self._master.register_version(self.model_id, body))

    def get_version(self, version: int = -1) -> ModelVersion | None:
        """A version by its number; -1 is the latest. None if there are none."""
        if version == -1:
            newest = self.list_versions(OrderBy.DESCENDING)
            return newest[0] if newest else None
        return ModelVersion(self._master, self._master.model_version(self.model_id, version))

    def list_versions(self, order_by: OrderBy = OrderBy.DESCENDING) -> list[ModelVersion]:
        """Its versions; the latest first unless told otherwise."""
        views = sorted(self._master.model_versions(self.model_id), key=lambda view: view.version)
        if OrderBy(order_by) is OrderBy.DESCENDING:
            views.reverse()
        return [ModelVersion(self._master, view) for view in views]

    def get_versions(self, order_by: OrderBy = OrderBy.DESCENDING) -> list[ModelVersion]:
        """``list_versions`` by its older name."""
        return self.list_versions(order_by)

    def add_metadata(self, metadata: dict[str, Any]) -> None:
        """Note something about it; top-level keys that are there are replaced whole."""
        self.reload()
        self._edit(requests.EditModel(metadata={**self.metadata, **metadata}))

    def remove_metadata(self, keys: Sequence[str]) -> None:
        """Forget top-level keys."""
        self.reload()
        self._edit(requests.EditModel(metadata={k: v for k, v in self.metadata.items() if k not in keys}))

    def set_labels(self, labels: Sequence[str]) -> None:
        """Replace its labels."""
        self._edit(requests.EditModel(labels=list(labels)))

    def set_description(self, description: str) -> None:
        """Say a sentence about it."""
        self._edit(requests.EditModel(description=description))

    def archive(self) -> None:
        """Put it away: it takes no versions until it is brought back."""
        self._view = self._master.archive_model(self.model_id)

    def unarchive(self) -> None:
        """Bring it back."""
        self._view = self._master.archive_model(self.model_id, archive=False)

    def delete(self) -> None:
        """Delete it with its versions. The checkpoints stay."""
        self._master.delete_model(self.model_id)

    def move_to_workspace(self, workspace: Union[str, int]) -> None:
        """Put it into another workspace, by name or number."""
        if isinstance(workspace, str):
            workspace = find_workspace(self._master, workspace).id
        self._edit(requests.EditModel(workspace_id=workspace))

    def reload(self) -> None:
        """Fetch it again."""
        self._view = self._master.model(self.model_id)

    def _edit(self, body: requests.EditModel) -> None:
        self._view = self._master.edit_model(self.model_id, body)

    def __repr__(self) -> str:
        return f"Model(id={self.model_id}, name={self.name!r})"
