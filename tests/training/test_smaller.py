"""A host that does not come back: the job goes on without it, with the same batch, and with it when it joins again."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from belay.agents.training.train.decide.coordinator import Coordinator
from belay.agents.training.train.decide.coordinator_commands import (
    EndJob,
    EndRank,
    GenerationPlan,
    JoinGeneration,
    OperatorMessage,
    StartRank,
)
from belay.agents.training.train.decide.members import Limits, RunningRank
from belay.agents.training.train.decide.smaller import refusal, shares
from tests.ports import free_port
from tests.training.conftest import Launch
from tests.training.launched import Job, Step, descendants, signalled

LIMITS = Limits(least=1, shrink=5.0)


def training(shards: dict[int, str] | None = None, limits: Limits = LIMITS) -> Coordinator:
    """Two nodes of two ranks, all of them in generation 1 and at step 4."""
    machine = Coordinator({0: 0, 1: 0, 2: 1, 3: 1}, limits)
    machine.node_joined(0, 0.0)
    machine.node_joined(1, 0.0)
    for rank in range(4):
        machine.ready(rank, 1, 1, -1, (shards or {}).get(rank, ""), 0.1)
    for rank in range(4):
        machine.entered(rank, 1, 1, 0.2)
        machine.stepped(rank, 1, 4, 0.3)
        machine.sampled(rank, 1, 1, 4, (shards or {}).get(rank, ""), {}, True)
    return machine


def smaller(shards: dict[int, str] | None = None) -> Coordinator:
    """The same without node 1, which was lost at second 1."""
    machine = training(shards)
    machine.node_lost(1, "silent", 1.0)
    machine.tick(6.1)
    return machine


def test_the_job_goes_on_without_a_node_that_does_not_come_back() -> None:
    machine = training()
    assert machine.node_lost(1, "silent", 1.0)[1:] == [JoinGeneration(2, (0, 1))]
    for rank in (0, 1):
        assert machine.ready(rank, 1, 2, 4, "", 1.1) == []
    assert machine.tick(5.9) == []
    said, joined = machine.tick(6.1)
    assert isinstance(said, OperatorMessage) and "goes on with 1 of 2 nodes, 2 of 4 ranks" in said.text
    assert joined == JoinGeneration(3, (0, 1), active=(0, 1))
    assert machine.ready(0, 1, 3, 4, "", 6.2) == []
    assert machine.ready(1, 1, 3, 4, "", 6.2) == [GenerationPlan(3, 4, {})]


def test_a_node_that_comes_back_trains_again_and_its_old_ranks_hold_nothing() -> None:
    machine = smaller()
    for rank in (0, 1):
        machine.ready(rank, 1, 3, 4, "", 6.2)
    old = [RunningRank(rank, 1, 1, True, False, 5) for rank in (2, 3)]
    assert machine.node_joined(1, 20.0, old) == [
        JoinGeneration(4, (0, 1)),
        StartRank(1, 2, 2, 4),
        StartRank(1, 3, 2, 4),
    ]
    for rank in (0, 1):
        assert machine.ready(rank, 1, 4, 9, "", 20.1) == []
    assert machine.ready(2, 2, 4, -1, None, 20.2) == []
    assert machine.ready(3, 2, 4, -1, None, 20.2) == [GenerationPlan(4, 9, {2: 0, 3: 1})]


def test_it_waits_for_a_node_that_holds_the_only_copy_and_says_so() -> None:
    machine = training({0: "a", 1: "a", 2: "b", 3: "b"})
    machine.node_lost(1, "silent", 1.0)
    [said] = machine.tick(6.1)
    assert isinstance(said, OperatorMessage) and "ranks 2, 3 hold state of which no other node has a copy" in said.text
    assert machine.tick(6.2) == []
    assert machine.tick(700.0) == [EndJob(1, "node 1 has not come back for 600 s")]


def test_it_waits_for_a_node_that_is_cut_off_when_the_others_have_lost_their_state() -> None:
    machine = training()
    machine.ranks_lost([(0, 1, "died"), (1, 1, "died")], 1.0)
    machine.node_lost(1, "silent", 1.1)
    said = [one for one in machine.tick(7.0) if not isinstance(one, EndRank)]
    assert ["hold state of which no other node has a copy" in one.text for one in said] == [True]  # type: ignore[union-attr]
    machine.node_joined(1, 9.0, [RunningRank(rank, 1, 1, True, False, 4) for rank in (2, 3)])
    plans = []
    for rank, member in machine.members.items():
        plans += machine.ready(rank, member.incarnation, machine.generation, 4 if rank > 1 else -1, "", 9.1)
    assert plans == [GenerationPlan(machine.generation, 4, {0: 2, 1: 3})]


def test_a_script_that_does_not_divide_its_batch_waits() -> None:
    machine = training()
    [said] = machine.sampled(0, 1, 1, 4, "", {}, False)
    assert isinstance(said, OperatorMessage) and "for share in run.shares(model)" in said.text
    machine.node_lost(1, "silent", 1.0)
    [why] = machine.tick(6.1)
    assert isinstance(why, OperatorMessage) and "asks for no run.shares" in why.text


def test_an_order_is_carried_out_at_once_and_only_an_order_brings_the_nodes_back() -> None:
    machine = training()
    said, joined, *ends = machine.shrink([1], "the planner has no node for it", 1.0)
    assert isinstance(said, OperatorMessage) and joined == JoinGeneration(2, (0, 1), active=(0, 1))
    assert [(one.node, one.rank) for one in ends if isinstance(one, EndRank)] == [(1, 2), (1, 3)]
    machine.node_lost(1, "its pod was deleted", 2.0)
    assert machine.node_joined(1, 3.0) == []
    assert machine.grow(4.0) == [JoinGeneration(3, (0, 1)), StartRank(1, 2, 2, 3), StartRank(1, 3, 2, 3)]


def test_a_new_coordinator_takes_a_smaller_job_over_as_it_trains() -> None:
    machine = Coordinator({0: 0, 1: 0, 2: 1, 3: 1}, LIMITS)
    living = [RunningRank(rank, 2, 7, True, False, 30, active=(0, 1), divides=True) for rank in (0, 1)]
    [said] = machine.node_joined(0, 0.0, living)
    assert isinstance(said, OperatorMessage) and "taken over all ranks in generation 7" in said.text
    old = [RunningRank(rank, 2, 5, True, False, 31) for rank in (2, 3)]
    commands = machine.node_joined(1, 1.0, old)
    assert commands == [JoinGeneration(8, (0, 1)), StartRank(1, 2, 3, 8), StartRank(1, 3, 3, 8)]


def test_a_job_begins_smaller_only_once_no_other_node_can_hold_steps_of_it() -> None:
    machine = Coordinator({0: 0, 1: 1}, LIMITS)
    assert machine.node_joined(0, 0.0) == []
    assert machine.tick(0.1) == []
    # node 0 may have been lost with its coordinator, while node 1 waits for it
    assert machine.tick(599.0) == []
    said, start = machine.tick(601.0)
    assert isinstance(said, OperatorMessage) and start == StartRank(0, 0, 1, 1, (0,))
    assert machine.ready(0, 1, 1, -1, "", 602.0) == [GenerationPlan(1, 0, {})]


def test_a_new_coordinator_waits_for_nodes_that_may_hold_what_the_others_lack() -> None:
    def taken_over(shards: dict[int, str], divides: bool = True) -> Coordinator:
        machine = Coordinator({0: 0, 1: 0, 2: 1, 3: 1}, LIMITS)
        for rank, shard in shards.items():
            machine.members[rank].shard = shard
        # rank 0 died while no coordinator was there
        living = [RunningRank(1, 1, 1, True, False, 9, divides=divides)]
        machine.node_joined(0, 0.0, living)
        machine.tick(0.0)
        return machine

    machine = taken_over({0: "one half", 1: "the other"})
    [said] = machine.tick(5.1)
    assert (
        isinstance(said, OperatorMessage) and "[1]: of what rank 0 held no rank that has joined has a copy" in said.text
    )
    assert machine.tick(599.0) == []
    machine.node_joined(1, 599.1, [RunningRank(rank, 1, 1, True, False, 9) for rank in (2, 3)])
    plans = []
    for rank, shard in enumerate(("one half", "the other") * 2):
        member = machine.members[rank]
        plans += machine.ready(rank, member.incarnation, machine.generation, 9 if rank else -1, shard, 599.2)
    assert plans == [GenerationPlan(machine.generation, 9, {0: 2})]

    machine = taken_over({0: "#3f", 1: "#3f"})
    said, *_ = machine.tick(5.1)
    assert isinstance(said, OperatorMessage) and "goes on with 1 of 2 nodes" in said.text

    # a node that has lost its memory, shards and all
    machine = taken_over({1: "#3f"})
    assert len(machine.tick(5.1)) > 1
    machine = taken_over({1: "the other"})
    [said] = machine.tick(5.1)
    assert isinstance(said, OperatorMessage) and "of what rank 0 held" in said.text

    machine = taken_over({0: "#3f", 1: "#3f"}, divides=False)
    [said] = machine.tick(5.1)
    assert isinstance(said, OperatorMessage) and "asks for no run.shares" in said.text
    assert machine.tick(601.0) == [EndJob(1, "nodes [1] have not joined for 600 s: are they up?")]


def test_without_a_least_number_it_waits_as_before() -> None:
    machine = training(limits=Limits())
    machine.node_lost(1, "silent", 1.0)
    assert not [one for one in machine.tick(100.0) if isinstance(one, (JoinGeneration, OperatorMessage))]
    assert machine.tick(601.5) == [EndJob(1, "node 1 has not come back for 600 s")]


@pytest.mark.parametrize(
    ("nodes", "count", "goes_on"),
    [
        ((0, 1), 3, True),
        ((1, 2), 4, False),
        ((0, 3), 4, True),
        ((1,), 2, False),
        ((0,), 3, False),
        ((1, 2, 3), 4, True),
    ],
)
def test_of_two_parts_of_a_cut_network_at_most_one_goes_on(nodes: tuple[int, ...], count: int, goes_on: bool) -> None:
    limits = Limits(least=1, elected=True)
    assert (refusal(nodes, count, limits) == "") is goes_on
    assert not (goes_on and refusal(set(range(count)) - set(nodes), count, limits) == "")


def test_every_share_is_done_once_and_ranks_of_one_node_do_equally_many() -> None:
    assert shares(range(4), 2, 4) == ((0,), (1,), (2,), (3,))
    assert shares((0, 1), 2, 6) == ((0, 2, 4), (1, 3, 5))
    assert shares((0, 1, 4, 5), 2, 8) == ((0, 2), (1, 3), (4, 6), (5, 7))


STEPS = 60


def host(launch: Launch, number: int, kind: str, nproc: int, port: int, folder: Path, pause: float = 0.05) -> Job:
    """A launcher of two."""
    where = ("--node-rank", str(number), "--master-addr", "127.0.0.1", "--master-port", str(port))
    options = ("--nproc", str(nproc), "--nodes", "1:2", "--shrink-after", "1", *where)
    return launch("users/shares.py", STEPS, pause, kind, options=options, folder=folder)


def last(steps: list[Step]) -> dict[int, Step]:
    """Step → its last line."""
    return {one.step: one for one in steps}


@pytest.mark.e2e
@pytest.mark.xdist_group("training")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "nproc"), [("ddp", 1), ("fsdp", 2)])
def test_a_real_job_goes_on_with_one_host_of_two_and_grows_back(
    launch: Launch, tmp_path: Path, kind: str, nproc: int
) -> None:
    port, ranks = free_port(), 2 * nproc
    first, second = (host(launch, number, kind, nproc, port, tmp_path / "both") for number in (0, 1))
    calm = launch("users/shares.py", STEPS, 0, kind, options=("--nproc", str(ranks)))
    first.reached(5, ranks)
    for pid in [second.process.pid, *descendants(second.process.pid)]:
        signalled(pid)
    first.until(lambda: "goes on with 1 of 2 nodes" in first.errors())
    took = first.next_step_of_all(time.monotonic(), ranks)
    # within 1 s on a quiet machine
    assert took < 10, first.errors()
    pids = {first.pid(rank) for rank in range(ranks)}
    assert len(pids) == nproc

    third = host(launch, 1, kind, nproc, port, tmp_path / "both")
    first.until(lambda: len({first.pid(rank) for rank in range(ranks)}) == ranks)
    assert (first.end(90), third.end(90), calm.end(90)) == (0, 0, 0), first.errors()
    for rank in range(ranks):
        seen, wanted = last(first.steps(rank)), last(calm.steps(rank))
        assert STEPS - 1 in seen
        for step, one in seen.items():
            if kind == "ddp":
                # two addends have one order: bit for bit
                assert (one.loss, one.digest) == (wanted[step].loss, wanted[step].digest), (rank, step)
            else:
                loss, expected = float.fromhex(one.loss), float.fromhex(wanted[step].loss)
                assert math.isclose(loss, expected, rel_tol=1e-4), (rank, step)
