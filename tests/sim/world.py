"""A small cluster that is simulated down to every call: two controllers, two workers, three nodes with their agents.

What is real: controller, reflectors, triggers, snapshot, passes, planner, act, lease, fences, ledger, budgets, status,
the agents with their journals, and the sandbox's API server. What is played: HTTP, Redis, Celery, Git, kubelets and
hardware. Invariants are checked where they could be broken: when a pod gets its chips, when a driver resets.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import belay.engine.controller.controller
from belay.agents.common.clock import Clock as AgentClock
from belay.agents.drivers.simulated import SimulatedDriver
from belay.agents.node.agent import NodeAgent
from belay.agents.node.settings import Settings as AgentSettings
from belay.engine.act import batch as batches
from belay.engine.controller.controller import Controller
from belay.engine.controller.queues import ACT, MOST_WAITING, QUEUES, RECONCILE
from belay.engine.controller.worker import Worker
from belay.engine.errors import BelayError
from belay.engine.kube import Kube, KubeError, cancel_all
from belay.engine.load import load
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import observe
from belay.engine.observe.resources import WATCHED
from belay.engine.plan import plan
from belay.engine.sandbox import nodes_shape
from belay.engine.sandbox.api.store import ObjectChanged
from belay.engine.sandbox.definitions import shipped
from belay.engine.sandbox.nodes_shape import Shape
from belay.engine.settings import Settings
from belay.engine.source.records import FetchResult, Revision, SourceCondition, SourceConfig
from belay.engine.store import ProcessLiveness, StoreUnavailable
from belay.engine.wire import names
from tests.sim.clock import START, Clock
from tests.sim.cluster import Api, Json, SimAgentClient, SimTransport
from tests.sim.memory import AsyncClient, Client, Memory
from tests.sim.process import Life, Outside, Process
from tests.worlds import A2_LABELS

RESOURCE = "huawei.com/Ascend910"
SHAPE = Shape(RESOURCE, "Ascend910-", 8, dict(A2_LABELS))
NAMESPACES = (names.SYSTEM, names.NODES, names.NODE_NAMESPACE, names.SCHEDULER_NAMESPACE, "train")
RESETS_IN_WINDOW = 3
WINDOW = 6 * 3600.0
_DEFINITIONS = shipped()
_SUCCEEDED = SourceCondition(type="Ready", status="True", reason="Succeeded", message="the newest revision is accepted")


class Repository:
    """What Git holds, as the controller's source gives it."""

    def __init__(self) -> None:
        self.config = SourceConfig(url="https://example.com/state.git")
        self.files: dict[str, bytes] = {}
        self.number = 0
        self.down = False
        self._pushed = asyncio.Event()

    def push(self, files: Mapping[str, bytes]) -> None:
        self.files, self.number = dict(files), self.number + 1
        self._pushed.set()

    def fetch_soon(self) -> None:
        self._pushed.set()

    def _blob(self, content: bytes) -> str:
        import hashlib

        return hashlib.sha1(content).hexdigest()

    def remember(self, accepted: Mapping[str, float], distrust: str = "") -> None:
        pass

    def fetch(self, previous: Revision | None = None) -> FetchResult:
        if self.down:
            away = SourceCondition(
                type="Ready", status="True" if previous else "False", reason="Unreachable", message="Git is away"
            )
            return FetchResult(revision=previous, conditions=(away,))
        files = {path: self._blob(content) for path, content in self.files.items()}
        revision = Revision(sha=f"{self.number:040d}", files=files)
        changed = previous is None or previous.sha != revision.sha
        return FetchResult(revision=revision, conditions=(_SUCCEEDED,), changed_ref=changed, attempted=revision.sha)

    def read(self, blob_ids: Iterable[str]) -> dict[str, bytes]:
        held = {self._blob(content): content for content in self.files.values()}
        return {blob: held[blob] for blob in blob_ids if blob in held}

    def confirmations(self, base: str, tip: str) -> tuple[str, ...] | None:
        return None if self.down else ()

    def earlier(self, base: str, tip: str) -> dict[str, str]:
        return {}

    async def watch(self, stop: asyncio.Event) -> AsyncIterator[str]:
        yield "start"
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(30.0):
                    await self._pushed.wait()
            self._pushed.clear()
            yield "poll"


