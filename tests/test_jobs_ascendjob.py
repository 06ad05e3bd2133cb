"""AscendJobs from declaration to end: pods, services, PodGroups, conditions, and always a fixed point."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from belay.engine.documents import Declared, Desired, NodePool
from belay.engine.model.actions import CreateObject, CreatePod, kind_of
from belay.engine.model.diagnostics import Origin
from belay.engine.plan.jobs.pod_template import min_resources
from belay.engine.status.events import refused_events
from tests import worlds
from tests.jobs import (
    NOW,
    POD_GROUP_CRD,
    World,
    ascend_job,
    config_map,
    manifest,
    replica,
    template,
)


def test_a_job_is_created_placed_run_and_ended() -> None:
    world = World(POD_GROUP_CRD, ascend_job())
    world.step()
    assert world.pods() == []
    assert world.state() == "Created"
    world.step()
    world.settle()
    assert world.state() == "Created"
    world.run_all()
    world.settle()
    assert world.state() == "Running"
    world.end("train-master-0")
    world.settle()
    assert world.state() == "Running"
    world.end("train-worker-0")
    world.settle()
    assert world.state() == "Succeeded"
    assert world.pods() == ["train-master-0", "train-worker-0"]
    assert world.log == [
        "create PodGroup train-job-uid (PodGroupMissing)",
        "create Service train-master-0 (ServiceMissing)",
        "patch AscendJob train status (JobCreated)",
        "create Pod train-master-0 (PodMissing)",
        "create Pod train-worker-0 (PodMissing)",
        "patch AscendJob train status (JobRunning)",
        "patch AscendJob train status (JobStatusChanged)",
        "patch AscendJob train status (JobSucceeded)",
        "delete PodGroup train-job-uid (JobFinished)",
    ]
    status = world.job()["status"]
    assert [c["type"] for c in status["conditions"]] == ["Created", "Running", "Succeeded"]
    assert [c["status"] for c in status["conditions"]] == ["True", "False", "True"]
    assert status["replicaStatuses"] == {
        "Master": {"succeeded": 1},
        "Worker": {"succeeded": 1},
    }
    assert world.message() == "JobRunning: Job<vision-train> successfully completed."
    assert status["startTime"] == "2026-09-01T08:00:10Z"
    assert "completionTime" in status


def test_pods_carry_the_operators_labels_and_variables() -> None:
    world = World(POD_GROUP_CRD, ascend_job(workers=2))
    world.settle()
    pod = world.pod("train-worker-1")
    assert pod["metadata"]["labels"] == {
        "app": "train",
        "group-name": "mindxdl.gitee.com",
        "job-name": "train",
        "replica-index": "1",
        "replica-type": "worker",
        "training.kubeflow.org/job-name": "train",
        "training.kubeflow.org/operator-name": "ascendjob-controller",
        "training.kubeflow.org/replica-index": "1",
        "training.kubeflow.org/replica-type": "worker",
        "version": "0",
    }
    assert pod["metadata"]["annotations"] == {
        "hccl/rankIndex": "2",
        "scheduling.k8s.io/group-name": "train-job-uid",
        "volcano.sh/task-spec": "worker",
    }
    assert pod["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "mindxdl.gitee.com/v1",
            "kind": "AscendJob",
            "name": "train",
            "uid": "job-uid",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["schedulerName"] == "volcano"
    master = world.pod("train-master-0")
    assert master["metadata"]["labels"]["training.kubeflow.org/job-role"] == "master"
    assert master["spec"]["containers"][0]["ports"] == [
        {"name": "ascendjob-port", "containerPort": 2222, "protocol": "TCP"}
    ]
    assert "ports" not in pod["spec"]["containers"][0]


def test_service_and_pod_group_match_the_operators() -> None:
    policy = {"schedulingPolicy": {"minAvailable": 2, "queue": "default", "priorityClass": "high"}}
    job = ascend_job(workers=2, policy=policy, annotations={"recover-strategy": "recover"})
    world = World(POD_GROUP_CRD, job)
    world.step()
    service = world.find("Service", "train-master-0")
    assert service["spec"]["ports"] == [{"name": "ascendjob-port", "port": 2222, "protocol": "TCP"}]
    assert service["spec"]["selector"]["replica-type"] == "master"
    assert service["spec"]["selector"]["replica-index"] == "0"
    group = world.find("PodGroup", "train-job-uid")
    assert group["spec"] == {
        "minMember": 2,
        "minTaskMember": {"master": 1, "worker": 2},
        "queue": "default",
        "priorityClassName": "high",
        "minResources": {"huawei.com/Ascend910": "16"},
    }
    assert group["metadata"]["labels"]["process-recover-enable"] == "on"
    assert group["metadata"]["ownerReferences"][0]["uid"] == "job-uid"


def test_the_pod_group_follows_switches_of_a_running_job_and_keeps_marks_of_others() -> None:
    job = ascend_job(labels={"fault-scheduling": "force"}, annotations={"recover-strategy": "recover"})
    world = World(POD_GROUP_CRD, job)
    world.settle()
    theirs = {"process-recover-enable": "pause", "volcano.sh/own": "x"}
    world.edit("PodGroup", "train-job-uid", lambda body: body["metadata"]["labels"].update(theirs))

    def switch(body: dict[str, Any]) -> None:
        body["metadata"]["labels"] |= {"fault-scheduling": "off", "pod-rescheduling": "on"}
        del body["metadata"]["annotations"]["recover-strategy"]

    world.edit("AscendJob", "train", switch)
    world.settle()
    metadata = world.find("PodGroup", "train-job-uid")["metadata"]
    assert metadata["labels"]["fault-scheduling"] == "off" and metadata["labels"]["pod-rescheduling"] == "on"
    assert theirs.items() <= metadata["labels"].items()
    assert "recover-strategy" not in metadata.get("annotations", {})
    assert world.step() == [], "then nothing is left to do"


def test_pods_wait_for_the_services_address_and_the_action_says_so() -> None:
    world = World(ascend_job())
    first = world.step()
    assert [type(a).__name__ for a in first] == ["CreateObject", "PatchObject"]
    assert "the pods follow once the service has an address" in first[0].message
    second = world.step()
    assert [a.pod for a in second if isinstance(a, CreatePod)] == ["train-master-0", "train-worker-0"]
    assert second[0].evidence.rule == "expand"


def test_without_the_pod_group_crd_none_is_created() -> None:
    world = World(ascend_job())
    world.settle()
    assert world.kinds("PodGroup") == []
    assert "scheduling.k8s.io/group-name" not in world.pod("train-master-0")["metadata"]["annotations"]


def test_pods_wait_until_a_live_volcano_admits_their_group() -> None:
    scheduler: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "vs-1", "namespace": "volcano-system", "labels": {"app": "volcano-scheduler"}},
        "spec": {"containers": [{"name": "s", "image": "s"}], "nodeName": "n"},
        "status": {"phase": "Running"},
    }
    world = World(POD_GROUP_CRD, scheduler, ascend_job())
    world.settle()
    assert world.message().startswith("PodGroupNotInitialized: volcano-scheduler is maybe not running")
    world.find("PodGroup", "train-job-uid")["status"] = {"phase": "Pending"}
    world.settle()
    assert world.message() == "PodGroupPending: the cluster resource is not enough"
    assert "train-master-0" not in world.pods()
    world.find("PodGroup", "train-job-uid")["status"] = {"phase": "Inqueue"}
    world.settle()
    assert "train-master-0" in world.pods()


def _under(default: str = "volcano", **roles: str) -> Desired:
    """The settings of a cluster whose roles are not all Belay's."""
    settings = worlds.document("SchedulingSettings", "default", roles=roles, defaultScheduler=default)
    return replace(worlds.desired(settings), has_git=False)


