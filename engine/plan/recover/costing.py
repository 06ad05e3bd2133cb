"""Choice by cost: the recovery level of hit jobs, weighed for all of them together (``belay.engine.model.costs``).

Only levels that a job's labels and annotations allow are weighed, and only for jobs whose processes report their
times; all others follow the order of escalation. The choice decides which pods are evicted (``restart_scope``), keeps
scarce room for the job that loses most, and reaches process recovery as an annotation of the PodGroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from belay.engine.gangs.forming import declared_rank
from belay.engine.gangs.owners import POD_GROUP_APIS
from belay.engine.model.actions import (
    Evidence,
    PatchObject,
    PatchType,
    Preconditions,
)
from belay.engine.model.chip_masks import mask_of
from belay.engine.model.cluster import Pod
from belay.engine.model.costs import (
    ESCALATION,
    REPAIR_WAIT,
    RESET_WAIT,
    Estimate,
    MeasuredTimes,
    RecoveryLevel,
    RecoveryOptions,
    choose,
    measured,
    ranked,
)
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.history import JobMemory
from belay.engine.model.jobs import INDEPENDENT_KINDS, Gang
from belay.engine.model.labels import RECOVERY_LEVEL
from belay.engine.model.pending_reasons import RECOVERY_RESERVED
from belay.engine.model.reasons import ActionReason
from belay.engine.model.wording import counted
from belay.engine.plan import restart_scope
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.health.tolerance import IN_PLACE_MS
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.recover.decisions import PROCESS, SUB, PodFault
from belay.engine.plan.recover.outcome import NodeRefusal, RecoveryChoice, RecoveryOutcome
from belay.engine.plan.restart_scope import Victims
from belay.engine.plan.views import chip_ids

#: How long scarce room is kept for the job that loses most (ms); after that any job may take it.
HELD_MS: Final = 120_000
#: Factor on the estimated time of an in-place restart after which the pods are evicted.
IN_PLACE_FACTOR: Final = 3
#: Levels at which no pod starts before training goes on.
_SAME_PODS: Final = frozenset({RecoveryLevel.RETRY, RecoveryLevel.IN_PLACE, RecoveryLevel.SHRINK})


def choose_levels(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    gangs: PassGangs,
    recovery: RecoveryOutcome,
    hits: Mapping[str, Mapping[str, PodFault]],
    members: Mapping[str, Sequence[Pod]],
) -> None:
    """Fill ``recovery.choices``, and keep scarce room for the jobs that lose most.

    Args:
        hits: per gang, the fault of each hit pod.
        members: all pods of the gangs that are hit, or whose recovery is open.
    """
    options: list[RecoveryOptions] = []
    known: dict[str, MeasuredTimes] = {}
    for name in sorted({*hits, *(key for key in members if _is_open(draft.memory.jobs.get(key)))}):
        gang = gangs.get(name)
        pods = [pod for pod in members.get(name, ()) if not pod.finished]
        if gang is None or gang.fault_scheduling == "off" or gang.kind in INDEPENDENT_KINDS:
            continue
        faults = {key: fault.kind for key, fault in hits.get(name, {}).items()}
        gone = [pod for pod in pods if pod.key in faults or not pod.node]
        known_times = measured_times(draft, nodes, gang, pods, gone, facts.now) if gone else None
        if known_times is None:
            continue
        known[name] = known_times
        chips, hit = sum(pod.count for pod in pods), sum(pod.count for pod in gone)
        estimates = ranked(allowed_levels(facts, draft, gang, pods, faults, gone), known_times, chips=chips, hit=hit)
        options.append(
            RecoveryOptions(name, next((pod.resource for pod in gone if pod.count), ""), gang.priority, estimates)
        )
    room = _room(nodes, options, members)
    found = choose(options, room)
    for option in options:
        if option.job in found:
            best = found[option.job]
            others = tuple(one for one in option.estimates if one is not best)
            codes = {code for fault in hits.get(option.job, {}).values() for code in fault.codes}
            recovery.choices[option.job] = RecoveryChoice(
                best, (best, *others), known[option.job], codes=tuple(sorted(codes))
            )
    _keep_room(facts, draft, nodes, gangs, recovery, options, room, members)
    for name, gang in gangs.items():
        if name in recovery.choices:
            _annotate_choice(facts, draft, gang, recovery.choices[name].chosen.level)
        elif gang.options.recovery_level is not None and not _is_open(draft.memory.jobs.get(name)):
            _annotate_choice(facts, draft, gang, None)


def open_recoveries(draft: Draft, gangs: PassGangs) -> list[str]:
    """Gangs with an open recovery: training has not resumed since it began."""
    return [key for key, memory in draft.memory.jobs.items() if key in gangs and _is_open(memory)]


def allowed_levels(
    facts: Facts, draft: Draft, gang: Gang, pods: Sequence[Pod], faults: Mapping[str, str], gone: Sequence[Pod]
) -> tuple[RecoveryLevel, ...]:
    """The levels that a job's labels and annotations allow for these faults, in the order of escalation."""
    strategies, process = gang.options.recover_strategies, gang.options.recovers_processes
    first = any(declared_rank(pod) == 0 for pod in gone)
    found = {RecoveryLevel.JOB, RecoveryLevel.WAIT}
    if restart_scope.pod_level(gang) and not any(restart_scope.is_master(pod) for pod in gone):
        found.add(RecoveryLevel.POD)
    if restart_scope.narrow_only(gang):
        found = {RecoveryLevel.POD, RecoveryLevel.WAIT}
    if process and not first:
        found |= {RecoveryLevel.PROCESS} if "recover" in strategies else set()
        found |= {RecoveryLevel.SHRINK} if "elastic-training" in strategies and len(gone) < len(pods) else set()
    if process and "recover-in-place" in strategies and _in_place(facts, draft, gang, faults):
        found.add(RecoveryLevel.IN_PLACE)
    if faults and set(faults.values()) == {SUB} and restart_scope.strategy(gang) == "hotSwitch" and not first:
        found.add(RecoveryLevel.STANDBY)
    return tuple(level for level in ESCALATION if level in found)


