"""Nodes that were judged before and are what they were: their views are copied instead of derived and judged anew.

In a cluster of ten thousand nodes hardly any changes between two passes. A view is kept once health is through with it
and nothing about the node needs a second look; it serves while node, reports and pods are the same objects and the
report is fresh. What is copied is what the passes would have derived, so nothing of a plan depends on what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from typing import Final, NamedTuple

from engine.documents import Desired, InitParams
from engine.model.cluster import DeviceReport, Node, NodeReport, Observed, Pod
from engine.model.levels import NORMAL
from engine.model.plan import ChipState
from engine.plan.outages import FUTURE_TOLERANCE, STALE_AFTER
from engine.plan.scope import NodeView, Scope

LIMIT: Final = 32768
_NO_PODS: Final[list[Pod]] = []


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


def views(scope: Scope, pods: Mapping[str, list[Pod]], maintain: bool) -> dict[str, NodeView]:
    """A view for every node that is what it was when an earlier pass judged it, by name."""
    observed, now = scope.observed, scope.now
    reports, node_reports, kept = observed.reports, observed.node_reports, _KEPT
    apart = _apart(scope)
    rules, known = _Rules(scope.desired, scope.shard, maintain), None
    out: dict[str, NodeView] = {}
    for name, node in observed.nodes.items():
        entry = kept.get(name)
        if entry is None or entry[1] is not node or entry[2] is not reports.get(name):
            continue
        theirs, _, _, node_report, own, since, until, view = entry
        if theirs is not known:
            if not rules.same(theirs):
                continue
            known = theirs
        if not since <= now <= until or name in apart or node_report is not node_reports.get(name):
            continue
        if own == pods.get(name, _NO_PODS):
            out[name] = _copy(view)
    return out


def keep(scope: Scope, rows: Mapping[str, Sequence[ChipState]], told_of: AbstractSet[str]) -> None:
    """Remembers the nodes of this pass that need no second look; ``rows`` are their rows of the plan's ``chips``,
    ``told_of`` nodes that health looked at more closely.
    """
    observed = scope.observed
    rules = _Rules(scope.desired, scope.shard, maintains(scope.desired, observed))
    apart = _apart(scope) | told_of | _contested(scope)
    for name, view in scope.nodes.items():
        report = view.report
        if view.settled or report is None or not _quiet(view) or name in apart:
            continue
        told = observed.node_reports.get(name)
        if told is not None and told.devices:
            continue
        since, until = report.update_time - FUTURE_TOLERANCE, report.update_time + STALE_AFTER
        if not since <= scope.now <= until:
            continue
        if name not in _KEPT and len(_KEPT) >= LIMIT:
            _KEPT.pop(next(iter(_KEPT), ""), None)
        copied = _copy(view)
        copied.settled, copied.rows = True, tuple(rows.get(name, ()))
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


def _copy(view: NodeView) -> NodeView:
    """A view that a pass may change."""
    copied: NodeView = copy(view)
    copied.used_by = view.used_by.copy()
    copied.pods = view.pods.copy()
    copied.requested = view.requested.copy()
    copied.chip_level, copied.chip_codes, copied.chip_state, copied.chip_types = {}, {}, {}, {}
    return copied
