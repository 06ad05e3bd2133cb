"""TaskD's functions as scripts call them: wrong types, missing environment, ports in use, another job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from belay.agents.training.clusterd import constants
from belay.agents.training.clusterd.bridge import Bridge, pause_seconds
from belay.agents.training.clusterd.state import JobSettings, ToController
from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.bus.member import Member
from belay.agents.training.compat.bus.message import Body
from belay.agents.training.compat.bus.position import MANAGER, PROXY, Position
from belay.agents.training.compat.manager import api as manager_api
from belay.agents.training.compat.manager.service import ManagerService, listen_address, loop_seconds, mindio_controller
from belay.agents.training.compat.manager.session import RecoverSession
from belay.agents.training.compat.resetfile import ResetState
from belay.agents.training.compat.taskd import agent_api, bus_proxy, mindspore, proxy_api
from belay.agents.training.compat.taskd.processes import ProcessState, ProcessStatus
from tests.training.taskd_world import PACKAGES, ROOT, free_port, until

pytestmark = pytest.mark.real_time

GOOD = {"job_id": "job-1", "node_nums": 2, "proc_per_node": 8}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No log files in the repository, no state of an earlier test."""
    monkeypatch.setenv("TASKD_LOG_PATH", str(tmp_path / "taskd_log"))
    monkeypatch.setattr(manager_api, "_settings", None)
    monkeypatch.setattr(agent_api, "_ready", None)
    monkeypatch.setattr(proxy_api, "_proxy", None)
    for name in (
        "PROCESS_RECOVER",
        "TASKD_PROCESS_ENABLE",
        "RANK",
        "MINDX_TASK_ID",
        "MASTER_ADDR",
        "LOCAL_PROXY_ENABLE",
    ):
        monkeypatch.delenv(name, raising=False)


def test_every_name_of_the_package_can_be_imported() -> None:
    code = """
import taskd, taskd.api as api
from taskd.api.taskd_manager_api import init_taskd_manager, start_taskd_manager
from taskd.api.taskd_agent_api import init_taskd_agent, start_taskd_agent, register_func
from taskd.api.taskd_proxy_api import init_taskd_proxy, destroy_taskd_proxy
from taskd.api.taskd_worker_api import init_taskd_worker, start_taskd_worker, destroy_taskd_worker
from taskd.python.adaptor.pytorch.group_info import dump_group_info
from taskd.python.toolkit.recover_module.recover_manager import (DLRecoverManager, init_grpc_client, init_grpc_process,
    report_stop_complete, report_recover_strategy, report_recover_status, report_process_fault, ClientInfo)
from taskd.python.toolkit.recover_module.pb import recover_pb2, recover_pb2_grpc
assert ClientInfo is recover_pb2.ClientInfo and ClientInfo(jobId="j", role="agent").jobId == "j"
from taskd.python.framework.agent.ms_mgr.msrun_plugin import MSRunPlugin
from taskd.python.framework.common.type import CONFIG_UPSTREAMIP_KEY, LOCAL_HOST
assert (CONFIG_UPSTREAMIP_KEY, LOCAL_HOST) == ("UpstreamAddr", "127.0.0.1")
from taskd.python.utils.log import run_log
import sys
assert not {"torch", "msgspec", "pydantic"} & set(sys.modules), "light"
print(taskd.__version__, len(api.__all__), start_taskd_manager(), start_taskd_agent(), destroy_taskd_proxy())
"""
    environ = {**os.environ, "PYTHONPATH": f"{PACKAGES}:{ROOT / 'src'}", "TASKD_LOG_STDOUT": "False"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["7.3.0", "10", "False", "None", "False"]


@pytest.mark.parametrize(
    "wrong",
    [
        None, [], "job", {}, {**GOOD, "job_id": ""}, {**GOOD, "job_id": None}, {**GOOD, "job_id": 7},
        {**GOOD, "node_nums": 0}, {**GOOD, "node_nums": "x"}, {**GOOD, "node_nums": True}, {**GOOD, "node_nums": 1.0},
        {**GOOD, "proc_per_node": -1}, {**GOOD, "node_nums": 5000, "proc_per_node": 64},
    ],
)  # fmt: skip
def test_a_manager_without_a_usable_job_is_refused(wrong: Any) -> None:
    assert manager_api.init_taskd_manager(wrong) is False
    assert manager_api.start_taskd_manager() is False


def test_the_managers_config_is_completed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCESS_RECOVER", "on")
    config = {**GOOD, "node_nums": "2"}
    assert manager_api.init_taskd_manager(config)
    assert (config["fault_recover"], config["taskd_enable"]) == ("on", "on")
    assert manager_api._settings == JobSettings("job-1", 2, 8, recovery=True)
    assert manager_api.init_taskd_manager({**GOOD, "job_id": "another"})
    assert manager_api._settings.job == "job-1"
    monkeypatch.setenv("TASKD_PROCESS_ENABLE", "off")
    off = dict(GOOD)
    assert manager_api.init_taskd_manager(off) and "taskd_enable" not in off


def test_a_manager_whose_port_is_taken_names_the_port_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Member(Position(MANAGER, "0"), listen="127.0.0.1:0")
    other.start()
    try:
        monkeypatch.setenv("POD_IP", "127.0.0.1")
        monkeypatch.setenv("TASKD_MANAGER_PORT", str(other.port))
        assert manager_api.init_taskd_manager(dict(GOOD))
        assert manager_api.start_taskd_manager() is False
    finally:
        other.close()


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({}, "127.0.0.1:9601"), ({"POD_IP": "10.0.0.7"}, "10.0.0.7:9601"), ({"POD_IP": "fd00::7"}, "[fd00::7]:9601"),
        ({"POD_IP": "10.0.0.7", "LOCAL_PROXY_ENABLE": "on"}, "127.0.0.1:9601"),
        ({"TASKD_MANAGER_PORT": "1234"}, "127.0.0.1:1234"), ({"TASKD_MANAGER_PORT": "port"}, "127.0.0.1:9601"),
    ],
)  # fmt: skip
def test_the_manager_listens_at_the_address_of_its_pod(environ: dict[str, str], address: str) -> None:
    assert listen_address(environ) == address


