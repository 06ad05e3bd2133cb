"""Evictions for waiting jobs: the rules that allow them, the cheapest victims, chips held for the preemptor,
budgets.
"""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.model.actions import BindPod, EvictPod
from belay.engine.model.history import History, JobMemory
from belay.engine.model.remedies import Remedy, Step
from belay.engine.plan import plan
from belay.engine.plan.preempt import what_if
from tests import placing, worlds
from tests.placing import GROUP, POLICY, gang, scope_of
from tests.steps import Steps

A2 = {POLICY: "chip8-node8"}


def group_of(
    name: str,
    least: int,
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "namespace": "train",
            "name": name,
            "uid": f"u-{name}",
            "annotations": {**A2, **(annotations or {})},
            "labels": labels or {},
        },
        "spec": {"minMember": least, **spec},
    }


def running(
    name: str, places: list[tuple[str, range]], *, least: int | None = None, since: float = 3600, **spec: Any
) -> Any:
    """A running gang, one pod per (node, chips)."""
    own = spec.pop("pod", {})
    notes = {GROUP: name, "volcano.sh/task-spec": "worker"}
    pods = [
        worlds.pod(f"{name}-{i}", node=node, chips=chips, rank=i, annotations={**notes, **own.get("annotations", {})},
                   created=worlds.NOW - since, priority=own.get("priority", 0))
        for i, (node, chips) in enumerate(places)
    ]  # fmt: skip
    return pods, group_of(name, len(pods) if least is None else least, **spec)


def priority(name: str, value: int, policy: str = "", **labels: str) -> dict[str, Any]:
    body = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name, "annotations": labels},
        "value": value,
    }
    return {**body, "preemptionPolicy": policy} if policy else body


CLASSES = [priority("high", 1000, "PreemptLowerPriority"), priority("low", 100)]


def queue(name: str = "default", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"weight": 1, **spec},
        "status": {"state": "Open"},
    }


def wanting(name: str = "want", count: int = 1, each: int = 8, **spec: Any) -> Any:
    pods, group = gang(count, each, name=name, annotations=A2)
    group["spec"].update({"priorityClassName": "high", **spec})
    return pods, group


def planned(*gangs: Any, nodes: int = 1, objects: Any = (), desired: Any = None, **fields: Any) -> Steps:
    pods = [pod for rows, _ in gangs for pod in rows]
    world = worlds.world(nodes, pods=pods, objects=[*(group for _, group in gangs), *objects], **fields)
    scope = scope_of(world, desired=desired or allowing())
    scope.run("safety")
    return scope


def allowing(**queue: Any) -> Any:
    return placing.with_settings(queues=[{"name": "default", "preemptable": True, **queue}])


def evicted(scope: Steps) -> list[str]:
    return sorted(action.pod for action in scope.actions if isinstance(action, EvictPod))


