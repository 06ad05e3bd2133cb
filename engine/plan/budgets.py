"""Counts disruption against the safety budgets: how much a limit allows in its scope, and what its window has spent.

A gang evicted whole is one unit, so is a reset group, a chip, a node, an object. What was spent lives in
``History.budgets``: per limit and scope the times, units and counts within its window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from engine.documents import BudgetLimit
from engine.plan.scope import NodeView, Scope

#: Gangs whose pods serve on their own: each pod is a unit, and only hit pods go.
INDEPENDENT_KINDS: Final = frozenset({"Deployment", "ReplicaSet", "Pod"})
NO_POOL: Final = "none"


class Demand(NamedTuple):
    """``weight`` units of an action's kind, named ``unit``, on these nodes (none: the cluster's)."""

    kind: str
    unit: str
    weight: int
    nodes: tuple[str, ...]


class Refusal(NamedTuple):
    """Which budget refuses, and when its window frees enough (Unix seconds; None: only a person can)."""

    budget: str
    until: float | None


class Ledger:
    """What the budgets still allow in this pass; starts from the memory's spent windows."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._limits = [
            (f"{item.document.name}#{index}", limit)
            for item in sorted(scope.desired.budgets, key=lambda item: item.document.name)
            for index, limit in enumerate(item.document.spec.limits)
        ]
        self._spent: dict[str, list[tuple[int, str, int]]] = {}
        self._totals: dict[tuple[str, str, str], int] = {}
        self._units: dict[tuple[str, str], set[str]] | None = None

    def take(self, demand: Demand) -> Refusal | None:
        """Spend the demand from every limit that counts it, or from none and say which refuses."""
        refusal: Refusal | None = None
        for full, name, limit, allowed in (counting := list(self._counting(demand))):
            found = self._check(full, _document(name), limit, allowed, demand.weight)
            if found is not None and (refusal is None or _later(found, refusal)):
                refusal = found
        if refusal is None:
            for full, _, limit, _ in counting:
                self._window(full, limit).append((self._scope.now_ms, demand.unit, demand.weight))
        return refusal

    def take_all(self, demands: Sequence[Demand]) -> Refusal | None:
        """Spend all demands, or none of them and say which budget refuses."""
        before = {full: list(rows) for full, rows in self._spent.items()}
        for demand in demands:
            refusal = self.take(demand)
            if refusal is not None:
                self._spent = before
                return self._together(demands) or refusal
        return None

    def _together(self, demands: Sequence[Demand]) -> Refusal | None:
        """Which budget refuses all of them at once, and when its window has room for all."""
        wanted: dict[str, tuple[str, BudgetLimit, int, int]] = {}
        for demand in demands:
            for full, name, limit, allowed in self._counting(demand):
                weight = wanted[full][3] if full in wanted else 0
                wanted[full] = (name, limit, allowed, weight + demand.weight)
        refusal: Refusal | None = None
        for full, (name, limit, allowed, weight) in wanted.items():
            found = self._check(full, _document(name), limit, allowed, weight)
            if found is not None and (refusal is None or _later(found, refusal)):
                refusal = found
        return refusal

    def renew(self, demand: Demand) -> Refusal | None:
        """Spend again what was spent before and is only done now: windows count from the act, not the decision."""
        known = False
        for name, limit in self._limits:
            if demand.kind not in limit.actions:
                continue
            for key in self._keys(limit.per, demand.nodes):
                rows = self._window(f"{name}/{limit.per}/{key}", limit)
                for index, (_, unit, count) in enumerate(rows):
                    if unit == demand.unit:
                        rows[index], known = (self._scope.now_ms, unit, count), True
        return None if known else self.take(demand)

    def room(self, demand: Demand) -> int:
        """How many of the demand's weight the limits still allow."""
        left = demand.weight
        for full, _, limit, allowed in self._counting(demand):
            left = min(left, allowed - sum(count for _, _, count in self._all(full, limit)))
        return max(0, left)

    def most(self, kind: str) -> tuple[int, str] | None:
        """The most that any cluster-wide limit allows of a kind at all, with its budget; None when none limits it."""
        found = [
            (limit.allowed(self._total(kind, limit.per, "cluster")), _document(name))
            for name, limit in self._limits
            if kind in limit.actions and limit.per == "cluster"
        ]
        return min(found, default=None)

    def spent(self) -> dict[str, tuple[tuple[int, str, int], ...]]:
        """The windows as the memory keeps them: only entries that still count, empty windows left out."""
        for name, limit in self._limits:
            for full in self._scope.memory.budgets:
                if full.startswith(f"{name}/{limit.per}/"):
                    self._window(full, limit)
        return {full: tuple(entries) for full, entries in sorted(self._spent.items()) if entries}

    def _counting(self, demand: Demand) -> Iterator[tuple[str, str, BudgetLimit, int]]:
        """Each window that counts the demand: its name, the limit's name, the limit, and what it allows there."""
        for name, limit in self._limits:
            if demand.kind in limit.actions:
                for key in self._keys(limit.per, demand.nodes):
                    allowed = limit.allowed(self._total(demand.kind, limit.per, key))
                    yield f"{name}/{limit.per}/{key}", name, limit, allowed

    def _check(self, full: str, name: str, limit: BudgetLimit, allowed: int, weight: int) -> Refusal | None:
        entries = self._all(full, limit)
        excess = sum(count for _, _, count in entries) + weight - allowed
        if excess <= 0:
            return None
        if weight > allowed:
            return Refusal(name, None)
        for moment, _, count in sorted(entries):
            excess -= count
            if excess <= 0:
                return Refusal(name, (moment + limit.window * 1000) / 1000)
        return Refusal(name, None)

    def _window(self, full: str, limit: BudgetLimit) -> list[tuple[int, str, int]]:
        if full not in self._spent:
            oldest = self._scope.now_ms - limit.window * 1000
            self._spent[full] = [row for row in self._scope.memory.budgets.get(full, ()) if row[0] > oldest]
        return self._spent[full]

    def _all(self, full: str, limit: BudgetLimit) -> list[tuple[int, str, int]]:
        """What counts: this shard's window, what other shards reserved, and own reservations that the memory lost."""
        own = self._window(full, limit)
        reserved = self._scope.observed.reserved.get(full)
        if not reserved:
            return own
        oldest, rows, known = self._scope.now_ms - limit.window * 1000, set(own), {unit for _, unit, _ in own}
        newest = self._scope.now_ms + limit.window * 1000  # beyond it a clock was wrong: it must not count for ever
        others = [
            (at, unit, count)
            for at, unit, count, shard in reserved
            if oldest < at < newest
            and (at, unit, count) not in rows
            and (shard != self._scope.shard or unit not in known)
        ]
        return [*own, *others]

    def _keys(self, per: str, nodes: tuple[str, ...]) -> list[str]:
        if per == "cluster" or not nodes:
            return ["cluster"]
        return sorted({scope_key(per, node, self._scope.nodes.get(node)) for node in nodes})

    def _total(self, kind: str, per: str, key: str) -> int:
        """How many of the thing limited exist within a scope."""
        known = self._totals.get((kind, per, key))
        if known is None:
            known = self._totals[(kind, per, key)] = self._count(kind, per, key)
        return known

    def _count(self, kind: str, per: str, key: str) -> int:
        if kind == "DeleteObject":
            return len(self._scope.observed.inventory or ())
        if kind == "EvictPod":
            return len(self._workloads(per).get((per, key), ()))
        views = [v for n, v in self._scope.nodes.items() if per == "cluster" or scope_key(per, n, v) == key]
        if kind == "IsolateNode":
            return len(views)
        if kind == "ResetChips":
            return sum(len(view.groups) for view in views)
        return sum(view.base.bit_count() for view in views)

    def _workloads(self, per: str) -> dict[tuple[str, str], set[str]]:
        """Running gangs and single pods per scope, for every granularity asked so far."""
        if self._units is None:
            self._units = {}
        if not any(kind == per for kind, _ in self._units):
            for pod in self._scope.observed.pods.values():
                if pod.holds_chips:
                    view = self._scope.nodes.get(pod.node)
                    key = "cluster" if per == "cluster" else scope_key(per, pod.node, view)
                    self._units.setdefault((per, key), set()).add(unit_of(self._scope, pod.key))
        return self._units


def scope_key(per: str, node: str, view: NodeView | None) -> str:
    """The name of a node's ``pool``, ``superPod`` or ``node`` scope; outside any super pod a pool stands for one."""
    if per == "node":
        return node
    pool = view.pool if view else NO_POOL
    if per == "superPod" and view is not None and view.report is not None and view.report.super_pod_id >= 0:
        return str(view.report.super_pod_id)
    return f"pool-{pool}" if per == "superPod" else pool


def unit_of(scope: Scope, pod: str) -> str:
    """The budget unit of a pod when its job goes as a whole: its gang, or itself when it serves on its own."""
    gang = scope.gangs.get(scope.gang_of.get(pod, ""))
    return pod if gang is None or gang.kind in INDEPENDENT_KINDS else gang.key


def _document(name: str) -> str:
    """The budget's own name, without the number of its limit."""
    return name.rpartition("#")[0]


def _later(one: Refusal, other: Refusal) -> bool:
    return other.until is not None and (one.until is None or one.until > other.until)
