"""Watches the surroundings of a node's chips and reports them as NodeD does: hardware, switch, storage, pings, hangs.

Every source is read at its own pace; a report is written when it changes and periodically, and deleted or withdrawn
when no fault is left. A source that fails for a while keeps its last report.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from belay.agents.common.client import ApiError
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import DriverError
from belay.agents.drivers.surroundings import Surroundings
from belay.agents.node import detect
from belay.agents.node.detect import ActiveFault, HangWatch, StorageWatch
from belay.agents.node.settings import Settings
from belay.engine.model.labels import CIM_CONSUMER
from belay.engine.model.levels import NODE_LEVELS
from belay.engine.wire import nodeinfo, publicinfo
from belay.engine.wire.gojson import go_json
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX, NODE_NAMESPACE, NODE_PREFIX

#: Seconds between two readings (component/noded, component/ascend-device-plugin: monitorPeriod and list-watch).
ALARMS_EVERY: Final = 60.0
SWITCH_EVERY: Final = 5.0
STORAGE_EVERY: Final = 5.0
PINGS_EVERY: Final = 10.0
USE_EVERY: Final = 60.0
#: Unchanged hardware faults are reported again after half an hour.
AGAIN: Final = 1800.0
_LEAST_PAUSE: Final = 0.5
PUBLIC_NAMESPACE: Final = "cluster-system"
_PING: Final = "pingmesh"
_log = Log("surveyor")

Tables = Callable[[], tuple[Mapping[str, str], Mapping[str, str]]]
"""The levels of node codes (upper case) and of switch codes (lower case) in force."""


class Writer(Protocol):
    """The calls to the API server that the surveyor needs."""

    async def get_config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Read one ConfigMap."""
        ...

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        """Create a ConfigMap or replace the given keys of it."""
        ...

    async def delete_config_map(self, namespace: str, name: str) -> None:
        """Delete a ConfigMap; succeed when there is none."""
        ...