def test_a_lower_job_is_evicted_and_its_chips_stay_with_the_preemptor() -> None:
    low = running("low", [("n0", range(8))], priorityClassName="low")
    want = wanting()
    scope = planned(low, want, objects=CLASSES)
    (action,) = (a for a in scope.actions if isinstance(a, EvictPod))
    assert (action.pod, action.reason, action.budget_unit) == ("low-0", "Preempted", "train/PodGroup/low")
    assert action.evidence.rule == "queue default preemptable" and action.preconditions.uid == "uid-train-low-0"
    assert "priority 1000 over 100" in action.message
    assert scope.memory.jobs["train/PodGroup/want"].nominated == {"uid-train-low-0": int(worlds.NOW * 1000)}
    (entry,) = scope.pending
    assert entry.reason == "NPUResourceShortage" and "train/low-0" in (entry.unblock or "")

    # next pass: the victim terminates; a third job must not get its chips, and no chip is given twice
    history = scope.memory.frozen()
    leaving = placing.edited(low[0][0], deleting=worlds.NOW + 30)
    third = wanting("athird")
    scope = planned(([leaving], low[1]), third, want, objects=CLASSES, history=history)
    assert not scope.actions and {entry.name for entry in scope.pending} == {"athird", "want"}
    # once it is gone the job binds, although the third job comes first in the queue
    scope = planned(third, want, objects=CLASSES, history=history)
    assert [a.pod for a in scope.actions if isinstance(a, BindPod)] == ["want-0"]
    assert scope.memory.jobs["train/PodGroup/want"].nominated == {}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_victim_that_has_finished_is_not_waited_for(phase: str) -> None:
    """Its object may stay; its chips are free, for the preemptor and for other jobs after it."""
    low, want = running("low", [("n0", range(4))], priorityClassName="low"), wanting()
    history = planned(low, want, objects=CLASSES).memory.frozen()
    ended = [placing.edited(pod, phase=phase) for pod in low[0]]
    scope = planned((ended, low[1]), want, objects=CLASSES, history=history)
    assert [a.pod for a in scope.actions if isinstance(a, BindPod)] == ["want-0"]
    other = running("other", [("n0", range(8))], pod={"priority": 2000})
    scope = planned((ended, low[1]), other, want, objects=CLASSES, history=history)
    assert not evicted(scope), "no pod is evicted twice"
    assert scope.memory.jobs["train/PodGroup/want"].nominated == {}


def test_an_eviction_not_carried_out_is_repeated_and_counted_once() -> None:
    low, want = running("low", [("n0", range(8))], priorityClassName="low"), wanting()
    first = planned(low, want, objects=CLASSES)
    again = planned(low, want, objects=CLASSES, history=first.memory.frozen())
    assert evicted(again) == ["low-0"]
    spent = [rows for rows in again.memory.budgets.values() if any(unit.endswith("low") for _, unit, _ in rows)]
    assert spent and all(len(rows) == 1 for rows in spent)


@pytest.mark.parametrize(
    ("settings", "objects", "victim", "goes"),
    [
        ({}, [], {}, False),
        ({"preemptable": True}, [], {}, True),
        ({}, [], {"annotations": {"volcano.sh/preemptable": "true"}}, True),
        ({"preemptable": True}, [], {"annotations": {"volcano.sh/preemptable": "false"}}, False),
        ({"preemptable": True}, [], {"labels": {"volcano.sh/preemptable": "false"}}, False),
        ({}, [priority("low", 100, **{"volcano.sh/preemptable": "true"})], {}, True),
        ({}, [priority("low", 100, "Never")], {}, True),
        ({}, [priority("low", 100, "PreemptLowerPriority")], {}, False),
        ({"preemptable": True}, [priority("high", 1000, "Never")], {}, False),
        ({"preemptable": True}, [priority("low", 1000)], {}, False),
    ],
)
def test_preemption_needs_a_rule_that_allows_it(settings: Any, objects: Any, victim: Any, goes: bool) -> None:
    low = running("low", [("n0", range(8))], priorityClassName="low", **victim)
    classes = {row["metadata"]["name"]: row for row in [*CLASSES, *objects]}
    desired = placing.with_settings(queues=[{"name": "default", **settings}])
    scope = planned(low, wanting(), objects=list(classes.values()), desired=desired)
    assert evicted(scope) == (["low-0"] if goes else [])


def test_spare_pods_go_before_jobs_end_and_only_as_many_as_needed() -> None:
    elastic = running("elastic", [("n0", range(0, 4)), ("n0", range(4, 8))], least=1, priorityClassName="mid")
    whole = running("whole", [("n1", range(8))], priorityClassName="low")
    classes = [*CLASSES, priority("mid", 500)]
    scope = planned(elastic, whole, wanting(each=4), nodes=2, objects=classes)
    assert evicted(scope) == ["elastic-1"]
    scope = planned(elastic, whole, wanting(each=8), nodes=2, objects=classes)
    assert evicted(scope) == ["whole-0"]


