"""Seeded traces of jobs for the fragmentation benchmark, and the policies that Belay is set beside.

The cluster is one whose chips fragment: old 8-chip servers with two rings of four, and 310P servers whose chips are cut
into vNPUs on demand. Jobs come at random with a daily wave and run for hours; nothing is known of them before.

What the parameters rest on (chosen on principle, variants compared on seeds from 100 up; the benchmark reports all of
the seeds from 0 up, whatever they show):

- Load 1.0: as much work comes as there are chips. Below about 0.8 little waits and every policy gives the same; above
  it the queue only grows, some small job is always there for every hole, and every policy fills everything. In between,
  where clusters with queues live, places matter: something waits in more than nine tenths of the time.
- A look every half hour instead of every second: each end of a job costs half a look of idle chips under every policy
  alike, and the planner plays a month in about a minute.
- Sixteen ring servers: a trace is chaotic, one other tie in the first hour leads to another month. Two runs of the very
  same policy differ by 0.5 % (standard deviation) on eight servers, by half of that on sixteen.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from belay.engine.plan.place.families.ring8 import RINGS, Ring8
from belay.engine.plan.place.handler import NodeChips, PodRequest, Refusal, lowest

RING_NODES: Final = 16
CORE_NODES: Final = 4
CORE_CHIPS: Final = 4
CORES: Final = 8
CPUS: Final = 7
CPUS_OF: Final = {1: 1, 2: 1, 4: 3}
"""AI CPUs of the templates vir01, vir02_1c and vir04_3c, which 310P gives to 1, 2 and 4 cores at level low."""
CAPACITY: Final = RING_NODES * 8 + CORE_NODES * CORE_CHIPS
"""In chips; a vNPU of n cores counts as n/8."""
DAYS: Final = 30
TICK: Final = 0.5
"""Hours between two looks at the queue."""
LOAD: Final = 1.0
"""Chip hours asked for over chip hours there are."""
LOST: Final = 0.1
"""Hours of work that a job does once more when it was moved: what a service takes to start, and then some."""
SESSIONS: Final = 12
"""How often a policy is asked at one look at most; they are still after two or three."""


class Request(NamedTuple):
    """One job of one pod: ``size`` chips of a ring server, or with ``cores`` so many AI cores of a 310P chip."""

    number: int
    arrival: float
    hours: float
    size: int
    cores: bool

    @property
    def chips(self) -> float:
        return self.size / CORES if self.cores else float(self.size)

    @property
    def service(self) -> bool:
        """Whether it is a pod of a Deployment, which recreates it when it goes; others are training jobs."""
        return not self.cores and self.size <= 2


class Place(NamedTuple):
    """Where a job runs: the node, and the mask of its chips or the one chip that is cut."""

    node: int
    chips: int


@dataclass(slots=True)
class State:
    """What is free: masks of the ring servers' chips, and (cores, AI CPUs) of every 310P chip by node."""

    rings: list[int] = field(default_factory=lambda: [0xFF] * RING_NODES)
    cores: list[list[tuple[int, int]]] = field(
        default_factory=lambda: [[(CORES, CPUS)] * CORE_CHIPS for _ in range(CORE_NODES)]
    )

    def copy(self) -> State:
        return State(list(self.rings), [list(node) for node in self.cores])

    def take(self, job: Request, place: Place) -> None:
        """Raises ValueError for what is not free or not legal: policies are not believed."""
        if job.cores:
            cores, cpus = self.cores[place.node][place.chips]
            left = (cores - job.size, cpus - CPUS_OF[job.size])
            if min(left) < 0:
                raise ValueError(f"job {job.number} does not fit on chip {place.chips}")
            self.cores[place.node][place.chips] = left
            return
        whole = any(place.chips & ~ring == 0 for ring in RINGS) or place.chips == 0xFF
        if place.chips & ~self.rings[place.node] or place.chips.bit_count() != job.size or not whole:
            raise ValueError(f"job {job.number} does not fit on node {place.node}")
        self.rings[place.node] &= ~place.chips

    def give_back(self, job: Request, place: Place) -> None:
        if job.cores:
            cores, cpus = self.cores[place.node][place.chips]
            self.cores[place.node][place.chips] = (cores + job.size, cpus + CPUS_OF[job.size])
        else:
            self.rings[place.node] |= place.chips


