"""Reads objects that clients send as protobuf (`application/vnd.kubernetes.protobuf`); answers are always JSON.

The format is a four-byte magic number and `runtime.Unknown` (k8s.io/apimachinery/pkg/runtime/generated.proto) around
the object's own message.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from belay.engine.sandbox.api.builtin import builtin_resources, model_of
from belay.engine.sandbox.api.errors import ApiError, bad_request
from belay.engine.sandbox.api.kinds import JSON
from belay.engine.sandbox.api.metadata import timestamp
from belay.engine.sandbox.api.protonumbers import field_names
from belay.engine.sandbox.api.schema import builtin_models

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
MAX_DEPTH = 40

# scalars that Go writes even when unset, but that JSON omits
_OMITTED_ZEROS = {
    "hostNetwork", "hostPID", "hostIPC", "stdin", "stdinOnce", "tty", "generation", "minReadySeconds", "paused",
    "nodePort", "hostPort", "publishNotReadyAddresses", "healthCheckNodePort", "globalDefault", "observedGeneration",
}  # fmt: skip
_INT_OR_STRING = {"targetPort", "maxUnavailable", "maxSurge", "minAvailable"}
_QUANTITIES = {"limits", "requests", "hard", "overhead"}
_UNSTORED_KINDS = {
    "DeleteOptions": "V1DeleteOptions",
    "Eviction": "V1Eviction",
    "Scale": "V1Scale",
    "TokenRequest": "AuthenticationV1TokenRequest",
}


def parse(raw: bytes) -> JSON:
    """Return the object in a protobuf body.

    Raises ApiError 400 when malformed, 415 for unknown types and fields.
    """
    if not raw.startswith(MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix 'k8s\\x00'")
    try:
        envelope = dict(_fields(raw[len(MAGIC) :]))
        types = dict(_fields(envelope.get(1, b"")))
        api_version, kind = types.get(1, b"").decode(), types.get(2, b"").decode()
        message = _UNSTORED_KINDS.get(kind) or _model(api_version, kind)
        found = _message(message, envelope.get(2, b""), 0)
    except (IndexError, ValueError, AttributeError, TypeError) as error:
        raise bad_request(f"malformed protobuf message: {error}") from error
    return {"apiVersion": api_version, "kind": kind, **found}


def _model(api_version: str, kind: str) -> str:
    for resource in builtin_resources():
        if resource.kind == kind and resource.api_version == api_version:
            return model_of(resource)
    raise _unknown(f"{api_version} {kind}")


def _unknown(what: str) -> ApiError:
    text = f"protobuf of {what} is not understood here, send application/json"
    return ApiError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {text}")


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value): integers of varints, bytes of everything with a length."""
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(raw, position)
            yield tag >> 3, value
        elif kind == 2:
            length, position = _varint(raw, position)
            if position + length > len(raw):
                raise ValueError("a field is longer than its message")
            yield tag >> 3, raw[position : position + length]
            position += length
        else:
            raise ValueError(f"wire type {kind}")


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def _message(message: str, raw: bytes, depth: int) -> JSON:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    names = field_names(message)
    types = builtin_models().get(message, {})
    found: JSON = {}
    for number, value in _fields(raw):
        name = names.get(number)
        if name == "status" and depth == 0:
            # objects that clients create have no status, so the tables omit its messages
            continue
        if name is None or name not in types:
            raise _unknown(f"field {number} of {message.removeprefix('V1')}")
        _put(found, name, types[name][0], value, depth)
    return found


def _put(found: JSON, name: str, kind: str, value: Any, depth: int) -> None:
    if listed := re.fullmatch(r"List\[(.*)\]", kind):
        found.setdefault(name, []).append(_value(name, listed[1], value, depth))
    elif mapped := re.fullmatch(r"Dict\[str, (.*)\]", kind):
        entry = dict(_fields(value))
        key = entry.get(1, b"").decode()
        found.setdefault(name, {})[key] = _value(name, mapped[1], entry.get(2, b""), depth)
    else:
        read = _value(name, kind, value, depth)
        if read is not None and read != "" and (read or name not in _OMITTED_ZEROS):
            found[name] = read


def _value(name: str, kind: str, value: Any, depth: int) -> Any:
    if name in _QUANTITIES:
        return dict(_fields(value)).get(1, b"").decode()
    match kind:
        case "str":
            return value.decode()
        case "bytes":
            return base64.b64encode(value).decode()
        case "bool":
            return bool(value)
        case "int":
            return value - (1 << 64) if value >= 1 << 63 else value
        case "datetime":
            time = dict(_fields(value))
            return timestamp(time[1]) if time.get(1) else None
        case "object" if name in _INT_OR_STRING:
            either = dict(_fields(value))
            return either.get(3, b"").decode() if either.get(1) else either.get(2, 0)
        case "object":
            raise _unknown(f"field {name}")
        case _:
            return _message(kind, value, depth + 1)
