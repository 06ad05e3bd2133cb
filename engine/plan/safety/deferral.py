"""The safety pass: keeps disruption within the budgets. Defers actions, adds none, and records admitted ones.

A gang is admitted or deferred as a whole. An eviction or reset that follows from a deferred isolation is deferred
with it. A mass deletion beyond the budget waits as a whole for a person (``pruning``). Chips and nodes whose isolation
is deferred take no new work, because the views exclude them. While a budget document cannot be read, every disruptive
action is deferred.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from belay.engine.documents.windows import closed
from belay.engine.model.actions import (
    AnyAction,
    CreateObject,
    CreatePod,
    DeleteObject,
    EvictPod,
    IsolateChip,
    IsolateNode,
    PartitionChip,
    ResetChips,
    SignalJob,
    kind_of,
)
from belay.engine.model.chip_masks import mask_of
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.plan import BudgetUse, Deferred, PruneHold
from belay.engine.model.rules import RuleKind
from belay.engine.model.times import rfc3339
from belay.engine.plan.budgets import BudgetDemand, BudgetRefusal, BudgetTracker
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.preempt import messages, nomination
from belay.engine.plan.safety import record, refused_evictions
from belay.engine.plan.safety.repeats import RepeatBrake
from belay.engine.plan.sync.pruning import Pruning
from belay.engine.plan.views import chip_ids
from belay.engine.wire import names, reservations

BROKEN: Final = "unreadable"
#: Budget name of an eviction that waits because faults evict pods of its pool, and the wait in seconds.
ONE_METHOD: Final = "one-method-per-pass"
NEXT_PASS: Final = 1.0
#: Kinds that an unreadable budget stops. IsolateChip is not among them: it protects, and interrupts nothing.
DISRUPTIVE: Final = frozenset({"EvictPod", "ResetChips", "IsolateNode", "DeleteObject", "PartitionChip"})


class Admitted(NamedTuple):
    """What the budgets say: their use after this pass, and the deletions that wait for a person."""

    budgets: tuple[BudgetUse, ...]
    held_prune: PruneHold | None


def defer_disruption(facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs) -> Admitted:
    """Defer what the budgets do not allow; record what the other actions spend and leave in the memory."""
    refused_evictions.hold(facts, draft, gangs)
    ledger = BudgetTracker(facts, draft, nodes, gangs)
    budget_filter = _BudgetFilter(facts, draft, nodes, gangs, ledger)
    kept: list[AnyAction] = []
    for action in draft.actions:
        kept.extend(budget_filter.admit(action))
    draft.actions = kept
    budget_filter.report_deferred_preemptions()
    budget_filter.report_delayed_deletions()
    budget_filter.brake.close()
    draft.memory.budgets = ledger.spent()
    admission = Admitted(ledger.uses(), budget_filter.pruning.held)
    record.record_actions(facts, draft, nodes, gangs)
    refused_evictions.record(facts, draft, gangs)
    nomination.record_evictions(facts, draft, gangs)
    if facts.observed.reserved_broken and any(item.budget == BROKEN for item in draft.deferred):
        message = (
            "what shards have reserved of the budgets cannot be read, so nothing disruptive is done: mend or delete it"
        )
        where = f"ConfigMap/{names.SYSTEM}/{names.BUDGET}"
        field, code = f"data.{reservations.KEY}", PassCode.BUDGET_UNREADABLE
        draft.diagnostics.append(Diagnostic("error", where, "", 0, 0, field, message, code))
    if facts.desired.budget_broken and any(item.budget == BROKEN for item in draft.deferred):
        message = "a safety budget cannot be read, so nothing disruptive is done: correct the document"
        draft.diagnostics.append(Diagnostic("error", "SafetyBudget", "", 0, 0, "", message, PassCode.BUDGET_UNREADABLE))
    return admission


class _BudgetFilter:
    """Admits or defers the actions of a pass one by one; a unit (gang or single pod) only as a whole."""

    def __init__(self, facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, ledger: BudgetTracker) -> None:
        self._facts, self._draft, self._nodes, self._gangs, self._ledger = facts, draft, nodes, gangs, ledger
        self.brake = RepeatBrake(facts, draft, gangs)
        self._job_of = _jobs_of_units(draft, gangs)
        self._broken = facts.desired.budget_broken or facts.observed.reserved_broken
        self._units: dict[str, BudgetRefusal | None] = {}
        self._held_isolations: dict[str, tuple[int | None, BudgetRefusal]] = {}
        self._not_isolated: dict[str, tuple[int, BudgetRefusal]] = {}
        self._nodes_of = _nodes_of_units(facts, draft, gangs)
        self._newly_evicted = _newly_evicted_units(facts, draft)
        self._fault_pools = _pools_with_fault_evictions(facts, draft, nodes)
        self.pruning = Pruning(facts, draft, nodes, gangs, ledger)
        self._windows = [
            (item.document.name, item.document.spec.windows)
            for item in sorted(facts.desired.budgets, key=lambda item: item.document.name)
            if item.document.spec.windows
        ]
        self._window_refusals: dict[tuple[str, frozenset[str]], BudgetRefusal | None] = {}
        #: Jobs whose victims are deferred: how many units, and the refusal.
        self._without_room: dict[str, tuple[int, BudgetRefusal]] = {}

    def admit(self, action: AnyAction) -> Iterable[AnyAction]:
        """Return the part of the action that may run now; defer the rest."""
        if isinstance(action, IsolateChip):
            closed_window = self._closed_window("IsolateChip", (action.node,))
            if closed_window is None:
                return self._admit_isolation(action)
            self._hold_chips(action.node, action.chips, closed_window)
            self._draft.deferred.append(_deferred(action, closed_window))
            return ()
        refusal = self._refusal(action)
        if refusal is None:
            return (action,)
        self._defer(action, refusal)
        return ()

    def report_delayed_deletions(self) -> None:
        """Report which deletions wait for a window, until when, and what confirms or stops them."""
        self.pruning.report_delayed()

    def report_deferred_preemptions(self) -> None:
        """Report what defers the victims of a waiting job, in place of the list of its victims."""
        for key, (units, refusal) in sorted(self._without_room.items()):
            until = rfc3339(refusal.until) if refusal.until is not None else ""
            name = "a budget that cannot be read" if refusal.budget == BROKEN else refusal.budget
            messages.amend(self._draft, self._gangs[key], messages.held_back(units, name, until))

    def _refusal(self, action: AnyAction) -> BudgetRefusal | None:
        """Why the action must wait; None when it may run now, which spends the budgets."""
        if isinstance(action, EvictPod | DeleteObject | SignalJob) and action.budget_unit is not None:
            one_method = None if isinstance(action, SignalJob) else self._other_method(action)
            return one_method or self._unit_refusal(action.budget_unit)
        if isinstance(action, CreatePod | CreateObject):
            return self.brake.take(action)
        kind = kind_of(action)
        if kind not in DISRUPTIVE or _is_cleanup(action):
            return None
        if self._broken:
            return BudgetRefusal(BROKEN, None)
        node = getattr(action, "node", "")
        refusal = self._closed_window(kind, (node,) if node else ()) or self._spend(kind, action)
        if refusal is not None and isinstance(action, IsolateNode):
            self._held_isolations[action.node] = (None, refusal)
        return refusal

    def _spend(self, kind: str, action: AnyAction) -> BudgetRefusal | None:
        """Spend what a disruptive action without a budget unit needs; the refusal of the budget that lacks it."""
        match action:
            case DeleteObject():
                return self.pruning.refusal(action)
            case ResetChips():
                demand = BudgetDemand(kind, f"{action.node}/{action.chips[0]}", 1, (action.node,))
                return self._deferred_isolation_of(action) or self._take(demand, action)
            case PartitionChip():
                return self._take(BudgetDemand(kind, f"{action.node}/{action.chip}", 1, (action.node,)), action)
            case IsolateNode():
                return self._ledger.take(BudgetDemand(kind, action.node, 1, (action.node,)))
        return None

    def _take(self, demand: BudgetDemand, action: AnyAction) -> BudgetRefusal | None:
        """Spend a demand; what the budgets allow may still be a repetition too many."""
        return self._ledger.refusal(demand) or self.brake.take(action) or self._ledger.take(demand)

    def _unit_refusal(self, unit: str) -> BudgetRefusal | None:
        """The one answer for all actions on an evicted unit, decided at the first of them."""
        if unit not in self._units and unit in self._draft.displaced:
            self._decide_preemption(self._draft.displaced[unit].preemptor)
        if unit not in self._units:
            self._units[unit] = self._decide_unit(unit)
        return self._units[unit]

    def _decide_unit(self, unit: str) -> BudgetRefusal | None:
        """What follows from a deferred isolation waits with it; for the rest the budgets decide."""
        if self._broken:
            return BudgetRefusal(BROKEN, None)
        chips_by_node = self._nodes_of.get(unit, {})
        for node, chips in chips_by_node.items():
            held = self._held_isolation(node, chips)
            if held is not None:
                return held
        nodes = tuple(sorted(node for node in chips_by_node if node))
        reschedule = self._draft.reschedules.get(unit)
        if reschedule is None or reschedule.spends:
            closed_window = self._closed_window("EvictPod", nodes)
            if closed_window is not None:
                return closed_window
        demand = BudgetDemand("EvictPod", unit, 1, nodes)
        newly_evicted = unit in self._newly_evicted
        if newly_evicted if reschedule is None else reschedule.spends:
            job = self._job_of.get(unit, "")
            braked = (self._ledger.refusal(demand) or self.brake.evict(job)) if job else None
            return braked or self._ledger.take(demand)
        return self._ledger.renew(demand) if newly_evicted else None

    def _other_method(self, action: EvictPod | DeleteObject) -> BudgetRefusal | None:
        """Defer other evictions in a pool while faults evict pods there: one disruptive method per pass and pool.

        Resets and partitions do not wait: they touch idle chips only.
        """
        if _involuntary(action) or not self._fault_pools:
            return None
        views = (self._nodes.get(node) for node in self._nodes_of.get(action.budget_unit or "", {}))
        if not any(view is not None and view.pool in self._fault_pools for view in views):
            return None
        return BudgetRefusal(ONE_METHOD, self._facts.now + NEXT_PASS)

    def _decide_preemption(self, preemptor: str) -> None:
        """Admit or defer together all units evicted for the same job: fewer would cost work and make no room."""
        rows = {unit: row for unit, row in sorted(self._draft.displaced.items()) if row.preemptor == preemptor}
        demands = [
            BudgetDemand("EvictPod", unit, 1, tuple(sorted(node for node in self._nodes_of.get(unit, {}) if node)))
            for unit, row in rows.items()
            if row.counted
        ]
        jobs = sorted({row.victim for row in rows.values() if row.counted})
        braked = next((held for job in jobs if (held := self.brake.refusal(job)) is not None), None)
        refusal = BudgetRefusal(BROKEN, None) if self._broken else braked or self._ledger.take_all(demands)
        if refusal is None:
            for job in jobs:
                self.brake.evict(job)

        for unit, row in rows.items():
            if refusal is None and not row.counted:
                nodes = tuple(sorted(node for node in self._nodes_of.get(unit, {}) if node))
                self._units[unit] = self._ledger.renew(BudgetDemand("EvictPod", unit, 1, nodes))
            else:
                self._units[unit] = refusal

    def _held_isolation(self, node: str, chips: int) -> BudgetRefusal | None:
        """The refusal of a deferred isolation that covers the node, or any of these chips (a mask) of it."""
        held = self._held_isolations.get(node)
        if held is None or (held[0] is not None and not held[0] & chips):
            return None
        return held[1]

    def _deferred_isolation_of(self, action: ResetChips) -> BudgetRefusal | None:
        """The refusal by which the isolation of one of the chips to reset is deferred."""
        waiting = self._not_isolated.get(action.node)
        return waiting[1] if waiting is not None and waiting[0] & _mask(action.chips) else None

    def _admit_isolation(self, action: IsolateChip) -> Iterable[AnyAction]:
        """Isolate as many chips as the budgets allow, in the order of their ids."""
        count, names = len(action.chips), action.chips
        demand = BudgetDemand("IsolateChip", action.node, count, (action.node,))
        fits = min(count, self._ledger.room(demand))
        now, later = names[:fits], names[fits:]
        if now:
            self._ledger.take(demand._replace(weight=len(now)))
        if not later:
            return (action,)
        refusal = self._ledger.take(demand._replace(weight=len(later))) or BudgetRefusal("", None)
        rest = msgspec.structs.replace(action, chips=later)
        self._hold_chips(action.node, later, refusal)
        self._draft.deferred.append(_deferred(rest, refusal))
        return (msgspec.structs.replace(action, chips=now),) if now else ()

    def _hold_chips(self, node: str, names: tuple[str, ...], refusal: BudgetRefusal) -> None:
        """Defer what follows from the deferred isolation of these chips."""
        ids = _mask(names)
        before = self._held_isolations.get(node, (0, refusal))
        self._held_isolations[node] = (None if before[0] is None else before[0] | ids, refusal)
        self._not_isolated[node] = (self._not_isolated.get(node, (0, refusal))[0] | ids, refusal)

    def _closed_window(self, kind: str, nodes: tuple[str, ...]) -> BudgetRefusal | None:
        """The refusal by a maintenance window that covers an action on these nodes."""
        if not self._windows:
            return None
        pools = frozenset(view.pool for node in nodes if (view := self._nodes.get(node)) is not None)
        if (kind, pools) not in self._window_refusals:
            found = ((name, closed(windows, kind, pools, self._facts.now)) for name, windows in self._windows)
            shut = [BudgetRefusal(name, verdict.until) for name, verdict in found if verdict is not None]
            latest = max(shut, key=lambda refusal: (refusal.until is None, refusal.until or 0.0), default=None)
            self._window_refusals[(kind, pools)] = latest
        return self._window_refusals[(kind, pools)]

    def _defer(self, action: AnyAction, refusal: BudgetRefusal) -> None:
        confirm = self.pruning.confirm(action) if isinstance(action, DeleteObject) else ""
        self._draft.deferred.append(_deferred(action, refusal, confirm))
        if isinstance(action, DeleteObject) and (gang := self._gangs.get(action.budget_unit or "")) is not None:
            self._draft.evicting -= set(gang.pods)
        if isinstance(action, EvictPod):
            self._draft.evicting.discard(f"{action.namespace}/{action.pod}")
            self._draft.reschedules.pop(action.budget_unit, None)
            row = self._draft.displaced.pop(action.budget_unit, None)
            if row is not None and row.preemptor in self._gangs:
                units = self._without_room.get(row.preemptor, (0, refusal))[0]
                self._without_room[row.preemptor] = (units + 1, refusal)


def _mask(names: Iterable[str]) -> int:
    """Mask of the chips with these device names."""
    return mask_of([int(name.rpartition("-")[2]) for name in names])


def _involuntary(action: EvictPod | DeleteObject) -> bool:
    """Whether a pod is evicted for a fault or by its own job's policies."""
    return action.evidence.rule_kind in (RuleKind.FAULT_SCHEDULING, RuleKind.EXPANSION)


