"""What real kubectl shows of Belay on a real control plane: waiting pods, conditions, descriptions of fields."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.kube import NODE
from tests.kube_server import define, real_cluster
from tests.loop_world import Cluster, Loop, until
from tests.needs import assets
from tests.redis_server import redis_process, redis_url  # noqa: F401

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.xdist_group("kubectl-real")]


class World:
    """A real control plane with Belay's kinds, and kubectl for it."""

    def __init__(self, folder: Path, programs: Path, kubeconfig: Path) -> None:
        self.cluster = Cluster(folder, kubeconfig)
        self._program = programs / "kubectl"
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(folder)}

    def kubectl(self, *arguments: str, stdin: str = "", ok: bool = True) -> str:
        """What kubectl prints."""
        done = subprocess.run(
            [self._program, *arguments], input=stdin, env=self._environment, capture_output=True, text=True, timeout=120
        )
        assert not ok or done.returncode == 0, done.stderr
        return done.stdout if ok else done.stdout + done.stderr


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    programs, folder = assets("etcd", "kube-apiserver", "kubectl"), tmp_path_factory.mktemp("kubectl")
    with real_cluster(programs, folder) as kubeconfig:
        define(kubeconfig)
        made = World(folder, programs, kubeconfig)
        yield made
        made.cluster.close()


def test_kubectl_says_why_a_pod_waits_and_when_it_no_longer_does(
    world: World,
    redis_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    cluster, kubectl = world.cluster, world.kubectl
    cluster.add_node("node-1", chips=8)
    cluster.run(cluster.kube.patch(NODE, "node-1", {"spec": {"taints": None}}))  # as the node controller does
    cluster.add_pod("first", 8)
    loop = Loop(cluster, redis_url, tmp_path / "data")
    try:
        kubectl("wait", "--for=condition=PodScheduled", "pod/first", "--timeout=60s")
        cluster.add_pod("second", 8)
        kubectl("wait", "--for=condition=PodScheduled=False", "pod/second", "--timeout=60s")
        (row,) = json.loads(kubectl("get", "pod", "second", "-o", "json"))["status"]["conditions"]
        assert row["reason"] == "Unschedulable" and "Way out: " in row["message"], row
        until(lambda: "FailedScheduling" in kubectl("describe", "pod", "second"), what="the Event")
        until(lambda: "Successfully assigned default/first to node-1" in kubectl("describe", "pod", "first"))
        reconciled = len(loop.sent)
        kubectl("delete", "pod", "first", "--grace-period=0", "--force")
        kubectl("wait", "--for=condition=PodScheduled", "pod/second", "--timeout=60s")
        assert cluster.bound() == {"second"} and len(loop.sent) >= reconciled
    finally:
        loop.close()
    assert loop.failures == []
