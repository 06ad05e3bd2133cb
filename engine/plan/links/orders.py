"""Links between prefill and decode clusters: which process opens which link.

Every decode cluster of a KVLink links to every one of its prefill clusters. The decode side is the client, because it
pulls and closes links for both (LLM-DataDist, unlink_clusters); the prefill side is the client where only that one runs
on this cluster's nodes. The links of a node's processes are one ConfigMap (``belay.engine.wire.links``), written when
it changes. When a cluster's pod leaves or moves, its links are withdrawn, and ordered again where it returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from belay.engine.model.actions import CreateObject, DeleteObject, EvictPod, Evidence, PatchObject
from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey, Severity
from belay.engine.model.labels import KV_CLUSTER
from belay.engine.model.links import (
    MAX_LINKS,
    EndOrders,
    LinkOrder,
    cluster_holder,
    cluster_number,
    pod_holder,
)
from belay.engine.model.plan_cache import CacheKey, Memo
from belay.engine.model.quantities import whole_number
from belay.engine.model.reasons import ActionReason
from belay.engine.model.wording import counted
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.links import states
from belay.engine.plan.links.pairs import LinkMember, LinkPair
from belay.engine.plan.node_view import PassNodes
from belay.engine.wire import links as wire
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import SYSTEM

if TYPE_CHECKING:
    from belay.engine.documents import Declared, KVLink, KVSide
    from belay.engine.model.links import LinkState

RULE: Final = "links"
API: Final = "belay.dev/v1alpha1"
_UINT64: Final = 2**64 - 1
_ORDERS: Final = CacheKey("link orders of nodes", Memo[tuple[EndOrders, ...]], limit=32768)


def order_links(facts: Facts, draft: Draft, nodes: PassNodes) -> list[LinkState]:
    """Order the links of each node's processes, and derive the state of each declared link.

    Without Git the orders in the cluster stay as they are.
    """
    pairs = list(_Resolution(facts, draft).pairs()) if facts.desired.links else []
    if facts.desired.has_git:
        _order_nodes(facts, draft, nodes, _ends(pairs))
    return states.states(facts, draft, pairs)


def _order_nodes(facts: Facts, draft: Draft, nodes: PassNodes, ends: _Ends) -> None:
    live = {node: raw for node in nodes if (raw := facts.observed.objects.get(states.key_of(SYSTEM, node))) is not None}
    _keep_undeclared(facts, draft, ends, live)
    for node in sorted({*live, *ends}):
        view = nodes.get(node)
        if view is not None and not view.suspended:
            _order(facts, draft, node, ends.get(node, {}), live.get(node))


# ---- members and pairs


class _Resolution:
    """Members and pairs of all KVLinks of a pass; where documents conflict, the first by name counts."""

    def __init__(self, facts: Facts, draft: Draft) -> None:
        self._facts, self._draft = facts, draft
        self._going = {f"{a.namespace}/{a.pod}" for a in draft.actions if isinstance(a, EvictPod)}
        self._by_ip: dict[str, Pod] | None = None
        self._known: dict[int, tuple[LinkMember, str]] = {}
        self._degree: dict[int, int] = {}
        self._taken: dict[frozenset[int], str] = {}

    def pairs(self) -> Iterator[LinkPair]:
        for declared in self._facts.desired.links:
            yield from self._of(declared)

    def _of(self, declared: Declared[KVLink]) -> Iterator[LinkPair]:
        link, spec = declared.document.name, declared.document.spec
        prefill = self._members(declared, "prefill", spec.prefill)
        decode = self._members(declared, "decode", spec.decode)
        timeout, full, external = max(1, round(spec.timeout * 1000)), 0, []
        for ours in decode:
            for theirs in prefill:
                if ours.cluster == theirs.cluster:
                    continue
                client, server = (ours, theirs) if ours.node or not theirs.node else (theirs, ours)
                if not client.node:
                    external.append(f"{ours.name} and {theirs.name}")
                    continue
                both = frozenset((ours.cluster, theirs.cluster))
                if both in self._taken and self._taken[both] != f"{client.cluster}":
                    continue  # by another document the other side opens this very link
                if both not in self._taken:
                    if any(self._degree.get(cluster, 0) >= MAX_LINKS for cluster in both):
                        full += 1
                        continue
                    self._taken[both] = f"{client.cluster}"
                    for cluster in both:
                        self._degree[cluster] = self._degree.get(cluster, 0) + 1
                yield LinkPair(link, theirs, ours, client, server, timeout)
        if full:
            self._report(
                declared,
                "error",
                "spec",
                f"{full} links are left out: a cluster takes at most {MAX_LINKS} links",
                PassCode.LINKS_LEFT_OUT,
            )
        if external:
            more = f" and {len(external) - 3} more" if len(external) > 3 else ""
            text = f"no node of this cluster runs either side of {', '.join(external[:3])}{more}: not linked"
            self._report(declared, "warning", "spec", text, PassCode.NO_LINK)

    def _members(self, declared: Declared[KVLink], name: str, side: KVSide) -> list[LinkMember]:
        found = (
            self._selected(declared, name, side) if side.selector is not None else self._written(declared, name, side)
        )
        members = []
        for member in sorted(found, key=lambda member: member.cluster):
            known, whose = self._known.setdefault(member.cluster, (member, declared.document.name))
            if (known.addresses, known.holder) != (member.addresses, member.holder):
                text = (
                    f"cluster {member.cluster} is {known.name} at {', '.join(known.addresses)} by KVLink {whose},"
                    f" and {member.name} at {', '.join(member.addresses)} here; the first counts"
                )
                self._report(declared, "error", f"spec.{name}", text, PassCode.LINK_MEMBER_REFUSED)
                continue
            members.append(known)
        if not members:
            self._report(
                declared,
                "info",
                f"spec.{name}",
                "no running cluster is found on this side: nothing is linked",
                PassCode.NO_LINK,
            )
        return members

    def _selected(self, declared: Declared[KVLink], name: str, side: KVSide) -> Iterator[LinkMember]:
        selector = side.selector
        assert selector is not None
        for pod in self._facts.observed.pods.values():
            if pod.namespace != side.namespace or not selector.matches(pod.labels) or not self._serves(pod):
                continue
            number = _number(pod)
            if number is None:
                text = (
                    f"annotation {KV_CLUSTER} of pod {pod.key} is not a whole number from 0 to 2^64-1: it is left out"
                )
                self._report(declared, "warning", f"spec.{name}", text, PassCode.LINK_MEMBER_REFUSED)
                continue
            if ":" in pod.pod_ip:
                text = f"pod {pod.key} has the address {pod.pod_ip} only: links are made over IPv4, so it is left out"
                self._report(declared, "warning", f"spec.{name}", text, PassCode.LINK_MEMBER_REFUSED)
                continue
            address = f"{pod.pod_ip}:{side.port}"
            yield LinkMember(
                number, (address,), self._own_node(pod.node), pod_holder(pod.namespace, pod.name), f"pod {pod.key}"
            )

    def _written(self, declared: Declared[KVLink], name: str, side: KVSide) -> Iterator[LinkMember]:
        for cluster in side.clusters:
            what, node, holder = f"cluster {cluster.id}", cluster.node or "", cluster_holder(cluster.id)
            if cluster.node and cluster.node not in self._facts.observed.nodes:
                text = f"{what} is declared on node {cluster.node}, which does not exist: it opens no links itself"
                self._report(declared, "warning", f"spec.{name}.clusters", text, PassCode.UNKNOWN_NODE)
            pod = None if cluster.node else self._pod_at(cluster.addresses)
            if pod is not None:
                node, holder, what = pod.node, pod_holder(pod.namespace, pod.name), f"pod {pod.key}"
            elif not cluster.node:
                node = self._node_at(cluster.addresses)
            yield LinkMember(cluster.id, cluster.addresses, self._own_node(node), holder, what)

    def _serves(self, pod: Pod) -> bool:
        return pod.phase == "Running" and bool(pod.pod_ip) and pod.deleting is None and pod.key not in self._going

    def _own_node(self, node: str) -> str:
        return node if node in self._facts.observed.nodes else ""

    def _pod_at(self, addresses: Sequence[str]) -> Pod | None:
        if self._by_ip is None:
            pods = self._facts.observed.pods.values()
            self._by_ip = {pod.pod_ip: pod for pod in pods if self._serves(pod) and not pod.host_network}
        hosts = (address.rpartition(":")[0] for address in addresses)
        return next((self._by_ip[host] for host in hosts if host in self._by_ip), None)

    def _node_at(self, addresses: Sequence[str]) -> str:
        hosts = {address.rpartition(":")[0] for address in addresses}
        return next((node.name for node in self._facts.observed.nodes.values() if node.internal_ip in hosts), "")

    def _report(self, declared: Declared[KVLink], severity: Severity, field: str, message: str, code: PassCode) -> None:
        origin = declared.origin
        subject = f"KVLink/{declared.document.name}"
        self._draft.diagnostics.append(
            Diagnostic(severity, subject, origin.file, origin.line, origin.column, field, message, code)
        )


def _number(pod: Pod) -> int | None:
    note = pod.annotations.get(KV_CLUSTER)
    if note is None:
        return cluster_number(pod.namespace, pod.name)
    number = whole_number(note, digits=20)
    return number if number is not None and number <= _UINT64 else None


# ---- orders of nodes


_Ends = dict[str, dict[str, EndOrders]]
"""Node → holder → orders of its process."""


def _ends(pairs: Sequence[LinkPair]) -> _Ends:
    orders: dict[tuple[str, str], dict[int, LinkOrder]] = {}
    numbers: dict[tuple[str, str], int] = {}
    for pair in pairs:
        for member in (pair.client, pair.server):
            if member.node:
                orders.setdefault((member.node, member.holder), {})
                numbers[member.node, member.holder] = member.cluster
        mine, peer = orders[pair.client.node, pair.client.holder], pair.server.cluster
        before = mine.get(peer)
        mine[peer] = LinkOrder(
            peer,
            pair.server.addresses,
            max(pair.timeout_ms, before.timeout_ms if before else 0),
            tuple(sorted({pair.link, *(before.links if before else ())})),
        )
    ends: _Ends = {}
    for (node, holder), mine in orders.items():
        links = tuple(mine[peer] for peer in sorted(mine))
        ends.setdefault(node, {})[holder] = EndOrders(numbers[node, holder], holder, links)
    return ends


def _keep_undeclared(facts: Facts, draft: Draft, ends: _Ends, live: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep the ordered links of documents that are broken or whose deletion is deferred."""
    declared = {item.document.name for item in facts.desired.links}
    going = {a.name for a in draft.actions if isinstance(a, DeleteObject) and a.object_kind == "KVLink"}
    stays: dict[str, bool] = {}
    peers: set[int] = set()
    for node, raw in live.items():
        for end in _current_orders(facts, node, raw):
            for order in end.links:
                for name in order.links:
                    if name not in stays:
                        stays[name] = name not in declared and _is_retained(facts, name, going)
                kept = tuple(name for name in order.links if stays[name])
                if kept:
                    peers.add(order.cluster)
                    _add(ends.setdefault(node, {}), end, order, kept)
    for node, raw in live.items() if peers else ():
        for end in _current_orders(facts, node, raw):
            if end.cluster in peers:  # a process that others link to
                ends.setdefault(node, {}).setdefault(end.holder, EndOrders(end.cluster, end.holder))


