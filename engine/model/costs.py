"""Cost of recovering a job, by level, and the levels that several jobs take together.

A job chooses by cost once one of its training processes reports when it last saved a checkpoint; otherwise it follows
MindCluster's order of escalation. Processes report by annotations on their pods (all times in seconds, as text):

| annotation | what | default |
|---|---|---|
| ``belay.dev/checkpoint-time`` | when the newest checkpoint was complete, Unix seconds | escalation, no choice |
| ``belay.dev/load-seconds`` | how long the last load of a checkpoint took | 120 |
| ``belay.dev/start-seconds`` | from the start of the processes until training resumed | 60 |
| ``belay.dev/step-seconds`` | one training step | 10 |
| ``belay.dev/scale-seconds`` | rebuilding the process groups smaller or larger | 60 |
| ``belay.dev/training-time`` | when training last resumed, Unix seconds | when all pods run |

Belay measures how long pods take to start, from eviction until all of them run, in the job's earlier recoveries (30
without any), and how long a step retry takes (15). Costs are chip-seconds without training progress.
Source of the levels: docs/zh/scheduling/04_usage (resumable training) and ClusterD's strategy order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from belay.engine.model.history import Recovery
from belay.engine.model.labels import CHECKPOINT_TIME, LOAD_SECONDS, SCALE_SECONDS, START_SECONDS, STEP_SECONDS

#: Longest plausible duration (s): a week.
MAX_SECONDS: Final = 604_800.0
#: How far the clock of a process may be ahead of the planner's (s).
CLOCK_SKEW: Final = 60.0
#: Maximum partial choices kept while jobs are weighed together; beyond it every second one is dropped.
MAX_STATES: Final = 4096
#: Seconds until chips that a reset may heal are back (idle time, reset, boot, report), and until others are.
RESET_WAIT: Final = 300.0
REPAIR_WAIT: Final = 3600.0
#: Seconds that processes take to stop, clean their chips and reach the step again, until measured.
RETRY_SECONDS: Final = 15.0


class RecoveryLevel(StrEnum):
    """How a job is recovered, in MindCluster's order of escalation."""

    RETRY = "retry"
    """The failed step is retried; no process ends."""
    IN_PLACE = "in-place"
    """The faulty processes restart in their pods."""
    STANDBY = "standby"
    """A backup pod is created first, then takes over (hot switch)."""
    PROCESS = "process"
    """The faulty pods move, the processes of the others stay."""
    SHRINK = "shrink"
    """Training continues without the hit pods and grows back when there is room (elastic training)."""
    POD = "pod"
    """The faulty pods move, all processes restart from the checkpoint."""
    JOB = "job"
    """All pods restart from the checkpoint."""
    WAIT = "wait"
    """The job waits for chips, then restarts from the checkpoint."""


ESCALATION: Final = tuple(RecoveryLevel)
#: Levels that need room for the hit pods before training resumes.
NEEDS_ROOM: Final = frozenset({RecoveryLevel.STANDBY, RecoveryLevel.PROCESS, RecoveryLevel.POD, RecoveryLevel.JOB})


class MeasuredTimes(msgspec.Struct, frozen=True):
    """Times of one job (s), measured or default; ``checkpoint`` is the age of the newest checkpoint."""

    checkpoint: float
    load: float = 120.0
    start: float = 60.0
    step: float = 10.0
    scale: float = 60.0
    pod_start: float = 30.0
    wait: float = REPAIR_WAIT
    retry: float = RETRY_SECONDS


class Estimate(msgspec.Struct, frozen=True):
    """One level of recovery: seconds without progress (downtime and lost work), chip-seconds lost, chips needed."""

    level: RecoveryLevel
    seconds: float
    cost: float
    room: int = 0


class RecoveryOptions(msgspec.Struct, frozen=True):
    """Options of one job: its estimates, cheapest first, the resource it needs, and its priority."""

    job: str
    resource: str
    priority: int
    estimates: tuple[Estimate, ...]


def measured(
    notes: Sequence[Mapping[str, str]], now: float, pod_starts: Sequence[float], wait: float
) -> MeasuredTimes | None:
    """Times from the annotations of a job's pods; None while no pod reports a checkpoint.

    Of several pods the newest checkpoint counts, and the longest of every other time.

    Args:
        notes: annotations of each pod.
        now: Unix seconds.
        pod_starts: seconds that the job's pods took to start in earlier recoveries.
        wait: seconds until its chips may be back.
    """
    saved = max((_number(note.get(CHECKPOINT_TIME), now + CLOCK_SKEW) for note in notes), default=0.0)
    if not saved:
        return None
    reported = {key: max((_number(note.get(key), MAX_SECONDS) for note in notes), default=0.0) for key in _FIELDS}
    known = {_FIELDS[key]: value for key, value in reported.items() if value > 0}
    if pod_starts:
        known["pod_start"] = min(max(pod_starts), MAX_SECONDS)
    return MeasuredTimes(checkpoint=max(0.0, now - saved), wait=wait, **known)


_FIELDS: Final = {LOAD_SECONDS: "load", START_SECONDS: "start", STEP_SECONDS: "step", SCALE_SECONDS: "scale"}


