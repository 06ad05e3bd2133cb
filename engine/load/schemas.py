"""JSON Schemas of Belay's kinds, for editors; ``policies/schemas/`` holds what :func:`schemas` returns."""

from __future__ import annotations

from typing import Any

import orjson

from belay.engine.documents import KINDS
from belay.engine.load.validation_errors import json_schema

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """Schema by file name: one per kind, and ``belay.json`` for files that mix kinds."""
    found: dict[str, dict[str, Any]] = {}
    for kind in sorted(KINDS):
        found[f"{kind.lower()}.json"] = {"$schema": _DIALECT, **json_schema(KINDS[kind])}
    found["belay.json"] = {
        "$schema": _DIALECT,
        "title": "Any kind of belay.dev/v1alpha1",
        "oneOf": [{"$ref": f"{kind.lower()}.json"} for kind in sorted(KINDS)],
    }
    return found


def schema_text(schema: dict[str, Any]) -> bytes:
    """A schema as the file holds it."""
    return orjson.dumps(schema, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SORT_KEYS)