class SurroundingsMonitor:
    """Runs until cancelled. ``hang`` gets the chips that hang; ``resetting``: whether a reset is in progress.

    ``publish`` sends the messages of storage clients instead of writing them as ConfigMaps (NodeD's way, by gRPC).
    ``retry``: seconds after which a report that could not be written is made again, where that is sooner."""

    def __init__(
        self,
        node: str,
        chips: int,
        source: Surroundings,
        cluster: Writer,
        tables: Tables,
        settings: Settings,
        clock: Clock,
        *,
        hang: Callable[[set[int]], None],
        resetting: Callable[[], bool] = lambda: False,
        chance: random.Random | None = None,
        publish: Callable[[Mapping[str, Any]], Awaitable[None]] | None = None,
        alarms_every: float = ALARMS_EVERY,
        pings_every: float = PINGS_EVERY,
        use_every: float = USE_EVERY,
        retry: float | None = None,
    ) -> None:
        self._publish, self._alarms_every, self._pings_every = publish, alarms_every, pings_every
        self._use_every, self._retry = use_every, retry
        self._node, self._chips, self._source, self._cluster = node, chips, source, cluster
        self._tables, self._settings, self._clock = tables, settings, clock
        self._hang, self._resetting, self._chance = hang, resetting, chance or random.Random()
        self._storage, self._hangs = StorageWatch(), HangWatch()
        self._last: dict[str, object] = {}
        self._last_at: dict[str, float] = {}
        self._standing: dict[str, dict[str, tuple[ActiveFault, int]]] = {}
        self._lost: set[int] = set()

    async def run(self) -> None:
        """Read every source at its pace; many nodes in one process begin at different moments."""
        begin = self._clock.monotonic()
        due = {name: begin + self._chance.uniform(0, self._pause(every)) for name, (_, every) in self._works.items()}
        while True:
            now = self._clock.monotonic()
            for name, (work, every) in self._works.items():
                if now >= due[name]:
                    due[name] = self._clock.due(self._pause(every))
                    if not await self._try(name, work) and self._retry is not None:
                        due[name] = min(due[name], now + self._pause(self._retry))
            await self._clock.sleep(max(0.02, min(due.values()) - self._clock.monotonic()))

    def _pause(self, seconds: float) -> float:
        return max(_LEAST_PAUSE, self._settings.scaled(seconds))

    @property
    def _works(self) -> dict[str, tuple[Callable[[], Awaitable[None]], float]]:
        return {
            "hardware": (self.hardware, self._alarms_every),
            "switch": (self.switch, SWITCH_EVERY),
            "storage": (self.storage, STORAGE_EVERY),
            "pings": (self.pings, self._pings_every),
            "use": (self.use, self._use_every),
        }

    async def _try(self, name: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether an early retry is useless: the report succeeded, or its source failed."""
        try:
            await self._clock.limit(work(), self._settings.driver_timeout)
        except (DriverError, ApiError, TimeoutError) as error:
            _log.warning("cannot be reported, the last report stays", node=self._node, what=name, error=error)
            return not isinstance(error, ApiError)
        return True

    async def hardware(self) -> None:
        """Report the hardware's alarms; without any the report is deleted."""
        alarms = await self._source.alarms()
        if alarms is None:
            return
        devices, status = detect.hardware(alarms, self._tables()[0])
        if not self._is_due("hardware", (tuple(devices), status), again=AGAIN if devices else None):
            return
        if devices:
            await self._cluster.put_config_map(nodeinfo.build(self._node, devices, status, self._clock.now()))
        elif await self._cluster.get_config_map(NODE_NAMESPACE, NODE_PREFIX + self._node) is not None:
            await self._withdraw_alarms(status)
        self._record("hardware", (tuple(devices), status))

    async def _withdraw_alarms(self, status: str) -> None:
        """Delete the report. An agent that may not, since it could not make it again, reports that all is well."""
        try:
            await self._cluster.delete_config_map(NODE_NAMESPACE, NODE_PREFIX + self._node)
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            await self._cluster.put_config_map(nodeinfo.build(self._node, (), status, self._clock.now()))

    async def switch(self) -> None:
        """Report the switch's faults in the node's device report, once there is one."""
        faults = await self._source.switch()
        if faults is None:
            return
        now_ms = self._clock.now_ms()
        body = detect.switch_info(faults, self._tables()[1], now_ms // 1000, resetting=self._resetting())
        said = {key: value for key, value in body.items() if key != "UpdateTime"}
        if not self._is_due("switch", said, again=300.0):
            return
        name = DEVICE_PREFIX + self._node
        report = await self._cluster.get_config_map(DEVICE_NAMESPACE, name)
        if "DeviceInfoCfg" not in ((report or {}).get("data") or {}):
            return
        metadata = {"name": name, "namespace": DEVICE_NAMESPACE, "labels": {CIM_CONSUMER: "true"}}
        await self._cluster.put_config_map(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"SwitchInfoCfg": go_json(body)}}
        )
        self._record("switch", said)

    async def storage(self) -> None:
        """Report storage clients in trouble as public faults of their own senders."""
        clients = await self._source.storage()
        if clients is None:
            return
        now_ms = self._clock.now_ms()
        scale = self._settings.scaled(1.0)
        found = self._storage.update(self._node, clients, self._chips, int(now_ms / scale))
        for sender, _, _ in detect.STORAGE.values():
            await self._public(sender, [fault for fault in found if fault.sender == sender], detect.RESEND_MS)

    async def pings(self) -> None:
        """Report chips that reach no other chip."""
        results = await self._source.pings()
        if results is None:
            return
        for chip in range(self._chips):
            verdict = detect.ping_faulty(results[chip]) if chip in results else False
            if verdict is not None:
                (self._lost.add if verdict else self._lost.discard)(chip)
        found = [
            ActiveFault(_PING, detect.fault_id(self._node, chip), detect.PING_CODE, (chip,))
            for chip in sorted(self._lost)
        ]
        await self._public(_PING, found, None)

    async def use(self) -> None:
        """Report the chips that hang."""
        use = await self._source.use()
        if use is not None:
            self._hang(self._hangs.update(use))

    async def _public(self, sender: str, found: list[ActiveFault], again_ms: int | None) -> None:
        """Report active and recovered faults; a recovered fault is reported as long as another is active."""
        name, now_ms = f"{sender.lower()}-fault-{self._node}", self._clock.now_ms()
        publish = self._publish if sender != _PING else None
        if sender not in self._standing:
            # what an earlier process of the agent reported and did not recover; sent messages are not stored anywhere
            self._standing[sender] = (
                _reported(await self._cluster.get_config_map(PUBLIC_NAMESPACE, name), sender)
                if publish is None
                else {f.id: (f, now_ms) for f in detect.storage_faults(self._node, sender, self._chips)}
            )
        before = self._standing[sender]
        standing = {fault.id: before.get(fault.id, (fault, now_ms)) for fault in found}
        over = {key: row for key, row in before.items() if key not in standing}
        again = again_ms / 1000 if again_ms is not None and standing else None
        if not self._is_due(sender, tuple(sorted(standing)), again=again) or not (standing or over):
            return
        rows = [(fault, "occur", since) for fault, since in standing.values()]
        rows += [(fault, "recover", since) for fault, since in over.values()]
        body = detect.message(self._node, sender, rows, now_ms)
        if publish is not None:
            await publish(body)
        else:
            await self._cluster.put_config_map(publicinfo.build(PUBLIC_NAMESPACE, name, body))
        self._standing[sender] = standing
        self._record(sender, tuple(sorted(standing)))

    def _is_due(self, what: str, said: object, *, again: float | None) -> bool:
        if what not in self._last or self._last[what] != said:
            return True
        return again is not None and self._clock.monotonic() - self._last_at[what] >= self._settings.scaled(again)

    def _record(self, what: str, said: object) -> None:
        self._last[what], self._last_at[what] = said, self._clock.monotonic()


def _reported(body: Mapping[str, Any] | None, sender: str) -> dict[str, tuple[ActiveFault, int]]:
    """Return the active faults in a message of this node, by id."""
    found: dict[str, tuple[ActiveFault, int]] = {}
    for message in publicinfo.parse(body).messages if body is not None else ():
        for fault in message.faults:
            if fault.assertion == "occur":
                chips = fault.influences[0].chips
                found[fault.id] = (ActiveFault(sender, fault.id, fault.code, chips), fault.time_ms)
    return found


def default_tables(node: Mapping[str, str], switch: Mapping[str, str]) -> Tables:
    """Tables that do not change; levels that NodeD does not know count as its worst."""
    checked = {code.upper(): level if level in NODE_LEVELS else NODE_LEVELS[-1] for code, level in node.items()}
    lowered = {code.lower(): level for code, level in switch.items()}
    return lambda: (checked, lowered)
