"""Taking over inference services from MindCluster's infer operator."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from belay.engine.model.actions import CreateObject, DeleteObject, EvictPod, PatchObject
from tests.inference import PREFIX, left_by_operator, role, service_set
from tests.jobs import POD_GROUP_CRD, World

ROLES = [
    role("prefill", 2, gang=True),
    role("decode", 1, annotations={"sp-block": "16"}),
    role("router", 1, "Deployment", pods=1, chips=0,
         services=[{"name": "api", "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30100}],
                                            "selector": {"app": "test-router"}}}]),
]  # fmt: skip


def taken_over(*roles: dict[str, Any]) -> World:
    return World(POD_GROUP_CRD, *left_by_operator(service_set(*(roles or ROLES))))


def pods_of(world: World) -> dict[str, Any]:
    return {name: copy.deepcopy(world.pod(name)) for name in world.pods()}


def test_no_running_pod_and_no_workload_changes_when_the_operator_is_replaced() -> None:
    world = taken_over()
    before, workloads = pods_of(world), ["llm-0-decode-0", "llm-0-prefill-0", "llm-0-prefill-1"]
    specs = {name: copy.deepcopy(world.find("StatefulSet", name)["spec"]) for name in workloads}
    touched = []
    for _ in range(6):
        touched += world.step()
    assert world.step() == []
    assert not [a for a in touched if isinstance(a, DeleteObject | EvictPod)]
    assert {a.name for a in touched if isinstance(a, CreateObject)} == {"api-llm-0-router"}, "only what was missing"
    assert not [a for a in touched if isinstance(a, PatchObject) and "spec" in a.patch]
    assert pods_of(world) == before
    assert {name: world.find("StatefulSet", name)["spec"] for name in workloads} == specs
    assert world.find("InferServiceSet", "llm")["status"]["conditions"][0]["reason"] == "AllInferServicesReady"


def test_what_belay_makes_has_the_names_labels_and_variables_of_the_operators_objects() -> None:
    theirs = taken_over()
    ours = World(POD_GROUP_CRD, service_set(*ROLES))
    ours.settle()
    for kind in ("InferService", "InstanceSet", "StatefulSet", "Deployment", "PodGroup", "Service"):
        assert [n for n in ours.kinds(kind) if not n.startswith("api-")] == theirs.kinds(kind), kind
        for name in theirs.kinds(kind):
            made, given = ours.find(kind, name), theirs.find(kind, name)
            assert made["metadata"]["labels"] == given["metadata"]["labels"], f"{kind} {name}"
            if kind in ("StatefulSet", "Deployment"):
                a, b = made["spec"]["template"], given["spec"]["template"]
                assert a["metadata"] == b["metadata"]
                assert a["spec"]["containers"][0]["env"] == b["spec"]["containers"][0]["env"]
                assert made["spec"].get("serviceName") == given["spec"].get("serviceName")
            if kind == "Service":
                assert made["spec"]["selector"] == given["spec"]["selector"]
                assert made["spec"]["clusterIP"].startswith("None") is (given["spec"]["clusterIP"] == "None")
            if kind == "PodGroup":
                assert made["spec"] == given["spec"]


def test_an_operators_workload_that_lags_behind_its_template_runs_on_until_the_next_change() -> None:
    world = taken_over()
    world.edit("StatefulSet", "llm-0-prefill-0",
               lambda raw: raw["spec"]["template"]["spec"]["containers"][0].update(image="serve:0"))  # fmt: skip
    world.settle()
    assert (
        world.find("StatefulSet", "llm-0-prefill-0")["spec"]["template"]["spec"]["containers"][0]["image"] == "serve:0"
    )
    world.edit("InferServiceSet", "llm", lambda raw: image(raw, "serve:2"))
    world.settle()
    made = world.find("StatefulSet", "llm-0-prefill-1")  # the first to change; the next waits for it
    assert made["spec"]["template"]["spec"]["containers"][0]["image"] == "serve:2"


def image_of(world: World, name: str) -> str:
    return str(world.find("StatefulSet", name)["spec"]["template"]["spec"]["containers"][0]["image"])


def image(raw: dict[str, Any], name: str) -> None:
    raw["spec"]["template"]["roles"][0]["spec"]["template"]["spec"]["containers"][0]["image"] = name


def test_what_an_earlier_belay_made_keeps_running() -> None:
    """It labelled pods with the name of the InstanceSet, and InstanceSets with the role under another key."""
    world = taken_over(role("prefill", 2))
    old = {PREFIX + "instanceset-name": "llm-0-prefill"}

    def early(raw: dict[str, Any]) -> None:
        labels = raw["metadata"]["labels"]
        labels[PREFIX + "role-name"] = labels.pop(PREFIX + "instanceset-name")

    for name in world.kinds("StatefulSet"):
        world.edit("StatefulSet", name, lambda raw: raw["spec"]["template"]["metadata"]["labels"].update(old))
    for name in world.pods():
        world.edit("Pod", name, lambda raw: raw["metadata"]["labels"].update(old))
    world.edit("InstanceSet", "llm-0-prefill", early)
    before = pods_of(world)
    world.settle()
    assert pods_of(world) == before
    assert world.find("InstanceSet", "llm-0-prefill")["metadata"]["labels"][PREFIX + "instanceset-name"] == "prefill"


def test_a_users_service_name_gives_the_pods_of_new_instances_their_names() -> None:
    mine = role("prefill", 2)
    mine["spec"]["serviceName"] = "workers"
    world = World(service_set(mine))
    world.settle()
    assert world.find("StatefulSet", "llm-0-prefill-1")["spec"]["serviceName"] == "workers"
    shared = world.find("Service", "workers")["spec"]
    assert shared["clusterIP"] == "None"
    assert shared["selector"] == {"app": "test-prefill"}


@pytest.mark.parametrize(
    ("where", "policy", "wanted"),
    [("role", "chip8-node8-sp", True), ("pod", "chip8-node8-ra64-sp", True), ("role", "chip8-node8", False),
     ("own", "chip8-node8-sp", False)],
)  # fmt: skip
def test_roles_of_super_pod_policies_are_kept_close_by_the_services_uid(where: str, policy: str, wanted: bool) -> None:
    notes = {"huawei.com/schedule_policy": policy}
    one = role("prefill", annotations=notes if where != "pod" else {})
    if where == "pod":
        one["spec"]["template"]["metadata"]["annotations"] = notes
    if where == "own":
        one["spec"]["template"]["metadata"]["labels"]["inferserviceid"] = "mine"
    world = World(service_set(one))
    world.settle()
    uid = world.find("InferService", "llm-0")["metadata"]["uid"]
    found = world.find("StatefulSet", "llm-0-prefill-0")["spec"]["template"]["metadata"]["labels"].get("inferserviceid")
    assert found == (uid if wanted else "mine" if where == "own" else None)


def test_names_that_are_too_long_are_refused_before_the_api_server_refuses_pods() -> None:
    world = World(service_set(role("p" * 50)))
    world.settle()
    assert world.kinds("StatefulSet") == []
    found = world.find("InstanceSet", f"llm-0-{'p' * 50}")["status"]["conditions"][0]
    assert found["reason"] == "ValidateError" and "have 58 characters, pods allow at most 52" in found["message"]
    long = service_set(role())
    long["metadata"]["name"] = "s" * 62
    world = World(long)
    world.settle()
    assert world.kinds("InferService") == []
    assert "has 62 characters" in world.find("InferServiceSet", "s" * 62)["status"]["conditions"][0]["message"]


def test_wrong_roles_are_refused_in_the_condition_and_nothing_is_removed() -> None:
    world = taken_over()
    world.settle()
    before = world.kinds("StatefulSet")
    world.edit("InferServiceSet", "llm", lambda raw: raw["spec"]["template"]["roles"][0].update(replicas=-1))
    world.settle()
    assert world.kinds("StatefulSet") == before
    condition = world.find("InferService", "llm-0")["status"]["conditions"][0]
    assert (condition["reason"], "role prefill: replicas must be" in condition["message"]) == ("ValidateError", True)
