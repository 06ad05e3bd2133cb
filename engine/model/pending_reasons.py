"""Why a gang waits: the values of ``Pending.reason`` and ``Pending.nodes``, each with what it means and what helps."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

INVALID_REQUEST: Final = "InvalidRequest"
NOT_SUPPORTED: Final = "NotSupportPolicy"
SHORTAGE: Final = "NPUResourceShortage"
TOPOLOGY: Final = "TopologyNotMet"
FRAGMENTED: Final = "Fragmented"
GANG_INCOMPLETE: Final = "GangIncomplete"
GATED: Final = "SchedulingGated"
POD_GROUP_MISSING: Final = "PodGroupMissing"
QUEUE_EXHAUSTED: Final = "QueueExhausted"
ENQUEUE_FAILED: Final = "JobEnqueueFailed"
QUEUE_CLOSED: Final = "QueueNotOpen"
QUEUE_MISSING: Final = "QueueNotFound"
NODE_UNSTABLE: Final = "NodeUnstable"
LEAVING: Final = "NodeLeaving"
TOO_MANY_PODS: Final = "TooManyPods"
SHARES_OFF: Final = "SoftShareNotEnabled"
NO_CHIP_MEMORY: Final = "ChipMemoryUnknown"
#: Free chips are kept for a short time for another job that a fault has hit.
RECOVERY_RESERVED: Final = "RecoveryReserved"
#: A vNPU is still being made on the node: it takes no other template until then.
IN_FLIGHT: Final = "VNPUInFlight"
#: Begins the reasons of what Kubernetes counts beside chips: ``InsufficientCpu`` and the like.
INSUFFICIENT: Final = "Insufficient"
#: A node that the job's own strategy keeps from it, after faults.
NODE_REFUSED: Final = "NodeRefused"
#: A node whose kubelet rejected the job's pods as often as its attempts allow.
ATTEMPTS: Final = "AttemptBudget"


class RejectedAt(StrEnum):
    """The step at which MindCluster's plugin refuses such a job."""

    ENQUEUE = "JobEnqueueFailed"
    PREDICATE = "NodePredicateFailed"
    ORDER = "BatchOrderFailed"


class PendingReason(NamedTuple):
    """A reason in words: the state (after ``the job``, or the name of the ``nearest`` node), and what helps."""

    state: str
    way_out: str
    of_node: bool = False


def _node(state: str, way_out: str) -> PendingReason:
    return PendingReason(state, way_out, of_node=True)


