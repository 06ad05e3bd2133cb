"""Safety: keeps disruption within the budgets. Defers actions, adds none, and records what passes.

A gang is deferred or let pass as a whole; an eviction or a reset that follows from a deferred isolation waits with it;
a mass deletion beyond the budget is refused whole. Chips and nodes whose isolation waits still take no new work,
because the views keep them out. When a budget document cannot be read, nothing disruptive is done at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from engine.documents.windows import closed
from engine.model.actions import (
    AnyAction,
    DeleteObject,
    EvictPod,
    IsolateChip,
    IsolateNode,
    PartitionChip,
    ResetChips,
    SignalJob,
    kind_of,
)
from engine.model.cluster import mask_of
from engine.model.diagnostics import Diagnostic
from engine.model.plan import Deferred
from engine.model.times import rfc3339
from engine.plan import record
from engine.plan.budgets import Demand, Ledger, Refusal
from engine.plan.queue import nominate, words
from engine.plan.scope import Scope
from engine.plan.views import chip_ids
from engine.wire import names, reservations

BROKEN: Final = "unreadable"
#: Budget name of an eviction that waits for another method's turn, and how long that is in seconds.
ONE_METHOD: Final = "one-method-per-pass"
NEXT_PASS: Final = 1.0
#: Rule of the actions by which jobs are expanded and cleaned up.
EXPANSION: Final = "expand"
#: Kinds that a broken budget stops; isolating a chip only protects and interrupts nothing by itself.
DISRUPTIVE: Final = frozenset({"EvictPod", "ResetChips", "IsolateNode", "DeleteObject", "PartitionChip"})


def run(scope: Scope) -> None:
    """Defer what the budgets do not allow; write down what the rest spends and leaves in the memory."""
    ledger = Ledger(scope)
    gate = _Gate(scope, ledger)
    kept: list[AnyAction] = []
    for action in scope.actions:
        kept.extend(gate.admit(action))
    scope.actions = kept
    gate.tell()
    scope.memory.budgets = ledger.spent()
    record.passed(scope)
    nominate.passed(scope)
    if scope.observed.reserved_broken and any(item.budget == BROKEN for item in scope.deferred):
        message = (
            "what shards have reserved of the budgets cannot be read, so nothing disruptive is done: mend or delete it"
        )
        where = f"ConfigMap/{names.SYSTEM}/{names.BUDGET}"
        scope.diagnostics.append(Diagnostic("error", where, "", 0, 0, f"data.{reservations.KEY}", message))
    if scope.desired.budget_broken and any(item.budget == BROKEN for item in scope.deferred):
        message = "a safety budget cannot be read, so nothing disruptive is done: correct the document"
        scope.diagnostics.append(Diagnostic("error", "SafetyBudget", "", 0, 0, "", message))


class _Gate:
    """Admits actions one by one, units as a whole."""

    def __init__(self, scope: Scope, ledger: Ledger) -> None:
        self._scope, self._ledger = scope, ledger
        self._broken = scope.desired.budget_broken or scope.observed.reserved_broken
        self._units: dict[str, Refusal | None] = {}
        self._held: dict[str, tuple[int | None, Refusal]] = {}
        self._out: dict[str, tuple[int, Refusal]] = {}
        self._nodes_of = _nodes_of_units(scope)
        self._undone = _undone(scope)
        self._rescued = _rescued(scope)
        self._deletions = self._mass_deletion()
        self._windows = [
            (item.document.name, item.document.spec.windows)
            for item in sorted(scope.desired.budgets, key=lambda item: item.document.name)
            if item.document.spec.windows
        ]
        self._hours: dict[tuple[str, frozenset[str]], Refusal | None] = {}
        #: Jobs for which nobody goes yet: how many units would, and what refuses.
        self._without_room: dict[str, tuple[int, Refusal]] = {}

    def admit(self, action: AnyAction) -> Iterable[AnyAction]:
        """The part of the action that may be done now; the rest is deferred."""
        if isinstance(action, IsolateChip):
            shut = self._shut("IsolateChip", (action.node,))
            if shut is None:
                return self._isolation(action)
            self._hold_chips(action.node, action.chips, shut)
            self._scope.deferred.append(_deferred(action, shut))
            return ()
        refusal = self._refusal(action)
        if refusal is None:
            return (action,)
        self._defer(action, refusal)
        return ()

    def tell(self) -> None:
        """Says to jobs whose room is not made yet what holds it back, instead of who was told to go."""
        for key, (units, refusal) in sorted(self._without_room.items()):
            until = rfc3339(refusal.until) if refusal.until is not None else ""
            name = "a budget that cannot be read" if refusal.budget == BROKEN else refusal.budget
            words.amend(self._scope, self._scope.gangs[key], words.held_back(units, name, until))

    def _refusal(self, action: AnyAction) -> Refusal | None:
        if isinstance(action, SignalJob) and "budgetUnit" in action.preconditions:
            return self._unit(str(action.preconditions["budgetUnit"]))
        if isinstance(action, EvictPod):
            return self._in_turn(action) or self._unit(action.budget_unit)
        kind = kind_of(action)
        if kind not in DISRUPTIVE or _housekeeping(action):
            return None
        node = getattr(action, "node", "")
        shut = self._shut(kind, (node,) if node else ())
        if self._broken:
            refusal: Refusal | None = Refusal(BROKEN, None)
        elif shut is not None:
            refusal = shut
            if isinstance(action, IsolateNode):
                self._held[action.node] = (None, shut)
        elif isinstance(action, DeleteObject):
            unit = f"{action.object_kind}/{action.namespace}/{action.name}"
            refusal = self._deletions or self._ledger.take(Demand(kind, unit, 1, ()))
        elif isinstance(action, ResetChips):
            refusal = self._not_out(action)
            if refusal is None:
                refusal = self._ledger.take(Demand(kind, f"{action.node}/{action.chips[0]}", 1, (action.node,)))
        elif isinstance(action, PartitionChip):
            refusal = self._ledger.take(Demand(kind, f"{action.node}/{action.chip}", 1, (action.node,)))
        elif isinstance(action, IsolateNode):
            refusal = self._ledger.take(Demand(kind, action.node, 1, (action.node,)))
            if refusal is not None:
                self._held[action.node] = (None, refusal)
        else:
            refusal = None
        return refusal

    def _unit(self, unit: str) -> Refusal | None:
        """One answer per evicted unit: what follows from a deferred isolation waits, else the budgets decide."""
        if unit not in self._units and unit in self._scope.displaced:
            self._for_others(self._scope.displaced[unit].preemptor)
        if unit not in self._units:
            change = self._scope.reschedules.get(unit)
            refusal = next((r for r in map(self._waits, self._nodes_of.get(unit, {}).items()) if r), None)
            if self._broken:
                refusal = Refusal(BROKEN, None)
            elif refusal is None:
                nodes = tuple(sorted(node for node in self._nodes_of.get(unit, {}) if node))
                fresh = change is None or change.counted
                shut = self._shut("EvictPod", nodes) if fresh else None
                if shut is not None:
                    self._units[unit] = shut
                    return shut
                demand = Demand("EvictPod", unit, 1, nodes)
                if change is None or change.counted:
                    refusal = self._ledger.take(demand)
                elif unit in self._undone:
                    refusal = self._ledger.renew(demand)
            self._units[unit] = refusal
        return self._units[unit]

    def _in_turn(self, action: EvictPod) -> Refusal | None:
        """One disruptive method per pass and pool: who is evicted for no fault waits while faults are rescued from.

        Resets and partitions do not wait: they touch only chips that nobody uses, and are offered at once.
        """
        pod = self._scope.observed.pods.get(f"{action.namespace}/{action.pod}")
        view = self._scope.nodes.get(pod.node) if pod is not None else None
        if _involuntary(action) or view is None or view.pool not in self._rescued:
            return None
        return Refusal(ONE_METHOD, self._scope.now + NEXT_PASS)

    def _for_others(self, preemptor: str) -> None:
        """One answer for all units that go for the same job: fewer would cost work and make no room."""
        rows = {unit: row for unit, row in sorted(self._scope.displaced.items()) if row.preemptor == preemptor}
        demands = [
            Demand("EvictPod", unit, 1, tuple(sorted(node for node in self._nodes_of.get(unit, {}) if node)))
            for unit, row in rows.items()
            if row.counted
        ]
        refusal = Refusal(BROKEN, None) if self._broken else self._ledger.take_all(demands)
        for unit, row in rows.items():
            if refusal is None and not row.counted:
                nodes = tuple(sorted(node for node in self._nodes_of.get(unit, {}) if node))
                self._units[unit] = self._ledger.renew(Demand("EvictPod", unit, 1, nodes))
            else:
                self._units[unit] = refusal

    def _waits(self, on: tuple[str, int]) -> Refusal | None:
        """The refusal of an isolation that concerns these chips of this node."""
        held = self._held.get(on[0])
        if held is None or (held[0] is not None and not held[0] & on[1]):
            return None
        return held[1]

    def _not_out(self, action: ResetChips) -> Refusal | None:
        """Why chips that reset together may not yet: one of them is still to be taken out of service."""
        waiting = self._out.get(action.node)
        return waiting[1] if waiting is not None and waiting[0] & _mask(action.chips) else None

    def _isolation(self, action: IsolateChip) -> Iterable[AnyAction]:
        """As many chips as the budgets allow are isolated now, in the order of their ids."""
        count, names = len(action.chips), action.chips
        demand = Demand("IsolateChip", action.node, count, (action.node,))
        fits = min(count, self._ledger.room(demand))
        now, later = names[:fits], names[fits:]
        if now:
            self._ledger.take(demand._replace(weight=len(now)))
        if not later:
            return (action,)
        refusal = self._ledger.take(demand._replace(weight=len(later))) or Refusal("", None)
        rest = msgspec.structs.replace(action, chips=later)
        self._hold_chips(action.node, later, refusal)
        self._scope.deferred.append(_deferred(rest, refusal))
        return (msgspec.structs.replace(action, chips=now),) if now else ()

    def _hold_chips(self, node: str, names: tuple[str, ...], refusal: Refusal) -> None:
        """What follows from the deferred isolation of these chips waits with it."""
        ids = _mask(names)
        before = self._held.get(node, (0, refusal))
        self._held[node] = (None if before[0] is None else before[0] | ids, refusal)
        self._out[node] = (self._out.get(node, (0, refusal))[0] | ids, refusal)

    def _shut(self, kind: str, nodes: tuple[str, ...]) -> Refusal | None:
        """The maintenance window that keeps an action on these nodes back."""
        if not self._windows:
            return None
        pools = frozenset(view.pool for node in nodes if (view := self._scope.nodes.get(node)) is not None)
        if (kind, pools) not in self._hours:
            found = ((name, closed(windows, kind, pools, self._scope.now)) for name, windows in self._windows)
            shut = [Refusal(name, verdict.until) for name, verdict in found if verdict is not None]
            latest = max(shut, key=lambda refusal: (refusal.until is None, refusal.until or 0.0), default=None)
            self._hours[(kind, pools)] = latest
        return self._hours[(kind, pools)]

    def _mass_deletion(self) -> Refusal | None:
        """A pass that wants to delete more than a budget allows at all is refused whole: a person must want that."""
        wanted = sum(isinstance(a, DeleteObject) and not _housekeeping(a) for a in self._scope.actions)
        most = self._ledger.most("DeleteObject")
        return Refusal(most[1], None) if most is not None and wanted > most[0] else None

    def _defer(self, action: AnyAction, refusal: Refusal) -> None:
        self._scope.deferred.append(_deferred(action, refusal))
        if isinstance(action, EvictPod):
            self._scope.evicting.discard(f"{action.namespace}/{action.pod}")
            self._scope.reschedules.pop(action.budget_unit, None)
            row = self._scope.displaced.pop(action.budget_unit, None)
            if row is not None and row.preemptor in self._scope.gangs:
                units = self._without_room.get(row.preemptor, (0, refusal))[0]
                self._without_room[row.preemptor] = (units + 1, refusal)


def _mask(names: Iterable[str]) -> int:
    """The chips of these device names."""
    return mask_of([int(name.rpartition("-")[2]) for name in names])


def _involuntary(action: EvictPod) -> bool:
    """Evicted for a fault, or by the job's own doing."""
    return action.evidence.rule.startswith("fault-scheduling") or action.evidence.rule == EXPANSION


