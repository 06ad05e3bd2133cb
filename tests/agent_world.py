"""A node agent in a world of memory: virtual clock, API server in a dict, simulated driver."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import heapq
import itertools
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from belay.agents.common.client import ApiError
from belay.agents.common.clock import Clock
from belay.agents.drivers.simulated import ServerModel, SimulatedDriver
from belay.agents.node.agent import NodeAgent
from belay.agents.node.settings import Settings
from belay.agents.node.witness import Witness
from belay.engine.model.cluster import AgentReport, DeviceReport, Orders, ResetOrder
from belay.engine.model.faults import CodeRules
from belay.engine.wire import deviceinfo
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX, NODES, ORDERS_PREFIX, REPORT_PREFIX, SYSTEM
from belay.engine.wire.orders import build_orders, parse_report
from belay.engine.wire.policy import NodePolicy

NODE = "node-a"
FAULT = "80C98001"
NOW = 1_788_249_600.0
RULES = CodeRules(
    table={
        FAULT: "RestartNPU",
        "81078603": "NotHandleFault",
        "80E18000": "PreSeparateNPU",
        "20000100": "SubHealthFault",
    }
)


class VirtualClock(Clock):
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.wall, self.mono = NOW, 1000.0
        self._timers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.mono

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._timers, (self.mono + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        target = self.mono + seconds
        await settle()
        while self._timers and self._timers[0][0] <= target:
            moment, _, future = heapq.heappop(self._timers)
            if future.done():
                continue
            self._move(moment - self.mono)
            future.set_result(None)
            await settle()
        self._move(target - self.mono)
        await settle()

    def _move(self, seconds: float) -> None:
        self.mono += seconds
        self.wall += seconds


async def settle() -> None:
    """Let every task run until it waits for time or for another task."""
    for _ in range(40):
        await asyncio.sleep(0)


class FakeCluster:
    """An API server for ConfigMaps, pods and nodes. `offline` makes every call fail; `refuse_writes` only writes."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.maps: dict[tuple[str, str], dict[str, Any]] = {}
        self.pod_list: list[dict[str, Any]] = []
        self.nodes: dict[str, dict[str, Any]] = {NODE: {"metadata": {"name": NODE, "labels": {}, "annotations": {}}}}
        self.writes: list[tuple[float, str]] = []
        self.events: list[dict[str, Any]] = []
        self.offline = self.refuse_writes = False
        self.stale: set[str] = set()
        self.after_get: Callable[[str], None] | None = None
        self._version = 0
        self._changed: dict[str, set[asyncio.Event]] = {"maps": set(), "pods": set()}

    def set_map(self, body: Mapping[str, Any] | None, namespace: str = "", name: str = "") -> None:
        key = (namespace, name) if body is None else (body["metadata"]["namespace"], body["metadata"]["name"])
        if body is None:
            self.maps.pop(key, None)
        else:
            self._version += 1
            self.maps[key] = copy.deepcopy(dict(body))
            self.maps[key]["metadata"]["resourceVersion"] = str(self._version)
        self.notify("maps")

    def set_pods(self, pods: Iterable[dict[str, Any]]) -> None:
        self.pod_list = list(pods)
        self.notify("pods")

    def notify(self, *kinds: str) -> None:
        """Wake the watches of these kinds (default: all), except those that lag."""
        for kind in set(kinds or self._changed) - self.stale:
            for event in self._changed[kind]:
                event.set()

    async def config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any] | None]:
        async for _ in self._changes("maps"):
            yield copy.deepcopy(self.maps.get((namespace, name)))

    async def pods(self, node: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        async for _ in self._changes("pods"):
            yield copy.deepcopy(self.pod_list)

    async def _changes(self, kind: str) -> AsyncIterator[None]:
        event = asyncio.Event()
        self._changed[kind].add(event)
        try:
            while True:
                while self.offline:
                    await self.clock.sleep(0.5)
                yield
                await event.wait()
                event.clear()
        finally:
            self._changed[kind].discard(event)

    async def get_config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        self._online()
        body = copy.deepcopy(self.maps.get((namespace, name)))
        if self.after_get:
            self.after_get(name)
        return body

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        self._online()
        if self.refuse_writes:
            raise ApiError(500, "no")
        metadata = body["metadata"]
        self.writes.append((self.clock.mono, metadata["name"]))
        there = self.maps.get((metadata["namespace"], metadata["name"]), {"metadata": {}})["metadata"]
        kept = {**there.get("annotations", {}), **metadata.get("annotations", {})}
        self.set_map({**body, "metadata": {**metadata, **({"annotations": kept} if kept else {})}})

    async def replace_config_map(self, body: Mapping[str, Any]) -> None:
        self._online()
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        if self.maps[key]["metadata"]["resourceVersion"] != body["metadata"].get("resourceVersion"):
            raise ApiError(409, "conflict")
        self.set_map(body)

    async def list_pods(self, node: str) -> Sequence[Mapping[str, Any]]:
        self._online()
        return copy.deepcopy(self.pod_list)

    async def get_node(self, node: str) -> Mapping[str, Any] | None:
        self._online()
        return copy.deepcopy(self.nodes.get(node))

    async def patch_node(self, node: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        self._online()
        self.nodes[node]["metadata"]["labels"].update(labels)
        self.nodes[node]["metadata"]["annotations"].update(annotations)

    async def create_event(self, body: Mapping[str, Any]) -> None:
        self._online()
        self.events.append(copy.deepcopy(dict(body)))

    def _online(self) -> None:
        if self.offline:
            raise ApiError(0, "no route to host")


class World:
    """One node with its agent.

    `restart` kills the agent where it stands and starts a new one on the same disk and hardware.
    """

    def __init__(
        self, folder: Path, row: ServerModel | None = None, settings: Settings | None = None, rules: CodeRules = RULES
    ) -> None:
        self.clock = VirtualClock()
        self.cluster = FakeCluster(self.clock)
        self.folder = folder / "state"
        self.settings = settings or Settings()
        self.policy = NodePolicy("default", rules)
        self.driver = SimulatedDriver(NODE, row, now_ms=self.clock.now_ms, sleep=self.clock.sleep)
        self.witnesses: list[Witness] = []
        self.plugins: Path | None = None
        self.agent: NodeAgent
        self.task: asyncio.Task[None] | None = None
        self.generation = 0

    async def start(self, seconds: float = 2.0) -> None:
        self.agent = NodeAgent(
            NODE,
            self.driver,
            self.cluster,
            self.folder,
            self.settings,
            self.clock,
            policy=self.policy,
            chance=random.Random(3),
            plugins=self.plugins,
        )
        self.agent.join(witnesses=self.witnesses)
        self.task = asyncio.create_task(self.agent.run())
        await self.clock.advance(seconds)

    async def kill(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
            self.task = None

    async def restart(self, seconds: float = 2.0) -> None:
        await self.kill()
        await self.start(seconds)

    async def run(self, seconds: float) -> None:
        assert self.task is not None
        await self.clock.advance(seconds)
        if self.task.done():
            self.task.result()

    def order(
        self,
        resets: Mapping[int, int] | None = None,
        *,
        group: Sequence[int] | None = None,
        isolate: Mapping[int, str] | None = None,
        layout: Mapping[int, Sequence[str]] | None = None,
        layout_epoch: int = 0,
        life: float = 900.0,
        not_before: float = 0.0,
        ahead: float = 0.0,
    ) -> None:
        """Write orders: `resets` maps a chip to its epoch; the clock that issues them runs `ahead` by s."""
        self.generation += 1
        groups = group if group is not None else range(self.driver.row.chips)
        reset = {
            chip: ResetOrder(
                epoch=epoch, group=tuple(groups), reason="RestartNPU", not_before_ms=int(not_before * 1000)
            )
            for chip, epoch in (resets or {}).items()
        }
        orders = Orders(
            node=NODE,
            resource_version="",
            generation=self.generation,
            revision="r1",
            policy_digest="",
            issued_ms=self.clock.now_ms() + int(ahead * 1000),
            not_after_ms=self.clock.now_ms() + int((life + ahead) * 1000),
            isolate=dict(isolate or {}),
            resets=reset,
            vnpu_epoch=layout_epoch,
            vnpu_layout={chip: tuple(templates) for chip, templates in (layout or {}).items()},
        )
        self.cluster.set_map(build_orders(orders, self.driver.row.machine.prefix))

    def withdraw(self) -> None:
        self.order()

    @property
    def report(self) -> AgentReport:
        return parse_report(self.cluster.maps[(NODES, REPORT_PREFIX + NODE)])

    @property
    def reported(self) -> bool:
        return (NODES, REPORT_PREFIX + NODE) in self.cluster.maps

    @property
    def device(self) -> DeviceReport:
        return deviceinfo.parse(self.cluster.maps[(DEVICE_NAMESPACE, DEVICE_PREFIX + NODE)])

    def result(self, chip: int = 0) -> tuple[int, str]:
        entry = self.report.chips[chip]
        return entry.reset_epoch_done, entry.reset_result

    def writes(self, prefix: str) -> list[float]:
        return [moment for moment, name in self.cluster.writes if name.startswith(prefix)]


ORDERS_KEY = (SYSTEM, ORDERS_PREFIX + NODE)


def pod(
    name: str,
    chips: Sequence[str],
    *,
    resource: str = "huawei.com/Ascend910",
    phase: str = "Running",
    deleting: bool = False,
) -> dict[str, Any]:
    """A pod on the node; `chips` are device names for its annotation (empty: placed, but it does not say where)."""
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"u-{name}", "annotations": {}}
    if chips:
        metadata["annotations"] = {resource: ",".join(chips)}
    if deleting:
        metadata["deletionTimestamp"] = "2026-09-01T08:00:00Z"
    limits = {resource: str(max(1, len(chips)))}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": phase},
    }


def journal_lines(world: World) -> list[dict[str, Any]]:
    return [json.loads(line.split(b" ", 1)[1]) for line in (world.folder / "journal").read_bytes().splitlines()]


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario and cancel whatever it leaves behind."""

    async def whole() -> None:
        try:
            await scenario()
        finally:
            rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    asyncio.run(whole())


def scenario(folder: Path, story: Callable[[World], Awaitable[None]], **options: Any) -> None:
    """Play a story in a world that ends with it."""

    async def run() -> None:
        world = World(folder, **options)
        try:
            await story(world)
        finally:
            await world.kill()

    play(run)
