"""Evictions on tiny clusters against all possible ones: never more than needed, never costlier, never in vain."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.model.actions import BindPod, EvictPod
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.history import History
from belay.engine.plan.preempt.victim_sets import VictimSet, cost, victim_sets_of
from belay.engine.plan.preempt.what_if import WhatIf
from tests import placing, worlds
from tests.placing import POLICY, gang
from tests.steps import Steps
from tests.test_preempt import group_of, priority

A2 = {POLICY: "chip8-node8"}
PRIORITIES = {"low": 10, "mid": 20, "high": 30}
DESIRED = placing.with_settings(
    queues=[{"name": "default", "preemptable": True}, {"name": "other", "reclaimable": True}],
    starvation={"after": "0s"},
)


@st.composite
def clusters(draw: Any) -> tuple[Observed, dict[str, Any]]:
    """Two nodes of eight chips in one mesh or in two, up to four running gangs, and one waiting gang of one or two
    pods.
    """
    meshes = draw(st.booleans())
    rules = {POLICY: "chip4-node8"} if meshes else A2
    free = {f"n{i}": list(range(8)) for i in range(2)}
    pods: list[Pod] = []
    objects: list[dict[str, Any]] = [priority(name, value) for name, value in PRIORITIES.items()]
    for index in range(draw(st.integers(0, 4))):
        name = f"g{index}"
        size = draw(st.sampled_from([1, 2, 4, 8]))
        count = draw(st.integers(1, 2))
        seats = []
        for _ in range(count):
            node = draw(st.sampled_from(sorted(free)))
            halves = [[c for c in free[node] if c < 4], [c for c in free[node] if c >= 4]]
            room = free[node] if not meshes or size == 8 else max(halves, key=len)
            if len(room) < size:
                continue
            seats.append((node, room[:size]))
            free[node] = [chip for chip in free[node] if chip not in room[:size]]
        for rank, (node, chips) in enumerate(seats):
            notes = {placing.GROUP: name, "volcano.sh/task-spec": "worker"}
            age = draw(st.sampled_from([60, 600]))
            pods.append(worlds.pod(f"{name}-{rank}", node=node, chips=chips, rank=rank, annotations=notes,
                                   created=worlds.NOW - age))  # fmt: skip
        least = draw(st.integers(1, max(1, len(seats))))
        spec = {"priorityClassName": draw(st.sampled_from(["low", "mid", "high"]))}
        spec["queue"] = draw(st.sampled_from(["default", "default", "other"]))
        objects.append(group_of(name, least, **spec))
    waiting, group = gang(draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 4, 8])), name="want", annotations=rules)
    group["spec"] |= {"priorityClassName": draw(st.sampled_from(["mid", "high"])), "queue": "default"}
    nodes = [worlds.node(name) for name in free]
    reports = [worlds.report(name) for name in free]
    return worlds.observed(nodes, reports, [*pods, *waiting], objects=[*objects, group]), group


def scope_for(world: Observed) -> Steps:
    return Steps(DESIRED, world, worlds.NOW).run("views", "grouping", "queue")


def without(world: Observed, gone: set[str]) -> Observed:
    """The world once these pods are gone; the other pods of their gangs stay, and none is replaced."""
    return msgspec.structs.replace(world, pods={key: pod for key, pod in world.pods.items() if key not in gone})


@pytest.fixture(autouse=True, scope="module")
def _every_node_may_help() -> Iterator[None]:
    """Lift MindCluster's rule that nodes with enough chips in the wrong places are not worth an eviction: it has its
    own test, and the search is checked on all nodes here.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhatIf, "helpful_nodes", lambda _self, _gang, _pod, nodes: set(nodes))
        yield


def starts(world: Observed) -> bool:
    """Whether a fresh pass over this world places the waiting gang as a whole."""
    scope = scope_for(world)
    scope.run("placement")
    placed = {action.pod for action in scope.actions if isinstance(action, BindPod)}
    return {pod.name for pod in world.pods.values() if pod.name.startswith("want")} <= placed


def allowed_units(scope: Steps) -> list[VictimSet]:
    want = scope.gangs["train/PodGroup/want"]
    found = [unit for row in scope.gangs.values() for unit in victim_sets_of(scope.facts, scope.draft, row)]
    return [u for u in found if u.gang.queue == want.queue and u.gang.priority < want.priority]


