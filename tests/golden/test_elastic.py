"""A distributed Volcano Job with a PodGroup loses a server, trains on with fewer pods, and grows back."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.model.diagnostics import ObjectKey
from tests.golden.stories import compare
from tests.jobs import POD_GROUP_CRD, template, volcano_job
from tests.simworld import A2, Node, World

GROUP = ("scheduling.volcano.sh/v1beta1", "PodGroup", "default")


def elastic_job(**annotations: str) -> dict[str, Any]:
    """Four pods of eight chips, at least two; its task's minimum is written as Volcano's webhook writes it."""
    task = {"name": "worker", "replicas": 4, "minAvailable": 4, "template": template(8, container="main")}
    body = volcano_job(
        tasks=[task], policies=[{"event": "PodEvicted", "action": "RestartJob"}], namespace="default", uid="",
        minAvailable=1, maxRetry=0,
    )  # fmt: skip
    for field in ("uid", "resourceVersion", "creationTimestamp"):
        body["metadata"].pop(field)
    body["metadata"]["labels"] |= {"fault-scheduling": "grace", "elastic-scheduling": "on"}
    body["metadata"]["annotations"] = {"minReplicas": "2", **annotations}
    return body


def world_of(seed: int = 0, **annotations: str) -> World:
    world = World({}, [Node(f"node-{i}", labels=A2) for i in range(1, 5)], seed=seed)
    world.put(POD_GROUP_CRD)
    world.put(elastic_job(**annotations))
    return world


def where(world: World) -> dict[str, str]:
    return {name: pod["spec"].get("nodeName", "") for name, pod in sorted(world.pods().items())}


def group(world: World) -> tuple[int, dict[str, int], str]:
    (key,) = [k for k in world.objects if (k.api_version, k.kind, k.namespace) == GROUP]
    body = world.objects[key]
    return body["spec"]["minMember"], body["spec"]["minTaskMember"], body["status"]["phase"]


@pytest.mark.parametrize("lost", [0, 2])
def test_a_job_shrinks_and_grows_back_whichever_rank_it_loses(lost: int, update_golden: bool) -> None:
    world = world_of()
    world.until_quiet()
    assert sorted(where(world).values()) == [f"node-{i}" for i in range(1, 5)]
    assert group(world) == (1, {"worker": 4}, "Running")
    world.story.clear()
    node = where(world)[f"vc-worker-{lost}"]
    world.story.append(f"-- the server of rank {lost} breaks")
    world.fault(node, 3, level="SeparateNPU")
    world.until_quiet()
    assert sorted(where(world)) == ["vc-worker-0", "vc-worker-1", "vc-worker-2"]
    assert set(where(world).values()) == {f"node-{i}" for i in range(1, 5)} - {node}
    assert group(world) == (1, {"worker": 3}, "Running")
    world.story.append("-- it is repaired; ten minutes later the job is whole")
    world.heal(node, 3)
    world.until_quiet()
    assert len(where(world)) == 3, "room alone does not restart it"
    world.pass_time(600.0)
    world.until_quiet()
    assert sorted(where(world)) == [f"vc-worker-{i}" for i in range(4)]
    assert sorted(where(world).values()) == [f"node-{i}" for i in range(1, 5)]
    assert group(world) == (1, {"worker": 4}, "Running")
    compare(f"elastic-rank-{lost}", world.story, update_golden)


def test_a_job_that_must_not_grow_stays_small() -> None:
    world = world_of(**{"belay.dev/grow-after": "off"})
    world.until_quiet()
    node = where(world)["vc-worker-1"]
    world.fault(node, 3, level="SeparateNPU")
    world.until_quiet()
    world.heal(node, 3)
    world.until_quiet()
    world.pass_time(100_000.0)
    world.until_quiet()
    assert len(where(world)) == 3


def test_a_server_that_breaks_again_and_again_restarts_the_job_ever_more_rarely() -> None:
    world = world_of()
    world.until_quiet()
    for times in range(3):
        world.fault("node-1", 3, level="SeparateNPU")
        world.until_quiet()
        assert len(where(world)) == 3 and "" not in where(world).values()
        world.heal("node-1", 3)
        world.until_quiet()
        world.pass_time(600.0 * 2**times - 300)
        world.until_quiet(seconds=1.0)
        assert len(where(world)) == 3, f"grew back too early, time {times + 1}"
        world.pass_time(400.0)
        world.until_quiet()
        assert len(where(world)) == 4, f"did not grow back, time {times + 1}"


@pytest.mark.parametrize("seed", [0, 1, 2, 11])
def test_in_any_order_and_with_lost_actions(seed: int) -> None:
    world = world_of(seed)
    world.until_quiet(some=0.7, ceiling=80)
    world.fault("node-2", 3, level="SeparateNPU")
    world.until_quiet(some=0.7, ceiling=120)
    assert len(where(world)) == 3 and "" not in where(world).values()
    world.heal("node-2", 3)
    world.pass_time(60.0)
    world.step()
    world.pass_time(700.0)
    world.until_quiet(some=0.7, ceiling=120)
    assert len(where(world)) == 4 and "" not in where(world).values()


def test_the_podgroup_follows_a_job_that_a_person_scales() -> None:
    world = world_of()
    body = elastic_job()
    body["metadata"] |= {"labels": {}, "annotations": {}}
    body["spec"] |= {"minAvailable": 4, "maxRetry": 3}
    world.put(body)
    world.until_quiet()
    assert group(world)[:2] == (4, {"worker": 4})
    key = ObjectKey("batch.volcano.sh/v1alpha1", "Job", "default", "vc")
    smaller = world.objects[key] | {"spec": {**body["spec"], "minAvailable": 2}}
    smaller["spec"]["tasks"] = [{**body["spec"]["tasks"][0], "replicas": 2, "minAvailable": 2}]
    world.put(smaller)
    world.until_quiet()
    assert group(world) == (2, {"worker": 2}, "Running")
    assert len(where(world)) == 2
