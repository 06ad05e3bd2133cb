"""The client against a scripted HTTP server: what it retries, what it raises, what it keeps secret."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from belay.engine.kube import (
    CONFIGMAP,
    NODE,
    POD,
    Conflict,
    Endpoint,
    Forbidden,
    Gone,
    Invalid,
    Kube,
    KubeError,
    NotFound,
    Resource,
    TooMany,
    Transport,
    Unavailable,
    cancel_all,
    credentials,
    resource_for,
    run_many,
)
from belay.engine.kube.credentials import loader
from belay.engine.kube.plain_access import in_cluster
from tests import certificates

pytestmark = pytest.mark.real_time

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SECRET = resource_for("v1", "Secret")


class Script:
    """Answers in order; the last one is repeated. Remembers what was asked."""

    def __init__(self, *answers: tuple[int, Any] | Handler) -> None:
        self.answers = list(answers)
        self.asked: list[web.Request] = []
        self.bodies: list[bytes] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        self.bodies.append(await request.read())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            return await answer(request)
        status, body = answer
        return web.json_response(body, status=status)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def clock(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def client(
    script: Handler, time: Time | None = None, tokens: list[str] | None = None, at: str = "", rotates: bool = False
) -> AsyncIterator[Kube]:
    app = web.Application()

    async def answer(request: web.Request) -> web.StreamResponse:
        return await script(request)

    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host = runner.addresses[0]
    left = list(tokens or ["secret-token"])

    def load() -> Endpoint:
        token = left.pop(0) if len(left) > 1 else left[0]
        return Endpoint(f"http://{host[0]}:{host[1]}{at}", f"Bearer {token}", rotates=rotates)

    clock = time or Time()
    transport = Transport(load, sleep=clock.sleep, clock=clock.clock, uniform=lambda low, high: high, attempt=1.0)
    try:
        async with Kube(load, transport=transport) as kube:
            yield kube
    finally:
        await runner.cleanup()


def run(case: Awaitable[None]) -> None:
    async def main() -> None:
        await case

    asyncio.run(main())


def status(code: int, reason: str, message: str = "no", **details: Any) -> tuple[int, Any]:
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


def test_reads_are_retried_until_the_server_recovers() -> None:
    async def case() -> None:
        script, time = Script((500, {}), (503, {}), (200, {"metadata": {"name": "n"}})), Time()
        async with client(script, time) as kube:
            assert await kube.get(NODE, "n") == {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
        assert len(script.asked) == 3 and time.slept == sorted(time.slept)

    run(case())


def test_retries_end_with_the_deadline() -> None:
    async def case() -> None:
        script, time = Script((500, {})), Time()
        async with client(script, time) as kube:
            with pytest.raises(Unavailable):
                await kube.get(NODE, "n")
        assert time.now <= 30 and len(script.asked) < 20

    run(case())


def test_a_create_is_repeated_only_where_the_server_did_nothing() -> None:
    async def case() -> None:
        obj = {"metadata": {"name": "c", "namespace": "d"}}
        script = Script((500, {}))
        async with client(script) as kube:
            with pytest.raises(Unavailable):
                await kube.create(CONFIGMAP, obj)
        assert len(script.asked) == 1
        script, time = Script(status(429, "TooManyRequests", retryAfterSeconds=2), (201, obj)), Time()
        async with client(script, time) as kube:
            await kube.create(CONFIGMAP, obj)
        assert len(script.asked) == 2 and time.slept[0] >= 2

    run(case())


def test_an_eviction_refused_by_a_budget_is_raised_and_not_repeated() -> None:
    async def case() -> None:
        script = Script(
            status(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
        )
        async with client(script) as kube:
            with pytest.raises(TooMany, match="disruption budget"):
                await kube.evict("d", "p", 0)
        assert len(script.asked) == 1

    run(case())


def test_eviction_falls_back_to_the_version_that_old_servers_know() -> None:
    async def case() -> None:
        script = Script(
            status(400, "BadRequest", 'no kind "Eviction" is registered for version "policy/v1"'), (201, {})
        )
        async with client(script) as kube:
            await kube.evict("d", "p", 5, uid="u")
            await kube.evict("d", "q", 5)
        sent = [json.loads(body) for body in script.bodies]
        assert [body["apiVersion"] for body in sent] == ["policy/v1", "policy/v1beta1", "policy/v1beta1"]
        assert sent[1]["deleteOptions"] == {"gracePeriodSeconds": 5, "preconditions": {"uid": "u"}}

    run(case())


def test_of_evictions_at_once_each_falls_back() -> None:
    async def case() -> None:
        refused = status(400, "BadRequest", 'no kind "Eviction" is registered for version "policy/v1"')
        script = Script(refused, refused, (201, {}), (201, {}))
        async with client(script) as kube:
            await asyncio.gather(kube.evict("d", "p", 5), kube.evict("d", "q", 5))
        sent = sorted(json.loads(body)["apiVersion"] for body in script.bodies)
        assert sent == ["policy/v1", "policy/v1", "policy/v1beta1", "policy/v1beta1"]

    run(case())


def test_credentials_are_read_again_on_401_once() -> None:
    async def case() -> None:
        script = Script(status(401, "Unauthorized"), (200, {"metadata": {"name": "n"}}))
        async with client(script, tokens=["old", "new"]) as kube:
            await kube.get(NODE, "n")
        assert [request.headers["Authorization"] for request in script.asked] == ["Bearer old", "Bearer new"]
        script = Script(status(401, "Unauthorized"))
        async with client(script) as kube:
            with pytest.raises(Forbidden):
                await kube.get(NODE, "n")
        assert len(script.asked) == 2

    run(case())


def test_a_service_accounts_token_is_read_again_every_minute_without_a_401() -> None:
    async def case(rotates: bool) -> list[str]:
        script, time = Script((200, {"metadata": {"name": "n"}})), Time()
        async with client(script, time, tokens=["old", "new", "newer"], rotates=rotates) as kube:
            for seconds in (0, 59, 61, 100, 130):
                time.now = seconds
                await kube.get(NODE, "n")
        return [request.headers["Authorization"].removeprefix("Bearer ") for request in script.asked]

    assert asyncio.run(case(rotates=True)) == ["old", "old", "new", "new", "newer"]
    assert asyncio.run(case(rotates=False)) == ["old"] * 5


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (status(404, "NotFound"), NotFound),
        (status(409, "AlreadyExists"), Conflict),
        (status(410, "Expired"), Gone),
        (status(403, "Forbidden"), Forbidden),
        (status(422, "Invalid", causes=[{"field": "spec.x", "message": "must be"}]), Invalid),
    ],
)
def test_statuses_become_named_errors(answer: tuple[int, Any], error: type[KubeError]) -> None:
    async def case() -> None:
        async with client(Script(answer)) as kube:
            with pytest.raises(error) as failure:
                await kube.replace(CONFIGMAP, {"metadata": {"name": "c", "namespace": "d"}})
        if isinstance(failure.value, Conflict):
            assert failure.value.already_exists
        if isinstance(failure.value, Invalid):
            assert failure.value.causes == [("spec.x", "must be")]

    run(case())


def test_messages_are_bounded_and_keep_secrets() -> None:
    async def case() -> None:
        async with client(Script(status(422, "Invalid", "x" * 5000))) as kube:
            with pytest.raises(Invalid) as long:
                await kube.create(CONFIGMAP, {"metadata": {"name": "c", "namespace": "d"}})
        assert len(str(long.value)) <= 256
        assert "secret-token" not in str(long.value)
        said = status(422, "Invalid", 'Invalid value: "hunter2"', causes=[{"field": "data", "message": "hunter2"}])
        async with client(Script(said)) as kube:
            with pytest.raises(Invalid) as secret:
                await kube.create(SECRET, {"metadata": {"name": "s", "namespace": "d"}})
        assert "hunter2" not in str(secret.value) and secret.value.causes == []

    run(case())


def test_a_list_is_paged_and_starts_again_when_its_token_expires() -> None:
    def page(names: list[str], token: str = "") -> tuple[int, Any]:
        return 200, {
            "metadata": {"resourceVersion": "7", "continue": token},
            "items": [{"metadata": {"name": name}} for name in names],
        }

    async def case() -> None:
        script = Script(page(["a"], "t1"), status(410, "Expired"), page(["a"], "t2"), page(["b"]))
        async with client(script) as kube:
            listing = await kube.list(NODE, labels="x=y")
        assert [item["metadata"]["name"] for item in listing.items] == ["a", "b"]
        assert {(item["apiVersion"], item["kind"]) for item in listing.items} == {("v1", "Node")}
        assert listing.resource_version == "7"
        assert [request.query.get("continue") for request in script.asked] == [None, "t1", None, "t2"]
        assert {request.query["limit"] for request in script.asked} == {"500"}
        assert {request.query["labelSelector"] for request in script.asked} == {"x=y"}

    run(case())


def test_watch_events_may_be_cut_anywhere() -> None:
    lines = b"".join(
        json.dumps({"type": kind, "object": {"metadata": {"name": name, "note": "é" * 50}}}).encode() + b"\n"
        for kind, name in [("ADDED", "a"), ("BOOKMARK", "b"), ("DELETED", "c")]
    )

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(lines), 37):
            await response.write(lines[start : start + 37])
        return response

    async def case() -> None:
        script = Script(stream)
        async with client(script) as kube:
            opened: list[bool] = []
            watch = kube.watch(POD, "d", rv="5", seconds=9, on_open=lambda: opened.append(True))
            seen = [(kind, obj["metadata"]["name"]) async for kind, obj in watch]
        assert seen == [("ADDED", "a"), ("BOOKMARK", "b"), ("DELETED", "c")] and opened == [True]
        query = script.asked[0].query
        assert (query["resourceVersion"], query["timeoutSeconds"], query["allowWatchBookmarks"]) == ("5", "9", "true")

    run(case())


def test_an_error_event_ends_the_watch_as_its_error() -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=json.dumps({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}).encode() + b"\n"
        )

    async def case() -> None:
        async with client(Script(stream)) as kube:
            with pytest.raises(Gone):
                await anext(kube.watch(POD, rv="1"))

    run(case())


def test_a_silent_server_is_unavailable_and_garbage_too() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.Response()

    async def case() -> None:
        async with client(Script(silent)) as kube:
            kube._transport._attempt = 0.05
            with pytest.raises(Unavailable, match="in time"):
                await kube.create(CONFIGMAP, {"metadata": {"name": "c", "namespace": "d"}})

        async def garbage(request: web.Request) -> web.StreamResponse:
            return web.Response(text="<html>")

        async with client(Script(garbage)) as kube:
            with pytest.raises(Unavailable, match="not JSON"):
                await kube.create(CONFIGMAP, {"metadata": {"name": "c", "namespace": "d"}})

    run(case())


def test_a_watch_ends_once_nothing_has_come_for_its_limit_however_long_it_lasts() -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        if request.query.get("mute"):
            await asyncio.sleep(5)
        answer = web.StreamResponse()
        await answer.prepare(request)
        for number in range(4):
            await answer.write(b"%d\n" % number)
            await asyncio.sleep(0.2)
        await asyncio.sleep(5)
        return answer

    async def case() -> None:
        seen: list[bytes] = []
        async with client(Script(stream, stream)) as kube:
            with pytest.raises(Unavailable, match="in time"):
                async for line, _ in kube._transport.events(POD.path(), {}, quiet=0.5):
                    seen.append(line)
            with pytest.raises(Unavailable, match="in time"):
                await anext(kube._transport.events(POD.path(), {"mute": "1"}, quiet=0.1))
        assert seen == [b"0", b"1", b"2", b"3"]

    run(case())


def test_the_list_of_served_versions_is_shared_while_it_is_young() -> None:
    async def case() -> None:
        groups = {"groups": [{"versions": [{"groupVersion": "apps/v1"}]}]}
        queue, deployment = Resource("x.example/v1", "Queue", "queues", True), resource_for("apps/v1", "Deployment")
        script = Script((200, groups), (200, {"groups": [{}]}), (403, {"reason": "Forbidden"}))
        async with client(script) as kube:
            answers = await asyncio.gather(*(kube.may_serve(one, 60.0) for one in (queue, deployment, POD) * 5))
            assert answers == [False, True, True] * 5 and [one.path for one in script.asked] == ["/apis"]
            assert await kube.may_serve(queue, 0.0) and await kube.may_serve(queue, 0.0), "an unreadable list"
            assert len(script.asked) == 3

    run(case())


def test_unknown_kinds_are_discovered_once_and_their_absence_is_remembered() -> None:
    async def case() -> None:
        found = (
            200,
            {
                "resources": [
                    {"name": "foos", "kind": "Foo", "namespaced": True},
                    {"name": "foos/status", "kind": "Foo", "namespaced": True},
                ]
            },
        )
        script = Script(found, status(404, "NotFound"))
        async with client(script) as kube:
            foo = Resource("x.io/v1", "Foo", "foos", True)
            assert await kube.resource("x.io/v1", "Foo") == foo == await kube.resource("x.io/v1", "Foo")
            for _ in range(3):
                with pytest.raises(NotFound):
                    await kube.resource("y.io/v1", "Bar")
        assert len(script.asked) == 2

    run(case())


def test_paths_are_escaped_and_need_their_namespace() -> None:
    assert POD.path("d", "a/b") == "/api/v1/namespaces/d/pods/a%2Fb"
    assert resource_for("apps/v1", "Deployment").path() == "/apis/apps/v1/deployments"
    with pytest.raises(ValueError, match="namespace"):
        POD.path(None, "a")
    with pytest.raises(ValueError, match="not a name"):
        POD.path("..", "a")


def test_many_keeps_the_number_in_flight_and_yields_errors_as_outcomes() -> None:
    async def case() -> None:
        flying, most = 0, 0

        async def call(number: int) -> int:
            nonlocal flying, most
            flying += 1
            most = max(most, flying)
            await asyncio.sleep(0)
            flying -= 1
            if number % 10 == 3:
                raise Conflict("taken", status=409)
            return number

        outcomes = [o async for o in run_many(((lambda n=n: call(n)) for n in range(100)), in_flight=8)]
        assert most == 8
        assert sorted(o.index for o in outcomes) == list(range(100))
        assert {o.index for o in outcomes if o.error is not None} == set(range(3, 100, 10))

    run(case())


def test_leaving_many_early_cancels_the_rest() -> None:
    async def case() -> None:
        ended: list[int] = []

        async def call(number: int) -> int:
            try:
                await asyncio.sleep(0 if number == 0 else 60)
            finally:
                ended.append(number)
            return number

        async with contextlib.aclosing(run_many([lambda n=n: call(n) for n in range(4)])) as outcomes:  # type: ignore[type-var]
            async for outcome in outcomes:
                assert outcome.value == 0
                break
        assert sorted(ended) == [0, 1, 2, 3]

    run(case())


def test_a_task_that_swallows_its_cancellation_once_is_ended_all_the_same() -> None:
    async def case() -> None:
        async def stubborn() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            await asyncio.sleep(60)

        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await cancel_all(task)
        assert task.cancelled()

    run(case())


def test_a_plugin_that_gives_no_credentials_is_named_and_ends_the_call(
    tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    from belay.engine.errors import InputError

    plugin, config = tmp_path / "plugin", tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: k, cluster: {server: 'http://10.0.0.1'}}]\n"
        "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never,"
        f" command: {plugin}}}}}}}]\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n"
    )
    for script, words in ((None, "No such file"), ("exit 3", "returned 3"), ("echo nonsense", "failed to decode")):
        if script is not None:
            plugin.write_text(f"#!/bin/sh\n{script}\n")
            plugin.chmod(0o755)
        with pytest.raises(InputError, match=words) as raised:
            loader(str(config))()
        assert str(config) in str(raised.value) and "plugin" in str(raised.value)
    told = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t0ken"}}
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
    assert loader(str(config))().headers == {"Authorization": "Bearer t0ken"}
    assert capfd.readouterr().err == ""


def test_credentials_come_from_a_kubeconfig_and_bad_ones_are_named(tmp_path: Any) -> None:
    good = tmp_path / "config"
    good.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: k, cluster: {server: 'https://10.0.0.1:6443/',"
        " insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {token: t0ken}}]\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
    )
    endpoint = loader(str(good))()
    assert endpoint.host == "https://10.0.0.1:6443"
    assert endpoint.headers == {"Authorization": "Bearer t0ken"}
    assert "t0ken" not in repr(endpoint) and not endpoint.rotates
    for name, path in (("whole", str(tmp_path / "token")), ("relative", "token")):
        (tmp_path / "token").write_text(f"renewed-{name}\n")
        filed = tmp_path / name
        filed.write_text(good.read_text().replace("token: t0ken", f"tokenFile: {path}"))
        renewed = loader(str(filed))()
        assert renewed.rotates and renewed.headers == {"Authorization": f"Bearer renewed-{name}"}
    from belay.engine.errors import InputError

    bad = tmp_path / "bad"
    for text, words in (
        ("", "file is empty"),
        ("not: [a config", "bad:1:15: is not valid YAML"),
        ("apiVersion: v1\nkind: Config\n", "no usable"),
        ("apiVersion: v1\nkind: Config\nclusters: 5\n", "is not a kubeconfig"),
        ("just text", "is not a kubeconfig"),
        (good.read_text().replace("https://10.0.0.1:6443/", "10.0.0.1"), "'10.0.0.1' is not an address"),
        (good.read_text().replace(":6443/", ":99999"), "'https://10.0.0.1:99999' is not an address"),
        (good.read_text().replace("https://10.0.0.1:6443/", "https://"), "is not an address"),
    ):
        bad.write_text(text)
        with pytest.raises(InputError) as raised:
            loader(str(bad))()
        assert words in str(raised.value) and "KUBECONFIG" in str(raised.value)
    bad.write_bytes(b"\xff\xfe\x00")
    for path, words in ((bad, "is not UTF-8"), (tmp_path, "is a folder"), (tmp_path / "none", "none: does not exist")):
        with pytest.raises(InputError) as raised:
            loader(str(path))()
        assert words in str(raised.value)


def test_plain_credentials_need_no_library_and_are_those_that_it_reads(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The official client costs each process 10 MiB; controller, worker and server pay for it only if they need it."""
    ca = certificates.authority(tmp_path, "ca")
    signed, key, _ = certificates.certificate(tmp_path, "client", "ca")
    (tmp_path / "token").write_text("t0ken\n")
    pair = {"client-certificate": signed, "client-key": key}
    packed = {f"{name}-data": base64.b64encode(path.read_bytes()).decode() for name, path in pair.items()}
    files = {name: path.name for name, path in pair.items()}
    clusters = {"certificate-authority": ca.name, "tls-server-name": "api"}
    cases: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
        (clusters, {"token": "t0ken"}, True),
        ({"insecure-skip-tls-verify": True}, {"tokenFile": "token"}, True),
        (clusters, files, True),
        (clusters, packed, True),
        ({}, {}, True),
        (clusters, {"username": "u", "password": "p"}, False),
        (clusters, {"token": "t0ken", "tokenFile": "token"}, False),
        ({"proxy-url": "http://10.0.0.9:1"}, {"token": "t0ken"}, False),
    ]
    config = tmp_path / "config"
    for cluster, user, plain in cases:
        body = {
            "apiVersion": "v1", "kind": "Config", "current-context": "other",
            "clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.1:6443/", **cluster}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        }  # fmt: skip
        config.write_text(json.dumps(body))
        assert (credentials._plain(str(config), "c") is not None) is plain, (cluster, user)
        assert credentials._plain(str(config), None) is None, "the current context is missing: the library says so"
        ours, theirs = loader(str(config), "c")(), credentials._by_library(str(config), "c")
        for endpoint in (ours, theirs):
            assert endpoint.tls is not None and endpoint.host == "https://10.0.0.1:6443"
        assert ours.headers == theirs.headers and ours.server_name == theirs.server_name
        assert (ours.rotates, ours.proxy) == (theirs.rotates, theirs.proxy)
        assert ours.tls is not None and theirs.tls is not None
        assert ours.tls.verify_mode == theirs.tls.verify_mode
        assert ours.tls.check_hostname == theirs.tls.check_hostname
        if cluster == clusters:
            assert ours.tls.get_ca_certs() == theirs.tls.get_ca_certs()
    monkeypatch.setenv("https_proxy", "http://10.0.0.9:1")
    config.write_text(config.read_text().replace("proxy-url", "extensions"))
    assert credentials._plain(str(config), "c") is None, "a proxy of the environment"
    monkeypatch.delenv("https_proxy")
    for text in ("", "[", "5", "{contexts: 5}", "[" * 5000, "\0"):
        config.write_text(text)
        assert credentials._plain(str(config), None) is None


