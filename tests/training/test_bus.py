"""The bus over real gRPC on loopback: joining, paths, both directions, duplicates, lost and returning members."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from belay.agents.training.compat.bus import codes, wire
from belay.agents.training.compat.bus.member import BUFFERS, Member
from belay.agents.training.compat.bus.message import Body
from belay.agents.training.compat.bus.position import AGENT, ALL, MANAGER, PROXY, WORKER, Position
from belay.engine.wire.clusterd import tasknet_pb2 as pb
from belay.engine.wire.clusterd import tasknet_pb2_grpc

pytestmark = pytest.mark.real_time

MGR = Position(MANAGER, "0")
PATIENCE = 60.0


def until(condition: Callable[[], Any], what: str) -> None:
    last = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < last, f"never: {what}"
        time.sleep(0.01)


class Bus:
    """A manager, two proxies, an agent and two workers behind each."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.stack = stack
        self.joins: dict[str, int] = {}
        self.manager = self.add(Member(MGR, listen="127.0.0.1:0"))
        self.proxies, self.agents, self.workers = [], [], []
        for node in range(2):
            proxy = self.add(
                Member(Position(PROXY, str(node)), listen="127.0.0.1:0", upstream=f"127.0.0.1:{self.manager.port}")
            )
            self.proxies.append(proxy)
            up = f"127.0.0.1:{proxy.port}"
            self.agents.append(self.below(Position(AGENT, str(node)), up))
            for local in range(2):
                self.workers.append(self.below(Position(WORKER, str(node), str(node * 2 + local)), up))
        for member in (*self.agents, *self.workers):
            assert member.wait_joined(PATIENCE), member.trouble

    def below(self, position: Position, up: str) -> Member:
        def joined() -> None:
            self.joins[str(position)] = self.joins.get(str(position), 0) + 1

        return self.add(Member(position, upstream=up, joined=joined))

    def add(self, member: Member) -> Member:
        self.stack.callback(member.close)
        member.start()
        return member


@pytest.fixture
def bus() -> Iterator[Bus]:
    with contextlib.ExitStack() as stack:
        yield Bus(stack)


def texts(member: Member, count: int) -> list[str]:
    """The next messages of a member; fails when fewer came."""
    found = []
    for _ in range(count):
        received = member.receive(PATIENCE)
        assert received is not None
        found.append(received.body.message)
    return found


def test_messages_find_their_way_up_and_down(bus: Bus) -> None:
    assert bus.agents[1].send(MGR, Body("STATUS", 201, "from below"), sync=True) == 0
    found = bus.manager.receive(PATIENCE)
    assert found is not None
    assert (found.src, found.body.kind, found.body.code, found.body.message) == (
        Position(AGENT, "1"), "STATUS", 201, "from below",
    )  # fmt: skip
    assert bus.manager.send(Position(WORKER, "1", "3"), Body("ACTION", 711, "to one"), sync=True) == 0
    assert texts(bus.workers[3], 1) == ["to one"]
    assert bus.workers[0].send(Position(AGENT, "1"), Body("ACTION", 1, "across"), sync=True) == 0
    assert texts(bus.agents[1], 1) == ["across"]


def test_a_broadcast_reaches_every_member_once(bus: Bus) -> None:
    assert bus.manager.send(Position(WORKER, ALL, ALL), Body("ACTION", 700, "all"), sync=True) == 0
    assert [texts(worker, 1) for worker in bus.workers] == [["all"]] * 4
    assert bus.workers[0].send(Position(WORKER, ALL, ALL), Body("ACTION", 1, "from one of them")) == 0
    assert [texts(worker, 1) for worker in bus.workers] == [["from one of them"]] * 4
    assert bus.manager.send(Position(AGENT, "0,1"), Body("ACTION", 203, "listed")) == 0
    assert [texts(agent, 1) for agent in bus.agents] == [["listed"]] * 2
    for member in (*bus.workers, *bus.agents):
        assert member.receive(0.05) is None


def test_a_message_without_a_route_is_answered_with_its_code(bus: Bus) -> None:
    body = Body("ACTION")
    assert bus.manager.send(Position(AGENT, "7"), body, sync=True) == codes.NO_ROUTE
    assert bus.agents[0].send(Position(AGENT, "7"), body, sync=True) == codes.NO_ROUTE
    assert bus.agents[0].send(Position(AGENT, "x"), body, sync=True) == codes.BAD_SERVER_RANK
    assert bus.agents[0].send(Position("King", "0"), body, sync=True) == codes.BAD_ROLE


def test_a_full_buffer_is_answered_and_no_message_is_lost_silently(bus: Bus) -> None:
    target = Position(AGENT, "0")
    sent = [bus.manager.send(target, Body("ACTION", 1, str(n)), sync=True) for n in range(BUFFERS[AGENT] + 1)]
    assert sent == [0] * BUFFERS[AGENT] + [codes.BUFFER_FULL]
    assert texts(bus.agents[0], BUFFERS[AGENT]) == [str(n) for n in range(BUFFERS[AGENT])]
    assert bus.manager.send(target, Body("ACTION", 1, "again"), sync=True) == 0


def test_a_second_delivery_is_dropped(bus: Bus) -> None:
    for _ in range(3):
        assert bus.agents[0].send(MGR, Body("STATUS", 201, "once"), sync=True, uuid="same") == 0
    assert texts(bus.manager, 1) == ["once"]
    assert bus.manager.receive(0.05) is None


