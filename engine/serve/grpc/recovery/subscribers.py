"""The streams of one job, and how signals reach them: training processes, operators, executors of operations."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from typing import Any, Final

from belay.engine.log import get
from belay.engine.model.recovery import protocol
from belay.engine.model.recovery.conversation import OperationResult, Signal
from belay.engine.serve.grpc.recovery import operations
from belay.engine.serve.grpc.streams import MessageQueue
from belay.engine.wire.clusterd import recover_pb2 as pb

_log = get("grpc.recover")
#: Seconds for which a signal waits for a subscriber; killMaster waits longer.
ENQUEUE: Final = float(protocol.SIGNAL_ENQUEUE)
KILL_ENQUEUE: Final = float(protocol.KILL_ENQUEUE)
#: Seconds in which clients of a dead server may return without restarting the conversation.
RETURN_SECONDS: Final = 60.0
#: Seconds for which a signal waits for the others after the first client returned.
GATHER_SECONDS: Final = 3.0
#: Seconds between checks whether waiting for clients still has a reason; each client that arrives also ends the wait.
#: Thousands of jobs wait at once after the death of a server.
_CHECK_SECONDS: Final = 0.25


class Subscribers:
    """The streams of one job. ``returning``: whether clients of a dead server are expected to return.

    ``current`` arguments say whether a signal is still valid; a reset makes it void.
    """

    def __init__(self, job: str, *, returning: bool) -> None:
        self.signals: set[MessageQueue[pb.ProcessManageSignal]] = set()
        self.operators: dict[str, set[MessageQueue[Any]]] = {operations.NIC: set(), operations.STRESS: set()}
        self.executors: dict[str, set[MessageQueue[Any]]] = {operations.NIC: set(), operations.STRESS: set()}
        self.results: dict[str, str] = {}
        #: the signal delivered last; a subscriber that joins before that is recorded must get it too
        self.delivered: Signal | None = None
        self._job = job
        #: what is on its way to a group of streams at this moment, with a future for each stream
        self._in_transit: dict[int, tuple[Any, list[asyncio.Future[bool]]]] = {}
        self._until: float | None = time.monotonic() + RETURN_SECONDS if returning else None
        self._arrived = asyncio.Event()
        self._back: float | None = None  # when the first of those who are expected back was there
        #: how many clients whose streams ended with a conversation are expected back
        self._expected = 0

    @property
    def returning(self) -> bool:
        """Whether clients of a dead server, or of a conversation that is over, may still return without restarting the
        next one.
        """
        return self._until is not None and time.monotonic() < self._until

    def join(self, queue: MessageQueue[pb.ProcessManageSignal]) -> None:
        """Add a subscriber; it also gets a signal that is on its way to the others."""
        if self._back is None:
            self._back = time.monotonic()
        self._join(self.signals, queue)
        if self._expected and len(self.signals) >= self._expected:
            self.end_return()

    def replace_earlier(self, queue: MessageQueue[pb.ProcessManageSignal]) -> bool:
        """End the earlier streams of the client that now subscribes; returns whether it had any."""
        earlier = [one for one in self.signals if one.role == queue.role and one.host == queue.host]
        for one in earlier:
            self.signals.discard(one)
            one.close()
        return bool(earlier)

    def end_signals(self, queues: Collection[MessageQueue[pb.ProcessManageSignal]]) -> None:
        """End streams of training processes: their conversation is over, and they subscribe again. A signal of the next
        conversation waits until they have.
        """
        ended = self.signals.intersection(queues)
        if not ended:
            return
        self.signals -= ended
        for queue in ended:
            queue.close()
        self._expected, self._back = len(self.signals) + len(ended), None
        self._until = time.monotonic() + RETURN_SECONDS

    def join_executors(self, kind: str, queue: MessageQueue[Any]) -> None:
        """Add an executor of operations; it also gets the operation that is on its way to the others."""
        self._join(self.executors[kind], queue)

    def _join(self, queues: set[MessageQueue[Any]], queue: MessageQueue[Any]) -> None:
        queues.add(queue)
        self._arrived.set()
        self._arrived = asyncio.Event()
        transit = self._in_transit.get(id(queues))
        if transit is not None:
            message, futures = transit
            futures.append(queue.send(message))

    def end_return(self) -> None:
        """Stop expecting clients to return: they are back, or the last one left on its own."""
        self._until, self._expected = None, 0

    def message(self, signal: Signal, uuid: str = "") -> pb.ProcessManageSignal:
        """The signal as a message; ``uuid`` is used for a signal that belongs to no round."""
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

    async def deliver(self, signal: Signal, uuid: str, expected: int, current: Callable[[], bool]) -> bool:
        """Whether the signal reached a subscriber; ``expected`` is how many subscribed before the server died.

        While many clients return, a stream may break with the signal on it, and for a moment there may be none: as long
        as clients are expected, that is no failure.
        """
        patience = KILL_ENQUEUE if signal.kind == protocol.KILL_MASTER else ENQUEUE
        message = self.message(signal, uuid)
        while True:
            await self._wait_for_return(expected, current)
            if await self._send_to(self.signals, message, patience, current):
                self.delivered = signal
                return True
            if _open(self.signals) or not self.returning or not current():
                return False

    async def repeat(self, signal: Signal, expected: int, current: Callable[[], bool]) -> bool:
        """Repeat a signal that a dead server may have lost, once its clients returned and none answers. Returns whether
        it reached one of them.
        """
        await self._wait_for_return(expected, current)
        last = time.monotonic() + protocol.REPEAT
        while current() and time.monotonic() < last:
            await asyncio.sleep(0.2)
        if not current() or not await self.deliver(signal, "", expected, current):
            return False
        _log.info("signal repeated", job=self._job, signal=signal.kind, change=signal.change)
        return True

    async def notify(self, kind: str, request: str, current: Callable[[], bool]) -> bool:
        """Whether an operation reached an executor."""
        executors = self.executors[kind]
        while self.returning and not _open(executors) and current():
            await self._wait_for_arrival()
        return await self._send_to(executors, operations.message(self._job, kind, request), ENQUEUE, current)

    def send_result(self, effect: OperationResult) -> None:
        """Send the result of an operation to the operators that wait, or keep it for one that asks later."""
        waiting = self.operators[effect.kind]
        if not waiting:
            self.results[effect.kind] = effect.text
        message = operations.result(self._job, effect.kind, effect.text)
        for queue in list(waiting):
            queue.put(message)
            queue.close()

    def close_operators(self) -> None:
        """End the streams of operators that wait for a result."""
        for group in self.operators.values():
            for queue in group:
                queue.close()

    def close(self) -> None:
        """End every stream."""
        everyone: list[MessageQueue[Any]] = [*self.signals]
        for group in (*self.operators.values(), *self.executors.values()):
            everyone += group
        for queue in everyone:
            queue.close()

    async def _wait_for_return(self, expected: int, current: Callable[[], bool]) -> None:
        """Wait for the clients of a dead server, which return one by one; a late one misses the signal."""
        while self.returning and not _open(self.signals) and current():
            await self._wait_for_arrival()
        if not self.returning or self._back is None:
            return
        while (
            len(self.signals) < expected and (left := self._back + GATHER_SECONDS - time.monotonic()) > 0 and current()
        ):
            await self._wait_for_arrival(left)

    async def _wait_for_arrival(self, seconds: float = _CHECK_SECONDS) -> None:
        """Wait for the next stream, at most ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, _CHECK_SECONDS)):
                await self._arrived.wait()

    async def _send_to(
        self, queues: set[MessageQueue[Any]], message: Any, patience: float, current: Callable[[], bool]
    ) -> bool:
        """Whether at least one stream took the message within ``patience`` seconds; slow ones get it when they read. A
        message that became void while there was no stream is not sent.
        """
        last = time.monotonic() + patience
        while not queues and (left := last - time.monotonic()) > 0 and current():
            await self._wait_for_arrival(left)
        if not current():
            return False
        futures = [queue.send(message) for queue in list(queues)]
        self._in_transit[id(queues)] = transit = (message, futures)
        try:
            last = time.monotonic() + patience
            while (open_ := [one for one in futures if not one.done()]) and (left := last - time.monotonic()) > 0:
                await asyncio.wait(open_, timeout=left)
        finally:
            if self._in_transit.get(id(queues)) is transit:
                del self._in_transit[id(queues)]
        return any(future.done() and future.result() for future in futures)


def _open(queues: set[MessageQueue[Any]]) -> bool:
    """Whether any stream still accepts messages."""
    return any(not queue.closed for queue in queues)


__all__ = ["ENQUEUE", "RETURN_SECONDS", "Subscribers"]
