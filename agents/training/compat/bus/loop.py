"""The thread whose event loop carries every member of the bus in this process.

gRPC's asyncio API serves thousands of streams from one thread; training threads never block in it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
START_SECONDS: Final = 30.0

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_pid = 0


def running() -> asyncio.AbstractEventLoop:
    """The event loop; the first call in a process starts its thread, also after a fork."""
    global _loop, _pid
    with _lock:
        if _loop is not None and _pid == os.getpid() and not _loop.is_closed():
            return _loop
        loop = asyncio.new_event_loop()
        ready = threading.Event()

        def run() -> None:
            asyncio.set_event_loop(loop)
            loop.call_soon(ready.set)
            loop.run_forever()

        threading.Thread(target=run, name="training-bus", daemon=True).start()
        if not ready.wait(START_SECONDS):
            raise RuntimeError("the thread of the training bus did not start within 30 s")
        _loop, _pid = loop, os.getpid()
        return loop


def submit(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run in the bus thread; a future."""
    return asyncio.run_coroutine_threadsafe(work, running())


def call(work: Coroutine[Any, Any, T], timeout: float) -> T:
    """Run in the bus thread and wait at most ``timeout`` seconds (TimeoutError). Never from the bus thread itself."""
    future = submit(work)
    try:
        return future.result(timeout)
    except concurrent.futures.TimeoutError:
        future.cancel()
        raise TimeoutError(f"the training bus did not answer within {timeout:g} s") from None
    except concurrent.futures.CancelledError:
        raise TimeoutError("the training bus ended meanwhile") from None
