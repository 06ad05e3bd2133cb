"""JSON as Go's ``encoding/json`` prints it, and the CheckCode over it.

The text must match byte for byte, because MindCluster hashes it
(component/ascend-device-plugin/pkg/common/common.go, component/clusterd/pkg/common/util/util.go).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from belay.engine.wire.errors import WireError

#: Kubernetes refuses ConfigMap data beyond this; a longer text cannot be a real report.
MAX_TEXT = 1024 * 1024

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_TABLE = str.maketrans(_ESCAPES)


def go_json(value: Any) -> str:
    """``value`` as Go prints it: no blanks, UTF-8 unescaped, five characters escaped, dict order kept.

    The caller gives struct fields in declaration order and sorts map keys.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_TABLE)


def check_code(value: Any) -> str:
    """Lower-case hex SHA-256 of the Go serialisation."""
    return hashlib.sha256(go_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def read_object(object_name: str, field: str, text: object) -> dict[str, Any]:
    """Decode one JSON object from a ConfigMap value.

    Raises:
        WireError: absent, not text, too long, not JSON, or not an object.
    """
    value = read_json(object_name, field, text)
    if not isinstance(value, dict):
        raise WireError(object_name, field, f"must be a JSON object, got {type(value).__name__}")
    return value


def read_json(object_name: str, field: str, text: object) -> Any:
    """Decode JSON from a ConfigMap value.

    Raises:
        WireError: absent, not text, too long or not JSON.
    """
    if not isinstance(text, str):
        raise WireError(object_name, field, "key is missing" if text is None else "must be text")
    if len(text) > MAX_TEXT:
        raise WireError(object_name, field, f"is {len(text)} bytes long, the limit is {MAX_TEXT}")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise WireError(object_name, field, f"is not valid JSON: {error}") from error
