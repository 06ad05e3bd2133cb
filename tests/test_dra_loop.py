"""Resource claims through an API server: an agent's slices, controller and worker, allocation, binding, release."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.agents.common.client import KubeClient
from belay.agents.common.credentials import load
from belay.agents.dra.devices import CounterForm, devices
from belay.agents.dra.parts import parts_of
from belay.agents.dra.publisher import SlicePublisher
from belay.agents.drivers.base import Chip, Machine
from belay.agents.drivers.server_models import SERVER_MODELS
from belay.engine.kube import POD
from belay.engine.kube.resources import Resource
from tests.loop_world import Cluster, Loop, cluster, until
from tests.redis_server import redis_process, redis_url  # noqa: F401

__all__ = ["cluster"]

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

CLAIM = Resource("resource.k8s.io/v1", "ResourceClaim", "resourceclaims", True)
SLICE = Resource("resource.k8s.io/v1", "ResourceSlice", "resourceslices", False)
CLASS = Resource("resource.k8s.io/v1", "DeviceClass", "deviceclasses", False)
MACHINE = Machine(
    resource="huawei.com/Ascend910", prefix="Ascend910-", chip_name="Ascend910B", accelerator="huawei-Ascend910",
    server_type="Ascend910B-20", driver_version="24.1", memory_gb=64,
)  # fmt: skip


@pytest.fixture
def loop(cluster: Cluster, redis_url: str, tmp_path: Path) -> Iterator[Loop]:  # noqa: F811
    made = Loop(cluster, redis_url, tmp_path / "data")
    yield made
    made.close()
    assert made.failures == []


def publish(cluster: Cluster, node: str) -> None:
    async def once() -> None:
        api = KubeClient(load(cluster.kubeconfig))
        try:
            chips = [Chip(id=n, logic_id=n, card=n) for n in range(8)]
            problem = await SlicePublisher(node, api).keep(devices(MACHINE, chips, [], ()), 0.0)
            assert problem == ""
        finally:
            await api.close()

    asyncio.run(once())


def test_a_pod_with_a_claim_is_allocated_bound_and_its_chips_are_kept(cluster: Cluster, loop: Loop) -> None:
    cluster.add_node("node-1")
    selector = [{"cel": {"expression": "device.driver == 'npu.huawei.com'"}}]
    metadata: dict[str, Any] = {"name": "npu.huawei.com"}
    head = {"apiVersion": "resource.k8s.io/v1"}
    cluster.create(CLASS, {**head, "kind": "DeviceClass", "metadata": metadata, "spec": {"selectors": selector}})
    publish(cluster, "node-1")
    exactly = {"deviceClassName": "npu.huawei.com", "count": 4}
    spec = {"devices": {"requests": [{"name": "npus", "exactly": exactly}]}}
    metadata = {"name": "four", "namespace": "default"}
    cluster.create(CLAIM, {**head, "kind": "ResourceClaim", "metadata": metadata, "spec": spec})
    container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "chips"}]}}
    claims = [{"name": "chips", "resourceClaimName": "four"}]
    body = {"schedulerName": "belay", "containers": [container], "resourceClaims": claims}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user", "namespace": "default"}, "spec": body}
    made = cluster.create(POD, pod)
    until(lambda: cluster.bound() == {"user"}, what="the binding")
    claim = cluster.get(CLAIM, "four", "default")
    assert claim is not None
    assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    assert [one["uid"] for one in claim["status"]["reservedFor"]] == [made["metadata"]["uid"]]
    results = claim["status"]["allocation"]["devices"]["results"]
    given = sorted(one["device"] for one in results)
    assert sorted(name.partition("/")[2].lower() for name in cluster.chips()) == given and len(given) == 4
    cluster.add_pod("plain", 4)
    until(lambda: cluster.bound() == {"user", "plain"}, what="the other pod")
    assert all(len(pods) == 1 for pods in cluster.chips().values()) and len(cluster.chips()) == 8


def test_parts_of_chips_are_published_through_an_api_server(cluster: Cluster, tmp_path: Path) -> None:
    """The dry run by which the publisher learns where counters are kept leaves nothing behind."""
    pro = SERVER_MODELS["atlas-300i-pro"].machine
    chips = [Chip(id=n, logic_id=n, card=n) for n in range(4)]

    async def once() -> None:
        api = KubeClient(load(cluster.kubeconfig))
        try:
            publisher = SlicePublisher("node-9", api)
            assert await publisher.keep(devices(pro, chips, [], (), parts_of(pro)), 0.0) == ""
            assert publisher.counters is CounterForm.BESIDE
            assert await publisher.keep(devices(pro, chips, [], (1,), parts_of(pro)), 1.0) == ""
        finally:
            await api.close()

    asyncio.run(once())
    found = [cluster.get(SLICE, f"node-9-npu.huawei.com-{n}") for n in range(4)]
    assert all(body is not None and len(body["spec"]["sharedCounters"]) == 1 for body in found)
    assert cluster.get(SLICE, "node-9-npu.huawei.com-0-try") is None
    assert {body["spec"]["pool"]["generation"] for body in found if body is not None} == {2}
