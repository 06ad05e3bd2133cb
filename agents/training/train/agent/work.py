"""Whether processes work, as the kernel counts it: processor time of their threads, and bytes read and written.

The threads in which gloo moves bytes do not count: that of an ended group may spin on sockets that were shut down, and
would make a hang look like work. The sums of a reduction are made in other threads. Fields: proc_pid_stat(5),
proc_pid_io(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

LOOK = 1.0
"""Seconds between looks: a process has hundreds of threads, and the kernel makes a text for each."""
STALE = 3
"""Looks after which the last one says nothing: processes may have worked after it and stand since."""
TICKS = 100
"""Clock ticks per second (``USER_HZ``)."""
SHARE = 0.05
"""Share of a processor above which a process works."""
GLOO = b"gloo_tcp_loop"


@dataclass
class _Seen:
    """A process at the last look: thread → clock ticks, the threads of gloo, bytes read and written."""

    ticks: dict[str, int] = field(default_factory=dict)
    gloo: set[str] = field(default_factory=set)
    moved: int = 0


class Work:
    """What processes did between two looks, ``pause`` seconds apart at least."""

    def __init__(self, pause: float = LOOK, root: Path = Path("/proc")) -> None:
        self._pause, self._root = pause, str(root)
        self._at: float | None = None
        self._seen: dict[int, _Seen] = {}

    def since(self, pids: Iterable[int], now: float) -> bool:
        """Whether one of ``pids`` has worked since the last look: more than a twentieth of a processor, or bytes.

        False before the next look is due, and for the first look after a long time, which only begins a comparison. A
        process that was not there at the last look has done all of its work since.
        """
        if self._at is not None and now - self._at < self._pause:
            return False
        seconds = now - self._at if self._at is not None else 0.0
        fresh = 0 < seconds <= STALE * self._pause
        self._at, worked, found = now, False, {}
        for pid in pids:
            before = self._seen.get(pid) or _Seen()
            found[pid] = after = self._look(pid, before)
            # threads that have ended are left out: those that live do not work less by it
            ticks = sum(max(0, count - before.ticks.get(thread, 0)) for thread, count in after.ticks.items())
            worked = worked or ticks > TICKS * seconds * SHARE or after.moved != before.moved
        self._seen = found
        return fresh and worked

    def _look(self, pid: int, before: _Seen) -> _Seen:
        found = _Seen(moved=before.moved)
        threads: list[str] = []
        with suppress(OSError):
            threads = os.listdir(f"{self._root}/{pid}/task")
        for thread in threads:
            if thread in before.gloo:
                found.gloo.add(thread)
                continue
            # a thread may end after the list was read
            with suppress(OSError, IndexError, ValueError):
                with open(f"{self._root}/{pid}/task/{thread}/stat", "rb") as file:
                    name, _, rest = file.read().partition(b"(")[2].rpartition(b") ")
                if name == GLOO:
                    found.gloo.add(thread)
                else:
                    fields = rest.split()
                    found.ticks[thread] = int(fields[11]) + int(fields[12])
        with suppress(OSError, IndexError, ValueError), open(f"{self._root}/{pid}/io", "rb") as file:
            found.moved = sum(int(line.split()[1]) for line in file.read().splitlines() if b"_bytes:" in line)
        return found
