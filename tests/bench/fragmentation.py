"""Utilisation over 30 days of mixed 1/2/4/8-chip and vNPU requests, beside other policies.

Twenty seeded traces on sixteen old 8-chip servers (two rings of four) and four 310P servers with four chips that are
cut on demand, with as much work offered as there are chips (why: ``tests/bench/traces.py``). Requests of 4 and 8 chips
and vNPUs are jobs, of 1 and 2 chips pods of Deployments. At every half hour the waiting jobs are shown to the
real planner with what it remembers, until it has nothing more to do, and likewise to (a) first fit, (b) the reference
affinity policy: the same scores, ties at random as Volcano breaks them (mean of five seeds a trace), and (b+) the same
with ``forceEnqueue`` off, so that Volcano's proportion keeps room for jobs that were let in and fit nowhere. All take
jobs in the order in which they came and pass over what does not fit. (c) is the linear programme of the same instant:
most chips that could be given to this moment's queue, jobs divisible, each only where and as often as it fits on its
own; running pods stay. The clairvoyant bound knows the future and ignores places. The seeds decide everything, so there
are no five runs; the interval is Student's.

Where utilisation is lost: with scores and ties given, nothing is left to choose between nodes, and what is lost is lost
to large jobs that wait until a whole server is free. There Belay does what the reference cannot: the queue is declared
``movable``, so that a few small pods of Deployments are moved within the shipped safety budgets. Who is moved does six
minutes of work once more, which counts as no use. Where no pod is movable, Belay and (b) are equal within what two runs
of one policy differ (measured before moves existed: -0.01 %, interval -0.15 to +0.14). Looking at large jobs first,
whatever came first, gains little, and small jobs pay for it with several times their waiting time; Belay keeps to the
order of arrival.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from belay.engine.documents import Desired
from belay.engine.model.actions import BindPod, EvictPod
from belay.engine.model.cluster import Pod
from belay.engine.model.history import History
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan import plan
from belay.engine.plan.place.families.ring8 import RINGS
from belay.engine.plan.views import device_id
from tests import vnpuworld, worlds
from tests.bench.measure import Result, Skipped
from tests.bench.traces import (
    CAPACITY,
    CORE_CHIPS,
    CORE_NODES,
    CORES,
    CPUS_OF,
    RING_NODES,
    Choice,
    FirstFit,
    Gated,
    Look,
    Place,
    Reference,
    Request,
    State,
    clairvoyant,
    play,
    trace,
)

TRACES = 20
TIES = 5
"""Seeds for the reference's ties, of which a trace's mean is taken: one alone differs from another by up to 1 %."""
T_95 = 2.093
"""Student's t for 19 degrees of freedom, both sides."""


class Month(NamedTuple):
    """One trace under all policies: shares of all chip hours, and for how long whom it let wait."""

    used: dict[str, float]
    gap: float
    contended: float
    idle: float
    waits: dict[str, dict[int, float]]
    moves: int


def run() -> list[Result]:
    """All traces under all policies.

    Raises:
        Skipped: highspy is not installed (extra ``bench``).
    """
    try:
        import highspy  # noqa: F401
    except ImportError as error:
        raise Skipped("highspy is not installed: pip install -e .[bench]") from error
    with ProcessPoolExecutor() as pool:
        return _results(list(pool.map(month, range(TRACES))))


def month(seed: int) -> Month:
    """The trace of a seed under all policies."""
    jobs = trace(seed)
    ours = play(jobs, Planner())
    seeds = range(seed * TIES, (seed + 1) * TIES)
    plays = {
        "first": [play(jobs, FirstFit())],
        "reference": [play(jobs, Reference(tie)) for tie in seeds],
        "gated": [play(jobs, Gated(tie)) for tie in seeds],
        "largest": [play(jobs, Reference(tie, largest_first=True)) for tie in seeds],
    }
    used = {name: statistics.fmean(one.used for one in rows) for name, rows in plays.items()}
    waits = {
        name: {size: statistics.fmean(one.waits[size] for one in rows) for size in rows[0].waits}
        for name, rows in plays.items()
    }
    return Month(
        used | {"belay": ours.used, "bound": clairvoyant(jobs)},
        statistics.fmean(map(gap, ours.looks)),
        ours.contended,
        ours.idle,
        waits | {"belay": ours.waits},
        ours.moves,
    )