def measured_times(
    draft: Draft, nodes: PassNodes, gang: Gang, pods: Sequence[Pod], gone: Sequence[Pod], now: float
) -> MeasuredTimes | None:
    """A job's measured times as of ``now`` (Unix seconds); None while its processes report no checkpoint."""
    memory = draft.memory.jobs.get(gang.key, JobMemory())
    past = [(one.back - one.at) / 1000 for one in memory.recoveries if one.back and one.level not in _SAME_PODS]
    return measured([pod.annotations for pod in pods], now, [median(past)] if past else [], _wait(nodes, gone))


def victims_of(
    recovery: RecoveryOutcome, gang: Gang, pods: Sequence[Pod], hit: Iterable[str], ladder: Victims
) -> Victims:
    """The pods to evict by the level chosen by cost; those of the escalation order when none was chosen."""
    choice = recovery.choices.get(gang.key)
    if choice is None or not ladder.keys:
        return ladder
    level, now = choice.chosen.level, frozenset(hit)
    text = f"{level} recovery is estimated to cost least ({_text(choice.chosen)}{_alternatives(choice.weighed)})"
    if level is RecoveryLevel.IN_PLACE:
        return Victims(frozenset(), False, text)
    if level is RecoveryLevel.JOB and not ladder.whole:
        return Victims(frozenset(pod.key for pod in pods), True, text)
    # do not widen a job that trains on without its hit pods; widen when replacements find no place
    if level is RecoveryLevel.SHRINK or (level in (RecoveryLevel.PROCESS, RecoveryLevel.POD) and now):
        return Victims(now, False, text)
    if ladder.whole != (level in (RecoveryLevel.JOB, RecoveryLevel.WAIT)):
        return ladder  # replacements without a place for too long widen the restart
    return Victims(ladder.keys, ladder.whole, f"{ladder.text}; {text}")


def _wait(nodes: PassNodes, gone: Sequence[Pod]) -> float:
    """Seconds until the chips of these pods may be back; shorter when a reset may heal them."""
    for pod in gone:
        view = nodes.get(pod.node)
        if view is None or not pod.node or view.down or mask_of(list(chip_ids(pod))) & view.hit & ~view.resettable:
            return REPAIR_WAIT
    return RESET_WAIT


def _in_place(facts: Facts, draft: Draft, gang: Gang, faults: Mapping[str, str]) -> bool:
    """Whether the faulty processes may restart in place: process faults of one pod, not tried for too long yet.

    Faults of chips that a restart heals are hidden by ``tolerance`` and never get here.
    """
    if len(faults) != 1 or set(faults.values()) != {PROCESS}:
        return False
    memory = draft.memory.jobs.get(gang.key)
    if memory is None or not _is_open(memory) or memory.recoveries[-1].level != RecoveryLevel.IN_PLACE:
        return True
    begun = memory.recoveries[-1]
    seconds = next((seconds for level, seconds, _ in begun.estimates if level == RecoveryLevel.IN_PLACE), 0)
    return facts.now_ms - begun.at < max(IN_PLACE_MS, IN_PLACE_FACTOR * seconds * 1000)


