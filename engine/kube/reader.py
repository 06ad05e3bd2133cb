"""Reads from the API server that last: watches and logs, beside objects and lists."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Self

import orjson

from belay.engine.kube.credentials import loader
from belay.engine.kube.endpoint import Loader
from belay.engine.kube.errors import KubeError, Unavailable, from_answer
from belay.engine.kube.lister import Lister, Object, as_object, selection
from belay.engine.kube.resources import POD, Resource
from belay.engine.kube.transport import Transport


class KubeReader(Lister):
    """The reading half of the client; use it with ``async with``."""

    def __init__(self, load: Loader, *, transport: Transport | None = None) -> None:
        self._transport = transport or Transport(load)
        super().__init__(self._transport)
        self._versions: frozenset[str] | None = None
        self._versions_read = float("-inf")
        self._reading_versions = asyncio.Lock()

    @classmethod
    def from_config(
        cls, kubeconfig: str | None = None, context: str | None = None, variables: Sequence[str] = ()
    ) -> Self:
        """The cluster of a kubeconfig; without one $KUBECONFIG, ~/.kube/config, then the pod's service account.

        ``variables`` gave file and context; errors name them.
        """
        return cls(loader(kubeconfig, context, variables))

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    async def may_serve(self, res: Resource, age: float) -> bool:
        """Whether the server names the kind's API version, by a list that is at most ``age`` seconds old; True where
        that list cannot be read.
        """
        if "/" not in res.api_version:
            return True
        async with self._reading_versions:  # those who ask meanwhile share the answer
            if time.monotonic() - self._versions_read > age:
                self._versions = await self._served_versions()
                self._versions_read = time.monotonic()
        return self._versions is None or res.api_version in self._versions

    async def _served_versions(self) -> frozenset[str] | None:
        try:
            answer = await self._transport.call("GET", "/apis")
            versions = [row for group in answer["groups"] for row in group["versions"]]
            return frozenset(str(row["groupVersion"]) for row in versions)
        except (KubeError, KeyError, TypeError):
            return None

    async def watch(
        self,
        res: Resource,
        ns: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        rv: str = "",
        *,
        seconds: int = 290,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[tuple[str, Object]]:
        """Changes after ``rv`` as (ADDED|MODIFIED|DELETED|BOOKMARK, object) until the server ends the watch.

        ``seconds`` is the requested length of the watch; ``on_open`` is called once the server accepted it.

        Raises Gone when ``rv`` is too old, Unavailable when the connection breaks.
        """
        params = selection(labels, fields) | _watch_from(rv, seconds)
        where = f"WATCH {res.path(ns)}"
        events = self._transport.events(res.path(ns), params, quiet=seconds + 15.0, on_open=on_open)
        async with contextlib.aclosing(events):
            async for line, _ in events:
                try:
                    event = orjson.loads(line)
                    kind, obj = str(event["type"]), event["object"]
                except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                    raise Unavailable(f"{where}: an event cannot be read", reason="BadAnswer") from error
                if kind == "ERROR":
                    raise from_answer(int(obj.get("code") or 500), orjson.dumps(obj), where)
                yield kind, as_object(obj, res)

    async def pod_heads(
        self, rv: str, *, seconds: int = 290, on_open: Callable[[], None] | None = None
    ) -> AsyncGenerator[tuple[str, Object]]:
        """Changes of all pods after ``rv`` like ``watch``, in protobuf where the server supports it, with the fields of
        ``pod_protobuf.event``. Raises Gone when ``rv`` is too old, Unavailable when the connection breaks.
        """
        from belay.engine.kube import pod_protobuf  # protobuf takes longer to import than all the rest of a client

        where = f"WATCH {POD.path()}"
        params = _watch_from(rv, seconds)
        events = self._transport.events(POD.path(), params, quiet=seconds + 15.0, on_open=on_open, packed=True)
        async with contextlib.aclosing(events):
            async for data, packed in events:
                yield pod_protobuf.event(data, packed=packed, where=where)

    async def log(self, ns: str, pod: str, params: Mapping[str, str], *, quiet: float = 60.0) -> AsyncGenerator[str]:
        """The lines of a container's log, as the node's kubelet has them; ``params`` are those of the API (container,
        follow, tailLines, …), ``quiet`` the longest silence in s.

        Raises NotFound for a pod that is gone, Invalid while its container has no log, Unavailable when the connection
        breaks.
        """
        lines = self._transport.lines(POD.path(ns, pod, "log"), params, quiet=quiet)
        async with contextlib.aclosing(lines):
            async for line in lines:
                yield line.decode("utf-8", "replace").rstrip("\r")


def _watch_from(rv: str, seconds: int) -> dict[str, str]:
    asked = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
    return asked | ({"resourceVersion": rv} if rv else {})
