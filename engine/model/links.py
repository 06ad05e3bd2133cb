"""Links between LLM-DataDist clusters: the orders to each node, and the reports on them.

A *cluster* is one process with registered memory, named by a number (uint64). The client end of a link creates it. An
*end* is a cluster on a node of this Kubernetes cluster; its *holder* names the folder through which the node's agent
and the process communicate.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

#: Maximum links of one process (LLM-DataDist interface list, constraints of link_clusters).
MAX_LINKS: Final = 512
#: States that the process holding a link reports.
LINKED: Final = "linked"
LINKING: Final = "linking"
FAILED: Final = "failed"
BROKEN: Final = "broken"
#: States without a report: ordered and not answered, no process that takes orders, no agent that reports.
ORDERED: Final = "ordered"
NO_PROCESS: Final = "no-process"
STALE: Final = "stale"


class LinkOrder(msgspec.Struct, frozen=True):
    """One link that an end must keep: the cluster, its addresses (``ip:port``) and the time-out.

    ``links`` are the names of the KVLinks that require it.
    """

    cluster: int
    addresses: tuple[str, ...]
    timeout_ms: int
    links: tuple[str, ...] = ()


class EndOrders(msgspec.Struct, frozen=True):
    """All links that one process must keep; empty for a process that others link to."""

    cluster: int
    holder: str
    links: tuple[LinkOrder, ...] = ()


class LinkReport(msgspec.Struct, frozen=True):
    """State of one link; ``latency_ms`` is the round-trip time, None while not linked.

    ``since_ms`` is when the state began (Unix ms), ``tries`` the number of failed attempts since it last was linked.
    """

    cluster: int
    state: str
    latency_ms: float | None = None
    since_ms: int = 0
    tries: int = 0
    error: str = ""


class EndReport(msgspec.Struct, frozen=True):
    """State of the links of one process; ``alive`` is False while no process takes the orders."""

    cluster: int
    holder: str
    alive: bool
    links: tuple[LinkReport, ...] = ()
    problem: str = ""


class LinkState(msgspec.Struct, frozen=True, rename="camel"):
    """One link of one KVLink, for people: its clusters, its client, its state."""

    link: str
    prefill: int
    decode: int
    client: str
    node: str
    holder: str
    peer: str
    state: str
    latency_ms: float | None = None
    since_ms: int = 0
    tries: int = 0
    error: str = ""


def cluster_number(namespace: str, pod: str) -> int:
    """The number of a pod's cluster: 48 bits derived from its name, so that both ends compute it alone.

    48 bits, because readers of JSON keep integers only up to 2^53. A pod recreated under its name keeps the number.
    """
    return int.from_bytes(hashlib.sha256(f"{namespace}/{pod}".encode()).digest()[:6], "big")


def pod_holder(namespace: str, pod: str) -> str:
    """The holder of a pod's cluster."""
    return f"{namespace}.{pod}"


def cluster_holder(cluster: int) -> str:
    """The holder of a cluster outside pods."""
    return f"cluster-{cluster}"


def count_states(rows: Sequence[LinkState]) -> dict[str, int]:
    """How many links are in which state."""
    return dict(sorted(Counter(row.state for row in rows).items()))


__all__ = [
    "BROKEN", "EndOrders", "EndReport", "FAILED", "LINKED", "LINKING", "LinkOrder", "LinkReport",
    "LinkState", "MAX_LINKS", "NO_PROCESS", "ORDERED", "STALE", "cluster_holder", "cluster_number", "count_states",
    "pod_holder",
]  # fmt: skip
