"""Bit-equal results although DistributedDataParallel is created again on every entry.

A new DDP reduces its first backward pass in different buckets than later ones (it learns the order in which gradients
become ready, ``torch/nn/parallel/distributed.py`` and ``reducer.cpp``). Gloo's ring adds the ranks' values in an order
that depends on an element's place in its bucket, so the first step after a repair would differ in the last bits from
an undisturbed run. Therefore the learned order is kept, and passed to new ranks by the coordinator's store; a DDP that
is created after step 0 starts with its final buckets.

Such a DDP does not send the whole model from rank 0 to all others again, either: the repair has just made it equal.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

Order = list[int]


def agreed(found: Sequence[list[Order | None]], rank: int) -> list[Order | None]:
    """The orders that ``rank`` uses, of those that all ranks have (empty: none): its own when every rank has some,
    those of the others when these are equal, otherwise none. Ranks with different buckets would add up different
    gradients, unnoticed."""
    complete = [orders for orders in found if orders and None not in orders]
    if len(complete) == len(found):
        return found[rank]
    return complete[0] if complete and all(orders == complete[0] for orders in complete) else []


class Buckets:
    """Replaces ``torch.distributed.Reducer`` while training functions run."""

    def __init__(self, learned: Callable[[], object] = lambda: None) -> None:
        self._learned = learned
        """Called when orders have become known."""
        self.orders: list[Order | None] = []
        """For each DDP of an entry, in order of creation: parameters in the order in which their gradients become
        ready. Known to every rank that holds a step after it was learned, or to none of them."""
        self._pending: dict[int, Order] = {}
        """Learned in a step that is not finished: other ranks may not have learned it, and it may be done again."""
        self._made: list[weakref.ref[Any]] = []
        self._hooks: list[Any] = []
        self._count = 0
        self._known = False
        self._equal: frozenset[int] = frozenset()
        self._reducer = dist.Reducer
        dist.Reducer = self._make
        self._init = DistributedDataParallel.__init__
        DistributedDataParallel.__init__ = self._initialize()

    def enter(self, step: int) -> None:
        """Enter a training function at ``step``; gradients must no longer reach earlier DDPs."""
        for made in self._made:
            if (reducer := made()) is not None:
                reducer._remove_autograd_hooks()
        for hook in self._hooks:
            hook.remove()
        self._made, self._hooks, self._count, self._pending = [], [], 0, {}
        self._known, self._equal = step > 0, frozenset()
        if step == 0:
            self.orders = []

    def repaired(self, tensors: Iterable[torch.Tensor]) -> None:
        """The repair has made these parameters and buffers the same on all ranks that hold them, in this entry."""
        self._equal = frozenset(map(id, tensors)) if self._known else frozenset()

    def _initialize(self) -> Any:
        """DDP's constructor, without the synchronisation of a model that a repair has made equal."""

        def init(ddp: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            # init_sync is the sixth argument
            if self._equal and len(args) < 5 and isinstance(module, torch.nn.Module):
                held = [*module.parameters(), *module.buffers()]
                if all(id(tensor) in self._equal for tensor in held):
                    kwargs["init_sync"] = False
            self._init(ddp, module, *args, **kwargs)

        return functools.wraps(self._init)(init)

    def finished(self) -> None:
        """A step was finished with what was learned in it."""
        if self._pending:
            for index, order in sorted(self._pending.items()):
                self.orders += [None] * (index + 1 - len(self.orders))
                self.orders[index] = order
            self._pending = {}
            self._learned()

    def _make(self, parameters: list[torch.Tensor], buckets: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        index, self._count = self._count, self._count + 1
        order = self.orders[index] if index < len(self.orders) else None
        if (
            self._known
            and order is not None
            and sorted(order) == list(range(len(parameters)))
            and len(args) > 10
            and not args[4]
        ):
            limits = args[10] or [args[7], args[3]]
            sparse = list(args[2])
            buckets, per_bucket = dist._compute_bucket_assignment_by_size(
                [parameters[at] for at in order], list(limits), [sparse[at] for at in order], list(order)
            )
            args = (per_bucket, *args[1:])
        elif order is None:
            self._learn(index, parameters)
        reducer = self._reducer(parameters, buckets, *args, **kwargs)
        self._made.append(weakref.ref(reducer))
        return reducer

    def _learn(self, index: int, parameters: list[torch.Tensor]) -> None:
        """Record the order in which the first backward pass makes gradients ready."""
        order: Order = []
        hooks: list[Any] = []

        def ready(at: int) -> Any:
            def hook(_: torch.Tensor) -> None:
                order.append(at)
                if len(order) == len(parameters):
                    self._pending[index] = order
                    for one in hooks:
                        one.remove()

            return hook

        hooks += [parameter.register_post_accumulate_grad_hook(ready(at)) for at, parameter in enumerate(parameters)]
        self._hooks += hooks
