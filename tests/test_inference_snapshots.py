"""Container snapshots of inference services: the engine's half, with the agent's rule of what is to be saved."""

from __future__ import annotations

import json
from typing import Any

from belay.agents.node.hardware.snapshots import wanted
from belay.engine.model.labels import SNAPSHOT_FINISHED
from tests.inference import PREFIX, Raw, left_by_operator, owner, role, service_set
from tests.jobs import NOW, World, env_of

ACTIVE = PREFIX + "active"
COUNTS = {"readyReplicas": 2, "replicas": 2, "updatedReplicas": 2}


def saving(image: str = "serve:1", replicas: int = 2) -> Raw:
    one = role("prefill", replicas, image=image)
    one["metadata"]["labels"] = {PREFIX + "container-snapshot": "true"}
    inner = one["spec"]["template"]["spec"]
    inner["containers"][0]["env"] = [{"name": "host_snapshot_dir_path", "value": "/user/snapshot"}]
    return service_set(one)


def run_pods(world: World, *indices: int) -> None:
    """What the StatefulSet controller and kubelets do."""
    for index in indices:
        workload = world.find("StatefulSet", f"llm-0-prefill-{index}")
        for number in range(2):
            pod = workload["spec"]["template"]
            name = f"llm-0-prefill-{index}-{number}"
            ran = [{"name": "serve", "containerID": f"containerd://c{index}{number}"}]
            ready = [{"type": "Ready", "status": "True"}]
            status: Raw = {"phase": "Running", "startTime": "2026-09-01T08:00:00Z", "conditions": ready}
            status["containerStatuses"] = ran
            meta = {**pod["metadata"], "name": name, "namespace": "vision", "ownerReferences": owner(workload)}
            spec = {**pod["spec"], "nodeName": f"node{number}"}
            world.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status})
        world.edit("StatefulSet", f"llm-0-prefill-{index}", lambda raw: raw.update(status=dict(COUNTS)))


def finish(world: World, index: int, how: str = "true") -> None:
    """What agents report of the pods that they were asked to save."""
    for name in world.pods():
        if name.startswith(f"llm-0-prefill-{index}-") and wanted(world.pod(name)) is not None:
            world.edit("Pod", name, lambda raw: raw["metadata"]["annotations"].update({SNAPSHOT_FINISHED: how}))


def modes(world: World) -> dict[str, tuple[str, bool]]:
    found = {}
    for name in world.pods():
        meta = world.pod(name)["metadata"]
        mode = (meta.get("annotations") or {}).get("snapshot_mode", "")
        found[name.removeprefix("llm-0-prefill-")] = (mode, meta["labels"].get(ACTIVE) == "true")
    return found


def note(world: World, index: int) -> tuple[dict[str, Any], str]:
    data = world.find("ConfigMap", f"snapshot-metadata-llm-0-prefill-{index}")["data"]
    return json.loads(data["snapshot_metadata.json"]), data["GrusSnapshotRestoredFlag"]


def test_the_first_instance_saves_then_serves_and_later_pods_load() -> None:
    world = World(saving())
    world.settle()
    made = world.find("StatefulSet", "llm-0-prefill-0")["spec"]["template"]
    variables = env_of({"spec": made["spec"]}, "serve")
    assert variables["host_snapshot_path"] == "/user/snapshot/vision/llm-0-prefill"
    assert variables["pod_name"] == "metadata.name"
    assert variables["GRUS_SNAPSHOT_RESTORED_FLAG"]["configMapKeyRef"] == {
        "name": "snapshot-metadata-llm-0-prefill-0", "key": "GrusSnapshotRestoredFlag",
    }  # fmt: skip
    assert made["spec"]["volumes"][0]["configMap"]["name"] == "snapshot-metadata-llm-0-prefill-0"
    assert made["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/snapshot/configmap"
    assert world.find("Service", "service-llm-0-prefill-0")["spec"]["selector"][ACTIVE] == "true"
    assert note(world, 0) == ({"job_name": "llm-0-prefill-0", "namespace": "vision"}, "false")
    run_pods(world, 0, 1)
    world.settle()
    assert modes(world) == {"0-0": ("save", False), "0-1": ("save", False), "1-0": ("", True), "1-1": ("", True)}
    asked = [wanted(world.pod(name)) for name in world.pods()]
    assert [one.folder for one in asked if one is not None] == [
        "/user/snapshot/vision/llm-0-prefill/0", "/user/snapshot/vision/llm-0-prefill/1",
    ]  # fmt: skip
    finish(world, 0)
    world.settle()
    assert modes(world) == {"0-0": ("save", True), "0-1": ("save", True), "1-0": ("load", True), "1-1": ("load", True)}
    assert note(world, 0) == ({"job_name": "llm-0-prefill-0", "namespace": "vision", "checkpoint": "done"}, "true")
    for name in ("llm-0-prefill-0-0", "llm-0-prefill-0-1"):
        world.vanish(name)
    run_pods(world, 0)
    world.settle()
    assert modes(world)["0-0"] == ("load", True)


def test_an_instance_that_cannot_save_serves_without_a_snapshot() -> None:
    for how in ("failed", "late"):
        world = World(saving(replicas=1))
        world.settle()
        run_pods(world, 0)
        world.settle()
        if how == "failed":
            finish(world, 0, "false")
        else:
            world.now = NOW + 7200
        world.settle()
        assert modes(world) == {"0-0": ("save", True), "0-1": ("save", True)}
        assert any("serves without a snapshot" in line for line in world.diagnostics)
        assert "checkpoint" not in note(world, 0)[0]


def test_a_changed_template_never_goes_on_from_the_snapshot_of_another() -> None:
    world = World(saving(replicas=1))
    world.settle()
    run_pods(world, 0)
    world.settle()
    finish(world, 0)
    world.settle()
    world.put(saving("serve:2", replicas=1))
    world.step()
    world.step()  # the instance is deleted
    for name in world.pods():
        world.vanish(name)
    world.settle()
    made = world.find("StatefulSet", "llm-0-prefill-0")["spec"]["template"]
    folder = env_of({"spec": made["spec"]}, "serve")["host_snapshot_path"]
    assert folder.startswith("/user/snapshot/vision/llm-0-prefill-"), folder
    assert note(world, 0)[1] == "false"
    run_pods(world, 0)
    world.settle()
    assert modes(world) == {"0-0": ("save", False), "0-1": ("save", False)}


def test_a_snapshot_that_the_operator_took_is_loaded_after_the_take_over() -> None:
    objects = left_by_operator(saving(replicas=1))
    mine = next(raw for raw in objects if raw["kind"] == "InstanceSet")
    text = json.dumps({"job_name": "llm-0-prefill-0", "namespace": "vision", "checkpoint": "done"})
    name = "snapshot-metadata-llm-0-prefill-0"
    objects.append({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "vision", "ownerReferences": owner(mine)},
        "data": {"snapshot_metadata.json": text, "GrusSnapshotRestoredFlag": "true"},
    })  # fmt: skip
    world = World(*objects)
    world.settle()
    assert note(world, 0)[0]["checkpoint"] == "done"
    assert {mode for mode, _ in modes(world).values()} == {"load"}


def test_without_a_folder_nothing_is_saved_and_the_finding_says_what_to_add() -> None:
    root = saving(replicas=1)
    root["spec"]["template"]["roles"][0]["spec"]["template"]["spec"]["containers"][0].pop("env")
    world = World(root)
    world.settle()
    assert world.kinds("ConfigMap") == []
    assert any("snapshots need the variable host_snapshot_dir_path" in line for line in world.diagnostics)
