"""The jobs whose ranks the writing process serves: it need not outlive them."""

from __future__ import annotations

import os
import select
import socket
import threading
from contextlib import suppress
from typing import Any

MOST = 64
"""Jobs that are watched at a time."""


class ClientJobs:
    """Processes with which the jobs of clients end. A client that names none may belong to anything."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: dict[int, int] = {}
        """Process → its pidfd."""
        self._any = self._unknown = False

    def came(self, job: Any) -> None:
        """A client of the job that ends with process ``job`` has come; 0 when it does not know."""
        with self._guard:
            if job in self._running:
                return
            if type(job) is int and job > 0 and len(self._running) < MOST:
                with suppress(OSError):
                    self._running[job] = os.pidfd_open(job)
                    self._any = True
                    return
            self._unknown = True

    def wait(self, listener: socket.socket, seconds: float) -> None:
        """Wait until a client comes, a job ends, or ``seconds`` have passed."""
        poll = select.poll()
        poll.register(listener.fileno(), select.POLLIN)
        with self._guard:
            for pidfd in self._running.values():
                poll.register(pidfd, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        with self._guard:
            for job, pidfd in list(self._running.items()):
                if pidfd in ready:
                    os.close(pidfd)
                    del self._running[job]

    def ended(self) -> bool:
        """Whether all clients belonged to jobs that have ended."""
        with self._guard:
            return self._any and not self._unknown and not self._running
