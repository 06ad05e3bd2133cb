"""Request limits: rate per address, concurrent answers, connections in all and per address.

Source: component/ascend-common/common-utils/limiter. Nothing here waits: requests beyond a limit are refused.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

REFUSED_AT_ONCE: Final = 1024
"""Connections beyond the limit that get a 503 at the same time; further ones are closed without an answer."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits. ``spacing``: seconds between two requests of one address; only the total limits apply to ``trusted``
    networks."""

    concurrency: int = 5
    spacing: float = 0.05
    per_address: int = 5
    total: int = 20
    addresses: int = 102_400
    trusted: tuple[Network, ...] = ()


class RequestLimiter:
    """Count requests and connections. ``now`` is monotonic, in seconds."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._last: OrderedDict[str, float] = OrderedDict()
        self._connections: dict[str, int] = {}
        self._total = self._refused = self._answering = 0
        self._trust: dict[str, bool] = {}

    def connect(self, address: str) -> bool:
        """Count a connection; false when it is beyond a limit."""
        mine = self._connections.get(address, 0)
        if self._total >= self.limits.total:
            return False
        if mine >= self.limits.per_address and not self._trusted(address):
            return False
        self._connections[address] = mine + 1
        self._total += 1
        return True

    def disconnect(self, address: str) -> None:
        """Release a connection."""
        self._total -= 1
        left = self._connections.get(address, 1) - 1
        if left:
            self._connections[address] = left
        else:
            self._connections.pop(address, None)

    def refuse(self) -> bool:
        """Count a refusal that is about to be sent; false when too many are being sent."""
        if self._refused >= REFUSED_AT_ONCE:
            return False
        self._refused += 1
        return True

    def refused(self) -> None:
        """Release a refusal that was sent."""
        self._refused -= 1

    def request(self, address: str, now: float) -> bool:
        """Return whether this address may send a request now; a refused request does not postpone the next."""
        if self._trusted(address):
            return True
        last = self._last.get(address)
        if last is not None and now - last < self.limits.spacing:
            return False
        self._last[address] = now
        self._last.move_to_end(address)
        while len(self._last) > self.limits.addresses:
            self._last.popitem(last=False)
        return True

    def begin(self) -> bool:
        """Count an answer; false when too many are in progress."""
        if self._answering >= self.limits.concurrency:
            return False
        self._answering += 1
        return True

    def end(self) -> None:
        """Release an answer that was sent."""
        self._answering -= 1

    def _trusted(self, address: str) -> bool:
        if not self.limits.trusted:
            return False
        if address not in self._trust:
            if len(self._trust) > self.limits.addresses:
                self._trust.clear()
            self._trust[address] = _within(address, self.limits.trusted)
        return self._trust[address]


def _within(address: str, networks: Sequence[Network]) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in networks)
