"""Helpers about pods and owners that all workload controllers share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, Final

import orjson

from belay.engine.model.labels import POD_DELETION_COST
from belay.engine.model.times import parse_rfc3339, rfc3339

Json = dict[str, Any]

_NAME_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of generated names: no vowels, so no words (Kubernetes' util/rand)."""


def time_of(text: str | None) -> float:
    """Unix seconds of an RFC 3339 time; 0 when it is absent or unreadable."""
    if not text:
        return 0.0
    try:
        return parse_rfc3339(text)
    except ValueError:
        return 0.0


def stamp(now: float) -> str:
    """``now`` as Kubernetes writes it: whole seconds."""
    return rfc3339(float(int(now)))


def owner_reference(owner: Json, api_version: str, kind: str) -> Json:
    """The reference that makes ``owner`` the controller of an object."""
    meta = owner["metadata"]
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_uid(child: Json) -> str:
    """The uid of the object that controls ``child``, or the empty string."""
    for reference in child["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference.get("uid", ""))
    return ""


def children(owner: Json, candidates: Iterable[Json]) -> list[Json]:
    """Those of ``candidates`` that ``owner`` controls, by name."""
    uid = owner["metadata"]["uid"]
    return sorted((c for c in candidates if controller_uid(c) == uid), key=lambda c: str(c["metadata"]["name"]))


def deleting(thing: Json) -> bool:
    """Whether the object is being deleted."""
    return bool(thing["metadata"].get("deletionTimestamp"))


def phase(pod: Json) -> str:
    """The pod's phase, ``Pending`` when it has none yet."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def finished(pod: Json) -> bool:
    """Whether the pod's phase is Succeeded or Failed."""
    return phase(pod) in ("Succeeded", "Failed")


def active(pod: Json) -> bool:
    """Neither finished nor being deleted: it counts as a replica."""
    return not finished(pod) and not deleting(pod)


def condition(thing: Json, kind: str) -> Json | None:
    """The condition of that type, if the object has it."""
    for entry in (thing.get("status") or {}).get("conditions") or ():
        if entry.get("type") == kind:
            return dict(entry)
    return None


def ready(pod: Json) -> bool:
    """Whether the pod's Ready condition is True."""
    found = condition(pod, "Ready")
    return bool(found and found.get("status") == "True")


def available_in(pod: Json, min_ready_seconds: float, now: float) -> float | None:
    """Seconds until a ready pod counts as available (0: it does); None while it is not ready."""
    found = condition(pod, "Ready")
    if not found or found.get("status") != "True":
        return None
    if min_ready_seconds <= 0:
        return 0.0
    return max(0.0, time_of(found.get("lastTransitionTime")) + min_ready_seconds - now)


def set_condition(
    thing: Json, kind: str, value: str, reason: str, message: str, now: float, *, updated: bool = True
) -> list[Json]:
    """The object's conditions with one set; its transition time changes only with its status, and an unchanged
    condition stays as it is.

    ``updated``: the condition also has ``lastUpdateTime`` (Deployments) instead of ``lastProbeTime`` (Jobs).
    """
    conditions: list[Json] = [dict(c) for c in (thing.get("status") or {}).get("conditions") or ()]
    old = next((c for c in conditions if c.get("type") == kind), None)
    if old and (old.get("status"), old.get("reason"), old.get("message")) == (value, reason, message):
        return conditions
    since = (
        old["lastTransitionTime"]
        if old and old.get("status") == value and old.get("lastTransitionTime")
        else stamp(now)
    )
    fresh = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": since}
    fresh["lastUpdateTime" if updated else "lastProbeTime"] = stamp(now)
    return [c for c in conditions if c.get("type") != kind] + [fresh]


def template_hash(template: Json, collisions: int = 0) -> str:
    """A short, name-safe digest of a pod template; ``collisions`` changes it after two templates had the same name."""
    body = orjson.dumps(template, option=orjson.OPT_SORT_KEYS) + str(collisions).encode()
    number = int.from_bytes(hashlib.sha256(body).digest()[:8], "big")
    letters = []
    for _ in range(10):
        number, index = divmod(number, len(_NAME_LETTERS))
        letters.append(_NAME_LETTERS[index])
    return "".join(letters)


def pod_from_template(owner: Json, kind: str, api_version: str, template: Json) -> Json:
    """A pod without a name that ``owner`` controls, made from its template."""
    meta = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": owner["metadata"]["namespace"],
            "labels": dict(meta.get("labels") or {}),
            "annotations": dict(meta.get("annotations") or {}),
            "ownerReferences": [owner_reference(owner, api_version, kind)],
        },
        "spec": deepcopy(template.get("spec") or {}),
    }


def share(value: Any, total: int, *, up: bool) -> int:
    """A count or a percentage of ``total`` (rounded up or down); an invalid value counts as 25 %, the API's default."""
    if isinstance(value, int):
        return max(0, value)
    text = str(value if value is not None else "25%")
    digits = text.removesuffix("%")
    percent = int(digits) if text.endswith("%") and digits.isascii() and digits.isdecimal() else 25
    return -(-percent * total // 100) if up else percent * total // 100


def replicas_of(thing: Json) -> int:
    """``spec.replicas``, 1 when it is not given."""
    value = (thing.get("spec") or {}).get("replicas")
    return 1 if value is None else max(0, int(value))


def deletion_order(pods: Sequence[Json]) -> list[Json]:
    """Pods in the order of deletion: unassigned, pending, unready, cheap to delete, young first.

    Source: Kubernetes' controller_utils.go (ActivePodsWithRanks).
    """

    def rank(pod: Json) -> tuple[Any, ...]:
        meta = pod["metadata"]
        cost = str((meta.get("annotations") or {}).get(POD_DELETION_COST, "0"))
        return (
            bool((pod.get("spec") or {}).get("nodeName")),
            {"Pending": 0, "Unknown": 1}.get(phase(pod), 2),
            ready(pod),
            int(cost) if cost.lstrip("-").isdecimal() else 0,
            -time_of(meta.get("creationTimestamp")),
            meta["name"],
        )

    return sorted(pods, key=rank)
