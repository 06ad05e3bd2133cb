"""A loop of one's own with Hugging Face Accelerate. Arguments: folder, steps, seconds of pause after a step."""

import sys
import time

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from sample_data import numbers, small_model, write
from torch.utils.data import DataLoader

import belay_training as bt

steps, pause = int(sys.argv[2]), float(sys.argv[3])


@bt.protect(late=True)
def train(run: bt.Run) -> None:
    torch.manual_seed(1)
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    # what is protected is what you made; Accelerate's wrappers hold nothing else
    run.protect(model=model, optimizer=optimizer, schedule=schedule)

    # the order of an epoch follows from its number, so that it is the same when the function is entered again
    seeded = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=seeded)
    loader = DataLoader(numbers(), batch_size=4, shuffle=True)
    wrapped, stepper, loader = accelerator.prepare(model, optimizer, loader)
    for step, (given, wanted) in run.batches(loader, steps):
        loss = torch.nn.functional.mse_loss(wrapped(given), wanted)
        accelerator.backward(loss)
        with run.updating(step):
            stepper.step()
            schedule.step()
        stepper.zero_grad()
        write(run.rank, step, loss.detach(), model)
        time.sleep(pause)


train()
