"""How many volumes a node can have attached, as CSINode says: kube-scheduler's NodeVolumeLimits, which Volcano uses.

A driver's limit counts each volume once, however many pods of the node mount it: volumes of the node's pods, claims
that are still to be bound by the driver's class, and volumes that are attached although no pod of the node has them
(VolumeAttachment). A node without a CSINode, or a driver without a count, has no limit. Volumes of in-tree plugins
that Kubernetes translates to CSI (disks of clouds) are not counted. Sources:
kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits/csi.go; storage.k8s.io/v1 CSINode, VolumeAttachment.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from belay.engine.model.cluster import Observed, Pod
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.causes import TooManyVolumes
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.nodes.volumes import ClusterVolumes, CSIVolume

REASON: Final = "VolumeLimitReached"
_STORAGE_API: Final = "storage.k8s.io/v1"
_NONE: Final[frozenset[CSIVolume]] = frozenset()


class AttachLimits:
    """The limits of a snapshot's nodes, asked with the pods that this pass has put there."""

    def __init__(self, observed: Observed, volumes: ClusterVolumes) -> None:
        self._observed, self._cluster = observed, volumes
        self._mounted: dict[str, frozenset[CSIVolume]] = {}

    def concerns(self, pod: Pod) -> bool:
        """Whether a limit of any node counts a volume of the pod."""
        return bool(pod.claims and self._limits) and any(one.driver in self._limited for one in self._volumes(pod))

    def refusal(self, pod: Pod, view: NodeView) -> Refusal | None:
        """Why the node cannot have the pod's volumes attached beside those of its pods."""
        limits = self._limits.get(view.node.name)
        if not limits:
            return None
        wanted = {one for one in self._volumes(pod) if one.driver in limits}
        if not wanted:
            return None
        attached = {one for other in view.pods if other.claims for one in self._volumes(other)}
        attached |= self._left_behind.get(view.node.name, _NONE)
        for driver in sorted({one.driver for one in wanted - attached}):
            have = sum(one.driver == driver for one in attached)
            more = sum(one.driver == driver for one in wanted - attached)
            if have + more > limits[driver]:
                text = f"node(s) exceed max volume count of driver {driver}, {limits[driver]}"
                alone = TooManyVolumes(driver, more, limits[driver]) if more > limits[driver] else None
                return Refusal(REASON, text, alone)
        return None

    def _volumes(self, pod: Pod) -> frozenset[CSIVolume]:
        found = self._mounted.get(pod.key)
        if found is None:
            found = self._mounted[pod.key] = frozenset(self._cluster.csi_volumes(pod)) if pod.claims else _NONE
        return found

    @cached_property
    def _limits(self) -> dict[str, dict[str, int]]:
        """The most volumes of each driver, by node."""
        out: dict[str, dict[str, int]] = {}
        for key, raw in self._observed.objects.items():
            if (key.api_version, key.kind) != (_STORAGE_API, "CSINode"):
                continue
            spec = raw.get("spec")
            drivers = spec.get("drivers") if isinstance(spec, dict) else None
            for driver in drivers if isinstance(drivers, list) else ():
                allocatable = driver.get("allocatable") if isinstance(driver, dict) else None
                count = allocatable.get("count") if isinstance(allocatable, dict) else None
                if isinstance(count, int) and not isinstance(count, bool):
                    out.setdefault(key.name, {})[str(driver.get("name"))] = count
        return out

    @cached_property
    def _limited(self) -> frozenset[str]:
        return frozenset(driver for limits in self._limits.values() for driver in limits)

    @cached_property
    def _left_behind(self) -> dict[str, frozenset[CSIVolume]]:
        """Volumes attached to a node of which no pod of the snapshot has them there: they are on their way in or out.

        The others count with their pods, so that a what-if that evicts a pod frees its volumes.
        """
        used: dict[str, set[CSIVolume]] = {}
        for pod in self._observed.pods.values():
            if pod.claims and pod.holds_chips:
                used.setdefault(pod.node, set()).update(self._volumes(pod))
        out: dict[str, set[CSIVolume]] = {}
        for key, raw in self._observed.objects.items():
            spec = raw.get("spec") if (key.api_version, key.kind) == (_STORAGE_API, "VolumeAttachment") else None
            if not isinstance(spec, dict):
                continue
            node, source = str(spec.get("nodeName")), spec.get("source")
            name = source.get("persistentVolumeName") if isinstance(source, dict) else None
            volume = self._cluster.csi_volume(str(name)) if name else None
            if volume is not None and volume not in used.get(node, ()):
                out.setdefault(node, set()).add(volume)
        return {node: frozenset(found) for node, found in out.items()}


__all__ = ["REASON", "AttachLimits"]
