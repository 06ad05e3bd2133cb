"""Every topology family against the published score tables and against plain enumeration of all chip sets."""

from __future__ import annotations

from itertools import combinations

import pytest

from belay.engine.model.chip_masks import ids_of
from belay.engine.plan.place.families.a3 import A3
from belay.engine.plan.place.families.base import Base
from belay.engine.plan.place.families.box16 import Box16
from belay.engine.plan.place.families.card310 import Card310, Chip310
from belay.engine.plan.place.families.duo import DuoCard, DuoChip
from belay.engine.plan.place.families.mesh4 import Mesh4
from belay.engine.plan.place.families.ring8 import Ring8
from belay.engine.plan.place.handler import Family, JobRequest, NodeChips, PodRequest, Refusal, TaskRequest


def mask(*chips: int) -> int:
    return sum(1 << chip for chip in chips)


def chosen(mask: int) -> list[int]:
    return list(ids_of(mask))


def node(*chips: int, allocatable: int = 8, unhealthy: int = 0, card: str = "card-300i-duo") -> NodeChips:
    return NodeChips(mask(*chips), unhealthy, allocatable, card)


def job(*wants: int, labels: dict[str, str] | None = None) -> JobRequest:
    tasks = tuple(TaskRequest(f"t{i}", want) for i, want in enumerate(wants))
    return JobRequest("job", sum(wants), sum(1 for want in wants if want), tasks, labels or {}, {})


@pytest.mark.parametrize(
    ("free", "unhealthy", "score"), [(range(5), 1, 695), (range(5), 2, 595), (range(6), 2, 594), (range(8), 0, 792)]
)
def test_base_scores_healthy_then_full_nodes(free: range, unhealthy: int, score: int) -> None:
    assert Base(8).score(node(*free, unhealthy=unhealthy), PodRequest(1)) == score


def test_base_takes_the_lowest_chips_and_reports_shortage_in_known_words() -> None:
    assert chosen(Base(8).choose(node(1, 3, 5), PodRequest(2))) == [1, 3]
    refusal = Base(8).score(node(1, 3), PodRequest(4))
    assert isinstance(refusal, Refusal) and refusal.idle is not None and refusal.evictable
    assert refusal[:2] == (
        "NPUResourceShortage", "NPUResourceShortage: node don't have enough resource, req<4>, idle<2>"
    )  # fmt: skip
    too_many = Base(2).score(node(0, 1, 2), PodRequest(1))
    assert isinstance(too_many, Refusal) and too_many.message == "node npu top<[0 1 2]> is invalid"


@pytest.mark.parametrize(
    ("free", "score"), [((0,), 263), ((0, 1, 2), 253), ((4, 5), 246), ((4, 5, 6, 7), 236), ((0, 1, 4, 5), 244)]
)
def test_ring_scores(free: tuple[int, ...], score: int) -> None:
    assert Ring8().score(node(*free), PodRequest(1)) == score


@pytest.mark.parametrize(
    ("free", "want", "chips"),
    [
        ((0, 1, 4), 1, [4]),
        ((0, 1, 2, 4, 5), 1, [0]),
        ((0, 1, 2, 3, 5, 6, 7), 2, [0, 1]),
        ((0, 1, 2, 6, 7), 2, [6, 7]),
        ((0, 1, 2, 4, 5, 6, 7), 4, [4, 5, 6, 7]),
        (range(8), 8, list(range(8))),
    ],
)
def test_ring_selection(free: tuple[int, ...], want: int, chips: list[int]) -> None:
    assert chosen(Ring8().choose(node(*free), PodRequest(want))) == chips


def test_ring_refuses_what_spans_rings() -> None:
    refusal = Ring8().score(node(0, 1, 4), PodRequest(4))
    assert isinstance(refusal, Refusal) and refusal.reason == "TopologyNotMet"
    assert isinstance(Ring8().score(node(*range(7)), PodRequest(8)), Refusal)
    assert Ring8().check(job(3)) is not None and Ring8().check(job(4, 0)) is None


