"""Two ranks under DistributedDataParallel with a step of about 18 ms of computing, under any launcher; rank 0 prints
the median of a step in seconds. Arguments: steps, protected (1) or not (0)."""

import contextlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import belay_training as bt

steps, protected = int(sys.argv[1]), sys.argv[2] == "1"
BUSY = 0.016
torch.manual_seed(7)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(12)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
times: list[float] = []


def work(run: bt.Run | None) -> None:
    ddp = DistributedDataParallel(model)
    before = time.perf_counter()
    for step in run.steps(steps) if run is not None else range(steps):
        loss = ddp(torch.randn(8, 64)).square().mean()
        until = time.perf_counter() + BUSY
        while time.perf_counter() < until:
            pass
        optimizer.zero_grad()
        loss.backward()
        with run.updating(step) if run is not None else contextlib.nullcontext():
            optimizer.step()
        now = time.perf_counter()
        times.append(now - before)
        before = now
    if dist.get_rank() == 0:
        # the first steps build buckets
        print("median", statistics.median(times[20:]), flush=True)


@bt.protect(model=model, optimizer=optimizer)
def train(run: bt.Run) -> None:
    work(run)


if protected:
    train()
else:
    dist.init_process_group("gloo")
    work(None)
    dist.destroy_process_group()
