"""Which pods belong to which gang, followed from snapshot to snapshot.

In a cluster of ten thousand nodes, one report or a few pods differ from pass to pass. The grouping of the last snapshot
is then carried over: only gangs whose pods, owners or PodGroups changed are formed again. The result equals that of
forming all gangs, so a plan does not depend on the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from belay.engine.gangs.forming import GANGS, REPLICATED_KINDS, form_gang, gang_key, priorities
from belay.engine.gangs.owners import POD_GROUP_APIS, JobOwner, OwnerIndex, metadata
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.jobs import Gang
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache, Slot, differing
from belay.engine.model.workload_kinds import WorkloadTable

#: If more than one in so many pods changed, all pods are grouped again.
_FEW: Final = 8
_NO_PODS: Final[tuple[Pod, ...]] = ()


class Grouping(NamedTuple):
    """The gangs of a snapshot.

    ``gang_of`` maps pod keys to gang keys, finished pods included, though they are not in ``Gang.pods``; ``members``
    are all pods of each gang in order of key; ``shared`` says that workloads share a PodGroup, or that pods own pods.
    """

    pods: Mapping[str, Pod]
    objects: Mapping[ObjectKey, object]
    workloads: WorkloadTable
    gangs: dict[str, Gang]
    gang_of: dict[str, str]
    members: dict[str, tuple[Pod, ...]]
    shared: bool


#: The grouping of the newest snapshot; replaced as a whole.
_LAST: Final = CacheKey("grouping of the last snapshot", Slot[Grouping])


def group(observed: Observed, cache: PlanCache | None = None) -> tuple[dict[str, Gang], dict[str, str]]:
    """The gangs by key, and the gang key of each pod key."""
    found = grouping(observed, cache or PlanCache())
    return dict(found.gangs), dict(found.gang_of)


def grouping(observed: Observed, cache: PlanCache) -> Grouping:
    """The pods of a snapshot as gangs."""
    slot, known = cache[_LAST], cache[GANGS]
    last = slot.value
    found: Grouping | None = None
    if (
        last is not None
        and observed.workloads == last.workloads
        and (observed.objects is last.objects or observed.objects == last.objects)
    ):
        found = _carried_over(last, observed, known)
    if found is None:
        found = _group_all(observed, known)
    slot.value = found
    return found


def _carried_over(last: Grouping, observed: Observed, known: Memo[Gang]) -> Grouping | None:
    """The last grouping, updated for changed pods; None when all pods have to be grouped again."""
    pods = observed.pods
    keys = {key for key in differing(pods, last.pods) if pods.get(key) != last.pods.get(key)}
    if not keys:
        return last._replace(pods=pods, objects=observed.objects)
    rows = [row for row in map(last.pods.get, keys) if row] + [row for row in map(pods.get, keys) if row]
    if last.shared or len(keys) > len(pods) // _FEW or any(row.owner_kind in REPLICATED_KINDS for row in rows):
        return None
    finder = OwnerIndex(observed)
    gang_of, gangs, members = dict(last.gang_of), dict(last.gangs), dict(last.members)
    touched = {key for key in map(gang_of.pop, keys, [""] * len(keys)) if key}
    coming: dict[str, list[Pod]] = {}
    for pod in filter(None, map(pods.get, sorted(keys))):
        owner = finder.of(pod)
        if owner is not None:
            key = _key(owner)
            gang_of[pod.key] = key
            coming.setdefault(key, []).append(pod)
    finder, classes = finder.fresh(), priorities(observed)  # the first pod by key stands for the owner
    for key in touched | coming.keys():
        own = [pod for pod in members.pop(key, _NO_PODS) if pod.key not in keys] + coming.get(key, [])
        own.sort(key=lambda pod: pod.key)
        gangs.pop(key, None)
        owner = finder.of(own[0]) if own else None
        if owner is not None:
            members[key] = tuple(own)
            gangs[key] = form_gang(key, owner, own, finder, classes, known)
    return Grouping(pods, observed.objects, observed.workloads, dict(sorted(gangs.items())), gang_of, members, False)


def _group_all(observed: Observed, known: Memo[Gang]) -> Grouping:
    classes = priorities(observed)
    finder = OwnerIndex(observed)
    members: dict[str, list[Pod]] = {}
    owners: dict[str, JobOwner] = {}
    gang_of: dict[str, str] = {}
    shared = _shared(observed, finder)
    for name in sorted(observed.pods):
        pod = observed.pods[name]
        owner = finder.of(pod)
        if owner is None:
            continue
        if shared:
            owner = shared.get((pod.namespace, finder.group_name(pod)), owner)
        key = _key(owner)
        owners.setdefault(key, owner)
        members.setdefault(key, []).append(pod)
        gang_of[pod.key] = key
    gangs = {key: form_gang(key, owners[key], members[key], finder, classes, known) for key in sorted(members)}
    own = {key: tuple(found) for key, found in members.items()}
    of_pods = any(pod.owner_kind == "Pod" for pod in observed.pods.values())
    return Grouping(observed.pods, observed.objects, observed.workloads, gangs, gang_of, own, bool(shared) or of_pods)


def _key(owner: JobOwner) -> str:
    return gang_key(owner.api_version, owner.kind, owner.namespace, owner.name)


def _shared(observed: Observed, finder: OwnerIndex) -> dict[tuple[str, str], JobOwner]:
    """PodGroups that several workloads share, by namespace and name: their pods start together."""
    seen: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for pod in observed.pods.values():
        if pod.owner_kind not in REPLICATED_KINDS:
            continue
        name = finder.group_name(pod)
        owner = finder.of(pod) if name else None
        if owner is not None:
            seen.setdefault((pod.namespace, name), set()).add((owner.kind, owner.name))
    found = ((key, finder.pod_group(*key)) for key, owners in seen.items() if len(owners) > 1)
    return {
        key: JobOwner(POD_GROUP_APIS[0], "PodGroup", *key, str(metadata(raw).get("uid", "")), raw)
        for key, raw in found
        if raw
    }
