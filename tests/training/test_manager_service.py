"""The manager as it runs, against a scripted ClusterD over real gRPC: operations, profiling, a service that is lost."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.agents.training.clusterd.state import JobSettings
from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.bus.member import Member
from belay.agents.training.compat.bus.message import Body
from belay.agents.training.compat.bus.position import AGENT, MANAGER, PROXY, WORKER, Position
from belay.agents.training.compat.manager.service import ManagerService
from belay.engine.wire.clusterd import profiling_pb2, profiling_pb2_grpc
from belay.engine.wire.clusterd import recover_pb2 as pb
from tests.training.taskd_world import JOB, PATIENCE, ClusterD, clusterd, free_port, until

MGR = Position(MANAGER, "0")


class Operations(ClusterD, profiling_pb2_grpc.TrainingDataTraceServicer):
    """Orders operations when the test puts them in."""

    def __init__(self) -> None:
        super().__init__()
        self.links: queue.Queue[Any] = queue.Queue()
        self.tests: queue.Queue[Any] = queue.Queue()
        self.switches: queue.Queue[Any] = queue.Queue()

    def _each(self, orders: queue.Queue[Any], context: Any) -> Iterator[Any]:
        while context.is_active():
            with contextlib.suppress(queue.Empty):
                yield orders.get(timeout=0.05)

    def SubscribeNotifySwitch(self, request: Any, context: Any) -> Iterator[Any]:
        return self._each(self.links, context)

    def SubscribeNotifyExecStressTest(self, request: Any, context: Any) -> Iterator[Any]:
        return self._each(self.tests, context)

    def SubscribeDataTraceSwitch(self, request: Any, context: Any) -> Iterator[Any]:
        return self._each(self.switches, context)

    def ReplySwitchNicResult(self, request: Any, context: Any) -> Any:
        self.heard.append(("switched", request))
        return pb.Status(code=0)

    def ReplyStressTestResult(self, request: Any, context: Any) -> Any:
        self.heard.append(("tested", request))
        return pb.Status(code=0)

    def ReportProcessFault(self, request: Any, context: Any) -> Any:
        self.heard.append(("fault", request))
        return pb.Status(code=0)


class World:
    """A manager, a pod's proxy, its agent and a worker."""

    def __init__(self, stack: contextlib.ExitStack, port: int, folder: Path) -> None:
        self.stack = stack
        self.service = ManagerService(
            JobSettings(JOB, 1, 2, recovery=True), listen="127.0.0.1:0", server=f"127.0.0.1:{port}", controller=False,
            environ={}, reset_file=folder / "reset.json",
        )  # fmt: skip
        self.service.start()
        thread = threading.Thread(target=self.service.run, daemon=True)
        thread.start()
        stack.callback(self.service.stop)
        proxy = self.add(
            Member(Position(PROXY, "0"), listen="127.0.0.1:0", upstream=f"127.0.0.1:{self.service.member.port}")
        )
        self.agent = self.add(Member(Position(AGENT, "0"), upstream=f"127.0.0.1:{proxy.port}"))
        self.worker = self.add(Member(Position(WORKER, "0", "1"), upstream=f"127.0.0.1:{proxy.port}"))
        for member in (self.agent, self.worker):
            assert member.wait_joined(PATIENCE)

    def add(self, member: Member) -> Member:
        self.stack.callback(member.close)
        member.start()
        return member

    def asked(self) -> Body:
        """The next order for the worker."""
        found = self.worker.receive(PATIENCE)
        assert found is not None
        return found.body

    def say(self, kind: str, code: int, message: str = "", **extension: str) -> None:
        assert self.worker.send(MGR, Body(kind, code, message, extension), sync=True) == 0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[Operations, World]]:
    with contextlib.ExitStack() as stack:
        server, port = stack.enter_context(clusterd(Operations()))
        found = World(stack, port, tmp_path)
        found.say(codes.REGISTER, codes.WORKER_REGISTERED)
        until(lambda: server.streams, "the job is followed")
        # the bus acknowledges a message before the manager has handled it; without workers it refuses operations
        until(lambda: found.service.core.state.workers, "the worker is known")
        yield server, found  # type: ignore[misc]


def test_a_link_switch_goes_to_the_workers_and_its_result_to_clusterd(world: tuple[Operations, World]) -> None:
    server, at = world
    server.links.put(pb.SwitchRankList(jobId="another", rankID=["1"], op=[True]))
    server.links.put(pb.SwitchRankList(jobId=JOB, rankID=["1", "0"], op=[True, False]))
    asked = at.asked()
    assert (asked.code, json.loads(asked.extension["globalRankIDs"])) == (204, ["1", "0"])
    assert json.loads(asked.extension["globalOps"]) == [True, False]
    at.say(codes.ACTION, 204, "switchOK", switchNicUUID=asked.extension["switchNicUUID"])
    until(lambda: server.heard, "the result")
    assert [(name, found.jobId, found.result) for name, found in server.heard] == [("switched", JOB, True)]


def test_a_stress_test_goes_to_its_ranks_and_its_results_to_clusterd(world: tuple[Operations, World]) -> None:
    server, at = world
    server.tests.put(pb.StressTestRankParams(jobId=JOB, stressParam={"1": pb.StressOpList(ops=[0])}))
    asked = at.asked()
    assert json.loads(asked.extension["StressTestRankOPStr"]) == {"1": {"ops": [0]}}
    result = json.dumps({"rankResult": {"0": {"code": "2", "result": "found"}}})
    at.say(codes.ACTION, 205, result, stressTestUUID=asked.extension["stressTestUUID"])
    until(lambda: server.heard, "the result")
    ((name, found),) = server.heard
    assert name == "tested" and found.stressResult["1"].rankResult["0"].code == "2"


def test_profiling_switches_reach_the_workers(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server, port = stack.enter_context(clusterd(Operations()))
        at = World(stack, port, tmp_path)
        at.say(codes.REGISTER, codes.WORKER_REGISTERED)
        server.switches.put(  # type: ignore[attr-defined]
            profiling_pb2.DataStatusRes(profilingSwitch=profiling_pb2.ProfilingSwitch(Step="on"), code=200)
        )
        assert at.asked().code == codes.PROFILING_DEFAULT


def test_faults_that_a_lost_service_did_not_receive_are_reported_when_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        with clusterd(Operations(), port) as (first, _):
            at = World(stack, port, tmp_path)
            until(lambda: first.streams, "the job is followed")
        report = json.dumps({"fault_ranks": [1], "restart_times": -1})
        assert at.agent.send(MGR, Body(codes.STATUS, codes.FAULT_RANKS, report), sync=True) == 0
        second, _ = stack.enter_context(clusterd(Operations(), port))
        until(lambda: second.heard, "the fault is reported to the new one")
        ranks = {rank.rankId for name, found in second.heard if name == "fault" for rank in found.faultRanks}
        assert ranks == {"1"}
