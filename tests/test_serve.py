"""The server on a real Redis and the sandbox's API server: webhook, metrics, health, the page."""

# ruff: noqa: F811
from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from belay.engine.controller.controller import Controller
from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP, Kube
from belay.engine.metrics import PassSummary, counter_name
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.sandbox.redis_process import start_redis
from belay.engine.serve import engine_client, page, webhook
from belay.engine.serve.engine_client import EngineClient
from belay.engine.serve.http import HttpServer, address
from belay.engine.settings import Settings, to_environment
from belay.engine.source import FetchResult, SourceConfig
from belay.engine.status.status_reader import read_status
from belay.engine.store import CONTROLLER_BEAT, PassStore, StoredRevisions, connect
from belay.engine.wire import names
from tests.gitrepo import Repo
from tests.loop_world import Cluster, until
from tests.ports import free_port
from tests.redis_server import redis_process, redis_url  # noqa: F401

pytestmark = pytest.mark.real_time

PUSH = json.dumps({"ref": "refs/heads/main", "after": "a" * 40, "repository": {"full_name": "team/state"}}).encode()
SECRET = "a shared secret"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@asynccontextmanager
async def serving(
    redis_url: str, kube: Kube | None = None, **options: Any
) -> AsyncIterator[tuple[TestClient[Any, Any], PassStore]]:
    client = connect(redis_url)
    server = HttpServer(EngineClient(client, kube), shard="main", **options)
    async with TestClient(TestServer(server.application())) as http:
        yield http, PassStore(client)
    client.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def signed(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def test_a_push_asks_the_shards_controller_to_fetch_once(redis_url: str) -> None:
    async def work() -> None:
        async with serving(redis_url) as (http, passes):
            for body in (PUSH, b""):
                answer = await http.post("/webhook", data=body, headers={"X-GitHub-Event": "push"})
                assert answer.status == 202 and "main" in await answer.text()
                assert passes.take_requests("main").fetch and not passes.take_requests("main").fetch

    run(work())


def test_every_living_controller_is_asked(redis_url: str) -> None:
    async def work() -> None:
        async with serving(redis_url) as (http, passes):
            passes.beat(f"{CONTROLLER_BEAT}east", passes.now())
            await http.post("/webhook")
            assert passes.take_requests("east").fetch and passes.take_requests("main").fetch

    run(work())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"X-Hub-Signature-256": f"sha256={signed(PUSH)}"}, 202),
        ({"X-Hub-Signature-256": signed(PUSH)}, 401),
        ({"X-Hub-Signature-256": f"sha256={signed(PUSH, 'other')}"}, 401),
        ({"X-Hub-Signature-256": f"sha256={signed(PUSH + b' ')}"}, 401),
        ({"X-Hub-Signature-256": ""}, 401),
        ({"X-Hub-Signature": "sha1=" + hmac.new(SECRET.encode(), PUSH, "sha1").hexdigest()}, 401),
        ({"X-Gitea-Signature": signed(PUSH)}, 202),
        ({"X-Gitlab-Token": SECRET, "X-Gitlab-Event": "Push Hook"}, 202),
        ({"X-Gitlab-Token": SECRET + "x", "X-Gitlab-Event": "Push Hook"}, 401),
        ({"X-Gitlab-Token": "ä" * 20}, 401),
    ],
)
def test_only_callers_who_know_the_secret_are_accepted(redis_url: str, headers: dict[str, str], status: int) -> None:
    async def work() -> None:
        async with serving(redis_url, secret=SECRET) as (http, passes):
            answer = await http.post("/webhook", data=PUSH, headers=headers)
            assert answer.status == status
            assert SECRET not in await answer.text()
            assert passes.take_requests("main").fetch is (status == 202)

    run(work())


