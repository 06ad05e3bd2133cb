"""Choice by cost: how jobs that faults hit are recovered, weighed for all of them together (``engine.model.costs``).

Only levels that a job's own labels and annotations allow are weighed, and only for jobs whose processes tell their
times; all others go the ladder. What is chosen changes which pods go (``victims``), keeps scarce room for the job that
needs it most, and is told to process recovery by an annotation of the PodGroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final, Protocol

from engine.model.actions import Evidence, PatchObject
from engine.model.cluster import Pod, mask_of
from engine.model.costs import (
    CHOICE_KEY,
    LADDER,
    REPAIR_WAIT,
    RESET_WAIT,
    Estimate,
    Level,
    Measured,
    Option,
    choose,
    measured,
    ranked,
)
from engine.model.diagnostics import ObjectKey
from engine.model.history import JobMemory
from engine.model.jobs import Gang
from engine.plan import victims
from engine.plan.budgets import INDEPENDENT_KINDS
from engine.plan.decisions import PROCESS, SUB
from engine.plan.gangs import declared_rank
from engine.plan.owners import POD_GROUP_APIS
from engine.plan.scope import Choice, Scope
from engine.plan.tolerance import IN_PLACE_MS, STRATEGY_KEY
from engine.plan.victims import Victims
from engine.plan.views import chip_ids

#: For how long scarce room is kept for the job that needs it most (ms); then whoever fits takes it.
HELD_MS: Final = 120_000
HELD: Final = "RecoveryReserved"
#: How often longer than estimated processes may take to start again in their pods before these go.
IN_PLACE_FACTOR: Final = 3
#: Levels at which no pod starts before training goes on.
_SAME_PODS: Final = frozenset({Level.RETRY, Level.IN_PLACE, Level.SHRINK})


class Fault(Protocol):
    """What hits a pod: the fault type and the codes that say so."""

    @property
    def kind(self) -> str: ...

    @property
    def codes(self) -> tuple[str, ...]: ...


def weigh(scope: Scope, hits: Mapping[str, Mapping[str, Fault]], members: Mapping[str, Sequence[Pod]]) -> None:
    """Fills ``scope.choices`` and keeps scarce room.

    Args:
        hits: per gang, what hits each of its pods now.
        members: all pods of the gangs that are hit, or were and are not back.
    """
    options: list[Option] = []
    known: dict[str, Measured] = {}
    for name in sorted({*hits, *(key for key in members if _is_open(scope.memory.jobs.get(key)))}):
        gang = scope.gangs.get(name)
        pods = [pod for pod in members.get(name, ()) if not pod.finished]
        if gang is None or gang.fault_scheduling == "off" or gang.kind in INDEPENDENT_KINDS:
            continue
        faults = {key: fault.kind for key, fault in hits.get(name, {}).items()}
        gone = [pod for pod in pods if pod.key in faults or not pod.node]
        known_times = times(scope, gang, pods, gone, scope.now) if gone else None
        if known_times is None:
            continue
        known[name] = known_times
        chips, hit = sum(pod.count for pod in pods), sum(pod.count for pod in gone)
        estimates = ranked(allowed(scope, gang, pods, faults, gone), known_times, chips=chips, hit=hit)
        options.append(Option(name, next((pod.resource for pod in gone if pod.count), ""), gang.priority, estimates))
    room = _room(scope, options, members)
    found = choose(options, room)
    for option in options:
        if option.job in found:
            best = found[option.job]
            others = tuple(one for one in option.estimates if one is not best)
            codes = {code for fault in hits.get(option.job, {}).values() for code in fault.codes}
            scope.choices[option.job] = Choice(best, (best, *others), known[option.job], codes=tuple(sorted(codes)))
    _keep_room(scope, options, room, members)
    for name, gang in scope.gangs.items():
        if name in scope.choices:
            _tell(scope, gang, scope.choices[name].chosen.level)
        elif CHOICE_KEY in gang.annotations and not _is_open(scope.memory.jobs.get(name)):
            _tell(scope, gang, None)


def under_way(scope: Scope) -> list[str]:
    """Gangs whose training has not gone on since their last recovery began, whatever became of the evicted pods."""
    return [key for key, memory in scope.memory.jobs.items() if key in scope.gangs and _is_open(memory)]


def allowed(
    scope: Scope, gang: Gang, pods: Sequence[Pod], faults: Mapping[str, str], gone: Sequence[Pod]
) -> tuple[Level, ...]:
    """The levels that a job's labels and annotations allow for these faults, in the order of the ladder."""
    strategies = {word.strip() for word in gang.annotations.get(STRATEGY_KEY, "").split(",")}
    process = gang.labels.get("process-recover-enable") == "on"
    first = any(declared_rank(pod) == 0 for pod in gone)
    found = {Level.JOB, Level.WAIT}
    if victims.pod_level(gang) and not any(victims.is_master(pod) for pod in gone):
        found.add(Level.POD)
    if victims.narrow_only(gang):
        found = {Level.POD, Level.WAIT}
    if process and not first:
        found |= {Level.PROCESS} if "recover" in strategies else set()
        found |= {Level.SHRINK} if "elastic-training" in strategies and len(gone) < len(pods) else set()
    if process and "recover-in-place" in strategies and _in_place(scope, gang, faults):
        found.add(Level.IN_PLACE)
    if faults and set(faults.values()) == {SUB} and victims.strategy(gang) == "hotSwitch" and not first:
        found.add(Level.STANDBY)
    return tuple(level for level in LADDER if level in found)


