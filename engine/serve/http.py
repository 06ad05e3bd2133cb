"""`belay server`: webhook, metrics, probes, the page, and the gRPC services (`grpc/`).

All its state is in the cluster too, so any number may run. They reach the controllers through Redis.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http import HttpProcessingError
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from belay.engine import hot_loops, log, versions
from belay.engine.errors import BelayError, InputError
from belay.engine.kube import Kube
from belay.engine.metrics.collector import BelayCollector, gauge
from belay.engine.model.freshness import LastPass, missing_since
from belay.engine.serve import page, webhook
from belay.engine.serve.console import failures
from belay.engine.serve.console.answers import Answers
from belay.engine.serve.console.changes import ChangeStream
from belay.engine.serve.console.document import Data
from belay.engine.serve.console.follower import StatusFollower
from belay.engine.serve.console.history import PastMoments
from belay.engine.serve.console.questions import AskedCluster, Questions
from belay.engine.serve.console.routes import HEADERS as CONSOLE_HEADERS
from belay.engine.serve.console.routes import PREFIXES as SHOWN
from belay.engine.serve.console.routes import Console
from belay.engine.serve.console.viewers import AccessRules, Viewers
from belay.engine.serve.console.viewers import rules as access_rules
from belay.engine.serve.engine_client import EngineClient
from belay.engine.serve.fetching import FetchRoute
from belay.engine.serve.grpc.server import serving
from belay.engine.serve.login.rules import login_rules
from belay.engine.serve.notify.delivery import NetworkDelivery
from belay.engine.serve.notify.ledger_map import LedgerMap
from belay.engine.serve.notify.routes import NotificationRoutes
from belay.engine.serve.notify.service import NotificationService
from belay.engine.serve.records.service import OFF, HistoryService
from belay.engine.serve.slow_connections import SlowConnections
from belay.engine.settings import Settings, from_environment, kube_variables, warn
from belay.engine.store import StoreUnavailable, connect

if TYPE_CHECKING:
    from belay.engine.serve.login.routes import Login

SECRET_VARIABLE = "BELAY_WEBHOOK_SECRET"
_BODY_SECONDS = 10.0
_SHUTDOWN_SECONDS = 5.0
UNREADABLE = (ConnectionError, web.RequestPayloadError, HttpProcessingError)
"""What reading a body raises where the caller leaves in its middle or sends bad chunks."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
CONSOLE = ("/console", "/api/")
_log = log.get("server")