@pytest.mark.parametrize("scheduler", ["default-scheduler", "kueue-friend"])
@pytest.mark.parametrize("role", ["on", "off"])
def test_a_job_of_another_scheduler_waits_for_no_group_and_has_none(scheduler: str, role: str) -> None:
    world = World(POD_GROUP_CRD, ascend_job(schedulerName=scheduler), desired=_under(schedule=role))
    world.settle()
    assert world.pods() == ["train-master-0", "train-worker-0"]
    assert world.pod("train-master-0")["spec"]["schedulerName"] == scheduler
    assert world.kinds("PodGroup") == []
    assert "scheduling.k8s.io/group-name" not in world.pod("train-master-0")["metadata"]["annotations"]


def test_without_any_scheduler_of_gangs_pods_do_not_wait_for_a_phase_that_nothing_sets() -> None:
    world = World(POD_GROUP_CRD, ascend_job(), desired=_under(schedule="off"))
    world.settle()
    assert world.pods() == ["train-master-0", "train-worker-0"]


def test_the_settings_name_the_scheduler_of_jobs_that_name_none() -> None:
    world = World(POD_GROUP_CRD, ascend_job(), desired=_under("default-scheduler", schedule="off"))
    world.settle()
    assert world.pod("train-worker-0")["spec"]["schedulerName"] == "default-scheduler"
    assert world.kinds("PodGroup") == []


