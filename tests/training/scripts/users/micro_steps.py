"""Gradient accumulation as one micro step a turn of `run.steps()`: an update in every fourth."""

import torch
from torch.nn.parallel import DistributedDataParallel
from witness import Language, language_loss, steps, words, write

import belay_training as bt

EVERY = 4
model = Language()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


@bt.protect(model=model, optimizer=optimizer)
def train(run: bt.Run) -> None:
    ddp = DistributedDataParallel(model)
    for step in run.steps(steps):
        ddp.require_backward_grad_sync = (step + 1) % EVERY == 0
        loss = language_loss(ddp, words(step, run.rank, 3, 7)) / EVERY
        loss.backward()
        if (step + 1) % EVERY == 0:
            with run.updating(step):
                optimizer.step()
                optimizer.zero_grad()
        write(run.rank, step, loss.detach(), model)


train()
