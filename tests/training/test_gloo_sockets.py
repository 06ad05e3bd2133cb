"""Sockets of gloo's groups: shut down when a generation ends, and never a reason to spin afterwards."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator

import pytest

from belay.agents.training.train.native.gloo import Sockets, quiet


@pytest.fixture
def pair() -> Iterator[tuple[Sockets, socket.socket, socket.socket]]:
    """The sockets of a group, and both ends of its only connection."""
    sockets = Sockets()
    with socket.create_server(("127.0.0.1", 0)) as server, device(sockets, 1, server) as loop:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        for one in (near, far):
            loop.register(one.fileno(), 0)
        with near, far:
            yield sockets, near, far


def device(sockets: Sockets, generation: int, server: socket.socket) -> select.epoll:
    """A device as gloo makes it."""

    def create() -> select.epoll:
        loop = select.epoll()
        loop.register(server.fileno(), select.EPOLLIN)
        return loop

    made = sockets.device(generation, create)
    assert isinstance(made, select.epoll)
    return made


def test_a_blocked_rank_is_freed_and_its_peer_sees_the_end(pair) -> None:
    sockets, near, far = pair
    assert sockets.shut(2) == 2
    assert near.recv(1) == b"" and far.recv(1) == b""


def test_the_next_group_is_left_alone_while_a_rank_has_not_left_the_former_one(pair) -> None:
    sockets, near, _ = pair
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        device(sockets, 2, server) as loop,
        socket.create_connection(server.getsockname()) as new,
        server.accept()[0] as other,
    ):
        for one in (new, other):
            loop.register(one.fileno(), 0)
        # freed again in the middle of its forming, and after it
        assert sockets.shut(2) == 2
        sockets.connected(2)
        assert sockets.shut(2) == 0
        new.send(b"x")
        assert other.recv(1) == b"x" and near.recv(1) == b""
        # its own generation ends
        assert sockets.shut(3) == 2
        assert other.recv(1) == b""


def test_a_group_in_the_making_is_shut_when_its_generation_ends() -> None:
    sockets = Sockets()
    with socket.create_server(("127.0.0.1", 0)) as server, device(sockets, 1, server) as loop:
        near = socket.create_connection(server.getsockname())
        with near, server.accept()[0] as far:
            for one in (near, far):
                loop.register(one.fileno(), 0)
            assert sockets.shut(2) == 2
            assert near.recv(1) == b"" and far.recv(1) == b""


def test_what_is_not_read_after_the_end_is_reported_once_and_can_still_be_removed(pair) -> None:
    sockets, near, _ = pair
    with select.epoll() as loop:
        loop.register(near.fileno(), select.EPOLLIN)
        sockets.shut(2)
        # a thread that does not read it spins
        assert [loop.poll(0) for _ in range(3)] == [[(near.fileno(), select.EPOLLIN | select.EPOLLHUP)]] * 3
        assert sockets.quiet() >= 1
        assert loop.poll(0) == [(near.fileno(), select.EPOLLIN | select.EPOLLHUP)]
        assert loop.poll(0) == []
        loop.unregister(near.fileno())


def test_other_sockets_of_the_same_loop_are_left_alone(pair) -> None:
    sockets, near, _ = pair
    other, peer = socket.socketpair()
    with select.epoll() as loop, other, peer:
        loop.register(near.fileno(), select.EPOLLIN)
        loop.register(other.fileno(), select.EPOLLIN)
        sockets.shut(2)
        sockets.quiet()
        peer.send(b"x")
        loop.poll(0)
        assert [loop.poll(0) for _ in range(2)] == [[(other.fileno(), select.EPOLLIN)]] * 2


def test_a_descriptor_that_was_closed_and_used_again_is_left_alone(pair) -> None:
    sockets, near, _ = pair
    sockets.shut(2)
    other, peer = socket.socketpair()
    # closes the socket of the group
    os.dup2(other.fileno(), near.fileno())
    with select.epoll() as loop, other, peer:
        loop.register(near.fileno(), select.EPOLLIN)
        sockets.quiet()
        peer.send(b"x")
        assert [loop.poll(0) for _ in range(2)] == [[(near.fileno(), select.EPOLLIN)]] * 2


def test_the_same_number_with_another_inode_is_not_changed() -> None:
    near, far = socket.socketpair()
    with select.epoll() as loop, near, far:
        loop.register(near.fileno(), select.EPOLLIN)
        assert quiet({near.fileno(): 1}) == 0


def test_a_group_that_never_gets_connected_does_not_take_the_sockets_of_later_ones() -> None:
    sockets = Sockets()
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
        # of generation 1 a thread still waits for a rank that was lost, while the group of generation 2 is connected
        device(sockets, 1, first),
        device(sockets, 2, second) as loop,
        socket.create_connection(second.getsockname()) as near,
        second.accept()[0] as far,
    ):
        for one in (near, far):
            loop.register(one.fileno(), 0)
        assert sockets.shut(2) == 0
        near.send(b"x")
        assert far.recv(1) == b"x"
        assert sockets.shut(3) == 2


def test_the_loop_of_a_group_that_is_gone_is_let_go() -> None:
    sockets, before = Sockets(), len(os.listdir("/proc/self/fd"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        device(sockets, 1, server).close()
    sockets.forget()
    assert len(os.listdir("/proc/self/fd")) == before