def _results(months: Sequence[Month]) -> list[Result]:
    def percent(work: str, values: Sequence[float], **more: Any) -> Result:
        return Result(work, "%", runs=[100 * value for value in values], **more)

    def share(name: str) -> list[float]:
        return [one.used[name] for one in months]

    def beside(name: str, work: str, goal: float | None, of: str = "belay") -> Result:
        above = [100 * (ours / theirs - 1) for ours, theirs in zip(share(of), share(name), strict=True)]
        mean, half = interval(above)
        remark = f"95 % interval {mean - half:+.2f} % to {mean + half:+.2f} %; worst {min(above):+.2f} %"
        return Result(work, "%", goal, [mean], at_least=goal is not None, remark=remark)

    def worst(name: str, work: str) -> Result:
        above = [100 * (ours / theirs - 1) for ours, theirs in zip(share("belay"), share(name), strict=True)]
        return Result(work, "%", -1.0, [min(above)], at_least=True, remark=f"best {max(above):+.2f} %")

    def waits(name: str) -> str:
        rows = {size: statistics.fmean(one.waits[name][size] for one in months) for size in (1, 2, 4, 8)}
        return "mean wait " + ", ".join(f"{hours:.1f} h" for hours in rows.values()) + " of jobs with 1, 2, 4, 8 chips"

    short = percent("gap to (c), the programme of the same instant", [statistics.fmean(one.gap for one in months)])
    short.limit = 5.0
    short.remark = f"mean of the traces; the largest {100 * max(one.gap for one in months):.2f} %"
    return [
        percent("utilisation under Belay's planner", share("belay"), remark=waits("belay")),
        percent("(a) first fit", share("first"), remark=waits("first")),
        percent("(b) reference affinity", share("reference"), remark=waits("reference")),
        percent("(b+) the same with forceEnqueue off", share("gated"), remark=waits("gated")),
        percent("clairvoyant bound", share("bound")),
        percent("time in which work waits", [one.contended for one in months], remark="under Belay's planner"),
        percent("chips idle meanwhile", [one.idle for one in months], remark="under Belay's planner"),
        beside("reference", "Belay above (b), mean of the traces", 0.0),
        worst("reference", "the trace in which it is worst against (b)"),
        Result("pods moved in a month", "", runs=[float(one.moves) for one in months]),
        beside("gated", "Belay above (b+), mean of the traces", 0.0),
        worst("gated", "the trace in which it is worst against (b+)"),
        beside("first", "Belay above (a), mean of the traces", None),
        beside("reference", "(b) with large jobs first above (b)", None, of="largest"),
        percent("(b) with large jobs first", share("largest"), remark=waits("largest")),
        short,
    ]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval."""
    return statistics.fmean(values), T_95 * statistics.stdev(values) / len(values) ** 0.5


class Planner:
    """Belay's own planner: nodes, reports, pods and their owners in, bindings and moves out."""

    def __init__(self) -> None:
        queues = worlds.document(
            "SchedulingSettings",
            "settings",
            queues=[{"name": "default", "movable": True}],
            initParams={"presetVirtualDevice": False},
        )
        self._desired: Desired = worlds.desired(queues)
        self._desired = replace(self._desired, revision="")
        self._nodes = [
            worlds.node(f"ring-{index}", labels={"accelerator": "huawei-Ascend910", "accelerator-type": "module"})
            for index in range(RING_NODES)
        ] + [vnpuworld.node(f"core-{index}", chips=CORE_CHIPS) for index in range(CORE_NODES)]
        self._cache = PlanCache()
        self._pods: dict[int, Pod] = {}
        self._moved: dict[int, tuple[int, float]] = {}
        self._history = History()
        self._now = 0.0

    def choose(
        self, now: float, state: State, waiting: Sequence[Request], running: dict[int, tuple[Request, Place]]
    ) -> list[Choice]:
        """What ``plan`` binds and moves, one second after what it did before at the same look."""
        moment = worlds.NOW + now * 3600
        self._now = self._now + 1.0 if self._now >= moment else moment
        jobs = {job.number: job for job in waiting} | {number: job for number, (job, _) in running.items()}
        live = {number: self._pods[number] for number in running}
        known = {number: pod for number, pod in self._pods.items() if number in jobs and not pod.node}
        self._pods = live | {job.number: known.get(job.number) or self._pod(job) for job in waiting}
        reports = [worlds.report(f"ring-{index}", update_time=self._now) for index in range(RING_NODES)]
        reports += [
            vnpuworld.report(f"core-{index}", chips=CORE_CHIPS, update_time=self._now) for index in range(CORE_NODES)
        ]
        pods = sorted(self._pods.values(), key=lambda pod: pod.name)
        seen = worlds.observed(self._nodes, reports, pods, history=self._history, objects=_owners(pods))
        found = plan(self._desired, seen, self._now, cache=self._cache)
        self._history = found.history
        numbers = {pod.name: number for number, pod in self._pods.items()}
        out: list[Choice] = []
        for action in found.actions:
            if isinstance(action, EvictPod):
                job = jobs[numbers[action.pod]]
                times = self._moved.get(job.number, (0, 0.0))[0] + 1
                self._moved[job.number] = (times, self._now)
                out.append((job, None))
                del self._pods[job.number]
                continue
            assert isinstance(action, BindPod), action
            job = jobs[numbers[action.pod]]
            out.append((job, _place(action, job)))
            self._pods[job.number] = _bound(self._pods[job.number], action, job)
        return sorted(out, key=lambda pair: pair[0].number)

    def _pod(self, job: Request) -> Pod:
        """The pod of a job, or the next one that its Deployment makes when that was moved."""
        times, since = self._moved.get(job.number, (0, worlds.NOW + job.arrival * 3600))
        name = f"job-{job.number:05d}" + (f"-{times}" if times else "")
        more: dict[str, Any] = {"created": since}
        if job.service:
            more |= {"owner": ("ReplicaSet", f"service-{job.number:05d}"), "owner_api": "apps/v1"}
        return vnpuworld.wants(name, job.size, **more) if job.cores else worlds.pod(name, count=job.size, **more)


