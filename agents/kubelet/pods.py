"""The fields of a pod that the device plugin uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.labels import ASCEND_REAL, KUBELET_DEVICES, PREDICATE_TIME
from belay.engine.wire.podannotations import PREDICATE_TIME_USED

REJECTED: Final = "UnexpectedAdmissionError"
VISIBLE: Final = "ASCEND_VISIBLE_DEVICES"
MAX_TIME: Final = (1 << 64) - 1


class PodFacts(msgspec.Struct, frozen=True):
    """One pod of this node.

    ``limits`` sums its containers by resource, ``initial`` holds the limits of init containers; ``references`` are the
    annotations that a container's ``ASCEND_VISIBLE_DEVICES`` reads through the downward API.
    """

    uid: str
    namespace: str
    name: str
    phase: str
    reason: str
    deleting: bool
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    limits: Mapping[str, int]
    initial: Mapping[str, int]
    owner: str
    references: frozenset[str] = frozenset()
    running: bool = False

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def live(self) -> bool:
        """Whether the pod is not finished; a terminating pod is still live."""
        return self.phase not in ("Succeeded", "Failed")

    @property
    def served(self) -> bool:
        """Whether a device plugin has answered for the pod, that is, annotated kubelet's choice."""
        return bool(self.annotations.get(KUBELET_DEVICES)) and bool(self.annotations.get(ASCEND_REAL))

    @property
    def predicate_time(self) -> int | None:
        """Unix nanoseconds of the scheduler's decision; None without one, MAX_TIME once it was used."""
        text = self.annotations.get(PREDICATE_TIME, "")
        if text == PREDICATE_TIME_USED:
            return MAX_TIME
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


UNKNOWN_POD: Final = PodFacts(
    uid="",
    namespace="",
    name="",
    phase="",
    reason="",
    deleting=False,
    annotations={},
    labels={},
    limits={},
    initial={},
    owner="",
)
"""The pod of a request that kubelet makes for a pod whose name is not known yet."""


def facts(body: Mapping[str, Any]) -> PodFacts:
    """Parse a pod from the API server or kubelet. Raises ValueError when it is not a pod."""
    try:
        metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
        containers = [*(spec.get("containers") or ())]
        return PodFacts(
            uid=str(metadata["uid"]),
            namespace=str(metadata.get("namespace") or "default"),
            name=str(metadata["name"]),
            phase=str(status.get("phase") or ""),
            reason=str(status.get("reason") or ""),
            deleting=bool(metadata.get("deletionTimestamp")),
            annotations=_texts(metadata.get("annotations")),
            labels=_texts(metadata.get("labels")),
            limits=_limits(containers),
            initial=_limits(spec.get("initContainers") or ()),
            owner=_owner(metadata),
            references=frozenset(_references(containers)),
            running=any("running" in (c.get("state") or {}) for c in status.get("containerStatuses") or ()),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a pod cannot be read: {type(error).__name__} {error}"[:200]) from error


def _texts(value: Mapping[str, Any] | None) -> dict[str, str]:
    return {str(key): str(text) for key, text in (value or {}).items()}


def _limits(containers: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    out: dict[str, int] = {}
    for container in containers:
        for key, value in ((container.get("resources") or {}).get("limits") or {}).items():
            text = str(value)
            if "/" in key and text.isascii() and text.isdecimal() and len(text) <= 9:
                out[key] = out.get(key, 0) + int(text)
    return out


def _owner(metadata: Mapping[str, Any]) -> str:
    """Return the name of the pod's job, for folders that the job's pods share; the pod's own name without an owner."""
    owners = metadata.get("ownerReferences") or ()
    return str(next((o.get("name") for o in owners if o.get("controller")), None) or metadata["name"])


def _references(containers: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for container in containers:
        for entry in container.get("env") or ():
            if entry.get("name") == VISIBLE:
                field = ((entry.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath") or ""
                if field.startswith("metadata.annotations['") and field.endswith("']"):
                    yield field.removeprefix("metadata.annotations['").removesuffix("']")