#: Every reason for which a job or a node of it may wait. ``Insufficient…`` stands for one a resource.
REASONS: Final[Mapping[str, PendingReason]] = {
    # of the job as a whole
    INVALID_REQUEST: PendingReason("asks for what no node can ever give", "change the number, resource or label named"),
    NOT_SUPPORTED: PendingReason(
        "asks for chips under a policy or label that no product has", "write one of the values that the message names"
    ),
    GANG_INCOMPLETE: PendingReason("has fewer pods than start together", "create its others, or lower minAvailable"),
    GATED: PendingReason("is held by scheduling gates", "nothing: it ends when their owner removes them"),
    POD_GROUP_MISSING: PendingReason("names a PodGroup that does not exist", "create the PodGroup"),
    ENQUEUE_FAILED: PendingReason(
        "states more chips in its PodGroup than the cluster has free", "free chips, or lower spec.minResources"
    ),
    QUEUE_EXHAUSTED: PendingReason("asks for more than its queue has left", "raise the capability, or end work there"),
    QUEUE_CLOSED: PendingReason("is in a queue that takes no jobs", "open the queue, or name another"),
    QUEUE_MISSING: PendingReason("names a queue that does not exist", "create the queue, or name another"),
    "WaitingForRelease": PendingReason("waits until its old pods are gone", "nothing: it ends when they are"),
    "VolumesNotBound": PendingReason("waits until its volumes are bound", "let the storage driver bind its claims"),
    "ResourceClaimsNotAllocated": PendingReason("waits for its resource claims", "nothing: Belay has asked for them"),
    "SwitchTopologyUnknown": PendingReason(
        "asks for affinity to switches that are not imported", "import the switches, or remove label tor-affinity"
    ),
    "NoNodes": PendingReason("finds no node at all in its shard", "add nodes"),
    # of chips
    SHORTAGE: _node("has too few free chips", "end work on the node named, or ask for fewer chips"),
    TOPOLOGY: _node(
        "has no free chips in the places that the job needs", "end work on the chips beside those that are free"
    ),
    FRAGMENTED: _node("has enough room, but not on one chip", "end or move work on one chip of the node named"),
    "NPUResourceMissing": _node("offers none of the resource asked for", "cut such vNPUs, or ask for what it offers"),
    NODE_UNSTABLE: _node(
        "has devices that its report and Kubernetes count differently",
        "wait for the next report, or restart its agent",
    ),
    "NodeInvalid": _node(
        "has more chips than the servers of the job's policy", "add such a server, or name the policy of this one"
    ),
    "NetworkStateUnknown": _node(
        "does not report the network between its chips", "run a device plugin that does, or ask for one pod"
    ),
    "SoftShareOnly": _node("offers its chips in shares only", "ask for a share, or remove its label for shares"),
    SHARES_OFF: _node("does not offer its chips in shares", "label it for shares"),
    NO_CHIP_MEMORY: _node("does not say how much memory its chips have", "label it with the memory of its chips"),
    "VNPUNodeInvalid": _node("cannot cut vNPUs on demand", "use a node whose product can, or cut them by a VNPULayout"),
    IN_FLIGHT: _node("is making another vNPU", "nothing: it ends when that is made"),
    "RackUnknown": _node("does not say which rack it is in", "report its rack, or label it"),
    "SuperPodUnknown": _node("does not say which super pod it is in", "report its super pod"),
    "TopologyLabelMissing": _node("lacks labels of the configured tree", "label it with its place in the tree"),
    "NodeLabelMismatch": _node("has another kind of card by its labels", "correct label infer-card-type, or the job's"),
    # of the node's health
    "NodeNotReady": _node("is not ready", "bring it back, or end what keeps it down"),
    "NodeIsolated": _node("is taken out of service", "end the Isolation or fault that is named"),
    LEAVING: _node(
        "is about to be removed by the one that is named", "add a node, or wait for the one that replaces it"
    ),
    "NodeUnhealthy": _node("is unhealthy", "mend the fault that is named"),
    "NodePreSeparate": _node("takes no new work because of a fault", "mend the fault that is named"),
    "PoolSuspended": _node("is of a suspended pool", "set spec.suspend of the NodePool to false"),
    "NodeReportMissing": _node("does not report its chips", "run belay agent or MindCluster's device plugin there"),
    "NodeReportRefused": _node("reports what cannot be used", "update or restart the device plugin there"),
    "NodeReportStale": _node("has not reported for too long", "restart the device plugin there"),
    NODE_REFUSED: _node("is kept from this job after faults", "bring a healthy node back, or change its strategy"),
    ATTEMPTS: _node("rejected this job's pods too often", "mend what kubelet says, or wait for the time named"),
    RECOVERY_RESERVED: _node("is kept for a job that would lose more", "nothing: it ends within two minutes"),
    "ReservedForGang": _node("is reserved for a job that waits longer", "wait until that job has started"),
    # of Kubernetes' own rules
    "NodeSelectorMismatch": _node("does not match the pod's nodeSelector", "label it, or change the nodeSelector"),
    "NodeAffinityMismatch": _node("does not meet the pod's node affinity", "label it, or widen the affinity"),
    "TaintNotTolerated": _node("has a taint that the pod does not tolerate", "add a toleration, or remove the taint"),
    "NodeUnschedulable": _node("is cordoned", "uncordon it"),
    TOO_MANY_PODS: _node("runs as many pods as it may", "end pods there"),
    INSUFFICIENT: _node("has too little of a resource beside chips left", "end what takes it there, or ask for less"),
    "PortConflict": _node("has the pod's host ports in use", "use other host ports, or end the pod that has them"),
    "PodAffinityMismatch": _node("is not beside the pods that this one wants", "run those there, or relax affinity"),
    "PodAntiAffinityConflict": _node("runs pods that this one keeps away from", "add nodes, or relax anti-affinity"),
    "TopologySpreadConflict": _node("would make the spread of the pods too uneven", "add nodes, or relax the spread"),
    "VolumeNodeAffinityConflict": _node("cannot reach the pod's volumes", "free nodes that can, or move the volumes"),
    "VolumeNotAvailable": _node("finds no volume for the pod's claim", "add a PersistentVolume that suits the claim"),
    "VolumeSpaceShortage": _node("has too little storage for the claim", "free storage, or claim less"),
    "VolumeNodeSelected": _node("is not the node selected for the pod's claim", "free that node, or renew the claim"),
    "VolumeClaimNotReady": _node("waits for a claim that is not bound", "create or bind the claim"),
    "VolumeClaimInUse": PendingReason(
        "claims a volume that one pod at a time may have", "end the pod that has it, or give the job a claim of its own"
    ),
    "VolumeLimitReached": _node("has as many volumes of the driver as it can", "free volumes there"),
    "ResourceClaimNotAllocated": _node("waits for a resource claim without devices", "correct the claim"),
    "ResourceClaimNodeMismatch": _node("cannot use the devices of the resource claim", "free the node that has them"),
    "ResourceClaimDevicesShort": _node("has too few devices for the resource claims", "free devices there"),
    "ResourceClaimUsersExhausted": _node("finds the resource claim used by too many pods", "make a claim for this pod"),
}


def lacks_room(reason: str) -> bool:
    """Whether the reason is that what Kubernetes counts beside chips is short: CPU, memory, pods and the like."""
    return reason == TOO_MANY_PODS or reason.startswith(INSUFFICIENT)


def reason_in_words(reason: str) -> PendingReason:
    """The row of a reason; of one that no row names, its own name."""
    found = REASONS.get(reason)
    if found is None and reason.startswith(INSUFFICIENT):
        found = REASONS[INSUFFICIENT]
    return found or _node(f"refuses it ({reason})", "look at the message")
