"""Pydantic's errors in the words and paths of the document."""

from __future__ import annotations

import difflib
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from belay.engine.documents.descriptions import described
from belay.engine.documents.problems import Path, Problem
from belay.engine.documents.scalars import LABEL_PATTERN, NAME_PATTERN
from belay.engine.model.codes.findings import FindingCode


@cache
def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of a kind."""
    return described(model.model_json_schema(by_alias=True, mode="validation"))


_SCALARS: Final = frozenset({"int", "float", "bool", "str"})
_PATTERNS: Final = {
    NAME_PATTERN: "is not an RFC 1123 name: lower-case letters, digits, '-' and '.'",
    LABEL_PATTERN: "is not an RFC 1123 label: lower-case letters, digits and '-'",
}
_TYPES: Final = {
    "string_type": "must be text: put it in quotes if it looks like a number or a boolean",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "mapping_type": "must be a mapping",
    "model_type": "must be a mapping",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
}


def problems_of(failure: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """One problem per place; failed alternatives of a union at one place are joined."""
    found: dict[Path, Problem] = {}
    errors = failure.errors(include_url=False, include_context=False, include_input=True)
    locations = [tuple(error["loc"]) for error in errors]
    above = {location[:length] for location in locations for length in range(len(location))}
    for error, location in zip(errors, locations, strict=True):
        kind = error["type"]
        if kind == "too_short" and location in above:
            continue  # its items have errors of their own
        if kind == "extra_forbidden":
            problem = Problem(location, _unknown_field(model, location), "error", True, FindingCode.UNKNOWN_FIELD)
        elif kind == "missing":
            problem = Problem(location, "required field is missing", code=FindingCode.MISSING_FIELD)
        elif location[-1:] and location[-1] in _SCALARS:
            location = location[:-1]
            text = "must be text, a whole number, true or false"
            problem = Problem(location, text, code=FindingCode.WRONG_TYPE)
        else:
            code = FindingCode.WRONG_TYPE if kind in _TYPES else ""
            problem = Problem(location, _message(kind, error["msg"], error["input"]), code=code)
        found.setdefault(location, problem)
    return list(found.values())


def _message(kind: str, text: str, value: Any) -> str:
    text = text.removeprefix("Value error, ")
    if kind in _TYPES:
        text = _TYPES[kind]
    elif kind == "string_pattern_mismatch":
        pattern = text.partition("pattern ")[2].strip("'")
        text = _PATTERNS.get(pattern, f"does not match {pattern}")
    elif text.startswith("Input should"):
        text = "should" + text.removeprefix("Input should")
    if kind == "value_error" or not isinstance(value, (str, int, float)):
        return text[:500]
    shown = str(value).lower() if isinstance(value, bool) else f"{value!r:.80}"
    return f"{shown} {text}"[:500]


def _unknown_field(model: type[BaseModel], location: Path) -> str:
    if location == ("metadata", "namespace"):
        return "Belay's kinds have no namespace: remove it"
    known = sorted(_fields_at(model, location[:-1]))
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    if near:
        return f"unknown field: did you mean {near[0]}?"
    return f"unknown field: known are {', '.join(known)}" if known else "unknown field"


def _fields_at(model: type[BaseModel], location: Path) -> set[str]:
    """The fields that the schema knows at a path."""
    root = json_schema(model)
    schemas = [root]
    for part in location:
        step: list[dict[str, Any]] = []
        for schema in _resolved(root, schemas):
            if isinstance(part, int):
                step += [schema["items"]] if isinstance(schema.get("items"), dict) else []
            elif part in schema.get("properties", {}):
                step.append(schema["properties"][part])
            elif isinstance(schema.get("additionalProperties"), dict):
                step.append(schema["additionalProperties"])
        schemas = step
    return {name for schema in _resolved(root, schemas) for name in schema.get("properties", {})}


def _resolved(root: dict[str, Any], schemas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Schemas with references resolved and alternatives listed."""
    found: list[dict[str, Any]] = []
    waiting = list(schemas)
    while waiting:
        schema = waiting.pop()
        if "$ref" in schema:
            waiting.append(root["$defs"][schema["$ref"].rpartition("/")[2]])
        found.append(schema)
        waiting += [*schema.get("anyOf", ()), *schema.get("allOf", ())]
    return found
