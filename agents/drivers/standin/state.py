"""The stand-in library's state, a file that tests and the library map: a fault set here is visible to agents.

Layouts mirror dcmi_standin.h; `Standin.open` compares sizes, so that a stale file is refused, not misread.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from ctypes import c_char, c_float, c_int32, c_long, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Final

MAGIC: Final = 0x42444332
URMA, EIDS = 8, 16
CHIPS, CODES, VDEVS, PROCESSES, TEMPLATES, OVERRIDES, EVENTS = 64, 128, 16, 32, 32, 64, 1024
_FUTEX_WAKE, _EVERYONE = 1, 2**31 - 1
_FUTEX_CALL: Final = {"x86_64": 202, "aarch64": 98}
"""Number of the system call futex, which the C library does not offer by name."""


class Vdev(ctypes.Structure):
    """One vNPU of a chip; id 0 is none."""

    _fields_ = [("id", c_uint32), ("used", c_uint32), ("group", c_uint32), ("name", c_char * 32)]


class Process(ctypes.Structure):
    """A process on a chip and its bytes of memory."""

    _fields_ = [("pid", c_int32), ("pad", c_uint32), ("bytes", c_uint64)]


class SimChip(ctypes.Structure):
    """State of one chip in the stand-in library."""

    _fields_ = [
        ("phy", c_int32), ("logic", c_int32), ("card", c_int32), ("device", c_int32), ("dropped", c_uint32),
        ("health", c_uint32), ("network", c_int32), ("boot", c_int32), ("boot_at_ms", c_uint64),
        ("reset_fails", c_uint32), ("resets", c_uint32), ("sticky", c_uint32), ("outband", c_uint32),
        ("code_count", c_uint32), ("codes", c_uint32 * CODES), ("temperature", c_int32), ("power", c_int32),
        ("voltage", c_uint32), ("utilisation", c_uint32 * 16), ("frequency", c_uint32 * 16), ("hbm_total", c_uint64),
        ("hbm_used", c_uint64), ("hbm_frequency", c_uint32), ("hbm_temperature", c_int32),
        ("hbm_bandwidth", c_uint32), ("ecc", (c_uint32 * 8) * 4), ("ddr_total", c_uint64), ("ddr_free", c_uint64),
        ("ip", c_uint8 * 4), ("die", (c_uint32 * 5) * 3), ("sdid", c_uint32), ("hccs", (c_uint64 * 16) * 4),
        ("sio_tx", c_uint32), ("sio_rx", c_uint32), ("process_count", c_uint32), ("processes", Process * PROCESSES),
        ("vdevs", Vdev * VDEVS), ("serial", c_char * 64), ("brother", c_int32), ("urma_count", c_uint32),
        ("eid_count", c_uint32 * URMA), ("eid", ((c_uint8 * 16) * EIDS) * URMA),
    ]  # fmt: skip


class Template(ctypes.Structure):
    """A vNPU template: AI cores and MB."""

    _fields_ = [("name", c_char * 32), ("cores", c_float), ("memory", c_uint32)]


class Override(ctypes.Structure):
    """One call scripted to fail or hang."""

    _fields_ = [
        ("name", c_char * 64), ("result", c_int32), ("remaining", c_int32), ("delay_ms", c_uint32), ("phy", c_int32),
    ]  # fmt: skip


class SimEvent(ctypes.Structure):
    """One fault event that the stand-in library delivers."""

    _fields_ = [
        ("code", c_uint32), ("logic", c_uint16), ("severity", c_uint8), ("assertion", c_uint8), ("serial", c_int32),
        ("pad", c_uint32),
    ]  # fmt: skip


class SimState(ctypes.Structure):
    """State of the whole machine, as the library maps it."""

    _fields_ = [
        ("magic", c_uint32), ("size", c_uint32), ("chips", c_uint32), ("v2", c_uint32), ("board", c_uint32),
        ("mainboard", c_uint32), ("aicores", c_uint32), ("reset_ms", c_uint32), ("super_pod_id", c_uint32),
        ("server_id", c_uint32), ("chassis_id", c_uint32), ("super_pod_type", c_uint32), ("scale_type", c_uint32),
        ("reset_group", c_uint32), ("cores_per_chip", c_float), ("memory_per_chip", c_uint32),
        ("chip_name", c_char * 32), ("chip_type", c_char * 32), ("npu_name", c_char * 32), ("product", c_char * 64),
        ("version", c_char * 32), ("templates", Template * TEMPLATES), ("overrides", Override * OVERRIDES),
        ("events_written", c_uint64), ("events", SimEvent * EVENTS), ("chip", SimChip * CHIPS),
    ]  # fmt: skip


class Standin:
    """The mapped state. Chips are named by physical id."""

    def __init__(self, file: Path, mapped: mmap.mmap) -> None:
        self.file = file
        self._map = mapped
        self.state = SimState.from_buffer(mapped)

    @classmethod
    def create(
        cls,
        file: Path,
        *,
        chips: int = 8,
        chips_per_card: int = 1,
        chip_name: str = "910B3",
        board: int = 0x30,
        mainboard: int = 0,
        product: str = "",
        aicores: int = 20,
        hbm_mb: int = 65_536,
        ddr_mb: int = 0,
        reset_group: int = 8,
        reset_ms: int = 200,
        super_pod: tuple[int, int] | None = None,
        templates: Sequence[tuple[str, float, int]] = (),
        v2: bool = False,
    ) -> Standin:
        """Write a healthy machine; the defaults are an Atlas 800T A2. ``super_pod`` is (super pod, server index)."""
        if not 1 <= chips <= CHIPS:
            raise ValueError(f"1 to {CHIPS} chips, not {chips}")
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f"{file.name}.new")
        with open(fresh, "wb") as out:
            out.truncate(ctypes.sizeof(SimState))
        os.replace(fresh, file)
        self = cls._map_file(file)
        state = self.state
        state.size, state.chips, state.v2 = ctypes.sizeof(SimState), chips, int(v2)
        state.board, state.mainboard, state.aicores, state.reset_ms = board, mainboard, aicores, reset_ms
        state.reset_group, state.cores_per_chip = reset_group, float(aicores)
        state.memory_per_chip = hbm_mb or ddr_mb
        pod, server = super_pod if super_pod is not None else (0xFFFFFFFF, 0xFFFFFFFF)
        state.super_pod_id, state.server_id, state.chassis_id = pod, server, 0
        state.chip_name, state.chip_type = chip_name.encode(), b"Ascend"
        state.npu_name, state.product, state.version = chip_name.encode(), product.encode(), b"25.0.rc1"
        for number, (name, cores, memory) in enumerate(templates[:TEMPLATES]):
            state.templates[number] = Template(name.encode(), cores, memory)
        for number in range(chips):
            self._healthy(number, chips_per_card, hbm_mb, ddr_mb, server if super_pod is not None else 0)
        state.magic = MAGIC
        return self

    @classmethod
    def open(cls, file: Path) -> Standin:
        """Map a file that `create` wrote. Raises ValueError when it is another file or an older version."""
        if file.stat().st_size != ctypes.sizeof(SimState):
            raise ValueError(f"{file}: no state of this stand-in; create it again with belay sim-driver build")
        self = cls._map_file(file)
        if self.state.magic != MAGIC or self.state.size != ctypes.sizeof(SimState):
            raise ValueError(f"{file}: no state of this stand-in; create it again with belay sim-driver build")
        return self

    @classmethod
    def _map_file(cls, file: Path) -> Standin:
        with open(file, "r+b") as handle:
            return cls(file, mmap.mmap(handle.fileno(), ctypes.sizeof(SimState)))

    def _healthy(self, number: int, per_card: int, hbm_mb: int, ddr_mb: int, server: int) -> None:
        chip = self.state.chip[number]
        chip.phy = chip.logic = number
        chip.card, chip.device = number // per_card, number % per_card
        chip.boot, chip.temperature, chip.power, chip.voltage = 16, 40 + number, 900 + number, 82
        for kind, rate in ((2, 10), (6, 20), (12, 30), (13, 40), (14, 50)):
            chip.utilisation[kind] = rate
        for kind, megahertz in ((1, 1600), (2, 2000), (6, 1600), (7, 1000), (9, 1800), (12, 1000)):
            chip.frequency[kind] = megahertz
        chip.hbm_total, chip.hbm_used, chip.hbm_frequency = hbm_mb, hbm_mb // 20, 1600
        chip.hbm_temperature, chip.hbm_bandwidth = 45, 3
        chip.ddr_total, chip.ddr_free = ddr_mb, ddr_mb * 9 // 10
        chip.ip[:] = [10, 0, number // 250, number % 250 + 1]
        for kind in range(3):
            chip.die[kind][:] = [0xB0000000 + number, kind, 2, 3, 4]
        chip.sdid = server * 16 + number
        chip.serial = f"SIM{number // per_card:04d}".encode()
        chip.brother = -1

    def chip(self, phy: int) -> SimChip:
        """One chip. Raises KeyError when there is none."""
        for number in range(self.state.chips):
            if self.state.chip[number].phy == phy:
                chip: SimChip = self.state.chip[number]
                return chip
        raise KeyError(f"no chip {phy}")

    def raise_code(self, phy: int, code: str, *, severity: int = 2, event: bool = True) -> None:
        """Start a fault: its code is present, and an event reports it."""
        chip = self.chip(phy)
        number = int(code, 16)
        if number not in chip.codes[: chip.code_count] and chip.code_count < CODES:
            chip.codes[chip.code_count] = number
            chip.code_count += 1
        if event:
            self.event(phy, code, 1, severity)

    def clear_code(self, phy: int, code: str, *, event: bool = True) -> None:
        """End a fault."""
        chip = self.chip(phy)
        left = [number for number in chip.codes[: chip.code_count] if number != int(code, 16)]
        chip.codes[: len(left)] = left
        chip.code_count = len(left)
        if event:
            self.event(phy, code, 0, 2)

    def event(self, phy: int, code: str, assertion: int, severity: int = 2) -> None:
        """Send an event without changing the present codes; assertion 0 recover, 1 occur, 2 once."""
        state = self.state
        written = state.events_written
        state.events[written % EVENTS] = SimEvent(int(code, 16), self.chip(phy).logic, severity, assertion, written, 0)
        state.events_written = written + 1
        _wake(ctypes.addressof(state) + SimState.events_written.offset)

    def processes(self, phy: int, pids: Sequence[int]) -> None:
        """Set the processes that use the chip."""
        chip = self.chip(phy)
        for number, pid in enumerate(pids[:PROCESSES]):
            chip.processes[number] = Process(pid, 0, 1 << 30)
        chip.process_count = min(len(pids), PROCESSES)

    def script(self, call: str, *, result: int = 0, times: int = -1, delay_ms: int = 0, phy: int = -1) -> None:
        """Make a call return ``result`` after a delay, ``times`` times (-1: until `unscript`)."""
        for override in self.state.overrides:
            if not override.remaining or override.name == call.encode():
                override.result, override.delay_ms, override.phy = result, delay_ms, phy
                override.name = call.encode()
                override.remaining = times
                return
        raise ValueError(f"at most {OVERRIDES} calls are scripted at once")

    def unscript(self) -> None:
        """Remove all scripts: every call returns the state again."""
        for override in self.state.overrides:
            override.remaining = 0


def _wake(address: int) -> None:
    """Wake the threads of libraries that wait for events (futex(2); their count stands at the address)."""
    number = _FUTEX_CALL[os.uname().machine]
    ctypes.CDLL(None).syscall(c_long(number), c_void_p(address), _FUTEX_WAKE, _EVERYONE, None, None, 0)
