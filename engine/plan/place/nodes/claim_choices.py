"""Devices for claims (DRA) that wait: chosen with the pod's node and chips, allocated before the pod is bound.

As with volumes, a gang's pods are bound together once all of their claims are allocated and name them as users. Until
then the planner writes what is missing into the claims: first the finalizer that protects allocated claims, then
allocation and users. Meanwhile the gang keeps its place in each pass. Claims of a gang that finds no place any more
are taken back.
Sources: kubernetes/pkg/scheduler/framework/plugins/dynamicresources and resource.k8s.io/v1 (AllocationResult).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from belay.engine.model.actions import Evidence, PatchObject, PatchType, Preconditions
from belay.engine.model.chip_masks import ids_of, mask_of
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import DELETE_PROTECTION
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.plan.claims.devices import Counter
from belay.engine.plan.claims.holding import MAX_USERS, AllocatedClaim, DeviceClaims, OpenClaim
from belay.engine.plan.claims.matching import Given
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.nodes.claim_table import never_suited
from belay.engine.wire.dra import DRIVER

WAITING: Final = "ResourceClaimsNotAllocated"
RULE: Final = "place/claims"
SHORT: Final = Refusal(
    "ResourceClaimDevicesShort", "node(s) have no free devices that suit the resource claims together"
)
SHARED: Final = Refusal("ResourceClaimNodeMismatch", "node(s) cannot use the devices allocated to the resource claim")
FULL: Final = Refusal(
    "ResourceClaimUsersExhausted", f"the resource claim has {MAX_USERS} users, as many as it may have"
)
_MAX_NAMES: Final = 3


class ClaimChoices:
    """The devices that one pass has chosen for claims, followed through every assignment and its undoing."""

    def __init__(self, claims: DeviceClaims) -> None:
        self.claims = claims
        self._given: dict[str, list[Given]] = {}
        self._taken: dict[str, dict[str, int]] = {}
        self._nodes: dict[ObjectKey, str] = {}
        self._spent: dict[str, dict[Counter, Fraction]] = {}

    def concerns(self, pod: Pod) -> bool:
        """Whether a claim of the pod is allocated, or gets a user, with its node."""
        return bool(pod.resource_claims) and bool(self.claims.open_of(pod) or self.claims.unreserved_of(pod))

    def refusal(self, pod: Pod, view: NodeView) -> Refusal | None:
        """Why the devices that are left keep the pod off a node; whole chips are the table's to choose."""
        node = view.node.name
        owned = {claim.key for claim in self.claims.owned.get(pod.key, ())}
        for claim in self.claims.open_of(pod):
            if claim.key not in owned and self._nodes.get(claim.key) != node:
                return SHARED._replace(about=claim.key.name)

        crowded = next((claim for claim in self.claims.unreserved_of(pod) if len(claim.users) >= MAX_USERS), None)
        if crowded is not None:
            return FULL._replace(about=crowded.key.name)
        if pod.count or not owned:
            return None

        if self.claims.given(pod, node, self._busy(view), None, self._spent.get(node)) is not None:
            return None
        return SHORT._replace(cause=never_suited(self.claims, pod, node))

    def assume(self, pod: Pod, view: NodeView, chips: int) -> int:
        """Take devices for a pod that is assigned to a node and chips. Returns the chips that are cut for it."""
        owned, node = self.claims.owned.get(pod.key, ()), view.node.name
        if not owned:
            return 0
        fixed = mask_of(list(self.claims.held_by(pod)))
        within = ids_of(chips & ~fixed) if pod.count else None
        spent = self._spent.setdefault(node, {})
        found = self._given[pod.key] = self.claims.given(pod, node, self._busy(view), within, spent) or []
        taken = self._taken.setdefault(node, {})
        for one in found:
            if not one.ask.request.admin:
                taken[one.device.name] = taken.get(one.device.name, 0) + 1
                for counter, amount in one.device.consumes:
                    spent[counter] = spent.get(counter, Fraction(0)) + amount
        self._nodes.update(dict.fromkeys((claim.key for claim in owned), node))
        return _cut(found)

    def give_back(self, pod: Pod, node: str) -> int:
        """Undo ``assume``. Returns the chips that are not cut for any claim any more."""
        found = self._given.pop(pod.key, [])
        for one in found:
            if not one.ask.request.admin:
                self._taken[node].pop(one.device.name, None)
                for counter, amount in one.device.consumes:
                    self._spent[node][counter] -= amount
        for claim in self.claims.owned.get(pod.key, ()):
            self._nodes.pop(claim.key, None)
        return _cut(found) & ~self._cut_of(node)

    def unready(self, pods: Sequence[Pod]) -> list[str]:
        """Names of the claims that must be allocated, or name their pod, before these pods are bound, sorted."""
        found = {claim.key.name for pod in pods for claim in self.claims.open_of(pod)}
        return sorted(found | {claim.key.name for pod in pods for claim in self.claims.unreserved_of(pod)})

    def actions(self, pods: Sequence[tuple[Pod, str]], revision: str) -> Iterator[PatchObject]:
        """What allocates the claims of pods that are assigned to nodes, one action a claim."""
        users: dict[ObjectKey, list[Pod]] = {}
        for pod, _ in pods:
            for key in self.claims.of(pod):
                users.setdefault(key, []).append(pod)
        for pod, node in pods:
            for number, claim in enumerate(self.claims.owned.get(pod.key, ())):
                given = [one for one in self._given.get(pod.key, ()) if one.ask.claim == number]
                if given:
                    yield _allocate(claim, node, given, users[claim.key], revision)
        for key, found in sorted(users.items()):
            allocated = self.claims.allocated.get(key)
            new = [pod for pod in found if allocated is not None and pod.uid not in allocated.users]
            if allocated is not None and new and len(allocated.users) + len(new) <= MAX_USERS:
                yield _reserve(allocated, new, revision)

    def release(self, pods: Sequence[Pod], revision: str) -> Iterator[PatchObject]:
        """What takes back the claims that only these pods use, none of which has a node: they found no place."""
        uids = {pod.uid for pod in pods if not pod.node}
        for key in sorted({key for pod in pods for key in self.claims.of(pod)}):
            claim = self.claims.allocated.get(key)
            if claim is not None and claim.sole and claim.users and claim.users <= uids:
                text = f"resourceclaim {key.namespace}/{key.name}: its pod finds no place with these devices"
                status = {"allocation": None, "reservedFor": None}
                yield _patch(key, claim.raw, {"status": status}, ActionReason.CLAIM_RELEASED, text, revision)

    def _busy(self, view: NodeView) -> set[str]:
        """Names of devices of a node that cannot be given."""
        node = view.node.name
        closed = self.claims.closed_parts(node, view.free, view.used_by, self._cut_of(node))
        return {*self.claims.taken(node), *self._taken.get(node, ()), *closed}

    def _cut_of(self, node: str) -> int:
        """The chips of a node that are cut for claims, by earlier passes or in this one."""
        cut, names = self.claims.cut.get(node, 0), self._taken.get(node, {})
        for one in self.claims.by_node.get(node, ()) if names else ():
            if one.part and one.consumes and one.chip is not None and one.name in names:
                cut |= 1 << one.chip
        return cut


