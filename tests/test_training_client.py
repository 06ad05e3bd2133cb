"""The client of the recovery service over real gRPC: registration, signals, reports, lost servers; and its packages."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from belay.agents.training.clusterd import recovery_client as managers
from belay.agents.training.clusterd.client import ClientInfo, RecoverClient, ranks, server_address
from belay.agents.training.clusterd.recovery_client import DLRecoverManager
from belay.agents.training.compat import resetfile, torchpatch
from belay.engine.wire.clusterd import recover_pb2 as pb
from belay.engine.wire.clusterd import recover_pb2_grpc

ROOT = Path(__file__).parent.parent


class Server(recover_pb2_grpc.RecoverServicer):
    """Answers what the test says, remembers what it heard."""

    def __init__(self) -> None:
        self.init: list[int] = []
        self.refuse: list[int] = []
        self.heard: list[tuple[str, Any]] = []
        self.signals: queue.Queue[Any] = queue.Queue()
        self.streams = 0

    def Init(self, request: Any, context: Any) -> Any:
        self.heard.append(("Init", request))
        return pb.Status(code=self.init.pop(0) if self.init else 0)

    def Register(self, request: Any, context: Any) -> Any:
        self.heard.append(("Register", request))
        return pb.Status(code=0, info="register success")

    def HealthCheck(self, request: Any, context: Any) -> Any:
        return pb.Status(code=0)

    def SubscribeProcessManageSignal(self, request: Any, context: Any) -> Iterator[Any]:
        self.streams += 1
        while (signal := self.signals.get()) is not None:
            yield signal

    def _report(self, name: str, request: Any) -> Any:
        self.heard.append((name, request))
        return pb.Status(code=self.refuse.pop(0) if self.refuse else 0)

    def ReportStopComplete(self, request: Any, context: Any) -> Any:
        return self._report("stop", request)

    def ReportRecoverStrategy(self, request: Any, context: Any) -> Any:
        return self._report("strategy", request)

    def ReportRecoverStatus(self, request: Any, context: Any) -> Any:
        return self._report("status", request)

    def ReportProcessFault(self, request: Any, context: Any) -> Any:
        return self._report("fault", request)


class Recorder:
    """A controller that remembers."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.done.append((name, *arguments))
            return 0

        return call


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job in the environment."""
    for name in ("MINDX_TASK_ID", "MINDX_SERVER_IP", "LOCAL_PROXY_ENABLE", "HCCL_CONNECT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def service() -> Iterator[tuple[Server, str]]:
    server = grpc.server(futures.ThreadPoolExecutor(8))
    found = Server()
    recover_pb2_grpc.add_RecoverServicer_to_server(found, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield found, f"127.0.0.1:{port}"
    found.signals.put(None)
    server.stop(None).wait()


@pytest.fixture
def client(service: tuple[Server, str]) -> Iterator[DLRecoverManager]:
    found = DLRecoverManager(
        ClientInfo("job-1"), service[1], secure_conn=False, controller=Recorder(), wait=lambda seconds: False
    )
    yield found
    found.stop()


def follow(client: DLRecoverManager, service: Server, *signals: Any) -> list[tuple[Any, ...]]:
    """What the controller was asked, signal by signal, up to the end of the job."""
    client._wait = client._stopped.wait
    for signal in (*signals, pb.ProcessManageSignal(signalType="killMaster", jobId="job-1")):
        service.signals.put(signal)
    thread = threading.Thread(target=client.start_subscribe, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    controller = client.controller
    assert isinstance(controller, Recorder)
    return controller.done


def signal(*actions: str, job: str = "job-1", kind: str = "stopTrain", **fields: Any) -> Any:
    faults = [pb.FaultRank(rankId="9", faultType="1")]
    return pb.ProcessManageSignal(
        uuid="u", jobId=job, signalType=kind, actions=list(actions), faultRanks=faults, **fields
    )


def test_signals_become_calls_of_the_controller(client: DLRecoverManager, service: tuple[Server, str]) -> None:
    done = follow(
        client, service[0],
        signal("stop_train"),
        signal("pause_train", timeout=900),
        signal("pause_train"),
        signal("on_global_rank", "fault_nodes_exit", kind="globalFault", timeout=33),
        signal("change_strategy", kind="changeStrategy", changeStrategy="recover", extraParams="recover-in-place"),
        signal("save_and_exit", kind="saveAndExit"),
        signal("hot switch", kind="hot-switch"),
        signal("new pod running", kind="hot-switch"),
        signal("stop_train", "stop_train", timeout=900),
    )  # fmt: skip
    assert done == [
        ("stop_train", {9: 1}, "stop", None),
        ("stop_train", {9: 1}, "pause", 900),
        ("stop_train", {9: 1}, "pause", 600),
        ("on_global_rank", {9: 1}, 33),
        ("change_strategy", "recover", "recover-in-place"),
        ("dump",),
        ("prepare_action", "hot switch", {9: 1}),
        ("stop_train", {9: 1}, "stop", None),
        ("destroy",),
    ]
    assert [name for name, _ in service[0].heard[:2]] == ["Init", "Register"]
    assert service[0].heard[0][1].role == "master agent"


def test_signals_for_others_and_without_actions_do_nothing(
    client: DLRecoverManager, service: tuple[Server, str]
) -> None:
    done = follow(client, service[0], signal("stop_train", job="job-2"), signal(kind="keep-alive"), signal("dance"))
    assert done == [("destroy",)]


def test_init_is_tried_until_it_is_accepted(client: DLRecoverManager, service: tuple[Server, str]) -> None:
    service[0].init = [502, 599, 0]
    assert client.init_clusterd()
    service[0].init = [403]
    assert not client.init_clusterd()


def test_a_refused_report_is_repeated_once_after_registering(
    client: DLRecoverManager, service: tuple[Server, str]
) -> None:
    service[0].refuse = [400]
    assert managers.report_stop_complete(0, "done", {9: 1}) == 0
    assert [name for name, _ in service[0].heard] == ["stop", "Register", "stop"]
    service[0].refuse = [400, 506]
    assert managers.report_recover_strategy({}, ["recover", "dump"]) == 506


def test_reports_carry_what_the_wire_has(client: DLRecoverManager, service: tuple[Server, str]) -> None:
    managers.report_stop_complete(404, "nobody", {10: 1, 9: 0})
    managers.report_recover_strategy({9: 1}, ["retry"])
    managers.report_recover_status(201, "smaller", {8: 1, 24: 1}, "downgrade")
    managers.report_recover_status(0, "fine", {9: 1}, "recover")
    managers.report_process_fault({9: 1}, {9: ["x"]})
    stop, strategy, smaller, fine, fault = (request for _, request in service[0].heard)
    assert (stop.jobId, stop.status.code, stop.status.info) == ("job-1", 404, "nobody")
    assert [(r.rankId, r.faultType) for r in stop.faultRanks] == [("9", "0"), ("10", "1")]
    assert list(strategy.strategies) == ["retry"]
    assert (smaller.strategy, list(smaller.isolateRankIds)) == ("downgrade", ["8", "24"])
    assert (fine.status.code, list(fine.isolateRankIds)) == (0, [])
    assert [r.rankId for r in fault.faultRanks] == ["9"]


def test_without_a_manager_reports_are_unregistered() -> None:
    assert DLRecoverManager._only is None
    assert managers.report_process_fault({1: 1}) == 400


def test_reports_reach_the_service_that_the_environment_names(
    service: tuple[Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINDX_TASK_ID", "job-1")
    monkeypatch.setenv("MINDX_SERVER_IP", service[1])
    try:
        assert managers.report_process_fault({1: 1}) == 0
        assert [(name, request.jobId) for name, request in service[0].heard] == [("fault", "job-1")]
    finally:
        assert DLRecoverManager._only is not None
        DLRecoverManager._only.stop()


def test_taskd_connects_without_tls_and_the_elastic_agent_with_it(tmp_path: Path) -> None:
    info = pb.ClientInfo(jobId="job-1", role="master agent")
    found = DLRecoverManager(info, "127.0.0.1:1")
    assert found.client._credentials is None
    found.stop()
    with pytest.raises(ValueError, match=r"ca\.crt cannot be read"):
        managers.ElasticRecoverManager(info, "127.0.0.1:1", cert_path=str(tmp_path))
    assert DLRecoverManager._only is None
    insecure = managers.ElasticRecoverManager(info, "127.0.0.1:1", False)
    assert managers.DLRecoverManager._only is insecure and insecure.client._credentials is None
    insecure.stop()


def test_scripts_name_their_job_by_the_message_of_the_service() -> None:
    found = DLRecoverManager(pb.ClientInfo(jobId="job-7", role="agent"), "127.0.0.1:1", secure_conn=False)
    try:
        assert found.client.info == ClientInfo("job-7", "agent")
    finally:
        found.stop()
    assert RecoverClient(pb.ClientInfo(jobId="j"), "x").info == ClientInfo("j")
    with pytest.raises(TypeError, match="jobId and role, not dict"):
        RecoverClient({"jobId": "j"}, "x")


def test_a_service_that_is_away_costs_a_code_and_comes_back() -> None:
    found = DLRecoverManager(ClientInfo("j"), "127.0.0.1:1", secure_conn=False, controller=Recorder())
    try:
        assert managers.report_process_fault({1: 1}) == 599
        assert DLRecoverManager(ClientInfo("other"), "x", secure_conn=False) is found
        assert found.client.info.job_id == "j"
    finally:
        found.stop()


def test_a_broken_stream_is_taken_up_again(client: DLRecoverManager, service: tuple[Server, str]) -> None:
    server = service[0]
    server.signals.put(None)  # ends the first stream
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        if seconds >= 1.0 and threading.current_thread().name != "recover-health":
            waits.append(seconds)
            server.signals.put(pb.ProcessManageSignal(signalType="killMaster", jobId="job-1"))
            return False
        return client._stopped.wait(seconds)

    client._wait = wait
    thread = threading.Thread(target=client.start_subscribe, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert (server.streams, waits) == (2, [1.0])


def test_secure_connections_name_a_missing_certificate(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ca\.crt cannot be read"):
        RecoverClient(ClientInfo("j"), "x", secure=True, cert_path=str(tmp_path))


def test_ranks_are_checked() -> None:
    with pytest.raises(TypeError, match="fault_ranks"):
        ranks([1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most"):
        ranks(dict.fromkeys(range(100001), 1))


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({"MINDX_SERVER_IP": "10.0.0.1"}, "10.0.0.1:8899"),
        ({"MINDX_SERVER_IP": "clusterd-grpc-svc.mindx-dl.svc"}, "clusterd-grpc-svc.mindx-dl.svc:8899"),
        ({"MINDX_SERVER_IP": "10.0.0.1:9000"}, "10.0.0.1:9000"),
        ({"MINDX_SERVER_IP": "fd00::1"}, "[fd00::1]:8899"),
        ({"MINDX_SERVER_IP": "10.0.0.1", "LOCAL_PROXY_ENABLE": "on"}, "127.0.0.1:8899"),
    ],
)  # fmt: skip
def test_the_service_is_found_by_environment(environ: dict[str, str], address: str) -> None:
    assert server_address(environ) == address
    with pytest.raises(ValueError, match="MINDX_SERVER_IP"):
        server_address({})


def test_importing_the_elastic_agents_api_patches_a_torch_that_is_there() -> None:
    # torch/distributed/run.py imports it; here torch is a stand-in with an elastic agent
    code = """
