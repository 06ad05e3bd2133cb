"""Public faults that this server decides on itself: sent when they begin and end, and recorded for the next server.

A record is a ConfigMap of ``belay-system`` with one row a fault (`belay.engine.wire.slownode.record`); what was sent is
not sent again, also while the rest cannot be sent or recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from belay.engine.kube import CONFIGMAP, Conflict, Kube
from belay.engine.log import get
from belay.engine.serve.grpc.public_faults import PubFaultService, too_large
from belay.engine.wire import slownode
from belay.engine.wire.names import SYSTEM

_log = get("grpc.ongoing")
MAX_FAULTS: Final = 50
"""Faults of one message."""
MAX_RECORDED: Final = 1000
"""Most ongoing faults of one kind."""
News = tuple[str, dict[str, Any], str]
"""A fault that began or ended: its key, its row in the record, and ``occur`` or ``recover``."""


class OngoingFaults:
    """The ongoing faults of one kind. ``name`` is their ConfigMap, ``about`` the prefix of message ids; ``clock`` gives
    milliseconds since 1970.
    """

    def __init__(self, kube: Kube, public: PubFaultService, name: str, about: str, clock: Callable[[], int]) -> None:
        self._kube, self._public, self._name, self._about, self._clock = kube, public, name, about, clock
        self.rows: dict[str, dict[str, Any]] | None = None
        self._recorded = True

    def forget(self) -> None:
        """Read the record again next time: another server leads meanwhile."""
        self.rows = None

    async def load(self) -> dict[str, dict[str, Any]]:
        """Return the rows of the ongoing faults by key. Raises KubeError."""
        if self.rows is None:
            self.rows = slownode.recorded(await self._kube.get(CONFIGMAP, self._name, SYSTEM))
        return self.rows

    async def report(self, wanted: Mapping[str, dict[str, Any]], unjudged: Callable[[Mapping[str, Any]], bool]) -> None:
        """Send what began and ended, then record it. Raises KubeError.

        ``unjudged``: whether this server does not know yet if a fault is still there; such a fault is kept.
        """
        before = await self.load()
        kept = {key: row for key, row in before.items() if key in wanted or unjudged(row)}
        wanted = dict(sorted({**kept, **wanted}.items())[:MAX_RECORDED])
        if wanted == before and self._recorded:
            return
        recorded = dict(before)
        news: list[News] = [(key, row, "occur") for key, row in wanted.items() if key not in recorded]
        news += [(key, row, "recover") for key, row in before.items() if key not in wanted]
        for number, part in enumerate(self._parts(news)):
            problem = await self._public.report(self._message(part, number))
            if problem:
                _log.warning("faults are not stored, tried again", about=self._about, reason=problem)
                break
            for key, row, assertion in part:
                if assertion == "occur":
                    recorded[key] = row
                else:
                    recorded.pop(key, None)
            self._recorded = False
        else:
            recorded, self._recorded = wanted, False
        self.rows = recorded
        if not self._recorded:
            await self._record(recorded)

    def _parts(self, news: list[News]) -> list[list[News]]:
        """The faults in messages that the inbox can hold; one that no inbox can hold is left out."""
        todo = [news[begin : begin + MAX_FAULTS] for begin in range(0, len(news), MAX_FAULTS)][::-1]
        parts: list[list[News]] = []
        while todo:
            part = todo.pop()
            if not too_large(self._message(part, 0)):
                parts.append(part)
            elif len(part) == 1:
                _log.error("a fault is larger than the inbox and left out", about=self._about, fault=part[0][0])
            else:
                todo += [part[len(part) // 2 :], part[: len(part) // 2]]
        return parts

    def _message(self, part: Sequence[News], number: int) -> dict[str, Any]:
        now = self._clock()
        rows = [slownode.claim(row, assertion, now) for _, row, assertion in part]
        return slownode.message(f"{self._about}-{now}-{number}", now, rows)

    async def _record(self, rows: Mapping[str, dict[str, Any]]) -> None:
        body = slownode.record(rows, self._name, self._about)
        live = await self._kube.get(CONFIGMAP, self._name, SYSTEM)
        try:
            if live is None:
                await self._kube.create(CONFIGMAP, body)
            elif live.get("data") != body["data"]:
                await self._kube.replace(CONFIGMAP, {**live, "data": body["data"]})
        except Conflict:
            return  # the next look writes it
        self._recorded = True


__all__ = ["MAX_FAULTS", "MAX_RECORDED", "OngoingFaults"]
