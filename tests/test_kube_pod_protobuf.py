"""Watching pods' main fields: protobuf from servers that support it, JSON from others, with the same result."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from belay.engine.kube import NAMESPACE, POD, Conflict, Gone, Kube, Object, Unavailable
from belay.engine.kube.api.pods_pb2 import Binding, ObjectMeta, Pod, RawExtension, Status, TypeMeta, Unknown, WatchEvent
from belay.engine.kube.pod_protobuf import binding, event
from belay.engine.kube.transport import EVENT_LIMIT, PROTOBUF
from tests.test_kube import Script, client

texts = st.text(max_size=20)


def packed(kind: str, message: Any, *, magic: bytes = b"k8s\x00") -> bytes:
    body = Unknown(type_meta=TypeMeta(api_version="v1", kind="Pod"), raw=message.SerializeToString())
    raw = RawExtension(raw=magic + body.SerializeToString())
    found: bytes = WatchEvent(type=kind, object=raw).SerializeToString()
    return found


def framed(*events: bytes) -> bytes:
    return b"".join(len(one).to_bytes(4) + one for one in events)


def plain(kind: str, **metadata: Any) -> bytes:
    return json.dumps({"type": kind, "object": {"metadata": metadata, "spec": {"nodeName": "n"}}}).encode()


def a_pod(name: str, *, node: str = "n", going: bool = False, **annotations: str) -> Pod:
    metadata = ObjectMeta(name=name, namespace="d", uid="u", resource_version="7", annotations=annotations)
    if going:
        metadata.deletion_timestamp.seconds = 1_790_000_000
    pod = Pod(metadata=metadata)
    pod.spec.node_name = node
    return pod


@given(name=texts.filter(bool), annotations=st.dictionaries(texts, texts, min_size=1, max_size=3), going=st.booleans())
def test_both_forms_say_the_same(name: str, annotations: dict[str, str], going: bool) -> None:
    metadata: dict[str, Any] = {
        "name": name, "namespace": "d", "uid": "u", "resourceVersion": "7", "annotations": annotations,
        "managedFields": [{}],
    } | ({"deletionTimestamp": "1790000000"} if going else {})  # fmt: skip
    found = event(packed("MODIFIED", a_pod(name, going=going, **annotations)), packed=True, where="w")
    assert found == event(plain("MODIFIED", **metadata), packed=False, where="w")
    assert found[1]["metadata"]["annotations"] == annotations and found[1]["spec"] == {"nodeName": "n"}


@pytest.mark.parametrize("code", [410, 0])
def test_an_error_ends_the_watch_with_its_message(code: int) -> None:
    error = Status(status="Failure", message="too old resource version: 1 (9)", reason="Expired", code=code)
    with pytest.raises(Gone, match="too old resource version"):
        event(packed("ERROR", error), packed=True, where="w")
    body = {"code": code, "reason": "Expired", "message": "too old resource version"}
    with pytest.raises(Gone, match="too old"):
        event(json.dumps({"type": "ERROR", "object": body}).encode(), packed=False, where="w")


@pytest.mark.parametrize(
    ("data", "is_packed"),
    [
        (b"\xff\xff\xff", True),
        (packed("ADDED", a_pod("p"), magic=b"json"), True),
        (b"", True),
        (b"{", False),
        (b"[]", False),
        (b'{"type": "ADDED"}', False),
        (b'{"type": "ADDED", "object": {}}', False),
        (b'{"type": "ADDED", "object": {"metadata": {}, "spec": 3}}', False),
    ],
)
def test_an_unreadable_event_is_reported(data: bytes, is_packed: bool) -> None:
    with pytest.raises(Unavailable, match="WATCH /p: an event cannot be read"):
        event(data, packed=is_packed, where="WATCH /p")


@pytest.mark.parametrize("step", [1, 3, 50, 10_000])
@pytest.mark.parametrize("form", ["packed", "plain"])
def test_events_may_be_cut_anywhere(form: str, step: int) -> None:
    if form == "packed":
        whole = framed(packed("ADDED", a_pod("a", x="é" * 50)), packed("DELETED", a_pod("b")))
    else:
        whole = b"\n".join([plain("ADDED", name="a"), plain("DELETED", name="b"), b""])

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = f"{PROTOBUF};stream=watch" if form == "packed" else "application/json"
        await response.prepare(request)
        for start in range(0, len(whole), step):
            await response.write(whole[start : start + step])
        return response

    async def case() -> None:
        script = Script(stream)
        async with client(script) as kube:
            found = [(kind, pod["metadata"]["name"]) async for kind, pod in kube.pod_heads("5", seconds=9)]
        assert found == [("ADDED", "a"), ("DELETED", "b")]
        assert script.asked[0].headers["Accept"].startswith(PROTOBUF) and script.asked[0].query["watch"] == "true"

    asyncio.run(case())


def test_an_event_without_end_is_refused() -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = PROTOBUF
        await response.prepare(request)
        await response.write(b"\xff\xff\xff\xff")
        for _ in range(EVENT_LIMIT // (1 << 20) + 2):
            await response.write(b"x" * (1 << 20))
        return response

    async def case() -> None:
        async with client(Script(stream)) as kube:
            with pytest.raises(Unavailable, match="larger than"):
                await anext(kube.pod_heads("5"))

    asyncio.run(case())


async def cached(kube: Kube, space: str, name: str) -> None:
    """Wait until the server's watch cache holds the pod as it is.

    A deletion that sees a bound pod unbound there gives it no grace: it is gone at once (Kubernetes 1.20).
    """
    pod = await kube.get(POD, name, space)
    assert pod is not None
    params = {"resourceVersion": pod["metadata"]["resourceVersion"]}
    await kube._transport.call("GET", POD.path(space, name), params=params)


def test_a_real_server_sends_the_same_packed_and_plain(kubeconfig: str) -> None:
    async def heads(kube: Kube, version: str, name: str, **how: Any) -> list[tuple[str, Object]]:
        out = []
        params = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "9"}
        events = kube._transport.events(POD.path(), params, quiet=20.0, **how)
        async for data, is_packed in events:
            assert is_packed == bool(how)
            kind, pod = event(data, packed=is_packed, where="w")
            if pod["metadata"]["name"] == name:
                out.append((kind, pod))
                if kind == "DELETED":
                    break
        await events.aclose()
        return out

    def told(found: list[tuple[str, Object]]) -> list[Any]:
        rows = []
        for kind, pod in found:
            metadata = dict(pod["metadata"])
            going = bool(metadata.pop("deletionTimestamp", None))
            rows.append((kind, metadata | {"annotations": metadata.get("annotations") or {}}, pod["spec"], going))
        return rows

    async def case() -> None:
        async with Kube.from_config(kubeconfig) as kube:
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "podwire"}}
            await kube.apply(space)
            version = (await kube.list(POD)).resource_version
            spec = {"schedulerName": "belay", "containers": [{"name": "c", "image": "i"}]}
            body = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "p", "namespace": "podwire"},
                "spec": spec | {"terminationGracePeriodSeconds": 30},
            }
            uid = (await kube.create(POD, body))["metadata"]["uid"]
            await kube.bind("podwire", "p", uid, "node-1", {"huawei.com/Ascend910": "Ascend910-0,Ascend910-1"})
            await cached(kube, "podwire", "p")
            await kube.delete(POD, "p", "podwire")
            await kube.delete(POD, "p", "podwire", grace=0)
            ours, theirs = await heads(kube, version, "p", packed=True), await heads(kube, version, "p")
            assert told(ours) == told(theirs)
            assert [kind for kind, _ in ours][:2] == ["ADDED", "MODIFIED"] and ours[-1][0] == "DELETED"
            assert ours[1][1]["spec"] == {"nodeName": "node-1"} and ours[1][1]["metadata"]["uid"] == uid
            assert ours[-1][1]["metadata"]["deletionTimestamp"]
            await kube.delete(NAMESPACE, "podwire")

    asyncio.run(case())


@given(pod=texts, annotations=st.dictionaries(texts, texts, max_size=3))
def test_a_binding_in_its_envelope_holds_its_arguments(pod: str, annotations: dict[str, str]) -> None:
    data = binding("d", pod, "u", "n1", annotations)
    assert data[:4] == b"k8s\x00"
    envelope = Unknown.FromString(data[4:])
    assert (envelope.type_meta.api_version, envelope.type_meta.kind) == ("v1", "Binding")
    found = Binding.FromString(envelope.raw)
    assert (found.metadata.namespace, found.metadata.name, found.metadata.uid) == ("d", pod, "u")
    assert dict(found.metadata.annotations) == annotations
    assert (found.target.api_version, found.target.kind, found.target.name) == ("v1", "Node", "n1")


def test_a_server_that_takes_json_only_gets_json_from_then_on() -> None:
    refused = {"kind": "Status", "status": "Failure", "reason": "UnsupportedMediaType", "code": 415, "message": "no"}

    async def main() -> None:
        script = Script((415, refused), (201, {"kind": "Status", "status": "Success"}))
        async with client(script) as kube:
            await kube.bind("d", "p", "u", "n1", {"a": "b"})
            await kube.bind("d", "q", "u", "n1")
        assert [asked.content_type for asked in script.asked] == [PROTOBUF, "application/json", "application/json"]
        assert json.loads(script.bodies[1]) == {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "annotations": {"a": "b"}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
        }

    asyncio.run(main())


def test_another_refusal_of_a_packed_binding_is_raised_and_not_repeated() -> None:
    async def main() -> None:
        script = Script((409, {"kind": "Status", "reason": "Conflict", "code": 409, "message": "already assigned"}))
        async with client(script) as kube:
            with pytest.raises(Conflict, match="already assigned"):
                await kube.bind("d", "p", "u", "n1")
        assert len(script.asked) == 1

    asyncio.run(main())
