"""What real kubectl shows of Belay on a real control plane: waiting pods, conditions, descriptions of fields."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from belay.engine.kube import NODE
from tests.gitrepo import Repo
from tests.kube_server import define, real_cluster
from tests.loop_world import Cluster, Loop, until
from tests.needs import assets
from tests.redis_server import redis_process, redis_url  # noqa: F401

ROOT = Path(__file__).parents[2]
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


POOL = """apiVersion: belay.dev/v1alpha1
kind: NodePool
metadata: {name: trainers}
spec: {selector: {matchLabels: {host-arch: huawei-arm}}, shard: main}
"""
EMPTY = POOL.replace("trainers", "empty").replace("host-arch: huawei-arm", "host-arch: none")


def test_kubectl_reads_conditions_columns_and_descriptions_of_belays_kinds(
    world: World,
    redis_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    kubectl = world.kubectl
    world.cluster.add_node("node-9")
    repo = Repo(tmp_path / "git")
    repo.commit({"desired/pool.yaml": POOL, "desired/empty.yaml": EMPTY})
    loop = Loop(world.cluster, redis_url, tmp_path / "data", source_url=str(repo.bare), source_interval=1.0)
    try:
        until(lambda: "trainers" in kubectl("get", "nodepools", "-o", "name"), what="the copies")
        kubectl("wait", "--for=condition=Ready", "nodepool/trainers", "--timeout=60s")
        kubectl("wait", "--for=condition=Ready=False", "nodepool/empty", "--timeout=60s")
        header, *rows = kubectl("get", "nodepools").splitlines()
        assert header.split() == ["NAME", "PRODUCT", "NODES", "HEALTHY", "SHARD", "SUSPENDED", "READY", "AGE"]
        assert {row.split()[0]: row.split()[-2] for row in rows} == {"trainers": "True", "empty": "False"}
        status = json.loads(kubectl("get", "nodepool", "trainers", "-o", "json"))
        assert status["status"]["observedGeneration"] == status["metadata"]["generation"]
        foreign = POOL.replace("trainers", "by-hand")
        kubectl("apply", "-f", "-", stdin=foreign)
        kubectl("wait", "--for=condition=Ignored", "nodepool/by-hand", "--timeout=60s")
        assert "commit it to the repository" in kubectl("get", "nodepool", "by-hand", "-o", "wide")
        kubectl("delete", "nodepool", "by-hand")
    finally:
        loop.close()
    assert loop.failures == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nodepool.spec.product", "Name of a Product"),
        ("faultpolicy.spec.frequency.releaseAfter", "Time without the fault after which the level ends"),
        ("safetybudget.spec.limits.max", "Most actions within the window"),
        ("schedulingsettings.spec.initParams.super-pod-size", "Nodes of a super pod"),
        ("isolation.status.conditions.message", "what to do"),
        ("source.spec.interval", "Default: 30s"),
    ],
)
def test_kubectl_explains_fields(world: World, path: str, text: str) -> None:
    until(lambda: text in " ".join(world.kubectl("explain", path, ok=False).split()), what="the published schema")


def test_the_api_server_accepts_every_shipped_document(world: World) -> None:
    """As a copy; `kubectl apply` validates against the definitions."""
    files = [
        file
        for folder in ("policies/products", "policies/faults", "policies/vnpu", "desired/pools", "desired/layouts")
        for file in sorted((ROOT / folder).rglob("*.yaml"))
        # some API servers take the empty text for null
        if "\napiVersion: belay.dev/" in file.read_text() and 'devicePrefix: ""' not in file.read_text()
    ]
    assert len(files) > 20
    named = [argument for file in files for argument in ("-f", str(file))]
    assert world.kubectl("apply", "--dry-run=server", "--validate=true", *named).count("(server dry run)") >= len(files)
