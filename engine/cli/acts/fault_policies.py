"""FaultPolicies: levels of codes, the mode, and rules, changed in the document that is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from belay.engine.cli.acts import splices
from belay.engine.cli.acts.edits import RepositoryEdit
from belay.engine.cli.acts.placed_documents import FileText, documents, none_or_many, value_at


def change_policy(
    files: Mapping[str, bytes],
    name: str,
    *,
    levels: Mapping[str, str] = MappingProxyType({}),
    dropped: Sequence[str] = (),
    mode: str = "",
    frequency: Sequence[Mapping[str, Any]] = (),
    duration: Sequence[Mapping[str, Any]] = (),
) -> RepositoryEdit:
    """Change a FaultPolicy: levels of codes (``dropped`` go back to the table's), its mode, more rules.

    Raises:
        InputError: the repository declares no such policy, or it gives one of the dropped codes no level.
    """
    found = [one for one in documents(files) if one.kind == "FaultPolicy"]
    rows = [one for one in found if one.name == name]
    if len(rows) != 1:
        raise none_or_many("FaultPolicy", name, rows, found)
    one = rows[0]
    text, spec = FileText.of(files, one.file), ("spec",)
    for code, level in levels.items():
        text = text.edited(splices.with_value, one.number, (*spec, "levels", code), level)
    for code in dropped:
        named = value_at(splices.bodies(text.text)[one.number], (*spec, "levels"), {})
        # a mapping without entries would be a document without levels, which is refused
        only = list(named) == [code]
        text = text.edited(splices.without, one.number, (*spec, "levels") if only else (*spec, "levels", code))
    if mode:
        text = text.edited(splices.with_value, one.number, (*spec, "mode"), mode)
    for key, rules in (("frequency", frequency), ("duration", duration)):
        for rule in rules:
            text = text.edited(splices.with_item, one.number, (*spec, key), _in_braces(rule))
    return RepositoryEdit({one.file: text.data}, f"Change FaultPolicy {name}")


def _in_braces(rule: Mapping[str, Any]) -> str:
    """A rule of a policy as a person writes it in one line."""
    parts = []
    for key, value in rule.items():
        codes = f"[{', '.join(splices.quoted(str(code)) for code in value)}]" if isinstance(value, list) else ""
        parts.append(f"{key}: {codes or (value if isinstance(value, int) else splices.written(str(value)))}")
    return "{" + ", ".join(parts) + "}"
