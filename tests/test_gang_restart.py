"""What disturbs the binding of a gang on an API server: a worker that is killed in the middle, another scheduler that
binds the same pods, a batch that is delivered twice. The next pass completes the gang from the cluster alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.act import SETTLE_SECONDS, Batch, Edge, Fence, PodWatch, SettlingClaims, claim, decode, run, split
from belay.engine.kube import CONFIGMAP, NODE, POD, Kube, NotFound, Object, resource_for
from belay.engine.kube.lease import Lease, shard_lease
from belay.engine.load import load
from belay.engine.model.actions import BindPod
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import Observer
from belay.engine.plan import plan
from belay.engine.store import PassRecord
from belay.engine.wire import ledger, names
from tests.bench import clusters, crowds
from tests.loop_world import Cluster

#: Beside the other tests that share a real API server.
pytestmark = [pytest.mark.real_time, pytest.mark.xdist_group("kubeconfig")]

PODS = 24
KILLED = 9
SPACE = "gangs"
JOB = resource_for("batch/v1", "Job")


@pytest.fixture(params=["sandbox", "real"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The kubeconfig of a sandbox API server, and of a real one where there is one."""
    if request.param == "real":
        yield (found := request.getfixturevalue("kubeconfig"))
        asyncio.run(_clear(found))
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

    clock = [0.0]
    settling = SettlingClaims(lambda: clock[0])
    for wait in (0.0, 0.0, SETTLE_SECONDS):
        clock[0] += wait
        last = one_pass(path, 64, settling=settling)
        assert not [action for action in last.actions if isinstance(action, BindPod)]
        left = asyncio.run(_claims(path))
        twice = {f"{SPACE}/{name}": node for name, (node, _) in after.items() if name not in before}
        assert {held.pod: held.node for held in left.values()}.items() <= twice.items(), "claims of one binding ended"
    assert left == {}, "those of bindings that were asked for twice end when none can be under way any more"


def test_another_scheduler_binds_some_of_the_pods_meanwhile(path: str) -> None:
    """It never loses a pod to us, nor we a chip to it; the rest of the gang is completed around what it did."""
    asyncio.run(_prepare(path))
    outcomes = asyncio.run(_raced(path))
    foreign = {"worker-5": crowds.name_of(PODS), "worker-20": crowds.name_of(PODS + 1)}
    assert {name for name, (result, _) in outcomes.items() if result == "refused"} == foreign.keys()
    assert all("bound" in outcomes[name][1] for name in foreign), outcomes
    after = asyncio.run(_nodes(path))
    assert len(after) == PODS and foreign.items() <= after.items(), "what was bound stays as it was"
    assert len(set(after.values())) == PODS, "each on a node of its own, which it needs whole"

    last = one_pass(path, 64)
    assert not [action for action in last.actions if isinstance(action, BindPod)]
    assert asyncio.run(_claims(path)) == {}, "claims on the nodes that were not taken are gone"


async def _raced(path: str) -> dict[str, tuple[str, str]]:
    """A pass in whose first bindings another scheduler binds two of the pods to the spare nodes, without chips."""
    async with Kube.from_config(path) as kube, Kube.from_config(path) as other:
        found, batches, edge, lease = await _decided(kube)
        bind, begun = kube.bind, 0

        async def late(*arguments: Any) -> None:
            nonlocal begun
            begun += 1
            if begun == 1:
                for index, name in enumerate(("worker-5", "worker-20")):
                    pod = await other.get(POD, name, SPACE)
                    assert pod is not None
                    await other.bind(SPACE, name, pod["metadata"]["uid"], crowds.name_of(PODS + index), {})
            await bind(*arguments)

        kube.bind = late  # type: ignore[method-assign]
        results = [await run(edge, batch, 1) for batch in batches]
        await lease.release()
        binds = [action for action in found.actions if isinstance(action, BindPod)]
        return {binds[row.index].pod: (row.result, row.message) for result in results for row in result.outcomes}


def test_a_batch_that_is_delivered_twice_binds_once(path: str) -> None:
    """Two workers at once, as after a broker's redelivery: no pod is bound elsewhere or evicted for it."""
    asyncio.run(_prepare(path))
    results, uids = asyncio.run(_doubled(path))
    assert results <= {"done", "unchanged"}
    after = asyncio.run(_bound(path))
    assert len(after) == PODS and len(set(after.values())) == PODS
    assert asyncio.run(_uids(path)) == uids, "no pod was evicted"
    assert not [action for action in one_pass(path, 64).actions if isinstance(action, BindPod)]


