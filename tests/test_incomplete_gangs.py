"""A gang that lost pods and finds no room for them: taken back where a job starts by that, otherwise left alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.model.actions import EvictPod
from belay.engine.model.cluster import Pod
from belay.engine.model.history import History, JobMemory
from belay.engine.plan import plan
from belay.engine.plan.draft import Memory
from belay.engine.plan.preempt.incomplete_gangs import AFTER
from tests import placing, worlds
from tests.jobs import POD_GROUP_CRD, World, ascend_job
from tests.placing import POLICY, bindings, gang, scope_of
from tests.steps import Steps
from tests.worlds import NOW

A2 = {POLICY: "chip8-node8"}
LABELS = {"fault-scheduling": "grace"}
WAITED = NOW - AFTER - 1


class Gangs:
    """Gangs of whole servers, each with its PodGroup and what history remembers of it."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.pods: list[Pod] = []
        self.objects: list[dict[str, Any]] = []
        self.jobs: dict[str, JobMemory] = {}

    def add(
        self, name: str, *where: str, since: float = WAITED, remembered: bool = True, labels: Any = None, **spec: Any
    ) -> None:
        """A gang with a pod per place; "" is a pod that waits."""
        given = LABELS if labels is None else labels
        pods, group = gang(len(where), 8, name=name, annotations=A2, labels=given, created=NOW - 9000)
        group["spec"].update(spec)
        self.objects.append(group)
        for index, (pod, node) in enumerate(zip(pods, where, strict=True)):
            fields: dict[str, Any] = {
                "owner_kind": "Job",
                "owner_name": name,
                "owner_api": "batch.volcano.sh/v1alpha1",
                "owner_uid": f"u-{name}",
            }
            fields["annotations"] = pod.annotations | {"hccl/rankIndex": str(index)}
            if node:
                chips = tuple(f"Ascend910-{chip}" for chip in range(8))
                fields |= {"node": node, "chips": chips, "phase": "Running", "started": NOW - 9000}
            else:
                fields["created"] = since
            self.pods.append(placing.edited(pod, **fields))
        if remembered:
            key = f"train/Job/{name}"
            self.jobs[key] = JobMemory(nodes={str(index): node or "gone" for index, node in enumerate(where)})

    def observed(self) -> Any:
        return worlds.world(self.nodes, pods=self.pods, objects=self.objects, history=History(jobs=self.jobs))

    def scope(self, **fields: Any) -> Steps:
        return scope_of(self.observed(), **fields)


def evicted(scope: Steps) -> set[str]:
    return {action.pod for action in scope.actions if isinstance(action, EvictPod)}


def way_out(scope: Steps, name: str) -> str:
    return next(str(entry.unblock) for entry in scope.pending if entry.name == name)


def test_two_halves_that_wait_for_each_other_do_not_wait_for_ever() -> None:
    world = Gangs(2)
    world.add("a", "n0", "")
    world.add("b", "n1", "")
    scope = world.scope()
    assert evicted(scope) == {"b-0"}, "the last in the queue makes way, and only that one"
    action = next(action for action in scope.actions if isinstance(action, EvictPod))
    assert (action.reason, action.budget_unit, action.force) == ("GangIncomplete", "train/Job/b", False)
    assert "1 of 2 pods of Job train/b run, the others find no room" in action.message
    assert "Job train/a can start" in action.message
    assert "waiting for 1 evicted pod to end (train/b-0)" in way_out(scope, "a")


def test_half_a_gang_makes_way_for_a_job_that_fits_in_its_place() -> None:
    world = Gangs(1)
    world.add("a", "n0", "")
    world.add("small", "", since=NOW - 60)
    scope = world.scope()
    assert evicted(scope) == {"a-0"} and "evicted pod to end" in way_out(scope, "small")


def test_half_a_gang_moves_to_where_all_of_it_fits() -> None:
    """Two servers of one super pod are free, and its half stands in another that is full."""
    notes = {POLICY: "chip2-node16-sp", "sp-block": "32"}
    pods, group = gang(2, 16, name="a", annotations=notes, labels=LABELS, created=NOW - 9000)
    owner = {"owner_kind": "Job", "owner_name": "a", "owner_api": "batch.volcano.sh/v1alpha1", "owner_uid": "u-a"}
    chips = tuple(f"Ascend910-{chip}" for chip in range(16))
    ranks = {"super-pod-rank": "0", "super-pod-id": "1"}
    here = {"node": "n10", "chips": chips, "phase": "Running", "started": NOW - 9000}
    first = placing.edited(pods[0], annotations=pods[0].annotations | ranks, **owner, **here)
    lost = placing.edited(pods[1], created=WAITED, **owner)
    servers = [(f"n{pod}{index}", pod, index) for pod in (1, 2) for index in range(2)]
    labels = {**worlds.A2_LABELS, "accelerator-type": "module-a3-16-super-pod"}
    seen = worlds.observed(
        [worlds.node(name, chips=16, labels=labels) for name, _, _ in servers],
        [worlds.report(name, chips=16, super_pod_id=pod, server_index=index) for name, pod, index in servers],
        [first, lost, placing.busy("n11", range(16))],
        objects=[group],
        init_params={"super-pod-size": "10", "reserve-nodes": "0"},
        history=History(jobs={"train/Job/a": JobMemory(nodes={"0": "n10", "1": "n11"})}),
    )
    scope = scope_of(seen)
    assert evicted(scope) == {"a-0"} and "start together elsewhere" in scope.actions[0].message


