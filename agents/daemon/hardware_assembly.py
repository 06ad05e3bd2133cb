"""Assembling the hardware part from what the driver and the settings allow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from belay.agents.common.client import KubeClient
from belay.agents.common.clock import Clock, NodeClock
from belay.agents.daemon.context import AgentContext
from belay.agents.daemon.server_topology import TopologyFile
from belay.agents.drivers.base import Driver
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.surroundings import Ping
from belay.agents.node.hardware.bmc import Bmc
from belay.agents.node.hardware.part import Hardware, NodeSurroundings
from belay.agents.node.hardware.pingmesh import LOG_FOLDER, PingMesh
from belay.agents.node.hardware.pingresults import PingFiles
from belay.agents.node.hardware.pingwindows import PingWindows
from belay.agents.node.hardware.roceping import FOLDER, RocePings
from belay.agents.node.hardware.settings import HardwareSettings
from belay.agents.node.hardware.snapshots import Snapshots
from belay.agents.node.hardware.storage import Clients
from belay.agents.node.hardware.superpod import SuperPod
from belay.agents.node.state import NodeState

MARKS: Final = "super-pod-marks.json"


def hardware_part(hardware: HardwareSettings, context: AgentContext) -> Hardware:
    """The part that the settings select. Pings and super pods need the real driver."""
    clock, driver, state = NodeClock(), context.driver, context.agent.known_state
    pods = _SuperPodWorks(context.node, context.client, hardware, driver, state, clock, context.folder)

    beside: list[Callable[[], Awaitable[None]]] = []
    if hardware.super_pod and isinstance(driver, DcmiDriver):
        beside += [pods.pings, pods.windows.run, pods.marks, pods.cards, pods.topology]
    if hardware.snapshots:
        beside.append(Snapshots(context.node, context.client, clock).run)

    around = NodeSurroundings(
        Bmc(hardware.bmc) if hardware.bmc is not None else None,
        Clients() if hardware.storage else None,
        pods.results,
        driver.switch if isinstance(driver, DcmiDriver) else None,
    )
    return Hardware(
        context.node,
        context.client,
        context.settings,
        hardware,
        context.policy,
        clock,
        state,
        surroundings=around,
        beside=beside,
    )


class _SuperPodWorks:
    """The tasks for nodes of super pods; on other nodes each ends at once."""

    def __init__(
        self,
        node: str,
        client: KubeClient,
        hardware: HardwareSettings,
        driver: Driver,
        state: Callable[[], NodeState | None],
        clock: Clock,
        folder: Path,
    ) -> None:
        self._node, self._client, self._hardware, self._driver = node, client, hardware, driver
        self._state, self._clock, self._folder = state, clock, folder
        self._mesh: PingMesh | None = None
        self.windows = PingWindows(node, client, clock)

    async def results(self) -> Mapping[int, Sequence[Ping]] | None:
        """The newest results of pings; None if there are none."""
        return None if self._mesh is None else await self._mesh.results()

    async def pings(self) -> None:
        """Run the pings between chips."""
        state = self._state()
        if state is None or state.machine.super_pod_id < 0 or not isinstance(self._driver, DcmiDriver):
            return
        machine, shared = state.machine, self._hardware.ras_root
        folder = Path(shared) / "cluster" / f"super-pod-{machine.super_pod_id}" if shared else None
        files = PingFiles(
            LOG_FOLDER / f"{self._node}.log", folder, machine.server_index, self._hardware.result_days
        )  # fmt: skip
        self._mesh = PingMesh(
            self._node, machine.super_pod_id, machine.server_index, sorted(state.ids), self._client,
            self._driver.calls.ask, self._clock, files, folder, by_eid=machine.generation.unified_bus,
            rounds=self.windows.add,
        )  # fmt: skip
        await self._mesh.run()

    async def cards(self) -> None:
        """Ping servers of other super pods over the network cards (Ascend950)."""
        state, shared = self._state(), self._hardware.ras_root
        if state is None or state.machine.super_pod_id < 0 or not shared:
            return
        if not state.machine.generation.unified_bus:
            return
        machine, folder = state.machine, Path(shared) / "cluster" / FOLDER
        files = PingFiles(
            LOG_FOLDER / f"{self._node}-roce.log", folder, f"{machine.super_pod_id}_{machine.server_index}",
            self._hardware.result_days,
        )  # fmt: skip
        await RocePings(
            self._node,
            machine.super_pod_id,
            machine.server_index,
            self._client,
            self._clock,
            files,
            folder,
            rounds=self.windows.add,
        ).run()

    async def topology(self) -> None:
        """Write the server's topology into the shared folder (Ascend950)."""
        state, shared = self._state(), self._hardware.ras_root
        if state is None or state.machine.super_pod_id < 0 or not shared or not state.machine.generation.unified_bus:
            return
        await TopologyFile(state.machine, Path(shared), self._clock).run()

    async def marks(self) -> None:
        """Mark the chips that faulty jobs hold."""
        state = self._state()
        if state is None or state.machine.super_pod_id < 0 or not isinstance(self._driver, DcmiDriver):
            return
        await SuperPod(
            self._node, sorted(state.ids), self._client, self._driver.calls.ask, self._clock, self._folder / MARKS
        ).run()
