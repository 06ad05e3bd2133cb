"""Holds back a policy revision that would disrupt too much by itself (the previous version stays in force).

The same reports are judged under the policies of the memory and under the declared ones. What only the new ones take
out of service is set against the safety budgets; beyond any of them the revision is held back whole, with the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from engine.documents import Declared, Desired, FaultPolicy
from engine.model.cluster import ids_of
from engine.model.diagnostics import Diagnostic
from engine.plan import budgets, inforce, outages
from engine.plan.judge import Judge
from engine.plan.scope import Scope
from engine.plan.verdict import Verdict

Policies = tuple[Declared[FaultPolicy], ...]
Verdicts = dict[str, dict[int, Verdict]]
SHOWN: Final = 20


def settle(
    scope: Scope, declared: Policies, judged: Callable[[Judge], Verdicts], in_force: Desired | None = None
) -> Policies:
    """The policies to judge by in this pass, recorded in the memory as those in force.

    ``in_force`` has the fault tables that the cluster laid over the shipped ones (default: the declared ones).
    """
    pools = tuple(item.document for item in scope.desired.pools)
    if scope.memory.policy_revision == inforce.text(declared, pools):
        return declared
    before = inforce.previous_policies(scope.memory.policy_revision)
    if any(d.field == "spec.selector" and d.severity == "error" for d in scope.diagnostics):
        pools = inforce.previous_pools(scope.memory.policy_revision)
    chosen = declared
    if before is not None and _judging(before) != _judging(declared):
        tables = in_force or scope.desired
        old, new = Judge(tables, before), Judge(tables, declared)
        nodes = list(_closed(scope, old, new))
        excess = _excess(scope, judged(old), judged(new), nodes)
        if excess:
            _say(scope, declared, before, excess)
            chosen = before
    scope.memory.policy_revision = inforce.text(chosen, pools)
    return chosen


def _judging(policies: Policies) -> list[dict[str, object]]:
    """What the policies say, without where they are written: moving a file is no change of policy."""
    return [item.document.manifest() for item in policies]


def _closed(scope: Scope, old: Judge, new: Judge) -> Iterator[tuple[str, bool, bool]]:
    """Nodes that only the new policies keep from new work, or whose tasks only those drive away: (node, out, down)."""
    for name, view in scope.nodes.items():
        report = scope.observed.node_reports.get(name)
        about = any(fault.chip < 0 for fault in view.report.faults) or view.report.switch if view.report else None
        if report is None and not about:
            continue
        was_out, was_down = outages.standing(old, view, report)
        out, down = outages.standing(new, view, report)
        if (out and not was_out) or (down and not was_down):
            yield name, out and not was_out, down and not was_down


def _excess(scope: Scope, old: Verdicts, new: Verdicts, nodes: list[tuple[str, bool, bool]]) -> list[str]:
    """What the new policies alone take out, if that is beyond a budget; else nothing."""
    chips: list[tuple[str, int]] = []
    units: dict[str, set[str]] = {}
    for name, _, down in nodes:
        for key in {p.key for p in scope.nodes[name].pods if p.chips and down}:
            _goes(scope, key, name, units)
    resets: set[tuple[str, int]] = set()
    for name in sorted(new):
        view = scope.nodes[name]
        for chip, verdict in sorted(new[name].items()):
            past = old.get(name, {}).get(chip)
            if verdict.out and not (past and past.out):
                chips.append((name, chip))
            if verdict.hit and not (past and past.hit) and chip in view.used_by:
                _goes(scope, view.used_by[chip], name, units)
            if verdict.reset and not (past and past.reset):
                group = next((g for g in view.groups if g >> chip & 1), 1 << chip)
                if not group & view.used:
                    resets.add((name, group))
    wanted = [budgets.Demand("IsolateChip", f"{n}/{c}", 1, (n,)) for n, c in chips]
    wanted += [budgets.Demand("IsolateNode", n, 1, (n,)) for n, out, _ in nodes if out]
    wanted += [budgets.Demand("EvictPod", unit, 1, tuple(sorted(nodes))) for unit, nodes in sorted(units.items())]
    wanted += [budgets.Demand("ResetChips", f"{n}/{ids_of(g)[0]}", 1, (n,)) for n, g in sorted(resets)]
    ledger = budgets.Ledger(scope)
    if all(ledger.take(demand) is None for demand in wanted):
        return []
    view_of = scope.nodes
    found = [name for name, _, _ in nodes] + [f"{n}/{view_of[n].chip(c)}" for n, c in chips]
    return found or [f"{n}/{ids_of(g)}" for n, g in sorted(resets)] or sorted(units)


def _goes(scope: Scope, pod: str, node: str, units: dict[str, set[str]]) -> None:
    """Count the pod's job among those that would go, if it lets itself be rescheduled here."""
    gang = scope.gangs.get(scope.gang_of.get(pod, ""))
    if gang is not None and gang.fault_scheduling in ("force", "grace"):
        units.setdefault(budgets.unit_of(scope, pod), set()).add(node)


def _say(scope: Scope, declared: Policies, before: Policies, excess: list[str]) -> None:
    known = {item.document.name: item.document.manifest() for item in before}
    changed = [item for item in declared if known.get(item.document.name) != item.document.manifest()]
    gone = sorted(known.keys() - {item.document.name for item in declared})
    names = ", ".join([item.document.name for item in changed] + [f"{name} (removed)" for name in gone])
    shown = ", ".join(excess[:SHOWN]) + (f" and {len(excess) - SHOWN} more" if len(excess) > SHOWN else "")
    origin = changed[0].origin if changed else None
    message = (
        f"the change of {names} would by itself isolate, reset or evict more than the safety budget allows, so it is "
        f"held back and the previous version stays in force; it concerns {shown}. Narrow the policy or raise the budget"
    )
    scope.diagnostics.append(
        Diagnostic(
            "error",
            f"FaultPolicy/{(changed[0].document.name if changed else gone[0])}",
            origin.file if origin else "",
            origin.line if origin else 0,
            origin.column if origin else 0,
            "spec",
            message,
        )
    )
