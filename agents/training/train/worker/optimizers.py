"""Optimizers as they are repaired: their state, and the hyperparameters of every optimizer that wraps another.

A schedule changes ``param_groups`` of the optimizer that it was given. Where that one wraps another (ZeRO, Apex,
sharpness-aware ones) and keeps groups of its own, ``state_dict`` often holds those of the inner one only; a schedule
would go on from the initial learning rate, and the wrapper would copy it inwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

INNER_DEPTH = 4
"""Wrappers around wrappers that are looked into."""


class RepairedOptimizer:
    """An optimizer, or what wraps one: ``state_dict`` of the object, and the groups of every level."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.own_part = is_sharded_over_ranks(optimizer)
        """Whether it updates a part of the parameters, another one on each rank."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, for another rank that holds the same part."""
        return {
            "state": self._holder().state_dict(),
            "groups": [hyperparameters(one) for one in levels(self.optimizer)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore this state."""
        self._holder().load_state_dict(state["state"])

        # a level shares its groups with the one below, or has its own: the same values either way
        for optimizer, groups in zip(levels(self.optimizer), state["groups"], strict=True):
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                group.update(values)

    def _holder(self) -> Any:
        # state_dict of the wrapper is that of all ranks, there only after a collective that moves it to one of them
        return self.optimizer.optim if self.own_part else self.optimizer


def is_sharded_over_ranks(optimizer: Any) -> bool:
    """Whether each rank updates its own part of the parameters and holds the state of that part alone."""
    return any(one.__name__ == "ZeroRedundancyOptimizer" for one in type(optimizer).__mro__)


def has_groups(value: Any) -> bool:
    """Whether an object is an optimizer, or passes for one."""
    return isinstance(getattr(value, "param_groups", None), list) and callable(getattr(value, "state_dict", None))


def levels(optimizer: Any) -> Iterator[Any]:
    """The optimizer, then those that it wraps, outermost first."""
    seen: set[int] = set()
    current = [optimizer]
    for _ in range(INNER_DEPTH):
        below: list[Any] = []
        for one in current:
            if id(one) in seen:
                continue
            seen.add(id(one))
            yield one
            below += _wrapped(one)
        current = below


def _wrapped(optimizer: Any) -> list[Any]:
    """Optimizers among the attributes of one."""
    found: list[Any] = []
    for value in vars(optimizer).values():
        candidates = value if isinstance(value, (list, tuple)) else [value]
        found += [one for one in candidates if has_groups(one)]
    return found


def hyperparameters(optimizer: Any) -> list[dict[str, Any]]:
    """What the groups of an optimizer hold beside their parameters."""
    return [
        {name: value for name, value in group.items() if name not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]
