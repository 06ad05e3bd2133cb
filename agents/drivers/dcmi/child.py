"""The process that loads the driver's library: it takes calls as messages of JSON on its standard input, a socket
(SOCK_SEQPACKET), and writes answers and fault events as lines.

A call that never returns blocks one thread here; the parent counts them and ends this process when there are too many,
or when the driver was reloaded. It ends when the parent has ended.

    python -m belay.agents.drivers.dcmi.child LIBRARY [--owner UID]... [--parent PID]
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from belay.agents.drivers.dcmi.calls import Calls
from belay.agents.drivers.dcmi.errors import DcmiError
from belay.agents.drivers.dcmi.library import Library, trusted
from belay.agents.drivers.failures import DriverError

THREADS = 16
MAX_MESSAGE = 65_536
"""Bytes of a call, of which the longest are those for many chips."""
PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


class Child:
    """Serve one library until the input ends."""

    def __init__(self, out: int) -> None:
        self._out, self._lock = out, threading.Lock()
        self._calls: Calls | None = None
        self._counting = threading.Lock()
        self._threads = self._free = 1

    def serve(self, file: Path, owners: frozenset[int]) -> int:
        """Load the library, write `ready`, answer calls. If loading fails, write the error and return exit code 1."""
        try:
            trusted(file, owners)
            self._calls = calls = Calls(Library(file))
            self._say(
                {
                    "ready": True,
                    "v2": calls.v2,
                    "places": [list(place) for place in calls.places],
                    "missing": calls.missing,
                }
            )
        except (DriverError, OSError) as error:
            self._say({"ready": False, "error": str(error)[:500]})
            return 1
        self._take(socket.socket(fileno=0))
        # calls that hang must not keep this process alive
        os._exit(0)

    def _take(self, requests: socket.socket) -> None:
        """Take calls until the input ends. Each thread waits for calls itself: the kernel wakes one of them for each
        message, and no second one has to be woken to carry it out. There is always one that waits, up to `THREADS`."""
        while message := requests.recv(MAX_MESSAGE):
            with self._counting:
                self._free -= 1
                another = not self._free and self._threads < THREADS
                if another:
                    self._threads += 1
                    self._free += 1
            if another:
                threading.Thread(target=self._take, args=(requests,), name="dcmi", daemon=True).start()

            self._answer(json.loads(message))
            with self._counting:
                self._free += 1

    def _answer(self, request: dict[str, Any]) -> None:
        number, name, arguments = request["id"], str(request["call"]), request.get("args", [])
        assert self._calls is not None
        try:
            if name == "subscribe":
                self._calls.subscribe(lambda event: self._say({"event": event}))
                value = None
            else:
                value = getattr(self._calls, name)(*arguments)
        except DcmiError as error:
            self._say({"id": number, "error": str(error), "function": error.function, "code": error.code})
        except (DriverError, TypeError, AttributeError) as error:
            self._say({"id": number, "error": str(error)[:500]})
        else:
            self._say({"id": number, "value": value})

    def _say(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except BrokenPipeError:
                os._exit(0)


def _end_with(parent: int) -> None:
    """Let the kernel end this process when the parent ends: a library that hangs while it is loaded holds Python's
    lock, so nothing here could notice. ``parent`` is its process id, 0 for unknown."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:  # it ended before the line above
        os._exit(0)


def main(arguments: list[str]) -> int:
    """Run as a program."""
    owners = {0}
    while "--owner" in arguments:
        at = arguments.index("--owner")
        owners.add(int(arguments[at + 1]))
        del arguments[at : at + 2]
    parent = 0
    if "--parent" in arguments:
        at = arguments.index("--parent")
        parent = int(arguments[at + 1])
        del arguments[at : at + 2]
    _end_with(parent)
    # the library may print; its output must not mix with answers
    out = os.dup(1)
    os.dup2(2, 1)
    return Child(out).serve(Path(arguments[0]), frozenset(owners))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
