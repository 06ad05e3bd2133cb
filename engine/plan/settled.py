"""Nodes that were judged before and are what they were: their views are lent instead of derived and judged anew.

In a cluster of ten thousand nodes hardly any changes between two passes. A view is kept once health is through with it
and nothing about the node needs a second look; it serves while node, reports and pods are the same objects and the
report is fresh. What is lent is what the passes would have derived, so nothing of a plan depends on what is kept; who
changes a view copies it first (``Scope.own``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast

from engine.documents import Desired, InitParams
from engine.model.cluster import DeviceReport, Node, NodeReport, Observed, Pod
from engine.model.levels import NORMAL
from engine.model.plan import ChipState, NodeState
from engine.plan.memo import differing
from engine.plan.outages import FUTURE_TOLERANCE, STALE_AFTER
from engine.plan.scope import NodeView, Scope

LIMIT: Final = 32768
_NO_PODS: Final[list[Pod]] = []
_EMPTY: Final[Any] = MappingProxyType({})
Key = TypeVar("Key")
Value = TypeVar("Value")


class _Kept(NamedTuple):
    """What a view followed from, while when its report is fresh (Unix s), and the view as health left it."""

    rules: _Rules
    node: Node
    report: DeviceReport
    node_report: NodeReport | None
    pods: list[Pod]
    since: float
    until: float
    view: NodeView


class _Rules(NamedTuple):
    """What the views of all nodes of a shard follow from."""

    desired: Desired
    shard: str
    maintain: bool

    def same(self, other: _Rules) -> bool:
        return self.desired is other.desired and self.shard == other.shard and self.maintain == other.maintain


#: By node name; entries are never changed, only replaced.
_KEPT: Final[dict[str, _Kept]] = {}


class _Glance(NamedTuple):
    """What a shard's last pass saw, the nodes that were served then and the ``others``: what is the same object need
    not be compared field by field.
    """

    rules: _Rules
    nodes: Mapping[str, Node]
    reports: Mapping[str, DeviceReport]
    node_reports: Mapping[str, NodeReport]
    pods: Mapping[str, list[Pod]]
    served: dict[str, NodeView]
    others: AbstractSet[str]
    since: float
    until: float


_GLANCES: Final[dict[str, _Glance]] = {}


def views(scope: Scope, pods: Mapping[str, list[Pod]], maintain: bool) -> dict[str, NodeView]:
    """A view for every node that is what it was when an earlier pass judged it, by name."""
    observed, now = scope.observed, scope.now
    apart = _apart(scope)
    rules = _Rules(scope.desired, scope.shard, maintain)
    out, others = _same(scope, rules, pods, apart)
    reports, node_reports = observed.reports, observed.node_reports
    last = _GLANCES.get(scope.shard)
    since, until = (last.since, last.until) if out and last else (-inf, inf)
    for name in others - apart:
        entry = _KEPT.get(name)
        if entry is None or entry.node is not observed.nodes[name] or entry.report is not reports.get(name):
            continue
        if not entry.since <= now <= entry.until or entry.node_report is not node_reports.get(name):
            continue
        if rules.same(entry.rules) and entry.pods == pods.get(name, _NO_PODS):
            others.discard(name)
            out[name] = entry.view
            since, until = max(since, entry.since), min(until, entry.until)
    _GLANCES[scope.shard] = _Glance(
        rules, observed.nodes, observed.reports, observed.node_reports, pods, out, others, since, until
    )
    return out


def _same(
    scope: Scope, rules: _Rules, pods: Mapping[str, list[Pod]], apart: AbstractSet[str]
) -> tuple[dict[str, NodeView], set[str]]:
    """The nodes served in the shard's last pass about which nothing has changed since, and all the others."""
    last, observed = _GLANCES.get(scope.shard), scope.observed
    if last is None or not rules.same(last.rules) or not last.since <= scope.now <= last.until:
        return {}, set(observed.nodes)
    changed = set(apart)
    pairs: tuple[tuple[Mapping[str, object], Mapping[str, object]], ...] = (
        (observed.nodes, last.nodes),
        (observed.reports, last.reports),
        (observed.node_reports, last.node_reports),
    )
    for new, old in pairs:
        changed.update(differing(new, old))
    if pods is not last.pods:
        changed.update(name for name in differing(pods, last.pods) if last.pods.get(name) != pods.get(name))
    served = dict(last.served)
    for name in changed:
        served.pop(name, None)
    return served, (changed | last.others) & observed.nodes.keys()