def test_the_cheapest_gang_is_evicted_as_a_whole() -> None:
    wide = running("wide", [("n0", range(8)), ("n1", range(8))], priorityClassName="low", since=60)
    old = running("old", [("n2", range(8))], priorityClassName="low", since=7200)
    young = running("young", [("n3", range(8))], priorityClassName="low", since=600)
    scope = planned(wide, old, young, wanting(), nodes=4, objects=CLASSES)
    assert evicted(scope) == ["young-0"]
    scope = planned(wide, wanting(count=2), nodes=2, objects=CLASSES)
    assert evicted(scope) == ["wide-0", "wide-1"]
    assert {a.budget_unit for a in scope.actions if isinstance(a, EvictPod)} == {"train/PodGroup/wide"}


def test_an_eviction_that_would_not_help_is_not_made() -> None:
    low = running("low", [("n0", range(8))], priorityClassName="low")
    scope = planned(low, wanting(count=2), objects=CLASSES)
    assert not evicted(scope)
    beside = running("beside", [("n0", range(0, 4))], priorityClassName="low")
    rock = running("rock", [("n0", range(4, 8))], priorityClassName="high")
    assert not evicted(planned(beside, rock, wanting(), objects=CLASSES))
    assert evicted(planned(beside, rock, wanting(each=4), objects=CLASSES)) == ["beside-0"]


def test_all_victims_go_within_the_budget_or_none() -> None:
    """Twelve jobs for one gang of twelve pods; the shipped budget allows ten units of the cluster."""
    lows = [running(f"low{i:02d}", [(f"n{i}", range(8))], priorityClassName="low") for i in range(12)]
    scope = planned(*lows, wanting(count=12), nodes=12, objects=CLASSES)
    assert not evicted(scope) and len(scope.deferred) == 12
    assert scope.memory.jobs["train/PodGroup/want"].nominated == {}
    scope = planned(*lows[:10], wanting(count=10), nodes=10, objects=CLASSES)
    assert len(evicted(scope)) == 10 and not scope.deferred


def test_extra_replicas_of_a_running_job_make_room_too() -> None:
    low = running("low", [("n0", range(8))], priorityClassName="low")
    pods, group = wanting(count=3)
    group["spec"]["minMember"] = 1
    first = worlds.pod("want-0", node="n1", chips=range(8), rank=0, annotations=dict(pods[0].annotations))
    scope = planned(low, ([first, *pods[1:]], group), nodes=2, objects=CLASSES)
    assert evicted(scope) == ["low-0"], "room for one of two"


def test_super_pod_jobs_evict_no_others() -> None:
    labels = {**worlds.A2_LABELS, "accelerator-type": "module-a3-16-super-pod"}
    nodes = [worlds.node("n0", chips=16, labels=labels)]
    reports = [worlds.report("n0", chips=16, super_pod_id=0)]
    low = running("low", [("n0", range(16))], priorityClassName="low")
    pods, group = gang(1, 16, name="want", annotations={POLICY: "chip2-node16-sp", "sp-block": "16"})
    group["spec"]["priorityClassName"] = "high"
    world = worlds.observed(nodes, reports, [*low[0], *pods], objects=[low[1], group, *CLASSES])
    scope = scope_of(world, desired=allowing())
    assert not evicted(scope)
    assert "evicting job train/low (priority lower, 1 h lost) would free enough" in (scope.pending[0].unblock or "")


def test_without_a_rule_the_way_out_names_the_cheapest_eviction() -> None:
    low = running("low", [("n0", range(8))], priorityClassName="low", since=40)
    scope = planned(low, wanting(), objects=CLASSES, desired=placing.shipped())
    (entry,) = scope.pending
    assert not evicted(scope) and (entry.unblock or "").startswith(
        "needs 8 free chips on 1 more node (nearest is n0 with 0 free, others held by train/low-0); "
        "evicting job train/low (priority lower, 40 s lost) would free enough; no queue or priority class allows it"
    )
    equal = running("equal", [("n0", range(8))], priorityClassName="high", since=40)
    scope = planned(equal, wanting(), objects=CLASSES, desired=placing.shipped())
    assert "ending job train/equal (priority equal, 40 s" in (scope.pending[0].unblock or "")


