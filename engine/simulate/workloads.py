"""The workload controllers of Kubernetes on a world's objects: each reconciles when something of its own has changed.

The controllers themselves are ``belay.engine.workloads``, which the sandbox runs, too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import (
    CONTROLLER_REVISION_HASH,
    SELECTED_NODE,
    STATEFUL_SET_POD_INDEX,
    STATEFUL_SET_POD_NAME,
)
from belay.engine.model.patches import merge_patch
from belay.engine.workloads import defaults, deployment, job, replicaset, statefulset
from belay.engine.workloads import objects as o
from belay.engine.workloads.writes import Json, Reconciled, Write

ROLLED: Final = "RolledOut"
SCALED: Final = "ScaledDown"
ROUNDS: Final = 10
"""Most rounds of the controllers in one move; a Deployment creates its ReplicaSet, which creates its pods."""

_STORAGE: Final = {
    ("apps/v1", "ReplicaSet"): "replicasets.apps",
    ("apps/v1", "Deployment"): "deployments.apps",
    ("apps/v1", "StatefulSet"): "statefulsets.apps",
    ("batch/v1", "Job"): "jobs.batch",
}
"""The workloads that are played, in the order of their turns, and what API servers call them."""
_PARTS: Final = ("Pod", "ReplicaSet", "ControllerRevision")
_UNREADABLE: Final = (AttributeError, KeyError, TypeError, ValueError)


class Played(Protocol):
    """What the controllers see and change of a world."""

    now: float
    objects: dict[ObjectKey, Json]

    def put(self, obj: Json, *, owner_check: bool = False) -> None: ...
    def delete(self, key: ObjectKey) -> None: ...
    def evict(self, key: ObjectKey, grace: int) -> None: ...
    def number(self) -> int: ...


class PodDeparture(NamedTuple):
    """Why a controller deletes a pod."""

    reason: str
    message: str


class WorkloadControllers:
    """Runs the controllers; remembers what each workload looked like when it last had its turn.

    ``departures``: why a pod, by uid, was deleted by its controller. ``due``: when a workload wants its turn although
    nothing of it changes (a back-off, ``minReadySeconds``).
    """

    def __init__(self) -> None:
        self.departures: dict[str, PodDeparture] = {}
        self.due: dict[ObjectKey, float] = {}
        self._seen: dict[ObjectKey, tuple[Json, ...]] = {}

    def run(self, world: Played) -> None:
        """Let every workload reconcile until none of them writes any more."""
        for _ in range(ROUNDS):
            if not self._round(world):
                break
        for claim in bound_claims(world.objects):
            world.put(claim)

    def _round(self, world: Played) -> bool:
        parts = _parts_by_owner(world.objects)
        wrote = False
        for kind in _STORAGE:
            for key in [one for one in world.objects if (one.api_version, one.kind) == kind]:
                wrote = self._turn(world, key, parts) or wrote
        return wrote

    def _turn(self, world: Played, key: ObjectKey, parts: Mapping[str, list[Json]]) -> bool:
        """One workload's turn, if anything of it has changed or its time has come; whether it wrote."""
        workload = world.objects.get(key)
        uid = workload["metadata"].get("uid") if workload is not None else None
        if workload is None or not uid:
            return False

        mine = parts.get(uid, [])
        pods_below = [pod for one in mine if one["kind"] == "ReplicaSet" for pod in parts.get(_uid(one), [])]
        seen = (workload, *mine, *pods_below)
        if _same(self._seen.get(key), seen) and world.now < self.due.get(key, float("inf")):
            return False

        self._seen[key] = seen
        self.due.pop(key, None)
        try:
            step = _step(world, key, workload, mine, pods_below)
        except _UNREADABLE:
            return False  # a file may hold what no API server would have stored
        if step.again_in is not None:
            self.due[key] = world.now + step.again_in
        landed = [self._perform(world, workload, write) for write in step.writes]
        if not all(landed):
            del self._seen[key]  # refused, and tried again in the next move
        return any(landed)

    def _perform(self, world: Played, workload: Json, write: Write) -> bool:
        """Carry out one write; whether it landed."""
        key = ObjectKey(write.api_version, write.kind, write.namespace, write.name)
        if write.verb == "create":
            taken = world.objects.get(key)
            if workload["kind"] == "Deployment" and taken is not None and not deployment.made_from(workload, taken):
                return self._perform(world, workload, deployment.collided(workload))
            return _create(world, write.body)

        live = world.objects.get(key)
        if live is None:
            return False
        if write.verb != "delete":
            world.put(copy.deepcopy(merge_patch(live, write.body)))
            return True
        if write.kind != "Pod":
            world.delete(key)
            return True
        self.departures.setdefault(_uid(live), _departure(world.objects, workload, live))
        world.evict(key, _grace(live) if write.grace_seconds is None else write.grace_seconds)
        return True


