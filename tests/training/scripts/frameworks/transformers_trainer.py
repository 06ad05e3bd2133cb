"""The Trainer of Hugging Face Transformers: it takes the steps that Belay gives, and a callback opens Belay's window
around its update. Arguments: folder, steps, seconds of pause after a step."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from sample_data import write
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import belay_training as bt

folder, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


class Words(Dataset[dict[str, torch.Tensor]]):
    """Short texts of 64 words."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        text = (torch.arange(9) * (number + 1)) % 64
        return {"input_ids": text, "labels": text}


class Window(TrainerCallback):
    """Everything that the Trainer changes in a step lies between these calls: optimizer, schedule, weights."""

    def __init__(self, run: bt.Run, model: torch.nn.Module) -> None:
        self.run, self.model, self.step = run, model, 0
        self.open: Any = None

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.open = self.run.updating(self.step)
        self.open.__enter__()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        # an exception in between leaves the window open: this rank's state is torn, and repaired from another
        self.open.__exit__(None, None, None)
        write(self.run.rank, self.step, torch.zeros(()), self.model)
        time.sleep(pause)


class ProtectedTrainer(Trainer):
    """Takes its batches from Belay."""

    def __init__(self, run: bt.Run, window: Window, **more: Any) -> None:
        self.run_of_belay, self.window = run, window
        super().__init__(callbacks=[window], **more)

    def get_train_dataloader(self) -> Any:
        run = self.run_of_belay
        sampler = DistributedSampler(self.train_dataset, run.world_size, run.rank, seed=1)
        return Steps(run, self.window, DataLoader(self.train_dataset, batch_size=4, sampler=sampler))


class Steps:
    """The unfinished steps with their batches."""

    def __init__(self, run: bt.Run, window: Window, loader: Any) -> None:
        self.run, self.window, self.loader = run, window, loader

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for step, batch in self.run.batches(self.loader, steps):
            self.window.step = step
            yield batch


@bt.protect(late=True)
def train(run: bt.Run) -> None:
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    run.protect(model=model, optimizer=optimizer, schedule=schedule)
    if run.done == steps:
        return
    options = TrainingArguments(
        folder, use_cpu=True, ddp_backend="gloo", max_steps=steps - run.done, disable_tqdm=True, report_to=[],
        save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    trainer = ProtectedTrainer(
        run, Window(run, model), model=model, args=options, train_dataset=Words(), optimizers=(optimizer, schedule)
    )
    trainer.train()


train()
