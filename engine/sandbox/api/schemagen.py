"""Writes schemas.json: field names, types and one-line descriptions of the built-in kinds.

Source: the models of the official Kubernetes Python client (Apache-2.0), which are generated from Kubernetes' OpenAPI
document. Kept as data so that the server needs neither the client's 44 MB nor its import time. Run after an upgrade of
the client:

    python -m belay.engine.sandbox.api.schemagen
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import orjson

from belay.engine.sandbox.api.builtin import builtin_resources, model_of

TARGET = Path(__file__).with_name("schemas.json")
EXTRA = ("V1Eviction", "V1Scale", "V1DeleteOptions", "AuthenticationV1TokenRequest")
_NAME = re.compile(r"[A-Za-z0-9]+")
_DESCRIPTION_CHARS = 140


def generate() -> bytes:
    """Return the content of schemas.json: {type: {field: [type, description]}}, sorted."""
    models: Any = importlib.import_module("kubernetes.client.models")
    waiting = [model_of(resource) for resource in builtin_resources()] + list(EXTRA)
    found: dict[str, dict[str, list[str]]] = {}
    while waiting:
        name = waiting.pop()
        model = getattr(models, name, None)
        if name in found or model is None or not hasattr(model, "openapi_types"):
            continue
        fields: dict[str, list[str]] = {}
        for attribute, kind in model.openapi_types.items():
            described = model.model_fields[attribute].description if attribute in model.model_fields else ""
            fields[model.attribute_map[attribute]] = [kind, _first_sentence(described or "")]
            waiting.extend(_NAME.findall(kind))
        found[name] = fields
    return orjson.dumps(found, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _first_sentence(text: str) -> str:
    sentence = " ".join(text.split()).split(". ")[0]
    return sentence if len(sentence) <= _DESCRIPTION_CHARS else sentence[: _DESCRIPTION_CHARS - 1] + "…"


if __name__ == "__main__":
    TARGET.write_bytes(generate())
