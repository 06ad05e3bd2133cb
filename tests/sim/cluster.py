"""The sandbox's API server without its HTTP front, and clients of the engine and of agents that call it in process.

Every call passes the caller's gate, where it may be delayed, refused, lost before or after it was carried out, and
where the caller may die.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import orjson

from belay.agents.common.client import ApiError as AgentApiError
from belay.agents.common.client import KubeClient
from belay.engine.kube import Unavailable
from belay.engine.kube.endpoint import Endpoint
from belay.engine.kube.errors import Gone, from_answer
from belay.engine.kube.transport import Transport
from belay.engine.sandbox.api import pages, watches
from belay.engine.sandbox.api.errors import ApiError
from belay.engine.sandbox.api.requests import Accept, target, write_options
from belay.engine.sandbox.api.selectors import selection
from belay.engine.sandbox.api.server import ApiServer
from belay.engine.sandbox.api.store import Key, ObjectVersion, Watcher
from belay.engine.sandbox.api.verbs import Call
from belay.engine.sandbox.api.watches import WatchRequest, WatchStream, plain_view
from tests.sim.clock import Numbered
from tests.sim.process import Life

Json = dict[str, Any]


class _Watcher(Numbered, Watcher):
    pass


watches.Watcher = _Watcher  # type: ignore[misc]


class Api:
    """The API server's core. ``wall`` gives Unix seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self.server = ApiServer(clock=wall, token="")
        self.server._assemble()
        self.store = self.server.store

    def answer(self, method: str, path: str, params: Mapping[str, str], data: bytes, content_type: str) -> Any:
        """One call; raises ApiError of the server."""
        parts = [unquote(part) for part in path.split("/")[1:] if part]
        if len(parts) < (3 if parts[0] == "api" else 4):
            found = pages.document(self.server.registry, "sim", "", path, Accept())
            if found is None:
                raise ApiError(404, "NotFound", "the server could not find the requested resource")
            return found[0]
        wanted = target(self.server.registry, method, parts, False)
        options = write_options(params, "sim", wanted.verb, subresource=wanted.subresource)
        answer = self.server._verbs.answer(Call(wanted, params, Accept(), data, content_type, options))
        return orjson.loads(answer.body)

    def watch(self, path: str, params: Mapping[str, str]) -> WatchStream:
        """A watch; raises ApiError when its version is too old."""
        parts = [unquote(part) for part in path.split("/")[1:] if part]
        wanted = target(self.server.registry, "GET", parts, True)
        version = params.get("resourceVersion", "")
        asked = WatchRequest(
            resource=wanted.resource,
            namespace=wanted.namespace,
            selected=selection(wanted.resource, params.get("labelSelector", ""), params.get("fieldSelector", "")),
            since=int(version) if version else None,
            bookmarks=True,
            initial_end=False,
            timeout=float(params.get("timeoutSeconds") or 300),
            variant="plain",
            view=plain_view(wanted.resource),
        )
        return WatchStream(self.store, asked, self.server.faults, 10.0)

    def objects(self, plural: str) -> list[Json]:
        """Every object of a kind, by name; not to be changed."""
        return [entry.obj for entry in sorted(self._entries(plural), key=lambda entry: entry.key)]

    def _entries(self, plural: str) -> list[ObjectVersion]:
        return list(self.store.collection(plural).entries())

    def find(self, plural: str, name: str, namespace: str = "") -> Json | None:
        entry = self.store.get(plural, (namespace, name))
        return None if entry is None else entry.copy()

    def put(self, plural: str, obj: Json) -> None:
        """Write past every check, as hardware and kubelets are simulated."""
        meta = obj["metadata"]
        self.store.put(plural, (meta.get("namespace") or "", meta["name"]), copy.deepcopy(obj))

    def drop(self, plural: str, name: str, namespace: str = "") -> None:
        with contextlib.suppress(KeyError):
            self.store.delete(plural, (namespace, name))

    def backup(self) -> dict[str, dict[Key, Json]]:
        """Every object, as a snapshot of etcd has it."""
        return {
            plural: {entry.key: entry.copy() for entry in self._entries(plural)} for plural in self.store.collections
        }

    def restore(self, backup: Mapping[str, Mapping[Key, Json]]) -> None:
        """Put etcd back to a snapshot, as ``etcdutl snapshot restore --bump-revision --mark-compacted`` does: versions
        go on, and every watch begins again."""
        for plural in list(self.store.collections):
            for entry in self._entries(plural):
                if entry.key not in backup.get(plural, {}):
                    self.store.delete(plural, entry.key)
        for plural, objects in backup.items():
            # who looks in between must not see a chip with the pod that has it and the pod that had it
            for key, obj in sorted(objects.items(), key=lambda item: bool(item[1].get("spec", {}).get("nodeName"))):
                self.store.put(plural, key, copy.deepcopy(obj))
        self.store.compact()

    def collect(self) -> None:
        """Garbage collection, all at once."""
        while self.server._collector.run():
            pass


