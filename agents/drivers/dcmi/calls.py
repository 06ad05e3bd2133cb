"""All driver calls as Python functions, over either generation of its interface."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from belay.agents.drivers.dcmi import prototypes, structs
from belay.agents.drivers.dcmi.control import Control
from belay.agents.drivers.dcmi.errors import DcmiError
from belay.agents.drivers.dcmi.gauges import Gauges
from belay.agents.drivers.dcmi.identity import Identity
from belay.agents.drivers.dcmi.library import Library, trusted
from belay.agents.drivers.dcmi.switch import Switch
from belay.agents.drivers.failures import DriverError

READINGS: Final = frozenset({
    "chip_info", "board", "mainboard", "product", "version", "serial", "die", "pcie", "codes", "health", "network",
    "processes", "temperature", "power", "card_power", "voltage", "frequency", "utilisation", "utilisations", "hbm",
    "ddr", "ecc", "hccs", "hccs_bandwidth", "pcie_bandwidth", "sio", "ub_port", "vnpus", "urma",
})  # fmt: skip
"""Read-only calls, which may be batched."""


class Calls(Identity, Gauges, Control):
    """One initialised library. Raises DriverError when it answers neither generation. Everything here blocks."""

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self._switch: Switch | None = None
        self._opening = threading.Lock()

    def switch_faults(self, file: str, owners: Sequence[int] = (0,)) -> list[dict[str, Any]]:
        """Return the active faults of the bus switch; its library ``file`` is loaded on the first call."""
        with self._opening:
            if self._switch is None:
                trusted(Path(file), frozenset(owners))
                self._switch = Switch(Library(Path(file)))
        return [
            {
                "code": one.code, "chip": one.chip, "port": one.port, "time": one.raised_ms,
                "peer_port": one.peer_port, "severity": one.severity,
            }
            for one in self._switch.faults()
        ]  # fmt: skip

    def several(self, requests: list[list[Any]]) -> list[dict[str, Any]]:
        """Batch many readings: ``[name, argument…]`` each; returns ``{"value": …}`` or ``{"error", "code"}``.

        Only readings are allowed; the deadline covers the whole batch.
        """
        answers: list[dict[str, Any]] = []
        for name, *arguments in requests:
            if name not in READINGS:
                raise DriverError(f"{name[:64]!r} is not a reading")
            try:
                answers.append({"value": getattr(self, name)(*arguments)})
            except DcmiError as error:
                answers.append({"error": str(error), "code": error.code, "function": error.function})
            except DriverError as error:
                answers.append({"error": str(error)[:500]})
        return answers

    def turns(self, requests: list[list[list[Any]]]) -> list[list[dict[str, Any]]]:
        """``several`` for many chips, one after the other. The deadline covers them all."""
        return [self.several(turn) for turn in requests]

    def subscribe(self, heard: Callable[[dict[str, Any]], None]) -> None:
        """Call ``heard`` from a thread of the driver for every fault event of every chip.

        ``chip`` in it is the logic id that the driver gives; the driver's own raise time is not passed on.
        """

        def callback(pointer: Any) -> None:
            event = pointer.contents
            if event.type != 0:
                return
            dms = event.dms
            heard({
                "chip": int(dms.deviceid), "code": int(dms.event_id), "severity": int(dms.severity),
                "assertion": int(dms.assertion), "serial": int(dms.event_serial_num),
                "module": [dms.node_type, dms.node_id, dms.sub_node_type, dms.sub_node_id],
            })  # fmt: skip

        kept = prototypes.FAULT_CALLBACK(callback)
        if self.v2:
            self.library.subscribe("dcmiv2_subscribe_fault_event", -1, structs.EventFilter(), kept)
        else:
            self.library.subscribe("dcmi_subscribe_fault_event", -1, -1, structs.EventFilter(), kept)
