"""Writing what people and other components read: memory first, status after, only what changed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from engine.act import written
from engine.kube import CONFIGMAP, EVENT, Conflict, Kube, NotFound, Object, many
from engine.log import get
from engine.model.actions import AnyAction
from engine.model.cluster import Observed
from engine.model.plan import Plan, ShadowChange
from engine.status import ClusterInfo, Ledger, events, is_foreign
from engine.status.events import MAX_EVENTS, release_events, shadow_events
from engine.store import Write
from engine.wire import names

_log = get("status")
PUBLISHED = "belay.dev/published"
"""Annotation of a republished aggregate: when, in Unix seconds."""
RETRY_SECONDS = 1.0
"""After so long a status that could not be written is tried again."""


class Teller:
    """The one writer of a shard's ConfigMaps."""

    def __init__(
        self, kube: Kube, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._wall = wall
        self.info = ClusterInfo()
        self._kube = kube
        self._own: dict[tuple[str, str], str] = {}
        self._shadowed: set[str] = set()
        self._status = Ledger(clock)
        # a memory is never held back: disruptive actions wait for it
        self._memory = Ledger(partial(next, itertools.count(0.0, 10.0)))

    def learn(self, live: dict[tuple[str, str], Object | None]) -> None:
        """Take over what the cluster holds, unless it is what we wrote last: edits by others are then written over."""
        for place, obj in live.items():
            if obj is None:
                gone = {"metadata": {"namespace": place[0], "name": place[1]}}
                self._status.forget(gone)
                self._memory.forget(gone)
            elif self._own.get(place) != obj["metadata"].get("resourceVersion"):
                self._status.learn(obj)
                self._memory.learn(obj)

    async def remember(self, bodies: Iterable[dict[str, Any]]) -> list[Write]:
        """Write the memories that changed. Raises KubeError: without its memory a pass does nothing."""
        writes: list[Write] = []
        due = self._memory.pick(bodies)
        async for outcome in many([partial(self._kube.apply, body) for body in due]):
            if outcome.error is not None:
                raise outcome.error
            assert outcome.value is not None
            writes.append(self._wrote(due[outcome.index], outcome.value))
        return writes

    async def forget(self, gone: Iterable[str]) -> None:
        """Delete the ConfigMaps of jobs that are gone for good; one that fails is tried again by the next pass."""
        calls = [partial(self._kube.delete, CONFIGMAP, name, names.SYSTEM) for name in gone]
        async for outcome in many(calls):
            if outcome.error is not None and not isinstance(outcome.error, NotFound):
                _log.warning("memory not deleted", reason=str(outcome.error))

    async def drop(self, places: Iterable[tuple[str, str]]) -> None:
        """Delete status ConfigMaps, by namespace and name, that nobody needs any more; the next pass tries again."""
        calls = [partial(self._kube.delete, CONFIGMAP, name, namespace) for namespace, name in places]
        async for outcome in many(calls):
            if outcome.error is not None and not isinstance(outcome.error, NotFound):
                _log.warning("status not deleted", reason=str(outcome.error))

    async def tell(self, bodies: list[dict[str, Any]], *, foreign: bool = False) -> float:
        """Write the status that changed and whose turn it is; seconds after which the rest can be told, 0 without.

        While ``foreign`` components read the aggregates these are published again every five seconds, changed or not,
        with the time as an annotation: a write that changes nothing reaches no watch.
        """
        again = 0.0
        self._status.foreign = foreign
        due = self._status.pick(bodies)
        stamp = {PUBLISHED: str(int(self._wall()))}
        sent = [_stamped(body, stamp) if foreign and is_foreign(body) else body for body in due]
        async for outcome in many([partial(self._kube.apply, body) for body in sent]):
            if outcome.value is not None:
                self._wrote(due[outcome.index], outcome.value)
                continue
            again = RETRY_SECONDS
            self._status.forget(due[outcome.index])
            name = due[outcome.index]["metadata"]["name"]
            _log.warning("status not written", object=name, reason=str(outcome.error))
        return again or self._status.wait(bodies)

    async def tell_shadows(self, changes: Iterable[ShadowChange], now: float) -> None:
        """Events for what shadow policies would change since the last pass; losing one loses nothing but the Event."""
        bodies = {body["metadata"]["name"]: body for body in shadow_events(tuple(changes), now)}
        self._shadowed &= bodies.keys()
        fresh = [name for name in bodies if name not in self._shadowed][:MAX_EVENTS]
        calls = [partial(self._kube.create, EVENT, bodies[name]) for name in fresh]
        async for outcome in many(calls, in_flight=8):
            if outcome.error is None or isinstance(outcome.error, Conflict):
                self._shadowed.add(fresh[outcome.index])
            else:
                _log.warning("event not written", reason=str(outcome.error))

    async def tell_releases(self, observed: Observed, plan: Plan) -> None:
        """Events for upgrades that ended with this pass; losing one loses nothing but the Event."""
        calls = [partial(self._kube.create, EVENT, body) for body in release_events(observed, plan)]
        async for outcome in many(calls, in_flight=8):
            if outcome.error is not None and not isinstance(outcome.error, Conflict):
                _log.warning("event not written", reason=str(outcome.error))

    def _wrote(self, body: dict[str, Any], stored: Object) -> Write:
        self._status.written(body)
        self._memory.written(body)
        record = written(stored)
        self._own[(record.namespace, record.name)] = record.rv
        return record


def _stamped(body: dict[str, Any], stamp: dict[str, str]) -> dict[str, Any]:
    """The body with one more annotation; bodies themselves are remembered and never changed."""
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **stamp}}}


async def tell_events(kube: Kube, done: list[AnyAction], now: float, batches: int = 1) -> None:
    """Events for what was carried out; losing one loses nothing but the Event. All ``batches`` of a pass together tell
    no more than one would, or events would cost the API server as much as the bindings that they are about.
    """
    most = max(1, MAX_EVENTS // batches)
    async for outcome in many([partial(kube.create, EVENT, event) for event in events(done, now)[:most]], in_flight=8):
        if outcome.error is not None and not isinstance(outcome.error, Conflict):
            _log.warning("event not written", reason=str(outcome.error))
