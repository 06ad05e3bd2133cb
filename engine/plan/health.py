"""Health: faults → chip and node state, the orders that follow from it, and what must be remembered of it.

Level-triggered: an isolation is ordered whenever the node's orders do not already say it, a release whenever they
say it without need; a node without a fresh report is neither isolated further nor released. A node that reports
nothing, is asked nothing and has nothing to remember costs only a few comparisons.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from engine.model.actions import Evidence, IsolateChip, IsolateNode, ReleaseChip, ReleaseNode
from engine.model.cluster import ids_of
from engine.model.diagnostics import Diagnostic
from engine.model.faults import level_of
from engine.model.hardware import ManualPolicy
from engine.model.history import ChipMemory, NodeMemory
from engine.model.levels import MANUALLY_SEPARATE, NORMAL, PRE_SEPARATE, SUB_HEALTH
from engine.model.plan import ChipState, PlaneLevels
from engine.plan import chips, correlate, inforce, lemons, manual, outages, progress, public, revision, settled, tables
from engine.plan.chips import Bench
from engine.plan.judge import Judge, use_of
from engine.plan.manual import HeldChips
from engine.plan.memo import Memo
from engine.plan.scope import NodeView, Scope
from engine.plan.tolerance import Tolerance
from engine.plan.verdict import Held, Verdict

TIMELINE: Final = 20
_NOTHING: Final = NodeMemory()
_PLAIN: Final = ChipMemory()
Verdicts = dict[str, dict[int, Verdict]]

#: Rows of nodes whose chips are merely in use, by node name.
_PLAIN_ROWS: Final[Memo[tuple[ChipState, ...]]] = Memo(32768)


def run(scope: Scope) -> None:
    """Judge every node of the shard, fill its view, and order isolations and releases."""
    declared = inforce.fault_policies(scope.desired)
    found = outages.waves(scope)
    missing, mass = outages.gone(scope)
    outages.remember_waves(scope, found, missing, mass)
    held_nodes, held_chips = manual.isolations(scope)
    in_force = tables.in_force(scope.desired, scope.observed)
    public.run(scope, in_force)
    hardware = tables.manual_policy(scope.observed)
    correlate.settle(scope, hardware)
    policies = revision.settle(scope, declared, lambda chosen: judge_all(scope, chosen, held_chips), in_force)
    judge = scope.judge = Judge(in_force, policies)
    verdicts = judge_all(scope, judge, held_chips)
    correlate.collect(scope, verdicts, hardware)
    scope.diagnostics += tables.notes(scope.desired, scope.observed)
    judged: list[str] = []
    for name in verdicts.keys() | held_nodes.keys():
        scope.unsettle(name)
    scope.unsettled = dict(sorted(scope.unsettled.items()))
    for name, view in scope.unsettled.items():
        own = verdicts.get(name)
        judged.append(name)
        view.own()
        outages.judge(scope, judge, view, held_nodes.get(name, ""), view.pool in found)
        if own is not None:
            _apply(scope, judge, view, own)
        view.closed = outages.stability(view)
        if view.state == "healthy" and any(state.effective == SUB_HEALTH for state in (own or {}).values()):
            view.state, view.level = "sub-healthy", SUB_HEALTH
        _order(scope, judge, view, own or {}, held_nodes.get(name, ""))
    _shadows(scope, judge, verdicts)
    outages.notes(scope)
    found_rows = rows(scope)
    scope.chips = list(chain.from_iterable(found_rows.values()))
    settled.keep(scope, judged, found_rows, held_nodes.keys() | verdicts.keys())


def judge_all(scope: Scope, judge: Judge, held_chips: HeldChips) -> Verdicts:
    """Verdicts on the chips of every node that is not plainly clean, by the given judge; changes no memory."""
    out: Verdicts = {}
    told = manual.told(scope)
    tolerance, hardware = Tolerance(scope, judge), tables.manual_policy(scope.observed)
    for name in sorted(scope.nodes.keys() & {*held_chips, *scope.unsettled, *scope.memory.nodes}):
        view = scope.nodes[name]
        if name not in held_chips and _plainly_clean(scope, name, view):
            continue
        listed = None if told is None else told.get(name, {})
        out[name] = _judge_node(scope, view, held_chips.get(name, {}), listed, tolerance, hardware)
    return out


def _plainly_clean(scope: Scope, name: str, view: NodeView) -> bool:
    """Whether nothing about the node's chips needs a second look."""
    report, observed = view.report, scope.observed
    if report is not None and (
        report.faults
        or report.withheld
        or report.unhealthy
        or report.network_unhealthy
        or report.recovering
        or report.manual
        or report.upgrades
    ):
        return False
    orders = observed.orders.get(name)
    return name not in scope.memory.nodes and (orders is None or not (orders.isolate or orders.resets))