def _rescued(scope: Scope) -> frozenset[str]:
    """Pools with pods that this pass evicts for a fault."""
    found = set()
    for action in scope.actions:
        if isinstance(action, EvictPod) and action.evidence.rule.startswith("fault-scheduling"):
            pod = scope.observed.pods.get(f"{action.namespace}/{action.pod}")
            view = scope.nodes.get(pod.node) if pod is not None else None
            if view is not None:
                found.add(view.pool)
    return frozenset(found)


def _housekeeping(action: AnyAction) -> bool:
    """A job's own clean-up: pods that have ended or never started, and objects of a job that has ended."""
    return isinstance(action, DeleteObject) and action.evidence.rule == EXPANSION


def _deferred(action: AnyAction, refusal: Refusal) -> Deferred:
    return Deferred(action, refusal.budget, rfc3339(refusal.until) if refusal.until is not None else None)


def _undone(scope: Scope) -> set[str]:
    """Units with a pod that is to go and that nobody has asked to go yet."""
    found = set()
    for action in scope.actions:
        if isinstance(action, EvictPod):
            pod = scope.observed.pods.get(f"{action.namespace}/{action.pod}")
            if pod is not None and pod.deleting is None:
                found.add(action.budget_unit)
    return found


def _nodes_of_units(scope: Scope) -> dict[str, dict[str, int]]:
    """Per eviction unit the nodes and chips that its pods hold."""
    out: dict[str, dict[str, int]] = {}
    for action in scope.actions:
        if isinstance(action, EvictPod):
            nodes = out.setdefault(action.budget_unit, {})
            pod = scope.observed.pods.get(f"{action.namespace}/{action.pod}")
            if pod is not None and pod.node:
                nodes[pod.node] = nodes.get(pod.node, 0) | sum(1 << chip for chip in chip_ids(pod))
    return out
