"""Drains that others do.

`kubectl drain` cordons a node and evicts its pods one by one; autoscalers taint it instead. A gang that loses a pod so
cannot go on without it, and its other pods would keep their chips for nothing: it is moved whole.
"""

from __future__ import annotations

from engine.model import taints
from engine.model.cluster import Node, Pod
from engine.model.jobs import Gang
from engine.plan import restart_scope
from engine.plan.budgets import INDEPENDENT_KINDS
from engine.plan.node_view import NodeView
from engine.plan.scope import Scope
from engine.wire.names import CORDONED


def drained_by_others(scope: Scope, gang: Gang, pod: Pod, view: NodeView | None) -> bool:
    """Whether the pod goes because others empty its node: they have cordoned or tainted it, and the pod is being
    deleted, not by Belay.

    A pod beyond the job's number goes because the job shrinks, wherever it runs.
    """
    if pod.deleting is None or view is None or not _emptied_by_others(pod, view.node):
        return False
    if gang.kind in INDEPENDENT_KINDS or pod.uid in restart_scope.memory_of(scope, gang).evicted:
        return False
    staying = [key for key in gang.pods if scope.observed.pods[key].deleting is None]
    return 0 < len(staying) < gang.replicas


def _emptied_by_others(pod: Pod, node: Node) -> bool:
    cordoned = node.unschedulable and CORDONED not in node.annotations
    return cordoned or taints.closed_by_others(pod, node)


__all__ = ["drained_by_others"]
