"""The response to a resolved request: one method per verb, independent of HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from belay.engine.model.labels import SANDBOX_LOG
from belay.engine.model.patches import merge_patch
from belay.engine.sandbox.api import lists, patches, reviews, versions
from belay.engine.sandbox.api.deletion import Deletion, delete_options, deleted_status
from belay.engine.sandbox.api.errors import bad_request, method_not_allowed, no_such_path, success, unsupported_media
from belay.engine.sandbox.api.kinds import JSON, ServedResource
from belay.engine.sandbox.api.objects import ObjectWriter, WriteOptions
from belay.engine.sandbox.api.requests import Accept, Target, parsed, require_manager
from belay.engine.sandbox.api.schema import ANY
from belay.engine.sandbox.api.selectors import selection
from belay.engine.sandbox.api.store import ObjectVersion
from belay.engine.sandbox.api.subresources import Subresources
from belay.engine.sandbox.api.tables import TableBuilder, partial

Query = Mapping[str, str]
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"


@dataclass(slots=True)
class VerbResult:
    """The response: bytes, HTTP status, content type and warnings."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Call:
    """One request for a resource, with its body."""

    target: Target
    query: Query
    accept: Accept
    raw: bytes
    content_type: str
    options: WriteOptions


class Verbs:
    """Answers calls. Every method runs without yielding."""

    def __init__(self, objects: ObjectWriter, deletion: Deletion, paging: lists.Lists) -> None:
        self.objects = objects
        self.deletion = deletion
        self.lists = paging
        self.subresources = Subresources(objects, deletion)

    def answer(self, call: Call) -> VerbResult:
        """Carry out a call. Raises ApiError."""
        target = call.target
        if target.subresource and target.subresource != "status":
            return self._subresource(call)
        if target.subresource == "status" and not target.resource.status:
            raise no_such_path()
        if target.verb not in target.resource.verbs:
            raise method_not_allowed()
        match target.verb:
            case "get":
                return self._shown(call, self.objects.get(target.resource, target.namespace or "", target.name))
            case "list":
                return self._list(call)
            case "create":
                return self._create(call)
            case "update":
                return self._update(call)
            case "patch":
                return self._patch(call)
            case "delete":
                return self._delete(call)
            case "deletecollection":
                return self._delete_collection(call)
            case _:
                raise method_not_allowed()

    def _shown(self, call: Call, entry: ObjectVersion, status: int = 200) -> VerbResult:
        resource = call.target.resource
        if call.accept.table:
            made = TableBuilder(resource, call.query.get("includeObject", ""), self.objects.clock()).single(entry)
        elif call.accept.partial:
            made = orjson.dumps(partial(entry))
        else:
            made = versions.bytes_for(resource, entry)
        return VerbResult(made, status, warnings=call.options.warnings)

    def _list(self, call: Call) -> VerbResult:
        target, query, accept = call.target, call.query, call.accept
        selected = selection(target.resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        page = self.lists.page(target.resource, target.namespace, selected, query)
        render = lists.renderer(
            target.resource,
            table=accept.table,
            partial=accept.partial,
            include=query.get("includeObject", ""),
            now=self.objects.clock(),
        )
        return VerbResult(render(page))

    def _create(self, call: Call) -> VerbResult:
        target = call.target
        obj = parsed(call.raw, call.content_type)
        if target.resource.verbs == ("create",):
            return self._review(call, obj)
        if target.name:
            raise method_not_allowed()
        namespace = target.namespace
        if namespace is None:
            raise bad_request("namespace is required for this kind; post to .../namespaces/<namespace>/...")
        return self._shown(call, self.objects.create(target.resource, namespace, obj, call.options), 201)

    def _review(self, call: Call, obj: Any) -> VerbResult:
        resource = call.target.resource
        if resource.kind == "Binding":
            name = ((obj if isinstance(obj, dict) else {}).get("metadata") or {}).get("name") or ""
            return self._bind(call, name, obj)
        return VerbResult(orjson.dumps(reviews.answer(resource, obj if isinstance(obj, dict) else {})), 201)

    def _update(self, call: Call) -> VerbResult:
        target = call.target
        obj = parsed(call.raw, call.content_type)
        entry, _ = self.objects.update(target.resource, target.namespace or "", target.name, obj, call.options)
        return self._shown(call, entry)

    def _patch(self, call: Call) -> VerbResult:
        target = call.target
        kind = call.content_type.partition(";")[0].strip()
        if kind == APPLY_PATCH:
            require_manager(call.query)
            config = parsed(call.raw, "yaml")
            entry, created = self.objects.apply(
                target.resource, target.namespace or "", target.name, config, call.options
            )
            return self._shown(call, entry, 201 if created else 200)
        change = self._change(target.resource, kind, parsed(call.raw, ""))
        entry, _ = self.objects.patch(target.resource, target.namespace or "", target.name, change, call.options)
        return self._shown(call, entry)

    def _change(self, resource: ServedResource, kind: str, patch: Any) -> Callable[[JSON], JSON]:
        if kind == JSON_PATCH:
            return lambda obj: patches.json_patch(obj, patch)
        if not isinstance(patch, dict):
            raise bad_request("a patch of this type is an object")
        if kind == MERGE_PATCH:
            return lambda obj: dict(merge_patch(obj, patch))
        if kind == STRATEGIC_PATCH and not resource.custom:
            return lambda obj: dict(patches.strategic_merge(resource.node or ANY, obj, patch))
        known = (
            [JSON_PATCH, MERGE_PATCH, APPLY_PATCH]
            if resource.custom
            else [JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH]
        )
        raise unsupported_media(known)

    def _delete(self, call: Call) -> VerbResult:
        target = call.target
        if target.subresource:
            raise method_not_allowed()
        options = delete_options(parsed(call.raw, call.content_type) if call.raw.strip() else None, call.query)
        entry, gone = self.deletion.delete(target.resource, target.namespace or "", target.name, options)
        if gone and target.resource.storage != "pods":
            return VerbResult(orjson.dumps(deleted_status(target.resource, entry)))
        return VerbResult(versions.bytes_for(target.resource, entry))

    def _delete_collection(self, call: Call) -> VerbResult:
        target, query = call.target, call.query
        if target.namespace is None:
            raise method_not_allowed()
        options = delete_options(parsed(call.raw, call.content_type) if call.raw.strip() else None, query)
        selected = selection(target.resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        found = self.lists.select(target.resource, target.namespace, selected)
        for entry in found:
            if self.objects.store.get(entry.storage, entry.key) is not None:
                self.deletion.delete(target.resource, *entry.key, options)
        return VerbResult(lists.list_bytes(target.resource, lists.Page(found, self.objects.store.rv)))

    # -- subresources

    def _subresource(self, call: Call) -> VerbResult:
        target = call.target
        if target.resource.storage == "pods" and target.subresource in ("exec", "attach", "portforward", "proxy"):
            raise bad_request(f"pods of the sandbox are simulated and have no containers for {target.subresource}")
        known = {sub[0] for sub in target.resource.subresources}
        if target.subresource not in known:
            raise no_such_path()
        namespace = target.namespace or ""
        match target.subresource, target.verb:
            case "binding", "create":
                return self._bind(call, target.name, parsed(call.raw, call.content_type))
            case "eviction", "create":
                self.subresources.evict(
                    target.resource, namespace, target.name, parsed(call.raw, call.content_type), call.query
                )
                return VerbResult(orjson.dumps(success(code=201)), 201)
            case "log", "get":
                pod = self.objects.get(target.resource, namespace, target.name).obj
                return VerbResult(self._log(pod, call.query), content_type="text/plain")
            case "token", "create":
                self.objects.get(target.resource, namespace, target.name)
                obj = parsed(call.raw, call.content_type)
                return VerbResult(
                    orjson.dumps(reviews.token_request(namespace, target.name, obj, self.objects.clock())), 201
                )
            case "finalize", "update":
                return self._finalize(call)
            case "scale", _:
                return self._scale(call)
            case _:
                raise method_not_allowed()

    def _bind(self, call: Call, name: str, binding: Any) -> VerbResult:
        pods = self.objects.registry.find("", "v1", "pods")
        if pods is None or not name:
            raise bad_request("metadata.name of the Binding is required")
        self.subresources.bind(pods, call.target.namespace or "", name, binding, dry_run=call.options.dry_run)
        return VerbResult(orjson.dumps(success(code=201)), 201)

    def _log(self, pod: JSON, query: Query) -> bytes:
        text: str = (pod["metadata"].get("annotations") or {}).get(SANDBOX_LOG, "")
        tail = query.get("tailLines", "")
        if tail.isdigit():
            lines = text.splitlines(keepends=True)
            text = "".join(lines[len(lines) - min(int(tail), len(lines)) :])
        return (text if not text or text.endswith("\n") else text + "\n").encode()

    def _finalize(self, call: Call) -> VerbResult:
        entry = self.objects.get(call.target.resource, "", call.target.name)
        return self._shown(call, entry)

    def _scale(self, call: Call) -> VerbResult:
        target = call.target
        live = self.objects.get(target.resource, target.namespace or "", target.name)
        scale = self.subresources.scale_of(target.resource, live)
        match target.verb:
            case "get":
                return VerbResult(orjson.dumps(scale))
            case "update":
                wanted = parsed(call.raw, call.content_type)
            case "patch":
                kind = call.content_type.partition(";")[0].strip()
                patch = parsed(call.raw, "yaml")
                wanted = patches.json_patch(scale, patch) if kind == JSON_PATCH else merge_patch(scale, patch)
            case _:
                raise method_not_allowed()
        entry = self.subresources.set_scale(target.resource, live, wanted, call.options)
        return VerbResult(orjson.dumps(self.subresources.scale_of(target.resource, entry)))
