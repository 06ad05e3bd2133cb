"""Two jobs lose a server each and one is left: who gets it, who goes on smaller, and what it cost in the end."""

from __future__ import annotations

from typing import Any

from engine.observe import observe
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


def test_the_last_server_goes_where_its_lack_costs_most(update_golden: bool) -> None:
    world = World({}, [Node(f"node-{i}", labels=A2) for i in range(1, 6)])
    world.put(CRD)
    saved = int(world.now) - 300
    world.put(job("elastic", {"process-recover-enable": "on"}, ELASTIC, saved))
    world.put(job("rigid", {"pod-rescheduling": "on"}, {}, saved))
    world.until_quiet()
    where = {name: pod["spec"]["nodeName"] for name, pod in world.pods().items()}
    world.story.clear()
    world.story.append("-- each job loses a worker's server")
    for name in ("elastic-worker-0", "rigid-worker-0"):
        world.fault(where[name], 3, level="SeparateNPU")
    world.until_quiet(seconds=5.0)
    assert told(world, "elastic") == [("shrink", False)]
    assert told(world, "rigid") == [("pod", True)]
    compare("recovery-by-cost", world.story, update_golden)
