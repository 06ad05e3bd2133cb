"""Random histories of `belay train` on a virtual clock (`sim/native.py`), with the real node agents and coordinator."""

from __future__ import annotations

import pytest

from belay.agents.training.train.agent.node import NodeAgent
from belay.agents.training.train.decide import generations
from belay.agents.training.train.decide.coordinator import Coordinator
from tests.training.sim.native import World

PART = 60


def broken(seeds: range) -> list[str]:
    """What does not hold, with the command that plays it again."""
    found = []
    for seed in seeds:
        try:
            World(seed).run()
        except AssertionError as error:
            found.append(f"seed {seed} (python -m tests.training.sim.native {seed}): {error}")
    return found


@pytest.mark.parametrize("part", range(6))
def test_no_history_breaks_an_invariant(part: int) -> None:
    """Every generation goes on at a step that some rank of each shard holds, and at the newest one; nothing is started
    after all have finished; no one waits for ever; a job ends with 0 unless a shard or a finished rank was lost."""
    assert broken(range(part * PART, (part + 1) * PART)) == []


@pytest.mark.parametrize("seed", [237, 287, 13224, 30877])
def test_agents_and_ranks_that_are_killed_at_the_end_begin_nothing(seed: int) -> None:
    World(seed).run()


@pytest.mark.parametrize("seed", [32044, 33042, 40460, 42889, 42902, 101947, 300545])
def test_nodes_agree_on_the_end_although_agents_are_killed_while_they_hear_of_it(seed: int) -> None:
    world = World(seed)
    world.run()
    assert {host.code for host in world.hosts} == {0} and world.now < 30


def test_a_history_is_the_same_every_time() -> None:
    stories = []
    for _ in range(2):
        world = World(9)
        world.run()
        stories.append(world.story)
    assert stories[0] == stories[1] and len(stories[0]) > 5


def test_an_agent_that_begins_again_what_is_done_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeAgent, "_leave", lambda self: None)
    assert any("is started although all had finished" in one for one in broken(range(60)))


def test_a_plan_without_donors_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "donors", lambda members, holders: {})
    assert any("has no donor" in one for one in broken(range(60)))


def test_giving_up_the_last_copy_on_a_busy_machine_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "_held_elsewhere", lambda self, member: True)
    assert any("although every shard was held" in one for one in broken(range(200)))


SMALLER = [12, 14, 19, 24, 25, 47, 55, 81, 112, 118, 133, 141]
"""Short histories in which a job goes on without a host; more: ``python -m tests.training.sim.native 0 1000 1``."""


@pytest.mark.parametrize("seed", SMALLER)
def test_a_job_that_goes_on_without_hosts_breaks_no_invariant(seed: int) -> None:
    world = World(seed, 1)
    world.run()
    assert any("goes on with" in line for line in world.story)


@pytest.mark.parametrize("seed", [4200117, 4300008])
def test_a_new_coordinator_waits_for_hosts_that_hold_the_last_copy(seed: int) -> None:
    World(seed, 1).run()


def test_going_on_without_the_last_copy_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "unable", lambda self, lost: "")
    with pytest.raises(AssertionError, match="although every shard was held"):
        World(133, 1).run()
