"""A large gang starts in bounded time under an endless stream of small jobs, and no other job starves by that."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.model.cluster import Pod
from belay.engine.model.history import History, JobMemory
from belay.engine.plan.draft import Memory
from tests import placing, worlds
from tests.placing import POLICY, bindings, gang, scope_of
from tests.steps import Steps

A2 = {POLICY: "chip8-node8"}
AFTER, HOLD = 600, 7200


def _settings(after: str = "10m", hold: str = "2h") -> Any:
    return placing.with_settings(starvation={"after": after, "hold": hold})


class Stream:
    """A cluster on which single small jobs of fixed length keep coming, and one large gang that waits."""

    def __init__(self, nodes: int, *, size: int = 4, length: float = 300.0, desired: Any = None) -> None:
        self.nodes, self.size, self.length = nodes, size, length
        self.desired = desired or _settings()
        self.now, self.number = worlds.NOW, 0
        self.running: dict[str, tuple[Pod, float]] = {}
        self.gangs: list[tuple[list[Pod], dict[str, Any]]] = []
        self.history = History()
        self.started: dict[str, float] = {}

    def want(self, name: str, count: int, each: int = 8, **spec: Any) -> None:
        pods, group = gang(count, each, name=name, annotations=A2, created=self.now)
        group["spec"].update(spec)
        self.gangs.append((pods, group))

    def step(self, seconds: float = 60.0) -> Steps:
        """One pass with two fresh small jobs per node waiting; what it binds runs from now on."""
        self.now += seconds
        self.running = {key: row for key, row in self.running.items() if row[1] > self.now}
        small: list[Pod] = []
        for _ in range(2 * self.nodes):
            self.number += 1
            name = f"small-{self.number:05d}"
            small.append(worlds.pod(name, count=self.size, created=self.now, annotations=dict(A2)))
        waiting = [pod for pods, _ in self.gangs for pod in pods if pod.key not in self.running]
        world = worlds.world(
            self.nodes,
            pods=[*(pod for pod, _ in self.running.values()), *small, *waiting],
            objects=[group for _, group in self.gangs],
            history=self.history,
        )
        scope = scope_of(world, desired=self.desired, now=self.now, memory=Memory.of(self.history))
        scope.run("safety")
        self.history = scope.memory.frozen()
        for name, action in bindings(scope).items():
            pod = world.pods[f"train/{name}"]
            bound = placing.edited(
                pod, node=action.node, chips=action.chips, phase="Running", started=self.now,
                annotations={**pod.annotations, **action.annotations},
            )  # fmt: skip
            ends = self.length if name.startswith("small") else 1e9
            if ends == self.length:  # never all at once
                ends *= 1 - (int(name[-5:]) % 5) / 5
            self.running[pod.key] = (bound, self.now + ends)
            self.started.setdefault(name, self.now)
        self._check(scope)
        return scope

    def _check(self, scope: Steps) -> None:
        """No chip has two owners and no gang runs in part."""
        taken: set[tuple[str, str]] = set()
        for pod, _ in self.running.values():
            for chip in pod.chips:
                assert (pod.node, chip) not in taken, f"{pod.node}/{chip} has two owners"
                taken.add((pod.node, chip))
        for pods, group in self.gangs:
            placed = sum(pod.key in self.running for pod in pods)
            assert placed == 0 or placed >= group["spec"]["minMember"], "a gang runs in part"

    def reserved(self, name: str) -> tuple[str, ...]:
        memory = self.history.jobs.get(f"train/PodGroup/{name}")
        return memory.reserved if memory else ()


def test_a_gang_of_all_nodes_starts_under_a_stream_of_small_jobs() -> None:
    stream = Stream(4)
    for _ in range(6):
        stream.step()
    stream.want("big", 4)
    begun = stream.now
    while "big-0" not in stream.started and stream.now < begun + 10_000:
        stream.step()
    assert stream.started["big-0"] - begun <= AFTER + stream.length + 120
    assert stream.reserved("big") == ()


def test_without_reservations_it_never_starts() -> None:
    stream = Stream(4, desired=_settings(after="0s"))
    for _ in range(6):
        stream.step()
    stream.want("big", 4)
    for _ in range(60):
        stream.step()
    assert "big-0" not in stream.started


@settings(max_examples=15, deadline=None)
@given(
    st.integers(2, 4), st.integers(1, 4), st.sampled_from([1, 2, 4, 8]), st.sampled_from([120.0, 300.0, 900.0]),
)  # fmt: skip
def test_bounded_time_whatever_the_sizes(nodes: int, count: int, size: int, length: float) -> None:
    stream = Stream(nodes, size=size, length=length)
    for _ in range(3):
        stream.step()
    stream.want("big", min(count, nodes))
    begun = stream.now
    while "big-0" not in stream.started and stream.now < begun + 10_000:
        stream.step()
    assert stream.started["big-0"] - begun <= AFTER + length + 120


def test_small_jobs_learn_of_the_reservation_and_run_elsewhere() -> None:
    stream = Stream(4)
    for _ in range(6):
        stream.step()
    stream.want("big", 2)
    for _ in range(30):
        result = stream.step()
        if stream.reserved("big"):
            break
    kept = stream.reserved("big")
    assert len(kept) == 2
    entry = next(row for row in result.pending if row.name == "big")
    assert entry.reason == "NPUResourceShortage" and "2 nodes are reserved" in (entry.unblock or "")
    before = dict(stream.started)
    scope = stream.step(250.0)
    fresh = {name for name in stream.started if name not in before and name.startswith("small")}
    assert fresh, "other nodes take new jobs"
    if "big-0" not in stream.started:
        assert not {stream.running[f"train/{name}"][0].node for name in fresh} & set(kept)
        blamed = [row for row in scope.pending if row.reason == "ReservedForGang"]
        assert blamed and "waits until PodGroup train/big has started" in (blamed[0].unblock or "")
        assert blamed[0].nodes["ReservedForGang"] >= 1


def test_a_reservation_ends_and_a_gang_that_never_fits_gets_none() -> None:
    stream = Stream(2, length=1e9, desired=_settings(hold="20m"))
    stream.step()
    stream.want("big", 2)
    stream.want("huge", 3, queue="default")
    seen = []
    for _ in range(80):
        stream.step()
        seen.append(bool(stream.reserved("big")))
        assert stream.reserved("huge") == ()
    assert any(seen) and not all(seen[seen.index(True) :]), "kept for a while, then given up for a while"
    changes = sum(a != b for a, b in pairwise(seen))
    assert changes >= 3, "and tried again later"


def test_higher_priority_and_work_without_chips_may_use_kept_nodes() -> None:
    stream = Stream(2, length=1e9)
    stream.step()
    stream.want("big", 2)
    for _ in range(12):
        stream.step()
    assert stream.reserved("big") == ("n0", "n1")
    stream.running.popitem()
    stream.number += 1
    urgent = worlds.pod("urgent", count=4, created=stream.now, priority=10, annotations=dict(A2))
    light = worlds.pod("light", count=0, created=stream.now)
    equal = worlds.pod("equal", count=4, created=stream.now, annotations=dict(A2))
    big = [pod for pods, _ in stream.gangs for pod in pods]
    world = worlds.world(
        2,
        pods=[*(pod for pod, _ in stream.running.values()), *big, urgent, light, equal],
        objects=[group for _, group in stream.gangs],
        history=stream.history,
    )
    scope = scope_of(world, desired=stream.desired, now=stream.now + 60, memory=Memory.of(stream.history))
    assert set(bindings(scope)) == {"urgent", "light"}


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
def test_no_node_is_reserved_until_services_end(kind: str) -> None:
    pods, group = gang(1, 8, name="big", annotations=A2)
    service = worlds.pod("svc-0", node="n0", chips=range(4), owner=(kind, "svc"), owner_api="apps/v1")
    scope = scope_of(worlds.world(1, pods=[service, *pods], objects=[group]), desired=_settings())
    assert scope.memory.jobs["train/PodGroup/big"].reserved == ()


def _waiting(
    name: str, count: int = 2, *, each: int = 8, ages: tuple[float, ...] = ()
) -> tuple[list[Pod], dict[str, Any]]:
    pods, group = gang(count, each, name=name, annotations=A2, created=worlds.NOW - 3600)
    aged = zip(pods, ages or (3600,) * count, strict=True)
    return [placing.edited(pod, created=worlds.NOW - age) for pod, age in aged], group


def _stuck(*gangs: Any, nodes: int = 3, history: History | None = None, broken: str = "") -> Steps:
    """A job of an hour on every node, and gangs that wait for their end."""
    busy = [worlds.pod(f"busy-{i}", node=f"n{i}", chips=range(4), annotations=dict(A2)) for i in range(nodes)]
    pods = [pod for rows, _ in gangs for pod in rows]
    known = history or History()
    world = worlds.world(nodes, pods=[*busy, *pods], objects=[group for _, group in gangs if group], history=known)
    if broken:
        world.nodes[broken] = placing.edited(world.nodes[broken], ready=False)
    return scope_of(world, desired=_settings(), memory=Memory.of(known))


def _kept(scope: Steps, name: str) -> tuple[str, ...]:
    memory = scope.memory.jobs.get(f"train/PodGroup/{name}")
    return memory.reserved if memory is not None else ()


def test_a_kept_node_that_breaks_is_replaced_at_once() -> None:
    big = _waiting("big")
    first = _stuck(big)
    assert _kept(first, "big") == ("n0", "n1")

    known = first.memory.frozen()
    assert _kept(_stuck(big, history=known, broken="n0"), "big") == ("n1", "n2")
    assert _kept(_stuck(big, history=known), "big") == ("n0", "n1"), "healthy reserved nodes stay reserved"


def test_waiting_time_counts_from_the_newest_pod() -> None:
    """A job whose pods were replaced after a fault has not waited an hour yet."""
    assert _kept(_stuck(_waiting("big", ages=(3600, 3600))), "big")
    assert not _kept(_stuck(_waiting("big", ages=(3600, 30))), "big")


def test_one_job_of_a_queue_has_a_reservation_at_a_time() -> None:
    scope = _stuck(_waiting("a", 1), _waiting("b", 1), nodes=4)
    assert _kept(scope, "a") == ("n0",) and not _kept(scope, "b")


def test_a_job_with_evictions_under_way_needs_no_reservation() -> None:
    leaving = worlds.pod("low-0", node="n0", chips=range(4, 8), annotations=dict(A2), deleting=worlds.NOW + 20)
    nominated = JobMemory(uid="u-big", nominated={leaving.uid: int(worlds.NOW * 1000) - 5000})
    big = _waiting("big", 1, each=4)
    for memory, kept in ((nominated, False), (JobMemory(uid="u-big"), True)):
        history = History(jobs={"train/PodGroup/big": memory})
        assert bool(_kept(_stuck((big[0], big[1]), ([leaving], {}), nodes=1, history=history), "big")) is kept
