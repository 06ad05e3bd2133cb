"""The bus switch of a super-pod server (LingQu), through its own library `liblingqu-dcmi.so`.

All active faults are read periodically; in between the library reports new and ended ones. Source:
component/ascend-device-plugin/pkg/device/deviceswitch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from ctypes import byref, c_uint32
from typing import Any, Final, NamedTuple

from belay.agents.drivers.dcmi import prototypes, structs
from belay.agents.drivers.dcmi.library import Library
from belay.agents.drivers.failures import DriverError

NAME: Final = "liblingqu-dcmi.so"
MAX_FAULTS: Final = 128
#: Seconds between two full readings; ``PollInterval`` of MindCluster's fault configuration by default.
READ_EVERY: Final = 300.0
RECOVERED: Final = 0
NO_SUB_TYPE: Final = 0xFFFFFFFF
#: The interface holds ports in 16 bits; its "none" of 32 bits arrives cut to that.
NO_PORT: Final = frozenset({0xFFFF, 0xFFFFFFFF})
PEERS: Final = {0: "cpu", 1: "npu", 2: "L2"}


class ActiveSwitchFault(NamedTuple):
    """A fault of the switch: the fields that its events share, the time it was raised (ms), and its severity."""

    code: str
    chip: int
    port: int
    peer_port: int
    raised_ms: int
    severity: int

    @property
    def same(self) -> tuple[Any, ...]:
        """The key that matches a recovery to its fault."""
        return self[:4]


class Switch:
    """One initialised library. Raises DriverError when it does not start."""

    def __init__(
        self,
        library: Library,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._library, self._monotonic, self._now_ms = library, monotonic, now_ms
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._standing: list[ActiveSwitchFault] = []
        self._read_at: float | None = None
        self._meanwhile: list[tuple[ActiveSwitchFault, bool]] | None = None
        library.call("lq_dcmi_init")
        callback = prototypes.SWITCH_CALLBACK(self._receive)
        library.subscribe("lq_dcmi_subscribe_fault_event", structs.SwitchFilter(), callback)

    def faults(self) -> list[ActiveSwitchFault]:
        """Return the active faults, ascending; blocks during a full reading."""
        with self._reading:
            if self._read_at is None or self._monotonic() - self._read_at >= READ_EVERY:
                self._read_whole()
        with self._lock:
            return sorted(self._standing)

    def _read_whole(self) -> None:
        begin, self._meanwhile = self._monotonic(), []
        try:
            found = self._read()
            with self._lock:
                self._standing, self._read_at = found, begin
                # events received during the reading may be newer than its result
                for fault, recovered in self._meanwhile:
                    self._record(fault, recovered)
        finally:
            with self._lock:
                self._meanwhile = None

    def _read(self) -> list[ActiveSwitchFault]:
        count, events = c_uint32(), (structs.SwitchEvent * MAX_FAULTS)()
        self._library.call("lq_dcmi_get_fault_info", MAX_FAULTS, byref(count), events)
        if count.value > MAX_FAULTS:
            raise DriverError(f"lq_dcmi_get_fault_info: {count.value} faults, at most {MAX_FAULTS} are possible")
        return [self._fault(one) for one in events[: count.value] if one.assertion != RECOVERED]

    def _receive(self, pointer: Any) -> None:
        """Receive an event; called from a thread of the library."""
        event = pointer.contents
        fault, recovered = self._fault(event), event.assertion == RECOVERED
        with self._lock:
            self._record(fault, recovered)
            if self._meanwhile is not None:
                self._meanwhile = [*self._meanwhile[1 - MAX_FAULTS :], (fault, recovered)]

    def _record(self, fault: ActiveSwitchFault, recovered: bool) -> None:
        # a fault that is reported twice is kept once
        self._standing = [one for one in self._standing if one.same != fault.same]
        if not recovered and len(self._standing) < MAX_FAULTS:
            self._standing.append(fault)

    def _fault(self, event: structs.SwitchEvent) -> ActiveSwitchFault:
        return ActiveSwitchFault(
            assembled(event.event_type, event.sub_type, event.peer_device, event.port),
            int(event.chip), int(event.port), int(event.peer_port), int(event.raised) or self._now_ms(),
            int(event.severity),
        )  # fmt: skip


def assembled(event_type: int, sub_type: int, peer: int, port: int) -> str:
    """Return a code as text, for example ``[0x00f1ff09,155912,cpu,na]``."""
    fault = "na" if sub_type == NO_SUB_TYPE else str(sub_type)
    name = "na" if port in NO_PORT else PEERS.get(peer, "na")
    return f"[0x{event_type & 0xFFFFFFFF:08x},{fault},{name},na]"
