"""The shares of a batch that a rank does: its own, and in a smaller job those of ranks that are away.

The batch of a step has one share for each rank of the whole job. A rank that has several does one after the other and
adds up their gradients; they are reduced with the last one. DDP and FSDP2 divide the sum by the ranks that there are,
so what comes out is multiplied by these and divided by the number of shares: the mean over the whole batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from belay.agents.training.train.worker.interruption import TrainingError


class Shares:
    """What one rank does. ``mine``: its shares, its own first; ``world``: ranks that train; ``whole``: shares."""

    def __init__(self, mine: Sequence[int], world: int, whole: int) -> None:
        self.mine, self.world, self.whole = tuple(mine), world, whole
        self.asked = False
        """Whether the script does shares, not just its own one."""
        self.last = True
        """Whether the share under way is the last one of this rank."""
        self._complete = False
        self._scaled = False

    def each(
        self, modules: Sequence[Any], gradients: Callable[[], Iterable[torch.Tensor]], begin: Callable[[], None]
    ) -> Iterator[int]:
        """Yield the shares of a step."""
        self.asked, self._complete = True, False
        smaller = self.world != self.whole
        if smaller and self._scaled:
            # of micro steps before this one, since the last update
            _multiply(gradients(), self.whole / self.world)
        for share in self.mine:
            self.last = share == self.mine[-1]
            for module in modules:
                _reduce(module, self.last)
            begin()
            yield share
        if smaller:
            _multiply(gradients(), self.world / self.whole)
        self._complete = self._scaled = True

    def updating(self, step: int) -> None:
        """An update of ``step`` begins. Raises ``TrainingError`` when shares of it were left out."""
        if self.world != self.whole and not self._complete:
            raise TrainingError(
                f"step {step} lacks shares of the batch: {self.world} of {self.whole} ranks train, so each does the "
                "shares that run.shares(model) gives, all of them, before run.updating"
            )

    def updated(self) -> None:
        """The update was made: the next step begins with no gradients of an earlier one."""
        self._complete = self._scaled = False


class Feed:
    """The batches of one loader, over as many epochs as it takes."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._epoch, self._batches = -1, iter(())

    def batch(self, step: int) -> Any:
        """The batch of a step; those before it in its epoch are passed over when the first one is asked for."""
        each = len(self._loader)
        if step // each != self._epoch:
            self._epoch = step // each
            # a loader of Accelerate counts its epochs itself
            for shuffles in (self._loader, getattr(self._loader, "sampler", None)):
                if callable(begin := getattr(shuffles, "set_epoch", None)):
                    begin(self._epoch)
            self._batches = itertools.islice(self._loader, step % each, None)
        return next(self._batches)


def _reduce(module: Any, now: bool) -> None:
    """Let DDP or FSDP2 reduce the gradients of the next backward pass, or add them up in this rank."""
    if hasattr(module, "require_backward_grad_sync"):
        module.require_backward_grad_sync = now
    elif callable(switch := getattr(module, "set_requires_gradient_sync", None)):
        switch(now)
    else:
        raise TypeError(
            f"run.shares({type(module).__qualname__}): give the model as it is called, under DistributedDataParallel "
            "or fully_shard; nothing, where the script reduces gradients itself"
        )


def _multiply(gradients: Iterable[torch.Tensor], factor: float) -> None:
    with torch.no_grad():
        for gradient in gradients:
            gradient.mul_(factor)
