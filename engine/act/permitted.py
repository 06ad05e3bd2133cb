"""The closed list of what a plan can contain: `act` carries out nothing else.

A sealed message says that an engine wrote it. This list is the second line: even a holder of the key cannot make the
engine bind roles, read Secrets, start pods among the system's or write another component's records, all of which its
own rights may allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn, assert_never

from belay.engine.act.edge import Refused
from belay.engine.documents import KINDS
from belay.engine.documents.kinds import API_VERSION
from belay.engine.documents.manifests import ACCEPTED
from belay.engine.gangs.owners import POD_GROUP_APIS
from belay.engine.model import actions as act
from belay.engine.model.labels import BELAY_PREFIX, BOUND_BY_CONTROLLER, DELETE_PROTECTION, SELECTED_NODE
from belay.engine.model.native_groups import NATIVE_GROUP, NATIVE_GROUP_APIS
from belay.engine.model.unstructured import nested_list
from belay.engine.wire import links, reserved
from belay.engine.wire.dra import VERSIONS
from belay.engine.wire.names import SYSTEM, bounded

MOST_REPLICAS: Final = 1_000_000
_SCALERS: Final = frozenset((api, "HorizontalPodAutoscaler") for api in ("autoscaling/v2", "autoscaling/v2beta2"))
"""Autoscalers of inference roles, which scale InstanceSets and nothing else."""
_WRITTEN: Final = frozenset(
    {*ACCEPTED, *((api, "PodGroup") for api in POD_GROUP_APIS), *((API_VERSION, kind) for kind in KINDS), *_SCALERS}
)
"""apiVersion and kind of objects that plans create, patch and delete."""
#: Claims of dynamic resource allocation, in each version that serves them.
_DEVICE_CLAIM: Final = "ResourceClaim"
_DEVICE_REQUEST: Final = frozenset({"deviceClassName", "allocationMode", "count"})
_DEVICE_APIS: Final = frozenset(f"resource.k8s.io/{version}" for version in VERSIONS)
#: PodGroups of Kubernetes itself: people and controllers make them, the scheduler writes their status.
_NATIVE_GROUPS: Final = frozenset((api, NATIVE_GROUP) for api in NATIVE_GROUP_APIS)
_SECRET: Final = ("v1", "Secret")
_POD: Final = ("v1", "Pod")
_COMMAND: Final = ("bus.volcano.sh/v1alpha1", "Command")
_NODE: Final = ("v1", "Node")
_CLAIM: Final = ("v1", "PersistentVolumeClaim")
_VOLUME: Final = ("v1", "PersistentVolume")
#: What a plan may write into each: the node that was selected for a claim, the claim that a volume is reserved for.
_BINDING: Final = {
    _CLAIM: (frozenset({SELECTED_NODE}), frozenset({"metadata"})),
    _VOLUME: (frozenset({BOUND_BY_CONTROLLER}), frozenset({"metadata", "spec"})),
}
_FIELDS: Final = frozenset({"apiVersion", "kind", "metadata", "spec", "status", "data", "binaryData", "immutable",
                            "value", "globalDefault", "description", "preemptionPolicy"})  # fmt: skip
"""Top-level fields of Kubernetes' own kinds among them; the last four are a PriorityClass's."""


def check(action: act.AnyAction) -> None:
    """Raise Refused if no plan can contain the action."""
    match action:
        case act.CreateObject():
            _check_creation(action)
        case act.PatchObject():
            _check_patch(action)
        case act.DeleteObject():
            if (action.api_version, action.object_kind) == _COMMAND:
                _check_place("Command", action.namespace)
            elif (action.api_version, action.object_kind) != _POD:
                _check_object(action.api_version, action.object_kind, action.namespace, action.name)
        case act.CreatePod():
            _check_place("Pod", action.namespace)
            _check_identity(action.object, ("v1", "Pod"), action.namespace, action.pod)
            if not _part(action.object, "metadata").get("ownerReferences"):
                _refuse(f"pod {action.namespace}/{action.pod} belongs to no job")
        case act.ScaleJob():
            _check_place(action.job_kind, action.namespace)
            if not 0 <= action.replicas <= MOST_REPLICAS:
                _refuse(f"{action.replicas} replicas are not from 0 to {MOST_REPLICAS}")
        case act.SignalJob():
            _check_place("job", action.namespace)
        case act.WriteRankTable():
            _check_rank_table(action)
        case act.EvictPod():
            if action.namespace in reserved.SYSTEM_NAMESPACES:
                _refuse(f"a plan evicts no pod of namespace {action.namespace}, which belongs to Kubernetes or Belay")
        case (
            act.BindPod() | act.IsolateChip() | act.ReleaseChip() | act.IsolateNode()
            | act.ReleaseNode() | act.ResetChips() | act.PartitionChip()
        ):  # fmt: skip
            return  # their fields name pods and nodes alone; the cluster's state decides the rest
        case _ as unreachable:
            assert_never(unreachable)


def _check_creation(action: act.CreateObject) -> None:
    kind = (action.api_version, action.object_kind)
    if kind == _SECRET:
        _check_key_pair(action)
    elif kind[1] == _DEVICE_CLAIM and kind[0] in _DEVICE_APIS:
        _check_extended_claim(action)
    else:
        _check_object(*kind, action.namespace, action.name)
        if action.generate is not None:
            _refuse(f"nothing is generated for a {action.object_kind}")
        _check_fields(action.object, _known_fields(action.api_version), action.object_kind)
        if kind in _SCALERS:
            _check_scaler(_part(action.object, "spec"), action.name)
    _check_identity(action.object, kind, action.namespace, action.name)


def _check_key_pair(action: act.CreateObject) -> None:
    """The one Secret of a plan: keys of a Volcano Job's plugin ``ssh``, which are made here and never read."""
    _check_place("Secret", action.namespace)
    if action.generate is None or action.generate.what != "ssh-keys":
        _refuse("a plan creates no Secret but the key pair of a Volcano Job")
    owner = action.generate.owner
    if (owner.kind, owner.api_version.partition("/")[0]) != ("Job", "batch.volcano.sh"):
        _refuse(f"a key pair belongs to a Volcano Job, not to a {owner.kind} of {owner.api_version}")
    if action.name != f"{owner.name}-ssh":
        _refuse(f"the key pair of job {owner.name} is Secret {owner.name}-ssh, not {action.name}")
    _check_fields(action.object, frozenset({"apiVersion", "kind", "metadata", "type", "data"}), "Secret")
    if action.object.get("type") != "Opaque" or set(_part(action.object, "data")) - {"config"}:
        _refuse(f"Secret {action.namespace}/{action.name} is not a key pair")