class Messages:
    """The broker's queues in Redis' memory, as Celery uses them: at least once, late, doubled, back after a death."""

    def __init__(self, memory: Memory, outside: Outside, clock: Clock, visibility: float) -> None:
        self._memory = memory
        self._outside = outside
        self._clock = clock
        self._visibility = visibility
        self._late: list[tuple[float, int, str, str]] = []
        self._order = itertools.count()

    def send(self, life: Life, name: str, argument: str) -> None:
        """What ``belay.engine.controller.queues.send`` does."""
        try:
            waiting = life.call_redis("llen", lambda: self._memory.llen(QUEUES[name]))
        except Exception as error:
            raise StoreUnavailable(str(error)) from None
        if waiting >= MOST_WAITING[name]:
            raise StoreUnavailable("full")
        weather, chance = self._outside.weather, self._outside.chance
        if weather.lose and chance.random() < weather.lose:
            self._outside.count("message lost")
            return
        times = 1
        if weather.double and chance.random() < weather.double:
            self._outside.count("message doubled")
            times = 2
        for _ in range(times):
            if weather.late and chance.random() < weather.late:
                self._outside.count("message late")
                heapq.heappush(
                    self._late, (self._clock.now + chance.uniform(1.0, 45.0), next(self._order), name, argument)
                )
            else:
                try:
                    life.call_redis("lpush", lambda: self._memory.lpush(QUEUES[name], argument))
                except Exception as error:
                    raise StoreUnavailable(str(error)) from None

    def take(self, queue: str) -> str | None:
        """The next message; unacknowledged until ``done``."""
        while self._late and self._late[0][0] <= self._clock.now:
            _, _, name, argument = heapq.heappop(self._late)
            self._memory.lpush(QUEUES[name], argument)
        found = self._memory.rpop(queue)
        return None if found is None else found.decode()

    def restore(self, queue: str, argument: str) -> None:
        """A worker died over it: it is handed out again after the visibility timeout."""
        name = {value: key for key, value in QUEUES.items()}[queue]
        heapq.heappush(self._late, (self._clock.now + self._visibility, next(self._order), name, argument))


class SimWorker(Worker):
    """A worker whose loop is the simulation's."""

    def __init__(self, settings: Settings, life: Life, world: World) -> None:
        client: Any = Client(world.memory, life.call_redis)
        self.set_up(settings, partial(world.messages.send, life), client, world.kube(life))
        self._at: set[str] = set()

    async def take(self, queue: str, text: str) -> None:
        """One message."""
        opened = self.opened(RECONCILE if queue == "plan" else ACT, text)
        assert opened is not None, "a message of ours is refused"
        text = opened
        if queue == "plan":
            if text in self._at:
                return
            self._at.add(text)
            try:
                async with asyncio.timeout(120.0):
                    said = await self.run_pass(text)
                assert not said.startswith("failed"), said
            except TimeoutError:
                return
            finally:
                self._at.discard(text)
            return
        with contextlib.suppress(BelayError, TimeoutError):
            async with asyncio.timeout(120.0):
                await self.run_batch(batches.decode(text))


