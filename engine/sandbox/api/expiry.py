"""Expiry of Events: after an hour, like --event-ttl of kube-apiserver, or when there are more than MAX_EVENTS."""

from __future__ import annotations

from belay.engine.sandbox.api.kinds import JSON
from belay.engine.sandbox.api.metadata import parse_time
from belay.engine.sandbox.api.store import ClusterStore, ObjectVersion

EVENT_SECONDS = 3600.0
MAX_EVENTS = 10_000
EXPIRY_SECONDS = 30.0
"""Seconds between searches for expired events."""


def expire_events(store: ClusterStore, now: float) -> int:
    """Delete events last touched more than EVENT_SECONDS before `now` (unix seconds), and the oldest beyond MAX_EVENTS.

    Returns how many were deleted.
    """
    entries = sorted(store.collection("events").entries(), key=lambda entry: entry.rv)
    surplus = max(0, len(entries) - MAX_EVENTS)
    gone = [entry for i, entry in enumerate(entries) if i < surplus or now - _touched(entry) > EVENT_SECONDS]
    for entry in gone:
        store.delete(entry.storage, entry.key)
    return len(gone)


def _touched(entry: ObjectVersion) -> float:
    obj: JSON = entry.obj
    times = [
        obj["metadata"]["creationTimestamp"],
        obj.get("lastTimestamp"),
        (obj.get("series") or {}).get("lastObservedTime"),
    ]
    newest = 0.0
    for text in times:
        try:
            newest = max(newest, parse_time(str(text))) if text else newest
        except ValueError:
            # skip an unreadable time; the creation time is always readable
            continue
    return newest
