"""Who listens to one job, and how signals reach them: training processes, operators, those who execute operations."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from engine.log import get
from engine.model.recovery import words
from engine.model.recovery.conversation import OperationResult, Signal
from engine.serve.grpc import operations
from engine.serve.grpc.streams import Outbox
from engine.wire.clusterd import recover_pb2 as pb

_log = get("grpc.recover")
#: Seconds that a signal waits for a subscriber; killMaster waits longer.
ENQUEUE: Final = float(words.SIGNAL_ENQUEUE)
KILL_ENQUEUE: Final = float(words.KILL_ENQUEUE)
#: Seconds for which clients of a server that died may come back without beginning anew.
RETURN: Final = 60.0
#: After the first came back, so long the others are waited for.
GATHER: Final = 3.0
#: Whoever waits for clients is woken by each that comes, and looks so often whether there still is a reason to wait:
#: thousands of jobs wait at once after the death of a server.
_LOOK: Final = 0.25


class Voice:
    """The streams of one job. ``returning``: whether clients of a server that died are expected back.

    ``current`` arguments answer whether what is to be said still matters; a reset in between makes it void.
    """

    def __init__(self, job: str, *, returning: bool) -> None:
        self.signals: set[Outbox[pb.ProcessManageSignal]] = set()
        self.operators: dict[str, set[Outbox[Any]]] = {operations.NIC: set(), operations.STRESS: set()}
        self.executors: dict[str, set[Outbox[Any]]] = {operations.NIC: set(), operations.STRESS: set()}
        self.results: dict[str, str] = {}
        #: the signal that was handed over last; whoever joins before that is taken note of has to hear it too
        self.handed: Signal | None = None
        self._job = job
        #: what is on its way to a group of streams at this moment, with a future for each stream
        self._saying: dict[int, tuple[Any, list[asyncio.Future[bool]]]] = {}
        self._until: float | None = time.monotonic() + RETURN if returning else None
        self._arrived = asyncio.Event()
        self._back: float | None = None  # when the first of those who are expected back was there

    @property
    def returning(self) -> bool:
        """Whether clients of a server that died may still come back to where they were."""
        return self._until is not None and time.monotonic() < self._until

    def join(self, outbox: Outbox[pb.ProcessManageSignal]) -> None:
        """One more listens; it hears what is on its way to the others at this moment."""
        if self._back is None:
            self._back = time.monotonic()
        self._join(self.signals, outbox)

    def execute(self, kind: str, outbox: Outbox[Any]) -> None:
        """One more executes operations; it hears of the one that is on its way to the others at this moment."""
        self._join(self.executors[kind], outbox)

    def _join(self, boxes: set[Outbox[Any]], outbox: Outbox[Any]) -> None:
        boxes.add(outbox)
        self._arrived.set()
        self._arrived = asyncio.Event()
        saying = self._saying.get(id(boxes))
        if saying is not None:
            message, futures = saying
            futures.append(outbox.send(message))

    def left(self) -> None:
        """The last client went away by itself: nobody is expected back."""
        self._until = None

    def message(self, signal: Signal, uuid: str = "") -> pb.ProcessManageSignal:
        """The signal as it goes over the wire; ``uuid`` is for one that belongs to no round."""
        return pb.ProcessManageSignal(
            uuid=signal.uuid or uuid,
            jobId=self._job,
            signalType=signal.kind,
            actions=signal.actions,
            faultRanks=[pb.FaultRank(rankId=rank.rank, faultType=rank.kind) for rank in signal.ranks],
            changeStrategy=signal.change,
            timeout=signal.timeout,
            nodeRankIds=signal.nodes,
            extraParams=signal.extra,
        )

    async def deliver(self, signal: Signal, uuid: str, subscribers: int, current: Callable[[], bool]) -> bool:
        """Whether the signal reached a subscriber; ``subscribers`` is how many listened before the server died.

        In the storm of clients that come back a stream may break with the signal on it, and for a moment nobody may be
        there: while they are expected, that is no failure.
        """
        patience = KILL_ENQUEUE if signal.kind == words.KILL_MASTER else ENQUEUE
        message = self.message(signal, uuid)
        while True:
            await self._gather(subscribers, current)
            if await self._hand_over(self.signals, message, patience, current):
                self.handed = signal
                return True
            if _open(self.signals) or not self.returning or not current():
                return False

    async def repeat(self, signal: Signal, subscribers: int, current: Callable[[], bool]) -> bool:
        """Say once more what may have been lost with a server, when its clients came back and nobody answers; whether
        it reached one of them.
        """
        await self._gather(subscribers, current)
        last = time.monotonic() + words.REPEAT
        while current() and time.monotonic() < last:
            await asyncio.sleep(0.2)
        if not current() or not await self.deliver(signal, "", subscribers, current):
            return False
        _log.info("said once more", job=self._job, signal=signal.kind, change=signal.change)
        return True

    async def notify(self, kind: str, request: str, current: Callable[[], bool]) -> bool:
        """Whether an operation reached those who execute it."""
        executors = self.executors[kind]
        while self.returning and not _open(executors) and current():
            await self._arrival()
        return await self._hand_over(executors, operations.message(self._job, kind, request), ENQUEUE, current)

    def tell_operator(self, effect: OperationResult) -> None:
        """The result of an operation, to whoever waits for it or asks later."""
        waiting = self.operators[effect.kind]
        if not waiting:
            self.results[effect.kind] = effect.text
        message = operations.result(self._job, effect.kind, effect.text)
        for outbox in list(waiting):
            outbox.put(message)
            outbox.close()

    def dismiss_operators(self) -> None:
        """End the streams of those who wait for a result."""
        for group in self.operators.values():
            for outbox in group:
                outbox.close()

    def close(self) -> None:
        """End every stream."""
        everyone: list[Outbox[Any]] = [*self.signals]
        for group in (*self.operators.values(), *self.executors.values()):
            everyone += group
        for outbox in everyone:
            outbox.close()

    async def _gather(self, subscribers: int, current: Callable[[], bool]) -> None:
        """Clients of a server that died come back one by one; whoever is not there in time misses a signal."""
        while self.returning and not _open(self.signals) and current():
            await self._arrival()
        if not self.returning or self._back is None:
            return
        while len(self.signals) < subscribers and (left := self._back + GATHER - time.monotonic()) > 0 and current():
            await self._arrival(left)

    async def _arrival(self, seconds: float = _LOOK) -> None:
        """Until somebody comes, but only so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, _LOOK)):
                await self._arrived.wait()

    async def _hand_over(
        self, boxes: set[Outbox[Any]], message: Any, patience: float, current: Callable[[], bool]
    ) -> bool:
        """Whether at least one subscriber got it within ``patience`` seconds; slow ones get it when they read. Nobody
        gets what has become void while nobody was there.
        """
        last = time.monotonic() + patience
        while not boxes and (left := last - time.monotonic()) > 0 and current():
            await self._arrival(left)
        if not current():
            return False
        futures = [box.send(message) for box in list(boxes)]
        self._saying[id(boxes)] = saying = (message, futures)
        try:
            last = time.monotonic() + patience
            while (open_ := [one for one in futures if not one.done()]) and (left := last - time.monotonic()) > 0:
                await asyncio.wait(open_, timeout=left)
        finally:
            if self._saying.get(id(boxes)) is saying:
                del self._saying[id(boxes)]
        return any(future.done() and future.result() for future in futures)


def _open(boxes: set[Outbox[Any]]) -> bool:
    """Whether one of the streams still takes messages."""
    return any(not box.closed for box in boxes)


__all__ = ["ENQUEUE", "RETURN", "Voice"]
