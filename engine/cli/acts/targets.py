"""Nodes and chips as people name them on the command line."""

from __future__ import annotations

from dataclasses import dataclass

from belay.engine.documents.scalars import parse_chips
from belay.engine.errors import InputError


@dataclass(frozen=True)
class NodeOrChips:
    """A node, or some chips of it."""

    node: str
    chips: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.node}/{','.join(map(str, self.chips))}" if self.chips else self.node


def target(text: str) -> NodeOrChips:
    """``NODE`` or ``NODE/CHIPS`` (``node-3/4``, ``node-3/4-5,7``, ``node-3/Ascend910-4``).

    Raises:
        InputError: the chips are no numbers.
    """
    node, slash, chips = text.partition("/")
    named = chips.rpartition("-")[2] if chips.startswith("Ascend") else chips
    try:
        found = tuple(sorted(parse_chips(named))) if slash else ()
    except ValueError as error:
        raise InputError(f"{error}", where=text, hint="Write NODE, NODE/4 or NODE/4-5,7") from error
    if not node:
        raise InputError("there is no node name", where=text, hint="Write NODE or NODE/4")
    return NodeOrChips(node, found)
