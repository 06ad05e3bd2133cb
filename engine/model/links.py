"""Links between LLM-DataDist clusters: what each node is ordered to keep, and what became of it.

A *cluster* here is one process with registered memory, named by a number (uint64); one end of a link, the client, makes
it. An *end* is a cluster that runs on one of our nodes; its *holder* names the folder through which the node's agent
and the process talk.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

#: Most communications of one process (LLM-DataDist interface list, constraints of link_clusters).
MAX_LINKS: Final = 512
#: Annotation of a pod: the number of its cluster, where it is not to follow from the pod's name.
CLUSTER_NOTE: Final = "belay.dev/kv-cluster"
#: States of a link that its keeper tells.
LINKED: Final = "linked"
LINKING: Final = "linking"
FAILED: Final = "failed"
BROKEN: Final = "broken"
#: States that follow from silence: ordered and nothing heard, no process that takes orders, no agent that reports.
ORDERED: Final = "ordered"
NO_PROCESS: Final = "no-process"
STALE: Final = "stale"


class LinkOrder(msgspec.Struct, frozen=True):
    """One link that an end is to keep: to which cluster, at which ``ip:port``, within which time-out.

    ``links`` are the names of the KVLinks that ask for it.
    """

    cluster: int
    addresses: tuple[str, ...]
    timeout_ms: int
    links: tuple[str, ...] = ()


class EndOrders(msgspec.Struct, frozen=True):
    """Everything that one process is to link to; empty for a process that others link to."""

    cluster: int
    holder: str
    links: tuple[LinkOrder, ...] = ()


class LinkReport(msgspec.Struct, frozen=True):
    """How one link is. ``latency_ms`` is the time a question takes there and back, None while not linked.

    ``since_ms`` is when the state began (Unix milliseconds), ``tries`` how often linking failed since it last held.
    """

    cluster: int
    state: str
    latency_ms: float | None = None
    since_ms: int = 0
    tries: int = 0
    error: str = ""


class EndReport(msgspec.Struct, frozen=True):
    """How the links of one process are; ``alive`` is False while no process takes the orders."""

    cluster: int
    holder: str
    alive: bool
    links: tuple[LinkReport, ...] = ()
    problem: str = ""


class LinkState(msgspec.Struct, frozen=True, rename="camel"):
    """One link of one KVLink, for people: between which clusters, who makes it, how it is."""

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
    """The number of a pod's cluster: 48 bits that follow from its name, so that both sides know it without asking.

    48 bits, since readers of JSON keep whole numbers only to 2^53. A pod that comes back under its name keeps it.
    """
    return int.from_bytes(hashlib.sha256(f"{namespace}/{pod}".encode()).digest()[:6], "big")


def pod_holder(namespace: str, pod: str) -> str:
    """The holder of a pod's cluster."""
    return f"{namespace}.{pod}"


def cluster_holder(cluster: int) -> str:
    """The holder of a cluster that is no pod."""
    return f"cluster-{cluster}"


__all__ = [
    "BROKEN", "CLUSTER_NOTE", "EndOrders", "EndReport", "FAILED", "LINKED", "LINKING", "LinkOrder", "LinkReport",
    "LinkState", "MAX_LINKS", "NO_PROCESS", "ORDERED", "STALE", "cluster_holder", "cluster_number", "pod_holder",
]  # fmt: skip
