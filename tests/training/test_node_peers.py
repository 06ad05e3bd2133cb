"""Questions between nodes: names of several addresses, families that are lacking, agents of a former job."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator

import pytest

from belay.agents.training.train.agent.link import VERSION, NodeListener
from belay.agents.training.train.agent.peers import Peers
from belay.agents.training.train.decide.election import Claim

OWN = {"version": VERSION, "job": "job", "nodes": 2, "nproc": 1}
LISTENS = Claim(0, 1, 0, 1)


def listening(host: str, job: str = "job") -> NodeListener:
    return NodeListener(host, 0, job, 2, 1, node=0, claim=lambda: LISTENS)


def answers(peers: Peers, listener: NodeListener, enough: int = 1) -> list[Claim]:
    """What comes back from the listener, until there are as many claims, or a refusal."""
    found: list[Claim] = []
    for _ in range(400):
        now = time.monotonic()
        peers.ask([0], Claim(1, 0, -1, 1), now)
        poll = select.poll()
        for descriptor, _writing in [*listener.descriptors(), *peers.descriptors()]:
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(10)}
        listener.handle(ready, now)
        found += peers.handle(ready, now)
        if len(found) >= enough or peers.refused or peers.others:
            break
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("belay.agents.training.train.agent.peers.ASK", 0.0)
    yield


def port(listener: NodeListener) -> int:
    return int(listener._sock.getsockname()[1])


def names(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[socket.AddressFamily, str]) -> None:
    found = [(family, socket.SOCK_STREAM, 6, "", (address, 0)) for family, address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_every_address_of_the_machine_is_listened_at(quick: None, address: str) -> None:
    listener = listening("")
    if ":" in address and listener._sock.family != socket.AF_INET6:
        pytest.skip("this machine has no IPv6")
    peers = Peers({0: (address, port(listener)), 1: ("127.0.0.2", 1)}, OWN)
    assert answers(peers, listener) == [LISTENS]
    peers.close()
    listener.close()


def test_a_machine_without_ipv6_listens_at_ipv4(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def lacking(family: int = -1, *more: int, **named: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *more, **named)

    monkeypatch.setattr(socket, "socket", lacking)
    names(monkeypatch, (socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1"))
    listener = listening("")
    peers = Peers({0: ("two-families", port(listener)), 1: ("127.0.0.2", 1)}, OWN)
    assert answers(peers, listener) == [LISTENS]
    assert peers.address(0) == ("127.0.0.1", port(listener))
    peers.close()
    listener.close()


def test_the_next_address_of_a_name_is_asked(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # nothing listens at the first one
    names(monkeypatch, (socket.AF_INET, "127.0.0.9"), (socket.AF_INET, "127.0.0.1"))
    listener = listening("127.0.0.1")
    peers = Peers({0: ("two-addresses", port(listener)), 1: ("127.0.0.2", 1)}, OWN)
    assert answers(peers, listener) == [LISTENS]
    peers.close()
    listener.close()


def test_without_a_free_descriptor_a_node_is_asked_later(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    listener, real, failures = listening("127.0.0.1"), socket.socket, [24]
    peers = Peers({0: ("127.0.0.1", port(listener)), 1: ("127.0.0.2", 1)}, OWN)

    def scarce(family: int = -1, *more: int, **named: int) -> socket.socket:
        if failures and not named:
            raise OSError(failures.pop(), "Too many open files")
        return real(family, *more, **named)

    monkeypatch.setattr(socket, "socket", scarce)
    assert answers(peers, listener) == [LISTENS] and not failures
    peers.close()
    listener.close()


def test_a_former_job_on_the_port_is_no_final_refusal(
    quick: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    former = listening("127.0.0.1", "former")
    peers = Peers({0: ("127.0.0.1", port(former)), 1: ("127.0.0.2", 1)}, OWN)
    for _ in range(3):
        peers.others.clear()
        assert answers(peers, former) == []
        assert "this job has job 'former'" in peers.others[0] and not peers.refused
    assert capfd.readouterr().err.count("was refused") == 1
    at = port(former)
    former.close()
    now = NodeListener("127.0.0.1", at, "job", 2, 1, node=0, claim=lambda: LISTENS)
    peers.others.clear()
    assert answers(peers, now) == [LISTENS]
    peers.close()
    now.close()
    # what differs otherwise stays a refusal
    smaller = NodeListener("127.0.0.1", 0, "job", 2, 8, node=0, claim=lambda: LISTENS)
    peers = Peers({0: ("127.0.0.1", port(smaller)), 1: ("127.0.0.2", 1)}, OWN)
    assert answers(peers, smaller) == [] and "nproc 8" in peers.refused and not peers.others
    peers.close()
    smaller.close()
