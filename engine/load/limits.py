"""Limits of safety budgets that allow nothing: legal, as a freeze is, but seldom meant to last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from belay.engine.documents import SafetyBudget
from belay.engine.documents.problems import Problem

#: What waits for ever under a limit of 0, by action.
_CONSEQUENCES: Final = {
    "EvictPod": "pods on faulty chips and nodes are never rescheduled",
    "ResetChips": "faulty chips are never reset",
    "IsolateChip": "faulty chips are not taken from their nodes",
    "IsolateNode": "faulty nodes are not isolated",
    "DeleteObject": "nothing that Git no longer declares is deleted",
    "PartitionChip": "no chip is cut as its VNPULayout says",
}
_ANY_NUMBER: Final = 1_000_000_000


def check_limits(budget: SafetyBudget) -> Iterator[Problem]:
    """A warning for each limit of 0."""
    for index, limit in enumerate(budget.spec.limits):
        if limit.allowed(_ANY_NUMBER):
            continue
        effects = "; ".join(_effects(limit.actions))
        text = f"allows no {' or '.join(limit.actions)} at all: {effects}. Give at least 1, or remove the limit"
        yield Problem(("spec", "limits", index, "max"), text, "warning")


def _effects(actions: Sequence[str]) -> Iterator[str]:
    for action in actions:
        if action in _CONSEQUENCES:
            yield _CONSEQUENCES[action]
