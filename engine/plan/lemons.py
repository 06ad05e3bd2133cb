"""Repeat offenders: counts each chip's failures with decay, and tells placement which chips to avoid among equals."""

from __future__ import annotations

import msgspec

from engine.model import lemons
from engine.model.history import Lemon, NodeMemory
from engine.model.levels import IN_SERVICE
from engine.model.plan import LemonState
from engine.plan.judge import IDLE, Judge
from engine.plan.scope import NodeView, Scope
from engine.plan.verdict import LIST_RULE, MANUAL_KEY, Verdict

_BY_HAND = (MANUAL_KEY, LIST_RULE)


def note(scope: Scope, judge: Judge, view: NodeView, verdicts: dict[int, Verdict]) -> None:
    """Bring the failures of a node's chips up to date and mark its lemons in the view."""
    name, now = view.node.name, scope.now_ms
    memory = scope.memory.nodes.get(name, NodeMemory())
    before = memory.lemons
    if not before and not any(verdict.out for verdict in verdicts.values()):
        return
    settings = judge.of(view, IDLE).lemons
    after: dict[int, Lemon] = {}
    if settings is not None:
        agent = scope.observed.agents.get(name)
        for chip in sorted({*before, *verdicts}):
            known = before.get(chip)
            found = known
            if view.fresh and not view.suspended:
                serial = agent.chips[chip].serial if agent and chip in agent.chips else ""
                failing = _failing(verdicts.get(chip), known)
                found = lemons.seen(known, failing, serial, now, settings)
            if found is not None and view.base >> chip & 1:
                after[chip] = found
    if after != before:
        scope.memory.nodes[name] = msgspec.structs.replace(memory, lemons=after)
    for chip, lemon in after.items():
        if settings is not None:
            found_rate = lemons.rate(lemon, now, settings)
            view.lemons |= (1 << chip) if found_rate >= settings.threshold else 0
            scope.lemons.append(
                LemonState(name, view.chip(chip), found_rate, settings.threshold, found_rate >= settings.threshold)
            )


def _failing(verdict: Verdict | None, before: Lemon | None) -> bool:
    """Whether the chip's own plane is out of service by its own doing: what people and holds keep out tells nothing."""
    if verdict is None:
        return False
    if verdict.rule.startswith(("hold:", "Isolation/")) or verdict.rule in _BY_HAND:
        return before is not None and before.failing
    return verdict.effective not in IN_SERVICE
