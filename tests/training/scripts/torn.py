"""Two ranks under DistributedDataParallel, of which rank 1 dies twice in the middle of a message of 64 MB: rank 0 has
received a part of it, then rank 0 has sent a part of it. Each rank writes what it saw: `step loss digest time pid`.

Arguments: folder, steps.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import belay_training as bt

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(7)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)


def digest() -> str:
    return f"{sum(p.detach().double().sum().item() for p in model.parameters()).hex()}"


def kill_when_begun(message: torch.Tensor, mine: float, pid: int) -> None:
    """Kill a process as soon as the first bytes of the message are here."""
    while message[0] == mine:
        pass
    os.kill(pid, signal.SIGKILL)


def tear(rank: int, sender: int) -> None:
    """Rank 1 dies in the middle of a broadcast, once."""
    once = folder / f"torn-{sender}"
    pids = [0, 0]
    dist.all_gather_object(pids, (os.getpid(), once.exists()))
    if pids[0][1]:
        return
    message = torch.full((16 << 20,), float(rank + 1))
    if rank != sender:
        once.touch()
        threading.Thread(target=kill_when_begun, args=(message, rank + 1, pids[1][0]), daemon=True).start()
    dist.broadcast(message, sender)


def hooks() -> int:
    """How many hooks of PyTorch for uncaught exceptions lie around each other."""
    found, hook = 0, sys.excepthook
    while hook.__name__ == "_distributed_excepthook":
        held = [cell.cell_contents for cell in hook.__closure__ or ()]
        found, hook = found + 1, next(one for one in held if callable(one))
    return found


@bt.protect(model=model, optimizer=optimizer)
def train(run: bt.Run) -> None:
    ddp = DistributedDataParallel(model)
    with (folder / f"rank-{run.rank}").open("a") as log:
        for step in run.steps(steps):
            data = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + run.rank))
            loss = ddp(data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if step == 3:
                tear(run.rank, 1)
            if step == 6:
                tear(run.rank, 0)
            with run.updating(step):
                optimizer.step()
            log.write(f"{step} {loss.item().hex()} {digest()} {time.monotonic_ns()} {os.getpid()}\n")
            log.flush()
    (folder / f"hooks-{run.rank}").write_text(str(hooks()))


train()
