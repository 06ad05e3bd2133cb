"""The part of the Kubernetes API that an agent needs, over aiohttp: ConfigMaps, its pods, its node.

Reading follows list and watch with bookmarks; a broken watch is resumed, an expired one (410) listed again, errors back
off with full jitter (Kubernetes API concepts, "Efficient detection of changes").
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Protocol

import aiohttp

from belay.agents.common.credentials import Access
from belay.agents.common.log import Log

_log = Log("agent")

MERGE: Final = "application/merge-patch+json"
MAX_BODY: Final = 64 << 20
_TIMEOUT: Final = aiohttp.ClientTimeout(total=20, sock_connect=5)
_WATCH_SECONDS: Final = 240
_BACKOFF_BASE: Final = 0.2
_BACKOFF_CEILING: Final = 30.0
_PAGE: Final = 500
_MAX_TEXT: Final = 200
_SHORT_EVENT: Final = 1024

Follow = tuple[Mapping[str, dict[str, Any]], Mapping[str, Any] | None]
"""The objects of a collection, and which one changed; None when any may have."""


class ApiError(Exception):
    """The API server could not be reached, or refused. `status` is its HTTP code, 0 when it did not answer."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{status or 'no answer'}: {message[:_MAX_TEXT]}")


class ApiServer(Protocol):
    """The API server as an agent sees it.

    Methods raise ApiError; the two ``follow`` methods never end and recover from errors.
    """

    def config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any] | None]:
        """Follow one ConfigMap: its state now (None while it does not exist), then after every change."""
        ...

    def pods(self, node: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """Follow the pods of a node: all of them now, then after every change."""
        ...

    async def get_config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Read one ConfigMap."""
        ...

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        """Create a ConfigMap or replace the given keys of it."""
        ...

    async def list_pods(self, node: str) -> Sequence[Mapping[str, Any]]:
        """Read the pods of a node."""
        ...

    async def get_node(self, node: str) -> Mapping[str, Any] | None:
        """Read a node."""
        ...

    async def patch_node(self, node: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        """Set labels and annotations of a node."""
        ...

    async def create_event(self, body: Mapping[str, Any]) -> None:
        """Create an Event; succeed when one of that name exists."""
        ...


class KubeClient:
    """A Cluster behind HTTP.

    One session may serve many nodes; at most `parallel` requests are in progress, not counting watches.
    """

    def __init__(self, access: Access, *, parallel: int = 16, chance: random.Random | None = None) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(parallel)
        self._chance = chance or random.Random()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def get_config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Read one ConfigMap."""
        return await self._get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        """Create a ConfigMap or replace the given keys of it; keys, labels and annotations of others stay."""
        metadata = body["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/configmaps"
        given = {field: metadata[field] for field in ("labels", "annotations") if metadata.get(field)}
        patch = {"metadata": given, "data": body["data"]}
        try:
            await self._send("PATCH", f"{path}/{metadata['name']}", patch, MERGE)
        except ApiError as error:
            if error.status != 404:
                raise
            await self._send("POST", path, body, "application/json")

    async def replace_config_map(self, body: Mapping[str, Any]) -> None:
        """Replace a ConfigMap as a whole; with a resourceVersion only if it has not changed (ApiError 409)."""
        metadata = body["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/configmaps/{metadata['name']}"
        await self._send("PUT", path, body, "application/json")

    async def delete_config_map(self, namespace: str, name: str) -> None:
        """Delete a ConfigMap; succeed when there is none."""
        try:
            await self._send("DELETE", f"/api/v1/namespaces/{namespace}/configmaps/{name}", {}, "application/json")
        except ApiError as error:
            if error.status != 404:
                raise

    async def read_object(self, path: str) -> Mapping[str, Any] | None:
        """Read one object or document of the API; None without one."""
        return await self._get(path)

    async def list_objects(self, path: str, selector: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
        """Read a collection, all pages."""
        items, _ = await self._list(path, selector)
        return list(items.values())

    async def write_object(self, method: str, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """POST, PUT or DELETE; returns the answer."""
        data = json.dumps(body, separators=(",", ":"))
        return await self._request(method, path, params={"fieldManager": "belay-agent"}, data=data)

    async def list_pods(self, node: str) -> Sequence[Mapping[str, Any]]:
        """Read the pods of a node, all pages."""
        items, _ = await self._list("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"})
        return list(items.values())

    async def get_node(self, node: str) -> Mapping[str, Any] | None:
        """Read a node."""
        return await self._get(f"/api/v1/nodes/{node}")

    async def patch_node(self, node: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        """Set labels and annotations of a node; others stay.

        Written by its status, whose update leaves the spec alone: an agent needs no right to cordon or taint.
        """
        patch = {"metadata": {"labels": dict(labels), "annotations": dict(annotations)}}
        await self._send("PATCH", f"/api/v1/nodes/{node}/status", patch, MERGE)

    async def patch_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of a pod; one of another UID is left alone (ApiError 409).

        Written by its status, whose update leaves the spec alone: an agent needs no right to change images.
        """
        patch = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        await self._send("PATCH", f"/api/v1/namespaces/{namespace}/pods/{name}/status", patch, MERGE)

    async def create_event(self, body: Mapping[str, Any]) -> None:
        """Create an Event; succeed when one of that name exists."""
        try:
            await self._send(
                "POST", f"/api/v1/namespaces/{body['metadata']['namespace']}/events", body, "application/json"
            )
        except ApiError as error:
            if error.status != 409:
                raise

    async def config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any] | None]:
        """Follow one ConfigMap."""
        selector = {"fieldSelector": f"metadata.name={name}"}
        async for objects, _ in self.follow(f"/api/v1/namespaces/{namespace}/configmaps", selector):
            yield objects.get(f"{namespace}/{name}")

    async def pods(self, node: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """Follow the pods of a node."""
        async for objects, _ in self.follow("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"}):
            yield list(objects.values())

    async def follow(
        self, path: str, selector: Mapping[str, str] | None = None, *, needles: Sequence[bytes] = ()
    ) -> AsyncIterator[Follow]:
        """Yield the objects of a collection by `namespace/name`: once listed (with None), then after every change (with
        the object that changed or went). The mapping changes later: do not keep it. Never ends; errors are retried.
        With `needles` an event is left unread unless its text holds one of them.
        """
        failures = 0
        chosen = selector or {}
        while True:
            try:
                objects, version = await self._list(path, chosen)
                yield objects, None
                while True:
                    before = version
                    async for event in self._watch(path, chosen, version, needles):
                        failures = 0
                        version = _version(event, version)
                        if _apply(objects, event):
                            yield objects, event["object"]
                    if version == before:
                        # a watch that ends at once and empty must not become a busy loop
                        await asyncio.sleep(self._chance.uniform(0, 1))
            except ApiError as error:
                failures += 1
                if error.status != 410 and failures in (1, 10, 100):
                    _log.warning("collection cannot be followed", path=path, attempt=failures, error=error)
            await asyncio.sleep(
                self._chance.uniform(0, min(_BACKOFF_CEILING, _BACKOFF_BASE * 2.0 ** min(failures, 10)))
            )

    async def _list(self, path: str, selector: Mapping[str, str]) -> tuple[dict[str, dict[str, Any]], str]:
        objects: dict[str, dict[str, Any]] = {}
        token = ""
        while True:
            page = await self._request(
                "GET", path, params={**selector, "limit": str(_PAGE), **({"continue": token} if token else {})}
            )
            for item in page.get("items") or ():
                objects[_key(item)] = item
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                return objects, str(metadata.get("resourceVersion", ""))

    async def _watch(
        self, path: str, selector: Mapping[str, str], version: str, needles: Sequence[bytes]
    ) -> AsyncIterator[dict[str, Any]]:
        seconds = int(_WATCH_SECONDS * self._chance.uniform(0.8, 1.2))
        params = {
            **selector,
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=seconds + 30)
        session = self._open()
        try:
            async with session.get(
                self._access.url(path),
                params=params,
                headers=self._access.headers(),
                timeout=timeout,
                ssl=self._access.tls,
            ) as response:
                if response.status != 200:
                    raise ApiError(response.status, await _complaint(response))
                async for event in _events(response, needles):
                    if event.get("type") == "ERROR":
                        status = event.get("object") or {}
                        raise ApiError(int(status.get("code") or 500), str(status.get("message", "")))
                    yield event
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(0, f"{type(error).__name__}: {error}") from error

    async def _get(self, path: str) -> Mapping[str, Any] | None:
        try:
            return await self._request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _send(self, method: str, path: str, body: Mapping[str, Any], kind: str) -> None:
        params = {"fieldManager": "belay-agent"}
        await self._request(method, path, params=params, data=json.dumps(body, separators=(",", ":")), kind=kind)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        data: str | None = None,
        kind: str = "application/json",
    ) -> dict[str, Any]:
        session = self._open()
        headers = {**self._access.headers(), "Content-Type": kind, "Accept": "application/json"}
        try:
            async with (
                self._slots,
                session.request(
                    method,
                    self._access.url(path),
                    params=params,
                    data=data,
                    headers=headers,
                    timeout=_TIMEOUT,
                    ssl=self._access.tls,
                ) as response,
            ):
                if response.status >= 300:
                    raise ApiError(response.status, await _complaint(response))
                value = json.loads(await _whole(response))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError) as error:
            raise ApiError(0, f"{type(error).__name__}: {error}") from error
        if not isinstance(value, dict):
            raise ApiError(0, "the answer is not a JSON object")
        return value

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # watches use separate connections, so there is no limit here; `parallel` bounds the rest
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), trust_env=False)
        return self._session


def _key(item: Mapping[str, Any]) -> str:
    metadata = item.get("metadata") or {}
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def _version(event: Mapping[str, Any], before: str) -> str:
    return str(((event.get("object") or {}).get("metadata") or {}).get("resourceVersion") or before)


def _apply(objects: dict[str, dict[str, Any]], event: Mapping[str, Any]) -> bool:
    kind, item = event.get("type"), event.get("object") or {}
    if kind in ("ADDED", "MODIFIED"):
        objects[_key(item)] = item
    elif kind == "DELETED":
        objects.pop(_key(item), None)
    return kind in ("ADDED", "MODIFIED", "DELETED")


async def _events(response: aiohttp.ClientResponse, needles: Sequence[bytes]) -> AsyncIterator[dict[str, Any]]:
    buffer = bytearray()
    async for chunk in response.content.iter_any():
        buffer += chunk
        if len(buffer) > MAX_BODY:
            raise ApiError(0, "a watch event is too large")
        *lines, rest = buffer.split(b"\n")
        buffer = bytearray(rest)
        for line in lines:
            # bookmarks and errors are short; they are always read
            if line.strip() and (not needles or len(line) < _SHORT_EVENT or any(needle in line for needle in needles)):
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """The whole answer, including a chunked one without a length. Raises ApiError for an endless one."""
    buffer = bytearray()
    async for chunk in response.content.iter_any():
        buffer += chunk
        if len(buffer) > MAX_BODY:
            raise ApiError(0, f"the answer is larger than {MAX_BODY >> 20} MiB")
    return bytes(buffer)


async def _complaint(response: aiohttp.ClientResponse) -> str:
    raw = await response.content.read(4096)
    try:
        status = json.loads(raw)
        return str(status.get("message", "")) if isinstance(status, dict) else ""
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")
