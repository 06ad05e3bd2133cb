"""hccn_tool: the NPU network ports, from the tool's output.

Arguments and formats: component/ascend-common/devmanager/hccn/hccn_tool.go. Parsers skip
output that they do not need; a missing value is a DriverError with the output, never a guess.
"""

from __future__ import annotations

import itertools
import re
from typing import Final, NamedTuple, Protocol

from belay.agents.drivers.base import DriverError
from belay.agents.drivers.tools.command import Runner, pairs, tables

PATH: Final = "/usr/local/Ascend/driver/tools/hccn_tool"
SAMPLE_MS: Final = 100
_SHOWN: Final = 120
_LINK = re.compile(r"link\s+status\s*:\s*(\S+)", re.IGNORECASE)
_SPEED = re.compile(r"speed\s*:\s*(\d+)\s*M", re.IGNORECASE)
_UPS = re.compile(r"link\s+up\s+count\s*:\s*(\d+)", re.IGNORECASE)
_RATE = re.compile(r"bandwidth\s+(TX|RX)\s*:\s*([0-9.]+)\s*MB", re.IGNORECASE)
_LANE = re.compile(r"(Tx|Rx)Power\s*Lane(\d)\(dBm\)")
_MISSING = ("NA", "not supported")


class Port(NamedTuple):
    """One port of an Ascend 950: die, port, ETH or UB, whether its link is up."""

    die: int
    port: int
    kind: str
    up: bool


class Tool(Protocol):
    """Runner of the tool: a program, or recorded answers."""

    async def run(self, arguments: list[str]) -> str:
        """Run and return the output. Raises DriverError."""
        ...


class HccnTool:
    """Queries to the tool. Chips before Ascend 950 are named by physical id, those after by logic id."""

    def __init__(self, tool: Tool | None = None) -> None:
        self._tool: Tool | Runner = tool or Runner(PATH)

    async def _ask(self, *arguments: object) -> str:
        return await self._tool.run([str(argument) for argument in arguments])

    async def link(self, phy: int) -> bool:
        """Return whether the link is up."""
        return link(await self._ask("-i", phy, "-link", "-g"))

    async def speed(self, phy: int) -> int:
        """Return the speed of the chip's port in Mb/s."""
        return speed(await self._ask("-i", phy, "-speed", "-g"))

    async def link_ups(self, phy: int) -> int:
        """Return how often the link came up."""
        return link_ups(await self._ask("-i", phy, "-link_stat", "-g"))

    async def counters(self, phy: int) -> dict[str, int]:
        """Every counter of MAC and RoCE."""
        return counters(await self._ask("-i", phy, "-stat", "-g"))

    async def optical(self, phy: int) -> dict[str, str]:
        """Return the optical module's values; blanks in keys become underscores."""
        return optical(await self._ask("-i", phy, "-optical", "-g"))

    async def bandwidth(self, phy: int) -> tuple[float, float]:
        """Return the bandwidth of the chip's port: MB/s sent and received."""
        return bandwidth(await self._ask("-i", phy, "-bandwidth", "-g"))[0]

    async def ports(self, logic: int) -> list[Port]:
        """The ports of an Ascend 950 chip, ascending."""
        return ports(await self._ask("-g", "-dev_info", "-i", logic))

    async def ports_down(self, logic: int) -> list[Port]:
        """The ports of an Ascend 950 chip whose link the tool calls down, ascending; other words count as up."""
        rows = _port_rows(await self._ask("-g", "-dev_info", "-i", logic))
        return sorted({port for port, status in rows if status == "DOWN"})

    async def port_enabled(self, logic: int, die: int, port: int) -> bool:
        """Return whether a port is enabled, which is said of wired ones."""
        text = await self._ask("-g", "-port_info", "-i", logic, "-u", die, "-p", port)
        state = pairs(text).get("port_enable")
        if state is None:
            raise DriverError(f"hccn_tool: no port_enable in {_shown(text)}")
        return state == "on"

    async def port_link(self, logic: int, die: int, port: int) -> bool:
        """Return whether a port's link is up."""
        return link(await self._ask("-g", "-link", "-i", logic, "-u", die, "-p", port))

    async def port_bandwidth(self, logic: int, where: Port) -> tuple[float, float]:
        """MB/s sent and received by a port; a bonded Ethernet pair is one query, its first port is even."""
        if where.kind == "ETH":
            found = bandwidth(await self._ask("-g", "-bandwidth", "-d", f"bond{logic}", "-time", SAMPLE_MS))
            return found[min(where.port % 2, len(found) - 1)]
        text = await self._ask(
            "-g", "-bandwidth", "-i", logic, "-u", where.die, "-p", where.port, "-time", SAMPLE_MS
        )  # fmt: skip
        return bandwidth(text)[0]

    async def port_speed(self, logic: int, die: int, port: int) -> int:
        """Speed of a port in Gb/s."""
        return port_speed(await self._ask("-g", "-speed", "-i", logic, "-u", die, "-p", port))

    async def port_optical(self, logic: int, die: int, port: int) -> dict[str, str]:
        """Powers of the lanes behind a port, and their number as ``optical_index``."""
        return port_optical(await self._ask("-g", "-optical", "-i", logic, "-u", die, "-p", port))

    async def port_counters(self, logic: int, die: int, port: int) -> dict[str, int]:
        """Packet counters of a port."""
        return counters(await self._ask("-g", "-stat", "-i", logic, "-u", die, "-p", port))


