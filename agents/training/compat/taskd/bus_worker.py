"""A training process on the bus: profiling switches, link switch, stress test. The training thread never blocks.

Calls and messages: docs 06_api/07_taskd and component/taskd/taskd/go/framework_backend/worker of MindCluster.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from belay.agents.training.clusterd import constants
from belay.agents.training.compat import logs
from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.bus.member import Member
from belay.agents.training.compat.bus.message import Body, Received
from belay.agents.training.compat.bus.position import WORKER, Position
from belay.agents.training.compat.manager.operations import profiling_command
from belay.agents.training.compat.taskd import bus_proxy
from belay.agents.training.compat.taskd.bus_agent import MGR
from belay.agents.training.compat.taskd.device_functions import MINDSPORE, PYTORCH, TESTS, stress, switch_links
from belay.agents.training.compat.taskd.profiling import Profiler
from belay.agents.training.compat.taskd.profiling_files import Records, folder

log = logging.getLogger(__name__)

SWITCH_FILE: Final = Path("/user/cluster-info/datatrace-config/profilingSwitch")
MAX_SWITCH_BYTES: Final = 1 << 16
MAX_DISK_MB: Final = 1 << 30
POLL_SECONDS: Final = 1.0
TEST_SECONDS: Final = {0: 300.0, 1: 600.0}

SwitchFunction = Callable[[list[int], list[bool]], bool]
TestFunction = Callable[[int], str]


class BusWorker:
    """The thread of one training process on the bus."""

    def __init__(
        self,
        rank: int,
        node: int,
        profiler: Profiler,
        *,
        upstream: str,
        job: str = "",
        framework: str = PYTORCH,
        switch: SwitchFunction | None = None,
        test: TestFunction | None = None,
        switch_file: Path = SWITCH_FILE,
    ) -> None:
        self._profiler = profiler
        self._switch = switch or functools.partial(switch_links, framework)
        self._test = test or functools.partial(stress, framework)
        self._file, self._file_seen = switch_file, (0, 0)
        self._member = Member(Position(WORKER, str(node), str(rank)), upstream=upstream, job=job, joined=self._joined)
        self._rank = rank
        self._register = threading.Event()
        self._stopped = threading.Event()
        self._tests: queue.Queue[tuple[str, list[int]]] = queue.Queue(4)
        self._threads = [
            threading.Thread(target=self._run, name="taskd-worker", daemon=True),
            threading.Thread(target=self._run_tests, name="taskd-stress", daemon=True),
        ]

    def _joined(self) -> None:
        self._register.set()

    def start(self) -> None:
        """Join in the background; a missing bus does not affect the process."""
        self._member.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Leave and write the remaining records."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._member.close()
            self._profiler.records.stop()

    def _send(self, body: Body) -> None:
        code = self._member.send(MGR, body, sync=True, tries=3)
        if code != codes.OK:
            log.warning("%s %s is not delivered: %s", body.kind, body.code, codes.explained(code))

    def _run(self) -> None:
        while not self._stopped.is_set():
            if self._register.is_set():
                self._register.clear()
                self._send(Body(codes.REGISTER, codes.WORKER_REGISTERED))
            received = self._member.receive(POLL_SECONDS)
            try:
                if received is not None:
                    self._handle(received)
                else:
                    self._read_switch_file()
            except ValueError as error:
                log.warning("ignored: %s", str(error)[:300])

    def _handle(self, received: Received) -> None:
        body = received.body
        if body.kind != codes.ACTION:
            return
        if body.code in codes.PROFILING_COMMANDS and isinstance(body.code, int):
            self._send(Body(codes.STATUS, self._profiler.command(body.code)))
        elif body.code == codes.SWITCH_NIC:
            uuid, ranks, ops = switch_request(body.extension)
            result = constants.SWITCH_OK if self._safe_switch(ranks, ops) else constants.SWITCH_FAIL
            self._send(Body(codes.ACTION, codes.SWITCH_NIC, result, {constants.SWITCH_UUID: uuid}))
        elif body.code == codes.STRESS_TEST:
            uuid, ops_here = stress_request(body.extension, self._rank)
            try:
                self._tests.put_nowait((uuid, ops_here))
            except queue.Full:
                raise ValueError("4 stress tests wait already, a new one is refused") from None
        else:
            raise ValueError(f"{received.src} sends {body.kind} {body.code}, which a worker does not know")

    def _safe_switch(self, ranks: list[int], ops: list[bool]) -> bool:
        try:
            return self._switch(ranks, ops)
        except Exception:
            # a user's callback must not end the thread
            log.exception("the link switch failed")
            return False

    def _run_tests(self) -> None:
        while not self._stopped.is_set():
            try:
                uuid, ops = self._tests.get(timeout=1.0)
            except queue.Empty:
                continue
            results = self._tested(ops)
            text = json.dumps({"rankResult": {str(op): {"code": c, "result": r} for op, (c, r) in results.items()}})
            self._send(Body(codes.ACTION, codes.STRESS_TEST, text, {constants.STRESS_UUID: uuid}))

    def _tested(self, ops: list[int]) -> dict[int, tuple[str, str]]:
        """Run the tests one after the other, each within its time, with a keep-alive every second."""
        results: dict[int, tuple[str, str]] = {}
        for op in sorted(ops):
            answer: queue.Queue[str] = queue.Queue(1)
            threading.Thread(target=self._one_test, args=(op, answer), name=f"stress-{op}", daemon=True).start()
            last = time.monotonic() + TEST_SECONDS[op]
            results[op] = (constants.STRESS_TIMEOUT, "exec timeout")
            while time.monotonic() < last and not self._stopped.is_set():
                try:
                    code, _, text = answer.get(timeout=POLL_SECONDS).partition("-")
                    results[op] = (code, text)
                    break
                except queue.Empty:
                    self._member.post(MGR, Body(codes.KEEP_ALIVE))
        return results

    def _one_test(self, op: int, answer: queue.Queue[str]) -> None:
        try:
            answer.put(str(self._test(op)))
        except Exception as error:
            # a user's callback must not end the thread
            answer.put(f"1-{str(error)[:120]}")

    def _read_switch_file(self) -> None:
        """Read the switch file that a job's pods may mount; a change acts like a command."""
        try:
            found = os.stat(self._file)
            seen = (found.st_mtime_ns, found.st_size)
            if seen == self._file_seen:
                return
            self._file_seen = seen
            with open(self._file, "rb") as stream:
                text = stream.read(MAX_SWITCH_BYTES + 1)
        except OSError:
            return
        try:
            switches = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self._file}: not JSON: {error}") from None
        if len(text) > MAX_SWITCH_BYTES or not isinstance(switches, dict):
            raise ValueError(f"{self._file}: not an object of switches")
        self._send(Body(codes.STATUS, self._profiler.command(profiling_command(switches))))


