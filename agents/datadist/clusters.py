"""The cluster to link: LLMClusterInfo and its addresses.

Shapes are those of the public package `llm_datadist`: addresses are kept as (little-endian integer, port).
"""

from __future__ import annotations

import ipaddress
import socket

UINT64_MAX = 2**64 - 1
UINT32_MAX = 2**32 - 1
UINT16_MAX = 2**16 - 1


def whole(name: str, value: object, largest: int) -> int:
    """Return ``value`` as a whole number from 0 to ``largest``.

    Raises TypeError for anything but an int (a bool is not one), ValueError outside the range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 0 <= value <= largest:
        raise ValueError(f"{name} must be between 0 and {largest}, not {value}")
    return value


def ip_number(ip: str | int) -> int:
    """Return an IPv4 address as the little-endian integer that the native library takes.

    Raises RuntimeError when text is not an IPv4 address, TypeError for other types, ValueError beyond 32 bits.
    """
    if isinstance(ip, str):
        try:
            return int.from_bytes(socket.inet_aton(str(ipaddress.IPv4Address(ip))), "little")
        except ValueError as error:
            raise RuntimeError(f"ip {ip[:64]!r} cannot be read: give dotted IPv4, for example 10.0.0.1") from error
    return whole("ip", ip, UINT32_MAX)


def ip_text(number: int) -> str:
    """Return the dotted form of a little-endian address."""
    return socket.inet_ntoa(number.to_bytes(4, "little"))


class LLMClusterInfo:
    """One remote cluster and the addresses on both sides of the link."""

    def __init__(self) -> None:
        self._remote_cluster_id: int | None = None
        self._remote_role_type: int | None = None
        self._local: list[tuple[int, int]] = []
        self._remote: list[tuple[int, int]] = []

    @property
    def remote_cluster_id(self) -> int | None:
        """The cluster number of the remote side (uint64); None until it is set."""
        return self._remote_cluster_id

    @remote_cluster_id.setter
    def remote_cluster_id(self, value: int) -> None:
        self._remote_cluster_id = whole("remote_cluster_id", value, UINT64_MAX)

    def append_local_ip_info(self, ip: str | int, port: int) -> None:
        """Add an address of this side; ``port`` is uint16 and unused by the TCP transport, which chooses its own."""
        self._local.append((ip_number(ip), whole("port", port, UINT16_MAX)))

    def append_remote_ip_info(self, ip: str | int, port: int) -> None:
        """Add an address that the remote side listens on."""
        self._remote.append((ip_number(ip), whole("port", port, UINT16_MAX)))

    @property
    def remote_role_type(self) -> int | None:
        """The role of the remote side, as the caller noted it; linking does not depend on it."""
        return self._remote_role_type

    @remote_role_type.setter
    def remote_role_type(self, value: int) -> None:
        self._remote_role_type = whole("remote_role_type", value, UINT32_MAX)

    @property
    def local_ip_info_list(self) -> list[tuple[int, int]]:
        """The local addresses as (little-endian address, port)."""
        return list(self._local)

    @property
    def remote_ip_info_list(self) -> list[tuple[int, int]]:
        """The remote addresses as (little-endian address, port)."""
        return list(self._remote)

    def __repr__(self) -> str:
        remote = ", ".join(f"{ip_text(ip)}:{port}" for ip, port in self._remote)
        return f"LLMClusterInfo(remote_cluster_id={self._remote_cluster_id}, remote=[{remote}])"
