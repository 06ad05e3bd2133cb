"""A small model under DistributedDataParallel; each rank writes what it saw: `step loss digest time pid`.

Arguments: folder, steps, seconds of a step, hidden size, steps between checkpoints (0: none).
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import belay_training as bt

folder, steps, pause, width = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
# a rank that gets this signal hangs
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(1e6))
torch.manual_seed(7)
model = torch.nn.Sequential(
    torch.nn.Linear(16, width),
    torch.nn.GELU(),
    torch.nn.Dropout(0.1),
    torch.nn.Linear(width, width),
    torch.nn.Linear(width, 4),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def digest() -> str:
    return f"{sum(p.detach().double().sum().item() for p in model.parameters()).hex()}"


class Files:
    """The newest checkpoint, one file that every rank reads."""

    path = folder / "checkpoint"

    def latest(self) -> int | None:
        return torch.load(self.path)["step"] if self.path.exists() else None

    def load(self, step: int) -> None:
        state = torch.load(self.path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])

    def save(self, step: int) -> None:
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
        torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, f"{self.path}.new")
        os.replace(f"{self.path}.new", self.path)


every = int(sys.argv[5]) if len(sys.argv) > 5 else 0
files = Files()


@bt.protect(model=model, optimizer=optimizer, schedule=schedule, checkpoint=files if every else None)
def train(run: bt.Run) -> None:
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    with (folder / f"rank-{run.rank}").open("a") as log:
        for step in run.steps(steps):
            data = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + run.rank))
            loss = ddp(data).square().mean()
            time.sleep(pause)
            optimizer.zero_grad()
            loss.backward()
            with run.updating(step):
                optimizer.step()
                schedule.step()
            log.write(f"{step} {loss.item().hex()} {digest()} {time.monotonic_ns()} {os.getpid()}\n")
            log.flush()
            if every and run.rank == 0 and run.done % every == 0:
                files.save(run.done)


train()