class HttpServer:
    """The handlers. ``secret`` is what callers of the webhook must know; empty admits every caller."""

    def __init__(
        self,
        engine: EngineClient,
        *,
        shard: str,
        secret: str = "",
        clock: Callable[[], float] = time.monotonic,
        console: Console | None = None,
        history: HistoryService | None = None,
        notify: NotificationService | None = None,
    ) -> None:
        self.console = console or Console(ChangeStream(), Viewers(AccessRules(), None))
        self._engine = engine
        self._shard = shard
        self._secret = secret
        self._limiter = webhook.Limiter(clock)
        self._history = history
        self._notify = notify
        self.extra_metrics: CollectorRegistry | None = None
        """Metrics of the gRPC services."""

    def application(self) -> web.Application:
        """Return the application with the routes of webhook, metrics, probes and pages."""
        app = web.Application(client_max_size=webhook.MAX_BODY_BYTES, middlewares=[_guarded, self._looking])
        app.router.add_get("/", _to_console)
        app.router.add_get("/plain", self.page)
        self.console.add_to(app)
        if self._history is not None:
            self._history.add_to(app)
        if self._notify is not None:
            NotificationRoutes(self._notify).add_to(app)
        FetchRoute(lambda: self._engine.ask_fetch(self._shard), self._limiter).add_to(app)
        app.router.add_post("/webhook", self.webhook)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        return app

    @web.middleware
    async def _looking(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Let only those look who may; webhook, metrics and probes show nothing of the cluster's objects."""
        if request.path.startswith(SHOWN):
            return await self.console.admitted(request, handler)
        return await handler(request)

    async def webhook(self, request: web.Request) -> web.Response:
        """Ask the controllers to fetch: a repository changed. 202: asked, or nothing to do."""
        wait = self._limiter.wait(request.remote or "")
        if wait > 0:
            return _text(429, "too many calls", {"Retry-After": str(math.ceil(wait))})
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            return _text(408, "the body did not arrive in time")
        except UNREADABLE:
            return _text(400, "the body ended early or is not HTTP")
        if not webhook.authentic(request.headers, body, self._secret):
            _log.warning("webhook refused: wrong or missing signature", caller=request.remote or "")
            return _text(401, "wrong or missing signature")
        try:
            push = webhook.read(request.headers, body)
        except InputError as error:
            return _text(400, str(error))
        if not push.needs_fetch:
            return _text(202, f"event {push.event}: nothing to do")
        try:
            shards = await asyncio.to_thread(self._engine.ask_fetch, self._shard)
        except StoreUnavailable as error:
            _log.warning("webhook not passed on", reason=str(error))
            return _text(503, "Redis does not answer; the next poll will see the push", {"Retry-After": "5"})
        _log.info("webhook", repository=push.repository, ref=push.ref, after=push.after, shards=shards)
        return _text(202, f"asked the controllers of {', '.join(shards)} to fetch")

    async def metrics(self, request: web.Request) -> web.Response:
        """Metrics in Prometheus' text format; without Redis only ``belay_redis_up 0`` and those of this process."""
        return web.Response(
            body=await asyncio.to_thread(self._metrics_text, await self._engine.passes()),
            headers={"Content-Type": CONTENT_TYPE_LATEST},
        )

    async def healthz(self, request: web.Request) -> web.Response:
        """Answer 200: the process lives."""
        return _text(200, "ok")

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 if a webhook would have an effect: Redis answers, the controller, if known, is not silent, and
        passes come.
        """
        health = await asyncio.to_thread(self._engine.health)
        problems = [*health.problems(self._shard), *await self._engine.missing(self._shard)]
        return _text(503, "; ".join(problems)) if problems else _text(200, "ok")

    async def page(self, request: web.Request) -> web.Response:
        """The status page, for browsers without scripts."""
        return web.Response(text=page.render(await self._engine.page(), self._shard), content_type="text/html")

    def _metrics_text(self, passes: Sequence[LastPass]) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        up, ages = (
            1,
            gauge("belay_controller_silent_seconds"),
        )
        health = self._engine.health()
        try:
            if health.redis:
                raise StoreUnavailable(health.redis)
            numbers = (self._engine.summaries(), self._engine.counters())
            registry.register(BelayCollector(lambda: numbers))
            for shard, age in health.controllers.items():
                ages.add_metric([shard], age)
        except StoreUnavailable:
            up = 0
        build = gauge("belay_build_info")
        build.add_metric([versions.version()], 1)
        redis_up = gauge("belay_redis_up")
        redis_up.add_metric([], up)
        since = gauge("belay_pass_age_seconds")
        for one in passes:
            if one.time:
                since.add_metric([one.shard], max(0.0, time.time() - one.time))
        kept = self._history.metrics() if self._history is not None else []
        told = self._notify.metrics() if self._notify is not None else []
        registry.register(_FixedMetrics([build, redis_up, ages, since, failures.metric(), *kept, *told]))
        return generate_latest(registry) + (
            generate_latest(self.extra_metrics) if self.extra_metrics is not None else b""
        )


class _FixedMetrics:
    """A collector of metrics that were made beforehand."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def main(listen: str, answers: Sequence[str] = ()) -> int:
    """Serve until SIGTERM or SIGINT; other settings come from the environment. ``answers`` is the command of a process
    that answers the console's questions (``belay.engine.serve.console.answers``); without it none are answered.

    Raises:
        InputError: ``listen`` or a setting is wrong, or the address is taken.
    """
    host, port = address(listen)
    settings = from_environment()
    log.configure(settings.log_level, "server")
    warn(_log)
    hot_loops.start()
    asyncio.run(_serve(settings, host, port, os.environ.get(SECRET_VARIABLE, ""), answers))
    return 0


def address(listen: str) -> tuple[str, int]:
    """(host, port) of ``HOST:PORT``, ``[::1]:PORT`` or ``:PORT`` (every address).

    Raises:
        InputError: ``listen`` has none of these forms.
    """
    host, colon, port = listen.rpartition(":")
    if (
        not colon
        or not port.isdecimal()
        or len(port) > 5
        or int(port) > 65535
        or (":" in host and not host.startswith("["))
    ):
        raise InputError(
            f"{listen!r} is not an address", where="--listen", hint="Write HOST:PORT, such as 127.0.0.1:8080."
        )
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)


