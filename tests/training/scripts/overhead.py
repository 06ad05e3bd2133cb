"""Prints the seconds of a step with and without the contract, medians of steps done by turns."""

import statistics
import time

import torch

import belay_training as bt

STEPS, BUSY = 200, 0.02
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(8, 64)
times: dict[str, list[float]] = {"with": [], "without": []}


def work() -> None:
    until = time.perf_counter() + BUSY
    while time.perf_counter() < until:
        pass
    optimizer.zero_grad()
    model(data).square().mean().backward()


@bt.protect(model=model, optimizer=optimizer)
def train(run: bt.Run) -> None:
    before = time.perf_counter()
    for step in run.steps(STEPS):
        work()
        with run.updating(step):
            optimizer.step()
        now = time.perf_counter()
        times["with"].append(now - before)
        work()
        optimizer.step()
        before = time.perf_counter()
        times["without"].append(before - now)


train()
print(statistics.median(times["with"]), statistics.median(times["without"]))
