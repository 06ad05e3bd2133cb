"""Validation and defaulting of custom objects against their structural OpenAPI v3 schema, with kube-apiserver's
wording.

CEL rules (`x-kubernetes-validations`) and string formats are not evaluated.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from belay.engine.sandbox.api.errors import FieldError, field_invalid, field_required, field_type, field_unsupported
from belay.engine.sandbox.api.kinds import JSON

MAX_ERRORS = 50
"""Maximum number of errors collected for one object."""

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def set_defaults(schema: JSON, value: Any) -> Any:
    """Fill in `default`s in place, also for nulls in fields that are not nullable; returns the value."""
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        for name, child in properties.items():
            if name in value and value[name] is None and not child.get("nullable") and "default" in child:
                del value[name]
            if name not in value and "default" in child:
                value[name] = _clone(child["default"])
            if name in value:
                set_defaults(child, value[name])
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            for name, item in value.items():
                if name not in properties:
                    set_defaults(extra, item)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            set_defaults(schema["items"], item)
    return value


def _clone(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clone(item) for item in value]
    return value


def validate(schema: JSON, value: Any) -> list[FieldError]:
    """Return every mismatch between an object and its schema, at most MAX_ERRORS."""
    errors: list[FieldError] = []
    _check(schema, value, "", errors, top=True)
    return errors[:MAX_ERRORS]


def _type_name(value: Any) -> str:
    names = {bool: "boolean", str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _check(schema: JSON, value: Any, path: str, errors: list[FieldError], *, top: bool = False) -> None:
    if len(errors) >= MAX_ERRORS:
        return
    where = path or "<nil>"
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str) or isinstance(value, bool):
            errors.append(
                field_type(
                    where, _type_name(value), f'{where} in body must be of type integer,string: "{_type_name(value)}"'
                )
            )
        return
    wanted = schema.get("type")
    if wanted and not _is_type(wanted, value):
        errors.append(
            field_type(where, _type_name(value), f'{where} in body must be of type {wanted}: "{_type_name(value)}"')
        )
        return
    if "enum" in schema and value not in schema["enum"]:
        errors.append(field_unsupported(where, value, schema["enum"]))
    if isinstance(value, dict):
        _check_object(schema, value, path, errors, top)
    elif isinstance(value, list):
        _check_list(schema, value, path, errors)
    elif isinstance(value, str):
        _check_string(schema, value, where, errors)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(schema, value, where, errors)
    _check_combinations(schema, value, where, errors)


def _is_type(wanted: str, value: Any) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean"
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(wanted, (object,)))


def _check_object(schema: JSON, value: JSON, path: str, errors: list[FieldError], top: bool) -> None:
    properties = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if name not in value:
            errors.append(field_required(f"{path}.{name}".lstrip(".")))
    extra = schema.get("additionalProperties")
    for name, item in value.items():
        if top and name in ("apiVersion", "kind", "metadata"):
            continue
        child = properties.get(name)
        if child is None and isinstance(extra, dict):
            child = extra
        if child:
            _check(child, item, f"{path}.{name}".lstrip("."), errors)
    where = path or "<nil>"
    if (least := schema.get("minProperties")) is not None and len(value) < least:
        errors.append(field_invalid(where, len(value), f"{where} in body should have at least {least} properties"))
    if (most := schema.get("maxProperties")) is not None and len(value) > most:
        errors.append(FieldError(where, "FieldValueTooMany", f"Too many: {len(value)}: must have at most {most} items"))


def _check_list(schema: JSON, value: list[Any], path: str, errors: list[FieldError]) -> None:
    where = path or "<nil>"
    if (least := schema.get("minItems")) is not None and len(value) < least:
        errors.append(field_invalid(where, len(value), f"{where} in body should have at least {least} items"))
    if (most := schema.get("maxItems")) is not None and len(value) > most:
        errors.append(FieldError(where, "FieldValueTooMany", f"Too many: {len(value)}: must have at most {most} items"))
    items = schema.get("items")
    if isinstance(items, dict):
        for i, item in enumerate(value):
            _check(items, item, f"{path}[{i}]", errors)
    keys = schema.get("x-kubernetes-list-map-keys")
    if schema.get("x-kubernetes-list-type") == "map" and keys:
        seen: list[JSON] = []
        for i, item in enumerate(value):
            identity = {key: item.get(key) for key in keys} if isinstance(item, dict) else {}
            if identity in seen:
                errors.append(FieldError(f"{where}[{i}]", "FieldValueDuplicate", f"Duplicate value: {identity}"))
            seen.append(identity)


@lru_cache(maxsize=512)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _check_string(schema: JSON, value: str, where: str, errors: list[FieldError]) -> None:
    if (pattern := schema.get("pattern")) and not _pattern(pattern).search(value):
        errors.append(field_invalid(where, value, f"{where} in body should match '{pattern}'"))
    if (least := schema.get("minLength")) is not None and len(value) < least:
        errors.append(field_invalid(where, value, f"{where} in body should be at least {least} chars long"))
    if (most := schema.get("maxLength")) is not None and len(value) > most:
        errors.append(FieldError(where, "FieldValueTooLong", f"Too long: may not be longer than {most}"))


def _check_number(schema: JSON, value: float, where: str, errors: list[FieldError]) -> None:
    if (least := schema.get("minimum")) is not None and (
        value < least or (schema.get("exclusiveMinimum") is True and value == least)
    ):
        errors.append(field_invalid(where, value, f"{where} in body should be greater than or equal to {least}"))
    if (most := schema.get("maximum")) is not None and (
        value > most or (schema.get("exclusiveMaximum") is True and value == most)
    ):
        errors.append(field_invalid(where, value, f"{where} in body should be less than or equal to {most}"))


def _check_combinations(schema: JSON, value: Any, where: str, errors: list[FieldError]) -> None:
    def fits(branch: JSON) -> bool:
        found: list[FieldError] = []
        _check(branch, value, where if where != "<nil>" else "", found)
        return not found

    for branch in schema.get("allOf") or ():
        _check(branch, value, where if where != "<nil>" else "", errors)
    if (branches := schema.get("anyOf")) and not any(fits(branch) for branch in branches):
        errors.append(field_invalid(where, _type_name(value), f'"{where}" must validate at least one schema (anyOf)'))
    if (branches := schema.get("oneOf")) and sum(fits(branch) for branch in branches) != 1:
        errors.append(
            field_invalid(where, _type_name(value), f'"{where}" must validate one and only one schema (oneOf)')
        )
    if (branch := schema.get("not")) and fits(branch):
        errors.append(field_invalid(where, _type_name(value), f'"{where}" must not validate the schema (not)'))