def _check_patch(action: act.PatchObject) -> None:
    kind = (action.api_version, action.object_kind)
    metadata = _part(action.patch, "metadata")
    if kind == _NODE:
        _check_fields(action.patch, frozenset({"metadata"}), "Node")
        _check_fields(metadata, frozenset({"annotations"}), "Node's metadata")
        for name in _part(metadata, "annotations"):
            if not str(name).startswith(BELAY_PREFIX):
                _refuse(f"a plan sets no annotation {name!r:.80} of a Node")
        return
    if kind == _POD:
        if "status" in action.patch:
            _check_place("status of a Pod", action.namespace)
            _check_fields(action.patch, frozenset({"status"}), "Pod")
            _check_fields(_part(action.patch, "status"), frozenset({"extendedResourceClaimStatus"}), "Pod's status")
            return
        _check_fields(action.patch, frozenset({"metadata"}), "Pod")
        _check_fields(metadata, frozenset({"labels", "annotations"}), "Pod's metadata")
        return
    if kind[1] == _DEVICE_CLAIM and kind[0] in _DEVICE_APIS:
        _check_device_claim(action, metadata)
        return
    if kind in (_CLAIM, _VOLUME):
        _check_volume(action, metadata)
        return
    if kind in _NATIVE_GROUPS:
        _check_place("status of a PodGroup", action.namespace)
        _check_fields(action.patch, frozenset({"status"}), kind[1])
        return
    _check_object(*kind, action.namespace, action.name)
    _check_fields(action.patch, _known_fields(action.api_version), action.object_kind)
    if kind in _SCALERS and "spec" in action.patch:
        _check_scaler(_part(action.patch, "spec"), action.name)
    for field, wanted in (("apiVersion", action.api_version), ("kind", action.object_kind)):
        if action.patch.get(field, wanted) != wanted:
            _refuse(f"the patch of {action.object_kind} {action.name} names {field} {action.patch[field]!r:.80}")
    for field, wanted in (("name", action.name), ("namespace", action.namespace)):
        if (metadata.get(field) or wanted) != wanted:
            _refuse(f"the patch of {action.object_kind} {action.name} names {field} {metadata[field]!r:.80}")


def _check_volume(action: act.PatchObject, metadata: Mapping[str, Any]) -> None:
    """A claim gets the node that was selected for it, a volume the claim that it is reserved for; nothing else."""
    kind = (action.api_version, action.object_kind)
    annotations, fields = _BINDING[kind]
    _check_fields(action.patch, fields, action.object_kind)
    _check_fields(metadata, frozenset({"annotations"}), f"{action.object_kind}'s metadata")
    _check_fields(_part(metadata, "annotations"), annotations, f"{action.object_kind}'s annotations")
    _check_fields(_part(action.patch, "spec"), frozenset({"claimRef"}), f"{action.object_kind}'s spec")


