"""A script that fails in its second step."""

import torch

import belay_training as bt

model = torch.nn.Linear(2, 2)


@bt.protect(model=model)
def train(run: bt.Run) -> None:
    for step in run.steps(10):
        with run.updating(step):
            pass
        if step == 1 and run.rank == 1:
            raise ZeroDivisionError("the second step")


train()