def _pools_with_fault_evictions(facts: Facts, draft: Draft, nodes: PassNodes) -> frozenset[str]:
    """Pools with pods that this pass evicts for a fault."""
    found = set()
    for action in draft.actions:
        if isinstance(action, EvictPod) and action.evidence.rule_kind is RuleKind.FAULT_SCHEDULING:
            pod = facts.observed.pods.get(f"{action.namespace}/{action.pod}")
            view = nodes.get(pod.node) if pod is not None else None
            if view is not None:
                found.add(view.pool)
    return frozenset(found)


def _is_cleanup(action: AnyAction) -> bool:
    """Whether a job cleans up: pods that ended or never started, objects of a job that ended."""
    return isinstance(action, DeleteObject) and action.evidence.rule_kind is RuleKind.EXPANSION


def _deferred(action: AnyAction, refusal: BudgetRefusal, confirm: str = "") -> Deferred:
    return Deferred(action, refusal.budget, rfc3339(refusal.until) if refusal.until is not None else None, confirm)


def _newly_evicted_units(facts: Facts, draft: Draft) -> set[str]:
    """Units with a pod to evict that is not terminating yet, or with a workload to delete."""
    found = set()
    for action in draft.actions:
        if isinstance(action, DeleteObject) and action.budget_unit is not None:
            found.add(action.budget_unit)
        elif isinstance(action, EvictPod):
            pod = facts.observed.pods.get(f"{action.namespace}/{action.pod}")
            if pod is not None and pod.deleting is None:
                found.add(action.budget_unit)
    return found


