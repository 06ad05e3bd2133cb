"""Write memory, status and Events: only what changed, and memory first."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from belay.engine.act import written
from belay.engine.kube import CONFIGMAP, EVENT, Conflict, Kube, KubeError, NotFound, Object, run_many
from belay.engine.log import get
from belay.engine.model.actions import AnyAction
from belay.engine.model.cluster import Observed
from belay.engine.model.labels import PUBLISHED_ANNOTATION
from belay.engine.model.plan import Plan, ShadowChange
from belay.engine.status import ClusterInfo, WriteTracker, is_foreign
from belay.engine.status.events import (
    MAX_EVENTS,
    events,
    held_events,
    refused_events,
    release_events,
    repeat_events,
    shadow_events,
)
from belay.engine.store import ObjectWrite
from belay.engine.wire import formats, names
from belay.engine.wire.errors import WireError

_log = get("status")
RETRY_SECONDS = 1.0
"""Seconds after which a failed write of status is tried again; each further failure doubles them."""
MAX_RETRY_SECONDS = 8.0
"""Longest wait between tries, while the API server refuses or is away."""
MISSING_RETRY_SECONDS = 60.0
"""Longest wait between tries where the namespace is missing: only a person creates it."""
REPEAT_SECONDS = 600.0
"""Seconds after which the same failure of the same object is logged again."""


class FailedWrites:
    """Status that could not be written: when it is tried again, when that is logged. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: by namespace and name: failures in a row, when it is tried again, what was logged and when
        self._rows: dict[tuple[str, str], tuple[int, float, str, float]] = {}

    def due(self, bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """The bodies that may be tried now."""
        now = self._clock()
        return [body for body in bodies if _place(body) not in self._rows or self._rows[_place(body)][1] <= now]

    def record(self, body: dict[str, Any], error: KubeError) -> None:
        """Record a failure; one line is logged for each object and reason, and again every ten minutes."""
        place, now, reason = _place(body), self._clock(), str(error)
        failures, _, said, logged = self._rows.get(place, (0, 0.0, "", 0.0))
        longest = MISSING_RETRY_SECONDS if isinstance(error, NotFound) else MAX_RETRY_SECONDS
        wait = min(longest, RETRY_SECONDS * 2.0 ** min(failures, 10))
        if reason != said or now - logged >= REPEAT_SECONDS:
            hint = f"create namespace {place[0]} (deploy/base/namespaces.yaml)" if isinstance(error, NotFound) else ""
            more = {"hint": hint} if hint else {}
            _log.warning(
                "status not written", object="/".join(place), failures=failures + 1, retry_s=wait, reason=reason, **more
            )
            said, logged = reason, now
        self._rows[place] = (failures + 1, now + wait, said, logged)

    def succeeded(self, body: dict[str, Any]) -> None:
        """Forget the failures of an object that was written."""
        row = self._rows.pop(_place(body), None)
        if row is not None:
            _log.info("status written again", object="/".join(_place(body)), failures=row[0])

    def keep(self, bodies: Iterable[dict[str, Any]]) -> None:
        """Forget objects that are no longer written."""
        if self._rows:
            places = {_place(body) for body in bodies}
            self._rows = {place: row for place, row in self._rows.items() if place in places}

    def next_due(self) -> float:
        """Seconds until the first failed write is tried again; 0 without failures."""
        now = self._clock()
        return max(0.05, min(row[1] for row in self._rows.values()) - now) if self._rows else 0.0


class StatusWriter:
    """The one writer of a shard's ConfigMaps."""

    def __init__(
        self, kube: Kube, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._wall = wall
        self.info = ClusterInfo()
        self._kube = kube
        self._own: dict[tuple[str, str], str] = {}
        #: objects of a format that a newer version wrote: they stay as they are
        self._newer: set[tuple[str, str]] = set()
        self._shadowed: set[str] = set()
        self._held: set[str] = set()
        self._status = WriteTracker(clock)
        self._failed = FailedWrites(clock)
        # a memory is never held back: disruptive actions wait for it
        self._memory = WriteTracker(partial(next, itertools.count(0.0, 10.0)))

    def receive(self, live: dict[tuple[str, str], Object | None]) -> None:
        """Receive what the cluster holds. Content that we did not write last counts as an edit and is overwritten."""
        for place, obj in live.items():
            self._look_at_format(place, obj)
            if obj is None:
                gone = {"metadata": {"namespace": place[0], "name": place[1]}}
                self._status.forget(gone)
                self._memory.forget(gone)
            elif self._own.get(place) != obj["metadata"].get("resourceVersion"):
                self._status.record_live(obj)
                self._memory.record_live(obj)

    def _look_at_format(self, place: tuple[str, str], obj: Object | None) -> None:
        prefix = next((one for one in formats.NEWEST if place[1].startswith(one)), "")
        newer = False
        if obj is not None and prefix and place[0] == names.SYSTEM:
            try:
                formats.check(obj, prefix)
            except WireError as error:
                newer = True
                if place not in self._newer:
                    _log.error("ConfigMap stays as it is", object="/".join(place), reason=str(error))
        (self._newer.add if newer else self._newer.discard)(place)

    async def write_memories(self, bodies: Iterable[dict[str, Any]]) -> list[ObjectWrite]:
        """Write the memories that changed. Raises KubeError: a pass without its memory must not act."""
        writes: list[ObjectWrite] = []
        wanted = list(bodies)
        for place in sorted(self._newer & {_place(body) for body in wanted}):
            raise KubeError(
                f"a newer Belay wrote ConfigMap {'/'.join(place)}: this version neither acts nor overwrites it; run "
                "the newer one again, or go back as docs/upgrading.md says"
            )
        due = self._memory.due(wanted)
        async for outcome in run_many([partial(self._kube.apply, body) for body in due]):
            if outcome.error is not None:
                raise outcome.error
            assert outcome.value is not None
            writes.append(self._record_write(due[outcome.index], outcome.value))
        return writes

    async def delete_memories(self, gone: Iterable[str]) -> None:
        """Delete the ConfigMaps of deleted jobs; the next pass retries failures."""
        calls = [partial(self._kube.delete, CONFIGMAP, name, names.SYSTEM) for name in gone]
        async for outcome in run_many(calls):
            if outcome.error is not None and not isinstance(outcome.error, NotFound):
                _log.warning("memory not deleted", reason=str(outcome.error))

    async def delete_status(self, places: Iterable[tuple[str, str]]) -> None:
        """Delete status ConfigMaps, by namespace and name, that are not needed; the next pass retries failures."""
        dropped = list(places)
        calls = [partial(self._kube.delete, CONFIGMAP, name, namespace) for namespace, name in dropped]
        for namespace, name in dropped:  # should it come again, it is written even if unchanged
            self._status.forget({"metadata": {"namespace": namespace, "name": name}})
        async for outcome in run_many(calls):
            if outcome.error is not None and not isinstance(outcome.error, NotFound):
                _log.warning("status not deleted", reason=str(outcome.error))

    async def write_status(self, bodies: list[dict[str, Any]], *, foreign: bool = False) -> float:
        """Write the status that changed and is due. Returns the seconds until the rest is due, 0 when nothing is left.

        While ``foreign`` components read the aggregates, these are republished every five seconds, changed or not, with
        the time as an annotation, because a write without a change reaches no watch.
        """
        self._status.has_foreign_readers = foreign
        bodies = [body for body in bodies if _place(body) not in self._newer]
        self._failed.keep(bodies)
        due = self._failed.due(self._status.due(bodies))
        stamp = {PUBLISHED_ANNOTATION: str(int(self._wall()))}
        sent = [_stamped(body, stamp) if foreign and is_foreign(body) else body for body in due]
        async for outcome in run_many([partial(self._kube.apply, body) for body in sent]):
            body = due[outcome.index]
            if outcome.value is not None:
                self._record_write(body, outcome.value)
                self._failed.succeeded(body)
                continue
            self._status.forget(body)
            assert outcome.error is not None
            self._failed.record(body, outcome.error)
        waits = (self._failed.next_due(), self._status.next_due(self._failed.due(bodies)))
        return min((seconds for seconds in waits if seconds), default=0.0)

    async def write_shadow_events(self, changes: Iterable[ShadowChange], now: float) -> None:
        """Write Events for what shadow policies would change since the last pass, best effort."""
        await self._create_new_events(shadow_events(tuple(changes), now), self._shadowed)

    async def write_held_events(self, plan: Plan) -> None:
        """Write Events for deletions that wait for a confirmation, and for repeated actions, best effort."""
        await self._create_new_events([*held_events(plan), *repeat_events(plan)], self._held)

    async def _create_new_events(self, events: Iterable[Object], known: set[str]) -> None:
        """Create the Events whose namespace and name are not ``known`` yet, and forget those no longer planned."""
        bodies = {f"{body['metadata']['namespace']}/{body['metadata']['name']}": body for body in events}
        known.intersection_update(bodies)
        fresh = [name for name in bodies if name not in known][:MAX_EVENTS]
        calls = [partial(self._kube.create, EVENT, bodies[name]) for name in fresh]
        async for outcome in run_many(calls, in_flight=8):
            if outcome.error is None or isinstance(outcome.error, Conflict):
                known.add(fresh[outcome.index])
            else:
                _log.warning("event not written", reason=str(outcome.error))

    async def write_release_events(self, observed: Observed, plan: Plan) -> None:
        """Write Events for upgrades that ended with this pass, best effort."""
        calls = [partial(self._kube.create, EVENT, body) for body in release_events(observed, plan)]
        async for outcome in run_many(calls, in_flight=8):
            if outcome.error is not None and not isinstance(outcome.error, Conflict):
                _log.warning("event not written", reason=str(outcome.error))

    def _record_write(self, body: dict[str, Any], stored: Object) -> ObjectWrite:
        self._status.record_write(body)
        self._memory.record_write(body)
        record = written(stored)
        self._own[(record.namespace, record.name)] = record.rv
        return record


def _place(body: dict[str, Any]) -> tuple[str, str]:
    metadata = body["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _stamped(body: dict[str, Any], stamp: dict[str, str]) -> dict[str, Any]:
    """A copy of the body with one more annotation; bodies are cached and never changed."""
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **stamp}}}


async def write_events(
    kube: Kube,
    done: list[AnyAction],
    refused: list[tuple[AnyAction, str]],
    now: float,
    batches: int = 1,
    traces: Sequence[str] = (),
) -> None:
    """Write Events for actions that were carried out, and for those refused that concern a user, best effort.

    All ``batches`` of a pass share one limit, or Events would cost the API server as much as the bindings that they
    report.
    """
    most = max(1, MAX_EVENTS // batches)
    found = [*refused_events(refused, now), *events(done, now, traces)][:most]
    async for outcome in run_many([partial(kube.create, EVENT, event) for event in found], in_flight=8):
        if outcome.error is not None and not isinstance(outcome.error, Conflict):
            _log.warning("event not written", reason=str(outcome.error))
