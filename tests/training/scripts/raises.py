"""A script whose rank 1 fails in its second step: always, or as often as a file in its folder has lines."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import belay_training as bt

model = torch.nn.Linear(2, 2)


def fails() -> bool:
    file = Path(sys.argv[1], "failures")
    if not file.exists():
        return True
    left = file.read_text().splitlines()
    file.write_text("\n".join(left[1:]))
    return bool(left)


@bt.protect(model=model)
def train(run: bt.Run) -> None:
    for step in run.steps(10):
        if step == 1 and run.rank == 1 and fails():
            raise ZeroDivisionError("the second step")
        dist.all_reduce(torch.zeros(1))
        with run.updating(step):
            pass


train()
print(f"rank {os.environ['RANK']} has done all", flush=True)
