"""One agent at a time on a node: a lock on the folder of its journal.

Two agents that share a journal read it at different moments, and each would run an epoch that the other has begun. This
happens: a pod deleted by force may keep running beside its successor, and a service beside the DaemonSet. The kernel
releases the lock whenever the process that holds it ends (flock(2)).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from belay.agents.common.log import Log

FILE: Final = "lock"
LOOK_SECONDS: Final = 0.5
#: Number of checks between two log messages about the wait.
TELL_EVERY: Final = 120
_log = Log("agent")


class AgentLock:
    """The lock; ``take`` it before anything is read or done, ``release`` it last."""

    def __init__(self, folder: Path, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._folder, self._sleep = folder, sleep
        self._descriptor: int | None = None

    async def take(self) -> None:
        """Wait until no other agent has the folder.

        A folder that cannot hold a lock cannot hold a journal either, and without that nothing destructive is done:
        this is logged, and the agent does not wait.
        """
        looks = 0
        while not self._taken():
            if looks % TELL_EVERY == 0:
                _log.warning("another agent works with this journal; waiting for its end", at=str(self._folder))
            looks += 1
            await self._sleep(LOOK_SECONDS)

    def _taken(self) -> bool:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            _log.error("the journal's folder cannot be locked", at=str(self._folder), error=error.strerror)
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            # a file system without locks
            os.close(descriptor)
            _log.error("the journal's folder cannot be locked", at=str(self._folder), error=error.strerror)
            return True
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
