"""Views of unchanged nodes, reused from earlier passes without deriving or assessing them again.

Few of ten thousand nodes change between two passes. A view is kept once health has found the node clean. It is reused
while node, reports and pods are the same objects and the report is fresh. It equals the view that the pass would
derive, so no plan depends on the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import inf
from typing import Final, NamedTuple

import msgspec

from belay.engine.documents import Desired, InitParams
from belay.engine.model.cluster import AgentReport, DeviceReport, Node, NodeReport, Observed, Pod
from belay.engine.model.levels import NORMAL
from belay.engine.model.node_options import cordon_rule
from belay.engine.model.plan import ChipState, NodeState
from belay.engine.model.plan_cache import CacheKey, Slot, Table, differing
from belay.engine.model.states import NodeHealth
from belay.engine.plan.facts import Facts
from belay.engine.plan.node_view import FUTURE_TOLERANCE, STALE_AFTER, EarlierAssessment, NodeView, PassNodes
from belay.engine.plan.products import chip_name

# read often: members of an enumeration are slow to look up
_HEALTHY: Final = NodeHealth.HEALTHY

ResetGroups = tuple[tuple[int, ...], ...]
"""The chips of a node that reset together as its driver says; empty where no agent reports them."""


class _CachedView(NamedTuple):
    """The inputs of a view, the time in which its report is fresh (Unix s), and the view after health."""

    rules: _Rules
    node: Node
    report: DeviceReport
    node_report: NodeReport | None
    reset_groups: ResetGroups
    pods: Sequence[Pod]
    chip_name: str
    since: float
    until: float
    view: NodeView


class _Rules(NamedTuple):
    """The inputs of all views of a shard."""

    desired: Desired
    shard: str
    maintain: bool

    def same(self, other: _Rules) -> bool:
        return self.desired is other.desired and self.shard == other.shard and self.maintain == other.maintain


#: By node name; entries are never changed, only replaced.
_VIEWS: Final = CacheKey("assessed nodes", Table[_CachedView], limit=32768)


class _LastPass(NamedTuple):
    """The inputs of a shard's last pass, the nodes served in it, and the ``others``.

    Objects that are the same as then need no comparison by fields.
    """

    rules: _Rules
    nodes: Mapping[str, Node]
    reports: Mapping[str, DeviceReport]
    node_reports: Mapping[str, NodeReport]
    agents: Mapping[str, AgentReport]
    pods: Mapping[str, list[Pod]]
    served: dict[str, NodeView]
    others: AbstractSet[str]
    since: float
    until: float


_LAST: Final = CacheKey("nodes of the last pass", Slot[_LastPass])


def views(facts: Facts, pods: Mapping[str, list[Pod]], maintain: bool) -> dict[str, NodeView]:
    """Views of the nodes that have not changed since an earlier pass assessed them, by name."""
    observed, now = facts.observed, facts.now
    excluded = _excluded(facts)
    rules = _Rules(facts.desired, facts.shard, maintain)
    out, others = _same(facts, rules, pods, excluded)
    reports, node_reports = observed.reports, observed.node_reports
    last, kept = facts.cache[_LAST].value, facts.cache[_VIEWS]
    since, until = (last.since, last.until) if out and last else (-inf, inf)
    for name in others - excluded:
        entry = kept.get(name)
        if entry is None or entry.node is not observed.nodes[name] or entry.report is not reports.get(name):
            continue
        if not entry.since <= now <= entry.until or entry.node_report is not node_reports.get(name):
            continue
        agent = observed.agents.get(name)
        if entry.chip_name != chip_name(entry.node, agent) or entry.reset_groups != reset_groups(agent):
            continue
        if rules.same(entry.rules) and entry.pods == (pods.get(name) or ()):
            others.discard(name)
            out[name] = entry.view
            since, until = max(since, entry.since), min(until, entry.until)
    facts.cache[_LAST].value = _LastPass(
        rules, observed.nodes, reports, node_reports, observed.agents, pods, out, others, since, until
    )
    return out


def _same(
    facts: Facts, rules: _Rules, pods: Mapping[str, list[Pod]], excluded: AbstractSet[str]
) -> tuple[dict[str, NodeView], set[str]]:
    """Nodes served in the shard's last pass that have not changed since, and all other nodes."""
    last, observed = facts.cache[_LAST].value, facts.observed
    if last is None or not rules.same(last.rules) or not last.since <= facts.now <= last.until:
        return {}, set(observed.nodes)
    changed = set(excluded)
    pairs: tuple[tuple[Mapping[str, object], Mapping[str, object]], ...] = (
        (observed.nodes, last.nodes),
        (observed.reports, last.reports),
        (observed.node_reports, last.node_reports),
    )
    for new, old in pairs:
        changed.update(differing(new, old))
    agents, known = observed.agents, last.agents
    # agents write often, and seldom other words about the chips
    changed.update(name for name in differing(agents, known) if _said(agents, name) != _said(known, name))
    if pods is not last.pods:
        changed.update(name for name in differing(pods, last.pods) if last.pods.get(name) != pods.get(name))
    served = dict(last.served)
    for name in changed:
        served.pop(name, None)
    return served, (changed | last.others) & observed.nodes.keys()


