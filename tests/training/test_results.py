"""Ranks that compute wrong: copies that differ are found, named and replaced; training goes back to a proven step."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belay.agents.training.train.decide.coordinator import Coordinator
from belay.agents.training.train.decide.coordinator_commands import (
    AskCheckpoint,
    CoordinatorCommand,
    EndJob,
    GenerationPlan,
    JoinGeneration,
    OperatorMessage,
    SetPace,
    StartRank,
)
from belay.agents.training.train.decide.members import Limits
from belay.agents.training.train.decide.pace import Costs, Pace, pace
from belay.agents.training.train.decide.recomputed import Computed, Recomputed
from belay.agents.training.train.decide.witness import Finding, Held, Verdict, Witness
from tests import needs
from tests.training.conftest import Launch
from tests.training.launched import Job, history

CHEAP = Costs(0.0001, 0.0002)


def verdict_on(witness: Witness, done: int, *held: Held, shards: str = "") -> Verdict | None:
    """What follows from the answers of ranks 0, 1, …; ``shards``: a letter for each."""
    found = None
    for rank, one in enumerate(held):
        shard = shards[rank] if shards else ""
        found = witness.answer(rank, done, shard, one, range(len(held)))
    return found


def armed(*held: Held, shards: str = "") -> Witness:
    """A witness that has found copies equal at step 5."""
    witness = Witness()
    assert verdict_on(witness, 5, *(held or (Held(1, 2),) * 4), shards=shards) == Verdict(Finding.PROVEN, 5)
    return witness


def test_the_rank_that_differs_from_the_others_is_wrong() -> None:
    witness = armed()
    assert verdict_on(witness, 10, Held(3), Held(3), Held(7), Held(3)) == Verdict(Finding.WRONG, 10, (2,), 3)
    assert verdict_on(witness, 15, Held(3, 1), Held(3, 1), Held(3, 1), Held(3, 2)) == Verdict(
        Finding.WRONG, 15, (3,), 3
    )
    assert witness.newest == 5


def test_each_shard_has_witnesses_of_its_own() -> None:
    witness = armed(*[Held(1, 1), Held(2, 2)] * 3, shards="ababab")
    answers = [Held(1), Held(2), Held(1), Held(2), Held(4), Held(2)]
    assert verdict_on(witness, 10, *answers, shards="ababab") == Verdict(Finding.WRONG, 10, (4,), 2)
    # a shard without a copy has none
    assert verdict_on(Witness(), 5, Held(1, 1), Held(2, 2), shards="ab") is None


def test_of_two_copies_the_one_is_wrong_whose_answer_changes_when_the_step_is_done_again() -> None:
    witness = armed(Held(1, 1), Held(1, 1))
    assert verdict_on(witness, 10, Held(3), Held(4)) == Verdict(Finding.UNDECIDED, 10, suspects=(0, 1), attempts=1)
    witness.begin()
    assert verdict_on(witness, 10, Held(3), Held(3)) == Verdict(Finding.EQUAL, 10, (1,), 3)


def test_no_rank_is_convicted_when_neither_first_answer_was_right() -> None:
    witness = armed(Held(1, 1), Held(1, 1))
    verdict_on(witness, 10, Held(3), Held(4))
    witness.begin()
    assert verdict_on(witness, 10, Held(5), Held(5)) == Verdict(Finding.EQUAL, 10, suspects=(0, 1))


def test_copies_that_were_never_equal_are_not_compared() -> None:
    witness = Witness()
    assert verdict_on(witness, 5, Held(1, 1), Held(2, 2)) == Verdict(Finding.NEVER_EQUAL, 5, suspects=(0, 1))
    assert witness.off
    assert verdict_on(witness, 10, Held(1, 1), Held(2, 2)) is None


@given(st.data())
def test_without_a_fault_no_rank_is_convicted(data: st.DataObject) -> None:
    """Whatever order answers come in, whichever are missing, and however often a generation begins in between."""
    ranks = data.draw(st.integers(2, 5))
    shards = [data.draw(st.sampled_from("ab")) for _ in range(ranks)]
    witness, step = Witness(), 0
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            witness.begin()
            step = data.draw(st.integers(0, step))
            witness.back(step)
        step += data.draw(st.integers(1, 3))
        # a rank may have taken notice of another pace already
        whole = data.draw(st.lists(st.booleans(), min_size=ranks, max_size=ranks))
        for rank in data.draw(st.permutations(range(ranks)))[: data.draw(st.integers(1, ranks))]:
            value = 2 * step + (shards[rank] == "a")
            verdict = witness.answer(
                rank, step, shards[rank], Held(value, value if whole[rank] else None), range(ranks)
            )
            assert verdict is None or verdict == Verdict(verdict.outcome, step)
            assert verdict is None or verdict.outcome in (Finding.EQUAL, Finding.PROVEN)
    assert all(done <= step + 1000 for done in witness.proven)


def checked(found: Recomputed, done: int, own: list[int], other: list[int], shift: int = 1) -> Verdict | None:
    """What follows when rank r gives ``own[r]`` for its share and ``other[r]`` for that of the rank ``shift`` after
    it."""
    verdict, ranks = None, len(own)
    for rank in range(ranks):
        computed = Computed(99, own[rank], (rank + shift) % ranks, other[rank])
        verdict = found.answer(rank, done, computed, range(ranks))
    return verdict


def alike(ranks: int = 3) -> Recomputed:
    """Ranks that were found to compute alike: rank r gives 10 * r for its share."""
    found = Recomputed()
    assert checked(found, 1, [10 * r for r in range(ranks)], [10 * ((r + 1) % ranks) for r in range(ranks)]) is None
    return found


def test_a_wrong_gradient_is_a_doubt_and_the_step_done_again_shows_whose_it_was() -> None:
    found = alike()
    assert checked(found, 250, [0, 11, 20], [10, 20, 0]) == Verdict(Finding.UNDECIDED, 250, suspects=(0, 1), attempts=1)
    found.begin()
    # rank 1 computes its own share right now; another one checks it
    assert checked(found, 250, [0, 10, 20], [20, 0, 10], shift=2) == Verdict(Finding.EQUAL, 250, (1,), 2)
    # the one that checked was wrong
    assert checked(found, 500, [0, 10, 20], [11, 20, 0]) == Verdict(Finding.UNDECIDED, 500, suspects=(0, 1), attempts=1)
    found.begin()
    assert checked(found, 500, [0, 10, 20], [20, 0, 10], shift=2) == Verdict(Finding.EQUAL, 500, (0,), 2)


def test_a_chip_that_is_wrong_every_time_is_the_one_that_every_other_contradicts() -> None:
    found = alike()
    checked(found, 250, [0, 11, 20], [10, 21, 0])
    found.begin()
    again = checked(found, 250, [0, 11, 20], [20, 1, 10], shift=2)
    assert again is not None and (again.outcome, again.liars) == (Finding.WRONG, (1,))
    # of two it cannot be said which
    found = alike(2)
    assert [checked(found, 250, [0, 11], [10, 0]) for _ in range(2)] == [
        Verdict(Finding.UNDECIDED, 250, suspects=(0, 1), attempts=attempt) for attempt in (1, 2)
    ]


def test_a_rank_that_computes_its_own_share_twice_and_not_alike_is_wrong() -> None:
    found = Recomputed()
    assert checked(found, 1, [0, 10], [0, 10], shift=0) is None
    assert checked(found, 250, [0, 10], [0, 11], shift=0) == Verdict(Finding.WRONG, 250, (1,), 1)


def test_ranks_that_do_not_compute_alike_by_nature_are_not_compared() -> None:
    found = Recomputed()
    assert checked(found, 1, [0, 10], [11, 0]) == Verdict(Finding.NEVER_EQUAL, 1, suspects=(0, 1))
    assert found.off and checked(found, 250, [0, 10], [11, 0]) is None


@given(st.data())
def test_without_a_fault_no_gradient_is_in_doubt(data: st.DataObject) -> None:
    ranks, found, done = data.draw(st.integers(2, 5)), Recomputed(), 0
    for _ in range(data.draw(st.integers(1, 10))):
        if data.draw(st.booleans()):
            found.begin()
        done = data.draw(st.integers(max(0, done - 2), done + 2))
        shift = data.draw(st.integers(0, ranks - 1))
        for rank in data.draw(st.permutations(range(ranks)))[: data.draw(st.integers(1, ranks))]:
            other = (rank + shift) % ranks
            computed = Computed(done, 100 * done + rank, other, 100 * done + other)
            assert found.answer(rank, done, computed, range(ranks)) is None


def training(ranks: int = 4, proof: int = 5) -> Coordinator:
    """Nodes of two ranks, in generation 1; step 5 is proven, and kept."""
    machine = Coordinator({rank: rank // 2 for rank in range(ranks)}, Limits(proof=proof))
    for node in range((ranks + 1) // 2):
        machine.node_joined(node, 0.0)
    for rank in range(ranks):
        machine.ready(rank, 1, 1, -1, "", 0.1)
    for rank in range(ranks):
        machine.entered(rank, 1, 1, 0.2)
        machine.stepped(rank, 1, 5, 0.3)
    assert answered(machine, 5, *[Held(1, 1)] * ranks) == [SetPace(proof, proof, 5)]
    return machine


def answered(machine: Coordinator, done: int, *held: Held) -> list[CoordinatorCommand]:
    """What follows when all ranks have answered in their present generation."""
    found: list[CoordinatorCommand] = []
    for rank, one in enumerate(held):
        incarnation = machine.members[rank].incarnation
        found += machine.digested(rank, incarnation, machine.generation, done, "", one, CHEAP, 1.0)
    return found


def joined(machine: Coordinator, done: int, kept: dict[int, frozenset[int]]) -> list[CoordinatorCommand]:
    """All ranks have left their step; what follows."""
    found: list[CoordinatorCommand] = []
    for rank, member in machine.members.items():
        held = done if rank in kept else -1
        machine.keeps(rank, member.incarnation, kept.get(rank, frozenset()), -1)
        found += machine.ready(rank, member.incarnation, machine.generation, held, "", 1.1)
    return found


def test_a_wrong_rank_is_replaced_and_all_go_back_to_the_proven_step() -> None:
    machine = training()
    said, join, start = answered(machine, 10, Held(3), Held(3), Held(7), Held(3))
    assert isinstance(said, OperatorMessage)
    assert "rank 2 on node 1 computed a wrong result: after step 9" in said.text and "back to step 5" in said.text
    assert (join, start) == (JoinGeneration(2, (0, 1, 3)), StartRank(1, 2, 2, 2))
    kept = dict.fromkeys((0, 1, 3), frozenset({5, 10}))
    assert joined(machine, 11, kept) == [GenerationPlan(2, 5, {2: 3}, back=True)]


def test_another_fault_before_all_have_gone_back_does_not_bring_wrong_weights_back() -> None:
    machine = training()
    answered(machine, 10, Held(3), Held(3), Held(7), Held(3))
    joined(machine, 11, dict.fromkeys((0, 1, 3), frozenset({5})))
    machine.ranks_lost([(0, 1, "died")], 1.2)
    # rank 1 has gone back, rank 3 has not
    [plan] = joined(machine, 11, dict.fromkeys((1, 3), frozenset({5})))
    assert plan == GenerationPlan(3, 5, {0: 1, 2: 3}, back=True)
    for rank, member in machine.members.items():
        machine.entered(rank, member.incarnation, 3, 1.3)
    # they may not have taken over what they go back to: functions make objects of their own after they were entered
    machine.ranks_lost([(0, 3, "died"), (0, 2, "died")], 1.4)
    [plan] = joined(machine, 11, dict.fromkeys((1, 2, 3), frozenset({5})))
    assert isinstance(plan, GenerationPlan) and (plan.step, plan.back) == (5, True)
    for rank, member in machine.members.items():
        machine.entered(rank, member.incarnation, 4, 1.5)

    # the first update shows it
    machine.sampled(1, 1, 4, 6, "", {})
    lost = machine.members[0].incarnation
    machine.ranks_lost([(0, lost, "died")], 1.6)
    [plan] = joined(machine, 6, dict.fromkeys((1, 2, 3), frozenset({5})))
    assert isinstance(plan, GenerationPlan) and (plan.step, plan.back) == (6, False)


def test_state_to_which_ranks_have_gone_back_outlives_the_only_rank_that_kept_it() -> None:
    machine = training()
    answered(machine, 10, Held(3), Held(3), Held(7), Held(3))
    [plan] = joined(machine, 11, {0: frozenset({5}), 1: frozenset(), 3: frozenset()})
    assert isinstance(plan, GenerationPlan) and (plan.step, plan.back) == (5, True)
    for rank, member in machine.members.items():
        machine.entered(rank, member.incarnation, 2, 1.3)
    machine.ranks_lost([(0, 1, "died")], 1.4)
    [plan] = joined(machine, 5, dict.fromkeys((1, 2, 3), frozenset[int]()))
    assert isinstance(plan, GenerationPlan) and (plan.step, plan.donors[0]) == (5, 1)


def test_two_copies_do_the_steps_again_and_then_the_wrong_one_is_replaced() -> None:
    machine = training(2)
    said, join = answered(machine, 10, Held(3), Held(4))
    assert isinstance(said, OperatorMessage) and "no majority" in said.text
    assert join == JoinGeneration(2, (0, 1))
    assert joined(machine, 11, dict.fromkeys((0, 1), frozenset({5}))) == [GenerationPlan(2, 5, {}, back=True)]
    for rank in (0, 1):
        machine.entered(rank, 1, 2, 1.2)
    said, join, start = answered(machine, 10, Held(4), Held(4))
    assert isinstance(said, OperatorMessage) and said.text.startswith("rank 0 on node 0 computed a wrong result")
    assert (join, start) == (JoinGeneration(3, (1,)), StartRank(0, 0, 2, 3))
    [plan] = joined(machine, 10, {1: frozenset({5})})
    assert plan == GenerationPlan(3, 10, {0: 1})


def test_copies_that_differ_again_and_again_end_the_job() -> None:
    machine = training(2)
    found: list[CoordinatorCommand] = []
    for _ in range(3):
        found = answered(machine, 10, Held(3), Held(4))
        if machine.ended is None:
            joined(machine, 11, dict.fromkeys((0, 1), frozenset({5})))
    [end] = found
    assert isinstance(end, EndJob) and end.code == 1 and "3 times: node 0 computes wrong results" in end.text


def test_without_a_kept_copy_the_job_ends_instead_of_going_on_with_wrong_weights() -> None:
    machine = training()
    answered(machine, 10, Held(3), Held(3), Held(7), Held(3))
    [end] = joined(machine, 11, dict.fromkeys((0, 1, 3), frozenset()))
    assert isinstance(end, EndJob) and end.code == 2 and "start from a checkpoint" in end.text


def test_without_a_kept_copy_a_checkpoint_of_before_is_loaded() -> None:
    machine = training()
    answered(machine, 10, Held(3), Held(3), Held(7), Held(3))
    found: list[CoordinatorCommand] = []
    for rank, member in machine.members.items():
        found += machine.ready(rank, member.incarnation, 2, -1 if rank == 2 else 11, "", 1.1, checkpoints=True)
    assert found == [AskCheckpoint(2)]
    for rank, member in machine.members.items():
        found += machine.offered(rank, member.incarnation, 2, [10, 4, 2], 1.2)
    # that of step 10 may hold a wrong result
    assert found[1:] == [GenerationPlan(2, 4, {}, checkpoint=True)]

    # another fault before the first update: it is still there
    for rank, member in machine.members.items():
        machine.entered(rank, member.incarnation, 2, 1.3)
    machine.ranks_lost([(0, 1, "died")], 1.4)
    found = []
    for rank, member in machine.members.items():
        found += machine.ready(rank, member.incarnation, 3, -1, "", 1.5, checkpoints=True)
    for rank, member in machine.members.items():
        found += machine.offered(rank, member.incarnation, 3, [10, 4, 2], 1.6)
    assert found == [AskCheckpoint(3), GenerationPlan(3, 4, {}, checkpoint=True)]


def test_the_pace_follows_from_costs_and_stays_below_one_percent() -> None:
    assert pace([], 0.02, 0) == Pace()
    assert pace([CHEAP, Costs(0.0005, 0.003)], 0.02, 2) == Pace(10, 50)
    for weights, whole, step in ((0.001, 0.005, 0.02), (0.02, 0.1, 0.1), (0.5, 4.0, 1.0), (2.0, 9.0, 2.5)):
        found = pace([Costs(weights, whole)], step, 8)
        assert weights / found.compare + whole / found.keep <= 0.006 * step
        assert found.keep % found.compare == 0


def test_ranks_are_given_another_pace_when_it_has_become_much_cheaper() -> None:
    machine = training(proof=0)
    machine.median = 0.02
    assert machine.tick(1.0) == [SetPace(5, 50, 5)]
    machine.median = 0.03
    assert machine.tick(1.1) == []
    machine.median = 0.001
    assert machine.tick(1.2) == [SetPace(50, 1000, 5)]


def test_bits_that_flip_in_results_buffers_and_moments_are_found_and_undone() -> None:
    needs.torch()
    import torch

    from tests.training.sim.flips import FlippedJob, summary

    calm = FlippedJob(4, 0.0, 5)
    calm.run(600)
    assert (calm.machine.generation, calm.worked, calm.false) == (1, 600, 0)
    jobs = [FlippedJob(ranks, rate, 5) for ranks, rate in ((4, 4e-3), (16, 1e-3))]
    for job in jobs:
        job.run(600)
    flips, changed, found, false = summary(jobs)
    assert flips > 10 and changed > 5 and found == changed and not false
    # the job of the same seed ends as if no bit had flipped
    assert torch.equal(jobs[0].weights, calm.weights) and torch.equal(jobs[0].second, calm.second)


FOUR = ("--nproc", "4", "--compare", "5")
STEPS = 50


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], tuple[str, str]]:
    """(rank, step) → loss and digest of weights, of a run in which no rank computes wrong."""
    job = Job(tmp_path_factory.mktemp("undisturbed"), "flips.py", STEPS, 0, options=FOUR)
    try:
        assert job.end(120) == 0, job.errors()
        assert "wrong" not in job.everything()
        return history(job, 4)
    finally:
        job.close()


@pytest.mark.e2e
@pytest.mark.xdist_group("training")
@pytest.mark.timeout(300)
def test_flipped_bits_are_found_and_named_and_the_run_ends_as_an_undisturbed_one(
    launch: Launch, undisturbed: dict[tuple[int, int], tuple[str, str]]
) -> None:
    # a low bit of a weight (the lowest ones are rounded away by later updates), a high one of the optimizer's state, a
    # reduced gradient of the last steps
    job = launch("flips.py", STEPS, 0.01, "2:13:weights:8", "1:31:moments:25", "3:48:buckets:20", options=FOUR)
    assert job.end(120) == 0, job.errors()
    assert history(job, 4) == undisturbed
    named = re.findall(r"^belay train: rank (\d) on node 0 computed a wrong result", job.everything(), re.MULTILINE)
    assert named == ["2", "1", "3"]
    assert [one["step"] for one in job.recoveries()] == [10, 30, 45]


@pytest.mark.e2e
@pytest.mark.xdist_group("training")
@pytest.mark.timeout(300)
def test_a_wrong_gradient_that_both_of_two_ranks_have_added_is_found_and_undone(launch: Launch) -> None:
    # every 50th step is recomputed
    two, steps = ("--nproc", "2", "--compare", "1"), 55
    right = launch("flips.py", steps, 0, options=two)
    assert right.end(120) == 0, right.errors()
    job = launch("flips.py", steps, 0.01, "1:50:gradients:20", options=two)
    assert job.end(120) == 0, job.errors()
    assert history(job, 2) == history(right, 2)
    assert "wrong" not in right.everything()
    assert "rank 1 on node 0 computed a wrong result: in step 50 its gradients" in job.everything()
