"""A job as MindCluster's images run it: manager.py, torchrun with the patch line, a script; and a scripted ClusterD."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from belay.engine.wire.clusterd import profiling_pb2_grpc, recover_pb2_grpc
from belay.engine.wire.clusterd import recover_pb2 as pb
from tests.needs import lacking
from tests.ports import free_port

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ROOT / "agents/training/packages"
PATIENCE = 150.0
JOB = "job-1"

MANAGER = """
import os
from taskd.api.taskd_manager_api import init_taskd_manager, start_taskd_manager
config = {"job_id": os.environ["MINDX_TASK_ID"], "node_nums": NODES, "proc_per_node": PROCS}
assert init_taskd_manager(config), "init"
assert start_taskd_manager(), "start"
"""

CONTROLLER = """
import json, os, threading
FILE, CALLS = os.environ["FAKE_CONTROLLER"], {}
def note(name, *arguments):
    with open(FILE, "a") as stream:
        stream.write(json.dumps([name, *arguments]) + "\\n")
    return 0
def later(name, *arguments):
    threading.Timer(0.01, CALLS[name], arguments).start()
def tft_register_mindx_callback(action, func): CALLS[action] = func
def tft_init_controller(*arguments): return note("init", *arguments)
def tft_start_controller(*arguments): return note("start", *arguments)
def tft_destroy_controller(): return note("destroy")
def tft_query_high_availability_switch(): return True
def tft_notify_controller_dump(): return note("dump")
def tft_notify_controller_stop_train(faults, kind, timeout=0):
    later("report_stop_complete", 0, "stopped", faults)
    return note(kind, faults, timeout)
def tft_notify_controller_on_global_rank(faults, time=1):
    later("report_strategies", faults, ["exit", "recover"])
    return note("global", faults, time)
def tft_notify_controller_prepare_action(action, faults): return note(action, faults)
def tft_notify_controller_change_strategy(strategy, params=""):
    later("report_result", 0, "done", {}, strategy)
    return note("change", strategy, params)
"""

TRAIN = """
import json, os, sys, time
from pathlib import Path
from taskd.api.taskd_worker_api import init_taskd_worker, start_taskd_worker
rank = int(os.environ["RANK"])
names = ("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GROUP_RANK TORCHELASTIC_RESTART_COUNT"
         " RESTART_FAULT_PROCESS_TYPE TORCHELASTIC_USE_AGENT_STORE").split()
with open(f"{os.environ['STORY']}/rank-{rank}", "a") as stream:
    found = {name: os.environ.get(name) for name in names}
    stream.write(json.dumps({"pid": os.getpid(), "ppid": os.getppid(), "at": time.time(), **found}) + "\\n")
assert init_taskd_worker(rank, 5000, "pt") and start_taskd_worker()
end = Path(os.environ["STORY"], "end")
while not end.exists():
    time.sleep(0.02)
"""


def until(condition: Callable[[], Any], what: str | Callable[[], str], seconds: float = PATIENCE) -> Any:
    last = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < last, f"never: {what if isinstance(what, str) else what()}"
        time.sleep(0.01)
    return found


class ClusterD(recover_pb2_grpc.RecoverServicer):
    """Says what recovery in place says, step by step, and remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.roles: list[str] = []
        self.signals: queue.Queue[Any] = queue.Queue()
        self.faults: list[Any] = []
        self.streams = 0

    def names(self) -> list[str]:
        return [name for name, _ in self.heard]

    def say(self, kind: str, *actions: str, **fields: Any) -> None:
        self.signals.put(pb.ProcessManageSignal(uuid="u1", jobId=JOB, signalType=kind, actions=actions, **fields))

    def Init(self, request: Any, context: Any) -> Any:
        self.roles.append(request.role)
        return pb.Status(code=0)

    def Register(self, request: Any, context: Any) -> Any:
        return pb.Status(code=0)

    def SubscribeProcessManageSignal(self, request: Any, context: Any) -> Iterator[Any]:
        self.streams += 1
        own = self.streams
        while context.is_active() and own == self.streams:
            with contextlib.suppress(queue.Empty):
                if (found := self.signals.get(timeout=0.1)) is None:
                    return
                yield found

    def _quiet(self, context: Any) -> Iterator[Any]:
        while context.is_active():
            time.sleep(0.1)
        yield from ()

    def SubscribeNotifySwitch(self, request: Any, context: Any) -> Iterator[Any]:
        return self._quiet(context)

    def SubscribeNotifyExecStressTest(self, request: Any, context: Any) -> Iterator[Any]:
        return self._quiet(context)

    def ReportProcessFault(self, request: Any, context: Any) -> Any:
        self.heard.append(("fault", request))
        self.faults = list(request.faultRanks)
        self.say("stopTrain", "stop_train")
        return pb.Status(code=0)

    def ReportStopComplete(self, request: Any, context: Any) -> Any:
        self.heard.append(("stopped", request))
        self.say("globalFault", "on_global_rank", faultRanks=self.faults)
        return pb.Status(code=0)

    def ReportRecoverStrategy(self, request: Any, context: Any) -> Any:
        self.heard.append(("offers", request))
        self.say(
            "changeStrategy", "change_strategy", "fault_nodes_restart", faultRanks=self.faults,
            changeStrategy="recover", extraParams="recover-in-place", nodeRankIds=["0"],
        )  # fmt: skip
        return pb.Status(code=0)

    def ReportRecoverStatus(self, request: Any, context: Any) -> Any:
        self.heard.append(("result", request))
        return pb.Status(code=0)


