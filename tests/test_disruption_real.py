"""Kubernetes' own controller of PodDisruptionBudgets on a job's pods: what it counts of an AscendJob."""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.kube import NAMESPACE, POD, Conflict, Kube, Resource, resource_for
from belay.engine.sandbox import definitions
from tests.control_planes import closed_ports
from tests.needs import assets

PATIENCE = 120.0
DEFINITION = resource_for("apiextensions.k8s.io/v1", "CustomResourceDefinition")
ASCEND_JOB = resource_for("mindxdl.gitee.com/v1", "AscendJob")
CONTAINER = {"name": "ascend", "image": "train:1"}
#: Of a Master and three Workers: the spec of a budget, and healthy pods that it wants, pods that it counts.
ALL, WORKERS = {"job-name": "j"}, {"job-name": "j", "replica-type": "worker"}
BUDGETS: dict[str, tuple[dict[str, Any], dict[str, str], tuple[int, int]]] = {
    "a-number-of-all": ({"minAvailable": 3}, ALL, (3, 4)),
    "half-of-the-workers": ({"minAvailable": "50%"}, WORKERS, (2, 3)),
    "one-of-the-workers": ({"maxUnavailable": 1}, WORKERS, (2, 3)),
    "one-of-all": ({"maxUnavailable": 1}, ALL, (2, 3)),
}


@pytest.fixture
def disruption(kubeconfig: str, tmp_path: Path) -> Iterator[str]:
    """The API server with the controller of PodDisruptionBudgets."""
    program = assets("kube-controller-manager") / "kube-controller-manager"
    command = [
        str(program), "--kubeconfig", kubeconfig, "--controllers=disruption", "--leader-elect=false",
        *closed_ports(program),
    ]  # fmt: skip
    with (tmp_path / "controllers.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    yield kubeconfig
    process.terminate()
    process.wait(30)


async def defined(kube: Kube) -> None:
    """Have the kind AscendJob served."""
    (crd,) = [one for one in definitions.shipped() if one["spec"]["names"]["kind"] == "AscendJob"]
    try:
        await kube.create(DEFINITION, crd)
    except Conflict:
        return
    async with asyncio.timeout(PATIENCE):
        while not await kube.served(ASCEND_JOB):
            await asyncio.sleep(0.2)


async def a_running_job(kube: Kube, namespace: str) -> None:
    """A Master and three Workers, all ready."""
    template = {"spec": {"containers": [CONTAINER]}}
    specs = {"Master": {"replicas": 1, "template": template}, "Worker": {"replicas": 3, "template": template}}
    body = {
        "apiVersion": ASCEND_JOB.api_version, "kind": "AscendJob", "metadata": {"name": "j", "namespace": namespace},
        "spec": {"replicaSpecs": specs},
    }  # fmt: skip
    job = await kube.create(ASCEND_JOB, body)
    owner = {
        "apiVersion": ASCEND_JOB.api_version, "kind": "AscendJob", "name": "j", "uid": job["metadata"]["uid"],
        "controller": True,
    }  # fmt: skip
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for name in ("j-master-0", *(f"j-worker-{number}" for number in range(3))):
        labels = {"job-name": "j", "replica-type": name.split("-")[1]}
        metadata = {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": [owner]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [CONTAINER]}}
        await kube.create(POD, pod)
        await kube.patch_status(POD, name, {"status": ready}, namespace)


async def counted(kube: Kube, kind: Resource, namespace: str) -> dict[str, tuple[int, int]]:
    """What the controller says of each budget, once it has looked at all."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = (await kube.list(kind, namespace)).items
            status = {one["metadata"]["name"]: one.get("status") or {} for one in found}
            if all(row.get("currentHealthy") and row.get("expectedPods") for row in status.values()):
                return {name: (row["desiredHealthy"], row["expectedPods"]) for name, row in status.items()}
            await asyncio.sleep(0.3)


def test_of_an_ascend_job_budgets_count_the_workers_unless_they_give_a_least_number(disruption: str) -> None:
    """What docs/concepts/budget.md says: a scale is one number in the spec, so with a Master it is one too small."""

    async def story() -> dict[str, tuple[int, int]]:
        namespace = f"pdb-{uuid.uuid4().hex[:6]}"
        async with Kube.from_config(disruption) as kube:
            await defined(kube)
            await kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            try:
                served = await kube.served(resource_for("policy/v1", "PodDisruptionBudget"))
                kind = await kube.resource("policy/v1" if served else "policy/v1beta1", "PodDisruptionBudget")
                await a_running_job(kube, namespace)
                for name, (spec, labels, _) in BUDGETS.items():
                    metadata = {"name": name, "namespace": namespace}
                    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
                    await kube.create(kind, {**body, "spec": {**spec, "selector": {"matchLabels": labels}}})
                return await counted(kube, kind, namespace)
            finally:
                for pod in (await kube.list(POD, namespace)).items:
                    await kube.delete(POD, pod["metadata"]["name"], namespace, grace=0)
                await kube.delete(NAMESPACE, namespace)
                await kube.delete(DEFINITION, "ascendjobs.mindxdl.gitee.com")

    assert asyncio.run(story()) == {name: numbers for name, (_, _, numbers) in BUDGETS.items()}
