"""`belay server` writes `super-pod-<id>`, and agents read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agents.node.hardware import pinglist
from engine.kube import CONFIGMAP, POD
from engine.serve.grpc import super_pods
from engine.wire import superpods
from tests.grpc_world import World, play, until


async def config(world: World, activate: str) -> None:
    await world.kube.apply({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "pingmesh-config", "namespace": "cluster-system", "labels": {"app": "pingmesh"}},
        "data": {"global": json.dumps({"activate": activate, "task_interval": 5})},
    })  # fmt: skip


async def written(world: World) -> dict[str, Any]:
    live = await world.kube.get(CONFIGMAP, "super-pod-3", "cluster-system")
    return dict((live or {}).get("data") or {})


def test_the_chips_of_a_super_pod_are_written_once_pings_are_wanted(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(super_pods, "PERIOD", 0.05)

    async def scenario(world: World) -> None:
        for name in ("n0", "n1", "n2"):
            await world.node(name)
            await world.report(name, super_pod=3 if name != "n2" else -2)
        async with world.server() as server:
            await config(world, "off")
            await until(lambda: len(server.cluster.observed.reports) == 3, "the nodes are observed")
            assert not await written(world)
            await config(world, "on")
            await until(lambda: written(world), "the super pod is written")
            found = pinglist.members(await written(world), "n0", 3)
            assert sorted(found) == ["n0", "n1"] and found["n1"] == {chip: str(chip) for chip in range(8)}
            await world.report("n1", super_pod=-2)

            async def alone() -> bool:
                return list(pinglist.members(await written(world), "n0", 3)) == ["n0"]

            await until(alone, "the node that left is taken out")

    play(tmp_path, scenario)


def test_beside_a_clusterd_nothing_is_written(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.node("n0")
        await world.report("n0", super_pod=3)
        await config(world, "on")
        await world.kube.create(POD, {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "clusterd-0", "namespace": "mindx-dl", "labels": {"app": "clusterd"}},
            "spec": {"containers": [{"name": "c", "image": "c"}], "nodeName": "n0"},
        })  # fmt: skip
        await world.kube.patch_status(POD, "clusterd-0", {"status": {"phase": "Running"}}, "mindx-dl")
        async with world.server() as server:
            await until(
                lambda: (
                    any(pod.phase == "Running" for pod in server.cluster.observed.pods.values())
                    and server.cluster.observed.reports
                ),
                "ClusterD is observed",
            )
            await server.super_pods.step()
            assert not await written(world)

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ({"global": '{"activate":"on","task_interval":1}'}, True),
        ({"global": '{"activate":"off"}', "3": '{"activate":"on"}'}, True),
        ({"global": "{", "x": "[]"}, False),
        ({}, False),
    ],
)
def test_pings_are_wanted_where_any_super_pod_activates_them(data: dict[str, str], wanted: bool) -> None:
    assert superpods.pings_wanted({"data": data}) is wanted
