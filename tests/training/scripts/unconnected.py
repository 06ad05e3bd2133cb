"""Two ranks, each time that they enter with a further group of both. Rank 1 dies several times while that group
connects: its address is known, and it has asked for none. Which of two ranks waits for the other is chance, by their
ports. Each rank writes what it saw: `step loss digest time pid`.

Arguments: folder, steps, how often rank 1 dies.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import belay_training as bt
from belay.agents.training.train.worker.store import CoordinatorStore

folder, steps, deaths = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(7)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)


def die_once_known() -> None:
    """Die as soon as this rank has given its address, and asks for that of the other."""
    give = CoordinatorStore.set

    def given(store: CoordinatorStore, key: str, value: bytes | str) -> None:
        give(store, key, value)
        for name in ("get", "multi_get", "wait"):
            setattr(CoordinatorStore, name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))

    CoordinatorStore.set = given


def connect(run: bt.Run) -> None:
    """Make the further group, in which rank 1 dies."""
    died = folder / "died"
    count = int(died.read_text()) if died.exists() else 0
    if run.rank == 1 and (folder / "first").exists() and count < deaths:
        died.write_text(str(count + 1))
        die_once_known()
    dist.new_group([0, 1])


@bt.protect(model=model, optimizer=optimizer)
def train(run: bt.Run) -> None:
    connect(run)
    ddp = DistributedDataParallel(model)
    with (folder / f"rank-{run.rank}").open("a") as log:
        for step in run.steps(steps):
            data = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + run.rank))
            loss = ddp(data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            with run.updating(step):
                optimizer.step()
            digest = sum(p.detach().double().sum().item() for p in model.parameters()).hex()
            log.write(f"{step} {loss.item().hex()} {digest} {time.monotonic_ns()} {os.getpid()}\n")
            log.flush()
            if step == 3 and run.rank == 1 and not (folder / "first").exists():
                (folder / "first").touch()
                os.kill(os.getpid(), signal.SIGKILL)


train()
