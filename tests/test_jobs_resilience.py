"""The old form of elastic training: a stopped Volcano Job without room restarts smaller, and later at full size."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.observe.observed import key_of
from belay.engine.plan.jobs.lifecycle import JobObject
from belay.engine.plan.jobs.resilience import rule_of
from belay.engine.plan.jobs.volcanojob_spec import read
from tests.jobs import World, config_map, template, volcano_job
from tests.test_jobs_whole_planner import Whole, node


def elastic(replicas: int = 4, chips: int = 8, least: int = 2, **changes: Any) -> dict[str, Any]:
    job = volcano_job(
        tasks=[{"name": "worker", "replicas": replicas, "template": template(chips, container="main")}],
        policies=[{"event": "PodEvicted", "action": "RestartJob"}], minAvailable=1, maxRetry=0,
    )  # fmt: skip
    job["metadata"]["labels"] |= {"fault-scheduling": "grace", "elastic-scheduling": "on"}
    job["metadata"]["annotations"] = {"minReplicas": str(least)}
    job["spec"] |= changes
    return job


def world(job: dict[str, Any], nodes: int) -> Whole:
    shipped = load({}, revision="r1").desired
    desired = Desired(**{name: getattr(shipped, name) for name in Desired.__dataclass_fields__})
    rings = config_map("rings-config-vc", {"hccl.json": '{"status":"initializing"}'})
    made = Whole(*(node(f"node{i}") for i in range(1, nodes + 1)), rings, job, desired=desired)
    made.settle()
    return made


def turn(made: Whole, passes: int = 8) -> None:
    """Passes with kubelets that end what is being deleted."""
    for _ in range(passes):
        made.step()
        made.bury()


def placed(made: Whole) -> dict[str, str]:
    return {p: made.pod(p)["spec"].get("nodeName", "") for p in made.pods()}


def test_a_distributed_job_restarts_with_the_pods_that_fit() -> None:
    made = world(elastic(), 4)
    assert sorted(placed(made).values()) == ["node1", "node2", "node3", "node4"]
    made.bad["node2"] = [3]
    turn(made, 10)
    assert sorted(placed(made)) == ["vc-worker-0", "vc-worker-1", "vc-worker-2"]
    assert sorted(placed(made).values()) == ["node1", "node3", "node4"]
    made.settle()
    memory = made.history.jobs["vision/Job/vc"]
    assert memory.size == 3
    assert any(text == "elastic-scheduling: 3 of 4 pods" for _, text in memory.timeline)
    assert made.find("ConfigMap", "rings-config-vc")["data"]["hccl.json"].count('"server_id"') == 3


def test_full_size_is_tried_again_when_the_pods_are_re_created() -> None:
    made = world(elastic(), 4)
    made.bad["node2"] = [3]
    turn(made, 10)
    assert len(placed(made)) == 3
    made.bad = {"node1": [0]}
    made.step()
    made.bad = {}
    made.bury()
    made.settle()
    assert sorted(placed(made).values()) == ["node1", "node2", "node3", "node4"]
    assert made.history.jobs["vision/Job/vc"].size == 0


def test_a_job_never_shrinks_below_its_minimum() -> None:
    made = world(elastic(replicas=2, least=2), 2)
    made.bad["node2"] = [3]
    turn(made, 12)
    assert sorted(placed(made)) == ["vc-worker-0", "vc-worker-1"]
    assert made.history.jobs["vision/Job/vc"].size == 0


def test_a_single_pod_restarts_with_half_its_chips() -> None:
    made = world(elastic(replicas=1, least=1), 1)
    made.bad["node1"] = [3]
    turn(made, 14)
    (name,) = made.pods()
    amounts = made.pod(name)["spec"]["containers"][0]["resources"]
    assert amounts == {"requests": {"huawei.com/Ascend910": 4}, "limits": {"huawei.com/Ascend910": 4}}
    assert placed(made) == {name: "node1"}
    assert made.job("vc")["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]["requests"] == {
        "huawei.com/Ascend910": 8
    }, "what is declared stays as it is"


@pytest.mark.parametrize(
    "change",
    [
        {"maxRetry": 3}, {"minAvailable": 2},
        {"tasks": [{"name": n, "replicas": 1, "template": template()} for n in ("a", "b")]},
        {"tasks": [{"name": "a", "replicas": 2, "template": template(1, resource="huawei.com/Ascend910-4c")}]},
    ],
)  # fmt: skip
def test_a_job_that_does_not_opt_in_keeps_its_size(change: dict[str, Any]) -> None:
    for raw, wanted in ((elastic(), True), (elastic(**change), False)):
        job = JobObject(key_of(raw), raw, raw["metadata"])
        assert (rule_of(job, read(job)) is not None) is wanted


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda job: job["metadata"]["labels"].update({"fault-scheduling": "force"}), "labels[fault-scheduling]: must"),
        (lambda job: job["metadata"]["annotations"].update(minReplicas="none"), "annotations[minReplicas]: must be a"),
        (lambda job: job["spec"].pop("maxRetry"), "spec.maxRetry: must be 0"),
        (lambda job: job["spec"].update(minAvailable=2), "spec.minAvailable: must be 1"),
    ],
)
def test_a_job_that_cannot_be_elastic_says_what_is_missing(change: Any, where: str) -> None:
    job = elastic()
    whole = World(elastic())
    whole.settle()
    whole.plan()
    assert not [line for line in whole.diagnostics if "does not become smaller" in line]
    change(job)
    world = World(job)
    world.settle()
    world.plan()
    (line,) = [line for line in world.diagnostics if "does not become smaller" in line]
    assert where in line