def test_times_come_from_their_variables_within_their_ranges() -> None:
    assert [loop_seconds({"TASKD_PROCESS_INTERVAL": text}) for text in ("500", "99", "1001", "x", "")] == [0.5] + [
        0.1
    ] * 4
    assert pause_seconds(900, {}) == 900
    assert pause_seconds(0, {}) == 600
    assert [pause_seconds(0, {"HCCL_CONNECT_TIMEOUT": text}) for text in ("1000", "9999", "x")] == [2500, 7200, 600]


@pytest.mark.parametrize(
    ("environ", "missing"), [({}, "WORLD_SIZE"), ({"WORLD_SIZE": "4"}, "POD_IP and TTP_PORT"),
                             ({"WORLD_SIZE": "4", "POD_IP": "10.0.0.1", "TTP_PORT": "x"}, "POD_IP and TTP_PORT")],
)  # fmt: skip
def test_a_controller_without_its_variables_names_them(environ: dict[str, str], missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        mindio_controller({}, environ)


class Clumsy:
    """A controller that raises in one action and remembers the others."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def stop_train(self, faults: Any, kind: str, timeout: Any) -> int:
        raise RuntimeError("boom")

    def on_global_rank(self, faults: Any, timeout: Any) -> int:
        self.done.append(("global", faults, timeout))
        return 1

    def dump(self) -> int:
        self.done.append("dump")
        return 0

    def destroy(self) -> int:
        self.done.append("destroy")
        return 0


def test_a_controller_that_fails_costs_its_action_only() -> None:
    clumsy, waits = Clumsy(), []
    bridge = Bridge(lambda: clumsy, wait=waits.append)  # type: ignore[arg-type,return-value]
    bridge.put(ToController(("stop_train", "on_global_rank", "new pod running", "unheard of")))
    bridge.put(ToController((constants.RESTART_CONTROLLER,)))
    bridge.put(ToController((constants.SAVE_ACTION,), faults={2: 1}))
    bridge.start()
    bridge.stop()
    assert clumsy.done == [("global", {}, None), "destroy", "dump", "destroy"]
    assert waits == [1.0]


def test_without_a_controller_actions_are_ignored() -> None:
    def make() -> Any:
        raise ImportError("mindio_ttp is not installed")

    bridge = Bridge(make)
    bridge.put(ToController(("stop_train",)))
    bridge.start()
    bridge.stop()
    assert bridge.ready.is_set()


# agent and proxy


@pytest.mark.parametrize(
    ("config", "cls"),
    [
        ("x", None), ({"Framework": "PyTorch"}, None), ({"Framework": "TensorFlow"}, object()), ({}, None),
        ({}, object()),
        ({"Framework": "MindSpore", "ServerRank": "-1"}, None), ({"Framework": "MindSpore", "ServerRank": 0.5}, None),
        ({"Framework": "MindSpore", "UpstreamAddr": "localhost"}, None),
        ({"Framework": "MindSpore", "UpstreamPort": "0"}, None),
    ],
)  # fmt: skip
def test_an_agent_with_a_wrong_config_is_refused(config: Any, cls: Any) -> None:
    assert agent_api.init_taskd_agent(config, cls) is False
    assert agent_api.register_func("MONITOR", print) is False
    assert agent_api.start_taskd_agent() is None


def test_an_agent_is_accepted_with_its_functions() -> None:
    assert agent_api.init_taskd_agent({"Framework": "MindSpore", "UpstreamAddr": "::1", "ServerRank": "3"})
    assert agent_api.register_func("MONITOR", print)


def test_an_agent_of_mindspore_starts_the_proxy_of_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setenv("MS_SCHED_HOST", "10.0.0.7")
    monkeypatch.setattr(agent_api, "init_taskd_proxy", asked.append)
    monkeypatch.setattr(agent_api.BusAgent, "run", lambda self: self.close() or "done")
    assert agent_api.init_taskd_agent({"Framework": "MindSpore", "ServerRank": "3"})
    for name in ("KILL_WORKER", "START_ALL_WORKER", "START_WORKER_LIST", "MONITOR"):
        assert agent_api.register_func(name, print)
    assert agent_api.start_taskd_agent() == "done"
    assert asked == [{"UpstreamAddr": "10.0.0.7", "ServerRank": "3"}]


@pytest.mark.parametrize(
    "config",
    [None, [], {"ListenPort": 9602}, {"ListenPort": "x"}, {"UpstreamPort": "70000"}, {"ServerRank": "one"}],
)
def test_a_proxy_with_a_wrong_config_is_refused(config: Any) -> None:
    assert proxy_api.init_taskd_proxy(config) is False
    assert proxy_api.destroy_taskd_proxy() is False


def test_a_local_proxy_passes_on_to_this_host_whatever_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(proxy_api, "_proxy", None)
    monkeypatch.setattr(bus_proxy, "start", lambda *where: asked.append(where))
    for local in ("off", "on"):
        monkeypatch.setenv("LOCAL_PROXY_ENABLE", local)
        assert proxy_api.init_taskd_proxy({"UpstreamAddr": "10.0.0.9", "ServerRank": "2"})
        assert proxy_api.destroy_taskd_proxy()
    assert [upstream for _, upstream, _, _ in asked] == ["10.0.0.9:9601", "127.0.0.1:9601"]


def test_a_proxy_of_the_same_job_and_pod_is_shared_and_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    port = str(free_port())
    monkeypatch.setenv("MINDX_TASK_ID", "job-1")
    first = bus_proxy.start(f"127.0.0.1:{port}", "127.0.0.1:1", "0", "job-1")
    assert first is not None
    try:
        assert bus_proxy.start(f"127.0.0.1:{port}", "127.0.0.1:1", "0", "job-1") is None
        assert proxy_api.init_taskd_proxy({"ListenPort": port}) is True
        assert proxy_api.destroy_taskd_proxy() is True
        with pytest.raises(OSError, match="Proxy0 of the bus listens there"):
            bus_proxy.start(f"127.0.0.1:{port}", "127.0.0.1:1", "1", "job-1")
        with pytest.raises(OSError, match="another program listens there"):
            bus_proxy.start(f"127.0.0.1:{port}", "127.0.0.1:1", "0", "job-2")
        monkeypatch.setenv("MINDX_TASK_ID", "job-2")
        assert proxy_api.init_taskd_proxy({"ListenPort": port}) is False
    finally:
        first.close()


# MindSpore


class MsRun:
    """msrun with processes that sleep."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.killed: list[list[int]] = []

    def start_all(self) -> None:
        self.start_list(list(range(self.count)))

    def start_list(self, locals_: list[int]) -> None:
        for local in locals_:
            self.processes[local] = subprocess.Popen(["sleep", "600"], start_new_session=True)

    def kill(self, pids: list[int]) -> None:
        self.killed.append(pids)
        for process in self.processes.values():
            if pids == [-1] or process.pid in pids:
                process.kill()
                process.wait()

    def monitor(self, _: list[int]) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for local in range(self.count):
            process = self.processes.get(local)
            pid, status = (None, 200) if process is None else (process.pid, process.poll())
            found[local] = {"pid": pid, "status": status, "global_rank": local + 4}
        return found

    def functions(self) -> dict[str, Any]:
        return {
            "KILL_WORKER": self.kill, "START_ALL_WORKER": self.start_all, "START_WORKER_LIST": self.start_list,
            "MONITOR": self.monitor,
        }  # fmt: skip


def test_msruns_processes_are_restarted_alone_by_the_manager(tmp_path: Path) -> None:
    msrun = MsRun(2)
    manager = Member(Position(MANAGER, "0"), listen="127.0.0.1:0")
    manager.start()
    proxy = Member(Position(PROXY, "2"), listen="127.0.0.1:0", upstream=f"127.0.0.1:{manager.port}")
    proxy.start()
    heard: list[tuple[Any, str]] = []

    def listen() -> None:
        while (found := manager.receive(60.0)) is not None:
            if found.body.kind == codes.STATUS:
                heard.append((found.body.code, found.body.message))

    threading.Thread(target=listen, daemon=True).start()
    left: list[int] = []

    def run() -> None:
        from belay.agents.training.compat.taskd.bus_agent import BusAgent

        try:
            BusAgent(2, f"127.0.0.1:{proxy.port}", mindspore.MindSporeProcesses(msrun.functions())).run()
        except SystemExit as end:
            left.append(int(end.code or 0))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    agent = Position("Agent", "2")
    until(lambda: heard, "the agent asks to start")
    assert heard[0] == (201, "32767")
    assert manager.send(agent, Body(codes.ACTION, 210, "5"), sync=True) == 0
    until(lambda: len(msrun.processes) == 2, "both run")
    first = msrun.processes[1]
    first.kill()

    def reports() -> list[list[int]]:
        """Sets of failed ranks; the agent asks to start (201) until it is answered, perhaps more than once."""
        return [json.loads(message)["fault_ranks"] for code, message in heard if code == 202]

    until(reports, "the death is reported")
    assert reports() == [[5]]
    survivor = msrun.processes[0]
    assert manager.send(agent, Body(codes.ACTION, 209, '["5"]'), sync=True) == 0
    until(lambda: msrun.processes[1] is not first and msrun.processes[1].poll() is None, "rank 5 runs again")
    assert msrun.processes[0] is survivor and survivor.poll() is None
    assert msrun.killed == [[first.pid]]
    for odd in (Body(codes.ACTION, 209, "[0]"), Body(codes.ACTION, 209, "x"), Body("DANCE", 999)):
        assert manager.send(agent, odd, sync=True) == 0
    assert manager.send(agent, Body(codes.ACTION, 203), sync=True) == 0
    thread.join(60)
    assert left == [1]
    assert all(process.poll() is not None for process in msrun.processes.values())
    until(lambda: reports()[-1] == [], "the last report")
    proxy.close()
    manager.close()


def test_processes_of_msrun_that_have_not_started_are_not_failed() -> None:
    msrun = MsRun(2)
    processes = mindspore.MindSporeProcesses(msrun.functions())
    try:
        msrun.start_list([1])
        assert processes.monitor().state is ProcessState.HEALTHY
        assert processes.ranks() == (4, 5)
        processes.stop([4])
        assert msrun.killed == [], "rank 4 has no process"
        processes.stop([5])
        assert msrun.killed == [[msrun.processes[1].pid]]
        assert processes.monitor().failed == {5}
        processes.finish(processes.monitor())
        assert msrun.killed[1:] == [[-1]]
    finally:
        msrun.kill([-1])
        for descriptor in processes.descriptors():
            os.close(descriptor)


class Pod:
    """Processes 4 and 5 of a pod, and a reset file, that change as the seconds pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **seconds: Any) -> None:
        self.now, self.story = 0, {int(at[1:]): change for at, change in seconds.items()}
        self.file, self.failed, self.done, self.state = ResetState(), frozenset[int](), [], ProcessState.HEALTHY
        self.plugin = mindspore.MSRunPlugin()
        monkeypatch.setattr(mindspore.resetfile, "read", lambda: self.file)

    def sleep(self, seconds: float) -> None:
        self.now += 1
        assert self.now < 1000, self.done
        for name, value in self.story.get(self.now, {}).items():
            setattr(self, name, value)

    def follow(self) -> tuple[int, list[Any]]:
        """The second in which the plugin ended, and what it did."""
        try:
            self.plugin.follow_reset_file(self, self.sleep)  # type: ignore[arg-type]
        except SystemExit as end:
            self.done.append(("exit", end.code))
        return self.now, self.done

    def ranks(self) -> tuple[int, ...]:
        return 4, 5

    def start(self, restarts: int) -> None:
        self.done.append("start")

    def stop(self, ranks: Any = None, *, grace: float = 0.0) -> None:
        self.done.append(("stop", grace))

    def restart(self, ranks: list[int]) -> None:
        self.done.append(("restart", ranks))
        self.failed = frozenset()

    def monitor(self) -> ProcessStatus:
        return ProcessStatus(ProcessState.FAILED if self.failed else self.state, self.failed)

    def finish(self, status: ProcessStatus) -> None:
        self.done.append("finish")


def test_without_a_manager_the_reset_file_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    named = ResetState(ranks=frozenset({5}), restart_process=True)
    over, dead = {"file": ResetState()}, {"failed": frozenset({5})}
    last = {"state": ProcessState.SUCCEEDED}
    monkeypatch.delenv("ENABLE_RESTART_FAULT_PROCESS", raising=False)
    waits = Pod(monkeypatch, _3=over, _5={"file": ResetState(retry_time=1)}, _9=last)
    waits.file = ResetState(flushing=True)
    assert waits.follow() == (9, ["start", ("stop", 0.0), "start", "finish"])
    assert Pod(monkeypatch, _2=dead).follow() == (2, ["start", ("stop", 0.0), ("exit", 1)])
    monkeypatch.setenv("ENABLE_RESTART_FAULT_PROCESS", "on")
    monkeypatch.setenv("MS_NODE_RANK", "2")
    alone = Pod(monkeypatch, _2=dead, _9={"file": named}, _14=over, _20=last)
    assert alone.follow() == (20, ["start", ("restart", [5]), "finish"]), "it waited to be named"
    assert Pod(monkeypatch, _2=dead).follow() == (122, ["start", ("stop", 0.0), ("exit", 1)]), "it was never named"
    monkeypatch.setenv("MS_NODE_RANK", "0")
    assert Pod(monkeypatch, _2=dead).follow()[0] == 2, "the pod of rank 0 restarts as a whole"
    gone = Pod(monkeypatch, _2={"file": ResetState(ranks=frozenset({4}))})
    assert gone.follow() == (2, ["start", ("stop", 0.0), ("exit", 1)])
    grace = Pod(monkeypatch, _2={"file": ResetState(graceful_exit=True)})
    assert grace.follow() == (2, ["start", ("stop", 600.0), ("exit", 1)])


def test_the_plugin_of_msrun_has_the_members_that_subclasses_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MS_LOCAL_WORKER", "2")
    monkeypatch.setenv("MS_NODE_RANK", "2")
    plugin, started = mindspore.MSRunPlugin(), []
    plugin.monitor_interval = 0.01
    plugin.reset_cm_path = str(tmp_path / "reset.json")
    plugin.restart_type_path = str(tmp_path / "restartType")
    plugin.rank_version_path = str(tmp_path / "version")

    def reset(**body: Any) -> None:
        (tmp_path / "reset.json").write_text(json.dumps(body))

    def named(status: str, *ranks: int, **more: Any) -> None:
        reset(RankList=[{"RankId": rank, "Status": status} for rank in ranks], **more)

    plugin.register_callbacks("START_ALL_WORKER", lambda: started.append("all"))
    plugin.register_callbacks("START_WORKER_LIST", started.append)
    # no file, and ranks of other pods, do not matter
    assert plugin.wait_to_start() and plugin.node_global_rank_ids == [4, 5]
    named("fault", 1)
    plugin.start_mindspore_workers()
    plugin.start_mindspore_worker_list([5])
    assert started == ["all", [1]]
    named("fault", 5)
    assert not plugin.wait_to_start()
    reset(FaultFlushing=True)
    assert not plugin.wait_to_start()

    found = {0: {"pid": 70, "status": None, "global_rank": 4}, 1: {"pid": 71, "status": 9, "global_rank": 5}}
    plugin.update_rank_status(found)
    assert (plugin.rank_status, plugin.rank_pids, plugin.all_rank_succeed) == ("UNHEALTHY", [70, 71], False)
    assert plugin.get_fault_pid_list_by_local_ranks([5, 9]) == [71]
    plugin.update_rank_status({local: {**one, "status": 0} for local, one in found.items()})
    assert (plugin.rank_status, plugin.all_rank_succeed) == ("HEALTHY", True)

    named("fault", 5, 8, RetryTime=1, RestartFaultProcess=True)
    assert tuple(plugin.get_fault_status()) == ([5], True, False, True, True)
    plugin.update_pre_fault_infos()
    assert not plugin.get_fault_status().is_retried and not plugin.all_fault_has_recovered()
    named("recovered", 5, 8, RetryTime=1)
    assert plugin.wait_to_start() and plugin.get_fault_status().is_unrecovered
    # pods were moved: the rank table that they share must be a new one
    (tmp_path / "restartType").write_text("podReschedule\n")
    (tmp_path / "version").write_text("x")
    plugin.update_reset_info()
    assert plugin.read_rank_table_version() == -1 and not plugin.all_fault_has_recovered()
    (tmp_path / "version").write_text("3\n")
    assert plugin.all_fault_has_recovered() and plugin.rank_table_version == 3
    monkeypatch.delenv("MS_LOCAL_WORKER")
    with pytest.raises(ValueError, match="MS_LOCAL_WORKER"):
        plugin.start_mindspore_worker_list([5])


def test_missing_callbacks_of_msrun_are_named() -> None:
    plugin = mindspore.MSRunPlugin()
    plugin.register_callbacks("MONITOR", print)
    with pytest.raises(ValueError, match="KILL_WORKER, START_ALL_WORKER, START_WORKER_LIST"):
        plugin.start()


def test_reports_to_a_missing_service_return_599() -> None:
    heard: list[Any] = []
    conversation = RecoverSession("job-1", f"127.0.0.1:{free_port()}", lambda *found: heard.append(found))
    conversation._stopped.set()
    assert conversation.callbacks()["report_fault_ranks"]({1: 1}) == 599
    assert heard == []


def test_a_manager_without_clusterd_still_starts_agents(tmp_path: Path) -> None:
    service = ManagerService(
        JobSettings("job-1", 1, 1),
        listen="127.0.0.1:0",
        controller=False,
        environ={},
        reset_file=tmp_path / "reset.json",
    )
    service.start()
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    proxy = Member(Position(PROXY, "0"), listen="127.0.0.1:0", upstream=f"127.0.0.1:{service.member.port}")
    proxy.start()
    agent = Member(Position("Agent", "0"), upstream=f"127.0.0.1:{proxy.port}")
    agent.start()
    assert agent.wait_joined(60.0)
    assert agent.send(Position(MANAGER, "0"), Body(codes.STATUS, 201, "7"), sync=True) == 0
    found = agent.receive(60.0)
    assert found is not None and (found.body.code, found.body.message) == (210, "7")
    until(lambda: service.core.state.retry_time is not None, "the manager has looked for the file")
    (tmp_path / "reset.json").write_text('{"RetryTime": 1}')
    found = agent.receive(60.0)
    assert found is not None and (found.body.code, found.body.message) == (208, "6")
    for member in (agent, proxy):
        member.close()
    service.stop()
    thread.join(60)
    assert not thread.is_alive()
