"""Members that are registered at a member of the bus, and routes of messages. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.bus.position import ALL, WORKER, Position, destination, matches, member, single, split

MAX_MEMBERS: Final = 5000
MAX_ROUTES: Final = 200_000
"""Maximum number of positions in paths: every worker and agent of the largest job, with a reserve."""
REMEMBERED: Final = 8192
"""Number of messages whose second delivery is detected."""


@dataclass(frozen=True)
class Route:
    """Where a message goes: to this member, upward, or down to these neighbours; otherwise the reason as a code."""

    code: int = codes.OK
    here: bool = False
    up: bool = False
    down: tuple[Position, ...] = ()
    dst: Position | None = None

    @property
    def broadcast(self) -> bool:
        """Whether the destination may include several members; such a message is never synchronous."""
        return self.dst is not None and not single(self.dst)


class Routes:
    """The members below one member, directly (registered) and further down (learned by path discovery)."""

    def __init__(self, own: Position, limit: int = MAX_MEMBERS) -> None:
        self.own, self._limit = own, limit
        self._members: dict[Position, None] = {}
        self._next: dict[Position, Position] = {}

    @property
    def members(self) -> tuple[Position, ...]:
        """The registered members, in order of arrival."""
        return tuple(self._members)

    def register(self, position: Position) -> int:
        """A member joins, or joins again; 0, 4003..4005, or 5003 when there is no room."""
        if (code := member(position, self.own.level)) != codes.OK:
            return code
        if position not in self._members and len(self._members) >= self._limit:
            return codes.TOO_MANY_MEMBERS
        self._members[position] = None
        self._next[position] = position
        return codes.OK

    def forget(self, position: Position) -> None:
        """A member left: forget it and all members behind it."""
        self._members.pop(position, None)
        for target in [target for target, through in self._next.items() if through == position]:
            del self._next[target]

    def learn(self, neighbour: Position, path: tuple[Position, ...]) -> int:
        """Positions on ``path`` are reached through ``neighbour``; 0, 5002 when it is not registered, 5003 without
        room."""
        if neighbour not in self._members:
            return codes.NO_ROUTE
        for position in path:
            if not 0 < position.level < self.own.level:
                return codes.BAD_ROLE
            if position not in self._next and len(self._next) >= MAX_ROUTES:
                return codes.TOO_MANY_MEMBERS
            self._next[position] = neighbour
        return codes.OK

    def route(self, dst: Position, *, from_above: bool = False, from_below: Position | None = None) -> Route:
        """The route of a message for ``dst``. A message from above is never sent up again (5002)."""
        dst, code = destination(dst)
        if code != codes.OK:
            return Route(code, dst=dst)
        if dst.level == self.own.level:
            here = matches(dst, self.own)
            up = (not here or not single(dst)) and not from_above and self.own.level < 3
            if not here and not up:
                return Route(codes.NO_ROUTE, dst=dst)
            return Route(here=here, up=up, dst=dst)
        if dst.level > self.own.level:
            return Route(codes.NO_ROUTE, dst=dst) if from_above else Route(up=True, dst=dst)
        down = self._down(dst, from_below)
        # a broadcast from below also goes to members that are not below this one
        up = self.own.level < 3 and not from_above and (not single(dst) or not down)
        if not down and not up:
            return Route(codes.NO_ROUTE, dst=dst)
        return Route(up=up, down=down, dst=dst)

    def _down(self, dst: Position, sender: Position | None) -> tuple[Position, ...]:
        if single(dst):
            through = self._next.get(dst)
            return () if through is None else (through,)
        servers = None if dst.server == ALL else split(dst.server)
        processes = None if dst.role != WORKER or dst.process == ALL else split(dst.process)
        # a broadcast from below has reached that branch already
        spread = None if sender is None else self._next.get(sender)
        found: dict[Position, None] = {}
        for target, through in self._next.items():
            if (
                target.role == dst.role
                and through != spread
                and (servers is None or target.server in servers)
                and (processes is None or target.process in processes)
            ):
                found[through] = None
        return tuple(found)


class DuplicateFilter:
    """Identifiers of received messages; the oldest are forgotten first."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._found: OrderedDict[str, None] = OrderedDict()

    def again(self, uuid: str) -> bool:
        """Whether the message was received before; never for an empty identifier."""
        if not uuid:
            return False
        if uuid in self._found:
            return True
        self._found[uuid] = None
        if len(self._found) > self._limit:
            self._found.popitem(last=False)
        return False

    def forget(self, uuid: str) -> None:
        """The message was not accepted: its second delivery counts as the first."""
        self._found.pop(uuid, None)
