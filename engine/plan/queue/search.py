"""The least that must go so that a job fits: what costs least, and nothing more.

Candidates are let in by importance: first only spare pods, then jobs of the lowest priority, and so on, until the job
fits. Per node the cheapest set that opens it is found, the cheapest nodes are taken together, and then whatever turns
out unnecessary is kept. Few candidates are tried in all combinations, cheapest first, so that the answer is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final, Protocol

from engine.plan.queue.units import Unit, cost

#: So many candidates are searched through all their combinations.
MAX_EXACT: Final = 8
#: More candidates than this on one node are tried one after the other only.
MAX_SHRINK: Final = 256
#: Where there are more: units looked at together near those that were found, how many of them at most, and how often.
MAX_NEAR: Final = 16
MAX_TOGETHER: Final = 3
MAX_TRIES: Final = 64
#: Nodes that are looked at first, besides four for each pod.
FIRST_NODES: Final = 24

Allowed = Callable[[Sequence[Unit]], bool]


class Exhausted(Exception):
    """The effort that a pass may spend on what-ifs is used up."""


class World(Protocol):
    """What-ifs about one waiting job."""

    def fits(self, gone: Sequence[Unit]) -> bool:
        """Whether the job fits once these are gone.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """

    def opens(self, node: str, gone: Sequence[Unit]) -> bool:
        """Whether one of the job's pods fits on this node once these are gone.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """


def least(world: World, units: Sequence[Unit], allowed: Allowed, *, pods: int = 1) -> list[Unit] | None:
    """The cheapest allowed set that makes room for so many ``pods``, None when there is none.

    Large clusters are searched where evictions are cheapest first, on ever more nodes.

    Raises:
        Exhausted: the effort of the pass ended before the set was known to be the least.
    """
    for wave in _waves(units, FIRST_NODES + 4 * pods):
        found = _least(world, wave, allowed)
        if found is not None:
            return found
    return None


def _waves(units: Sequence[Unit], count: int) -> Iterator[Sequence[Unit]]:
    """The units on the nodes with the cheapest ones: first on ``count`` nodes, then on four times as many, at last
    all.
    """
    nodes: dict[str, None] = {}
    for unit in sorted(units, key=lambda unit: unit.key):
        nodes.update(dict.fromkeys(unit.nodes))
    ranked = list(nodes)
    while count < len(ranked):
        near = set(ranked[:count])
        yield [unit for unit in units if any(pod.node in near for pod in unit.pods)]
        count *= 4
    yield units


def _least(world: World, units: Sequence[Unit], allowed: Allowed) -> list[Unit] | None:
    for level in sorted({unit.level for unit in units}):
        universe = sorted((unit for unit in units if unit.level <= level), key=lambda unit: unit.key)
        grown = _grow(world, universe)
        if grown is not None:
            found = _best(world, universe, _shrink(world, grown), allowed)
            if found is not None:
                return found
    return None


def _grow(world: World, universe: Sequence[Unit]) -> list[Unit] | None:
    """Some set that makes room: the cheapest nodes opened together, as few as do; else everything."""
    offers = _offers(world, universe)
    count = 1
    while count <= len(offers):
        chosen = _union(offers[:count])
        if world.fits(chosen):
            return chosen
        if count == len(offers):
            break
        count = min(2 * count, len(offers))
    everything = _union([universe])
    return everything if len(universe) <= MAX_SHRINK and world.fits(everything) else None


def _offers(world: World, universe: Sequence[Unit]) -> list[list[Unit]]:
    """Per node the cheapest units that open it for one pod, cheapest node first; open nodes need none."""
    by_node: dict[str, list[Unit]] = {}
    for unit in universe:
        for node in dict.fromkeys(unit.nodes):
            by_node.setdefault(node, []).append(unit)
    found: list[list[Unit]] = []
    for node in sorted(by_node):
        units = by_node[node]
        chosen: list[Unit] = []
        if world.opens(node, ()) or not world.opens(node, units):
            continue
        for unit in units:
            chosen.append(unit)
            if world.opens(node, chosen):
                break
        for unit in sorted(chosen, key=lambda unit: unit.key, reverse=True):
            rest = [other for other in chosen if other is not unit]
            if rest and world.opens(node, rest):
                chosen = rest
        found.append(chosen)
    return sorted(found, key=cost)


def _shrink(world: World, units: list[Unit]) -> list[Unit]:
    """Keeps whatever need not go, the most valuable first."""
    for unit in sorted(units, key=lambda unit: unit.key, reverse=True):
        rest = [other for other in units if other is not unit]
        if rest and world.fits(rest):
            units = rest
    return units


def _best(world: World, universe: Sequence[Unit], found: list[Unit], allowed: Allowed) -> list[Unit] | None:
    """The cheapest of all combinations where there are few candidates; else the one that was found, of which nothing
    can be spared either.
    """
    if len(universe) <= MAX_EXACT:
        limit = cost(found)
        sets = [list(row) for size in range(1, len(universe) + 1) for row in combinations(universe, size)]
        priced = sorted((cost(row), index) for index, row in enumerate(sets) if _plain(row))
        try:
            for price, index in priced:
                if price >= limit and allowed(found):
                    break
                if allowed(sets[index]) and world.fits(sets[index]):
                    return sets[index]
        except Exhausted:
            pass  # the one found stands: it makes room, and every one of its units is needed
    elif len(found) > 1:
        found = _fewer(world, universe, found, allowed)
    return found if allowed(found) else None


def _fewer(world: World, universe: Sequence[Unit], found: list[Unit], allowed: Allowed) -> list[Unit]:
    """A cheaper set of fewer units where there is one: any unit alone, or a few on the nodes of those that were found.

    Nodes are opened from their cheapest unit on, so that many small ones are found where one larger would do.
    """
    limit, nodes = cost(found), {node for unit in found for node in unit.nodes}
    near = [unit for unit in universe if not nodes.isdisjoint(unit.nodes)][:MAX_NEAR]
    sets = [[unit] for unit in universe]
    for size in range(2, min(len(found), MAX_TOGETHER + 1)):
        sets += [list(row) for row in combinations(near, size) if _plain(row)]
    tries = sorted((price, index) for index, row in enumerate(sets) if (price := cost(row)) < limit)
    try:
        for _, index in tries[:MAX_TRIES]:
            if allowed(sets[index]) and world.fits(sets[index]):
                return sets[index]
    except Exhausted:
        pass  # the one found stands
    return found


def _union(rows: Sequence[Sequence[Unit]]) -> list[Unit]:
    """All units once; spare pods of jobs that go as a whole are theirs already."""
    every = {unit.key: unit for row in rows for unit in row}
    return _without_spares(list(every.values()))


def _without_spares(units: list[Unit]) -> list[Unit]:
    whole = {pod.key for unit in units if unit.ends for pod in unit.pods}
    return [unit for unit in units if unit.ends or unit.pods[0].key not in whole]


def _plain(units: Sequence[Unit]) -> bool:
    """Whether no pod is in two of the units."""
    pods = [pod.key for unit in units for pod in unit.pods]
    return len(pods) == len(set(pods))