@pytest.mark.parametrize(
    ("free", "want", "distributed", "score", "chips"),
    [
        (range(16), 10, False, 208, [0, 1, 2, 3, 4, 8, 9, 10, 11, 12]),
        ((0, 1, 2, 3, 4, 9, 10, 11, 12, 13), 10, True, 262, [0, 1, 2, 3, 4, 9, 10, 11, 12, 13]),
        ((0, 8, 9), 1, False, 269, [0]),
        (range(16), 16, False, 256, list(range(16))),
        ((0, 1, 2, 8, 9, 10, 11), 3, False, 265, [0, 1, 2]),
    ],
)
def test_box16(free: range, want: int, distributed: bool, score: int, chips: list[int]) -> None:
    box, here = Box16(), node(*free, allocatable=16)
    assert box.score(here, PodRequest(want, distributed)) == score
    assert chosen(box.choose(here, PodRequest(want, distributed))) == chips


def test_box16_single_pods_need_index_pairs() -> None:
    free = (0, 1, 2, 3, 4, 9, 10, 11, 12, 13)
    assert isinstance(Box16().score(node(*free, allocatable=16), PodRequest(10)), Refusal)
    assert Box16().check(job(9)) is not None and Box16().check(job(10)) is None


@pytest.mark.parametrize(
    ("free", "want", "reason"), [((0, 1, 8), 4, "NPUResourceShortage"), ((0, 1, 8), 3, "TopologyNotMet")]
)
def test_box16_distinguishes_too_few_chips_from_chips_in_two_rings(
    free: tuple[int, ...], want: int, reason: str
) -> None:
    text = f"NPUResourceShortage: node top<[0 1 8]> can not meet task req<{want}>"
    assert Box16().score(node(*free, allocatable=16), PodRequest(want)) == Refusal(reason, text, evictable=True)


@pytest.mark.parametrize(
    ("free", "want", "score"),
    [
        ((0,), 1, 512),
        ((0, 1), 1, 240),
        ((0, 1, 2), 1, 480),
        ((0, 1, 4, 5), 1, 208),
        ((0, 1, 2, 3, 4, 5), 1, 176),
        ((0, 1, 2, 3, 4, 5, 6), 1, 416),
        ((0, 1, 2, 3, 4), 1, 448),
        ((0, 1, 2, 3, 4), 2, 464),
        ((0, 1, 2), 2, 496),
        ((0, 1, 2, 3, 4, 5, 6), 2, 432),
    ],
)
def test_a3_scores(free: tuple[int, ...], want: int, score: int) -> None:
    assert A3().score(node(*free, allocatable=16), PodRequest(want)) == score


@pytest.mark.parametrize(
    ("free", "want", "chips"),
    [
        ((0, 1, 3, 6, 7, 8, 9), 6, [0, 1, 6, 7, 8, 9]),
        ((0, 2, 6, 11, 12, 13), 2, [12, 13]),
        ((0, 1, 2, 3, 6, 7, 11), 1, [11]),
        ((2, 3), 2, [2, 3]),
    ],
)
def test_a3_selection(free: tuple[int, ...], want: int, chips: list[int]) -> None:
    assert chosen(A3().choose(node(*free, allocatable=16), PodRequest(want))) == chips


def test_a_die_beyond_the_family_s_node_size_is_a_die_of_its_module() -> None:
    """A policy for servers of 8 dies, on a server of 16 whose lower half is taken."""
    upper = node(9, 12, 13, allocatable=16)
    assert A3(8).score(upper, PodRequest(1)) == 16 * (32 - 2)
    assert chosen(A3(8).choose(upper, PodRequest(1))) == [9] and chosen(A3(8).choose(upper, PodRequest(2))) == [12, 13]


def test_a3_sizes() -> None:
    only = A3().check(job(1, 1))
    assert only is not None and "must be 2n, and <= 16" in only.message
    odd = A3().check(job(3))
    assert odd is not None and odd.message.endswith("should be even number, instead of 3")
    assert A3().check(job(1)) is None and A3().check(job(16, 16, 0)) is None
    assert isinstance(A3().score(node(0, 3, 4), PodRequest(2)), Refusal)