def times(scope: Scope, gang: Gang, pods: Sequence[Pod], gone: Sequence[Pod], now: float) -> Measured | None:
    """What is known of a job's times as of ``now`` (Unix seconds); None while its processes tell of no checkpoint."""
    memory = scope.memory.jobs.get(gang.key, JobMemory())
    past = [(one.back - one.at) / 1000 for one in memory.recoveries if one.back and one.level not in _SAME_PODS]
    return measured([pod.annotations for pod in pods], now, [median(past)] if past else [], _wait(scope, gone))


def chosen(scope: Scope, gang: Gang, pods: Sequence[Pod], hit: Iterable[str], ladder: Victims) -> Victims:
    """The pods that go once cost has chosen; what the ladder says where it has not."""
    choice = scope.choices.get(gang.key)
    if choice is None or not ladder.keys:
        return ladder
    level, now = choice.chosen.level, frozenset(hit)
    text = f"{level} recovery is estimated to cost least ({_said(choice.chosen)}{_instead(choice.weighed)})"
    if level is Level.IN_PLACE:
        return Victims(frozenset(), False, text)
    if level is Level.JOB and not ladder.whole:
        return Victims(frozenset(pod.key for pod in pods), True, text)
    # training that goes on without its hit part must not be widened; replacements that find no place must
    if level is Level.SHRINK or (level in (Level.PROCESS, Level.POD) and now):
        return Victims(now, False, text)
    if ladder.whole != (level in (Level.JOB, Level.WAIT)):
        return ladder  # replacements that found no place for too long take more pods with them
    return Victims(ladder.keys, ladder.whole, f"{ladder.text}; {text}")


def _wait(scope: Scope, gone: Sequence[Pod]) -> float:
    """Seconds until the chips of these pods may be back: soon when a reset may heal them."""
    for pod in gone:
        view = scope.nodes.get(pod.node)
        if view is None or not pod.node or view.down or mask_of(list(chip_ids(pod))) & view.hit & ~view.resettable:
            return REPAIR_WAIT
    return RESET_WAIT


def _in_place(scope: Scope, gang: Gang, faults: Mapping[str, str]) -> bool:
    """Whether the faulty processes may start again where they are: process faults of one pod, tried not for too long.
    Chips that only ask for a restart are ridden out before they count at all (``tolerance``).
    """
    if len(faults) != 1 or set(faults.values()) != {PROCESS}:
        return False
    memory = scope.memory.jobs.get(gang.key)
    if memory is None or not _is_open(memory) or memory.recoveries[-1].level != Level.IN_PLACE:
        return True
    begun = memory.recoveries[-1]
    seconds = next((seconds for level, seconds, _ in begun.estimates if level == Level.IN_PLACE), 0)
    return scope.now_ms - begun.at < max(IN_PLACE_MS, IN_PLACE_FACTOR * seconds * 1000)


