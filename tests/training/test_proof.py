"""Nodes of a job with a secret: what strangers are sent, and that both ends prove that they know it."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from belay.agents.training.train.agent.link import VERSION, CoordinatorLink, NodeListener
from belay.agents.training.train.agent.peers import Peers
from belay.agents.training.train.agent.proof import Prover, read_secret
from belay.agents.training.train.decide.election import Claim
from belay.agents.training.train.frames import Connection, Message

KEY = b"a secret of sixteen bytes and more"
JOIN: Message = {"t": "join", "version": VERSION, "job": "job", "nodes": 2, "nproc": 1, "node": 1, "living": []}


def listener(key: bytes = KEY) -> NodeListener:
    found = NodeListener("127.0.0.1", 0, "job", 2, 1, 0, key)
    found.claim = lambda: Claim(0, 1, 0, 1)
    return found


def port_of(found: NodeListener) -> int:
    return int(found._sock.getsockname()[1])


class Stranger:
    """A connection that sends what it likes."""

    def __init__(self, port: int) -> None:
        self.line = Connection(socket.create_connection(("127.0.0.1", port)))
        self.heard: list[Message] = []
        self.closed = False

    def hear(self) -> None:
        if not self.closed and select.select([self.line.fileno()], [], [], 0)[0]:
            messages = self.line.receive()
            self.closed = messages is None
            self.heard += [message for message, _ in messages or []]


def turn(found: NodeListener, until: Callable[[], object]) -> list[Message]:
    came: list[Message] = []
    end = time.monotonic() + 30
    while not until():
        assert time.monotonic() < end
        ready = {one for one, _ in found.descriptors()}
        ready &= set(select.select(list(ready), [], [], 0.01)[0])
        came += [message for _, message, _ in found.handle(ready, time.monotonic())[0]]
    return came


@pytest.mark.parametrize(
    "messages",
    [
        [JOIN],
        [{**JOIN, "t": "who", "term": 0, "leader": -1, "joined": 1}],
        [{"t": "hello", "n": "1" * 32}, {"t": "proof", "proof": "0" * 64}, JOIN],
        [{"t": "hello", "n": "1" * 32}, {"t": "hello", "n": "2" * 32}],
        [{"t": "hello"}],
        [{"t": "proof", "proof": ""}],
    ],
)
def test_a_stranger_is_sent_a_fresh_number_at_most_and_never_joins(messages: list[Message]) -> None:
    found = listener()
    stranger = Stranger(port_of(found))
    for message in messages:
        stranger.line.send(message)
    came = turn(found, lambda: stranger.hear() or stranger.closed)
    assert came == [] and found.joined() == set()
    assert [message["t"] for message in stranger.heard] in ([], ["challenge"])
    assert all(message.keys() == {"t", "n", "proof"} for message in stranger.heard)
    found.close()


def test_a_node_that_knows_the_secret_joins() -> None:
    found = listener()
    link = CoordinatorLink("127.0.0.1", port_of(found), KEY)

    def joins() -> bool:
        now = time.monotonic()
        link.handle({one for one, _ in link.descriptors()} & ready(link), now)
        if link.connect(now):
            link.send(JOIN)
        return found.joined() == {1}

    assert [message["t"] for message in turn(found, joins)] == ["join"]
    link.close()
    found.close()


def ready(link: CoordinatorLink) -> set[int]:
    descriptors = [one for one, _ in link.descriptors()]
    return set(select.select(descriptors, [], [], 0)[0])


def test_a_coordinator_that_does_not_know_the_secret_learns_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        link = CoordinatorLink("127.0.0.1", server.getsockname()[1], KEY)
        assert link.connect(time.monotonic()) is False
        other = Connection(server.accept()[0])
        heard: list[Message] = []
        while not heard:
            heard += [message for message, _ in other.receive() or []]
        assert [message["t"] for message in heard] == ["hello"]
        # its own number and a guess
        other.send({"t": "challenge", "n": heard[0]["n"], "proof": "0" * 64})
        end = time.monotonic() + 30
        while link.line is not None:
            assert time.monotonic() < end
            link.handle(ready(link), time.monotonic())
        rest = other.receive()
        assert not [message for message, _ in rest or []]
        other.close()


def test_a_proof_cannot_be_had_from_the_other_end_itself() -> None:
    victim, second = Prover(KEY, "coordinator"), Prover(KEY, "coordinator")
    # a stranger asks one connection for the proof that the other wants
    first = victim.challenge({"t": "hello", "n": "1" * 32})
    assert first is not None
    proof = second.challenge({"t": "hello", "n": first["n"]})
    assert proof is not None
    assert not victim.accept({"t": "proof", "proof": proof["proof"]})


def test_questions_are_asked_of_proven_nodes_only() -> None:
    right, wrong = listener(), listener(b"another secret of sixteen bytes")
    for found, expected in ((right, 1), (wrong, 0)):
        own = {"version": VERSION, "job": "job", "nodes": 2, "nproc": 1}
        peers = Peers({0: ("127.0.0.1", port_of(found)), 1: ("127.0.0.1", 1)}, own, KEY)
        heard: list[Claim] = []
        asked: list[Claim] = []
        found.heard = lambda claim, _, asked=asked: asked.append(claim)  # type: ignore[misc]
        end = time.monotonic() + 1.5

        def answered(peers: Peers = peers, heard: list[Claim] = heard, end: float = end) -> bool:
            now = time.monotonic()
            peers.ask([0], Claim(1, 0, -1, 1), now)
            descriptors = [one for one, _ in peers.descriptors()]
            ready_now = set(select.select(descriptors, [], [], 0)[0]) if descriptors else set()
            heard += peers.handle(ready_now, now)
            return bool(heard) or now > end

        turn(found, answered)
        assert (len(heard), len(asked)) == (expected, expected)
        peers.close()
        found.close()


def test_a_short_or_missing_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("x")
    with pytest.raises(ValueError, match="holds 1 bytes; a secret needs at least 16"):
        read_secret(str(tmp_path / "short"))
    with pytest.raises(ValueError, match="No such file"):
        read_secret(str(tmp_path / "none"))
