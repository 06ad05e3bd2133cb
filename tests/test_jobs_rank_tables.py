"""When rank tables are written, cleared and left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from belay.engine.wire import rankfile
from tests.jobs import NOW, World, ascend_job, config_map, replica, template, volcano_job

RINGS = config_map("rings-config-train", {"hccl.json": '{"status":"initializing"}'})


def table(world: World, name: str = "train") -> dict[str, Any]:
    return json.loads(world.find("ConfigMap", f"rings-config-{name}")["data"]["hccl.json"])


def running() -> World:
    world = World(RINGS, ascend_job())
    world.settle()
    world.run_all()
    world.settle()
    return world


def test_a_table_is_completed_once_all_pods_are_placed() -> None:
    world = World(RINGS, ascend_job())
    world.settle()
    world.bind("train-master-0", "node1", range(2), ip="172.16.0.1")
    world.settle()
    assert table(world) == {"status": "initializing"}
    world.bind("train-worker-0", "node2", range(2), ip="172.16.0.2")
    world.settle()
    assert table(world) == {
        "status": "completed",
        "server_list": [
            {
                "device": [
                    {"device_id": "0", "device_ip": "192.168.0.1", "rank_id": "0"},
                    {"device_id": "1", "device_ip": "192.168.1.1", "rank_id": "1"},
                ],
                "server_id": "10.0.0.1",
                "host_ip": "10.0.0.1",
                "container_ip": "172.16.0.1",
            },
            {
                "device": [
                    {"device_id": "0", "device_ip": "192.168.0.2", "rank_id": "2"},
                    {"device_id": "1", "device_ip": "192.168.1.2", "rank_id": "3"},
                ],
                "server_id": "10.0.0.2",
                "host_ip": "10.0.0.2",
                "container_ip": "172.16.0.2",
            },
        ],
        "server_count": "2",
        "version": "1.0",
    }
    assert world.find("ConfigMap", "rings-config-train")["data"]["version"] == "0"


def test_no_table_without_the_users_config_map() -> None:
    world = World(ascend_job())
    world.settle()
    world.run_all()
    world.settle()
    assert not any("rank table" in line for line in world.log)


def test_a_table_waits_for_addresses() -> None:
    world = World(RINGS, ascend_job())
    world.settle()
    world.run_all()
    world.pod("train-worker-0")["status"].pop("podIP")
    world.settle()
    assert table(world)["status"] == "initializing"


def test_a_table_is_cleared_and_completed_again_under_a_new_version() -> None:
    world = running()
    saved = world.history.jobs["vision/AscendJob/train"].saved
    assert saved > NOW
    for name in world.pods():
        world.pod(name)["metadata"]["deletionTimestamp"] = "2026-09-01T08:10:00Z"
    world.settle()
    assert table(world) == {"status": "initializing"}
    assert world.find("ConfigMap", "rings-config-train")["data"]["version"] == str(saved)
    world.bury()
    world.settle()
    world.run_all()
    world.settle()
    assert table(world)["status"] == "completed"
    assert int(world.find("ConfigMap", "rings-config-train")["data"]["version"]) > saved
    assert [line for line in world.log if "rank table" in line] == [
        "write rank table train completed",
        "write rank table train initializing",
        "write rank table train completed",
    ]


def test_another_set_of_pods_rebuilds_the_table() -> None:
    world = running()
    world.vanish("train-worker-0")
    world.step()
    world.bind("train-worker-0", "node7")
    world.settle()
    assert {s["host_ip"] for s in table(world)["server_list"]} == {"10.0.0.0", "10.0.0.7"}


def test_more_pods_than_replicas_leave_the_table_alone() -> None:
    world = running()
    before = table(world)
    world.pod("train-worker-0")["metadata"]["annotations"]["needOperatorOpe"] = "create"
    world.settle()
    backup = next(name for name in world.pods() if "-hot-" in name)
    world.bind(backup, "node9")
    world.settle()
    assert table(world) == before


def test_a_finished_jobs_table_stays() -> None:
    world = running()
    for name in world.pods():
        world.end(name)
    world.settle()
    for name in world.pods():
        world.vanish(name)
    world.settle()
    assert table(world)["status"] == "completed"


def test_an_unreadable_configuration_is_named() -> None:
    world = World(RINGS, ascend_job())
    world.settle()
    world.run_all()
    key = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
    world.pod("train-worker-0")["metadata"]["annotations"][key] = "{"
    world.settle()
    assert table(world)["status"] == "initializing"
    assert any("pod vision/train-worker-0" in line and "cannot be read" in line for line in world.diagnostics)


def deployment(kind: str = "Deployment", *, marked: bool = True, replicas: int = 2) -> dict[str, Any]:
    pod = template(container="main")
    pod["metadata"]["labels"]["deploy-name"] = "serve"
    labels = {"ring-controller.atlas": "ascend-910b"} if marked else {}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "serve", "namespace": "vision", "uid": "d", "labels": labels},
        "spec": {"replicas": replicas, "template": pod},
    }


def served(name: str) -> dict[str, Any]:
    pod = template(container="main")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "vision", "labels": {"deploy-name": "serve"}, "annotations": {}},
        "spec": pod["spec"],
    }


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_deployments_get_ranks_and_a_table(kind: str) -> None:
    rings = config_map("rings-config-serve", {"hccl.json": '{"status":"initializing"}'})
    world = World(rings, deployment(kind), served("serve-x"), served("serve-a"))
    world.run_all()
    world.settle()
    assert table(world, "serve")["status"] == "completed"
    ranks = {name: world.pod(name)["metadata"]["annotations"]["hccl/rankIndex"] for name in world.pods()}
    assert ranks == {"serve-a": "0", "serve-x": "1"}


def test_deployments_without_the_label_get_none() -> None:
    rings = config_map("rings-config-serve", {"hccl.json": '{"status":"initializing"}'})
    world = World(rings, deployment(marked=False), served("serve-a"), served("serve-b"))
    world.run_all()
    assert world.plan() == []


def test_volcano_jobs_get_a_table_over_all_tasks() -> None:
    tasks = [
        {"name": "a", "replicas": 1, "template": template(2, container="m")},
        {"name": "b", "replicas": 2, "template": template(2, container="m")},
    ]
    world = World(config_map("rings-config-vc", {}), volcano_job(tasks=tasks))
    world.settle()
    for i, name in enumerate(world.pods()):
        world.bind(name, f"node{i}", range(2))
    world.settle()
    servers = table(world, "vc")["server_list"]
    assert [[d["rank_id"] for d in s["device"]] for s in servers] == [["0", "1"], ["2", "3"], ["4", "5"]]


def test_the_table_follows_the_jobs_product() -> None:
    world = World(RINGS, ascend_job(annotations={"sp-block": "8"}))
    world.settle()
    world.run_all()
    world.settle()
    assert table(world)["version"] == "1.2"
    assert [p["super_pod_id"] for p in table(world)["super_pod_list"]] == ["0", "1"]


FOLDER: dict[str, Any] = {"name": "ranktable", "hostPath": {"path": "/user/mindx-dl/ranktable/vision.train"}}


def filed(world: World) -> dict[str, Any]:
    file = rankfile.parse(world.find("ConfigMap", "belay-ranktable-vision.train"))
    return dict(json.loads(file.table))


def with_volume(volume: dict[str, Any]) -> dict[str, Any]:
    pod = template(volumes=[volume])
    return ascend_job(replicas={"Master": replica(1, pod), "Worker": replica(1, pod)})


def test_a_volume_gets_the_table_as_a_file_without_a_config_map_of_the_users() -> None:
    world = World(with_volume(FOLDER))
    world.settle()
    world.run_all()
    world.settle()
    assert (filed(world)["status"], filed(world)["server_count"]) == ("completed", "2")
    stored = rankfile.parse(world.find("ConfigMap", "belay-ranktable-vision.train"))
    assert (stored.namespace, stored.job, stored.version, stored.uid) == ("vision", "train", "0", "job-uid")
    world.vanish("train-worker-0")
    world.settle()
    assert filed(world) == {"status": "initializing"}
    assert world.step() == []


def test_both_forms_are_written_where_both_are_declared() -> None:
    world = World(RINGS, with_volume(FOLDER))
    world.settle()
    world.run_all()
    world.settle()
    assert table(world) == filed(world)
    assert [line for line in world.log if "rank table" in line] == ["write rank table train completed"] * 2


def test_a_volume_that_is_a_config_map_takes_no_file() -> None:
    world = World(RINGS, with_volume({"name": "ranktable", "configMap": {"name": "rings-config-train"}}))
    world.settle()
    world.run_all()
    world.settle()
    assert "belay-ranktable-vision.train" not in world.kinds("ConfigMap")
    assert table(world)["status"] == "completed"


def test_the_file_of_an_earlier_job_of_that_name_is_ignored() -> None:
    old = rankfile.RankFile("vision", "train", '{"status":"completed"}', "7", "an-earlier-life")
    world = World(rankfile.build(old), with_volume(FOLDER))
    world.settle()
    world.run_all()
    world.settle()
    assert filed(world)["server_count"] == "2"


def test_deployments_get_files_too() -> None:
    pod = template(container="main", volumes=[FOLDER])
    pod["metadata"]["labels"] = {"deploy-name": "serve"}
    deployment = {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "serve", "namespace": "vision", "uid": "d-uid"}, "spec": {"replicas": 1, "template": pod},
    }  # fmt: skip
    body = {
        "apiVersion": "v1", "kind": "Pod", "spec": pod["spec"],
        "metadata": {"name": "serve-0", "namespace": "vision", "labels": {"deploy-name": "serve"}},
    }  # fmt: skip
    world = World(deployment, body)
    world.bind("serve-0", "node1")
    world.settle()
    stored = rankfile.parse(world.find("ConfigMap", "belay-ranktable-vision.serve"))
    assert json.loads(stored.table)["status"] == "completed"


def test_two_pods_of_one_rank_are_named() -> None:
    world = World(config_map("rings-config-train", {"hccl.json": "{}"}), ascend_job())
    world.settle()
    world.run_all()
    world.edit("Pod", "train-worker-0", lambda pod: pod["metadata"]["annotations"].update({"hccl/rankIndex": "0"}))
    world.plan()
    assert world.diagnostics == [
        "warning AscendJob/vision/train rank table: pods vision/train-master-0 and vision/train-worker-0 both have "
        "hccl/rankIndex 0: each pod needs a rank of its own"
    ]
