"""The rules that user manifests must pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.documents.manifests import ACCEPTED, check_manifest

Json = dict[str, Any]


def container(name: str = "ascend", npus: object = 8, **fields: Any) -> Json:
    resource = {"huawei.com/Ascend910": npus}
    return {"name": name, "image": "i", "resources": {"requests": dict(resource), "limits": dict(resource)}, **fields}


def template(*containers: Json, **metadata: Any) -> Json:
    return {"metadata": metadata, "spec": {"containers": list(containers) or [container()]}}


def ascend_job(**replicas: Any) -> Json:
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": "j", "labels": {"framework": "pytorch"}},
        "spec": {"replicaSpecs": replicas or {"Master": {"replicas": 1, "template": template()}}},
    }


def volcano_job(*tasks: Json, **spec: Any) -> Json:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {
            "minAvailable": 1,
            "tasks": list(tasks) or [{"name": "t", "replicas": 1, "template": template()}],
            **spec,
        },
    }


def problems(body: Json, severity: str = "error") -> list[tuple[str, str]]:
    return [
        (".".join(map(str, problem.path)), problem.message)
        for problem in check_manifest(body)
        if problem.severity == severity
    ]


def test_valid_jobs_pass() -> None:
    assert problems(ascend_job()) == []
    assert problems(volcano_job()) == []
    both = ascend_job(master={"replicas": 1, "template": template()}, Worker={"replicas": 3, "template": template()})
    assert problems(both) == []


def test_names_that_are_almost_known_ones_are_found() -> None:
    wrong = container()
    wrong["resources"] = {"limits": {"huawei.com/ascend910": 8, "huawei.com/rdma": 1}}
    ((path, message),) = problems(ascend_job(Master={"replicas": 1, "template": template(wrong)}))
    assert path.endswith("limits.huawei.com/ascend910") and "did you mean huawei.com/Ascend910?" in message
    body = ascend_job()
    body["metadata"]["labels"] |= {"fault-schedulng": "force", "team": "vision", "fault-kind": "none"}
    ((path, message),) = problems(body, "warning")
    assert (path, message) == ("metadata.labels.fault-schedulng", "label has no effect: did you mean fault-scheduling?")


def test_a_gang_that_is_larger_than_its_job_and_a_missing_image_are_warned_of() -> None:
    body = ascend_job(Master={"replicas": 1, "template": template()}, Worker={"template": template()})
    body["spec"]["runPolicy"] = {"schedulingPolicy": {"minAvailable": 3}}
    ((path, message),) = problems(body, "warning")
    assert path.endswith("minAvailable") and "it has 2 pods, fewer than minAvailable 3" in message
    body["spec"]["runPolicy"] = {"schedulingPolicy": {"minAvailable": 2}}
    assert problems(body, "warning") == []
    bare = container()
    del bare["image"]
    task = {"name": "t", "replicas": 1, "template": template(bare)}
    assert [path for path, _ in problems(volcano_job(task), "warning")] == [
        "spec.tasks.0.template.spec.containers.0.image"
    ]
    refused = check_manifest(ascend_job(Master={"replicas": 1, "template": template(bare)}))
    assert [one.message.partition(":")[0] for one in refused] == ["InvalidContainer"], "said once"


MASTER: Json = {"replicas": 1, "template": template()}
CASES: list[tuple[Json, Json, str, str]] = [
    ({"scaleout-type": "wifi"}, {"Master": MASTER}, "metadata.labels.scaleout-type",
     "InvalidScaleOutConfig: the value of label scaleout-type is invalid, which should be ROCE or UBOE"),
    ({"mind-cluster/scaling-rule": "r", "jobID": "1"}, {"Master": MASTER}, "metadata.labels.mind-cluster/scaling-rule",
     "InvalidScalingConfig: job j has no group name, please set label of mind-cluster/group-name=<the group of job>"),
    ({"mind-cluster/scaling-rule": "r", "mind-cluster/group-name": "g"}, {"Master": MASTER},
     "metadata.labels.mind-cluster/scaling-rule",
     "InvalidScalingConfig: job j has no jobID, please set label of jobID=<the jobID of job>"),
    ({"framework": ""}, {"Master": MASTER}, "metadata.labels.framework",
     "InvalidFramework: framework label is not set, "
     "please set label framework as one of <pytorch,mindspore,tensorflow>"),
    ({"framework": "jax"}, {"Master": MASTER}, "metadata.labels.framework",
     "InvalidFramework: framework label<jax> is not in [pytorch mindspore tensorflow]"),
    ({}, {"Master": MASTER, "Chief": MASTER}, "spec.replicaSpecs.Chief",
     "InvalidReplicaType: replicaType is Chief but must be one of [Master Worker]"),
    ({}, {"Worker": MASTER}, "spec.replicaSpecs",
     "InvalidReplicaType: replicaType is not valid: "
     "there need 1 leader replicaType, Master for pytorch, Chief of tensorflow"),
    ({}, {"Master": None}, "spec.replicaSpecs.Master",
     "InvalidReplicaSpec: Master replicaSpec is not set, please modify your job"),
    ({}, {"Master": MASTER, "Worker": {"replicas": -1, "template": template()}}, "spec.replicaSpecs.Worker.replicas",
     "InvalidReplicaSpec: Worker replicaSpec is not valid: replicas can not be negative num, but got -1"),
    ({}, {"Master": MASTER, "Worker": {"replicas": 20001, "template": template()}}, "spec.replicaSpecs.Worker.replicas",
     "InvalidReplicaSpec: Worker replicaSpec is not valid: replicas can not be larger than 20000, but got 20001"),
    ({}, {"Master": {"replicas": 2, "template": template()}}, "spec.replicaSpecs.Master.replicas",
     "InvalidReplicaSpec: Master replicaSpec is not valid, the replicas must be only 1"),
    ({}, {"Master": {"replicas": 1, "template": {"spec": {}}}}, "spec.replicaSpecs.Master.template.spec.containers",
     "InvalidReplicaSpec: Master replicaSpec is not valid: containers is undefined"),
    ({}, {"Master": {"template": template(container("main"))}}, "spec.replicaSpecs.Master.template.spec.containers",
     "InvalidContainer: Master replicaSpec is not valid: There is no container named ascend"),
    ({}, {"Master": {"template": template(container(image=""))}},
     "spec.replicaSpecs.Master.template.spec.containers.0.image",
     "InvalidContainer: Master replicaSpec is not valid: Image is undefined in the container of ascend"),
    ({"framework": "mindspore"}, {"Worker": {"replicas": 1, "template": template()}}, "spec.replicaSpecs",
     "InvalidReplicaSpec: replicaSpec is not valid: when scheduler not found, the req num must be 1"),
    ({}, {}, "spec.replicaSpecs", "InvalidSpecs: replicaSpecs is not set, please modify your job"),
]  # fmt: skip


@pytest.mark.parametrize(("labels", "replicas", "path", "message"), CASES)
def test_ascend_jobs_are_refused_in_the_operators_words(labels: Json, replicas: Json, path: str, message: str) -> None:
    body = ascend_job()
    body["spec"]["replicaSpecs"] = copy.deepcopy(replicas)
    body["metadata"]["labels"].update(labels)
    assert problems(body) == [(path, message)]


def test_a_single_card_mindspore_job_needs_no_scheduler() -> None:
    body = ascend_job(Worker={"replicas": 1, "template": template(container(npus=1))})
    body["metadata"]["labels"]["framework"] = "mindspore"
    assert problems(body) == []


def test_success_policy_and_unknown_fields() -> None:
    body = ascend_job()
    body["spec"].update(successPolicy="Some", shedulerName="x")
    assert problems(body) == [
        (
            "spec.successPolicy",
            'InvalidSuccessPolicy: job success policy is invalid, it must be one of <"", AllWorkers>',
        )
    ]
    assert [path for path, _ in problems(body, "warning")] == ["spec.shedulerName"]


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        (volcano_job(minAvailable=2), "spec.minAvailable", "should not be greater than total replicas"),
        (volcano_job({"name": "a", "template": template()}, {"name": "a", "template": template()}),
         "spec.tasks.1.name", "duplicated task name a"),
        (volcano_job({"name": "a", "minAvailable": 2, "template": template()}), "spec.tasks.0.minAvailable",
         "is greater than 'replicas' 1 in task: a, job: j"),
        (volcano_job(plugins={"svc": [], "nope": []}), "spec.plugins.nope", "unable to find job plugin: nope"),
        (volcano_job(tasks=[]), "spec.tasks", "No task specified in job spec"),
        (volcano_job(networkTopology={"highestTierAllowed": 1, "highestTierName": "x"}), "spec.networkTopology",
         "together"),
        (volcano_job({"name": "a", "template": template(), "dependsOn": {"name": ["b"]}},
                     {"name": "b", "template": template(), "dependsOn": {"name": ["a"]}}),
         "spec.tasks.0.dependsOn", "in a cycle"),
        (volcano_job({"name": "a", "template": template(), "dependsOn": {"name": ["c"]}}),
         "spec.tasks.0.dependsOn.name.0", "no task is named 'c'"),
        (volcano_job({"name": "a", "replicas": 5, "template": template(),
                      "partitionPolicy": {"totalPartitions": 2, "partitionSize": 2}}),
         "spec.tasks.0.replicas", "= 4, but are 5"),
        (volcano_job({"name": "a" * 62, "template": template()}), "spec.tasks.0.name", "longer than 63"),
        (volcano_job(policies=[{"event": "PodBored", "action": "RestartJob"}]), "spec.policies.0.event", "PodBored"),
        (volcano_job({"name": "a", "template": {"spec": {"containers": [container()], "restartPolicy": "ExitCode"}}}),
         "spec.tasks.0.template.spec.restartPolicy", "ExitCode"),
    ],
)  # fmt: skip
def test_volcano_jobs_are_refused_as_by_its_admission(body: Json, path: str, words: str) -> None:
    found = problems(body)
    assert (path, True) in [(place, words in message) for place, message in found], found


@pytest.mark.parametrize(
    ("resources", "path", "words"),
    [
        ({"requests": {"huawei.com/Ascend910": 8}, "limits": {"huawei.com/Ascend910": 4}},
         "requests.huawei.com/Ascend910", "must be equal: 8 is not 4"),
        ({"requests": {"huawei.com/Ascend910": 8}}, "requests.huawei.com/Ascend910", "limits must name"),
        ({"limits": {"huawei.com/Ascend910": 1.5}}, "limits.huawei.com/Ascend910", "whole numbers"),
        ({"limits": {"huawei.com/Ascend310P": "2Gi"}}, "limits.huawei.com/Ascend310P", "whole numbers"),
        ({"limits": {"cpu": True}}, "limits.cpu", "quantity"),
    ],
)  # fmt: skip
def test_npu_requests_are_whole_and_equal_to_their_limits(resources: Json, path: str, words: str) -> None:
    body = volcano_job({"name": "t", "template": template(container(resources=resources))})
    ((place, message),) = problems(body)
    assert place == f"spec.tasks.0.template.spec.containers.0.resources.{path}"
    assert words in message


def test_limits_alone_and_quantities_as_text_are_fine() -> None:
    rows = [{"limits": {"huawei.com/npu": "8"}}, {"requests": {"cpu": "4", "memory": "1Gi"}}, {}]
    for resources in rows:
        assert problems(volcano_job({"name": "t", "template": template(container(resources=resources))})) == []


def test_one_pod_asks_for_one_npu_resource() -> None:
    other = container("b", resources={"limits": {"huawei.com/Ascend910-2c": 1}})
    ((path, message),) = problems(volcano_job({"name": "t", "template": template(container(), other)}))
    assert path == "spec.tasks.0.template.spec.containers"
    assert "huawei.com/Ascend910, huawei.com/Ascend910-2c" in message


def deployment(**template_fields: Any) -> Json:
    pod = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container()]}, **template_fields}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


def test_workloads_select_their_own_pods() -> None:
    assert problems(deployment()) == []
    ((path, _),) = problems(deployment(metadata={"labels": {"app": "b"}}))
    assert path == "spec.selector.matchLabels.app"


def test_file_modes_with_a_leading_zero_are_questioned() -> None:
    body = deployment()
    body["spec"]["template"]["spec"]["volumes"] = [{"name": "v", "configMap": {"name": "c", "defaultMode": "0644"}}]
    ((path, message),) = problems(body)
    assert path == "spec.template.spec.volumes.0.configMap.defaultMode"
    assert "0o644" in message


def test_metadata_of_declarations() -> None:
    body: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a.b", "namespace": "x", "uid": "u"}}
    assert [path for path, _ in problems(body)] == ["metadata.name", "metadata.namespace", "metadata.uid"]
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"generateName": "a-", "labels": {"a": True, "b": "?"}},
    }
    assert [path for path, _ in problems(body)] == [
        "metadata.name", "metadata.generateName", "metadata.labels.a", "metadata.labels.b",
    ]  # fmt: skip


def test_misspelt_switches_are_warned_about() -> None:
    body = ascend_job()
    body["metadata"]["labels"]["fault-scheduling"] = "forced"
    assert problems(body) == []
    assert [path for path, _ in problems(body, "warning")] == ["metadata.labels.fault-scheduling"]


LEAVES = st.none() | st.booleans() | st.integers(-5, 30_000) | st.floats(allow_nan=False) | st.text(max_size=5)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


@st.composite
def mangled(draw: st.DrawFn) -> Json:
    """A sound manifest in which some parts are replaced by anything."""
    body: Json = copy.deepcopy(draw(st.sampled_from([ascend_job(), volcano_job(), deployment()])))
    version, kind = draw(st.sampled_from(sorted(ACCEPTED)))
    if draw(st.booleans()):
        body["apiVersion"], body["kind"] = version, kind
    for _ in range(draw(st.integers(1, 3))):
        spot: Any = body
        while isinstance(spot, (dict, list)) and spot:
            key = draw(st.sampled_from(sorted(spot))) if isinstance(spot, dict) else draw(st.integers(0, len(spot) - 1))
            if spot is not body and draw(st.integers(0, 3)) == 0:
                spot[key] = draw(ANYTHING)
                break
            if spot is body and key in ("apiVersion", "kind"):
                key = "spec" if "spec" in body else "metadata"
            if not isinstance(spot[key], (dict, list)):
                spot[key] = draw(ANYTHING)
                break
            spot = spot[key]
    return body


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mangled())
def test_no_manifest_crashes_the_rules(body: Json) -> None:
    for problem in check_manifest(body):
        assert problem.message


def test_names_that_become_services_begin_with_a_letter() -> None:
    service: Json = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "1a"},
        "spec": {"ports": [{"port": 1}]},
    }
    assert [path for path, _ in problems(service)] == ["metadata.name"]
    job = ascend_job()
    job["metadata"]["name"] = "1a"
    assert problems(job) == []
    assert [path for path, _ in problems(job, "warning")] == ["metadata.name"]


def test_invalid_pod_fields_are_found_before_a_pod_is_created() -> None:
    container = {
        "name": "C_",
        "image": "i",
        "imagePullPolicy": "Sometimes",
        "comand": ["x"],
        "ports": [{"containerPort": 70000}],
        "resources": {"limits": {"cpu": "4x", "memory": "1Gi"}, "requests": {"memory": "2Gi"}},
        "volumeMounts": [{"name": "nope", "mountPath": "/x"}],
    }
    labels = {"app": "a"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], "restartPolicy": "Never"}}
    body = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "a"},
        "spec": {"selector": {"matchLabels": labels}, "template": template, "podManagementPolicy": "Serial"},
    }
    row: tuple[str | int, ...] = ("spec", "template", "spec", "containers", 0)
    found = {problem.path: problem.severity for problem in check_manifest(body)}
    assert found == {
        (*row, "name"): "error",
        (*row, "imagePullPolicy"): "error",
        (*row, "comand"): "warning",
        (*row, "ports", 0, "containerPort"): "error",
        (*row, "resources", "limits", "cpu"): "error",
        (*row, "resources", "requests", "memory"): "error",
        (*row, "volumeMounts", 0, "name"): "error",
        ("spec", "template", "spec", "restartPolicy"): "error",
        ("spec", "podManagementPolicy"): "error",
    }


def test_volume_claims_of_a_stateful_set_can_be_mounted() -> None:
    labels = {"app": "a"}
    container = {"name": "a", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    claims = [{"metadata": {"name": "data"}, "spec": {}}]
    spec = {"selector": {"matchLabels": labels}, "template": template, "volumeClaimTemplates": claims}
    assert (
        check_manifest({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "a"}, "spec": spec}) == []
    )


@pytest.mark.parametrize(
    ("ports", "field"),
    [
        ([{"port": 80}, {"port": 81, "name": "b"}], "name"),
        ([{"port": 80, "name": "a"}, {"port": 80, "name": "b"}], "port"),
        ([{"port": 80, "targetPort": "8080"}], "targetPort"),
        ([{"port": 80, "protocol": "HTTP"}], "protocol"),
    ],
)
def test_ports_that_a_service_cannot_have(ports: list[dict[str, Any]], field: str) -> None:
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": ports}}
    assert [problem.path[-1] for problem in check_manifest(body)] == [field]


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ([{"event": "PodFailed"}], "required field is missing"),
        ([{"event": "PodFailed", "action": "Ignore"}] * 2, "duplicate event PodFailed: an earlier policy answers it"),
        (
            [{"event": "PodFailed", "action": "Ignore"}, {"event": "*", "action": "AbortJob"}],
            "if there's * here, no other policy should be here",
        ),
    ],
)
def test_policies_that_volcano_refuses(policies: list[dict[str, Any]], message: str) -> None:
    task = {"name": "w", "replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    spec = {"tasks": [task], "policies": policies}
    body = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v"}, "spec": spec}
    assert [problem.message for problem in check_manifest(body)] == [message]


def test_a_job_name_leaves_room_for_its_service() -> None:
    template = {"spec": {"containers": [{"name": "ascend", "image": "i"}]}}
    body = {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": "x" * 55, "labels": {"framework": "pytorch"}},
        "spec": {"replicaSpecs": {"Master": {"template": template}}},
    }
    assert [problem.path for problem in check_manifest(body)] == [("metadata", "name")]
    body["metadata"]["name"] = "x" * 54  # type: ignore[index]
    assert check_manifest(body) == []


@pytest.mark.parametrize(
    ("policy", "times", "warned"),
    [
        ("Never", "3", False),
        (None, "3", False),
        ("Always", "3", True),
        ("OnFailure", "1", True),
        ("Always", "0", False),
    ],
)
def test_retries_without_effect_are_warned_about(policy: str | None, times: str, warned: bool) -> None:
    text = f"fault-retry-times needs restartPolicy Never; with {policy} failed pods are not retried"
    replica = {"replicas": 1, "template": template()} | ({"restartPolicy": policy} if policy else {})
    job = ascend_job(Master=replica)
    job["metadata"]["labels"]["fault-retry-times"] = times
    assert problems(job, "warning") == ([("spec.replicaSpecs.Master.restartPolicy", text)] if warned else [])
    task = {"name": "t", "replicas": 1, "template": template()}
    task["template"]["spec"] |= {"restartPolicy": policy} if policy else {}
    volcano = volcano_job(task)
    volcano["metadata"]["labels"] = {"fault-retry-times": times}
    found = problems(volcano, "warning")
    assert found == ([("spec.tasks.0.template.spec.restartPolicy", text)] if warned else [])


@pytest.mark.parametrize(
    ("chosen", "written", "warned"),
    [
        ("OnFailure", "Always", "OnFailure"),
        (None, "OnFailure", "Never"),
        ("ExitCode", "Always", "ExitCode"),
        ("ExitCode", "Never", ""),
        (None, "Never", ""),
        ("Always", "Always", ""),
        ("Always", None, ""),
    ],
)
def test_a_template_whose_restart_policy_is_overwritten(chosen: str | None, written: str | None, warned: str) -> None:
    body = template()
    body["spec"] |= {"restartPolicy": written} if written else {}
    job = ascend_job(Master={"replicas": 1, "template": body} | ({"restartPolicy": chosen} if chosen else {}))
    text = f"{written} is overwritten by the replica's restartPolicy, {warned}: write it there"
    where = "spec.replicaSpecs.Master.template.spec.restartPolicy"
    assert problems(job, "warning") == ([(where, f"SettedPodTemplateRestartPolicy: {text}")] if warned else [])


def test_a_namespace_without_a_value_is_no_namespace() -> None:
    body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": None}}
    assert [path for path, _ in problems(body)] == ["metadata.namespace"]
    del body["metadata"]["namespace"]
    assert problems(body) == []
