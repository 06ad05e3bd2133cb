"""Manifests as an API server accepts them: strict quantities and ports, no field that a schema would prune."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.documents import Desired
from belay.engine.model.actions import CreateObject
from belay.engine.observe.observed import key_of
from belay.engine.plan.sync.drift import first_difference
from belay.engine.plan.sync.served import normalized, without_unknown_fields
from tests.jobs import World, ascend_job, config_map, manifest


def stateful_set() -> dict[str, Any]:
    container = {
        "name": "db",
        "image": "db:1",
        "ports": [{"containerPort": 5432}, {"containerPort": 5432, "protocol": "UDP"}],
        "env": [{"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": 1}}}],
        "resources": {"limits": {"huawei.com/Ascend910": 8, "cpu": 0.5, "ephemeral-storage": 1e9, "memory": "1Gi"}},
    }
    memory = {"name": "m", "emptyDir": {"sizeLimit": 1024}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "vision"},
        "spec": {
            "replicas": 2,
            "template": {"spec": {"containers": [container], "volumes": [memory]}},
            "volumeClaimTemplates": [{"spec": {"resources": {"requests": {"storage": 1073741824}}}}],
        },
    }


def test_quantities_become_text_and_ports_get_their_protocol() -> None:
    spec = normalized(stateful_set())["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {
        "huawei.com/Ascend910": "8",
        "cpu": "0.5",
        "ephemeral-storage": "1000000000",
        "memory": "1Gi",
    }
    assert [port["protocol"] for port in container["ports"]] == ["TCP", "UDP"]
    assert container["env"][0]["valueFrom"]["resourceFieldRef"]["divisor"] == "1"
    assert spec["template"]["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] == "1024"
    assert spec["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "1073741824"
    assert spec["replicas"] == 2


def test_custom_resources_stay_as_written() -> None:
    assert normalized(ascend_job()) == ascend_job()


def test_created_objects_are_normalized_and_keep_the_written_digest() -> None:
    declared = manifest(stateful_set())
    world = World(desired=Desired(revision="r", manifests=(declared,)))
    (action,) = world.step()
    assert isinstance(action, CreateObject)
    assert action.object["spec"] == normalized(stateful_set())["spec"]
    assert action.object["metadata"]["annotations"]["belay.dev/applied-digest"] == declared.digest
    assert world.plan() == []


OPEN = {"x-kubernetes-preserve-unknown-fields": True}
SCHEMA = {
    "properties": {
        "spec": {
            "properties": {
                "replicaSpecs": {
                    "additionalProperties": {"properties": {"template": OPEN, "replicas": {}, "restartPolicy": {}}}
                },
                "free": OPEN,
                "rows": {"items": {"properties": {"name": {}}}},
            }
        }
    }
}


def test_only_fields_of_the_schema_are_kept() -> None:
    spec = {
        "replicaSpecs": {"Master": {"replicas": 1, "typo": 2}},
        "free": {"anything": {"goes": 1}},
        "rows": [{"name": "a", "typo": 1}],
        "typo": 3,
    }
    body = {"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "a", "labels": {"x": "y"}}, "spec": spec}
    assert without_unknown_fields(body, SCHEMA) == {
        "apiVersion": "a/v1",
        "kind": "A",
        "metadata": {"name": "a", "labels": {"x": "y"}},
        "spec": {
            "replicaSpecs": {"Master": {"replicas": 1}},
            "free": {"anything": {"goes": 1}},
            "rows": [{"name": "a"}],
        },
    }


def test_a_field_that_the_schema_prunes_is_not_patched_again() -> None:
    names = {"kind": "AscendJob", "plural": "ascendjobs"}
    versions = [{"name": "v1", "schema": {"openAPIV3Schema": SCHEMA}}]
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "ascendjobs.mindxdl.gitee.com"},
        "spec": {"group": "mindxdl.gitee.com", "names": names, "versions": versions},
    }
    body = ascend_job(labels={"framework": "none"}, typo=1)
    world = World(crd, desired=Desired(revision="r", manifests=(manifest(body),)))
    world.step()
    stored = world.find("AscendJob", "train")
    del stored["spec"]["typo"]
    world.settle()
    said = [line for line in world.diagnostics if "has no effect" in line]
    assert len(said) == 1 and "spec.typo" in said[0] and "renew the CustomResourceDefinition" in said[0]

    world.edit("AscendJob", "train", lambda job: job["spec"]["replicaSpecs"]["Master"].pop("replicas"))
    assert [action.reason for action in world.plan()] == ["Drifted"]


@pytest.mark.parametrize(
    ("want", "have"),
    [
        ({"terminationGracePeriodSeconds": None}, {"terminationGracePeriodSeconds": 30}),
        (
            {"containers": [{"name": "a", "imagePullPolicy": ""}]},
            {"containers": [{"name": "a", "imagePullPolicy": "Always"}]},
        ),
        ({"ports": [{"port": 80, "nodePort": 0}]}, {"ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}]}),
    ],
)
def test_empty_values_are_no_drift_from_a_default(want: dict[str, Any], have: dict[str, Any]) -> None:
    assert first_difference({"spec": want}, {"spec": have}) == ""


def test_an_empty_text_is_a_value_in_labels_annotations_and_data() -> None:
    body = config_map("a", {"k": ""})
    body["metadata"]["annotations"] = {"note": ""}
    world = World(desired=Desired(revision="r", manifests=(manifest(body),)))
    world.step()
    assert world.plan() == []
    world.edit("ConfigMap", "a", lambda found: found["data"].pop("k"))
    assert [action.message.split(";")[0] for action in world.plan()] == [
        f"{key_of(body)}: its field data.k is not as declared"
    ]
    world.step()
    world.objects[key_of(body)]["data"] = {"k": ""}
    world.edit("ConfigMap", "a", lambda found: found["metadata"]["annotations"].pop("note"))
    assert [action.reason for action in world.plan()] == ["Drifted"]
