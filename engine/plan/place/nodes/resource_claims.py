"""Claims of dynamic resource allocation (DRA): a pod is bound only where all of its claims are allocated, and for it.

A claim for devices of driver ``npu.huawei.com`` is allocated with the pod's node (``claim_choices``). Of other
drivers, a claim that another allocator has allocated and reserved for the pod is honoured with its node selector; any
other keeps the pod from every node, since kubelet would never start it. Devices may state conditions that must hold
before a pod is bound to them (binding conditions): the pod waits for them.
Source: kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation and the API resource.k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import HUAWEI_PREFIX
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.plan.claims.holding import DeviceClaims
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.nodes.selectors import NodeRule
from belay.engine.wire.dra import EXTENDED_CLAIM_NAME

NOT_ALLOCATED: Final = "ResourceClaimNotAllocated"
MISMATCH: Final = Refusal("ResourceClaimNodeMismatch", "node(s) cannot use the devices allocated to the resource claim")
_UNNAMED: Final = (
    "waiting until the API server keeps in the pod's status which claim is for its extended resources "
    "(Kubernetes 1.36 or newer; on an older one let the pod name a ResourceClaim)"
)
#: Versions that serve claims with an allocation; a cluster may serve several.
_APIS: Final = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1beta1")


def rules(pod: Pod, objects: Mapping[ObjectKey, dict[str, Any]], claims: DeviceClaims) -> tuple[NodeRule, ...]:
    """What each resource claim of the pod asks of its node; claims that fit every node are left out."""
    found = (_rule(pod, name, claim, objects, claims) for name, claim in pod.resource_claims)
    return tuple(rule for rule in found if rule is not None)


def _rule(
    pod: Pod, name: str, claim: str, objects: Mapping[ObjectKey, dict[str, Any]], claims: DeviceClaims
) -> NodeRule | None:
    if not claim and name == EXTENDED_CLAIM_NAME:
        wanted = claims.wanted.get(pod.key)
        if wanted is not None and wanted.made is not None:
            return _never(wanted.name, _UNNAMED)
        return _never("", "waiting for the ResourceClaim of the pod's extended resources to be made")
    if not claim:
        return _never("", f'waiting for the ResourceClaim of "{name}" to be made from its template')
    keys = (ObjectKey(api, "ResourceClaim", pod.namespace, claim) for api in _APIS)
    key = next((key for key in keys if key in objects), None)
    if key is None:
        return _never(claim, f'resourceclaim "{claim}" not found')
    status = nested_map(objects[key], "status")
    allocation = nested_map(status, "allocation")
    if key in claims.open and any(name.startswith(HUAWEI_PREFIX) and most for name, most in pod.requests.items()):
        return _never("", f"pod {pod.name} asks for chips both by resource and by claim: leave one of them out")
    if key in claims.open:
        return None
    if not allocation:
        why = claims.problems.get(key, "it has no devices")
        return _never(claim, f'resourceclaim "{claim}" is not allocated: {why}')
    users = [row.get("uid") for row in status.get("reservedFor") or () if isinstance(row, Mapping)]
    if pod.uid not in users and key not in claims.allocated:
        return _never(claim, f'resourceclaim "{claim}" is not reserved for pod {pod.name}')
    unready = _unready_device(allocation, status)
    if unready:
        return _never(claim, f'resourceclaim "{claim}" {unready}')
    terms = nested_map(allocation, "nodeSelector").get("nodeSelectorTerms")
    if not isinstance(terms, list):
        return None
    return NodeRule(tuple(term for term in terms if isinstance(term, dict)), MISMATCH._replace(about=claim))


def _unready_device(allocation: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """What keeps the first unready device of a claim from a pod; empty when all its devices are ready."""
    said = {_place(row): nested_list(row, "conditions") for row in nested_list(status, "devices")}
    for device in nested_list(allocation, "devices", "results"):
        true = {str(row.get("type")): row for row in said.get(_place(device), ()) if row.get("status") == "True"}
        failed = next((kind for kind in _names(device, "bindingFailureConditions") if kind in true), None)
        if failed is not None:
            why = true[failed].get("message") or true[failed].get("reason") or "no reason is given"
            return f"has device {device.get('device')} that failed with {failed}: {why}"
        lacking = next((kind for kind in _names(device, "bindingConditions") if kind not in true), None)
        if lacking is not None:
            return f"has device {device.get('device')} that waits for {lacking}"
    return ""


def _place(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """The device that a row of a claim's status is about."""
    return str(row.get("driver")), str(row.get("pool")), str(row.get("device"))


def _names(device: Mapping[str, Any], field: str) -> list[str]:
    values = device.get(field)
    return [str(value) for value in values] if isinstance(values, list) else []


def _never(claim: str, text: str) -> NodeRule:
    return NodeRule((), Refusal(NOT_ALLOCATED, text, about=claim))