def test_memory_of_another_job_of_the_name_is_not_used() -> None:
    history = History(jobs={"train/PodGroup/want": JobMemory(uid="another", nominated={"uid-train-low-0": 1})})
    low = running("low", [("n0", range(8))], priorityClassName="high")
    assert not evicted(planned(low, wanting(), objects=CLASSES, history=history))


def _on(
    labels: dict[str, str],
    chips: int,
    held: list[list[int]],
    want: int,
    annotations: dict[str, str],
    broken: tuple[int, ...] = (),
) -> Steps:
    """One server with low jobs on some chips, and one pod that asks for ``want``."""
    lows = [running(f"low{i}", [("n0", row)], priorityClassName="low") for i, row in enumerate(held)]  # type: ignore[list-item]
    pods, group = gang(1, want, name="want", annotations=annotations)
    group["spec"]["priorityClassName"] = "high"
    world = worlds.observed(
        [worlds.node("n0", chips=chips, labels=labels)],
        [worlds.report("n0", chips=chips, unhealthy=broken)],
        [*(pod for rows, _ in lows for pod in rows), *pods],
        objects=[*(row for _, row in lows), group, *CLASSES],
    )
    return scope_of(world, desired=allowing())


RING = {**worlds.A2_LABELS, "accelerator-type": "module"}
A3_RULE = {POLICY: "chip2-node16"}
A3 = {**worlds.A2_LABELS, "accelerator-type": "module-a3-16"}


@pytest.mark.parametrize(
    ("labels", "chips", "held", "want", "annotations", "goes"),
    [
        # rings: a single ring is freed, the lower one of equals; eight chips need both
        (RING, 8, [[0, 1, 2, 3], [4, 5, 6, 7]], 4, {}, ["low0-0"]),
        (RING, 8, [[0, 1], [2, 3], [4, 5, 6, 7]], 4, {}, ["low2-0"]),
        (RING, 8, [[0, 1, 2, 3], [4, 5, 6, 7]], 8, {}, ["low0-0", "low1-0"]),
        (RING, 8, [[0, 1, 4, 5], [2, 3, 6, 7]], 4, {}, ["low0-0", "low1-0"]),
        # enough chips in the wrong rings: MindCluster calls that unresolvable, so no pod is evicted
        (RING, 8, [[2, 3], [6, 7]], 4, {}, []),
        # pairs of dies: whole modules, the lowest; one die takes any
        (A3, 16, [list(range(0, 8)), list(range(8, 16))], 4, A3_RULE, ["low0-0"]),
        (A3, 16, [[2 * i] for i in range(8)], 2, A3_RULE, ["low0-0"]),
        (A3, 16, [[i] for i in range(16)], 2, A3_RULE, ["low0-0", "low1-0"]),
        (A3, 16, [[i] for i in range(16)], 1, A3_RULE, ["low0-0"]),
        # meshes of four
        (worlds.A2_LABELS, 8, [[0, 1, 2, 3], [4, 5, 6], [7]], 3, {POLICY: "chip4-node8"}, ["low1-0"]),
        (worlds.A2_LABELS, 8, [[0, 1, 2, 3], [4, 5, 6], [7]], 4, {POLICY: "chip4-node8"}, ["low0-0"]),
    ],
)
def test_chips_are_freed_by_the_rules_of_the_families(
    labels: Any, chips: int, held: list[list[int]], want: int, annotations: Any, goes: list[str]
) -> None:
    """Scheduling within one node, by the rules of MindCluster's handlers (2.11 of its preemption at chip level)."""
    assert evicted(_on(labels, chips, held, want, annotations)) == goes


@pytest.mark.parametrize(
    ("want", "goes"), [(1, ["low4-0"]), (2, ["low4-0", "low5-0"]), (3, ["low0-0", "low1-0", "low2-0"])]
)
def test_few_chips_come_from_the_mesh_that_fits_them_best(want: int, goes: list[str]) -> None:
    """Mesh 0 could be freed whole, for a larger pod; in mesh 1 two chips are broken."""
    held = [[chip] for chip in range(6)]
    scope = _on(worlds.A2_LABELS, 8, held, want, {POLICY: "chip4-node8"}, broken=(6, 7))
    assert evicted(scope) == goes