@pytest.mark.parametrize(
    ("body", "headers", "status", "asked"),
    [
        (b"{", {}, 400, False),
        (b"[1]", {}, 400, False),
        (b"\xff\xfe", {}, 400, False),
        (b"[" * 100_000, {}, 400, False),
        (b" " * (webhook.MAX_BODY_BYTES + 1), {}, 413, False),
        (b'{"ref": 7, "repository": "x", "after": {}}', {}, 202, True),
        (b"payload=%7B%22ref%22%3A%22refs%2Fheads%2Fmain%22%7D", FORM, 202, True),
        (b"other=1", FORM, 400, False),
        (b'{"zen": "x"}', {"X-GitHub-Event": "ping"}, 202, False),
        (b'{"action": "opened"}', {"X-GitHub-Event": "issues"}, 202, False),
        (PUSH, {"X-Gitlab-Event": "Push Hook"}, 202, True),
    ],
    ids=["cut", "list", "binary", "deep", "large", "odd", "form", "other form", "ping", "issue", "gitlab"],
)  # fmt: skip
def test_bodies(redis_url: str, body: bytes, headers: dict[str, str], status: int, asked: bool) -> None:
    async def work() -> None:
        async with serving(redis_url) as (http, passes):
            answer = await http.post("/webhook", data=body, headers=headers)
            assert answer.status == status
            assert passes.take_requests("main").fetch is asked

    run(work())


def test_a_flood_of_calls_is_limited_per_caller(redis_url: str) -> None:
    now = [0.0]

    async def work() -> None:
        async with serving(redis_url, clock=lambda: now[0]) as (http, _):
            for _ in range(webhook.BURST):
                assert (await http.post("/webhook")).status == 202
            refused = await http.post("/webhook")
            assert refused.status == 429 and refused.headers["Retry-After"] == "1"
            now[0] += 1.0
            assert (await http.post("/webhook")).status == 202

    run(work())


def test_the_limiter_forgets_callers_instead_of_growing() -> None:
    limiter = webhook.Limiter(lambda: 0.0, burst=1)
    assert limiter.wait("first") == 0.0 and limiter.wait("first") > 0.0
    for number in range(2000):
        assert limiter.wait(f"10.0.{number}") == 0.0
    assert limiter.wait("10.0.1999") > 0.0
    assert limiter.wait("first") == 0.0  # long forgotten


def test_without_redis_the_process_lives_but_is_not_ready(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(f"unix://{tmp_path}/none.sock") as (http, _):
            assert (await http.get("/healthz")).status == 200
            ready = await http.get("/readyz")
            assert ready.status == 503 and "Redis" in await ready.text()
            assert (await http.post("/webhook")).status == 503
            metrics = await http.get("/metrics")
            assert metrics.status == 200 and "belay_redis_up 0.0" in await metrics.text()
            shown = await http.get("/plain")
            assert shown.status == 200 and "Redis" in await shown.text()

    run(work())


def test_ready_follows_the_controllers_signs_of_life(redis_url: str) -> None:
    async def work() -> None:
        async with serving(redis_url) as (http, passes):
            assert (await http.get("/readyz")).status == 200  # none is known yet
            name = f"{CONTROLLER_BEAT}main"
            passes.beat(name, passes.now() - engine_client.FRESH_SECONDS - 5, 60)
            answer = await http.get("/readyz")
            assert answer.status == 503 and "controller of shard main has been silent" in await answer.text()
            passes.beat(name, passes.now(), 60)
            assert (await http.get("/readyz")).status == 200

    run(work())


def test_metrics_render_the_last_passes_and_the_counters(redis_url: str) -> None:
    summary = PassSummary(1.0, 0.25, "abc", {"healthy": 3}, {"isolated": 1}, {}, {}, {"BindPod": 2}, {"error": 1}, 7)

    async def work() -> None:
        async with serving(redis_url) as (http, passes):
            passes.put_summary("main", msgspec.json.encode(summary))
            passes.put_summary("old", b'{"unknown": 1}')
            passes.count({counter_name("actions", kind="BindPod", result="done"): 2})
            answer = await http.get("/metrics")
            text = await answer.text()
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            assert 'belay_nodes{shard="main",state="healthy"} 3.0' in text
            assert 'belay_actions_total{kind="BindPod",result="done"} 2.0' in text
            assert "belay_redis_up 1.0" in text and 'shard="old"' not in text

    run(work())


def test_wrong_paths_and_methods_are_plain_answers(redis_url: str) -> None:
    async def work() -> None:
        async with serving(redis_url) as (http, _):
            assert (await http.get("/nothing")).status == 404
            wrong = await http.get("/webhook")
            assert wrong.status == 405 and wrong.headers["Allow"] == "POST"
            assert wrong.headers["X-Content-Type-Options"] == "nosniff"

    run(work())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("api"))
    yield made
    made.close()


