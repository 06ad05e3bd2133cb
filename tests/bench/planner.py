"""The planner: a pass that changes nothing, and the pass after one new fault."""

from __future__ import annotations

import msgspec

from engine.load import load
from engine.observe import Observer
from engine.plan import plan
from tests.bench.clusters import NOW, cluster, device
from tests.bench.measure import Result, timed


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


def settle(observer: Observer, desired: object) -> None:
    """Write the memory and the job statuses that a first pass wants, so that the next has nothing to do."""
    from tests.simworld import merged

    first = plan(desired, observer.observed(), NOW)  # type: ignore[arg-type]
    objects = {key: obj for key, obj in observer.observed().objects.items()}
    for action in first.actions:
        body = msgspec.to_builtins(action)
        if body["kind"] == "PatchObject":
            for key, obj in objects.items():
                if (key.kind, key.namespace, key.name) == (
                    body["object_kind"] if "object_kind" in body else body["objectKind"],
                    body["namespace"],
                    body["name"],
                ):
                    observer.put(merged(obj, body["patch"]))
        elif body["kind"] == "CreateObject":
            observer.put(body["object"])
