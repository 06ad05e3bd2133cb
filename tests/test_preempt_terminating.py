"""Chips of terminating pods count before any pod is evicted."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from belay.engine.model.actions import EvictPod
from belay.engine.model.history import History, JobMemory
from belay.engine.model.times import rfc3339
from belay.engine.plan.preempt.terminating import OVERDUE, PATIENCE
from tests import placing, worlds
from tests.placing import edited
from tests.steps import Steps
from tests.test_preempt import CLASSES, allowing, evicted, planned, priority, running, wanting
from tests.worlds import desired, document

EIGHT, FOUR, REST = range(8), range(4), range(4, 8)
LATE = "2026-09-01T07:59:00Z"


def low(name: str, *seats: tuple[str, range]) -> Any:
    return running(name, list(seats), priorityClassName="low")


def leaving(name: str, node: str, chips: range, since: float = -20.0) -> Any:
    """A job whose pod was deleted; its grace period ended ``since`` seconds ago."""
    pods, group = low(name, (node, chips))
    return [edited(pods[0], deleting=worlds.NOW - since)], group


def way_out(scope: Steps, name: str = "want") -> str:
    return next(entry.unblock or "" for entry in scope.pending if entry.name == name)


def near(scope: Steps, name: str = "want") -> tuple[str, ...]:
    """The nodes that the way out concerns."""
    return next(entry.near for entry in scope.pending if entry.name == name)


def test_a_terminating_pod_frees_enough() -> None:
    scope = planned(leaving("old", "n0", FOUR), low("v", ("n0", REST)), wanting(each=4), objects=CLASSES)
    assert not evicted(scope)
    assert way_out(scope) == "no eviction is needed: terminating pod train/old-0 will free enough"
    assert near(scope) == ("n0",)
    elsewhere = planned(leaving("old", "n1", EIGHT), low("v", ("n0", EIGHT)), wanting(), objects=CLASSES, nodes=2)
    assert not evicted(elsewhere) and "train/old-0" in way_out(elsewhere)


def test_evictions_cover_only_what_terminating_pods_do_not_free() -> None:
    rows = [leaving("old", "n0", range(2)), low("large", ("n0", REST)), low("small", ("n0", range(2, 4)))]
    assert evicted(planned(*rows, wanting(each=4), objects=CLASSES)) == ["small-0"]


def test_one_terminating_pod_is_counted_once() -> None:
    second = wanting("want2")
    second[1]["metadata"]["creationTimestamp"] = LATE
    rows = [leaving("old", "n1", EIGHT), low("v", ("n0", EIGHT)), wanting(), second]
    scope = planned(*rows, objects=CLASSES, nodes=2)
    assert evicted(scope) == ["v-0"]
    assert "old-0" in way_out(scope) and "evicted pod to end (train/v-0)" in way_out(scope, "want2")


@pytest.mark.parametrize("since", [OVERDUE - 1, OVERDUE])
def test_a_pod_that_does_not_end_stops_counting(since: float) -> None:
    rows = [leaving("old", "n0", FOUR, since), low("v", ("n0", REST)), wanting(each=4)]
    assert evicted(planned(*rows, objects=CLASSES)) == (["v-0"] if since >= OVERDUE else [])


def test_a_job_that_may_evict_none_learns_of_terminating_pods() -> None:
    rows = [leaving("old", "n0", FOUR), low("v", ("n0", REST)), wanting(each=4)]
    scope = planned(*rows, objects=CLASSES, desired=placing.shipped())
    assert not evicted(scope) and "terminating pod train/old-0 would free enough" in way_out(scope)


def test_an_eviction_under_way_counts_together_with_terminating_pods() -> None:
    """Decided last pass, not carried out yet: the terminating pods belong to the same job, and no further pod goes."""
    rows = [leaving("old", "n0", range(2)), low("large", ("n0", REST)), low("small", ("n0", range(2, 4)))]
    history = planned(*rows, wanting(each=4), objects=CLASSES).memory.frozen()
    scope = planned(*rows, wanting(each=4), objects=CLASSES, history=history)
    assert evicted(scope) == ["small-0"] and "train/small-0" in way_out(scope)
    (again,) = (action for action in scope.actions if isinstance(action, EvictPod))
    assert again.evidence.rule == "its eviction was decided before"
    gone = [edited(rows[2][0][0], deleting=worlds.NOW + 30)], rows[2][1]
    scope = planned(rows[0], rows[1], gone, wanting(each=4), objects=CLASSES, history=history)
    assert not evicted(scope)


def test_evictions_that_a_budget_defers_are_named() -> None:
    rows = [low(f"v{node}{chip}", (f"n{node}", range(chip, chip + 1))) for node in (0, 1) for chip in EIGHT]
    scope = planned(*rows, wanting(count=2), objects=CLASSES, nodes=2)
    assert not evicted(scope) and len(scope.deferred) == 16
    assert {(row.budget, row.until) for row in scope.deferred} == {("default", None)}
    assert way_out(scope).startswith("16 evictions would free enough; default defers them until it is changed")


def test_evictions_of_one_job_wait_until_the_window_has_room_for_all() -> None:
    """One more would pass as soon as the oldest in the window expires; two may have to wait longer."""
    limit = {"actions": ["EvictPod"], "per": "cluster", "max": 3, "window": "10m"}
    settings = document("SchedulingSettings", "own", queues=[{"name": "default", "preemptable": True}])
    own = desired(document("SafetyBudget", "default", limits=[limit]), settings)
    rows = [low("v0", ("n0", FOUR)), low("v1", ("n0", REST)), wanting()]

    def put_off(*ago: int) -> tuple[Steps, set[str | None]]:
        spent = tuple((int((worlds.NOW - seconds) * 1000), f"unit{seconds}", 1) for seconds in ago)
        history = History(budgets={"default#0/cluster/cluster": spent})
        scope = planned(*rows, objects=CLASSES, desired=own, history=history)
        return scope, {row.until for row in scope.deferred}

    scope, until = put_off(540, 300)
    assert not evicted(scope) and until == {rfc3339(worlds.NOW + 60)}
    assert f"2 evictions would free enough; default defers them until {rfc3339(worlds.NOW + 60)}" in way_out(scope)
    assert put_off(540, 300, 120)[1] == {rfc3339(worlds.NOW + 300)}
    assert evicted(put_off(540)[0]) == ["v0-0", "v1-0"]


def test_a_victim_that_a_budget_spares_frees_nothing() -> None:
    """The large job's evictions exceed what the budget ever allows: chips that they would leave over do not count."""
    limit = {"actions": ["EvictPod"], "per": "cluster", "max": 2, "window": "10m"}
    settings = document("SchedulingSettings", "own", queues=[{"name": "default", "preemptable": True}])
    own = desired(document("SafetyBudget", "default", limits=[limit]), settings)
    large, small = wanting(count=3), wanting("want2", each=4)
    small[1]["metadata"]["creationTimestamp"] = LATE
    high = {"priorityClassName": "high"}
    rows = [
        running("a", [("n0", EIGHT), ("n3", FOUR)], priorityClassName="low"),
        low("b", ("n1", EIGHT)),
        low("c", ("n2", EIGHT)),
        running("x", [("n3", REST)], **high),
        low("z", ("n4", FOUR)),
        running("y", [("n4", REST)], **high),
    ]
    scope = planned(*rows, large, small, objects=CLASSES, nodes=5, desired=own)
    assert "defers them until it is changed" in way_out(scope)
    assert evicted(scope) == ["z-0"] and "train/z-0" in way_out(scope, "want2")