async def _serve(settings: Settings, host: str, port: int, secret: str, answers: Sequence[str]) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with AsyncExitStack() as stack:
        client = connect(settings.redis_url)
        stack.callback(client.close)
        kube = await _cluster(settings, stack)
        engine = EngineClient(client, kube)
        past = PastMoments(settings.data_folder / "passes" if settings.recordings else None)
        changes = ChangeStream()
        stack.callback(changes.close)
        questions = await _questions(settings, kube, changes, past, answers, stack)
        rules = access_rules(
            free=_loopback(host), hosts=settings.console_hosts,
            proxy_header=settings.console_proxy_header, proxies=settings.console_proxies,
        )  # fmt: skip
        history = HistoryService(settings) if settings.history_url != OFF and kube is not None else None
        login = await _login(settings, stack)
        viewers = Viewers(rules, kube, session=login.session) if login is not None else Viewers(rules, kube)
        console = Console(changes, viewers, questions=questions, records=history is not None, login=login)
        notify = _notifications(settings, kube) if kube is not None else None
        server = HttpServer(
            engine, shard=settings.shard, secret=secret, console=console, history=history, notify=notify
        )
        runner = await _listen(server, host, port, stack)
        slow = SlowConnections()
        slow.streaming = console.streaming
        _run_beside(slow.run(lambda: runner.server.connections if runner.server else ()), stack)
        if kube is not None:
            follower = StatusFollower(
                kube,
                changes,
                shard=settings.shard,
                problems=lambda: _problems(engine, settings.shard, history, notify),
                commits=questions.commits,
                published=past.see,
                taken=_takers(history, notify),
            )
            if history is not None:
                _run_beside(history.run(kube, lambda: follower.synced), stack)
            if notify is not None:
                _run_beside(notify.run(kube, lambda: follower.synced), stack)
            _run_beside(follower.run(), stack)
            services = await stack.enter_async_context(serving(settings, kube))
            server.extra_metrics = services.training.metrics if services is not None else None
        if not secret and not _loopback(host):
            _log.warning(f"webhooks are not signed; set {SECRET_VARIABLE}")
        _log.info("serving", host=host, port=runner.addresses[0][1], signed=bool(secret))
        await stop.wait()


async def _login(settings: Settings, stack: AsyncExitStack) -> Login | None:
    """How people sign in; None if no issuer is named. Raises InputError."""
    rules = login_rules(settings)
    if rules is None:
        return None
    # signing in takes 7 MiB of cryptography, and few servers offer it
    from belay.engine.serve.login.issuer import issuer_session
    from belay.engine.serve.login.routes import Login
    from belay.engine.serve.login.sessions import SealedCookies, session_keys

    keys = session_keys(settings.session_key_file) if settings.session_key_file else ()
    if not keys:
        _log.warning("sessions end with this process, and no other replica knows them; set BELAY_SESSION_KEY_FILE")
    http = await stack.enter_async_context(issuer_session())
    return Login(rules, SealedCookies(keys), http)


