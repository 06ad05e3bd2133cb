"""Model, DistributedDataParallel and optimizer are made inside the function, as in a script that was written for
torchrun, and protected as they are.
"""

import torch
from torch.nn.parallel import DistributedDataParallel
from witness import Language, language_loss, steps, words, write

import belay_training as bt


@bt.protect(late=True)
def train(run: bt.Run) -> None:
    torch.manual_seed(1)
    # small buckets, as a large model has many
    model = DistributedDataParallel(Language(), bucket_cap_mb=0.005)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run.protect(model=model, optimizer=optimizer)
    for step in run.steps(steps):
        optimizer.zero_grad()
        loss = language_loss(model, words(step, run.rank, 3, 7))
        loss.backward()
        with run.updating(step):
            optimizer.step()
        write(run.rank, step, loss.detach(), model)


train()
