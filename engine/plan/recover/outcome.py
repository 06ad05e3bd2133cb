"""What the recover pass leaves for later ones: levels of recovery, and nodes that jobs avoid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from belay.engine.model.costs import Estimate, MeasuredTimes


class NodeRefusal(NamedTuple):
    """Why one job may not take a node that others may: a word of ``belay.engine.model.pending_reasons``, and the
    sentence."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RecoveryChoice:
    """The recovery level of a hit job: the chosen estimate, all that were weighed, and the times behind them.

    ``held``: why another job gets the room first, empty when none does. ``codes``: the fault codes.
    """

    chosen: Estimate
    weighed: tuple[Estimate, ...]
    known: MeasuredTimes
    held: str = ""
    codes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecoveryOutcome:
    """How hit jobs recover, and where their new pods do not go.

    ``choices`` are the levels chosen by cost, by gang. ``refused`` are by gang the nodes that must not take its new
    pods and why (rulings 3, 4; sub-health, previous faults); reservations add theirs while gangs are placed.
    ``penalty`` lowers a node's score for a gang (sub-health -1, earlier fault -64).
    """

    choices: dict[str, RecoveryChoice] = field(default_factory=dict)
    refused: dict[str, dict[str, NodeRefusal]] = field(default_factory=dict)
    penalty: dict[str, dict[str, int]] = field(default_factory=dict)
