"""A small OpenAPI v2 document as protobuf, for kubectl before 1.29.

It defines no types: such a kubectl merges built-in kinds by its own types, and needs ``--validate=false``. It lists
the kinds that accept ``dryRun`` in a patch, for ``kubectl diff`` and ``--dry-run=server``. Field numbers:
OpenAPIv2.proto of github.com/google/gnostic.
"""

from __future__ import annotations

import json
from typing import Final

from belay.engine.sandbox.api.kinds import ResourceRegistry

#: The requested media type. Responses omit the at sign, which Go refuses in a media type.
ACCEPTED: Final = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
CONTENT_TYPE: Final = ACCEPTED.replace("@", ".")

_SWAGGER, _PATHS = 1, 8  # Document
_PATH = 2  # Paths
_NAME, _VALUE = 1, 2  # NamedPathItem, NamedAny
_PATCH = 8  # PathItem
_PARAMETERS, _EXTENSIONS = 8, 13  # Operation
_PARAMETER, _NON_BODY, _QUERY, _PARAMETER_NAME = 1, 2, 3, 4
_YAML = 2  # Any


def document(registry: ResourceRegistry) -> bytes:
    """The document of all served resources."""
    query = _field(_QUERY, _field(_PARAMETER_NAME, b"dryRun"))
    parameter = _field(_PARAMETERS, _field(_PARAMETER, _field(_NON_BODY, query)))
    paths = b""
    for group, versions in registry.groups().items():
        for version in versions:
            for resource in registry.within(group, version):
                kind = json.dumps({"group": group, "kind": resource.kind, "version": version})
                extension = _field(_NAME, b"x-kubernetes-group-version-kind") + _field(
                    _VALUE, _field(_YAML, kind.encode())
                )
                operation = parameter + _field(_EXTENSIONS, extension)
                name = f"/{group}/{version}/{resource.plural}".encode()
                paths += _field(_PATH, _field(_NAME, name) + _field(_VALUE, _field(_PATCH, operation)))
    return _field(_SWAGGER, b"2.0") + _field(_PATHS, paths)


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