def test_a_pod_failure_fails_the_job() -> None:
    world = World(ascend_job())
    world.settle()
    world.run_all()
    world.settle()
    world.end("train-worker-0", "Failed", 1)
    world.settle()
    assert world.state() == "Failed"
    assert world.message() == "JobFailed: Job <vision/train> has failed because has pod failed."
    assert world.pods() == ["train-master-0", "train-worker-0"]


def test_evicted_pods_are_re_created_with_the_next_version() -> None:
    world = World(ascend_job())
    world.settle()
    world.run_all()
    world.settle()
    for name in ("train-master-0", "train-worker-0"):
        world.pod(name)["metadata"]["deletionTimestamp"] = "2026-09-01T08:10:00Z"
    world.settle()
    assert world.pods() == ["train-master-0", "train-worker-0"]
    world.vanish("train-worker-0")
    world.settle()
    assert world.pod("train-worker-0")["metadata"]["labels"]["version"] == "1"
    world.vanish("train-master-0")
    world.settle()
    assert world.pod("train-master-0")["metadata"]["labels"]["version"] == "1"
    world.run_all()
    world.settle()
    assert world.state() == "Running"


def test_running_pods_without_a_version_are_left_alone() -> None:
    world = World(ascend_job())
    world.settle()
    world.run_all()
    world.settle()
    for name in ("train-master-0", "train-worker-0"):
        del world.pod(name)["metadata"]["labels"]["version"]
    assert [kind_of(action) for action in world.plan() if kind_of(action) != "PatchObject"] == []


def test_a_pod_that_vanishes_unseen_still_counts_as_a_round() -> None:
    world = World(ascend_job(policy={"backoffLimit": 2}))
    world.settle()
    world.run_all()
    world.settle()
    versions = []
    for _ in range(3):
        world.vanish("train-worker-0")
        world.settle()
        if "train-worker-0" in world.pods():
            versions.append(world.pod("train-worker-0")["metadata"]["labels"]["version"])
            world.run_all()
            world.settle()
    assert versions == ["1", "2"]
    assert world.state() == "Failed"
    assert world.message() == "JobFailed: Job train has failed because it has reached the specified backoff limit"


def test_a_partly_created_job_starts_no_new_round() -> None:
    world = World(ascend_job(workers=3))
    world.step()
    world.step(skip=lambda a: isinstance(a, CreatePod) and a.pod.endswith(("worker-1", "worker-2")))
    assert world.pods() == ["train-master-0", "train-worker-0"]
    world.settle()
    assert {world.pod(p)["metadata"]["labels"]["version"] for p in world.pods()} == {"0"}


@pytest.mark.parametrize("switch", [{}, {"fault-scheduling": "off"}, {"fault-scheduling": "Force"}])
def test_unconditional_retry_restarts_all_pods_until_none_is_left(switch: dict[str, str]) -> None:
    """A word that is none of the switch's means off everywhere: otherwise no controller would restart the job."""
    world = World(POD_GROUP_CRD, ascend_job(labels={"fault-retry-times": "2"} | switch))
    world.settle()
    seen = []
    for _ in range(3):
        world.run_all()
        world.settle()
        world.end("train-worker-0", "Failed", 1)
        world.step()
        seen.append((world.state(), world.message().partition(": ")[2]))
        world.bury()
        world.settle()
    assert seen == [
        ("Restarting", "Job <vision/train> is unconditional retry job and remain retry times is <2>."),
        ("Restarting", "Job <vision/train> is unconditional retry job and remain retry times is <1>."),
        ("Failed", "Job <vision/train> has failed because pod failed and remain retry times is 0."),
    ]


