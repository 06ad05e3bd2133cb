"""What the samples share: data, a model, and a line for each step."""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

_file = Path(sys.argv[1]) / f"rank-{os.environ['RANK']}"


def numbers() -> TensorDataset:
    """64 rows of eight numbers, and what is to be learned of each."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(64, 8, generator=generator)
    return TensorDataset(rows, rows.square().sum(1, keepdim=True))


def small_model() -> torch.nn.Module:
    """A model with dropout, so that random numbers count."""
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))


def write(rank: int, step: int, loss: torch.Tensor, model: torch.nn.Module) -> None:
    """A line that shows whether a run is bit-equal to another."""
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        if isinstance(value, torch.Tensor):  # Megatron's layers have places without one
            digest.update(value.numpy(force=True).tobytes())
    with _file.open("a") as file:
        file.write(f"{step} {loss.item().hex()} {digest.hexdigest()[:16]} {time.monotonic_ns()} {os.getpid()}\n")
