"""Decisions for large clusters: gangs of thousands, thousands of gangs, super pods, the growth of cost, and memory.

"Decision" is one call of ``plan`` on a finished snapshot, all passes included (views, health, queue, placement, safety,
document), in a process that holds this cluster only and whose collector is set as a worker sets it. Cold is the first
pass of a process that has parsed the objects; warm the next one on the same snapshot, when nothing has been bound yet.
The clusters are free but for the last two rows; every gang is placed. Time that Kubernetes or Redis would take is not
in it.

![cost of a pass by nodes](growth.svg)
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from belay.engine.controller import garbage_collection
from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.actions import BindPod, PatchObject
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.observe.observed import Observer
from belay.engine.plan import plan
from belay.engine.status import memory_bodies
from tests.bench import crowds
from tests.bench.clusters import NOW
from tests.bench.measure import ROOT, RUNS, Result
from tests.bench.plot import Line, draw
from tests.bench.running import resident
from tests.simworld import merged

GANG = 5000
GANGS = 3000
NODES = 10_000
JOBS = 2000
PODS = 20_000
GROWTH = (1000, 2000, 4000, 6000, 8000, 10_000)
PLOT = Path(__file__).with_name("growth.svg")


def run() -> list[Result]:
    """Every row of the section; writes the plot of the growth."""
    return [*_part("gang"), *_part("gangs"), *_part("super pods"), *_growth(), _memory()]


def _part(name: str) -> list[Result]:
    """Some rows, measured in a process of their own."""
    return [Result(**row) for row in json.loads(_alone("part", name))]


def _gang() -> list[Result]:
    """One gang over the whole cluster."""
    results = _cold_and_warm(
        f"one gang of {GANG:,} whole-node pods on {GANG:,} nodes",
        lambda: chain(crowds.plain(GANG), crowds.whole_nodes(GANG)),
        GANG,
        0.5,
    )
    results[0].remark = "an AscendJob, 8 chips a pod"
    return results


def _gangs() -> list[Result]:
    """Many small gangs under every kind of constraint."""
    made = _cold_and_warm(
        f"{GANGS:,} gangs of 3 pods on 5,000 nodes, a gang on average",
        lambda: chain(crowds.zoned(5000), crowds.small_gangs(GANGS)),
        int(GANGS * 3 * 0.99),
        0.5,
    )
    for result in made:
        result.unit, result.runs = "ms", [value * 1000 / GANGS for value in result.runs]
    made[0].remark = "nodeSelector, node affinity (required, preferred), taints, gang, queue with capability, 1–8 chips"
    return made


def _super_pods() -> list[Result]:
    """A large A3 cluster: the first pass, and a pass after one change once everything runs."""
    work = f"{NODES:,} nodes × 16 chips (A3 super pods), {JOBS:,} mixed jobs"
    cold = Result(f"{work}: cold pass", "s", 3.0)
    desired, observer = _desired(), Observer()
    items = [*crowds.a3(NODES), *crowds.mixed_jobs(JOBS)]
    for item in items:
        observer.put(item)
    found: Plan | None = None
    for _ in range(RUNS):
        cache = PlanCache()
        gc.collect()
        _, seconds, found = _pass(desired, observer, cache)
        cold.runs.append(seconds)
    assert found is not None and not found.pending, found.pending[0]
    cold.remark = f"{sum(isinstance(action, BindPod) for action in found.actions):,} pods bound"
    _carry_out(desired, observer, items, cache)
    changed = Result("the same, all running: a pass after one new chip fault", "ms", 50.0)
    whole = Result("the same with its report parsed and the snapshot made", "ms")
    for turn in range(RUNS):
        report = crowds.a3_device(NODES // 2 + turn, faulty=3)
        begin = time.perf_counter()
        observer.put(report)
        _, seconds, found = _pass(desired, observer, cache)
        whole.runs.append((time.perf_counter() - begin) * 1000)
        changed.runs.append(seconds * 1000)
        assert found.actions
    ended = Result("the same: a pass after one pod has ended", "ms")
    for item in [item for item in items if item["kind"] == "Pod"][:RUNS]:
        observer.put(_bound(item, "node-00000", {}, "Succeeded"))
        _, seconds, _ = _pass(desired, observer, cache)
        ended.runs.append(seconds * 1000)
    return [cold, changed, whole, ended]


def _growth() -> list[Result]:
    """The same work per node on ever larger clusters: the cost may grow no faster than the cluster."""
    results: list[Result] = []
    cold, steady = Line("cold pass, ms"), Line("pass after one change, ms × 10")
    for nodes in GROWTH:
        first = Result(f"{nodes:,} nodes, {nodes // 5:,} jobs: cold pass", "ms")
        second = Result(f"{nodes:,} nodes: a pass after one change", "ms")
        first.runs, second.runs = json.loads(_alone("growth", str(nodes)))
        results += [first, second]
        cold.points.append((nodes, first.value))
        steady.points.append((nodes, second.value * 10))
    draw(PLOT, "Cost of a pass by nodes", "nodes", [cold, steady])
    least, most = results[0], results[-2]
    slope = Result("growth of the cold pass: cost per node at 10,000 nodes beside 1,000", "times", 1.2)
    slope.runs = [most.value / least.value / (GROWTH[-1] / GROWTH[0])]
    slope.remark = "1 is linear; larger clusters miss the caches more; [the curve](growth.svg)"
    return [*results, slope]


def _memory() -> Result:
    """Resident memory of a process that holds the cluster and has planned it, fresh each time."""
    result = Result(f"memory of a planner with {NODES:,} nodes × 16 chips and {PODS:,} pods", "MiB", 500.0)
    for _ in range(RUNS):
        result.runs.append(float(_alone("memory", str(NODES), str(PODS))))
    result.remark = "RSS after two passes; objects came one by one, as from a watch"
    return result


def _cold_and_warm(work: str, items: Callable[[], Iterable[Any]], pods: int, limit: float) -> list[Result]:
    """Five cold passes, each on objects parsed afresh, and a warm one after each."""
    cold, warm = Result(f"{work}: cold", "s", limit), Result(f"{work}: warm", "s", limit)
    desired = _desired()
    for _ in range(RUNS):
        cache = PlanCache()
        gc.collect()
        observer = Observer()
        for item in items():
            observer.put(item)
        _, seconds, found = _pass(desired, observer, cache)
        assert sum(isinstance(action, BindPod) for action in found.actions) >= pods, found.pending[:1]
        cold.runs.append(seconds)
        warm.runs.append(_pass(desired, observer, cache)[1])
    return [cold, warm]


def _pass(desired: Desired, observer: Observer, cache: PlanCache) -> tuple[Observed, float, Plan]:
    """The snapshot, the seconds that ``plan`` took, and the plan."""
    seen = observer.observed()
    begin = time.perf_counter()
    found = plan(desired, seen, NOW, cache=cache)
    return seen, time.perf_counter() - begin, found


def _carry_out(desired: Desired, observer: Observer, items: Iterable[Any], cache: PlanCache) -> None:
    """What passes leave in the cluster, until one wants nothing more: bindings, patches, memory."""
    pods = {item["metadata"]["name"]: item for item in items if item["kind"] == "Pod"}
    for _ in range(10):
        seen = observer.observed()
        found = plan(desired, seen, NOW, cache=cache)
        if not found.actions:
            return
        for body in memory_bodies(found, seen, cache=cache):
            observer.put(body)
        for action in found.actions:
            if isinstance(action, BindPod):
                observer.put(_bound(pods[action.pod], action.node, action.annotations, "Running"))
            else:
                assert isinstance(action, PatchObject), action
                key = ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)
                observer.put(merged(seen.objects[key], action.patch))
    raise AssertionError("the cluster does not settle")


def _bound(pod: Any, node: str, annotations: dict[str, str], phase: str) -> Any:
    metadata = pod["metadata"] | {"annotations": pod["metadata"]["annotations"] | annotations}
    status = {"phase": phase, "podIP": "10.1.0.1", "startTime": "2026-08-31T08:00:10Z"}
    return pod | {"metadata": metadata, "spec": pod["spec"] | {"nodeName": node}, "status": status}


def _desired() -> Desired:
    return load({}, has_git=False).desired


def _alone(*arguments: str) -> str:
    """The same in a process of its own, so that what came before costs nothing."""
    command = [sys.executable, "-m", "tests.bench.placement", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()[-1]


def _sizes(nodes: int) -> list[list[float]]:
    """Milliseconds of five cold passes, and of five after one change each, on a cluster of this size."""
    garbage_collection.settle()
    desired, observer = _desired(), Observer()
    items = [*crowds.a3(nodes), *crowds.mixed_jobs(nodes // 5)]
    for item in items:
        observer.put(item)
    cold, steady = list[float](), list[float]()
    for _ in range(RUNS):
        cache = PlanCache()
        gc.collect()
        cold.append(_pass(desired, observer, cache)[1] * 1000)
    _carry_out(desired, observer, items, cache)
    for turn in range(RUNS):
        observer.put(crowds.a3_device(nodes // 2 + turn, faulty=3))
        steady.append(_pass(desired, observer, cache)[1] * 1000)
    return [cold, steady]


def _hold(nodes: int, pods: int) -> float:
    """MiB that this process takes once it holds such a cluster and has planned it twice."""
    garbage_collection.settle()
    desired, observer = _desired(), Observer()
    for item in chain(crowds.a3(nodes), crowds.running(pods, nodes)):
        observer.put(item)
    cache = PlanCache()
    for _ in range(2):
        found = plan(desired, observer.observed(), NOW, cache=cache)
        assert not any(isinstance(action, BindPod) for action in found.actions)
    return resident(os.getpid())


PARTS = {"gang": _gang, "gangs": _gangs, "super pods": _super_pods}


def _measured(what: str, arguments: list[str]) -> object:
    """What one process of its own measures."""
    if what == "part":
        garbage_collection.settle()
        return [asdict(result) for result in PARTS[arguments[0]]()]
    return _sizes(*map(int, arguments)) if what == "growth" else _hold(*map(int, arguments))


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1], sys.argv[2:])))
