"""The client of Kubernetes: objects as dicts over aiohttp, one method per operation of the API.

The sandbox's API server and a real one are reached by the same code. Every call is bounded in time; idempotent calls
are retried; errors are the classes of ``belay.engine.kube.errors``.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from belay.engine.kube.endpoint import Loader
from belay.engine.kube.errors import Conflict, Invalid, KubeError, NotFound, bounded
from belay.engine.kube.lister import Object, as_object
from belay.engine.kube.reader import KubeReader
from belay.engine.kube.resources import EVENT, KNOWN, POD, Resource
from belay.engine.kube.transport import PROTOBUF, Transport
from belay.engine.model.refusals import RefusalCause

FIELD_MANAGER = "belay"
BIND_SECONDS = 10
"""After so long the server gives a binding up, and so should its sender."""
_PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
_UNKNOWN_KIND_SECONDS = 30.0

PatchKind = Literal["merge", "json", "strategic"]


class Kube(KubeReader):
    """A client; use it with ``async with``."""

    def __init__(self, load: Loader, *, transport: Transport | None = None) -> None:
        super().__init__(load, transport=transport)
        self._discovered: dict[tuple[str, str], Resource] = {}
        self._missing: dict[tuple[str, str], float] = {}
        self._eviction_version = "policy/v1"
        self._packs = True

    # writing

    async def create(self, res: Resource, obj: Object, *, field_manager: str = FIELD_MANAGER) -> Object:
        """Create; raises Conflict (``already_exists``) when the name is taken. Not retried once the server may have
        received it.
        """
        ns = _namespace(obj)
        return as_object(
            await self._call("POST", res, ns, params={"fieldManager": field_manager}, body=obj, retry="unprocessed"),
            res,
        )

    async def replace(self, res: Resource, obj: Object, *, field_manager: str = FIELD_MANAGER) -> Object:
        """Write the whole object; with ``metadata.resourceVersion`` only over that version (Conflict otherwise)."""
        params = {"fieldManager": field_manager}
        answer = await self._call("PUT", res, _namespace(obj), _name(obj), params=params, body=obj)
        return as_object(answer, res)

    async def patch(
        self,
        res: Resource,
        name: str,
        patch: Any,
        ns: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,
        field_manager: str = FIELD_MANAGER,
    ) -> Object:
        """Change parts of an object. A JSON patch is retried only if the server did not receive it."""
        return as_object(
            await self._call(
                "PATCH",
                res,
                ns,
                name,
                subresource,
                params={"fieldManager": field_manager},
                body=patch,
                content_type=_PATCHES[kind],
                retry="unprocessed" if kind == "json" else "always",
            ),
            res,
        )

    async def patch_status(self, res: Resource, name: str, patch: Object, ns: str | None = None) -> Object:
        """Merge a patch into ``.status`` (JSON merge patch)."""
        return await self.patch(res, name, patch, ns, subresource="status")

    async def apply(
        self,
        obj: Object,
        *,
        field_manager: str = FIELD_MANAGER,
        force: bool = True,
        dry_run: bool = False,
        subresource: str | None = None,
    ) -> Object:
        """Server-side apply: create, or take over the named fields; without ``force`` a foreign owner gives
        Conflict.
        """
        res = await self.resource(str(obj.get("apiVersion") or ""), str(obj.get("kind") or ""))
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        if dry_run:
            params["dryRun"] = "All"
        answer = await self._call(
            "PATCH",
            res,
            _namespace(obj),
            _name(obj),
            subresource,
            params=params,
            body=obj,
            content_type="application/apply-patch+yaml",
        )
        return as_object(answer, res)

    async def delete(
        self,
        res: Resource,
        name: str,
        ns: str | None = None,
        *,
        grace: int | None = None,
        uid: str | None = None,
        rv: str | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
    ) -> Object:
        """Request deletion; ``grace`` in seconds, ``uid`` and ``rv`` as preconditions (Conflict when they differ).

        Raises NotFound when it is not there.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {key: value for key, value in (("uid", uid), ("resourceVersion", rv)) if value}
        if preconditions:
            options["preconditions"] = preconditions
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if propagation:
            options["propagationPolicy"] = propagation
        answer: Object = await self._call("DELETE", res, ns, name, body=options)
        return answer

    async def bind(self, ns: str, pod: str, uid: str, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Give a pod its node and annotations in one write; raises Conflict when it has one already.

        The server gives up after ``BIND_SECONDS``, so that none is carried out long after its sender has ended.
        API servers since 1.23 refuse (Conflict) when the pod of that name has another ``uid``; older ones ignore it, so
        the caller reads before and verifies after.
        """
        limit = {"timeout": f"{BIND_SECONDS}s"}
        if self._packs:
            from belay.engine.kube import pod_protobuf  # see ``pod_heads``

            try:
                data = pod_protobuf.binding(ns, pod, uid, node, annotations or {})
                await self._call(
                    "POST", POD, ns, pod, "binding", params=limit, data=data, content_type=PROTOBUF, retry="unprocessed"
                )
            except KubeError as error:
                if error.status != 415:
                    raise
                self._packs = False  # some proxies and simulators support JSON only
            else:
                return
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": ns, "uid": uid, "annotations": dict(annotations or {})},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._call("POST", POD, ns, pod, "binding", params=limit, body=binding, retry="unprocessed")

    async def evict(self, ns: str, pod: str, grace: int | None = None, *, uid: str | None = None) -> None:
        """Request a pod's eviction. Raises TooMany when a disruption budget refuses, NotFound when the pod is gone.

        Servers before 1.22 serve only policy/v1beta1; the version that works is remembered.
        """
        tried = self._eviction_version  # of several at once, each that was refused tries again
        try:
            await self._evict(ns, pod, grace, uid)
        except Invalid:
            if tried == "policy/v1beta1":
                raise
            self._eviction_version = "policy/v1beta1"
            await self._evict(ns, pod, grace, uid)

    async def event(
        self,
        regarding: Object,
        reason: str,
        message: str,
        *,
        now: float,
        kind: Literal["Normal", "Warning"] = "Normal",
        component: str = FIELD_MANAGER,
    ) -> None:
        """Write an Event about an object. The same event again raises ``count`` instead of creating another one."""
        metadata = regarding.get("metadata") or {}
        ns = str(metadata.get("namespace") or "default")
        text = bounded(message, 1000)
        key = "\0".join(str(part) for part in (metadata.get("uid"), regarding.get("kind"), reason, text, component))
        name = f"{str(metadata.get('name') or 'object')[:230]}.{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": ns},
            "involvedObject": {
                "apiVersion": regarding.get("apiVersion"),
                "kind": regarding.get("kind"),
                "name": metadata.get("name"),
                "namespace": metadata.get("namespace"),
                "uid": metadata.get("uid"),
            },
            "reason": reason,
            "message": text,
            "type": kind,
            "source": {"component": component},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            await self.create(EVENT, event)
        except Conflict:
            seen = await self.get(EVENT, name, ns)
            count = int((seen or {}).get("count") or 1) + 1
            await self.patch(EVENT, name, {"count": count, "lastTimestamp": stamp}, ns)

    # kinds

    async def resource(self, api_version: str, kind: str) -> Resource:
        """The resource of a kind: known, or discovered and remembered.

        Raises NotFound when the server does not serve it; that answer is kept for 30 s.
        """
        key = (api_version, kind)
        found = KNOWN.get(key) or self._discovered.get(key)
        if found is not None:
            return found
        if not api_version or not kind:
            raise Invalid("an object needs apiVersion and kind", status=400)
        if time.monotonic() - self._missing.get(key, float("-inf")) >= _UNKNOWN_KIND_SECONDS:
            for resource in await self._discover(api_version):
                self._discovered[(resource.api_version, resource.kind)] = resource
            if key in self._discovered:
                return self._discovered[key]
            self._missing[key] = time.monotonic()
        raise NotFound(
            f"{api_version} {kind}: the API server does not serve this kind",
            status=404,
            reason="NotFound",
            refusal=RefusalCause.KIND_NOT_SERVED,
        )

    async def served(self, res: Resource) -> bool:
        """Whether the server serves the kind now, by a new discovery (a CRD may come and go)."""
        return any(found.plural == res.plural for found in await self._discover(res.api_version))

    async def _discover(self, api_version: str) -> Sequence[Resource]:
        group = Resource(api_version, "", "").group_path
        try:
            answer = await self._transport.call("GET", group)
        except NotFound:
            return []
        rows = answer.get("resources") if isinstance(answer, dict) else None
        return [
            Resource(api_version, str(row.get("kind")), str(row.get("name")), bool(row.get("namespaced")))
            for row in rows or []
            if isinstance(row, dict) and "/" not in str(row.get("name"))
        ]

    async def _evict(self, ns: str, pod: str, grace: int | None, uid: str | None) -> None:
        options: Object = {}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid:
            options["preconditions"] = {"uid": uid}
        eviction = {
            "apiVersion": self._eviction_version,
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": ns},
            "deleteOptions": options,
        }
        await self._call("POST", POD, ns, pod, "eviction", body=eviction, retry="never")


def _namespace(obj: Object) -> str | None:
    return (obj.get("metadata") or {}).get("namespace") or None


def _name(obj: Object) -> str:
    name = (obj.get("metadata") or {}).get("name")
    if not name:
        raise Invalid("an object needs metadata.name", status=400)
    return str(name)
