"""Lists: filtering, pages of one snapshot, and responses joined from the objects' serialised bytes."""

from __future__ import annotations

import base64
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping

import orjson

from belay.engine.sandbox.api import versions
from belay.engine.sandbox.api.errors import ApiError, bad_request, expired
from belay.engine.sandbox.api.kinds import JSON, ServedResource
from belay.engine.sandbox.api.selectors import Selection
from belay.engine.sandbox.api.store import ClusterStore, ObjectVersion
from belay.engine.sandbox.api.tables import TableBuilder, partial_list

MAX_SNAPSHOTS = 64
"""Maximum number of paged lists; beyond it the least recently used one expires, and its client lists again."""


class Page:
    """One page of a list, with the list's metadata."""

    __slots__ = ("entries", "remaining", "rv", "token")

    def __init__(self, entries: list[ObjectVersion], rv: int, token: str = "", remaining: int = 0) -> None:
        self.entries = entries
        self.rv = rv
        self.token = token
        self.remaining = remaining

    def metadata(self) -> JSON:
        """Return the list's metadata."""
        found: JSON = {"resourceVersion": str(self.rv)}
        if self.token:
            found["continue"] = self.token
            if self.remaining:
                found["remainingItemCount"] = self.remaining
        return found


class Lists:
    """Makes lists, and stores the rest of a paged one as it was at its first page."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store
        self._paged: OrderedDict[str, tuple[int, list[ObjectVersion]]] = OrderedDict()

    def forget(self) -> None:
        """Expire every continue token."""
        self._paged.clear()

    def page(
        self, resource: ServedResource, namespace: str | None, selected: Selection, query: Mapping[str, str]
    ) -> Page:
        """Return the requested page. Raises ApiError 400 or 410."""
        limit = _number(query.get("limit"), "limit")
        if token := query.get("continue"):
            return self._next(resource, token, limit)
        self._check_version(query)
        entries = self.select(resource, namespace, selected)
        return self._cut(resource, self._store.rv, entries, limit, selected)

    def select(self, resource: ServedResource, namespace: str | None, selected: Selection) -> list[ObjectVersion]:
        """Return the selected objects in order."""
        collection = self._store.collection(resource.storage)
        space = namespace if namespace is not None else selected.namespace
        if selected.name is not None and space is not None:
            entry = collection.get((space, selected.name))
            return [entry] if entry is not None and selected.matches(entry.obj) else []
        found = collection.entries(space)
        return list(found) if selected.everything else [entry for entry in found if selected.matches(entry.obj)]

    def _check_version(self, query: Mapping[str, str]) -> None:
        version = _number(query.get("resourceVersion"), "resourceVersion")
        if query.get("resourceVersionMatch") == "Exact" and version and version != self._store.rv:
            raise expired(f"The provided resource version is too old: {version} ({self._store.rv})")
        if version > self._store.rv:
            raise ApiError(
                504,
                "Timeout",
                f"Timeout: Too large resource version: {version}, current: {self._store.rv}",
                details={
                    "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                    "retryAfterSeconds": 1,
                },
            )

    def _cut(
        self,
        resource: ServedResource,
        rv: int,
        entries: list[ObjectVersion],
        limit: int,
        selected: Selection | None = None,
    ) -> Page:
        if not limit or len(entries) <= limit:
            return Page(entries, rv)
        identity = secrets.token_hex(8)
        self._paged[identity] = rv, entries[limit:]
        while len(self._paged) > MAX_SNAPSHOTS:
            self._paged.popitem(last=False)
        token = (
            base64.urlsafe_b64encode(orjson.dumps({"v": "belay/v1", "rv": rv, "k": resource.storage, "id": identity}))
            .decode()
            .rstrip("=")
        )
        # the count is left out for filtered lists, as kube-apiserver does
        remaining = len(entries) - limit if selected is None or selected.everything else 0
        return Page(entries[:limit], rv, token, remaining)

    def _next(self, resource: ServedResource, token: str, limit: int) -> Page:
        try:
            read = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
            identity, storage = str(read["id"]), str(read["k"])
        except (ValueError, KeyError, TypeError) as error:
            raise bad_request("continue key is not valid: illegal base64 data or unknown format") from error
        found = self._paged.pop(identity, None)
        if found is None or storage != resource.storage:
            raise expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a "
                "new list without the "
                "continue parameter."
            )
        return self._cut(resource, found[0], found[1], limit)


def _number(text: str | None, name: str) -> int:
    if not text:
        return 0
    if not text.isdigit():
        raise bad_request(f'invalid value for {name}: "{text}" is not a number')
    return int(text)


def list_bytes(resource: ServedResource, page: Page) -> bytes:
    """Return the serialised list."""
    head = orjson.dumps({"kind": resource.list_kind, "apiVersion": resource.api_version, "metadata": page.metadata()})
    if resource.storage_version:
        items = b",".join([entry.raw for entry in page.entries])
    else:
        items = b",".join([versions.bytes_for(resource, entry) for entry in page.entries])
    return head[:-1] + b',"items":[' + items + b"]}"


def renderer(
    resource: ServedResource, *, table: bool, partial: bool, include: str, now: float
) -> Callable[[Page], bytes]:
    """Return the function that renders a page in the requested form."""
    if table:
        maker = TableBuilder(resource, include, now)
        return lambda page: maker.table(page.entries, page.metadata())
    if partial:
        return lambda page: partial_list(page.entries, page.metadata())
    return lambda page: list_bytes(resource, page)
