"""What the health pass made of single chips, for tests of fault policies."""

from __future__ import annotations

from typing import NamedTuple

from belay.engine.documents.fault_policy import IDLE
from belay.engine.model.faults import code_key
from belay.engine.model.history import History
from belay.engine.model.levels import (
    NORMAL,
    FaultAction,
)
from belay.engine.plan.node_view import NodeView, PassNodes
from belay.engine.plan.rules.fault_rules import FaultRules

#: Seconds until companions of an uncorrectable memory error are decided.
_COMPANIONS = 5.0


class ChipOutcome(NamedTuple):
    """One chip after a pass.

    ``in_service``: it takes new work; ``distributed``: of several nodes too. ``action`` is what becomes of it, in the
    words of ``FaultPolicy.spec.actions``.
    """

    level: str
    in_service: bool
    distributed: bool
    action: str
    codes: tuple[str, ...]


class HealthOutcome:
    """Every node after the health pass. ``history`` is the memory for the next pass."""

    def __init__(self, nodes: PassNodes, rules: FaultRules | None, history: History) -> None:
        self._nodes, self._rules = nodes, rules
        self.history = history

    def chip(self, node: str, chip: int, use: str) -> ChipOutcome:
        """What became of a chip that is used so: ``training``, ``inference`` or ``idle``."""
        view = self._nodes[node]
        bit = 1 << chip
        return ChipOutcome(
            level=view.chip_level.get(chip, NORMAL),
            in_service=not view.unavailable & bit and view.closed is None,
            distributed=not (view.unavailable | (view.network or 0)) & bit and view.closed is None,
            action=_action(view, bit, use),
            codes=view.chip_codes.get(chip, ()),
        )

    def waits(self, node: str, use: str, code: str) -> list[float]:
        """Seconds after which a duration, release or recovery that this code started comes due."""
        if self._rules is None:
            return []
        rules, key = self._rules.of(self._nodes[node], use).rules, code_key(code)
        waits = [_COMPANIONS]
        if key in rules.duration:
            waits += [rules.duration[key].timeout_ms / 1000, rules.duration[key].recover_ms / 1000]
        if key in rules.frequency:
            waits.append(rules.frequency[key].release_ms / 1000)
        return waits


def _action(view: NodeView, bit: int, use: str) -> str:
    if view.hit & bit:
        return FaultAction.RESCHEDULE
    if view.tolerated & bit:
        return FaultAction.TOLERATE
    if view.sub_healthy & bit and use != IDLE:
        return FaultAction.STRATEGY
    if not view.unhealthy & bit:
        return FaultAction.IGNORE
    if use != IDLE:
        return FaultAction.KEEP
    return FaultAction.RESET if view.resettable & bit else FaultAction.ISOLATE
