"""A small model whose ranks compute wrong on order; each rank writes what it saw: `step loss digest time pid`.

Arguments: folder, steps, seconds of a step, then faults ``rank:step:place:bit``. A fault happens once, in the process
that comes there first, which leaves a file; with ``50+`` instead of the step, in every step from it on. Places:
``weights`` and ``moments`` (of the optimizer) after the update, ``buckets`` (reduced gradients) before it,
``gradients`` (local ones, while they are computed).
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import belay_training as bt

folder, steps, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
faults = [text.split(":") for text in sys.argv[4:]]
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(16, 48), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(48, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
hooks: list[Any] = []


def due(rank: int, step: int, place: str) -> int | None:
    """The bit that is flipped here and now."""
    for one in faults:
        every, first = one[1].endswith("+"), int(one[1].rstrip("+"))
        if (one[0], one[2]) != (str(rank), place) or step < first or (step > first and not every):
            continue
        mark = folder / f"done-{':'.join(one)}"
        if every or not mark.exists():
            mark.touch()
            return int(one[3])
    return None


def flip(tensor: torch.Tensor, bit: int) -> None:
    values = tensor.detach().view(-1)[:1].view(torch.int32)
    values.bitwise_xor_(torch.tensor([1 << bit if bit < 31 else -(1 << 31)], dtype=torch.int32))


def digest() -> str:
    return f"{sum(p.detach().double().sum().item() for p in model.parameters()).hex()}"


@bt.protect(model=model, optimizer=optimizer)
def train(run: bt.Run) -> None:
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    rank, weight = run.rank, model[3].weight
    now: list[int] = []

    def wrong(gradient: torch.Tensor) -> torch.Tensor:
        if now and (bit := due(rank, now[0], "gradients")) is not None:
            gradient = gradient.clone()
            flip(gradient, bit)
        return gradient

    # that of an earlier entry is gone
    while hooks:
        hooks.pop().remove()
    hooks.append(weight.register_hook(wrong))
    with (folder / f"rank-{rank}").open("a") as log:
        for step in run.steps(steps):
            now[:] = [step]
            optimizer.zero_grad()
            for share in run.shares(ddp):
                data = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + share))
                loss = ddp(data).square().mean()
                loss.backward()
            time.sleep(pause)
            if (bit := due(rank, step, "buckets")) is not None:
                flip(weight.grad, bit)
            with run.updating(step):
                optimizer.step()
                if (bit := due(rank, step, "weights")) is not None:
                    flip(weight, bit)
                if (bit := due(rank, step, "moments")) is not None:
                    flip(optimizer.state[weight]["exp_avg"], bit)
            log.write(f"{step} {loss.item().hex()} {digest()} {time.monotonic_ns()} {os.getpid()}\n")
            log.flush()


train()