def test_a_service_account_needs_no_library(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates.authority(tmp_path, "ca")  # in ca.crt
    (tmp_path / "token").write_text("t0ken\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = in_cluster(tmp_path)
    assert found is not None and (found.host, found.token, found.rotates) == ("https://[fd00::1]:443", "t0ken", True)
    assert found.tls is not None and found.tls.verify_mode == ssl.CERT_REQUIRED
    (tmp_path / "ca.crt").write_text("none")
    assert in_cluster(tmp_path) is None, "the library says what is wrong"


@pytest.mark.parametrize("at", ["/k8s/clusters/c-1%2F2", "/k8s/clusters/c-1%2F2/"])
def test_a_server_behind_a_path_of_its_own(at: str) -> None:
    async def main() -> None:
        script = Script((404, {"kind": "Status", "code": 404, "reason": "NotFound"}))
        async with client(script, at=at) as kube:
            assert await kube.get(POD, "p", "a") is None
        assert [asked.raw_path for asked in script.asked] == ["/k8s/clusters/c-1%2F2/api/v1/namespaces/a/pods/p"]

    asyncio.run(main())


def test_special_characters_in_a_path_are_quoted() -> None:
    async def main() -> None:
        script = Script((404, {"kind": "Status", "code": 404, "reason": "NotFound"}))
        async with client(script) as kube:
            assert await kube.get(POD, "a b%2f?#", "é") is None
            with pytest.raises(NotFound):
                await kube.resource("odd group?x=1#/v 1", "Thing")
        paths = [asked.raw_path for asked in script.asked]
        assert paths == ["/api/v1/namespaces/%C3%A9/pods/a%20b%252f%3F%23", "/apis/odd%20group%3Fx%3D1%23/v%201"]

    asyncio.run(main())