def test_a_deferred_retry_costs_one_try() -> None:
    world = World(ascend_job(labels={"fault-retry-times": "3"}))
    world.settle()
    world.run_all()
    world.settle()
    world.end("train-worker-0", "Failed", 1)
    for _ in range(4):
        world.step(skip=lambda a: type(a).__name__ in ("EvictPod", "DeleteObject"))
    assert world.history.jobs["vision/AscendJob/train"].retries == 2
    assert world.state() == "Restarting"
    world.step()
    world.bury()
    world.settle()
    assert {world.pod(p)["metadata"]["labels"]["version"] for p in world.pods()} == {"1"}


def test_volcanos_own_record_of_retries_counts() -> None:
    record = config_map(
        "vcjob-fault-npu-cm",
        {"remain-retry-times": '{"vision/train-job-uid":{"UUID":"job-uid","Times":0}}'},
        namespace="volcano-system",
    )
    world = World(record, ascend_job(labels={"fault-retry-times": "5"}))
    world.settle()
    world.run_all()
    world.end("train-worker-0", "Failed", 1)
    world.settle()
    assert world.message().endswith("remain retry times is 0.")


@pytest.mark.parametrize(("code", "state"), [(1, "Failed"), (127, "Failed"), (128, "Restarting"), (255, "Restarting")])
def test_exit_codes_decide_about_a_restart(code: int, state: str) -> None:
    replicas = {"Master": replica(restart="ExitCode"), "Worker": replica(restart="ExitCode")}
    world = World(ascend_job(replicas=replicas))
    world.settle()
    assert world.pod("train-worker-0")["spec"]["restartPolicy"] == "Never"
    world.run_all()
    world.settle()
    world.end("train-worker-0", "Failed", code)
    world.step()
    assert world.state() == state
    world.settle()
    if state == "Restarting":
        assert world.message() == "jobRestarting: Job train is restarting because Worker replica(s) failed."
        assert world.pod("train-worker-0")["metadata"]["labels"]["version"] == "1"
        assert world.pod("train-master-0")["metadata"]["labels"]["version"] == "0"
        world.run_all()
        world.settle()
        assert world.state() == "Running"


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (None, ["train-master-0", "train-worker-0"]),
        ("None", ["train-master-0", "train-worker-0"]),
        ("Running", ["train-worker-0"]),
        ("All", []),
    ],
)
def test_clean_pod_policy_decides_which_pods_stay(policy: str | None, left: list[str]) -> None:
    world = World(ascend_job(policy={"cleanPodPolicy": policy} if policy else None))
    world.settle()
    world.run_all()
    world.settle()
    world.end("train-worker-0", "Failed", 1)
    world.step()
    world.step()
    world.bury()
    world.settle()
    assert world.pods() == left


def test_pending_pods_of_an_ended_job_are_deleted() -> None:
    world = World(ascend_job(workers=2))
    world.settle()
    world.bind("train-master-0", "node0")
    world.bind("train-worker-0", "node1")
    world.end("train-master-0")
    world.end("train-worker-0")
    world.settle()
    assert world.state() == "Succeeded"
    assert world.pods() == ["train-master-0", "train-worker-0"]


def test_scaling_down_removes_the_last_pods() -> None:
    world = World(ascend_job(workers=3))
    world.settle()
    world.edit("AscendJob", "train", lambda job: job["spec"]["replicaSpecs"]["Worker"].update(replicas=1))
    world.settle()
    assert world.pods() == ["train-master-0", "train-worker-0"]


def test_a_deleted_job_is_left_to_kubernetes() -> None:
    job = ascend_job()
    job["metadata"]["deletionTimestamp"] = "2026-09-01T08:00:00Z"
    assert World(job).plan() == []


