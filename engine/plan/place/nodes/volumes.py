"""What a pod's PersistentVolumeClaims ask of its node, as kube-scheduler's VolumeBinding decides it; Volcano uses that.

Bound claims bind the pod to the node affinity of their volume. A claim whose class waits for its first consumer
(``WaitForFirstConsumer``) needs an available volume that suits it, or a provisioner that can make one there: allowed
topologies of the class, free capacity that a CSI driver published. A claim that is missing, going, lost, or not bound
although its class binds at once keeps the pod from every node. A snapshot that holds nothing of volumes and no
Namespaces comes from a file that leaves them out; there a missing claim is ignored. Sources:
kubernetes/pkg/scheduler/framework/plugins/volumebinding (binder.go, volume_binding.go) and
kubernetes/pkg/controller/volume/persistentvolume (index.go, findMatchingVolume).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from belay.engine.model import quantities
from belay.engine.model.cluster import Node, Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import (
    BETA_STORAGE_CLASS,
    BIND_COMPLETED,
    NEWER_ZONE_LABELS,
    NO_PROVISIONER,
    SELECTED_NODE,
    ZONE_LABELS,
)
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.claims.holding import DeviceClaims
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.nodes import resource_claims
from belay.engine.plan.place.nodes.selectors import NodeRule, Terms, matches, selects

CONFLICT: Final = Refusal("VolumeNodeAffinityConflict", "node(s) had volume node affinity conflict")
NO_VOLUME: Final = Refusal("VolumeNotAvailable", "node(s) didn't find available persistent volumes to bind")
NO_SPACE: Final = Refusal("VolumeSpaceShortage", "node(s) did not have enough free storage")
NOT_SELECTED: Final = "VolumeNodeSelected"
CLAIM: Final = "VolumeClaimNotReady"
#: Between zones in the label of a volume that several reach (k8s.io/cloud-provider/volume/helpers).
ZONES_APART: Final = "__"
_STORAGE_API: Final = "storage.k8s.io/v1"
_CAPACITY_APIS: Final = (_STORAGE_API, "storage.k8s.io/v1beta1")
#: Kinds of which a snapshot of a whole cluster holds some.
_KNOWN_BY: Final = frozenset({"PersistentVolumeClaim", "PersistentVolume", "StorageClass", "Namespace"})


class VolumeClaim(NamedTuple):
    """A claim that waits for its first consumer: its key, its object and that of its class."""

    key: ObjectKey
    raw: Mapping[str, Any]
    storage: Mapping[str, Any]

    @property
    def size(self) -> int:
        """The storage it asks for (bytes)."""
        return quantities.whole(nested_map(_spec(self.raw), "resources", "requests").get("storage"))

    @property
    def provisioner(self) -> str:
        """The provisioner of its class, empty where volumes are made by hand."""
        name = str(self.storage.get("provisioner") or "")
        return "" if name == NO_PROVISIONER else name


class Volume(NamedTuple):
    """A volume that suits a claim: bytes, name, node selector terms (None: every node reaches it), whether it already
    names the claim, and its object.
    """

    size: int
    name: str
    terms: Terms | None
    reserved: bool
    raw: Mapping[str, Any]

    def reaches(self, node: Node) -> bool:
        """Whether a node can use it."""
        return self.terms is None or any(matches(term, node) for term in self.terms)


class CSIVolume(NamedTuple):
    """A volume as its CSI driver knows it; ``handle`` of one that is still to be made is that of its claim."""

    driver: str
    handle: str


class ClusterVolumes:
    """Claims, volumes, classes and capacities of a snapshot."""

    def __init__(self, observed: Observed, claims: DeviceClaims) -> None:
        self._observed, self._device_claims = observed, claims
        self._objects = observed.objects

    def rules(self, pod: Pod) -> tuple[NodeRule, ...]:
        """What each claim of the pod asks of its node; claims that fit every node are left out."""
        if not pod.claims and not pod.resource_claims:
            return ()
        keys = [_claim_key(pod, name) for name in pod.claims]
        found = (self._rule(pod, key) for key in keys)
        return (
            *(rule for rule in found if rule is not None),
            *(rule for key in keys for rule in self._zones(key)),
            *resource_claims.rules(pod, self._objects, self._device_claims),
        )

    def delayed(self, pod: Pod) -> tuple[VolumeClaim, ...]:
        """The pod's claims that are bound once its node is chosen, smallest first."""
        out = []
        for name in pod.claims:
            key = _claim_key(pod, name)
            raw = self._objects.get(key)
            if raw is not None and not _is_bound(raw) and not nested_map(raw, "metadata").get("deletionTimestamp"):
                storage = self._class_of(raw)
                if _waits(raw, storage):
                    out.append(VolumeClaim(key, raw, storage))
        return tuple(sorted(out, key=lambda claim: (claim.size, claim.key)))

    def csi_volumes(self, pod: Pod) -> list[CSIVolume]:
        """The volumes of the pod's claims, by the driver that attaches them; claims that are missing are left out."""
        out = []
        for name in pod.claims:
            key = _claim_key(pod, name)
            raw = self._objects.get(key)
            if raw is None:
                continue
            volume = str(_spec(raw).get("volumeName") or "")
            if volume and ObjectKey("v1", "PersistentVolume", "", volume) in self._objects:
                found = self.csi_volume(volume)
            else:
                driver = str(self._class_of(raw).get("provisioner") or "")
                found = CSIVolume(driver, f"{key.namespace}/{key.name}") if driver else None
            if found is not None:
                out.append(found)
        return out

    def csi_volume(self, name: str) -> CSIVolume | None:
        """The PersistentVolume of that name; None when there is none, or no CSI driver attaches it."""
        raw = self._objects.get(ObjectKey("v1", "PersistentVolume", "", name))
        csi = nested_map(_spec(raw), "csi") if raw is not None else {}
        return CSIVolume(str(csi["driver"]), str(csi.get("volumeHandle"))) if csi.get("driver") else None

    def selected_node(self, claim: VolumeClaim) -> Node | None:
        """The node that was selected for the claim, None while there is none or it takes no pods any more."""
        node = self._observed.nodes.get(_notes(claim.raw).get(SELECTED_NODE, ""))
        return node if node is not None and node.ready and not node.unschedulable else None

    def suitable(self, claim: VolumeClaim) -> list[Volume]:
        """Available volumes that suit a claim, smallest first; only the one that names it, if there is one."""
        name = (claim.key.namespace, claim.key.name)
        for raw in self._reserved.get(name, ()):
            uid = nested_map(_spec(raw), "claimRef").get("uid")
            if not uid or uid == nested_map(claim.raw, "metadata").get("uid"):
                return [_volume(raw, reserved=True)]
        spec = _spec(claim.raw)
        modes, mode, selector = set(spec.get("accessModes") or ()), _mode(spec), nested_map(spec, "selector")
        found = []
        for raw in self._available.get(_class_name(claim.raw), ()):
            volume, labels = _spec(raw), nested_map(raw, "metadata", "labels")
            suits = _mode(volume) == mode and modes <= set(volume.get("accessModes") or ())
            if suits and (not selector or selects(selector, {str(k): str(v) for k, v in labels.items()})):
                found.append(_volume(raw, reserved=False))
        return sorted((one for one in found if one.size >= claim.size), key=lambda one: (one.size, one.name))

    def provisioning(self, claim: VolumeClaim) -> Terms | None:
        """Where the claim's provisioner can make its volume; None: anywhere. No terms: nowhere."""
        if not claim.provisioner:
            return ()
        allowed = [
            [{**row, "operator": "In"} for row in term.get("matchLabelExpressions") or ()]
            for term in claim.storage.get("allowedTopologies") or ()
        ]
        if not self._tracks_capacity(claim):
            return tuple({"matchExpressions": rows} for rows in allowed) or None
        spaces: list[list[dict[str, Any]]] = []
        for raw in self._capacities.get(_class_name(claim.raw), ()):
            rows = _expressions(nested_map(raw, "nodeTopology"))
            enough = quantities.whole(raw.get("maximumVolumeSize") or raw.get("capacity")) >= claim.size
            if enough and raw.get("nodeTopology") is not None and rows not in spaces:
                spaces.append(rows)
        if not allowed and [] in spaces:
            return None
        return tuple({"matchExpressions": [*term, *rows]} for term in allowed or [[]] for rows in spaces)

    def _rule(self, pod: Pod, key: ObjectKey) -> NodeRule | None:
        raw = self._objects.get(key)
        if raw is None:
            return _never(key.name, f'persistentvolumeclaim "{key.name}" not found') if self._whole else None
        if nested_map(raw, "metadata").get("deletionTimestamp"):
            return _never(key.name, f'persistentvolumeclaim "{key.name}" is being deleted')
        name = str(_spec(raw).get("volumeName") or "")
        if nested_map(raw, "status").get("phase") == "Lost":
            text = f'persistentvolumeclaim "{key.name}" bound to non-existent persistentvolume "{name}"'
            return _never(key.name, text)
        if _is_bound(raw):
            volume = self._objects.get(ObjectKey("v1", "PersistentVolume", "", name))
            terms = _terms(volume) if volume is not None else None
            return None if terms is None else NodeRule(terms, CONFLICT._replace(about=key.name))
        storage = self._class_of(raw)
        if _waits(raw, storage):
            return self._delayed_rule(pod, VolumeClaim(key, raw, storage))
        if not self._whole:
            return None
        return _never(key.name, f'pod has unbound immediate PersistentVolumeClaims: "{key.name}" has no volume yet')

    def _zones(self, key: ObjectKey) -> Iterator[NodeRule]:
        """Where the labels of a claim's volume say that it is, for nodes that have such a label (VolumeZone)."""
        raw = self._objects.get(key)
        name = str(_spec(raw).get("volumeName") or "") if raw is not None else ""
        volume = self._objects.get(ObjectKey("v1", "PersistentVolume", "", name)) if name else None
        labels = nested_map(volume, "metadata", "labels") if volume is not None else {}

        unlabelled = {"matchExpressions": [{"key": label, "operator": "DoesNotExist"} for label in ZONE_LABELS]}
        for label in ZONE_LABELS:
            if label in labels:
                values = str(labels[label]).split(ZONES_APART)
                here = {"matchExpressions": [{"key": label, "operator": "In", "values": values}]}
                yield NodeRule((unlabelled, here, *_renamed(label, values)), CONFLICT._replace(about=key.name))

    def _delayed_rule(self, pod: Pod, claim: VolumeClaim) -> NodeRule | None:
        """Where a claim that waits for its first consumer can be bound.

        A node that was selected binds only the first of the pods that share the claim: the others follow the volume's
        own affinity once it is there.
        """
        selected = self.selected_node(claim)
        if selected is not None and self._first_users.get(claim.key) == pod.key:
            field = {"key": "metadata.name", "operator": "In", "values": [selected.name]}
            text = f'node(s) were not the one selected for persistentvolumeclaim "{claim.key.name}", {selected.name}'
            return NodeRule(({"matchFields": [field]},), Refusal(NOT_SELECTED, text, about=claim.key.name))
        places = [one.terms for one in self.suitable(claim)]
        made = self.provisioning(claim)
        if made is None or None in places:
            return None
        rows: list[dict[str, Any]] = []
        for term in [term for terms in (*places, made) for term in terms or ()]:
            if term not in rows:
                rows.append(term)
        short = claim.provisioner and not places and self._tracks_capacity(claim)
        return NodeRule(tuple(rows), (NO_SPACE if short else NO_VOLUME)._replace(about=claim.key.name))

    def _tracks_capacity(self, claim: VolumeClaim) -> bool:
        driver = self._objects.get(ObjectKey(_STORAGE_API, "CSIDriver", "", claim.provisioner), {})
        return _spec(driver).get("storageCapacity") is True

    def _class_of(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        name = _class_name(raw)
        return self._objects.get(ObjectKey(_STORAGE_API, "StorageClass", "", name), {}) if name else {}

    @cached_property
    def _whole(self) -> bool:
        """Whether the snapshot is of a whole cluster."""
        return any(key.kind in _KNOWN_BY for key in self._objects)

    @cached_property
    def _volumes(self) -> list[dict[str, Any]]:
        found = ((key.name, raw) for key, raw in self._objects.items() if key.kind == "PersistentVolume")
        return [raw for _, raw in sorted(found, key=lambda row: row[0])]

    @cached_property
    def _available(self) -> dict[str, list[dict[str, Any]]]:
        """Volumes that no claim has, by class; a file may leave out their status."""
        out: dict[str, list[dict[str, Any]]] = {}
        for raw in self._volumes:
            free = nested_map(raw, "status").get("phase", "Available") == "Available" and not _spec(raw).get("claimRef")
            if free and not nested_map(raw, "metadata").get("deletionTimestamp"):
                out.setdefault(_class_name(raw), []).append(raw)
        return out

    @cached_property
    def _reserved(self) -> dict[tuple[object, object], list[dict[str, Any]]]:
        """Volumes by the namespace and name of the claim that they name."""
        out: dict[tuple[object, object], list[dict[str, Any]]] = {}
        for raw in self._volumes:
            reference = nested_map(_spec(raw), "claimRef")
            if reference:
                out.setdefault((reference.get("namespace"), reference.get("name")), []).append(raw)
        return out

    @cached_property
    def _capacities(self) -> dict[str, list[dict[str, Any]]]:
        """Free capacities by class; a cluster may serve them in two versions."""
        out: dict[str, list[dict[str, Any]]] = {}
        for key in sorted(key for key in self._objects if key.kind == "CSIStorageCapacity"):
            raw = self._objects[key]
            if key.api_version in _CAPACITY_APIS:
                out.setdefault(str(raw.get("storageClassName") or ""), []).append(raw)
        return out

    @cached_property
    def _first_users(self) -> dict[ObjectKey, str]:
        """The first waiting pod of each claim, by name."""
        out: dict[ObjectKey, str] = {}
        for name in sorted(self._observed.pods):
            pod = self._observed.pods[name]
            if pod.claims and not pod.node and pod.deleting is None:
                for claim in pod.claims:
                    out.setdefault(_claim_key(pod, claim), name)
        return out


def _claim_key(pod: Pod, name: str) -> ObjectKey:
    return ObjectKey("v1", "PersistentVolumeClaim", pod.namespace, name)


def _is_bound(raw: Mapping[str, Any]) -> bool:
    """Whether a claim has its volume and the volume knows it; a file may leave out annotations and status."""
    bound = _notes(raw).get(BIND_COMPLETED) == "yes" or nested_map(raw, "status").get("phase") in (None, "Bound")
    return bool(_spec(raw).get("volumeName")) and bound


def _waits(raw: Mapping[str, Any], storage: Mapping[str, Any]) -> bool:
    """Whether a claim waits for its first consumer; one that names its volume is bound at once."""
    return storage.get("volumeBindingMode") == "WaitForFirstConsumer" and not _spec(raw).get("volumeName")


def _volume(raw: Mapping[str, Any], *, reserved: bool) -> Volume:
    size = quantities.whole(nested_map(_spec(raw), "capacity").get("storage"))
    return Volume(size, str(nested_map(raw, "metadata").get("name")), _terms(raw), reserved, raw)


def _terms(volume: Mapping[str, Any]) -> Terms | None:
    rows = nested_map(_spec(volume), "nodeAffinity", "required").get("nodeSelectorTerms")
    return tuple(row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else None


def _class_name(raw: Mapping[str, Any]) -> str:
    """The storage class of a claim or volume, empty when it has none."""
    return str(_notes(raw).get(BETA_STORAGE_CLASS) or _spec(raw).get("storageClassName") or "")


def _mode(spec: Mapping[str, Any]) -> str:
    return str(spec.get("volumeMode") or "Filesystem")


def _renamed(label: str, values: list[str]) -> Terms:
    """The place under the label's newer name, for nodes that have only that."""
    newer = NEWER_ZONE_LABELS.get(label)
    if newer is None:
        return ()
    lacking = {"key": label, "operator": "DoesNotExist"}
    return ({"matchExpressions": [lacking, {"key": newer, "operator": "In", "values": values}]},)


def _expressions(selector: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A label selector as the expressions of a node selector term."""
    exact = sorted(nested_map(selector, "matchLabels").items())
    rows = selector.get("matchExpressions") or ()
    return [*({"key": key, "operator": "In", "values": [value]} for key, value in exact), *map(dict, rows)]


def _never(claim: str, text: str) -> NodeRule:
    return NodeRule((), Refusal(CLAIM, text, about=claim))


def _notes(raw: Mapping[str, Any]) -> Mapping[str, str]:
    return nested_map(raw, "metadata", "annotations")


def _spec(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return nested_map(raw, "spec")