def _judge_node(
    scope: Scope,
    view: NodeView,
    held: dict[int, tuple[Held, ...]],
    told: Collection[int] | None,
    tolerance: Tolerance,
    hardware: ManualPolicy | None,
) -> dict[int, Verdict]:
    observed, name, now = scope.observed, view.node.name, scope.now_ms
    memory = scope.memory.nodes.get(name, _NOTHING)
    standing = observed.orders.get(name)
    state = progress.of(view, standing, observed.agents.get(name), memory, now)
    bench = Bench(tolerance.judge, observed, view, state, held, told, now, tolerance=tolerance, manual=hardware)
    report = view.report
    named = (
        report.unhealthy | (report.network_unhealthy or 0) | report.recovering | report.manual
        if report is not None
        else 0
    )
    named |= state.resetting | state.recovering | state.waiting | state.untaken
    who = {*ids_of(named), *bench.faults, *bench.withheld, *memory.chips, *held}
    who |= {upgrade.chip for upgrade in (report.upgrades if report else ())}
    who |= set(standing.isolate) if standing else set()
    out = {}
    for chip in sorted(who):
        before = state.memory.get(chip) or memory.chips.get(chip, _PLAIN)
        verdict = bench.verdict(chip, before)
        if state.untaken >> chip & 1:
            level = verdict.effective if verdict.out else ""
            verdict.memory = (
                chips.no_agent(verdict.memory, level, now)
                if level
                else msgspec.structs.replace(verdict.memory, ordered=0, recovering=0)
            )
            verdict.reset = False
        if not verdict.out and any(h.kind in ("attempt-budget", "no-agent") for h in verdict.memory.holds):
            # a clean chip is never kept out by a hold that only limits resets
            kept = tuple(h for h in verdict.memory.holds if h.kind not in ("attempt-budget", "no-agent"))
            verdict.memory = msgspec.structs.replace(verdict.memory, holds=kept)
        out[chip] = verdict
    under_way = state.resetting & view.base, state.recovering & view.base
    if under_way != (view.resetting, view.recovering):
        view = scope.own(name)
        view.resetting, view.recovering = under_way
    return out


def _apply(scope: Scope, judge: Judge, view: NodeView, verdicts: dict[int, Verdict]) -> None:
    """Fill the chip part of a view from its verdicts, and the node's memory."""
    recovering = view.recovering | (view.report.recovering & view.base if view.report else 0)
    out = network = forgiven = forgiven_network = 0
    planes = scope.planes[view.node.name] = dict[int, PlaneLevels]()
    for chip, verdict in verdicts.items():
        bit = 1 << chip
        if not view.base & bit:
            continue
        view.chip_level[chip] = verdict.level
        view.chip_codes[chip] = tuple(sorted(verdict.codes))
        view.chip_types[chip] = tuple(sorted(verdict.types))
        view.chip_state[chip] = verdict.state
        planes[chip] = PlaneLevels(verdict.effective, dict(sorted(verdict.raised.items())))
        out |= bit if verdict.out else 0
        network |= bit if verdict.network else 0
        forgiven |= bit if verdict.forgiven else 0
        forgiven_network |= bit if verdict.forgiven_network and not verdict.network else 0
        if view.fresh:
            view.hit |= bit if verdict.hit else 0
            view.sub_healthy |= bit if verdict.sub else 0
            view.tolerated |= bit if verdict.tolerated else 0
            view.resettable |= bit if verdict.reset else 0
    view.unhealthy = view.unhealthy & ~forgiven | out
    view.unavailable = view.unavailable & ~forgiven | out | recovering | view.resetting
    if view.network is not None:
        view.network = view.network & ~forgiven_network | network
    if view.fresh and not view.suspended:
        _remember(scope, view, verdicts)
    lemons.note(scope, judge, view, verdicts)


