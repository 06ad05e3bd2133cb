"""Rows of `belay get` about objects as the API server has them: pods with NPUs, and objects of Belay's kinds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from belay.engine.cli.selection import Answer
from belay.engine.kube.errors import NotFound
from belay.engine.kube.resources import POD, Resource, resource_for
from belay.engine.model.labels import ASCEND_REAL, HUAWEI_PREFIX

if TYPE_CHECKING:
    from belay.engine.cli.label_selectors import LabelSelector
    from belay.engine.kube.lister import Lister

Json = Mapping[str, Any]
_BELAY: Final = "belay.dev/v1alpha1"
#: By kind of `belay get`, the kind of the API server.
OBJECTS: Final[Mapping[str, Resource]] = {
    "pods": POD,
    "isolations": resource_for(_BELAY, "Isolation"),
    "budgets": resource_for(_BELAY, "SafetyBudget"),
    "policies": resource_for(_BELAY, "FaultPolicy"),
}
_MOST: Final = 20


class ListedObjects:
    """Objects that were read once, at ``now`` (Unix seconds)."""

    note: Final = ""

    def __init__(self, items: Iterable[Json], now: float) -> None:
        self._items, self.now = list(items), now

    def answer(self, what: str) -> Answer:
        """The rows of a kind."""
        columns, wide, row = _ROWS[what]
        found = [row(item) for item in self._items if what != "pods" or _asked(item)]
        return Answer(columns, sorted(found, key=lambda one: [str(one.get(key)) for key in columns[:2]]), wide)


def listed(what: str, labels: LabelSelector | None, inputs: Mapping[str, Any]) -> ListedObjects:
    """The objects of a kind: of the live cluster, or of a file.

    Raises:
        BelayError: the cluster does not answer, or an option does not go with the file.
    """
    from belay.engine.cli.inputs import LIVE, cluster_items
    from belay.engine.kube import ask_once

    if inputs["cluster"] == LIVE:
        return ask_once(
            inputs["kubeconfig"], lambda kube: read_objects(what, labels, kube), context=inputs["context"]
        )  # fmt: skip
    items, clock, _ = cluster_items(inputs["cluster"], None, None)
    kind = OBJECTS[what].kind
    of_kind = (item for item in items if item.get("kind") == kind)
    return ListedObjects([item for item in of_kind if labels is None or labels.chooses(item)], clock)


async def read_objects(what: str, labels: LabelSelector | None, kube: Lister) -> ListedObjects:
    """The objects of a kind over a connection; none where the cluster does not serve it."""
    try:
        items = (await kube.list(OBJECTS[what], labels=labels.text if labels else None)).items
    except NotFound:
        items = []
    return ListedObjects(items, time.time())


def _asked(pod: Json) -> bool:
    """Whether a pod asks for NPUs."""
    return bool(_requests(pod))


def _requests(pod: Json) -> dict[str, int]:
    found: dict[str, int] = {}
    for container in (pod.get("spec") or {}).get("containers") or ():
        for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            if str(name).startswith(HUAWEI_PREFIX) and str(amount).isdecimal():
                found[name] = found.get(name, 0) + int(amount)
    return found


def _pod(pod: Json) -> dict[str, Any]:
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    owners = metadata.get("ownerReferences") or [{}]
    states = status.get("containerStatuses") or ()
    phase = "Terminating" if metadata.get("deletionTimestamp") else status.get("phase")
    return {
        "namespace": metadata.get("namespace"),
        "name": metadata.get("name"),
        "phase": phase,
        "node": (pod.get("spec") or {}).get("nodeName"),
        "chips": [one for one in str((metadata.get("annotations") or {}).get(ASCEND_REAL) or "").split(",") if one],
        "requests": _requests(pod),
        "owner": f"{owners[0]['kind']}/{owners[0]['name']}" if owners[0].get("kind") else None,
        "restarts": sum(int(one.get("restartCount") or 0) for one in states),
        "created": metadata.get("creationTimestamp"),
        "reason": status.get("reason") or _waits(states),
    }


def _waits(states: Sequence[Json]) -> str | None:
    """Why a container of the pod does not run."""
    reasons = [((one.get("state") or {}).get("waiting") or {}).get("reason") for one in states]
    return next((reason for reason in reasons if reason), None)


def _isolation(item: Json) -> dict[str, Any]:
    spec = item.get("spec") or {}
    chips = [f"{one.get('node')}/{chip}" for one in spec.get("chips") or () for chip in one.get("chips") or ()]
    return {**_named(item), "nodes": list(spec.get("nodes") or ()), "chips": chips[:_MOST], "until": spec.get("until"),
            "reason": spec.get("reason")}  # fmt: skip


def _budget(item: Json) -> dict[str, Any]:
    limits = (item.get("spec") or {}).get("limits") or ()
    return {**_named(item), "limits": [_limit(one) for one in limits][:_MOST]}


def _limit(one: Json) -> str:
    most = one.get("max")
    shown = " or ".join(map(str, most)) if isinstance(most, list) else str(most)
    return f"{'+'.join(map(str, one.get('actions') or ()))} {shown} per {one.get('per')} in {one.get('window')}"


def _policy(item: Json) -> dict[str, Any]:
    spec = item.get("spec") or {}
    scope = [f"{key}: {'+'.join(map(str, values))}" for key, values in (spec.get("scope") or {}).items()]
    return {
        **_named(item),
        "mode": spec.get("mode") or "enforce",
        "scope": scope,
        "levels": len(spec.get("levels") or ()),
        "frequency": len(spec.get("frequency") or ()),
        "duration": len(spec.get("duration") or ()),
    }


def _named(item: Json) -> dict[str, Any]:
    """Its name, and what the engine says of it."""
    metadata, conditions = item.get("metadata") or {}, (item.get("status") or {}).get("conditions") or ()
    ready: Json = next((one for one in conditions if one.get("type") == "Ready"), {})
    said = ready.get("status")
    return {
        "name": metadata.get("name"),
        "ready": "yes" if said == "True" else str(ready.get("reason") or "no") if said else None,
        "created": metadata.get("creationTimestamp"),
    }


_Row = Callable[[Json], dict[str, Any]]
_ROWS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...], _Row]]] = {
    "pods": (
        ("namespace", "name", "phase", "node", "chips", "restarts", "reason"), ("requests", "owner", "created"), _pod,
    ),
    "isolations": (("name", "nodes", "chips", "until", "ready", "reason"), ("created",), _isolation),
    "budgets": (("name", "ready", "limits"), ("created",), _budget),
    "policies": (("name", "ready", "mode", "scope", "levels", "frequency", "duration"), ("created",), _policy),
}  # fmt: skip
