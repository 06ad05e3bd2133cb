"""What it costs to recover a job, level by level, and which levels several jobs should take together.

A job chooses by cost once one of its training processes tells when it last saved a checkpoint; without that it goes
MindCluster's ladder. Processes tell by annotations on their pods (all times in seconds, as text):

| annotation | what | when it is not told |
|---|---|---|
| ``belay.dev/checkpoint-time`` | when the newest checkpoint was complete, Unix seconds | the job goes the ladder |
| ``belay.dev/load-seconds`` | how long the last load of a checkpoint took | 120 |
| ``belay.dev/start-seconds`` | from the start of the processes until training went on | 60 |
| ``belay.dev/step-seconds`` | one training step | 10 |
| ``belay.dev/scale-seconds`` | how long the groups take to be rebuilt smaller or larger | 60 |
| ``belay.dev/training-time`` | when training last went on, Unix seconds | when all pods run |

How long pods take to start is measured by Belay itself: from eviction until all of them run, in the job's own earlier
recoveries (30 before there was one); so is how long a step takes to be tried again (15). Costs are chip-seconds in
which no training progressed.
Source of the levels: docs/zh/scheduling/04_usage (resumable training) and ClusterD's strategy order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

CHECKPOINT_KEY: Final = "belay.dev/checkpoint-time"
LOAD_KEY: Final = "belay.dev/load-seconds"
START_KEY: Final = "belay.dev/start-seconds"
STEP_KEY: Final = "belay.dev/step-seconds"
SCALE_KEY: Final = "belay.dev/scale-seconds"
TRAINING_KEY: Final = "belay.dev/training-time"

#: Annotation of a PodGroup: the level that was chosen for the recovery under way.
CHOICE_KEY: Final = "belay.dev/recovery-level"
#: Longest duration that is believed (s): a week.
MAX_SECONDS: Final = 604_800.0
#: How far a process' clock may be ahead of the planner's (s).
CLOCK_SKEW: Final = 60.0
#: Choices kept while jobs are weighed together; beyond it neighbours in room are merged.
MAX_STATES: Final = 4096
#: Seconds until chips that a reset may heal are back (idle time, reset, boot, report), and until others are.
RESET_WAIT: Final = 300.0
REPAIR_WAIT: Final = 3600.0
#: Seconds that processes take to stop, clean their chips and come to the step again, before that was measured.
RETRY_SECONDS: Final = 15.0


class Level(StrEnum):
    """How a job is recovered, in the order in which MindCluster tries."""

    RETRY = "retry"
    """The step that broke is tried again; no process ends."""
    IN_PLACE = "in-place"
    """The faulty processes start again in their pods."""
    STANDBY = "standby"
    """A backup pod is made first, then takes over (hot switch)."""
    PROCESS = "process"
    """The faulty pods move, the processes of the others stay."""
    SHRINK = "shrink"
    """Training goes on without the hit part and grows back when there is room (elastic training)."""
    POD = "pod"
    """The faulty pods move, all processes start again from the checkpoint."""
    JOB = "job"
    """All pods start again from the checkpoint."""
    WAIT = "wait"
    """The job waits for chips, then starts again from the checkpoint."""


LADDER: Final = tuple(Level)
#: Levels that need room for the hit pods before anything goes on.
NEEDS_ROOM: Final = frozenset({Level.STANDBY, Level.PROCESS, Level.POD, Level.JOB})


class Measured(msgspec.Struct, frozen=True):
    """What is known of one job's times (s); ``checkpoint`` is the age of the newest checkpoint."""

    checkpoint: float
    load: float = 120.0
    start: float = 60.0
    step: float = 10.0
    scale: float = 60.0
    pod_start: float = 30.0
    wait: float = REPAIR_WAIT
    retry: float = RETRY_SECONDS


class Estimate(msgspec.Struct, frozen=True):
    """One way to recover: seconds without progress (downtime and work to do again), and chip-seconds lost."""

    level: Level
    seconds: float
    cost: float
    room: int = 0


class Option(msgspec.Struct, frozen=True):
    """One job among others: its estimates, cheapest first, what kind of chips it needs, and who goes first."""

    job: str
    resource: str
    priority: int
    estimates: tuple[Estimate, ...]


