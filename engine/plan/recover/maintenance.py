"""Drains that others do.

`kubectl drain` cordons a node and evicts its pods one by one; autoscalers taint it instead. A gang that loses a pod so
cannot go on without it, and its other pods would keep their chips for nothing: it is moved whole. The same holds for a
server that is shut down or restarted: its kubelet ends the pods, and marks them as failed.
"""

from __future__ import annotations

from typing import Final

from belay.engine.model import taints
from belay.engine.model.cluster import Node, Pod
from belay.engine.model.jobs import INDEPENDENT_KINDS, Gang
from belay.engine.model.node_options import cordon_rule
from belay.engine.plan import restart_scope
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.node_view import NodeView

#: Reason of a pod that kubelet refuses because its node shuts down.
REFUSED_AT_SHUTDOWN: Final = "NodeShutdown"
#: Reasons of pods that end by it (kubernetes/pkg/kubelet/nodeshutdown; ``Shutdown`` in 1.20 and 1.21).
SHUTDOWN: Final = frozenset({"Terminated", "Shutdown", REFUSED_AT_SHUTDOWN})


def drained_by_others(facts: Facts, draft: Draft, gang: Gang, pod: Pod, view: NodeView | None) -> bool:
    """Whether the pod goes because others empty its node: they have cordoned or tainted it, and the pod is being
    deleted, not by Belay.

    A pod beyond the job's number goes because the job shrinks, wherever it runs.
    """
    if pod.deleting is None or view is None or not _emptied_by_others(pod, view.node):
        return False
    if gang.kind in INDEPENDENT_KINDS or pod.uid in restart_scope.memory_of(draft, gang).evicted:
        return False
    staying = [key for key in gang.pods if facts.observed.pods[key].deleting is None]
    return 0 < len(staying) < gang.replicas


def ended_by_shutdown(gang: Gang, pod: Pod) -> bool:
    """Whether kubelet ended or refused the pod because its node shuts down: the job itself has not failed.

    Replicas of services are replaced one by one by their own controllers.
    """
    return pod.phase == "Failed" and pod.reason in SHUTDOWN and gang.kind not in INDEPENDENT_KINDS


def lacked(gangs: PassGangs, gang: Gang, lost: Pod) -> bool:
    """Whether the job has fewer pods than it needs since it lost this one.

    Jobs keep failed pods long after others took their place, and finalizers keep pods that are being deleted: neither
    says anything of the job as it stands.
    """
    if lost.deleting is not None:
        return False
    members = gangs.members.get(gang.key, ())
    standing = [one for one in members if one.node and one.phase != "Failed" and one.deleting is None]
    if gang.settles:  # nothing says how many it needs: a pod bound since stands for the lost one
        return not any(one.created > lost.created for one in standing)
    return len(standing) < max(gang.replicas, gang.min_available)


def _emptied_by_others(pod: Pod, node: Node) -> bool:
    cordoned = node.unschedulable and cordon_rule(node) is None
    return cordoned or taints.closed_by_others(pod, node)


__all__ = ["REFUSED_AT_SHUTDOWN", "SHUTDOWN", "drained_by_others", "ended_by_shutdown", "lacked"]