def test_a_new_job_of_an_old_name_starts_with_an_empty_memory() -> None:
    world = World(ascend_job())
    world.settle()
    world.vanish("train-worker-0")
    world.settle()
    assert world.history.jobs["vision/AscendJob/train"].version == 1
    for name in world.pods():
        world.vanish(name)
    del world.objects[next(key for key in world.objects if key.kind == "AscendJob")]
    world.settle()
    assert world.history.jobs == {}
    world.put(ascend_job(uid="second"))
    world.settle()
    assert world.pod("train-worker-0")["metadata"]["labels"]["version"] == "0"


def test_pods_of_the_previous_job_block_their_names_until_gone() -> None:
    world = World(ascend_job())
    world.settle()
    world.edit("AscendJob", "train", lambda job: job["metadata"].update(uid="second"))
    world.step()
    assert {world.pod(p)["metadata"]["ownerReferences"][0]["uid"] for p in world.pods()} == {"job-uid"}
    world.vanish("train-master-0")
    world.vanish("train-worker-0")
    world.settle()
    assert {world.pod(p)["metadata"]["ownerReferences"][0]["uid"] for p in world.pods()} == {"second"}


def test_nothing_is_planned_beside_the_operator() -> None:
    operator: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "op", "namespace": "mindx-dl", "labels": {"app": "controller-manager"}},
        "spec": {"containers": [{"name": "o", "image": "o"}], "nodeName": "n"},
        "status": {"phase": "Running"},
    }
    assert World(operator, ascend_job()).plan() == []


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("no group", {"labels": {"mind-cluster/scaling-rule": "r"}},
     "InvalidScalingConfig: job train has no group name, "
     "please set label of mind-cluster/group-name=<the group of job>"),
    ("no job id", {"labels": {"mind-cluster/scaling-rule": "r", "mind-cluster/group-name": "g"}},
     "InvalidScalingConfig: job train has no jobID, please set label of jobID=<the jobID of job>"),
    ("scale-out", {"labels": {"scaleout-type": "fibre"}},
     "InvalidScaleOutConfig: the value of label scaleout-type is invalid, which should be ROCE or UBOE"),
    ("no specs", {"replicas": {}}, "InvalidSpecs: replicaSpecs is not set, please modify your job"),
    ("success policy", {"successPolicy": "Some"},
     'InvalidSuccessPolicy: job success policy is invalid, it must be one of <"", AllWorkers>'),
    ("queue", {"policy": {"schedulingPolicy": {"queue": "gone"}}, "framework": None},
     'InvalidQueue: check queue<gone> failed, err: queues.scheduling.volcano.sh "gone" not found, '
     "maybe it is not create"),
    ("no framework", {"framework": None},
     "InvalidFramework: framework label is not set, "
     "please set label framework as one of <pytorch,mindspore,tensorflow>"),
    ("framework", {"framework": "jax"},
     "InvalidFramework: framework label<jax> is not in [mindspore pytorch tensorflow]"),
    ("type", {"replicas": {"Chief": replica()}},
     "InvalidReplicaType: replicaType is Chief but must be one of [Master Worker]"),
    ("nil", {"replicas": {"Master": None}},
     "InvalidReplicaSpec: Master replicaSpec is not set, please modify your job"),
    ("negative", {"replicas": {"Master": replica(), "Worker": replica(-1)}},
     "InvalidReplicaSpec: Worker replicaSpec is not valid: replicas can not be negative num, but got -1"),
    ("too many", {"replicas": {"Master": replica(), "Worker": replica(20001)}},
     "InvalidReplicaSpec: Worker replicaSpec is not valid: replicas can not be larger than 20000, but got 20001"),
    ("containers", {"replicas": {"Master": replica(pod={"spec": {"containers": []}})}},
     "InvalidReplicaSpec: Master replicaSpec is not valid: containers is undefined"),
    ("leaders", {"replicas": {"Master": replica(2)}},
     "InvalidReplicaSpec: Master replicaSpec is not valid, the replicas must be only 1"),
    ("no leader's pod", {"replicas": {"Master": replica(0)}},
     "InvalidReplicaSpec: Master replicaSpec is not valid, the replicas must be only 1"),
    ("image", {"replicas": {"Master": replica(pod=template(image=""))}},
     "InvalidContainer: Master replicaSpec is not valid: Image is undefined in the container of ascend"),
    ("container", {"replicas": {"Master": replica(pod=template(container="main"))}},
     "InvalidContainer: Master replicaSpec is not valid: There is no container named ascend"),
    ("no leader", {"replicas": {"Worker": replica()}},
     "InvalidReplicaType: replicaType is not valid: there need 1 leader replicaType, "
     "Master for pytorch, Chief of tensorflow"),
    ("no scheduler", {"framework": "mindspore", "replicas": {"Worker": replica()}},
     "InvalidReplicaSpec: replicaSpec is not valid: when scheduler not found, the req num must be 1"),
]  # fmt: skip


