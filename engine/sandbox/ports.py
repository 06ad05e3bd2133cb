"""Ports on loopback that stay: an exported kubeconfig and an open page of the last run work after the next start."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from belay.engine.errors import BelayError

CONSOLE: Final = 8080
"""Where the console is, unless something else listens there."""
GRPC: Final = 8899
GRPC_HEALTH: Final = 11253
"""Ports of ClusterD's gRPC services and of their health, likewise."""
_TRIES: Final = 8
"""Times that any port is asked for: another sandbox may have chosen the same, and not listen there yet."""


class Ports:
    """The ports of one sandbox; its data ``folder`` keeps them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._claims: list[socket.socket] = []

    def choose(self, name: str, usual: int = 0) -> int:
        """The port of the last run if it is free; else the usual one, else any. ``name`` of the file that keeps it.

        Raises:
            BelayError: no port is free.
        """
        file = self._folder / name
        kept = file.read_text().strip() if file.exists() else ""
        last = int(kept) if kept.isdecimal() and len(kept) < 6 else 0
        for number in (*(one for one in (last, usual) if 0 < one < 65536), *[0] * _TRIES):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", number))
                except OSError:
                    continue
                found = int(probe.getsockname()[1])
                if not self._claimed(found):
                    continue
                file.write_text(f"{found}\n")
                return found
        raise BelayError("no free port on 127.0.0.1")

    def release(self) -> None:
        """Let other sandboxes choose these ports."""
        while self._claims:
            self._claims.pop().close()

    def _claimed(self, port: int) -> bool:
        """Claim a port among the sandboxes of this machine while this process lives: what will listen there starts a
        little later, and another sandbox must not choose the same meanwhile.

        Source: unix(7), abstract sockets: they belong to the network namespace, and go with their process.
        """
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0belay-up-{port}")
        except OSError:
            claim.close()
            return False
        self._claims.append(claim)
        return True
