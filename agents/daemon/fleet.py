"""Many simulated nodes in one process, and the faults injected into them.

Each node's ConfigMap `belay-sim-<node>` in belay-nodes describes its faults: key `faults.json` with its chips (the
shape is in agents/drivers/simulated.py), key `surroundings.json` around them (agents/drivers/surroundings.py). It is
the truth about injected faults: faults that it names are present, and a reset removes those it healed. The vNPUs are in
`vnpus.json` in the node's folder. So a restart of the fleet restores the same state.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from belay.agents.common.client import ApiError, ApiServer
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import VNPU
from belay.agents.drivers.simulated import RESET_SECONDS, ServerModel, SimulatedDriver
from belay.agents.drivers.surroundings import SimulatedSurroundings
from belay.agents.node.agent import NodeAgent
from belay.agents.node.detect import HANG_CODE
from belay.agents.node.link_trust import LinkTrust
from belay.agents.node.linkfiles import LinkPart
from belay.agents.node.settings import Settings
from belay.agents.node.surroundings_monitor import ALARMS_EVERY, USE_EVERY, SurroundingsMonitor, default_tables
from belay.agents.node.trust import OrderTrust
from belay.engine.wire.names import NODES, SIM_PREFIX
from belay.engine.wire.policy import NodePolicy

FAULTS_KEY: Final = "faults.json"
SURROUNDINGS_KEY: Final = "surroundings.json"
VNPUS_FILE: Final = "vnpus.json"
LINKS: Final = "links"
"""Folder below a node's own through which processes on this machine receive their links (`belay.agents.datadist`)."""
_RESTART_CEILING: Final = 30.0
_CONFLICTS: Final = 8
_log = Log("fleet")


class FleetCluster(ApiServer, Protocol):
    """The state that a fleet needs beyond its agents."""

    async def delete_config_map(self, namespace: str, name: str) -> None:
        """Delete a ConfigMap; succeed when there is none."""
        ...

    async def replace_config_map(self, body: Mapping[str, Any]) -> None:
        """Replace a ConfigMap as a whole; ApiError 409 when it has changed meanwhile."""
        ...


class SilencedCluster:
    """A cluster that drops a node's reports while the node is configured as silent; all else works."""

    def __init__(self, cluster: FleetCluster, around: SimulatedSurroundings) -> None:
        self._cluster, self._around = cluster, around

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        """Write a report, unless it is dropped."""
        if self._around.silent:
            raise ApiError(503, "the simulated node is silent")
        await self._cluster.put_config_map(body)

    async def delete_config_map(self, namespace: str, name: str) -> None:
        """Delete a report, unless the deletion is dropped."""
        if self._around.silent:
            raise ApiError(503, "the simulated node is silent")
        await self._cluster.delete_config_map(namespace, name)