def test_terminating_pods_count_in_no_share() -> None:
    """Shares count pods that stay. Counting a terminating pod out, or in again, would distort its queue's share."""

    def of(queue: str, row: Any) -> Any:
        row[1]["spec"]["queue"] = queue
        return row

    def shares(mine: str, theirs: str) -> Any:
        amounts = [("a", mine, False), ("b", theirs, True)]
        queues = [{"name": n, "deserved": {"huawei.com/Ascend910": x}, "reclaimable": r} for n, x, r in amounts]
        return placing.with_settings(queues=queues)

    poor = [of("b", low("b1", ("n0", REST))), of("a", low("a1", ("n1", FOUR))), of("b", low("b2", ("n1", REST)))]
    rows = [*poor, of("a", leaving("old", "n0", FOUR)), of("a", wanting()), of("b", wanting("other"))]
    assert not evicted(planned(*rows, objects=CLASSES, nodes=2, desired=shares("8", "4"))), "a has 4 and wants 8"
    second = of("a", wanting("second", each=4))
    second[1]["metadata"]["creationTimestamp"] = LATE
    second = [edited(pod, node_selector={"kubernetes.io/hostname": "n1"}) for pod in second[0]], second[1]
    rich = [of("b", leaving("old", "n0", FOUR)), of("b", low("b1", ("n1", FOUR))), of("b", low("b2", ("n1", REST)))]
    rows = [*rich, of("a", wanting("first", count=2)), second]
    assert not evicted(planned(*rows, objects=CLASSES, nodes=2, desired=shares("20", "8"))), "b has what it deserves"


