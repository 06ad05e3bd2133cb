"""The world over an API server: the sandbox's own and, where there is one, a real kube-apiserver."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.engine.kube import NODE, POD, Conflict, Kube, NotFound, resource_for
from belay.engine.sandbox.api import ApiServer
from belay.engine.sandbox.cache import RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE
from belay.engine.sandbox.node_control import SandboxNode
from belay.engine.sandbox.nodes_shape import Shape
from belay.engine.sandbox.settings import SandboxSettings
from belay.engine.sandbox.shapes import Shapes
from belay.engine.sandbox.world import SandboxCluster, control
from belay.engine.workloads import objects as o
from tests.controller_world import workload

#: Beside the other tests that share a real API server.
pytestmark = [pytest.mark.real_time, pytest.mark.xdist_group("kubeconfig")]

Json = dict[str, Any]
A2 = Shape("huawei.com/Ascend910", "Ascend910-", 8, {"accelerator-type": "module-910b-8"})
DEPLOYMENT = resource_for("apps/v1", "Deployment")
VOLUME = resource_for("v1", "PersistentVolume")
SETTINGS = SandboxSettings(time_scale=0.02, owner_gc=True)
_runs = itertools.count()


@pytest.fixture(params=["sandbox", pytest.param("real", marks=pytest.mark.e2e)])
def connect(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[], contextlib.AbstractAsyncContextManager[Kube]]:
    real = request.getfixturevalue("kubeconfig") if request.param == "real" else None

    @contextlib.asynccontextmanager
    async def open_kube() -> AsyncIterator[Kube]:
        if real:
            async with Kube.from_config(real) as kube:
                yield kube
            return
        server = ApiServer()
        await server.start()
        server.write_kubeconfig(tmp_path / "kubeconfig")
        try:
            async with Kube.from_config(str(tmp_path / "kubeconfig")) as kube:
                yield kube
        finally:
            await server.stop()

    return open_kube


def nodes(count: int) -> list[SandboxNode]:
    """Nodes of this test alone: a real API server is shared by the session."""
    run = next(_runs)
    return [SandboxNode(f"w{run}-{number + 1}", number, A2) for number in range(count)]


async def until(what: str, check: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> Any:
    ends = time.monotonic() + seconds
    while True:
        found = await check()
        if found:
            return found
        if time.monotonic() > ends:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        await asyncio.sleep(0.03)


async def place(kube: Kube, members: list[SandboxNode]) -> None:
    """A scheduler without thought: binds whatever is unbound to the nodes in turn, without chips."""
    turn = itertools.cycle(members)
    while True:
        for pod in (await kube.list(POD, "default")).items:
            if not pod["spec"].get("nodeName") and pod["spec"].get("schedulerName") != "nobody":
                with contextlib.suppress(Conflict, NotFound):
                    await kube.bind("default", pod["metadata"]["name"], pod["metadata"]["uid"], next(turn).name)
        await asyncio.sleep(0.05)


async def pods_of(kube: Kube, app: str) -> list[Json]:
    return (await kube.list(POD, "default", labels=f"app={app}")).items


def world(kube: Kube, members: list[SandboxNode], **more: Any) -> SandboxCluster:
    return SandboxCluster(kube, msgspec.structs.replace(SETTINGS, **more), Shapes({}, {}), members)


def npu_pod(name: str, node: str, chips: list[int], count: int = 0) -> Json:
    amount = str(count or len(chips))
    limits = {"huawei.com/Ascend910": amount}
    notes = {"huawei.com/Ascend910": ",".join(f"Ascend910-{c}" for c in chips), "predicate-time": "1"} if chips else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": notes},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "i", "resources": {"limits": limits, "requests": limits}}],
        },
    }


def test_a_deployment_rolls_out_replaces_pods_and_is_deleted(connect: Any) -> None:
    async def run() -> None:
        members = nodes(2)
        async with connect() as kube, world(kube, members).running():
            binder = asyncio.create_task(place(kube, members))
            app = f"web-{members[0].name}"
            await kube.create(DEPLOYMENT, workload("Deployment", app, replicas=3))

            async def complete() -> bool:
                thing = await kube.get(DEPLOYMENT, app, "default") or {}
                status = thing.get("status") or {}
                return bool(
                    status.get("observedGeneration") == thing["metadata"]["generation"]
                    and status.get("updatedReplicas") == status.get("availableReplicas") == status.get("replicas") == 3
                )

            await until("the deployment is complete", complete)
            assert len(await pods_of(kube, app)) == 3
            image = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "two"}]}}}}
            await kube.patch(DEPLOYMENT, app, image, "default", kind="strategic")
            await until("the new image is out", complete)
            live = [pod for pod in await pods_of(kube, app) if o.active(pod)]
            assert {pod["spec"]["containers"][0]["image"] for pod in live} == {"two"}
            victim = live[0]["metadata"]
            await kube.delete(POD, victim["name"], "default", grace=0)

            async def replaced() -> bool:
                names = {p["metadata"]["name"] for p in await pods_of(kube, app) if o.ready(p)}
                return victim["name"] not in names and len(names) == 3

            await until("the lost pod is replaced", replaced)
            await kube.delete(DEPLOYMENT, app, "default", propagation="Background")

            async def gone() -> bool:
                return not await pods_of(kube, app)

            await until("its pods are gone", gone)
            binder.cancel()

    asyncio.run(run())


def test_nodes_reject_pods_that_a_kubelet_rejects(connect: Any) -> None:
    async def run() -> None:
        (member,) = members = nodes(1)
        first, second, third = (f"{member.name}-{word}" for word in ("first", "second", "third"))
        async with connect() as kube, world(kube, members).running():
            node = await kube.get(NODE, member.name) or {}
            assert node["status"]["allocatable"]["huawei.com/Ascend910"] == "8"
            assert "Ascend910-7" in json.loads(node["metadata"]["annotations"]["baseDeviceInfos"])
            await kube.create(POD, npu_pod(first, member.name, [0, 1]))

            async def phase(name: str) -> str:
                return o.phase(await kube.get(POD, name, "default") or {"metadata": {}})

            async def runs() -> bool:
                return await phase(first) == "Running"

            await until("the pod runs", runs)
            given = (await kube.get(POD, first, "default") or {})["metadata"]["annotations"]
            assert given["huawei.com/AscendReal"] == "Ascend910-0,Ascend910-1"
            await kube.create(POD, npu_pod(second, member.name, [1, 2]))
            await kube.create(POD, npu_pod(third, member.name, [], count=8))

            async def refused() -> bool:
                return await phase(second) == await phase(third) == "Failed"

            await until("both are refused", refused)
            for name in (second, third):
                status = (await kube.get(POD, name, "default") or {})["status"]
                assert status["reason"] == "UnexpectedAdmissionError"
            for name in (first, second, third):
                await kube.delete(POD, name, "default", grace=0)

    asyncio.run(run())


@pytest.mark.parametrize("connect", ["sandbox"], indirect=True)
def test_claims_come_from_templates_and_volumes_that_people_made_are_offered(connect: Any) -> None:
    async def story() -> None:
        async with connect() as kube, world(kube, nodes(1)).running():
            disk = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/mnt"}}
            await kube.create(VOLUME, {"apiVersion": "v1", "kind": "PersistentVolume",
                                       "metadata": {"name": "disk"}, "spec": disk})  # fmt: skip
            asks = {"devices": {"requests": [{"name": "npus"}]}}
            await kube.create(RESOURCE_CLAIM_TEMPLATE, {
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
                "metadata": {"name": "four", "namespace": "default"}, "spec": {"spec": asks}})  # fmt: skip
            body = npu_pod("user", "", [])
            body["spec"] = {"containers": [{"name": "main", "image": "i"}], "schedulerName": "nobody",
                            "resourceClaims": [{"name": "chips", "resourceClaimTemplateName": "four"}]}  # fmt: skip
            await kube.create(POD, body)

            async def named() -> Any:
                pod = await kube.get(POD, "user", "default")
                rows = ((pod or {}).get("status") or {}).get("resourceClaimStatuses") or []
                return rows and await kube.get(RESOURCE_CLAIM, rows[0]["resourceClaimName"], "default")

            claim = await until("the pod's claim", named)
            assert claim["spec"] == asks
            assert [one["kind"] for one in claim["metadata"]["ownerReferences"]] == ["Pod"]

            async def offered() -> bool:
                volume = await kube.get(VOLUME, "disk")
                return bool(volume and (volume.get("status") or {}).get("phase") == "Available")

            await until("the volume is offered", offered)
            await kube.delete(POD, "user", "default", grace=0)

            async def gone() -> bool:
                return not (await kube.list(RESOURCE_CLAIM, "default")).items

            await until("the claim goes with its pod", gone)

    asyncio.run(story())


def test_a_silent_node_is_noticed_and_comes_back(connect: Any) -> None:
    async def run() -> None:
        members = nodes(2)
        quiet, name = members[0].name, f"{members[0].name}-p"
        async with connect() as kube, world(kube, members, lease_seconds=1, silence_seconds=1).running():
            await kube.create(POD, npu_pod(name, quiet, [3]))

            async def state(wanted: str) -> bool:
                node = await kube.get(NODE, quiet) or {"metadata": {}}
                found = o.condition(node, "Ready") or {}
                taints = {t["key"] for t in node["spec"].get("taints") or ()}
                return found.get("status") == wanted and ("node.kubernetes.io/unreachable" in taints) == (
                    wanted != "True"
                )

            async def ready() -> bool:
                return o.ready(await kube.get(POD, name, "default") or {"metadata": {}})

            async def unready() -> bool:
                return not await ready()

            await until("the pod runs", ready)
            await control(kube, quiet, '{"paused": true}')
            await until("the node is unknown and tainted", lambda: state("Unknown"), 20)
            await until("its pod counts as not ready", unready)
            await control(kube, quiet, "{}")
            await until("the node is back without taints", lambda: state("True"), 20)
            other = await kube.get(NODE, members[1].name) or {}
            assert (o.condition(other, "Ready") or {})["status"] == "True"
            await control(kube, quiet, '{"ready": false}')

            async def not_ready() -> bool:
                node = await kube.get(NODE, quiet) or {"metadata": {}}
                return (o.condition(node, "Ready") or {}).get("reason") == "KubeletNotReady"

            await until("the node says that it is not ready", not_ready)
            await control(kube, quiet, "no json")
            await kube.delete(NODE, quiet)

            async def gone() -> bool:
                return await kube.get(POD, name, "default") is None

            await until("the pod of a deleted node is cleaned up", gone, 20)

    asyncio.run(run())


def test_a_restarted_world_adopts_its_pods(connect: Any) -> None:
    async def run() -> None:
        (member,) = members = nodes(1)
        name = f"{member.name}-p"
        async with connect() as kube:
            async with world(kube, members).running():
                await kube.create(POD, npu_pod(name, member.name, [5]))

                async def runs() -> bool:
                    return o.ready(await kube.get(POD, name, "default") or {"metadata": {}})

                await until("the pod runs", runs)
            before = await kube.get(POD, name, "default") or {}
            async with world(kube, members).running():
                late = f"{member.name}-late"
                await kube.create(POD, npu_pod(late, member.name, [5]))

                async def refused() -> bool:
                    return o.phase(await kube.get(POD, late, "default") or {"metadata": {}}) == "Failed"

                await until("the chip is still held", refused)
                after = await kube.get(POD, name, "default") or {}
                assert after["status"] == before["status"]
                await kube.delete(POD, name, "default")

                async def gone() -> bool:
                    return await kube.get(POD, name, "default") is None

                await until("it ends after its grace", gone)
                await kube.delete(POD, late, "default", grace=0)

    asyncio.run(run())