Choice = tuple[Request, Place | None]
"""Where a job that waits is to run; None: it runs, and is to go and wait for another place."""


class Policy(Protocol):
    """Chooses places for jobs that wait, in the order in which they came; ``running`` is everything that runs."""

    def choose(
        self, now: float, state: State, waiting: Sequence[Request], running: dict[int, tuple[Request, Place]]
    ) -> Sequence[Choice]: ...


class FirstFit:
    """The first node in the order of names that can take the job, its lowest legal chips."""

    def choose(
        self, now: float, state: State, waiting: Sequence[Request], running: dict[int, tuple[Request, Place]]
    ) -> list[tuple[Request, Place]]:
        return _one_by_one(state, waiting, self._place)

    def _place(self, state: State, job: Request) -> Place | None:
        options = _core_options(state, job) if job.cores else _ring_options(state, job)
        return next(iter(options), None)


class Reference:
    """The scores of the reference affinity policy, the best node wins; among equals Volcano picks at random.

    ``largest_first`` looks at large jobs before small ones, in any order of arrival.
    """

    def __init__(self, seed: int, *, largest_first: bool = False) -> None:
        self._chance = random.Random(seed)
        self._largest_first = largest_first

    def choose(
        self, now: float, state: State, waiting: Sequence[Request], running: dict[int, tuple[Request, Place]]
    ) -> list[tuple[Request, Place]]:
        self._cutting: dict[int, int] = {}
        order = sorted(waiting, key=lambda job: -job.size) if self._largest_first else waiting
        return _one_by_one(state, order, self._place)

    def _place(self, state: State, job: Request) -> Place | None:
        return self._vnpu(state, job) if job.cores else self._whole(state, job)

    def _whole(self, state: State, job: Request) -> Place | None:
        family, request = Ring8(), PodRequest(job.size)
        scores: dict[int, int] = {}
        for index, free in enumerate(state.rings):
            score = family.score(NodeChips(free, 0, 8), request)
            if not isinstance(score, Refusal):
                scores[index] = score
        if not scores:
            return None
        best = max(scores.values())
        node = self._chance.choice([index for index, score in scores.items() if score == best])
        return Place(node, family.choose(NodeChips(state.rings[node], 0, 8), request))

    def _vnpu(self, state: State, job: Request) -> Place | None:
        """The node with the fewest idle cores, its fullest chip; a node cuts one template at a time."""
        fitting: dict[int, list[Place]] = {}
        for place in _core_options(state, job):
            if self._cutting.get(place.node, job.size) == job.size:
                fitting.setdefault(place.node, []).append(place)
        if not fitting:
            return None
        idle = {node: sum(cores for cores, _ in state.cores[node]) for node in fitting}
        node = self._chance.choice([node for node in fitting if idle[node] == min(idle.values())])
        self._cutting[node] = job.size
        return min(fitting[node], key=lambda place: (state.cores[node][place.chips], place.chips))


