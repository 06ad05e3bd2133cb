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

from belay.agents.training.train.worker.interruption import Interrupted, TrainingError
from belay.agents.training.train.worker.periodic import PeriodicCheckpoints
from belay.agents.training.train.worker.protect import protect
from belay.agents.training.train.worker.protected import Checkpoint
from belay.agents.training.train.worker.run import Run

__all__ = ["protect", "Run", "Checkpoint", "PeriodicCheckpoints", "Interrupted", "TrainingError"]