@pytest.mark.parametrize(
    ("most", "free", "want", "score"),
    [
        (8, (0, 1, 2, 3), 2, 224),
        (8, (0, 1, 4, 5), 2, 96),
        (8, (0, 1, 2), 2, 240),
        (16, range(16), 8, 1536),
        (16, range(14), 8, 2688),
        (16, range(12), 8, 2816),
        (16, range(8), 8, 4096),
        (8, (0, 1, 2, 4, 5), 5, 64),
        (8, (0, 1, 2, 4, 5, 6), 5, 56),
    ],
)
def test_mesh_scores(most: int, free: range, want: int, score: int) -> None:
    assert Mesh4(most).score(node(*free), PodRequest(want)) == score


def test_mesh_selection() -> None:
    assert chosen(Mesh4(16).choose(node(0, 1, 2, 5, 6, 8, 9, 10, 12, 13, 14), PodRequest(2))) == [5, 6]
    assert chosen(Mesh4(16).choose(node(0, 1, 2, *range(4, 16)), PodRequest(8))) == list(range(4, 12))
    assert chosen(Mesh4(8).choose(node(0, 1, 2, 4, 5, 7), PodRequest(5))) == [0, 1, 2, 4, 5]
    refusal = Mesh4(8).score(node(0, 1, 4, 5), PodRequest(3))
    assert isinstance(refusal, Refusal) and "not meet task in 4Pmesh" in refusal.message


def test_300i_cards() -> None:
    card = Card310()
    assert card.score(node(0, 4, 5), PodRequest(1)) == 32 and chosen(card.choose(node(0, 1, 4), PodRequest(1))) == [4]
    assert chosen(card.choose(node(0, 1, 2, 3, 4, 5, 6), PodRequest(2))) == [4, 5]
    refusal = card.score(node(0, 1, 4), PodRequest(3))
    assert isinstance(refusal, Refusal)
    assert "req npu(3) illegal not meet node top<[0 1 4]>" in refusal.message
    assert card.check(job(5)) is not None
    assert chosen(Chip310().choose(node(0, 1, 2, 3, 4, 8, 9), PodRequest(3))) == [4, 8, 9]


@pytest.mark.parametrize(
    ("free", "want", "chips", "score"),
    [((0, 1, 3), 3, [0, 1, 3], 120), ((0, 1, 2, 3, 5), 5, [0, 1, 2, 3, 5], 120), ((0, 1, 2, 3), 3, [0, 1, 2], 56)],
)
def test_duo_spread_jobs(free: tuple[int, ...], want: int, chips: list[int], score: int) -> None:
    duo, request = DuoChip(), PodRequest(want, spread=True)
    assert duo.score(node(*free), request) == score
    assert chosen(duo.choose(node(*free), request)) == chips


@pytest.mark.parametrize(
    ("want", "free", "unfit"),
    [
        *((1, chips, unfit) for chips, unfit in (((0,), 1), ((0, 1, 2), 3), ((0, 1, 2, 3, 4, 5, 6), 7))),
        *((1, tuple(range(count)), unfit) for count, unfit in ((2, 9), (4, 10), (6, 11), (8, 12), (10, 16))),
        *((3, tuple(range(count)), unfit) for count, unfit in ((3, 1), (5, 3), (7, 5), (4, 9), (6, 10), (8, 11))),
        *((5, tuple(range(count)), unfit) for count, unfit in ((5, 1), (7, 3), (6, 9), (8, 10))),
        *((7, tuple(range(count)), unfit) for count, unfit in ((7, 1), (8, 9))),
        *((2, tuple(range(count)), count - 1) for count in range(2, 9)),
        *((4, tuple(range(count)), count - 3) for count in range(4, 9)),
        *((6, tuple(range(count)), count - 5) for count in range(6, 9)),
        *((8, tuple(range(count)), unfit) for count, unfit in ((8, 1), (9, 16))),
        *((want, tuple(range(16)), 16) for want in (9, 10, 16)),
    ],
)
def test_duo_spread_jobs_against_the_whole_table(want: int, free: tuple[int, ...], unfit: int) -> None:
    assert DuoChip().score(node(*free), PodRequest(want, spread=True)) == 8 * (16 - unfit)


