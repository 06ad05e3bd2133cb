"""RDMA cards as resources of kubelet, a part of the agent.

Every share of a resource is alike: a container gets the device nodes of all its cards.
Source: component/k8s-rdma-shared-dev-plugin/pkg/resources/ub_device/{resources_manager,server}.go.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from belay.agents.common.client import ApiError
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.tools.command import Runner
from belay.agents.kubelet.api import deviceplugin_pb2 as api
from belay.agents.kubelet.cutting import Refused
from belay.agents.kubelet.registrar import Registrar
from belay.agents.kubelet.server import ResourceServer
from belay.agents.kubelet.settings import PluginSettings
from belay.agents.node.settings import MAX_TEXT
from belay.agents.node.state import NodeState
from belay.agents.rdma import cards as tool_output
from belay.agents.rdma.config import RdmaResource, RdmaSettings
from belay.agents.rdma.devices import RdmaCard, cards, selected
from belay.agents.rdma.faults import Checks
from belay.agents.rdma.report import DpuReport, switch_on

_PERMISSIONS: Final = "rwm"
_log = Log("rdma")


class Reports(Protocol):
    """The calls to the API server that write the report."""

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        """Create a ConfigMap or replace the given keys of it. Raises ApiError."""
        ...


class RdmaPart:
    """Offer the cards and report their faults until cancelled. ``state`` returns the agent's state, None until the
    driver of the chips has answered; ``end`` ends the process when kubelet does not listen.
    """

    def __init__(
        self,
        node: str,
        cluster: Reports,
        settings: RdmaSettings,
        clock: Clock,
        state: Callable[[], NodeState | None],
        end: Callable[[], None],
        tool: tool_output.Tool | None = None,
    ) -> None:
        self._cluster, self._settings, self._clock, self._state_of = cluster, settings, clock, state
        self._checks = Checks(settings.sys, tool or Runner(settings.tool), settings.codes)
        self._report = DpuReport(node)
        self._up: set[str] = set()
        self.found: dict[str, list[RdmaCard]] = {}
        self._registrar: Registrar[RdmaResource] = Registrar(
            node, PluginSettings(folder=settings.folder), clock, random.Random(),
            lambda: {one.name: one for one in settings.resources}, self._server, end,
        )  # fmt: skip

    async def run(self) -> None:
        """Serve kubelet, look at the cards, check them."""
        while (state := self._state_of()) is None:
            await self._clock.sleep(0.05)
        await self._look(state)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._registrar.run(state))
                if self._settings.update:
                    group.create_task(self._look_again(state))
                if self._settings.faults >= 1 and any(one.bus == "ub" for one in self._settings.resources):
                    group.create_task(self._check_again(state))
        finally:
            await self._registrar.close()

    async def _look_again(self, state: NodeState) -> None:
        while True:
            await self._clock.sleep(self._settings.update)
            await self._look(state)

    async def _look(self, state: NodeState) -> None:
        """Read the cards, switch their interfaces on, and report to kubelet what changed."""
        by_bus = {
            bus: await asyncio.to_thread(cards, self._settings.sys, bus)
            for bus in {one.bus for one in self._settings.resources}
        }
        found = {one.name: selected(by_bus[one.bus], one) for one in self._settings.resources}
        problems = []
        for resource, chosen in found.items():
            problems += [] if chosen else [f"no card fits the selectors of {resource}"]
            problems += [text for card in chosen if (text := self._on(card.interface))]
        self._say(state, "rdma cards", "; ".join(problems))
        if found != self.found:
            _log.info("RDMA cards", **{name: [card.hca for card in chosen] for name, chosen in found.items()})
            self.found = found
            for server in self._registrar.servers.values():
                server.changed()

    def _on(self, interface: str) -> str:
        """Switch an interface on once; why that did not work."""
        if not interface or interface in self._up:
            return ""
        try:
            switch_on(interface)
        except OSError as error:
            return f"interface {interface} was not switched on: {error.strerror}"
        self._up.add(interface)
        return ""

    async def _check_again(self, state: NodeState) -> None:
        while True:
            ub = {one.name for one in self._settings.resources if one.bus == "ub"}
            chosen = {card.hca: card for name in ub for card in self.found.get(name, [])}
            await self._check(state, list(chosen.values()))
            await self._clock.sleep(self._settings.faults)

    async def _check(self, state: NodeState, chosen: Sequence[RdmaCard]) -> None:
        faults = await self._checks.run(chosen)
        problem = self._checks.problem
        body = self._report.due(chosen, faults, self._clock.monotonic(), time.time())
        if body is not None:
            for fault in faults:
                _log.warning("RDMA fault", card=fault.hca or "node", code=fault.code.code, details=fault.details)
            try:
                await self._cluster.put_config_map(body)
                self._report.written()
            except (ApiError, OSError) as error:
                problem = f"{body['metadata']['name']} was not written: {error}"
        self._say(state, "rdma faults", problem)

    def _say(self, state: NodeState, topic: str, problem: str) -> None:
        if problem:
            state.problems[topic] = f"RDMA: {problem}"[:MAX_TEXT]
        else:
            state.problems.pop(topic, None)

    def _server(self, resource: RdmaResource) -> ResourceServer:
        def health() -> dict[str, bool]:
            there = bool(self.found.get(resource.name))
            return {str(number): True for number in range(resource.shares)} if there else {}

        async def allocate(ids: Sequence[str]) -> api.ContainerAllocateResponse:
            chosen = self.found.get(resource.name, [])
            if not chosen:
                raise Refused(f"no card of {resource.name} is there: look at the selectors of its configuration")
            nodes = sorted({node for card in chosen for node in card.nodes})
            dev = str(self._settings.dev)
            devices = [
                api.DeviceSpec(host_path=dev + node.removeprefix("/dev"), container_path=node, permissions=_PERMISSIONS)
                for node in nodes
            ]
            return api.ContainerAllocateResponse(devices=devices)

        async def prefer(available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
            return [*must, *(one for one in available if one not in must)][:size]

        kind = resource.name.rpartition("/")[2]
        return ResourceServer(
            resource.name, kind, self._settings.folder, health, lambda _: (), allocate, prefer, self._clock
        )
