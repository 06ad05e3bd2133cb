"""Counting disruption against the safety budgets: what each limit allows in its scope, and what its window spent.

A gang evicted whole is one unit, so is a reset group, a chip, a node, an object. What was spent lives in
``History.budgets``: per limit and scope the times, units and counts within its window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from belay.engine.documents import BUDGET_UNITS, ENDED_JOBS, FREED_CHIPS, BudgetLimit
from belay.engine.model.jobs import INDEPENDENT_KINDS
from belay.engine.model.plan import BudgetUse
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.node_view import NodeView, PassNodes

NO_POOL: Final = "none"
NO_CHIPS: Final[Mapping[str, int]] = MappingProxyType({})
#: Limits on what deletions free and end, by unit, where no budget has one.
_ALWAYS: Final = {"chips": ("default#chips", FREED_CHIPS), "jobs": ("default#jobs", ENDED_JOBS)}


class BudgetDemand(NamedTuple):
    """``weight`` units of an action kind on these nodes (none: the cluster); ``unit`` names them.

    ``chips``: number of chips that a deletion frees, by pool. ``jobs``: number of running jobs that it ends.
    """

    kind: str
    unit: str
    weight: int
    nodes: tuple[str, ...]
    chips: Mapping[str, int] = NO_CHIPS
    jobs: int = 0


class BudgetRefusal(NamedTuple):
    """The budget that refuses, and when its window frees enough (Unix seconds; None: only a person can)."""

    budget: str
    until: float | None


class BudgetTracker:
    """What the budgets still allow in this pass; starts from the windows in the memory."""

    def __init__(self, facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs) -> None:
        self._facts, self._draft, self._nodes, self._gangs = facts, draft, nodes, gangs
        self._limits = [
            (f"{item.document.name}#{index}", limit)
            for item in sorted(facts.desired.budgets, key=lambda item: item.document.name)
            for index, limit in enumerate(item.document.spec.limits)
        ]
        written = {limit.unit for _, limit in self._limits}
        self._limits.extend(always for unit, always in _ALWAYS.items() if unit not in written)
        self._spent: dict[str, list[tuple[int, str, int]]] = {}
        self._totals: dict[tuple[str, str, str], int] = {}
        self._units: dict[tuple[str, str], set[str]] | None = None

    def take(self, demand: BudgetDemand) -> BudgetRefusal | None:
        """Spend the demand from every limit that counts it; or spend nothing, and return the refusal."""
        refusal = self.refusal(demand)
        if refusal is None:
            for full, _, limit, _, weight in self._counting(demand):
                self._window(full, limit).append((self._facts.now_ms, demand.unit, weight))
        return refusal

    def refusal(self, demand: BudgetDemand) -> BudgetRefusal | None:
        """The refusal of a demand, of several the one that lasts longest; spends nothing."""
        refusal: BudgetRefusal | None = None
        for full, name, limit, allowed, weight in self._counting(demand):
            found = self._check(full, _document(name), limit, allowed, weight)
            if found is not None and (refusal is None or _ends_later(found, refusal)):
                refusal = found
        return refusal

    def beyond(self, demand: BudgetDemand) -> list[tuple[str, str]]:
        """Limits that the demand exceeds even with an unspent window: the budget's name, and the excess in words."""
        return [
            (_document(name), f"{weight} {_unit(limit)}{_where(limit, full)}, at most {allowed}")
            for full, name, limit, allowed, weight in self._counting(demand)
            if weight > allowed
        ]

    def take_all(self, demands: Sequence[BudgetDemand]) -> BudgetRefusal | None:
        """Spend all demands; or spend nothing, and return the refusal."""
        before = {full: list(rows) for full, rows in self._spent.items()}
        for demand in demands:
            refusal = self.take(demand)
            if refusal is not None:
                self._spent = before
                return self._check_all(demands) or refusal
        return None

    def _check_all(self, demands: Sequence[BudgetDemand]) -> BudgetRefusal | None:
        """The refusal of all demands together, with the time when the window has room for all."""
        wanted: dict[str, tuple[str, BudgetLimit, int, int]] = {}
        for demand in demands:
            for full, name, limit, allowed, more in self._counting(demand):
                weight = wanted[full][3] if full in wanted else 0
                wanted[full] = (name, limit, allowed, weight + more)
        refusal: BudgetRefusal | None = None
        for full, (name, limit, allowed, weight) in wanted.items():
            found = self._check(full, _document(name), limit, allowed, weight)
            if found is not None and (refusal is None or _ends_later(found, refusal)):
                refusal = found
        return refusal

    def renew(self, demand: BudgetDemand) -> BudgetRefusal | None:
        """Move the unit's latest spend to now: windows count from the act, not from the decision."""
        known = False
        for name, limit in self._limits:
            if demand.kind not in limit.actions:
                continue
            for key in self._keys(limit.per, demand.nodes):
                rows = self._window(f"{name}/{limit.per}/{key}", limit)
                own = [index for index, (_, unit, _) in enumerate(rows) if unit == demand.unit]
                if own:
                    latest = max(own, key=lambda index: rows[index][0])
                    rows[latest], known = (self._facts.now_ms, demand.unit, rows[latest][2]), True
        return None if known else self.take(demand)

    def room(self, demand: BudgetDemand) -> int:
        """How much of the demand's weight the limits still allow."""
        left = demand.weight
        for full, _, limit, allowed, _ in self._counting(demand):
            left = min(left, allowed - sum(count for _, _, count in self._all(full, limit)))
        return max(0, left)

    def spent(self) -> dict[str, tuple[tuple[int, str, int], ...]]:
        """The windows for the memory: entries that still count; empty windows are left out."""
        for name, limit in self._limits:
            for full in self._draft.memory.budgets:
                if full.startswith(f"{name}/{limit.per}/"):
                    self._window(full, limit)
        return {full: tuple(entries) for full, entries in sorted(self._spent.items()) if entries}

    def uses(self) -> tuple[BudgetUse, ...]:
        """What was spent of each limit, in the scopes where its window holds anything; sorted."""
        rows: list[BudgetUse] = []
        for name, limit in self._limits:
            for full in sorted({*self._spent, *self._facts.observed.reserved}):
                if not full.startswith(f"{name}/{limit.per}/"):
                    continue
                key = full.removeprefix(f"{name}/{limit.per}/")
                spent = sum(count for _, _, count in self._all(full, limit))
                kinds = (limit.unit,) if limit.unit else limit.actions
                # counting running jobs in every pass would cost more than the rest of the pass
                totals = [self._totals.get((kind, limit.per, key)) for kind in kinds]
                known = [limit.allowed(total) for total in totals if total is not None]
                allowed = min(known, default=limit.allowed(0) if limit.mixed or limit.max.percent is None else None)
                if spent:
                    rows.append(BudgetUse(name, f"{limit.per}/{key}", "+".join(limit.actions), spent, allowed))
        return tuple(rows)

    def _counting(self, demand: BudgetDemand) -> Iterator[tuple[str, str, BudgetLimit, int, int]]:
        """Each window that counts the demand: its name, the limit's name, the limit, what it allows there, and the
        demand's weight in the limit's unit.
        """
        for name, limit in self._limits:
            if demand.kind not in limit.actions:
                continue
            if limit.unit:
                for key, weight in sorted(_by_scope(demand, limit).items()):
                    if weight:
                        allowed = limit.allowed(self._total(limit.unit, limit.per, key))
                        yield f"{name}/{limit.per}/{key}", name, limit, allowed, weight
                continue
            for key in self._keys(limit.per, demand.nodes):
                allowed = limit.allowed(self._total(demand.kind, limit.per, key))
                yield f"{name}/{limit.per}/{key}", name, limit, allowed, demand.weight

    def _check(self, full: str, name: str, limit: BudgetLimit, allowed: int, weight: int) -> BudgetRefusal | None:
        entries = self._all(full, limit)
        excess = sum(count for _, _, count in entries) + weight - allowed
        if excess <= 0:
            return None
        if weight > allowed:
            return BudgetRefusal(name, None)
        for moment, _, count in sorted(entries):
            excess -= count
            if excess <= 0:
                return BudgetRefusal(name, (moment + limit.window * 1000) / 1000)
        return BudgetRefusal(name, None)

    def _window(self, full: str, limit: BudgetLimit) -> list[tuple[int, str, int]]:
        if full not in self._spent:
            oldest = self._facts.now_ms - limit.window * 1000
            self._spent[full] = [row for row in self._draft.memory.budgets.get(full, ()) if row[0] > oldest]
        return self._spent[full]

    def _all(self, full: str, limit: BudgetLimit) -> list[tuple[int, str, int]]:
        """All entries that count: this shard's window, other shards' reservations, own ones that the memory lost."""
        own = self._window(full, limit)
        reserved = self._facts.observed.reserved.get(full)
        if not reserved:
            return own
        oldest, rows, known = self._facts.now_ms - limit.window * 1000, set(own), {unit for _, unit, _ in own}
        newest = self._facts.now_ms + limit.window * 1000  # later ones come from a wrong clock and must expire
        others = [
            (at, unit, count)
            for at, unit, count, shard in reserved
            if oldest < at < newest
            and (at, unit, count) not in rows
            and (shard != self._facts.shard or unit not in known)
        ]
        return [*own, *others]

    def _keys(self, per: str, nodes: tuple[str, ...]) -> list[str]:
        if per == "cluster" or not nodes:
            return ["cluster"]
        return sorted({scope_key(per, node, self._nodes.get(node)) for node in nodes})

    def _total(self, kind: str, per: str, key: str) -> int:
        """How many of the limited things exist within a scope."""
        known = self._totals.get((kind, per, key))
        if known is None:
            known = self._totals[(kind, per, key)] = self._count(kind, per, key)
        return known

    def _count(self, kind: str, per: str, key: str) -> int:
        if kind == "DeleteObject":
            return len(self._facts.observed.inventory or ())
        if kind in ("EvictPod", "jobs"):
            return len(self._workloads(per).get((per, key), ()))
        views = [v for n, v in self._nodes.items() if per == "cluster" or scope_key(per, n, v) == key]
        if kind == "IsolateNode":
            return len(views)
        if kind == "ResetChips":
            return sum(len(view.groups) for view in views)
        return sum(view.base.bit_count() for view in views)

    def _workloads(self, per: str) -> dict[tuple[str, str], set[str]]:
        """Running gangs and single pods per scope, for every granularity requested so far."""
        if self._units is None:
            self._units = {}
        if not any(kind == per for kind, _ in self._units):
            for pod in self._facts.observed.pods.values():
                if pod.holds_chips:
                    view = self._nodes.get(pod.node)
                    key = "cluster" if per == "cluster" else scope_key(per, pod.node, view)
                    self._units.setdefault((per, key), set()).add(unit_of(self._gangs, pod.key))
        return self._units


