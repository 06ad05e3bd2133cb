"""Which node runs the coordinator: single decisions, then random histories with cuts and deaths of nodes."""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass, field

import pytest

from belay.agents.training.train.agent import launcher
from belay.agents.training.train.agent.peers import claim_message, read_claim
from belay.agents.training.train.decide.election import WAIT, Claim, Election, Follow, Lead, Role


def test_the_lowest_node_leads_at_once_when_all_candidates_are_heard() -> None:
    first, second = Election(0, range(2), 0.0), Election(1, range(2), 0.0)
    first.heard(second.claim(), 0.1)
    second.heard(first.claim(), 0.1)
    assert second.decide(0.2) is None
    assert first.decide(0.2) == Lead(1)
    second.heard(first.claim(1), 0.3)
    assert second.decide(0.4) == Follow(0)
    assert second.claim() == Claim(1, 1, 0)


def test_a_node_whose_lower_ones_are_silent_leads_after_a_pause_and_keeps_its_place() -> None:
    second = Election(1, range(3), 0.0)
    assert second.decide(WAIT - 0.1) is None
    assert second.decide(WAIT) == Lead(1)
    first = Election(0, range(3), 5.0)
    first.heard(second.claim(1), 5.1)
    assert first.decide(5.2) == Follow(1)


def test_the_leader_with_fewer_nodes_steps_back() -> None:
    alone, many = Election(0, range(4), 0.0), Election(1, range(4), 0.0)
    assert alone.decide(WAIT) == Lead(1)
    many.heard(Claim(3, 7), 1.0)
    assert many.decide(WAIT) == Lead(8)
    alone.heard(many.claim(3), 4.0)
    many.heard(alone.claim(1), 4.0)
    assert many.decide(4.1, joined=3) is None
    assert alone.decide(4.1, joined=1) == Follow(1)


def test_a_node_waits_while_others_follow_a_leader_that_it_has_not_reached() -> None:
    third = Election(2, range(3), 0.0)
    third.heard(Claim(1, 1, leader=0), 5.0)
    assert third.decide(5.1) is None
    assert third.asks(set()) == [0, 1]


def test_a_node_that_is_no_candidate_never_leads() -> None:
    last = Election(9, range(8), 0.0)
    assert last.decide(1000.0) is None


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"node": 0, "term": 1, "leader": 0},
        {"node": "0", "term": 1, "leader": 0, "joined": 1},
        {"node": True, "term": 1, "leader": 0, "joined": 1},
        {"node": 4, "term": 1, "leader": 0, "joined": 1},
        {"node": 0, "term": -1, "leader": 0, "joined": 1},
        {"node": 0, "term": 1 << 60, "leader": 0, "joined": 1},
        {"node": 0, "term": 1, "leader": 9, "joined": 1},
        {"node": 0, "term": 1, "leader": 0, "joined": 5},
    ],
)
def test_what_is_not_a_claim_of_this_job_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="claim"):
        read_claim(given, 4)
    assert read_claim(claim_message(Claim(3, 2, 1, 0)), 4) == Claim(3, 2, 1, 0)


SILENCE = 3.0


@dataclass
class Node:
    """A node with its connection to a leader, and its own followers."""

    election: Election
    joined: set[int] = field(default_factory=set)
    link: int = -1
    silent_since: float | None = None


