"""Atlas 950: the published placements in racks and super pods, its validation messages, completion of running jobs."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.plan.place.families.rack950 import CandidateNode, RackBlocks, blocks, select
from belay.engine.plan.place.families.superpod import Block
from belay.engine.plan.place.handler import JobRequest, Refusal, TaskRequest
from tests import worlds
from tests.placing import POLICY, bindings, busy, gang, nodes_of, scope_of


def _full(count: int) -> list[CandidateNode]:
    """Super pods 0 … count-1 with 1 … count full racks."""
    return [
        CandidateNode(f"s{pod}r{rack}n{i}", pod, pod * 16 + rack)
        for pod in range(count)
        for rack in range(pod + 1)
        for i in range(8)
    ]


def _racks(*sizes: int) -> list[CandidateNode]:
    return [CandidateNode(f"r{rack}n{i}", 0, rack) for rack, size in enumerate(sizes) for i in range(size)]


def _used(found: dict[int, Block] | Refusal) -> dict[str, int]:
    """Nodes taken per rack."""
    assert not isinstance(found, Refusal), found
    names = [name.rpartition("n")[0] for block in found.values() for name in block.nodes]
    return {name: names.count(name) for name in sorted(set(names))}


def _select(places: list[CandidateNode], pods: int, size: int, part: int, *, limit: int = 64, **more: Any) -> Any:
    cut = RackBlocks(size, pods // size, more.get("soft", False), part, more.get("memory", False))
    return select(places, list(range(pods // size)), cut, limit, pods)


def test_published_placements() -> None:
    assert _used(_select(_full(6), 1, 1, 1)) == {"s0r0": 1}
    assert _used(_select(_full(6), 8, 1, 1)) == {"s0r0": 8}
    assert _used(_select(_full(6), 16, 4, 2)) == {"s1r0": 8, "s1r1": 8}
    big = _used(_select(_full(6), 64, 4, 2))
    assert big == {f"s5r{i}": 8 for i in range(6)} | {"s4r0": 8, "s4r1": 8}
    assert _used(_select(_racks(2, 3), 4, 4, 2)) == {"r0": 2, "r1": 2}


@pytest.mark.parametrize(("sizes", "pods", "size", "part"), [((2, 3), 4, 4, 4), ((3, 3, 1, 1), 6, 6, 2)])
def test_published_failures(sizes: tuple[int, ...], pods: int, size: int, part: int) -> None:
    found = _select(_racks(*sizes), pods, size, part)
    assert isinstance(found, Refusal) and found.reason == "TopologyNotMet"


def test_one_rack_assigns_ids_descending_and_prefers_the_exact_rack() -> None:
    found = _select(_racks(5, 4, 8), 4, 2, 1)
    assert found == {1: Block(0, ("r1n0", "r1n1")), 0: Block(0, ("r1n2", "r1n3"))}


def test_memory_jobs_stay_in_one_domain() -> None:
    places = [CandidateNode(f"r{rack}n{i}", 0, rack) for rack in (0, 1, 16, 17) for i in range(8)]
    assert set(_used(_select(places, 16, 16, 8, memory=True))) == {"r0", "r1"}
    apart = [place for place in places if place.rack in (0, 16)]
    found = _select(apart, 16, 16, 8, memory=True)
    assert isinstance(found, Refusal) and "UBMemSchedule" in found.message


def test_blocks_are_filled_from_the_tightest_racks() -> None:
    assert _used(_select(_racks(8, 3, 6), 9, 9, 1)) == {"r1": 3, "r2": 6}
    assert _used(_select(_racks(8, 3, 6), 12, 12, 2)) == {"r0": 4, "r1": 2, "r2": 6}


def test_memory_jobs_take_the_domain_with_the_fewest_nodes_that_holds_them() -> None:
    """Sixteen racks are a domain."""
    sizes = {0: 8, 1: 8, 15: 2, 16: 8, 31: 5, 32: 7, 33: 2}
    places = [CandidateNode(f"r{rack}n{i}", 0, rack) for rack, size in sizes.items() for i in range(size)]
    assert _used(_select(places, 10, 2, 1, memory=True)) == {"r31": 5, "r16": 5}
    assert _used(_select(places, 9, 1, 1, memory=True)) == {"r33": 2, "r32": 7}
    assert _used(_select(places, 18, 2, 1, memory=True)) == {"r0": 8, "r1": 8, "r15": 2}


def test_several_super_pods_avoid_broken_networks_and_soft_takes_the_rest() -> None:
    places = [place._replace(network=place.name != "s1r0n0") for place in _full(2)]
    assert isinstance(_select(places, 24, 8, 8, limit=16), Refusal)
    soft = _select(places, 20, 4, 4, limit=16, soft=True)
    assert sum(_used(soft).values()) == 20


def _request(pods: int, each: int, **notes: str) -> JobRequest:
    return JobRequest(
        "j", pods * each, pods, (TaskRequest("w", each),), {}, {k.replace("_", "-"): v for k, v in notes.items()}
    )


@pytest.mark.parametrize(
    ("shape", "limit", "words"),
    [
        (_request(2, 8), None, "Parameter super-pod-size(0) in volcano.yaml is invalid"),
        (_request(2, 8, sp_block="10"), 64, "Parameter sp-block(10) is not multiple of node npu (8)"),
        (_request(4, 8, sp_block="32"), 2, "Parameter spBlock(32/8=4) is bigger than size of super-pod-size(2)"),
        (_request(2, 8, ra_block="0"), 64, "in the range from 1 to 64"),
        (_request(16, 8, ra_block="48"), 64, "Parameter ra-block(48) must be the power of 2"),
        (_request(4, 8, sp_block="16", ra_block="32"), 64, "ra-block(32)/8 could not be bigger than sp-block(16)/8"),
        (_request(3, 8, sp_block="24", ra_block="16"), 64, "number of tasks(3) must be multiple of nodes occupied"),
        (_request(6, 8, sp_block="24", ra_block="16"), 64, "spBlock= 24 / 8 must be multiple of tpBlock= 16 / 8"),
        # where several parameters are wrong, the first of MindCluster's checks speaks
        (_request(5, 8, sp_block="32"), None, "job require total Pod(5) should be multiple of a sp-block size 4"),
        (_request(2, 4, sp_block="12", ra_block="3"), None, "Parameter sp-block(12) is not multiple of node npu (8)"),
        (_request(2, 4, sp_block="16", ra_block="3"), 64, "Parameter ra-block(3) must be the power of 2"),
        (_request(2, 8, sp_block="0"), None, "Parameter sp-block(0) is invalid."),
        (_request(5, 8, sp_block="32"), 64, "job require total Pod(5) should be multiple of a sp-block size 4"),
        (_request(1, 9, sp_block="8"), 64, "single super-pod job require npu [1, 8], instead of 9"),
        (_request(1, 4, sp_block="8"), 64, "sp-block annotation should equal require npu num"),
        (_request(8, 6, sp_block="8"), 64, "distributed job require npu 8, instead of 6"),
    ],
)
def test_illegal_jobs_are_refused_in_known_words(shape: JobRequest, limit: int | None, words: str) -> None:
    found = blocks(shape, limit)
    assert isinstance(found, Refusal) and found.reason == "InvalidRequest" and words in found.message


def test_legal_jobs() -> None:
    assert blocks(_request(16, 8, sp_block="32", ra_block="16"), 64) == RackBlocks(4, 4, False, 2, False)
    assert blocks(_request(2, 8, sp_block="4"), 64) == RackBlocks(1, 2, False, 1, False)
    assert blocks(_request(1, 4, sp_block="4"), 64) == RackBlocks(1, 1, False, 1, False)


KIND: Any = {"resource": "huawei.com/npu", "prefix": "npu-"}


def _world(pods: Any, group: Any, racks: dict[int, int], **more: Any) -> Any:
    labels = {"accelerator": "huawei-npu", "accelerator-type": "950-SuperPod-Atlas-8"}
    names = [(f"r{rack}n{i}", rack) for rack, size in racks.items() for i in range(size)]
    nodes = [worlds.node(name, labels=labels, **KIND) for name, _ in names]
    reports = [worlds.report(name, super_pod_id=0, rack_id=rack, **KIND) for name, rack in names]
    params = {"super-pod-size": "64"}
    return worlds.observed(nodes, reports, pods, objects=[group], init_params=params, **more)


NOTES = {POLICY: "chip8-node8-ra64-sp", "sp-block": "32", "ra-block": "16"}


def test_a_job_on_racks_and_its_completion() -> None:
    pods, group = gang(4, 8, annotations=NOTES, **KIND)
    scope = scope_of(_world(pods, group, {0: 2, 1: 3}))
    placed = nodes_of(scope)
    assert [placed[f"case-{i}"][:2] for i in range(4)] == ["r0", "r0", "r1", "r1"]
    assert bindings(scope)["case-0"].annotations["super-pod-rank"] == "0"
    notes = {**pods[0].annotations, "super-pod-rank": "0"}
    bound = [
        worlds.pod(f"case-{i}", node=node, chips=range(8), rank=i, annotations=notes, **KIND)
        for i, node in ((0, "r0n0"), (1, "r0n1"), (2, "r1n2"))
    ]
    scope = scope_of(_world([*bound, pods[3]], group, {0: 8, 1: 4}))
    assert nodes_of(scope) == {"case-3": "r1n0"}
    others = [busy(name, range(8), **KIND) for name in ("r1n0", "r1n1")]
    crowded = scope_of(_world([*bound, pods[3], *others], group, {0: 8, 1: 3, 2: 8}))
    assert not crowded.actions and "whole rack schedule" in crowded.pending[0].message


@pytest.mark.parametrize("count", [4, 8])
def test_pods_whose_rack_is_given_come_before_parts_that_are_missing_whole(count: int) -> None:
    """Rack 0 is the tightest for two nodes, but the last part can use only one of its two nodes."""
    pods, group = gang(count, 8, annotations=NOTES, **KIND)
    last = count - 2
    notes = [{**pod.annotations, "super-pod-rank": str(i // 4)} for i, pod in enumerate(pods)]
    placed = {last: "r0n0"} | {rank: f"r2n{rank}" for rank in range(2, last)}
    bound = [
        worlds.pod(f"case-{rank}", node=node, chips=range(8), rank=rank, annotations=notes[rank], **KIND)
        for rank, node in placed.items()
    ]
    waiting = [pod for rank, pod in enumerate(pods) if rank not in placed]
    scope = scope_of(_world([*bound, *waiting], group, {0: 3, 1: 3, 2: 8}))
    placed = nodes_of(scope)
    assert placed.pop(f"case-{count - 1}") == "r0n1"
    assert sorted(placed) == ["case-0", "case-1"] and len({node[:2] for node in placed.values()}) == 1


def test_nodes_outside_racks_are_named() -> None:
    pods, group = gang(4, 8, annotations=NOTES, **KIND)
    scope = scope_of(_world(pods, group, {-1: 4}))
    assert scope.pending[0].nodes == {"RackUnknown": 4}
    assert "node rack-id is invalid for node=r-1n0, id=-1" in scope.pending[0].message
