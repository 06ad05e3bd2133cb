"""Detect chips whose processes hang: their activity is read from the driver and the machine once a minute.

Source: component/ascend-device-plugin/pkg/device/hangdetection; its configuration is
``/usr/local/hangDetectionConfig.json``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import Code, DriverError
from belay.agents.drivers.surroundings import Use
from belay.agents.drivers.tools.hccn import HccnTool, Port
from belay.agents.exporter.table import UB_KEYS
from belay.agents.node.detect import HANG_CODE, HangLimits, HangWatch
from belay.agents.node.settings import MAX_TEXT
from belay.agents.node.state import NodeState

CONFIG: Final = Path("/usr/local/hangDetectionConfig.json")
EVERY: Final = 60.0
AI_CORE: Final = 2
BUSY: Final = ("rx_busi_flit_num", "tx_busi_flit_num")
SECONDS: Final = 5.0
MAX_CONFIG: Final = 64 << 10
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_log = Log("kubelet")

Ask = Callable[..., Awaitable[Any]]
Packets = Callable[[int], Awaitable[int]]


class _Threshold(msgspec.Struct, frozen=True):
    aicore: float = msgspec.field(default=5.0, name="AICoreUtilization")
    memory: float = msgspec.field(default=0.0, name="HbmMemoryDelta")
    traffic: float = msgspec.field(default=100.0, name="TrafficDelta")
    cpu: float = msgspec.field(default=5.0, name="CPUTimeDelta")
    duration: int = msgspec.field(default=5, name="DetectDuration")


class _Detection(msgspec.Struct, frozen=True, rename="pascal"):
    enabled: bool = True
    threshold: _Threshold = _Threshold()


class _Config(msgspec.Struct, frozen=True):
    detection: _Detection = msgspec.field(default=_Detection(), name="HangDetection")


def limits(path: Path = CONFIG) -> HangLimits | None:
    """Return this node's hang thresholds; None when detection is switched off. Raises ValueError for a bad file."""
    try:
        if path.stat().st_size > MAX_CONFIG:
            raise ValueError(f"{path} is larger than {MAX_CONFIG >> 10} KiB")
        found = msgspec.json.decode(path.read_bytes(), type=_Config).detection
    except FileNotFoundError:
        return HangLimits()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    one = found.threshold
    if one.duration < 1:
        raise ValueError(f"{path}: DetectDuration {one.duration} must be at least 1")
    return HangLimits(one.aicore, one.memory, one.traffic, one.cpu, one.duration) if found.enabled else None


class Hangs:
    """Check until cancelled. ``ask`` calls the driver, ``packets`` returns the packet count of a chip's port."""

    def __init__(
        self, state: NodeState, ask: Ask, packets: Packets, found: HangLimits, clock: Clock, wake: Callable[[], None],
        *, every: float = EVERY, proc: Path = Path("/proc"),
    ) -> None:  # fmt: skip
        self._state, self._ask, self._packets, self._clock, self._wake = state, ask, packets, clock, wake
        self._watch, self._every, self._proc = HangWatch(found), every, proc
        self._hanging: frozenset[int] = frozenset()

    async def run(self) -> None:
        """Check once a minute."""
        while True:
            await self._clock.pause(self._every)
            await self.check()

    async def check(self) -> None:
        """Check once, and report to the agent the hangs that began or ended."""
        use = {}
        for chip in self._state.ids:
            if not self._state.users.chips.get(chip):
                continue
            try:
                use[chip] = await self._read(chip)
            except DriverError as error:
                self._state.problems["hangs"] = f"use of {self._state.name(chip)} is not known: {error}"[:MAX_TEXT]
        hanging = frozenset(self._watch.update(use))
        if hanging == self._hanging:
            return
        for chip in sorted(hanging - self._hanging):
            _log.warning("processes of a chip stand still", chip=self._state.name(chip))
        self._hanging = hanging
        now = self._clock.now_ms()
        for chip in self._state.ids:
            others = tuple(code for code in self._state.found.get(chip, ()) if code.code != HANG_CODE)
            codes = (*others, Code(HANG_CODE, now)) if chip in hanging else others
            if codes:
                self._state.found[chip] = codes
            else:
                self._state.found.pop(chip, None)
        self._wake()

    async def _read(self, chip: int) -> Use:
        pids = frozenset(int(pid) for pid, _ in await self._ask("processes", chip, timeout=SECONDS))
        cores = float(await self._ask("utilisation", chip, AI_CORE, timeout=SECONDS))
        memory: Mapping[str, int] = await self._ask("hbm", chip, timeout=SECONDS)
        try:
            packets = await self._packets(chip)
        except DriverError:
            # a server without the tool: the other readings decide
            packets = 0
        return Use(cores, float(memory.get("used", 0)), packets, self._cpu_seconds(pids), pids)

    def _cpu_seconds(self, pids: Iterable[int]) -> float:
        total = 0
        for pid in pids:
            try:
                fields = (self._proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
                user, system = fields.rpartition(")")[2].split()[11:13]
                total += int(user) + int(system)
            except (OSError, ValueError):
                continue
        return total / _TICKS


async def all_packets(counters: Callable[[int], Awaitable[Mapping[str, int]]], chip: int) -> int:
    """Return the packets that a chip's RoCE port has sent and received. Raises DriverError."""
    found = await counters(chip)
    return sum(found.get(name, 0) for name in ("roce_rx_all_pkt_num", "roce_tx_all_pkt_num"))


class Flits:
    """Count the flits that an Ascend950 chip's ports carry for its work, in both directions; these chips have no RoCE.

    The port map is read once, from the first chip that answers; counters come from the driver, else from the tool. A
    port that does not answer keeps its last count, so that sums of successive readings stay comparable.
    """

    def __init__(self, ask: Ask, tool: HccnTool, logic: Callable[[int], int]) -> None:
        self._ask, self._tool, self._logic = ask, tool, logic
        self._ports: Sequence[Port] = ()
        self._last: dict[tuple[int, Port], int] = {}

    async def count(self, chip: int) -> int:
        """Return the flits since the chip was started. Raises DriverError while no chip has answered with its ports."""
        if not self._ports:
            self._ports = await self._tool.ports(self._logic(chip))
        total = 0
        for port in self._ports:
            with contextlib.suppress(DriverError):
                found = await self._counters(chip, port)
                self._last[chip, port] = sum(found.get(key, 0) for key in BUSY)
            total += self._last.get((chip, port), 0)
        return total

    async def _counters(self, chip: int, port: Port) -> Mapping[str, int]:
        try:
            found = await self._ask("ub_port", chip, port.die, port.port, timeout=SECONDS)
        except DriverError:
            return await self._tool.port_counters(self._logic(chip), port.die, port.port)
        return dict(zip(UB_KEYS, found["counters"], strict=False))