@contextlib.contextmanager
def clusterd(servicer: ClusterD | None = None, port: int = 0) -> Iterator[tuple[ClusterD, int]]:
    found = servicer or ClusterD()
    server = grpc.server(futures.ThreadPoolExecutor(16))
    recover_pb2_grpc.add_RecoverServicer_to_server(found, server)  # type: ignore[no-untyped-call]
    if isinstance(found, profiling_pb2_grpc.TrainingDataTraceServicer):
        profiling_pb2_grpc.add_TrainingDataTraceServicer_to_server(found, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield found, port
    finally:
        found.streams += 1
        server.stop(0.1).wait()


class Job:
    """One pod's processes and their files."""

    def __init__(
        self,
        folder: Path,
        server_port: int,
        *,
        nproc: int = 4,
        nnodes: int = 1,
        controller: bool = True,
        **environ: str,
    ) -> None:
        self.folder, self.nproc, self.nnodes = folder, nproc, nnodes
        self.master = str(free_port())
        self.story = folder / "story"
        self.story.mkdir()
        self.ports = {"TASKD_MANAGER_PORT": str(free_port()), "TASKD_PROXY_PORT": str(free_port())}
        path = [str(PACKAGES), str(ROOT / "src")]
        if controller:
            fake = folder / "fake/mindio_ttp"
            fake.mkdir(parents=True)
            (fake / "__init__.py").write_text("")
            (fake / "controller_ttp.py").write_text(CONTROLLER)
            path.insert(0, str(fake.parent))
        self.environ = {
            **os.environ, **self.ports, "PYTHONPATH": ":".join(path), "MINDX_TASK_ID": JOB, "PROCESS_RECOVER": "on",
            "MINDX_SERVER_IP": f"127.0.0.1:{server_port}", "POD_IP": "127.0.0.1", "TTP_PORT": str(free_port()),
            "WORLD_SIZE": str(nproc * nnodes), "TASKD_PROCESS_ENABLE": "on",
            "TASKD_LOG_PATH": str(folder / "taskd_log"), "STORY": str(self.story),
            "FAKE_CONTROLLER": str(folder / "controller"), "OMP_NUM_THREADS": "1", **environ,
        }  # fmt: skip
        self.processes: list[subprocess.Popen[bytes]] = []
        self.proxy_ports: dict[int, str] = {}

    def spawn(self, name: str, *command: str, **environ: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.out", "ab") as out:
            process = subprocess.Popen(
                [sys.executable, *command], env={**self.environ, **environ}, stdout=out, stderr=out, cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def manager(self) -> subprocess.Popen[bytes]:
        file = self.folder / "manager.py"
        file.write_text(MANAGER.replace("NODES", str(self.nnodes)).replace("PROCS", str(self.nproc)))
        return self.spawn("manager", str(file))

    def torchrun(self, script: str = TRAIN, node: int = 0, restarts: str = "32767") -> subprocess.Popen[bytes]:
        """torch/distributed/run.py with the line of MindCluster's image build; each node has a proxy of its own."""
        file = self.folder / "train.py"
        file.write_text(textwrap.dedent(script))
        run = self.folder / "run.py"
        run.write_text(patched_run())
        own = {} if node == 0 else {"TASKD_PROXY_PORT": self.proxy_ports.setdefault(node, str(free_port()))}
        return self.spawn(
            f"torchrun-{node}", str(run), "--nproc_per_node", str(self.nproc), "--nnodes", str(self.nnodes),
            "--node_rank", str(node), "--master_addr", "127.0.0.1", "--master_port", self.master,
            "--max_restarts", restarts, "--monitor_interval", "1", "--log_dir", str(self.folder / f"logs-{node}"),
            "-r", "3", str(file), MASTER_ADDR="127.0.0.1", RANK=str(node), **own,
        )  # fmt: skip

    def lives(self, rank: int) -> list[dict[str, Any]]:
        """Every start of a rank."""
        file = self.story / f"rank-{rank}"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def started(self) -> dict[int, int]:
        """Wait until every rank runs; their pids."""

        def ready() -> bool:
            assert all(one.poll() is None for one in self.processes), f"a process ended\n{self.output()}"
            return all(self.lives(rank) for rank in range(self.world))

        until(ready, lambda: f"all ranks run\n{self.output()}")
        return {rank: self.lives(rank)[-1]["pid"] for rank in range(self.world)}

    @property
    def world(self) -> int:
        return self.nproc * self.nnodes

    def calls(self) -> list[list[Any]]:
        """What the controller was asked."""
        file = self.folder / "controller"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def finish(self) -> None:
        (self.story / "end").touch()

    def output(self) -> str:
        return "\n".join(
            f"--- {file.name}\n{file.read_text(errors='replace')[-4000:]}"
            for file in (*self.folder.glob("*.out"), *self.folder.glob("taskd_log/*"))
        )

    def close(self) -> None:
        self.finish()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
        for rank in range(self.world):
            for life in self.lives(rank):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(life["pid"], signal.SIGKILL)


def patched_run() -> str:
    """The source of torchrun with the inserted line."""
    torch = pytest.importorskip("torch") if torch_installed() else lacking("torch is not installed: make venv-training")
    source = (Path(torch.__file__).parent / "distributed/run.py").read_text()
    lines = source.splitlines()
    place = next(index for index, line in enumerate(lines) if line == "import os")
    return "\n".join([*lines[:place], "import taskd.python.adaptor.patch", *lines[place:]])


def torch_installed() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is not None


__all__ = ["JOB", "PATIENCE", "ROOT", "ClusterD", "Job", "clusterd", "free_port", "torch_installed", "until"]
