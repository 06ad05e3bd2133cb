"""A DataLoader without `generator=`, made inside the function. Further argument: workers, shuffle, a comma list."""

import sys
from itertools import islice

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from witness import numbers, steps, write

import belay_training as bt

special = set(sys.argv[4].split(","))


class Examples(Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return numbers(index, 0, 8) + ("noise" in special) * torch.randn(8)


examples = Examples()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def learn(run: bt.Run, ddp: torch.nn.Module, step: int, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss = (ddp(batch) - 1).square().mean()
    loss.backward()
    with run.updating(step):
        optimizer.step()
    write(run.rank, step, loss.detach(), model)


@bt.protect(model=model, optimizer=optimizer)
def train(run: bt.Run) -> None:
    ddp = DistributedDataParallel(model)
    if "shuffle" in special:
        sampler, loader = None, DataLoader(examples, 4, shuffle=True, num_workers=2 * ("workers" in special))
    else:
        sampler = DistributedSampler(examples, run.world_size, run.rank, seed=5)
        loader = DataLoader(examples, 4, sampler=sampler, num_workers=2 * ("workers" in special))
    batches = iter(())
    if "helped" in special:
        for step, batch in run.batches(loader, steps):
            learn(run, ddp, step, batch)
        return
    for step in run.steps(steps):
        batch = next(batches, None)
        if batch is None:
            if sampler is not None:
                sampler.set_epoch(step // len(loader))
            batches = islice(loader, step % len(loader), None)
            batch = next(batches)
        learn(run, ddp, step, batch)


train()
