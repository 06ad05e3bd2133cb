"""Slow ranks and groups in synthetic jobs: found, blamed rightly, ended, and nothing found in noise."""

from __future__ import annotations

import random

import pytest

from belay.engine.model.step_times import GroupTime, Slowness, SlownessSettings, StepWindow, explained
from belay.engine.slowness.detector import SlownessDetector
from belay.engine.slowness.excess import culprits
from tests.training_fleet import STEP_US, Injected, Layout, nodes, windows

SMALL = Layout(4, 2, 4)


def findings(layout: Layout, steps: int, injected: Injected | None, seed: int = 11) -> list[set[str]]:
    """The keys of what is slow after each window."""
    detector, where = SlownessDetector(), nodes(layout)
    shown = []
    for rows in windows(layout, steps, seed, injected):
        detector.add(rows, where, layout.ranks)
        shown.append({one.key for one in detector.findings})
    return shown


@pytest.mark.parametrize(
    ("injected", "key"),
    [
        (Injected(200, 500, work={5: 1.05}), "computation.rank.5"),
        (Injected(200, 500, data={20: STEP_US // 20}), "data-loading.rank.20"),
        (Injected(200, 500, transfer={("tp", 2): STEP_US // 20}), "communication.tp.8.5a12f52a"),
    ],
)
def test_five_percent_are_found_within_three_windows_and_end_when_gone(injected: Injected, key: str) -> None:
    shown = findings(SMALL, 800, injected)
    assert set().union(*shown) == {key}
    assert key not in shown[5] and key in shown[7] and key in shown[9]
    assert not shown[-1]


def test_every_rank_of_a_slow_node_of_two_is_found_and_none_of_the_other() -> None:
    shown = findings(Layout(8, 1, 2), 500, Injected(0, 500, work=dict.fromkeys(range(8), 1.06)))
    assert shown[-1] == {f"computation.rank.{rank}" for rank in range(8)}


def test_noise_pauses_checkpoints_and_common_slowdowns_are_no_findings() -> None:
    assert not set().union(*findings(SMALL, 6000, None, seed=5))


def test_what_slows_all_ranks_alike_is_no_finding() -> None:
    assert not set().union(*findings(SMALL, 500, Injected(200, 500, work=dict.fromkeys(range(32), 1.3))))


def test_stages_with_more_layers_are_not_slow() -> None:
    shown = findings(Layout(2, 4, 4), 400, None)
    assert not set().union(*shown)


def test_order_repetition_and_lateness_of_reports_change_nothing() -> None:
    rows = [one for each in windows(SMALL, 500, 3, Injected(100, 500, work={9: 1.08})) for one in each]
    plain, mixed = SlownessDetector(), SlownessDetector()
    where = nodes(SMALL)
    for begin in range(0, len(rows), SMALL.ranks):
        plain.add(rows[begin : begin + SMALL.ranks], where, SMALL.ranks)
    chance = random.Random(1)
    for begin in range(0, len(rows), SMALL.ranks):
        newest = rows[max(0, begin - 2 * SMALL.ranks) : begin + SMALL.ranks]
        for part in (newest[: len(newest) // 2], newest):
            shuffled = list(part)
            chance.shuffle(shuffled)
            mixed.add([*rows[begin : begin + 1], *shuffled], where, SMALL.ranks)
    assert mixed.findings == plain.findings and len(plain.findings) == 1
    assert mixed.judged == plain.judged == 9


def test_a_rank_that_stops_reporting_holds_nothing_up_and_its_finding_ends() -> None:
    detector, where = SlownessDetector(), nodes(SMALL)
    for number, rows in enumerate(windows(SMALL, 1200, 3, Injected(0, 1200, work={9: 1.08}))):
        detector.add([one for one in rows if number < 8 or one.rank != 9], where, SMALL.ranks)
        if number == 7:
            assert [one.ranks for one in detector.findings] == [(9,)]
    assert detector.judged >= 18 and not detector.findings


def test_a_job_that_starts_again_is_judged_again() -> None:
    detector, where = SlownessDetector(), nodes(SMALL)
    for rows in windows(SMALL, 1000, 3):
        detector.add(rows, where, SMALL.ranks)
    assert detector.judged == 19
    for rows in windows(SMALL, 300, 4, Injected(0, 300, work={1: 1.1})):
        detector.add(rows, where, SMALL.ranks)
    assert [one.ranks for one in detector.findings] == [(1,)]


def test_a_stricter_setting_finds_less() -> None:
    detector, where = SlownessDetector(SlownessSettings(degradation=0.3)), nodes(SMALL)
    for rows in windows(SMALL, 400, 3, Injected(0, 400, work={1: 1.1})):
        detector.add(rows, where, SMALL.ranks)
    assert not detector.findings


def test_two_groups_that_differ_are_no_finding() -> None:
    detector = SlownessDetector()
    for number in range(6):
        detector.add(
            [
                StepWindow(rank, number, 50, 1000, 800, 0, (GroupTime("tp", pair, 100 if rank < 2 else 300),))
                for pair in ((0, 1), (2, 3))
                for rank in pair
            ],
            {},
            4,
        )
    assert not detector.findings


def test_the_rank_that_all_slow_groups_share_is_to_blame() -> None:
    assert culprits([(0, 1), (1, 5)], [(0, 4), (4, 5)]) == (1,)
    assert culprits([(0, 1)], []) == () and culprits([(0, 1), (1, 5)], [(1, 6)]) == ()


def test_a_finding_says_its_figures() -> None:
    detector, where = SlownessDetector(), nodes(SMALL)
    for rows in windows(SMALL, 400, 3, Injected(0, 400, work={1: 1.1})):
        detector.add(rows, where, SMALL.ranks)
    (found,) = detector.findings
    text = explained(found)
    assert found.kind is Slowness.COMPUTATION and text.startswith("rank 1 computes ")
    assert "ranks with the same work" in text and "more (limit 3." in text and text.endswith("since step 0")
