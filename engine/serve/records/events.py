"""The engine's Events, as the history needs them: what was done to nodes, chips, pods and objects, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.causes import Cause
from belay.engine.model.labels import EVENT_CAUSE, EVENT_CHIPS
from belay.engine.serve.console.texts import decoded, line, mapping, name
from belay.engine.serve.records.reading import moment
from belay.engine.status.events import COMPONENT, SCHEDULED
from belay.engine.status.waiting_pods import FAILED_SCHEDULING, SCHEDULING
from belay.engine.wire.objects import UNSCHEDULABLE

#: Fields by which the API server selects the engine's Events.
FIELDS: Final = f"source={COMPONENT}"
BIND: Final = "BindPod"
EVICT: Final = "EvictPod"


class SeenEvent(msgspec.Struct, frozen=True):
    """One Event. ``kind`` and ``name`` say what it is about, ``cause`` why it was done, ``chips`` to which chips."""

    id: str
    at: int
    action: str
    reason: str
    kind: str
    namespace: str
    name: str
    text: str
    cause: Cause | None = None
    chips: tuple[str, ...] = ()

    @property
    def chip(self) -> int:
        """The number of the only chip that it is about; -1 where it is about several, or none."""
        number = self.chips[0].rpartition("-")[2] if len(self.chips) == 1 else ""
        return int(number) if number.isascii() and number.isdecimal() and len(number) < 6 else -1

    @property
    def pod(self) -> str:
        """``namespace/name`` of the pod that it is about; empty for anything else."""
        return f"{self.namespace}/{self.name}" if self.kind == "Pod" else ""


def read_event(raw: Mapping[str, Any]) -> SeenEvent | None:
    """One Event; None for one that another component wrote or that cannot be read."""
    metadata, subject = mapping(raw.get("metadata")), mapping(raw.get("involvedObject"))
    if mapping(raw.get("source")).get("component") != COMPONENT:
        return None
    at = moment(raw.get("firstTimestamp")) or moment(metadata.get("creationTimestamp"))
    identity = str(metadata.get("uid") or "") or f"{metadata.get('namespace')}/{metadata.get('name')}"
    if not at:
        return None
    marks = mapping(metadata.get("annotations"))
    chips = line(marks.get(EVENT_CHIPS), 4000)
    return SeenEvent(
        id=line(identity, 600),
        at=at,
        action=line(raw.get("action"), 64),
        reason=line(raw.get("reason"), 128),
        kind=line(subject.get("kind"), 64),
        namespace=name(subject.get("namespace")),
        name=name(subject.get("name")),
        text=line(raw.get("message"), 1000),
        cause=_cause(marks.get(EVENT_CAUSE)),
        chips=tuple(chips.split(",")) if chips else (),
    )


def read_events(listed: Iterable[Mapping[str, Any]]) -> list[SeenEvent]:
    """The engine's Events of a list, in order of time."""
    found = [event for event in map(read_event, listed) if event is not None]
    return sorted(found, key=lambda event: (event.at, event.id))


def is_binding(event: SeenEvent) -> bool:
    """Whether it says that a pod was given its node and chips; what pods hold says it too."""
    return event.action == BIND and event.reason == SCHEDULED


def is_waiting(event: SeenEvent) -> bool:
    """Whether it says that a pod or job waits, which is nothing that was done; the job's status says it once."""
    return event.action == SCHEDULING and event.reason in (FAILED_SCHEDULING, UNSCHEDULABLE)


def _cause(text: Any) -> Cause | None:
    if not isinstance(text, str) or not isinstance(decoded(text), dict):
        return None
    try:
        return msgspec.convert(decoded(text), Cause)
    except msgspec.ValidationError:
        return None
