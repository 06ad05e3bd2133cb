"""The engine as it is deployed, for benchmarks: API server, Redis, controllers and workers as processes of their own.

The cluster is made of objects only: nodes and their device reports, which the benchmark itself writes as agents would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from belay.engine.kube import CONFIGMAP, NODE, Conflict, Kube, KubeError, cancel_all, run_many
from belay.engine.sandbox.redis_process import RedisProcess, start_redis
from belay.engine.sandbox.world import ensure_namespaces
from belay.engine.settings import Settings, to_environment
from belay.engine.store import PassStore, StoreUnavailable, connect
from belay.engine.wire import deviceinfo, names
from tests.bench.clusters import node as node_object
from tests.bench.measure import Skipped
from tests.bench.running import cpu_seconds, memory, resident, tree
from tests.kube_server import real_cluster
from tests.ports import free_port

CODE, LEVEL = "80DF8402", "SeparateNPU"
"""The chip stays out and nothing resets it."""
CHIPS = 8
_MODULES = {
    "controller": ("belay.engine.controller.controller", ""),
    "worker": ("belay.engine.controller.tasks", ""),
    "server": ("belay.engine.serve.http", "'127.0.0.1:0'"),
}
"""Role → its module and the arguments of its ``main``."""


class Plant:
    """Use it through ``plant``."""

    def __init__(self, folder: Path, kubeconfig: Path, nodes: int, **settings: Any) -> None:
        self.folder = folder
        self.nodes = [f"node-{index:05d}" for index in range(nodes)]
        self.kubeconfig = str(kubeconfig)
        self.redis: RedisProcess = start_redis(folder / "redis")
        self.settings = Settings(
            redis_url=self.redis.url,
            kubeconfig=self.kubeconfig,
            data=str(folder / "data"),
            recordings=False,
            # with the defaults, another server on this machine would leave the services, or all of it, out
            **{"grpc_listen": f"127.0.0.1:{free_port()}", "grpc_health_port": free_port(), **settings},
        )
        self.bad: dict[str, set[int]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    # processes

    def start(self, role: str, identity: str) -> None:
        """Start `belay controller`, `belay worker` or `belay server` in a process group of its own."""
        variables = {**os.environ, **to_environment(self.settings), "BELAY_IDENTITY": identity}
        module, arguments = _MODULES[role]
        command = [sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main({arguments}))"]
        with (self.folder / f"{identity}.log").open("ab") as log:
            self._running[identity] = subprocess.Popen(
                command, env=variables, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, *identities: str) -> None:
        """SIGKILL, as a power cut would."""
        for identity in identities:
            process = self._running.pop(identity)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for identity in identities:
            assert identity not in self._running

    def lose_redis(self) -> None:
        """Kill Redis and start an empty one at the same address."""
        self.redis.kill()
        self.redis = start_redis(self.folder / "redis")

    def close(self) -> None:
        self.kill(*list(self._running))
        self.redis.stop()

    def resident(self) -> dict[str, float]:
        """Resident memory of each process (MiB), Redis included."""
        return {name: sum(resident(pid) for pid in tree(root)) for name, root in self._roots().items()}

    def imported(self) -> dict[str, float]:
        """What the running processes take before they have done anything (MiB)."""
        found = {}
        for role in sorted({identity.partition("-")[0] for identity in self._running}):
            code = f"import {_MODULES[role][0]}; print(open('/proc/self/status').read())"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
            found[role] = int(done.stdout.partition("VmRSS:")[2].split()[0]) / 1024
        return found

    def cpu_by_process(self) -> dict[str, float]:
        """CPU time of each process so far (s), Redis included."""
        return {name: sum(cpu_seconds(pid) for pid in tree(root)) for name, root in self._roots().items()}

    def _roots(self) -> dict[str, int]:
        return {identity: process.pid for identity, process in self._running.items()} | {"redis": self.redis.pid}

    def pids(self) -> list[int]:
        """Every process of the engine, Redis included."""
        roots = [process.pid for process in self._running.values()] + [self.redis.pid]
        return [pid for root in roots for pid in tree(root)]

    def mebibytes(self) -> float:
        """Memory of the engine's processes and Redis (PSS). Raises AssertionError when one of them has ended."""
        for identity, process in self._running.items():
            assert process.poll() is None, f"{identity} has ended: see {self.folder / identity}.log"
        return sum(memory(root) for root in (*(p.pid for p in self._running.values()), self.redis.pid))

    def cpu_seconds(self) -> float:
        """CPU time that they have used so far."""
        used = 0.0
        for pid in self.pids():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                used += cpu_seconds(pid)
        return used

    # the cluster

    async def populate(self, kube: Kube) -> None:
        """Namespaces, nodes and clean reports."""
        await ensure_namespaces(kube)

        async def add(index: int, name: str) -> None:
            body = node_object(name, index)
            for field in ("uid", "resourceVersion", "creationTimestamp"):
                body["metadata"].pop(field, None)
            status = body.pop("status")
            with contextlib.suppress(Conflict):
                await kube.create(NODE, body)
            await kube.patch_status(NODE, name, {"status": status})
            await kube.create(CONFIGMAP, report(name, ()))

        async for outcome in run_many([lambda i=i, n=n: add(i, n) for i, n in enumerate(self.nodes)], 32):  # type: ignore[misc]
            if outcome.error is not None:
                raise outcome.error

    async def break_chip(self, kube: Kube, name: str, chip: int) -> float:
        """Report one more faulty chip; returns when the report was durable (monotonic s)."""
        bad = self.bad.setdefault(name, set())
        bad.add(chip)
        body = report(name, sorted(bad))
        await kube.patch(CONFIGMAP, body["metadata"]["name"], {"data": body["data"]}, body["metadata"]["namespace"])
        return time.monotonic()

    async def settled(self, seconds: float = 180.0) -> None:
        """Until the first passes are through and nothing more is written for five seconds."""
        passes, ends = PassStore(connect(self.settings.redis_url)), time.monotonic() + seconds
        quiet, before = time.monotonic(), (-1, -1)
        while time.monotonic() - quiet < 5.0:
            assert time.monotonic() < ends, f"not settled within {seconds:.0f} s: see {self.folder}"
            await asyncio.sleep(0.5)
            with contextlib.suppress(StoreUnavailable):
                state = passes.state("main")
                numbers = passes.counters()
                acted = sum(count for name, count in numbers.items() if name.startswith("actions|"))
                now = (acted, len(state.writes) if state else 0)
                if now != before or "main" not in passes.summaries():
                    before, quiet = now, time.monotonic()


