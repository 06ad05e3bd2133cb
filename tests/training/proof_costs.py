"""What the comparison of copies costs a rank: ``python -m tests.training.proof_costs [PARAMETERS …]``.

A model of transformer-like layers under AdamW; processor time (other processes on the machine do not count) of one
comparison, and of one with a copy, against that of a step with a batch of 8; and what that makes at the pace that
follows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from belay.agents.training.train.decide.pace import RECOMPUTED, Costs, pace
from belay.agents.training.train.worker.proof import Proof
from belay.agents.training.train.worker.protected import Protected

WIDTHS = {1_600_000: (256, 2), 13_000_000: (512, 4), 50_000_000: (1024, 4)}
"""About so many parameters → width and layers."""


def median(what: Callable[[], object], times: int = 9) -> float:
    """Median processor time of a call, in seconds."""
    found = []
    for _ in range(times):
        began = time.process_time()
        what()
        found.append(time.process_time() - began)
    return sorted(found)[times // 2]


def measure(width: int, layers: int) -> str:
    """One line about a model."""
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(8, 32, width)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    seconds = median(step, 5)
    protected = Protected(model, optimizer, None, None, 0)
    proof = Proof(lambda *_, **__: None)
    proof.enter(1)

    def compare(every: int, keep: int) -> Callable[[], None]:
        def update() -> None:
            protected.done += 1
            proof.updated(protected, [every, keep, 0, 0, 0], {}, 1)

        return update

    compare(1, 1)()
    costs = Costs(median(compare(1, 1 << 40)), median(compare(1, 1)))
    found = pace([costs], seconds, 4)
    share = costs.compare / found.compare + costs.keep / found.keep
    parameters = sum(one.numel() for one in model.parameters())
    return (
        f"{parameters / 1e6:.1f} M parameters: step {seconds * 1e3:.1f} ms; compare {costs.compare * 1e6:.0f} µs, keep "
        f"{costs.keep * 1e6:.0f} µs; every {found.compare} and {found.keep} steps: {share * 1e6:.0f} µs a step, "
        f"{100 * share / seconds:.2f} %; a share of another rank: at most {100 / RECOMPUTED:g} %"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for asked in map(int, sys.argv[1:] or map(str, WIDTHS)):
        nearest = min(WIDTHS, key=lambda size: abs(size - asked))
        sys.stdout.write(f"{measure(*WIDTHS[nearest])}\n")
        sys.stdout.flush()
