"""Bindings with a watch on pods: the same outcomes as reading every pod, with one request per pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from belay.engine.act import Batch, Edge, Fence, PodWatch, run
from belay.engine.act.pod_watch import MIN_BINDINGS
from belay.engine.kube import POD, Kube, Object
from belay.engine.kube.lease import shard_lease
from belay.engine.model.actions import BindPod, Preconditions
from belay.engine.store import BatchResult, PassRecord
from tests.loop_world import Cluster

#: Beside the other tests that share a real API server.
pytestmark = [pytest.mark.real_time, pytest.mark.xdist_group("kubeconfig")]

COUNT = 2 * MIN_BINDINGS
SPACE = "following"


@pytest.fixture(scope="module", params=["sandbox", "real"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The kubeconfig of a sandbox API server, and of a real one where there is one."""
    if request.param == "real":
        yield request.getfixturevalue("kubeconfig")
        return
    cluster = Cluster(tmp_path_factory.mktemp("api"))
    yield cluster.kubeconfig
    cluster.close()


class World:
    """A namespace with pods that wait, the version of their list, and an edge with a watch."""

    def __init__(self, kube: Kube, pods: list[Object], version: str, edge: Edge) -> None:
        self.kube, self.pods, self.version, self.edge = kube, pods, version, edge
        self.requests: list[str] = []

    def binds(self) -> list[BindPod]:
        return [
            BindPod(
                reason="Test",
                message="a test",
                namespace=SPACE,
                pod=pod["metadata"]["name"],
                node=f"node-{index}",
                chips=("Ascend910-0",),
                annotations={"huawei.com/Ascend910": f"Ascend910-{index % 8}"},
                preconditions=Preconditions(uid=pod["metadata"]["uid"]),
            )
            for index, pod in enumerate(self.pods)
        ]

    async def act(self, binds: list[BindPod], version: str | None = None) -> BatchResult:
        record = PassRecord(
            "p", "main", 1, "d", 1, 0.0, 30.0, pods_version=self.version if version is None else version
        )
        return await run(self.edge, Batch(record, 1, list(enumerate(binds))))

    async def live(self) -> dict[str, Object]:
        return {pod["metadata"]["name"]: pod for pod in (await self.kube.list(POD, SPACE)).items}


def body(name: str) -> Object:
    spec = {"schedulerName": "belay", "containers": [{"name": "c", "image": "i"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SPACE}, "spec": spec}


@asynccontextmanager
async def world(path: str) -> AsyncIterator[World]:
    async with Kube.from_config(path) as kube:
        for name in (SPACE, "belay-system"):
            await kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for pod in (await kube.list(POD, SPACE)).items:
            await kube.delete(POD, pod["metadata"]["name"], SPACE, grace=0)
        pods = [await kube.create(POD, body(f"p{index:03}")) for index in range(COUNT)]
        listing = await kube.list(POD, SPACE)
        epoch = await shard_lease(kube, "main", "me").acquire()
        assert epoch is not None
        made = World(kube, pods, listing.resource_version, Edge(kube, "main", Fence(kube, "main", epoch)))
        made.edge.pods = PodWatch(kube)
        call = kube._call

        async def counted(method: str, res: Any, *rest: Any, **options: Any) -> Any:
            made.requests.append(f"{method} {res.kind}")
            return await call(method, res, *rest, **options)

        kube._call = counted  # type: ignore[method-assign]
        yield made


def check(path: str, case: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with world(path) as made:
            await case(made)

    asyncio.run(main())


def words(result: BatchResult) -> list[str]:
    return [outcome.result for outcome in result.outcomes]


def test_one_request_a_pod_and_every_write_is_accounted_for(path: str) -> None:
    async def case(made: World) -> None:
        result = await made.act(made.binds())
        assert words(result) == ["done"] * COUNT
        assert made.requests.count("POST Pod") == COUNT and made.requests.count("GET Pod") == 0
        live = await made.live()
        versions = {write.name: write.rv for write in result.writes}
        assert versions == {name: pod["metadata"]["resourceVersion"] for name, pod in live.items()}
        assert {pod["spec"]["nodeName"] for pod in live.values()} == {f"node-{i}" for i in range(COUNT)}
        assert words(await made.act(made.binds())) == ["unchanged"] * COUNT
        assert made.edge.pods is not None and not made.edge.pods.alive, "the watch ends with the batch"

    check(path, case)


def test_a_change_since_the_snapshot_is_known_before_binding(path: str) -> None:
    async def case(made: World) -> None:
        for index in (0, 1):
            await made.kube.delete(POD, f"p{index:03}", SPACE, grace=0)
        await made.kube.create(POD, body("p001"))
        await made.kube.bind(SPACE, "p002", made.pods[2]["metadata"]["uid"], "elsewhere")
        result = await made.act(made.binds())
        assert words(result) == ["refused"] * 3 + ["done"] * (COUNT - 3)
        live = await made.live()
        assert "p000" not in live and not live["p001"]["spec"].get("nodeName"), "a stranger is left alone"
        assert live["p002"]["spec"]["nodeName"] == "elsewhere"

    check(path, case)


def test_a_pod_recreated_at_the_last_moment_is_deleted_at_once(path: str) -> None:
    async def case(made: World) -> None:
        bind = made.kube.bind

        async def swapped(ns: str, name: str, uid: str, node: str, annotations: Any = None) -> None:
            if name == "p005":
                await made.kube.delete(POD, name, ns, grace=0)
                uid = (await made.kube.create(POD, body(name)))["metadata"]["uid"]
            await bind(ns, name, uid, node, annotations)

        made.kube.bind = swapped  # type: ignore[method-assign]
        result = await made.act(made.binds())
        assert words(result) == ["done"] * 5 + ["refused"] + ["done"] * (COUNT - 6)
        pod = (await made.live()).get("p005")
        assert pod is None or pod["metadata"].get("deletionTimestamp"), "bound by mistake, so it goes"

    check(path, case)


@pytest.mark.parametrize("version", ["", "1"])
def test_without_a_watch_every_pod_is_read(path: str, version: str) -> None:
    async def case(made: World) -> None:
        result = await made.act(made.binds(), version)
        assert words(result) == ["done"] * COUNT
        live = await made.live()
        assert all(pod["spec"].get("nodeName") for pod in live.values())

    check(path, case)


def test_an_event_that_never_comes_is_read(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(made: World) -> None:
        assert made.edge.pods is not None
        made.edge.pods._event_seconds = 0.05
        monkeypatch.setattr(PodWatch, "_receive", lambda *_: None)
        result = await made.act(made.binds())
        assert words(result) == ["done"] * COUNT
        assert made.requests.count("GET Pod") == COUNT

    check(path, case)


def test_waiting_for_an_event_can_be_cancelled(path: str) -> None:
    async def case(made: World) -> None:
        watch = made.edge.pods
        assert watch is not None
        async with watch.from_version(made.version) as follows:
            assert follows
            waiting = asyncio.create_task(watch.wait_for(SPACE, "p000", watch.expect(SPACE, "p000")))
            await asyncio.sleep(0)
            waiting.cancel()
            assert await asyncio.gather(waiting, return_exceptions=True) and waiting.cancelled()
            left = asyncio.create_task(watch.wait_for(SPACE, "p001", watch.expect(SPACE, "p001")))
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await left

    check(path, case)
