"""Open streams: what waits for one subscriber, bounded, and the newest wins.

A subscriber that reads slowly costs a few messages of memory and misses the oldest ones; nobody waits for it.
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


class Outbox(Generic[Message]):
    """Messages on their way to one subscriber; ``role`` and ``host`` say who it is."""

    def __init__(self, limit: int = QUEUED, *, role: str = "", host: str = "") -> None:
        self.role, self.host = role, host
        self.closed = False
        self.dropped = 0
        self._limit = limit
        self._items: deque[tuple[Message, asyncio.Future[bool] | None]] = deque()
        self._news = asyncio.Event()

    def put(self, message: Message) -> None:
        """Queue without caring when it leaves."""
        self._append(message, None)

    def send(self, message: Message) -> asyncio.Future[bool]:
        """Queue; the future says whether the message was handed to the connection."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._append(message, future)
        return future

    def close(self) -> None:
        """End the stream after what is queued."""
        self.closed = True
        self._news.set()

    def discard(self) -> None:
        """The subscriber is gone: nothing queued will arrive."""
        self.closed = True
        while self._items:
            _settle(self._items.popleft()[1], False)
        self._news.set()

    async def pump(
        self,
        context: Context,
        *,
        idle: float | None = None,
        beat: Callable[[], Message] | None = None,
    ) -> None:
        """Write until closed; after ``idle`` seconds without a message write a ``beat``. Cancelled with the RPC."""
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
                self._news.clear()
                if not await _arrives(self._news, idle) and beat is not None:
                    await context.write(beat())
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
        self._news.set()


def peer_host(peer: str) -> str:
    """The address of ``ipv4:1.2.3.4:5678`` or ``ipv6:[::1]:5678`` without its port."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return rest.rpartition(":")[0].removeprefix("%5B").removesuffix("%5D").strip("[]")


async def _arrives(event: asyncio.Event, seconds: float | None) -> bool:
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


__all__ = ["QUEUED", "Context", "Outbox", "peer_host"]