import sys, types
names = ["torch", "torch.distributed", "torch.distributed.elastic", "torch.distributed.elastic.agent",
         "torch.distributed.elastic.agent.server", "torch.distributed.elastic.agent.server.api"]
import mindx_elastic.api
assert "torch" not in sys.modules
for name in names:
    sys.modules[name] = types.ModuleType(name)
agent = sys.modules[names[-1]].SimpleElasticAgent = type("SimpleElasticAgent", (), {"_initialize_workers": print})
del sys.modules["mindx_elastic.api"]
import mindx_elastic.api
print(agent._initialize_workers is not print)
"""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'agents/training/packages'}:{ROOT / 'src'}"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_scripts_import_mindx_elastic() -> None:
    code = (
        "import mindx_elastic, mindx_elastic.api; from mindx_elastic.recover_manager import DLRecoverManager,"
        " report_stop_complete; print(mindx_elastic.__version__, report_stop_complete(0, '', {}))"
    )
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'agents/training/packages'}:{ROOT / 'src'}"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["7.3.0", "400"]


def test_the_elastic_agents_documented_names_register_a_job() -> None:
    code = """
from belay.agents.training.clusterd.client import RecoverClient
from mindx_elastic.recover_manager import DLRecoverManager, pb
info = pb.ClientInfo(ip="10.0.0.1", port="2222", taskId="job-7", role="master")
print(info.jobId, info.role, pb.ClientInfo(jobId="job-8").jobId)
class Noted: ip, port, taskId, role = "10.0.0.1", "2222", "job-9", "agent"
print(DLRecoverManager(info, "127.0.0.1:1", secure_conn=False).client.info.job_id)
print(RecoverClient(Noted(), "127.0.0.1:1").info.job_id)
"""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'agents/training/packages'}:{ROOT / 'src'}"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["job-7", "master", "job-8", "job-7", "job-9"]


def test_the_reset_file_decides_who_may_start(tmp_path: Path) -> None:
    file = tmp_path / "reset.json"
    assert resetfile.read(file).may_start([0, 1])
    file.write_text(json.dumps({"RankList": [{"RankId": 9}], "FaultFlushing": False, "RetryTime": 2}))
    found = resetfile.read(file)
    assert (found.may_start([0, 1]), found.may_start([8, 9]), found.retry_time) == (True, False, 2)
    file.write_text(json.dumps({"RankList": [], "FaultFlushing": True, "RestartFaultProcess": True}))
    assert not resetfile.read(file).may_start([0])
    for bad in ("[]", "{", '{"RankList": [{}]}'):
        file.write_text(bad)
        with pytest.raises(ValueError, match=r"reset\.json: not a reset file"):
            resetfile.read(file)


def test_torch_waits_for_the_reset_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Agent:
        def _initialize_workers(self, group: Any) -> str:
            return f"started {[worker.global_rank for worker in group.workers]}"

    parents = ["torch", "distributed", "elastic", "agent", "server", "api"]
    for depth in range(1, len(parents) + 1):
        module = types.ModuleType(".".join(parents[:depth]))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules["torch.distributed.elastic.agent.server.api"].SimpleElasticAgent = Agent  # type: ignore[attr-defined]
    file = tmp_path / "reset.json"
    file.write_text('{"FaultFlushing": true}')
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            file.write_text("{}")

    for _ in range(2):
        torchpatch.patch_torch_methods(file=file, sleep=sleep)
    group = types.SimpleNamespace(workers=[types.SimpleNamespace(global_rank=8)])
    assert Agent()._initialize_workers(group) == "started [8]"
    assert len(slept) == 3
    file.write_text('{"FaultFlushing": true}')
    assert not torchpatch.wait_until_allowed([8], file, 5.0, lambda seconds: None)
