"""Reading the network ports of a chip: hccn_tool, and the driver's own counters on an Ascend 950."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, Final

from belay.agents.common.log import Log
from belay.agents.drivers.base import DriverError
from belay.agents.drivers.dcmi.family import A5
from belay.agents.drivers.tools.hccn import HccnTool, Port, bare, measured
from belay.agents.exporter.chips import Chip, Machine
from belay.agents.exporter.samples import FAILED, Value
from belay.agents.exporter.source import Source
from belay.agents.exporter.table import UB_KEYS, UBOE_KEYS, of_group

FAST_SECONDS: Final = 0.010
"""When a UB call takes longer than this, each chip gets its own loop."""

UBOE: Final = 1
_log = Log("exporter")


class Ports:
    """The port groups. The map of an Ascend 950's ports is read once, from the first chip that answers."""

    def __init__(self, tool: HccnTool, source: Source) -> None:
        self._tool, self._source = tool, source
        self._map: tuple[Port, ...] = ()

    async def learn(self, machine: Machine) -> None:
        """Read the port map (Ascend 950 only)."""
        if machine.family != A5 or self._map:
            return
        for chip in machine.chips:
            with contextlib.suppress(DriverError):
                self._map = tuple(port for port in await self._tool.ports(chip.logic) if port.die in (0, 1))
                if self._map:
                    return
        _log.warning("no chip reports its ports; port metrics stay away", chips=len(machine.chips))

    async def fast(self, machine: Machine) -> bool:
        """Whether the driver answers quickly for one port."""
        if not self._map or not machine.chips:
            return True
        begin = asyncio.get_running_loop().time()
        await self._source.read(machine.chips[0].phy, [("ub_port", machine.chips[0].phy, *self._map[0][:2])])
        return asyncio.get_running_loop().time() - begin <= FAST_SECONDS

    async def roce(self, machine: Machine, chip: Chip) -> list[Value] | None:
        """MAC and RoCE counters; one that the tool does not print counts as 0."""
        found = await _tried(self._tool.counters(chip.phy))
        return None if found is None else [Value(m.name, found.get(m.key, 0)) for m in of_group("roce")]

    async def network(self, machine: Machine, chip: Chip) -> list[Value] | None:
        """Read link state, bandwidth and speed of the chip's ports."""
        if machine.family == A5:
            return [value for port in self._map for value in await self._network_port(chip, port)] or None
        name = "npu_chip_info_"
        up = await _tried(self._tool.link(chip.phy))
        rates = await _tried(self._tool.bandwidth(chip.phy))
        ups = await _tried(self._tool.link_ups(chip.phy))
        speed = await _tried(self._tool.speed(chip.phy))
        values = [Value(name + "link_status", FAILED if up is None else int(up))]
        if rates is not None:
            values += [Value(name + "bandwidth_tx", rates[0]), Value(name + "bandwidth_rx", rates[1])]
        if ups is not None:
            values.append(Value("npu_chip_link_up_num", ups))
        if speed is not None:
            values.append(Value("npu_chip_link_speed", speed))
        return values

    async def _network_port(self, chip: Chip, port: Port) -> list[Value]:
        name, extra, suffix = "npu_chip_info_", *_where(port)
        up = await _tried(self._tool.port_link(chip.logic, port.die, port.port))
        rates = await _tried(self._tool.port_bandwidth(chip.logic, port))
        speed = await _tried(self._tool.port_speed(chip.logic, port.die, port.port))
        values = [Value(name + "link_status", FAILED if up is None else int(up), extra, suffix)]
        if rates is not None:
            values.append(Value(name + "bandwidth_tx", rates[0], extra, suffix))
            values.append(Value(name + "bandwidth_rx", rates[1], extra, suffix))
        if speed is not None:
            values.append(Value(name + "link_speed", speed, extra, suffix))
        return values

    async def optical(self, machine: Machine, chip: Chip) -> list[Value] | None:
        """Read the optical modules of the chip's ports."""
        if machine.family == A5:
            return [value for port in self._map for value in await self._optical_port(chip, port)] or None
        found = await _tried(self._tool.optical(chip.phy))
        if found is None:
            return None
        values = []
        for metric in of_group("optical"):
            if metric.labels != "card":
                continue
            if metric.key == "present":
                value: float = {"present": 1, "not present": 0}.get(found.get("present", ""), -1)
            else:
                value = measured(found.get(metric.key))
            values.append(Value(metric.name, value))
        return values

    async def _optical_port(self, chip: Chip, port: Port) -> list[Value]:
        found = await _tried(self._tool.port_optical(chip.logic, port.die, port.port))
        if found is None:
            return []
        extra, suffix = _where(port)
        return [
            Value(metric.name, bare(found.get(metric.key)), extra, suffix)
            for metric in of_group("optical")
            if metric.labels == "card_port"
        ]

    async def ub(self, machine: Machine, chip: Chip) -> list[Value] | None:
        """Packet counters of each port: the driver's, else the tool's."""
        if not self._map:
            return None
        answers = await self._source.read(chip.phy, [("ub_port", chip.phy, port.die, port.port) for port in self._map])
        values = []
        for port, answer in zip(self._map, answers, strict=True):
            counts: dict[str, int] | None
            if answer.ok:
                counts = dict(zip(UB_KEYS, answer.value["counters"], strict=False))
                uboe = answer.value["mode"] == UBOE
            else:
                counts = await _tried(self._tool.port_counters(chip.logic, port.die, port.port))
                uboe = counts is not None and counts.get("is_uboe_port") == 1
            if counts is None:
                continue
            extra, suffix = _where(port)
            values += [
                Value(f"npu_chip_info_{key}", counts.get(key, 0), extra, suffix)
                for key in UB_KEYS
                if uboe or key not in UBOE_KEYS
            ]
        return values or None


def _where(port: Port) -> tuple[tuple[str, str], str]:
    return (str(port.die), str(port.port)), f"_{port.die}_{port.port}"


async def _tried(work: Awaitable[Any]) -> Any:
    """None instead of an error: a port that does not answer loses only its own values."""
    try:
        return await work
    except DriverError:
        return None