class FleetNode(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated node."""

    name: str
    row: ServerModel = ServerModel()
    seed: int = 0


class FleetPace(msgspec.Struct, frozen=True, kw_only=True):
    """How long simulated hardware takes, in seconds: a reset, and the time between two readings of the board's alarms
    and of how busy the chips are. The defaults are those of servers."""

    reset_seconds: float = RESET_SECONDS
    alarms_every: float = ALARMS_EVERY
    use_every: float = USE_EVERY


class Fleet:
    """Runs agents on simulated drivers.

    Nodes may be added and removed while it runs. `state_dir` holds a folder per node.
    """

    def __init__(
        self,
        cluster: FleetCluster,
        state_dir: Path,
        settings: Settings | None = None,
        *,
        policy: NodePolicy | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        pace: FleetPace | None = None,
    ) -> None:
        self._cluster, self._state_dir = cluster, state_dir
        self._settings, self._policy = settings or Settings(), policy
        self._clock, self._chance, self._pace = clock or Clock(), chance or random.Random(), pace or FleetPace()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._healing: set[asyncio.Task[None]] = set()
        self.drivers: dict[str, SimulatedDriver] = {}
        self.surroundings: dict[str, SimulatedSurroundings] = {}
        self.agents: dict[str, NodeAgent] = {}

    def add(self, node: FleetNode) -> None:
        """Start a node; do nothing when a node of that name runs."""
        if node.name in self._tasks:
            return
        cut = self._state_dir / node.name / VNPUS_FILE
        driver = SimulatedDriver(
            node.name,
            node.row,
            seed=node.seed,
            scale=self._settings.scale,
            reset_seconds=self._pace.reset_seconds,
            now_ms=self._clock.now_ms,
            sleep=self._clock.sleep,
            healed=lambda chips: self._heal(node.name, chips),
            vnpus=_read_vnpus(cut, node.name),
            recut=lambda vnpus: _write_vnpus(cut, vnpus),
        )
        around = SimulatedSurroundings(node.row.chips, super_pod=node.row.machine.super_pod_id >= 0)
        self.drivers[node.name], self.surroundings[node.name] = driver, around
        self._tasks[node.name] = asyncio.create_task(self._run(node, driver, around))

    async def remove(self, name: str) -> None:
        """Stop a node, as if its power were cut."""
        task = self._tasks.pop(name, None)
        self.drivers.pop(name, None)
        self.surroundings.pop(name, None)
        self.agents.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Stop every node."""
        for name in list(self._tasks):
            await self.remove(name)
        for task in list(self._healing):
            task.cancel()
        await asyncio.gather(*self._healing, return_exceptions=True)

    async def _run(self, node: FleetNode, driver: SimulatedDriver, around: SimulatedSurroundings) -> None:
        """Keep one node's agent running; an agent that fails is restarted, as by a DaemonSet."""
        failures = 0
        cluster: Any = SilencedCluster(self._cluster, around)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_world(node.name, driver, around))
            group.create_task(self._survey(node, driver, around, cluster))
            folder = self._state_dir / node.name
            trust = LinkTrust(OrderTrust(self._settings.order_trust, folder, node.name), folder)
            links = LinkPart(node.name, cluster, folder / LINKS, self._clock, trust=trust)
            group.create_task(links.run())
            while True:
                agent = NodeAgent(
                    node.name,
                    driver,
                    cluster,
                    self._state_dir / node.name,
                    self._settings,
                    self._clock,
                    policy=self._policy,
                    chance=random.Random(self._chance.random()),
                )
                self.agents[node.name] = agent
                try:
                    await agent.run()
                except Exception:
                    # a bug in one node's agent must not stop the others
                    failures += 1
                    _log.exception("agent failed and is restarted", node=node.name, times=failures)
                await self._clock.sleep(self._chance.uniform(0, min(_RESTART_CEILING, 2.0 ** min(failures, 10))))

    async def _survey(
        self, node: FleetNode, driver: SimulatedDriver, around: SimulatedSurroundings, cluster: Any
    ) -> None:
        """Report the surroundings of the node's chips; a surveyor that fails is restarted."""
        hanging: set[int] = set()

        def hang(chips: set[int]) -> None:
            for chip in sorted(chips - hanging):
                driver.inject(chip, HANG_CODE)
            for chip in sorted(hanging - chips):
                driver.clear(chip, HANG_CODE)
            hanging.clear()
            hanging.update(chips)

        while True:
            surveyor = SurroundingsMonitor(
                node.name,
                node.row.chips,
                around,
                cluster,
                lambda: self._tables(node.name),
                self._settings,
                self._clock,
                hang=hang,
                resetting=lambda: self._resetting(node.name),
                alarms_every=self._pace.alarms_every,
                use_every=self._pace.use_every,
            )
            try:
                await surveyor.run()
            except Exception:
                # as with agents, a failure must not stop other nodes
                _log.exception("surveyor failed and is restarted", node=node.name)
            await self._clock.sleep(self._chance.uniform(0, _RESTART_CEILING))

    def _tables(self, name: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The node and switch codes of the policy that the node's agent holds."""
        agent = self.agents.get(name)
        held = agent.state.judge.policy if agent is not None and agent.state is not None else self._policy
        planes = held.rules.planes if held is not None else {}
        return default_tables(planes.get("node", {}), planes.get("switch", {}))()

    def _resetting(self, name: str) -> bool:
        agent = self.agents.get(name)
        return agent is not None and agent.state is not None and bool(agent.state.resetting)

    async def _follow_world(self, name: str, driver: SimulatedDriver, around: SimulatedSurroundings) -> None:
        async for body in self._cluster.config_map(NODES, SIM_PREFIX + name):
            try:
                around.apply(_spec(body, SURROUNDINGS_KEY))
            except ValueError as error:
                _log.warning("description of the surroundings is ignored", node=name, error=error)
            try:
                driver.apply(_spec(body))
            except ValueError as error:
                _log.warning("description of faults is ignored", node=name, error=error)

    def _heal(self, name: str, chips: Sequence[int]) -> None:
        task = asyncio.create_task(self._record_healing(name, chips))
        self._healing.add(task)
        task.add_done_callback(self._healing.discard)

    async def _record_healing(self, name: str, chips: Sequence[int]) -> None:
        """Remove the faults that a reset healed from the description."""
        driver = self.drivers.get(name)
        if driver is None:
            return
        healed = {driver.device(chip): driver.described(chip) for chip in chips}
        for _ in range(_CONFLICTS):
            try:
                body = await self._cluster.get_config_map(NODES, SIM_PREFIX + name)
                if body is None:
                    return
                spec = _spec(body)
                after = without(spec, healed)
                if after != spec:
                    await self._cluster.replace_config_map(
                        {**body, "data": {**body["data"], FAULTS_KEY: json.dumps(after)}}
                    )
                return
            except (ApiError, ValueError) as error:
                if isinstance(error, ApiError) and error.status != 409:
                    _log.warning("healing cannot be recorded", node=name, error=error)
                await self._clock.sleep(self._chance.uniform(0, 0.5))


def _read_vnpus(file: Path, node: str) -> list[VNPU]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[VNPU])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("remembered vNPUs cannot be read, the node starts uncut", node=node, error=error)
        return []


def _write_vnpus(file: Path, vnpus: Sequence[VNPU]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(vnpus))
    os.replace(fresh, file)


def _spec(body: Mapping[str, Any] | None, key: str = FAULTS_KEY) -> dict[str, Any]:
    text = ((body or {}).get("data") or {}).get(key) or "{}"
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("it must be a JSON object")
    return value


def without(spec: Mapping[str, Any], healed: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the description without the given codes of the given chips; drops are over, and so is what happens once. A
    chip with nothing left is left out.
    """
    after: dict[str, Any] = {}
    for key, value in spec.items():
        codes = healed.get(key)
        if codes is None or not isinstance(value, dict):
            after[key] = value
            continue
        gone = {code.upper() for code in codes}
        rest = {**value, "codes": [code for code in value.get("codes") or () if str(code).upper() not in gone]}
        rest.pop("drop", None)
        rest.pop("once", None)
        if rest := {name: content for name, content in rest.items() if content}:
            after[key] = rest
    return after