def estimate(level: RecoveryLevel, known: MeasuredTimes, *, chips: int, hit: int) -> Estimate:
    """Cost of a level for a job of ``chips`` chips, ``hit`` of them in the hit pods."""
    again = known.start + known.load + known.checkpoint
    match level:
        case RecoveryLevel.RETRY:
            seconds = known.retry + known.step
        case RecoveryLevel.IN_PLACE:
            seconds = known.start + known.step
        case RecoveryLevel.STANDBY:
            # training goes on until the backup runs
            seconds = known.start + known.step
        case RecoveryLevel.PROCESS:
            seconds = known.pod_start + known.start + known.step
        case RecoveryLevel.SHRINK:
            seconds = known.scale + known.step
            # smaller until chips come back, then the groups are rebuilt once more
            return Estimate(level, seconds, chips * (seconds + known.scale) + hit * known.wait)
        case RecoveryLevel.POD | RecoveryLevel.JOB:
            seconds = known.pod_start + again
        case RecoveryLevel.WAIT:
            seconds = known.wait + known.pod_start + again
    return Estimate(level, seconds, chips * seconds, hit if level in NEEDS_ROOM else 0)


def ranked(levels: Sequence[RecoveryLevel], known: MeasuredTimes, *, chips: int, hit: int) -> tuple[Estimate, ...]:
    """Estimates of the levels that a job allows, the cheapest first; equals in the order of escalation."""
    found = [estimate(level, known, chips=chips, hit=hit) for level in levels]
    return tuple(sorted(found, key=lambda one: (one.cost, ESCALATION.index(one.level))))


def choose(options: Sequence[RecoveryOptions], room: Mapping[str, int]) -> dict[str, Estimate]:
    """Choose one estimate per job, so that all together cost least within the room there is.

    ``room`` is how many chips of a resource are free for pods like theirs. Jobs of higher priority choose first; among
    equals the sum counts, and of equal sums the one that serves the job first by name best. A job whose levels all
    need room that is not there gets none and is left out.
    """
    chosen: dict[str, Estimate] = {}
    for resource in sorted({option.resource for option in options}):
        left = max(0, room.get(resource, 0))
        mine = [option for option in options if option.resource == resource and option.estimates]
        for priority in sorted({option.priority for option in mine}, reverse=True):
            equals = sorted((o for o in mine if o.priority == priority), key=lambda option: option.job)
            found = _together(equals, left)
            chosen |= found
            left -= sum(one.room for one in found.values())
    return chosen


class _State(NamedTuple):
    """A choice for the first jobs: number without an estimate, total cost, index of each one's estimate."""

    without: int
    cost: float
    picks: tuple[int, ...]


def _together(options: Sequence[RecoveryOptions], room: int) -> dict[str, Estimate]:
    """The cheapest choice for jobs of one resource and priority: job by job, keeping the best for each room used.

    As few jobs as possible are left without an estimate; cost decides among equals.
    """
    best = {0: _State(0, 0.0, ())}
    for option in options:
        following: dict[int, _State] = {}
        none = len(option.estimates)
        ways = [*((i, one.room, one.cost) for i, one in enumerate(option.estimates)), (none, 0, 0.0)]
        for used, state in best.items():
            for index, needs, price in ways:
                key = used + needs
                new = _State(state.without + (index == none), state.cost + price, (*state.picks, index))
                if key <= room and (key not in following or new < following[key]):
                    following[key] = new
        best = _undominated(following)
    picks = min(best.values()).picks
    pairs = zip(options, picks, strict=True)
    return {option.job: option.estimates[index] for option, index in pairs if index < len(option.estimates)}


def _undominated(states: Mapping[int, _State]) -> dict[int, _State]:
    """States that no other one beats with less room; every second one of too many, always with the best."""
    kept: list[tuple[int, _State]] = []
    for used in sorted(states):
        if not kept or states[used] < kept[-1][1]:
            kept.append((used, states[used]))
    while len(kept) > MAX_STATES:
        kept = [*kept[:-1:2], kept[-1]]
    return dict(kept)


def _number(text: str | None, most: float) -> float:
    """A positive number of at most ``most``; 0 for anything else."""
    if text is None or len(text) > 32:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 < value <= most else 0.0


def narrowed(configured: Sequence[str], choice: str) -> tuple[str, ...]:
    """The configured strategies that the chosen level leaves to process recovery.

    An unknown or empty choice leaves all. ``retry``, ``dump`` and ``exit`` always stay; ``elastic-training`` goes only
    when whole pods restart from the checkpoint.
    """
    gone = _LEFT_OUT.get(choice, frozenset())
    return tuple(strategy for strategy in configured if strategy not in gone)


_LEFT_OUT: Final[dict[str, frozenset[str]]] = {
    RecoveryLevel.PROCESS: frozenset({"recover-in-place"}),
    RecoveryLevel.SHRINK: frozenset({"recover-in-place", "recover"}),
    RecoveryLevel.POD: frozenset({"recover-in-place", "recover", "elastic-training"}),
    RecoveryLevel.JOB: frozenset({"recover-in-place", "recover", "elastic-training"}),
}


def cost(one: Recovery) -> int:
    """Chip-seconds without progress that a recovery cost; 0 while it is open."""
    return _cost(one, one.back) if one.back else 0


def so_far(one: Recovery, now_ms: int) -> int:
    """Chip-seconds without progress until now, of a recovery that is open."""
    return _cost(one, max(one.at, now_ms))


def _cost(one: Recovery, until_ms: int) -> int:
    seconds = (until_ms - one.at) // 1000
    if one.level == RecoveryLevel.SHRINK:
        # training continued without the hit part
        return one.hit * seconds + one.chips * one.redone
    return one.chips * (seconds + one.redone)
