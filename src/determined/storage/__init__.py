"""Where checkpoints are kept: the seam, a folder, and how a checkpoint is verified.

>>> from determined import storage
>>> storage.is_storage_id("../../etc/passwd")
False
"""

from __future__ import annotations

from determined.storage.base import CheckpointStorage, StagedCheckpoint, is_storage_id, new_storage_id
from determined.storage.build import build_storage
from determined.storage.folder import FolderStorage, verify_folder

__all__ = [
    "CheckpointStorage",
    "FolderStorage",
    "StagedCheckpoint",
    "build_storage",
    "is_storage_id",
    "new_storage_id",
    "verify_folder",
]
