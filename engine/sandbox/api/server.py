"""The HTTP server: authentication, routing, faults, watches, start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

import orjson
from aiohttp import web

from belay.engine.sandbox.api import access, openapi2, pages, watches
from belay.engine.sandbox.api.builtin import NAMESPACES, builtin_resources, model_of
from belay.engine.sandbox.api.collector import Collector
from belay.engine.sandbox.api.crds import Definitions
from belay.engine.sandbox.api.deletion import Deletion
from belay.engine.sandbox.api.errors import ApiError, bad_request, method_not_allowed, no_such_path
from belay.engine.sandbox.api.expiry import EXPIRY_SECONDS, expire_events
from belay.engine.sandbox.api.faults import FaultInjector
from belay.engine.sandbox.api.journal import DiskJournal
from belay.engine.sandbox.api.kinds import JSON, ResourceRegistry
from belay.engine.sandbox.api.lists import Lists
from belay.engine.sandbox.api.objects import ObjectWriter, WriteOptions
from belay.engine.sandbox.api.requests import Accept, Target, accepted, body, parsed, target, write_options
from belay.engine.sandbox.api.schema import builtin_node
from belay.engine.sandbox.api.selectors import selection
from belay.engine.sandbox.api.store import ClusterStore, ObjectVersion
from belay.engine.sandbox.api.tables import TableBuilder, partial
from belay.engine.sandbox.api.verbs import Call, VerbResult, Verbs

LOG = logging.getLogger(__name__)
_OPEN = ("/healthz", "/livez", "/readyz", "/version")
_WATCH_SECONDS = (1800.0, 3600.0)
_SHUTDOWN_SECONDS = 2.0
_COLLECT_RETRY_SECONDS = 1.0
MAX_LINE = 64 * 1024
"""Longest request line and header, bytes: selectors that list many names are long."""


class ApiServer:
    """A Kubernetes API server on one port of one host.

    `port` 0 takes any free one. With `data_dir` every object survives a restart. `token` None makes a random one (kept
    in `data_dir`), an empty one turns authentication off. Clients send the token as bearer, or as the first part of the
    path: kubectl sends no bearer tokens over plain HTTP, so the server address in the kubeconfig carries it. `clock`
    gives unix seconds.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data_dir: Path | None = None,
        token: str | None = None,
        faults: FaultInjector | None = None,
        clock: Callable[[], float] = time.time,
        bookmark_seconds: float = 10.0,
    ) -> None:
        self._host = host
        self._port = port
        self._data_dir = data_dir
        self._token = token
        self.faults = faults or FaultInjector()
        self._clock = clock
        self._bookmark_seconds = bookmark_seconds
        self.store = ClusterStore()
        self.registry = ResourceRegistry()
        self._runner: web.ServerRunner | None = None
        self._journal: DiskJournal | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._collect = asyncio.Event()

    # -- start and stop

    async def start(self) -> None:
        """Load the stored objects and listen.

        Raises JournalError when the data folder cannot be used, OSError when the port is taken.
        """
        if self._data_dir is not None:
            self._journal = DiskJournal(self._data_dir)
            self.store.load(self._journal.load(), self._journal.rv)
            self.store.journal = self._journal
            self._tasks.append(asyncio.create_task(self._journal.flush_forever(_Entries(self.store))))
        self._token = access.stored_token(self._token, self._data_dir)
        self._assemble()
        # a client that goes away ends its handler, or idle watches of dead clients would pile up
        server = web.Server(
            self._handle, handler_cancellation=True, access_log=None, max_line_size=MAX_LINE, max_field_size=MAX_LINE
        )
        self._runner = web.ServerRunner(server, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=1024)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self._tasks.append(asyncio.create_task(self._collect_forever()))
        self._tasks.append(asyncio.create_task(self._expire_forever()))

    def _assemble(self) -> None:
        for resource in builtin_resources():
            resource.node = builtin_node(model_of(resource))
            self.registry.add(resource)
        Definitions(self.store, self.registry)
        objects = ObjectWriter(self.store, self.registry, self._clock)
        deletion = Deletion(objects)
        self._lists = Lists(self.store)
        self._verbs = Verbs(objects, deletion, self._lists)
        self._collector = Collector(self.store, self.registry, deletion, self._collect.set)
        namespaces = self.registry.find("", "v1", "namespaces")
        assert namespaces is not None
        for name in NAMESPACES:
            if self.store.get("namespaces", ("", name)) is None:
                objects.create(namespaces, "", {"metadata": {"name": name}}, WriteOptions(manager="sandbox"))

    async def stop(self) -> None:
        """End all connections and flush all changes to disk."""
        for collection in self.store.collections.values():
            for watcher in collection.watchers():
                watcher.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._journal is not None:
            self.store.journal = None
            self._journal.close()
            self._journal = None

    async def _collect_forever(self) -> None:
        while True:
            await self._collect.wait()
            self._collect.clear()
            try:
                while self._collector.run():
                    await asyncio.sleep(0)
            except Exception:
                # the object that failed is out of the queue; the others must still be collected
                LOG.exception("garbage collection failed")
                self._collect.set()
                await asyncio.sleep(_COLLECT_RETRY_SECONDS)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            expire_events(self.store, self._clock())

    # -- address and credentials

    @property
    def token(self) -> str:
        """The secret that requests must contain; empty when authentication is off."""
        return self._token or ""

    @property
    def url(self) -> str:
        """The address before `/api/...`; it contains the token, so treat it as a secret."""
        return f"http://{self._host_port}{self._prefix}"

    @property
    def _host_port(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def _prefix(self) -> str:
        return f"/{self._token}" if self._token else ""

    def kubeconfig(self, console: str = "") -> str:
        """Return a kubeconfig (YAML) for this server; `console` is where `belay server` listens, if known."""
        return access.kubeconfig(self.url, self.token, console)

    def write_kubeconfig(self, path: Path, console: str = "") -> None:
        """Write the kubeconfig, readable by its owner only, replacing an older one atomically."""
        access.write_secret(path, self.kubeconfig(console))

    # -- requests

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            path = self._authenticated(request)
            if path.startswith(("/api/", "/apis/")):
                parts = [unquote(part) for part in path.split("/")[1:] if part]
                if len(parts) >= (3 if parts[0] == "api" else 4):
                    return await self._resource(request, parts)
            return await self._meta(request, path)
        except ApiError as error:
            return _refused(error)
        except (ConnectionResetError, asyncio.CancelledError):
            raise
        except Exception:
            LOG.exception("request failed", extra={"method": request.method, "path": _bounded_path(request.path)})
            return _refused(ApiError(500, "InternalError", "Internal error occurred: see the sandbox's log"))

    def _authenticated(self, request: web.BaseRequest) -> str:
        """Return the path without the token. Raises ApiError 401."""
        path = request.rel_url.raw_path
        if not self._token:
            return path
        prefix, shown = self._prefix, False
        # a client that puts its own prefix before an address that has it already sends it twice
        while path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("/", ""):
            path, shown = path[len(prefix) :] or "/", True
        if shown or path in _OPEN or (request.method == "GET" and pages.is_discovery(path)):
            return path
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token.encode()):
            return path
        raise ApiError(401, "Unauthorized", "Unauthorized")

    async def _resource(self, request: web.BaseRequest, parts: list[str]) -> web.StreamResponse:
        query: Mapping[str, str] = request.rel_url.query if request.rel_url.raw_query_string else {}
        wanted = target(self.registry, request.method, parts, query.get("watch", "") in ("true", "1", "True"))
        raw = await body(request) if request.body_exists else b""
        for rule in self.faults.match(
            ("error", "latency"), wanted.verb, wanted.label, wanted.namespace or "", wanted.name
        ):
            if rule.mode == "latency":
                await asyncio.sleep(rule.latency)
            else:
                raise _injected(rule.status, rule.retryAfter, rule.message)
        accept = accepted(request.headers.get("Accept", ""))
        if wanted.verb == "watch":
            return await self._watch(request, wanted, query, accept)
        writing = wanted.verb not in ("get", "list")
        agent = request.headers.get("User-Agent", "")
        options = (
            write_options(query, agent, wanted.verb, subresource=wanted.subresource) if writing else WriteOptions()
        )
        call = Call(wanted, query, accept, raw, request.headers.get("Content-Type", ""), options)
        return _response(self._verbs.answer(call))

    async def _watch(
        self, request: web.BaseRequest, wanted: Target, query: Mapping[str, str], accept: Accept
    ) -> web.StreamResponse:
        resource = wanted.resource
        if "watch" not in resource.verbs:
            raise method_not_allowed()
        fields = query.get("fieldSelector", "")
        if wanted.name:
            fields = f"metadata.name={wanted.name}" + (f",{fields}" if fields else "")
        version = query.get("resourceVersion", "")
        if version and not version.isdigit():
            raise bad_request(f'Invalid value for resourceVersion: "{version}"')
        initial = query.get("sendInitialEvents") == "true"
        seconds = query.get("timeoutSeconds", "")
        view, variant = self._view(wanted, query, accept)
        asked = watches.WatchRequest(
            resource=resource,
            namespace=wanted.namespace,
            selected=selection(resource, query.get("labelSelector", ""), fields),
            since=None if initial or version in ("", "0") else int(version),
            bookmarks=query.get("allowWatchBookmarks") == "true",
            initial_end=initial,
            timeout=float(seconds) if seconds.isdigit() and int(seconds) else random.uniform(*_WATCH_SECONDS),
            variant=variant,
            view=view,
        )
        for rule in self.faults.match(("drop-watch",), "watch", resource.plural, wanted.namespace or "", wanted.name):
            asked.timeout, asked.bookmarks = min(asked.timeout, rule.latency), False
        return await self._stream(request, asked)

    async def _stream(self, request: web.BaseRequest, asked: watches.WatchRequest) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        try:
            stream = watches.WatchStream(self.store, asked, self.faults, self._bookmark_seconds)
        except ApiError as error:
            # a watch that cannot begin sends the error as its first event, as kube-apiserver does
            await response.prepare(request)
            await response.write(watches.error_frame(error))
            return response
        response.enable_chunked_encoding()
        try:
            await response.prepare(request)
            async with contextlib.aclosing(stream.batches()) as batches:
                async for piece in batches:
                    await response.write(piece)
        except ConnectionResetError:
            return response
        finally:
            stream.close()
        return response

    def _view(
        self, wanted: Target, query: Mapping[str, str], accept: Accept
    ) -> tuple[Callable[[ObjectVersion], bytes], str]:
        if accept.table:
            include = query.get("includeObject", "")
            resource, clock = wanted.resource, self._clock
            return lambda entry: TableBuilder(resource, include, clock()).single(entry), f"table {include}"
        if accept.partial:
            return lambda entry: orjson.dumps(partial(entry)), "partial"
        return watches.plain_view(wanted.resource), "plain"

    # -- paths outside the resources

    async def _meta(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if path.startswith("/sandbox/"):
            return await self._control(request, path)
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        if path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        if path == "/openapi/v2" and openapi2.ACCEPTED in request.headers.get("Accept", ""):
            return web.Response(body=openapi2.document(self.registry), headers={"Content-Type": openapi2.CONTENT_TYPE})
        found = pages.document(
            self.registry, self._host_port, self._prefix, path, accepted(request.headers.get("Accept", ""))
        )
        if found is None:
            raise no_such_path()
        made, content_type = found
        return web.Response(body=orjson.dumps(made), headers={"Content-Type": content_type})

    async def _control(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        match request.method, path:
            case "GET", "/sandbox/faults":
                return _json({"rules": self.faults.rules()})
            case "POST", "/sandbox/faults":
                given = parsed(await body(request), request.headers.get("Content-Type", ""))
                try:
                    self.faults.load(given)
                except ValueError as error:
                    raise bad_request(f"fault rule: {error}") from error
                self._drop_open_watches()
                return _json({"rules": self.faults.rules()}, 201)
            case "DELETE", "/sandbox/faults":
                self.faults.clear()
                return _json({"rules": []})
            case "POST", "/sandbox/compact":
                self._lists.forget()
                return _json({"resourceVersion": str(self.store.compact())})
            case _:
                raise no_such_path()

    def _drop_open_watches(self) -> None:
        """Apply rules that drop watches to those already open."""
        for resource in self.registry:
            if not resource.storage_version:
                continue
            for watcher in self.store.collection(resource.storage).watchers():
                where = (watcher.namespace or "", watcher.name or "")
                for rule in self.faults.match(("drop-watch",), "watch", resource.plural, *where):
                    asyncio.get_running_loop().call_later(rule.latency, watcher.close)


class _Entries:
    """Iterates over the store's entries at the time of iteration."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store

    def __iter__(self) -> Iterator[ObjectVersion]:
        for collection in self._store.collections.values():
            yield from collection.entries()


def _injected(status: int, retry_after: int, message: str) -> ApiError:
    reasons = {
        429: "TooManyRequests",
        500: "InternalError",
        503: "ServiceUnavailable",
        504: "Timeout",
        409: "Conflict",
        403: "Forbidden",
    }
    text = message or {429: "Too many requests, please try again later."}.get(status, "injected fault")
    headers, details = {}, None
    if status in (429, 503):
        headers["Retry-After"] = str(retry_after)
        details = {"retryAfterSeconds": retry_after}
    return ApiError(status, reasons.get(status, "InternalError"), text, details=details, headers=headers)


def _json(made: JSON, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(made), status=status, headers={"Content-Type": "application/json"})


def _refused(error: ApiError) -> web.Response:
    return web.Response(
        body=orjson.dumps(error.status()),
        status=error.code,
        headers={"Content-Type": "application/json", **error.headers},
    )


def _response(answer: VerbResult) -> web.Response:
    response = web.Response(body=answer.body, status=answer.status, headers={"Content-Type": answer.content_type})
    for warning in answer.warnings[:20]:
        escaped = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')
    return response


def _bounded_path(path: str) -> str:
    return path[-200:]