class Orders:
    """Follows the orders of all nodes; knows when each chip was first seen isolated there."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._seen: dict[tuple[str, int], float] = {}
        self._news = asyncio.Condition()
        self._open = asyncio.Event()

    async def seen(self, name: str, chip: int, seconds: float) -> float:
        """When the order was seen (monotonic s); waits for it, raises TimeoutError."""
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(lambda: (name, chip) in self._seen)
        return self._seen[name, chip]

    @contextlib.asynccontextmanager
    async def following(self) -> Any:
        task = asyncio.create_task(self._follow())
        await self._open.wait()
        try:
            yield self
        finally:
            await cancel_all(task)

    async def _follow(self) -> None:
        while True:
            version = (await self._kube.list(CONFIGMAP, names.SYSTEM, fields="metadata.name=none")).resource_version
            with contextlib.suppress(KubeError):
                async for kind, obj in self._kube.watch(
                    CONFIGMAP, names.SYSTEM, rv=version, seconds=3000, on_open=self._open.set
                ):
                    name = str((obj.get("metadata") or {}).get("name") or "")
                    if kind in ("ADDED", "MODIFIED") and name.startswith(names.ORDERS_PREFIX):
                        await self._take(name.removeprefix(names.ORDERS_PREFIX), obj)

    async def _take(self, node: str, obj: Any) -> None:
        now = time.monotonic()
        chips = json.loads(obj["data"]["orders.json"]).get("chips") or {}
        async with self._news:
            for chip, order in chips.items():
                if order.get("isolate"):
                    self._seen.setdefault((node, int(chip.rpartition("-")[2])), now)
            self._news.notify_all()


def report(name: str, bad: Any, at: float | None = None) -> dict[str, Any]:
    """A device report of an A2 server, with some chips faulty."""
    now = time.time() if at is None else at
    chips = [f"Ascend910-{chip}" for chip in range(CHIPS)]
    faults = [
        deviceinfo.fault_element("CardUnhealthy", chips[chip], {CODE: (int(now * 1000), LEVEL)}, LEVEL) for chip in bad
    ]
    lists = {
        "huawei.com/Ascend910": ",".join(chip for number, chip in enumerate(chips) if number not in bad),
        "huawei.com/Ascend910-Unhealthy": ",".join(chips[number] for number in bad),
        "huawei.com/Ascend910-NetworkUnhealthy": "",
        "huawei.com/Ascend910-Recovering": "",
        "huawei.com/Ascend910-Fault": json.dumps(faults, separators=(",", ":")),
    }
    return deviceinfo.build(name, device_list=lists, update_time=int(now))


@contextlib.contextmanager
def plant(nodes: int, *, real: bool = False, **settings: Any) -> Iterator[Plant]:
    """An API server and a Redis; controllers and workers are started by the benchmark.

    Raises:
        Skipped: a real API server is wanted and KUBEBUILDER_ASSETS does not name its binaries.
    """
    folder = Path(tempfile.mkdtemp(prefix="belay-bench-"))
    kept = False
    try:
        with contextlib.ExitStack() as stack:
            kubeconfig = stack.enter_context(_real(folder) if real else _sandbox(folder))
            made = Plant(folder, kubeconfig, nodes, **settings)
            stack.callback(made.close)
            try:
                yield made
            except BaseException:
                kept = True  # the logs say why
                raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _sandbox(folder: Path) -> Iterator[Path]:
    kubeconfig = folder / "kubeconfig"
    command = [sys.executable, "-m", "belay.engine.sandbox.api", "--kubeconfig", str(kubeconfig)]
    with (folder / "api.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(kubeconfig.exists, 20.0, "the API server")
        yield kubeconfig
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _real(folder: Path) -> Iterator[Path]:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        raise Skipped("KUBEBUILDER_ASSETS is not set: no real kube-apiserver")
    (folder / "kube").mkdir()
    with real_cluster(Path(assets), folder / "kube") as kubeconfig:
        yield kubeconfig


def _wait(condition: Callable[[], bool], seconds: float, what: str) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            raise RuntimeError(f"{what} did not come up within {seconds:.0f} s")
        time.sleep(0.05)


__all__ = ["CODE", "Orders", "Plant", "plant", "report"]
