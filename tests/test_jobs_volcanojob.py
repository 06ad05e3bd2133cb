"""Volcano Jobs: pods, plugins, policies, phases; and always a fixed point."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from belay.engine.documents import Desired
from tests.jobs import POD_GROUP_CRD, World, env_of, manifest, template, volcano_job


def running(job: dict[str, Any], *others: dict[str, Any]) -> World:
    """A world in which all pods of the job run."""
    world = World(*others, job)
    world.settle()
    world.run_all()
    world.settle()
    return world


def kill(world: World, *pods: str) -> None:
    """Pods are being deleted by someone else."""
    for name in pods:
        world.pod(name)["metadata"]["deletionTimestamp"] = "2026-09-01T08:10:00Z"


def test_a_job_is_created_runs_and_completes() -> None:
    world = running(volcano_job(), POD_GROUP_CRD)
    assert world.state("vc") == "Running"
    world.end("vc-worker-0")
    world.settle()
    assert world.state("vc") == "Running"
    world.end("vc-worker-1")
    world.settle()
    assert world.log == [
        "create PodGroup vc-vc-uid (PodGroupMissing)",
        "create Pod vc-worker-0 (PodMissing)",
        "create Pod vc-worker-1 (PodMissing)",
        "patch Job vc status (JobPending)",
        "patch Job vc status (JobStatusChanged)",
        "patch Job vc status (JobRunning)",
        "patch Job vc status (JobStatusChanged)",
        "patch Job vc status (JobCompleted)",
        "delete PodGroup vc-vc-uid (JobFinished)",
    ]
    status = world.job("vc")["status"]
    assert status["succeeded"] == 2
    assert status["minAvailable"] == 2
    assert [c["status"] for c in status["conditions"]] == ["Pending", "Running", "Completed"]
    assert status["taskStatusCount"] == {"worker": {"phase": {"Succeeded": 2}}}
    assert status["runningDuration"] == "2m20s"
    assert "running" not in status


def test_pods_carry_volcanos_labels_and_annotations() -> None:
    world = World(POD_GROUP_CRD, volcano_job(queue="research", priorityClassName="high"))
    world.settle()
    pod = world.pod("vc-worker-1")
    assert pod["metadata"]["labels"] == {
        "app": "train",
        "volcano.sh/job-name": "vc",
        "volcano.sh/job-namespace": "vision",
        "volcano.sh/queue-name": "research",
        "volcano.sh/task-index": "1",
        "volcano.sh/task-spec": "worker",
    }
    assert pod["metadata"]["annotations"] == {
        "hccl/rankIndex": "1",
        "scheduling.k8s.io/group-name": "vc-vc-uid",
        "volcano.sh/job-name": "vc",
        "volcano.sh/job-retry-count": "0",
        "volcano.sh/job-version": "0",
        "volcano.sh/queue-name": "research",
        "volcano.sh/task-index": "1",
        "volcano.sh/task-spec": "worker",
        "volcano.sh/template-uid": "vc-worker",
    }
    assert (pod["spec"]["schedulerName"], pod["spec"]["priorityClassName"]) == ("volcano", "high")
    group = world.find("PodGroup", "vc-vc-uid")
    assert group["spec"]["minMember"] == 2
    assert group["spec"]["minTaskMember"] == {"worker": 2}
    assert group["spec"]["queue"] == "research"


def test_plugins_env_and_svc() -> None:
    tasks = [
        {"name": "a-b", "replicas": 2, "template": template(container="main")},
        {"name": "c", "replicas": 1, "template": template(0, container="main")},
    ]
    world = World(volcano_job(tasks=tasks, plugins={"env": [], "svc": [], "ssh": []}))
    world.settle()
    assert world.find("ConfigMap", "vc-svc")["data"] == {
        "VC_A_B_HOSTS": "vc-a-b-0.vc,vc-a-b-1.vc",
        "VC_A_B_NUM": "2",
        "VC_C_HOSTS": "vc-c-0.vc",
        "VC_C_NUM": "1",
        "a_b.host": "vc-a-b-0.vc\nvc-a-b-1.vc",
        "c.host": "vc-c-0.vc",
    }
    assert world.find("Service", "vc")["spec"]["clusterIP"] == "None"
    pod = world.pod("vc-a-b-1")
    env = env_of(pod, "main")
    assert (env["VC_TASK_INDEX"], env["VK_TASK_INDEX"]) == ("1", "1")
    assert env["VC_A_B_HOSTS"] == {"configMapKeyRef": {"name": "vc-svc", "key": "VC_A_B_HOSTS"}}
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("vc-a-b-1", "vc")
    files = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")
    items = [{"key": name, "path": f".ssh/{name}"} for name in files]
    assert pod["spec"]["volumes"] == [
        {"name": "vc-svc", "configMap": {"name": "vc-svc"}},
        {"name": "vc-ssh", "secret": {"secretName": "vc-ssh", "items": items, "defaultMode": 0o600}},
    ]
    assert pod["spec"]["containers"][0]["volumeMounts"] == [
        {"name": "vc-svc", "mountPath": "/etc/volcano"},
        {"name": "vc-ssh", "mountPath": "/root/.ssh", "subPath": ".ssh"},
    ]
    assert world.job("vc")["status"]["controlledResources"] == {
        "plugin-env": "env",
        "plugin-ssh": "ssh",
        "plugin-svc": "svc",
    }
    assert world.log.count("create Secret vc-ssh (KeysMissing)") == 1
    secret = world.find("Secret", "vc-ssh")
    assert set(secret["data"]) == {"config"}, "no key may be in a plan"
    assert base64.b64decode(secret["data"]["config"]).decode().splitlines()[:4] == [
        "StrictHostKeyChecking no",
        "UserKnownHostsFile /dev/null",
        "Host vc-a-b-0",
        "  HostName vc-a-b-0.vc",
    ]
    assert [world.pod(p)["metadata"]["annotations"]["hccl/rankIndex"] for p in world.pods()] == ["0", "1", "2"]


def test_keys_are_mounted_at_the_plugins_path() -> None:
    world = World(volcano_job(plugins={"ssh": ["--ssh-key-file-path=/home/user/.ssh"]}))
    world.settle()
    (mount,) = world.pod("vc-worker-0")["spec"]["containers"][0]["volumeMounts"]
    assert mount == {"name": "vc-ssh", "mountPath": "/home/user/.ssh", "subPath": ".ssh"}


def test_more_replicas_change_the_hosts() -> None:
    world = World(volcano_job(plugins={"svc": []}))
    world.settle()
    world.edit("Job", "vc", lambda job: job["spec"]["tasks"][0].update(replicas=3))
    world.settle()
    assert world.find("ConfigMap", "vc-svc")["data"]["VC_WORKER_NUM"] == "3"
    assert world.pods() == ["vc-worker-0", "vc-worker-1", "vc-worker-2"]


EVICTED = [{"event": "PodEvicted", "action": "RestartJob"}]


def test_an_eviction_restarts_the_job_until_max_retry() -> None:
    world = running(volcano_job(policies=EVICTED))
    phases = []
    for round_number in (1, 2, 3):
        kill(world, "vc-worker-0")
        world.step()
        phases.append(world.state("vc"))
        world.bury()
        world.settle()
        phases.append(world.state("vc"))
        if phases[-1] == "Pending":
            versions = {world.pod(p)["metadata"]["annotations"]["volcano.sh/job-version"] for p in world.pods()}
            assert versions == {str(round_number)}
            world.run_all()
            world.settle()
    assert phases == ["Restarting", "Pending", "Restarting", "Pending", "Failed", "Failed"]
    status = world.job("vc")["status"]
    assert status["retryCount"] == 3
    assert status["state"]["message"] == "restarted 3 times, maxRetry is 3"
    assert world.pods() == []


def test_a_vanished_pod_is_an_eviction_too() -> None:
    world = running(volcano_job(policies=EVICTED))
    world.vanish("vc-worker-1")
    world.step()
    assert world.state("vc") == "Restarting"


def test_without_a_policy_an_evicted_pod_is_re_created() -> None:
    world = running(volcano_job())
    kill(world, "vc-worker-0")
    world.step()
    world.bury()
    world.settle()
    assert world.pods() == ["vc-worker-0", "vc-worker-1"]
    assert world.state("vc") == "Running"
    assert world.job("vc")["status"].get("retryCount") is None


@pytest.mark.parametrize(
    ("policy", "phase"),
    [
        ({"event": "PodFailed", "action": "RestartJob"}, "Restarting"),
        ({"event": "PodFailed", "action": "AbortJob"}, "Aborting"),
        ({"event": "PodFailed", "action": "TerminateJob"}, "Terminating"),
        ({"event": "PodFailed", "action": "CompleteJob"}, "Completing"),
        ({"event": "*", "action": "AbortJob"}, "Aborting"),
        ({"events": ["PodEvicted", "PodFailed"], "action": "AbortJob"}, "Aborting"),
        ({"exitCode": 3, "action": "AbortJob"}, "Aborting"),
        ({"exitCode": 4, "action": "AbortJob"}, "Running"),
        ({"event": "PodFailed", "action": "Ignore"}, "Running"),
    ],
)
def test_a_failed_pod_takes_the_action_of_its_policy(policy: dict[str, Any], phase: str) -> None:
    world = running(volcano_job(policies=[policy]))
    world.end("vc-worker-0", "Failed", 3, "main")
    world.step()
    assert world.state("vc") == phase
    world.step()
    world.bury()
    world.settle()
    ends = {"Restarting": "Pending", "Aborting": "Aborted", "Terminating": "Terminated", "Completing": "Completed"}
    assert world.state("vc") == ends.get(phase, phase)


def test_a_tasks_policy_comes_before_the_jobs() -> None:
    tasks = [
        {"name": "main", "replicas": 1, "template": template(),
         "policies": [{"event": "TaskCompleted", "action": "CompleteJob"}]},
        {"name": "side", "replicas": 2, "template": template(0)},
    ]  # fmt: skip
    world = running(volcano_job(tasks=tasks, policies=[{"event": "TaskCompleted", "action": "AbortJob"}]))
    world.end("vc-main-0")
    world.step()
    assert world.state("vc") == "Completing"
    world.bury()
    world.settle()
    assert world.state("vc") == "Completed"
    assert world.pods() == ["vc-main-0"]


@pytest.mark.parametrize(("action", "gone"), [("RestartPod", {"vc-a-0"}), ("RestartTask", {"vc-a-0", "vc-a-1"})])
def test_restarts_of_a_pod_or_task_leave_the_rest(action: str, gone: set[str]) -> None:
    tasks = [
        {"name": "a", "replicas": 2, "template": template()},
        {"name": "b", "replicas": 1, "template": template()},
    ]
    policies = [{"event": "PodFailed", "action": action}, *EVICTED]
    world = running(volcano_job(tasks=tasks, policies=policies))
    before = {name: world.pod(name)["metadata"]["uid"] for name in world.pods()}
    world.end("vc-a-0", "Failed", 1, "main")
    world.step(skip=lambda a: type(a).__name__ in ("EvictPod", "DeleteObject"))
    world.step()
    world.bury()
    world.settle()
    world.run_all()
    world.settle()
    after = {name: world.pod(name)["metadata"]["uid"] for name in world.pods()}
    assert {name for name in before if before[name] != after[name]} == gone
    assert world.state("vc") == "Running"
    assert "retryCount" not in world.job("vc")["status"]
    assert world.history.jobs["vision/Job/vc"].removed == ()


@pytest.mark.parametrize(
    ("spec", "ends", "state"),
    [
        ({}, ["Succeeded", "Failed"], "Failed"),
        ({"minAvailable": 1}, ["Succeeded", "Failed"], "Completed"),
        ({"minAvailable": 1}, ["Failed", "Failed"], "Failed"),
        ({"minSuccess": 1}, ["Succeeded", "Running"], "Completed"),
        ({"minAvailable": 1, "minSuccess": 2}, ["Succeeded", "Failed"], "Failed"),
    ],
)
def test_how_a_job_ends(spec: dict[str, Any], ends: list[str], state: str) -> None:
    world = running(volcano_job(**spec))
    for i, phase in enumerate(ends):
        if phase != "Running":
            world.end(f"vc-worker-{i}", phase, int(phase == "Failed"), "main")
    world.settle()
    assert world.state("vc") == state


def test_tasks_wait_for_what_they_depend_on() -> None:
    tasks = [
        {"name": "first", "replicas": 1, "template": template()},
        {"name": "then", "replicas": 1, "template": template(), "dependsOn": {"name": ["first"]}},
    ]
    world = World(volcano_job(tasks=tasks))
    world.settle()
    assert world.pods() == ["vc-first-0"]
    world.run_all()
    world.settle()
    assert world.pods() == ["vc-first-0", "vc-then-0"]


def test_a_finished_job_is_deleted_after_its_ttl_unless_git_declares_it() -> None:
    job = volcano_job(ttlSecondsAfterFinished=100)
    world = running(job)
    for name in world.pods():
        world.end(name)
    world.settle()
    assert world.state("vc") == "Completed"
    world.now += 80
    assert world.plan() == []
    world.now += 40
    declared = Desired(manifests=(manifest(job),))
    world.desired = declared
    assert "TTLExpired" not in [a.reason for a in world.plan()]
    world.desired = Desired(has_git=False)
    assert [a.reason for a in world.plan()] == ["TTLExpired"]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"minAvailable": 3}, "job 'minAvailable' must not be greater than total replicas 2"),
        ({"plugins": {"magic": []}}, "unable to find job plugin: magic"),
        ({"tasks": [{"name": "a", "replicas": -1, "template": template()}]}, "'replicas' < 0 in task: a"),
        ({"tasks": [{"name": "a", "template": template()}] * 2}, "duplicated task name a"),
        ({"tasks": [{"name": "a", "replicas": 1, "minAvailable": 2, "template": template()}]},
         "'minAvailable' must lie between 0 and 'replicas' in task: a"),
        ({"tasks": [{"name": "a", "template": template(), "dependsOn": {"name": ["a"]}}]},
         "job has dependencies between tasks, but doesn't form a directed acyclic graph: ['a']"),
    ],
)  # fmt: skip
def test_an_invalid_job_gets_a_warning_and_no_pods(spec: dict[str, Any], problem: str) -> None:
    world = World(volcano_job(**spec))
    world.settle()
    assert world.pods() == []
    assert world.job("vc")["status"]["state"]["message"] == problem
    assert any(problem in line for line in world.diagnostics)


def test_svc_objects_are_deleted_when_the_job_ends() -> None:
    world = running(volcano_job(plugins={"svc": []}))
    for name in world.pods():
        world.end(name)
    world.settle()
    assert world.kinds("Service") == world.kinds("ConfigMap") == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"networkTopology": {"highestTierAllowed": 1, "highestTierName": "rack"}}, "networkTopology simultaneously"),
        ({"partitionPolicy": {"totalPartitions": 2, "partitionSize": 2}}, "totalPartitions × partitionSize = 4"),
        (
            {"partitionPolicy": {"totalPartitions": 1, "partitionSize": 2, "minPartitions": 1}, "minAvailable": 1},
            "minPartitions × partitionSize = 2",
        ),
        ({"name": "w" * 60}, "at most 63 are allowed"),
    ],
)
def test_what_volcanos_admission_refuses_gets_no_pods(change: dict[str, Any], words: str) -> None:
    job = volcano_job()
    (job["spec"] if "networkTopology" in change else job["spec"]["tasks"][0]).update(change)
    world = World(job)
    world.step()
    assert world.pods() == []
    assert words in world.job("vc")["status"]["state"]["message"]


def test_constraints_of_another_topology_are_findings_and_the_job_runs() -> None:
    job = volcano_job(networkTopology={"mode": "hard", "highestTierAllowed": 1})
    job["spec"]["tasks"][0] |= {"topologyPolicy": "single-numa-node", "networkTopology": {"mode": "soft"}}
    world = World(job)
    world.settle()
    assert world.pods()
    world.plan()
    for field in ("spec.networkTopology", "spec.tasks[0].networkTopology", "spec.tasks[0].topologyPolicy"):
        assert any(field in line and "is not kept" in line for line in world.diagnostics), field
    plain = volcano_job()
    plain["spec"]["tasks"][0]["topologyPolicy"] = "none"
    world = World(plain)
    world.settle()
    world.plan()
    assert not [line for line in world.diagnostics if "is not kept" in line]
