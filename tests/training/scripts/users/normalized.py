"""Running statistics that a forward pass changes: the same on all ranks (summed over them), or each rank's own
(BatchNorm)."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from witness import numbers, steps, write

import belay_training as bt


class Scale(torch.nn.Module):
    """Keeps the mean square of all that it saw, over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                square = x.square().mean()
                dist.all_reduce(square)
                self.seen.mul_(0.9).add_(0.1 * square / dist.get_world_size())
                self.count += 1
        return x / self.seen.sqrt()


torch.manual_seed(3)
norm = torch.nn.BatchNorm1d(16) if "batch" in sys.argv[4] else Scale()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), norm, torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@bt.protect(model=model, optimizer=optimizer)
def train(run: bt.Run) -> None:
    ddp = DistributedDataParallel(model)
    for step in run.steps(steps):
        optimizer.zero_grad()
        loss = (ddp(numbers(step, run.rank, 12, 8)) - 1).square().mean()
        loss.backward()
        with run.updating(step):
            optimizer.step()
        # the statistics of rank 0 are those that count: DDP gives them to all at the next step
        write(run.rank, step, loss.detach(), model[0], model[3], *(() if "batch" in sys.argv[4] else (norm,)))


train()
