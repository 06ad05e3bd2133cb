"""Whole gangs on nodes: all or nothing, which node, which chips, the message when there is no place."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from belay.engine.documents import Declared, NodePool
from belay.engine.model.actions import Preconditions
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import Origin
from belay.engine.model.history import History, JobMemory
from belay.engine.plan.recover.outcome import NodeRefusal
from tests import placing, worlds
from tests.placing import POLICY, bindings, busy, chips_of, edited, gang, nodes_of, scope_of
from tests.simworld import INFER


def _world(free: dict[str, int], *more: Pod, objects: Any = (), **fields: Any) -> Any:
    """Nodes of 8 chips, of which so many (the highest ids) are free, plus pods."""
    names = sorted(free)
    pods = [busy(name, range(8 - free[name])) for name in names if free[name] < 8]
    nodes, reports = [worlds.node(name) for name in names], [worlds.report(name) for name in names]
    return worlds.observed(nodes, reports, [*pods, *more], objects=objects, **fields)


A2 = {POLICY: "chip8-node8"}


def test_a_gang_is_placed_whole_with_its_annotations() -> None:
    pods, group = gang(2, 8, annotations=A2)
    scope = scope_of(_world({"n0": 8, "n1": 8}, *pods, objects=[group]))
    bound = bindings(scope)
    assert nodes_of(scope) == {"case-0": "n0", "case-1": "n1"}
    assert bound["case-0"].chips == tuple(f"Ascend910-{i}" for i in range(8))
    notes = bound["case-0"].annotations
    assert notes["distributed-job"] == "true"
    assert notes["huawei.com/Ascend910"] == notes["huawei.com/AscendReal"] == ",".join(bound["case-0"].chips)
    assert bound["case-0"].preconditions == Preconditions(uid=pods[0].uid)
    assert bound["case-0"].gang == "train/PodGroup/case"
    assert notes["predicate-time"] == bound["case-1"].annotations["predicate-time"] == f"{int(worlds.NOW)}000000000"
    assert not scope.pending


def test_nothing_of_a_gang_is_placed_when_one_pod_has_no_room() -> None:
    pods, group = gang(3, 8, annotations=A2)
    scope = scope_of(_world({"n0": 8, "n1": 8, "n2": 7}, *pods, objects=[group]))
    assert not scope.actions and not scope.scores
    (entry,) = scope.pending
    assert (entry.kind, entry.name, entry.reason, len(entry.pods)) == ("PodGroup", "case", "NPUResourceShortage", 3)
    assert entry.nodes == {"NPUResourceShortage": 3}
    assert "req<8>, idle<7>" in entry.message and "n2 with 7 free" in (entry.unblock or "")
    assert all(view.used.bit_count() in (0, 1) for view in scope.nodes.values())


def test_chips_that_the_gang_held_tentatively_are_reported_as_idle() -> None:
    """Three pods for two free servers: the assignments of the first two are undone, so the servers stay idle."""
    pods, group = gang(3, 8, annotations=A2)
    scope = scope_of(_world({"n0": 8, "n1": 8}, *pods, objects=[group]))
    (entry,) = scope.pending
    assert not scope.actions and all(not view.used for view in scope.nodes.values())
    assert "2 NPUResourceShortage: node don't have enough resource, req<8>, idle<8>, 8 of them for other pods" in (
        entry.message
    )
    assert "nearest is n0 with 0 free beside the job's other pods" in (entry.unblock or "")
    (alone,), single = gang(1, 8, annotations=A2)
    message = scope_of(_world({"n0": 3, "n1": 0}, alone, objects=[single])).pending[0].message
    assert "idle<3> (n0)" in message and "idle<0> (n1)" in message


def test_the_minimum_of_every_task_is_placed_before_spare_pods() -> None:
    """Two nodes for two workers and a master of a job that needs one of each: never two workers."""
    pods, group = gang(3, 8, annotations=A2, least=2)
    group["spec"]["minTaskMember"] = {"worker": 1, "master": 1}
    master = edited(pods[2], annotations={**pods[2].annotations, "volcano.sh/task-spec": "master"})
    scope = scope_of(_world({"n0": 8, "n1": 8}, *pods[:2], master, objects=[group]))
    assert nodes_of(scope) == {"case-0": "n0", "case-2": "n1"} and scope.pending[0].pods == ("case-1",)
    running = edited(master, node="n0", phase="Running", chips=tuple(f"Ascend910-{i}" for i in range(8)))
    scope = scope_of(_world({"n0": 8, "n1": 8}, *pods[:2], running, objects=[group]))
    assert nodes_of(scope) == {"case-0": "n1"}
    unplaced = scope_of(_world({"n0": 8}, *pods[:2], master, objects=[group]))
    assert not nodes_of(unplaced) and len(unplaced.pending[0].pods) == 3


def test_the_way_out_counts_missing_nodes_and_names_the_topology() -> None:
    """Four rings of four are wanted, two of three nodes have one left: two more are needed."""
    pods, group = gang(4, 4, annotations={})
    ring = {**worlds.A2_LABELS, "accelerator-type": "module"}
    names = ["n0", "n1", "n2"]
    held = [busy("n0", [0, 1, 2, 3]), busy("n1", [3, 4, 5, 6, 7]), busy("n2", [0, 1, 2, 4])]
    world = worlds.observed(
        [worlds.node(name, labels=ring) for name in names], [worlds.report(name) for name in names],
        [*held, *pods], objects=[group],
    )  # fmt: skip
    (entry,) = scope_of(world).pending
    assert entry.unblock is not None and entry.unblock.startswith(
        "needs 4 free chips in one ring for each of 3 more pods (nearest is n2 with 4 free, "
        "others held by tenants/busy-n2-0-1-2-4)"
    )
    pods, group = gang(4, 8, annotations=A2)
    (entry,) = scope_of(_world({"n0": 8, "n1": 8, "n2": 7}, *pods, objects=[group])).pending
    assert (entry.unblock or "").startswith("needs 8 free chips on 2 more nodes (nearest is n2 with 7 free")


def test_the_way_out_counts_what_task_minimums_lack() -> None:
    """Five workers must start: three nodes are missing, not one."""
    pods, group = gang(5, 8, annotations=A2, least=5)
    group["spec"]["minTaskMember"] = {"worker": 5}
    (entry,) = scope_of(_world({"n0": 8, "n1": 8, "n2": 7}, *pods, objects=[group])).pending
    assert (entry.unblock or "").startswith("needs 8 free chips on 3 more nodes")


def test_fuller_node_wins_then_name() -> None:
    pods, group = gang(1, 2, annotations=A2)
    scope = scope_of(_world({"n0": 8, "n1": 3, "n2": 3}, *pods, objects=[group]))
    assert nodes_of(scope) == {"case-0": "n1"}
    assert scope.scores == {"train/case-0": {"n0": 792.0, "n1": 797.0, "n2": 797.0}}
    assert chips_of(bindings(scope)["case-0"]) == [5, 6]


def test_pods_without_npu_are_placed_with_their_gang_and_take_no_chips() -> None:
    pods, group = gang(2, 8, annotations=A2)
    scheduler = worlds.pod(
        "case-s", count=0, annotations={placing.GROUP: "case", "volcano.sh/task-spec": "scheduler"}, rank=2
    )
    group["spec"]["minMember"] = 3
    scope = scope_of(_world({"n0": 8, "n1": 8}, *pods, scheduler, objects=[group]))
    assert len(scope.actions) == 3 and bindings(scope)["case-s"].chips == ()
    without_room = scope_of(_world({"n0": 8, "n1": 7}, *pods, scheduler, objects=[group]))
    assert not without_room.actions


def test_a_half_bound_gang_is_completed_with_the_rest_only() -> None:
    pods, group = gang(2, 8, annotations=A2)
    bound = worlds.pod("case-0", node="n1", chips=range(8), rank=0, annotations=dict(pods[0].annotations))
    scope = scope_of(_world({"n0": 8, "n1": 8}, bound, pods[1], objects=[group]))
    assert nodes_of(scope) == {"case-1": "n0"}
    assert bindings(scope)["case-1"].annotations["distributed-job"] == "true"


def test_a_claim_is_used_again_and_only_by_its_pod() -> None:
    pods, group = gang(1, 4, annotations=A2)
    ledger = {f"n1/Ascend910-{i}": pods[0].uid for i in (2, 3, 6, 7)}
    scope = scope_of(_world({"n0": 8, "n1": 8}, *pods, objects=[group], ledger=ledger))
    assert nodes_of(scope) == {"case-0": "n1"} and chips_of(bindings(scope)["case-0"]) == [2, 3, 6, 7]
    others, other_group = gang(1, 8, name="other", annotations=A2)
    ledger = {f"n0/Ascend910-{i}": pods[0].uid for i in range(8)}
    gated = placing.edited(pods[0], gates=("example.org/hold",))
    scope = scope_of(_world({"n0": 8}, gated, *others, objects=[group, other_group], ledger=ledger))
    assert not scope.actions


def test_a_shortage_by_claims_of_pods_that_have_gone_says_so() -> None:
    pods, group = gang(1, 8, annotations=A2)
    ledger = {f"n0/Ascend910-{chip}": "gone" for chip in range(4)}
    (entry,) = scope_of(_world({"n0": 8}, *pods, objects=[group], ledger=ledger)).pending
    assert "4 chips on 1 node, for example n0, stay claimed for pods that have gone" in entry.message
    assert entry.unblock == "wait half a minute: 4 chips on 1 node, for example n0, are free by then"
    (plain,) = scope_of(_world({"n0": 4}, *pods, objects=[group])).pending
    assert "claimed" not in plain.message


def test_minimum_lets_a_gang_start_without_its_extras() -> None:
    pods, group = gang(3, 8, annotations=A2, least=2)
    scope = scope_of(_world({"n0": 8, "n1": 8}, *pods, objects=[group]))
    assert sorted(nodes_of(scope)) == ["case-0", "case-1"]
    (entry,) = scope.pending
    assert entry.pods == ("case-2",)


def test_task_minimum_is_kept() -> None:
    pods, group = gang(3, 8, annotations=A2, least=2)
    notes = {**pods[2].annotations, "volcano.sh/task-spec": "boss"}
    boss = edited(pods[2], annotations=notes, node_selector={"kubernetes.io/hostname": "elsewhere"})
    group["spec"]["minTaskMember"] = {"boss": 1}
    scope = scope_of(_world({"n0": 8, "n1": 8}, *pods[:2], boss, objects=[group]))
    assert not scope.actions and scope.pending[0].pods == ("case-0", "case-1", "case-2")


def test_hard_pods_are_tried_first_when_the_natural_order_fails() -> None:
    small, group = gang(1, 1, annotations=A2, least=2)
    large = worlds.pod("case-9", count=8, rank=9, annotations=dict(small[0].annotations))
    scope = scope_of(_world({"n0": 8, "n1": 1}, *small, large, objects=[group]))
    assert nodes_of(scope) == {"case-0": "n1", "case-9": "n0"}
    only = worlds.pod("case-1", count=1, rank=1, annotations=dict(small[0].annotations), node_selector={"k": "v"})
    world = _world({"n0": 1, "n1": 1}, small[0], only, objects=[group])
    labelled = placing.edited(world.nodes["n0"], labels={**world.nodes["n0"].labels, "k": "v"})  # type: ignore[arg-type]
    scope = scope_of(placing.edited(world, nodes={**world.nodes, "n0": labelled}))
    assert nodes_of(scope) == {"case-0": "n1", "case-1": "n0"}


def test_network_unhealthy_chips_serve_single_pods_only() -> None:
    for count, placed in ((1, 1), (2, 0)):
        pods, group = gang(count, 4, annotations=A2)
        nodes = [worlds.node("n0")]
        scope = scope_of(worlds.observed(nodes, [worlds.report("n0", network=[0])], pods, objects=[group]))
        assert len(scope.actions) == placed
    pods, group = gang(2, 4, annotations=A2)
    unknown = worlds.observed([worlds.node("n0")], [worlds.report("n0", network=None)], pods, objects=[group])
    assert scope_of(unknown).pending[0].nodes == {"NetworkStateUnknown": 1}


def test_the_card_family_ignores_the_network() -> None:
    pods, group = gang(2, 1)
    pods = [placing.edited(pod, node_selector={"accelerator-type": "card-910b-2"}) for pod in pods]
    labels = {**worlds.A2_LABELS, "accelerator-type": "card-910b-2"}
    world = worlds.observed(
        [worlds.node("n0", labels=labels)], [worlds.report("n0", network=range(8))], pods, objects=[group]
    )
    assert len(scope_of(world).actions) == 2


def test_closed_refused_and_penalised_nodes() -> None:
    pods, group = gang(1, 8, annotations=A2)
    world = _world({"n0": 8, "n1": 8, "n2": 8}, *pods, objects=[group])
    key = "train/PodGroup/case"
    scope = scope_of(
        world,
        closed={"n0": ("NodeUnhealthy", "node is unhealthy")},
        refused={key: {"n1": NodeRefusal("SubHealth", "SubHealth")}},
    )
    assert nodes_of(scope) == {"case-0": "n2"}
    scope = scope_of(world, penalty={key: {"n0": 64, "n1": 1}})
    assert nodes_of(scope) == {"case-0": "n2"} and set(scope.scores["train/case-0"].values()) == {792.0}
    scope = scope_of(world, closed=dict.fromkeys(("n0", "n1", "n2"), ("NodeUnhealthy", "node is unhealthy")))
    assert scope.pending[0].reason == "NodeUnhealthy" and scope.pending[0].nodes == {"NodeUnhealthy": 3}


def test_report_and_kubernetes_must_agree() -> None:
    pods, group = gang(1, 1, annotations=A2)
    unseen = worlds.pod("x", node="n0", count=3, namespace="tenants")
    scope = scope_of(_world({"n0": 8}, unseen, *pods, objects=[group]))
    assert scope.pending[0].nodes == {"NodeUnstable": 1}
    assert "not stable:device-info is 8 but k8s is 5" in scope.pending[0].message


@pytest.mark.parametrize(
    ("annotations", "each", "reason", "words"),
    [
        ({}, 3, "InvalidRequest", "InvalidResourceRequest: expected: job<case> req npu num should small than 8"),
        ({POLICY: "chip4-node8"}, 3, None, ""),
        ({POLICY: "chip8-node8"}, 9, "InvalidRequest", "small than 8"),
        ({POLICY: "chip1-softShareDev"}, 5, "InvalidRequest", "check share device job(case) valid failed"),
        ({"volcano.sh/schedule.plugin": "Ascend999"}, 1, None, ""),
    ],
)
def test_policies_and_sizes(annotations: dict[str, str], each: int, reason: str | None, words: str) -> None:
    pods, group = gang(1, each, annotations=annotations)
    scope = scope_of(_world({"n0": 8}, *pods, objects=[group]))
    if reason is None:
        assert len(scope.actions) == 1 and not scope.pending
    else:
        assert scope.pending[0].reason == reason and words in scope.pending[0].message


def test_unknown_kind_of_chip_stays_pending() -> None:
    pods, group = gang(1, 1, annotations={"volcano.sh/schedule.plugin": "Ascend999"})
    group["spec"].pop("minResources")
    scope = scope_of(_world({"n0": 8}, *pods, objects=[group]))
    assert not scope.actions and scope.pending[0].reason in ("NotSupportPolicy", "InvalidRequest")


def test_half_server_and_super_pod_by_annotation_choose_their_rules() -> None:
    pods, group = gang(1, 3, annotations={POLICY: "chip4-node4"})
    assert scope_of(_world({"n0": 8}, *pods, objects=[group])).pending[0].reason == "InvalidRequest"
    pods, group = gang(1, 16, annotations={"sp-block": "16"})
    scope = scope_of(_world({"n0": 8}, *pods, objects=[group]))
    assert "SuperPodUnknown" in scope.pending[0].nodes or scope.pending[0].reason == "TopologyNotMet"


def test_static_vnpus_are_counted() -> None:
    resource = "huawei.com/Ascend910-4c"
    node = worlds.node("n0", allocatable={resource: 2})
    pods = [worlds.pod(f"v-{i}", count=1, resource=resource) for i in range(3)]
    scope = scope_of(worlds.observed([node], [worlds.report("n0")], pods))
    assert sorted(nodes_of(scope)) == ["v-0", "v-1"] and bindings(scope)["v-0"].chips == ()
    assert scope.pending[0].reason == "NPUResourceShortage"
    greedy = worlds.pod("g", count=2, resource=resource)
    scope = scope_of(worlds.observed([node], [worlds.report("n0")], [greedy]))
    assert "more than 1 virtual device" in scope.pending[0].message


def test_ai_cores_of_no_kind_of_chips_are_refused_clearly() -> None:
    pod = worlds.pod("d", count=2, resource="huawei.com/npu-core")
    scope = scope_of(worlds.observed([worlds.node("n0")], [worlds.report("n0")], [pod]))
    assert (
        scope.pending[0].reason == "NotSupportPolicy" and "ring-controller.atlas is missing" in scope.pending[0].message
    )


def test_pods_of_other_schedulers_only_occupy_chips() -> None:
    pods, group = gang(1, 1, annotations=A2, scheduler="default-scheduler")
    scope = scope_of(_world({"n0": 8}, *pods, objects=[group]))
    assert not scope.actions and not scope.pending


def test_deployment_pods_get_ranks_and_are_distributed() -> None:
    pods = [
        worlds.pod(f"d-5f-{i}", count=4, owner=("ReplicaSet", "d-5f"), owner_api="apps/v1", annotations=dict(A2))
        for i in "ab"
    ]
    scope = scope_of(_world({"n0": 8}, *pods))
    ranks = [bindings(scope)[name].annotations["hccl/rankIndex"] for name in ("d-5f-a", "d-5f-b")]
    assert ranks == ["0", "1"]


def test_every_pod_with_npus_gets_a_rank() -> None:
    """Its own, its ordinal, its task index, else the smallest number that is free in its job."""

    def ranks(*pods: Pod, **world: Any) -> dict[str, str | None]:
        found = bindings(scope_of(_world({"n0": 8, "n1": 8, "n2": 8, "n3": 8}, *pods, **world)))
        return {name: action.annotations.get("hccl/rankIndex") for name, action in found.items()}

    def of(name: str, **more: Any) -> Pod:
        return worlds.pod(name, count=8, **{"annotations": dict(A2), **more})

    parallel = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"namespace": "train", "name": "s"},
                "spec": {"replicas": 2, "podManagementPolicy": "Parallel"}}  # fmt: skip
    members = [of(f"s-{index}", owner=("StatefulSet", "s"), owner_api="apps/v1") for index in (0, 1)]
    assert ranks(*members, objects=[parallel]) == {"s-0": "0", "s-1": "1"}

    group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
             "metadata": {"namespace": "train", "name": "g"}, "spec": {"minMember": 3}}  # fmt: skip
    notes = {**A2, "scheduling.k8s.io/group-name": "g"}
    bare = [of("a", annotations=notes), of("b", annotations={**notes, "hccl/rankIndex": "0"}), of("c")]
    bare[2] = placing.edited(bare[2], annotations=notes, task_index=1)
    assert ranks(*bare, objects=[group]) == {"a": "2", "b": None, "c": "1"}, "b states its own"
    assert ranks(of("single")) == {"single": "0"}


def test_a_new_template_counts_its_ranks_from_zero() -> None:
    def of(revision: str, index: str, **fields: Any) -> Pod:
        pod = worlds.pod(f"d-{revision}-{index}", owner=("ReplicaSet", f"d-{revision}"), owner_api="apps/v1", **fields)
        return placing.edited(pod, labels={"pod-template-hash": revision}, annotations={**pod.annotations, **A2})

    old = [of("5f", "a", node="n0", chips=range(8)), of("5f", "b", node="n1", chips=range(8))]
    scope = scope_of(_world({"n0": 8, "n1": 8, "n2": 8}, *old, of("6a", "a", count=8)))
    assert bindings(scope)["d-6a-a"].annotations["hccl/rankIndex"] == "0"


def test_a_pod_with_an_existing_vnpu_gets_its_rank_and_says_whether_its_job_is_distributed() -> None:
    size = "huawei.com/Ascend310P-4c"
    pods = [
        worlds.pod(f"d-5f-{i}", count=1, resource=size, owner=("ReplicaSet", "d-5f"), owner_api="apps/v1") for i in "ab"
    ]
    node = worlds.node(
        "n0", resource="huawei.com/Ascend310P", prefix="Ascend310P-", labels=INFER, allocatable={size: 2}
    )
    report = worlds.report("n0", resource="huawei.com/Ascend310P", prefix="Ascend310P-")
    found = bindings(scope_of(worlds.observed([node], reports=[report], pods=pods)))
    assert [action.annotations for action in found.values()] == [
        {"distributed-job": "true", "hccl/rankIndex": "0"}, {"distributed-job": "true", "hccl/rankIndex": "1"},
    ]  # fmt: skip


class TestPreviousNodes:
    """Docs of 26.1.0, "prefer previous node"."""

    @staticmethod
    def _run(former: dict[str, str], *, failed: tuple[str, ...] = (), on: str = "true", free: Any = None) -> Any:
        pods, group = gang(len(former), 8, annotations=A2)
        memory = JobMemory(uid="u-case", nodes=former, fault_nodes=failed)
        history = History(jobs={"train/PodGroup/case": memory})
        world = _world(
            free or {"n0": 8, "n1": 8, "n2": 8, "n3": 8},
            *pods,
            objects=[group],
            history=history,
            init_params={"prefer-previous-node": on},
        )
        return scope_of(world)

    def test_returns_home(self) -> None:
        assert nodes_of(self._run({"0": "n3", "1": "n2"})) == {"case-0": "n3", "case-1": "n2"}

    def test_off_by_default(self) -> None:
        assert nodes_of(self._run({"0": "n3", "1": "n2"}, on="")) == {"case-0": "n0", "case-1": "n1"}

    def test_failed_home_is_avoided_for_a_new_node(self) -> None:
        assert nodes_of(self._run({"0": "n0", "1": "n2"}, failed=("n0",))) == {"case-0": "n1", "case-1": "n2"}

    def test_lost_home_goes_to_others_before_peers(self) -> None:
        free = {"n1": 8, "n2": 8, "n3": 8}
        assert nodes_of(self._run({"0": "n0", "1": "n2"}, free=free)) == {"case-0": "n1", "case-1": "n2"}

    @pytest.mark.parametrize(("hours", "home"), [(71.9, "n3"), (72.1, "n0")])
    def test_homes_are_forgotten_after_three_days_away(self, hours: float, home: str) -> None:
        pods, group = gang(1, 8, annotations=A2)
        memory = JobMemory(uid="u-case", nodes={"0": "n3"}, away=int((worlds.NOW - hours * 3600) * 1000))
        params = {"prefer-previous-node": "true"}
        history = History(jobs={"train/PodGroup/case": memory})
        free = {"n0": 8, "n3": 8}
        scope = scope_of(_world(free, *pods, objects=[group], history=history, init_params=params))
        assert nodes_of(scope) == {"case-0": home}
        after = scope.memory.jobs["train/PodGroup/case"]
        assert (after.nodes, after.away) == ({"0": home}, 0), "the 72 hours start again when its pods end again"

    def test_the_three_days_begin_when_nothing_of_the_job_has_a_node(self) -> None:
        pods, group = gang(2, 8, annotations=A2)
        memory = JobMemory(uid="u-case", nodes={"0": "n3", "1": "n2"})
        history = History(jobs={"train/PodGroup/case": memory})
        scope = scope_of(_world({"n0": 8}, *pods, objects=[group], history=history))
        assert scope.memory.jobs["train/PodGroup/case"].away == worlds.NOW * 1000
        group["spec"]["minMember"] = 1
        running = edited(pods[0], node="n3", phase="Running", chips=tuple(f"Ascend910-{i}" for i in range(8)))
        scope = scope_of(_world({"n0": 0, "n3": 8}, running, pods[1], objects=[group], history=history))
        assert scope.pending and scope.memory.jobs["train/PodGroup/case"].away == 0

    def test_without_memory_running_pods_show_where_the_job_is(self) -> None:
        """Cold start: the node of another rank is left to it, though it is the fuller one."""
        pods, group = gang(2, 4, annotations=A2, least=1)
        running = edited(pods[0], node="n1", phase="Running", chips=tuple(f"Ascend910-{i}" for i in range(4)))
        free = {"n0": 8, "n1": 8}
        for on, home in (("true", "n0"), ("false", "n1")):
            world = _world(free, running, pods[1], objects=[group], init_params={"prefer-previous-node": on})
            assert nodes_of(scope_of(world)) == {"case-1": home}

    def test_memory_is_written_for_the_next_time(self) -> None:
        scope = self._run({"0": "n3", "1": "n2"})
        assert scope.memory.jobs["train/PodGroup/case"].nodes == {"0": "n3", "1": "n2"}


def test_order_of_objects_does_not_matter() -> None:
    pods, group = gang(3, 4, annotations=A2)
    world = _world({"n0": 8, "n1": 4, "n2": 6}, *pods, objects=[group])
    backwards = placing.edited(
        world,
        nodes=dict(reversed(world.nodes.items())),
        pods=dict(reversed(world.pods.items())),
        reports=dict(reversed(world.reports.items())),
    )
    assert scope_of(world).actions == scope_of(backwards).actions


@pytest.mark.parametrize("sizes", list(product((0, 1, 3, 4), repeat=3)))
def test_placed_exactly_when_some_assignment_exists(sizes: tuple[int, ...]) -> None:
    """Pods of 1, 2 and 4 chips over three ring servers with free chips at the low ids, against all assignments."""
    wants = (1, 2, 4)
    free = {f"n{i}": size for i, size in enumerate(sizes)}
    pods = [
        worlds.pod(f"p-{want}", count=want, rank=i, annotations={placing.GROUP: "case"}) for i, want in enumerate(wants)
    ]
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"namespace": "train", "name": "case"},
        "spec": {"minMember": 3},
    }
    labels = {**worlds.A2_LABELS, "accelerator-type": "module"}
    nodes = [worlds.node(name, labels=labels) for name in free]
    reports = [worlds.report(name) for name in free]
    holders = [busy(name, range(size, 8)) for name, size in free.items()]
    scope = scope_of(worlds.observed(nodes, reports, [*pods, *holders], objects=[group]))
    possible = any(
        all(
            sum(want for want, name in zip(wants, chosen, strict=True) if name == node) <= size
            for node, size in free.items()
        )
        for chosen in product(free, repeat=3)
    )
    assert (len(scope.actions) == 3) == possible
    assert len(scope.actions) in (0, 3)


def test_a_rolling_deployment_replaces_pods_one_by_one() -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": "train", "name": "d"},
        "spec": {"replicas": 2},
    }

    def of(revision: str, index: str, **fields: Any) -> Pod:
        pod = worlds.pod(f"d-{revision}-{index}", owner=("ReplicaSet", f"d-{revision}"), owner_api="apps/v1", **fields)
        return placing.edited(pod, labels={"pod-template-hash": revision}, annotations={**pod.annotations, **A2})

    old = [of("5f", "a", node="n0", chips=range(8)), of("5f", "b", node="n1", chips=range(8))]
    new = of("6a", "a", count=8)
    scope = scope_of(_world({"n0": 8, "n1": 8, "n2": 8}, *old, new, objects=[deployment]))
    assert nodes_of(scope) == {"d-6a-a": "n2"}
    leaving = [placing.edited(old[0], deleting=worlds.NOW), old[1]]
    scope = scope_of(_world({"n0": 8, "n1": 8}, *leaving, new, objects=[deployment]))
    assert not scope.actions and "idle<0>" in scope.pending[0].message
    assert scope.pending[0].reason == "NPUResourceShortage"


def test_suspended_pools_get_nothing() -> None:
    spec = {"selector": {"matchLabels": {"accelerator": "huawei-Ascend910"}}, "suspend": True}
    body = {"apiVersion": "belay.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": "p"}, "spec": spec}
    pools = (Declared(NodePool.model_validate(body), Origin("pools.yaml")),)
    pods, group = gang(1, 1, annotations=A2)
    cpu_only = worlds.pod("cpu")
    world = _world({"n0": 8}, *pods, cpu_only, objects=[group])
    scope = scope_of(world, desired=replace(placing.shipped(), pools=pools))
    assert not scope.actions and [entry.nodes for entry in scope.pending] == [{"PoolSuspended": 1}] * 2
