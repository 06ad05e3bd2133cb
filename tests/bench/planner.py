"""The planner: a pass that changes nothing, and the pass after one new fault."""

from __future__ import annotations

from engine.documents import Desired
from engine.load import load
from engine.model.actions import CreateObject, PatchObject
from engine.model.diagnostics import ObjectKey
from engine.observe import Observer
from engine.plan import plan
from engine.status import memory_bodies
from tests.bench.clusters import NOW, cluster, device
from tests.bench.measure import Result, timed
from tests.simworld import merged


def run() -> list[Result]:
    desired = load({}, has_git=False).desired
    observer = Observer()
    for item in cluster(1000, 500):
        observer.put(item)
    settle(observer, desired)
    seen = observer.observed()
    quiet = plan(desired, seen, NOW)
    remark = f"{len(quiet.actions)} actions; 1,000 nodes × 8 chips, 500 AscendJobs of 2 × 8"
    results = [timed("no-op reconcile, planner time", "≤ 100 ms", lambda: plan(desired, seen, NOW), remark=remark)]
    fault = device("node-00007", faulty=3, at=int(NOW) - 1)

    def one_fault() -> None:
        observer.put(fault)
        plan(desired, observer.observed(), NOW)

    results.append(timed("one new chip fault → Plan (report parsed, snapshot, plan)", "≤ 50 ms", one_fault))
    return results


def settle(observer: Observer, desired: Desired) -> None:
    """Write what first passes want until a pass wants nothing, so that the measured one is a true no-op."""
    for _ in range(10):
        seen = observer.observed()
        wanted = plan(desired, seen, NOW)
        for body in memory_bodies(wanted, seen):
            observer.put(body)
        for action in wanted.actions:
            if isinstance(action, PatchObject):
                key = ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)
                observer.put(merged(seen.objects[key], action.patch))
            elif isinstance(action, CreateObject):
                observer.put(action.object)
        if not wanted.actions:
            return
