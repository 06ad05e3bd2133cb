"""The declarations in force, as the memory keeps them; a pass uses them when it holds a new revision back.

``History.policy_revision`` holds them as canonical JSON: the fault policies in force, and the node pools of the last
revision in which pools did not overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from belay.engine.documents import SHIPPED, Declared, Desired, FaultPolicy, NodePool
from belay.engine.model.diagnostics import Origin

#: A larger text is not kept (a ConfigMap takes 1 MiB); a change of policy can then not be held back.
MAX_CHARS: Final = 400_000


def fault_policies(desired: Desired) -> tuple[Declared[FaultPolicy], ...]:
    """Every fault policy, the weakest first: the shipped ones, then the repository's by name."""
    ranked = sorted(
        desired.fault_policies, key=lambda item: (not item.origin.file.startswith(SHIPPED), item.document.name)
    )
    return tuple(ranked)


def text(policies: Iterable[Declared[FaultPolicy]], pools: Iterable[NodePool]) -> str:
    """The canonical text of the declarations in force."""
    body = {
        "faultPolicies": [
            {"file": item.origin.file, "line": item.origin.line, "document": item.document.manifest()}
            for item in policies
        ],
        "nodePools": [pool.manifest() for pool in pools],
    }
    written = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return written if len(written) <= MAX_CHARS else ""


def previous_policies(kept: str) -> tuple[Declared[FaultPolicy], ...] | None:
    """The fault policies that were in force; None when the memory does not hold them."""
    rows = _rows(kept, "faultPolicies")
    if rows is None:
        return None
    try:
        return tuple(
            Declared(FaultPolicy.model_validate(row["document"]), Origin(str(row["file"]), int(row["line"])))
            for row in rows
        )
    except (ValueError, KeyError, TypeError):
        return None  # unreadable policies cannot stay in force: then only the budgets limit the new revision


def previous_pools(kept: str) -> tuple[NodePool, ...]:
    """The node pools of the last revision without overlaps."""
    try:
        return tuple(NodePool.model_validate(row) for row in _rows(kept, "nodePools") or ())
    except ValueError:
        return ()  # unknown: the caller then takes the first pool by name


def _rows(kept: str, key: str) -> list[Any] | None:
    try:
        body = json.loads(kept) if kept else None
    except (ValueError, RecursionError):
        return None
    rows = body.get(key) if isinstance(body, dict) else None
    return rows if isinstance(rows, list) else None
