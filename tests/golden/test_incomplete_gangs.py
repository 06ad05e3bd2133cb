"""A job loses a pod while its server is cordoned, waits, makes way for another, and comes back whole."""

from __future__ import annotations

from typing import Any

from belay.engine.model.diagnostics import ObjectKey
from tests.golden.stories import compare
from tests.jobs import POD_GROUP_CRD, ascend_job
from tests.simworld import A2, Node, World


def _job(name: str, **fields: Any) -> dict[str, Any]:
    body = ascend_job(name, namespace="default", labels={"fault-scheduling": "grace"}, **fields)
    for field in ("uid", "resourceVersion", "creationTimestamp"):
        body["metadata"].pop(field)
    return body


def _where(world: World) -> dict[str, str]:
    return {name: pod["spec"].get("nodeName", "") for name, pod in sorted(world.pods().items())}


def test_half_a_job_makes_way_and_returns_whole(update_golden: bool) -> None:
    world = World({}, [Node(f"node-{index}", labels=A2) for index in (1, 2)])
    world.put(POD_GROUP_CRD)
    world.put(_job("first"))
    world.until_quiet()
    before = _where(world)
    assert set(before.values()) == {"node-1", "node-2"}
    world.story.clear()
    lost = before["first-worker-0"]
    node = world.objects[ObjectKey("v1", "Node", "", lost)]
    world.put({**node, "spec": {**node.get("spec", {}), "unschedulable": True}})
    world.story.append("-- the worker's server is cordoned, its pod deleted, and another job waits")
    world.delete(ObjectKey("v1", "Pod", "default", "first-worker-0"))
    world.put(_job("second", workers=0, replicas={"Master": ascend_job()["spec"]["replicaSpecs"]["Master"]}))
    world.until_quiet(seconds=20.0)
    assert _where(world) == {**before, "first-worker-0": "", "second-master-0": ""}, "it keeps its place for a while"
    world.story.append("-- five minutes later")
    world.pass_time(300.0)
    world.until_quiet()
    found = _where(world)
    assert found["second-master-0"] == before["first-master-0"]
    assert not found["first-master-0"] and not found["first-worker-0"]
    world.story.append("-- the server is back, and the second job has ended")
    node = world.objects[ObjectKey("v1", "Node", "", lost)]
    world.put({**node, "spec": {key: value for key, value in node["spec"].items() if key != "unschedulable"}})
    world.delete(ObjectKey("mindxdl.gitee.com/v1", "AscendJob", "default", "second"))
    for name in [name for name in world.pods() if name.startswith("second")]:
        world.delete(ObjectKey("v1", "Pod", "default", name))
    world.until_quiet()
    assert sorted(_where(world).values()) == ["node-1", "node-2"]
    compare("incomplete-gang", world.story, update_golden)
