"""Super pods: the published choices of blocks, completion of running gangs, reuse after faults, refusals."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from belay.engine.model.cluster import Observed
from belay.engine.model.history import History, JobMemory
from belay.engine.plan.place.families.superpod import Block, Blocks, blocks, repair, select
from belay.engine.plan.place.gangs import blocks as gang_blocks
from belay.engine.plan.place.handler import JobRequest, Refusal, TaskRequest
from tests import placing, worlds
from tests.placing import POLICY, bindings, gang, nodes_of, scope_of

A3 = {**worlds.A2_LABELS, "accelerator-type": "module-a3-16-super-pod"}


def _sizes(*sizes: int) -> dict[int, list[str]]:
    return {size: [f"s{size}-{i}" for i in range(size)] for size in sizes}


def _from(found: dict[int, Block] | Refusal) -> list[int]:
    assert not isinstance(found, Refusal), found
    return sorted(block.super_pod for block in found.values())


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [((4, 5, 6), [4, 5]), ((5, 6), [6, 6]), ((5, 8), [5, 8]), ((3, 5, 8), [5, 8]), ((3, 5), [3, 5])],
)
def test_published_choices(sizes: tuple[int, ...], chosen: list[int]) -> None:
    assert _from(select(_sizes(*sizes), [0, 1], Blocks(2, 2, False), 2, fresh_id=2)) == chosen


def test_published_choices_with_equal_sizes_and_large_reserve() -> None:
    twins = {1: [f"a{i}" for i in range(5)], 2: [f"b{i}" for i in range(5)]}
    assert _from(select(twins, [0, 1], Blocks(2, 2, False), 2, fresh_id=2)) == [1, 2]
    assert _from(select(_sizes(1, 3), [0], Blocks(1, 1, False), 4, fresh_id=1)) == [3]


def test_row_major_order_of_the_document() -> None:
    """sp 16, two blocks, reserve 2: sizes are wanted in the order 18, 34, 19."""
    assert _from(select(_sizes(18, 19, 34), [0], Blocks(16, 1, False), 2, fresh_id=2)) == [18]
    assert _from(select(_sizes(19, 34), [0, 1], Blocks(16, 2, False), 2, fresh_id=2)) == [34, 34]
    assert _from(select(_sizes(19, 50), [0], Blocks(16, 1, False), 2, fresh_id=2)) == [19]


def test_reserves_are_used_first_where_a_node_is_left_over() -> None:
    """Rows of the table from the last to the first, within a cell the larger super pod."""
    assert _from(select(_sizes(2, 3), [0], Blocks(2, 1, False), 2, fresh_id=1)) == [3]
    assert _from(select(_sizes(3, 4, 5), [0, 1], Blocks(3, 2, False), 4, fresh_id=2)) == [4, 5]


def test_ids_ascend_and_nodes_keep_their_order() -> None:
    found = select(_sizes(5, 6), [0, 1], Blocks(2, 2, False), 2, fresh_id=2)
    assert found == {0: Block(6, ("s6-0", "s6-1")), 1: Block(6, ("s6-2", "s6-3"))}


def test_too_few_whole_blocks() -> None:
    found = select(_sizes(3, 1), [0, 1], Blocks(2, 2, False), 0, fresh_id=2)
    assert isinstance(found, Refusal) and found.message.startswith("select super pod failed, required 2, total 1")
    soft = select(_sizes(3, 1), [0, 1], Blocks(2, 2, True), 0, fresh_id=2)
    assert not isinstance(soft, Refusal)
    assert {key: (block.super_pod, len(block.nodes)) for key, block in soft.items()} == {
        0: (3, 2),
        1: (1, 1),
        2: (3, 1),
    }
    assert isinstance(select(_sizes(3, 1), [0, 1], Blocks(2, 2, True), 0, fresh_id=2, partial=True), Refusal)


def test_partial_blocks_use_nodes_beyond_the_reserve_first() -> None:
    """Rows from the block's size down to the reserve, then from 0 up to it: 2 nodes are row 0, 3 are row 1."""
    found = select(_sizes(2, 3), [0], Blocks(4, 1, True), 2, fresh_id=1)
    assert found == {0: Block(2, ("s2-0", "s2-1")), 1: Block(3, ("s3-0", "s3-1"))}
    further = select(_sizes(2, 3, 5), [0, 1], Blocks(4, 2, True), 2, fresh_id=2)
    assert not isinstance(further, Refusal)
    taken = [(key, block.super_pod, len(block.nodes)) for key, block in further.items()]
    assert taken == [(0, 5, 4), (1, 5, 1), (2, 2, 2), (3, 3, 1)]


