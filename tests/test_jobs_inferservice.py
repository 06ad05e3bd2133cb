"""Inference services through the planner: levels of objects, order, readiness, restarts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs import POD_GROUP_CRD, World, env_of, template

API = "mindcluster.huawei.com/v1"
UNHEALTHY = "huawei.com/pod-status"


def role(name: str = "prefill", replicas: int = 1, kind: str = "StatefulSet", **more: Any) -> dict[str, Any]:
    gang = more.pop("gang", False)
    spec = {"replicas": 2, "podManagementPolicy": "Parallel", "template": template(8, container="serve")}
    if kind == "Deployment":
        del spec["podManagementPolicy"]
    meta = {"metadata": {"labels": {"infer.huawei.com/gang-schedule": "true"}}} if gang else {}
    return {"name": name, "replicas": replicas, "workload": {"apiVersion": "apps/v1", "kind": kind}, "spec": spec,
            **meta, **more}  # fmt: skip


def body(kind: str, name: str, spec: dict[str, Any], **labels: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "vision", "uid": f"u-{name}", "labels": labels}
    return {"apiVersion": API, "kind": kind, "metadata": meta, "spec": spec}


def service_set(*roles: dict[str, Any], replicas: int = 2, **spec: Any) -> dict[str, Any]:
    inner = {"roles": list(roles), **spec}
    return body("InferServiceSet", "llm", {"replicas": replicas, "template": inner}, inferserviceid="sid-1")


def ready(world: World, name: str, pods: int = 2, kind: str = "StatefulSet") -> None:
    world.edit(kind, name, lambda raw: raw.update(status={"readyReplicas": pods}))


def condition(world: World, kind: str, name: str) -> tuple[str, str]:
    (row,) = world.find(kind, name)["status"]["conditions"]
    return row["status"], row["reason"]


def test_a_set_becomes_services_instances_workloads_and_services() -> None:
    world = World(service_set(role(replicas=2), role("decode", kind="Deployment")))
    world.settle()
    assert world.kinds("InferService") == ["llm-0", "llm-1"]
    assert world.kinds("InstanceSet") == ["llm-0-decode", "llm-0-prefill", "llm-1-decode", "llm-1-prefill"]
    assert world.kinds("StatefulSet") == ["llm-0-prefill-0", "llm-0-prefill-1", "llm-1-prefill-0", "llm-1-prefill-1"]
    assert world.kinds("Deployment") == ["llm-0-decode-0", "llm-1-decode-0"]
    assert "service-llm-1-prefill-1" in world.kinds("Service")
    made = world.find("StatefulSet", "llm-1-prefill-1")
    labels = made["spec"]["template"]["metadata"]["labels"]
    wanted = {
        "ascend-infer-operator": "true", "inferservice-name": "llm-1", "instanceset-name": "prefill",
        "instanceset-index": "1",
    }  # fmt: skip
    assert labels == {
        "app": "train",
        "inferserviceid": "sid-1",
        **{f"infer.huawei.com/{k}": v for k, v in wanted.items()},
    }
    pod = {"spec": made["spec"]["template"]["spec"]}
    env = env_of(pod, "serve")
    assert {k: env[k] for k in ("INSTANCE_INDEX", "INSTANCE_ROLE", "INFER_SERVICE_INDEX", "INFER_SERVICE_NAME")} == {
        "INSTANCE_INDEX": "1", "INSTANCE_ROLE": "prefill", "INFER_SERVICE_INDEX": "1", "INFER_SERVICE_NAME": "llm",
    }  # fmt: skip
    port = world.find("Service", "service-llm-0-decode-0")["spec"]["ports"][0]
    assert (port["name"], port["port"]) == ("infer", 8080)
    assert world.find("Service", "service-llm-0-prefill-0")["spec"]["clusterIP"] == "None"
    assert made["spec"]["serviceName"] == "service-llm-1-prefill-1"


def test_readiness_propagates_level_by_level() -> None:
    world = World(service_set(role(), replicas=1))
    world.settle()
    assert condition(world, "InstanceSet", "llm-0-prefill") == ("False", "ReplicasNotReady")
    ready(world, "llm-0-prefill-0")
    world.settle()
    assert condition(world, "InstanceSet", "llm-0-prefill") == ("True", "AllWorkLoadReady")
    assert condition(world, "InferService", "llm-0") == ("True", "AllInstanceSetsReady")
    assert world.step() == []


def test_roles_start_in_the_order_of_their_priority() -> None:
    roles = [role("a", priority=2), role("b", priority=1), role("free")]
    world = World(service_set(*roles, replicas=1, schedulingStrategy={"type": "Priority"}))
    world.settle()
    assert world.kinds("StatefulSet") == ["llm-0-b-0", "llm-0-free-0"]
    waiting = world.find("InstanceSet", "llm-0-a")
    assert waiting["metadata"]["labels"]["infer.huawei.com/priority-scheduling-strategy"] == "Priority"
    message = waiting["status"]["conditions"][0]["message"]
    assert message.endswith("priority 2 waits until the roles of priority 1 are ready")
    ready(world, "llm-0-b-0")
    world.settle()
    assert world.kinds("StatefulSet") == ["llm-0-a-0", "llm-0-b-0", "llm-0-free-0"]


def test_a_gang_has_its_pod_group() -> None:
    world = World(POD_GROUP_CRD, service_set(role(gang=True), replicas=1))
    world.settle()
    assert world.find("PodGroup", "pg-llm-0-prefill-0")["spec"]["minMember"] == 2
    notes = world.find("StatefulSet", "llm-0-prefill-0")["spec"]["template"]["metadata"]["annotations"]
    assert notes["scheduling.k8s.io/group-name"] == "pg-llm-0-prefill-0"


def test_a_gang_without_pod_groups_is_an_error() -> None:
    world = World(service_set(role(gang=True), replicas=1))
    world.settle()
    assert world.kinds("StatefulSet") == []
    assert any("ValidateError" in line for line in world.diagnostics)


def test_node_ports_move_with_the_services_index() -> None:
    own = {"name": "api", "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30100}]}}
    world = World(service_set(role(services=[own])))
    world.settle()
    ports = [world.find("Service", f"api-llm-{i}-prefill")["spec"]["ports"][0]["nodePort"] for i in (0, 1)]
    assert ports == [30100, 30101]


def test_scaling_down_removes_the_highest_and_changes_reach_the_workloads() -> None:
    world = World(service_set(role(replicas=2)))
    world.settle()

    def smaller(raw: dict[str, Any]) -> None:
        raw["spec"]["replicas"] = 1
        raw["spec"]["template"]["roles"][0]["replicas"] = 1
        raw["spec"]["template"]["roles"][0]["spec"]["replicas"] = 3

    world.edit("InferServiceSet", "llm", smaller)
    world.settle()
    assert world.kinds("InferService") == ["llm-0"]
    assert "llm-0-prefill-1" not in world.kinds("StatefulSet")
    assert "service-llm-0-prefill-1" not in world.kinds("Service")
    assert world.find("StatefulSet", "llm-0-prefill-0")["spec"]["replicas"] == 3


def sick(status: str, retries: str | None = None) -> dict[str, Any]:
    labels = {
        "infer.huawei.com/ascend-infer-operator": "true", "infer.huawei.com/inferservice-name": "llm-0",
        "infer.huawei.com/instanceset-name": "prefill", "infer.huawei.com/instanceset-index": "0",
        "fault-scheduling": "external-grace", **({"fault-retry-times": retries} if retries is not None else {}),
    }  # fmt: skip
    meta = {"name": "p", "namespace": "vision", "labels": labels, "annotations": {UNHEALTHY: status}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": []}}


@pytest.mark.parametrize(
    ("status", "retries", "times"),
    [
        ("Unhealthy-CardUnhealthy", None, 1), ("Healthy", None, 0), ("Unhealthy-pod-failed", None, 0),
        ("Unhealthy-pod-failed", "0", 0), ("Unhealthy-pod-failed", "2", 2), ("Unhealthy-pod-failed", "many", 0),
    ],
)  # fmt: skip
def test_an_unhealthy_instance_is_deleted_as_a_whole(status: str, retries: str | None, times: int) -> None:
    world = World(service_set(role(), replicas=1))
    world.settle()
    for _ in range(times or 1):
        before = world.find("StatefulSet", "llm-0-prefill-0")["metadata"]["uid"]
        world.put(sick(status, retries))
        world.step()
        gone = "llm-0-prefill-0" not in world.kinds("StatefulSet")
        assert gone is bool(times)
        world.vanish("p")
        world.settle()
        assert (world.find("StatefulSet", "llm-0-prefill-0")["metadata"]["uid"] != before) is bool(times)
    if retries == "2":
        world.put(sick(status, retries))
        assert world.step() == [], "its retries are used up"


def test_a_restart_that_a_budget_holds_back_costs_one_retry() -> None:
    world = World(service_set(role(), replicas=1))
    world.settle()
    world.put(sick("Unhealthy-pod-failed", "1"))
    for _ in range(4):
        actions = world.step(skip=lambda action: True)
        assert [action.reason for action in actions] == ["InstanceUnhealthy"]
    world.step()
    assert world.kinds("StatefulSet") == []


def test_a_role_that_changes_its_kind_of_workload_changes_instance_by_instance() -> None:
    world = World(service_set(role(replicas=2), replicas=1))
    world.settle()
    for name in world.kinds("StatefulSet"):
        ready(world, name)
    root = service_set(role(replicas=2, kind="Deployment"), replicas=1)
    world.edit("InferServiceSet", "llm", lambda raw: raw.update(spec=root["spec"]))
    world.settle()
    assert (world.kinds("StatefulSet"), world.kinds("Deployment")) == (["llm-0-prefill-0"], ["llm-0-prefill-1"])
    ready(world, "llm-0-prefill-1", kind="Deployment")
    world.settle()
    assert (world.kinds("StatefulSet"), world.kinds("Deployment")) == ([], ["llm-0-prefill-0", "llm-0-prefill-1"])


@pytest.mark.parametrize(
    ("roles", "why"),
    [
        ([], "1 to 32 roles"), ([role("a"), role("a")], "unique"), ([role("A")], "RFC 1123"),
        ([role(replicas=257)], "0 to 256"), ([role(kind="Job")], "Deployment or StatefulSet"),
    ],
)  # fmt: skip
def test_errors_are_named_and_nothing_is_created(roles: list[dict[str, Any]], why: str) -> None:
    world = World(body("InferService", "s", {"roles": roles}))
    world.settle()
    assert world.kinds("InstanceSet") == []
    assert any(why in line for line in world.diagnostics)


def test_a_stateful_gang_must_start_in_parallel_unless_it_is_one_pod() -> None:
    odd, single = role(gang=True), role("decode", gang=True)
    del odd["spec"]["podManagementPolicy"], single["spec"]["podManagementPolicy"]
    single["spec"]["replicas"] = 1
    world = World(POD_GROUP_CRD, body("InferService", "s", {"roles": [odd, single]}))
    world.settle()
    assert any("podManagementPolicy: ValidateError: must be Parallel: the 2 pods" in line for line in world.diagnostics)
    assert condition(world, "InstanceSet", "s-prefill") == ("False", "ValidateError")
    assert world.kinds("StatefulSet") == ["s-decode-0"]


def test_nothing_is_planned_where_the_infer_operator_runs() -> None:
    operator = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "infer-operator-manager-1", "namespace": "mindx-dl"},
        "spec": {"containers": [], "nodeName": "n"}, "status": {"phase": "Running"},
    }  # fmt: skip
    world = World(service_set(role()), operator)
    assert world.step() == []
