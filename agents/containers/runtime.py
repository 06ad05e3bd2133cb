"""The interface of a container runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class RuntimeFailure(Exception):
    """The runtime did not carry out a request; the text is bounded."""


class Container(msgspec.Struct, frozen=True):
    """One container: the chips it uses while running, and whether it runs."""

    id: str
    namespace: str
    chips: tuple[int, ...]
    running: bool


class Runtime(Protocol):
    """Docker or containerd. Every method may raise RuntimeFailure."""

    async def containers(self) -> Sequence[Container]:
        """List the containers that use chips, running or not."""
        ...

    async def stop(self, namespace: str, container: str) -> None:
        """Stop one; it may be started again. Succeeds when it is already stopped or gone."""
        ...

    async def start(self, namespace: str, container: str) -> None:
        """Start a stopped one. Succeeds when it already runs."""
        ...

    async def close(self) -> None:
        """Close the socket."""
        ...
