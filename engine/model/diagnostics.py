"""Findings about inputs, with their place; accumulated, never first-fail.

One type serves documents in Git (``file:line:column``) and objects in the cluster (``object`` and ``field``), so that
`belay validate`, `belay plan` and the status ConfigMaps show them alike.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "info"]


class Origin(msgspec.Struct, frozen=True, order=True):
    """Place where a document begins in its repository; lines and columns count from 1."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class ObjectKey(msgspec.Struct, frozen=True, order=True):
    """Names one Kubernetes object; ``namespace`` is empty for cluster-scoped kinds."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}" if self.namespace else f"{self.kind}/{self.name}"


class Diagnostic(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """One finding. ``object`` is ``Kind/namespace/name`` or empty; ``line`` and ``column`` are 0 without a file.

    ``code`` is the word by which `belay explain` knows it; findings that another version recorded may have none.
    """

    severity: Severity
    object: str
    file: str
    line: int
    column: int
    field: str
    message: str
    code: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.file else self.object
        field = f" {self.field}" if self.field else ""
        code = f" [{self.code}]" if self.code else ""
        return f"{place}{field} - {self.severity}: {self.message}{code}"