class Gated(Reference):
    """The reference policy with ``forceEnqueue: "false"``: plugin proportion decides who is let in by action enqueue.

    A job is looked at once its minResources fit beside what runs and what was let in before it and still waits; so jobs
    that were let in and find no place keep their share from those behind them. Sessions follow each other until
    nothing moves. Source: pkg/scheduler/actions/enqueue and plugins/proportion of Volcano (JobEnqueueable).
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._inqueue: set[int] = set()

    def choose(
        self, now: float, state: State, waiting: Sequence[Request], running: dict[int, tuple[Request, Place]]
    ) -> list[tuple[Request, Place]]:
        self._cutting = {}
        out: list[tuple[Request, Place]] = []
        left = list(waiting)
        while True:
            for cores in (False, True):
                free = sum(c for node in state.cores for c, _ in node) if cores else _free(state)
                room = free - sum(job.size for job in left if job.cores == cores and job.number in self._inqueue)
                for job in left:
                    if job.cores == cores and job.number not in self._inqueue and job.size <= room:
                        self._inqueue.add(job.number)
                        room -= job.size
            placed = _one_by_one(state, [job for job in left if job.number in self._inqueue], self._place)
            if not placed:
                return out
            out += placed
            gone = {job.number for job, _ in placed}
            self._inqueue -= gone
            left = [job for job in left if job.number not in gone]


def trace(seed: int) -> list[Request]:
    """Jobs of 30 days in the order of arrival."""
    chance = random.Random(seed)
    out: list[Request] = []
    for cores, sizes, capacity in (
        (False, (1, 1, 2, 2, 4, 4, 8), RING_NODES * 8.0),
        (True, (1, 1, 2, 2, 4), float(CORE_NODES * CORE_CHIPS)),
    ):
        mean = sum(sizes) / len(sizes) / (CORES if cores else 1)
        hours = 8.0
        rate = LOAD * capacity / (mean * hours)
        moment = 0.0
        while True:
            wave = 1.0 + 0.5 * (1 if 8 <= moment % 24 < 20 else -1)
            moment += chance.expovariate(rate * wave)
            if moment >= DAYS * 24:
                break
            length = min(96.0, chance.lognormvariate(1.58, 1.0))  # mean 8 h, median 5 h
            out.append(Request(0, moment, max(0.1, length), chance.choice(sizes), cores))
    ordered = sorted(out, key=lambda job: (job.arrival, job.size))
    return [job._replace(number=number) for number, job in enumerate(ordered)]


class Look(NamedTuple):
    """One look at the queue: what was free, who waited, and the chips in use afterwards beyond those before."""

    state: State
    queue: list[Request]
    gained: float


class Play(NamedTuple):
    """A trace as one policy ran it: the share of all chip hours that did work, and what it looked like every tick.

    ``contended`` is the share of the ticks after which work still waited, ``idle`` that of the chips without work then;
    ``waits`` are the mean hours in the queue by size of ring jobs, those that still wait included; ``moves`` counts
    jobs that were moved.
    """

    used: float
    looks: list[Look]
    contended: float
    idle: float
    waits: dict[int, float]
    moves: int


class _Month:
    """What runs and waits. Who is moved does ``LOST`` hours of his work once more; they count as no use."""

    def __init__(self, jobs: Sequence[Request]) -> None:
        self.state = State()
        self.running: dict[int, tuple[Request, Place]] = {}
        self.waiting: list[Request] = []
        self.used = 0.0
        self.moves = 0
        self.waits: dict[int, list[float]] = {1: [], 2: [], 4: [], 8: []}
        self._coming = list(reversed(jobs))
        self._left = {job.number: job.hours for job in jobs}
        self._again: dict[int, float] = {}
        self._since: dict[int, float] = {}

    def comes_to(self, now: float) -> None:
        """Those that have ended go, those that have come wait."""
        for number in [n for n, since in self._since.items() if since + self._again.get(n, 0) + self._left[n] <= now]:
            self._stop(number, now)
        while self._coming and self._coming[-1].arrival <= now:
            self.waiting.append(self._coming.pop())

    def take(self, choices: Sequence[Choice], now: float) -> None:
        for job, place in choices:
            if place is None:
                if not job.service:
                    raise ValueError(f"job {job.number} may not be moved")
                self._stop(job.number, now)
                self._again[job.number] = LOST
                self.waiting = sorted([*self.waiting, job], key=lambda one: one.number)
                self.moves += 1
                continue
            self.state.take(job, place)
            self.running[job.number] = (job, place)
            self._since[job.number] = now
            if not job.cores and job.number not in self._again:
                self.waits[job.size].append(now - job.arrival)
        placed = {job.number for job, place in choices if place is not None}
        self.waiting = [job for job in self.waiting if job.number not in placed]

    def busy(self) -> float:
        """Chips in use."""
        return sum(job.chips for job, _ in self.running.values())

    def end(self, now: float) -> None:
        for number in list(self.running):
            self._stop(number, now)
        for job in self.waiting:
            if not job.cores:
                self.waits[job.size].append(now - job.arrival)

    def _stop(self, number: int, now: float) -> None:
        job, place = self.running.pop(number)
        self.state.give_back(job, place)
        done = min(self._left[number], max(0.0, now - self._since.pop(number) - self._again.get(number, 0.0)))
        self._left[number] -= done
        self.used += job.chips * done


def play(jobs: Sequence[Request], policy: Policy) -> Play:
    """Runs the jobs: at every tick those that ended go, those that came wait, and the policy is asked until nothing
    moves any more, as schedulers are that look every second.
    """
    month, looks = _Month(jobs), []
    idle: list[float] = []
    for step in range(int(DAYS * 24 / TICK)):
        now = step * TICK
        month.comes_to(now)
        before, queue, busy = month.state.copy(), list(month.waiting), month.busy()
        for _ in range(SESSIONS):
            choices = policy.choose(now, month.state.copy(), list(month.waiting), month.running)
            if not choices:
                break
            month.take(choices, now)
        looks.append(Look(before, queue, month.busy() - busy))
        if month.waiting:
            idle.append(1.0 - month.busy() / CAPACITY)
    month.end(DAYS * 24.0)
    return Play(
        month.used / (CAPACITY * DAYS * 24),
        looks,
        len(idle) / len(looks),
        statistics.fmean(idle) if idle else 0.0,
        {size: statistics.fmean(hours) if hours else 0.0 for size, hours in month.waits.items()},
        month.moves,
    )


def clairvoyant(jobs: Sequence[Request]) -> float:
    """The limit of every policy, whatever it knows beforehand: chips without limits of place, jobs that may be paused.

    Until any moment s no more work is done than if every job ran at once; after it no more than all chips can do.
    """
    total = 0.0
    for cores in (False, True):
        own = [job for job in jobs if job.cores == cores]
        capacity = CORE_NODES * CORE_CHIPS if cores else RING_NODES * 8
        end = DAYS * 24
        moments = [step * 6.0 for step in range(end // 6 + 1)]
        total += min(
            sum(job.chips * min(job.hours, s - job.arrival) for job in own if job.arrival < s) + capacity * (end - s)
            for s in moments
        )
    return total / (CAPACITY * DAYS * 24)


def _free(state: State) -> int:
    return sum(mask.bit_count() for mask in state.rings)


def _one_by_one(state: State, waiting: Sequence[Request], place: object) -> list[tuple[Request, Place]]:
    out: list[tuple[Request, Place]] = []
    full: set[tuple[bool, int]] = set()
    for job in waiting:
        kind = (job.cores, job.size)
        if kind in full:  # what is free only shrinks meanwhile
            continue
        found = place(state, job)  # type: ignore[operator]
        if found is None:
            full.add(kind)
            continue
        state.take(job, found)
        out.append((job, found))
    return out


def _ring_options(state: State, job: Request) -> Iterable[Place]:
    for index, free in enumerate(state.rings):
        if job.size == 8:
            if free == 0xFF:
                yield Place(index, free)
            continue
        for ring in RINGS:
            if (free & ring).bit_count() >= job.size:
                yield Place(index, lowest(free & ring, job.size))
                break


def _core_options(state: State, job: Request) -> Iterable[Place]:
    for index, node in enumerate(state.cores):
        for chip, (cores, cpus) in enumerate(node):
            if cores >= job.size and cpus >= CPUS_OF[job.size]:
                yield Place(index, chip)
