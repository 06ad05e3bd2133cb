"""Random histories of the controller and its processors on a virtual clock (`sim/`): messages lost, late, doubled, any
process killed or frozen anywhere.
"""

from __future__ import annotations

import pytest

from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft import repair_states
from belay.agents.training.compat.tft.constants import Action, ReportState, Result
from belay.agents.training.compat.tft.controller_commands import Order
from belay.agents.training.compat.tft.processor import Processor
from belay.agents.training.compat.tft.processor_commands import ProcessorSettings
from belay.agents.training.compat.tft.replicas import RepairPlan
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


@pytest.mark.parametrize("seed", [452, 5894, 5049418])
def test_a_fault_after_a_rank_has_gone_on_while_others_roll_back_is_seen(seed):
    """5049418: a rank that went on and then stopped, while the answer of another was lost, is not let go twice."""
    World(Plan.draw(seed)).run()


@pytest.mark.parametrize("orders", [["hot switch"], ["hot switch", "hot switch"], ["pause"]])
def test_a_rank_that_stops_unasked_is_seen_while_a_switch_or_a_pause_waits(orders):
    world = World(Plan(6, steps=40, faults=[(0.33, "stray", 2)]))
    for time, text in zip([0.31, 0.32], orders, strict=False):
        order = Order("pause", limit=30.0) if text == "pause" else Order("prepare", {1: 1}, text=text)
        world.after(time, lambda order=order: next(iter(world.hosts.values())).order(order))
    world.run()
    (seen,) = [line for line in world.story if "rank 2: stopped without being asked" in line]
    assert float(seen.split()[0]) < 6
    assert {world.current(number).code for number in range(4)} == {0}


def test_a_rank_is_let_go_once_in_a_generation():
    rank = Processor(ProcessorSettings(rank=0, world=2, session="a", controller="", addresses=("host:1",)))
    head = {"term": 0, "gen": 3, "strategy": "recover", "step": 2}
    rank.link(0.0)
    rank.report(ReportState.RS_NORMAL)
    rank.receive({"op": m.NORMAL, "sn": 1, **head}, 0.0)
    assert rank.next_action() is Action.RETRY and rank.repair_action() is Action.RETRY
    rank.report(ReportState.RS_NORMAL)
    rank.receive({"op": m.NORMAL, "sn": 2, **head}, 0.1)
    assert rank.next_action() is None, "it stopped without an order after it had gone on"
    rank.receive({"op": m.NORMAL, "sn": 3, **head, "gen": 4}, 0.2)
    assert rank.next_action() is Action.RETRY
    answers = [c.message for c in rank.take() if getattr(c, "message", {}).get("op") == m.REPLY]
    assert [(a["sn"], Result(a["result"])) for a in answers] == [(1, Result.OK), (2, Result.ERROR), (3, Result.OK)]


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
