"""The health pass: faults → state of chips and nodes, isolations and releases, and the memory of chips.

Level-triggered: an isolation is ordered whenever the node's orders lack it, a release whenever they hold it without
need. A node without a fresh report is neither isolated further nor released. A node without faults, orders and memory
costs only a few comparisons.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from belay.engine.model.actions import IsolateChip, ReleaseChip
from belay.engine.model.chip_masks import ids_of
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.faults import level_of
from belay.engine.model.hardware_faults import ManualPolicy
from belay.engine.model.history import (
    TIMELINE,
    ChipMemory,
    HoldKind,
    NodeMemory,
)
from belay.engine.model.levels import MANUALLY_SEPARATE, NORMAL, PRE_SEPARATE, SUB_HEALTH
from belay.engine.model.plan import ChipState, PlaneLevels
from belay.engine.model.plan_cache import CacheKey, Memo
from belay.engine.model.reasons import ActionReason
from belay.engine.model.states import ChipHealth, NodeHealth
from belay.engine.plan import causes, node_agents, node_cache
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.health import (
    chips,
    correlation,
    manual_isolation,
    node_faults,
    policy_change,
    public_faults,
    repeat_offenders,
    replaced_hardware,
    reset_progress,
)
from belay.engine.plan.health.assessment import ChipAssessment, Health, ManualHold
from belay.engine.plan.health.chips import ChipContext
from belay.engine.plan.health.manual_isolation import ManualHolds, NodeHold
from belay.engine.plan.health.node_orders import evidence, order_node
from belay.engine.plan.health.tolerance import Tolerance
from belay.engine.plan.node_view import NodeView, PassNodes
from belay.engine.plan.rules import fault_tables
from belay.engine.plan.rules import in_force as inforce
from belay.engine.plan.rules.fault_rules import FaultRules, use_of

# read often: members of an enumeration are slow to look up
_HEALTHY_NODE: Final = NodeHealth.HEALTHY
_HEALTHY: Final = ChipHealth.HEALTHY
_NO_MEMORY: Final = NodeMemory()
_EMPTY_CHIP: Final = ChipMemory()
Assessments = dict[str, dict[int, ChipAssessment]]

#: Rows of nodes whose chips are in use and healthy, by node name.
_PLAIN_ROWS: Final = CacheKey("rows of nodes in plain use", Memo[tuple[ChipState, ...]], limit=32768)


def assess_nodes(facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs) -> Health:
    """Assess every node of the shard, fill its view, and order isolations and releases."""
    replaced_hardware.forget_replaced(facts, draft)
    declared = inforce.fault_policies(facts.desired)
    found = node_faults.mass_outages(nodes)
    missing, mass = node_faults.missing_nodes(facts)
    node_faults.record_outages(draft, nodes, found, missing, mass)
    held_nodes, manual_holds = manual_isolation.isolations(facts, draft, nodes)
    in_force = fault_tables.tables_in_force(facts.desired, facts.observed, facts.cache)
    public_faults.read_public_faults(facts, draft, nodes, in_force)
    hardware = fault_tables.manual_policy(facts.observed, facts.cache)
    correlation.attribute_faults(facts, draft, nodes, gangs, hardware)
    policies = policy_change.choose_policies(
        facts,
        draft,
        nodes,
        gangs,
        declared,
        lambda chosen: assess_all(facts, draft, nodes, gangs, chosen, manual_holds),
        in_force,
    )
    fault_rules = FaultRules(in_force, policies)
    health = Health(fault_rules)
    assessments = assess_all(facts, draft, nodes, gangs, fault_rules, manual_holds)
    correlation.record_faults(facts, draft, nodes, gangs, health, assessments, hardware)
    draft.diagnostics += fault_tables.diagnostics(facts.desired, facts.observed, facts.cache)
    tolerance = Tolerance(facts, nodes, gangs, fault_rules)
    assessed: list[str] = []
    for name in assessments.keys() | held_nodes.keys():
        nodes.reassess(name)
    for name, view in nodes.unassessed_views():
        own, held = assessments.get(name), held_nodes.get(name)
        assessed.append(name)
        switch = tolerance.switch_seen(view)
        if switch is not None and view.report is not None and switch is not view.report.switch:
            health.switches[name] = switch
        view = node_faults.assessed(facts, fault_rules, view, held, view.pool in found, switch)
        if own is not None:
            view = _with_chips(facts, draft, health, fault_rules, view, own)
        closed = node_faults.stability(view)
        if closed != view.closed:
            view = msgspec.structs.replace(view, closed=closed)
        if view.state == _HEALTHY_NODE and any(state.effective == SUB_HEALTH for state in (own or {}).values()):
            view = msgspec.structs.replace(view, state=NodeHealth.SUB_HEALTHY, level=SUB_HEALTH)
        nodes[name] = view
        _order(facts, draft, nodes, fault_rules, view, own or {}, held)
    _shadows(facts, draft, nodes, fault_rules, assessments)
    node_faults.diagnose(facts, draft, nodes)
    found_rows = rows(facts, nodes)
    health.chips.extend(chain.from_iterable(found_rows.values()))
    node_cache.keep(facts, nodes, assessed, found_rows, held_nodes.keys() | assessments.keys())
    return health


def assess_all(
    facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, fault_rules: FaultRules, manual_holds: ManualHolds
) -> Assessments:
    """Assess the chips of every node that is not clean, by the given rules; changes no memory."""
    out: Assessments = {}
    listed = manual_isolation.listed_holds(facts)
    tolerance, hardware = (
        Tolerance(facts, nodes, gangs, fault_rules),
        fault_tables.manual_policy(facts.observed, facts.cache),
    )
    for name in sorted(nodes.keys() & {*manual_holds, *nodes.unassessed, *draft.memory.nodes}):
        view = nodes[name]
        if name not in manual_holds and _nothing_to_assess(facts, draft, name, view):
            continue
        named = None if listed is None else listed.get(name, {})
        out[name] = _assess_node(facts, draft, nodes, view, manual_holds.get(name, {}), named, tolerance, hardware)
    return out


def _nothing_to_assess(facts: Facts, draft: Draft, name: str, view: NodeView) -> bool:
    """Whether the node reports nothing, has no orders and no memory."""
    report, observed = view.report, facts.observed
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
    return name not in draft.memory.nodes and (orders is None or not (orders.isolate or orders.resets))


def _assess_node(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    view: NodeView,
    held: dict[int, tuple[ManualHold, ...]],
    listed: Collection[int] | None,
    tolerance: Tolerance,
    hardware: ManualPolicy | None,
) -> dict[int, ChipAssessment]:
    observed, name, now = facts.observed, view.node.name, facts.now_ms
    memory = draft.memory.nodes.get(name, _NO_MEMORY)
    standing = observed.orders.get(name)
    gone = node_agents.has_left(facts, view)
    state = reset_progress.of(view, standing, observed.agents.get(name), memory, now, agent_has_left=gone)
    context = ChipContext(
        tolerance.fault_rules, observed, view, state, held, listed, now, tolerance=tolerance, manual=hardware
    )
    report = view.report
    named = (
        report.unhealthy | (report.network_unhealthy or 0) | report.recovering | report.manual
        if report is not None
        else 0
    )
    named |= state.resetting | state.recovering | state.waiting | state.untaken
    concerned = {*ids_of(named), *context.faults, *context.withheld, *memory.chips, *held}
    concerned |= {upgrade.chip for upgrade in (report.upgrades if report else ())}
    concerned |= set(standing.isolate) if standing else set()
    out = {}
    for chip in sorted(concerned):
        before = state.memory.get(chip) or memory.chips.get(chip, _EMPTY_CHIP)
        assessment = context.assessment(chip, before)
        if state.untaken >> chip & 1:
            level = assessment.effective if assessment.out_of_service else ""
            assessment.memory = (
                chips.with_no_agent_hold(assessment.memory, level, now)
                if level
                else msgspec.structs.replace(assessment.memory, ordered=0, recovering=0)
            )
            assessment.resettable = False
        if not assessment.out_of_service and any(
            h.kind in (HoldKind.ATTEMPT_BUDGET, HoldKind.NO_AGENT) for h in assessment.memory.holds
        ):
            # holds that only limit resets never keep a clean chip out
            kept = tuple(
                h for h in assessment.memory.holds if h.kind not in (HoldKind.ATTEMPT_BUDGET, HoldKind.NO_AGENT)
            )
            assessment.memory = msgspec.structs.replace(assessment.memory, holds=kept)
        out[chip] = assessment
    under_way = state.resetting & view.base, state.recovering & view.base
    if under_way != (view.resetting, view.recovering):
        nodes.change(name, resetting=under_way[0], recovering=under_way[1])
    return out


def _with_chips(
    facts: Facts,
    draft: Draft,
    health: Health,
    fault_rules: FaultRules,
    view: NodeView,
    assessments: dict[int, ChipAssessment],
) -> NodeView:
    """The view with its chip part from the assessments; fills the node's memory from them, too."""
    recovering = view.recovering | (view.report.recovering & view.base if view.report else 0)
    out = network = forgiven = forgiven_network = hit = sub_healthy = tolerated = resettable = 0
    planes = health.planes[view.node.name] = dict[int, PlaneLevels]()
    own = {chip: assessment for chip, assessment in assessments.items() if view.base >> chip & 1}
    for chip, assessment in own.items():
        bit = 1 << chip
        planes[chip] = PlaneLevels(assessment.effective, dict(sorted(assessment.raised.items())))
        out |= bit if assessment.out_of_service else 0
        network |= bit if assessment.network else 0
        forgiven |= bit if assessment.lowered else 0
        forgiven_network |= bit if assessment.lowered_network and not assessment.network else 0
        if view.fresh:
            hit |= bit if assessment.hit else 0
            sub_healthy |= bit if assessment.sub_healthy else 0
            tolerated |= bit if assessment.tolerated else 0
            resettable |= bit if assessment.resettable else 0
    if view.fresh and not view.suspended:
        _remember(facts, draft, view, assessments)
    return msgspec.structs.replace(
        view,
        chip_level={chip: one.level for chip, one in own.items()},
        chip_codes={chip: tuple(sorted(one.codes)) for chip, one in own.items()},
        chip_types={chip: tuple(sorted(one.types)) for chip, one in own.items()},
        chip_rules={chip: one.rule for chip, one in own.items() if one.rule},
        chip_state={chip: one.state for chip, one in own.items()},
        hit=view.hit | hit,
        sub_healthy=view.sub_healthy | sub_healthy,
        tolerated=view.tolerated | tolerated,
        resettable=view.resettable | resettable,
        unhealthy=view.unhealthy & ~forgiven | out,
        unavailable=view.unavailable & ~forgiven | out | recovering | view.resetting,
        network=None if view.network is None else view.network & ~forgiven_network | network,
        repeat_offenders=repeat_offenders.update(facts, draft, health, fault_rules, view, assessments),
    )


