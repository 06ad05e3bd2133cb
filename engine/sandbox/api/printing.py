"""Helpers for the printers of built-in kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from belay.engine.sandbox.api.kinds import JSON, Column

Age = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Printer:
    """Columns and the function that makes one row's cells."""

    columns: tuple[Column, ...]
    cells: Callable[[JSON, Age], list[Any]]


def columns(text: str) -> tuple[Column, ...]:
    """`Name|Ready:integer|IP*`: `:` gives the type, `*` means only with -o wide."""
    made: list[Column] = []
    for part in text.split("|"):
        name, _, kind = part.rstrip("*").partition(":")
        made.append(
            Column(name, kind or "string", "name" if name == "Name" else "", "", 1 if part.endswith("*") else 0)
        )
    return tuple(made)


def meta(obj: JSON) -> JSON:
    """Return the metadata of an object."""
    found: JSON = obj["metadata"]
    return found


def joined(labels: JSON | None) -> str:
    """Return labels as `a=b,c=d`."""
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or "<none>"


def selector_text(selector: JSON | None) -> str:
    """Return a LabelSelector as one line."""
    if not selector:
        return "<none>"
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for e in selector.get("matchExpressions") or ():
        parts.append(f"{e.get('key')} {str(e.get('operator', '')).lower()} ({','.join(e.get('values') or ())})")
    return ",".join(parts) or "<none>"


def container_texts(spec: JSON) -> tuple[str, str]:
    """Return names and images of a pod spec's containers, joined by commas."""
    containers = spec.get("containers") or ()
    return ",".join(c.get("name", "") for c in containers), ",".join(c.get("image", "") for c in containers)
