"""The order of placement, and gangs that wait for a queue or for missing pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from belay.engine.documents import Declared, NodePool
from belay.engine.model.actions import DeleteObject, EvictPod
from belay.engine.model.diagnostics import Origin
from belay.engine.model.times import rfc3339
from belay.engine.plan.queue.missing_pods import FORMING_SECONDS
from tests import placing, worlds
from tests.placing import POLICY, gang, nodes_of, scope_of

A2 = {POLICY: "chip8-node8"}


def _world(*gangs: Any, nodes: int = 1, more: Any = (), extra: Any = ()) -> Any:
    pods = [pod for pods, _ in gangs for pod in pods]
    return worlds.world(nodes, pods=[*pods, *extra], objects=[group for _, group in gangs] + list(more))


def _queue(name: str = "default", *, state: str = "Open", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"weight": 1, **spec},
        "status": {"state": state},
    }


def _first(*gangs: Any, **world: Any) -> str:
    return next(iter(nodes_of(scope_of(_world(*gangs, **world)))))


def test_priority_then_age_then_key() -> None:
    old, young = gang(1, 8, name="b", annotations=A2), gang(1, 8, name="a", annotations=A2)
    for (_, group), moment in ((old, "2026-09-01T07:00:00Z"), (young, "2026-09-01T07:30:00Z")):
        group["metadata"]["creationTimestamp"] = moment
    assert _first(old, young) == "b-0"
    young[1]["spec"]["priorityClassName"] = "high"
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    assert _first(old, young, more=[high]) == "a-0"
    old[1]["metadata"]["creationTimestamp"] = young[1]["metadata"]["creationTimestamp"]
    young[1]["spec"].pop("priorityClassName")
    assert _first(old, young) == "a-0"


def test_fragile_jobs_and_fewer_dequeues_come_first() -> None:
    wide = gang(3, 1, name="a", annotations=A2, least=1)
    running = [
        worlds.pod(f"a-{i}", node="n1", chips=[i], rank=i, annotations=dict(wide[0][0].annotations)) for i in (0, 1)
    ]
    wide = ([wide[0][2]], wide[1])
    fresh = gang(1, 8, name="b", annotations=A2)
    scope = scope_of(_world(wide, fresh, nodes=2, extra=running))
    assert scope.queue == ["train/PodGroup/b", "train/PodGroup/a"]
    tired = gang(1, 8, name="a", annotations={**A2, "huawei.com/schedule_dequeue_frequency": "2"})
    unreadable = gang(1, 8, name="b", annotations={**A2, "huawei.com/schedule_dequeue_frequency": "x"})
    assert _first(tired, unreadable) == "a-0", "neither comes first for its dequeues: age and key decide"


def test_a_count_of_dequeues_that_cannot_be_read_leaves_the_order_to_age() -> None:
    rows = {"a": ("2", "07:30"), "b": ("x", "07:00"), "c": ("1", "07:50"), "d": (None, "07:55")}
    gangs = []
    for name, (text, moment) in rows.items():
        notes = A2 if text is None else {**A2, "huawei.com/schedule_dequeue_frequency": text}
        pods, group = gang(1, 8, name=name, annotations=notes)
        group["metadata"]["creationTimestamp"] = f"2026-09-01T{moment}:00Z"
        gangs.append((pods, group))
    a, b, c, d = gangs
    assert _order(a, b) == "ba" and _order(b, c) == "bc" and _order(a, c, d) == "dca" and _order(d, b) == "bd"
    assert _order(*gangs) == _order(*reversed(gangs)), "whatever order they are found in"


def _order(*gangs: Any) -> str:
    return "".join(key[-1] for key in scope_of(_world(*gangs)).queue)


def test_a_terminating_pod_makes_a_job_no_less_fragile() -> None:
    waiting, groups, running = [], [], []
    for name, going in (("a", True), ("b", False)):
        pods, group = gang(3, 1, name=name, annotations=A2, least=1)
        waiting.append(pods[-1])
        groups.append(group)
        notes = dict(pods[0].annotations)
        chips = range(2) if going else range(2, 4)
        running += [
            worlds.pod(f"{name}-{i}", node="n0", chips=[chip], rank=i, annotations=notes)
            for i, chip in enumerate(chips)
        ]
    running[0] = placing.edited(running[0], deleting=worlds.NOW + 10)
    scope = scope_of(worlds.world(1, pods=[*waiting, *running], objects=groups))
    assert scope.queue == ["train/PodGroup/a", "train/PodGroup/b"]
    running[0] = placing.edited(running[0], deleting=None)
    groups[0]["metadata"]["creationTimestamp"] = "2026-09-01T07:50:00Z"
    groups[1]["metadata"]["creationTimestamp"] = "2026-09-01T07:00:00Z"
    scope = scope_of(worlds.world(1, pods=[*waiting, *running], objects=groups))
    assert scope.queue == ["train/PodGroup/b", "train/PodGroup/a"], "both have a pod to spare"


def test_a_fragile_job_comes_before_one_with_spare_pods() -> None:
    """``ready <= minAvailable`` is fragile: its next pod comes before further spare pods of a smaller job."""
    rows = {"a": (2, 1, range(1)), "b": (2, 2, range(4))}
    waiting, groups, running = [], [], []
    for name, (count, least, chips) in rows.items():
        pods, group = gang(count + 1, 1, name=name, annotations=A2, least=least)
        waiting.append(pods[-1])
        groups.append(group)
        running += [
            worlds.pod(f"{name}-{i}", node=f"n{i}", rank=i, annotations=dict(pods[i].annotations),
                       chips=[chip + (1 if name == "b" else 0) for chip in chips])
            for i in range(count)
        ]  # fmt: skip
    scope = scope_of(worlds.world(2, pods=[*running, *waiting], objects=groups))
    assert scope.queue == ["train/PodGroup/b", "train/PodGroup/a"]


@pytest.mark.parametrize(
    ("queues", "name", "reason"),
    [
        ([], "anything", None),
        ([_queue("other")], "default", None),
        ([_queue()], "gone", "QueueNotFound"),
        ([_queue(state="Closed")], "default", "QueueNotOpen"),
        ([_queue("root")], "root", "QueueNotOpen"),
        ([_queue("top"), _queue("leaf", parent="top")], "top", "QueueNotOpen"),
        ([_queue("top"), _queue("leaf", parent="top")], "leaf", None),
        ([_queue(capability={"cpu": "much"})], "default", "QueueNotOpen"),
    ],
)
def test_queues_must_exist_be_open_and_be_leaves(queues: Any, name: str, reason: str | None) -> None:
    pods, group = gang(1, 8, annotations=A2)
    group["spec"]["queue"] = name
    scope = scope_of(_world((pods, group), more=queues))
    assert [entry.reason for entry in scope.pending] == ([reason] if reason else [])
    assert len(scope.actions) == (0 if reason else 1)


def test_capability_counts_running_and_just_placed_pods() -> None:
    queue = _queue(capability={"huawei.com/Ascend910": "16"})
    first, second = gang(1, 8, name="a", annotations=A2), gang(1, 8, name="b", annotations=A2)
    _, running_group = gang(1, 4, name="r", annotations=A2)
    running = [worlds.pod("r-0", node="n2", chips=range(4), annotations={placing.GROUP: "r"})]
    scope = scope_of(_world(first, second, nodes=3, more=[queue, running_group], extra=running))
    assert list(nodes_of(scope)) == ["a-0"]
    (entry,) = scope.pending
    assert entry.reason == "QueueExhausted" and "used 12 + requested 8 > capability 16" in entry.message
    assert entry.unblock is not None and "by 4 huawei.com/Ascend910" in entry.unblock


def test_settings_declare_queues_too() -> None:
    settings = placing.with_settings(queues=[{"name": "default", "capability": {"huawei.com/Ascend910": 4}}])
    scope = scope_of(_world(gang(1, 8, annotations=A2)), desired=settings)
    assert scope.pending[0].reason == "QueueExhausted"


def test_missing_pods_hold_a_gang_back() -> None:
    pods, group = gang(3, 1, annotations=A2)
    scope = scope_of(_world((pods[:2], group)))
    (entry,) = scope.pending
    assert entry.reason == "GangIncomplete" and "the pods of job is not enough, req: 3, actual: 2" in entry.message
    assert entry.unblock is not None and entry.unblock.startswith("1 more pod")
    done = placing.edited(pods[2], phase="Succeeded", node="n0")
    assert len(scope_of(_world((pods[:2], group), extra=[done])).actions) == 2
    leaving = worlds.pod("case-2", node="n0", chips=[0], deleting=worlds.NOW, annotations=dict(pods[2].annotations))
    assert not scope_of(_world((pods[:2], group), extra=[leaving])).actions


def test_gated_pods_wait_for_their_gate_and_hold_their_gang_back() -> None:
    pods, group = gang(2, 1, annotations=A2)
    gated = [pods[0], placing.edited(pods[1], gates=("example.org/hold",))]
    scope = scope_of(_world((gated, group)))
    assert not nodes_of(scope) and scope.pending[0].message.endswith("req: 2, actual: 1")
    assert scope.pending[0].pods == ("case-0",)
    smaller = {**group, "spec": {**group["spec"], "minMember": 1}}
    assert sorted(nodes_of(scope_of(_world((gated, smaller))))) == ["case-0"]


def test_evicted_pods_of_this_pass_do_not_count() -> None:
    pods, group = gang(2, 1, annotations=A2)
    bound = worlds.pod("case-1", node="n0", chips=[0], annotations=dict(pods[1].annotations))
    world = _world(([pods[0]], group), extra=[bound])
    assert len(scope_of(world).actions) == 1
    assert not scope_of(world, evicting={"train/case-1"}).actions


def test_the_message_of_a_deployment_counts_missing_replicas() -> None:
    pod = worlds.pod("d-5f-a", count=1, owner=("ReplicaSet", "d-5f"), owner_api="apps/v1", annotations=dict(A2))
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": "train", "name": "d"},
        "spec": {"replicas": 2},
    }
    hashed = placing.edited(pod, labels={"pod-template-hash": "5f"})
    scope = scope_of(worlds.world(1, pods=[hashed], objects=[deployment]))
    assert "job d task num 1 less than replicas 2" in scope.pending[0].message


def test_an_unreadable_minimum_is_named() -> None:
    pods, group = gang(1, 1, annotations={**A2, "huawei.com/schedule_minAvailable": "many"})
    (entry,) = scope_of(_world((pods, group))).pending
    assert entry.reason == "InvalidRequest" and "task minAvailable many is invalid" in entry.message


def test_scheduling_can_be_switched_off() -> None:
    scope = scope_of(_world(gang(1, 1, annotations=A2)), desired=placing.with_settings(roles={"schedule": "off"}))
    assert not scope.actions and not scope.pending


def test_other_scheduler_names_come_from_the_settings() -> None:
    pods, group = gang(1, 1, annotations=A2, scheduler="mine")
    assert not scope_of(_world((pods, group))).actions
    assert scope_of(_world((pods, group)), desired=placing.with_settings(schedulerNames=["mine"])).actions


def test_requests_beyond_the_free_chips_are_reported_in_known_words() -> None:
    scope = scope_of(_world(gang(2, 8, annotations=A2)))
    assert "; require npu num is 16, but cluster npu num is 8; " in scope.pending[0].message


def test_a_gang_belongs_to_one_shard() -> None:
    def pool(name: str, shard: str, zone: str) -> Declared[NodePool]:
        spec = {"selector": {"matchLabels": {"zone": zone}}, "shard": shard}
        body = {"apiVersion": "belay.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}
        return Declared(NodePool.model_validate(body), Origin("pools.yaml"))

    desired = replace(placing.shipped(), pools=(pool("a", "main", "a"), pool("b", "west", "b")))
    nodes = [worlds.node(f"n-{zone}", labels={**worlds.A2_LABELS, "zone": zone}) for zone in "ab"]
    reports = [worlds.report(node.name) for node in nodes]

    def placed(pods: Any, group: Any, shard: str) -> dict[str, str]:
        world = worlds.observed(nodes, reports, pods, objects=[group])
        return nodes_of(scope_of(world, desired=desired, shard=shard))

    anywhere = gang(1, 1, annotations=A2)
    assert placed(*anywhere, "main") == {"case-0": "n-a"} and placed(*anywhere, "west") == {}
    selected = gang(1, 1, annotations=A2, node_selector={"zone": "b"})
    assert placed(*selected, "west") == {"case-0": "n-b"} and placed(*selected, "main") == {}
    labelled = gang(1, 1, annotations=A2, labels={"belay.dev/shard": "west"})
    assert placed(*labelled, "west") == {"case-0": "n-b"} and placed(*labelled, "main") == {}


def test_pods_that_this_pass_deletes_are_not_placed() -> None:
    pods, group = gang(2, 1, annotations=A2, least=1)
    gone = DeleteObject(
        reason="Finished", message="", api_version="v1", object_kind="Pod", namespace="train", name="case-0"
    )
    scope = scope_of(_world((pods, group)), actions=[gone])
    assert list(nodes_of(scope)) == ["case-1"]


def test_queues_take_turns_by_their_share() -> None:
    """Weights 3:1 over four nodes: three gangs of one queue for one of the other, whatever their names."""
    jobs = [gang(1, 8, name=f"{letter}{i}", annotations=A2) for letter in "ab" for i in range(4)]
    for (_, group), name in zip(jobs, ["light"] * 4 + ["heavy"] * 4, strict=True):
        group["spec"]["queue"] = name
    scope = scope_of(_world(*jobs, nodes=4, more=[_queue("light"), _queue("heavy", weight=3)]))
    assert sorted(nodes_of(scope)) == ["a0-0", "b0-0", "b1-0", "b2-0"]


def test_a_queue_uses_what_other_queues_do_not_need() -> None:
    jobs = [gang(1, 8, name=f"a{i}", annotations=A2) for i in range(4)]
    scope = scope_of(_world(*jobs, nodes=4, more=[_queue("default"), _queue("idle", weight=9)]))
    assert len(nodes_of(scope)) == 4


def test_queue_priority_comes_before_shares_and_job_priority_within_a_queue() -> None:
    low, high = gang(1, 8, name="a", annotations=A2, priority=10), gang(1, 8, name="b", annotations=A2)
    low[1]["spec"]["queue"], high[1]["spec"]["queue"] = "low", "high"
    assert _first(low, high, more=[_queue("low"), _queue("high", priority=1)]) == "b-0"
    assert _first(low, high, more=[_queue("low"), _queue("high")]) == "b-0", "queue names are the last tie"
    high[1]["spec"]["queue"] = "low"
    assert _first(low, high, more=[_queue("low")]) == "a-0"


def test_a_running_gangs_extras_wait_behind_new_gangs_of_equal_priority() -> None:
    """Dominant resource fairness: of two elastic jobs beyond their minimum, the smaller one grows first."""
    objects, extra, waiting = [], [], []
    for name, running in (("a", 4), ("b", 2)):
        pods, group = gang(running + 1, 1, name=name, annotations=A2, least=1)
        objects.append(group)
        extra += [
            placing.edited(worlds.pod(f"{name}-{i}", node="n0", chips=[i + (4 if name == "b" else 0)], rank=i,
                                      annotations=dict(pods[i].annotations)))
            for i in range(running)
        ]  # fmt: skip
        waiting.append(pods[-1])
    scope = scope_of(worlds.world(2, pods=[*extra, *waiting], objects=objects))
    assert scope.queue == ["train/PodGroup/b", "train/PodGroup/a"]


def test_extras_stay_within_the_capability() -> None:
    pods, group = gang(3, 8, annotations=A2, least=1)
    scope = scope_of(_world((pods, group), nodes=4, more=[_queue(capability={"huawei.com/Ascend910": 16})]))
    assert sorted(nodes_of(scope)) == ["case-0", "case-1"]
    (entry,) = scope.pending
    assert (entry.reason, entry.pods) == ("QueueExhausted", ("case-2",))
    assert "used 16 + requested 8 > capability 16" in entry.message


@pytest.mark.parametrize(("nodes", "waits"), [(1, ("case-1", "case-2")), (0, ("case-0", "case-1", "case-2"))])
def test_extras_beyond_the_capability_are_pending_with_those_without_a_node(nodes: int, waits: Any) -> None:
    pods, group = gang(3, 8, annotations=A2, least=1)
    scope = scope_of(_world((pods, group), nodes=nodes, more=[_queue(capability={"huawei.com/Ascend910": 16})]))
    (entry,) = scope.pending
    assert len(nodes_of(scope)) == nodes and entry.pods == waits


def test_a_parents_capability_holds_for_its_children_together() -> None:
    jobs = [gang(1, 8, name=name, annotations=A2) for name in "ab"]
    for (_, group), name in zip(jobs, ("left", "right"), strict=True):
        group["spec"]["queue"] = name
    top = _queue("top", capability={"huawei.com/Ascend910": 8})
    scope = scope_of(_world(*jobs, nodes=3, more=[top, _queue("left", parent="top"), _queue("right", parent="top")]))
    assert sorted(nodes_of(scope)) == ["a-0"]
    assert "queue top has insufficient quota" in scope.pending[0].message


def test_a_guarantee_is_kept_from_other_queues() -> None:
    jobs = [gang(1, 8, name=name, annotations=A2) for name in "ab"]
    mine = _queue("mine", guarantee={"resource": {"huawei.com/Ascend910": "8"}})
    scope = scope_of(_world(*jobs, nodes=2, more=[_queue(), mine]))
    assert sorted(nodes_of(scope)) == ["a-0"] and scope.pending[0].reason == "QueueExhausted"
    assert "> 8 that the guarantees of other queues leave" in scope.pending[0].message
    assert (scope.pending[0].unblock or "").startswith("lower the guarantees of other queues by 8 huawei.com/Ascend910")


def test_pods_that_request_nothing_come_last_and_need_no_quota() -> None:
    bare = placing.edited(worlds.pod("aaa", count=0), requests={})
    queue = _queue(capability={"huawei.com/Ascend910": 0})
    scope = scope_of(_world(gang(1, 8, annotations=A2), extra=[bare], more=[queue]))
    assert scope.queue[-1] == "train/Pod/aaa"
    assert sorted(nodes_of(scope)) == ["aaa"] and scope.pending[0].reason == "QueueExhausted"


@pytest.mark.parametrize(
    ("replicas", "least", "stated", "phase", "placed"),
    [
        # two nodes of eight chips, one of them free; pods of four chips
        (1, 1, 16, "", 0),  # the group states more than is free, whatever its pods ask for
        (1, 1, 16, "Pending", 0),
        (1, 1, 8, "", 1),
        (1, 1, 16, "Inqueue", 1),  # it was let in before
        (4, 2, 16, "", 0),  # room for pods to come, stated by people
        (3, 1, 24, "", 0),  # more than its pods ask for
        (4, 2, 12, "", 0),  # stated by its owner
        (2, 2, 8, "", 2),
    ],
)
def test_a_pod_group_is_let_in_once_its_stated_chips_are_free(
    replicas: int, least: int, stated: int, phase: str, placed: int
) -> None:
    pods, group = gang(replicas, 4, annotations=A2, least=least)
    group["spec"]["minResources"] = {"huawei.com/Ascend910": str(stated)}
    group["status"] = {"phase": phase} if phase else {}
    busy = gang(1, 8, name="busy", annotations=A2)
    held = worlds.pod("busy-0", node="n1", chips=range(8), annotations=dict(busy[0][0].annotations))
    scope = scope_of(_world((pods, group), ([held], busy[1]), nodes=2))
    assert len(nodes_of(scope)) == placed
    if not placed:
        assert scope.pending[0].reason == "JobEnqueueFailed"
        assert scope.pending[0].message.endswith(f"; require npu num is {stated}, but cluster npu num is 8")


@pytest.mark.parametrize(("stated", "placed"), [(16, 2), (12, 0)])
def test_a_sum_over_all_replicas_by_the_operator_of_a_job_that_may_start_with_two_is_no_wish(
    stated: int, placed: int
) -> None:
    pods, group = gang(4, 4, annotations=A2, least=2)
    job = {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "name": "case", "uid": "u", "controller": True}
    group["metadata"]["ownerReferences"] = [job]
    group["spec"]["minResources"] = {"huawei.com/Ascend910": str(stated)}
    assert len(nodes_of(scope_of(_world((pods, group))))) == placed


def test_a_pod_group_short_of_chips_for_its_pods_is_explained_by_nodes() -> None:
    pods, group = gang(2, 8, annotations=A2)
    group["spec"]["minResources"] = {"huawei.com/Ascend910": "16"}
    entry = scope_of(_world((pods, group))).pending[0]
    assert entry.reason == "NPUResourceShortage" and entry.nodes
    assert "; require npu num is 16, but cluster npu num is 8; 0/1 nodes are available" in entry.message


def test_preemption_frees_what_a_pod_group_states() -> None:
    """Preemption frees the chips that the PodGroup waits for, and no more."""
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    pods, group = gang(1, 4, name="want", annotations=A2)
    group["spec"] |= {"minResources": {"huawei.com/Ascend910": "12"}, "priorityClassName": "high"}
    rows = []
    for index in range(2):
        low = gang(1, 4, name=f"low{index}", annotations=A2)
        notes = dict(low[0][0].annotations)
        held = worlds.pod(f"low{index}-0", node="n0", chips=range(4 * index, 4 * index + 4), annotations=notes)
        rows.append(([held], low[1]))
    desired = placing.with_settings(queues=[{"name": "default", "preemptable": True}])
    scope = scope_of(_world((pods, group), *rows, nodes=2, more=[high]), desired=desired)
    assert [action.pod for action in scope.actions if isinstance(action, EvictPod)] == ["low0-0"]


def test_a_gang_whose_pods_never_come_says_since_when_and_which_lack() -> None:
    pods, group = gang(4, 1, annotations=A2)
    newest = worlds.NOW - FORMING_SECONDS
    there = [placing.edited(pod, created=newest) for pod in (pods[0], pods[2])]
    young = placing.edited(there[1], created=newest + 1)
    (soon,) = scope_of(_world(([there[0], young], group))).pending
    assert soon.reason == "GangIncomplete" and soon.message.startswith("NotEnoughPod")

    scope = scope_of(_world((there, group)))
    (entry,) = scope.pending
    assert entry.reason == "GangIncomplete" and not nodes_of(scope)
    assert f"no pod came since {rfc3339(newest)}" in entry.message, entry.message
    assert "missing of numbers 0-3: 1, 3; NotEnoughPod" in entry.message and "actual: 2" in entry.message
    assert entry.unblock is not None and "delete the job, or let it state a lower minimum" in entry.unblock

    many = {**group, "spec": {**group["spec"], "minMember": 10**12}}
    (entry,) = scope_of(_world((there, many))).pending
    assert "missing of numbers 0-999999999999: 1, 3-999999999999; NotEnoughPod" in entry.message

    bare = {key: text for key, text in there[0].annotations.items() if key != "hccl/rankIndex"}
    plain = [placing.edited(pod, annotations=bare) for pod in there]
    (entry,) = scope_of(_world((plain, group))).pending
    assert "there are case-0, case-2" in entry.message, entry.message
    assert scope_of(_world((pods, group))).pending == [], "the last ones still come"


def test_a_gang_that_is_held_by_gates_names_them_and_never_counts_as_late() -> None:
    pods, group = gang(2, 1, annotations=A2)
    queue = {"kueue.x-k8s.io/queue-name": "team"}
    held = [placing.edited(pod, gates=("kueue.x-k8s.io/admission",), labels={**pod.labels, **queue}) for pod in pods]
    (entry,) = scope_of(_world((held, group))).pending
    assert entry.reason == "SchedulingGated" and "kueue.x-k8s.io/admission" in entry.message
    assert entry.unblock is not None and "LocalQueue team" in entry.unblock

    (entry,) = scope_of(_world(([pods[0], held[1]], group))).pending
    assert entry.reason == "GangIncomplete" and entry.unblock is not None
    assert "1 pod of it is there, but held by scheduling gates: kueue.x-k8s.io/admission" in entry.unblock
