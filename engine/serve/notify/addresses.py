"""Where a message may go: public hosts by TLS, and hosts that the operator names (BELAY_NOTIFY_HOSTS).

A policy in Git could otherwise make the server call the API server, a cloud's metadata address, or anything else that
its network lets it reach. The address that a name leads to is checked where the connection is made, so that a name
whose address changes afterwards changes nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Collection
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from belay.engine.errors import InputError

SETTING: Final = "BELAY_NOTIFY_HOSTS"
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class HostNotAllowed(InputError):
    """A message may not go there."""

    code = "HostNotAllowed"


class AllowedHosts:
    """The hosts that an operator named, as ``HOST`` or ``HOST:PORT``."""

    def __init__(self, named: str) -> None:
        self._named = frozenset(part.strip().lower() for part in named.split(",") if part.strip())

    def names(self, host: str, port: int) -> bool:
        """Whether the host is named, with any port or this one."""
        host = host.lower().rstrip(".")
        return host in self._named or f"{host}:{port}" in self._named or f"[{host}]:{port}" in self._named

    def check_url(self, url: str) -> None:
        """Raises HostNotAllowed for an address that no message may go to, whatever it leads to."""
        try:
            # read as the client reads it: other readers see another host in some texts, such as dots of other scripts
            parts = URL(url)
            host, port = parts.raw_host or "", parts.port or 0
        except ValueError as error:
            raise HostNotAllowed("the receiver's address is not a URL") from error
        if parts.scheme not in ("http", "https") or not host or parts.user is not None:
            raise HostNotAllowed("the receiver's address is not a URL of https without a user")
        if self.names(host, port):
            return
        if parts.scheme != "https":
            raise HostNotAllowed(
                f"messages leave by https only, and {host} is not among the hosts that may be reached without",
                hint=f"Write https, or name {host}:{port} in {SETTING} of belay server.",
            )
        if (literal := _literal(host)) is not None:
            self.check_address(host, port, literal)

    def check_address(self, host: str, port: int, address: str) -> None:
        """Raises HostNotAllowed where a name leads to an address inside, and the operator did not name it."""
        found = ipaddress.ip_address(address.partition("%")[0])
        if not self.names(host, port) and not _innermost(found).is_global:
            raise HostNotAllowed(
                f"{host} leads to {address}, which is not a public address",
                hint=f"If it is a receiver of yours, name {host}:{port} in {SETTING} of belay server.",
            )

    async def address_of(self, host: str, port: int) -> str:
        """The address of a host, checked. Raises HostNotAllowed, OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses: Collection[str] = dict.fromkeys(str(row[4][0]) for row in found)
        for address in addresses:
            self.check_address(host, port, address)
        return next(iter(addresses))


class CheckedResolver(AbstractResolver):
    """Resolves names for HTTP; a name that leads to a forbidden address is refused."""

    def __init__(self, allowed: AllowedHosts) -> None:
        self._allowed, self._inner = allowed, ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a host. Raises HostNotAllowed, OSError."""
        found = await self._inner.resolve(host, port, family)
        for row in found:
            self._allowed.check_address(host, port, row["host"])
        return found

    async def close(self) -> None:
        """Close what resolves."""
        await self._inner.close()


def _innermost(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IPv4 address in the clothes of IPv6 is judged as what it is: mapped, by 6to4, by NAT64 (RFC 6052)."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _literal(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def shown(url: str) -> str:
    """An address for messages: its host only, since the rest may be a secret."""
    try:
        return URL(url).host or "its address"
    except ValueError:
        return "its address"