def _owners(pods: Sequence[Pod]) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": {"replicas": 1},
            "metadata": {"name": pod.owner_name, "namespace": pod.namespace, "uid": pod.owner_uid},
        }
        for pod in pods if pod.owner_kind == "ReplicaSet"
    ]  # fmt: skip


def _place(action: BindPod, job: Request) -> Place:
    chips = [chip for chip in map(device_id, action.chips) if chip is not None]
    index = int(action.node.rpartition("-")[2])
    return Place(index, chips[0] if job.cores else sum(1 << chip for chip in chips))


def _bound(pod: Pod, action: BindPod, job: Request) -> Pod:
    """The pod as its device plugin leaves it, running."""
    notes = {**pod.annotations, **action.annotations}
    if job.cores:
        real = f"Ascend310P-{(action.template or '').removeprefix('vir')}-{job.number}-{_place(action, job).chips}"
        notes["huawei.com/AscendReal"] = real
        chips: tuple[str, ...] = (real,)
    else:
        chips = action.chips
    return msgspec.structs.replace(pod, node=action.node, phase="Running", chips=chips, annotations=notes)


def gap(look: Look) -> float:
    """By how much the programme of the instant uses more than what was placed, as a share of what it uses."""
    state, queue, ours = look
    if not queue:
        return 0.0
    free = sum(mask.bit_count() for mask in state.rings)
    free_cores = sum(cores for node in state.cores for cores, _ in node)
    busy = CAPACITY - free - free_cores / CORES
    best = optimum(state, queue)
    return max(0.0, best - ours) / (busy + best) if busy + best else 0.0


def optimum(state: State, queue: Sequence[Request]) -> float:
    """The linear programme: chips that could be given to the queue now."""
    import highspy

    counts: dict[tuple[bool, int], int] = {}
    for job in queue:
        counts[job.cores, job.size] = counts.get((job.cores, job.size), 0) + 1
    upper: list[float] = []
    gain: list[float] = []
    rows: list[tuple[float, list[tuple[int, float]]]] = []
    demand: dict[tuple[bool, int], list[tuple[int, float]]] = {key: [] for key in counts}

    def column(key: tuple[bool, int], most: int, chips: float) -> int:
        upper.append(float(min(most, counts[key])))
        gain.append(chips)
        demand[key].append((len(gain) - 1, 1.0))
        return len(gain) - 1

    for free in state.rings:
        whole = column((False, 8), 1, 8.0) if free == 0xFF and (False, 8) in counts else None
        for ring in RINGS:
            left = (free & ring).bit_count()
            row = [] if whole is None else [(whole, 4.0)]
            for size in (1, 2, 4):
                if size <= left and (False, size) in counts:
                    row.append((column((False, size), left // size, float(size)), float(size)))
            if row:
                rows.append((float(left), row))
    for node in state.cores:
        for cores, cpus in node:
            own, media = [], []
            for size in (1, 2, 4):
                if size <= cores and CPUS_OF[size] <= cpus and (True, size) in counts:
                    index = column((True, size), cores // size, size / CORES)
                    own.append((index, float(size)))
                    media.append((index, float(CPUS_OF[size])))
            if own:
                rows += [(float(cores), own), (float(cpus), media)]
    if not gain:
        return 0.0
    rows += [(float(counts[key]), row) for key, row in demand.items() if row]
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", 1)
    model.addVars(len(gain), [0.0] * len(gain), upper)
    for index, value in enumerate(gain):
        model.changeColCost(index, -value)
    for most, row in rows:
        model.addRow(0.0, most, len(row), [index for index, _ in row], [value for _, value in row])
    model.run()
    return -float(model.getInfo().objective_function_value)