def _said(agents: Mapping[str, AgentReport], name: str) -> tuple[str, ResetGroups]:
    agent = agents.get(name)
    return (agent.chip_name, agent.reset_groups) if agent is not None else ("", ())


def keep(
    facts: Facts,
    nodes: PassNodes,
    assessed: Sequence[str],
    rows: Mapping[str, Sequence[ChipState]],
    inspected: AbstractSet[str],
) -> None:
    """Keep the views of clean nodes.

    Args:
        assessed: names of the nodes that health assessed in this pass.
        rows: their rows of the plan's ``chips``.
        inspected: nodes with manual holds or assessed chips, which are not kept.
    """
    observed = facts.observed
    rules = _Rules(facts.desired, facts.shard, maintains(facts.desired, observed))
    # every pass reports the nodes that several pools select
    excluded = _excluded(facts) | inspected | nodes.contested
    kept = facts.cache[_VIEWS]
    for name in assessed:
        view = nodes[name]
        report = view.report
        if report is None or not _is_clean(view) or name in excluded:
            continue
        node_report = observed.node_reports.get(name)
        if node_report is not None and node_report.devices:
            continue
        since, until = report.update_time - FUTURE_TOLERANCE, report.update_time + STALE_AFTER
        if not since <= facts.now <= until:
            continue
        state = NodeState(name, view.pool, view.state, view.level, tuple(sorted(view.codes)))
        known = msgspec.structs.replace(view, assessed=EarlierAssessment(tuple(rows.get(name, ())), state))
        agent = observed.agents.get(name)
        chip, said = chip_name(view.node, agent), reset_groups(agent)
        kept.keep(name, _CachedView(rules, view.node, report, node_report, said, view.pods, chip, since, until, known))


def reset_groups(agent: AgentReport | None) -> ResetGroups:
    """The reset groups that an agent reports; a report that is old says of them what a new one would."""
    return agent.reset_groups if agent is not None else ()


def maintains(desired: Desired, observed: Observed) -> bool:
    """The setting ``self-maintain-available-card``: the cluster's own before the policies'."""
    params = InitParams.from_arguments(observed.init_params, base=desired.settings.init_params)
    return params.self_maintain_available_card


def _is_clean(view: NodeView) -> bool:
    """Whether health found the node clean."""
    return (
        view.fresh
        and not view.contradiction  # every pass reports it
        and view.state == _HEALTHY
        and view.level == NORMAL
        and not (view.codes or view.down or view.suspended or view.switch_sub_healthy)
        and cordon_rule(view.node) is None  # a pass takes the cordon back
        and not (view.chip_level or view.hit or view.sub_healthy or view.resettable)
        and not (view.resetting or view.recovering or view.unhealthy)
    )


def _excluded(facts: Facts) -> set[str]:
    """Nodes that depend on more than their own objects and reports.

    Any further input of the assessment of a node must be named here.
    """
    observed = facts.observed
    found = {*observed.problems, *observed.history.nodes}
    found.update(claim.rpartition("/")[0] for claim in observed.ledger)
    found.update(facts.claims.chips)
    found.update(name for name, orders in observed.orders.items() if orders.isolate or orders.resets)
    return found