def _is_retained(facts: Facts, name: str, going: set[str]) -> bool:
    key = ObjectKey(API, "KVLink", "", name)
    return not facts.desired.may_prune(key) or (key in facts.observed.objects and name not in going)


def _add(mine: dict[str, EndOrders], end: EndOrders, order: LinkOrder, names: tuple[str, ...]) -> None:
    known = mine.get(end.holder, EndOrders(end.cluster, end.holder))
    links = {link.cluster: link for link in known.links}
    if known.cluster != end.cluster or (order.cluster not in links and len(links) >= MAX_LINKS):
        return
    links.setdefault(order.cluster, LinkOrder(order.cluster, order.addresses, order.timeout_ms, names))
    mine[end.holder] = EndOrders(end.cluster, end.holder, tuple(links[peer] for peer in sorted(links)))


def _current_orders(facts: Facts, node: str, raw: Mapping[str, Any]) -> tuple[EndOrders, ...]:
    """The node's current orders; empty where they cannot be read, so that they are written again."""

    def parsed() -> tuple[EndOrders, ...]:
        try:
            return wire.parse_orders(raw)[1]
        except WireError:
            return ()

    return facts.cache[_ORDERS].of(node, raw, parsed)


def _order(
    facts: Facts, draft: Draft, node: str, mine: Mapping[str, EndOrders], live: Mapping[str, Any] | None
) -> None:
    """Write one node's orders if they have changed."""
    mine = _bounded(draft, node, mine)
    text = wire.orders_text(node, list(mine.values()))
    if live is not None and (live.get("data") or {}).get(wire.KEY) == text:
        return
    standing = _current_orders(facts, node, live) if live is not None else ()
    before = {(end.cluster, link.cluster) for end in standing for link in end.links}
    after = {(end.cluster, link.cluster) for end in mine.values() for link in end.links}
    names = sorted({name for end in mine.values() for link in end.links for name in link.links})
    change = f"{len(after - before)} new, {len(before - after)} withdrawn"
    what = f"node {node} runs {counted(len(mine), 'cluster')} and keeps {counted(len(after), 'link')} ({change})"
    message = f"{what} of KVLink {', '.join(names[:5])}{', …' if len(names) > 5 else ''}" if names else what
    reason = "LinksChanged" if after else "LinksWithdrawn"
    body, evidence = wire.orders_map(node, text), _evidence(facts, names)
    name = body["metadata"]["name"]
    if live is None:
        draft.actions.append(
            CreateObject(
                reason=ActionReason.LINKS_DECLARED, message=message, evidence=evidence, api_version="v1",
                object_kind="ConfigMap",
                namespace=SYSTEM, name=name, object=body,
            )
        )  # fmt: skip
        return
    draft.actions.append(
        PatchObject(
            reason=reason, message=message, evidence=evidence,
            api_version="v1", object_kind="ConfigMap", namespace=SYSTEM, name=name, patch=body,
        )
    )  # fmt: skip


