"""Short phrases about actions for tables: their target and their reason."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from belay.engine.model.actions import AnyAction
from belay.engine.model.causes import Cause

_RUN: Final = re.compile(r"\b((?:Ascend\w*|npu)-)\d{1,6}(?:, \1\d{1,6})+\b")


def target(action: AnyAction) -> str:
    """The target of an action: ``namespace/pod``, ``Kind/namespace/name``, a node, or chips of a node."""
    found = msgspec.to_builtins(action)
    if pod := found.get("pod"):
        return f"{found['namespace']}/{pod}"
    if kind := found.get("objectKind"):
        return "/".join(filter(None, (kind, found["namespace"], found["name"])))
    if node := found.get("node"):
        chips = found.get("chips") or ([found["chip"]] if found.get("chip") else [])
        return f"{node}/{ranges(', '.join(chips))}" if chips else str(node)
    return f"{found.get('namespace', '')}/{found.get('name', '')}".strip("/")


def ranges(text: str) -> str:
    """The text with runs of chips written short: ``Ascend910-0, Ascend910-1, Ascend910-2`` is ``Ascend910-0..2``."""
    return _RUN.sub(_shorter, text)


def _shorter(found: re.Match[str]) -> str:
    prefix, numbers = found[1], [int(name.rpartition("-")[2]) for name in found[0].split(", ")]
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    words = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in parts]
    return prefix + ",".join(words)


def cause_text(action: AnyAction) -> str:
    """Return what an action is taken for; of plans of earlier versions, rule, file:line and fault codes."""
    evidence = action.evidence
    if isinstance(evidence.cause, Cause):
        return evidence.cause.text
    place = f"{evidence.file}:{evidence.line}" if evidence.file and evidence.line else evidence.file
    codes = f"codes {','.join(evidence.codes)}" if evidence.codes else ""
    return " ".join(filter(None, (evidence.rule, place, codes)))
