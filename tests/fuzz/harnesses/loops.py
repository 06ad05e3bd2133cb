"""One event loop for harnesses of servers and asynchronous parsers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def loop() -> asyncio.AbstractEventLoop:
    """The loop of this process."""
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    made.set_exception_handler(_complain)
    return made


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run one piece of work to its end; an exception that a task or callback of it left behind is raised."""
    _left.clear()
    found = loop().run_until_complete(work)
    if _left:
        raise _left.pop()
    return found


_left: list[BaseException] = []


def _complain(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, BaseException) and not isinstance(error, ConnectionError):
        _left.append(error)


async def spoken(host: str, port: int, data: bytes, *, whole: bool = False) -> bytes:
    """What a server answers to bytes, until it closes the connection; our side is closed first, unless the request is
    ``whole``."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
            if not whole:
                writer.write_eof()
        answer = b""
        with contextlib.suppress(ConnectionError):
            while (part := await reader.read(1 << 16)) and len(answer) < 1 << 20:
                answer += part
        return answer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


__all__ = ["loop", "run", "spoken"]