async def _lines(api: Api, process: Life, path: str, params: Mapping[str, str]) -> AsyncGenerator[bytes]:
    stream = api.watch(path, params)
    try:
        async with contextlib.aclosing(stream.batches()) as batches:
            async for piece in batches:
                await process.pass_gate("watch")
                for line in piece.split(b"\n"):
                    if line:
                        yield line
    finally:
        stream.close()


class SimTransport(Transport):
    """The engine's transport with its retries and deadlines, calling in process."""

    def __init__(self, api: Api, process: Life, **options: Any) -> None:
        super().__init__(lambda: Endpoint("sim"), **options)
        self._api = api
        self._process = process

    async def open(self) -> None:
        self._endpoint = Endpoint("sim")

    async def close(self) -> None:
        return

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        withhold: bool,
        ends: float,
    ) -> Any:
        where = f"{method} {path}"

        def call() -> Any:
            try:
                return self._api.answer(method, path, params or {}, data or b"", content_type)
            except ApiError as error:
                retry = error.headers.get("Retry-After") if error.headers else None
                raise from_answer(error.code, orjson.dumps(error.status()), where, retry_after=retry) from None

        return await self._process.call_api(where, call)

    async def events(
        self,
        path: str,
        params: Mapping[str, str],
        *,
        quiet: float,
        on_open: Callable[[], None] | None = None,
        packed: bool = False,
    ) -> AsyncGenerator[tuple[bytes, bool]]:
        where = f"WATCH {path}"
        await self._process.call_api(where, lambda: None)
        if on_open is not None:
            on_open()
        try:
            async with contextlib.aclosing(_lines(self._api, self._process, path, params)) as found:
                async for line in found:
                    # this server has no protobuf
                    yield line, False
        except ApiError as error:
            if error.code == 410:
                raise Gone(where, status=410) from None
            raise from_answer(error.code, orjson.dumps(error.status()), where) from None


class SimAgentClient(KubeClient):
    """The agents' client with its following and its retries, calling in process."""

    def __init__(self, api: Api, process: Life, **options: Any) -> None:
        super().__init__(None, **options)  # type: ignore[arg-type]
        self._api = api
        self._process = process

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        data: str | None = None,
        kind: str = "application/json",
    ) -> Json:
        def call() -> Any:
            try:
                return self._api.answer(method, path, params or {}, (data or "").encode(), kind)
            except ApiError as error:
                raise AgentApiError(error.code, str(error)) from None

        try:
            return await self._process.call_api(f"{method} {path}", call)  # type: ignore[no-any-return]
        except Unavailable as error:
            raise AgentApiError(error.status or 0, str(error)) from None
        except AgentApiError:
            raise
        except Exception as error:
            raise AgentApiError(int(getattr(error, "status", 0) or 0), str(error)) from None

    async def _watch(
        self, path: str, selector: Mapping[str, str], version: str, needles: Sequence[bytes]
    ) -> AsyncIterator[Json]:
        params = {**selector, "resourceVersion": version, "timeoutSeconds": "300"}
        try:
            async with contextlib.aclosing(_lines(self._api, self._process, path, params)) as found:
                async for line in found:
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise AgentApiError(int(event["object"].get("code") or 500), "watch ended")
                    yield event
        except ApiError as error:
            raise AgentApiError(error.code, str(error)) from None
        except Unavailable as error:
            raise AgentApiError(0, str(error)) from None
