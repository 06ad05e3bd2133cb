"""Rows of the table of workloads against the CustomResourceDefinitions of their kinds: fields that these lack."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from belay.engine.documents.problems import Path, Problem
from belay.engine.documents.workload_kinds import NumberField, RoleFields, WorkloadKind, WorkloadKindSpec, parts_of
from belay.engine.model.codes.findings import FindingCode
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.model.workload_kinds import EACH

Schema = Mapping[str, Any]

DEFINITION: Final = "CustomResourceDefinition"
#: Groups whose names end so, and those without a dot, belong to Kubernetes itself, which has no definitions of them.
_OF_KUBERNETES: Final = ".k8s.io"
_OPEN: Final[Schema] = {"x-kubernetes-preserve-unknown-fields": True}
_SHOWN: Final = 12


class Holds(StrEnum):
    """What the engine reads at the end of a path."""

    NUMBER = "a whole number"
    OBJECT = "an object"
    TEXT = "one value"


class FieldUse(NamedTuple):
    """One path of a row: where it stands in the document, the fields that it leads over from the object, what it
    holds, and how many of its fields another path of the row has already been checked for."""

    place: Path
    fields: tuple[str, ...]
    holds: Holds
    checked: int = 0


class _Misread(NamedTuple):
    """What is wrong with a path, and the code of the finding."""

    text: str
    code: FindingCode


def check_against_definitions(row: WorkloadKind, definitions: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """Problems of a row whose kind one of the definitions describes, or ought to."""
    spec = row.spec
    others: list[str] = []
    for definition in definitions:
        described = nested_map(definition, "spec")
        kind = str(nested_map(described, "names").get("kind"))
        if described.get("group") != spec.group:
            continue
        if kind == spec.kind:
            return [*_names(spec, described), *_fields(spec, described)]
        others.append(kind)
    return _unserved(spec, others)


def field_uses(spec: WorkloadKindSpec) -> Iterator[FieldUse]:
    """Every path of a row, from the object on."""
    for index, role in enumerate(spec.roles):
        yield from _of_role(role, ("spec", "roles", index))
    for index, path in enumerate(spec.minimum):
        yield FieldUse(("spec", "minimum", index), parts_of(path), Holds.NUMBER)
    if spec.stepwise is not None:
        yield FieldUse(("spec", "stepwise", "path"), parts_of(spec.stepwise.path), Holds.TEXT)
    yield from _numbers(spec.size, ("spec", "size"), ())
    for name, stated in (("queue", spec.queue), ("priorityClass", spec.priority_class)):
        if stated is not None:
            yield FieldUse(("spec", name), parts_of(stated), Holds.TEXT)
    for key, path in sorted(spec.annotations.items()):
        yield FieldUse(("spec", "annotations", key), parts_of(path), Holds.TEXT)


def _of_role(role: RoleFields, place: Path) -> Iterator[FieldUse]:
    above = parts_of(role.path or "")
    if above:
        yield FieldUse((*place, "path"), above, Holds.OBJECT)
    yield from _numbers(role.replicas, (*place, "replicas"), above)
    if role.template is not None:
        yield FieldUse((*place, "template"), (*above, *parts_of(role.template)), Holds.OBJECT, len(above))
    yield from _numbers(role.minimum, (*place, "minimum"), above)
    if role.minimum_when is not None:
        yield FieldUse((*place, "minimumWhen", "path"), parts_of(role.minimum_when.path), Holds.TEXT)


def _numbers(fields: Iterable[NumberField], place: Path, above: tuple[str, ...]) -> Iterator[FieldUse]:
    for index, field in enumerate(fields):
        yield FieldUse((*place, index, "path"), (*above, *parts_of(field.path)), Holds.NUMBER, len(above))


def _unserved(spec: WorkloadKindSpec, others: list[str]) -> list[Problem]:
    """Of a kind that has no definition among those of the cluster."""
    if "." not in spec.group or spec.group.endswith(_OF_KUBERNETES):
        return []
    if not others:
        text = f"no {DEFINITION} of group {spec.group} is there, so no {spec.kind} is read: is its operator installed?"
        return [Problem(("spec", "group"), text, code=FindingCode.UNKNOWN_NAME)]
    text = f"group {spec.group} has no kind {spec.kind}: {_meant(spec.kind, others)}"
    return [Problem(("spec", "kind"), text, code=FindingCode.UNKNOWN_NAME)]


def _names(spec: WorkloadKindSpec, described: Mapping[str, Any]) -> Iterator[Problem]:
    """What a definition says of the kind itself."""
    plural = str(nested_map(described, "names").get("plural"))
    if plural != spec.plural:
        text = f"{spec.plural!r} is not served: the plural of {spec.kind} ({spec.group}) is {plural}"
        yield Problem(("spec", "plural"), text, code=FindingCode.UNKNOWN_NAME)
    if described.get("scope") != "Namespaced":
        text = f"objects of {spec.kind} ({spec.group}) have no namespace, and such kinds are not read: pods have one"
        yield Problem(("spec", "kind"), text)

    served = _served(described)
    if not any(version in served for version in spec.versions):
        listed = ", ".join(spec.versions)
        text = f"{listed} of {spec.kind} ({spec.group}) is not served: write {' or '.join(sorted(served)) or 'none'}"
        yield Problem(("spec", "versions"), text, code=FindingCode.UNKNOWN_NAME)


def _fields(spec: WorkloadKindSpec, described: Mapping[str, Any]) -> Iterator[Problem]:
    """Paths that the schema of the version which is read does not have."""
    served = _served(described)
    version = next((one for one in spec.versions if one in served), None)
    schema = nested_map(served.get(version or "", {}), "schema", "openAPIV3Schema")
    if not schema:
        return

    wrong: set[tuple[str, ...]] = set()
    for use in field_uses(spec):
        known = use.fields[: use.checked]
        if known and known in wrong:
            continue
        misread = _misread(schema, use)
        if misread is not None:
            wrong.add(use.fields)
            text = f"{spec.kind} ({spec.group}/{version}) {misread.text}"
            yield Problem(use.place, text, code=misread.code)


def _misread(schema: Schema, use: FieldUse) -> _Misread | None:
    """Why a path leads nowhere in a schema; None where it leads to what the engine reads there."""
    at = schema
    for depth, field in enumerate(use.fields):
        inner, known = _inside(at, field)
        if inner is None:
            where = ".".join(use.fields[:depth]) or "the object"
            if field == EACH:
                text = f"has neither a list nor a map in {where}: * stands for the elements of one"
                return _Misread(text, FindingCode.WRONG_TYPE)
            return _Misread(f"has no field {field!r} in {where}: {_meant(field, known)}", FindingCode.UNKNOWN_FIELD)
        at = inner

    if _holds(at, use.holds):
        return None
    return _Misread(f"holds {_word(at)} in {'.'.join(use.fields)}, not {use.holds}", FindingCode.WRONG_TYPE)


def _inside(at: Schema, field: str) -> tuple[Schema | None, list[str]]:
    """The schema of a field, or of an element for ``*``; None with the fields that there are."""
    if _is_open(at):
        return _OPEN, []
    values = at.get("additionalProperties")
    if values is True:
        return _OPEN, []
    if isinstance(values, Mapping):
        return values, []

    items, fields = at.get("items"), at.get("properties")
    if field == EACH:
        return (items, []) if isinstance(items, Mapping) else (None, [])
    if not isinstance(fields, Mapping):
        return None, []
    found = fields.get(field)
    return (found, []) if isinstance(found, Mapping) else (None, sorted(map(str, fields)))


def _is_open(at: Schema) -> bool:
    """Whether objects may hold more than their schema lists: it says so, or lists nothing, as that of ``metadata``."""
    if at.get("x-kubernetes-preserve-unknown-fields") or at.get("x-kubernetes-embedded-resource"):
        return True
    return str(at.get("type")) == "object" and not (at.get("properties") or "additionalProperties" in at)


def _holds(at: Schema, wanted: Holds) -> bool:
    form = at.get("type")
    if form is None:
        return not (at.get("x-kubernetes-int-or-string") and wanted is Holds.OBJECT)
    match wanted:
        case Holds.NUMBER:
            return str(form) in ("integer", "number")
        case Holds.OBJECT:
            return str(form) == "object"
        case Holds.TEXT:
            return str(form) not in ("object", "array")


def _word(at: Schema) -> str:
    words = {"object": "an object", "array": "a list", "boolean": "true or false", "string": "text"}
    return words.get(str(at.get("type")), "a number")


def _served(described: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The versions that a definition serves, by name."""
    return {str(one.get("name")): one for one in nested_list(described, "versions") if one.get("served")}


def _meant(name: str, known: Iterable[str]) -> str:
    """What was probably meant, else what there is."""
    listed = sorted(known)
    close = difflib.get_close_matches(name, listed, n=1, cutoff=0.7)
    if close:
        return f"did you mean {close[0]}?"
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return f"it has {', '.join(listed[:_SHOWN]) or 'none'}{more}"