def switch_request(extension: Mapping[str, str]) -> tuple[str, list[int], list[bool]]:
    """uuid, ranks and operations of a link switch. Raises ValueError."""
    uuid = extension.get(constants.SWITCH_UUID, "")
    try:
        ranks = [int(rank) for rank in json.loads(extension.get(constants.GLOBAL_RANKS, ""))]
        ops = json.loads(extension.get(constants.GLOBAL_OPS, ""))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"a link switch without readable ranks and operations: {error}") from None
    if not uuid or not isinstance(ops, list) or len(ops) != len(ranks) or not all(isinstance(op, bool) for op in ops):
        raise ValueError(f"a link switch with {len(ranks)} ranks and no operation for each")
    return uuid, ranks, ops


def stress_request(extension: Mapping[str, str], rank: int) -> tuple[str, list[int]]:
    """uuid and this rank's tests. Raises ValueError."""
    uuid = extension.get(constants.STRESS_UUID, "")
    try:
        ops = json.loads(extension.get(constants.STRESS_OPS, ""))[str(rank)]["ops"]
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise ValueError(f"a stress test that names nothing for rank {rank}: {error!r}") from None
    if not uuid or not isinstance(ops, list) or not ops or any(type(op) is not int or op not in TESTS for op in ops):
        raise ValueError(f"a stress test with operations {ops!r:.60}, known are 0 (aic) and 1 (p2p)")
    return uuid, list(dict.fromkeys(ops))


_lock = threading.Lock()
_worker: BusWorker | None = None
_started = False


def init_taskd_worker(rank_id: Any, upper_limit_of_disk_in_mb: Any = 5000, framework: Any = "pt") -> bool:
    """Set up this process. False, with the reason in the log, when a value is wrong or RANK is missing."""
    global _worker, _started
    try:
        for name, value in (("rank_id", rank_id), ("upper_limit_of_disk_in_mb", upper_limit_of_disk_in_mb)):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DISK_MB:
                raise ValueError(f"{name} is {value!r:.40}, a number from 0 is needed")
        if framework not in (PYTORCH, MINDSPORE):
            raise ValueError(f"framework is {framework!r:.40}, pt or ms is needed")
        node = _node(framework, os.environ)
        where = folder(os.environ, rank_id)
    except ValueError as error:
        log.error("init_taskd_worker: %s", error)
        return False
    logs.to_file(f"taskd-worker-{rank_id}.log")
    local = os.environ.get("LOCAL_RANK", "0")
    profiler = Profiler(Records(where, upper_limit_of_disk_in_mb), int(local) if local.isdigit() else 0)
    upstream = bus_proxy.address(bus_proxy.HOST, bus_proxy.port(os.environ))
    with _lock:
        if _worker is None:
            job = os.environ.get("MINDX_TASK_ID", "")
            _worker = BusWorker(rank_id, node, profiler, upstream=upstream, job=job, framework=framework)
            atexit.register(destroy_taskd_worker)
    return True


def _node(framework: str, environ: Mapping[str, str]) -> int:
    rank = environ.get("RANK", "") if framework == PYTORCH else environ.get("RANK") or environ.get("MS_NODE_RANK", "")
    if not rank.isdigit():
        raise ValueError(f"RANK is {rank[:20]!r}, the launcher sets it")
    if framework == MINDSPORE:
        node = environ.get("MS_NODE_RANK", "0")
        return int(node) if node.isdigit() else 0
    size = environ.get("LOCAL_WORLD_SIZE", "1")
    return int(rank) // max(1, int(size) if size.isdigit() else 1)


def start_taskd_worker() -> bool:
    """Join the bus in the background. False before init."""
    global _started
    with _lock:
        if _worker is None:
            log.error("start_taskd_worker: call init_taskd_worker first")
            return False
        if not _started:
            _started = True
            _worker.start()
    return True


def destroy_taskd_worker() -> bool:
    """Leave the bus. False before init."""
    global _worker, _started
    with _lock:
        found, _worker = _worker, None
        started, _started = _started, False
    if found is None:
        return False
    if started:
        found.stop()
    return True
