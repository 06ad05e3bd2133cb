"""The coordinator of native recovery: single decisions, then random histories with every message lost or late."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from belay.agents.training.train.agent.coordinator_host import CoordinatorHost
from belay.agents.training.train.decide.coordinator import Coordinator
from belay.agents.training.train.decide.coordinator_commands import (
    AskCheckpoint,
    Commit,
    CoordinatorCommand,
    EndJob,
    EndRank,
    GenerationPlan,
    JoinGeneration,
    Leave,
    OperatorMessage,
    StartRank,
)
from belay.agents.training.train.decide.members import Limits, Phase, RunningRank


def training(ranks: int = 4, shards: dict[int, str] | None = None) -> Coordinator:
    """All ranks of one node in generation 1, at step 0."""
    machine = Coordinator(dict.fromkeys(range(ranks), 0))
    machine.node_joined(0, 0.0)
    for rank in range(ranks):
        machine.ready(rank, 1, 1, -1, (shards or {}).get(rank, ""), 0.1)
    for rank in range(ranks):
        machine.entered(rank, 1, 1, 0.2)
    return machine


def all_ready(
    machine: Coordinator, done: dict[int, int], shards: dict[int, str] | None = None
) -> list[CoordinatorCommand]:
    """What follows when every rank has said which step it holds."""
    commands: list[CoordinatorCommand] = []
    for rank, member in machine.members.items():
        shard = (shards or {}).get(rank, "")
        commands += machine.ready(rank, member.incarnation, machine.generation, done[rank], shard, 2.0)
    return commands


def test_a_step_counts_when_one_rank_finished_it() -> None:
    machine = training()
    machine.ranks_lost([(3, 1, "died")], 1.0)
    assert all_ready(machine, {0: 5, 1: 6, 2: 5, 3: -1}) == [GenerationPlan(2, 6, {0: 1, 2: 1, 3: 1})]


def test_survivors_are_called_before_a_new_process_is_started() -> None:
    machine = training()
    commands = machine.ranks_lost([(0, 1, "died"), (2, 1, "died")], 1.0)
    assert [one for one in commands if not hasattr(one, "text")] == [
        JoinGeneration(2, (1, 3)),
        StartRank(0, 0, 2, 2),
        StartRank(0, 2, 2, 2),
    ]


def test_a_lost_shard_is_taken_from_its_copy_and_not_from_another_shard() -> None:
    shards = {0: "a", 1: "b", 2: "a", 3: "b"}
    machine = training(shards=shards)
    machine.ranks_lost([(1, 1, "died")], 1.0)
    assert all_ready(machine, {0: 4, 1: -1, 2: 4, 3: 4}, shards) == [GenerationPlan(2, 4, {1: 3})]


def test_without_a_donor_all_ranks_load_the_newest_checkpoint_that_all_have() -> None:
    shards = {0: "a", 1: "b"}
    machine = training(2, shards)
    machine.stepped(0, 1, 9, 0.5)
    machine.ranks_lost([(1, 1, "died")], 1.0)
    assert all_ready(machine, {0: 9, 1: -1}, shards) == [AskCheckpoint(2)]
    assert machine.offered(0, 1, 2, [8, 6], 2.1) == []
    assert machine.offered(1, 2, 2, [6, 4], 2.1) == [GenerationPlan(2, 6, {}, checkpoint=True)]


SHARDED = {0: "a", 1: "b", 2: "a", 3: "b"}


def test_a_rank_whose_gradients_are_complete_makes_the_update_that_another_has_made() -> None:
    machine = training(shards=SHARDED)
    machine.ranks_lost([(0, 1, "died")], 1.0)
    # rank 2 holds the only copy of its shard, one step behind the others
    assert machine.prepared(2, 1, 2, 4, 1.1) == []
    assert machine.ready(1, 1, 2, 5, "b", 1.2) == []
    assert machine.ready(3, 1, 2, 5, "b", 1.2) == [Commit(2, (2,), True)]
    assert machine.ready(2, 1, 2, 5, "a", 1.3) == []
    assert machine.ready(0, 2, 2, -1, "a", 1.4) == [GenerationPlan(2, 5, {0: 2})]


def test_an_update_that_no_living_rank_has_made_is_left() -> None:
    machine = training(shards=SHARDED)
    machine.ranks_lost([(0, 1, "died")], 1.0)
    for rank in (1, 2):
        assert machine.prepared(rank, 1, 2, 4, 1.1) == []
    assert machine.prepared(3, 1, 2, 4, 1.2) == [Commit(2, (1, 2, 3), False)]


def test_a_rank_that_waits_for_the_answer_is_not_ended_and_a_second_fault_asks_again() -> None:
    machine = training(shards=SHARDED)
    machine.ranks_lost([(0, 1, "died")], 1.0)
    machine.prepared(2, 1, 2, 4, 1.1)
    ended = [one.rank for one in machine.tick(100.0) if isinstance(one, EndRank)]
    assert ended == [1, 3]
    machine.ranks_lost([(1, 1, "was ended")], 100.1)
    assert machine.members[2].prepared == -1
    assert machine.prepared(2, 1, 3, 4, 100.2) == []
    assert machine.ready(3, 1, 3, 4, "b", 100.3) == [Commit(3, (2,), False)]


def test_shards_that_a_node_knows_count_for_ranks_that_have_died_meanwhile() -> None:
    host = CoordinatorHost(dict.fromkeys(range(4), 0), Limits(), lambda recovery: None)
    living = [{"rank": rank, "inc": 1, "gen": 1, "entered": True, "finished": False, "done": 4} for rank in (0, 1, 2)]
    host.node_joined(0, living, 1.0, {str(rank): shard for rank, shard in SHARDED.items()})
    machine = host.coordinator
    for rank in (0, 1, 2):
        machine.ready(rank, 1, 2, 4, SHARDED[rank], 1.1)
    # its replacement has not built its model yet
    assert machine.ready(3, machine.members[3].incarnation, 2, -1, None, 1.2) == [GenerationPlan(2, 4, {3: 1})]


def test_a_rank_without_the_checkpoint_gets_its_shard_from_a_copy_that_loads_it() -> None:
    shards = {0: "a", 1: "b", 2: "a", 3: "b"}
    machine = training(shards=shards)
    machine.stepped(0, 1, 9, 0.5)
    machine.ranks_lost([(rank, 1, "died") for rank in range(4)], 1.0)
    all_ready(machine, dict.fromkeys(range(4), -1), shards)
    for rank, steps in ((0, [8]), (1, [6, 8]), (2, [6])):
        assert machine.offered(rank, 2, 2, steps, 2.1) == []
    assert machine.offered(3, 2, 2, [], 2.1) == [GenerationPlan(2, 8, {2: 0, 3: 1}, checkpoint=True)]


def begun(offers: dict[int, list[int]]) -> list[CoordinatorCommand]:
    """What a job that begins decides when its ranks can load checkpoints and have found these."""
    machine = Coordinator(dict.fromkeys(offers, 0))
    machine.node_joined(0, 0.0)
    commands: list[CoordinatorCommand] = []
    for rank in offers:
        commands = machine.ready(rank, 1, 1, -1, None, 0.1, checkpoints=True)
    assert commands == [AskCheckpoint(1)]
    for rank, steps in offers.items():
        commands = machine.offered(rank, 1, 1, steps, 0.2)
    return commands


def test_a_job_that_begins_again_goes_on_from_its_newest_checkpoint() -> None:
    assert begun({0: [40, 20], 1: [40, 20]}) == [GenerationPlan(1, 40, {}, checkpoint=True)]
    assert begun({0: [], 1: []}) == [GenerationPlan(1, 0, {})]


def test_a_new_process_holds_the_shard_of_its_predecessor_until_its_model_is_built() -> None:
    shards = {0: "a", 1: "b", 2: "a", 3: "b"}
    machine = training(shards=shards)
    machine.ranks_lost([(3, 1, "died")], 1.0)
    for rank in range(3):
        machine.ready(rank, 1, 2, 4, shards[rank], 2.0)
    assert machine.ready(3, 2, 2, -1, None, 2.0) == [GenerationPlan(2, 4, {3: 1})]


def test_a_job_whose_checkpoint_lacks_a_shard_does_not_begin_at_step_0() -> None:
    machine = Coordinator({0: 0, 1: 0})
    machine.node_joined(0, 0.0)
    for rank in range(2):
        machine.ready(rank, 1, 1, -1, "ab"[rank], 0.1, checkpoints=True)
    machine.offered(0, 1, 1, [40], 0.2)
    (end,) = machine.offered(1, 1, 1, [], 0.2)
    assert isinstance(end, EndJob) and end.code == 2 and "step 40" in end.text and "rank 1 " in end.text


def test_without_donor_and_checkpoint_the_job_ends_with_2_and_names_the_shard() -> None:
    shards = {0: "shard 0 of 2", 1: "shard 1 of 2"}
    machine = training(2, shards)
    machine.stepped(0, 1, 9, 0.5)
    machine.ranks_lost([(1, 1, "died")], 1.0)
    all_ready(machine, {0: 9, 1: -1}, shards)
    machine.offered(0, 1, 2, [], 2.1)
    (end,) = machine.offered(1, 2, 2, [], 2.1)
    assert isinstance(end, EndJob) and end.code == 2 and "shard 1 of 2" in end.text and "shard 0 of 2" not in end.text


def test_a_survivor_that_stays_blocked_is_ended_after_three_median_steps_and_not_before() -> None:
    machine = training()
    machine.median = 2.0
    machine.ranks_lost([(3, 1, "died")], 1.0)
    machine.ready(0, 1, 2, 4, "", 1.1)
    assert machine.tick(6.9) == []
    assert {one.rank for one in machine.tick(7.1) if isinstance(one, EndRank)} == {1, 2}


def ended(machine: Coordinator, now: float) -> set[int]:
    """The ranks that are given up."""
    return {one.rank for one in machine.tick(now) if isinstance(one, EndRank)}


def test_blocked_survivors_stay_while_no_other_rank_is_known_to_hold_their_state() -> None:
    shards = {0: "a", 1: "b", 2: "a", 3: "b"}
    machine = training(shards=shards)
    machine.ranks_lost([(3, 1, "died")], 1.0)
    # a machine that is so busy that none of them gets a processor
    assert ended(machine, 20.0) == set()
    # a second fault does not give them longer
    machine.ranks_lost([(2, 1, "died")], 21.0)
    # rank 0 has reported: no one waits for others of its shard, but rank 1 is the last of the other one
    machine.ready(0, 1, 3, 4, "a", 22.0)
    assert ended(machine, 23.0) == set()
    machine.ready(1, 1, 3, 4, "b", 24.0)
    machine.ready(2, 2, 3, -1, None, 24.0)
    (plan,) = machine.ready(3, 2, 3, -1, None, 24.0)
    assert plan == GenerationPlan(3, 4, {2: 0, 3: 1})


def test_the_last_holder_of_a_shard_is_given_up_in_the_end() -> None:
    shards = {0: "a", 1: "b"}
    machine = training(2, shards=shards)
    machine.ranks_lost([(0, 1, "died")], 1.0)
    machine.ranks_lost([(0, 2, "died")], 16.0)
    assert ended(machine, 30.9) == set()
    assert ended(machine, 31.1) == {1}


def test_a_rank_whose_update_was_torn_holds_nothing_for_which_others_are_given_up() -> None:
    machine = training(2)
    machine.ranks_lost([(1, 1, "died")], 1.0)
    machine.ready(1, 2, 2, -1, None, 1.5)
    assert ended(machine, 9.0) == set()
    machine = training(3)
    machine.ranks_lost([(2, 1, "died")], 1.0)
    machine.ready(0, 1, 2, -1, "", 1.5)
    assert ended(machine, 9.0) == set()


def test_messages_of_an_older_generation_or_process_change_nothing() -> None:
    machine = training()
    machine.ranks_lost([(3, 1, "died")], 1.0)
    machine.ready(0, 1, 1, 7, "", 1.1)
    machine.ready(3, 1, 2, 7, "", 1.1)
    assert machine.members[0].phase is Phase.FREEING
    assert machine.members[3].phase is Phase.STARTING
    assert machine.ranks_lost([(3, 1, "died")], 1.2) == []


def test_a_finished_rank_leaves_alone_when_others_train_on() -> None:
    machine = training(2)
    machine.finished(0, 1, 1, 10, 5.0)
    assert machine.tick(6.0) == []
    assert machine.tick(6.6) == [Leave((0,))]
    assert machine.finished(1, 1, 1, 10, 7.0) == [Leave((1,), all_finished=True)]


def test_a_new_coordinator_goes_on_although_a_rank_had_left_before_the_others() -> None:
    machine = Coordinator({0: 0, 1: 0})
    living = [RunningRank(0, 1, 1, True, True, 10), RunningRank(1, 1, 1, True, False, 8)]
    commands = machine.node_joined(0, 0.0, living)
    assert [one for one in commands if isinstance(one, Leave)] == []
    assert machine.members[1].phase is not Phase.GONE


def leaving() -> Coordinator:
    """Ranks 0 and 1 on node 0, 2 and 3 on node 1: all have finished, and leave."""
    machine = two_nodes()
    for node in (0, 1):
        machine.node_joined(node, 0.0)
    for rank in range(4):
        machine.ready(rank, 1, 1, -1, "", 0.1)
    for rank in range(4):
        machine.entered(rank, 1, 1, 0.2)
    for rank in range(4):
        commands = machine.finished(rank, 1, 1, 10, 5.0)
    assert commands == [Leave((0, 1, 2, 3), all_finished=True)]
    return machine


def test_an_agent_that_is_killed_while_its_ranks_leave_may_come_back_for_those_that_are_still_there() -> None:
    machine = leaving()
    assert machine.left(0, 1, 0, 5.1) == machine.left(1, 1, 0, 5.1) == []
    assert machine.node_lost(1, "closed", 5.2) == []
    assert machine.tick(6.0) == []
    assert machine.node_joined(1, 6.5, [RunningRank(3, 1, 1, True, True, 10)]) == [Leave((3,), all_finished=True)]
    assert machine.left(3, 1, 0, 6.6) == [EndJob(0, "done")]


def test_a_node_that_does_not_come_back_after_its_ranks_were_asked_to_leave_ends_nothing() -> None:
    machine = leaving()
    machine.left(0, 1, 0, 5.1)
    machine.node_lost(1, "closed", 5.2)
    assert machine.tick(20.0) == [] and machine.left(1, 1, 0, 20.1) == [EndJob(0, "done")]


def test_a_new_coordinator_that_knows_that_all_have_finished_lets_ranks_leave_and_starts_none() -> None:
    machine = two_nodes()
    machine.node_joined(0, 0.0, [RunningRank(0, 1, 1, True, True, 10)])
    commands = machine.node_joined(1, 0.1, [RunningRank(3, 2, 1, True, True, 10, leaving=True)])
    assert commands == [Leave((0, 3), all_finished=True)]
    machine = two_nodes()
    machine.finished_before = True
    assert machine.node_joined(0, 0.0) == [Leave((), all_finished=True)]
    assert machine.node_joined(1, 0.1, [RunningRank(2, 1, 1, True, True, 10)]) == [Leave((2,), all_finished=True)]


def test_a_node_that_joined_before_the_coordinator_knew_that_all_have_finished_lets_its_ranks_leave() -> None:
    machine = two_nodes()
    assert machine.node_joined(1, 0.1, [RunningRank(2, 1, 1, True, True, 10)]) == []
    assert machine.all_finished() == [Leave((2,), all_finished=True)]
    assert machine.all_finished() == []
    assert machine.node_joined(0, 0.2) == [Leave((2,), all_finished=True)], "nothing is started"
    machine = training(2)
    assert machine.all_finished() == [], "one that trains has seen for itself who has finished"


def test_a_repeated_exception_ends_the_job_with_1() -> None:
    machine = training(2)
    ends: list[CoordinatorCommand] = []
    for _ in range(Limits().failures + 1):
        member = machine.members[1]
        ends += machine.failed(1, member.incarnation, "ValueError: no", 1.0)
        machine.ranks_lost([(1, member.incarnation, "failed")], 1.0)
    assert ends == [EndJob(1, "the script failed in rank 1: ValueError: no")]


def test_a_new_coordinator_takes_over_ranks_that_train_without_disturbing_them() -> None:
    machine = Coordinator({0: 0, 1: 0})
    living = [RunningRank(0, 3, 7, True, False, 40), RunningRank(1, 1, 7, True, False, 40)]
    assert [one for one in machine.node_joined(0, 0.0, living) if isinstance(one, (StartRank, JoinGeneration))] == []
    assert machine.generation == 7
    (said, recover, start) = machine.ranks_lost([(1, 1, "died")], 1.0)
    assert (recover, start) == (JoinGeneration(8, (0,)), StartRank(0, 1, 2, 8)) and "died" in str(said)


def test_a_new_coordinator_replaces_ranks_that_did_not_come_back() -> None:
    machine = Coordinator({0: 0, 1: 0})
    commands = machine.node_joined(0, 0.0, [RunningRank(0, 3, 7, True, False, 40)])
    assert commands == [JoinGeneration(8, (0,)), StartRank(0, 1, 4, 8)]


@dataclass
class World:
    """Ranks as simple as can be, and messages between them and the coordinator that are lost with their process, late
    or in another order between ranks. A rank finishes a step when all ranks are in it in the same generation."""

    chance: random.Random
    ranks: int
    machine: Coordinator = field(init=False)
    now: float = 0.0
    alive: dict[int, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    generation: dict[int, int] = field(default_factory=dict)
    trains: dict[int, bool] = field(default_factory=dict)
    out: list[CoordinatorCommand] = field(default_factory=list)
    inbox: list[tuple[int, int, str, int]] = field(default_factory=list)
    finished_step: int = 0

    def __post_init__(self) -> None:
        self.machine = Coordinator(dict.fromkeys(range(self.ranks), 0), Limits(deaths=10**6))
        self.out += self.machine.node_joined(0, 0.0)

    def step(self, faults: bool) -> None:
        """One thing happens."""
        self.now += self.chance.uniform(0, 0.05)
        rank = self.chance.randrange(self.ranks)
        # one that holds state stays: what follows when none does is another test
        holders = [one for one in self.alive if self.done[one] >= 0 and one != rank]
        if faults and self.chance.random() < 0.06 and rank in self.alive and (holders or not self.finished_step):
            incarnation = self.alive.pop(rank)
            self.done.pop(rank)
            self.trains[rank] = False
            self.out += self.machine.ranks_lost([(rank, incarnation, "died")], self.now)
        elif self.out and self.chance.random() < 0.6:
            self.obey(self.out.pop(0))
        elif self.inbox:
            self.deliver(self.inbox.pop(self.first_of_some_rank()))
        else:
            self.train()
        self.out += self.machine.tick(self.now)

    def first_of_some_rank(self) -> int:
        rank = self.chance.choice(self.inbox)[0]
        return next(index for index, one in enumerate(self.inbox) if one[0] == rank)

    def obey(self, command: CoordinatorCommand) -> None:
        match command:
            case StartRank(_, rank, incarnation, generation):
                self.alive[rank], self.done[rank] = incarnation, -1
                self.leave(rank, max(generation, self.machine.generation if self.chance.random() < 0.5 else 0))
            case JoinGeneration(generation, ranks):
                for rank in ranks:
                    if rank in self.alive and self.generation.get(rank, 0) < generation:
                        self.leave(rank, generation)
            case GenerationPlan(generation, step, donors):
                if any(self.generation.get(rank) != generation or rank not in self.alive for rank in range(self.ranks)):
                    # a rank is in a newer generation: the group of this one never forms
                    return
                for rank in range(self.ranks):
                    if rank in donors:
                        assert self.done[donors[rank]] == step, "a donor holds the step that it gives"
                        self.done[rank] = step
                    self.done[rank] = max(self.done[rank], 0)
                    self.trains[rank] = True
                    self.say(rank, "entered", 0)
            case EndRank(_, rank, incarnation):
                if self.alive.get(rank) == incarnation:
                    del self.alive[rank], self.done[rank]
                    self.trains[rank] = False
                    self.out += self.machine.ranks_lost([(rank, incarnation, "ended")], self.now)

    def leave(self, rank: int, generation: int) -> None:
        self.generation[rank], self.trains[rank] = generation, False
        self.say(rank, "ready", self.done[rank])

    def say(self, rank: int, what: str, value: int) -> None:
        self.inbox.append((rank, self.alive[rank] * 1000 + self.generation[rank], what, value))

    def deliver(self, message: tuple[int, int, str, int]) -> None:
        rank, packed, what, value = message
        incarnation, generation = divmod(packed, 1000)
        if self.alive.get(rank) != incarnation:
            return
        if what == "ready":
            self.out += self.machine.ready(rank, incarnation, generation, value, "", self.now)
        elif what == "entered":
            self.out += self.machine.entered(rank, incarnation, generation, self.now)
        else:
            self.out += self.machine.stepped(rank, incarnation, value, self.now)

    def train(self) -> None:
        """Ranks that all reached the update of one step finish it one by one."""
        rank = self.chance.randrange(self.ranks)
        if not self.trains.get(rank):
            return
        others = [one for one in range(self.ranks) if self.generation.get(one) == self.generation[rank]]
        behind = [one for one in others if one not in self.alive or self.done[one] < self.done[rank]]
        if len(others) == self.ranks and not behind:
            self.done[rank] += 1
            self.finished_step = max(self.finished_step, self.done[rank])
            self.say(rank, "stepped", self.done[rank])


@pytest.mark.parametrize("seed", range(15))
def test_random_histories_end_in_training_and_no_step_that_a_living_rank_holds_is_lost(seed: int) -> None:
    for number in range(25):
        world = World(random.Random(seed * 1000 + number), ranks=3 + number % 3)
        for _ in range(400):
            before = {(rank, world.alive[rank]): done for rank, done in world.done.items()}
            world.step(faults=True)
            after = {(rank, world.alive[rank]): done for rank, done in world.done.items()}
            assert [key for key in before if after.get(key, before[key]) < before[key]] == [], "a step was lost"
            assert world.machine.ended is None
        reached = max(world.done.values(), default=0)
        for _ in range(4000):
            world.step(faults=False)
            if all(world.trains.get(rank) and world.done.get(rank, -1) > reached for rank in range(world.ranks)):
                break
        else:
            pytest.fail(f"seed {seed * 1000 + number}: no rank trains on from step {reached}")


def two_nodes(limits: Limits | None = None) -> Coordinator:
    """Ranks 0 and 1 on node 0, 2 and 3 on node 1; a coordinator that has just begun."""
    return Coordinator({rank: rank // 2 for rank in range(4)}, limits or Limits())


def test_a_rank_that_ends_before_all_nodes_have_joined_a_new_coordinator_is_started_again() -> None:
    machine = two_nodes()
    machine.node_joined(0, 0.0, [RunningRank(rank, 3, 5, True, False, 7) for rank in (0, 1)])
    assert machine.ranks_lost([(1, 3, "died")], 0.5) == []
    commands = machine.node_joined(1, 1.0, [RunningRank(rank, 3, 5, True, False, 7) for rank in (2, 3)])
    assert commands == [JoinGeneration(6, (0, 2, 3)), StartRank(0, 1, 4, 6)]


def test_a_node_that_joins_twice_counts_as_it_joined_last() -> None:
    machine = two_nodes()
    machine.node_joined(0, 0.0, [RunningRank(rank, 3, 5, True, False, 7) for rank in (0, 1)])
    machine.node_lost(0, "closed", 0.5)
    assert machine.node_joined(1, 1.0, [RunningRank(rank, 3, 5, True, False, 7) for rank in (2, 3)]) == []
    commands = machine.node_joined(0, 2.0, [])
    assert commands == [JoinGeneration(6, (2, 3)), StartRank(0, 0, 4, 6), StartRank(0, 1, 4, 6)]


def test_a_job_whose_nodes_do_not_come_ends() -> None:
    machine = two_nodes(Limits(join=10.0))
    machine.node_joined(0, 0.0)
    assert machine.tick(0.0) == [] == machine.tick(10.0)
    (end,) = machine.tick(10.1)
    assert isinstance(end, EndJob) and end.code == 1 and "nodes [1] have not joined for 10 s" in end.text


def test_a_rule_of_the_contract_that_is_broken_ends_the_job_at_once() -> None:
    machine = training()
    assert machine.failed(1, 1, "ValueError: once", 1.0) == []
    assert machine.failed(1, 1, "TrainingError: parameters were changed", 1.0, final=True) == [
        EndJob(1, "the script failed in rank 1: TrainingError: parameters were changed")
    ]


def test_copies_that_differ_after_an_update_end_the_job_and_are_named() -> None:
    machine = training(3)
    assert machine.sampled(0, 1, 1, 1, "a", {"model": 5, "schedule": 6}) == []
    assert machine.sampled(1, 1, 1, 1, "b", {"model": 7, "schedule": 6}) == []
    (end,) = machine.sampled(2, 1, 1, 1, "a", {"model": 8, "schedule": 6})
    assert isinstance(end, EndJob) and end.code == 1
    assert "ranks 0 and 2 both hold a, but differ in model after step 0" in end.text
    assert "run.protect(…, part=" in end.text


@pytest.mark.parametrize(("shards", "checkpoints", "told"), [("aabb", False, 0), ("aab", False, 1), ("ab", True, 0)])
def test_what_has_no_copy_and_is_saved_nowhere_is_said_once(shards: str, checkpoints: bool, told: int) -> None:
    machine = Coordinator(dict.fromkeys(range(len(shards)), 0))
    machine.node_joined(0, 0.0)
    for rank, shard in enumerate(shards):
        machine.ready(rank, 1, 1, -1, shard, 0.1, checkpoints)
    if checkpoints:
        for rank in range(len(shards)):
            machine.offered(rank, 1, 1, [], 0.1)
    for rank in range(len(shards)):
        machine.entered(rank, 1, 1, 0.2)
    said = [one.text for now in (3.0, 5.3, 6.0) for one in machine.tick(now) if isinstance(one, OperatorMessage)]
    assert len(said) == told
    assert all("rank 2 holds state of which no other rank has a copy (b)" in text for text in said)


def test_a_rank_that_still_builds_its_model_may_hold_the_copy_of_another() -> None:
    machine = Coordinator(dict.fromkeys(range(4), 0))
    machine.node_joined(0, 0.0)
    for rank in range(4):
        machine.ready(rank, 1, 1, -1, None, 0.1)
    for rank in range(4):
        machine.entered(rank, 1, 1, 0.2)
    machine.named(0, 1, "a")
    assert not [one for one in machine.tick(5.3) if isinstance(one, OperatorMessage)]
    for rank, shard in ((1, "b"), (2, "a"), (3, "c")):
        machine.named(rank, 1, shard)
    [said] = [one.text for now in (5.4, 10.4) for one in machine.tick(now) if isinstance(one, OperatorMessage)]
    assert "ranks 1, 3 hold state of which no other rank has a copy (b)" in said
