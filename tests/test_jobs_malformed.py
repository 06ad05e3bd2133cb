"""Jobs with malformed fields: the job is refused or reported, and the pass continues for all others."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.model.history import History
from tests.jobs import World, ascend_job, config_map, volcano_job

WRONG: tuple[Any, ...] = (1, "x", True, [1], {"a": 1})


def put(body: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    found: Any = body
    for parent in parents:
        found = found.setdefault(parent, {}) if isinstance(found, dict) else found[parent]
    found[last] = value


CONTAINER = "template/spec/containers/0"


@pytest.mark.parametrize("wrong", [1, "x", True, [1], {"a": 1}])
@pytest.mark.parametrize("field", ["env", "ports", "volumeMounts"])
def test_a_malformed_template_fails_only_its_job(field: str, wrong: Any) -> None:
    job, other = ascend_job("bad", uid="bad"), ascend_job("good", uid="good")
    put(job, f"spec/replicaSpecs/Master/{CONTAINER}/{field}", wrong)
    world = World(job, other)
    world.step()
    assert world.message("bad") == (
        "JobValidFailed: InvalidReplicaSpec: Master replicaSpec is not valid: "
        f"template.spec.containers[0].{field} must be a list of mappings"
    )
    assert world.kinds("Service") == ["good-master-0"]
    world.step()
    assert world.pods() == ["good-master-0", "good-worker-0"]


@pytest.mark.parametrize("field", ["env", "volumeMounts"])
def test_a_malformed_volcano_task_is_named(field: str) -> None:
    job = volcano_job(plugins={"env": [], "svc": []})
    put(job, f"spec/tasks/0/{CONTAINER}/{field}", 1)
    world = World(job)
    world.step()
    assert world.pods() == []
    assert f"template of task worker: spec.containers[0].{field} must be a list of mappings" in world.diagnostics[0]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(
    "path",
    [
        "spec", "spec/tasks", "spec/plugins", "spec/policies", "spec/tasks/0/template", "spec/tasks/0/dependsOn",
        "status", "status/state", "status/state/phase", "status/conditions", "metadata/labels", "metadata/annotations",
    ],
)  # fmt: skip
def test_no_field_of_a_volcano_job_stops_the_pass(path: str, wrong: Any) -> None:
    job = volcano_job()
    put(job, path, wrong)
    world = World(job, ascend_job())
    world.step()
    assert "train-master-0" in world.kinds("Service")


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(
    "path",
    [
        "spec/runPolicy", "spec/runPolicy/schedulingPolicy", "spec/runPolicy/backoffLimit", "status",
        "status/conditions", "status/replicaStatuses", "metadata/annotations", "spec/replicaSpecs/Worker/template",
        "spec/replicaSpecs/Worker/template/spec/nodeSelector", "spec/replicaSpecs/Worker/template/metadata",
    ],
)  # fmt: skip
def test_no_field_of_an_ascend_job_stops_the_pass(path: str, wrong: Any) -> None:
    job = ascend_job("bad", uid="bad")
    put(job, path, wrong)
    world = World(job, ascend_job(), config_map("rings-config-bad", {"hccl.json": "[]"}))
    world.step()
    assert "train-master-0" in world.kinds("Service")


def test_labels_that_are_not_text_are_read_as_text() -> None:
    job = ascend_job()
    world = World(job)
    world.step()
    world.step()
    world.edit("Pod", "train-master-0", lambda pod: pod["metadata"]["labels"].update(version=0))
    world.edit("Pod", "train-master-0", lambda pod: pod["metadata"]["annotations"].update({"hccl/rankIndex": 0}))
    assert world.plan() == []


def test_a_job_taken_over_from_its_operator_keeps_its_count_of_rounds() -> None:
    world = World(ascend_job(policy={"backoffLimit": 3}))
    world.step()
    world.step()
    world.run_all()
    world.history = History()
    for name in world.pods():
        world.edit("Pod", name, lambda pod: pod["metadata"]["labels"].update(version="3"))
    world.step()
    assert world.state() == "Running"
    world.vanish("train-worker-0")
    world.step()
    assert world.message() == "JobFailed: Job train has failed because it has reached the specified backoff limit"


def test_a_volcano_job_taken_over_keeps_its_retries() -> None:
    job = volcano_job(policies=[{"event": "PodEvicted", "action": "RestartJob"}], maxRetry=3)
    job["status"] = {"state": {"phase": "Running"}, "version": 2, "retryCount": 2}
    world = World(job)
    world.step()
    assert world.pod("vc-worker-0")["metadata"]["annotations"]["volcano.sh/job-version"] == "2"
    world.run_all()
    world.step()
    world.vanish("vc-worker-0")
    world.step()
    assert world.state("vc") == "Failed"


@pytest.mark.parametrize("name", ["x" * 60, "1st", "a.b"])
def test_a_job_whose_service_cannot_be_named_says_so_and_plans_nothing(name: str) -> None:
    world = World(ascend_job(name))
    world.step()
    assert world.kinds("Service") == []
    assert world.message(name).startswith(f"SyncServiceFailed: no service can be named {name}-master-0")
    assert world.plan() == []


def test_a_headless_service_in_the_place_of_the_leaders_is_named() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "train-master-0", "namespace": "vision"}}
    world = World(ascend_job(), {**service, "spec": {"clusterIP": "None"}})
    world.step()
    assert world.message().startswith("SyncServiceFailed: service train-master-0 is headless")
    assert world.pods() == []


DEEP = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"


def test_text_nested_too_deeply_stops_no_pass() -> None:
    marks = {"mind-cluster/scaling-rule": "rule", "mind-cluster/group-name": "g", "jobID": "j"}
    retried = ascend_job("retried", uid="r", labels={"fault-retry-times": "3"})
    retries = config_map("vcjob-fault-npu-cm", {"remain-retry-times": DEEP})
    retries["metadata"]["namespace"] = "volcano-system"
    world = World(
        config_map("rings-config-train", {"hccl.json": DEEP}),
        config_map("rule", {"elastic_scaling.json": DEEP}),
        retries,
        ascend_job(),
        ascend_job("scaled", uid="s", labels=marks),
        retried,
    )
    world.settle()
    world.run_all()
    for name in world.pods():
        notes = world.pod(name)["metadata"]["annotations"]
        if name.startswith("retried"):
            notes["ascend.kubectl.kubernetes.io/ascend-910-configuration"] = DEEP
    world.settle()
    assert "has no valid elastic_scaling.json" in " ".join(world.diagnostics)
    table = world.find("ConfigMap", "rings-config-train")["data"]["hccl.json"]
    assert '"completed"' in table, "an unreadable table is written again"
    assert "scaled-master-0" not in world.pods() and "train-master-0" in world.pods()
