"""Replica choice: who saves, who gives (the worked example of MindIO TFT's documents and its edges)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belay.agents.training.compat.tft.replicas import (
    Move,
    ReplicaGroup,
    complete,
    holders,
    repair_plan,
    save_plan,
    without,
)

DP = ReplicaGroup(0, (0, 8, 16, 24), copies=2)


def test_copies_lie_half_a_group_apart():
    assert holders(DP) == ((0, 16), (8, 24))


def test_a_full_copy_everywhere_is_one_shard():
    assert holders(ReplicaGroup(0, (0, 1, 2, 3), copies=4)) == ((0, 1, 2, 3),)


def test_the_next_copy_is_the_donor_of_a_lost_rank():
    plan = repair_plan([DP], {8}, {0, 16, 24})
    assert plan.moves == (Move(target=8, kind=0, source=24, shard=1),)
    assert not plan.missing


def test_a_shard_without_holders_is_named():
    plan = repair_plan([DP], {8, 24}, {0, 16})
    assert not plan.moves
    assert [str(missing) for missing in plan.missing] == ["shard 1 of optimizer 0 (ranks 8, 24)"]


def test_the_first_healthy_holder_of_each_shard_saves():
    plan = save_plan([DP], {8, 16, 24})
    assert plan.chosen == ((DP, (16, 8)),)
    assert plan.orders() == {16: [{"type": 0, "ranks": [16, 8]}], 8: [{"type": 0, "ranks": [16, 8]}]}


def test_a_lost_rank_is_not_a_donor():
    group = ReplicaGroup(0, tuple(range(6)), copies=3)
    assert repair_plan([group], {0, 2}, {1, 2, 3, 4, 5}).moves == (Move(0, 0, 4, 0), Move(2, 0, 4, 0))


def test_ranks_beyond_a_shifted_layout_can_save_but_are_not_donors():
    group = ReplicaGroup(0, tuple(range(6)), copies=2, shift=2)
    assert holders(group, shifted=True) == ((0, 2), (1, 3))
    assert save_plan([group], {1, 3, 4, 5}, shifted=True).chosen == ((group, (4, 5)),)
    assert repair_plan([group], {0, 2}, {1, 3, 4, 5}, shifted=True).missing


def test_a_smaller_job_leaves_out_whole_data_parallel_indices():
    # tensor parallel pairs (0,1) (2,3) (4,5) (6,7): data-parallel groups of every second rank
    groups = [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert without({3}, groups) == {2, 3}


@pytest.mark.parametrize("ranks,copies", [((), 1), ((1, 0), 1), ((0, 1), 0), ((0, 1), 3)])
def test_an_impossible_group_is_refused(ranks, copies):
    with pytest.raises(ValueError):
        ReplicaGroup(0, ranks, copies)


@given(st.integers(1, 6), st.integers(1, 5), st.data())
def test_every_lost_rank_gets_its_shard_from_a_healthy_holder_of_it(distance, copies, data):
    group = ReplicaGroup(0, tuple(range(distance * copies)), copies)
    lost = data.draw(st.sets(st.sampled_from(group.ranks)))
    healthy = set(group.ranks) - lost
    plan = repair_plan([group], lost, healthy)
    assert bool(plan.missing) == (bool(lost) and not complete([group], healthy))
    for move in plan.moves:
        assert move.source in healthy and move.source % distance == move.target % distance
    assert {m.target for m in plan.moves} | {r for m in plan.missing for r in m.holders if r in lost} == lost