def _remember(scope: Scope, view: NodeView, verdicts: dict[int, Verdict]) -> None:
    name = view.node.name
    before = scope.memory.nodes.get(name, _NOTHING)
    kept = {chip: v.memory for chip, v in verdicts.items() if v.memory != _PLAIN}
    if kept != before.chips:
        for chip in sorted(kept):
            old = before.chips.get(chip, _PLAIN)
            for hold in kept[chip].holds:
                if hold.kind not in {h.kind for h in old.holds}:
                    kept[chip] = noted(kept[chip], scope.now_ms, f"held: {hold.kind} {hold.rule}".strip())
        scope.memory.nodes[name] = msgspec.structs.replace(before, chips=kept)


def noted(memory: ChipMemory, now_ms: int, text: str) -> ChipMemory:
    """The memory with one more entry in its bounded timeline."""
    return msgspec.structs.replace(memory, timeline=(*memory.timeline, (now_ms, text))[-TIMELINE:])


def _order(scope: Scope, judge: Judge, view: NodeView, verdicts: dict[int, Verdict], held: str) -> None:
    """Order what the node's orders do not yet say."""
    if view.suspended:
        return
    if view.fresh:
        _order_chips(scope, judge, view, verdicts)
    _order_node(scope, view, held)


def _order_chips(scope: Scope, judge: Judge, view: NodeView, verdicts: dict[int, Verdict]) -> None:
    name, report = view.node.name, view.report
    standing = scope.observed.orders.get(name)
    ordered = standing.isolate if standing else {}
    if not verdicts and not ordered:
        return
    wanted = {c: v.effective for c, v in verdicts.items() if v.out and view.base >> c & 1}
    reports = (f"kube-system/mindx-dl-deviceinfo-{name}@{report.resource_version}",) if report else ()
    for level in sorted(set(wanted.values())):
        fresh = [c for c in sorted(wanted) if wanted[c] == level and ordered.get(c) != level]
        if not fresh:
            continue
        codes = tuple(sorted({code for c in fresh for code in verdicts[c].codes}))
        names, rule = chips.device_names(view, fresh), verdicts[fresh[0]].rule
        scope.actions.append(
            IsolateChip(
                node=name,
                chips=names,
                level=level,
                reason="ManualIsolation" if level == MANUALLY_SEPARATE else "ChipFault",
                message=f"{', '.join(names)} of node {name}: level {level}"
                + (f" by {', '.join(codes)}" if codes else "")
                + ("; running work stays" if level == PRE_SEPARATE and any(c in view.used_by for c in fresh) else ""),
                evidence=_evidence(scope, judge, rule, codes, reports),
            )
        )
    gone = [c for c in sorted(ordered) if c not in wanted and not (view.resetting | view.recovering) >> c & 1]
    for level in sorted({ordered[c] for c in gone}):
        names = chips.device_names(view, [c for c in gone if ordered[c] == level])
        scope.actions.append(
            ReleaseChip(
                node=name,
                chips=names,
                level=level,
                reason="ReportClean",
                message=f"{', '.join(names)} of node {name}: the newest report is clean and no hold covers them",
                evidence=judge.evidence("report", (), reports, scope.desired.revision),
            )
        )


def _order_node(scope: Scope, view: NodeView, held: str) -> None:
    """Keep a node out, or take it back; a node that is only silent is kept out by its silence."""
    name = view.node.name
    before = scope.memory.nodes.get(name, _NOTHING).isolated
    if view.state in ("isolated", "pre-isolated", "manually-isolated"):
        if before != view.level:
            scope.actions.append(
                IsolateNode(
                    node=name,
                    level=view.level,
                    reason="ManualIsolation" if view.state == "manually-isolated" else "NodeFault",
                    message=f"node {name}: {view.closed[1] if view.closed else view.state}",
                    evidence=_node_evidence(scope, view, held),
                    preconditions={"uid": view.node.uid},
                )
            )
    elif before and view.state in ("healthy", "sub-healthy"):
        scope.actions.append(
            ReleaseNode(
                node=name,
                level=before,
                reason="ReportClean",
                message=f"node {name}: nothing keeps it out any more",
                evidence=_node_evidence(scope, view, ""),
                preconditions={"uid": view.node.uid},
            )
        )


