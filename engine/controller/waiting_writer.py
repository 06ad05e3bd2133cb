"""Write on pods and jobs why they wait: conditions and Events, on change only, a bounded number in each pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from belay.engine.kube import EVENT, POD, Conflict, Kube, NotFound, run_many
from belay.engine.log import get
from belay.engine.status.waiting_pods import Waiting, condition_patch, event, repeated

_log = get("status")
MAX_WRITTEN: Final = 250
"""Most objects written in one pass; each costs at most a patch, a read and a write of its Event."""
REFRESH: Final = 60.0
"""Seconds between updates of a text whose reason is the same: its numbers may change in every pass."""
EVENT_AGAIN: Final = 1800.0
"""Seconds after which an unchanged Event is repeated: API servers delete Events after an hour by default."""
RETRY_SECONDS: Final = 1.0
IN_FLIGHT: Final = 16


class _Written(msgspec.Struct):
    """What was last written about an object: when (monotonic seconds), why, and how often its Event was counted.

    ``count`` is 0 where an earlier process wrote the Event.
    """

    time: float
    reason: str
    text: str
    count: int


class WaitingWriter:
    """Writes conditions and Events for one shard; remembers what it wrote, bounded by the objects that wait."""

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._written: dict[str, _Written] = {}

    async def write(self, waiting: Sequence[Waiting], now: float) -> float:
        """Write what is new. Returns seconds until the rest is due, 0 when nothing is left. ``now``: Unix seconds.

        A write that fails does not end the pass: the next one tries again.
        """
        moment = self._clock()
        current = {one.uid for one in waiting}
        self._written = {uid: last for uid, last in self._written.items() if uid in current}
        fresh = [one for one in waiting if self._is_news(one, moment)]
        stale = [one for one in waiting if self._is_stale(one, moment)]
        stale.sort(key=lambda one: self._written[one.uid].time)
        chosen = [*fresh, *stale][:MAX_WRITTEN]
        again = RETRY_SECONDS if len(fresh) > MAX_WRITTEN else 0.0
        async for outcome in run_many(
            [partial(self._write_one, one, now, moment) for one in chosen], in_flight=IN_FLIGHT
        ):
            if outcome.error is None:
                continue
            one = chosen[outcome.index]
            self._written.pop(one.uid, None)
            if isinstance(outcome.error, NotFound):
                continue  # it is gone
            again = RETRY_SECONDS
            if isinstance(outcome.error, Conflict):
                continue  # it changed meanwhile: a newer snapshot knows more
            _log.warning("reason of waiting pod not written", object=one.subject["name"], reason=str(outcome.error))
        return again

    def _is_news(self, one: Waiting, moment: float) -> bool:
        """Whether nothing was written about it yet, or it waits for another reason now."""
        last = self._written.get(one.uid)
        if last is not None:
            return last.reason != one.reason
        if one.pod is not None and one.pod.unscheduled == one.text:
            self._written[one.uid] = _Written(moment, one.reason, one.text, 0)  # by an earlier process
            return False
        return True

    def _is_stale(self, one: Waiting, moment: float) -> bool:
        """Whether the text, or the Event, is due again for the same reason."""
        last = self._written.get(one.uid)
        if last is None or last.reason != one.reason:
            return False
        lost = one.pod is not None and one.pod.unscheduled != one.text
        return moment - last.time >= (REFRESH if lost or last.text != one.text else EVENT_AGAIN)

    async def _write_one(self, one: Waiting, now: float, moment: float) -> None:
        """Write the condition, then the Event. Raises KubeError."""
        last = self._written.get(one.uid)
        if one.pod is not None and one.pod.unscheduled != one.text:
            patch = condition_patch(one, now)
            await self._kube.patch(POD, one.pod.name, patch, one.pod.namespace, kind="strategic", subresource="status")
        count = last.count + 1 if last is not None and last.reason == one.reason and last.count else 0
        self._written[one.uid] = _Written(moment, one.reason, one.text, await self._announce(one, count, now))

    async def _announce(self, one: Waiting, count: int, now: float) -> int:
        """Write or count the Event; returns its count. ``count`` is 0 if the present one is not known."""
        namespace = one.subject["namespace"]
        try:
            if count:
                await self._kube.patch(EVENT, one.event_name, repeated(one, count, now), namespace)
                return count
        except NotFound:
            pass  # it has expired
        try:
            await self._kube.create(EVENT, event(one, now))
            return 1
        except Conflict:
            found = await self._kube.get(EVENT, one.event_name, namespace)
            seen = (found or {}).get("count")
            count = (seen if isinstance(seen, int) else 1) + 1
            await self._kube.patch(EVENT, one.event_name, repeated(one, count, now), namespace)
            return count