def _room(scope: Scope, options: Sequence[Option], members: Mapping[str, Sequence[Pod]]) -> dict[str, int]:
    """Free chips per resource, counted in whole pods of the largest size that is needed."""
    largest: dict[str, int] = {}
    for option in options:
        most = max((pod.count for pod in members.get(option.job, ())), default=0)
        largest[option.resource] = max(largest.get(option.resource, 0), most)
    out = dict.fromkeys(largest, 0)
    for view in scope.nodes.values():
        size = largest.get(view.resource, 0)
        if size and view.closed is None and not view.suspended and not view.down:
            out[view.resource] += view.free.bit_count() // size * size
    return out


def _keep_room(
    scope: Scope, options: Sequence[Option], room: Mapping[str, int], members: Mapping[str, Sequence[Pod]]
) -> None:
    """Jobs that got a level without room because the room goes to others leave it to them, for a while."""
    takers = [name for name, choice in scope.choices.items() if choice.chosen.room and _waits(scope, name, members)]
    for option in options:
        choice = scope.choices.get(option.job)
        if choice is None or choice.chosen.room:
            continue
        wished = next((one for one in option.estimates if one.room and one.cost < choice.chosen.cost), None)
        others = [n for n in takers if scope.gangs[n].priority >= option.priority and _same(options, n, option)]
        if wished is None or wished.room > room.get(option.resource, 0) or not others:
            continue
        text = f"{HELD}: room for {wished.room} chips is kept for {', '.join(sorted(others)[:3])}, which loses more"
        scope.choices[option.job] = replace(choice, held=text)
        for name, view in scope.nodes.items():
            if view.resource == option.resource and view.free:
                scope.refused.setdefault(option.job, {}).setdefault(name, text)


def _same(options: Sequence[Option], name: str, other: Option) -> bool:
    return any(option.job == name and option.resource == other.resource for option in options)


def _waits(scope: Scope, name: str, members: Mapping[str, Sequence[Pod]]) -> bool:
    """Whether a job's room is still to be taken, and has been kept for no longer than it may."""
    memory = scope.memory.jobs.get(name)
    if _is_open(memory) and memory is not None:
        return scope.now_ms - memory.recoveries[-1].at < HELD_MS and any(not p.node for p in members.get(name, ()))
    return True


def _is_open(memory: JobMemory | None) -> bool:
    """Whether a recovery of the job is under way."""
    return bool(memory is not None and memory.recoveries and not memory.recoveries[-1].back)


def _tell(scope: Scope, gang: Gang, level: Level | None) -> None:
    """Tell process recovery, through the PodGroup, which level was chosen; None that the choice is over."""
    if gang.labels.get("process-recover-enable") != "on" or not gang.pod_group:
        return
    key = next(
        (k for api in POD_GROUP_APIS if (k := ObjectKey(api, "PodGroup", gang.namespace, gang.pod_group))
         in scope.observed.objects), None,
    )  # fmt: skip
    if key is None or gang.annotations.get(CHOICE_KEY) == level:
        return
    uid = str((scope.observed.objects[key].get("metadata") or {}).get("uid") or "")
    scope.actions.append(
        PatchObject(
            reason="RecoveryChosen" if level else "Recovered",
            message=f"{gang.key}: {level} recovery is estimated to cost least" if level else f"{gang.key}: recovered",
            evidence=Evidence(rule="recovery cost"),
            preconditions={"patchType": "merge"} | ({"uid": uid} if uid else {}),
            api_version=key.api_version,
            object_kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            patch={"metadata": {"annotations": {CHOICE_KEY: level.value if level else None}}},
        )
    )


def _said(one: Estimate) -> str:
    return f"{one.seconds:.0f} s, {one.cost / 3600:.2f} chip-hours"


def _instead(weighed: Sequence[Estimate]) -> str:
    # what would cost less was not taken for one reason only
    short = {one.level: " (room is short)" if one.cost < weighed[0].cost else "" for one in weighed}
    others = ", ".join(f"{one.level} {one.cost / 3600:.2f}{short[one.level]}" for one in weighed[1:4])
    return f"; instead of {others}" if others else ""
