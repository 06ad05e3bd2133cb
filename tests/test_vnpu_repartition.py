"""As few vNPUs as can be are given up for new ones: against enumeration of every way.

Facts: docs/zh/scheduling/04_usage/02_virtual_instance.
"""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.model.repartition import ChipRepartition, allocate, repartitions
from belay.engine.model.vnpu import ChipCapacity, ExistingVNPU, TemplateSize, unfit
from tests.test_vnpu import CHIP, SIZES

Rows = list[tuple[ExistingVNPU, TemplateSize]]


def chip_of(pieces: list[tuple[str, bool]]) -> Rows:
    """A chip with as many of these (template, busy) as fit."""
    rows: Rows = []
    for index, (template, busy) in enumerate(pieces):
        if unfit(CHIP, [*(size for _, size in rows), SIZES[template]]) is None:
            rows.append((ExistingVNPU(100 + index, template, busy), SIZES[template]))
    return rows


def fewest(rows: Rows, wanted: TemplateSize, count: int) -> int | None:
    """How many idle vNPUs must go at least, by trying every set."""
    idle = [index for index, (vnpu, _) in enumerate(rows) if not vnpu.busy]
    for gone in range(len(idle) + 1):
        for going in combinations(idle, gone):
            kept = [size for index, (_, size) in enumerate(rows) if index not in going]
            if unfit(CHIP, [*kept, *[wanted] * count]) is None:
                return gone
    return None


pieces = st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.booleans()), max_size=7)


@given(pieces, st.sampled_from(sorted(SIZES)))
def test_the_fewest_idle_vnpus_are_destroyed_and_never_a_busy_one(there: list[tuple[str, bool]], name: str) -> None:
    rows, wanted = chip_of(there), SIZES[name]
    found = repartitions(CHIP, rows, wanted, 7)
    for cut in found:
        assert len(cut.destroy) == fewest(rows, wanted, cut.more)
        left = [size for vnpu, size in rows if vnpu.id not in cut.destroy]
        assert unfit(CHIP, [*left, *[wanted] * cut.more]) is None
        assert not {vnpu.id for vnpu, _ in rows if vnpu.busy} & set(cut.destroy)
    assert fewest(rows, wanted, len(found) + 1) is None or len(found) == 7


@settings(max_examples=60)
@given(st.lists(pieces, min_size=1, max_size=3), st.sampled_from(sorted(SIZES)), st.integers(1, 4))
def test_vnpus_are_allocated_at_the_least_cost(chips: list[list[tuple[str, bool]]], name: str, wanted: int) -> None:
    rows = [chip_of(there) for there in chips]
    chosen = allocate(
        (("n", i, repartitions(CHIP, there, SIZES[name], wanted)) for i, there in enumerate(rows)), wanted
    )
    table = [[fewest(there, SIZES[name], count) for count in range(wanted + 1)] for there in rows]
    costs = [
        sum(cost for cost in picked if cost is not None)
        for counts in product(range(wanted + 1), repeat=len(rows))
        if sum(counts) == wanted and None not in (picked := [table[chip][count] for chip, count in enumerate(counts)])
    ]
    assert bool(chosen) is bool(costs)
    if chosen:
        assert sum(cut.more for _, _, cut in chosen) == wanted
        assert sum(len(cut.destroy) for _, _, cut in chosen) == min(costs)


def test_whole_chips_are_left_whole_where_another_serves_as_well() -> None:
    options = [("a", 0, [ChipRepartition(1, (), 0, True)]), ("b", 0, [ChipRepartition(1, (), 0, False)])]
    assert allocate(options, 1) == (("b", 0, ChipRepartition(1, (), 0, False)),)
    assert allocate(options[:1] * 2, 1)[0][:2] == ("a", 0)
    assert allocate([], 1) == ()


def test_uncounted_media_engines_forbid_nothing() -> None:
    totals = ChipCapacity(20, 6, 32768)
    media, plain = TemplateSize("vir10_4c_16g_m", 10, 4, 16384, {}, "yes"), TemplateSize("vir05_1c_8g", 5, 1, 8192)
    assert unfit(totals, [media, plain, plain]) is None
    assert unfit(totals, [media, media]) == "8 AI CPUs, a chip has 6"
