"""Pings between chips: what agents measure of each path, and what is found slow or lossy in the network.

A window is ``WINDOW_ROUNDS`` rounds of one agent, numbered by the clock, so that agents of a super pod fill the same
windows. Delays are nanoseconds, packets are counted over the whole window.

Sources: component/ascend-faultdiag-online/pkg/algo_src/netfault (paths of one period against earlier ones; NPU, rack,
node, L1, L2 and super pod as causes); pkg/service/serviceapi/netfaultapi/netfault_api.go (fault codes, locations).
"""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import Final

import msgspec

WINDOW_ROUNDS: Final = 10
"""Rounds of one window."""
DISCONNECTED: Final = 0.8
"""Share of lost packets from which a path counts as disconnected (the same share as in MindCluster's analysis)."""


class NetworkProblem(StrEnum):
    """What is wrong with a part of the network. Faults and messages show the value."""

    DELAY = "network delay"
    LOSS = "packet loss"
    DISCONNECTED = "disconnected"


class NetworkPart(StrEnum):
    """A kind of part of the network that may be at fault, the largest first."""

    SUPER_POD_SWITCH = "switch of super pod"
    RACK_SWITCH = "switch of rack"
    NODE = "node"
    MESH = "mesh of node"
    CHIP = "chip"
    PORT = "port"
    LINK = "link"


class PathEnd(msgspec.Struct, frozen=True, order=True):
    """One end of a pinged path. ``address`` is the pinged one; ``node`` is empty if no known chip has the address.

    ``plane`` numbers the network plane of the super pod, ``layer`` the level of Ascend950's network (0: the mesh of a
    server or rack); -1 where the product has none. ``rack`` is -1 outside racks.
    """

    address: str
    node: str = ""
    chip: int = -1
    super_pod: int = -1
    rack: int = -1
    plane: int = -1
    layer: int = -1


class PathWindow(msgspec.Struct, frozen=True):
    """One path in one window: from a chip's address to another address.

    ``delay`` is the mean round trip of ``rounds`` rounds without the fastest and the slowest, 0 when no packet came
    back.
    """

    chip: int
    source: str
    target: str
    number: int
    rounds: int
    delay: int
    sent: int
    lost: int


class NodePings(msgspec.Struct, frozen=True):
    """The newest windows of one node; ``seconds`` is the length of a window."""

    node: str
    seconds: int
    windows: tuple[PathWindow, ...]


class NetworkSettings(msgspec.Struct, frozen=True):
    """When a part of the network is slow.

    Args:
        degradation: smallest excess over the usual delay, as a share of it (0.03: 3 %).
        loss: smallest share of lost packets beyond the usual one.
        sigmas: an excess must also be this many standard deviations of what such paths vary by.
        unknown: smallest excess over paths like it before a path's usual delay is known.
        windows: windows whose mean is judged.
    """

    degradation: float = 0.03
    loss: float = 0.01
    sigmas: float = 6.0
    unknown: float = 0.25
    windows: int = 3


class NetworkFinding(msgspec.Struct, frozen=True, order=True):
    """Something wrong in the network of chips.

    ``name`` identifies the part (``node-3``, ``node-3/5``, ``super pod 2 plane 1``); ``ends`` are the two ends of a
    link, or the one chip or port. ``excess`` is a share of the usual delay, or of packets; ``value`` and ``usual`` are
    microseconds or shares, ``limit`` is a share; ``paths`` were counted; ``since`` is the first window.
    """

    part: NetworkPart
    name: str
    problem: NetworkProblem
    excess: float
    value: float
    usual: float
    limit: float
    paths: int
    since: int
    chips: tuple[tuple[str, int], ...]
    ends: tuple[PathEnd, ...] = ()

    @property
    def key(self) -> str:
        """Names the finding for as long as it lasts."""
        return finding_key(self.part, self.name, self.problem)


def finding_key(part: NetworkPart, name: str, problem: NetworkProblem) -> str:
    """Names what is found of a part: its delay, or its lost packets."""
    kind = "delay" if problem is NetworkProblem.DELAY else "loss"
    return f"network.{kind}.{part.replace(' ', '-')}.{zlib.crc32(name.encode()):08x}"


def explained(found: NetworkFinding) -> str:
    """The finding with its figures, in one sentence."""
    count = f"{found.paths} path{'s' if found.paths != 1 else ''}"
    who = f"{found.part} {found.name}"
    if found.problem is NetworkProblem.DELAY:
        return (
            f"{who}: {count} take {found.value:.1f} us, usually {found.usual:.1f} us: {found.excess:.1%} more "
            f"(limit {found.limit:.1%})"
        )
    lost = "no packet comes back" if found.value >= 1 else f"{found.value:.1%} of packets are lost"
    return f"{who}: on {count} {lost}, usually {found.usual:.2%} (limit {found.limit:.1%})"


__all__ = [
    "DISCONNECTED", "WINDOW_ROUNDS", "NetworkFinding", "NetworkPart", "NetworkSettings", "NodePings", "PathEnd",
    "PathWindow", "NetworkProblem", "explained", "finding_key",
]  # fmt: skip
