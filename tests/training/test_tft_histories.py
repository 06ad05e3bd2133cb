"""Random histories of the controller and its processors on a virtual clock (`sim/`): messages lost, late, doubled, any
process killed or frozen anywhere.
"""

from __future__ import annotations

import pytest

from agents.training.tolerance import repair_states
from agents.training.tolerance.constants import Action
from agents.training.tolerance.processor import Processor
from agents.training.tolerance.replicas import RepairPlan
from tests.bench.training_tft import native_recovery, recovery_of
from tests.training.sim.world import Plan, World

PART = 250


def broken(seeds: range) -> list[str]:
    found = []
    for seed in seeds:
        try:
            World(Plan.draw(seed)).run()
        except AssertionError as error:
            found.append(f"seed {seed} (python -m tests.training.sim {seed}): {error}")
    return found


@pytest.mark.parametrize("part", range(8))
def test_no_history_breaks_an_invariant(part):
    """No rank trains beside a newer generation, from another step than the others or with torn state; no finished step
    that lives is lost; one result per generation and strategy; no rank waits for ever."""
    assert broken(range(part * PART, (part + 1) * PART)) == []


@pytest.mark.parametrize("seed", [452, 5894])
def test_a_fault_after_a_rank_has_gone_on_while_others_roll_back_is_seen(seed):
    World(Plan.draw(seed)).run()


def test_a_recovery_costs_each_rank_four_messages():
    assert recovery_of(64)[1] <= 4 * 64 + 1, "the donor and the new rank have a repair, and one has no order to stop"
    assert native_recovery(64)[1] <= 4 * 64


def test_a_history_is_the_same_every_time():
    stories = []
    for _ in range(2):
        world = World(Plan.draw(3))
        world.run()
        stories.append(world.story)
    assert stories[0] == stories[1] and len(stories[0]) > 5


def test_the_invariants_detect_a_repair_that_copies_nothing(monkeypatch):
    monkeypatch.setattr(repair_states, "repair_plan", lambda *a: RepairPlan((), ()))
    assert broken(range(60))


def test_the_invariants_detect_ranks_that_continue_without_an_order(monkeypatch):
    monkeypatch.setattr(Processor, "repair_action", lambda self: _go_on(self))
    assert broken(range(60))


def _go_on(self):
    self.reported = self.resume = self.in_repair_wait = False
    return Action.RETRY
