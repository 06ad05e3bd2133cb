"""Orders about whole nodes: isolation, cordon and release, and where in Git their cause stands."""

from __future__ import annotations

from typing import Final

from belay.engine.documents import CLUSTER
from belay.engine.model.actions import Evidence, IsolateNode, Preconditions, ReleaseNode
from belay.engine.model.history import NodeMemory
from belay.engine.model.node_options import cordon_rule
from belay.engine.model.reasons import ActionReason
from belay.engine.model.rules import RuleKind
from belay.engine.model.states import ISOLATED, NodeHealth
from belay.engine.plan import causes
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.health import node_conditions
from belay.engine.plan.health.manual_isolation import NodeHold
from belay.engine.plan.node_view import MAINTENANCE, NodeView, PassNodes
from belay.engine.plan.rules.fault_rules import FaultRules

# read often: members of an enumeration are slow to look up
_HEALTHY: Final = NodeHealth.HEALTHY
_NO_MEMORY: Final = NodeMemory()


def order_node(
    facts: Facts, draft: Draft, nodes: PassNodes, rules: FaultRules | None, view: NodeView, held: NodeHold | None
) -> None:
    """Isolate or release a node; a node that is only not ready needs no order."""
    name = view.node.name
    before = draft.memory.nodes.get(name, _NO_MEMORY).isolated
    # a node that others cordoned stays theirs: it gets no annotation, so it is not uncordoned either
    cordon = held is not None and held.cordon and not view.node.unschedulable
    uncordon = cordon_rule(view.node) is not None
    condition = node_conditions.deciding(rules, view, facts.now) if rules is not None else None
    if view.state in ISOLATED:
        if before != view.level or cordon:
            draft.actions.append(
                IsolateNode(
                    node=name,
                    level=view.level,
                    reason=_why_isolated(view),
                    cordon=cordon or None,
                    message=f"node {name}: {view.closed[1] if view.closed else view.state}"
                    + (f": {condition.text}" if condition is not None else ""),
                    evidence=causes.caused(
                        _node_evidence(facts, rules, view, held), causes.of_node(facts, nodes, view)
                    ),
                    preconditions=Preconditions(uid=view.node.uid),
                )
            )
    elif (before or uncordon) and view.state in (_HEALTHY, NodeHealth.SUB_HEALTHY):
        draft.actions.append(
            ReleaseNode(
                node=name,
                level=before,
                uncordon=uncordon or None,
                reason=ActionReason.REPORT_CLEAN,
                message=f"node {name}: nothing keeps it out any more",
                evidence=_node_evidence(facts, rules, view, None),
                preconditions=Preconditions(uid=view.node.uid),
            )
        )


def evidence(
    facts: Facts, fault_rules: FaultRules, rule: str, codes: tuple[str, ...], reports: tuple[str, ...]
) -> Evidence:
    """Evidence with the place in Git of the Isolation or policy that decided."""
    for item in facts.desired.isolations:
        if rule == RuleKind.ISOLATION.named(item.document.name):
            line = 0 if item.origin.file.startswith(CLUSTER) else item.origin.line
            return Evidence(rule, item.origin.file, line, facts.desired.revision, codes, reports)
    return fault_rules.evidence(rule, codes, reports, facts.desired.revision)


def _why_isolated(view: NodeView) -> ActionReason:
    if view.down == MAINTENANCE:
        return ActionReason.MAINTENANCE
    manual = view.state == NodeHealth.MANUALLY_ISOLATED
    return ActionReason.MANUAL_ISOLATION if manual else ActionReason.NODE_FAULT


def _node_evidence(facts: Facts, rules: FaultRules | None, view: NodeView, held: NodeHold | None) -> Evidence:
    """Evidence of a decision about a node and the maintenance that it is in."""
    name = view.node.name
    reports = tuple(
        text
        for text, there in (
            (f"mindx-dl/mindx-dl-nodeinfo-{name}", name in facts.observed.node_reports),
            (f"kube-system/mindx-dl-deviceinfo-{name}", view.report is not None),
        )
        if there
    )
    if held is not None and rules is not None:
        return evidence(facts, rules, held.rule, view.codes, reports)
    condition = node_conditions.deciding(rules, view, facts.now) if rules is not None else None
    if condition is not None and rules is not None:
        return evidence(facts, rules, condition.rule, view.codes, reports)
    return Evidence(rule="report", codes=view.codes, reports=reports)