@pytest.mark.parametrize(("job", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_an_invalid_job_fails_with_the_operators_words(job: dict[str, Any], message: str) -> None:
    queue: dict[str, Any] = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "other"},
    }
    world = World(queue, ascend_job(**job))
    world.settle()
    assert world.state() == "Failed"
    assert world.message() == f"JobValidFailed: {message}"
    assert world.pods() == []


QUEUE: dict[str, Any] = {
    "apiVersion": "scheduling.volcano.sh/v1beta1",
    "kind": "Queue",
    "metadata": {"name": "other"},
}


def test_a_queue_that_is_gone_does_not_end_a_job_that_runs() -> None:
    world = World(QUEUE, ascend_job(policy={"schedulingPolicy": {"queue": "other"}}))
    world.settle()
    world.run_all()
    world.settle()
    pods = world.pods()

    def name_queue(body: dict[str, Any]) -> None:
        body["spec"]["runPolicy"]["schedulingPolicy"]["queue"] = "fast"

    world.edit("AscendJob", "train", name_queue)
    world.settle()
    assert (world.state(), world.pods()) == ("Running", pods)
    assert 'queues.scheduling.volcano.sh "fast" not found' in " ".join(world.diagnostics)
    for pod in pods:  # a fault takes all of them away: they are made again and wait for the queue
        world.vanish(pod)
    world.settle()
    assert world.pods() == pods and world.state() != "Failed"


def test_a_job_that_runs_is_not_ended_by_an_edit_that_makes_it_invalid() -> None:
    world = World(ascend_job())
    world.settle()
    world.run_all()
    world.settle()
    pods = world.pods()
    world.edit("AscendJob", "train", lambda body: body["metadata"]["labels"].update(framework="jax"))
    world.settle()
    assert (world.state(), world.pods()) == ("Running", pods)
    assert "its pods run on" in " ".join(world.diagnostics)
    world.edit("AscendJob", "train", lambda body: body["metadata"]["labels"].update(framework="pytorch"))
    world.settle()
    assert world.state() == "Running" and not world.diagnostics


def test_type_names_are_normalised() -> None:
    world = World(ascend_job(replicas={"master": replica(None), "WORKER": replica(2)}))
    world.settle()
    assert world.pods() == ["train-master-0", "train-worker-0", "train-worker-1"]


def test_a_job_from_git_is_created_first_and_expanded_next() -> None:
    desired = Desired(revision="abc", manifests=(manifest(ascend_job(), "desired/jobs/train.yaml", 7),))
    world = World(desired=desired)
    first = world.step()
    assert [type(a).__name__ for a in first] == ["CreateObject"]
    world.settle()
    assert world.pods() == ["train-master-0", "train-worker-0"]
    evidence = next(a for a in World(*world.objects.values(), desired=desired).plan() or first).evidence
    assert (evidence.file, evidence.line, evidence.revision) == ("desired/jobs/train.yaml", 7, "abc")


def test_a_hot_switch_creates_one_backup_pod() -> None:
    world = World(ascend_job())
    world.settle()
    world.run_all()
    world.pod("train-worker-0")["metadata"]["annotations"]["needOperatorOpe"] = "create"
    world.settle()
    backup = next(name for name in world.pods() if "-hot-" in name)
    notes = world.pod(backup)["metadata"]["annotations"]
    assert (notes["podType"], notes["backupSourcePodName"]) == ("backup", "train-worker-0")
    assert world.pod("train-worker-0")["metadata"]["annotations"]["backupNewPodName"] == backup
    world.pod("train-worker-0")["metadata"]["annotations"]["needOperatorOpe"] = "delete"
    world.step()
    assert "deletionTimestamp" in world.pod("train-worker-0")["metadata"]


