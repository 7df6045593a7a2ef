"""Handwritten digits, 8x8 pixels, from scikit-learn: real data that needs no download."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset


def load() -> tuple[TensorDataset, TensorDataset]:
    """1,500 images to train on and 297 to validate with, always the same ones."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(7).permutation(len(labels))
    pixels = torch.tensor(images[order] / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    classes = torch.tensor(labels[order], dtype=torch.int64)
    return TensorDataset(pixels[:1500], classes[:1500]), TensorDataset(pixels[1500:], classes[1500:])
