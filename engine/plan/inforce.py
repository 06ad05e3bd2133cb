"""The declarations in force, as the memory keeps them: what a pass falls back to when a new revision is held back.

``History.policy_revision`` holds them as canonical JSON: the fault policies that judge, and the node pools as they
were when they last did not overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from engine.documents import SHIPPED, Declared, Desired, FaultPolicy, NodePool
from engine.model.diagnostics import Origin

#: A larger text is not kept (a ConfigMap takes 1 MiB): then a change of policy cannot be held back as a whole.
MAX_CHARS: Final = 400_000


def fault_policies(desired: Desired) -> tuple[Declared[FaultPolicy], ...]:
    """Every fault policy in the order in which later ones win: the shipped ones, then the repository's by name."""
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
    """The fault policies that the memory says were in force; None when it does not know."""
    rows = _rows(kept, "faultPolicies")
    if rows is None:
        return None
    try:
        return tuple(
            Declared(FaultPolicy.model_validate(row["document"]), Origin(str(row["file"]), int(row["line"])))
            for row in rows
        )
    except (ValueError, KeyError, TypeError):
        return None  # what cannot be read cannot be kept in force: the new revision is judged by the budgets alone


def previous_pools(kept: str) -> tuple[NodePool, ...]:
    """The node pools of the last declaration without overlaps."""
    try:
        return tuple(NodePool.model_validate(row) for row in _rows(kept, "nodePools") or ())
    except ValueError:
        return ()  # unknown: then the first pool by name is taken


def _rows(kept: str, key: str) -> list[Any] | None:
    try:
        body = json.loads(kept) if kept else None
    except ValueError:
        return None
    rows = body.get(key) if isinstance(body, dict) else None
    return rows if isinstance(rows, list) else None
