"""What ``hinicadm5`` says: cards with their interfaces, and the lanes of their ports.

Source: component/k8s-rdma-shared-dev-plugin/pkg/fault/fault_detection.go, scripts/fault_detection.sh.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Protocol

_CARD: Final = re.compile(r"(hinic\d+)\(")
_NIC: Final = re.compile(r"NIC:([^\s)]+)")
_COUNT: Final = re.compile(r"Card num[^0-9\n]*(\d+)")
_PORT: Final = re.compile(r"core.*?port\s*(0x[0-9a-fA-F]+|\d+)")
_WIDTH: Final = re.compile(r"link: width:\(cap 0x([0-9a-fA-F]+),\s*cur 0x([0-9a-fA-F]+)")
#: Lines after that of a port in which its width stands.
_NEAR: Final = 5
#: Cards of a node by the type of one of them, as the file card_type of its interface says.
EXPECTED: Final = (("A5Server", 4), ("A5Pod400G", 4), ("A5Pod200G", 2))


class Tool(Protocol):
    """Runner of the tool: a program, or recorded answers."""

    async def run(self, arguments: list[str]) -> str:
        """Run and return the output. Raises DriverError."""
        ...


class PortWidth(NamedTuple):
    """Lanes of a port: how many it can have, and has now."""

    port: str
    capable: int
    current: int


def interfaces(output: str) -> dict[str, list[str]]:
    """Card → its network interfaces, from ``hinicadm5 info``."""
    found: dict[str, list[str]] = {}
    card = ""
    for line in output.splitlines():
        if match := _CARD.search(line):
            card = match[1]
            found.setdefault(card, [])
        elif card and (match := _NIC.search(line)):
            found[card].append(match[1])
    return found


def count(output: str) -> int | None:
    """Number of cards, from ``hinicadm5 info``; None where it does not say."""
    match = _COUNT.search(output)
    return None if match is None else int(match[1][:9])


def expected(card_type: str) -> int | None:
    """Number of cards of a node with a card of this type; None for an unknown one."""
    exact = [number for name, number in EXPECTED if card_type == name]
    begins = [number for name, number in EXPECTED[1:] if card_type.startswith(name)]
    return next(iter(exact + begins), None)


def widths(output: str) -> list[PortWidth]:
    """The ports of a card, from ``hinicadm5 host_topo -i CARD -a``; one without a width counts as down."""
    lines = output.splitlines()
    found = []
    for index, line in enumerate(lines):
        if match := _PORT.search(line):
            near = "\n".join(lines[index : index + 1 + _NEAR])
            width = _WIDTH.search(near)
            capable, current = (int(width[1], 16), int(width[2], 16)) if width else (0, 0)
            found.append(PortWidth(match[1], capable, current))
    return found