def test_after_a_hot_switch_the_backup_replaces_its_source() -> None:
    world = World(ascend_job())
    world.settle()
    world.run_all()
    before = world.pods()
    world.pod("train-worker-0")["metadata"]["annotations"]["needOperatorOpe"] = "create"
    world.settle()
    world.run_all()
    backup = next(name for name in world.pods() if "-hot-" in name)
    del world.objects[next(key for key in world.objects if key.kind == "Pod" and key.name == "train-worker-0")]
    world.settle()
    assert world.pods() == sorted([backup, *(name for name in before if name != "train-worker-0")])
    assert world.state() == "Running"
    # and when the backup goes in its turn, the pod is made under its own name again
    del world.objects[next(key for key in world.objects if key.kind == "Pod" and key.name == backup)]
    world.settle()
    assert world.pods() == before


RULE = {
    "elastic_scaling.json": (
        '{"version":"1.0","elastic_scaling_list":['
        '{"group_list":[{"group_name":"g0","group_num":"2","server_num_per_group":"1"},'
        '{"group_name":"g1","group_num":"1","server_num_per_group":"1"}]},'
        '{"group_list":[{"group_name":"g0","group_num":"1","server_num_per_group":"1"}]}]}'
    )
}


@pytest.mark.parametrize(
    ("group", "running", "created"),
    [
        ("g0", [], True),
        ("g1", [], False),
        ("g1", ["g0"], True),
        ("g0", ["g0", "g0"], False),
        ("g1", ["g0", "g1"], False),
    ],
)
def test_the_scaling_rule_fills_the_smallest_configuration_first(group: str, running: list[str], created: bool) -> None:
    marks = {"mind-cluster/scaling-rule": "rule", "jobID": "j"}
    groups = [
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": f"pg{i}", "namespace": "vision", "labels": {**marks, "mind-cluster/group-name": name}},
            "status": {"phase": "Running"},
        }
        for i, name in enumerate(running)
    ]
    job = ascend_job(labels={**marks, "mind-cluster/group-name": group})
    world = World(config_map("rule", RULE), *groups, job)
    world.settle()
    assert bool(world.pods()) is created


@pytest.mark.parametrize(
    "second",
    [
        [{"group_name": "new", "group_num": "1", "server_num_per_group": "1"}],
        [{"group_name": "g0", "group_num": "3", "server_num_per_group": "1"}],
        [{"group_name": "g0", "group_num": "1", "server_num_per_group": "2"}],
    ],
)
def test_a_scaling_rule_whose_groups_grow_creates_nothing(second: list[dict[str, str]]) -> None:
    first = [{"group_name": "g0", "group_num": "2", "server_num_per_group": "1"}]
    rule = {"version": "1.0", "elastic_scaling_list": [{"group_list": first}, {"group_list": second}]}
    marks = {"mind-cluster/scaling-rule": "rule", "jobID": "j", "mind-cluster/group-name": "g0"}
    world = World(config_map("rule", {"elastic_scaling.json": json.dumps(rule)}), ascend_job(labels=marks))
    world.settle()
    assert world.pods() == []
    assert "groups may only shrink" in " ".join(world.diagnostics)


def test_a_scaling_rule_advances_while_belay_schedules() -> None:
    marks = {"mind-cluster/scaling-rule": "rule", "jobID": "j"}
    first = ascend_job("first", labels={**marks, "mind-cluster/group-name": "g0"}, uid="u0")
    world = World(config_map("rule", RULE), first)
    world.settle()
    world.put(ascend_job("second", labels={**marks, "mind-cluster/group-name": "g1"}, uid="u1"))
    world.settle()
    assert world.pods() == ["first-master-0", "first-worker-0"]
    world.run_all()
    world.settle()
    assert "second-master-0" in world.pods()


def test_times_come_from_the_pass() -> None:
    world = World(ascend_job())
    world.step(after=0)
    assert world.job()["status"]["conditions"][0]["lastTransitionTime"] == "2026-09-01T08:00:00Z"
    assert world.now == NOW


