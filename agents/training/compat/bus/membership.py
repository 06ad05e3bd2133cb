"""What the service and the uplink of a member ask of it; the member itself is put together from both (``member``)."""

from __future__ import annotations

from typing import Any, Protocol

from belay.agents.training.compat.bus.position import Position
from belay.agents.training.compat.bus.routes import Routes
from belay.agents.training.compat.bus.streams import DownStream


class Membership(Protocol):
    """A member as its two ends see it: where it stands, and where messages and paths go on."""

    own: Position
    job: str
    routes: Routes

    async def came_up(self) -> None:
        """The uplink has joined the member above."""

    async def forward(self, found: Any, *, from_above: bool = False, from_below: Position | None = None) -> int:
        """Pass a message on, up, down or to this member. Returns its code."""

    async def announce(self, path: tuple[Position, ...]) -> int:
        """Pass a path from below upward. Returns its code."""

    def begin_stream(self, position: Position) -> DownStream | None:
        """A member below subscribes; None when it is not registered."""

    def end_stream(self, position: Position) -> None:
        """Close the stream of a member below."""

    def stream_ended(self, position: Position, stream: DownStream) -> None:
        """The stream of a member below broke."""
