"""Conditions of Nodes that a fault policy takes for faults: those of the Node Problem Detector and of others."""

from __future__ import annotations

from typing import NamedTuple

from belay.engine.documents.fault_policy import IDLE
from belay.engine.model.cluster import NodeCondition
from belay.engine.model.levels import NodeLevel, node_rank
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.rules.fault_rules import ConditionJudgement, FaultRules


class ConditionFault(NamedTuple):
    """A condition that a rule is about: the level it has now, the rule, and the state of the Node in words."""

    condition: NodeCondition
    level: str
    rule: str

    @property
    def text(self) -> str:
        reason = f" ({self.condition.reason})" if self.condition.reason else ""
        return f"condition {self.condition.type}={self.condition.status}{reason}"


def faults(fault_rules: FaultRules, view: NodeView, now: float) -> tuple[ConditionFault, ...]:
    """The faults of a node by its conditions, the worst first; one that has yet to last is not handled."""
    if not view.node.conditions:
        return ()
    rules = fault_rules.of(view, IDLE).conditions
    found = []
    for condition in view.node.conditions:
        judged = next((one for one in rules.get(condition.type, ()) if _is_about(one, condition)), None)
        if judged is not None:
            lasted = now - condition.since >= judged.rule.lasting
            found.append(ConditionFault(condition, judged.rule.level if lasted else NodeLevel.NOT_HANDLE, judged.name))
    return tuple(sorted(found, key=lambda one: (-node_rank(one.level), one.condition.type)))


def deciding(fault_rules: FaultRules, view: NodeView, now: float) -> ConditionFault | None:
    """The condition that keeps a node from work; None if none does."""
    worst = next(iter(faults(fault_rules, view, now)), None)
    return worst if worst is not None and node_rank(worst.level) > 0 else None


def _is_about(judged: ConditionJudgement, condition: NodeCondition) -> bool:
    rule = judged.rule
    return condition.status == rule.status and (not rule.reasons or condition.reason in rule.reasons)


__all__ = ["ConditionFault", "deciding", "faults"]
