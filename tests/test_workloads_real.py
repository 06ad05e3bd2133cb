"""Workloads of custom kinds on a real API server: followed from definition to deletion, with the rights that ship."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from belay.engine.kube import NODE, POD, NotFound, Resource, resource_for
from tests.control_planes import closed_ports
from tests.loop_world import Cluster, Loop, until
from tests.needs import assets
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.test_deploy import documents

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

RIGHTS = frozenset({"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"})
DEFINITION = resource_for("apiextensions.k8s.io/v1", "CustomResourceDefinition")
CLUSTER_ROLE = Resource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", False)
JOBS = Resource("kubeflow.org/v1", "PyTorchJob", "pytorchjobs")
SERVERS = 6
#: On this test's servers: others may have left theirs on the shared API server.
HERE = {"workload-kinds": "here"}
#: Keeps pods that others left off them.
TAINT = {"key": "workload-kinds", "value": "here", "effect": "NoSchedule"}
TOLERATIONS = [{"key": "workload-kinds", "operator": "Exists"}]
#: Seconds after which pods whose number nothing says start; the tests wait for longer than that.
LONGER_THAN_PODS_SETTLE = 7.0


@pytest.fixture
def cluster(kubeconfig: str, tmp_path: Path) -> Iterator[Cluster]:
    """The API server, with Belay's rights and the controller that adds up ClusterRoles."""
    made = Cluster(tmp_path, Path(kubeconfig))
    rights = [body for body in documents() if body["kind"] in RIGHTS]
    for name in sorted({body["metadata"].get("namespace", "") for body in rights} - {""}):
        made.ensure(None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for body in rights:
        made.ensure(None, body)

    program = assets("kube-controller-manager") / "kube-controller-manager"
    command = [
        str(program), "--kubeconfig", kubeconfig, "--controllers=clusterrole-aggregation", "--leader-elect=false",
        *closed_ports(program),
    ]  # fmt: skip
    with (tmp_path / "controllers.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    yield made
    # the server is shared: the next test finds neither servers nor the kind
    left = [(POD, pod["metadata"]["name"], pod["metadata"]["namespace"]) for pod in made.pods()]
    left += [(NODE, f"kinds-{number}", None) for number in range(SERVERS)]
    left.append((DEFINITION, definition()["metadata"]["name"], None))
    for resource, name, namespace in left:
        with suppress(NotFound):
            made.run(made.kube.delete(resource, name, namespace, grace=0))
    process.terminate()
    process.wait(30)
    made.close()


@pytest.fixture
def loop(cluster: Cluster, redis_url: str, tmp_path: Path) -> Iterator[Loop]:  # noqa: F811
    """Controller and worker with nothing but the rights of Belay's account."""
    role = "belay-workloads"
    until(lambda: (cluster.get(CLUSTER_ROLE, role) or {}).get("rules"), what="the rules of the aggregated ClusterRole")
    admin = cluster.kubeconfig
    cluster.kubeconfig = kubeconfig_of_the_engine(admin, tmp_path / "engine")
    made = Loop(cluster, redis_url, tmp_path / "data")
    cluster.kubeconfig = admin
    yield made
    made.close()
    assert made.failures == []


def kubeconfig_of_the_engine(admin: str, path: Path) -> str:
    token = subprocess.run(
        ["kubectl", "--kubeconfig", admin, "-n", "belay-system", "create", "token", "belay-engine"],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    config = yaml.safe_load(Path(admin).read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path.write_text(yaml.safe_dump(config))
    return str(path)


def definition() -> dict[str, Any]:
    names = {"kind": JOBS.kind, "plural": JOBS.plural, "singular": "pytorchjob", "listKind": "PyTorchJobList"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": DEFINITION.api_version, "kind": DEFINITION.kind, "metadata": {"name": "pytorchjobs.kubeflow.org"},
        "spec": {"group": "kubeflow.org", "scope": "Namespaced", "names": names, "versions": [version]},
    }  # fmt: skip


def pod_spec() -> dict[str, Any]:
    amount = {"huawei.com/Ascend910": "8"}
    container = {"name": "pytorch", "image": "train:1", "resources": {"requests": amount, "limits": amount}}
    return {"schedulerName": "belay", "nodeSelector": HERE, "tolerations": TOLERATIONS, "containers": [container]}


def a_job(cluster: Cluster, workers: int) -> dict[str, Any]:
    roles = {"Worker": {"replicas": workers, "template": {"spec": pod_spec()}}}
    body = {
        "apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": {"name": "pt", "namespace": "default"},
        "spec": {"pytorchReplicaSpecs": roles},
    }  # fmt: skip
    return cluster.create(JOBS, body)


def a_worker(cluster: Cluster, job: dict[str, Any], index: int) -> None:
    """A pod as the training operator makes it."""
    owner = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "name": "pt", "uid": job["metadata"]["uid"]}
    metadata = {
        "name": f"pt-worker-{index}", "namespace": "default", "ownerReferences": [{**owner, "controller": True}],
        "labels": {"training.kubeflow.org/replica-index": str(index)},
    }  # fmt: skip
    cluster.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec()})


def a_pod(cluster: Cluster, name: str) -> None:
    metadata = {"name": name, "namespace": "default"}
    cluster.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec()})


