"""The last message of a coordinator, and nodes that are left without it."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from belay.agents.training.train.agent import node as nodes
from belay.agents.training.train.agent.coordinator_host import CoordinatorHost
from belay.agents.training.train.agent.link import VERSION, CoordinatorLink, NodeListener
from belay.agents.training.train.agent.node import NodeAgent
from belay.agents.training.train.agent.node_ranks import NodeSettings
from belay.agents.training.train.decide.members import Limits
from belay.agents.training.train.frames import Message
from belay.agents.training.train.home import Home
from tests.ports import free_port

LAST = {"t": "job", "code": 0, "text": "done"}


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent handles signals and reaps children of its process, which is that of the tests here."""
    monkeypatch.setattr(NodeAgent, "_reap", lambda _: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def joined() -> tuple[NodeListener, CoordinatorLink]:
    """A listener of node 0 with the link of node 1, which has joined."""
    listener = NodeListener("127.0.0.1", 0, "job", 2, 1)
    link = CoordinatorLink("127.0.0.1", int(listener._sock.getsockname()[1]))
    assert link.connect(time.monotonic())
    link.send({"t": "join", "version": VERSION, "job": "job", "nodes": 2, "nproc": 1, "node": 1, "living": []})
    while not listener.joined():
        handle(listener)
    return listener, link


def handle(listener: NodeListener) -> None:
    listener.handle({descriptor for descriptor, _ in listener.descriptors()}, time.monotonic())


def read(link: CoordinatorLink) -> list[Message]:
    """What the link hands over until the connection is closed."""
    found: list[Message] = []
    while link.line is not None:
        ready = {descriptor for descriptor, _ in link.descriptors()}
        found += [message for message, _ in link.handle(ready, time.monotonic())]
    return found


def test_a_node_that_finds_the_connection_broken_still_reads_the_last_message() -> None:
    listener, link = joined()
    listener.farewell(LAST, seconds=0)
    listener.close()
    # the first one is answered by a reset, those after it cannot be sent
    while link._broken is None:
        link.send({"t": "progress", "steps": []})
    assert read(link) == [LAST]


def test_the_coordinator_waits_until_nodes_that_still_send_have_read_its_last_message() -> None:
    listener, link = joined()
    # unread when the connection is closed: the kernel resets it
    link.send({"t": "progress", "steps": [[1, 1, index] for index in range(20_000)]})
    ends = threading.Thread(target=listener.farewell, args=(LAST, 30))
    ends.start()
    found: list[Message] = []
    while LAST not in found:
        link.send({"t": "progress", "steps": []})
        ready = {descriptor for descriptor, _ in link.descriptors()}
        found += [message for message, _ in link.handle(ready, time.monotonic())]
    assert ends.is_alive()
    link.close()
    ends.join(30)
    assert not ends.is_alive() and listener.joined() == set()
    listener.close()


class NoRanks:
    """A node whose ranks have left."""

    processes: dict[int, object] = {}

    def descriptors(self) -> list[tuple[int, bool]]:
        return []

    def handle(self, ready: object) -> list[object]:
        return []

    def of(self, rank: int) -> None:
        return None

    def start(self, *_: object) -> None:
        raise AssertionError("a rank is started again")

    def watch(self, now: float) -> None:
        pass

    keep_spares = close = lambda self: None


def settings(nodes: int, *, leaving: bool) -> NodeSettings:
    name = f"belay-test-{os.getpid()}-{secrets.token_hex(4)}"
    local = {nodes - 1: 0}
    return NodeSettings(nodes - 1, nodes, local, nodes, "job", "", {}, Home(name, os.getpid()), False, leaving=leaving)


def test_a_node_whose_ranks_have_left_ends_with_0_although_its_coordinator_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "FAREWELL", 0.0)
    link = CoordinatorLink("127.0.0.1", free_port())
    agent = NodeAgent(settings(2, leaving=True), NoRanks(), None, None, link)  # type: ignore[arg-type]
    assert agent.run() == 0


def test_an_agent_that_follows_one_killed_at_the_end_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "FAREWELL", 0.0)
    coordinator = CoordinatorHost({0: 0}, Limits(), lambda _: None)
    agent = NodeAgent(settings(1, leaving=True), NoRanks(), coordinator, None, None)  # type: ignore[arg-type]
    assert agent.run() == 0


def test_only_the_word_that_all_have_finished_lets_a_node_end_alone() -> None:
    told, tells = os.pipe()
    given = replace(settings(2, leaving=False), worked=tells)
    agent = NodeAgent(given, NoRanks(), None, None, CoordinatorLink("127.0.0.1", 1))  # type: ignore[arg-type]
    agent._farewell(0.0)
    agent._farewell(1e9)
    assert agent.ended is None
    agent.take({"t": "finished"}, b"")
    agent.take({"t": "finished"}, b"")
    assert os.read(told, 10) == b"."
    now = time.monotonic()
    agent._farewell(now)
    assert agent.ended is None
    agent._farewell(now + nodes.FAREWELL)
    assert agent.ended is not None and agent.ended.code == 0


class Finished(NoRanks):
    """A node with one rank, whose function has returned."""

    def __init__(self) -> None:
        process = SimpleNamespace(rank=1, pid=0)
        self.processes = {1: process}
        self.sent: list[Message] = []

    def of(self, rank: int) -> Any:
        return self.processes[1] if rank == 1 else None

    def send(self, process: object, message: Message, payload: bytes = b"") -> None:
        self.sent.append(message)


@pytest.mark.parametrize("finished", [True, False])
def test_an_agent_that_knows_the_end_repeats_the_word_to_ranks_that_have_not_had_it(finished: bool) -> None:
    ranks, link = Finished(), CoordinatorLink("127.0.0.1", free_port())
    agent = NodeAgent(settings(2, leaving=True), ranks, None, None, link)  # type: ignore[arg-type]
    state = {"rank": 1, "inc": 1, "gen": 1, "done": 9, "entered": True, "finished": finished, "leaving": False}
    agent.adopted(state)
    agent.turn(set())
    agent.turn(set())
    assert ranks.sent == ([{"t": "leave", "all": True}] if finished else [])