def with_defaults(obj: Json) -> Json:
    """The object, with the fields that an API server fills in where it is a workload."""
    storage = _STORAGE.get((str(obj.get("apiVersion")), str(obj.get("kind"))))
    if storage is None:
        return obj
    filled = copy.deepcopy(obj)
    try:
        defaults.set_defaults(storage, filled)
    except _UNREADABLE:
        return obj
    return filled


def adopted(objects: Mapping[ObjectKey, Json]) -> Iterator[Json]:
    """The revisions of StatefulSets under the names that the controller here gives them, and their pods to match.

    Lists of objects leave revisions out, and no other program can compute Kubernetes' digests of them.
    """
    for key, stateful_set in list(objects.items()):
        if key.kind != "StatefulSet" or not isinstance(stateful_set.get("spec"), dict):
            continue
        status = stateful_set.get("status") or {}
        before = str(status.get("updateRevision") or "")
        name = statefulset.revision_name(stateful_set)
        if before == name:
            continue
        settled = status.get("currentRevision") in (None, "", before)
        revisions = {"updateRevision": name, "currentRevision": name if settled else status["currentRevision"]}
        yield {**stateful_set, "status": {**status, **revisions}}
        for pod_key, pod in list(objects.items()):
            if pod_key.kind == "Pod" and o.controller_uid(pod) == stateful_set["metadata"].get("uid"):
                labels = pod["metadata"].get("labels") or {}
                if labels.get(CONTROLLER_REVISION_HASH, before) == before:
                    yield merge_patch(pod, {"metadata": {"labels": {CONTROLLER_REVISION_HASH: name}}})


def unlisted_revisions(objects: Mapping[ObjectKey, Json]) -> Iterator[Json]:
    """The revisions of StatefulSets that no list of objects shows: pods below a partition start from the older one.

    An older revision is read from a pod of it, since its template is written nowhere else.
    """
    for key, stateful_set in list(objects.items()):
        if key.kind != "StatefulSet" or not isinstance(stateful_set.get("spec"), dict):
            continue
        newest = statefulset.revision_name(stateful_set)
        current = str((stateful_set.get("status") or {}).get("currentRevision") or newest)
        templates = {newest: stateful_set["spec"].get("template") or {}}
        if current != newest and (pod := _pod_of_revision(objects, stateful_set, current)) is not None:
            templates = {current: _template_of(pod, templates[newest]), **templates}

        made: list[Json] = []
        for name, template in templates.items():
            if ObjectKey("apps/v1", "ControllerRevision", key.namespace, name) not in objects:
                older = {**stateful_set, "spec": {**stateful_set["spec"], "template": template}}
                made.append(statefulset.controller_revision(older, name, made))
        yield from made


def _pod_of_revision(objects: Mapping[ObjectKey, Json], stateful_set: Json, revision: str) -> Json | None:
    uid = stateful_set["metadata"].get("uid")
    for key, pod in objects.items():
        labels = pod["metadata"].get("labels") or {}
        if key.kind == "Pod" and o.controller_uid(pod) == uid and labels.get(CONTROLLER_REVISION_HASH) == revision:
            return pod
    return None


def _template_of(pod: Json, newest: Json) -> Json:
    """What the pod was made from: its own labels and spec, without what was added when it was made and bound."""
    added = {CONTROLLER_REVISION_HASH, STATEFUL_SET_POD_NAME, STATEFUL_SET_POD_INDEX}
    labels = {key: value for key, value in (pod["metadata"].get("labels") or {}).items() if key not in added}
    spec = {key: value for key, value in pod["spec"].items() if key not in ("nodeName", "hostname", "subdomain")}
    return {"metadata": {**(newest.get("metadata") or {}), "labels": labels}, "spec": copy.deepcopy(spec)}


def taken_for_ready(pod: Json) -> Json:
    """A running pod of a file that says nothing of its conditions counts as ready."""
    status = pod.get("status") or {}
    if status.get("phase") != "Running" or status.get("conditions"):
        return pod
    rows = status.get("containerStatuses") or ()
    if not all(row.get("ready", True) for row in rows):
        return pod
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": status.get("startTime")}
    return {**pod, "status": {**status, "conditions": [ready]}}


def bound_claims(objects: Mapping[ObjectKey, Json]) -> list[Json]:
    """Claims that are bound now: a node was selected for them, or a volume names them. Where the volume lies is not
    simulated.
    """
    found = []
    volumes = [raw for key, raw in objects.items() if key.kind == "PersistentVolume"]
    named = {(ref.get("namespace"), ref.get("name")): raw for raw in volumes if (ref := _claim_reference(raw))}
    for key, raw in objects.items():
        if key.kind != "PersistentVolumeClaim" or (raw.get("spec") or {}).get("volumeName"):
            continue
        volume = named.get((key.namespace, key.name))
        selected = (raw["metadata"].get("annotations") or {}).get(SELECTED_NODE)
        if volume is not None or selected:
            name = volume["metadata"]["name"] if volume is not None else f"pvc-{key.namespace}-{key.name}"
            found.append(raw | {"spec": {**raw.get("spec", {}), "volumeName": name}, "status": {"phase": "Bound"}})
    return found


