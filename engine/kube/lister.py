"""Objects and lists of the API server: what a command needs that asks once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import msgspec

from belay.engine.kube.errors import Gone, NotFound, Unavailable
from belay.engine.kube.resources import Resource

PAGE = 500
"""Objects per page."""
ANSWER_LIMIT = 64 * 1024 * 1024
"""Largest answer in bytes; a page of 500 objects at etcd's limit of 1.5 MiB each would be larger, and is refused."""
_RESTARTS = 3

Object = dict[str, Any]


class Calls(Protocol):
    """What carries single calls to the API server; ``call`` returns the decoded answer, or raises KubeError."""

    @property
    def host(self) -> str: ...

    async def call(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, withhold: bool = False
    ) -> Any: ...


class Listing(msgspec.Struct, frozen=True):
    """All objects of a list, as they were at ``resource_version``."""

    items: list[Object]
    resource_version: str


class Lister:
    """Reads objects and lists."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @property
    def host(self) -> str:
        """The API server's URL."""
        return self._calls.host

    async def get(self, res: Resource, name: str, ns: str | None = None) -> Object | None:
        """The object, or None when it (or its kind) does not exist."""
        try:
            return as_object(await self._call("GET", res, ns, name), res)
        except NotFound:
            return None

    async def list(
        self, res: Resource, ns: str | None = None, labels: str | None = None, fields: str | None = None
    ) -> Listing:
        """Every object, read consistently page by page; restarts when a continue token expires.

        Raises NotFound when the kind is not served, Gone when tokens expire three times.
        """
        for attempt in range(_RESTARTS):
            items: list[Object] = []
            version = ""
            try:
                async for page in self.pages(res, ns, labels, fields):
                    items += page.items
                    version = page.resource_version
                return Listing(items, version)
            except Gone:
                if attempt == _RESTARTS - 1:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def pages(
        self,
        res: Resource,
        ns: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        limit: int = PAGE,
    ) -> AsyncIterator[Listing]:
        """The pages of one consistent list; raises Gone when a continue token expired on the way."""
        token = ""
        while True:
            params = selection(labels, fields) | {"limit": str(limit)} | ({"continue": token} if token else {})
            answer = await self._call("GET", res, ns, params=params)
            metadata = answer.get("metadata") or {}
            items = [as_object(item, res) for item in answer.get("items") or []]
            yield Listing(items, str(metadata.get("resourceVersion") or ""))
            token = metadata.get("continue") or ""
            if not token:
                return

    async def _call(
        self,
        method: str,
        res: Resource,
        ns: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        **options: Any,
    ) -> Any:
        path = res.path(ns, name, subresource)
        answer = await self._calls.call(method, path, withhold=res.kind in ("Secret", "TokenReview"), **options)
        if not isinstance(answer, dict):
            raise Unavailable(f"{method} {path}: the answer is not an object", reason="BadAnswer")
        return answer


def as_object(obj: Any, res: Resource) -> Object:
    """The object with its kind, which items of a list lack."""
    if not isinstance(obj, dict):
        raise Unavailable(f"{res.kind}: the server sent something that is not an object", reason="BadAnswer")
    obj.setdefault("apiVersion", res.api_version)
    obj.setdefault("kind", res.kind)
    return obj


def selection(labels: str | None, fields: str | None) -> dict[str, str]:
    """The parameters that choose objects by labels and fields."""
    return {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