def test_duo_other_rules() -> None:
    spread = DuoChip().score(node(0, 2, 4), PodRequest(2, spread=True))
    assert isinstance(spread, Refusal) and spread.message.endswith("node full cards is 0")
    assert DuoChip().score(node(0, 2, 4, 5), PodRequest(3)) == 0
    assert chosen(DuoChip().choose(node(0, 2, 4, 5), PodRequest(3))) == [0, 2, 4]
    wrong = DuoChip().score(node(0, 1, card=""), PodRequest(1))
    assert isinstance(wrong, Refusal) and "node card label not right" in wrong.message
    assert DuoCard().score(node(0, 1, 2), PodRequest(1)) == 16 and chosen(
        DuoCard().choose(node(0, 1, 2), PodRequest(1))
    ) == [2]
    assert DuoCard().score(node(0, 1, 2), PodRequest(2)) == 16 and chosen(
        DuoCard().choose(node(0, 2, 4, 5), PodRequest(2))
    ) == [4, 5]
    several = DuoChip().check(job(2, 2, labels={"distributed": "true"}))
    assert several is not None and "should have only 1 npu pod" in several.message


RINGS = [(0, 1, 2, 3), (4, 5, 6, 7)]
PAIRS = [(2 * i, 2 * i + 1) for i in range(4)]


def _whole_pairs(chips: tuple[int, ...]) -> bool:
    return len(chips) == 1 or all(chip ^ 1 in chips for chip in chips)


def _whole_meshes(chips: tuple[int, ...]) -> bool:
    if len(chips) > 4 and len(chips) % 4:
        return True
    if len(chips) < 4:
        return any(set(chips) <= set(ring) for ring in RINGS)
    return all(set(ring) <= set(chips) or not set(ring) & set(chips) for ring in RINGS)


#: What a legal set of chips is, said without masks or tables.
LEGAL = [
    (Base(8), range(1, 9), lambda chips: True),
    (Ring8(), (1, 2, 4, 8), lambda chips: len(chips) == 8 or any(set(chips) <= set(ring) for ring in RINGS)),
    (A3(8), (1, 2, 4, 6, 8), _whole_pairs),
    (Mesh4(8), range(1, 9), _whole_meshes),
    (Card310(), (1, 2, 3, 4), lambda chips: any(set(chips) <= set(ring) for ring in RINGS)),
    (Chip310(), range(1, 9), lambda chips: True),
    (DuoCard(), (1, 2), lambda chips: any(set(chips) <= set(pair) for pair in PAIRS)),
]


@pytest.mark.parametrize(("family", "wants", "legal"), LEGAL, ids=lambda value: type(value).__name__)
def test_feasible_exactly_when_some_legal_set_of_free_chips_exists(family: Family, wants: range, legal: object) -> None:
    for free in range(256):
        chips = ids_of(free)
        for want in wants:
            request = PodRequest(want)
            exists = any(legal(found) for found in combinations(chips, want))  # type: ignore[operator]
            score = family.score(NodeChips(free, 0, 8, "card-300i-duo"), request)
            assert isinstance(score, int) == exists, (chips, want, score)
            if exists:
                taken = family.choose(NodeChips(free, 0, 8, "card-300i-duo"), request)
                assert taken & ~free == 0 and taken.bit_count() == want
                assert legal(ids_of(taken)), (chips, want, ids_of(taken))  # type: ignore[operator]


@pytest.mark.parametrize("distributed", [False, True])
def test_box16_against_enumeration_of_ring_counts(distributed: bool) -> None:
    for free in range(0, 1 << 16, 97):
        left, right = free & 0xFF, free >> 8
        for want in (1, 3, 8, 10, 12, 16):
            if want <= 8:
                exists = max(left.bit_count(), right.bit_count()) >= want
            elif distributed:
                exists = 2 * min(left.bit_count(), right.bit_count()) >= want
            else:
                exists = 2 * (left & right).bit_count() >= want
            request, here = PodRequest(want, distributed), NodeChips(free, 0, 16)
            assert isinstance(Box16().score(here, request), int) == exists
            if exists:
                taken = Box16().choose(here, request)
                assert taken & ~free == 0 and taken.bit_count() == want
