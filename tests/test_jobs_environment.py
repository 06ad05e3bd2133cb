"""Variables of AscendJob pods: every row of the operator's tables."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs import World, ascend_job, env_of, replica, template

SHARE = {f"huawei.com/scheduler.softShareDev.{key}": "20" for key in ("aicoreQuota", "hbmQuota", "policy")}


def variables(pod: str, **job: Any) -> dict[str, Any]:
    """The variables of a pod of a job; the service has address 10.96.0.N, shown as IP."""
    world = World(ascend_job(**job))
    world.settle()
    env = env_of(world.pod(pod))
    if world.kinds("Service"):
        address = world.find("Service", world.kinds("Service")[0])["spec"]["clusterIP"]
        env = {name: "IP" if value == address else value for name, value in env.items()}
    return env


COMMON = {
    "ASCEND_VISIBLE_DEVICES": "metadata.annotations['huawei.com/Ascend910']",
    "MINDX_TASK_ID": "job-uid",
    "MINDX_SERVER_IP": "clusterd-grpc-svc.mindx-dl.svc.cluster.local",
    "MINDX_SERVER_DOMAIN": "clusterd-grpc-svc.mindx-dl.svc.cluster.local",
    "HostNetwork": "false",
    "HCCL_LOGIC_SUPERPOD_ID": "0",
}


@pytest.mark.parametrize(("kind", "pod", "rank"), [("Master", "master-0", "0"), ("Worker", "worker-1", "2")])
def test_pytorch(kind: str, pod: str, rank: str) -> None:
    assert variables(f"train-{pod}", workers=2) == {
        **COMMON,
        "REPLICA_TYPE": kind,
        "MASTER_ADDR": "IP",
        "MASTER_PORT": "2222",
        "WORLD_SIZE": "24",
        "RANK": rank,
        "LOCAL_WORLD_SIZE": "8",
        "LOCAL_RANK": "0,1,2,3,4,5,6,7",
    }


def test_a_master_alone_counts_itself() -> None:
    env = variables("train-master-0", replicas={"Master": replica(pod=template(2))})
    assert (env["WORLD_SIZE"], env["RANK"], env["LOCAL_RANK"]) == ("2", "0", "0,1")


@pytest.mark.parametrize("pod", ["train-scheduler-0", "train-worker-0", "train-worker-1"])
def test_mindspore_with_a_scheduler_without_chips(pod: str) -> None:
    env = variables(pod, framework="mindspore", replicas={"Scheduler": replica(pod=template(0)), "Worker": replica(2)})
    leads = pod == "train-scheduler-0"
    with_chips = ("ASCEND_VISIBLE_DEVICES", "HCCL_LOGIC_SUPERPOD_ID")
    common = {name: value for name, value in COMMON.items() if not leads or name not in with_chips}
    assert env == {
        **common,
        "REPLICA_TYPE": "Scheduler" if leads else "Worker",
        "MS_SCHED_HOST": "status.podIP" if leads else "IP",
        "MS_SCHED_PORT": "2222",
        "MS_ROLE": "MS_SCHED" if leads else "MS_WORKER",
        "MS_WORKER_NUM": "16",
        "MS_LOCAL_WORKER": "8",
        "MS_NODE_RANK": "0" if leads else pod[-1],
        "MS_SERVER_NUM": "0",
        "NPU_POD": "false" if leads else "true",
    }


def test_mindspore_workers_start_at_one_when_the_scheduler_mounts_chips() -> None:
    env = variables("train-worker-0", framework="mindspore")
    assert (env["MS_NODE_RANK"], env["MS_WORKER_NUM"]) == ("1", "16")


def test_mindspore_workers_alone_get_no_variable_and_no_service() -> None:
    env = variables("train-worker-0", framework="mindspore", replicas={"Worker": replica(pod=template(1))})
    assert env == {}


@pytest.mark.parametrize(("pod", "rank"), [("train-chief-0", "0"), ("train-worker-0", "1")])
def test_tensorflow(pod: str, rank: str) -> None:
    leads = pod == "train-chief-0"
    assert variables(pod, framework="tensorflow") == {
        **COMMON,
        "REPLICA_TYPE": "Chief" if leads else "Worker",
        "CM_CHIEF_IP": "status.podIP" if leads else "IP",
        "CM_CHIEF_PORT": "2222",
        "CM_CHIEF_DEVICE": "0",
        "CM_WORKER_SIZE": "16",
        "CM_LOCAL_WORKER": "8",
        "CM_RANK": rank,
        "CM_WORKER_IP": "status.podIP",
    }


def test_the_leaders_own_port_is_used() -> None:
    pod = template()
    pod["spec"]["containers"][0]["ports"] = [{"name": "ascendjob-port", "containerPort": 3333}]
    env = variables("train-worker-0", replicas={"Master": replica(pod=pod), "Worker": replica()})
    assert env["MASTER_PORT"] == "3333"


def test_clusterds_address_is_used_where_its_service_is() -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "clusterd-grpc-svc", "namespace": "mindx-dl"},
        "spec": {"clusterIP": "10.1.1.1"},
    }
    world = World(service, ascend_job())
    world.settle()
    assert env_of(world.pod("train-master-0"))["MINDX_SERVER_IP"] == "10.1.1.1"


def test_host_network_has_its_variable() -> None:
    env = variables("train-master-0", replicas={"Master": replica(pod=template(hostNetwork=True))})
    assert env["HostNetwork"] == "true"


@pytest.mark.parametrize(
    ("resource", "visible"),
    [
        ("huawei.com/npu", True),
        ("huawei.com/Ascend310", True),
        ("huawei.com/Ascend310P", True),
        ("huawei.com/Ascend910", True),
        ("huawei.com/Ascend310P-2c", False),
        ("huawei.com/npu-core", False),
    ],
)
def test_visible_devices_for_whole_chips_only(resource: str, visible: bool) -> None:
    env = variables("train-master-0", replicas={"Master": replica(pod=template(1, resource=resource))})
    expected = f"metadata.annotations['{resource}']" if visible else None
    assert env.get("ASCEND_VISIBLE_DEVICES") == expected
    assert ("WORLD_SIZE" in env) is (resource != "huawei.com/npu-core")
    assert env["MASTER_ADDR"] == "IP"


def test_soft_sharing_counts_one_chip_a_pod() -> None:
    env = variables("train-worker-0", labels=SHARE, workers=3)
    assert (env["LOCAL_WORLD_SIZE"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("1", "4", "0")
    assert "ASCEND_VISIBLE_DEVICES" not in env


def test_an_inference_job_gets_four_variables_of_its_own() -> None:
    assert variables("train-master-0", labels={"jobID": "i7", "app": "mindie-ms-server"}) == {
        "MINDX_TASK_ID": "i7",
        "APP_TYPE": "mindie-ms-server",
        "MINDX_SERVER_IP": COMMON["MINDX_SERVER_IP"],
        "MINDX_SERVER_DOMAIN": COMMON["MINDX_SERVER_DOMAIN"],
    }


def test_without_chips_only_common_variables_are_set() -> None:
    env = variables("train-worker-0", replicas={"Master": replica(pod=template(0)), "Worker": replica(pod=template(0))})
    assert env == {
        "MINDX_TASK_ID": "job-uid",
        "MINDX_SERVER_IP": COMMON["MINDX_SERVER_IP"],
        "MINDX_SERVER_DOMAIN": COMMON["MINDX_SERVER_DOMAIN"],
        "HostNetwork": "false",
        "REPLICA_TYPE": "Worker",
    }


@pytest.mark.parametrize(
    ("block", "chips", "groups"),
    [
        ("32", 16, ["0", "0", "1", "1"]),
        (" 32 ", 16, ["0", "0", "1", "1"]),
        ("8", 16, ["0", "1", "2", "3"]),
        ("64", 16, ["0"] * 4),
        (None, 16, ["0"] * 4),
    ],
)
def test_logical_super_pods_follow_sp_block(block: str | None, chips: int, groups: list[str]) -> None:
    replicas = {"Master": replica(pod=template(chips)), "Worker": replica(3, template(chips))}
    notes = {"sp-block": block} if block else {}
    world = World(ascend_job(replicas=replicas, annotations=notes))
    world.settle()
    assert [env_of(world.pod(p))["HCCL_LOGIC_SUPERPOD_ID"] for p in world.pods()] == groups


def test_multilevel_jobs_take_the_block_from_their_tree() -> None:
    world = World(ascend_job(workers=3, annotations={"huawei.com/affinity-config": "level1=2,level2=4"}))
    world.settle()
    assert [env_of(world.pod(p))["HCCL_LOGIC_SUPERPOD_ID"] for p in world.pods()] == ["0", "0", "1", "1"]


def test_a_block_of_zero_chips_is_none() -> None:
    notes = {"sp-block": "0", "huawei.com/affinity-config": "level1=2,level2=4"}
    world = World(ascend_job(workers=3, annotations=notes))
    world.settle()
    assert [env_of(world.pod(p))["HCCL_LOGIC_SUPERPOD_ID"] for p in world.pods()] == ["0", "0", "1", "1"]


def test_soft_super_pods_follow_the_scheduler() -> None:
    env = variables("train-master-0", labels={"super-pod-affinity": "soft"})
    assert env["HCCL_LOGIC_SUPERPOD_ID"] == "metadata.annotations['super-pod-rank']"


PROCESS = {"PROCESS_RECOVER": "on", "ELASTIC_PROCESS_RECOVER_ENABLE": "1"}


@pytest.mark.parametrize(
    ("strategy", "word", "extra"),
    [
        ("recover", "recover", PROCESS),
        ("recover-in-place", "recover", {**PROCESS, "ENABLE_RESTART_FAULT_PROCESS": "on"}),
        ("retry", "retry", PROCESS),
        ("dump", "dump", PROCESS),
        ("exit", "recover", PROCESS),
        ("elastic-training", "elastic-training", {"PROCESS_RECOVER": "on"}),
        ("retry, recover,dump", "dump,recover,retry", PROCESS),
        ("recover,elastic-training", "elastic-training,recover", PROCESS),
    ],
)
def test_pytorch_recovery(strategy: str, word: str, extra: dict[str, str]) -> None:
    plain = variables("train-worker-0")
    env = variables("train-worker-0", annotations={"recover-strategy": strategy})
    added = {name: value for name, value in env.items() if name not in plain}
    assert added == {"HCCL_ASYNC_ERROR_HANDLING": "0", "HIGH_AVAILABILITY": word, **extra}


@pytest.mark.parametrize(
    ("strategy", "tft", "extra"),
    [
        ("recover", "{ARF:1}", PROCESS),
        ("recover-in-place", "{ARF:1}", {**PROCESS, "ENABLE_RESTART_FAULT_PROCESS": "on"}),
        ("retry", "{HCCE:1,UCE:1}", PROCESS),
        ("dump", "{TTP:1}", PROCESS),
        ("exit", "{ARF:1}", PROCESS),
        ("retry,dump,recover", "{ARF:1,HCCE:1,TTP:1,UCE:1}", PROCESS),
    ],
)
def test_mindspore_recovery(strategy: str, tft: str, extra: dict[str, str]) -> None:
    plain = variables("train-worker-0", framework="mindspore")
    env = variables("train-worker-0", framework="mindspore", annotations={"recover-strategy": strategy})
    added = {name: value for name, value in env.items() if name not in plain}
    assert added == {
        "MS_ENABLE_TFT": tft,
        "MINDIO_FOR_MINDSPORE": "1",
        "MS_ENABLE_THM": "{HCCL_WATCHDOG:0}",
        **extra,
    }


def test_elastic_training_starts_no_recovery_of_processes_on_mindspore() -> None:
    env = variables("train-worker-0", framework="mindspore", annotations={"recover-strategy": "elastic-training"})
    assert "PROCESS_RECOVER" not in env and "ELASTIC_PROCESS_RECOVER_ENABLE" not in env
    both = variables("train-worker-0", framework="mindspore", annotations={"recover-strategy": "elastic-training,dump"})
    assert both["MS_ENABLE_TFT"] == "{TTP:1}" and both["PROCESS_RECOVER"] == "on"


def test_pod_rescheduling_alone_sets_one_word_for_mindspore() -> None:
    plain = variables("train-worker-0", framework="mindspore")
    env = variables("train-worker-0", framework="mindspore", labels={"pod-rescheduling": "on"})
    assert {n: v for n, v in env.items() if n not in plain} == {"MS_ENABLE_TFT": "{RSC:1}"}
    assert variables("train-worker-0", labels={"pod-rescheduling": "on"}) == variables("train-worker-0")


@pytest.mark.parametrize(
    ("framework", "extra"),
    [
        ("pytorch", {"HIGH_AVAILABILITY": "recover", **PROCESS}),
        ("mindspore", {"MS_ENABLE_TFT": "{ARF:1}", "MINDIO_FOR_MINDSPORE": "1", **PROCESS}),
    ],
)
def test_hot_switch_is_recovery_too(framework: str, extra: dict[str, str]) -> None:
    plain = variables("train-worker-0", framework=framework)
    env = variables("train-worker-0", framework=framework, labels={"subHealthyStrategy": "hotSwitch"})
    assert {n: v for n, v in env.items() if n not in plain} == extra


def test_own_words_are_merged_and_own_values_overwritten() -> None:
    written = [
        {"name": "HIGH_AVAILABILITY", "value": "dump,recover"},
        {"name": "PROCESS_RECOVER", "value": "off"},
        {"name": "RANK", "value": "99"},
        {"name": "KEEP", "value": "me"},
    ]
    replicas = {"Master": replica(pod=template(env=written))}
    env = variables("train-master-0", replicas=replicas, annotations={"recover-strategy": "retry"})
    assert env["HIGH_AVAILABILITY"] == "dump,recover,retry"
    assert (env["PROCESS_RECOVER"], env["RANK"], env["KEEP"]) == ("on", "0", "me")
    assert next(iter(env)) == "KEEP"


def test_other_containers_are_left_alone() -> None:
    pod = template()
    pod["spec"]["containers"].append({"name": "side", "image": "s", "env": [{"name": "A", "value": "1"}]})
    world = World(ascend_job(replicas={"Master": replica(pod=pod)}))
    world.settle()
    assert env_of(world.pod("train-master-0"), "side") == {"A": "1"}
