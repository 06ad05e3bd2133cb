"""What the manager needs of a container runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class RuntimeFailure(Exception):
    """The runtime did not do what it was asked; the text is bounded."""


class Container(msgspec.Struct, frozen=True):
    """One container: the chips it uses when it runs, and whether it does."""

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
        """Stop one; it may be started again. One that is stopped or gone is as good."""
        ...

    async def start(self, namespace: str, container: str) -> None:
        """Start a stopped one. One that runs is as good."""
        ...

    async def close(self) -> None:
        """Let go of the socket."""
        ...


__all__ = ["Container", "Runtime", "RuntimeFailure"]
