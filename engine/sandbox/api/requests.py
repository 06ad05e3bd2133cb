"""Parsing of one HTTP request: path, verb, query, accepted formats and body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from belay.engine.sandbox.api import protobuf
from belay.engine.sandbox.api.errors import (
    bad_request,
    field_required,
    field_unsupported,
    invalid_kind,
    no_such_path,
    too_large,
)
from belay.engine.sandbox.api.kinds import ResourceRegistry, ServedResource
from belay.engine.sandbox.api.objects import WriteOptions
from belay.engine.wire import yamltext

MAX_BODY = 3 * 1024 * 1024
"""Largest request body, bytes, the limit of kube-apiserver."""

_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_VALIDATION = ("Ignore", "Warn", "Strict")


@dataclass(slots=True)
class Target:
    """The target of a path. `namespace` is None for all namespaces (and empty for cluster-scoped kinds)."""

    resource: ServedResource
    namespace: str | None
    name: str
    subresource: str
    verb: str

    @property
    def label(self) -> str:
        """The resource as fault rules name it: `plural` or `plural/subresource`."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


def target(registry: ResourceRegistry, method: str, parts: list[str], watch: bool) -> Target:
    """Resolve the parts of `/api/v1/...` or `/apis/<group>/<version>/...`. Raises ApiError 404 or 405."""
    if parts[0] == "api":
        group, version, rest = "", parts[1], parts[2:]
    else:
        group, version, rest = parts[1], parts[2], parts[3:]
    if rest and rest[0] == "watch":
        watch, rest = True, rest[1:]
    namespace: str | None = None
    if len(rest) >= 3 and rest[0] == "namespaces" and not (len(rest) == 3 and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3 + (rest[0] == "services"):
        raise no_such_path()
    resource = registry.find(group, version, rest[0])
    if resource is None or (namespace is not None and not resource.namespaced):
        raise no_such_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = "/".join(rest[2:])
    if not resource.namespaced:
        namespace = ""
    elif namespace is None and name:
        raise no_such_path()
    verb = _VERBS.get(method, "")
    if not name:
        verb = {"get": "watch" if watch else "list", "delete": "deletecollection", "create": "create"}.get(verb, "")
    elif verb == "get" and watch:
        verb = "watch"
    return Target(resource, namespace, name, subresource, verb)


def write_options(query: Mapping[str, str], user_agent: str, verb: str, *, subresource: str) -> WriteOptions:
    """Read dryRun, fieldManager, fieldValidation and force.

    Raises ApiError 400 or 422 on values that are not allowed.
    """
    dry_run = query.get("dryRun", "")
    if dry_run not in ("", "All"):
        kind = f"{verb.removesuffix('collection').capitalize()}Options"
        errors = [field_unsupported("dryRun", [dry_run], ["All"])]
        raise invalid_kind(f"{kind}.meta.k8s.io", "meta.k8s.io", kind, "", errors)
    validation = query.get("fieldValidation") or "Warn"
    if validation not in _VALIDATION:
        errors = [field_unsupported("fieldValidation", validation, ["", *_VALIDATION])]
        raise invalid_kind("CreateOptions.meta.k8s.io", "meta.k8s.io", "CreateOptions", "", errors)
    manager = query.get("fieldManager") or user_agent.partition("/")[0][:128] or "unknown"
    return WriteOptions(
        manager=manager,
        dry_run=bool(dry_run),
        validation=validation,
        force=query.get("force") in ("true", "1", "True"),
        subresource=subresource if subresource == "status" else "",
    )


def require_manager(query: Mapping[str, str]) -> None:
    """Reject an apply without a field manager."""
    if not query.get("fieldManager"):
        errors = [field_required("fieldManager", "is required for apply patch")]
        raise invalid_kind("PatchOptions.meta.k8s.io", "meta.k8s.io", "PatchOptions", "", errors)


async def body(request: web.BaseRequest) -> bytes:
    """Read the body. Raises ApiError 413 beyond MAX_BODY."""
    if (request.content_length or 0) > MAX_BODY:
        raise too_large(MAX_BODY)
    if not request.can_read_body:
        return b""
    read = await request.content.read(MAX_BODY + 1)
    pieces = [read]
    size = len(read)
    while not request.content.at_eof() and size <= MAX_BODY:
        read = await request.content.read(MAX_BODY + 1 - size)
        pieces.append(read)
        size += len(read)
    if size > MAX_BODY:
        raise too_large(MAX_BODY)
    return b"".join(pieces)


def parsed(raw: bytes, content_type: str) -> Any:
    """Parse a body as JSON, or as YAML or protobuf by its content type. Raises ApiError 400 or 415."""
    if content_type.startswith(protobuf.MEDIA_TYPE):
        return protobuf.parse(raw)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if "yaml" not in content_type:
            raise bad_request(f"the object provided is unrecognized (must be of type Object): {error}") from error
    try:
        return yamltext.load(raw.decode())
    except ValueError as error:
        raise bad_request(f"error converting YAML to JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class Accept:
    """The format that a client requests: `table` and `partial` are the transformations of meta.k8s.io."""

    table: bool = False
    partial: bool = False
    discovery: str = ""


def accepted(header: str) -> Accept:
    """Parse an Accept header: the first known format, plain JSON otherwise."""
    if "as=" not in header:
        return Accept()
    for clause in header.split(","):
        fields = dict(part.strip().partition("=")[::2] for part in clause.split(";")[1:])
        if not clause.strip().startswith("application/json"):
            continue
        wanted = fields.get("as", "")
        if wanted == "Table":
            return Accept(table=True)
        if wanted in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return Accept(partial=True)
        if wanted == "APIGroupDiscoveryList" and fields.get("v") in ("v2", "v2beta1"):
            return Accept(discovery=fields["v"])
        if not wanted:
            return Accept()
    return Accept()
