"""How the processes of a node find the agent that replaces a lost one: at an abstract Unix socket, which each agent of
the job opens again.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

AGENT_GONE = 86
"""Exit code of a rank whose node agent is gone; its node counts as lost."""
COMING_BACK = 20.0
"""Seconds within which a new node agent must take a process."""
TAKEN = b"+"
"""What an agent answers when it takes a process."""


@dataclass(frozen=True)
class Home:
    """Where to look for another agent. ``supervisor``: the process that starts agents; without it the job has ended."""

    name: str
    supervisor: int

    def come_back(self, state: Callable[[], dict[str, Any]], descriptor: int) -> socket.socket | None:
        """The connection to an agent that has taken this process with its ``state`` and a descriptor; None when there
        is none, or it refuses."""
        end = time.monotonic() + COMING_BACK
        while time.monotonic() < end and alive(self.supervisor):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect("\0" + self.name)
                sock.settimeout(5)
                socket.send_fds(sock, [json.dumps(state()).encode()], [descriptor])
                taken = sock.recv(1)
            except OSError:
                sock.close()
                time.sleep(0.02)
                continue
            if taken != TAKEN:
                sock.close()
                return None
            sock.settimeout(None)
            return sock
        return None


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that its parent has not looked at yet does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except OSError:
        return False
