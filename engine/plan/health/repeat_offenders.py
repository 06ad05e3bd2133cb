"""Repeat offenders: counts each chip's failures with decay, so that placement avoids such chips among equals."""

from __future__ import annotations

import msgspec

from belay.engine.documents.fault_policy import IDLE
from belay.engine.model import repeat_offenders
from belay.engine.model.history import FailureMemory, NodeMemory
from belay.engine.model.levels import IN_SERVICE
from belay.engine.model.plan import RepeatOffender
from belay.engine.model.rules import KEEPING_OUT
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.health.assessment import LIST_RULE, MANUAL_KEY, ChipAssessment, Health
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.rules.fault_rules import FaultRules

_MANUAL_RULES = (MANUAL_KEY, LIST_RULE)


def update(
    facts: Facts,
    draft: Draft,
    health: Health,
    fault_rules: FaultRules,
    view: NodeView,
    assessments: dict[int, ChipAssessment],
) -> int:
    """Update the failure counts of a node's chips; return the mask of its repeat offenders."""
    name, now = view.node.name, facts.now_ms
    memory = draft.memory.nodes.get(name, NodeMemory())
    before = memory.lemons
    if not before and not any(assessment.out_of_service for assessment in assessments.values()):
        return 0
    settings = fault_rules.of(view, IDLE).repeat_offenders
    after: dict[int, FailureMemory] = {}
    if settings is not None:
        agent = facts.observed.agents.get(name)
        for chip in sorted({*before, *assessments}):
            known = before.get(chip)
            found = known
            if view.fresh and not view.suspended:
                serial = agent.chips[chip].serial if agent and chip in agent.chips else ""
                failing = _failing(assessments.get(chip), known)
                found = repeat_offenders.updated(known, failing, serial, now, settings)
            if found is not None and view.base >> chip & 1:
                after[chip] = found
    if after != before:
        draft.memory.nodes[name] = msgspec.structs.replace(memory, lemons=after)
    offenders = 0
    for chip, failures in after.items():
        if settings is not None:
            rate = repeat_offenders.rate(failures, now, settings)
            offenders |= (1 << chip) if rate >= settings.threshold else 0
            health.repeat_offenders.append(
                RepeatOffender(name, view.chip(chip), rate, settings.threshold, rate >= settings.threshold)
            )
    return offenders


def _failing(assessment: ChipAssessment | None, before: FailureMemory | None) -> bool:
    """Whether the chip plane is out of service for a fault; chips kept out by people or holds keep their last value."""
    if assessment is None:
        return False
    if assessment.rule_kind in KEEPING_OUT:
        return before is not None and before.failing
    return assessment.effective not in IN_SERVICE