def _bounded(draft: Draft, node: str, mine: Mapping[str, EndOrders]) -> Mapping[str, EndOrders]:
    """The orders that fit into one node's ConfigMap, by holder; the others are reported."""
    kept: dict[str, EndOrders] = {}
    room, out = wire.MAX_NODE_LINKS, 0
    for holder in sorted(mine):
        if len(kept) < wire.MAX_ENDS and len(mine[holder].links) <= room:
            kept[holder] = mine[holder]
            room -= len(mine[holder].links)
        else:
            out += 1
    if out:
        text = f"{out} processes get no links: a node takes {wire.MAX_ENDS} processes and {wire.MAX_NODE_LINKS} links"
        draft.diagnostics.append(Diagnostic("error", f"Node/{node}", "", 0, 0, "", text, PassCode.LINKS_LEFT_OUT))
    return kept


def _evidence(facts: Facts, names: Sequence[str]) -> Evidence:
    """The place of the first document that declares a link of the node."""
    declared = next((item for item in facts.desired.links if item.document.name in names[:1]), None)
    if declared is None:
        return Evidence(rule=RULE, revision=facts.desired.revision)
    return Evidence(RULE, declared.origin.file, declared.origin.line, facts.desired.revision)


__all__ = ["LinkMember", "LinkPair", "order_links"]