def _evidence(scope: Scope, judge: Judge, rule: str, codes: tuple[str, ...], reports: tuple[str, ...]) -> Evidence:
    """Evidence with the place in Git of the Isolation or policy that decided."""
    for item in scope.desired.isolations:
        if rule == f"Isolation/{item.document.name}":
            return Evidence(rule, item.origin.file, item.origin.line, scope.desired.revision, codes, reports)
    return judge.evidence(rule, codes, reports, scope.desired.revision)


def _node_evidence(scope: Scope, view: NodeView, held: str) -> Evidence:
    """Evidence of a decision about a node; ``held`` is the rule of an Isolation document on it."""
    name = view.node.name
    reports = tuple(
        text
        for text, there in (
            (f"mindx-dl/mindx-dl-nodeinfo-{name}", name in scope.observed.node_reports),
            (f"kube-system/mindx-dl-deviceinfo-{name}", view.report is not None),
        )
        if there
    )
    if held and scope.judge is not None:
        return _evidence(scope, scope.judge, held, view.codes, reports)
    return Evidence(rule="report", codes=view.codes, reports=reports)


def _shadows(scope: Scope, judge: Judge, verdicts: Verdicts) -> None:
    """Tell what shadow policies would change, one line per policy and code."""
    if not any(item.document.spec.mode == "shadow" for item in scope.desired.fault_policies):
        return
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for name in sorted(verdicts):
        view = scope.nodes[name]
        for fault in view.report.faults if view.report else ():
            if fault.chip < 0 or not fault.code:
                continue
            pod = scope.observed.pods.get(view.used_by.get(fault.chip, ""))
            use = use_of(pod)
            now_level = level_of(judge.of(view, use).rules, fault.kind, fault.code, fault.level)[0]
            for policy, judgement in judge.shadows(view, use):
                level = level_of(judgement.rules, fault.kind, fault.code, fault.level)[0]
                if level != now_level:
                    found.setdefault((policy, fault.code, now_level, level), []).append(
                        f"{name}/{view.chip(fault.chip)}"
                    )
    for (policy, code, before, after), where in sorted(found.items()):
        shown = ", ".join(where[:10]) + (f" and {len(where) - 10} more" if len(where) > 10 else "")
        message = f"shadow: code {code} would be {after} instead of {before} on {shown}"
        origin = next(i.origin for i in scope.desired.fault_policies if i.document.name == policy)
        scope.diagnostics.append(
            Diagnostic("info", f"FaultPolicy/{policy}", origin.file, origin.line, origin.column, "spec.levels", message)
        )


def rows(scope: Scope) -> dict[str, Sequence[ChipState]]:
    """Per node every chip that is not plainly healthy and free, by chip id; nodes without such chips are left out."""
    out: dict[str, Sequence[ChipState]] = {}
    for name, view in scope.nodes.items():
        if view.settled:
            if view.rows:
                out[name] = view.rows
        elif view.chip_state or view.resetting or view.recovering:
            out[name] = _rows(view)
        elif view.used_by:
            out[name] = _PLAIN_ROWS.of(name, (view.prefix, dict(view.used_by)), partial(_rows, view))
    return out


def _rows(view: NodeView) -> tuple[ChipState, ...]:
    shown = {*view.used_by, *ids_of(view.resetting | view.recovering)}
    shown |= {
        chip
        for chip, state in view.chip_state.items()
        if state != "healthy" or view.chip_codes[chip] or view.chip_level[chip] != NORMAL
    }
    return tuple(
        ChipState(
            node=view.node.name,
            chip=view.chip(chip),
            state=view.chip_state.get(chip, "healthy"),
            level=view.chip_level.get(chip, NORMAL),
            codes=view.chip_codes.get(chip, ()),
            fault_type=view.chip_types.get(chip, ()),
            used_by=view.used_by.get(chip),
        )
        for chip in sorted(shown)
    )
