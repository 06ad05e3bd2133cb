"""``belay-links-<node>``: links that a node's processes keep up (belay-system), and their state (belay-nodes).

Like orders for chips, these are a desired state, not a queue: the newest version is complete. Two files in each
process's folder on the node have the same format for that process alone: ``links.json`` from the agent and
``report.json`` from the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from belay.engine.model.labels import MANAGED_BY
from belay.engine.model.links import MAX_LINKS, EndOrders, EndReport, LinkOrder, LinkReport
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import read_object
from belay.engine.wire.names import NODES, SYSTEM, bounded

PREFIX: Final = "belay-links-"
KEY: Final = "links.json"
#: Files in a process's folder: its links, their state, and the lock of the process that uses the folder.
ORDERS_FILE: Final = "links.json"
REPORT_FILE: Final = "report.json"
LOCK_FILE: Final = ".keeper"
#: Bytes of one file, and of the orders of one node.
MAX_FILE: Final = 256 * 1024
MAX_BODY: Final = 800 * 1024
#: Processes of one node; a node has few chips, so more are an error.
MAX_ENDS: Final = 256
#: Links of all processes of one node, so that they fit into a ConfigMap.
MAX_NODE_LINKS: Final = 12_288
MAX_ERROR: Final = 160
_HOLDER: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,350}[a-z0-9])?")
_UINT64: Final = 2**64 - 1
_INT32: Final = 2**31 - 1
_T = TypeVar("_T")


class _Group(msgspec.Struct, rename="camel"):
    """Links of one process that the same documents declare, with the clusters at their other ends."""

    for_: list[str] = msgspec.field(default_factory=list, name="for")
    timeout: int = 3000
    to: list[int] = []


class _End(msgspec.Struct, rename="camel"):
    cluster: int
    holder: str
    links: list[_Group] = []


class _Orders(msgspec.Struct, rename="camel"):
    node: str
    clusters: list[_End] = []
    peers: dict[str, list[str]] = {}


class _File(msgspec.Struct, rename="camel"):
    cluster: int
    holder: str
    links: list[_Group] = []
    peers: dict[str, list[str]] = {}


class _LinkReport(msgspec.Struct, rename="camel", omit_defaults=True):
    cluster: int
    state: str
    latency_ms: float | None = None
    since: int = 0
    tries: int = 0
    error: str = ""


class _EndReport(msgspec.Struct, rename="camel"):
    cluster: int
    holder: str = ""
    alive: bool = True
    links: list[_LinkReport] = []
    problem: str = ""


class _Report(msgspec.Struct, rename="camel"):
    node: str
    clusters: list[_EndReport] = []


def name_of(node: str) -> str:
    """Name of a node's two ConfigMaps."""
    return bounded(PREFIX + node)


def orders_text(node: str, ends: Sequence[EndOrders]) -> str:
    """The orders of a node as JSON; equal orders give equal text."""
    ordered = sorted(ends, key=lambda end: end.holder)
    return _text(_Orders(node, [_end_of(end) for end in ordered], _peers_of(ordered)))


def orders_map(node: str, text: str) -> dict[str, Any]:
    """The ConfigMap with a node's orders."""
    return _config_map(SYSTEM, node, text)


def parse_orders(config_map: Mapping[str, Any]) -> tuple[str, tuple[EndOrders, ...]]:
    """The node and its orders.

    Raises:
        WireError: not valid, or ``node`` differs from the ConfigMap's name.
    """
    where, text = _open(config_map)
    raw = _convert(where, text, _Orders)
    _same_node(where, config_map, raw.node)
    if len(raw.clusters) > MAX_ENDS:
        raise WireError(where, f"data.{KEY}.clusters", f"{len(raw.clusters)} are named, the limit is {MAX_ENDS}")
    ends = tuple(_end_orders(where, end.cluster, end.holder, end.links, raw.peers) for end in raw.clusters)
    if len({end.holder for end in ends}) < len(ends):
        raise WireError(where, f"data.{KEY}.clusters", "a holder is listed twice")
    return raw.node, ends


def end_text(end: EndOrders) -> str:
    """The file ``links.json`` of one process."""
    body = _end_of(end)
    return _text(_File(body.cluster, body.holder, body.links, _peers_of([end])))


def parse_end(where: str, text: str) -> EndOrders:
    """Read ``links.json``. Raises WireError."""
    raw = _convert(where, text, _File)
    return _end_orders(where, raw.cluster, raw.holder, raw.links, raw.peers)


def end_report_text(report: EndReport) -> str:
    """The file ``report.json`` of one process."""
    return _text(_report_of(report))


def parse_end_report(where: str, text: str) -> EndReport:
    """Read ``report.json``, which a container wrote, so that every text is cut. Raises WireError."""
    return _end_report(_convert(where, text, _EndReport))