async def _questions(
    settings: Settings, kube: Kube | None, changes: ChangeStream, past: PastMoments, answers: Sequence[str],
    stack: AsyncExitStack,
) -> Questions:  # fmt: skip
    """The questions of the console about a live cluster; the processes that answer them end with the stack."""
    asked = AskedCluster(
        source={
            "kind": "live", "kubeconfig": settings.kubeconfig, "context": settings.context, "shard": settings.shard,
        } if kube is not None else None,
        repository=settings.source_url, branch=settings.source_branch, path=settings.source_path,
        data=str(settings.data_folder),
    )  # fmt: skip
    questions = Questions(changes, past, asked, await _answers(answers, stack))
    if questions.spare:
        _run_beside(questions.ahead.run(), stack)
    return questions


async def _listen(server: HttpServer, host: str, port: int, stack: AsyncExitStack) -> web.AppRunner:
    """Serve until the stack ends. Raises InputError for an address that cannot be used."""
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        handle_signals=False,
        shutdown_timeout=_SHUTDOWN_SECONDS,
        handler_cancellation=True,  # a question whose caller left is not answered
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise InputError(
            f"cannot listen: {error.strerror or error}", where=f"--listen {host}:{port}", hint="Choose another port."
        ) from error
    return runner


def _run_beside(work: Coroutine[None, None, None], stack: AsyncExitStack) -> None:
    """Run work in the background until the stack ends."""
    task = asyncio.create_task(work)
    stack.callback(task.cancel)


async def _answers(command: Sequence[str], stack: AsyncExitStack) -> Answers | None:
    """The processes that answer questions, ended with the stack."""
    if not command:
        return None
    found = Answers(command)
    stack.push_async_callback(found.close)
    _run_beside(found.end_idle_ones(), stack)
    return found


async def _cluster(settings: Settings, stack: AsyncExitStack) -> Kube | None:
    """A connection for the page; None if no cluster is configured."""
    try:
        return await stack.enter_async_context(
            Kube.from_config(settings.kubeconfig or None, settings.context or None, kube_variables(settings))
        )
    except BelayError as error:
        _log.warning("the page will not show the cluster's status", reason=str(error))
        return None


def _notifications(settings: Settings, kube: Kube) -> NotificationService:
    """What notifies people; without a NotificationPolicy it only watches for one."""
    delivery = NetworkDelivery(Path(settings.notify_secrets), settings.notify_hosts)
    return NotificationService(LedgerMap(kube), delivery, settings.identity, console=settings.console_url)


def _takers(
    history: HistoryService | None, notify: NotificationService | None
) -> Callable[[str, Data | None, Mapping[str, Any] | None], None]:
    """What is called with every status ConfigMap that changed."""

    def take(name: str, data: Data | None, raw: Mapping[str, Any] | None) -> None:
        if history is not None:
            history.take(name, data, raw)
        if notify is not None:
            notify.take(name, data)

    return take


async def _problems(
    engine: EngineClient, shard: str, history: HistoryService | None, notify: NotificationService | None
) -> list[str]:
    """What heartbeats, the last pass and the history say, without seconds of a silence: they change all the time."""
    health = await asyncio.to_thread(engine.health)
    heard = [text.partition(" has been silent for")[0] + " is silent" if " has been silent for" in text else text
             for text in health.problems(shard)]  # fmt: skip
    kept = history.problems() if history is not None else []
    told = notify.problems() if notify is not None else []
    return [*heard, *await engine.missing(shard, missing_since), *kept, *told]


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@web.middleware
async def _guarded(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Log a bug in a handler and answer a plain 500; set security headers on every answer."""
    try:
        response = await handler(request)
    except web.HTTPException as answer:
        response = _text(answer.status, answer.reason)
        if "Allow" in answer.headers:
            response.headers["Allow"] = answer.headers["Allow"]
    except Exception:  # whatever a handler raises: the server must answer the next request
        failures.count("request")
        _log.exception("request failed", path=request.path)
        response = _text(500, "internal error")
    if not response.prepared:
        for name, value in {**_HEADERS, **(CONSOLE_HEADERS if request.path.startswith(CONSOLE) else {})}.items():
            if name != "Cache-Control" or name not in response.headers:
                response.headers[name] = value
    return response


async def _to_console(request: web.Request) -> web.Response:
    return web.Response(status=302, headers={"Location": "/console/"})


def _text(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=text + "\n", headers=headers)
