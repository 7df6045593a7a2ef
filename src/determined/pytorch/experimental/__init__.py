"""What may still change in ``determined.pytorch``: batch inference that is shared out over ranks and resumed."""

from __future__ import annotations

from determined.pytorch.experimental.batch_process import torch_batch_process
from determined.pytorch.experimental.batch_processor import TorchBatchProcessor, TorchBatchProcessorContext

__all__ = ["TorchBatchProcessor", "TorchBatchProcessorContext", "torch_batch_process"]
