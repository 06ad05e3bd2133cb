"""Training that survives its processes: the contract of a script with Belay.

import belay_training as bt

@bt.protect(model=model, optimizer=optimizer, schedule=schedule)
def train(run):
    for step in run.steps(1000):
        loss = …
        loss.backward()
        with run.updating(step):
            optimizer.step()
            schedule.step()

train()
"""

from agents.training.worker.interruption import Interrupted, TrainingError
from agents.training.worker.periodic import PeriodicCheckpoints
from agents.training.worker.protect import protect
from agents.training.worker.protected import Checkpoint
from agents.training.worker.run import Run

__all__ = ["protect", "Run", "Checkpoint", "PeriodicCheckpoints", "Interrupted", "TrainingError"]