@pytest.mark.parametrize("soft", [False, True])
def test_feasible_exactly_when_capacity_allows(soft: bool) -> None:
    for sizes in combinations(range(1, 8), 3):
        for size in (1, 2, 3):
            for need in (1, 2, 3, 4):
                for reserve in (0, 2, 5):
                    cut = Blocks(size, need, soft)
                    found = select(_sizes(*sizes), list(range(need)), cut, reserve, fresh_id=need)
                    room = sum(sizes) >= need * size if soft else sum(s // size for s in sizes) >= need
                    assert isinstance(found, Refusal) != room, (sizes, cut, reserve)
                    if not isinstance(found, Refusal):
                        used = [node for block in found.values() for node in block.nodes]
                        assert len(set(used)) == len(used) == need * size
                        assert all(node.startswith(f"s{b.super_pod}-") for b in found.values() for node in b.nodes)
                        assert soft or all(len(block.nodes) == size for block in found.values())


def test_repair_keeps_healthy_nodes_and_uses_failed_ones_last() -> None:
    pools = {7: ["a", "b", "c", "d"]}
    assert repair(Block(7, ("a", "b")), pools, {"b"}.__contains__, 2) == Block(7, ("a", "c"))
    assert repair(Block(7, ("a", "b", "c", "d")), pools, {"b"}.__contains__, 4) == Block(7, ("a", "b", "c", "d"))
    assert repair(Block(7, ("a", "b", "c")), {7: ["a", "b"]}, set[str]().__contains__, 3) is None


def _request(pods: int, each: int, sp_block: str | None) -> JobRequest:
    notes = {"sp-block": sp_block} if sp_block is not None else {}
    return JobRequest("j", pods * each, pods, (TaskRequest("worker", each),), {}, notes)


@pytest.mark.parametrize(
    ("shape", "answer"),
    [
        (_request(4, 16, "32"), Blocks(2, 2, False)),
        (_request(4, 16, None), Blocks(4, 1, False)),
        (_request(1, 4, "4"), Blocks(1, 1, False)),
        (_request(4, 16, "0"), "sp-block is invalid"),
        (_request(4, 16, "²"), "sp-block is invalid"),
        (_request(4, 16, "9" * 5000), "sp-block is invalid"),
        (_request(4, 16, "40"), "not multiple of node npu (16)"),
        (_request(4, 16, "8"), "smaller than the node's 16 chips"),
        (_request(1, 4, "2"), "single super-pod job sp-block annotation should equal require npu num"),
        (_request(4, 16, "256"), "sp-block(256/16=16) is bigger than size of super-pod(10)"),
        (_request(3, 16, "32"), "require npu(48) should be multiple of sp-block"),
        (_request(1, 16, "32"), "should equal require npu num"),
    ],
)
def test_blocks_of_a_job(shape: JobRequest, answer: Blocks | str) -> None:
    found = blocks(shape, 16, 10)
    if isinstance(answer, Blocks):
        assert found == answer
    else:
        assert isinstance(found, Refusal) and found.reason == "InvalidRequest" and answer in found.message


def _world(pods: Any, group: Any, sizes: dict[int, int], **more: Any) -> Any:
    names = [(f"n{sp}{i}", sp, i) for sp, size in sizes.items() for i in range(size)]
    nodes = [worlds.node(name, chips=16, labels=A3) for name, _, _ in names]
    reports = [worlds.report(name, chips=16, super_pod_id=sp, server_index=i) for name, sp, i in names]
    params = {"super-pod-size": "10", "reserve-nodes": "2", **more.pop("init_params", {})}
    return worlds.observed(nodes, reports, pods, objects=[group], init_params=params, **more)


SP = {POLICY: "chip2-node16-sp", "sp-block": "32"}


def test_a_job_in_two_blocks_with_its_annotations_and_scores() -> None:
    pods, group = gang(4, 16, annotations=SP)
    scope = scope_of(_world(pods, group, {1: 5, 2: 6}))
    assert nodes_of(scope) == {"case-0": "n20", "case-1": "n21", "case-2": "n22", "case-3": "n23"}
    notes = [bindings(scope)[f"case-{i}"].annotations for i in range(4)]
    assert [(note["super-pod-rank"], note["super-pod-id"]) for note in notes] == [
        ("0", "2"), ("0", "2"), ("1", "2"), ("1", "2"),
    ]  # fmt: skip
    assert scope.scores["train/case-0"]["n20"] == 100_000_000 and scope.scores["train/case-0"]["n10"] == 0
    assert scope.memory.jobs["train/PodGroup/case"].super_pods == {"0": ("n20", "n21"), "1": ("n22", "n23")}


def test_sub_healthy_nodes_are_taken_last() -> None:
    pods, group = gang(2, 16, annotations=SP)
    scope = scope_of(_world(pods, group, {1: 5}), states={"n10": "sub-healthy"})
    assert sorted(nodes_of(scope).values()) == ["n11", "n12"]


def test_nodes_where_the_job_failed_are_taken_after_sub_healthy_ones() -> None:
    pods, group = gang(2, 16, annotations=SP)
    penalty = {"train/PodGroup/case": {"n10": -64, "n11": -1}}
    scope = scope_of(_world(pods, group, {1: 3}), penalty=penalty, states={"n11": "sub-healthy"})
    assert nodes_of(scope) == {"case-0": "n12", "case-1": "n11"}


def test_a_running_block_is_completed_in_its_own_super_pod() -> None:
    pods, group = gang(4, 16, annotations=SP)
    notes = {**pods[0].annotations, "super-pod-rank": "0", "super-pod-id": "1"}
    bound = worlds.pod("case-0", node="n10", chips=range(16), rank=0, annotations=notes)
    scope = scope_of(_world([bound, *pods[1:]], group, {1: 3, 2: 6}))
    placed = nodes_of(scope)
    assert placed["case-1"] == "n11"
    assert {placed["case-2"], placed["case-3"]} == {"n20", "n21"}
    crowded = scope_of(_world([bound, *pods[1:]], group, {1: 1, 2: 6}))
    assert not crowded.actions and crowded.pending[0].reason == "TopologyNotMet"


def test_after_a_fault_healthy_blocks_return_and_the_other_is_repaired() -> None:
    pods, group = gang(4, 16, annotations=SP)
    memory = JobMemory(uid="u-case", fault_nodes=("n20",), super_pods={"0": ("n10", "n11"), "1": ("n20", "n21")})
    history = History(jobs={"train/PodGroup/case": memory})
    scope = scope_of(_world(pods, group, {1: 5, 2: 6}, history=history))
    assert nodes_of(scope) == {"case-0": "n10", "case-1": "n11", "case-2": "n22", "case-3": "n21"}


def test_partial_request_and_network() -> None:
    pods, group = gang(2, 8, annotations={POLICY: "chip2-node16-sp", "sp-block": "16"})
    scope = scope_of(_world(pods, group, {1: 3}))
    assert "require npu(0) should be equal to node npu(16), actual: task<worker> req npu: 8" in scope.pending[0].message


@pytest.mark.parametrize(("block", "placed"), [("32", True), ("16", False)])
def test_broken_networks_matter_between_blocks_only(block: str, placed: bool) -> None:
    """Both pods of one block are in one super pod; only several blocks use the parameter plane."""
    pods, group = gang(2, 16, annotations={POLICY: "chip2-node16-sp", "sp-block": block})
    nodes = [worlds.node(f"n{i}", chips=16, labels=A3) for i in range(2)]
    reports = [worlds.report(f"n{i}", chips=16, super_pod_id=0, network=(3,)) for i in range(2)]
    scope = scope_of(worlds.observed(nodes, reports, pods, objects=[group], init_params={"super-pod-size": "10"}))
    assert bool(bindings(scope)) == placed
    assert placed or scope.pending[0].nodes == {"NPUResourceShortage": 2}


def test_a_running_block_uses_the_failed_node_last() -> None:
    pods, group = gang(2, 16, annotations=SP)
    stays = worlds.pod("case-0", node="n10", chips=range(16), rank=0, annotations={
        **pods[0].annotations, "super-pod-rank": "0",
    })  # fmt: skip
    memory = JobMemory(uid="u-case", nodes={"0": "n10", "1": "n11"}, fault_nodes=("n11",))
    history = History(jobs={"train/PodGroup/case": memory})
    for count, node in ((3, "n12"), (2, "n11")):
        assert nodes_of(scope_of(_world([stays, pods[1]], group, {1: count}, history=history))) == {"case-1": node}
    healthy = History(jobs={"train/PodGroup/case": JobMemory(uid="u-case", nodes={"0": "n10", "1": "n12"})})
    assert nodes_of(scope_of(_world([stays, pods[1]], group, {1: 3}, history=healthy))) == {"case-1": "n12"}


def test_single_pod_takes_the_least_idle_node() -> None:
    pods, group = gang(1, 4, annotations={POLICY: "chip2-node16-sp", "sp-block": "4"})
    world = _world([*pods, placing.busy("n12", range(8))], group, {1: 4})
    scope = scope_of(world)
    assert nodes_of(scope) == {"case-0": "n12"}


def test_850_messages_and_placement() -> None:
    labels = {"accelerator": "huawei-npu", "accelerator-type": "850-SuperPod-Atlas-8"}
    notes = {POLICY: "chip8-node8-sp", "sp-block": "16"}
    pods, group = gang(2, 8, annotations=notes, resource="huawei.com/npu", prefix="npu-")
    kind: Any = {"resource": "huawei.com/npu", "prefix": "npu-"}
    nodes = [worlds.node(f"n{i}", labels=labels, **kind) for i in range(3)]
    reports = [worlds.report(f"n{i}", super_pod_id=0, **kind) for i in range(3)]
    params = {"super-pod-size": "4"}
    scope = scope_of(worlds.observed(nodes, reports, pods, objects=[group], init_params=params))
    assert len(scope.actions) == 2
    small = scope_of(worlds.observed(nodes, reports, pods, objects=[group], init_params={"super-pod-size": "2"}))
    assert "super-pod-size is smaller than superPod's node size" in small.pending[0].message
    wrong, group = gang(2, 3, annotations=notes, resource="huawei.com/npu", prefix="npu-")
    scope = scope_of(worlds.observed(nodes, reports, wrong, objects=[group], init_params=params))
    assert "distributed super-pod job require npu 8*n, instead of 3" in scope.pending[0].message


@pytest.mark.parametrize(("kind", "dies"), [("module-a3-8-super-pod", 8), ("module-a3-16-super-pod", 16), ("", 16)])
def test_a_block_without_a_policy_means_super_pods_of_the_selected_server(kind: str, dies: int) -> None:
    """factory.go: annotation sp-block alone chooses the handler, the selector its number of dies."""
    selector = {"accelerator-type": kind} if kind else {}
    pods, group = gang(2, dies, annotations={"sp-block": str(2 * dies)}, node_selector=selector)
    nodes = [worlds.node(f"n{i}", chips=dies, labels={**A3, "accelerator-type": kind or "x"}) for i in range(3)]
    reports = [worlds.report(f"n{i}", chips=dies, super_pod_id=0, server_index=i) for i in range(3)]
    scope = scope_of(worlds.observed(nodes, reports, pods, objects=[group], init_params={"super-pod-size": "10"}))
    assert nodes_of(scope) == {"case-0": "n0", "case-1": "n1"}
    assert bindings(scope)["case-0"].annotations["super-pod-id"] == "0"


def test_a_full_cluster_is_a_shortage_and_scattered_nodes_a_topology() -> None:
    pods, group = gang(2, 16, annotations=SP)
    full = [placing.busy(f"n1{i}", range(16)) for i in range(3)]
    entry = scope_of(_world([*pods, *full], group, {1: 3})).pending[0]
    assert (entry.reason, entry.nodes) == ("NPUResourceShortage", {"NPUResourceShortage": 3})
    entry = scope_of(_world(pods, group, {1: 1, 2: 1})).pending[0]
    assert entry.reason == "TopologyNotMet"
    assert "; select super pod failed, required 1, total 0, node top: super-pod-id: 1" in entry.message


def test_soft_affinity_fills_partial_blocks() -> None:
    pods, group = gang(4, 16, annotations=SP, labels={"super-pod-affinity": "soft"})
    scope = scope_of(_world(pods, group, {1: 3, 2: 1}))
    placed = [(nodes_of(scope)[f"case-{i}"], bindings(scope)[f"case-{i}"].annotations) for i in range(4)]
    assert [(node, notes["super-pod-rank"], notes["super-pod-id"]) for node, notes in placed] == [
        ("n10", "0", "1"), ("n11", "0", "1"), ("n12", "1", "1"), ("n20", "2", "2"),
    ]  # fmt: skip
    again = scope_of(_world(pods, group, {1: 3}))
    assert not again.actions and again.pending[0].reason == "TopologyNotMet"


def _scaled_down(waiting: int, replicas: int, nodes: dict[int, int]) -> Observed:
    """A StatefulSet with fewer replicas than waiting pods, as after scaling down."""
    notes = {POLICY: "chip2-node16-sp", "sp-block": str(16 * replicas), "huawei.com/schedule_minAvailable": "3"}
    owner = ("StatefulSet", "j")
    pods = [
        worlds.pod(f"j-{i}", count=16, annotations=notes, owner=owner, owner_api="apps/v1", owner_uid="u")
        for i in range(waiting)
    ]
    spec = {"replicas": replicas, "podManagementPolicy": "Parallel"}
    metadata = {"namespace": "train", "name": "j", "uid": "u", "annotations": notes}
    return _world(pods, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}, nodes)


@pytest.mark.parametrize(("waiting", "nodes", "bound"), [(5, 6, 5), (8, 9, 8), (8, 8, 0), (25, 27, 25)])
def test_pods_beyond_the_replicas_are_in_further_blocks(waiting: int, nodes: int, bound: int) -> None:
    scope = scope_of(_scaled_down(waiting, 3, {0: nodes}))
    places = bindings(scope)
    assert len(places) == len(set(nodes_of(scope).values())) == bound
    assert [places[f"j-{i}"].annotations["super-pod-rank"] for i in range(bound)] == [str(i // 3) for i in range(bound)]
    if not bound:
        assert scope.pending[0].reason == "TopologyNotMet" and len(scope.pending[0].pods) == waiting


def test_a_gang_with_too_few_slots_waits_and_the_pass_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod without a slot must not stop the placement of other gangs."""
    monkeypatch.setattr(gang_blocks, "_super_pods", lambda *_: {})
    pods, group = gang(2, 16, annotations=SP)
    scope = scope_of(_world([*pods, worlds.pod("bare", count=0)], group, {1: 5}))
    assert list(nodes_of(scope)) == ["bare"]
    assert scope.pending[0].reason == "TopologyNotMet" and "2 pods wait" in scope.pending[0].message
