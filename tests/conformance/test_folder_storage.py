"""FolderStorage keeps the promises of CheckpointStorage."""

from __future__ import annotations

import pathlib

from determined import testing
from determined.storage import CheckpointStorage, FolderStorage


class TestFolderStorage(testing.StorageConformance):
    def make_storage(self, folder: pathlib.Path) -> CheckpointStorage:
        return FolderStorage(folder)
