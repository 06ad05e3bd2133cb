"""Holds back a policy revision that alone would disrupt too much; the previous version stays in force.

The same reports are assessed under the policies of the memory and under the declared ones. What only the new ones
isolate, reset or evict is compared with the safety budgets; beyond any of them the whole revision is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from belay.engine.documents import Declared, Desired, FaultPolicy
from belay.engine.model.chip_masks import ids_of
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.plan import budgets
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.health import node_faults
from belay.engine.plan.health.assessment import ChipAssessment
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.rules import in_force as inforce
from belay.engine.plan.rules.fault_rules import FaultRules

Policies = tuple[Declared[FaultPolicy], ...]
Assessments = dict[str, dict[int, ChipAssessment]]
SHOWN: Final = 20


def choose_policies(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    gangs: PassGangs,
    declared: Policies,
    assess: Callable[[FaultRules], Assessments],
    in_force: Desired | None = None,
) -> Policies:
    """Choose the policies of this pass and record them in the memory as those in force.

    Args:
        declared: the policies of the newest revision.
        assess: assesses all chips by the given rules.
        in_force: the declarations with the fault tables in force (default: the declared tables).
    """
    pools = tuple(item.document for item in facts.desired.pools)
    if draft.memory.policy_revision == inforce.text(declared, pools):
        return declared
    before = inforce.previous_policies(draft.memory.policy_revision)
    if nodes.contested:
        pools = inforce.previous_pools(draft.memory.policy_revision)
    chosen = declared
    if before is not None and _contents(before) != _contents(declared):
        tables = in_force or facts.desired
        old, new = FaultRules(tables, before), FaultRules(tables, declared)
        isolated = list(_newly_isolated(facts, nodes, old, new))
        excess = _excess(facts, draft, nodes, gangs, assess(old), assess(new), isolated)
        if excess:
            _diagnose(draft, declared, before, excess)
            chosen = before
    draft.memory.policy_revision = inforce.text(chosen, pools)
    return chosen


def _contents(policies: Policies) -> list[dict[str, object]]:
    """The content of the policies without their origin: moving a file is not a change of policy."""
    return [item.document.manifest() for item in policies]


def _newly_isolated(
    facts: Facts, nodes: PassNodes, old: FaultRules, new: FaultRules
) -> Iterator[tuple[str, bool, bool]]:
    """Nodes that only the new policies keep from new work (out), or whose tasks only those evict (down)."""
    for name, view in nodes.items():
        report = facts.observed.node_reports.get(name)
        about = any(fault.chip < 0 for fault in view.report.faults) or view.report.switch if view.report else None
        if report is None and not about and not view.node.conditions:
            continue
        was_out, was_down = node_faults.severity(old, view, report, facts.now)
        out, down = node_faults.severity(new, view, report, facts.now)
        if (out and not was_out) or (down and not was_down):
            yield name, out and not was_out, down and not was_down


def _excess(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    gangs: PassGangs,
    old: Assessments,
    new: Assessments,
    isolated: list[tuple[str, bool, bool]],
) -> list[str]:
    """Names of what the new policies alone disrupt, if that exceeds a budget; else empty."""
    chips: list[tuple[str, int]] = []
    units: dict[str, set[str]] = {}
    for name, _, down in isolated:
        for key in {p.key for p in nodes[name].pods if p.chips and down}:
            _count_eviction(gangs, key, name, units)
    resets: set[tuple[str, int]] = set()
    for name in sorted(new):
        view = nodes[name]
        for chip, assessment in sorted(new[name].items()):
            past = old.get(name, {}).get(chip)
            if assessment.out_of_service and not (past and past.out_of_service):
                chips.append((name, chip))
            if assessment.hit and not (past and past.hit) and chip in view.used_by:
                _count_eviction(gangs, view.used_by[chip], name, units)
            if assessment.resettable and not (past and past.resettable):
                group = next((g for g in view.groups if g >> chip & 1), 1 << chip)
                if not group & view.used:
                    resets.add((name, group))
    wanted = [budgets.BudgetDemand("IsolateChip", f"{n}/{c}", 1, (n,)) for n, c in chips]
    wanted += [budgets.BudgetDemand("IsolateNode", n, 1, (n,)) for n, out, _ in isolated if out]
    wanted += [budgets.BudgetDemand("EvictPod", unit, 1, tuple(sorted(where))) for unit, where in sorted(units.items())]
    wanted += [budgets.BudgetDemand("ResetChips", f"{n}/{ids_of(g)[0]}", 1, (n,)) for n, g in sorted(resets)]
    ledger = budgets.BudgetTracker(facts, draft, nodes, gangs)
    if all(ledger.take(demand) is None for demand in wanted):
        return []
    view_of = nodes
    found = [name for name, _, _ in isolated] + [f"{n}/{view_of[n].chip(c)}" for n, c in chips]
    return found or [f"{n}/{ids_of(g)}" for n, g in sorted(resets)] or sorted(units)


def _count_eviction(gangs: PassGangs, pod: str, node: str, units: dict[str, set[str]]) -> None:
    """Count the eviction unit of the pod, if its job allows rescheduling."""
    gang = gangs.get(gangs.of_pod.get(pod, ""))
    if gang is not None and gang.fault_scheduling in ("force", "grace"):
        units.setdefault(budgets.unit_of(gangs, pod), set()).add(node)


def _diagnose(draft: Draft, declared: Policies, before: Policies, excess: list[str]) -> None:
    known = {item.document.name: item.document.manifest() for item in before}
    changed = [item for item in declared if known.get(item.document.name) != item.document.manifest()]
    gone = sorted(known.keys() - {item.document.name for item in declared})
    names = ", ".join([item.document.name for item in changed] + [f"{name} (removed)" for name in gone])
    shown = ", ".join(excess[:SHOWN]) + (f" and {len(excess) - SHOWN} more" if len(excess) > SHOWN else "")
    origin = changed[0].origin if changed else None
    message = (
        f"the change of {names} alone would isolate, reset or evict more than the safety budget allows, so it is held "
        f"back and the previous version stays in force. It would hit {shown}. Narrow the policy or raise the budget"
    )
    draft.diagnostics.append(
        Diagnostic(
            "error",
            f"FaultPolicy/{(changed[0].document.name if changed else gone[0])}",
            origin.file if origin else "",
            origin.line if origin else 0,
            origin.column if origin else 0,
            "spec",
            message,
            PassCode.POLICY_HELD_BACK,
        )
    )
