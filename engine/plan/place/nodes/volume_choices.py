"""Volumes for claims that wait for their first consumer: chosen with the pod's node, prepared before the pod is bound.

A gang's pods are bound together once all of their claims are. Until then the planner asks Kubernetes to bind them, as
kube-scheduler's VolumeBinding does: a suitable volume gets the claim's reference, any other claim the annotation
``volume.kubernetes.io/selected-node``, which its provisioner follows. Meanwhile the gang keeps its place in each pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from belay.engine.model.actions import Evidence, PatchObject, PatchType, Preconditions
from belay.engine.model.cluster import Node, Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import BOUND_BY_CONTROLLER, SELECTED_NODE
from belay.engine.model.reasons import ActionReason
from belay.engine.plan.claims.holding import DeviceClaims
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.nodes.exclusive_claims import ExclusiveClaims
from belay.engine.plan.place.nodes.selectors import matches
from belay.engine.plan.place.nodes.volumes import NO_VOLUME, ClusterVolumes, Volume, VolumeClaim

WAITING: Final = "VolumesNotBound"
RULE: Final = "place/volumes"
MAX_NAMES: Final = 3


class VolumeChoice(NamedTuple):
    """A claim, and the volume that it gets; None: one that its provisioner makes for the node."""

    claim: VolumeClaim
    volume: Volume | None


class VolumeChoices:
    """The volumes that one pass has chosen, followed through every assignment and its undoing."""

    def __init__(self, observed: Observed, claims: DeviceClaims, views: Mapping[str, NodeView]) -> None:
        self.cluster = ClusterVolumes(observed, claims)
        self._exclusive = ExclusiveClaims(observed, views)
        self._delayed: dict[str, tuple[VolumeClaim, ...]] = {}
        self._chosen: dict[str, list[VolumeChoice]] = {}
        self._taken: set[str] = set()
        self._choosing: set[ObjectKey] = set()

    def concerns(self, pod: Pod) -> bool:
        """Whether a claim of the pod is bound with its node, or is for one pod only."""
        return bool(pod.claims) and (bool(self._claims(pod)) or self._exclusive.concerns(pod))

    def refusal(self, pod: Pod, node: Node) -> Refusal | None:
        """Why the volumes that are left keep the pod off a node."""
        if self._choose(pod, node) is None:
            return NO_VOLUME
        return self._exclusive.refusal(pod)

    def assume(self, pod: Pod, node: Node) -> None:
        """Take volumes for a pod that is assigned to a node."""
        self._exclusive.take(pod)
        chosen = self._chosen[pod.key] = self._choose(pod, node) or []
        self._taken.update(choice.volume.name for choice in chosen if choice.volume is not None)
        self._choosing.update(choice.claim.key for choice in chosen)

    def give_back(self, pod: Pod) -> None:
        """Give back the volumes that ``assume`` took for the pod."""
        self._exclusive.give_back(pod)
        for choice in self._chosen.pop(pod.key, ()):
            self._choosing.discard(choice.claim.key)
            if choice.volume is not None:
                self._taken.discard(choice.volume.name)

    def unbound(self, pods: Sequence[Pod]) -> list[str]:
        """Names of the claims that must be bound before these pods are, sorted."""
        return sorted({claim.key.name for pod in pods for claim in self._claims(pod)})

    def actions(self, pod: Pod, node: str, revision: str) -> Iterator[PatchObject]:
        """What asks Kubernetes to bind the claims of a pod that is assigned to a node."""
        for claim, volume in self._chosen.get(pod.key, ()):
            target = claim.raw if volume is None else volume.raw
            metadata = target.get("metadata") or {}
            if volume is None:
                what = (
                    f"persistentvolumeclaim {claim.key.namespace}/{claim.key.name}: its volume is made for node {node}"
                )
                patch: dict[str, object] = {"metadata": {"annotations": {SELECTED_NODE: node}}}
            else:
                what = f"persistentvolumeclaim {claim.key.namespace}/{claim.key.name}: it gets volume {volume.name}"
                own = claim.raw.get("metadata") or {}
                reference = {
                    "apiVersion": "v1", "kind": claim.key.kind, "namespace": claim.key.namespace,
                    "name": claim.key.name, "uid": own.get("uid"), "resourceVersion": own.get("resourceVersion"),
                }  # fmt: skip
                patch = {"metadata": {"annotations": {BOUND_BY_CONTROLLER: "yes"}}, "spec": {"claimRef": reference}}
            yield PatchObject(
                reason=ActionReason.VOLUME_CHOSEN,
                message=f"{what}, where pod {pod.name} goes",
                evidence=Evidence(rule=RULE, revision=revision),
                # another scheduler may choose at the same time: the older choice stands
                preconditions=Preconditions(
                    uid=metadata.get("uid"), resource_version=metadata.get("resourceVersion")
                ),
                api_version="v1",
                object_kind=claim.key.kind if volume is None else "PersistentVolume",
                namespace=claim.key.namespace if volume is None else "",
                name=claim.key.name if volume is None else volume.name,
                patch_type=PatchType.MERGE,
                patch=patch,
            )  # fmt: skip

    def _claims(self, pod: Pod) -> tuple[VolumeClaim, ...]:
        known = self._delayed.get(pod.key)
        if known is None:
            known = self._delayed[pod.key] = self.cluster.delayed(pod)
        return known

    def _choose(self, pod: Pod, node: Node) -> list[VolumeChoice] | None:
        """A volume for each of the pod's claims that has none yet; None when one finds none."""
        taken, out = set(self._taken), []
        for claim in self._claims(pod):
            if claim.key in self._choosing or self.cluster.selected_node(claim) is not None:
                continue  # another pod that shares the claim has chosen, or an earlier pass
            volumes = self.cluster.suitable(claim)
            if volumes and volumes[0].reserved:
                continue
            volume = next((one for one in volumes if one.name not in taken and one.reaches(node)), None)
            if volume is not None:
                taken.add(volume.name)
            elif not self._can_be_made(claim, node):
                return None
            out.append(VolumeChoice(claim, volume))
        return out

    def _can_be_made(self, claim: VolumeClaim, node: Node) -> bool:
        places = self.cluster.provisioning(claim)
        return places is None or any(matches(term, node) for term in places)


def waiting_text(names: Sequence[str]) -> str:
    """The message of a gang whose claims are being bound."""
    shown = ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
    return f"the gang has its nodes and waits until {len(names)} PersistentVolumeClaims are bound: {shown}"


def way_out(names: Sequence[str]) -> str:
    """What a person can do about claims that stay unbound."""
    return f"if it takes long, see why the provisioner does not make the volume: kubectl describe pvc {names[0]}"