class World:
    """Nodes on a virtual clock; ``cut``: pairs that do not reach each other."""

    def __init__(self, count: int, seed: int) -> None:
        self.chance, self.now = random.Random(seed), 0.0
        self.count, self.cut = count, set[frozenset[int]]()
        self.nodes: dict[int, Node] = {}

    def start(self, number: int) -> None:
        self.nodes[number] = Node(Election(number, range(min(8, self.count)), self.now))

    def kill(self, number: int) -> None:
        del self.nodes[number]
        for node in self.nodes.values():
            node.joined.discard(number)
            if node.link == number:
                self.lose(node)

    def lose(self, node: Node) -> None:
        node.link, node.silent_since = -1, None
        node.election.lost(self.now)

    def reach(self, one: int, other: int) -> bool:
        return other in self.nodes and frozenset((one, other)) not in self.cut

    def turn(self) -> None:
        """A tenth of a second."""
        self.now += 0.1
        for number, node in sorted(self.nodes.items(), key=lambda _: self.chance.random()):
            self.watch(number, node)
            for other in node.election.asks(node.joined):
                if self.reach(number, other) and self.chance.random() < 0.3:
                    asked = self.nodes[other]
                    asked.election.heard(node.election.claim(len(node.joined) + 1), self.now)
                    node.election.heard(asked.election.claim(len(asked.joined) + 1), self.now)
            match node.election.decide(self.now, len(node.joined) + 1):
                case Follow(leader):
                    self.dismiss(number)
                    if self.reach(number, leader) and self.nodes[leader].election.role is Role.LEADING:
                        node.link = leader
                        self.nodes[leader].joined.add(number)
                    else:
                        self.lose(node)
                case Lead():
                    node.link = -1
        complete = [one for one, node in self.nodes.items() if len(node.joined) + 1 == self.count]
        assert len(complete) <= 1, f"all nodes are joined to each of {complete}"

    def watch(self, number: int, node: Node) -> None:
        """The silence of a connection is noticed by both ends."""
        for other in [node.link] if node.link >= 0 else []:
            if self.reach(number, other):
                node.silent_since = None
            elif node.silent_since is None:
                node.silent_since = self.now
            elif self.now - node.silent_since > SILENCE:
                if other in self.nodes:
                    self.nodes[other].joined.discard(number)
                self.lose(node)

    def dismiss(self, number: int) -> None:
        for one in self.nodes[number].joined:
            if one in self.nodes and self.nodes[one].link == number:
                self.lose(self.nodes[one])
        self.nodes[number].joined.clear()


@pytest.mark.parametrize("count", [2, 3, 5, 12])
def test_whatever_is_cut_and_killed_all_nodes_are_with_one_leader_soon_after_it_is_mended(count: int) -> None:
    for seed in range(40):
        world = World(count, seed)
        for _ in range(150):
            dice = world.chance.random()
            one, other = world.chance.sample(range(count), 2)
            if dice < 0.05 and one in world.nodes:
                world.kill(one)
            elif dice < 0.25 and one not in world.nodes:
                world.start(one)
            elif dice < 0.35:
                world.cut ^= {frozenset((one, other))}
            world.turn()
        world.cut.clear()
        for number in range(count):
            if number not in world.nodes:
                world.start(number)
        for _ in range(150):
            world.turn()
        leaders = [number for number, node in world.nodes.items() if len(node.joined) + 1 == count]
        assert len(leaders) == 1, (
            f"seed {seed}: {[(n, x.election.role, x.election.leader) for n, x in world.nodes.items()]}"
        )


def options(*words: str) -> argparse.Namespace:
    given = launcher.parser().parse_args([*words, "script.py"])
    launcher.complete(given)
    return given


def test_the_hosts_give_number_and_rank_of_nodes() -> None:
    found = options("--nodes", "203.0.113.1,host-b:29501,[2001:db8::2]:7000,2001:db8::1", "--node-rank", "3")
    assert found.addresses == {
        0: ("203.0.113.1", 29500),
        1: ("host-b", 29501),
        2: ("2001:db8::2", 7000),
        3: ("2001:db8::1", 29500),
    }
    assert (found.nnodes, found.master_addr) == (4, "203.0.113.1")
    assert options("--nodes", "203.0.113.1,203.0.113.2", "--node-rank", "1").node_rank == 1
    alone = options()
    assert (alone.nnodes, alone.node_rank, alone.addresses) == (1, 0, {})


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--nodes", "a,,b"), "'' is not HOST"),
        (("--nodes", "a:x,b"), "'a:x' is not HOST"),
        (("--nodes", "a:70000,b"), "'a:70000' is not HOST"),
        (("--nodes", "[::1]x,b"), "is not HOST"),
        (("--nodes", "a,a"), "'a' stands twice"),
        (("--nodes", "a,b", "--nnodes", "3"), "names 2 hosts"),
        (("--nodes", "a,b", "--master-addr", "a"), "leave --master-addr out"),
        (("--nodes", "203.0.113.1,203.0.113.2"), "give --node-rank"),
        (("--nodes", "127.0.0.1,127.0.0.1:2"), "nodes [0, 1] of --nodes are this machine"),
    ],
)
def test_hosts_that_cannot_be_meant_are_named(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        options(*words)