def scope_key(per: str, node: str, view: NodeView | None) -> str:
    """The name of a node's ``pool``, ``superPod`` or ``node`` scope; outside any super pod a pool stands for one."""
    if per == "node":
        return node
    pool = view.pool if view else NO_POOL
    if per == "superPod" and view is not None and view.report is not None and view.report.super_pod_id >= 0:
        return str(view.report.super_pod_id)
    return f"pool-{pool}" if per == "superPod" else pool


def unit_of(gangs: PassGangs, pod: str) -> str:
    """The budget unit of a pod whose job is evicted as a whole: its gang, or the pod when it serves independently."""
    gang = gangs.get(gangs.of_pod.get(pod, ""))
    return pod if gang is None or gang.kind in INDEPENDENT_KINDS else gang.key


def _by_scope(demand: BudgetDemand, limit: BudgetLimit) -> Mapping[str, int]:
    """What a deletion frees or ends in each scope of a limit by ``unit``."""
    if limit.unit == "jobs":
        return {"cluster": demand.jobs}
    return demand.chips if limit.per == "pool" else {"cluster": sum(demand.chips.values())}


def _unit(limit: BudgetLimit) -> str:
    """What a limit counts, in words."""
    if limit.unit == "jobs":
        return "running jobs"
    return limit.unit or (BUDGET_UNITS[limit.actions[0]] if not limit.mixed else "actions")


def _where(limit: BudgetLimit, full: str) -> str:
    """The scope of a window, in words; nothing for the whole cluster."""
    return f" in pool {full.rpartition('/')[2]}" if limit.per == "pool" and limit.unit == "chips" else ""


def _document(name: str) -> str:
    """The budget's own name, without the number of its limit."""
    return name.rpartition("#")[0]


def _ends_later(one: BudgetRefusal, other: BudgetRefusal) -> bool:
    return other.until is not None and (one.until is None or one.until > other.until)
