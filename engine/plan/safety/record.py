"""What admitted actions leave in the memory, so that the next pass knows what was decided.

The memory is written before any disruptive action: a crash in between costs an attempt and never repeats one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.gangs.forming import declared_rank
from belay.engine.model.actions import (
    EvictPod,
    Evidence,
    IsolateChip,
    IsolateNode,
    ReleaseChip,
    ReleaseNode,
    ResetChips,
)
from belay.engine.model.causes import Cause
from belay.engine.model.history import ChipMemory, JobMemory, NodeMemory, RescheduleRecord
from belay.engine.model.history_lines import HistoryLine, LineKind, with_line
from belay.engine.model.rules import DOCUMENTS, rule_kind
from belay.engine.plan.draft import Draft, Reschedule
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.health.reset import MAX_RESETS
from belay.engine.plan.health.states import with_entry
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.recover import in_place_recovery

MAX_RESCHEDULES: Final = 100
MAX_FAULT_NODES: Final = 16
#: Maximum reschedules recorded per job, and hit pods per reschedule.
MAX_RECORDS: Final = 10
#: Maximum characters of one line of a job's timeline.
MAX_LINE: Final = 500


def record_actions(facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs) -> None:
    """Record every action of the plan that the next pass must know."""
    _record_answers(facts, draft)
    for action in draft.actions:
        if isinstance(action, IsolateChip):
            text = f"isolated: {action.level}{cause(action.evidence)}"
            _chips(facts, draft, nodes, action.node, action.chips, level=action.level, text=text)
        elif isinstance(action, ReleaseChip):
            _chips(facts, draft, nodes, action.node, action.chips, level="", text="released")
        elif isinstance(action, ResetChips):
            _reset(facts, draft, action)
            in_place_recovery.record_order(facts, draft, gangs, action)
        elif isinstance(action, (IsolateNode, ReleaseNode)):
            before = draft.memory.nodes.get(action.node, NodeMemory())
            level = action.level if isinstance(action, IsolateNode) else ""
            draft.memory.nodes[action.node] = msgspec.structs.replace(before, isolated=level)
    said = {a.budget_unit: a for a in reversed(draft.actions) if isinstance(a, EvictPod)}
    by_gang: dict[str, list[Reschedule]] = {}
    for unit in sorted(draft.reschedules):
        by_gang.setdefault(draft.reschedules[unit].gang, []).append(draft.reschedules[unit])
    for gang, changes in by_gang.items():
        first = next((said[unit] for unit in sorted(draft.reschedules) if unit in said
                      and draft.reschedules[unit].gang == gang), None)  # fmt: skip
        _job(facts, draft, gangs, gang, changes, f": {first.message}{cause(first.evidence)}" if first else "")


def cause(evidence: Evidence) -> str:
    """The cause of a decision for a timeline, else its codes, rule, file:line and commit; empty when there are none."""
    if isinstance(evidence.cause, Cause):
        return f"; because of {evidence.cause.text}"
    place = f"{evidence.file}:{evidence.line}" if evidence.file else ""
    commit = f"@{evidence.revision[:12]}" if evidence.file and evidence.revision else ""
    rule = "" if evidence.of_report_alone else evidence.rule
    parts = (f"by {', '.join(evidence.codes[:8])}" if evidence.codes else "", rule, f"{place}{commit}")
    text = " ".join(part for part in parts if part)
    return f" {text}" if text else ""


def _record_answers(facts: Facts, draft: Draft) -> None:
    """Record the answers of agents to resets since the previous pass."""
    for name, memory in list(draft.memory.nodes.items()):
        agent, old = facts.observed.agents.get(name), facts.observed.history.nodes.get(name)
        if agent is None or old is memory or old is None:
            continue
        rows = dict(memory.chips)
        for chip, row in memory.chips.items():
            past = old.chips.get(chip)
            if past is None or not past.ordered or past.recovering or (row.ordered and not row.recovering):
                continue
            answer = agent.chips.get(chip)
            if answer is not None and answer.reset_epoch_done >= past.epoch:
                rows[chip] = with_entry(
                    row, facts.now_ms, f"reset answered: epoch {past.epoch} {answer.reset_result}"[:200]
                )
        if rows != memory.chips:
            draft.memory.nodes[name] = msgspec.structs.replace(memory, chips=rows)


def _chips(
    facts: Facts, draft: Draft, nodes: PassNodes, node: str, names: tuple[str, ...], *, level: str, text: str
) -> None:
    before = draft.memory.nodes.get(node, NodeMemory())
    rows = dict(before.chips)
    for chip in _ids(names):
        row = rows.get(chip, ChipMemory())
        if level or row != ChipMemory():
            rule = _document(nodes, node, chip) if level else row.rule
            row = msgspec.structs.replace(row, isolated=facts.now_ms if level else 0, level=level, rule=rule)
            rows[chip] = with_entry(row, facts.now_ms, text)
    draft.memory.nodes[node] = msgspec.structs.replace(before, chips=dict(sorted(rows.items())))


def _document(nodes: PassNodes, node: str, chip: int) -> str:
    """The rule of a document that decided about the chip; empty where tables or reports alone did."""
    view = nodes.get(node)
    rule = view.chip_rules.get(chip, "") if view is not None else ""
    return rule if rule_kind(rule) in DOCUMENTS else ""


def _reset(facts: Facts, draft: Draft, action: ResetChips) -> None:
    """Record the attempt, its epoch and its time on every chip of the group."""
    before = draft.memory.nodes.get(action.node, NodeMemory())
    rows = dict(before.chips)
    for chip in _ids(action.chips):
        row = rows.get(chip, ChipMemory())
        row = msgspec.structs.replace(
            row,
            epoch=action.epoch,
            ordered=facts.now_ms,
            recovering=0,
            resets=(*row.resets, facts.now_ms)[-MAX_RESETS:],
        )
        rows[chip] = with_entry(row, facts.now_ms, f"reset ordered: epoch {action.epoch}{cause(action.evidence)}")
    draft.memory.nodes[action.node] = msgspec.structs.replace(before, chips=dict(sorted(rows.items())))


def _ids(names: tuple[str, ...]) -> list[int]:
    return [int(name.rpartition("-")[2]) for name in names]


def _job(facts: Facts, draft: Draft, gangs: PassGangs, gang: str, changes: list[Reschedule], why: str) -> None:
    """Record where the job's pods were, where it failed, which pods were evicted, and the attempts spent."""
    owner = gangs.get(gang)
    before = draft.memory.jobs.get(gang, JobMemory())
    uid = owner.uid if owner else before.uid
    if before.uid and uid and before.uid != uid:
        before = JobMemory(uid=uid)
    nodes, evicted = dict(before.nodes), dict(before.evicted)
    for change in changes:
        for key in change.pods:
            pod = facts.observed.pods[key]
            overdue = pod.deleting is not None
            evicted[pod.uid] = -facts.now_ms if overdue else evicted.get(pod.uid, facts.now_ms)
        for key in change.answered:
            pod = facts.observed.pods[key]
            asked = round(((pod.deleting or facts.now) - pod.grace_seconds) * 1000)
            evicted.setdefault(pod.uid, min(asked, facts.now_ms))
    for key in owner.pods if owner else ():
        pod = facts.observed.pods[key]
        rank = declared_rank(pod)
        if pod.node:
            nodes[str(rank) if rank is not None else pod.name] = pod.node
    alive = {p.uid for p in facts.observed.pods.values() if gangs.of_pod.get(p.key) == gang}
    told = any(change.counted for change in changes)
    counted = any(change.counted and not change.planned for change in changes)
    failed = any(change.failed for change in changes)
    broken = [node for change in changes if not change.planned for node in change.fault_nodes]
    faults = dict.fromkeys((*before.fault_nodes, *broken))
    what = LineKind.RESCHEDULED if counted else LineKind.MOVED
    line = HistoryLine(what, f"{changes[0].reason}{why}").text[:MAX_LINE]
    hits = tuple(sorted({hit for change in changes for hit in change.hits}))[:MAX_RECORDS]
    draft.memory.jobs[gang] = msgspec.structs.replace(
        before,
        uid=uid,
        nodes=dict(sorted(nodes.items())),
        fault_nodes=tuple(faults)[-MAX_FAULT_NODES:],
        reschedules=(*before.reschedules, *((facts.now_ms,) if counted else ()))[-MAX_RESCHEDULES:],
        retries=max(0, changes[0].retries - 1) if failed else before.retries,
        evicted={u: t for u, t in sorted(evicted.items()) if u in alive},
        timeline=with_line(before.timeline, facts.now_ms, line) if told else before.timeline,
        rescheduled=before.rescheduled + counted,
        records=(*((RescheduleRecord(facts.now_ms, hits),) if counted else ()), *before.records)[:MAX_RECORDS],
    )
