"""A cluster in memory for controller tests: it performs writes, plays kubelet, runs controllers in random order."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from typing import Any

from belay.engine.model.times import rfc3339
from belay.engine.workloads import deployment, job, objects, replicaset, statefulset
from belay.engine.workloads.writes import Json, Reconciled, Write

NOW = 1788249600.0


class World:
    """Objects by (kind, name) in one namespace; `now` moves one second a round."""

    def __init__(self, seed: int = 1) -> None:
        self.things: dict[tuple[str, str], Json] = {}
        self.now = NOW
        self.random = random.Random(seed)
        self.narrative: list[str] = []
        self.fails: Callable[[Json], bool] = lambda pod: False
        self.ends: Callable[[Json], str] = lambda pod: ""
        self._uids = itertools.count(1)

    def add(self, thing: Json) -> Json:
        thing = copy.deepcopy(thing)
        meta = thing["metadata"]
        number = next(self._uids)
        meta.setdefault("name", f"{meta.get('generateName', '')}{number:04d}")
        meta |= {
            "namespace": "default",
            "uid": f"uid-{number}",
            "creationTimestamp": rfc3339(self.now),
            "generation": 1,
        }
        key = (thing["kind"], meta["name"])
        assert key not in self.things, f"{key} exists"
        self.things[key] = thing
        return thing

    def get(self, kind: str, name: str) -> Json:
        return self.things[kind, name]

    def of(self, kind: str) -> list[Json]:
        return [thing for (k, _), thing in sorted(self.things.items()) if k == kind]

    def pods(self) -> list[Json]:
        return self.of("Pod")

    def perform(self, step: Reconciled) -> None:
        for write in step.writes:
            self.narrative.append(
                f"{write.verb} {write.kind} {write.name or write.body['metadata'].get('generateName', '')}"
            )
            self._perform(write)

    def _perform(self, write: Write) -> None:
        if write.verb == "create":
            self.add(write.body)
            return
        thing = self.things[write.kind, write.name]
        if write.verb == "delete":
            assert write.uid == thing["metadata"]["uid"]
            if write.kind == "Pod" and thing.get("status", {}).get("phase") and write.grace_seconds != 0:
                thing["metadata"]["deletionTimestamp"] = rfc3339(self.now)
            else:
                del self.things[write.kind, write.name]
            return
        before = copy.deepcopy(thing.get("spec"))
        merge(thing, write.body)
        if thing.get("spec") != before:
            thing["metadata"]["generation"] += 1

    def edit(self, kind: str, name: str, change: Json) -> None:
        """What a user does."""
        merge(self.things[kind, name], change)
        self.things[kind, name]["metadata"]["generation"] += 1

    def play_kubelet(self, share: float = 1.0) -> None:
        """Some terminating pods vanish, some pending ones start, some running ones end."""
        for pod in self.pods():
            if self.random.random() > share:
                continue
            name, status = pod["metadata"]["name"], pod.setdefault("status", {})
            if objects.deleting(pod):
                del self.things["Pod", name]
            elif self.fails(pod):
                pod["status"] = {"phase": "Failed", "containerStatuses": [terminated(self.now)]}
            elif objects.phase(pod) == "Running" and (end := self.ends(pod)):
                pod["status"] = {"phase": end, "containerStatuses": [terminated(self.now)]}
            elif objects.phase(pod) == "Pending":
                stamp = rfc3339(self.now)
                status |= {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": stamp}],
                }

    def reconcile(self, kind: str, thing: Json) -> Reconciled:
        uid = thing["metadata"]["uid"]

        def owned(of: str) -> list[Json]:
            return [copy.deepcopy(c) for c in self.of(of) if objects.controller_uid(c) == uid]

        thing = copy.deepcopy(thing)
        match kind:
            case "Deployment":
                sets = owned("ReplicaSet")
                uids = {rs["metadata"]["uid"] for rs in sets}
                pods = [copy.deepcopy(p) for p in self.pods() if objects.controller_uid(p) in uids]
                return deployment.reconcile(thing, sets, pods, self.now)
            case "ReplicaSet":
                return replicaset.reconcile(thing, owned("Pod"), self.now)
            case "StatefulSet":
                return statefulset.reconcile(thing, owned("Pod"), owned("ControllerRevision"), self.now)
            case _:
                return job.reconcile(thing, owned("Pod"), self.now, 0.01)

    def round(self, share: float = 1.0) -> bool:
        """One round in random order; whether any controller wrote."""
        wrote = False
        keys = [key for key in self.things if key[0] in ("Deployment", "ReplicaSet", "StatefulSet", "Job")]
        self.random.shuffle(keys)
        for key in keys:
            if key in self.things:
                step = self.reconcile(key[0], self.things[key])
                self.perform(step)
                wrote = wrote or bool(step.writes)
        before = copy.deepcopy(self.things)
        self.play_kubelet(share)
        self.now += 1.0
        return wrote or before != self.things

    def settle(self, each: Callable[[], None] = lambda: None, share: float = 1.0, limit: int = 400) -> int:
        """Rounds until nothing moves any more; `each` checks invariants after every round. Fails beyond `limit`."""
        calm = 0
        for number in range(limit):
            moved = self.round(share)
            each()
            calm = 0 if moved else calm + 1
            if calm >= (3 if share == 1.0 else 25):
                return number
        raise AssertionError(f"no fixed point after {limit} rounds:\n" + "\n".join(self.narrative[-20:]))


def merge(target: Json, change: Json) -> None:
    """JSON merge patch."""
    for key, value in change.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


def terminated(now: float) -> Json:
    return {"name": "main", "restartCount": 0, "state": {"terminated": {"exitCode": 1, "finishedAt": rfc3339(now)}}}


def workload(kind: str, name: str = "web", image: str = "one", **spec: Any) -> Json:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    body: Json = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": image}]},
            },
        },
    }
    if kind != "Job":
        body["spec"]["selector"] = {"matchLabels": {"app": name}}
    body["spec"] |= spec
    return body


def image_of(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["image"])


def condition(thing: Json, kind: str) -> tuple[str, str]:
    found = objects.condition(thing, kind) or {}
    return str(found.get("status")), str(found.get("reason"))