def test_quota_of_terminating_pods_counts_on_any_node() -> None:
    """A drained node takes no pods, but the quota of its pods is free once they have gone."""
    rows = [leaving("old", "n1", FOUR), low("v", ("n2", FOUR)), wanting(each=4)]
    world = worlds.world(3, pods=[p for r, _ in rows for p in r], objects=[*(g for _, g in rows), *CLASSES])
    nodes = {**world.nodes, "n1": worlds.node("n1", unschedulable=True)}
    world = msgspec.structs.replace(world, nodes=nodes)
    assert not evicted(placing.scope_of(world, desired=allowing(capability={"huawei.com/Ascend910": "8"})))


def test_pods_evicted_for_one_job_do_not_count_for_another() -> None:
    top = priority("top", 2000, "PreemptLowerPriority")
    first, second = wanting("w1", priorityClassName="top"), wanting("w2")
    second[1]["metadata"]["creationTimestamp"] = LATE
    since = int(worlds.NOW * 1000) - 30_000
    jobs = {
        "train/PodGroup/w1": JobMemory(uid="u-w1", nominated={"uid-gone": since}),
        "train/PodGroup/w2": JobMemory(uid="u-w2", nominated={"uid-train-v2-0": since}),
    }
    rows = [running("x", [("n0", EIGHT)], priorityClassName="high"), leaving("v2", "n1", EIGHT), first, second]
    scope = planned(*rows, objects=[*CLASSES, top], nodes=2, history=History(jobs=jobs))
    assert evicted(scope) == ["x-0"] and scope.memory.jobs["train/PodGroup/w2"].nominated == {"uid-train-v2-0": since}


@pytest.mark.parametrize("ahead", [PATIENCE, PATIENCE + 1])
def test_a_long_grace_is_not_waited_for(ahead: float) -> None:
    rows = [leaving("old", "n0", FOUR, -ahead), low("v", ("n0", REST)), wanting(each=4)]
    assert bool(evicted(planned(*rows, objects=CLASSES))) is (ahead > PATIENCE)


def test_many_terminating_pods_leave_effort_for_other_jobs() -> None:
    """Eight jobs wait for some of hundreds of pods; the job that needs an eviction elsewhere still gets it."""
    gone = [leaving(f"old{i:03d}", f"n{i}", EIGHT) for i in range(200)]
    crowd = [wanting(f"w{k}") for k in range(8)]
    last = wanting("z")
    last[1]["metadata"]["creationTimestamp"] = LATE
    last = [edited(pod, node_selector={"kubernetes.io/hostname": "n200"}) for pod in last[0]], last[1]
    scope = planned(*gone, low("v", ("n200", EIGHT)), *crowd, last, objects=CLASSES, nodes=201)
    assert evicted(scope) == ["v-0"] and "train/v-0" in way_out(scope, "z")
    assert all("no eviction is needed" in way_out(scope, f"w{k}") for k in range(8))


def test_an_unreadable_budget_is_named() -> None:
    own = dataclasses.replace(allowing(), budget_broken=True)
    scope = planned(low("v", ("n0", EIGHT)), wanting(), objects=CLASSES, desired=own)
    assert not evicted(scope)
    expected = "an eviction would free enough; a budget that cannot be read defers it until it is changed"
    assert way_out(scope) == expected


def test_chips_of_a_terminating_pod_that_one_job_leaves_serve_the_next() -> None:
    crowd = [wanting(f"w{k}", each=4) for k in range(2)]
    last = wanting("z", each=4)
    last[1]["metadata"]["creationTimestamp"] = LATE
    rows = [leaving("old", "n0", EIGHT), low("v", ("n1", EIGHT)), *crowd]
    assert not evicted(planned(*rows, objects=CLASSES, nodes=2))
    assert evicted(planned(*rows, last, objects=CLASSES, nodes=2)) == ["v-0"]


def test_pods_evicted_for_a_job_count_when_more_must_go() -> None:
    """Its victim frees four chips of eight: the job beside it goes too, and none elsewhere."""
    since = int(worlds.NOW * 1000) - 30_000
    history = History(jobs={"train/PodGroup/want": JobMemory(uid="u-want", nominated={"uid-train-old-0": since})})
    rows = [leaving("old", "n0", FOUR), low("y", ("n0", REST)), low("z", ("n1", EIGHT)), wanting()]
    assert evicted(planned(*rows, objects=CLASSES, nodes=2, history=history)) == ["y-0"]