def measured(
    notes: Sequence[Mapping[str, str]], now: float, pod_starts: Sequence[float], wait: float
) -> Measured | None:
    """What the annotations of a job's pods tell; None while no pod tells of a checkpoint.

    Of several pods the newest checkpoint counts, and the slowest of everything else. ``pod_starts`` are the seconds
    that its pods took to start, ``wait`` those until its chips may be back.
    """
    saved = max((_number(note.get(CHECKPOINT_KEY), now + CLOCK_SKEW) for note in notes), default=0.0)
    if not saved:
        return None
    told = {key: max((_number(note.get(key), MAX_SECONDS) for note in notes), default=0.0) for key in _FIELDS}
    known = {_FIELDS[key]: value for key, value in told.items() if value > 0}
    if pod_starts:
        known["pod_start"] = min(max(pod_starts), MAX_SECONDS)
    return Measured(checkpoint=max(0.0, now - saved), wait=wait, **known)


_FIELDS: Final = {LOAD_KEY: "load", START_KEY: "start", STEP_KEY: "step", SCALE_KEY: "scale"}


def estimate(level: Level, known: Measured, *, chips: int, hit: int) -> Estimate:
    """What a level costs a job of ``chips`` chips whose ``hit`` chips are in the pods that must go."""
    again = known.start + known.load + known.checkpoint
    match level:
        case Level.RETRY:
            seconds = known.retry + known.step
        case Level.IN_PLACE:
            seconds = known.start + known.step
        case Level.STANDBY:
            # training goes on until the backup runs
            seconds = known.start + known.step
        case Level.PROCESS:
            seconds = known.pod_start + known.start + known.step
        case Level.SHRINK:
            seconds = known.scale + known.step
            # smaller until chips come back, then the groups are rebuilt once more
            return Estimate(level, seconds, chips * (seconds + known.scale) + hit * known.wait)
        case Level.POD | Level.JOB:
            seconds = known.pod_start + again
        case Level.WAIT:
            seconds = known.wait + known.pod_start + again
    return Estimate(level, seconds, chips * seconds, hit if level in NEEDS_ROOM else 0)


def ranked(levels: Sequence[Level], known: Measured, *, chips: int, hit: int) -> tuple[Estimate, ...]:
    """Estimates of the levels that a job allows, the cheapest first; equals in the order of the ladder."""
    found = [estimate(level, known, chips=chips, hit=hit) for level in levels]
    return tuple(sorted(found, key=lambda one: (one.cost, LADDER.index(one.level))))


def choose(options: Sequence[Option], room: Mapping[str, int]) -> dict[str, Estimate]:
    """One estimate for each job, so that all of them together cost least and need no more room than there is.

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
    """A choice for some of the jobs: how many are left without one, what it costs, which estimate each takes."""

    without: int
    cost: float
    picks: tuple[int, ...]


def _together(options: Sequence[Option], room: int) -> dict[str, Estimate]:
    """The cheapest choice for jobs of one resource and priority: jobs one by one, keeping the best for each room used.

    A job without a way that fits costs nothing here but counts first: as few as possible are left without one.
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
    """States for which no other is as good with less room; of too many every second, the best always."""
    kept: list[tuple[int, _State]] = []
    for used in sorted(states):
        if not kept or states[used] < kept[-1][1]:
            kept.append((used, states[used]))
    while len(kept) > MAX_STATES:
        kept = [*kept[:-1:2], kept[-1]]
    return dict(kept)


def _number(text: str | None, most: float) -> float:
    """A positive number of at most ``most``, 0 for anything else."""
    if text is None or len(text) > 32:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 < value <= most else 0.0


def narrowed(configured: Sequence[str], choice: str) -> tuple[str, ...]:
    """Of the strategies that a job is configured with, those that its chosen level leaves to process recovery.

    An unknown or absent choice leaves all: the ladder decides. ``retry``, ``dump`` and ``exit`` are never taken away;
    ``elastic-training`` is taken away only where the whole pods are to come back from the checkpoint.
    """
    gone = _LEFT_OUT.get(choice, frozenset())
    return tuple(strategy for strategy in configured if strategy not in gone)


_LEFT_OUT: Final[dict[str, frozenset[str]]] = {
    Level.PROCESS: frozenset({"recover-in-place"}),
    Level.SHRINK: frozenset({"recover-in-place", "recover"}),
    Level.POD: frozenset({"recover-in-place", "recover", "elastic-training"}),
    Level.JOB: frozenset({"recover-in-place", "recover", "elastic-training"}),
}