def _room(nodes: PassNodes, options: Sequence[RecoveryOptions], members: Mapping[str, Sequence[Pod]]) -> dict[str, int]:
    """Free chips per resource, rounded down per node to whole pods of the largest size needed."""
    largest: dict[str, int] = {}
    for option in options:
        most = max((pod.count for pod in members.get(option.job, ())), default=0)
        largest[option.resource] = max(largest.get(option.resource, 0), most)
    out = dict.fromkeys(largest, 0)
    for view in nodes.values():
        size = largest.get(view.resource, 0)
        if size and view.closed is None and not view.suspended and not view.down:
            out[view.resource] += view.free.bit_count() // size * size
    return out


def _keep_room(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    gangs: PassGangs,
    recovery: RecoveryOutcome,
    options: Sequence[RecoveryOptions],
    room: Mapping[str, int],
    members: Mapping[str, Sequence[Pod]],
) -> None:
    """Keep jobs that got a level without room off the room chosen for others, for a while."""
    takers = [
        name
        for name, choice in recovery.choices.items()
        if choice.chosen.room and _room_not_taken(facts, draft, name, members)
    ]
    for option in options:
        choice = recovery.choices.get(option.job)
        if choice is None or choice.chosen.room:
            continue
        wished = next((one for one in option.estimates if one.room and one.cost < choice.chosen.cost), None)
        others = [n for n in takers if gangs[n].priority >= option.priority and _needs_same_chips(options, n, option)]
        if wished is None or wished.room > room.get(option.resource, 0) or not others:
            continue
        kept_for = ", ".join(sorted(others)[:3])
        text = f"{RECOVERY_RESERVED}: room for {counted(wished.room, 'chip')} is kept for {kept_for}, which loses more"
        recovery.choices[option.job] = replace(choice, held=text)
        # a node that is too small anyway has a reason of its own, which does not end with time
        least = min((pod.count for pod in members.get(option.job, ()) if pod.count), default=1)
        for name, view in nodes.items():
            if view.resource == option.resource and view.free.bit_count() >= least:
                recovery.refused.setdefault(option.job, {}).setdefault(name, NodeRefusal(RECOVERY_RESERVED, text))


def _needs_same_chips(options: Sequence[RecoveryOptions], name: str, other: RecoveryOptions) -> bool:
    return any(option.job == name and option.resource == other.resource for option in options)


def _room_not_taken(facts: Facts, draft: Draft, name: str, members: Mapping[str, Sequence[Pod]]) -> bool:
    """Whether the room kept for a job is not taken yet, and not kept for too long."""
    memory = draft.memory.jobs.get(name)
    if _is_open(memory) and memory is not None:
        return facts.now_ms - memory.recoveries[-1].at < HELD_MS and any(not p.node for p in members.get(name, ()))
    return True


def _is_open(memory: JobMemory | None) -> bool:
    """Whether a recovery of the job is open."""
    return bool(memory is not None and memory.recoveries and not memory.recoveries[-1].back)


def _annotate_choice(facts: Facts, draft: Draft, gang: Gang, level: RecoveryLevel | None) -> None:
    """Annotate the PodGroup with the chosen level, for process recovery; None removes the annotation."""
    if not gang.options.recovers_processes or not gang.pod_group:
        return
    key = next(
        (k for api in POD_GROUP_APIS if (k := ObjectKey(api, "PodGroup", gang.namespace, gang.pod_group))
         in facts.observed.objects), None,
    )  # fmt: skip
    if key is None or gang.options.recovery_level == level:
        return
    uid = str((facts.observed.objects[key].get("metadata") or {}).get("uid") or "")
    draft.actions.append(
        PatchObject(
            reason=ActionReason.RECOVERY_CHOSEN if level else ActionReason.RECOVERED,
            message=f"{gang.key}: {level} recovery is estimated to cost least" if level else f"{gang.key}: recovered",
            evidence=Evidence(rule="recovery cost"),
            patch_type=PatchType.MERGE,
            preconditions=Preconditions(uid=uid or None),
            api_version=key.api_version,
            object_kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            patch={"metadata": {"annotations": {RECOVERY_LEVEL: level.value if level else None}}},
        )
    )


def _text(one: Estimate) -> str:
    return f"{one.seconds:.0f} s, {one.cost / 3600:.2f} chip-hours"


def _alternatives(weighed: Sequence[Estimate]) -> str:
    # a cheaper level was passed over only for lack of room
    short = {one.level: " (room is short)" if one.cost < weighed[0].cost else "" for one in weighed}
    others = ", ".join(f"{one.level} {one.cost / 3600:.2f}{short[one.level]}" for one in weighed[1:4])
    return f"; instead of {others}" if others else ""
