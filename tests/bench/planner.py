"""The planner: a pass that changes nothing, and the pass after one new fault.

In one process as a worker runs it: what unchanged objects lead to is remembered from earlier passes.
"""

from __future__ import annotations

from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.actions import CreateObject, PatchObject, kind_of
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan_cache import PlanCache
from belay.engine.observe.observed import Observer, observe
from belay.engine.plan import plan
from belay.engine.status import memory_bodies
from tests.bench.clusters import NOW, cluster, device
from tests.bench.measure import Result, number, timed
from tests.simworld import merged


def run() -> list[Result]:
    desired = load({}, has_git=False).desired
    observer = Observer()
    items = cluster(1000, 500)
    for item in items:
        observer.put(item)
    cache = PlanCache()
    settle(observer, desired, cache)
    seen = observer.observed()
    quiet = plan(desired, seen, NOW, cache=cache)
    assert not quiet.actions, quiet.actions[0]
    remark = "1,000 nodes × 8 chips, 500 AscendJobs of 2 × 8; no actions"
    results = [
        timed("no-op reconcile, planner time", 100, lambda: plan(desired, seen, NOW, cache=cache), remark=remark)
    ]
    fault, clean = device("node-00007", faulty=3, at=int(NOW) - 1), device("node-00007", at=int(NOW) - 1)

    def one_fault() -> None:
        observer.put(fault)
        found = plan(desired, observer.observed(), NOW, cache=cache)
        assert [kind_of(action) for action in found.actions][:1] == ["IsolateChip"]

    work = "one new chip fault → Plan (report parsed, snapshot, plan)"
    results.append(timed(work, 50, one_fault, before=lambda: observer.put(clean)))
    naive = timed("naive", None, lambda: (observe(items), plan(desired, seen, NOW, cache=cache)))
    results[-1].remark = f"naive, every object parsed afresh: {number(naive.value)} ms"
    return results


def settle(observer: Observer, desired: Desired, cache: PlanCache) -> None:
    """Write what first passes want until a pass wants nothing, so that the measured one is a true no-op."""
    for _ in range(10):
        seen = observer.observed()
        wanted = plan(desired, seen, NOW, cache=cache)
        for body in memory_bodies(wanted, seen, cache=cache):
            observer.put(body)
        for action in wanted.actions:
            if isinstance(action, PatchObject):
                key = ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)
                observer.put(merged(seen.objects[key], action.patch))
            elif isinstance(action, CreateObject):
                observer.put(action.object)
        if not wanted.actions:
            return