def _two_queues(**spec: Any) -> list[dict[str, Any]]:
    return [queue("default", **{"reclaimable": True, **spec}), queue("serve", reclaimable=False)]


def _serve(count: int = 1, each: int = 8, name: str = "want") -> Any:
    return wanting(name=name, count=count, each=each, queue="serve")


def test_reclaim_takes_only_what_exceeds_the_share() -> None:
    jobs = [running(f"t{i}", [(f"n{i}", range(8))], since=60 + i) for i in range(4)]
    scope = planned(*jobs, _serve(), nodes=4, objects=_two_queues(), desired=placing.shipped())
    (action,) = (a for a in scope.actions if isinstance(a, EvictPod))
    assert (action.pod, action.reason, action.evidence.rule) == ("t0-0", "Reclaimed", "queue default reclaimable")
    scope = planned(*jobs, _serve(count=2), nodes=4, objects=_two_queues(), desired=placing.shipped())
    assert evicted(scope) == ["t0-0", "t1-0"]
    scope = planned(*jobs, _serve(count=3), nodes=4, objects=_two_queues(), desired=placing.shipped())
    assert not evicted(scope), "three of four nodes are more than the queue deserves"
    scope = planned(*jobs, _serve(count=3), nodes=4, objects=_two_queues(deserved={"huawei.com/Ascend910": "8"}),
                    desired=placing.shipped())  # fmt: skip
    assert len(evicted(scope)) == 3, "the other queue states that it deserves less"


@pytest.mark.parametrize(
    ("spec", "victim"),
    [
        ({"reclaimable": False}, {}),
        ({"reclaimable": None}, {}),
        ({}, {"annotations": {"volcano.sh/preemptable": "false"}}),
        ({}, {"annotations": {"volcano.sh/reclaimable": "false"}}),
    ],
)
def test_reclaim_needs_a_rule_that_allows_it(spec: Any, victim: Any) -> None:
    job = running("t", [("n0", range(8)), ("n1", range(8))], **victim)
    assert not evicted(planned(job, _serve(), nodes=2, objects=_two_queues(**spec), desired=placing.shipped()))


def test_nothing_is_reclaimed_from_a_queue_within_its_share() -> None:
    job, own = running("t", [("n0", range(8))]), running("s", [("n1", range(8))], queue="serve")
    scope = planned(job, own, _serve(), nodes=2, objects=_two_queues(), desired=placing.shipped())
    assert not evicted(scope)


def test_a_job_asked_about_gets_its_way_out() -> None:
    """Only a few stuck jobs of a pass get the sentence unasked; the job asked about always gets it."""
    lows = [running(f"low{i}", [(f"n{i}", range(8))], priorityClassName="low", since=40) for i in range(6)]
    wants = [wanting(name=f"w{i}") for i in range(6)]

    def explained(about: str) -> dict[str, tuple[str, ...]]:
        pods = [pod for rows, _ in [*lows, *wants] for pod in rows]
        world = worlds.world(6, pods=pods, objects=[*(row for _, row in [*lows, *wants]), *CLASSES])
        found = plan(placing.shipped(), world, worlds.NOW, about=about)
        told = [row for row in found.pending if "would free enough; no queue" in (row.unblock or "")]
        return {row.name: row.near for row in told}

    assert explained("").keys() == {"w0", "w1", "w2"}
    for name in ("w5", "train/w5", "w5-0", "train/w5-0"):
        (where,) = explained(name)["w5"]  # the node of the job that would make way
        assert where in {f"n{i}" for i in range(6)}


def _without_chips(name: str, cpus: int, cls: str, *, on: str = "", **more: Any) -> Any:
    notes = {GROUP: name}
    pod = worlds.pod(f"{name}-0", node=on, annotations=notes, requests={"cpu": cpus * 1000}, **more)
    return [pod], group_of(name, 1, annotations={POLICY: ""}, priorityClassName=cls)