def _jobs_of_units(draft: Draft, gangs: PassGangs) -> dict[str, str]:
    """The job of each unit with pods to evict."""
    found: dict[str, str] = {}
    for action in draft.actions:
        if isinstance(action, EvictPod) and action.budget_unit not in found:
            owner = action.owner
            place = f"{action.namespace}/{owner.kind}/{owner.name}" if owner else f"{action.namespace}/Pod/{action.pod}"
            found[action.budget_unit] = gangs.of_pod.get(f"{action.namespace}/{action.pod}", place)
    return found


def _nodes_of_units(facts: Facts, draft: Draft, gangs: PassGangs) -> dict[str, dict[str, int]]:
    """Per eviction unit its pods' nodes, each with the mask of their chips."""
    out: dict[str, dict[str, int]] = {}
    for action in draft.actions:
        if isinstance(action, EvictPod):
            nodes = out.setdefault(action.budget_unit, {})
            pod = facts.observed.pods.get(f"{action.namespace}/{action.pod}")
            if pod is not None and pod.node:
                nodes[pod.node] = nodes.get(pod.node, 0) | sum(1 << chip for chip in chip_ids(pod))
        elif isinstance(action, DeleteObject) and (gang := gangs.get(action.budget_unit or "")) is not None:
            nodes = out.setdefault(gang.key, {})
            for key in gang.pods:
                pod = facts.observed.pods.get(key)
                if pod is not None and pod.holds_chips:
                    nodes[pod.node] = nodes.get(pod.node, 0) | sum(1 << chip for chip in chip_ids(pod))
    return out
