"""Inference in super pods: services stay together, MindIE instances near the pods that their affinity prefers."""

from __future__ import annotations

from typing import Any

from belay.engine.plan.place.families.rack950 import CandidateNode
from belay.engine.plan.place.families.superpod import Block
from belay.engine.plan.place.gangs.services import instance_blocks, rack_service_blocks, service_blocks
from belay.engine.plan.place.handler import Refusal
from tests import worlds
from tests.placing import POLICY, edited, gang, nodes_of, scope_of


def _pools(**sizes: int) -> dict[int, list[str]]:
    return {int(key[1:]): [f"{key}-{i}" for i in range(size)] for key, size in sizes.items()}


def _homes(found: dict[int, Block] | Refusal) -> list[int]:
    assert not isinstance(found, Refusal), found
    return [found[logical].super_pod for logical in sorted(found)]


def test_a_service_prefers_its_own_super_pods_then_more_room() -> None:
    assert _homes(service_blocks(_pools(s1=4, s2=6, s3=2), [0, 1], 2, {3})) == [3, 2]
    assert _homes(service_blocks(_pools(s1=4, s2=6), [0, 1, 2], 2, set())) == [2, 2, 2]
    failed = service_blocks(_pools(s1=3, s2=1), [0, 1], 2, set())
    assert isinstance(failed, Refusal)
    assert failed.message == "infer service schedule failed, required 2 sp-block, got 1"


def test_an_instance_keeps_reserves_then_prefers_affine_nodes_then_fills_up() -> None:
    assert _homes(instance_blocks(_pools(s1=3, s2=8), [0], 2, 2, {}, idlest=False)) == [2]
    assert _homes(instance_blocks(_pools(s1=6, s2=8), [0], 2, 2, {}, idlest=False)) == [1]
    assert _homes(instance_blocks(_pools(s1=6, s2=8), [0], 2, 2, {}, idlest=True)) == [2]
    assert _homes(instance_blocks(_pools(s1=6, s2=8), [0, 1], 2, 2, {2: 1}, idlest=False)) == [2, 2]
    assert _homes(instance_blocks(_pools(s1=3, s2=8), [0], 2, 2, {1: 9}, idlest=False)) == [2]
    failed = instance_blocks(_pools(s1=3), [0, 1], 2, 0, {}, idlest=False)
    assert isinstance(failed, Refusal)
    assert failed.message == "not enough virtual super-pod to schedule, required 2, total 1"


def test_rack_services_prefer_rack_then_super_pod_then_idle_racks() -> None:
    def places(**sizes: int) -> list[CandidateNode]:
        racks = [(int(key[1:]), size) for key, size in sizes.items()]
        return [CandidateNode(f"r{rack}-{i}", rack // 10, rack) for rack, size in racks for i in range(size)]

    def rack(found: dict[int, Block] | Refusal) -> list[str]:
        assert not isinstance(found, Refusal)
        return [found[logical].nodes[0].partition("-")[0] for logical in sorted(found)]

    free = places(r1=4, r2=8, r11=8, r12=8)
    assert rack(rack_service_blocks(free, [0], 2, {(0, 1)})) == ["r1"]
    assert rack(rack_service_blocks(free, [0], 6, {(0, 1)})) == ["r2"]
    assert rack(rack_service_blocks(free, [0, 1], 6, set())) == ["r11", "r12"]
    assert isinstance(rack_service_blocks(free, [0], 9, set()), Refusal)


def _world(pods: Any, groups: Any, sizes: dict[int, int]) -> Any:
    names = [(f"n{sp}{i}", sp) for sp, size in sizes.items() for i in range(size)]
    nodes = [worlds.node(name, chips=16) for name, _ in names]
    reports = [worlds.report(name, chips=16, super_pod_id=sp) for name, sp in names]
    return worlds.observed(nodes, reports, pods, objects=groups, init_params={"super-pod-size": "10"})


NOTES = {POLICY: "chip2-node16-sp", "sp-block": "32"}


def test_jobs_of_a_service_share_a_super_pod() -> None:
    running, running_group = gang(1, 16, name="first", annotations=NOTES, labels={"inferserviceid": "svc"})
    here = edited(running[0], node="n10", phase="Running", chips=tuple(f"Ascend910-{i}" for i in range(16)))
    pods, group = gang(2, 16, annotations=NOTES, labels={"inferserviceid": "svc"})
    scope = scope_of(_world([here, *pods], [running_group, group], {1: 3, 2: 8}))
    assert set(nodes_of(scope).values()) == {"n11", "n12"}
    other, group = gang(2, 16, annotations=NOTES, labels={"inferserviceid": "else"})
    scope = scope_of(_world([here, *other], [running_group, group], {1: 3, 2: 8}))
    assert set(nodes_of(scope).values()) == {"n20", "n21"}


def test_instances_follow_their_pod_affinity() -> None:
    friend, friend_group = gang(1, 16, name="first", annotations=NOTES, labels={"jobID": "x", "app": "server"})
    here = edited(friend[0], node="n20", phase="Running", chips=tuple(f"Ascend910-{i}" for i in range(16)))
    term = {"labelSelector": {"matchLabels": {"jobID": "x"}}, "topologyKey": "kubernetes.io/hostname"}
    wish = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
    pods, group = gang(2, 16, annotations=NOTES, labels={"jobID": "x", "app": "server"})
    liking = [edited(pod, affinity={"podAffinity": wish}) for pod in pods]
    for chosen, candidates in (("n2", liking), ("n1", pods)):
        scope = scope_of(_world([here, *candidates], [friend_group, group], {1: 5, 2: 8}))
        assert {name[:2] for name in nodes_of(scope).values()} == {chosen}
