"""Keeps the chips of a super pod pinging one another as the cluster's ConfigMaps say, and collects the results.

Source: component/noded/pkg/pingmesh (executor, watcher). Driver calls: dcmi_*_hccsping_mesh; on Ascend950, whose
addresses are EIDs, dcmi_*_ub_ping_mesh with one assignment for each source.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import DriverError
from belay.agents.drivers.dcmi.errors import DcmiError
from belay.agents.drivers.surroundings import Ping
from belay.agents.node.hardware import pinglist
from belay.agents.node.hardware.pinglist import Config, PingError, Tasks, address
from belay.agents.node.hardware.pingresults import PingFiles
from belay.agents.node.hardware.pings import (
    COLLECT_FACTOR,
    CONFIG_MAP,
    NAMESPACE,
    Maps,
    PingRecords,
    Rounds,
    read_list,
    settings,
)

SUPER_POD_MAP: Final = "super-pod-{}"
#: The ping list of a server of Ascend950, which `belay server` writes.
LIST_MAP: Final = "super-pod-{}-pings-{}"
LIST_KEY: Final = "pingList"
LOG_FOLDER: Final = Path("/user/mind-cluster/pingmesh")
LOOK_EVERY: Final = 5.0
LIST_TRIES: Final = 24
LIST_EVERY: Final = 600.0
CALL_SECONDS: Final = 30.0
SHAPE: Final = {"size": 1792, "count": 10, "interval": 10, "timeout": 1}
"""Bytes of a packet, packets, milliseconds between them, seconds until one is lost."""
_log = Log("pingmesh")

Ask = Callable[..., Awaitable[Any]]
"""A call of the driver: name, arguments, ``timeout``."""


class PingMesh:
    """``folder`` holds the super pod's ping lists and tables; without it (None) all chips ping each other, those of
    Ascend950 by the list that `belay server` writes."""

    def __init__(
        self,
        node: str,
        super_pod: int,
        server_index: int,
        chips: Sequence[int],
        maps: Maps,
        ask: Ask,
        clock: Clock,
        files: PingFiles,
        folder: Path | None = None,
        *,
        by_eid: bool = False,
        rounds: Rounds | None = None,
    ) -> None:
        self._node, self._super_pod, self._index, self._chips = node, super_pod, server_index, tuple(chips)
        self._maps, self._ask, self._clock, self._folder = maps, ask, clock, folder
        self._notes = PingRecords(_log, node, clock, files, rounds)
        self._by_eid, self._kind = by_eid, "ub_ping" if by_eid else "ping"
        self._uid = ""
        self._chosen = Config(False, 1)
        self._tasks: Tasks = {}
        self._wanted: tuple[Config, dict[str, dict[int, str]]] | None = None
        self._list: tuple[str, Tasks] | None = None
        self._list_failures = 0
        self._list_due = self._collect_due = 0.0
        self._latest: dict[int, list[Ping]] | None = None
        self._bodies: dict[str, Mapping[str, Any] | None] = {}

    async def results(self) -> Mapping[int, Sequence[Ping]] | None:
        """The newest results by chip; None before the first assignment, empty after the pings ended."""
        return self._latest

    async def run(self) -> None:
        """Run until cancelled; ends at once where the driver has no such pings."""
        try:
            await self._ask(f"{self._kind}_state", self._chips[0], pinglist.INTERNAL, timeout=CALL_SECONDS)
        except DcmiError as error:
            if not error.supported:
                _log.info("the driver has no pings between chips", node=self._node)
                return
        for chip in self._chips:
            for task in (pinglist.INTERNAL, pinglist.EXTERNAL):
                await self._stop(chip, task)
        try:
            async with asyncio.TaskGroup() as group:
                names = [CONFIG_MAP, SUPER_POD_MAP.format(self._super_pod)]
                if self._by_eid and self._folder is None:
                    names.append(LIST_MAP.format(self._super_pod, self._index))
                for name in names:
                    group.create_task(self._follow(name))
                while True:
                    await self.step()
                    await self._clock.pause(LOOK_EVERY)
        finally:
            self._notes.close()

    async def _follow(self, name: str) -> None:
        async for body in self._maps.config_map(NAMESPACE, name):
            self.receive(name, body)

    def receive(self, name: str, body: Mapping[str, Any] | None) -> None:
        """A ConfigMap as it stands now; None when it is gone."""
        self._bodies[name] = body

    async def step(self) -> None:
        """Run one round: read the configuration and the list, and collect results when due."""
        try:
            self._refresh()
        except PingError as error:
            # the previous configuration stays in force
            self._notes.problem(str(error))
        if self._wanted is not None:
            await self._settle(*self._wanted)
        if self._tasks and self._clock.monotonic() >= self._collect_due:
            self._collect_due = self._clock.monotonic() + self._chosen.interval * COLLECT_FACTOR
            await self.collect()

    def _refresh(self) -> None:
        given = settings(self._bodies.get(CONFIG_MAP))
        devices = settings(self._bodies.get(SUPER_POD_MAP.format(self._super_pod)))
        if given is None or devices is None:
            return
        chosen = pinglist.config(given, self._super_pod)
        nodes = pinglist.members(devices, self._node, self._super_pod)
        if chosen is not None:
            self._wanted = (chosen, nodes)
        self._notes.solved()

    async def _settle(self, chosen: Config, nodes: Mapping[str, Mapping[int, str]]) -> None:
        """Apply the assignments in the driver; skip those that have not changed."""
        found = await self._destinations(nodes) if chosen.active else ("", {})
        if found is None:
            return
        digest, tasks = found
        uid = pinglist.uid(nodes, chosen, digest)
        if uid == self._uid:
            return
        for chip, by_task in self._tasks.items():
            for task in by_task:
                await self._stop(chip, task)
        self._tasks, self._chosen, self._uid = {}, chosen, uid
        if not chosen.active:
            self._latest = {} if self._latest is not None else None
            return
        self._tasks = {chip: by_task for chip, by_task in tasks.items() if chip in self._chips}
        for chip, by_task in sorted(self._tasks.items()):
            for task in sorted(by_task):
                await self._start(chip, task)
        self._collect_due = self._clock.monotonic() + chosen.interval * COLLECT_FACTOR
        _log.info("chips ping", node=self._node, chips=len(self._tasks), uid=uid, interval=chosen.interval)

    async def _destinations(self, nodes: Mapping[str, Mapping[int, str]]) -> tuple[str, Tasks] | None:
        """The hash and content of the ping list; None while it cannot be read."""
        if self._folder is None and not self._by_eid:
            return "", pinglist.full_mesh(self._node, nodes)
        if self._folder is None:
            return self._given_list()
        if self._list is not None and self._clock.monotonic() < self._list_due:
            return self._list
        if self._list is None and self._list_failures >= LIST_TRIES and self._clock.monotonic() < self._list_due:
            return None
        try:
            data = await asyncio.to_thread(read_list, self._folder / f"ping_list_{self._index}.json")
            self._list = (hashlib.sha256(data).hexdigest(), pinglist.listed(data, per_source=self._by_eid))
            self._list_failures = 0
        except (OSError, PingError) as error:
            self._list_failures += 1
            self._notes.problem(f"the ping list cannot be used: {error}")
            if self._list_failures < LIST_TRIES:
                # retried in the next round, five seconds later
                return self._list
        self._list_due = self._clock.monotonic() + LIST_EVERY
        return self._list

    def _given_list(self) -> tuple[str, Tasks] | None:
        """The hash and content of the list that `belay server` writes; the last good one while it cannot be read."""
        given = settings(self._bodies.get(LIST_MAP.format(self._super_pod, self._index))) or {}
        text = str(given.get(LIST_KEY) or "")
        try:
            # pings by EID are defined only in a list
            tasks = pinglist.listed(text, per_source=True) if text else {}
            self._list = (hashlib.sha256(text.encode()).hexdigest() if text else "", tasks)
        except PingError as error:
            self._notes.problem(f"the ping list cannot be used: {error}")
        return self._list

    async def collect(self) -> None:
        """Fetch the results, start what has stopped (a reset chip forgets its tasks), write them down."""
        results: dict[int, dict[int, list[dict[str, Any]]]] = {}
        for chip, by_task in sorted(self._tasks.items()):
            for task in sorted(by_task):
                try:
                    found = await self._ask(f"{self._kind}_results", chip, task, timeout=CALL_SECONDS)
                    if not found:
                        if await self._ask(f"{self._kind}_state", chip, task, timeout=CALL_SECONDS) == 0:
                            await self._start(chip, task)
                        continue
                except DriverError as error:
                    self._notes.problem(f"no results of chip {chip}: {error}")
                    continue
                results.setdefault(chip, {})[task] = found
        self._latest = {
            chip: [Ping(one["ok"], one["replies"]) for found in results.get(chip, {}).values() for one in found]
            for chip in self._tasks
        }
        await self._notes.results(self._uid, self._chosen, self._tasks, results)

    async def _start(self, chip: int, task: int) -> None:
        addresses: object = [address(target.dst) for target in self._tasks[chip][task]]
        if self._by_eid:
            addresses = pinglist.by_source(self._tasks[chip][task])
        shape = {**SHAPE, "period": self._chosen.interval}
        try:
            await self._ask(f"{self._kind}_start", chip, task, addresses, shape, timeout=CALL_SECONDS)
        except DriverError as error:
            self._notes.problem(f"chip {chip} does not begin to ping: {error}")

    async def _stop(self, chip: int, task: int) -> None:
        try:
            await self._ask(f"{self._kind}_stop", chip, task, timeout=CALL_SECONDS)
        except DriverError as error:
            self._notes.problem(f"chip {chip} does not stop pinging: {error}")
