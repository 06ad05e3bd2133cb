"""Autoscalers of roles, statuses and Events of inference services."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from belay.engine.documents.manifests import check_manifest
from belay.engine.model.actions import CreateObject, PatchObject
from belay.engine.status.events import events, refused_events
from tests.inference import PREFIX, Raw, role, service_set
from tests.jobs import POD_GROUP_CRD, World

ROOT = Path(__file__).parent.parent

SPEC = {
    "minReplicas": 1, "maxReplicas": 4,
    "metrics": [{"type": "External", "external": {"metric": {"name": "num_requests_waiting"},
                                                  "target": {"type": "AverageValue", "averageValue": "5"}}}],
}  # fmt: skip


def scaled(spec: Raw | None = None, kind: str = "HPA", replicas: int = 1) -> Raw:
    return service_set(role("prefill", replicas, scalingPolicy={"type": kind, "spec": SPEC if spec is None else spec}))


def status(world: World) -> dict[str, Any]:
    return dict(world.find("InstanceSet", "llm-0-prefill")["status"])


def change(world: World, edit: Any) -> None:
    world.edit("InferServiceSet", "llm", lambda raw: edit(raw["spec"]["template"]["roles"][0]))
    world.settle()


def test_a_scaling_policy_becomes_an_autoscaler_of_the_instance_set() -> None:
    world = World(scaled())
    world.settle()
    made = world.find("HorizontalPodAutoscaler", "llm-0-prefill-scaler")
    assert made["apiVersion"] == "autoscaling/v2"
    target = {"apiVersion": "mindcluster.huawei.com/v1", "kind": "InstanceSet", "name": "llm-0-prefill"}
    assert made["spec"]["scaleTargetRef"] == target
    assert (made["spec"]["minReplicas"], made["spec"]["maxReplicas"]) == (1, 4)
    metric = made["spec"]["metrics"][0]["external"]["metric"]
    assert metric["selector"]["matchLabels"] == {
        PREFIX + "inferservice-name": "llm-0", PREFIX + "inferserviceset-name": "llm", PREFIX + "role-name": "prefill",
    }  # fmt: skip
    assert made["metadata"]["labels"][PREFIX + "scaling-owned-by"] == "llm-0-prefill"
    found = status(world)
    assert found["scalingResourceStatus"] == {
        "type": "HPA", "name": "llm-0-prefill-scaler", "ready": True, "message": "HPA created successfully",
    }  # fmt: skip
    assert found["labelSelector"] == f"{PREFIX}inferservice-name=llm-0,{PREFIX}instanceset-name=prefill"


def test_the_number_that_an_autoscaler_has_set_outlives_changes_in_git() -> None:
    world = World(scaled())
    world.settle()
    world.edit("InstanceSet", "llm-0-prefill", lambda raw: raw["spec"].update(replicas=3))  # what kubectl scale does
    world.settle()
    assert len(world.kinds("StatefulSet")) == 3
    change(world, lambda one: one["spec"]["template"]["metadata"]["labels"].update(note="new"))
    assert world.find("InstanceSet", "llm-0-prefill")["spec"]["replicas"] == 3
    change(world, lambda one: one["scalingPolicy"]["spec"].update(maxReplicas=8))
    assert world.find("HorizontalPodAutoscaler", "llm-0-prefill-scaler")["spec"]["maxReplicas"] == 8


def test_without_a_policy_the_autoscaler_goes_and_the_declared_number_holds() -> None:
    world = World(scaled(replicas=2))
    world.settle()
    change(world, lambda one: one.pop("scalingPolicy"))
    assert world.kinds("HorizontalPodAutoscaler") == []
    assert len(world.kinds("StatefulSet")) == 2
    assert "scalingResourceStatus" not in status(world)
    world.edit("InstanceSet", "llm-0-prefill", lambda raw: raw["spec"].update(replicas=5))
    world.settle()
    assert len(world.kinds("StatefulSet")) == 2, "Git says two"


def test_an_operators_autoscaler_is_kept_as_it_is() -> None:
    world = World(scaled())
    world.settle()
    scaler = world.find("HorizontalPodAutoscaler", "llm-0-prefill-scaler")
    scaler["metadata"].pop("annotations")  # the infer operator leaves no mark
    scaler["spec"]["behavior"] = {"scaleUp": {"selectPolicy": "Max"}}  # what the API server adds
    world.put(scaler)
    actions = world.step()
    patches = [a.patch for a in actions if isinstance(a, PatchObject) and a.object_kind == "HorizontalPodAutoscaler"]
    assert [list(patch) for patch in patches] == [["metadata"]]
    assert world.step() == []


def test_policies_that_no_autoscaler_can_have_are_said_in_status_and_event() -> None:
    for policy, kind, why in (({}, "HPA", "maxReplicas"), (SPEC, "KEDA", "unsupported scaling policy type: KEDA")):
        world = World(scaled(policy, kind))
        actions = []
        for _ in range(4):
            actions += world.step()
        assert world.kinds("HorizontalPodAutoscaler") == []
        assert len(world.kinds("StatefulSet")) == 1, "its instances run all the same"
        found = status(world)["scalingResourceStatus"]
        assert found["ready"] is False and why in found["message"]
        (event,) = [e for e in events(actions, 1.0) if e["reason"] == "ScalingResourceReconcileError"]
        assert (event["type"], event["involvedObject"]["kind"]) == ("Warning", "InstanceSet")
        assert why in event["message"]


def test_a_wrong_set_has_an_event() -> None:
    world = World(service_set(role(), replicas=65))
    (event,) = events(world.step(), 1.0)
    assert (event["reason"], event["type"], event["involvedObject"]["name"]) == ("ValidateError", "Warning", "llm")
    assert "must be 1 to 64" in event["message"]
    assert world.step() == []


def test_a_service_that_the_api_server_refuses_is_an_event_on_its_instance_set_once() -> None:
    own = {"name": "api", "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 99}]}}
    world = World(service_set(role(services=[own])))
    made: list[CreateObject] = []
    for _ in range(4):
        made += [a for a in world.step() if isinstance(a, CreateObject) and a.name == "api-llm-0-prefill"]
    refused = [(made[0], "nodePort: Invalid value: 99")]
    first, again = refused_events(refused, 1.0), refused_events(refused, 60.0)
    assert first[0]["metadata"]["name"] == again[0]["metadata"]["name"]
    assert (first[0]["reason"], first[0]["involvedObject"]["kind"]) == ("ServiceCreateError", "InstanceSet")
    assert "nodePort: Invalid value: 99" in first[0]["message"]


def test_the_shipped_sample_is_valid_and_starts_decode_first() -> None:
    raw = yaml.safe_load((ROOT / "deploy/samples/inferserviceset.yaml").read_text())
    assert check_manifest(raw) == []
    world = World(POD_GROUP_CRD, raw)
    world.settle()
    assert world.kinds("StatefulSet") == ["chat-0-decode-0", "chat-1-decode-0"]
    for name in world.kinds("StatefulSet"):
        world.edit("StatefulSet", name, lambda one: one.update(status={"readyReplicas": 2}))
    world.settle()
    assert len(world.kinds("StatefulSet")) == 6
    assert not [line for line in world.diagnostics if line.startswith(("error", "warning"))]


def test_statuses_carry_the_generation_that_they_are_about() -> None:
    world = World(service_set(role()))
    world.settle()
    assert world.find("InferServiceSet", "llm")["status"]["observedGeneration"] == 1
    world.edit("InferServiceSet", "llm", lambda raw: raw["metadata"].update(generation=2))
    world.settle()
    found = world.find("InferServiceSet", "llm")["status"]
    assert found["observedGeneration"] == 2
    condition = found["conditions"][0]
    assert (condition["reason"], condition["message"]) == ("ReplicasNotReady", "0 of 1 InferService replicas are ready")


def test_mistakes_in_git_are_found_at_their_field() -> None:
    bad = service_set(
        role("a", annotations={"belay.dev/max-surge": "many"}), role("a", kind="Job"), role("B", -1),
        annotations={"belay.dev/rollout": "stop"}, schedulingStrategy={"type": "First"},
    )  # fmt: skip
    found = {".".join(map(str, p.path)): p.message for p in check_manifest(bad)}
    assert "must be one of paused, running" in found["metadata.annotations.belay.dev/rollout"]
    head = "spec.template.roles"
    assert "25%" in found[f"{head}.0.metadata.annotations.belay.dev/max-surge"]
    assert "declared twice" in found[f"{head}.1.name"]
    assert "must be one of 'Deployment', 'StatefulSet'" in found[f"{head}.1.workload.kind"]
    assert "RFC 1123" in found[f"{head}.2.name"]
    assert "at least 0" in found[f"{head}.2.replicas"]
    assert "'Priority'" in found["spec.template.schedulingStrategy.type"]