@pytest.mark.parametrize(
    ("half", "way"),
    [
        ({"since": NOW - AFTER + 1}, "1 of 2 pods hold chips and wait for the others"),
        ({"labels": {}}, "they are not taken back (fault-scheduling=off): delete them to free the chips"),
        ({"labels": LABELS | {"process-recover-enable": "on"}}, "1 of 2 pods hold chips"),
        ({"labels": LABELS | {"huawei.com/recover_policy_path": "pod"}}, "1 of 2 pods hold chips"),
        ({"remembered": False}, ""),  # it never ran whole: its job has grown
        ({"minMember": 1}, ""),  # it may run with fewer pods
    ],
)
def test_what_is_not_taken_back(half: dict[str, Any], way: str) -> None:
    world = Gangs(1)
    world.add("a", "n0", "", **half)
    world.add("small", "")
    scope = world.scope()
    assert not evicted(scope) and way in way_out(scope, "a")


def test_nothing_is_evicted_when_no_job_would_start_by_it() -> None:
    world = Gangs(1)
    world.add("a", "n0", "")
    world.add("big", "", "", "")
    scope = world.scope()
    assert not evicted(scope) and "1 of 2 pods hold chips and wait for the others" in way_out(scope, "a")


def test_as_few_gangs_as_let_one_start_make_way() -> None:
    world = Gangs(3)
    for name, node in (("a", "n0"), ("b", "n1"), ("c", "n2")):
        world.add(name, node, "", "")
    scope = world.scope()
    assert evicted(scope) == {"b-0", "c-0"} and "evicted pods to end" in way_out(scope, "a")


def test_it_waits_while_pods_of_the_gang_are_terminating() -> None:
    world = Gangs(2)
    world.add("a", "n0", "")
    world.add("b", "n1", "")
    world.pods.append(placing.edited(world.pods[2], name="b-old", uid="old", deleting=NOW - 5))
    assert not evicted(world.scope()) & {"b-0"}


def test_a_budget_defers_it() -> None:
    world = Gangs(2)
    world.add("a", "n0", "")
    world.add("b", "n1", "")
    limit = {"actions": ["EvictPod"], "per": "cluster", "max": 0, "window": "1h"}
    none = worlds.desired(worlds.document("SafetyBudget", "none", limits=[limit]))
    found = plan(none, world.observed(), NOW)
    assert not [one for one in found.actions if isinstance(one, EvictPod)]
    assert [row.action.pod for row in found.deferred if isinstance(row.action, EvictPod)] == ["b-0"]


class Passes(Gangs):
    """The gangs over many passes: what is evicted is made again, what is bound runs."""

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self.now, self.history = NOW, History()
        self.evictions: list[str] = []

    def run(self, passes: int) -> None:
        self.history = History(jobs=self.jobs)
        for _ in range(passes):
            self.now += 60.0
            seen = worlds.world(self.nodes, pods=self.pods, objects=self.objects, history=self.history)
            scope = scope_of(seen, now=self.now, memory=Memory.of(self.history))
            scope.run("safety")
            self.history = scope.memory.frozen()
            self._apply(scope)

    def _apply(self, scope: Steps) -> None:
        gone, placed = evicted(scope), bindings(scope)
        self.evictions += sorted(gone)
        for index, pod in enumerate(self.pods):
            if pod.name in gone:
                fields: dict[str, Any] = {"node": "", "chips": (), "phase": "Pending", "started": None}
                self.pods[index] = placing.edited(pod, uid=f"{pod.uid}+", created=self.now, **fields)
            elif pod.name in placed:
                one = placed[pod.name]
                fields = {"node": one.node, "chips": one.chips, "phase": "Running", "started": self.now}
                self.pods[index] = placing.edited(pod, **fields)
        owners = [(pod.node, chip) for pod in self.pods for chip in pod.chips]
        assert len(owners) == len(set(owners)), "a chip has two owners"

    def bound(self, name: str) -> list[bool]:
        return [bool(pod.node) for pod in self.pods if pod.owner_name == name]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_halves_never_wait_for_ever_while_a_job_could_run(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(2, 5))
    world, free = Passes(nodes), [f"n{index}" for index in range(nodes)]
    names = [chr(97 + index) for index in range(data.draw(st.integers(2, 5)))]
    for name in names:
        size = data.draw(st.integers(1, 3))
        here = data.draw(st.integers(0, min(size, len(free))))
        world.add(name, *[free.pop() for _ in range(here)], *[""] * (size - here), since=NOW - 30)
    world.run(30)
    before = list(world.evictions)
    assert len(before) == len(set(before)), "a gang is taken back twice though it lost no pod since"
    world.run(3)
    assert world.evictions == before, "it settles"
    torn = [name for name in names if len(set(world.bound(name))) == 2]
    kept = sum(sum(world.bound(name)) for name in names if name not in torn)
    for name in names:
        room = nodes - kept
        assert all(world.bound(name)) or len(world.bound(name)) > room, f"{name} could run in place of {torn}"


def test_a_pod_group_follows_its_job_so_that_no_pod_starts_without_the_new_ones() -> None:
    """A job that grew in Git before it started was placed in part: its PodGroup still asked for the old number."""
    world = World(POD_GROUP_CRD, ascend_job(workers=1))
    world.settle()
    assert world.find("PodGroup", "train-job-uid")["spec"]["minMember"] == 2
    world.edit("AscendJob", "train", lambda raw: raw["spec"]["replicaSpecs"]["Worker"].update(replicas=3))
    world.settle()
    spec = world.find("PodGroup", "train-job-uid")["spec"]
    assert (spec["minMember"], spec["minTaskMember"]["worker"]) == (4, 3)