def link(text: str) -> bool:
    """``link status: UP``."""
    return _found(_LINK, text, "the link's state").upper() == "UP"


def speed(text: str) -> int:
    """``Speed: 100000 Mb/s``."""
    return int(_found(_SPEED, text, "the speed"))


def link_ups(text: str) -> int:
    """``[device 0]link up count : 3``."""
    return int(_found(_UPS, text, "link up count"))


def counters(text: str) -> dict[str, int]:
    """``key:value`` lines that hold integers. Raises DriverError when there is none."""
    found = {key: int(value) for key, value in pairs(text).items() if value.isdecimal() and len(value) <= 20}
    if not found:
        raise DriverError(f"hccn_tool: no counter in {_shown(text)}")
    return found


def optical(text: str) -> dict[str, str]:
    """``key : value`` lines. Raises DriverError when there is none."""
    found = {"_".join(key.split()): value for key, value in pairs(text).items()}
    if not found:
        raise DriverError(f"hccn_tool: nothing about the optical module in {_shown(text)}")
    return found


def bandwidth(text: str) -> list[tuple[float, float]]:
    """``Bandwidth TX: 0.00 MB/sec`` and the same with RX, once for each queried port."""
    sent = [float(value) for way, value in _RATE.findall(text) if way.upper() == "TX"]
    received = [float(value) for way, value in _RATE.findall(text) if way.upper() == "RX"]
    if not sent or len(sent) != len(received):
        raise DriverError(f"hccn_tool: no bandwidths in {_shown(text)}")
    return list(zip(sent, received, strict=True))


def ports(text: str) -> list[Port]:
    """The first table of ``-dev_info``."""
    return sorted({port for port, _ in _port_rows(text)})


def _port_rows(text: str) -> list[tuple[Port, str]]:
    """The first table of ``-dev_info`` with the words for the links; columns are identified by their titles."""
    for table in tables(text):
        titles = [title.lower().replace(" ", "") for title in table[0]]
        if "udieid" not in titles or "portid" not in titles:
            continue
        columns = {
            name: titles.index(name) for name in ("udieid", "portid", "porttype", "linkstatus") if name in titles
        }
        found = []
        for row in table[1:]:
            if len(row) != len(titles) or not row[columns["udieid"]].isdecimal():
                continue
            if not row[columns["portid"]].isdecimal():
                continue
            kind = row[columns["porttype"]].upper() if "porttype" in columns else "UB"
            status = row[columns["linkstatus"]].upper() if "linkstatus" in columns else ""
            port = Port(int(row[columns["udieid"]]), int(row[columns["portid"]]), kind, status == "UP")
            found.append((port, status))
        return found
    raise DriverError(f"hccn_tool: no table of ports in {_shown(text)}")


def port_speed(text: str) -> int:
    """The column ``Speed`` of a table, ``200 G``; else its fourth column."""
    for table in tables(text):
        if len(table) < 2:
            continue
        titles = [title.lower() for title in table[0]]
        column = next((number for number, title in enumerate(titles) if "speed" in title), 3)
        words = table[1][column].split() if column < len(table[1]) else []
        if words and words[0].isdecimal():
            return int(words[0])
    raise DriverError(f"hccn_tool: no speed of the port in {_shown(text)}")


def port_optical(text: str) -> dict[str, str]:
    """Lane powers wherever a table has them: the value is in the next cell."""
    found: dict[str, str] = {}
    lanes = set()
    for table in tables(text):
        for row in table:
            for cell, value in itertools.pairwise(row):
                match = _LANE.fullmatch(cell)
                if match and value not in ("", "-"):
                    found.setdefault(f"{match[1]}Power Lane{match[2]}(dBm)", value)
            lanes |= {cell for cell in row if cell.startswith("optical_")}
    if not found:
        raise DriverError(f"hccn_tool: no optical powers in {_shown(text)}")
    found["optical_index"] = str(len(lanes))
    return found


def measured(text: str | None) -> float:
    """``<number> <unit>`` as a number; -1 for nothing, NA, not supported, or another shape."""
    if not text or any(word in text for word in _MISSING):
        return -1.0
    words = text.split()
    return _float(words[0]) if len(words) == 2 else -1.0


def bare(text: str | None) -> float:
    """A bare number (Ascend 950); -1 as with `measured`."""
    return -1.0 if not text or any(word in text for word in _MISSING) else _float(text)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def _found(pattern: re.Pattern[str], text: str, what: str) -> str:
    if match := pattern.search(text):
        return match[1]
    raise DriverError(f"hccn_tool: {what} is not in {_shown(text)}")


def _shown(text: str) -> str:
    return repr(" ".join(text.split())[:_SHOWN])
