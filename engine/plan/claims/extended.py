"""Extended resources that DeviceClasses offer: pods ask for a number of them, and get it by a claim.

A pod asks for ``limits: {NAME: 4}`` as it does for a device plugin's resource, where NAME is a DeviceClass'
``spec.extendedResourceName``, or ``deviceclass.resource.kubernetes.io/`` and the class' own name. Its scheduler makes
the claim and says in the pod's status which request is which container's, so that kubelet gives each its devices. From
then on the claim is like any other. Where a device plugin offers the resource on some node, the pod is the device
plugin's.
Sources: kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation ("Extended resource allocation by
DRA", KEP-5004), resource.k8s.io/v1 (DeviceClassSpec), core/v1 (PodExtendedResourceClaimStatus).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from belay.engine.model.actions import CreateObject, Evidence, PatchObject, PatchType, Preconditions
from belay.engine.model.cluster import ExtendedRequest, Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import DEVICE_CLASS_PREFIX, EXTENDED_CLAIM, HUAWEI_PREFIX
from belay.engine.model.reasons import ActionReason
from belay.engine.model.times import parse_rfc3339
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.plan.claims.devices import newest
from belay.engine.wire.dra import EXTENDED_CLAIM_NAME

RULE: Final = "claims/extended"
#: Most characters of an object's name (Kubernetes, "Object Names and IDs").
_MOST_NAME: Final = 253
#: Seconds for which the claim's name is written into its pod's status.
_NAMING_SECONDS: Final = 60.0
_MIDDLE: Final = "-extended-resources-"


class WantedClaim(msgspec.Struct, frozen=True):
    """A claim that a waiting pod needs: of which version, since when it is there (Unix seconds, None until it is made),
    and its requests by container.

    ``requests`` are name, DeviceClass and number of devices; ``mappings`` the rows of the pod's status.
    """

    pod: str
    api_version: str
    name: str
    made: float | None
    requests: tuple[tuple[str, str, int], ...]
    mappings: tuple[tuple[str, str, str], ...]


def wanted_claims(observed: Observed) -> dict[str, WantedClaim]:
    """The claims that waiting pods need for extended resources, by the pod's key."""
    classes = newest(observed.objects, "DeviceClass")
    asking = {key: pod for key, pod in observed.pods.items() if pod.extended} if classes else {}
    if not asking:
        return {}

    offered = _offered(classes)
    plugins = {name for node in observed.nodes.values() for name, amount in node.allocatable.items() if amount}
    found = {}
    for key, pod in sorted(asking.items()):
        asked = [row for row in pod.extended if row.resource in offered and row.resource not in plugins]
        if asked and not (pod.node or pod.finished or pod.deleting):
            found[key] = _wanted(observed, pod, asked, offered)
    return found


def awaiting(pod: Pod, wanted: WantedClaim) -> Pod:
    """The pod as one that waits for its claim: what the claim is for is not asked of nodes any more."""
    of_claim = {resource for _, resource, _ in wanted.mappings}
    requests = {name: amount for name, amount in pod.requests.items() if name not in of_claim}
    chips = [name for name, amount in requests.items() if name.startswith(HUAWEI_PREFIX) and amount]
    resource = min(chips, default="")
    return msgspec.structs.replace(
        pod,
        requests=requests,
        resource=resource,
        count=requests.get(resource, 0),
        resource_claims=(*pod.resource_claims, (EXTENDED_CLAIM_NAME, "")),
    )


