"""Facts that are read right before an act, and the two reasons for which an act may not begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from belay.engine.model.cluster import Orders, Pod


class FactUnavailable(Exception):
    """A fact that an act depends on cannot be read now: a reason to wait."""


class ActRefused(Exception):
    """The facts forbid an act: its epoch is refused and not tried again."""


class Facts(Protocol):
    """Reads facts again. Each method raises FactUnavailable when it cannot."""

    async def orders(self) -> Orders | None:
        """Return the orders as they stand at the API server."""
        ...

    async def commit(self, name: str) -> Mapping[str, Any] | None:
        """Return the ConfigMap with the signed commit in force as it stands at the API server."""
        ...

    async def pods(self) -> Sequence[Pod]:
        """Return the pods of this node as they stand at the API server."""
        ...

    async def driver(self) -> None:
        """Read faults, processes and vNPUs from the driver into the state."""
        ...
