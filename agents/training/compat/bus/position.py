"""Positions of members on the bus, and destinations that name them. Pure.

Rules: component/taskd/taskd/go/toolkit_backend/net/common. Levels are Mgr 3, Proxy 2, Agent and Worker 1; members of
levels 2 and 3 serve members below, members of levels 1 and 2 connect upward.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from belay.agents.training.compat.bus import codes

MANAGER, PROXY, AGENT, WORKER = "Mgr", "Proxy", "Agent", "Worker"
LEVELS: Final = {MANAGER: 3, PROXY: 2, AGENT: 1, WORKER: 1}
ALL: Final = "All"
NONE: Final = "-1"
MAX_TEXT: Final = 1 << 18
"""Characters of a rank field: a list of 40,000 ranks fits."""


class Position(NamedTuple):
    """Role, rank of the server (pod), rank of the process (workers only, otherwise ``-1``)."""

    role: str
    server: str
    process: str = NONE

    @property
    def level(self) -> int:
        """3 for the manager, 2 for a proxy, 1 for agents and workers; 0 for an unknown role."""
        return LEVELS.get(self.role, 0)

    def __str__(self) -> str:
        return f"{self.role}{self.server}" + (f"/{self.process}" if self.process != NONE else "")


def natural(text: str) -> bool:
    """Whether a text is a number from 0, in ASCII digits."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def _ranks(text: str) -> str | None:
    """A rank field in its normal form: a number, a comma list of numbers, or All; None when it is none of them."""
    if len(text) > MAX_TEXT:
        return None
    if ALL in text:
        return ALL
    parts = [part.strip() for part in text.split(",")]
    return ",".join(parts) if all(natural(part) for part in parts) else None


def destination(dst: Position) -> tuple[Position, int]:
    """A destination in its normal form, and 0 or the reason why it is invalid (4003, 4004, 4005)."""
    if dst.role not in LEVELS:
        return dst, codes.BAD_ROLE
    if (server := _ranks(dst.server)) is None:
        return dst, codes.BAD_SERVER_RANK
    if dst.role != WORKER:
        return Position(dst.role, server, NONE), codes.OK
    if (process := _ranks(dst.process)) is None:
        return dst, codes.BAD_PROCESS_RANK
    return Position(dst.role, server, process), codes.OK


def member(position: Position, above: int) -> int:
    """Whether a position may register at a member of level ``above``: 0, 4003, 4004 or 4005."""
    if not 0 < position.level < above:
        return codes.BAD_ROLE
    if not natural(position.server):
        return codes.BAD_SERVER_RANK
    if position.role == WORKER and not natural(position.process):
        return codes.BAD_PROCESS_RANK
    return codes.OK


def single(dst: Position) -> bool:
    """Whether a normal destination names one member."""
    return natural(dst.server) and (dst.role != WORKER or natural(dst.process))


def matches(dst: Position, found: Position) -> bool:
    """Whether a normal destination includes a member."""
    if dst.role != found.role:
        return False
    if dst.server != ALL and found.server not in dst.server.split(","):
        return False
    return dst.role != WORKER or dst.process == ALL or found.process in dst.process.split(",")


def split(text: str) -> frozenset[str]:
    """The ranks of a field as a set, for comparisons with many members."""
    return frozenset(text.split(","))
