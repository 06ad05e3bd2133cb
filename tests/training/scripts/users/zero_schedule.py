"""ZeroRedundancyOptimizer with a schedule, whose learning rate is in the loss that is written."""

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from witness import Language, language_loss, steps, words, write

import belay_training as bt


@bt.protect(late=True)
def train(run: bt.Run) -> None:
    torch.manual_seed(7)
    model = Language()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    run.protect(model=model, optimizer=optimizer, schedule=schedule)
    ddp = DistributedDataParallel(model)
    for step in run.steps(steps):
        optimizer.zero_grad()
        loss = language_loss(ddp, words(step, run.rank, 3, 7))
        loss.backward()
        with run.updating(step):
            optimizer.step()
            schedule.step()
        write(run.rank, step, loss.item() + optimizer.param_groups[0]["lr"], model)


train()
