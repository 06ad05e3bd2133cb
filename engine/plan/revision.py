"""Holds back a policy revision that would disrupt too much by itself (the previous version stays in force).

The same reports are judged under the policies of the memory and under the declared ones. What only the new ones take
out of service is set against the safety budgets; beyond any of them the revision is held back whole, with the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from engine.documents import Declared, FaultPolicy
from engine.model.cluster import ids_of
from engine.model.diagnostics import Diagnostic
from engine.plan import budgets, inforce
from engine.plan.chips import Verdict
from engine.plan.scope import Scope

Policies = tuple[Declared[FaultPolicy], ...]
Verdicts = dict[str, dict[int, Verdict]]
SHOWN: Final = 20


def settle(scope: Scope, declared: Policies, judged: Callable[[Policies], Verdicts]) -> Policies:
    """The policies to judge by in this pass, recorded in the memory as those in force."""
    pools = tuple(item.document for item in scope.desired.pools)
    if scope.memory.policy_revision == inforce.text(declared, pools):
        return declared
    before = inforce.previous_policies(scope.memory.policy_revision)
    if any(d.field == "spec.selector" and d.severity == "error" for d in scope.diagnostics):
        pools = inforce.previous_pools(scope.memory.policy_revision)
    chosen = declared
    if before is not None and _judging(before) != _judging(declared):
        excess = _excess(scope, judged(before), judged(declared))
        if excess:
            _say(scope, declared, before, excess)
            chosen = before
    scope.memory.policy_revision = inforce.text(chosen, pools)
    return chosen


def _judging(policies: Policies) -> list[dict[str, object]]:
    """What the policies say, without where they are written: moving a file is no change of policy."""
    return [item.document.manifest() for item in policies]


def _excess(scope: Scope, old: Verdicts, new: Verdicts) -> list[str]:
    """What the new policies alone take out, if that is beyond a budget; else nothing."""
    chips: list[tuple[str, int]] = []
    units: dict[str, set[str]] = {}
    resets: set[tuple[str, int]] = set()
    for name in sorted(new):
        view = scope.nodes[name]
        for chip, verdict in sorted(new[name].items()):
            past = old.get(name, {}).get(chip)
            if verdict.out and not (past and past.out):
                chips.append((name, chip))
            if verdict.hit and not (past and past.hit) and chip in view.used_by:
                pod = view.used_by[chip]
                units.setdefault(budgets.unit_of(scope, pod), set()).add(name)
            if verdict.reset and not (past and past.reset):
                group = next((g for g in view.groups if g >> chip & 1), 1 << chip)
                if not group & view.used:
                    resets.add((name, group))
    wanted = [budgets.Demand("IsolateChip", f"{n}/{c}", 1, (n,)) for n, c in chips]
    wanted += [budgets.Demand("EvictPod", unit, 1, tuple(sorted(nodes))) for unit, nodes in sorted(units.items())]
    wanted += [budgets.Demand("ResetChips", f"{n}/{ids_of(g)[0]}", 1, (n,)) for n, g in sorted(resets)]
    ledger = budgets.Ledger(scope)
    if all(ledger.take(demand) is None for demand in wanted):
        return []
    view_of = scope.nodes
    return [f"{n}/{view_of[n].chip(c)}" for n, c in chips] or [f"{n}/{ids_of(g)}" for n, g in sorted(resets)]


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
