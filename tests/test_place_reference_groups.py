"""Trees, racks and super pods against a reference that tries every way to place blocks in units."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random

import pytest

from belay.engine.plan.place.families import multilevel, rack950, superpod
from belay.engine.plan.place.families.multilevel import Level
from belay.engine.plan.place.families.rack950 import CandidateNode, RackBlocks
from belay.engine.plan.place.families.superpod import Blocks
from belay.engine.plan.place.handler import Refusal
from tests import worlds

TREES = {"default": (Level("rack"), Level("hall"))}


@cache
def _fits(rooms: tuple[int, ...], size: int, count: int) -> bool:
    """Whether ``count`` blocks of ``size`` fit, each within one unit; every unit is tried for every block."""
    if not count:
        return True
    return any(
        _fits((*rooms[:i], room - size, *rooms[i + 1 :]), size, count - 1)
        for i, room in enumerate(rooms)
        if room >= size and room not in rooms[:i]
    )


@cache
def _most(rooms: tuple[int, ...], size: int) -> int:
    count = 0
    while _fits(rooms, size, count + 1):
        count += 1
    return count


@pytest.mark.parametrize("seed", range(40))
def test_tree_jobs_are_placed_exactly_when_their_groups_fit(seed: int) -> None:
    random = Random(seed)
    halls = [[random.randint(0, 4) for _ in range(random.randint(1, 3))] for _ in range(random.randint(1, 3))]
    nodes = [
        worlds.node(f"h{h}-r{r}-{i}", labels={"hall": f"h{h}", "rack": f"h{h}-r{r}"})
        for h, racks in enumerate(halls)
        for r, size in enumerate(racks)
        for i in range(size)
    ]
    for group_sizes in ((1,), (2,), (3,), (1, 2), (2, 4), (1, 3), (2, 2)):
        top = group_sizes[-1]
        if len(group_sizes) == 1:
            most = sum(_most(tuple(racks), group_sizes[0]) for racks in halls)
        else:
            most = _most(tuple(group_sizes[0] * _most(tuple(racks), group_sizes[0]) for racks in halls), top)
        for groups in range(1, most + 2):
            found = multilevel.select(nodes, TREES, group_sizes, groups * top)
            assert (groups <= most) == (not isinstance(found, Refusal)), (halls, group_sizes, groups)
            if not isinstance(found, Refusal):
                assert len(set(found)) == groups * top
                for size, cut in zip(group_sizes, (2, 1), strict=False):
                    units = ["-".join(name.split("-")[:cut]) for name in found]
                    assert all(len(set(units[i : i + size])) == 1 for i in range(0, len(units), size))


@pytest.mark.parametrize("seed", range(40))
def test_rack_jobs_are_placed_exactly_when_their_parts_fit(seed: int) -> None:
    random = Random(seed)
    pods = [[random.randint(0, 8) for _ in range(random.randint(1, 3))] for _ in range(random.randint(1, 3))]
    places = [
        CandidateNode(f"s{s}r{r}n{i}", s, s * 16 + r) for s, racks in enumerate(pods) for r, size in enumerate(racks)
        for i in range(size)
    ]  # fmt: skip
    for size, part in ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4)):
        wholes = [tuple(part * _most(tuple(racks), part) for racks in [racks]) for racks in pods]
        most = _most(tuple(sum(whole) for whole in wholes), size)
        for need in range(1, most + 2):
            cut = RackBlocks(size, need, False, part, False)
            found = rack950.select(places, list(range(need)), cut, 64, need * size)
            assert (need <= most) == (not isinstance(found, Refusal)), (pods, size, part, need)
            if isinstance(found, Refusal):
                continue
            names = [name for block in found.values() for name in block.nodes]
            assert len(set(names)) == need * size and sorted(found) == list(range(need))
            for block in found.values():
                racks = Counter(name.partition("n")[0] for name in block.nodes)
                assert {name.partition("r")[0] for name in block.nodes} == {f"s{block.super_pod}"}
                assert need * size <= 8 or all(count % part == 0 for count in racks.values())
            if need * size <= 8 and any(room >= need * size for racks in pods for room in racks):
                used = {name.partition("n")[0] for name in names}
                assert len(used) == 1  # a rack that holds the whole job is preferred to anything else


@pytest.mark.parametrize("seed", range(40))
def test_super_pod_jobs_spare_the_reserve_while_they_can(seed: int) -> None:
    random = Random(seed)
    sizes = {key: random.randint(0, 8) for key in range(4)}
    reserve, size = random.choice((0, 1, 2)), random.choice((1, 2, 3))
    pools = {key: [f"s{key}n{i}" for i in range(room)] for key, room in sizes.items()}
    most = _most(tuple(sizes.values()), size)
    without = _most(tuple(max(0, room - reserve) for room in sizes.values()), size)
    for need in range(1, most + 2):
        found = superpod.select(pools, list(range(need)), Blocks(size, need, False), reserve, fresh_id=need)
        assert (need <= most) == (not isinstance(found, Refusal)), (sizes, size, reserve, need)
        if not isinstance(found, Refusal):
            taken = Counter(block.super_pod for block in found.values())
            left = [sizes[key] - taken[key] * size for key in sizes if taken[key]]
            assert sum(taken.values()) == need
            if need <= without:
                assert all(room >= reserve for room in left)