def test_jobs_without_chips_evict_for_other_resources() -> None:
    """A node has 192 cores; the cheapest victims that free enough of them go."""
    rows = [_without_chips("a", 50, "low", on="n0"), _without_chips("b", 60, "low", on="n0")]
    scope = planned(*rows, _without_chips("want", 140, "high"), objects=CLASSES)
    assert evicted(scope) == ["b-0"] and "room is being made" in (scope.pending[0].unblock or "")
    assert scope.pending[0].remedy == Remedy(Step.WAIT), "the step says what the sentence says"
    refused = planned(*rows, _without_chips("want", 140, "high"), objects=CLASSES, desired=placing.shipped())
    assert not evicted(refused)
    assert refused.pending[0].unblock == "needs cpu on a node: end work that takes it, for example on n0"
    never = planned(*rows, _without_chips("want", 193, "high"), objects=CLASSES)
    assert not evicted(never) and (never.pending[0].unblock or "").startswith("ask for less cpu")


@pytest.mark.parametrize(
    ("where", "spared"),
    [({"namespace": "kube-system"}, True), ({"namespace": "train"}, False)],
)
def test_pods_that_the_cluster_needs_stay(where: dict[str, str], spared: bool) -> None:
    vital = worlds.pod("vital", node="n0", chips=range(8), priority=10, **where)
    scope = planned(([vital], group_of("other", 1)), wanting(), objects=CLASSES)
    assert evicted(scope) == ([] if spared else ["vital"])
    marked = placing.edited(vital, namespace="train", priority_class="system-node-critical")
    assert evicted(planned(([marked], group_of("other", 1)), wanting(), objects=CLASSES)) == []


def _with_cpu(name: str, cpus: int, cls: str, chips: int = 1, *, held: range | None = None, on: str = "n0") -> Any:
    requests = {"cpu": cpus * 1000}
    if held is not None:
        pods, group = running(name, [(on, held)], priorityClassName=cls)
    else:
        pods, group = gang(1, chips, name=name, annotations=A2)
        group["spec"]["priorityClassName"] = cls
    return [placing.edited(pod, requests={**pod.requests, **requests}) for pod in pods], group


@pytest.mark.parametrize(
    ("rows", "goes"),
    [
        # a node has 192 cores and 8 chips; the job wants 2 chips and 100 cores
        ([_without_chips("a", 50, "low", on="n0"), _without_chips("b", 60, "low", on="n0")], ["a-0"]),
        ([_without_chips("a", 20, "low", on="n0"), _without_chips("b", 90, "low", on="n0")], ["a-0"]),
        ([_without_chips("a", 2, "low", on="n0"), _without_chips("b", 95, "low", on="n0")], ["b-0"]),
        ([_without_chips("a", 120, "high", on="n0")], []),  # no pod there has lower priority
        ([_with_cpu("a", 120, "low", held=range(2))], ["a-0"]),
        # both are short on one node: the chips' holder frees chips, the other one cores
        ([_with_cpu("a", 40, "low", held=range(7)), _without_chips("b", 80, "low", on="n0")], ["a-0"]),
        ([_with_cpu("a", 2, "low", held=range(7)), _without_chips("b", 95, "low", on="n0")], ["a-0", "b-0"]),
        ([_with_cpu("a", 2, "high", held=range(7)), _without_chips("b", 95, "low", on="n0")], []),
    ],
)
def test_jobs_with_chips_evict_for_other_resources_too(rows: Any, goes: list[str]) -> None:
    """Preemption covers every resource of the pod, with the cheapest victims."""
    scope = planned(*rows, _with_cpu("want", 100, "high", 2), objects=CLASSES)
    assert evicted(scope) == goes
    assert not any(isinstance(action, BindPod) for action in scope.actions)
    assert ("room is being made" in (scope.pending[0].unblock or "")) == bool(goes)


