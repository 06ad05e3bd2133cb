"""Actions as JSON documents, for `belay plan`, digests and messages to ``act``.

The contract keeps an action's parameters under ``preconditions``, beside what is checked; in the code each is a field
of its action. This module alone knows both layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.actions import Action, AnyAction
from belay.engine.model.reasons import ActionReason

_PARAMETERS: Final[Mapping[str, Mapping[str, str]]] = {
    "CreateObject": {"generate": "generate"},
    "PatchObject": {"patchType": "patchType"},
    "DeleteObject": {"propagation": "propagation", "budgetUnit": "budgetUnit"},
    "BindPod": {"gang": "gang"},
    "IsolateNode": {"cordon": "cordon"},
    "ReleaseNode": {"uncordon": "uncordon"},
    "ResetChips": {"job": "job", "notBefore": "notBefore", "online": "online"},
    "SignalJob": {"budgetUnit": "budgetUnit", "rankList": "rankList"},
    "WriteRankTable": {
        "configMap": "configMap", "configMapNamespace": "namespace", "file": "file", "version": "version",
    },
}  # fmt: skip
"""Kind of action → its fields that stand under ``preconditions``, and their names there."""

_ORDER: Final[Mapping[str, tuple[str, ...]]] = {
    "PatchObject": ("patchType", "uid"),
    "WriteRankTable": ("configMap", "namespace", "file", "uid", "jobUid", "version"),
}
"""Order of the keys where parameters do not come last."""


def document(action: Action) -> dict[str, Any]:
    """An action as plain JSON values."""
    plain: dict[str, Any] = msgspec.to_builtins(action)
    moved = _PARAMETERS.get(plain["kind"])
    if moved is None:
        return plain
    inner = plain["preconditions"]
    for field, name in moved.items():
        value = plain.pop(field)
        if value is not None:
            inner[name] = value
    order = _ORDER.get(plain["kind"])
    if order is not None and not _marks(plain):
        plain["preconditions"] = {name: inner[name] for name in order if name in inner} | inner
    return plain


def action_of(plain: Mapping[str, Any]) -> AnyAction:
    """The action that a document describes.

    Raises:
        msgspec.ValidationError: it describes none.
    """
    body = dict(plain)
    kind, inner = body.get("kind"), body.get("preconditions")
    if isinstance(kind, str) and isinstance(inner, dict):
        inner = body["preconditions"] = dict(inner)
        for field, name in _PARAMETERS.get(kind, {}).items():
            if name in inner:
                body[field] = inner.pop(name)
    action: AnyAction = msgspec.convert(body, AnyAction)
    return action


def _marks(plain: Mapping[str, Any]) -> bool:
    """Whether a patch marks a node or pod for faults: ``uid`` comes first there, as in earlier versions."""
    patches = plain.get("objectKind") in ("Node", "Pod") and plain["preconditions"].get("patchType") == "merge"
    return patches and plain["reason"] != ActionReason.RANK_ASSIGNED


__all__ = ["action_of", "document"]
