"""The device plugin of one node: offers chips to kubelet, answers its calls, and records which pod holds what.

It runs in the node agent's process and reads the agent's state; the agent queries it before every reset.
Behaviour: component/ascend-device-plugin/pkg/server/manager.go.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from belay.agents.common.client import ApiError
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import Driver, DriverError
from belay.agents.drivers.tools.hccn import HccnTool
from belay.agents.kubelet import annotate, softshare, topology
from belay.agents.kubelet.allocator import Allocator
from belay.agents.kubelet.api import deviceplugin_pb2 as api
from belay.agents.kubelet.cutting import Cutter, Refused
from belay.agents.kubelet.device_holdings import CHECKPOINT, DeviceHoldings
from belay.agents.kubelet.duplicates import Duplicates
from belay.agents.kubelet.hangs import Flits, Hangs, all_packets, limits
from belay.agents.kubelet.inventory import Offer, offers
from belay.agents.kubelet.ledger import Grant, Ledger
from belay.agents.kubelet.podcache import PodCache
from belay.agents.kubelet.pods import PodFacts
from belay.agents.kubelet.registrar import Registrar
from belay.agents.kubelet.response import Given, respond, topo_file
from belay.agents.kubelet.server import ResourceServer
from belay.agents.kubelet.settings import PluginSettings
from belay.agents.kubelet.slownode import SlowNode
from belay.agents.kubelet.templates import suffixes
from belay.agents.kubelet.witness import KubeletWitness
from belay.agents.node.detect import HangLimits
from belay.agents.node.publicnames import PublicNames
from belay.agents.node.settings import MAX_TEXT
from belay.agents.node.state import NodeState
from belay.engine.model.generations import Generation

#: Seconds after an answer at which kubelet's records are read; once they hold it, the pod is annotated.
SETTLE: Final = (0.03, 0.1, 0.3, 1.0, 3.0)
#: Seconds to wait for the API server before serving kubelet without it; no device is allocated without a pod.
PODS_WAIT: Final = 30.0
_log = Log("kubelet")


class PluginCluster(Protocol):
    """The plugin's access to the API server. Methods raise ApiError."""

    async def list_pods(self, node: str) -> Sequence[Mapping[str, Any]]:
        """Read the pods of a node."""
        ...

    def config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any] | None]:
        """Follow one ConfigMap."""
        ...

    async def patch_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of the pod with this UID."""
        ...


class DevicePlugin:
    """Serve kubelet until cancelled. ``state`` returns the agent's state, None until the driver has answered;
    ``folder`` must survive restarts of the agent."""

    def __init__(
        self,
        node: str,
        driver: Driver,
        cluster: PluginCluster,
        folder: Path,
        settings: PluginSettings,
        clock: Clock,
        state: Callable[[], NodeState | None],
        *,
        read_pods: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]] | None = None,
        chance: random.Random | None = None,
        end: Callable[[], None] | None = None,
        wake: Callable[[], None] = lambda: None,
        names: PublicNames | None = None,
    ) -> None:
        self._names = names or PublicNames()
        self._node, self._driver, self._cluster, self._folder = node, driver, cluster, folder
        self._settings, self._clock, self._state_of = settings, clock, state
        self._chance = chance or random.Random()
        self._wake_agent = wake
        self._pods = PodCache(read_pods or (lambda: cluster.list_pods(node)), clock)
        self._own_pods = read_pods is not None
        self._books = DeviceHoldings(
            settings.pod_resources, settings.folder / CHECKPOINT, settings.ask_timeout, self._names
        )
        self._registrar: Registrar[Offer] = Registrar(
            node, settings, clock, self._chance, lambda: self.allocator.offers if self.allocator else {}, self._server,
            end or (lambda: os.kill(os.getpid(), signal.SIGTERM)),
        )  # fmt: skip
        self._numa: dict[int, list[int]] = {}
        self._dies: dict[int, str] = {}
        self._products: dict[int, str] = {}
        self._topo = ""
        self._suffixes: dict[str, str] = {}
        self._slow_node = SlowNode(cluster)
        self._shape: object = None
        self._settling: set[asyncio.Task[None]] = set()
        self.allocator: Allocator | None = None

    @property
    def witnesses(self) -> tuple[KubeletWitness, ...]:
        """The sources that the agent asks before a reset."""

        def parts() -> Any:
            return None if self.allocator is None else (self.allocator, self._books, self._withdrawal_reported)

        return (
            KubeletWitness("kubelet pod resources", "socket", parts),
            KubeletWitness("kubelet checkpoint", "checkpoint", parts),
        )

    def changed(self) -> None:
        """Derive the offers from the agent's new state and report them to kubelet. Call it in the agent's loop."""
        state = self._state_of()
        if self.allocator is None or state is None:
            return
        if not self._own_pods and state.pods_read:
            self._pods.receive(state.bodies)
        self._offer(state)
        for server in self._registrar.servers.values():
            server.changed()

    def register_again(self) -> None:
        """Restart and register all servers (SIGHUP)."""
        self._registrar.register_again()

    # ---- lifecycle

    async def run(self) -> None:
        """Serve. Raises ValueError when settings do not fit the node."""
        state = await self._begin()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._reconcile_repeatedly(state))
                group.create_task(self._registrar.run(state))
                if self._settings.slow_node:
                    group.create_task(self._slow_node.follow())
                if self._own_pods:
                    group.create_task(self._poll_pods())
                group.create_task(Duplicates(state, self._clock, allowed=self._settings.share > 1).run())
                if (hangs := self._hangs(state)) is not None:
                    group.create_task(hangs.run())
        finally:
            await self._close()

    def _hangs(self, state: NodeState) -> Hangs | None:
        """Return the hang detection; None if the driver lacks the calls for it, or it is switched off."""
        calls = getattr(self._driver, "calls", None)
        try:
            found = limits()
        except ValueError as error:
            state.problems["hangs"] = f"hang detection goes by its defaults: {error}"[:MAX_TEXT]
            found = HangLimits()
        if calls is None or found is None:
            return None
        tool, logic = HccnTool(), {chip.id: chip.logic_id for chip in state.chips}
        flits = Flits(calls.ask, tool, lambda chip: logic.get(chip, chip))
        carried = flits.count if state.machine.generation.unified_bus else lambda chip: all_packets(tool.counters, chip)
        return Hangs(state, calls.ask, carried, found, self._clock, self._wake_agent)

    async def _begin(self) -> NodeState:
        # before the fault codes are known, a faulty chip would be offered
        while (state := self._state_of()) is None or not state.polled:
            await self._clock.sleep(0.05)
        ends = self._clock.monotonic() + PODS_WAIT
        while not state.pods_read and self._clock.monotonic() < ends:
            await self._clock.sleep(0.05)
        self._settings.check(state.machine.server_type, dict(state.machine.labels))
        if self._settings.single_die and (trouble := await topology.single_dies(self._driver, state.machine)):
            state.problems["dies"] = trouble[:MAX_TEXT]
        for chip in state.chips:
            self._numa[chip.id] = await topology.numa_nodes(self._driver, chip.id)
            self._products[chip.id] = str(await topology.ask_driver(self._driver, "product", chip.id, default=""))
            if self._settings.soft:
                kind = 2 if state.machine.generation is Generation.ASCEND950 else 1
                self._dies[chip.id] = str(await topology.ask_driver(self._driver, "die", chip.id, kind, default=""))
        self._settings.check_products(self._products.values())
        if state.machine.generation.unified_bus and state.chips:
            pod = await topology.ask_driver(self._driver, "super_pod", state.chips[0].id, default={})
            board = await topology.ask_driver(self._driver, "mainboard", state.chips[0].id, default=0)
            self._topo = topo_file(int(pod.get("super_pod_type", -1)), int(board))
        self._suffixes = suffixes(state.machine.resource, state.machine.chip_name)
        ledger = Ledger(self._folder)
        ledger.open()
        if ledger.lost:
            _log.error("the ledger of grants is put aside, kubelet's books are followed", reason=ledger.lost)
        cutter = Cutter(self._driver, state, self._suffixes, self._clock)
        self.allocator = Allocator(state, self._settings, ledger, self._books, self._pods, self._clock, cutter)
        if state.pods_read and not self._own_pods:
            self._pods.receive(state.bodies)
        self._offer(state)
        return state

    async def _close(self) -> None:
        for task in list(self._settling):
            task.cancel()
        await asyncio.gather(*self._settling, return_exceptions=True)
        await self._registrar.close()
        await self._books.close()

    # ---- offers

    def _offer(self, state: NodeState) -> None:
        assert self.allocator is not None
        shape = (tuple(state.chips), tuple(state.vnpus))
        if shape == self._shape:
            return
        self._shape = shape
        found, trouble = offers(
            state.machine, state.chips, state.vnpus, self._settings, suffixes=self._suffixes, products=self._products
        )
        self.allocator.offers = found
        if trouble:
            state.problems["device plugin"] = f"device plugin: {trouble[0]}"[:MAX_TEXT]
        else:
            state.problems.pop("device plugin", None)
        if found.keys() - self._registrar.servers.keys():
            self._registrar.check_soon()

    def _health(self, resource: str) -> Mapping[str, bool]:
        assert self.allocator is not None
        offer = self.allocator.offers.get(resource)
        return self.allocator.health(offer) if offer is not None else {}

    def _withdrawal_reported(self, chips: Sequence[int]) -> bool:
        """Return whether kubelet was last sent every device of these chips as unhealthy."""
        assert self.allocator is not None
        for offer in self.allocator.offers.values():
            stands = self.allocator.stands_for(offer)
            gone = [name for name, chip in stands.items() if chip in chips]
            server = self._registrar.servers.get(offer.resource)
            if server is not None and not server.reported_unhealthy(
                [self._names.device(name, outward=True) for name in gone]
            ):
                server.changed()
                return False
        return True

    # ---- answers

    def _server(self, offer: Offer) -> ResourceServer:
        resource, names = offer.resource, self._names

        def own(ids: Sequence[str]) -> list[str]:
            return [names.device(name, outward=False) for name in ids]

        def public(ids: Sequence[str]) -> list[str]:
            return [names.device(name, outward=True) for name in ids]

        async def allocate(ids: Sequence[str]) -> api.ContainerAllocateResponse:
            return await self._allocate(resource, own(ids))

        async def prefer(available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
            assert self.allocator is not None
            now = self.allocator.offers.get(resource)
            return public(await self.allocator.prefer(now, own(available), own(must), size)) if now else list(must)

        def near(text: str) -> Sequence[int]:
            assert self.allocator is not None
            name = names.device(text, outward=False)
            now = self.allocator.offers.get(resource)
            return self._numa.get(now.own[name], ()) if now is not None and name in now.own else ()

        def health() -> Mapping[str, bool]:
            found = self._health(resource)
            return dict(zip(public(list(found)), found.values(), strict=True)) if names else found

        return ResourceServer(
            names.resource(resource, outward=True), offer.device_type, self._settings.folder, health, near, allocate,
            prefer, self._clock,
        )  # fmt: skip

    async def _allocate(self, resource: str, ids: Sequence[str]) -> api.ContainerAllocateResponse:
        assert self.allocator is not None
        grant = await self.allocator.allocate(resource, ids)
        try:
            answer = self._answer(grant)
        except (ValueError, softshare.ShareError) as error:
            self.allocator.withdraw(grant)
            raise Refused(str(error)[:300]) from error
        task = asyncio.create_task(self._settle_soon())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return answer

    def _answer(self, grant: Grant) -> api.ContainerAllocateResponse:
        state = self._state_of()
        assert state is not None and self.allocator is not None
        settings, machine = self._settings, state.machine
        mounts: list[tuple[str, str, bool]] = []
        if settings.soft:
            pod = (self._pods.known or {}).get(grant.meant)
            if pod is None:
                raise softshare.ShareError("the pod of a share is not known")
            chip = grant.chips[0][0]
            mounts = softshare.prepare(settings.enpu, pod, chip, self._dies.get(chip, ""), settings.soft_share_dir)
        numbers = [grant.vdev] if grant.vdev else [chip for chip, _ in grant.chips]
        return respond(
            Given(
                visible=grant.visible,
                numbers=numbers,
                virtual=bool(grant.vdev),
                dynamic=settings.dynamic,
                mixed=settings.mixed,
                runtime=settings.runtime,
                edge=settings.edge,
                family=machine.server_type.rsplit("-", 1)[0],
                products=frozenset(filter(None, self._products.values())),
                topo_file=self._topo,
                extra=self._slow_node.settings,
                mounts=mounts,
            ),
            settings.dev,
        )

    async def _settle_soon(self) -> None:
        """Annotate the pods with their devices as soon as kubelet has recorded them."""
        for pause in SETTLE:
            await self._clock.sleep(pause)
            await self._reconcile()
            assert self.allocator is not None
            if all(grant.confirmed or grant.lost for grant in self.allocator.grants):
                return

    # ---- records

    async def _reconcile_repeatedly(self, state: NodeState) -> None:
        cleared = False
        while True:
            await self._reconcile()
            if self._settings.dynamic and not cleared and self._pods.known is not None:
                cleared = await self._clear(state)
            if self._settings.soft and self._pods.known is not None:
                softshare.clean(self._settings.enpu, self._pods.known.values())
            await self._clock.pause(self._settings.period, self._chance.uniform(0.9, 1.1))

    async def _clear(self, state: NodeState) -> bool:
        """Destroy unused vNPUs, once after the start. Returns whether that succeeded."""
        assert self.allocator is not None
        if self.allocator.problem:
            return False
        try:
            await self.allocator.tidy()
            state.vnpus = await self._clock.limit(self._driver.vnpus(), 30.0)
        except (DriverError, TimeoutError) as error:
            state.problems["vNPUs"] = f"unused vNPUs stay: {error}"[:MAX_TEXT]
            return False
        state.problems.pop("vNPUs", None)
        return True

    async def _reconcile(self) -> None:
        state = self._state_of()
        assert state is not None and self.allocator is not None
        try:
            before = self.allocator.grants
            await self.allocator.reconcile()
            if self.allocator.grants != before:
                for server in self._registrar.servers.values():
                    server.changed()
            if self.allocator.problem:
                state.problems["books"] = self.allocator.problem
            else:
                state.problems.pop("books", None)
            await self._annotate(state)
        except OSError as error:
            state.problems["books"] = f"the ledger of grants cannot be written: {error.strerror}"[:MAX_TEXT]

    async def _annotate(self, state: NodeState) -> None:
        assert self.allocator is not None
        pods: Mapping[str, PodFacts] = self._pods.known or {}
        for uid, notes in annotate.wanted(self.allocator.grants, pods, state, self._settings.host_ip).items():
            pod = pods[uid]
            try:
                await self._cluster.patch_pod(pod.namespace, pod.name, uid, notes)
                state.problems.pop("pods annotated", None)
            except ApiError as error:
                if error.status not in (404, 409, 422):
                    state.problems["pods annotated"] = f"pod {pod.key} cannot be annotated: {error}"[:MAX_TEXT]

    # ---- cluster and agent

    async def _poll_pods(self) -> None:
        state = self._state_of()
        assert state is not None
        while True:
            try:
                await self._pods.fresh()
                state.problems.pop("kubelet pods", None)
            except (OSError, ApiError) as error:
                state.problems["kubelet pods"] = f"kubelet does not list its pods: {error}"[:MAX_TEXT]
            await self._clock.pause(5.0)
