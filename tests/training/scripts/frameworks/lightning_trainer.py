"""Lightning's Trainer: it loops over the steps that Belay gives, and the module updates in Belay's window. Arguments:
folder, steps, seconds of pause after a step."""

import sys
import time
from collections.abc import Iterator

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
from sample_data import numbers, small_model, write
from torch.utils.data import DataLoader, DistributedSampler

import belay_training as bt

steps, pause = int(sys.argv[2]), float(sys.argv[3])


class Module(pl.LightningModule):
    """Manual optimization: backward outside of the window, the update inside."""

    def __init__(self, run: bt.Run) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.run_of_belay = run
        self.model = small_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer

    def training_step(self, batch: tuple[int, list[torch.Tensor]], _: int) -> None:
        step, (given, wanted) = batch
        loss = torch.nn.functional.mse_loss(self.model(given), wanted)
        self.manual_backward(loss)
        optimizer = self.optimizers()
        with self.run_of_belay.updating(step):
            optimizer.step()
            self.schedule.step()
        optimizer.zero_grad()
        write(self.run_of_belay.rank, step, loss.detach(), self.model)
        time.sleep(pause)


class Steps:
    """The unfinished steps with their batches."""

    def __init__(self, run: bt.Run) -> None:
        self.run = run
        sampler = DistributedSampler(numbers(), run.world_size, run.rank, seed=1)
        self.loader = DataLoader(numbers(), batch_size=4, sampler=sampler)

    def __len__(self) -> int:
        # without it the Trainer fetches a batch ahead, and Belay takes the step before it for finished
        return steps - self.run.done

    def __iter__(self) -> Iterator[tuple[int, list[torch.Tensor]]]:
        return self.run.batches(self.loader, steps)


@bt.protect(late=True)
def train(run: bt.Run) -> None:
    torch.manual_seed(1)
    module = Module(run)
    run.protect(model=module, optimizer=module.optimizer, schedule=module.schedule)
    # the ranks are there already; what Lightning would save and log of a step, belay train saves and you log
    trainer = pl.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=run.world_size,
        plugins=[TorchElasticEnvironment()],
        max_epochs=1,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(module, Steps(run))


train()
