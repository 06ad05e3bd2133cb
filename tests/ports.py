"""Ports for servers that a test starts."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A free port of loopback below those that the kernel gives to clients at any moment (32768 and above)."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
