"""The cheapest victim sets that make room for a job, without any that is not needed.

Candidates are admitted by cost level: first spare pods only, then jobs of the lowest priority, and so on, until the job
fits. Per node the cheapest sets that free enough for one pod are found; the cheapest nodes are combined; sets that turn
out unnecessary are dropped. Few candidates are tried in all combinations, cheapest first, so the answer is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final, Protocol

from belay.engine.plan.preempt.victim_sets import VictimSet, cost

#: Up to so many candidates all combinations are tried.
MAX_EXACT: Final = 8
#: With more candidates than this, evicting all of them is not tried.
MAX_SHRINK: Final = 256
#: Where there are more: how many victim sets near those found are combined, up to what size, and how many attempts.
MAX_NEAR: Final = 16
MAX_TOGETHER: Final = 3
MAX_TRIES: Final = 64
#: Nodes searched first, besides four for each pod.
FIRST_NODES: Final = 24

Allowed = Callable[[Sequence[VictimSet]], bool]


class Exhausted(Exception):
    """The pass has used up its effort for what-ifs."""


class FitChecks(Protocol):
    """What-ifs about one waiting job."""

    def fits(self, gone: Sequence[VictimSet]) -> bool:
        """Whether the job fits once these are gone.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """

    def fits_node(self, node: str, gone: Sequence[VictimSet]) -> bool:
        """Whether one of the job's pods fits on this node once these are gone.

        Raises:
            Exhausted: no more what-ifs in this pass.
        """


def cheapest(
    checks: FitChecks, victim_sets: Sequence[VictimSet], allowed: Allowed, *, pods: int = 1
) -> list[VictimSet] | None:
    """The cheapest allowed victim sets that make room for so many ``pods``, None when there are none.

    Large clusters are searched first where evictions are cheapest, then on ever more nodes.

    Raises:
        Exhausted: the effort of the pass ended before the answer was known to be the cheapest.
    """
    for wave in _waves(victim_sets, FIRST_NODES + 4 * pods):
        found = _cheapest_of(checks, wave, allowed)
        if found is not None:
            return found
    return None


def _waves(victim_sets: Sequence[VictimSet], count: int) -> Iterator[Sequence[VictimSet]]:
    """The victim sets on the ``count`` nodes with the cheapest ones, then on four times as many nodes, at last all."""
    nodes: dict[str, None] = {}
    for victims in sorted(victim_sets, key=lambda victims: victims.key):
        nodes.update(dict.fromkeys(victims.nodes))
    ranked = list(nodes)
    while count < len(ranked):
        near = set(ranked[:count])
        yield [victims for victims in victim_sets if any(pod.node in near for pod in victims.pods)]
        count *= 4
    yield victim_sets


def _cheapest_of(checks: FitChecks, victim_sets: Sequence[VictimSet], allowed: Allowed) -> list[VictimSet] | None:
    for level in sorted({victims.level for victims in victim_sets}):
        candidates = sorted(
            (victims for victims in victim_sets if victims.level <= level), key=lambda victims: victims.key
        )
        grown = _grow(checks, candidates)
        if grown is not None:
            found = _best(checks, candidates, _shrink(checks, grown), allowed)
            if found is not None:
                return found
    return None


def _grow(checks: FitChecks, candidates: Sequence[VictimSet]) -> list[VictimSet] | None:
    """Some choice that makes room: the fewest of the cheapest nodes, doubled until enough; else all candidates."""
    per_node = _cheapest_per_node(checks, candidates)
    count = 1
    while count <= len(per_node):
        chosen = _union(per_node[:count])
        if checks.fits(chosen):
            return chosen
        if count == len(per_node):
            break
        count = min(2 * count, len(per_node))
    everything = _union([candidates])
    return everything if len(candidates) <= MAX_SHRINK and checks.fits(everything) else None


def _cheapest_per_node(checks: FitChecks, candidates: Sequence[VictimSet]) -> list[list[VictimSet]]:
    """Per node the cheapest sets that free enough for one pod, cheapest node first; nodes with room need none."""
    by_node: dict[str, list[VictimSet]] = {}
    for victims in candidates:
        for node in dict.fromkeys(victims.nodes):
            by_node.setdefault(node, []).append(victims)
    found: list[list[VictimSet]] = []
    for node in sorted(by_node):
        victim_sets = by_node[node]
        chosen: list[VictimSet] = []
        if checks.fits_node(node, ()) or not checks.fits_node(node, victim_sets):
            continue
        for victims in victim_sets:
            chosen.append(victims)
            if checks.fits_node(node, chosen):
                break
        for victims in sorted(chosen, key=lambda victims: victims.key, reverse=True):
            rest = [other for other in chosen if other is not victims]
            if rest and checks.fits_node(node, rest):
                chosen = rest
        found.append(chosen)
    return sorted(found, key=cost)


def _shrink(checks: FitChecks, victim_sets: list[VictimSet]) -> list[VictimSet]:
    """Drop sets that are not needed, the most costly first."""
    for victims in sorted(victim_sets, key=lambda victims: victims.key, reverse=True):
        rest = [other for other in victim_sets if other is not victims]
        if rest and checks.fits(rest):
            victim_sets = rest
    return victim_sets


def _best(
    checks: FitChecks, candidates: Sequence[VictimSet], found: list[VictimSet], allowed: Allowed
) -> list[VictimSet] | None:
    """The cheapest of all combinations where there are few candidates; else ``found``, of which every set is needed."""
    if len(candidates) <= MAX_EXACT:
        limit = cost(found)
        sets = [list(row) for size in range(1, len(candidates) + 1) for row in combinations(candidates, size)]
        priced = sorted((cost(row), index) for index, row in enumerate(sets) if _disjoint(row))
        try:
            for price, index in priced:
                if price >= limit and allowed(found):
                    break
                if allowed(sets[index]) and checks.fits(sets[index]):
                    return sets[index]
        except Exhausted:
            pass  # ``found`` stands: it makes room, and each of its sets is needed
    elif len(found) > 1:
        found = _fewer(checks, candidates, found, allowed)
    return found if allowed(found) else None


def _fewer(
    checks: FitChecks, candidates: Sequence[VictimSet], found: list[VictimSet], allowed: Allowed
) -> list[VictimSet]:
    """A cheaper choice of fewer victim sets: any single one, or a few on the nodes of those found; else ``found``.

    ``_cheapest_per_node`` starts from the cheapest victims, so it may have collected many small ones where one larger
    set suffices.
    """
    limit, nodes = cost(found), {node for victims in found for node in victims.nodes}
    near = [victims for victims in candidates if not nodes.isdisjoint(victims.nodes)][:MAX_NEAR]
    sets = [[victims] for victims in candidates]
    for size in range(2, min(len(found), MAX_TOGETHER + 1)):
        sets += [list(row) for row in combinations(near, size) if _disjoint(row)]
    tries = sorted((price, index) for index, row in enumerate(sets) if (price := cost(row)) < limit)
    try:
        for _, index in tries[:MAX_TRIES]:
            if allowed(sets[index]) and checks.fits(sets[index]):
                return sets[index]
    except Exhausted:
        pass  # ``found`` stands
    return found


def _union(rows: Sequence[Sequence[VictimSet]]) -> list[VictimSet]:
    """All sets once; spare pods of jobs that are evicted as a whole are part of these."""
    every = {victims.key: victims for row in rows for victims in row}
    return _without_spares(list(every.values()))


def _without_spares(victim_sets: list[VictimSet]) -> list[VictimSet]:
    whole = {pod.key for victims in victim_sets if victims.ends_job for pod in victims.pods}
    return [victims for victims in victim_sets if victims.ends_job or victims.pods[0].key not in whole]


def _disjoint(victim_sets: Sequence[VictimSet]) -> bool:
    """Whether no pod is in two of the sets."""
    pods = [pod.key for victims in victim_sets for pod in victims.pods]
    return len(pods) == len(set(pods))
