"""The whole loop for tests: an API server, a real Redis, controller and worker, with nodes that are only objects.

``Cluster`` is the sandbox's API server in a thread of its own; ``Loop`` adds a controller and a worker in this process,
where messages are run by threads instead of Celery, so that a test can lose, double and delay them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from belay.engine.controller.controller import Controller
from belay.engine.controller.queues import RECONCILE
from belay.engine.controller.worker import Worker
from belay.engine.kube import CONFIGMAP, LEASE, NAMESPACE, NODE, POD, Kube, Object
from belay.engine.sandbox.api import ApiServer
from belay.engine.settings import Settings
from belay.engine.source import configuration
from belay.engine.store import StoreUnavailable
from belay.engine.wire import names
from tests.worlds import A2_LABELS, device_report

T = TypeVar("T")
NAMESPACES = ("belay-system", "belay-nodes", "mindx-dl", "volcano-system")

PATIENCE = 150.0
"""Seconds that a test waits for a condition: enough on a machine with fifteen times as much work as it has cores."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """An API server of the test's own."""
    made = Cluster(tmp_path)
    yield made
    made.close()


class Cluster:
    """An API server and a client of it, usable from synchronous tests; ``kubeconfig`` names one that runs already."""

    def __init__(self, folder: Path, kubeconfig: Path | None = None) -> None:
        self.folder = folder
        self.kubeconfig = str(kubeconfig or folder / "kubeconfig")
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.server = ApiServer()
        self._owned = kubeconfig is None
        if self._owned:
            self.run(self.server.start())
            self.server.write_kubeconfig(Path(self.kubeconfig))
        self.kube = Kube.from_config(self.kubeconfig)
        self.run(self.kube.__aenter__())
        for name in NAMESPACES:
            self.ensure(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        self.run(self.kube.__aexit__())
        if self._owned:
            self.run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def ensure(self, res: Any, obj: Object) -> Object:
        return self.run(self.kube.apply(obj))

    def create(self, res: Any, obj: Object) -> Object:
        return self.run(self.kube.create(res, obj))

    def get(self, res: Any, name: str, ns: str | None = None) -> Object | None:
        return self.run(self.kube.get(res, name, ns))

    def pods(self) -> list[Object]:
        return self.run(self.kube.list(POD)).items

    def add_node(self, name: str, chips: int = 8) -> None:
        """A healthy A2 server and its device report."""
        devices = {f"Ascend910-{i}": {"IP": f"10.1.0.{i}", "SuperDeviceID": i} for i in range(chips)}
        sizes = {"cpu": "192", "memory": "1536Gi", "pods": "110", "huawei.com/Ascend910": str(chips)}
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "arm64",
            **A2_LABELS,
        }
        status = {
            "capacity": sizes,
            "allocatable": sizes,
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }
        metadata = {"name": name, "labels": labels, "annotations": {"baseDeviceInfos": json.dumps(devices)}}
        self.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        self.run(self.kube.patch_status(NODE, name, {"status": status}))
        self.report(name, chips)

    def report(self, name: str, chips: int = 8, bad: dict[int, tuple[str, str]] | None = None) -> None:
        """Write a node's device report; ``bad`` gives code and level of faulty chips."""
        now = int(time.time())
        body = device_report(name, chips, bad or {}, now, at=now * 1000)
        self.run(self.kube.apply(body, field_manager="device-plugin"))

    def add_pod(self, name: str, chips: int, ns: str = "default") -> Object:
        """A pod that asks for chips and for Belay."""
        amount = {"huawei.com/Ascend910": str(chips)} if chips else {"cpu": "1"}
        container = {"name": "c", "image": "i", "resources": {"requests": amount, "limits": amount}}
        spec = {"schedulerName": "belay", "containers": [container]}
        metadata = {"name": name, "namespace": ns}
        return self.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def chips(self) -> dict[str, list[str]]:
        """``node/chip`` → pods that hold it by their annotations, bound pods only."""
        held: dict[str, list[str]] = {}
        for pod in self.pods():
            node = pod["spec"].get("nodeName")
            if not node:
                continue
            text = (pod["metadata"].get("annotations") or {}).get("huawei.com/Ascend910", "")
            for chip in filter(None, text.split(",")):
                held.setdefault(f"{node}/{chip}", []).append(pod["metadata"]["name"])
        return held

    def bound(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods() if pod["spec"].get("nodeName")}

    def orders(self, node: str) -> dict[str, Any]:
        found = self.get(CONFIGMAP, names.ORDERS_PREFIX + node, names.SYSTEM)
        return json.loads(found["data"]["orders.json"]) if found else {}

    def epoch(self, shard: str = "main") -> int:
        lease = self.get(LEASE, f"belay-shard-{shard}", "belay-system")
        return int(lease["spec"]["leaseTransitions"]) if lease else 0


class Loop:
    """Controller and worker in this process; ``lose`` and ``copies`` decide what becomes of a message.

    ``worker_settings`` are the worker's where they differ from the controller's.
    """

    def __init__(
        self,
        cluster: Cluster,
        redis_url: str,
        folder: Path,
        *,
        worker_settings: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        quick = {"resync": 0.5, "debounce": 0.01, "lease": 3.0, "claim": 5.0, "expiry": 5.0, "patience": 1.0} | settings
        self.settings = Settings(
            redis_url=redis_url, kubeconfig=cluster.kubeconfig, identity="test", data=str(folder), **quick
        )
        self.cluster = cluster
        self.failures: list[str] = []
        self._closed = False
        self.sent: list[tuple[str, str]] = []
        self.copies: Callable[[str, str], int] = lambda task, argument: 1
        self._pool = ThreadPoolExecutor(4)
        told = msgspec.structs.replace(self.settings, **(worker_settings or {}))
        self.worker = Worker(told, self.send)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.controller = self._start()

    def send(self, task: str, argument: str) -> None:
        """What Celery does, only that a test may lose or double it."""
        self.sent.append((task, argument))
        for _ in range(self.copies(task, argument)):
            try:
                self._pool.submit(self._work, task, argument)
            except RuntimeError:  # a pass that was under way at the end leaves its batch in a queue that nothing reads
                if not self._closed:
                    raise

    def _work(self, task: str, argument: str) -> None:
        with contextlib.suppress(StoreUnavailable):
            said = (self.worker.reconcile if task == RECONCILE else self.worker.act)(argument)
            if said.startswith("failed"):
                self.failures.append(said)

    def _start(self) -> Controller:
        made: list[Controller] = []

        async def main() -> None:
            async with Kube.from_config(self.settings.kubeconfig) as kube:
                source = configuration.source_of(self.settings)
                made.append(Controller(self.settings, kube, partial(self.send, RECONCILE), source=source))
                await made[0].run()

        self._running = asyncio.run_coroutine_threadsafe(main(), self._loop)
        until(lambda: bool(made))
        return made[0]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self.controller.stop)
        self._running.result(PATIENCE)
        self._pool.shutdown(wait=True)
        self.worker.close()
        self._loop.call_soon_threadsafe(self._loop.stop)


def until(condition: Callable[[], object], seconds: float = PATIENCE, what: str = "it") -> None:
    """Wait for a state of the world."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"{what} did not come about within {seconds} s"
        time.sleep(0.02)
