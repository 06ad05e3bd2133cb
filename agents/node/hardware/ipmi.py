"""Active hardware alarms and the product's serial number, read from the board's controller.

Requests and layouts: component/noded/pkg/monitoring/ipmimonitor/ipmi_monitor.go and pkg/common; docs/zh/scheduling
06_api/03_noded.md. Offsets count from the completion code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from belay.agents.drivers.surroundings import Alarm
from belay.agents.node.hardware.bmc import Bmc, BmcError

FUNCTION: Final = 0x30
ALARMS: Final = 0x94
BOARD: Final = 0x90
#: Huawei's enterprise number and the sub-command; the index of the first event wanted follows, two bytes, low first.
_ASK: Final = bytes.fromhex("DB07004000")
_ASK_END: Final = bytes.fromhex("0EFF")
_SERIAL: Final = bytes.fromhex("0500030400FF")
_MANUFACTURER: Final = bytes.fromhex("0500030000FF")
HEADER: Final = 8
RECORD: Final = 15
ROUNDS: Final = 100
MAX_INDEX: Final = 65_535
#: All rounds together (seconds): a controller that keeps answering slowly must not block the agent.
ALL_SECONDS: Final = 25.0
MAX_SERIAL: Final = 128

_NAMED: Final = (
    "CPU", "Memory", "Disk", "PSU", "Fan", "Disk BP", "RAID Card", "UNKNOWN", "PCIe Card", "AMC", "HBA", "Mezz Card",
    "UNKNOWN", "NIC", "Memory Board", "PCIe Riser", "Mainboard", "LCD", "Chassis", "NCM", "Switch Module",
    "Storage Board", "Chassis BP", "HMM/CMC", "Fan BP", "PSU BP", "BMC", "MMC/MM", "Twin Node Backplane", "Base Plane",
    "Fabric Plane", "Switch Mezz", "LED", "SD Card", "Security Module", "I/O Board", "CPU Board", "RMC",
    "PCIe Adapter", "PCH", "Cable", "Port", "LSW", "PHY", "System", "M.2 Transfer Card", "LED Board", "LPM",
    "PIC Card", "Button", "Expander", "CPI", "ACM", "CIM", "PFM", "KPAR", "JC", "SCM", "Minisas HD channel",
    "SATA DOM channel", "GE channel", "XGE channel", "PCIe Switch", "Interface Device", "xPU Board",
    "Disk BaseBoard", "VGA Intf Card", "Pass-Through Card", "Logical Driver", "PCIe Retimer", "PCIe Repeater", "SAS",
    "Memory Channel", "BMA", "LOM", "Signal Adapter Board", "Horizontal Connection Board", "Node",
    "Asset Locate Board", "Unit", "RMM", "Rack", "BBU", "OCP Card", "Leakage Detection Card", "MESH Card", "NPU",
    "CIC Card", "Expansion Module", "Fan Module", "AR Card", "Converge Board", "SoC Board", "ExpBoard",
)  # fmt: skip
DEVICE_TYPES: Final = {
    **dict(enumerate(_NAMED)), 0xC0: "BCU", 0xC1: "EXU", 0xC2: "SEU", 0xC3: "IEU", 0xC4: "CLU",
}  # fmt: skip
"""Device type byte → name; any other is UNKNOWN."""


def request(index: int) -> bytes:
    """The request data for alarms from the ``index``-th on, after function and command."""
    return _ASK + index.to_bytes(2, "little") + _ASK_END


def records(answer: bytes) -> tuple[int, int, list[Alarm]]:
    """The total number of alarms, the number that this answer declares, and those that it contains.

    Records that do not fill their area are not read, as NodeD does. Raises BmcError when there is not even a header.
    """
    if len(answer) < HEADER:
        raise BmcError(f"the answer about alarms has {len(answer)} bytes, {HEADER} at least are needed")
    area = answer[HEADER:]
    found = []
    if len(area) % RECORD == 0:
        for at in range(0, len(area), RECORD):
            record = area[at : at + RECORD]
            code = record[3::-1].hex().upper()
            found.append(Alarm(DEVICE_TYPES.get(record[9], "UNKNOWN"), record[10], code))
    return int.from_bytes(answer[4:6], "little"), answer[6], found


async def alarms(bmc: Bmc) -> Sequence[Alarm]:
    """Read every active alarm once, in the order of the controller. Raises BmcError."""
    found: list[Alarm] = []
    try:
        async with asyncio.timeout(ALL_SECONDS):
            index, left = 0, 1
            for _ in range(ROUNDS + 1):
                total, count, some = records(await bmc.raw(FUNCTION, ALARMS, request(index)))
                left = total if index == 0 else left
                found += some
                index, left = index + count, left - count
                # a message without events would repeat the same request without end
                if left <= 0 or index > MAX_INDEX or count == 0:
                    break
    except TimeoutError:
        raise BmcError(f"the alarms could not be read in {ALL_SECONDS:g} s") from None
    return list(dict.fromkeys(found))


async def serial_number(bmc: Bmc) -> str:
    """The product's serial number, else its manufacturer; empty when the controller knows neither."""
    answer = await bmc.raw(FUNCTION, BOARD, _SERIAL)
    if len(answer) <= 2:
        answer = await bmc.raw(FUNCTION, BOARD, _MANUFACTURER)
    text = answer[2 : 2 + MAX_SERIAL].decode("ascii", "replace")
    return "".join(letter for letter in text if letter.isprintable()).strip()
