"""Predictions of a trained trial for a whole data set, spread over the slots of a job.

`det job run batch_inference.yaml .` runs it with the trial named in the configuration.
"""

import pathlib

import digits
import torch
from train_context import LinearDigits

from determined import pytorch

context = pytorch.init()
trial = context.load_checkpoint_trial(LinearDigits, trial_id=context.config_data["trial_id"])
_, test_set = digits.load()
scores = context.predict(trial, pytorch.DataLoader(test_set, batch_size=context.config_data["batch_size"]))
if context.distributed.rank == 0:
    predicted = scores.argmax(1)
    where = pathlib.Path(context.config_data["output"])
    torch.save(predicted, where)
    print(f"accuracy {(predicted == test_set.tensors[1]).float().mean():.3f}, predictions in {where}")