def test_cores_are_reclaimed_for_jobs_with_chips() -> None:
    """A queue above its share of cores gives some back to a job whose chips are free."""
    pods = [_without_chips(f"v{i}", 60, "low", on="n0") for i in range(3)]
    for _, group in pods:
        group["spec"]["queue"] = "other"
    want = _with_cpu("want", 60, "low", 2)
    queues = [queue("other", reclaimable=True), queue()]
    scope = planned(*pods, want, objects=[*CLASSES, *queues], desired=placing.shipped())
    assert evicted(scope) == ["v0-0"]
    kept = [queue("other", reclaimable=False), queue()]
    assert not evicted(planned(*pods, want, objects=[*CLASSES, *kept], desired=placing.shipped()))


def _crowd(nodes: int, stuck: int) -> list[Any]:
    """Nodes full of small low-priority jobs, and many equal jobs that each need the chips of three of them."""
    rows = [_without_chips(f"v{n:02d}-{i}", 48, "low", on=f"n{n}") for n in range(nodes) for i in range(4)]
    return rows + [_without_chips(f"want{k:03d}", 100, "high") for k in range(stuck)]


def test_many_stuck_jobs_get_room_in_one_pass() -> None:
    """Answers about a node from one job's search serve the next, so that the effort of a pass goes far."""
    crowd = _crowd(60, 60)
    pods = [pod for rows, _ in crowd for pod in rows]
    world = worlds.world(60, pods=pods, objects=[*(group for _, group in crowd), *CLASSES])
    scope = scope_of(world, desired=allowing())
    gone = evicted(scope)
    assert len(gone) >= 3 * 40 and len(set(gone)) == len(gone)
    by_node: dict[str, int] = {}
    for name in gone:
        by_node[name[:3]] = by_node.get(name[:3], 0) + 1
    assert set(by_node.values()) == {3}


def test_a_hopeless_search_is_made_once_for_jobs_of_the_same_request() -> None:
    """Jobs that no eviction helps leave effort for others: the last one gets its chips."""
    big = [_without_chips(f"big{k:03d}", 150, "high") for k in range(80)]
    rows = [_without_chips(f"v{n:02d}", 100, "mid", on=f"n{n}") for n in range(40)]
    rows += [_without_chips(f"s{n:02d}-{i}", 40, "low", on=f"n{n}") for n in range(40) for i in range(2)]
    mid = priority("mid", 1000)
    small = _without_chips("want", 90, "high")
    small[1]["metadata"]["creationTimestamp"] = "2026-09-01T07:59:00Z"
    crowd = [*rows, *big, small]
    world = worlds.world(
        40, pods=[p for pods, _ in crowd for p in pods], objects=[*(g for _, g in crowd), *CLASSES, mid]
    )
    assert len(evicted(scope_of(world, desired=allowing()))) == 2


def test_scanning_many_candidates_costs_effort_and_the_next_pass_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many jobs wait, a pass ends soon: some get chips now, others in the next pass."""
    crowd = _crowd(40, 40)
    world = worlds.world(
        40, pods=[pod for rows, _ in crowd for pod in rows], objects=[*(group for _, group in crowd), *CLASSES]
    )
    monkeypatch.setattr(what_if, "EFFORT", 3000)
    monkeypatch.setattr(what_if, "SCANS_PER_EFFORT", 1_000_000)
    free = len(evicted(scope_of(world, desired=allowing())))
    monkeypatch.setattr(what_if, "SCANS_PER_EFFORT", 1)
    assert len(evicted(scope_of(world, desired=allowing()))) < free
    first = scope_of(world, desired=allowing())
    first.run("safety")
    assert 0 < len(evicted(first)) < 3 * 40
    left = [pod for rows, _ in crowd for pod in rows if pod.name not in evicted(first)]
    world = worlds.world(
        40, pods=left, objects=[*(group for _, group in crowd), *CLASSES], history=first.memory.frozen()
    )
    second = scope_of(world, desired=allowing())
    placed = {action.pod for action in second.actions if isinstance(action, BindPod)}
    assert len(placed) == len(evicted(first)) // 3 and evicted(second), "room that was made is used, and more is made"
