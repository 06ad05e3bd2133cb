"""What callers send to the servers: HTTP, webhooks, admission reviews, gRPC."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson
from aiohttp import web

from belay.engine.errors import InputError
from belay.engine.serve import webhook
from belay.engine.serve.admission.rules import WriteRequest, refusal
from belay.engine.serve.admission.server import AdmissionServer, NodesOfPods
from belay.engine.serve.engine_client import EngineHealth
from belay.engine.serve.grpc.callers import accounts_of
from belay.engine.serve.http import HttpServer, address
from tests.fuzz.harness import Form, Harness, text
from tests.fuzz.harnesses.loops import loop, run, spoken

_HTTP_WORDS: Final = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /webhook HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length: -1\r\n",
    b"Expect: 100-continue\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Content-Type: application/x-www-form-urlencoded\r\n",
    b"payload=%7B%7D&",
    b"X-GitHub-Event: push\r\n",
    b"Upgrade: h2c\r\n",
    b"Range: bytes=0-\r\n",
    b"X-Hub-Signature-256: sha256=\xff\r\n",
    b"Cookie: a=b\r\n",
    b"ffffffff\r\n",
    b"0\r\n\r\n",
    b"HTTP/9.9",
    b"Connection: close\r\n",
)


class _Engine:
    """Stands for the engine behind the server."""

    def health(self) -> EngineHealth:
        return EngineHealth("", {"main": 1.0})

    def summaries(self) -> dict[str, Any]:
        return {}

    def counters(self) -> dict[str, int]:
        return {}

    def ask_fetch(self, shard: str) -> list[str]:
        return [shard]

    async def page(self) -> Any:
        raise AssertionError("the page is not asked for")


class _Cluster:
    """Stands for the API server behind the webhook."""

    async def get(self, *_: object) -> dict[str, Any]:
        return {"metadata": {"name": "n1", "uid": "u"}, "spec": {"nodeName": "n1"}}


async def _start(application: web.Application) -> int:
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return int(runner.addresses[0][1])


@cache
def _http_port() -> int:
    application = HttpServer(_Engine(), shard="main", clock=_clock()).application()  # type: ignore[arg-type]
    return loop().run_until_complete(_start(application))


def _clock() -> Any:
    """An hour passes between two looks, so that no call is refused for its rate."""
    hours = iter(range(1, 10**9))
    return lambda: next(hours) * 3600.0


@cache
def _admission_port() -> int:
    return loop().run_until_complete(_start(AdmissionServer(NodesOfPods(_Cluster())).application()))  # type: ignore[arg-type]


def _http(data: bytes) -> None:
    if b"GET / " not in data:
        _fine(run(spoken("127.0.0.1", _http_port(), data)))


def _admission_http(data: bytes) -> None:
    _fine(run(spoken("127.0.0.1", _admission_port(), data)))


def _fine(answer: bytes) -> None:
    assert b"HTTP/1.1 500" not in answer, answer[:400]
    assert b"Traceback" not in answer, answer[:400]


def _review(data: bytes) -> None:
    head = f"POST /validate HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    answer = run(spoken("127.0.0.1", _admission_port(), head.encode() + data, whole=True))
    _fine(answer)
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400", b"HTTP/1.1 413")), answer[:200]


def _rules(data: bytes) -> None:
    try:
        body = orjson.loads(data)
    except ValueError:
        return
    if not isinstance(body, dict):
        return
    old, new = body.get("old") or {}, body.get("new") or {}
    if isinstance(old, dict) and isinstance(new, dict):
        texts = {key: str(body.get(key, "")) for key in ("user", "operation", "resource", "namespace", "name", "node")}
        assert len(refusal(WriteRequest(**texts, old=old, new=new))) < 4096


def _webhook(data: bytes) -> None:
    """The first line of the input is the value of every header."""
    head, _, body = data.partition(b"\n")
    value = head.decode("latin-1")
    names = ("X-Hub-Signature-256", "X-Gitea-Signature", "X-Gitlab-Token", "X-GitHub-Event", "Content-Type")
    for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}, dict.fromkeys(names, value)):
        webhook.authentic(headers, body, "secret")
        try:
            push = webhook.read(headers, body)
        except InputError:
            continue
        assert all(len(one) < 1000 for one in (push.event, push.repository, push.ref, push.after))


def _addresses(found: str) -> None:
    for read, error in ((address, InputError), (accounts_of, ValueError)):
        try:
            read(found)
        except error:  # type: ignore[misc]
            continue


# -- gRPC


@cache
def _methods() -> list[str]:
    """Every unary method that is served, and one that is not."""
    from belay.engine.wire.clusterd import config_pb2, fault_pb2, job_pb2, profiling_pb2, pubfault_pb2, recover_pb2
    from belay.engine.wire.training import training_pb2

    modules = (config_pb2, fault_pb2, job_pb2, profiling_pb2, pubfault_pb2, recover_pb2, training_pb2)
    services = [service for module in modules for service in module.DESCRIPTOR.services_by_name.values()]
    unary = [f"/{s.full_name}/{m.name}" for s in services for m in s.methods if not m.server_streaming]
    return [*sorted(unary), "/Nothing/Here"]


class _Grpc:
    """A server with one running job, over loopback."""

    def __init__(self) -> None:
        from tests.grpc_world import World

        self.world = World(Path(tempfile.mkdtemp(prefix="belay-fuzz-")))

    async def start(self) -> None:
        import grpc

        from belay.engine.serve.grpc.limits import Rates
        from belay.engine.serve.grpc.server import GrpcServer

        await self.world.start()
        await self.world.job()
        rates = Rates(health=10**9, business=10**9)
        self.server = await GrpcServer(self.world.kube, identity="a", callers="any", rates=rates).__aenter__()
        assert self.server.leader is not None
        await self.server.leader.known(60.0)
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.server.port}")

    async def call(self, method: str, data: bytes) -> str:
        import grpc

        call: Any = self.channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        try:
            await call(data, timeout=5)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name} {error.details()}"
        return "OK"


@cache
def _grpc() -> _Grpc:
    made = _Grpc()
    loop().run_until_complete(made.start())
    return made


def _called(data: bytes) -> None:
    """The first byte chooses the method; ``JOB`` stands for the id of the running job."""
    methods = _methods()
    method = methods[data[0] % len(methods)] if data else methods[0]
    uid = next(iter(_grpc().world.uids.values()))
    code = run(_grpc().call(method, data[1:].replace(b"JOB" + bytes(33), uid.encode())))
    # ClusterD's own refusals are UNKNOWN with a text; gRPC says "Unexpected" where a handler raised. A report waits
    # until an earlier one has been taken, as ClusterD's does: its caller's deadline ends it
    assert not code.startswith(("INTERNAL", "UNKNOWN Unexpected")), (method, code)


def _reviews() -> list[bytes]:
    deep = b'{"request":{"uid":"u","object":' + b"[" * 5000 + b"]" * 5000 + b"}}"
    return [deep, b"{" * 100_000, json.dumps({"request": {"uid": "x" * 100_000}}).encode()]


HARNESSES: Final = (
    Harness(
        "http-server",
        _http,
        ("engine/serve/http.py",),
        form=Form.TEXT,
        words=_HTTP_WORDS,
        steps=1_000_000,
        tries=0.5,
        prepare=_http_port,
    ),
    Harness(
        "admission-http",
        _admission_http,
        ("engine/serve/admission/server.py",),
        form=Form.TEXT,
        words=_HTTP_WORDS,
        steps=1_000_000,
        tries=0.5,
        prepare=_admission_port,
    ),
    Harness(
        "admission-review",
        _review,
        ("engine/serve/admission/server.py", "engine/serve/admission/rules.py"),
        seeds=_reviews,
        steps=1_000_000,
        tries=0.5,
        prepare=_admission_port,
    ),
    Harness("admission-rules", _rules, ("engine/serve/admission/rules.py",)),
    Harness("webhook", _webhook, ("engine/serve/webhook.py",), form=Form.TEXT),
    Harness("addresses", text(_addresses), ("engine/serve/http.py", "engine/serve/grpc/callers.py"), form=Form.TEXT),
    Harness(
        "grpc-server",
        _called,
        ("engine/serve/grpc/messages.py",),
        form=Form.BYTES,
        steps=3_000_000,
        log_lines=60,
        tries=0.3,
        prepare=_grpc,
    ),
)