def test_oversized_messages_are_refused_where_they_start(bus: Bus) -> None:
    assert bus.agents[0].send(MGR, Body("STATUS", 201, "x" * (9 << 20)), sync=True) == codes.CLIENT_ERROR
    assert bus.agents[0].send(MGR, Body("STATUS", 201, "x" * (7 << 20)), sync=True) == 0
    assert len(texts(bus.manager, 1)[0]) == 7 << 20


def test_members_return_after_their_proxy_was_lost(bus: Bus) -> None:
    bus.proxies[1].close()
    until(lambda: not bus.agents[1].connected, "the agent notices")
    assert bus.agents[1].send(MGR, Body("STATUS"), sync=True) == codes.NO_STREAM
    assert bus.agents[0].send(MGR, Body("STATUS", 201, "others go on"), sync=True) == 0
    port = bus.proxies[1].port
    bus.add(Member(Position(PROXY, "1"), listen=f"127.0.0.1:{port}", upstream=f"127.0.0.1:{bus.manager.port}"))
    until(lambda: bus.agents[1].connected and bus.joins["Agent1"] >= 2, "the agent is back")
    assert bus.manager.send(Position(AGENT, "1"), Body("ACTION", 1, "welcome"), sync=True) == 0
    assert texts(bus.agents[1], 1) == ["welcome"]


def test_a_new_manager_learns_every_path_again(bus: Bus) -> None:
    port = bus.manager.port
    bus.manager.close()
    until(lambda: not bus.proxies[0].connected, "the proxies notice")
    manager = bus.add(Member(MGR, listen=f"127.0.0.1:{port}"))
    until(lambda: min(bus.joins.values()) >= 2 and all(one.connected for one in bus.workers), "all joined again")
    for node in range(2):
        assert manager.send(Position(AGENT, str(node)), Body("ACTION", 1, "new"), sync=True) == 0
        assert texts(bus.agents[node], 1) == ["new"]


def test_another_jobs_member_is_refused() -> None:
    with contextlib.ExitStack() as stack:
        manager = Member(MGR, listen="127.0.0.1:0", job="job-1")
        stack.callback(manager.close)
        manager.start()
        stranger = Member(Position(PROXY, "0"), upstream=f"127.0.0.1:{manager.port}", job="job-2")
        stack.callback(stranger.close)
        stranger.start()
        until(lambda: "another job" in stranger.trouble, "the reason is known")
        assert not stranger.connected
        own = Member(Position(PROXY, "0"), upstream=f"127.0.0.1:{manager.port}", job="job-1")
        stack.callback(own.close)
        own.start()
        assert own.wait_joined(PATIENCE)


def metadata(position: Position, job: str) -> tuple[tuple[str, str], ...]:
    found = (("role", position.role), ("serverrank", position.server), ("processrank", position.process))
    return (*found, (wire.JOB_KEY, job)) if job else found


@pytest.mark.parametrize("serves", ["job-1", ""])
@pytest.mark.parametrize("theirs", ["job-2", ""])
def test_the_stream_of_another_jobs_member_cannot_be_taken(serves: str, theirs: str) -> None:
    with contextlib.ExitStack() as stack:
        manager = Member(MGR, listen="127.0.0.1:0", job=serves)
        stack.callback(manager.close)
        manager.start()
        proxy = Member(Position(PROXY, "0"), upstream=f"127.0.0.1:{manager.port}", job="job-1")
        stack.callback(proxy.close)
        proxy.start()
        assert proxy.wait_joined(PATIENCE)
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{manager.port}"))
        stub = tasknet_pb2_grpc.TaskNetStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as refused:
            next(stub.InitServerDownStream(iter(()), metadata=metadata(Position(PROXY, "0"), theirs)))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert proxy.connected
        assert manager.send(Position(PROXY, "0"), Body("ACTION", 1, "mine"), sync=True) == 0
        assert texts(proxy, 1) == ["mine"]


def test_an_address_in_use_is_named() -> None:
    first = Member(MGR, listen="127.0.0.1:0")
    first.start()
    try:
        with pytest.raises(OSError, match=f"Mgr cannot listen on 127.0.0.1:{first.port}"):
            Member(MGR, listen=f"127.0.0.1:{first.port}").start()
    finally:
        first.close()


def test_foreign_clients_get_the_code_of_the_missing_field(bus: Bus) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{bus.manager.port}") as channel:
        stub = tasknet_pb2_grpc.TaskNetStub(channel)  # type: ignore[no-untyped-call]
        mgr = wire.to_wire(MGR)

        def sent(message: Any) -> int:
            return int(stub.TransferMessage(message, timeout=PATIENCE).code)

        assert sent(pb.Message()) == codes.NO_MESSAGE
        assert sent(pb.Message(body="{}")) == codes.NO_HEADER
        assert sent(pb.Message(header=pb.MessageHeader(dst=mgr))) == codes.NO_POSITION
        assert stub.Register(pb.RegisterReq(uuid="u")).code == codes.NO_POSITION
        assert stub.Register(pb.RegisterReq(pos=mgr)).code == codes.BAD_ROLE
        assert stub.PathDiscovery(pb.PathDiscoveryReq(uuid="u")).code == codes.NO_POSITION
        header = pb.MessageHeader(uuid="bad", src=wire.to_wire(Position(AGENT, "0")), dst=mgr)
        assert sent(pb.Message(header=header, body="no JSON")) == 0
        with pytest.raises(grpc.RpcError, match="not registered"):
            next(stub.InitServerDownStream(iter(()), metadata=(("role", "Agent"), ("serverrank", "99"))))
    assert bus.manager.receive(0.05) is None