def _remember(facts: Facts, draft: Draft, view: NodeView, assessments: dict[int, ChipAssessment]) -> None:
    name = view.node.name
    before = draft.memory.nodes.get(name, _NO_MEMORY)
    kept = {chip: v.memory for chip, v in assessments.items() if v.memory != _EMPTY_CHIP}
    if kept != before.chips:
        for chip in sorted(kept):
            old = before.chips.get(chip, _EMPTY_CHIP)
            for hold in kept[chip].holds:
                if hold.kind not in {h.kind for h in old.holds}:
                    kept[chip] = with_entry(kept[chip], facts.now_ms, f"held: {hold.kind} {hold.rule}".strip())
        draft.memory.nodes[name] = msgspec.structs.replace(before, chips=kept)


def with_entry(memory: ChipMemory, now_ms: int, text: str) -> ChipMemory:
    """The memory with one more entry in its bounded timeline."""
    return msgspec.structs.replace(memory, timeline=(*memory.timeline, (now_ms, text))[-TIMELINE:])


def _order(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    fault_rules: FaultRules,
    view: NodeView,
    assessments: dict[int, ChipAssessment],
    held: NodeHold | None,
) -> None:
    """Order the isolations and releases that the node's orders lack."""
    if view.suspended:
        return
    if view.fresh:
        _order_chips(facts, draft, fault_rules, view, assessments)
    order_node(facts, draft, nodes, fault_rules, view, held)


