"""Which parts of the network explain slow paths: a switch, a node, a chip, a port or one link.

A part is to blame when nearly all paths through it are slow, and they lead to several others. The part that explains
most comes first and takes its paths along, so that the chips of a slow node are not blamed too, nor the node of a slow
chip. Which parts a path crosses follows from its ends only (`crossed`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from belay.engine.model.pings import NetworkPart, PathEnd

SHARE: Final = 0.8
"""Part of the paths through a part that must be slow."""
KEPT_SHARE: Final = 0.6
"""The same of a part that is known to be slow."""
LEAST_PATHS: Final = 3
"""Paths, and other ends, of a chip or port; other nodes of a switch."""
MOST_EXACT: Final = 16
"""Paths beyond which a mean is taken for no more exact: what makes paths vary is partly common to them."""
_SMALLNESS: Final = {part: at for at, part in enumerate(NetworkPart)}


class Element(NamedTuple):
    """A part of the network by its name."""

    part: NetworkPart
    name: str


class Weight(NamedTuple):
    """One path: its excess, the smallest that counts however exactly it is known, and the smallest that one path alone
    must reach to be no chance.
    """

    source: PathEnd
    target: PathEnd
    excess: float
    floor: float
    chance: float

    @property
    def limit(self) -> float:
        """What counts for this path alone."""
        return max(self.floor, self.chance)


class Blame(NamedTuple):
    """A part, the indexes of the paths that it explains, and their mean excess."""

    element: Element
    paths: tuple[int, ...]
    excess: float
    limit: float


def crossed(source: PathEnd, target: PathEnd) -> tuple[Element, ...]:
    """The parts that a path crosses."""
    first, second = sorted((place(source), place(target)))
    found = [Element(NetworkPart.LINK, f"{first} - {second}")]
    for end in (source, target):
        if not end.node:
            continue
        if end.plane >= 0 or end.layer >= 0:
            found.append(Element(NetworkPart.PORT, place(end)))
        found.append(Element(NetworkPart.CHIP, f"{end.node}/{end.chip}"))
        if source.node != target.node:
            found.append(Element(NetworkPart.NODE, end.node))
            if end.layer > 0 and end.rack >= 0:
                found.append(Element(NetworkPart.RACK_SWITCH, f"{end.super_pod}/{end.rack} plane {end.plane}"))
    if source.node and source.node == target.node:
        found.append(Element(NetworkPart.MESH, source.node))
    elif not (source.rack >= 0 and (source.super_pod, source.rack) == (target.super_pod, target.rack)):
        pods = {end.super_pod: end.plane for end in (source, target) if end.super_pod >= 0}
        found += [
            Element(NetworkPart.SUPER_POD_SWITCH, f"{pod} plane {max(0, plane)}") for pod, plane in sorted(pods.items())
        ]
    return tuple(dict.fromkeys(found))


def place(end: PathEnd) -> str:
    """An end in words: node, chip, and the address where a chip has several."""
    if not end.node:
        return end.address
    return f"{end.node}/{end.chip}" + (f" {end.address}" if end.plane >= 0 or end.layer >= 0 else "")


def concerns(element: Element, end: PathEnd) -> bool:
    """Whether an end of a path is, or hangs on, the part."""
    name = element.name
    match element.part:
        case NetworkPart.PORT:
            return place(end) == name
        case NetworkPart.CHIP:
            return f"{end.node}/{end.chip}" == name
        case NetworkPart.NODE | NetworkPart.MESH:
            return end.node == name
        case NetworkPart.RACK_SWITCH:
            return f"{end.super_pod}/{end.rack} plane {end.plane}" == name
        case NetworkPart.SUPER_POD_SWITCH:
            return f"{end.super_pod} plane {max(0, end.plane)}" == name
    return True


def blame(paths: Sequence[Weight], through: Sequence[tuple[Element, ...]], known: Collection[Element]) -> list[Blame]:
    """What explains the slow ones of ``paths``, the most first; ``through`` are the parts that each crosses, ``known``
    is slow already.
    """
    # one path of a larger part alone need not show the fault
    slow = {at for at, one in enumerate(paths) if one.excess > one.floor / 2}
    members: dict[Element, list[int]] = defaultdict(list)
    for at, elements in enumerate(through):
        for element in elements:
            members[element].append(at)
    suspects = {element for at in slow for element in through[at]}
    left = set(slow)
    covered: set[int] = set()
    found: list[Blame] = []
    judged: dict[Element, Blame | None] = {}
    while left:
        best: Blame | None = None
        for element in sorted(suspects):
            if element not in judged:
                own = [at for at in members[element] if at not in covered]
                judged[element] = _verdict(element, own, paths, slow, element in known)
            one = judged[element]
            if one is not None and (best is None or _rank(one) > _rank(best)):
                best = one
        if best is None:
            return found
        found.append(best)
        covered |= set(best.paths)
        left -= covered
        # only parts that share a path with it have to be judged again
        for at in best.paths:
            for element in through[at]:
                judged.pop(element, None)
        suspects.discard(best.element)
    return found


def _rank(one: Blame) -> tuple[int, int, str]:
    """What explains more comes first; of two that explain as much, the smaller part."""
    return (len(one.paths), _SMALLNESS[one.element.part], one.element.name)


def _verdict(
    element: Element, own: Sequence[int], paths: Sequence[Weight], slow: Collection[int], known: bool
) -> Blame | None:
    if not own:
        return None
    guilty = [at for at in own if at in slow]
    if len(guilty) < (KEPT_SHARE if known else SHARE) * len(own):
        return None
    rows = [paths[at] for at in own]
    if not _leads_on(element, rows):
        return None
    mean = sum(one.excess for one in rows) / len(rows)
    exact = min(len(rows), MOST_EXACT) ** 0.5
    limit = sum(max(one.floor, one.chance / exact) for one in rows) / len(rows)
    if mean < (limit / 2 if known else limit):
        return None
    return Blame(element, tuple(own), mean, limit)


def _leads_on(element: Element, rows: Sequence[Weight]) -> bool:
    """Whether the paths lead to enough others: else what is at their other end is as likely to blame."""
    if element.part is NetworkPart.LINK:
        return True
    nodes = {end.node for one in rows for end in (one.source, one.target)}
    if element.part is NetworkPart.SUPER_POD_SWITCH:
        return len(nodes) > LEAST_PATHS
    if element.part is NetworkPart.RACK_SWITCH:
        inside = {end.node for one in rows for end in (one.source, one.target) if concerns(element, end)}
        return len(inside) > 1 and len(nodes) > LEAST_PATHS
    chips = {(end.node, end.chip, end.address) for one in rows for end in (one.source, one.target)}
    if element.part is NetworkPart.NODE:
        own = {(one, chip) for one, chip, _ in chips if one == element.name}
        return len(own) > 1 and len(nodes) >= LEAST_PATHS
    return len(chips) > LEAST_PATHS


__all__ = ["Blame", "Element", "Weight", "blame", "concerns", "crossed", "place"]
