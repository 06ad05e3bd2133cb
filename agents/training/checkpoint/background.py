"""Memory of its own for a state that was loaded as a private mapping: copied page by page while the job goes on.

A mapping is there as soon as its content is read and proven, but depends on what lies behind it: a file whose disk may
fail, or a slot of the pool that waits to be used again. The first access to fresh memory costs several times the read
where the host of a virtual machine has taken free memory back, so a load does not wait for it.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import threading
import weakref
from collections.abc import Callable

from belay.agents.training.checkpoint import pages, sources

log = logging.getLogger("belay.checkpoint")

GRACE_S = 5.0
"""Seconds before the copy begins: most states are copied into a model at once and need no memory of their own."""
STEP = 16 << 20
"""Bytes copied at a time."""
_guard = threading.Lock()
_running: set[_Copy] = set()


def own(memory: mmap.mmap, name: str, release: Callable[[], None] | None = None, *, grace_s: float = GRACE_S) -> None:
    """Copy the pages of the private mapping ``memory`` in the background, after ``grace_s`` seconds; changes made
    meanwhile stay. It ends when nothing uses the mapping any more.

    ``release`` is called once nothing of ``memory`` depends on its origin. ``name`` is for messages.
    """
    copy = _Copy(memory, name, release or (lambda: None), grace_s)
    with _guard:
        _running.add(copy)
    try:
        copy.start()
    except RuntimeError:
        # the host gives no more threads: a fork would wait for a copy that never ends
        copy.wake.set()
        copy.run()


def finish() -> None:
    """Copy all mappings of this process now, and return when they have memory of their own.

    Called before a fork: a child would see what is later written to the origin of a page that was not copied.
    """
    with _guard:
        copies = list(_running)
    for copy in copies:
        copy.wake.set()
    for copy in copies:
        copy.copied.wait()


class _Copy(threading.Thread):
    def __init__(self, memory: mmap.mmap, name: str, release: Callable[[], None], grace_s: float) -> None:
        super().__init__(daemon=True, name="checkpoint-own")
        self.wake, self.copied, self._gone = threading.Event(), threading.Event(), threading.Event()
        self._address, self._size = sources.address(memoryview(memory)), len(memory)
        self._origin, self._release, self._grace_s = name, release, grace_s
        self._reason = ""
        self._memory = weakref.ref(memory, lambda _: self._left())

    def _left(self) -> None:
        self._gone.set()
        self.wake.set()

    def run(self) -> None:
        self.wake.wait(self._grace_s)
        whole = self._copy()
        with _guard:
            _running.discard(self)
        self.copied.set()
        if not whole:
            log.warning(
                "the state loaded from %s gets no memory of its own (%s): it goes on using that file; "
                "do not write the file in place, and give the job more memory", self._origin, self._reason,
            )  # fmt: skip
            self._gone.wait()
        self._release()

    def _copy(self) -> bool:
        """Whether nothing of the mapping depends on its origin any more."""
        for start in range(0, self._size, STEP):
            # held for one step, so that the last user's end frees it
            memory = self._memory()
            if memory is None:
                return True
            if not pages.advise(self._address + start, min(STEP, self._size - start), "populate"):
                self._reason = os.strerror(ctypes.get_errno())
                return False
            del memory
        return True


def _forget() -> None:
    """In a child: copies that another thread began at the moment of the fork are the parent's."""
    global _guard
    _guard = threading.Lock()
    _running.clear()


os.register_at_fork(before=finish, after_in_child=_forget)
