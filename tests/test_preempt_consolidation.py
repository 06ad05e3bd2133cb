"""Whole chips free in pieces: small pods of movable queues move off one node, so that a request for a ring or a server
fits. Moves are bounded, and only pods of queues that allow it move.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.actions import BindPod, EvictPod, Preconditions
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.disruption import SETTLED
from belay.engine.model.history import JobMemory
from belay.engine.model.plan import Plan
from belay.engine.plan import plan
from belay.engine.plan.preempt.consolidation import MAX_MOVED
from tests import worlds
from tests.worlds import NOW

MODULE = {"accelerator": "huawei-Ascend910", "accelerator-type": "module"}
BUDGET = """\
apiVersion: belay.dev/v1alpha1
kind: SafetyBudget
metadata: {name: default}
spec: {limits: [{actions: [EvictPod], per: cluster, max: 0, window: 1h}]}
"""


def declared(movable: str = "true", extra: str = "") -> Desired:
    text = f"""\
apiVersion: belay.dev/v1alpha1
kind: SchedulingSettings
metadata: {{name: settings}}
spec: {{queues: [{{name: default, movable: {movable}}}]}}
"""
    found = load({"desired/a.yaml": text.encode(), "desired/b.yaml": extra.encode()}, revision="r")
    assert not [one for one in found.diagnostics if one.severity == "error"], found.diagnostics
    return found.desired


def serving(name: str, node: str, *chips: int, **fields: Any) -> Pod:
    """A running pod of a Deployment of its own."""
    fields.setdefault("owner", ("ReplicaSet", f"rs-{name}"))
    return worlds.pod(name, node=node, chips=chips, owner_api="apps/v1", **fields)


def asks(name: str, count: int, **fields: Any) -> Pod:
    return worlds.pod(name, count=count, **fields)


def shield(left: int) -> dict[str, Any]:
    """A PodDisruptionBudget over all pods of the namespace that allows so many evictions now."""
    return {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "all", "namespace": "train"},
        "spec": {"selector": {}, "maxUnavailable": 1}, "status": {"disruptionsAllowed": left},
    }  # fmt: skip


def world(*pods: Pod, nodes: int = 2, objects: tuple[dict[str, Any], ...] = ()) -> Observed:
    """Old servers with two rings of four."""
    names = [f"n{i}" for i in range(nodes)]
    owners = [
        {
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": {"replicas": 1},
            "metadata": {"name": pod.owner_name, "namespace": pod.namespace, "uid": pod.owner_uid},
        }
        for pod in pods if pod.owner_kind == "ReplicaSet"
    ]  # fmt: skip
    return worlds.observed(
        [worlds.node(name, labels=MODULE) for name in names], [worlds.report(name) for name in names], pods,
        objects=[*owners, *objects],
    )  # fmt: skip


def made(result: Plan, kind: Any) -> list[Any]:
    return [action for action in result.actions if isinstance(action, kind)]


def test_a_small_pod_is_moved_where_a_server_is_wanted() -> None:
    result = plan(declared(), world(serving("a", "n0", 0), serving("b", "n1", 0, 1), asks("p", 8)), NOW)
    (moved,) = made(result, EvictPod)
    assert (moved.pod, moved.reason, moved.force) == ("a", "Moved", False)
    assert moved.evidence.rule == "queue default movable"
    assert moved.preconditions == Preconditions(uid="uid-train-a", node="n0")
    assert moved.message == "pod train/a of ReplicaSet train/rs-a moves, so that Pod train/p fits on n0"
    (entry,) = result.pending
    assert "room is being made: moving train/a away from n0" in (entry.unblock or "")
    assert not made(result, BindPod)


def test_a_ring_is_freed_by_a_move() -> None:
    pods = [serving("a", "n0", 0), serving("b", "n0", 4, 5), serving("c", "n1", 0, 1), serving("d", "n1", 4, 5)]
    (moved,) = made(plan(declared(), world(*pods, asks("p", 4)), NOW), EvictPod)
    assert moved.pod == "a", "one chip is fewer than two"


def test_freed_chips_go_to_the_job_they_were_freed_for() -> None:
    a, b = serving("a", "n0", 0), serving("b", "n1", 0, 1)
    first = plan(declared(), world(a, b, asks("p", 8)), NOW)
    late = asks("late", 4, created=NOW)
    going = world(msgspec.structs.replace(a, deleting=NOW), b, asks("p", 8), late)
    second = plan(declared(), msgspec.structs.replace(going, history=first.history), NOW + 1)
    assert not made(second, EvictPod)
    assert {bind.pod: bind.node for bind in made(second, BindPod)} == {"late": "n1"}
    again = asks("a2", 1, owner=("ReplicaSet", "rs-a"), owner_api="apps/v1", created=NOW - 9999)
    gone = msgspec.structs.replace(world(b, asks("p", 8), again), history=second.history)
    third = plan(declared(), gone, NOW + 2)
    assert {bind.pod: bind.node for bind in made(third, BindPod)} == {"p": "n0", "a2": "n1"}
    assert not made(third, EvictPod)


def test_a_move_not_carried_out_is_ordered_again_as_a_move() -> None:
    snapshot = world(serving("a", "n0", 0), serving("b", "n1", 0, 1), asks("p", 8))
    first = plan(declared(), snapshot, NOW)
    (again,) = made(plan(declared(), msgspec.structs.replace(snapshot, history=first.history), NOW + 30), EvictPod)
    assert (again.pod, again.reason) == ("a", "Moved")


def test_a_move_not_carried_out_is_dropped_when_the_queue_is_no_longer_movable() -> None:
    snapshot = world(serving("a", "n0", 0), serving("b", "n1", 0, 1), asks("p", 8))
    first = plan(declared(), snapshot, NOW)
    assert made(first, EvictPod)
    later = plan(declared("false"), msgspec.structs.replace(snapshot, history=first.history), NOW + 30)
    assert not made(later, EvictPod)
    assert all(not memory.nominated for memory in later.history.jobs.values())
    (entry,) = later.pending
    assert "moving" not in (entry.unblock or "")


def test_a_move_under_way_stays_with_its_job_when_the_queue_is_no_longer_movable() -> None:
    a, b = serving("a", "n0", 0), serving("b", "n1", 0, 1)
    first = plan(declared(), world(a, b, asks("p", 8)), NOW)
    going = world(msgspec.structs.replace(a, deleting=NOW), b, asks("p", 8), asks("late", 4, created=NOW))
    second = plan(declared("false"), msgspec.structs.replace(going, history=first.history), NOW + 1)
    assert {bind.pod: bind.node for bind in made(second, BindPod)} == {"late": "n1"}


@pytest.mark.parametrize(
    "why",
    ["not declared", "bare", "job", "important", "forbidden", "critical", "no other place", "moved before", "too much",
     "going", *SETTLED],
)  # fmt: skip
def test_some_pods_are_never_moved(why: str) -> None:
    a, b = serving("a", "n0", 0), serving("b", "n1", 0, 1, owner=None)
    if why == "bare":
        a = serving("a", "n0", 0, owner=None)
    elif why == "job":
        a = serving("a", "n0", 0, owner=("Job", "j"))
    elif why == "important":
        a = serving("a", "n0", 0, priority=5)
    elif why == "forbidden":
        a = serving("a", "n0", 0, annotations={"volcano.sh/preemptable": "false"})
    elif why in SETTLED:
        a = serving("a", "n0", 0, annotations={why: SETTLED[why]})
    elif why == "critical":
        a = msgspec.structs.replace(a, priority_class="system-node-critical")
    elif why == "no other place":
        b = serving("b", "n1", 0, 1, 2, 3, 4, 5, 6, 7)
    elif why == "too much":
        a = serving("a", "n0", 0, 1, 2, 3, 4, 5)
    elif why == "going":
        a = serving("a", "n0", 0, deleting=NOW)
    snapshot = world(a, b, asks("p", 8))
    if why == "moved before":
        memory = JobMemory(uid="uid-train-rs-a", timeline=((int(NOW * 1000) - 60_000, "moved for train/Pod/q"),))
        history = msgspec.structs.replace(snapshot.history, jobs={"train/ReplicaSet/rs-a": memory})
        snapshot = msgspec.structs.replace(snapshot, history=history)
    result = plan(declared("false" if why == "not declared" else "true"), snapshot, NOW)
    assert not made(result, EvictPod) and not made(result, BindPod)
    assert len(result.pending) == 1


def test_a_budget_defers_a_move() -> None:
    result = plan(declared(extra=BUDGET), world(serving("a", "n0", 0), asks("p", 8), nodes=2), NOW)
    assert [bind.node for bind in made(result, BindPod)] == ["n1"], "a server is free: no pod moves"
    crowded = world(serving("a", "n0", 0), serving("b", "n1", 0, 1), asks("p", 8))
    result = plan(declared(extra=BUDGET), crowded, NOW)
    assert not made(result, EvictPod) and [type(one.action).__name__ for one in result.deferred] == ["EvictPod"]


@pytest.mark.parametrize("left", [0, 1, 2])
def test_disruption_budgets_are_kept(left: int) -> None:
    """Two pods would have to move together."""
    pods = [serving("a", "n0", 0), serving("b", "n0", 4), serving("c", "n1", 0, 1, 2, owner=None)]
    result = plan(declared(), world(*pods, asks("p", 8), objects=(shield(left),)), NOW)
    assert {one.pod for one in made(result, EvictPod)} == ({"a", "b"} if left == 2 else set())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_moves_are_few_and_every_moved_pod_finds_a_place(data: Any) -> None:
    pods, held = [], dict.fromkeys(("n0", "n1", "n2"), 0)
    for index in range(data.draw(st.integers(1, 7))):
        node = data.draw(st.sampled_from(sorted(held)))
        size = data.draw(st.sampled_from([1, 2, 4]))
        ring = data.draw(st.sampled_from([0x0F, 0xF0]))
        free = [chip for chip in range(8) if ring >> chip & 1 and not held[node] >> chip & 1]
        if len(free) >= size:
            owner = data.draw(st.sampled_from([("ReplicaSet", f"rs-{index}"), None]))
            pods.append(serving(f"h{index}", node, *free[:size], owner=owner))
            held[node] |= sum(1 << chip for chip in free[:size])
    want = data.draw(st.sampled_from([2, 4, 8]))
    snapshot = world(*pods, asks("p", want, created=NOW - 60), nodes=3)
    first = plan(declared(), snapshot, NOW)
    moved = {one.pod: one for one in made(first, EvictPod)}
    gone = [pod for pod in pods if pod.name in moved]
    assert len(gone) == len(moved) <= MAX_MOVED and all(pod.owner_kind == "ReplicaSet" for pod in gone)
    assert sum(pod.count for pod in gone) * 2 <= want and len({pod.node for pod in gone}) <= 1
    assert not (moved and made(first, BindPod))
    if moved:
        left = [pod for pod in pods if pod.name not in moved]
        again = [
            asks(f"{pod.name}-again", pod.count, owner=("ReplicaSet", pod.owner_name), owner_api="apps/v1", created=NOW)
            for pod in gone
        ]
        waiting = asks("p", want, created=NOW - 60)
        after = msgspec.structs.replace(world(*left, waiting, *again, nodes=3), history=first.history)
        second = plan(declared(), after, NOW + 30)
        assert {bind.pod for bind in made(second, BindPod)} == {"p", *(pod.name for pod in again)}
        assert not made(second, EvictPod)


def test_no_pod_moves_for_a_reserved_node() -> None:
    """A node reserved for a starving job is free again once that job runs elsewhere."""
    a, b = serving("a", "n1", 0, 1, 2, 3), [serving(f"b{i}", "n0", i) for i in range(5)]
    c = serving("c", "n2", 0, owner=None)
    starving = asks("p", 8, created=NOW - 7200)
    first = plan(declared(), world(a, *b, c, starving, nodes=3), NOW)
    assert [one.pod for one in made(first, EvictPod)] == ["a"]
    again = asks("a2", 4, owner=("ReplicaSet", "rs-a"), owner_api="apps/v1", created=NOW)
    second = plan(
        declared(), msgspec.structs.replace(world(*b, c, starving, again, nodes=3), history=first.history), NOW + 30
    )
    assert [(one.pod, one.node) for one in made(second, BindPod)] == [("p", "n1")] and not made(second, EvictPod)
    runs = serving("p", "n1", *range(8), owner=None)
    third = plan(
        declared(), msgspec.structs.replace(world(*b, c, runs, again, nodes=3), history=second.history), NOW + 31
    )
    assert [(one.pod, one.node) for one in made(third, BindPod)] == [("a2", "n2")] and not made(third, EvictPod)