def forget() -> None:
    """As in a process that has judged nothing yet: for tests and benchmarks of first passes."""
    _KEPT.clear()
    _GLANCES.clear()


def keep(
    scope: Scope, judged: Sequence[str], rows: Mapping[str, Sequence[ChipState]], told_of: AbstractSet[str]
) -> None:
    """Remembers those of the ``judged`` nodes that need no second look; ``rows`` are their rows of the plan's
    ``chips``, ``told_of`` nodes that health looked at more closely.
    """
    observed = scope.observed
    rules = _Rules(scope.desired, scope.shard, maintains(scope.desired, observed))
    apart = _apart(scope) | told_of | _contested(scope)
    for name in judged:
        view = scope.nodes[name]
        report = view.report
        if report is None or not _quiet(view) or name in apart:
            continue
        told = observed.node_reports.get(name)
        if told is not None and told.devices:
            continue
        since, until = report.update_time - FUTURE_TOLERANCE, report.update_time + STALE_AFTER
        if not since <= scope.now <= until:
            continue
        if name not in _KEPT and len(_KEPT) >= LIMIT:
            _KEPT.pop(next(iter(_KEPT), ""), None)
        copied = _lend(view)
        copied.rows = tuple(rows.get(name, ()))
        copied.told = NodeState(name, view.pool, view.state, view.level, tuple(sorted(view.codes)))
        _KEPT[name] = _Kept(rules, view.node, report, told, list(view.pods), since, until, copied)


def maintains(desired: Desired, observed: Observed) -> bool:
    """The setting ``self-maintain-available-card``: the cluster's own before the policies'."""
    params = InitParams.from_arguments(observed.init_params, base=desired.settings.init_params)
    return params.self_maintain_available_card


def _contested(scope: Scope) -> set[str]:
    """Nodes that several pools claim: every pass complains of them."""
    return {d.object.removeprefix("Node/") for d in scope.diagnostics if d.field == "spec.selector"}


def _quiet(view: NodeView) -> bool:
    """Whether health found nothing to say of the node."""
    return (
        view.fresh
        and view.state == "healthy"
        and view.level == NORMAL
        and not (view.codes or view.down or view.suspended or view.switch_sub_healthy)
        and not (view.chip_level or view.hit or view.sub_healthy or view.resettable)
        and not (view.resetting or view.recovering or view.unhealthy)
    )


def _apart(scope: Scope) -> set[str]:
    """Nodes about which more is known than their own objects and reports say. Whatever else comes to bear on the
    judgement of a node must name it here.
    """
    observed = scope.observed
    found = {*observed.problems, *observed.history.nodes}
    found.update(claim.rpartition("/")[0] for claim in observed.ledger)
    found.update(name for name, orders in observed.orders.items() if orders.isolate or orders.resets)
    return found


def _lend(view: NodeView) -> NodeView:
    """The view as it is kept: nothing in it can be changed, so that every pass may look at the same lists and maps."""
    kept: NodeView = view.__copy__()  # type: ignore[attr-defined]
    kept.used_by = _closed(view.used_by)
    kept.requested = _closed(view.requested)
    kept.pods = cast("list[Pod]", tuple(view.pods))
    kept.chip_level = kept.chip_codes = kept.chip_state = kept.chip_types = _EMPTY
    kept.settled = kept.lent = kept.shared = True
    return kept


def _closed(found: dict[Key, Value]) -> dict[Key, Value]:
    return cast("dict[Key, Value]", MappingProxyType(dict(found)))
