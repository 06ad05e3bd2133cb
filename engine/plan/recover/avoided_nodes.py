"""Nodes that a job's new pods avoid: sub-healthy ones by its strategy, nodes where it failed or was rejected.

The refusal's wording is that of component/ascend-for-volcano/plugin/node.go.
"""

from __future__ import annotations

from typing import Final

from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import INDEPENDENT_KINDS
from belay.engine.model.levels import SUB_HEALTH
from belay.engine.model.pending_reasons import ATTEMPTS, NODE_REFUSED
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.plan import restart_scope
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.node_view import NodeView, PassNodes
from belay.engine.plan.recover.maintenance import REFUSED_AT_SHUTDOWN
from belay.engine.plan.recover.outcome import NodeRefusal, RecoveryOutcome
from belay.engine.plan.rules.fault_rules import DEFAULT_ATTEMPTS, FaultRules, use_of

SUB_HEALTHY_PENALTY: Final = -1
FAULT_PENALTY: Final = -64
#: Reason of a pod that kubelet rejected because the device plugin denied its chips (pkg/kubelet/cm/admission).
REJECTED: Final = "UnexpectedAdmissionError"
#: A job whose pods were rejected on this many nodes' worth of attempts waits everywhere: the job is at fault.
NODES_TRIED: Final = 3


def avoid(
    facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, rules: FaultRules | None, recovery: RecoveryOutcome
) -> None:
    """Fill ``refused`` and ``penalty`` of ``recovery`` for the gangs that have pods to place."""
    _avoid_faulty(draft, nodes, gangs, recovery)
    _avoid_rejecting(facts, nodes, gangs, rules, recovery)


def _avoid_rejecting(
    facts: Facts, nodes: PassNodes, gangs: PassGangs, rules: FaultRules | None, recovery: RecoveryOutcome
) -> None:
    """Keep a job off nodes whose kubelet rejected its pods as often as its attempts allow, and off all nodes after too
    many rejections: a rejected pod is replaced at once, so it would otherwise be placed and rejected endlessly.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for key, pod in facts.observed.pods.items():
        if pod.phase == "Failed" and pod.node and _rejected(pod):
            found.setdefault(gangs.of_pod.get(key, ""), {}).setdefault(pod.node, []).append(pod.created)
    for name in sorted(found.keys() & gangs.keys()):
        gang, by_node = gangs[name], found[name]
        sample = next((facts.observed.pods[key] for key in gang.pods if key in facts.observed.pods), None)
        for node, times in sorted(by_node.items()):
            view = nodes.get(node)
            if view is None:
                continue
            most, window = rules.of(view, use_of(sample)).reschedule_attempts if rules else DEFAULT_ATTEMPTS
            recent = sorted(at for at in times if at > facts.now - window / 1000)
            if len(recent) >= max(1, most):
                _refuse(recovery, name, [node], recent[-max(1, most)] + window / 1000, len(recent))
        view = next((nodes[node] for node in sorted(by_node) if node in nodes), None)
        if view is None:
            continue
        most, window = rules.of(view, use_of(sample)).reschedule_attempts if rules else DEFAULT_ATTEMPTS
        most = max(1, most) * (max(1, gang.replicas) if gang.kind in INDEPENDENT_KINDS else 1)
        recent = sorted(at for times in by_node.values() for at in times if at > facts.now - window / 1000)
        if len(recent) >= most * NODES_TRIED:
            _refuse(recovery, name, list(nodes), recent[-most * NODES_TRIED] + window / 1000, len(recent))


def _rejected(pod: Pod) -> bool:
    return pod.reason in (REJECTED, REFUSED_AT_SHUTDOWN) or _lacked_resource(pod.reason)


def _lacked_resource(reason: str) -> bool:
    """Whether kubelet rejected a pod because a resource was short there: ``OutOfcpu`` and the like."""
    return reason.startswith("OutOf")


def _refuse(recovery: RecoveryOutcome, gang: str, nodes: list[str], until: float, times: int) -> None:
    rejected = counted(times, "pod")
    text = f"{ATTEMPTS}: kubelet rejected {rejected} of the job there, it is tried again from {rfc3339(until)}"
    for node in nodes:
        recovery.refused.setdefault(gang, {}).setdefault(node, NodeRefusal(ATTEMPTS, text))


def _avoid_faulty(draft: Draft, nodes: PassNodes, gangs: PassGangs, recovery: RecoveryOutcome) -> None:
    """Refuse or penalise sub-healthy nodes by the job's strategy, and penalise nodes where it failed before."""
    views = nodes.unassessed_views()
    weak = {name: _sub_health(view) for name, view in views if view.chip_level or view.switch_sub_healthy}
    weak = {name: found for name, found in weak.items() if any(found)}
    if not weak and not any(m.fault_nodes for m in draft.memory.jobs.values()) and not draft.reschedules:
        return
    failed_now: dict[str, set[str]] = {}
    for change in draft.reschedules.values():
        failed_now.setdefault(change.gang, set()).update(change.fault_nodes)
    for key in sorted(gangs):
        gang = gangs[key]
        strategy = restart_scope.strategy(gang)
        for name, (card, switch) in weak.items():
            if strategy == "ignore":
                _add_penalty(recovery, key, name, SUB_HEALTHY_PENALTY)
                continue
            text = (
                f"NodePredicate failed, cardSubHealthy={str(card).lower()} andswitchSubHealthy={str(switch).lower()}, "
                f"but sub-healthy strategy is {strategy}"
            )
            recovery.refused.setdefault(key, {})[name] = NodeRefusal(NODE_REFUSED, text)
        for name in sorted({*restart_scope.memory_of(draft, gang).fault_nodes, *failed_now.get(key, ())}):
            if name in nodes:
                _add_penalty(recovery, key, name, FAULT_PENALTY)


def _add_penalty(recovery: RecoveryOutcome, gang: str, node: str, by: int) -> None:
    lowered = recovery.penalty.setdefault(gang, {})
    lowered[node] = lowered.get(node, 0) + by


def _sub_health(view: NodeView) -> tuple[bool, bool]:
    """Whether a chip of the node is sub-healthy, and whether its switch is."""
    card = bool(view.sub_healthy) or any(level == SUB_HEALTH for level in view.chip_level.values())
    return card and view.fresh, view.switch_sub_healthy
