"""OpenAPI v3 documents, sufficient for validation by `kubectl apply` and for `kubectl explain`."""

from __future__ import annotations

import re
from typing import Any

from belay.engine.sandbox.api.builtin import model_of
from belay.engine.sandbox.api.kinds import JSON, ResourceRegistry, ServedResource
from belay.engine.sandbox.api.schema import builtin_models

_SIMPLE: dict[str, JSON] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "datetime": {"type": "string", "format": "date-time"},
    "bytes": {"type": "string", "format": "byte"},
    "object": {"type": "object"},
}
_WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")


def index(registry: ResourceRegistry, prefix: str) -> JSON:
    """Return /openapi/v3: the documents, one per group and version."""
    paths: JSON = {}
    for name, versions in registry.groups().items():
        for version in versions:
            path = f"apis/{name}/{version}" if name else f"api/{version}"
            paths[path] = {"serverRelativeURL": f"{prefix}/openapi/v3/{path}?hash={registry.generation:08X}"}
    return {"paths": paths}


def document(registry: ResourceRegistry, group: str, version: str) -> JSON | None:
    """Return the document of one group and version, None when it is not served."""
    served = registry.within(group, version)
    if not served:
        return None
    schemas: dict[str, JSON] = {}
    paths: JSON = {}
    for resource in served:
        name = _add_schema(resource, schemas)
        base = f"/apis/{group}/{version}" if group else f"/api/{version}"
        scope = "/namespaces/{namespace}" if resource.namespaced else ""
        collection = f"{base}{scope}/{resource.plural}"
        paths[collection] = {"get": _operation(resource, "list", name), "post": _operation(resource, "post", name)}
        verbs = ("get", "put", "patch", "delete")
        paths[f"{collection}/{{name}}"] = {verb: _operation(resource, verb, name) for verb in verbs}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.29.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _gvk(resource: ServedResource) -> JSON:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _operation(resource: ServedResource, verb: str, schema: str) -> JSON:
    operation: JSON = {
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind": _gvk(resource),
        "responses": {
            "200": {
                "description": "OK",
                "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
            }
        },
    }
    if verb in ("post", "put", "patch"):
        operation["parameters"] = [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in _WRITE_PARAMETERS
        ]
    return operation


def _add_schema(resource: ServedResource, schemas: dict[str, JSON]) -> str:
    if resource.custom:
        name = f"{'.'.join(reversed(resource.group.split('.')))}.{resource.version}.{resource.kind}"
        shown: JSON = dict(resource.crd_schema or {"type": "object"})
        metadata = _model("V1ObjectMeta", schemas)
        shown["properties"] = {
            "apiVersion": {
                "type": "string",
                "description": "APIVersion defines the versioned schema of this representation of an object.",
            },
            "kind": {
                "type": "string",
                "description": "Kind is a string value representing the REST resource this object represents.",
            },
            **(shown.get("properties") or {}),
            "metadata": {
                "description": "Standard object's metadata.",
                "allOf": [{"$ref": f"#/components/schemas/{metadata}"}],
            },
        }
        schemas[name] = shown
    else:
        name = _model(model_of(resource), schemas)
    schemas[name] = {**schemas.get(name, {"type": "object"}), "x-kubernetes-group-version-kind": [_gvk(resource)]}
    return name


def _model(model: str, schemas: dict[str, JSON]) -> str:
    name = f"io.k8s.api.{model}"
    fields = builtin_models().get(model)
    if name in schemas or fields is None:
        schemas.setdefault(name, {"type": "object"})
        return name
    schemas[name] = {"type": "object"}
    properties: JSON = {}
    for field, (kind, description) in fields.items():
        shown = _field(kind, schemas)
        properties[field] = {**shown, "description": description} if description else shown
    schemas[name] = {"type": "object", "properties": properties}
    return name


def _field(kind: str, schemas: dict[str, JSON]) -> Any:
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    if listed := re.fullmatch(r"List\[(.*)\]", kind):
        return {"type": "array", "items": _field(listed[1], schemas)}
    if mapped := re.fullmatch(r"Dict\[str, (.*)\]", kind):
        return {"type": "object", "additionalProperties": _field(mapped[1], schemas)}
    return {"allOf": [{"$ref": f"#/components/schemas/{_model(kind, schemas)}"}], "default": {}}
