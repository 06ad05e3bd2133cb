"""In some steps a rank computes the share of another rank too, and says the checksums of both gradients before they are
reduced: a chip that computes wrong is not seen in copies, which all add the same wrong gradient.

`run.shares` gives one more share then, before the rank's own: its gradients are dropped, and what its forward pass did
to buffers is undone. No collective is part of it.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from belay.agents.training.train.protocol import RecomputedSums
from belay.agents.training.train.worker.buffers import SMALL
from belay.agents.training.train.worker.digests import digest
from belay.agents.training.train.worker.protected import Protected

FIRST = 1
"""The step in which ranks compute for each other for the first time: it shows whether they compute alike."""


class Recomputation:
    """``rank``: of this process, which is the number of its share; ``ranks``: of the job, all of which must train."""

    def __init__(self, rank: int, ranks: int, pace: Callable[[], Sequence[int]], send: Callable[..., None]) -> None:
        self._rank, self._ranks, self._pace, self._send = rank, ranks, pace, send
        self.alone = False
        """Whether this rank has the data of its own share only: then it computes that one twice."""
        self._fresh = True
        """Whether no gradients of an earlier micro step are kept."""
        self._found: tuple[int, int, int] | None = None
        """Checksum of the weights, the other share, and the checksum of its gradients."""

    def updated(self) -> None:
        """The update was made."""
        self._fresh = True

    def other(self, step: int, modules: Sequence[Any], protected: Protected) -> int | None:
        """The share of another rank that is computed in this step; None in most."""
        fresh, self._fresh, self._found = self._fresh, False, None
        every, attempt = (*self._pace(), 0, 0)[:2]
        due = every > 0 and step > 0 and (step == FIRST or step % every == 0)
        if not due or not fresh or self._ranks < 2 or not modules:
            return None
        if not all(hasattr(module, "require_backward_grad_sync") for module in modules):
            return None
        if any(buffer.nbytes > SMALL for buffer in protected.buffers()):
            # what the forward pass does to it could not be undone
            return None
        if self.alone:
            return self._rank
        return (self._rank + 1 + (step // every + attempt) % (self._ranks - 1)) % self._ranks

    @contextlib.contextmanager
    def computing(self, share: int, modules: Sequence[Any], protected: Protected) -> Iterator[None]:
        """The context in which that share is computed."""
        held = [(parameter, parameter.grad) for parameter in protected.parameters()]
        for parameter, gradient in held:
            parameter.grad = None if gradient is None else gradient.clone()
        switches = [(module, name, getattr(module, name)) for module in modules for name in _SWITCHES]
        for module, name, _ in switches:
            setattr(module, name, False)
        weights = digest(protected.weights())
        try:
            with _gradients(protected) as sums:
                yield
            self._found = weights, share, sums()
        finally:
            for parameter, gradient in held:
                parameter.grad = gradient
            for module, name, value in switches:
                setattr(module, name, value)
            protected.rewind()

    @contextlib.contextmanager
    def own(self, step: int, generation: int, protected: Protected) -> Iterator[None]:
        """The context in which this rank computes its own share."""
        if self._found is None:
            yield
            return
        with _gradients(protected) as sums:
            yield
        weights, other, found = self._found
        self._found = None
        self._send(RecomputedSums(generation, step, weights, sums(), other, found))


_SWITCHES = ("require_backward_grad_sync", "require_forward_param_sync")
"""DDP reduces gradients, and sends buffers from rank 0 in its forward pass."""


@contextlib.contextmanager
def _gradients(protected: Protected) -> Iterator[Callable[[], int]]:
    """A context whose backward passes are watched; the checksum of the gradients of this rank, as they were when each
    was complete and not reduced yet."""
    sums: dict[int, int] = {}

    def watch(index: int) -> Callable[[torch.Tensor], None]:
        def complete(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            sums[index] = digest([parameter.grad])

        return complete

    hooks = [
        parameter.register_post_accumulate_grad_hook(watch(index))
        for index, parameter in enumerate(protected.parameters())
        if parameter.requires_grad
    ]
    try:
        yield lambda: zlib.crc32(repr(sorted(sums.items())).encode())
    finally:
        for hook in hooks:
            hook.remove()