def tell(cluster: Cluster, name: str, about: str, data: dict[str, str]) -> None:
    metadata = {"name": name, "namespace": names.SYSTEM, "labels": {ABOUT_LABEL: about}}
    cluster.ensure(CONFIGMAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def test_the_page_shows_the_status_config_maps(redis_url: str, cluster: Cluster) -> None:
    findings = [
        {"severity": "error", "file": "desired/a.yaml", "line": 3, "column": 7, "message": "<script>x</script>"}
    ]
    chips = [
        {"node": "node-1", "chip": "Ascend910-3", "state": "isolated", "level": "SeparateNPU", "codes": ["80C98001"]}
    ]
    tell(
        cluster,
        names.SYNC,
        "sync",
        {
            "appliedRevision": "good123",
            "attemptedRevision": "new456",
            "diagnostics.json": json.dumps(findings),
            "deferred.json": json.dumps([{"action": "EvictPod", "what": "w", "budget": "b", "until": None}]),
            "conditions.json": "no json",
        },
    )
    tell(cluster, "belay-pool-a2", "pool", {"nodes": '{"healthy": 7, "isolated": 1}', "chips.json": json.dumps(chips)})
    waiting = {"pending": {"reason": "NPUResourceShortage", "message": "not enough NPUs"}}
    tell(
        cluster,
        "belay-job-x",
        "job",
        {"job": "train/AscendJob/big", "phase": "Pending", "status.json": json.dumps(waiting)},
    )

    async def work() -> None:
        async with Kube.from_config(cluster.kubeconfig) as kube, serving(redis_url, kube) as (http, passes):
            passes.beat(f"{CONTROLLER_BEAT}main", passes.now())
            answer = await http.get("/plain")
            text = await answer.text()
            assert answer.content_type == "text/html" and '<meta http-equiv="refresh"' in text
            assert "good123 is in force, newest new456" in text
            assert "7 healthy, 1 isolated" in text
            assert "Ascend910-3" in text and "80C98001" in text
            assert "train/AscendJob/big" in text and "NPUResourceShortage: not enough NPUs" in text
            assert "desired/a.yaml:3:7" in text
            assert "&lt;script&gt;" in text and "<script" not in text
            assert "lives" in text and "Held back" in text

    run(work())


def test_the_page_is_served_without_a_cluster(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "_KUBE_WITHIN", 0.5)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
    )

    async def work() -> None:
        async with Kube.from_config(str(kubeconfig)) as kube, serving(redis_url, kube) as (http, passes):
            summary = PassSummary(1.0, 0.25, "abc", {}, {}, {"NPUResourceShortage": 4}, {}, {}, {}, 7)
            passes.put_summary("main", msgspec.json.encode(summary))
            text = await (await http.get("/plain")).text()
            assert "status is not shown" in text and "4 NPUResourceShortage" in text and "250 ms" in text

    run(work())


def test_long_lists_are_cut_and_counted() -> None:
    job = {"phase": "Running", "status.json": "{}"}
    config_maps = [{"metadata": {"name": f"belay-job-{n:03d}"}, "data": job} for n in range(page.ROWS + 5)]
    shown = page.render(
        engine_client.PageData(engine_client.EngineHealth("", {}), {}, read_status(config_maps), "", 0.0), "main"
    )
    assert "and 5 more" in shown and f"{page.ROWS + 5} Running" in shown


def test_a_leading_controller_sends_heartbeats_and_takes_the_request(
    redis_url: str, cluster: Cluster, tmp_path: Path
) -> None:
    """The server's request reaches the source of the controller: two processes, only Redis between them."""
    source = _Source()
    settings = Settings(redis_url=redis_url, kubeconfig=cluster.kubeconfig, identity="t", data=str(tmp_path), lease=3.0)

    async def work() -> None:
        async with Kube.from_config(cluster.kubeconfig) as kube, serving(redis_url) as (http, passes):
            controller = Controller(settings, kube, lambda shard: None, source=source)  # type: ignore[arg-type]
            running = asyncio.create_task(controller.run())
            await _until(lambda: f"{CONTROLLER_BEAT}main" in passes.alive())
            assert source.requests == 0
            assert (await http.post("/webhook", data=PUSH)).status == 202
            await _until(lambda: source.requests == 1)
            controller.stop()
            await asyncio.wait_for(running, 60)

    run(work())


