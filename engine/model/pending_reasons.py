"""Why a gang waits: the common values of ``Pending.reason``, which status translates for ClusterD."""

from __future__ import annotations

from typing import Final

INVALID_REQUEST: Final = "InvalidRequest"
NOT_SUPPORTED: Final = "NotSupportPolicy"
SHORTAGE: Final = "NPUResourceShortage"
TOPOLOGY: Final = "TopologyNotMet"
FRAGMENTED: Final = "Fragmented"
GANG_INCOMPLETE: Final = "GangIncomplete"
POD_GROUP_MISSING: Final = "PodGroupMissing"
QUEUE_EXHAUSTED: Final = "QueueExhausted"
ENQUEUE_FAILED: Final = "JobEnqueueFailed"
QUEUE_CLOSED: Final = "QueueNotOpen"
QUEUE_MISSING: Final = "QueueNotFound"
NODE_UNSTABLE: Final = "NodeUnstable"
TOO_MANY_PODS: Final = "TooManyPods"
#: Begins the reasons of what Kubernetes counts beside chips: ``InsufficientCpu`` and the like.
INSUFFICIENT: Final = "Insufficient"
