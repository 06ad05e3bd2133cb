"""The step lock: where ranks are held and which step is taken."""

from __future__ import annotations

import pytest

from belay.agents.training.compat.tft.constants import DataStatus
from belay.agents.training.compat.tft.replicas import ReplicaGroup
from belay.agents.training.compat.tft.steplock import RankStep, StepLock, UpdatePermission, highest_complete_step

PAIRS = [ReplicaGroup(0, (0, 1, 2, 3), copies=2)]


def test_a_frozen_rank_finishes_what_it_started_and_starts_nothing():
    lock = StepLock()
    lock.end(4)
    lock.start()
    assert lock.freeze() == 5
    lock.end(5)
    assert lock.permission() is UpdatePermission.WAIT
    lock.release()
    assert lock.permission() is UpdatePermission.GO


def test_a_rank_behind_may_finish_up_to_the_step_of_the_others():
    lock = StepLock()
    lock.end(4)
    lock.freeze()
    lock.hold(5)
    assert lock.permission() is UpdatePermission.GO
    lock.start()
    assert not lock.at(5)
    lock.end(5)
    assert lock.at(5) and lock.permission() is UpdatePermission.WAIT


def test_a_stopped_rank_is_no_longer_held():
    lock = StepLock()
    lock.end(1)
    lock.freeze()
    lock.stop()
    assert lock.permission() is UpdatePermission.STOP and not lock.past()


@pytest.mark.parametrize(
    "state,steps",
    [
        (RankStep(5), {5}),
        (RankStep(5, data=DataStatus.UPDATING), set()),
        (RankStep(5, 4, DataStatus.UPDATED, local_copy=True), {4, 5}),
        (RankStep(5, 4, DataStatus.UPDATING, local_copy=True), {4}),
        (RankStep(5, 4, DataStatus.COPYING, local_copy=True), {5}),
        (RankStep(0), set()),
    ],
)
def test_only_complete_states_are_usable(state, steps):
    assert state.usable() == steps


def test_a_step_counts_when_its_shards_live_even_if_others_are_behind():
    states = {0: RankStep(7), 1: RankStep(7), 2: RankStep(6), 3: RankStep(6)}
    assert highest_complete_step(states, PAIRS) == 7


def test_a_step_of_one_shard_only_does_not_count():
    states = {0: RankStep(7), 1: RankStep(6), 2: RankStep(6), 3: RankStep(6)}
    assert highest_complete_step(states, PAIRS) == 6


def test_torn_state_does_not_count():
    torn = RankStep(6, data=DataStatus.UPDATING)
    assert highest_complete_step({0: torn, 1: torn, 2: RankStep(6), 3: torn}, PAIRS) == 0