def test_a_job_with_fault_scheduling_leaves_its_restart_to_recover() -> None:
    world = World(ascend_job(labels={"fault-retry-times": "2", "fault-scheduling": "force"}))
    world.settle()
    world.run_all()
    world.settle()
    world.end("train-worker-0", "Failed", 1)
    world.settle()
    assert world.state() == "Restarting"
    assert len(world.pods()) == 2
    world.evicting = {f"vision/{name}" for name in world.pods()}
    world.settle()
    assert world.message().endswith("remain retry times is <2>.")
    assert world.history.jobs["vision/AscendJob/train"].retries == -1


def test_a_job_belongs_to_one_shard() -> None:
    pool = {
        "apiVersion": "belay.dev/v1alpha1",
        "kind": "NodePool",
        "metadata": {"name": "far"},
        "spec": {"selector": {"matchLabels": {"zone": "far"}}, "shard": "far"},
    }
    desired = Desired(has_git=False, pools=(Declared(NodePool.model_validate(pool), Origin("pools.yaml")),))
    far = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"zone": "far"}}}
    labelled = ascend_job("labelled", labels={"belay.dev/shard": "far"}, uid="a")
    picky = replica(pod=template(nodeSelector={"zone": "far"}))
    selecting = ascend_job("selecting", replicas={"Master": picky}, uid="b")
    world = World(far, labelled, selecting, ascend_job("plain", labels={"belay.dev/shard": "main"}, uid="c"))
    world.desired = desired
    names = {action.name for action in world.plan() if isinstance(action, CreateObject)}
    assert names == {"plain-master-0"}
    world.shard = "far"
    names = {action.name for action in world.plan() if isinstance(action, CreateObject)}
    assert names == {"labelled-master-0", "selecting-master-0"}


def test_parts_that_the_api_server_refuses_are_one_event_per_cause_on_their_job() -> None:
    world = World(POD_GROUP_CRD, ascend_job(workers=2))
    parts = world.step()
    pods = [action for action in world.step() if isinstance(action, CreatePod)]
    assert len(pods) == 3
    found = refused_events(
        [(part, f"{part.name} is forbidden") for part in parts if isinstance(part, CreateObject)], 1.0
    )
    assert [row["reason"] for row in found] == ["SyncPodGroupFailed", "SyncServiceFailed"]
    assert {(row["type"], row["involvedObject"]["kind"], row["involvedObject"]["uid"]) for row in found} == {
        ("Warning", "AscendJob", "job-uid")
    }
    quota = "is forbidden: exceeded quota: chips, requested: huawei.com/Ascend910=8"
    (event,) = refused_events([(pod, f'pods "{pod.pod}" {quota}') for pod in pods], 2.0)
    assert event["reason"] == "PodCreateFailed"
    assert event["metadata"]["namespace"] == event["involvedObject"]["namespace"] == "vision"
    assert event["message"] == (f'Pod {pods[0].pod} cannot be created: pods "{pods[0].pod}" {quota} (and 2 more)')
    (again,) = refused_events([(pods[2], f'pods "{pods[2].pod}" {quota}')], 60.0)
    assert again["metadata"]["name"] == event["metadata"]["name"], "the same cause makes no second Event"
    (long,) = refused_events([(pods[0], "x" * 2000), (pods[1], "x" * 2000)], 2.0)
    assert len(long["message"]) <= 1000 and long["message"].endswith("(and 1 more)")


def test_a_part_of_neither_job_nor_instance_set_is_no_event() -> None:
    world = World(POD_GROUP_CRD, ascend_job())
    made = [action for action in world.step() if isinstance(action, CreateObject)]
    for action in made:
        action.object["metadata"].pop("ownerReferences", None)
    assert refused_events([(action, "forbidden") for action in made], 1.0) == []


def test_the_group_asks_for_what_its_pods_ask_for_as_a_whole() -> None:
    row = {"resources": {"requests": {"cpu": "1", "huawei.com/Ascend910": 8}}}
    template = {"spec": {"containers": [row, row], "resources": {"requests": {"cpu": "5"}}}}
    assert min_resources([(template, 2)], 2) == {"cpu": "10", "huawei.com/Ascend910": "32"}