class World:
    """Everything. ``folder`` holds the agents' journals; ``pairs``: how many controllers and as many workers."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        clock: Clock,
        files: Mapping[str, bytes],
        nodes: int = 3,
        pairs: int = 2,
        resync: float = 5.0,
    ) -> None:
        self.seed, self.clock, self.folder = seed, clock, folder
        self.outside = Outside(seed)
        self.api = Api(lambda: clock.wall)
        self.memory = Memory(lambda: clock.wall)
        self.repository = Repository()
        keys = folder / "keys"
        keys.write_text(f"{seed:064d}\n")
        self.settings = Settings(
            redis_url="redis://sim", batch_key_file=str(keys), data=str(folder), source_url=self.repository.config.url,
            resync=resync, lease=6.0,
            claim=12.0, expiry=15.0, patience=4.0, visibility=30.0, recordings=False,
        )  # fmt: skip
        self.messages = Messages(self.memory, self.outside, clock, self.settings.visibility)
        self.broken: list[str] = []
        self.done: dict[str, int] = {}
        self.bereft: set[str] = set()
        """Jobs that lost a pod after it was made: others may have taken its chips meanwhile."""
        self.whole: set[str] = set()
        """Jobs all of whose pods had nodes at some time: one that grows afterwards may wait for room for the rest."""
        self.silent: set[str] = set()
        self.stopped: set[str] = set()
        """Processes that stay ended."""
        self.drivers: dict[str, SimulatedDriver] = {}
        self.resets: dict[str, list[tuple[float, tuple[int, ...], int]]] = {}
        self.watched = tuple(one for one in WATCHED if one.resource.group_path != "/apis/batch.volcano.sh/v1alpha1")
        self.processes: dict[str, Process] = {}
        self._folders: dict[str, Path] = {}
        self._tight = any(b"SafetyBudget" in body for body in files.values())
        self._prepare(nodes, pairs)
        self.repository.push(files)
        self.api.store.listeners.append(self._changed)

    # the world before anybody looks

    def _prepare(self, nodes: int, pairs: int) -> None:
        for name in NAMESPACES:
            if self.api.find("namespaces", name) is None:
                self._call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        for definition in _DEFINITIONS:
            self._call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        for index in range(nodes):
            name = f"node-{index}"
            body = nodes_shape.node_object(name, index, SHAPE, self.clock.wall)
            status = body.pop("status")
            self._call("POST", "/api/v1/nodes", body)
            self._call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})
            self.drivers[name] = self._driver(name)
        for number in range(1, pairs + 1):
            self.processes[f"controller-{number}"] = Process(f"controller-{number}", self.outside, self._controller)
            self.processes[f"worker-{number}"] = Process(f"worker-{number}", self.outside, self._worker)
        for name in self.drivers:
            self._folders[name] = self.folder / name / "0"
            self.processes[f"agent-{name}"] = Process(f"agent-{name}", self.outside, self._agent)

    def _call(self, method: str, path: str, body: Json) -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return self.api.answer(method, path, {"fieldManager": "admin"}, json.dumps(body).encode(), kind)

    def _driver(self, node: str) -> SimulatedDriver:
        driver = SimulatedDriver(node, seed=self.seed, now_ms=lambda: int(self.clock.wall * 1000), sleep=asyncio.sleep)
        real = driver.reset

        async def reset(chips: Any, **how: Any) -> None:
            self._check_reset(node, tuple(sorted(chips)))
            await real(chips)

        driver.reset = reset  # type: ignore[method-assign]
        return driver

    def kube(self, life: Life) -> Kube:
        """A client of this life."""
        transport = SimTransport(
            self.api, life, sleep=asyncio.sleep, clock=lambda: self.clock.now, uniform=self.outside.chance.uniform
        )
        return Kube(lambda: None, transport=transport)  # type: ignore[arg-type,return-value]

    # lives

    async def _controller(self, life: Life) -> None:
        settings = msgspec.structs.replace(self.settings, identity=life.name)
        belay.engine.controller.controller.connect = lambda url: Client(self.memory, life.call_redis)  # type: ignore[assignment,return-value]
        belay.engine.controller.controller.connect_async = lambda url: AsyncClient(self.memory, life.call_redis_later)  # type: ignore[assignment,return-value]
        async with self.kube(life) as kube:
            source: Any = self.repository
            send = partial(self.messages.send, life, RECONCILE)
            controller = Controller(settings, kube, send, source=source, watched=self.watched)
            living = asyncio.create_task(_live(controller.liveness, lambda _: controller.watched_holders()))
            try:
                await controller.run()
            finally:
                await cancel_all(living)

    async def _worker(self, life: Life) -> None:
        settings = msgspec.structs.replace(self.settings, identity=life.name)
        worker = SimWorker(settings, life, self)
        with contextlib.suppress(StoreUnavailable):
            worker.triggers.free(settings.identity)
        at_work: set[asyncio.Task[None]] = set()
        async with worker._kube:
            with contextlib.suppress(KubeError, StoreUnavailable):
                await worker.release_former_leases()
            at_work.add(
                asyncio.create_task(
                    _live(
                        worker.liveness,
                        worker.triggers.owners_in,
                        worker.free_claims_of_the_dead,
                        worker.triggers.ask_owners,
                    )
                )
            )
            while True:
                await asyncio.sleep(0.02 if not self.quiet else 0.2)
                if self.outside.redis_down or len(at_work) > 4:  # the life is one of them
                    continue
                for queue in ("plan", "act"):
                    if (text := self.messages.take(queue)) is not None:
                        task = asyncio.create_task(self._at_work(life, worker, queue, text))
                        at_work.add(task)
                        task.add_done_callback(at_work.discard)
                for task in list(at_work):
                    if task.done():
                        task.result()

    async def _at_work(self, life: Life, worker: SimWorker, queue: str, text: str) -> None:
        try:
            await life.pass_gate(f"take {queue}")
            await worker.take(queue, text)
            await life.pass_gate(f"ack {queue}")
        except AssertionError as error:
            self.broken.append(str(error))
        finally:
            if not life.alive and not self.outside.redis_down:
                self.messages.restore(queue, text)

    async def _agent(self, life: Life) -> None:
        node = life.name.removeprefix("agent-")
        # what the dead still write goes to a folder that no process reads again
        before, self._folders[node] = self._folders[node], self.folder / node / str(life.process.lives)
        if before.exists():
            shutil.copytree(before, self._folders[node])
        chance = random.Random(f"{self.seed}/{life.name}/{life.process.lives}")
        agent = NodeAgent(
            node,
            life.gated(self.drivers[node]),
            SimAgentClient(self.api, life, chance=chance),
            self._folders[node],
            AgentSettings(),
            AgentClock(),
            chance=chance,
        )
        await agent.run()

    # what happens without a cause in the world

    quiet = False

    async def keep(self) -> None:
        """Restart the dead, play kubelets and garbage collection, once a second."""
        due: dict[str, float] = {}
        while True:
            for name, process in self.processes.items():
                if (
                    name in self.stopped
                    or process.alive
                    or (name.startswith("agent-") and name.removeprefix("agent-") in self.silent)
                ):
                    continue
                if process.life is not None and process.life.task is not None and process.life.task.done():
                    self._buried(process)
                when = due.setdefault(name, self.clock.now + self.outside.chance.uniform(0.3, 4.0))
                if self.clock.now >= when:
                    del due[name]
                    process.start()
            self._kubelets()
            self.api.collect()
            await asyncio.sleep(1.0)

    def _buried(self, process: Process) -> None:
        task = process.life.task if process.life else None
        if task is not None and not task.cancelled() and (error := task.exception()) is not None:
            self.broken.append(f"{process.name} ended with {type(error).__name__}: {error!r}"[:600])
            process.life = None

    def _kubelets(self) -> None:
        for pod in self.api.objects("pods"):
            node = pod["spec"].get("nodeName")
            if not node or node in self.silent:
                continue
            meta = pod["metadata"]
            if meta.get("deletionTimestamp"):
                began = self._ends.setdefault(meta["uid"], self.clock.now)
                if self.clock.now - began >= min(5.0, float(meta.get("deletionGracePeriodSeconds") or 0)):
                    self.api.drop("pods", meta["name"], meta["namespace"])
            elif (pod.get("status") or {}).get("phase") in (None, "Pending"):
                fresh = self.api.find("pods", meta["name"], meta["namespace"])
                assert fresh is not None
                chips = (meta.get("annotations") or {}).get(RESOURCE)
                if chips:
                    fresh["metadata"]["annotations"]["huawei.com/AscendReal"] = chips
                now = nodes_shape.rfc3339(self.clock.wall)
                fresh["status"] = {
                    **(fresh.get("status") or {}),
                    "phase": "Running",
                    "startTime": now,
                    "podIP": f"10.0.{len(self._ends) % 250}.{int(meta['resourceVersion']) % 250}",
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
                }
                self.api.put("pods", fresh)

    @property
    def _ends(self) -> dict[str, float]:
        return self.__dict__.setdefault("_ends_", {})  # type: ignore[no-any-return]

    def readiness(self, node: str, ready: bool) -> None:
        """The node falls silent, or comes back."""
        body = self.api.find("nodes", node)
        if body is None:
            return
        (self.silent.discard if ready else self.silent.add)(node)
        if not ready:
            self.processes[f"agent-{node}"].kill("node silent")
        stamp = nodes_shape.rfc3339(self.clock.wall)
        body["status"]["conditions"] = [
            {"type": "Ready", "status": "True" if ready else "Unknown", "lastTransitionTime": stamp, "reason": "Sim"}
        ]
        self.api.put("nodes", body)

    # invariants

    def held(self) -> dict[str, list[str]]:
        """``node/chip`` → pods that live there."""
        found: dict[str, list[str]] = {}
        for pod in self.api.objects("pods"):
            node = pod["spec"].get("nodeName")
            if not node or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                continue
            for chip in filter(None, str((pod["metadata"].get("annotations") or {}).get(RESOURCE, "")).split(",")):
                found.setdefault(f"{node}/{chip}", []).append(pod["metadata"]["name"])
        return found

    def _changed(self, event: ObjectChanged) -> None:
        if event.entry.storage != "pods":
            return
        pod = event.entry.obj
        old = event.old.obj if event.old else None
        if event.type != "DELETED" and pod["spec"].get("nodeName") and not (old and old["spec"].get("nodeName")):
            twice = {chip: pods for chip, pods in self.held().items() if len(pods) > 1}
            if twice:
                self.broken.append(f"chips with two owners: {twice}")
            self.count("bound")
            if all(one["spec"].get("nodeName") for one in self.api.objects("pods") if owner_of(one) == owner_of(pod)):
                self.whole.add(owner_of(pod))
        if event.type == "DELETED":
            self.bereft.add(owner_of(pod))
        goes = event.type == "DELETED" or pod["metadata"].get("deletionTimestamp")
        if goes and old is not None and old["spec"].get("nodeName") and not old["metadata"].get("deletionTimestamp"):
            self.count("evicted")

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def _check_reset(self, node: str, chips: tuple[int, ...]) -> None:
        held = self.held()
        used = [held[f"{node}/Ascend910-{chip}"] for chip in chips if f"{node}/Ascend910-{chip}" in held]
        if used:
            self.broken.append(f"{node} {chips} is reset while {used} live there")
        orders = self.api.find("configmaps", names.ORDERS_PREFIX + node, names.SYSTEM)
        ordered = json.loads(orders["data"]["orders.json"])["chips"] if orders else {}
        epoch = max(
            (int((ordered.get(f"Ascend910-{chip}") or {}).get("reset", {}).get("epoch") or 0) for chip in chips
             if (ordered.get(f"Ascend910-{chip}") or {}).get("reset")), default=0,
        )  # fmt: skip
        self.count("reset")
        rows = self.resets.setdefault(node, [])
        if epoch and any(chips == before and epoch == was for _, before, was in rows):
            self.broken.append(f"{node} {chips} ran epoch {epoch} twice")
        rows.append((self.clock.now, chips, epoch))
        for chip in chips:
            recent = [at for at, group, _ in rows if chip in group and self.clock.now - at < WINDOW]
            if len(recent) > RESETS_IN_WINDOW:
                self.broken.append(f"{node} chip {chip} was reset {len(recent)} times in {WINDOW / 3600:.0f} h")

    def check(self) -> None:
        """Raise what was broken so far."""
        assert not self.broken, "; ".join(self.broken[:3])

    # the end

    def plan(self) -> Plan:
        """What a pass would want now, from the live objects and what Git holds."""
        items: list[Json] = []
        for collection in self.api.store.collections.values():
            items += [entry.obj for entry in collection.entries()]
        wanted = {one.resource.kind for one in self.watched}
        seen = observe([item for item in items if item.get("kind") in wanted])
        loaded = load(self.repository.files, revision=f"{self.repository.number:040d}")
        return plan(loaded.desired, seen, self.clock.wall)


async def _live(
    liveness: ProcessLiveness,
    watch: Callable[[Any], Iterable[str]],
    then: Callable[[], None] = lambda: None,
    ask: Callable[[Any], None] | None = None,
) -> None:
    """What ``ProcessLiveness.start`` does in a thread."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            liveness.update(watch, then, ask)
        await asyncio.sleep(liveness.every)


def owner_of(pod: Json) -> str:
    """The job of a pod, its own name without one."""
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("name") or pod["metadata"]["name"])


__all__ = ["START", "Repository", "World", "owner_of"]