def _order_chips(
    facts: Facts,
    draft: Draft,
    fault_rules: FaultRules,
    view: NodeView,
    assessments: dict[int, ChipAssessment],
) -> None:
    name, report = view.node.name, view.report
    standing = facts.observed.orders.get(name)
    ordered = standing.isolate if standing else {}
    if not assessments and not ordered:
        return
    wanted = {c: v.effective for c, v in assessments.items() if v.out_of_service and view.base >> c & 1}
    reports = (f"kube-system/mindx-dl-deviceinfo-{name}@{report.resource_version}",) if report else ()
    for level in sorted(set(wanted.values())):
        fresh = [c for c in sorted(wanted) if wanted[c] == level and ordered.get(c) != level]
        if not fresh:
            continue
        codes = tuple(sorted({code for c in fresh for code in assessments[c].codes}))
        names, rule = chips.device_names(view, fresh), assessments[fresh[0]].rule
        draft.actions.append(
            IsolateChip(
                node=name,
                chips=names,
                level=level,
                reason=ActionReason.MANUAL_ISOLATION if level == MANUALLY_SEPARATE else ActionReason.CHIP_FAULT,
                message=f"{', '.join(names)} of node {name}: level {level}"
                + (f" by {', '.join(codes)}" if codes else "")
                + ("; running work stays" if level == PRE_SEPARATE and any(c in view.used_by for c in fresh) else ""),
                evidence=causes.caused(
                    evidence(facts, fault_rules, rule, codes, reports),
                    causes.of_chips(facts, draft, fault_rules, view, fresh),
                ),
            )
        )
    gone = [c for c in sorted(ordered) if c not in wanted and not (view.resetting | view.recovering) >> c & 1]
    for level in sorted({ordered[c] for c in gone}):
        names = chips.device_names(view, [c for c in gone if ordered[c] == level])
        draft.actions.append(
            ReleaseChip(
                node=name,
                chips=names,
                level=level,
                reason=ActionReason.REPORT_CLEAN,
                message=f"{', '.join(names)} of node {name}: {_why_released(view, names)}",
                evidence=fault_rules.evidence("report", (), reports, facts.desired.revision),
            )
        )


