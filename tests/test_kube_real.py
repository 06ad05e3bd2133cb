"""The client against a real kube-apiserver: the assumptions of its contracts, measured."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from belay.engine.kube import (
    CONFIGMAP,
    NAMESPACE,
    NODE,
    POD,
    Conflict,
    Invalid,
    Kube,
    NotFound,
    Object,
    Reflector,
    WatchChange,
    resource_for,
    run_many,
)


@asynccontextmanager
async def namespace(path: str) -> AsyncIterator[tuple[Kube, str]]:
    async with Kube.from_config(path) as kube:
        name = f"t-{uuid.uuid4().hex[:8]}"
        await kube.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        try:
            yield kube, name
        finally:
            await kube.delete(NAMESPACE, name)


def run(path: str, case: Callable[[Kube, str], Awaitable[None]]) -> None:
    async def main() -> None:
        async with namespace(path) as (kube, ns):
            await case(kube, ns)

    asyncio.run(main())


def configmap(ns: str, name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": ns}, "data": data}


def a_pod(ns: str, name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": ns},
        "spec": {"containers": [{"name": "c", "image": "i"}], "schedulerName": "belay"},
    }


def test_objects_come_and_go(kubeconfig: str) -> None:
    async def case(kube: Kube, ns: str) -> None:
        assert await kube.get(CONFIGMAP, "a", ns) is None
        made = await kube.create(CONFIGMAP, configmap(ns, "a", x="1"))
        with pytest.raises(Conflict) as taken:
            await kube.create(CONFIGMAP, configmap(ns, "a"))
        assert taken.value.already_exists
        made["data"] = {"x": "2"}
        newer = await kube.replace(CONFIGMAP, made)
        with pytest.raises(Conflict) as moved:
            await kube.replace(CONFIGMAP, made)
        assert not moved.value.already_exists
        patched = await kube.patch(CONFIGMAP, "a", {"data": {"y": "3", "x": None}}, ns)
        assert patched["data"] == {"y": "3"}
        patched = await kube.patch(CONFIGMAP, "a", [{"op": "add", "path": "/data/z", "value": "4"}], ns, kind="json")
        assert patched["data"] == {"y": "3", "z": "4"}
        with pytest.raises(Conflict):
            await kube.delete(CONFIGMAP, "a", ns, uid="00000000-0000-0000-0000-000000000000")
        with pytest.raises(Conflict):
            await kube.delete(CONFIGMAP, "a", ns, rv=newer["metadata"]["resourceVersion"])
        await kube.delete(CONFIGMAP, "a", ns, uid=made["metadata"]["uid"])
        with pytest.raises(NotFound):
            await kube.delete(CONFIGMAP, "a", ns)
        with pytest.raises(Invalid) as invalid:
            await kube.create(CONFIGMAP, configmap(ns, "Bad_Name"))
        assert [field for field, _ in invalid.value.causes] == ["metadata.name"]

    run(kubeconfig, case)


def test_apply_owns_its_fields_and_takes_them_by_force(kubeconfig: str) -> None:
    async def case(kube: Kube, ns: str) -> None:
        await kube.apply(configmap(ns, "a", x="1", y="1"))
        await kube.apply(configmap(ns, "a", x="2"), field_manager="other")
        with pytest.raises(Conflict):
            await kube.apply(configmap(ns, "a", x="1", y="1"), force=False)
        await kube.apply(configmap(ns, "a", x="3"))
        stored = await kube.get(CONFIGMAP, "a", ns)
        assert stored is not None and stored["data"] == {"x": "3"}, "a field no longer applied is removed"
        dry = await kube.apply(configmap(ns, "a", x="9"), dry_run=True)
        stored = await kube.get(CONFIGMAP, "a", ns)
        assert dry["data"] == {"x": "9"} and stored is not None and stored["data"] == {"x": "3"}

    run(kubeconfig, case)


def test_a_binding_merges_annotations_and_happens_once(kubeconfig: str) -> None:
    async def case(kube: Kube, ns: str) -> None:
        pod = await kube.create(POD, a_pod(ns, "p"))
        await kube.bind(ns, "p", pod["metadata"]["uid"], "node-1", {"huawei.com/AscendReal": "Ascend910-0"})
        with pytest.raises(Conflict):
            await kube.bind(ns, "p", pod["metadata"]["uid"], "node-2", {"huawei.com/AscendReal": "Ascend910-1"})
        bound = await kube.get(POD, "p", ns)
        assert bound is not None and bound["spec"]["nodeName"] == "node-1"
        assert bound["metadata"]["annotations"] == {"huawei.com/AscendReal": "Ascend910-0"}
        await kube.evict(ns, "p", 0, uid=bound["metadata"]["uid"])
        assert await kube.get(POD, "p", ns) is None
        with pytest.raises(NotFound):
            await kube.evict(ns, "p", 0)

    run(kubeconfig, case)


def test_lists_page_select_and_watches_resume(kubeconfig: str) -> None:
    async def case(kube: Kube, ns: str) -> None:
        calls = [lambda n=n: kube.create(CONFIGMAP, configmap(ns, f"c{n:03}", n=str(n))) for n in range(60)]
        outcomes = [outcome async for outcome in run_many(calls, in_flight=16)]
        assert [outcome.error for outcome in outcomes if outcome.error] == []
        pages = [page async for page in kube.pages(CONFIGMAP, ns, fields="metadata.name!=kube-root-ca.crt", limit=25)]
        assert [len(page.items) for page in pages] == [25, 25, 10]
        one = await kube.list(CONFIGMAP, ns, fields="metadata.name=c007")
        assert [item["data"] for item in one.items] == [{"n": "7"}]
        await kube.delete(CONFIGMAP, "c007", ns)
        watch = kube.watch(CONFIGMAP, ns, fields="metadata.name=c007", rv=one.resource_version, seconds=5)
        async for kind, obj in watch:
            assert (kind, obj["metadata"]["name"]) == ("DELETED", "c007")
            break
        await watch.aclose()

    run(kubeconfig, case)


def test_a_reflector_follows(kubeconfig: str) -> None:
    async def case(kube: Kube, ns: str) -> None:
        told: asyncio.Queue[WatchChange] = asyncio.Queue()
        reflector = Reflector(kube, POD, ns, on_change=lambda _, change: told.put_nowait(change))
        await kube.create(POD, a_pod(ns, "before"))
        task = asyncio.create_task(reflector.run())
        try:
            assert (await asyncio.wait_for(told.get(), 60)).key == (ns, "before")
            await kube.create(POD, a_pod(ns, "after"))
            created = await asyncio.wait_for(told.get(), 60)
            assert created.key == (ns, "after") and created.obj is not None
            await kube.delete(POD, "after", ns, grace=0)
            while (change := await asyncio.wait_for(told.get(), 60)).obj is not None:
                assert change.key == (ns, "after")
            assert int(reflector.watermark) >= int(change.rv)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(kubeconfig, case)


def test_kinds_and_events(kubeconfig: str) -> None:
    async def case(kube: Kube, ns: str) -> None:
        ingress = await kube.resource("networking.k8s.io/v1", "Ingress")
        assert (ingress.plural, ingress.namespaced) == ("ingresses", True)
        assert await kube.served(NODE)
        assert not await kube.served(resource_for("scheduling.volcano.sh/v1beta1", "PodGroup"))
        assert await kube.list(NODE) is not None
        with pytest.raises(NotFound):
            await kube.list(resource_for("scheduling.volcano.sh/v1beta1", "PodGroup"))
        pod = await kube.create(POD, a_pod(ns, "p"))
        for _ in range(3):
            await kube.event(pod, "ChipIsolated", "chip 4 is out", now=1_700_000_000.0, kind="Warning")
        events = await kube.list(resource_for("v1", "Event"), ns)
        assert [(event["reason"], event["count"], event["type"]) for event in events.items] == [
            ("ChipIsolated", 3, "Warning")
        ]

    run(kubeconfig, case)