def claim_actions(pod: Pod, wanted: WantedClaim, now: float) -> Iterator[CreateObject | PatchObject]:
    """What makes the claim, then says in the pod's status that it is the pod's.

    An API server without extended resources by claims drops that field, so it is not written for ever.
    """
    what = ", ".join(f"{number} of DeviceClass {name}" for _, name, number in wanted.requests)
    if wanted.made is None:
        yield CreateObject(
            reason=ActionReason.CLAIM_MISSING,
            message=f"pod {pod.key} asks for {what} as an extended resource: it gets a claim",
            evidence=Evidence(rule=RULE),
            api_version=wanted.api_version,
            object_kind="ResourceClaim",
            namespace=pod.namespace,
            name=wanted.name,
            object=_claim(pod, wanted),
        )
        return
    if now - wanted.made > _NAMING_SECONDS:
        return
    rows = [
        {"containerName": container, "resourceName": resource, "requestName": request}
        for container, resource, request in wanted.mappings
    ]
    yield PatchObject(
        reason=ActionReason.CLAIM_NAMED,
        message=f"claim {wanted.name} is for what pod {pod.key} asks for: {what}",
        evidence=Evidence(rule=RULE),
        preconditions=Preconditions(uid=pod.uid),
        api_version="v1",
        object_kind="Pod",
        namespace=pod.namespace,
        name=pod.name,
        patch_type=PatchType.MERGE,
        patch={"status": {"extendedResourceClaimStatus": {"resourceClaimName": wanted.name, "requestMappings": rows}}},
    )


def _offered(classes: Mapping[ObjectKey, Mapping[str, Any]]) -> dict[str, ObjectKey]:
    """DeviceClasses by the resources that they offer; of several with one name the youngest, as Kubernetes has it."""
    named = {f"{DEVICE_CLASS_PREFIX}{key.name}": key for key in classes}
    by_age = sorted(classes, key=lambda key: (str(nested_map(classes[key], "metadata").get("creationTimestamp")), key))
    for key in by_age:
        name = nested_map(classes[key], "spec").get("extendedResourceName")
        if isinstance(name, str) and name:
            named[name] = key
    return named


def _wanted(
    observed: Observed, pod: Pod, asked: Sequence[ExtendedRequest], offered: Mapping[str, ObjectKey]
) -> WantedClaim:
    version = offered[asked[0].resource].api_version
    name = _claim_name(pod)
    made = nested_map(observed.objects.get(ObjectKey(version, "ResourceClaim", pod.namespace, name), {}), "metadata")
    owners = {row.get("uid") for row in nested_list(made, "ownerReferences")}

    requests: list[tuple[str, str, int]] = []
    mappings: list[tuple[str, str, str]] = []
    sizes: dict[str, list[tuple[int, str]]] = {}
    for number, row in enumerate(asked):
        # an init container has ended before the containers start: it uses the devices of one of them
        large = [name for most, name in sizes.get(row.resource, ()) if row.amount <= most]
        shared = large[0] if row.before and large else ""
        request = shared or f"container-{number}"
        if not shared:
            requests.append((request, offered[row.resource].name, row.amount))
            sizes.setdefault(row.resource, []).append((row.amount, request))
        mappings.append((row.container, row.resource, request))
    return WantedClaim(
        pod.key, version, name, _created(made) if pod.uid in owners else None, tuple(requests), tuple(mappings)
    )


def _created(metadata: Mapping[str, Any]) -> float:
    try:
        return parse_rfc3339(str(metadata.get("creationTimestamp") or ""))
    except ValueError:
        return 0.0


def _claim_name(pod: Pod) -> str:
    """A name that no other pod's claim has, and the same in each pass."""
    tail = _MIDDLE + sha256(pod.uid.encode()).hexdigest()[:8]
    return pod.name[: _MOST_NAME - len(tail)].rstrip("-.") + tail


def _claim(pod: Pod, wanted: WantedClaim) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True,
             "blockOwnerDeletion": True}  # fmt: skip
    requests = [
        _request(wanted.api_version, name, {"deviceClassName": device_class, "allocationMode": "ExactCount",
                                            "count": number})
        for name, device_class, number in wanted.requests
    ]  # fmt: skip
    return {
        "apiVersion": wanted.api_version,
        "kind": "ResourceClaim",
        "metadata": {
            "namespace": pod.namespace, "name": wanted.name, "annotations": {EXTENDED_CLAIM: "true"},
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": requests}},
    }  # fmt: skip


def _request(api_version: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """In v1beta1 the fields of a request stand beside its name."""
    return {"name": name, **fields} if api_version.endswith("/v1beta1") else {"name": name, "exactly": fields}


__all__ = ["WantedClaim", "awaiting", "claim_actions", "wanted_claims"]