class _Source:
    """A repository where nothing ever happens; counts requests."""

    config = SourceConfig(url="/nowhere.git")

    def __init__(self) -> None:
        self.requests = 0

    def fetch_soon(self) -> None:
        self.requests += 1

    async def watch(self, stop: asyncio.Event) -> AsyncIterator[str]:
        await stop.wait()
        if not stop.is_set():
            yield "never"

    def remember(self, accepted: object, distrust: str = "") -> None:
        pass

    def fetch(self, previous: object) -> FetchResult:
        raise AssertionError("nothing asks for it")


async def _until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come about"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (":8080", ("0.0.0.0", 8080)),
        ("[::1]:9", ("::1", 9)),
        ("host:0", ("host", 0)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert address(text) == expected


@pytest.mark.parametrize("text", ["", "8080", "host", "host:", "host:x", "host:99999", "::1:80", "host:-1"])
def test_wrong_addresses_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="not an address"):
        address(text)


def test_the_process_serves_and_ends_on_sigterm(redis_url: str, tmp_path: Path) -> None:
    port = free_port()
    variables = {
        **os.environ,
        "BELAY_REDIS_URL": redis_url,
        "KUBECONFIG": str(tmp_path / "none"),
        "BELAY_WEBHOOK_SECRET": SECRET,
    }
    command = [sys.executable, "-m", "belay.engine.cli", "server", "--listen", f"127.0.0.1:{port}"]
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen(command, env=variables, stdout=out, stderr=out) as process:
        try:
            until(lambda: _status(f"http://127.0.0.1:{port}/healthz") == 200, what="an answer")
            assert _status(f"http://127.0.0.1:{port}/readyz") == 200
            assert _status(f"http://127.0.0.1:{port}/webhook", b"") == 401
            second = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
            assert second.returncode == 2 and "cannot listen" in second.stderr and "Traceback" not in second.stderr
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert SECRET not in log.read_text()


def test_a_webhook_puts_a_push_in_force_long_before_the_next_poll(
    redis_url: str, cluster: Cluster, tmp_path: Path
) -> None:
    """`belay controller` and the server as they run in production: the repository is remote and polled once an hour."""
    repository = Repo(tmp_path / "git")
    first = repository.commit({"desired/a.yaml": _config_map("one")})
    settings = Settings(
        redis_url=redis_url,
        kubeconfig=cluster.kubeconfig,
        identity="controller",
        data=str(tmp_path / "data"),
        source_url=f"file://{repository.bare}",
        source_interval=3600.0,
        lease=3.0,
    )
    log = tmp_path / "log"
    command = [sys.executable, "-m", "belay.engine.cli", "controller"]
    revisions, passes = StoredRevisions(connect(redis_url)), PassStore(connect(redis_url))

    def in_force() -> str:
        record = revisions.current("main")
        return record.sha if record is not None else ""

    async def push_and_call() -> None:
        second = repository.commit({"desired/a.yaml": _config_map("two")})
        pushed = passes.now()
        await _until(lambda: passes.alive().get(f"{CONTROLLER_BEAT}main", 0.0) > pushed + 1.0)
        assert in_force() == first  # nothing has asked the controller to fetch
        async with serving(redis_url) as (http, _):
            assert (await http.post("/webhook", data=PUSH)).status == 202
        await _until(lambda: in_force() == second)

    with (
        log.open("wb") as out,
        subprocess.Popen(command, env={**os.environ, **to_environment(settings)}, stdout=out, stderr=out) as process,
    ):
        try:
            until(lambda: in_force() == first, what="the first revision")
            run(push_and_call())
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()[-2000:]


def _config_map(text: str) -> str:
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a, namespace: default}}\ndata: {{a: {text}}}\n"


def test_redis_may_come_later(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(f"unix://{tmp_path}/redis.sock") as (http, _):
            assert (await http.get("/readyz")).status == 503
            with start_redis(tmp_path) as redis:
                assert redis.url == f"unix://{tmp_path}/redis.sock"
                assert (await http.get("/readyz")).status == 200

    run(work())


def _status(url: str, data: bytes | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