def _check_device_claim(action: act.PatchObject, metadata: Mapping[str, Any]) -> None:
    """A resource claim gets the finalizer that protects it, or devices and users; nothing else."""
    if "status" in action.patch:
        _check_fields(action.patch, frozenset({"status"}), _DEVICE_CLAIM)
        _check_fields(
            _part(action.patch, "status"), frozenset({"allocation", "reservedFor"}), f"{_DEVICE_CLAIM}'s status"
        )
        return
    _check_fields(action.patch, frozenset({"metadata"}), _DEVICE_CLAIM)
    _check_fields(metadata, frozenset({"finalizers"}), f"{_DEVICE_CLAIM}'s metadata")
    if DELETE_PROTECTION not in (metadata.get("finalizers") or ()):
        _refuse(f"a plan takes no finalizer off a {_DEVICE_CLAIM}")


def _check_extended_claim(action: act.CreateObject) -> None:
    """A resource claim may be made only for the extended resources of one pod: numbers of devices of classes."""
    _check_place(_DEVICE_CLAIM, action.namespace)
    _check_fields(action.object, frozenset({"apiVersion", "kind", "metadata", "spec"}), _DEVICE_CLAIM)
    owners = nested_list(_part(action.object, "metadata"), "ownerReferences")
    if [(row.get("apiVersion"), row.get("kind")) for row in owners] != [_POD]:
        _refuse(f"{_DEVICE_CLAIM} {action.namespace}/{bounded(action.name)} belongs to no pod")

    spec = _part(action.object, "spec")
    _check_fields(spec, frozenset({"devices"}), f"{_DEVICE_CLAIM}'s spec")
    devices = _part(spec, "devices")
    _check_fields(devices, frozenset({"requests"}), f"{_DEVICE_CLAIM}'s devices")
    for row in nested_list(devices, "requests"):
        _check_fields(row, _DEVICE_REQUEST | {"name", "exactly"}, f"{_DEVICE_CLAIM}'s request")
        _check_fields(_part(row, "exactly"), _DEVICE_REQUEST, f"{_DEVICE_CLAIM}'s request")


def _check_rank_table(action: act.WriteRankTable) -> None:
    _check_place("rank table", action.namespace)
    if action.config_map_namespace not in (None, SYSTEM):
        _refuse(f"no rank table is written into namespace {action.config_map_namespace}")
    if action.config_map is None or action.file is not None:
        return
    writer = reserved.writer_of(action.namespace, action.config_map)
    if writer:
        _refuse(f"ConfigMap {action.namespace}/{action.config_map} is a record that only {writer} writes")


def _check_object(api_version: str, kind: str, namespace: str, name: str) -> None:
    """Refuse kinds that no plan writes, and objects that are another component's."""
    if (api_version, kind) not in _WRITTEN:
        _refuse(f"a plan writes no {kind} of {api_version}")
    if (api_version, kind) == ("v1", "ConfigMap") and namespace == SYSTEM and name.startswith(links.PREFIX):
        return  # orders about links, which plans do write
    why = reserved.refusal(kind, namespace, name)
    if why:
        _refuse(why)


def _check_scaler(spec: Mapping[str, Any], name: str) -> None:
    target = _part(spec, "scaleTargetRef")
    if (target.get("apiVersion"), target.get("kind")) != ("mindcluster.huawei.com/v1", "InstanceSet"):
        _refuse(f"autoscaler {name} scales {target.get('kind')!r:.80}: a plan lets one scale InstanceSets only")


def _check_place(what: str, namespace: str) -> None:
    if namespace in reserved.SYSTEM_NAMESPACES:
        _refuse(f"a plan writes no {what} in namespace {namespace}, which belongs to Kubernetes or Belay")


def _check_identity(body: Mapping[str, Any], kind: tuple[str, str], namespace: str, name: str) -> None:
    """The object must be the one that the action names: another would pass under its name."""
    metadata = _part(body, "metadata")
    found = (body.get("apiVersion"), body.get("kind"), metadata.get("namespace") or "", metadata.get("name"))
    if found != (*kind, namespace, name):
        _refuse(f"the object of {kind[1]} {namespace}/{bounded(name)} is another: {'/'.join(map(str, found))[:200]}")


def _known_fields(api_version: str) -> frozenset[str] | None:
    """Top-level fields of a kind; None where its own definition in the cluster (CRD) says which."""
    group = api_version.rpartition("/")[0]
    return _FIELDS if "." not in group or group.endswith(".k8s.io") else None


def _check_fields(body: Mapping[str, Any], known: frozenset[str] | None, what: str) -> None:
    for name in body if known is not None else ():
        if name not in (known or ()):
            _refuse(f"a plan writes no field {name!r:.80} of a {what}")


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        _refuse(f"{name} is a {type(value).__name__}, not an object")
    return value or {}


def _refuse(why: str) -> NoReturn:
    raise Refused(f"not carried out: {why}")