def _cut(given: Sequence[Given]) -> int:
    chips = {one.device.chip for one in given if one.device.part and one.device.consumes and not one.ask.request.admin}
    return mask_of([chip for chip in chips if chip is not None])


def _allocate(claim: OpenClaim, node: str, given: Sequence[Given], users: Sequence[Pod], revision: str) -> PatchObject:
    metadata = nested_map(claim.raw, "metadata")
    finalizers = [str(one) for one in metadata.get("finalizers") or ()]
    names = ", ".join(one.device.name for one in given)
    what = f"resourceclaim {claim.key.namespace}/{claim.key.name}"
    text = f"{what}: it gets {names} of {node}, where pod {users[0].name} goes"
    if DELETE_PROTECTION not in finalizers:
        patch: dict[str, Any] = {"metadata": {"finalizers": [*finalizers, DELETE_PROTECTION]}}
        return _patch(claim.key, claim.raw, patch, ActionReason.CLAIM_ALLOCATED, text, revision)
    results = []
    for one in given:
        row: dict[str, Any] = {
            "request": one.ask.request.name, "driver": DRIVER, "pool": one.device.pool, "device": one.device.name,
        }  # fmt: skip
        if one.ask.request.admin:
            row["adminAccess"] = True
        if one.ask.request.tolerations:
            row["tolerations"] = [dict(toleration) for toleration in one.ask.request.tolerations]
        results.append(row)
    devices: dict[str, Any] = {"results": results}
    config = [*_class_config(given), *_claim_config(claim.raw)]
    if config:
        devices["config"] = config
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation = {"devices": devices, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    status = {"allocation": allocation, "reservedFor": [_user(pod) for pod in users[:MAX_USERS]]}
    return _patch(claim.key, claim.raw, {"status": status}, ActionReason.CLAIM_ALLOCATED, text, revision)


def _reserve(claim: AllocatedClaim, new: Sequence[Pod], revision: str) -> PatchObject:
    before = [dict(row) for row in nested_list(claim.raw, "status", "reservedFor")]
    text = f"resourceclaim {claim.key.namespace}/{claim.key.name}: pod {new[0].name} becomes a user of it"
    status = {"reservedFor": [*before, *(_user(pod) for pod in new)]}
    return _patch(claim.key, claim.raw, {"status": status}, ActionReason.CLAIM_ALLOCATED, text, revision)


def _user(pod: Pod) -> dict[str, str]:
    return {"resource": "pods", "name": pod.name, "uid": pod.uid}


def _class_config(given: Sequence[Given]) -> Iterator[dict[str, Any]]:
    for request in {one.ask.request.name: one.ask.request for one in given}.values():
        for row in request.class_config:
            yield {"source": "FromClass", "requests": [request.name], **row}


def _claim_config(raw: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for row in nested_list(raw, "spec", "devices", "config"):
        if nested_map(row, "opaque").get("driver") == DRIVER:
            yield {"source": "FromClaim", **row}


def _patch(
    key: ObjectKey, raw: Mapping[str, Any], patch: dict[str, Any], reason: ActionReason, text: str, revision: str
) -> PatchObject:
    metadata = nested_map(raw, "metadata")
    return PatchObject(
        reason=reason,
        message=text,
        evidence=Evidence(rule=RULE, revision=revision),
        # another allocator may allocate at the same time: the older allocation stands
        preconditions=Preconditions(uid=metadata.get("uid"), resource_version=metadata.get("resourceVersion")),
        api_version=key.api_version,
        object_kind=key.kind,
        namespace=key.namespace,
        name=key.name,
        patch_type=PatchType.MERGE,
        patch=patch,
    )


def waiting_text(names: Sequence[str]) -> str:
    """The message of a gang whose claims are being allocated."""
    shown = ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
    return f"the gang has its nodes and waits until {len(names)} ResourceClaims are allocated: {shown}"


def way_out(names: Sequence[str]) -> str:
    """What a person can do about claims that stay as they are."""
    return f"if it takes long, see who changes the claim: kubectl describe resourceclaim {names[0]}"