def _claim_reference(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    return (volume.get("spec") or {}).get("claimRef") or {}


def _parts_by_owner(objects: Mapping[ObjectKey, Json]) -> dict[str, list[Json]]:
    """Pods, ReplicaSets and ControllerRevisions by the uid of their controller, by name."""
    found: dict[str, list[Json]] = {}
    for key in sorted(one for one in objects if one.kind in _PARTS):
        for reference in objects[key]["metadata"].get("ownerReferences") or ():
            if reference.get("controller", True):
                found.setdefault(str(reference.get("uid")), []).append(objects[key])
    return found


def _step(world: Played, key: ObjectKey, workload: Json, mine: list[Json], pods_below: list[Json]) -> Reconciled:
    def of(kind: str) -> list[Json]:
        return [one for one in mine if one["kind"] == kind]

    if key.kind == "Deployment":
        return deployment.reconcile(workload, of("ReplicaSet"), pods_below, world.now)
    if key.kind == "ReplicaSet":
        return replicaset.reconcile(workload, of("Pod"), world.now)
    if key.kind == "Job":
        return job.reconcile(workload, of("Pod"), world.now)
    claims = {
        one.name for one in world.objects if one.kind == "PersistentVolumeClaim" and one.namespace == key.namespace
    }
    return statefulset.reconcile(workload, of("Pod"), of("ControllerRevision"), world.now, claims)


def _create(world: Played, body: Json) -> bool:
    """Create an object; False where another has its name, such as one of an owner that is gone."""
    body = copy.deepcopy(body)
    metadata = body["metadata"]
    generated = metadata.pop("generateName", None)
    if not metadata.get("name"):
        metadata["name"] = f"{generated or ''}{world.number():05d}"
    if ObjectKey(body["apiVersion"], body["kind"], metadata["namespace"], metadata["name"]) in world.objects:
        return False
    world.put(body)
    return True


def _departure(objects: Mapping[ObjectKey, Json], workload: Json, pod: Json) -> PodDeparture:
    """Whether the pod makes way for one of the newest template, or is one too many."""
    name = f"{workload['kind']}/{workload['metadata']['name']}"
    outdated = False
    if workload["kind"] == "StatefulSet":
        labels = pod["metadata"].get("labels") or {}
        outdated = labels.get(CONTROLLER_REVISION_HASH) != statefulset.revision_name(workload)
    elif workload["kind"] == "ReplicaSet":
        above = _deployment_of(objects, workload)
        if above is not None:
            name = f"Deployment/{above['metadata']['name']}"
            outdated = not deployment.made_from(above, workload)
    if outdated:
        return PodDeparture(ROLLED, f"{name} has another pod template now and replaces its pods")
    return PodDeparture(SCALED, f"{name} asks for fewer pods")


def _deployment_of(objects: Mapping[ObjectKey, Json], replica_set: Json) -> Json | None:
    metadata = replica_set["metadata"]
    for reference in metadata.get("ownerReferences") or ():
        found = objects.get(
            ObjectKey("apps/v1", "Deployment", str(metadata.get("namespace") or ""), str(reference.get("name")))
        )
        if found is not None and found["metadata"].get("uid") == reference.get("uid"):
            return found
    return None


def _same(before: tuple[Json, ...] | None, now: tuple[Json, ...]) -> bool:
    """Whether these are the very objects of the last turn: a change makes a new object."""
    return before is not None and len(before) == len(now) and all(map(lambda a, b: a is b, before, now))


def _uid(obj: Json) -> str:
    return str(obj["metadata"].get("uid") or "")


def _grace(pod: Json) -> int:
    found = (pod.get("spec") or {}).get("terminationGracePeriodSeconds")
    return found if isinstance(found, int) else 30


def with_namespaces(items: Iterable[Json]) -> None:
    """Fill in the namespace and uid that an API server gives to workloads, where a file leaves them out."""
    for number, obj in enumerate(items):
        if (obj.get("apiVersion"), obj.get("kind")) in _STORAGE:
            obj["metadata"].setdefault("namespace", "default")
            obj["metadata"].setdefault("uid", f"listed-{number}")


__all__ = [
    "ROLLED",
    "SCALED",
    "PodDeparture",
    "WorkloadControllers",
    "adopted",
    "taken_for_ready",
    "unlisted_revisions",
    "with_defaults",
]