def report_map(node: str, ends: Sequence[EndReport]) -> dict[str, Any]:
    """The ConfigMap that a node's agent writes; what does not fit is left out, working links first."""
    body = _Report(node, [_report_of(end) for end in sorted(ends, key=lambda end: end.holder)[:MAX_ENDS]])
    text = _text(body)
    if len(text) > MAX_BODY:
        for end in body.clusters:
            end.links = [link for link in end.links if link.state != "linked"][: MAX_LINKS // 4]
        text = _text(body)
    return _config_map(NODES, node, text)


def parse_report(config_map: Mapping[str, Any]) -> tuple[str, tuple[EndReport, ...]]:
    """The node and its reports.

    Raises:
        WireError: not valid, or ``node`` differs from the ConfigMap's name.
    """
    where, text = _open(config_map)
    raw = _convert(where, text, _Report)
    _same_node(where, config_map, raw.node)
    return raw.node, tuple(_end_report(end) for end in raw.clusters[:MAX_ENDS])


def _end_of(end: EndOrders) -> _End:
    groups: dict[tuple[tuple[str, ...], int], list[int]] = {}
    for link in sorted(end.links, key=lambda link: link.cluster):
        groups.setdefault((link.links, link.timeout_ms), []).append(link.cluster)
    return _End(end.cluster, end.holder, [_Group(list(names), ms, to) for (names, ms), to in sorted(groups.items())])


def _peers_of(ends: Sequence[EndOrders]) -> dict[str, list[str]]:
    return {str(link.cluster): list(link.addresses) for end in ends for link in end.links}


def _end_orders(
    where: str, cluster: int, holder: str, groups: Sequence[_Group], peers: Mapping[str, list[str]]
) -> EndOrders:
    field = f"data.{KEY}.clusters"
    if not _HOLDER.fullmatch(holder) or ".." in holder:
        raise WireError(where, field, f"{holder!r:.80} is not a holder such as default.decode-0")
    if not 0 <= cluster <= _UINT64:
        raise WireError(where, field, f"{cluster} is not a cluster number")
    links = []
    for group in groups:
        for to in group.to:
            addresses = tuple(peers.get(str(to), ()))
            if not 0 <= to <= _UINT64 or to == cluster or not 0 < group.timeout <= _INT32 or not addresses:
                raise WireError(
                    where, field, f"the link of {holder} to cluster {to} has an invalid number, timeout or address"
                )
            links.append(LinkOrder(to, addresses, group.timeout, tuple(group.for_)))
    if len(links) > MAX_LINKS:
        raise WireError(where, field, f"{holder} has {len(links)} links, the limit is {MAX_LINKS}")
    if len({link.cluster for link in links}) < len(links):
        raise WireError(where, field, f"{holder} has two links to one cluster")
    return EndOrders(cluster, holder, tuple(sorted(links, key=lambda link: link.cluster)))


def _report_of(end: EndReport) -> _EndReport:
    links = sorted(end.links, key=lambda link: link.cluster)[:MAX_LINKS]
    rows = [_LinkReport(r.cluster, r.state, r.latency_ms, r.since_ms, r.tries, r.error[:MAX_ERROR]) for r in links]
    return _EndReport(end.cluster, end.holder, end.alive, rows, end.problem[:MAX_ERROR])


def _end_report(end: _EndReport) -> EndReport:
    return EndReport(
        end.cluster,
        end.holder[:400],
        end.alive,
        tuple(
            LinkReport(r.cluster, r.state[:16], r.latency_ms, r.since, r.tries, r.error[:MAX_ERROR])
            for r in end.links[:MAX_LINKS]
        ),
        end.problem[:MAX_ERROR],
    )


def _open(config_map: Mapping[str, Any]) -> tuple[str, object]:
    metadata = config_map.get("metadata") or {}
    name = str(metadata.get("name", ""))
    data = config_map.get("data")
    return f"ConfigMap/{metadata.get('namespace', '')}/{name}", data.get(KEY) if isinstance(data, dict) else None


def _same_node(where: str, config_map: Mapping[str, Any], node: str) -> None:
    name = str((config_map.get("metadata") or {}).get("name", ""))
    if name != name_of(node):
        raise WireError(where, f"data.{KEY}.node", f"says {node!r:.80} but the object is {name}; it is ignored")


def _convert(where: str, text: object, shape: type[_T]) -> _T:
    try:
        return msgspec.convert(read_object(where, f"data.{KEY}", text), shape)
    except msgspec.ValidationError as error:
        raise WireError(where, f"data.{KEY}", str(error)) from error


def _text(body: msgspec.Struct) -> str:
    return msgspec.json.encode(body, order="deterministic").decode()


def _config_map(namespace: str, node: str, text: str) -> dict[str, Any]:
    metadata = {"name": name_of(node), "namespace": namespace, "labels": {MANAGED_BY: "belay"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}}


__all__ = [
    "KEY", "LOCK_FILE", "MAX_BODY", "MAX_ENDS", "MAX_FILE", "MAX_NODE_LINKS", "ORDERS_FILE", "PREFIX", "REPORT_FILE",
    "end_report_text", "end_text", "name_of", "orders_map", "orders_text", "parse_end", "parse_end_report",
    "parse_orders", "parse_report", "report_map",
]  # fmt: skip
