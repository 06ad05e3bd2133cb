"""The stream down to one member: messages go out in order, acknowledgements come back; bounded in size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from belay.agents.training.compat.bus import codes, wire

MAX_WAITING: Final = 1024
"""Maximum number of queued messages; a stream with more is lost."""


class DownStream:
    """One subscription of one member; a member that subscribes again gets a new one and this one ends."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue(MAX_WAITING)
        self._waiting: dict[str, asyncio.Future[int]] = {}
        self.closed = False

    def close(self) -> None:
        """End the subscription; waiting senders get 6000."""
        if self.closed:
            return
        self.closed = True
        for future in self._waiting.values():
            if not future.done():
                future.set_result(codes.SEND_LOST)
        self._waiting.clear()
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    def acknowledged(self, uuid: str, code: int) -> None:
        """The member answered; an answer without a request is ignored."""
        future = self._waiting.get(uuid)
        if future is not None and not future.done():
            future.set_result(code)

    async def send(self, message: Any, timeout: float | None = None) -> int:
        """Send and wait for the answer: its code, 6000 when the stream broke, 6001 when none came in time."""
        uuid = message.header.uuid
        if self.closed:
            return codes.NO_STREAM
        earlier = self._waiting.get(uuid)
        if earlier is not None:
            return await asyncio.shield(earlier)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            return codes.SEND_LOST
        self._waiting[uuid] = future
        try:
            async with asyncio.timeout(wire.ACK_SECONDS if timeout is None else timeout):
                return await asyncio.shield(future)
        except TimeoutError:
            return codes.ACK_LOST
        finally:
            self._waiting.pop(uuid, None)
            if not future.done():
                future.set_result(codes.ACK_LOST)

    async def outgoing(self) -> AsyncIterator[Any]:
        """Every message to send, until the stream is closed."""
        while (message := await self._queue.get()) is not None:
            yield message
