"""The step, as values, that removes what keeps a pod off a node; prose about the same stands in ``pending``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from belay.engine.model.cluster import Pod
from belay.engine.model.labels import CHIP_MEMORY, INFER_CARD_TYPE, SOFT_SHARING_ENABLED
from belay.engine.model.pending_reasons import (
    ATTEMPTS,
    IN_FLIGHT,
    LEAVING,
    NO_CHIP_MEMORY,
    NODE_REFUSED,
    NODE_UNSTABLE,
    RECOVERY_RESERVED,
    SHARES_OFF,
)
from belay.engine.model.remedies import Remedy, Step
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.families import duo
from belay.engine.plan.place.families.base import NODE_INVALID
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.nodes import attach_limits, claim_choices, exclusive_claims, resource_claims, volumes
from belay.engine.plan.place.nodes.table import SHARES_ONLY

#: Reasons that one step on the node removes, with nothing to choose.
_ON_NODE: Final[Mapping[str, Step]] = {
    "NodeNotReady": Step.MEND,
    "NodeUnhealthy": Step.MEND,
    "NodePreSeparate": Step.MEND,
    "NodeIsolated": Step.END_ISOLATION,
    "NodeReportMissing": Step.REPORT,
    "NodeReportRefused": Step.REPORT,
    "NodeReportStale": Step.REPORT,
    NODE_UNSTABLE: Step.REPORT,
    "NetworkStateUnknown": Step.REPORT,
    "RackUnknown": Step.REPORT,
    "SuperPodUnknown": Step.REPORT,
    # its strategy keeps a job off chips or switches that are sub-healthy
    NODE_REFUSED: Step.MEND,
    # they end with time
    ATTEMPTS: Step.WAIT,
    RECOVERY_RESERVED: Step.WAIT,
    "ReservedForGang": Step.WAIT,
    IN_FLIGHT: Step.WAIT,
    "WaitingForRelease": Step.WAIT,
}

#: Reasons that are about a claim of the pod.
_ON_CLAIM: Final[Mapping[str, Step]] = {
    volumes.CLAIM: Step.BIND_CLAIM,
    volumes.NO_VOLUME.reason: Step.ADD_VOLUME,
    volumes.NO_SPACE.reason: Step.FREE_STORAGE,
    volumes.NOT_SELECTED: Step.NEW_CLAIM,
    volumes.CONFLICT.reason: Step.NEW_CLAIM,
    exclusive_claims.IN_USE: Step.NEW_CLAIM,
    resource_claims.NOT_ALLOCATED: Step.SERVE_CLAIM,
    resource_claims.MISMATCH.reason: Step.NEW_CLAIM,
    claim_choices.FULL.reason: Step.NEW_CLAIM,
}

#: Rules among pods that a job may leave out.
_RELAXED: Final[Mapping[str, str]] = {
    "PodAffinityMismatch": "podAffinity",
    "PodAntiAffinityConflict": "podAntiAffinity",
    "TopologySpreadConflict": "topologySpreadConstraints",
}

#: Reasons that the end of other work on the node removes.
_TAKEN: Final[Mapping[str, str]] = {
    attach_limits.REASON: "volumes",
    claim_choices.SHORT.reason: "devices",
}


def remedy_of_node(refusal: Refusal, pod: Pod, view: NodeView) -> Remedy | None:
    """The step that removes this refusal of a node; None where people have to choose among several."""
    node, reason = view.node.name, refusal.reason
    if reason in _ON_NODE:
        return Remedy(_ON_NODE[reason], node)
    if reason in _ON_CLAIM:
        named = refusal.about or next((claim for _, claim in pod.resource_claims), "") or next(iter(pod.claims), "")
        return Remedy(_ON_CLAIM[reason], node, named) if named else None
    if reason in _RELAXED:
        return Remedy(Step.RELAX, values={_RELAXED[reason]: ""})
    if reason == attach_limits.REASON and not any(other.claims for other in view.pods if other.key != pod.key):
        return Remedy(Step.WAIT, node)  # volumes that no pod mounts there any more are still being detached
    if reason in _TAKEN:
        return Remedy(Step.FREE_ROOM, node, values={_TAKEN[reason]: ""})
    if reason == "PoolSuspended":
        return Remedy(Step.RESUME_POOL, node, view.pool)
    if reason in (NODE_INVALID, LEAVING):
        return Remedy(Step.ADD_NODE, count=pod.count, values={pod.resource: ""})
    return _of_label(reason, node)


def _of_label(reason: str, node: str) -> Remedy | None:
    """The label that is wrong or missing on the node."""
    if reason == SHARES_ONLY:
        return Remedy(Step.LABEL_NODE, node, remove=(SOFT_SHARING_ENABLED,))
    if reason == SHARES_OFF:
        return Remedy(Step.LABEL_NODE, node, values={SOFT_SHARING_ENABLED: "true"})
    if reason == NO_CHIP_MEMORY:
        return Remedy(Step.LABEL_NODE, node, values={CHIP_MEMORY: ""})
    if reason == "NodeLabelMismatch":
        return Remedy(Step.LABEL_NODE, node, values={INFER_CARD_TYPE: duo.NODE_LABEL})
    return None
