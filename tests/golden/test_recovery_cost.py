"""Two jobs lose a server each and one is left: who gets it, who goes on smaller, and what it cost in the end."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.observe.observed import observe
from tests.golden.stories import compare
from tests.jobs import ascend_job, replica, template
from tests.simworld import A2, Node, World

ELASTIC = {"recover-strategy": "recover,elastic-training"}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
}  # fmt: skip


def job(name: str, labels: dict[str, str], annotations: dict[str, str], saved: int) -> dict[str, Any]:
    pod = template(8, schedulerName="volcano")
    pod["metadata"]["annotations"] = {"belay.dev/checkpoint-time": str(saved)}
    body = ascend_job(
        name, replicas={"Master": replica(1, pod), "Worker": replica(1, pod)}, namespace="default", uid="",
        labels={"fault-scheduling": "force", **labels}, annotations=annotations,
    )  # fmt: skip
    for field in ("uid", "resourceVersion", "creationTimestamp"):
        body["metadata"].pop(field)
    return body


def told(world: World, name: str) -> list[tuple[str, bool]]:
    memory = observe(world.objects.values()).history.jobs[f"default/AscendJob/{name}"]
    return [(one.level, bool(one.back)) for one in memory.recoveries]


def two_jobs(seed: int = 0) -> World:
    """Five servers, of which each job has two."""
    world = World({}, [Node(f"node-{i}", labels=A2) for i in range(1, 6)], seed=seed)
    world.put(CRD)
    saved = int(world.now) - 300
    world.put(job("elastic", {"process-recover-enable": "on"}, ELASTIC, saved))
    world.put(job("rigid", {"pod-rescheduling": "on"}, {}, saved))
    return world


def hit(world: World) -> list[str]:
    """Each job loses a worker's server."""
    where = [world.pods()[f"{name}-worker-0"]["spec"]["nodeName"] for name in ("elastic", "rigid")]
    for node in where:
        world.fault(node, 3, level="SeparateNPU")
    return where


def waiting(world: World) -> list[str]:
    return sorted(name for name, pod in world.pods().items() if not pod["spec"].get("nodeName"))


def test_the_last_server_goes_where_its_lack_costs_most(update_golden: bool) -> None:
    world = two_jobs()
    world.until_quiet()
    world.story.clear()
    world.story.append("-- each job loses a worker's server")
    nodes = hit(world)
    world.until_quiet(seconds=5.0)
    assert told(world, "elastic") == [("shrink", False)]
    assert told(world, "rigid") == [("pod", True)]
    assert waiting(world) == ["elastic-worker-0"]
    world.story.append("-- the chips are repaired")
    for node in nodes:
        world.heal(node, 3)
    world.until_quiet(seconds=5.0)
    assert waiting(world) == []
    assert told(world, "elastic") == [("shrink", True)]
    compare("recovery-by-cost", world.story, update_golden)


@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_and_with_lost_actions(seed: int) -> None:
    world = two_jobs(seed)
    world.until_quiet(some=0.7, ceiling=80)
    nodes = hit(world)
    world.until_quiet(some=0.7, ceiling=80, seconds=7.0)
    assert len(waiting(world)) == 1
    for node in nodes:
        world.heal(node, 3)
    world.until_quiet(some=0.7, ceiling=80)
    assert waiting(world) == []
    assert all(done for name in ("elastic", "rigid") for _, done in told(world, name))
