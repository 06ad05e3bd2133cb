"""A worker that is killed in the middle of a gang's binding: the next one completes the gang from the cluster alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.act import Edge, Fence, Following, claim, run, split
from engine.kube import CONFIGMAP, NODE, POD, Kube, Object, resource_for
from engine.lease import shard_lease
from engine.load import load
from engine.model.actions import BindPod
from engine.model.plan import Plan
from engine.observe import Observer
from engine.plan import plan
from engine.store import PassRecord
from engine.wire import ledger, names
from tests.bench import clusters, crowds
from tests.kube_server import kubeconfig
from tests.loop_world import Cluster

__all__ = ["kubeconfig"]

PODS = 24
KILLED = 9
SPACE = "gangs"
JOB = resource_for("batch/v1", "Job")


@pytest.fixture(params=["sandbox", "real"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The kubeconfig of a sandbox API server, and of a real one where there is one."""
    if request.param == "real":
        yield request.getfixturevalue("kubeconfig")
        return
    cluster = Cluster(tmp_path)
    yield cluster.kubeconfig
    cluster.close()


def test_a_killed_worker_leaves_a_gang_that_the_next_one_completes(path: str) -> None:
    asyncio.run(_prepare(path))
    command = [sys.executable, "-c", f"from tests.test_gang_restart import one_pass; one_pass({path!r}, 4, {KILLED})"]
    worker = subprocess.run(command, cwd=Path(__file__).resolve().parents[1], timeout=60, check=False)
    assert worker.returncode == -signal.SIGKILL
    before = asyncio.run(_bound(path))
    assert 0 < len(before) < PODS, "killed in the middle of the gang"
    claims = asyncio.run(_claims(path))
    assert len(claims) == PODS, "every chip was claimed before the first pod was bound"

    found = one_pass(path, 64)
    binds = [action for action in found.actions if isinstance(action, BindPod)]
    assert {action.pod for action in binds} == {f"worker-{i}" for i in range(PODS)} - before.keys()
    claimed = {held.pod: held.node for held in claims.values()}
    assert {f"{SPACE}/{action.pod}": action.node for action in binds}.items() <= claimed.items(), "on the claimed nodes"
    after = asyncio.run(_bound(path))
    assert len(after) == PODS and before.items() <= after.items(), "what was bound stays as it was"
    held = [f"{node}/{chip}" for node, chips in after.values() for chip in chips.split(",")]
    assert len(held) == len(set(held)) == PODS * 8, "no chip has two owners"

    last = one_pass(path, 64)
    assert not [action for action in last.actions if isinstance(action, BindPod)]
    assert asyncio.run(_claims(path)) == {}, "claims end once the bindings are seen"


def one_pass(path: str, in_flight: int, killed: int = 0) -> Plan:
    """What a worker does that knows nothing but the cluster: list, plan, claim, bind; ``killed`` after so many."""
    return asyncio.run(_pass(path, in_flight, killed))


async def _pass(path: str, in_flight: int, killed: int) -> Plan:
    async with Kube.from_config(path) as kube:
        if killed:
            _die_after(kube, killed)
        observer, version = Observer(), ""
        for res in (NODE, CONFIGMAP, JOB, POD):
            listing = await kube.list(res)
            version = listing.resource_version
            for item in listing.items:
                observer.put(item)
        seen, now = observer.observed(), time.time()
        found = plan(load({}, has_git=False).desired, seen, now)
        lease = shard_lease(kube, "main", "worker")
        epoch = await lease.acquire()
        assert epoch is not None
        binds = [action for action in found.actions if isinstance(action, BindPod)]
        assert not (await claim(kube, "main", binds, seen.pods.values(), now)).refused
        record = PassRecord("p", "main", epoch, "", 1, now, now + 30, pods_version=version)
        edge = Edge(kube, "main", Fence(kube, "main", epoch), pods=Following(kube))
        for batch in split(record, list(enumerate(binds)), "", 100, 1 << 20):
            result = await run(edge, batch, in_flight)
            assert {outcome.result for outcome in result.outcomes} == {"done"}
        await lease.release()
        return found


def _die_after(kube: Kube, bindings: int) -> None:
    """SIGKILL, with no chance to tidy up, while a binding is on its way."""
    bind, done = kube.bind, 0

    async def counted(*arguments: Any) -> None:
        nonlocal done
        done += 1
        if done > bindings:
            os.kill(os.getpid(), signal.SIGKILL)
        await bind(*arguments)

    kube.bind = counted  # type: ignore[method-assign]


async def _prepare(path: str) -> None:
    async with Kube.from_config(path) as kube:
        for name in (SPACE, "belay-system"):
            await kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for index in range(PODS + 4):
            body = clusters.node(crowds.name_of(index), index)
            status = body.pop("status")
            body["metadata"] = {k: v for k, v in body["metadata"].items() if k in ("name", "labels", "annotations")}
            await kube.create(NODE, body)
            await kube.patch_status(NODE, body["metadata"]["name"], {"status": status})
            await kube.patch(NODE, body["metadata"]["name"], {"spec": {"taints": None}})
            report = clusters.device(body["metadata"]["name"], at=int(time.time()))
            del report["metadata"]["resourceVersion"]
            await kube.create(CONFIGMAP, report)
        amount = {"huawei.com/Ascend910": "8"}
        container = {"name": "c", "image": "i", "resources": {"limits": amount, "requests": amount}}
        spec: dict[str, Any] = {"schedulerName": "belay", "containers": [container], "restartPolicy": "Never"}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "worker", "namespace": SPACE},
            "spec": {"parallelism": PODS, "completions": PODS, "template": {"spec": spec}},
        }
        made = await kube.create(JOB, job)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "worker", "uid": made["metadata"]["uid"]}
        for index in range(PODS):
            metadata = {
                "name": f"worker-{index}",
                "namespace": SPACE,
                "ownerReferences": [owner | {"controller": True}],
            }
            await kube.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


async def _bound(path: str) -> dict[str, tuple[str, str]]:
    """Node and chips of every bound pod, from the pods alone."""
    async with Kube.from_config(path) as kube:
        pods = (await kube.list(POD, SPACE)).items
    return {
        pod["metadata"]["name"]: (pod["spec"]["nodeName"], pod["metadata"]["annotations"]["huawei.com/Ascend910"])
        for pod in pods
        if pod["spec"].get("nodeName")
    }


async def _claims(path: str) -> dict[str, ledger.Claim]:
    async with Kube.from_config(path) as kube:
        live: Object | None = await kube.get(CONFIGMAP, names.LEDGER_PREFIX + "main", names.SYSTEM)
    return ledger.parse(live) if live else {}
