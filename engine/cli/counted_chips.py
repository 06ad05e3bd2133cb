"""How many chips of a node are in use, free and out of service: one answer for every verb that counts them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from belay.engine.cli.selection import Answer
from belay.engine.model.states import NodeHealth
from belay.engine.model.wording import counted

_TAKES_WORK: Final = frozenset(one.value for one in (NodeHealth.HEALTHY, NodeHealth.SUB_HEALTHY))


class CountedChips(msgspec.Struct, frozen=True):
    """Counts of chips. ``out``: those that take no new work for a reason of their own, in use or not.

    A chip that is neither in use, free nor out of service is ``closed``: its node is cordoned or takes no work.
    """

    chips: int = 0
    used: int = 0
    free: int = 0
    out: int = 0
    used_and_out: int = 0

    @property
    def closed(self) -> int:
        """Chips that only their node keeps from new work."""
        return self.chips - self.used - self.free - (self.out - self.used_and_out)

    def __add__(self, other: CountedChips) -> CountedChips:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return CountedChips(*(one + more for one, more in pairs))

    @property
    def sentence(self) -> str:
        """``24 chips: 16 used, 3 free, 1 out of service, 4 on nodes that take no work``."""
        ill = f" ({self.used_and_out} of them out of service)" if self.used_and_out else ""
        closed = f", {self.closed} on nodes that take no work" if self.closed else ""
        idle = f"{self.free} free, {self.out - self.used_and_out} out of service"
        return f"{counted(self.chips, 'chip')}: {self.used} used{ill}, {idle}{closed}"


def chip_use(
    chips: int, used: Collection[Any], out: Collection[Any], *, state: str, cordoned: bool, closed: bool
) -> CountedChips:
    """The counts of a node with so many chips; ``used`` and ``out`` name chips in the same way.

    ``closed``: it takes no new pods for a reason outside it (engine/model/plan: takes_no_pods).
    """
    chips = max(chips, len({*used, *out}))  # pods hold chips of a node that has not said yet which it has
    both = sum(chip in out for chip in used)
    idle = chips - len(used) - (len(out) - both)
    takes_work = state in _TAKES_WORK and not cordoned and not closed
    return CountedChips(chips, len(used), idle if takes_work else 0, len(out), both)


def pool_rows(nodes: Iterable[tuple[str, str, CountedChips]]) -> Answer:
    """Nodes and chips per pool; ``nodes``: pool, state and counts of each node."""
    uses: dict[str, CountedChips] = {}
    states: dict[str, list[str]] = {}
    for pool, state, use in nodes:
        uses[pool] = uses.get(pool, CountedChips()) + use
        states.setdefault(pool, []).append(state)
    rows = [
        {
            "pool": pool,
            "nodes": len(states[pool]),
            "healthy": states[pool].count(NodeHealth.HEALTHY),
            "chips": use.chips,
            "used": use.used,
            "free": use.free,
            "outOfService": use.out,
        }
        for pool, use in sorted(uses.items())
    ]
    return Answer(("pool", "nodes", "healthy", "chips", "used", "free", "outOfService"), rows)
