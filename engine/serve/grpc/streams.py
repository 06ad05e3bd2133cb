"""Queues of messages for open streams, bounded; the oldest message is dropped first.

A subscriber that reads slowly costs a few messages of memory and misses the oldest ones. Nothing waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import grpc

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
else:
    Context = grpc.aio.ServicerContext  # takes no parameters at run time

Message = TypeVar("Message")
QUEUED: Final = 16


class MessageQueue(Generic[Message]):
    """Messages for one subscriber; ``role`` and ``host`` identify it."""

    def __init__(self, limit: int = QUEUED, *, role: str = "", host: str = "") -> None:
        self.role, self.host = role, host
        self.closed = False
        self.dropped = 0
        self._limit = limit
        self._items: deque[tuple[Message, asyncio.Future[bool] | None]] = deque()
        self._changed = asyncio.Event()

    def put(self, message: Message) -> None:
        """Queue a message."""
        self._append(message, None)

    def send(self, message: Message) -> asyncio.Future[bool]:
        """Queue a message; the future says whether it was written to the connection."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._append(message, future)
        return future

    def close(self) -> None:
        """End the stream after the queued messages."""
        self.closed = True
        self._changed.set()

    def discard(self) -> None:
        """Drop the queued messages: the subscriber is gone."""
        self.closed = True
        while self._items:
            _settle(self._items.popleft()[1], False)
        self._changed.set()

    async def pump(
        self,
        context: Context,
        *,
        idle: float | None = None,
        keep_alive: Callable[[], Message] | None = None,
    ) -> None:
        """Write messages until closed; ``keep_alive`` after ``idle`` seconds without one. Cancelled with the RPC."""
        current: asyncio.Future[bool] | None = None
        try:
            while True:
                while self._items:
                    message, current = self._items.popleft()
                    await context.write(message)
                    _settle(current, True)
                    current = None
                if self.closed:
                    return
                self._changed.clear()
                if not await _set_within(self._changed, idle) and keep_alive is not None:
                    await context.write(keep_alive())
        finally:
            _settle(current, False)
            self.discard()

    def _append(self, message: Message, future: asyncio.Future[bool] | None) -> None:
        if self.closed:
            _settle(future, False)
            return
        if len(self._items) >= self._limit:
            self.dropped += 1
            _settle(self._items.popleft()[1], False)
        self._items.append((message, future))
        self._changed.set()


def peer_host(peer: str) -> str:
    """The address of ``ipv4:1.2.3.4:5678`` or ``ipv6:[::1]:5678`` without its port."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return rest.rpartition(":")[0].removeprefix("%5B").removesuffix("%5D").strip("[]")


async def _set_within(event: asyncio.Event, seconds: float | None) -> bool:
    if seconds is None:
        await event.wait()
        return True
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _settle(future: asyncio.Future[bool] | None, value: bool) -> None:
    if future is not None and not future.done():
        future.set_result(value)


__all__ = ["QUEUED", "Context", "MessageQueue", "peer_host"]