@settings(max_examples=120, deadline=None)
@given(clusters())
def test_preemption_is_the_cheapest_that_makes_room(case: tuple[Observed, dict[str, Any]]) -> None:
    world, _ = case
    scope = scope_for(world)
    scope.run("placement")
    evictions = [action for action in scope.actions if isinstance(action, EvictPod)]
    preempted = {f"{a.namespace}/{a.pod}" for a in evictions if a.reason == "Preempted"}
    units = allowed_units(scope_for(world))
    sets = [row for size in range(1, len(units) + 1) for row in combinations(units, size)]
    plain = [row for row in sets if len({p.key for u in row for p in u.pods}) == sum(len(u.pods) for u in row)]
    if starts(world):
        assert not evictions, "there was room"
        return
    best = next(
        (row for row in sorted(plain, key=cost) if starts(without(world, {p.key for u in row for p in u.pods}))), None
    )
    if best is None:
        assert not preempted, "in vain"
        return
    wanted = {pod.key for unit in best for pod in unit.pods}
    chosen = [u for u in units if {p.key for p in u.pods} <= preempted]
    assert preempted, f"{wanted} would have made room"
    assert starts(without(world, preempted)), "evicted in vain"
    for pod in sorted(preempted):
        row = scope_for(world)
        whole = {p.key for u in units if u.ends_job and any(p.key == pod for p in u.pods) for p in u.pods}
        spared = preempted - (whole if whole and whole <= preempted else {pod})
        assert not spared or not starts(without(world, spared)), f"{pod} need not have gone ({row.now})"
    assert preempted == wanted or cost(_cover(chosen)) == cost(best), (preempted, wanted)


def _cover(units: list[VictimSet]) -> list[VictimSet]:
    """Whole gangs instead of their spare pods."""
    whole = {pod.key for unit in units if unit.ends_job for pod in unit.pods}
    return [unit for unit in units if unit.ends_job or unit.pods[0].key not in whole]


@settings(max_examples=60, deadline=None)
@given(clusters(), st.integers(0, 3))
def test_passes_converge_and_break_no_gang(case: tuple[Observed, dict[str, Any]], lost: int) -> None:
    """Evicted pods return as waiting ones; within a few passes nothing more happens."""
    world, _ = case
    for number in range(14):
        scope = scope_for(world)
        scope.run("placement")
        evictions = {f"{a.namespace}/{a.pod}" for a in scope.actions if isinstance(a, EvictPod)}
        scope.run("safety")
        bound = {f"{a.namespace}/{a.pod}": a for a in scope.actions if isinstance(a, BindPod)}
        _whole(scope, evictions)
        if not scope.actions and not any(pod.deleting for pod in world.pods.values()):
            return
        pods = {}
        for key, pod in world.pods.items():
            if pod.deleting is not None:
                pods[key] = _again(pod)
            elif key in evictions and number != lost:
                pods[key] = placing.edited(pod, deleting=worlds.NOW)
            elif key in bound:
                action = bound[key]
                pods[key] = placing.edited(
                    pod, node=action.node, chips=action.chips, phase="Running", started=worlds.NOW
                )
            else:
                pods[key] = pod
        taken: set[tuple[str, str]] = set()
        for pod in pods.values():
            for chip in pod.chips:
                assert (pod.node, chip) not in taken, "two owners"
                taken.add((pod.node, chip))
        history = History(jobs=scope.memory.jobs, budgets=scope.memory.budgets)
        world = msgspec.structs.replace(world, pods=pods, history=history)
    raise AssertionError("no end of evictions")


def _again(pod: Pod) -> Pod:
    """The pod that its owner makes in place of an evicted one."""
    notes = {key: value for key, value in pod.annotations.items() if not key.startswith("huawei.com/")}
    return placing.edited(
        pod, uid=pod.uid + "+", node="", chips=(), deleting=None, phase="Pending", started=None, annotations=notes
    )


def _whole(scope: Steps, evictions: set[str]) -> None:
    """No eviction leaves a gang below its minimum unless it ends the gang."""
    for row in scope.gangs.values():
        running = {key for key in row.pods if scope.observed.pods[key].node and not scope.observed.pods[key].deleting}
        going = running & evictions
        if going:
            left = len(running - going)
            assert left == 0 or left >= row.min_available or len(running) < row.min_available, f"{row.key} is broken"
