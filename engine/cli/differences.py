"""Answers of `belay diff`: changes that Git makes to live objects, as values and as unified diffs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import yaml

from belay.engine.model.actions import CreateObject, DeleteObject, PatchObject
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import APPLIED_DIGEST
from belay.engine.model.plan import Plan
from belay.engine.model.rules import RuleKind

_HIDDEN: Final = (APPLIED_DIGEST,)
_FILLED_IN: Final = frozenset(
    {
        "apiVersion", "creationTimestamp", "defaultMode", "dnsPolicy", "failureThreshold", "imagePullPolicy",
        "periodSeconds", "protocol", "restartPolicy", "schedulerName", "scheme", "securityContext", "serviceAccount",
        "successThreshold", "terminationGracePeriodSeconds", "terminationMessagePath", "terminationMessagePolicy",
        "timeoutSeconds", "type",
    }
)  # fmt: skip
"""Fields of pod templates that an API server fills in where a manifest leaves them out."""
_CHANGES: Final = {CreateObject: "create", PatchObject: "patch", DeleteObject: "delete"}


class Difference(msgspec.Struct, frozen=True, rename="camel"):
    """One object that Git would change: ``create``, ``patch`` or ``delete``.

    ``before`` and ``after`` are the parts that a patch covers, without the fields that Belay adds; None if the
    object does not exist. ``held_by`` is the budget that defers the change, or empty.
    """

    change: str
    api_version: str
    kind: str
    namespace: str
    name: str
    file: str
    line: int
    held_by: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def changes(plan: Plan, observed: Observed) -> list[Difference]:
    """The changes of live objects by a plan's sync actions, including deferred ones."""
    found: list[Difference] = []
    for action, budget in (*((a, "") for a in plan.actions), *((d.action, d.budget) for d in plan.deferred)):
        if (
            not isinstance(action, CreateObject | PatchObject | DeleteObject)
            or action.evidence.rule_kind is not RuleKind.SYNC
        ):
            continue
        key = ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)
        live = observed.objects.get(key)
        before: Any
        after: Any
        if isinstance(action, CreateObject):
            before, after = None, action.object
        elif isinstance(action, PatchObject):
            before, after = _projected(live or {}, action.patch), action.patch
        else:
            before, after = live or {"kind": key.kind, "metadata": {"name": key.name}}, None
        evidence = action.evidence
        found.append(
            Difference(
                change=_CHANGES[type(action)],
                api_version=key.api_version,
                kind=key.kind,
                namespace=key.namespace,
                name=key.name,
                file=evidence.file,
                line=evidence.line,
                held_by=budget,
                before=_tidy(before),
                after=_tidy(after),
            )
        )
    return found


def differences(found: Sequence[Difference]) -> list[str]:
    """The same as unified differences of YAML."""
    lines: list[str] = []
    for one in found:
        key = ObjectKey(one.api_version, one.kind, one.namespace, one.name)
        origin = f"\t{one.file}:{one.line}" if one.file else ""
        old = f"live/{key}" if one.before is not None else "/dev/null"
        new = f"git/{key}{origin}" if one.after is not None else "/dev/null"
        lines += difflib.unified_diff(_text(one.before), _text(one.after), old, new, lineterm="")
    return lines


def _projected(live: Any, patch: Any) -> Any:
    """The part of a live value that a patch covers, and the keys that it takes out of pod templates."""
    return _covered(live, patch, owned=False)


def _covered(live: Any, patch: Any, *, owned: bool) -> Any:
    """``owned``: below a pod template, where a key that the patch leaves out is removed unless servers fill it in."""
    if isinstance(live, dict) and isinstance(patch, dict):
        shared = {
            key: _covered(live[key], value, owned=owned or key == "template")
            for key, value in patch.items()
            if key in live
        }
        return {key: value for key, value in live.items() if owned and _removed(key, patch)} | shared
    if isinstance(live, list) and isinstance(patch, list):
        return _projected_items(live, patch, owned)
    return live


def _removed(key: str, patch: dict[str, Any]) -> bool:
    """Whether the patch takes a key away that no API server has filled in."""
    return key not in patch and key not in _FILLED_IN and not (key == "requests" and "limits" in patch)


def _projected_items(live: list[Any], patch: list[Any], owned: bool) -> list[Any]:
    """Match items by name, others by position; items that are only live stay complete."""
    named = {item["name"]: item for item in patch if isinstance(item, dict) and isinstance(item.get("name"), str)}
    if named:
        return [
            _covered(item, named[item["name"]], owned=owned)
            if isinstance(item, dict) and item.get("name") in named
            else item
            for item in live
        ]
    return [_covered(item, patch[i], owned=owned) if i < len(patch) else item for i, item in enumerate(live)]


def _text(value: Any) -> list[str]:
    if value is None:
        return []
    return yaml.dump(value, Dumper=_Dumper, sort_keys=True, width=120, allow_unicode=True).splitlines()


def _tidy(value: Any) -> Any:
    """A copy without the fields that Belay adds."""
    if value is None:
        return None
    metadata = value.get("metadata")
    notes = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(notes, dict) or not notes.keys() & set(_HIDDEN):
        return value
    left = {key: text for key, text in notes.items() if key not in _HIDDEN}
    return {
        **value,
        "metadata": {
            **{k: v for k, v in metadata.items() if k != "annotations"},
            **({"annotations": left} if left else {}),
        },
    }


class _Dumper(yaml.CSafeDumper):
    """YAML with block style for texts of several lines, and without anchors: objects of the cluster have none, so that
    what a document shares would look like a difference.
    """

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
