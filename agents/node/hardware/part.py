"""The part of the agent that looks after the node's hardware, beside the one that looks after its chips."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from belay.agents.common.client import ApiError
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import DriverError
from belay.agents.drivers.surroundings import Alarm, Client, Ping, SwitchFault, Use
from belay.agents.node.hardware import ipmi
from belay.agents.node.hardware.bmc import Bmc
from belay.agents.node.hardware.publicfaults import GrpcPublicFaults
from belay.agents.node.hardware.settings import HardwareSettings
from belay.agents.node.hardware.storage import Clients
from belay.agents.node.settings import Settings
from belay.agents.node.state import NodeState
from belay.agents.node.surroundings_monitor import SurroundingsMonitor, Tables, default_tables
from belay.engine.model.labels import PRODUCT_SERIAL
from belay.engine.wire.policy import NodePolicy

SERIAL_DELAY: Final = 19.0
SERIAL_TRIES: Final = 3
RESTART_CEILING: Final = 60.0
_log = Log("hardware")


class ConfigMaps(Protocol):
    """The calls to the API server."""

    async def get_config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Read one ConfigMap."""
        ...

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        """Create a ConfigMap or replace the given keys of it."""
        ...

    async def delete_config_map(self, namespace: str, name: str) -> None:
        """Delete a ConfigMap; succeed when there is none."""
        ...

    async def get_node(self, node: str) -> Mapping[str, Any] | None:
        """Read a node."""
        ...

    async def patch_node(self, node: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        """Set labels and annotations of a node."""
        ...


class NodeSurroundings:
    """The surroundings of a real node's chips. Sources that a node lacks are None and never reported."""

    def __init__(
        self,
        bmc: Bmc | None,
        clients: Clients | None,
        pings: Callable[[], Awaitable[Mapping[int, Sequence[Ping]] | None]] | None = None,
        switch: Callable[[], Awaitable[Sequence[SwitchFault] | None]] | None = None,
    ) -> None:
        self._bmc, self._clients, self._pings, self._switch = bmc, clients, pings, switch

    async def alarms(self) -> Sequence[Alarm] | None:
        """Read the hardware alarms through IPMI."""
        return None if self._bmc is None else await ipmi.alarms(self._bmc)

    async def switch(self) -> Sequence[SwitchFault] | None:
        """Read the bus switch."""
        return None if self._switch is None else await self._switch()

    async def storage(self) -> Mapping[str, Client] | None:
        """Read the storage clients' state files."""
        return None if self._clients is None else await asyncio.to_thread(self._clients.refresh)

    async def pings(self) -> Mapping[int, Sequence[Ping]] | None:
        """Read the newest results of the pings between chips."""
        return None if self._pings is None else await self._pings()

    async def use(self) -> Mapping[int, Use] | None:
        """Hanging processes are found where the chips' processes are known."""
        return None


class Hardware:
    """Runs until cancelled; ``state`` gives the agent's state once the driver has answered."""

    def __init__(
        self,
        node: str,
        cluster: ConfigMaps,
        settings: Settings,
        hardware: HardwareSettings,
        policy: NodePolicy,
        clock: Clock,
        state: Callable[[], NodeState | None],
        *,
        surroundings: NodeSurroundings | None = None,
        beside: Sequence[Callable[[], Awaitable[None]]] = (),
        chance: random.Random | None = None,
    ) -> None:
        self._node, self._cluster, self._settings, self._hardware = node, cluster, settings, hardware
        self._policy, self._clock, self._state = policy, clock, state
        self._chance = chance or random.Random()
        self._bmc = Bmc(hardware.bmc) if hardware.bmc is not None else None
        self._around = surroundings or NodeSurroundings(self._bmc, Clients() if hardware.storage else None)
        self._beside = tuple(beside)
        self._sender = GrpcPublicFaults(hardware.public_faults) if hardware.public_faults else None

    async def run(self) -> None:
        """Run the surveyor and the other tasks; each is restarted when it fails."""
        while (state := self._state()) is None:
            await self._clock.sleep(1.0)
        works = [self._survey(len(state.chips)), *self._beside, self._report_serial]
        try:
            async with asyncio.TaskGroup() as group:
                for work in works:
                    group.create_task(self._again(work))
        finally:
            if self._sender is not None:
                await self._sender.close()

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        while True:
            try:
                await work()
                return
            except (DriverError, ApiError) as error:
                _log.warning("a part cannot work and is restarted", node=self._node, error=error)
            except Exception:
                # a bug here does not affect the parts that protect chips
                _log.exception("a part failed and is restarted", node=self._node)
            failures += 1
            await self._clock.sleep(self._chance.uniform(0.5, min(RESTART_CEILING, 2.0 ** min(failures, 10))))

    def _survey(self, chips: int) -> Callable[[], Awaitable[None]]:
        def nothing(hanging: set[int]) -> None:
            """`NodeSurroundings.use` never reports any."""

        return SurroundingsMonitor(
            self._node,
            chips,
            self._around,
            self._cluster,
            self._tables,
            self._settings,
            self._clock,
            hang=nothing,
            resetting=lambda: bool((state := self._state()) is not None and state.resetting),
            chance=self._chance,
            publish=self._sender.send if self._sender is not None else None,
            alarms_every=float(self._hardware.monitor_period),
            retry=float(self._hardware.report_interval),
        ).run

    @property
    def _tables(self) -> Tables:
        def tables() -> tuple[Mapping[str, str], Mapping[str, str]]:
            state = self._state()
            planes = (state.judge.policy if state is not None else self._policy).rules.planes
            return default_tables(planes.get("node", {}), planes.get("switch", {}))()

        return tables

    async def _report_serial(self) -> None:
        """Write the product's serial number to the node, once; public faults name nodes by it."""
        if self._bmc is None:
            return
        # nodes of a rack that start together must not send requests together
        await self._clock.sleep(self._settings.scaled(self._chance.uniform(0, SERIAL_DELAY)))
        for attempt in range(1, SERIAL_TRIES + 1):
            try:
                serial = await ipmi.serial_number(self._bmc)
                node = await self._cluster.get_node(self._node)
                annotations = ((node or {}).get("metadata") or {}).get("annotations") or {}
                if node is None:
                    raise ApiError(404, "the node is not registered yet")
                if serial and annotations.get(PRODUCT_SERIAL) != serial:
                    await self._cluster.patch_node(self._node, {}, {PRODUCT_SERIAL: serial})
                return
            except (DriverError, ApiError) as error:
                _log.warning("the serial number cannot be read", node=self._node, attempt=attempt, error=error)
                await self._clock.sleep(1.0)