def _why_released(view: NodeView, names: tuple[str, ...]) -> str:
    """Why chips come back: nothing is reported any more, or what is reported keeps no chip out any more."""
    reported = {view.chip(fault.chip) for fault in view.report.faults if fault.code} if view.report else set[str]()
    if reported.isdisjoint(names):
        return "the newest report is clean and no hold covers them"
    return "what the newest report says keeps them out no longer, and no hold covers them"


def _shadows(facts: Facts, draft: Draft, nodes: PassNodes, fault_rules: FaultRules, assessments: Assessments) -> None:
    """Report what shadow policies would change, one line per policy and code."""
    if not any(item.document.spec.mode == "shadow" for item in facts.desired.fault_policies):
        return
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for name in sorted(assessments):
        view = nodes[name]
        for fault in view.report.faults if view.report else ():
            if fault.chip < 0 or not fault.code:
                continue
            pod = facts.observed.pods.get(view.used_by.get(fault.chip, ""))
            use = use_of(pod)
            now_level = level_of(fault_rules.of(view, use).rules, fault.kind, fault.code, fault.level)[0]
            for policy, chip_rules in fault_rules.shadows(view, use):
                level = level_of(chip_rules.rules, fault.kind, fault.code, fault.level)[0]
                if level != now_level:
                    found.setdefault((policy, fault.code, now_level, level), []).append(
                        f"{name}/{view.chip(fault.chip)}"
                    )
    for (policy, code, before, after), where in sorted(found.items()):
        shown = ", ".join(where[:10]) + (f" and {len(where) - 10} more" if len(where) > 10 else "")
        message = f"shadow: code {code} would be {after} instead of {before} on {shown}"
        origin = next(i.origin for i in facts.desired.fault_policies if i.document.name == policy)
        place = (origin.file, origin.line, origin.column)
        draft.diagnostics.append(
            Diagnostic("info", f"FaultPolicy/{policy}", *place, "spec.levels", message, PassCode.SHADOW)
        )


def rows(facts: Facts, nodes: PassNodes) -> dict[str, Sequence[ChipState]]:
    """Per node the chips that are not both healthy and free, by id; nodes without such chips are left out."""
    out: dict[str, Sequence[ChipState]] = {}
    plain = facts.cache[_PLAIN_ROWS]
    for name, view in nodes.items():
        if view.assessed is not None:
            if view.assessed.chips:
                out[name] = view.assessed.chips
        elif view.chip_state or view.resetting or view.recovering:
            out[name] = _rows(view)
        elif view.used_by:
            out[name] = plain.of(name, (view.prefix, dict(view.used_by)), partial(_rows, view))
    return out


def _rows(view: NodeView) -> tuple[ChipState, ...]:
    shown = {*view.used_by, *ids_of(view.resetting | view.recovering)}
    shown |= {
        chip
        for chip, state in view.chip_state.items()
        if state != _HEALTHY or view.chip_codes[chip] or view.chip_level[chip] != NORMAL
    }
    return tuple(
        ChipState(
            node=view.node.name,
            chip=view.chip(chip),
            state=view.chip_state.get(chip, _HEALTHY),
            level=view.chip_level.get(chip, NORMAL),
            codes=view.chip_codes.get(chip, ()),
            fault_type=view.chip_types.get(chip, ()),
            used_by=view.used_by.get(chip),
        )
        for chip in sorted(shown)
    )
