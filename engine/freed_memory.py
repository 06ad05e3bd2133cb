"""Memory that was freed goes back to the system.

Listing a cluster takes ten times the memory of what is kept of it, and the C library keeps what was freed for later. A
process says so once it is through with such a list, and once a minute: a little is freed between what is kept all the
time.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import Final

EVERY_SECONDS: Final = 60.0


def give_back() -> None:
    """Give freed memory back, where the C library can (glibc). Takes milliseconds."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def start() -> None:
    """Give freed memory back once a minute, in a daemon thread."""
    threading.Thread(target=_run, name="belay-freed-memory", daemon=True).start()


def _run() -> None:
    while True:
        time.sleep(EVERY_SECONDS)
        give_back()