async def _doubled(path: str) -> tuple[set[str], set[str]]:
    async with Kube.from_config(path) as kube, Kube.from_config(path) as other:
        _, batches, edge, lease = await _decided(kube)
        twin = Edge(other, "main", Fence(other, "main", batches[0].record.epoch), pods=PodWatch(other))
        rows = await asyncio.gather(*(run(one, batch, 8) for batch in batches for one in (edge, twin)))
        third = [await run(edge, batch, 8) for batch in batches]
        assert {row.result for result in third for row in result.outcomes} == {"unchanged"}
        await lease.release()
    return {row.result for result in rows for row in result.outcomes}, await _uids(path)


def one_pass(path: str, in_flight: int, killed: int = 0, settling: SettlingClaims | None = None) -> Plan:
    """What a worker does that knows nothing but the cluster: list, plan, claim, bind; ``killed`` after so many."""
    return asyncio.run(_pass(path, in_flight, killed, settling or SettlingClaims()))


async def _pass(path: str, in_flight: int, killed: int, settling: SettlingClaims) -> Plan:
    async with Kube.from_config(path) as kube:
        if killed:
            _die_after(kube, killed)
        found, batches, edge, lease = await _decided(kube, settling)
        for batch in batches:
            result = await run(edge, batch, in_flight)
            assert {outcome.result for outcome in result.outcomes} == {"done"}
        await lease.release()
        return found


async def _decided(kube: Kube, settling: SettlingClaims | None = None) -> tuple[Plan, list[Batch], Edge, Lease]:
    """List, plan, claim; the bindings are still to be made."""
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
    assert not (await claim(kube, "main", binds, seen.pods.values(), now, settling or SettlingClaims())).refused
    record = PassRecord("p", "main", epoch, "", 1, now, now + 30, pods_version=version)
    edge = Edge(kube, "main", Fence(kube, "main", epoch), pods=PodWatch(kube))
    return found, [decode(text) for text in split(record, list(enumerate(binds)), "", 100, 1 << 20)], edge, lease


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


async def _clear(path: str) -> None:
    """Leaves a server that other tests share as it was."""
    nodes = [crowds.name_of(index) for index in range(PODS + 4)]
    rows = [(NODE, name, "") for name in nodes]
    rows += [(CONFIGMAP, f"mindx-dl-deviceinfo-{name}", "kube-system") for name in nodes]
    rows += [(JOB, "worker", SPACE), (CONFIGMAP, names.LEDGER_PREFIX + "main", names.SYSTEM)]
    async with Kube.from_config(path) as kube:
        rows += [(POD, pod["metadata"]["name"], SPACE) for pod in (await kube.list(POD, SPACE)).items]
        for res, name, space in rows:
            with contextlib.suppress(NotFound):
                # no garbage collector runs that would take away a finalizer
                await kube.delete(res, name, space or None, grace=0, propagation="Background")


async def _bound(path: str) -> dict[str, tuple[str, str]]:
    """Node and chips of every bound pod, from the pods alone."""
    async with Kube.from_config(path) as kube:
        pods = (await kube.list(POD, SPACE)).items
    return {
        pod["metadata"]["name"]: (pod["spec"]["nodeName"], pod["metadata"]["annotations"]["huawei.com/Ascend910"])
        for pod in pods
        if pod["spec"].get("nodeName")
    }


async def _nodes(path: str) -> dict[str, str]:
    async with Kube.from_config(path) as kube:
        pods = (await kube.list(POD, SPACE)).items
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}


async def _uids(path: str) -> set[str]:
    async with Kube.from_config(path) as kube:
        return {pod["metadata"]["uid"] for pod in (await kube.list(POD, SPACE)).items}


async def _claims(path: str) -> dict[str, ledger.Claim]:
    async with Kube.from_config(path) as kube:
        live: Object | None = await kube.get(CONFIGMAP, names.LEDGER_PREFIX + "main", names.SYSTEM)
    return ledger.parse(live) if live else {}
