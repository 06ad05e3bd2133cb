"""Jobs that return after a fault: what they wait for and which of their former nodes they keep."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from belay.engine.model.cluster import Node
from belay.engine.model.history import History, JobMemory
from belay.engine.plan.place.families.multilevel import Level
from belay.engine.plan.place.gangs import returning
from tests import worlds
from tests.placing import POLICY, bindings, edited, gang, nodes_of, scope_of
from tests.steps import Steps

A3 = {"accelerator": "huawei-Ascend910", "accelerator-type": "module-a3-16-super-pod"}
SP = {POLICY: "chip2-node16-sp", "sp-block": "32"}
TREES = {"default": (Level("rack"), Level("hall"))}


def _tree(**sizes: int) -> dict[str, Node]:
    """Racks ``a1`` (hall a, rack 1) …, each with so many nodes."""
    return {
        f"{rack}-{i}": worlds.node(f"{rack}-{i}", labels={"rack": rack, "hall": rack[0]})
        for rack, size in sizes.items()
        for i in range(size)
    }


def _repaired(
    nodes: dict[str, Node], former: list[str], faulty: set[str], group_sizes: tuple[int, ...] = (2, 4)
) -> tuple[str, ...] | None:
    def unit(name: str, level: int) -> tuple[str, ...]:
        rack, _, _ = name.partition("-")
        return ((rack, rack[0]), (rack[0],), ())[level - 1]

    return returning.former_tree_nodes(dict(enumerate(former)), set(nodes) - faulty, nodes, TREES, group_sizes, unit)


FORMER = ["a1-0", "a1-1", "a2-0", "a2-1", "b1-0", "b1-1", "b2-0", "b2-1"]


@pytest.mark.parametrize(
    ("sizes", "faulty", "answer"),
    [
        # the same rack has a spare node
        ({"a1": 3, "a2": 2, "b1": 2, "b2": 2}, {"a1-1"}, [*FORMER[:1], "a1-2", *FORMER[2:]]),
        # the rack has none: its whole group moves to another rack of the hall
        ({"a1": 2, "a2": 2, "a3": 2, "b1": 2, "b2": 2}, {"a2-1"}, [*FORMER[:2], "a3-0", "a3-1", *FORMER[4:]]),
        # the hall has none: four pods move to another hall
        (
            {f"{hall}{rack}": 2 for hall in "abc" for rack in "12"},
            {"b1-0"},
            [*FORMER[:4], "c1-0", "c1-1", "c2-0", "c2-1"],
        ),
        # rank 0 is hit: the job is placed again
        ({"a1": 3, "a2": 2, "b1": 2, "b2": 2}, {"a1-0"}, None),
        # no unit has room
        ({"a1": 2, "a2": 2, "b1": 2, "b2": 2}, {"b1-0"}, None),
        # two faults in one rack with two spare nodes
        ({"a1": 2, "a2": 4, "b1": 2, "b2": 2}, {"a2-0", "a2-1"}, [*FORMER[:2], "a2-2", "a2-3", *FORMER[4:]]),
    ],
)
def test_the_smallest_unit_with_room_takes_the_faulty_part(
    sizes: dict[str, int], faulty: set[str], answer: list[str] | None
) -> None:
    found = _repaired(_tree(**sizes), FORMER, faulty)
    assert found == (None if answer is None else tuple(answer))


def test_healthy_nodes_of_a_moved_group_keep_their_ranks() -> None:
    nodes = _tree(a1=3, a2=2)
    assert _repaired(nodes, ["a1-0", "a1-1", "a1-2"], {"a1-1"}, (3,)) is None
    assert _repaired(nodes | _tree(a1=4), ["a1-0", "a1-1", "a1-2"], {"a1-1"}, (3,)) == ("a1-0", "a1-3", "a1-2")


def _multilevel(memory: JobMemory | None, nodes: dict[str, Node], prefer: str = "false") -> Steps:
    pods, group = gang(4, 8, annotations={POLICY: "multilevel", "huawei.com/affinity-config": "level1=2"})
    params = {
        "resource-level-config": '{"default": {"level1": {"label": "rack"}, "level2": {"label": "hall"}}}',
        "prefer-previous-node": prefer,
    }
    history = History(jobs={"train/PodGroup/case": memory} if memory else {})
    reports = [worlds.report(name) for name in nodes]
    return scope_of(
        worlds.observed(list(nodes.values()), reports, pods, objects=[group], init_params=params, history=history)
    )


def test_a_tree_job_after_a_fault_and_with_the_preference() -> None:
    nodes = _tree(a1=2, a2=2, b1=3, b2=2)
    former = {"0": "b1-0", "1": "b1-1", "2": "b2-0", "3": "b2-1"}
    failed = JobMemory(uid="u-case", nodes=former, fault_nodes=("b1-1",))
    assert list(nodes_of(_multilevel(failed, nodes)).values()) == ["b1-0", "b1-2", "b2-0", "b2-1"]
    plain = JobMemory(uid="u-case", nodes=former)
    assert list(nodes_of(_multilevel(plain, nodes, "true")).values()) == list(former.values())
    assert list(nodes_of(_multilevel(plain, nodes)).values()) == ["a1-0", "a1-1", "a2-0", "a2-1"]
    del nodes["b2-1"]
    assert "a1-0" in nodes_of(_multilevel(plain, nodes, "true")).values()


def test_a_tree_job_placed_again_uses_failed_nodes_last() -> None:
    former = {"0": "a1-0", "1": "a1-1", "2": "a2-0", "3": "a2-1"}
    failed = JobMemory(uid="u-case", nodes=former, fault_nodes=("a1-0",))
    placed = nodes_of(_multilevel(failed, _tree(a1=2, a2=2, b1=2, b2=2)))
    assert list(placed.values()) == ["b1-0", "b1-1", "b2-0", "b2-1"]
    assert list(nodes_of(_multilevel(failed, _tree(a1=2, a2=2))).values()) == list(former.values())


@pytest.mark.parametrize("stayed", [(0,), (0, 3), (0, 1, 2, 3)])
def test_pods_on_a_deleted_node_do_not_bind_the_rest_of_a_tree_job(stayed: tuple[int, ...]) -> None:
    """The node of the first pod was deleted; the units of the other pods still count."""
    nodes = _tree(a1=4, b1=5)
    pods, group = gang(6, 8, annotations={POLICY: "multilevel", "huawei.com/affinity-config": "level1=2"}, least=1)
    homes = {0: "was-deleted", 1: "b1-0", 2: "b1-1", 3: "b1-2"}
    world = [
        worlds.pod(pod.name, count=8, chips=range(8), node=homes[i], rank=i, annotations=pod.annotations)
        if i in stayed
        else pod
        for i, pod in enumerate(pods)
    ]
    params = {"resource-level-config": '{"default": {"level1": {"label": "rack"}, "level2": {"label": "hall"}}}'}
    reports = [worlds.report(name) for name in nodes]
    found = nodes_of(scope_of(worlds.observed(nodes.values(), reports, world, objects=[group], init_params=params)))
    assert found.keys() == {pod.name for i, pod in enumerate(pods) if i not in stayed}
    at = {rank: homes[rank] for rank in stayed if rank} | {int(name[-1]): node for name, node in found.items()}
    for rank in (0, 2, 4):
        assert len({at[mate][0] for mate in (rank, rank + 1) if mate in at}) == 1, "the two of a group are in one rack"
    assert len(set(found.values()) | {homes[rank] for rank in stayed}) == 6


def _super_pods(pods: Any, group: Any, memory: JobMemory, prefer: str = "false", nodes: int = 6) -> Steps:
    names = [f"n{i}" for i in range(nodes)]
    listed = [worlds.node(name, chips=16, labels=A3) for name in names]
    reports = [worlds.report(name, chips=16, super_pod_id=0, server_index=i) for i, name in enumerate(names)]
    params = {"super-pod-size": "10", "reserve-nodes": "1", "prefer-previous-node": prefer}
    history = History(jobs={"train/PodGroup/case": memory})
    return scope_of(worlds.observed(listed, reports, pods, objects=[group], init_params=params, history=history))


def test_a_super_pod_job_waits_ten_seconds_for_its_healthy_nodes() -> None:
    pods, group = gang(2, 16, annotations=SP)
    fresh = [edited(pod, created=worlds.NOW - 3) for pod in pods]
    notes = dict(pods[0].annotations)
    leaving = worlds.pod("old-0", node="n0", chips=range(16), annotations=notes, deleting=worlds.NOW - 4)
    memory = JobMemory(uid="u-case", fault_nodes=("n1",), super_pods={"0": ("n0", "n1")})
    held = _super_pods([*fresh, leaving], group, memory)
    assert not held.actions and "wait for normal node resource release" in held.pending[0].message
    late = [edited(pod, created=worlds.NOW - 11) for pod in pods]
    assert len(_super_pods([*late, leaving], group, memory).actions) == 2
    on_fault = edited(leaving, node="n1")
    assert len(_super_pods([*fresh, on_fault], group, memory).actions) == 2


def test_a_rack_job_waits_until_its_old_pods_are_gone() -> None:
    kind: Any = {"resource": "huawei.com/npu", "prefix": "npu-"}
    notes = {POLICY: "chip8-node8-ra64-sp", "sp-block": "16"}
    pods, group = gang(2, 8, annotations=notes, **kind)
    leaving = worlds.pod(
        "old-0", node="n0", chips=range(8), annotations=dict(pods[0].annotations), deleting=worlds.NOW - 60, **kind
    )
    listed = [worlds.node(f"n{i}", labels={}, **kind) for i in range(4)]
    reports = [worlds.report(f"n{i}", super_pod_id=0, rack_id=0, **kind) for i in range(4)]
    memory = History(jobs={"train/PodGroup/case": JobMemory(uid="u-case", fault_nodes=("n0",))})
    world = worlds.observed(
        listed, reports, [*pods, leaving], objects=[group], init_params={"super-pod-size": "64"}, history=memory
    )
    entry = scope_of(world).pending[0]
    assert "; pod train/old-0 is being graceful delete, unable to reschedule" in entry.message


def test_former_blocks_return_all_or_none_without_a_fault() -> None:
    pods, group = gang(4, 16, annotations=SP)
    memory = JobMemory(uid="u-case", super_pods={"0": ("n2", "n3"), "1": ("n4", "n5")})
    again = nodes_of(_super_pods(pods, group, memory, "true"))
    assert [again[f"case-{i}"] for i in range(4)] == ["n2", "n3", "n4", "n5"]
    fewer = nodes_of(_super_pods(pods, group, memory, "true", nodes=5))
    assert [fewer[f"case-{i}"] for i in range(4)] == ["n0", "n1", "n2", "n3"]


def test_a_backup_lands_in_the_super_pod_of_its_source() -> None:
    pods, group = gang(2, 16, annotations=SP)
    notes = {"super-pod-rank": "0", "super-pod-id": "0"}
    running = [
        worlds.pod(f"case-{i}", node=f"n{i}", chips=range(16), rank=i, annotations={**pods[i].annotations, **notes})
        for i in range(2)
    ]
    notes = {**pods[1].annotations, "podType": "backup", "backupSourcePodName": "case-1", "hccl/rankIndex": "1"}
    backup = worlds.pod("case-1-hot-ab12", count=16, annotations=notes)
    names = [(f"n{i}", 0) for i in range(3)] + [("m0", 1)]
    listed = [worlds.node(name, chips=16, labels=A3) for name, _ in names]
    reports = [worlds.report(name, chips=16, super_pod_id=home) for name, home in names]
    world = worlds.observed(listed, reports, [*running, backup], objects=[group], init_params={"super-pod-size": "10"})
    scope = scope_of(world)
    assert nodes_of(scope) == {"case-1-hot-ab12": "n2"}, scope.pending
    assert bindings(scope)["case-1-hot-ab12"].annotations["super-pod-rank"] == "0"


def test_a_backup_waits_for_its_source_where_both_wait() -> None:
    """The source failed and was replaced before the backup had a node."""
    pods, group = gang(2, 16, annotations=SP)
    notes = {**pods[1].annotations, "podType": "backup", "backupSourcePodName": "case-0"}
    backup = worlds.pod("case-0-hot-ab12", count=16, annotations=notes)
    listed = [worlds.node(f"n{i}", chips=16, labels=A3) for i in range(3)]
    reports = [worlds.report(f"n{i}", chips=16, super_pod_id=0) for i in range(3)]
    scope = scope_of(
        worlds.observed(listed, reports, [*pods, backup], objects=[group], init_params={"super-pod-size": "10"})
    )
    assert nodes_of(scope) == {"case-0": "n0", "case-1": "n1"}
    (entry,) = scope.pending
    assert entry.pods == ("case-0-hot-ab12",) and "stands by for train/case-0" in entry.message


def test_a_backup_alone_has_no_rank_of_its_own() -> None:
    """As beside other pods: its rank is that of the pod that it stands by for."""
    notes = {"podType": "backup", "backupSourcePodName": "case-0"}
    backup = worlds.pod("case-0-hot-ab12", count=8, rank=3, annotations=notes)
    other = worlds.pod("case-1", count=8, rank=1)
    for pods in ([backup], [backup, other]):
        assert returning.ranks(SimpleNamespace(pods=pods), pods)["train/case-0-hot-ab12"] == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", [(), (0,), (0, 1, 2)])
def test_pods_of_a_deployment_take_the_ranks_of_terminating_pods(ending: tuple[int, ...]) -> None:
    """Otherwise the rank table of three pods would start at rank three: the old pods are no longer in it."""
    notes = {POLICY: "chip8-node8"}
    owner: Any = {"owner": ("ReplicaSet", "d-5f"), "owner_api": "apps/v1"}
    declared = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": {"replicas": 3 if ending else 4}}
    declared["metadata"] = {"namespace": "train", "name": "d-5f", "uid": "u-d"}

    def old(rank: int) -> Any:
        leaves = worlds.NOW - 5 if rank in ending else None
        held: Any = {"node": f"n{rank}", "chips": range(8), "rank": rank, "annotations": notes, "deleting": leaves}
        return worlds.pod(f"d-5f-old{rank}", **held, **owner)

    fresh = [worlds.pod(f"d-5f-new{i}", count=8, annotations=notes, **owner) for i in range(len(ending) or 1)]
    names = [f"n{i}" for i in range(6)]
    world = worlds.observed(
        [worlds.node(name) for name in names], [worlds.report(name) for name in names], [*map(old, range(3)), *fresh],
        objects=[declared],
    )  # fmt: skip
    given = sorted(action.annotations["hccl/rankIndex"] for action in bindings(scope_of(world)).values())
    assert given == ([str(rank) for rank in ending] or ["3"])
