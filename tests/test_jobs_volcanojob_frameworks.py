"""Volcano's job plugins pytorch, tensorflow, mpi, ray and hcclrank: what pods get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs import World, env_of, template, volcano_job

Raw = dict[str, Any]


def task(name: str, count: int, container: str = "main", **more: Any) -> Raw:
    return {"name": name, "replicas": count, "template": template(container=container, **more)}


def made(plugins: dict[str, list[str]], *tasks: Raw) -> World:
    world = World(volcano_job(tasks=list(tasks), plugins=plugins))
    world.settle()
    return world


def env(world: World, name: str, container: str = "main") -> dict[str, Any]:
    return env_of(world.pod(name), container)


def ports(world: World, name: str, index: int = 0) -> dict[str, int]:
    rows = world.pod(name)["spec"]["containers"][index].get("ports", [])
    return {row["name"]: row["containerPort"] for row in rows}


def test_pytorch_pods_know_their_master_and_rank() -> None:
    world = made({"pytorch": []}, task("master", 1), task("worker", 2))
    assert {name: env(world, f"vc-{name}")["RANK"] for name in ("master-0", "worker-0", "worker-1")} == {
        "master-0": "0", "worker-0": "1", "worker-1": "2",
    }  # fmt: skip
    found = env(world, "vc-worker-1")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["WORLD_SIZE"]) == ("vc-master-0.vc", "23456", "3")
    assert ports(world, "vc-master-0") == {"pytorchjob-port": 23456}
    assert world.kinds("Service") == ["vc"], "plugin svc comes with it, so that the names resolve"
    assert world.job("vc")["status"]["controlledResources"] == {"plugin-pytorch": "pytorch", "plugin-svc": "svc"}


def test_arguments_of_plugins_are_read_as_go_flags() -> None:
    arguments = ["--master=lead", "-worker work", "--port=2000", "--wait-master-enabled", "--wait-master-timeout=60"]
    world = made({"pytorch": arguments}, task("lead", 1), task("work", 1))
    assert env(world, "vc-work-0")["MASTER_ADDR"] == "vc-lead-0.vc"
    (waits,) = world.pod("vc-work-0")["spec"]["initContainers"]
    assert (waits["name"], waits["image"]) == ("wait-for-master", "busybox:1.36.1")
    assert "nc -z vc-lead-0.vc 2000" in waits["command"][2] and "left=60" in waits["command"][2]
    assert "initContainers" not in world.pod("vc-lead-0")["spec"]


def test_tensorflow_pods_know_the_cluster() -> None:
    world = made({"tensorflow": []}, task("ps", 1), task("worker", 2))
    assert json.loads(env(world, "vc-worker-1")["TF_CONFIG"]) == {
        "cluster": {"ps": ["vc-ps-0.vc:2222"], "worker": ["vc-worker-0.vc:2222", "vc-worker-1.vc:2222"]},
        "task": {"type": "worker", "index": 1},
    }
    alone = made({"tensorflow": []}, task("worker", 1))
    assert "TF_CONFIG" not in env(alone, "vc-worker-0")


def test_the_mpi_master_knows_the_hosts_and_all_have_keys_and_the_ssh_port() -> None:
    world = made({"mpi": ["--port=2222"]}, task("master", 1), task("worker", 2))
    assert env(world, "vc-master-0")["MPI_HOST"] == "vc-worker-0.vc,vc-worker-1.vc"
    assert "MPI_HOST" not in env(world, "vc-worker-0")
    assert ports(world, "vc-worker-1") == {"mpijob-port": 2222}
    assert world.kinds("Secret") == ["vc-ssh"], "plugin ssh comes with it"


def test_ray_pods_start_head_and_workers_and_the_head_has_a_service() -> None:
    world = made({"ray": []}, task("head", 1, "head"), task("worker", 1, "worker"))
    assert world.pod("vc-head-0")["spec"]["containers"][0]["command"] == [
        "sh", "-c",
        "ray start --head --block --dashboard-host=0.0.0.0 --port=6379 --dashboard-port=8265 "
        "--ray-client-server-port=10001",
    ]  # fmt: skip
    command = world.pod("vc-worker-0")["spec"]["containers"][0]["command"]
    assert command == ["sh", "-c", "ray start --block --address=vc-head-0.vc:6379"]
    assert ports(world, "vc-head-0") == {"gcs": 6379, "dashboard": 8265, "client-server": 10001}
    service = world.find("Service", "vc-head-svc")["spec"]
    assert service["selector"] == {
        "volcano.sh/job-name": "vc", "volcano.sh/job-namespace": "vision", "volcano.sh/task-spec": "head",
    }  # fmt: skip
    assert [(row["name"], row["port"], row["targetPort"]) for row in service["ports"]] == [
        ("gcs", 6379, "gcs"), ("dashboard", 8265, "dashboard"), ("client-server", 10001, "client-server"),
    ]  # fmt: skip
    for name in world.pods():
        world.bind(name, "node1")
    world.settle()
    for name in world.pods():
        world.end(name, container="main")
    world.settle()
    assert world.kinds("Service") == []


@pytest.mark.parametrize(
    ("plugins", "tasks", "ranks"),
    [
        ({"hcclrank": []}, [task("worker", 2), task("master", 1)], {"master-0": "0", "worker-0": "1", "worker-1": "2"}),
        ({"hcclrank": [], "pytorch": []}, [task("worker", 1), task("master", 1)], {"master-0": "0", "worker-0": "1"}),
        ({"hcclrank": []}, [task("worker", 1, env=[{"name": "RANK", "value": "7"}])], {"worker-0": "7"}),
        ({}, [task("worker", 1), task("master", 1)], {"worker-0": "0", "master-0": "1"}),
    ],
)  # fmt: skip
def test_hcclrank_gives_ranks_by_role(plugins: dict[str, list[str]], tasks: list[Raw], ranks: dict[str, str]) -> None:
    world = made(plugins, *tasks)
    found = {n.removeprefix("vc-"): world.pod(n)["metadata"]["annotations"]["hccl/rankIndex"] for n in world.pods()}
    assert found == ranks


def test_a_rank_of_the_template_stays() -> None:
    one = task("worker", 1)
    one["template"]["metadata"]["annotations"] = {"hccl/rankIndex": "5"}
    world = made({"hcclrank": []}, one)
    assert world.pod("vc-worker-0")["metadata"]["annotations"]["hccl/rankIndex"] == "5"


def test_wrong_arguments_and_missing_tasks_are_findings() -> None:
    world = made({"pytorch": ["--port=many", "--colour=red"], "ray": []}, task("worker", 1))
    world.plan()
    assert any("argument port=many is not used: it takes master, worker, port" in line for line in world.diagnostics)
    assert any("argument colour=red is not used" in line for line in world.diagnostics)
    assert any("the job has no task master: name it with --master" in line for line in world.diagnostics)
    assert any("the job has no task head" in line for line in world.diagnostics)
    assert "RANK" not in env(world, "vc-worker-0")