def a_server(cluster: Cluster, name: str) -> None:
    """A server without the taint of a new node, which the node controller takes away."""
    cluster.add_node(name)
    cluster.run(cluster.kube.patch(NODE, name, {"metadata": {"labels": HERE}, "spec": {"taints": [TAINT]}}))


def bound(cluster: Cluster) -> set[str]:
    """This test's pods that have a node: jobs that others left on the shared API server are placed, too."""
    return {name for name in cluster.bound() if name in ("early", "late") or name.startswith("pt-worker-")}


def waiting(cluster: Cluster) -> set[str]:
    """This test's workers that say why they wait."""
    found = set()
    for pod in cluster.pods():
        conditions = (pod.get("status") or {}).get("conditions") or []
        mine = pod["metadata"]["name"].startswith("pt-worker-")
        if mine and any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions):
            found.add(pod["metadata"]["name"])
    return found


def test_a_kind_that_comes_to_be_served_starts_its_pods_together_and_may_go_again(cluster: Cluster, loop: Loop) -> None:
    for number in range(4):
        a_server(cluster, f"kinds-{number}")
    a_pod(cluster, "early")
    until(lambda: bound(cluster) == {"early"}, what="a pod before the kind is served")
    cluster.run(cluster.kube.delete(POD, "early", "default", grace=0))

    # four of five pods on four servers: only the object says that a fifth one comes
    cluster.ensure(DEFINITION, definition())
    until(lambda: cluster.run(cluster.kube.served(JOBS)), what="the kind")
    job = a_job(cluster, workers=5)
    for index in range(4):
        a_worker(cluster, job, index)
    until(lambda: len(waiting(cluster)) == 4, what="the reason at each pod")
    ends = time.monotonic() + LONGER_THAN_PODS_SETTLE
    until(lambda: bound(cluster) or time.monotonic() > ends)
    assert bound(cluster) == set(), "a gang is placed in part"

    a_worker(cluster, job, 4)
    until(lambda: len(waiting(cluster)) == 5, what="the reason at each pod")
    assert bound(cluster) == set(), "a gang is placed in part"

    a_server(cluster, "kinds-4")
    workers = {f"pt-worker-{index}" for index in range(5)}
    until(lambda: bound(cluster) == workers, what="the binding of all five")

    # without definition the objects are gone; their pods stay, and others are placed as before
    cluster.run(cluster.kube.delete(DEFINITION, definition()["metadata"]["name"]))
    until(lambda: not cluster.run(cluster.kube.served(JOBS)), what="the end of the kind")
    a_server(cluster, "kinds-5")
    a_pod(cluster, "late")
    until(lambda: bound(cluster) == {*workers, "late"}, what="a pod after the kind is gone")
