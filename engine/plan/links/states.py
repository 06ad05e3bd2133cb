"""The state of each declared link, from the agents' reports, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.links import NO_PROCESS, ORDERED, STALE, EndReport, LinkReport, LinkState
from belay.engine.model.plan_cache import CacheKey, Memo
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.wire import links as wire
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import NODES
from belay.engine.wire.unwritten import is_unwritten

if TYPE_CHECKING:
    from belay.engine.plan.links.pairs import LinkPair

#: Silence of an agent after which its link report is stale: three heartbeats of 60 s plus 20 %.
STALE_SECONDS: Final = 3 * 60 * 1.2
#: Most links in one plan; a diagnostic counts the others.
MAX_STATES: Final = 50_000
_REPORTS: Final = CacheKey("link reports of nodes", Memo[tuple[tuple[EndReport, ...], str]], limit=32768)


@lru_cache(maxsize=65536)
def key_of(namespace: str, node: str) -> ObjectKey:
    """The ConfigMap with a node's link orders (in belay-system) or link report (in belay-nodes)."""
    return ObjectKey("v1", "ConfigMap", namespace, wire.name_of(node))


def states(facts: Facts, draft: Draft, pairs: Sequence[LinkPair]) -> list[LinkState]:
    """One row per link of each KVLink, sorted by document, decode and prefill cluster."""
    reports: dict[str, dict[str, EndReport]] = {}
    rows = []
    for pair in pairs[:MAX_STATES]:
        client = pair.client
        if client.node not in reports:
            reports[client.node] = {end.holder: end for end in _reported(facts, draft, client.node)}
        state = _state(facts, pair, reports[client.node].get(client.holder))
        rows.append(
            LinkState(
                link=pair.link,
                prefill=pair.prefill.cluster,
                decode=pair.decode.cluster,
                client="decode" if client is pair.decode else "prefill",
                node=client.node,
                holder=client.name,
                peer=pair.server.name,
                state=state.state,
                latency_ms=state.latency_ms,
                since_ms=state.since_ms,
                tries=state.tries,
                error=state.error,
            )
        )
    if len(pairs) > MAX_STATES:
        text = f"{len(pairs) - MAX_STATES} links are kept but not shown"
        draft.diagnostics.append(Diagnostic("info", "KVLink", "", 0, 0, "", text, PassCode.LINKS_LEFT_OUT))
    return sorted(rows, key=lambda row: (row.link, row.decode, row.prefill))


def _state(facts: Facts, pair: LinkPair, end: EndReport | None) -> LinkReport:
    peer = pair.server.cluster
    agent = facts.observed.agents.get(pair.client.node)
    if agent is None or facts.now_ms - agent.time_ms > STALE_SECONDS * 1000:
        why = f"the agent of node {pair.client.node} " + ("has not reported" if agent is None else "no longer reports")
        return LinkReport(peer, STALE if end is not None else ORDERED, error=why)
    if end is None or end.cluster != pair.client.cluster:
        return LinkReport(peer, ORDERED, error="the agent has not reported it yet")
    if not end.alive:
        return LinkReport(
            peer, NO_PROCESS, error=end.problem or f"no process of {pair.client.name} has taken the orders"
        )
    reported = next((link for link in end.links if link.cluster == peer), None)
    return reported or LinkReport(peer, ORDERED, error=end.problem or "the process has not reported it yet")


def _reported(facts: Facts, draft: Draft, node: str) -> tuple[EndReport, ...]:
    raw = facts.observed.objects.get(key_of(NODES, node))
    if raw is None or is_unwritten(raw):
        return ()

    def parsed() -> tuple[tuple[EndReport, ...], str]:
        try:
            return wire.parse_report(raw)[1], ""
        except WireError as error:
            return (), f"the link report of node {node} is ignored: {error}"

    ends, problem = facts.cache[_REPORTS].of(node, raw, parsed)
    if problem:
        draft.diagnostics.append(Diagnostic("error", f"Node/{node}", "", 0, 0, "", problem, PassCode.UNREADABLE))
    return ends


__all__ = ["key_of", "states"]
