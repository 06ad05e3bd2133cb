"""Which pods belong to which gang, followed from snapshot to snapshot.

In a cluster of ten thousand nodes a pass follows the change of one report or of a few pods. What is known of the last
snapshot is then carried over: only gangs whose pods, owners or PodGroups changed are formed anew. The result is what
forming all of them would give, so nothing of a plan depends on what was known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from engine.model.cluster import Observed, Pod
from engine.model.diagnostics import ObjectKey
from engine.model.jobs import Gang
from engine.plan.gangs import REPLICATED_KINDS, formed, gang_key, priorities
from engine.plan.memo import differing
from engine.plan.owners import POD_GROUP_APIS, Owner, Owners, metadata
from engine.plan.scope import Scope

#: Beyond this share of changed pods everything is grouped anew.
_FEW: Final = 8
_NO_PODS: Final[tuple[Pod, ...]] = ()


class Grouping(NamedTuple):
    """The gangs of a snapshot by key, the gang's key of each pod's key (finished pods included, though they are no
    longer in ``Gang.pods``), and all pods of each gang in the order of their keys.
    """

    pods: Mapping[str, Pod]
    objects: Mapping[ObjectKey, object]
    gangs: dict[str, Gang]
    gang_of: dict[str, str]
    members: dict[str, tuple[Pod, ...]]
    shared: bool


#: The newest snapshot's; replaced as a whole.
_LAST: Final[dict[str, Grouping]] = {}


def run(scope: Scope) -> None:
    """Fills ``scope.gangs``, ``scope.gang_of`` and ``scope.members`` from the pods of the snapshot."""
    found = grouping(scope.observed)
    scope.gangs, scope.gang_of, scope.members = dict(found.gangs), dict(found.gang_of), found.members


def group(observed: Observed) -> tuple[dict[str, Gang], dict[str, str]]:
    """The gangs by key, and the gang key of each pod key."""
    found = grouping(observed)
    return dict(found.gangs), dict(found.gang_of)


def grouping(observed: Observed) -> Grouping:
    """The pods of a snapshot as gangs."""
    last = _LAST.get("")
    found: Grouping | None = None
    if last is not None and (observed.objects is last.objects or observed.objects == last.objects):
        found = _carried_over(last, observed)
    if found is None:
        found = _anew(observed)
    _LAST[""] = found
    return found


def forget() -> None:
    """As in a process that has seen no snapshot yet: for tests and benchmarks of first passes."""
    _LAST.clear()


def _carried_over(last: Grouping, observed: Observed) -> Grouping | None:
    """The last grouping with what became of changed pods; None when everything has to be looked at anew."""
    pods = observed.pods
    keys = {key for key in differing(pods, last.pods) if pods.get(key) != last.pods.get(key)}
    if not keys:
        return last._replace(pods=pods, objects=observed.objects)
    rows = [row for row in map(last.pods.get, keys) if row] + [row for row in map(pods.get, keys) if row]
    if last.shared or len(keys) > len(pods) // _FEW or any(row.owner_kind in REPLICATED_KINDS for row in rows):
        return None
    finder = Owners(observed)
    gang_of, gangs, members = dict(last.gang_of), dict(last.gangs), dict(last.members)
    touched = {key for key in map(gang_of.pop, keys, [""] * len(keys)) if key}
    coming: dict[str, list[Pod]] = {}
    for pod in filter(None, map(pods.get, sorted(keys))):
        owner = finder.of(pod)
        if owner is not None:
            key = _key(owner)
            gang_of[pod.key] = key
            coming.setdefault(key, []).append(pod)
    finder, classes = finder.fresh(), priorities(observed)  # of several pods, the first by key speaks for the owner
    for key in touched | coming.keys():
        own = [pod for pod in members.pop(key, _NO_PODS) if pod.key not in keys] + coming.get(key, [])
        own.sort(key=lambda pod: pod.key)
        gangs.pop(key, None)
        owner = finder.of(own[0]) if own else None
        if owner is not None:
            members[key] = tuple(own)
            gangs[key] = formed(key, owner, own, finder, classes)
    return Grouping(pods, observed.objects, dict(sorted(gangs.items())), gang_of, members, False)


def _anew(observed: Observed) -> Grouping:
    classes = priorities(observed)
    finder = Owners(observed)
    members: dict[str, list[Pod]] = {}
    owners: dict[str, Owner] = {}
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
    gangs = {key: formed(key, owners[key], members[key], finder, classes) for key in sorted(members)}
    own = {key: tuple(found) for key, found in members.items()}
    return Grouping(observed.pods, observed.objects, gangs, gang_of, own, bool(shared))


def _key(owner: Owner) -> str:
    return gang_key(owner.api_version, owner.kind, owner.namespace, owner.name)


def _shared(observed: Observed, finder: Owners) -> dict[tuple[str, str], Owner]:
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
        key: Owner(POD_GROUP_APIS[0], "PodGroup", *key, str(metadata(raw).get("uid", "")), raw)
        for key, raw in found
        if raw
    }
