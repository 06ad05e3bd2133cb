"""Faults compared over all chips of a job: hardware or software, and which link or switch broke it.

``attribute_faults`` attributes the faults that earlier passes recorded, before chips are assessed; ``record_faults``
records what this pass saw. Both work on the memory only, so that a replay of the recorded passes decides the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from belay.engine.model import hardware_faults, relations
from belay.engine.model.actions import (
    Evidence,
    PatchObject,
    PatchType,
    Preconditions,
)
from belay.engine.model.cluster import Pod
from belay.engine.model.faults import code_key
from belay.engine.model.hardware_faults import ManualPolicy
from belay.engine.model.history import (
    ChipMemory,
    Hold,
    HoldKind,
    JobFault,
    JobMemory,
    NodeMemory,
    RelationFault,
)
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import FAULT_TYPE
from belay.engine.model.levels import MANUALLY_SEPARATE, NORMAL, NOT_HANDLE, SUB_HEALTH
from belay.engine.model.pod_options import fault_type
from belay.engine.model.reasons import ActionReason
from belay.engine.model.rules import RuleKind
from belay.engine.plan import restart_scope, roles
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.health import node_faults
from belay.engine.plan.health.assessment import ChipAssessment, Health
from belay.engine.plan.health.relation_faults import locations, super_pod
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.views import chip_ids

_NO_MEMORY: Final = NodeMemory()
_EMPTY_CHIP: Final = ChipMemory()
_MILD: Final = frozenset({NORMAL, NOT_HANDLE, SUB_HEALTH})
Assessments = Mapping[str, Mapping[int, ChipAssessment]]


def attribute_faults(
    facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, policy: ManualPolicy | None
) -> None:
    """Attribute faults that waited long enough to hardware or software; isolate chips charged too often."""
    charged: dict[tuple[str, int, str], list[int]] = {}
    for key in sorted(draft.memory.jobs):
        memory = draft.memory.jobs[key]
        if not memory.faults:
            continue
        if policy is None or not policy.enabled or key not in gangs:
            waiting: tuple[JobFault, ...] = ()
        else:
            waiting, found = hardware_faults.attribute(memory.faults, facts.now_ms)
            for fault in found:
                charged.setdefault((fault.node, fault.chip, fault.code), []).append(fault.at)
        if waiting != memory.faults:
            draft.memory.jobs[key] = msgspec.structs.replace(memory, faults=waiting)
    if policy is not None and policy.enabled:
        for (node, chip, code), times in sorted(charged.items()):
            if node in nodes:
                _charge(facts, draft, policy, node, chip, code, times)
    _expire_charges(facts, draft, policy)


def _charge(
    facts: Facts, draft: Draft, policy: ManualPolicy, node: str, chip: int, code: str, times: list[int]
) -> None:
    memory = draft.memory.nodes.get(node, _NO_MEMORY)
    row = memory.chips.get(chip, _EMPTY_CHIP)
    kept, reached = hardware_faults.charge(row.hardware.get(code, ()), times, policy, facts.now_ms)
    counts = {c: t for c, t in row.hardware.items() if c != code} | ({code: kept} if kept else {})
    holds = row.holds
    if reached:
        rule, since = RuleKind.HARDWARE.named(code), facts.now_ms
        told = any(h.key == (HoldKind.FREQUENCY, rule) and h.told for h in holds)
        until = since + policy.release_ms if policy.release_ms else 0
        fresh = Hold(HoldKind.FREQUENCY, MANUALLY_SEPARATE, since=since, until=until, rule=rule, told=told)
        holds = (*(h for h in holds if h.key != fresh.key), fresh)
    row = msgspec.structs.replace(row, hardware=dict(sorted(counts.items())), holds=holds)
    draft.memory.nodes[node] = msgspec.structs.replace(memory, chips=memory.chips | {chip: row})


def _expire_charges(facts: Facts, draft: Draft, policy: ManualPolicy | None) -> None:
    """Drop charges older than the window, or all of them when the rule is switched off."""
    oldest = facts.now_ms - policy.window_hours * 3_600_000 if policy is not None and policy.enabled else None
    for node, memory in list(draft.memory.nodes.items()):
        changed = {}
        for chip, row in memory.chips.items():
            if not row.hardware:
                continue
            kept = {
                c: tuple(t for t in times if oldest is not None and t >= oldest) for c, times in row.hardware.items()
            }
            counts = {code: times for code, times in kept.items() if times}
            if counts != row.hardware:
                changed[chip] = msgspec.structs.replace(row, hardware=counts)
        if changed:
            draft.memory.nodes[node] = msgspec.structs.replace(memory, chips=memory.chips | changed)


def record_faults(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    gangs: PassGangs,
    health: Health,
    assessments: Assessments,
    policy: ManualPolicy | None,
) -> None:
    """Queue new faults on chips of jobs for attribution, and update relation faults."""
    if policy is not None and policy.enabled:
        _enqueue_faults(facts, draft, nodes, gangs, assessments)
    _follow_relation_faults(facts, draft, nodes, gangs, health)


def _enqueue_faults(facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, assessments: Assessments) -> None:
    found: dict[str, list[JobFault]] = {}
    for name, by_chip in assessments.items():
        view = nodes[name]
        if not node_faults.fresh(view, facts.now) or view.suspended:
            continue
        for chip, assessment in by_chip.items():
            gang = gangs.of_pod.get(view.used_by.get(chip, ""), "")
            if gang not in gangs:
                continue  # a chip without a job is not counted
            fresh = [
                code
                for code, level in sorted(assessment.visible.items())
                if level not in _MILD
                and (seen := assessment.memory.codes.get(code))
                and seen.present
                and not seen.counted
            ]
            if not fresh:
                continue
            codes = assessment.memory.codes | {
                code: msgspec.structs.replace(assessment.memory.codes[code], counted=True) for code in fresh
            }
            assessment.memory = msgspec.structs.replace(assessment.memory, codes=codes)
            found.setdefault(gang, []).extend(JobFault(facts.now_ms, name, chip, code) for code in fresh)
    for gang, faults in sorted(found.items()):
        memory = restart_scope.memory_of(draft, gangs[gang])
        draft.memory.jobs[gang] = msgspec.structs.replace(memory, faults=hardware_faults.enqueue(memory.faults, faults))


def _follow_relation_faults(facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, health: Health) -> None:
    """Update the relation faults of every job that has or had a code of the relation table."""
    there = locations(facts, nodes, gangs)
    concerned = {*there, *(key for key, m in draft.memory.jobs.items() if m.related or m.blamed)}
    for key in sorted(concerned):
        gang = gangs.get(key)
        if gang is None:
            continue
        before = restart_scope.memory_of(draft, gang)
        started = before.observed or facts.now_ms
        related, decided = relations.follow(
            before.related,
            there.get(key, frozenset()),
            a3=super_pod(facts, nodes, gang),
            since_ms=started,
            now_ms=facts.now_ms,
        )
        pods = [p for k in gang.pods if (p := facts.observed.pods.get(k)) is not None and p.holds_chips]
        blamed = _strategies_of_pods(before, pods, decided)
        after = msgspec.structs.replace(
            before, related=related, blamed=blamed, observed=started if related or blamed else 0
        )
        if after != before:
            draft.memory.jobs[key] = after
        for pod in pods:
            if pod.uid in blamed:
                health.blamed[pod.key] = blamed[pod.uid]
        _label_pods(facts, draft, health, gang, pods, related)


def _strategies_of_pods(before: JobMemory, pods: list[Pod], decided: relations.Strategies) -> dict[str, str]:
    """The strategy for each pod that still exists, by UID; Separate is never lowered."""
    out: dict[str, str] = {}
    for pod in sorted(pods, key=lambda p: p.uid):
        strategy = before.blamed.get(pod.uid, "")
        for chip in (relations.SWITCH, *chip_ids(pod)):
            strategy = relations.worse(decided.get((pod.node, chip), ""), strategy)
        if strategy:
            out[pod.uid] = strategy
    return out


def _label_pods(
    facts: Facts, draft: Draft, health: Health, gang: Gang, pods: list[Pod], related: tuple[RelationFault, ...]
) -> None:
    """Label pods for a live Volcano, which reschedules by label, where Belay does not reschedule."""
    if not health.blamed or roles.plays(facts, "schedule"):
        return
    codes = tuple(sorted({code_key(row.code) for row in related if row.executed}))
    for pod in pods:
        wanted = health.blamed.get(pod.key)
        if wanted is None or fault_type(pod) in (wanted, relations.SEPARATE):
            continue
        draft.actions.append(
            PatchObject(
                api_version="v1",
                object_kind="Pod",
                namespace=pod.namespace,
                name=pod.name,
                patch={"metadata": {"labels": {FAULT_TYPE: wanted}}},
                reason=ActionReason.RELATION_FAULT,
                message=f"pod {pod.key} of {gang.key} is on hardware that relation faults blame ({', '.join(codes)})",
                evidence=Evidence(rule="relation-faults", codes=codes),
                patch_type=PatchType.MERGE,
                preconditions=Preconditions(uid=pod.uid),
            )
        )
