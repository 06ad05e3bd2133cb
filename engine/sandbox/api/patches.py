"""JSON Patch (RFC 6902), JSON Merge Patch (RFC 7386) and Kubernetes' strategic merge patch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from belay.engine.sandbox.api.errors import ApiError, bad_request
from belay.engine.sandbox.api.kinds import JSON
from belay.engine.sandbox.api.schema import SchemaNode

MAX_OPERATIONS = 10_000
"""Operations in one JSON patch, the limit of kube-apiserver."""


def _unprocessable() -> ApiError:
    return ApiError(422, "Invalid", "the server rejected our request due to an error in our request", details={})


def json_patch(obj: JSON, operations: Any) -> JSON:
    """Apply RFC 6902 operations to a copy of `obj`.

    Raises ApiError 400 for a malformed patch, 422 for one that does not apply.
    """
    if not isinstance(operations, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    if len(operations) > MAX_OPERATIONS:
        raise ApiError(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}",
        )
    document: Any = _copy(obj)
    for operation in operations:
        if not isinstance(operation, dict):
            raise bad_request("a JSON patch is a list of operations")
        try:
            document = _operate(document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise _unprocessable() from error
    if not isinstance(document, dict):
        raise _unprocessable()
    return document


def _operate(document: Any, operation: JSON) -> Any:
    kind = operation["op"]
    path = _pointer(operation["path"])
    match kind:
        case "add":
            return _add(document, path, operation["value"])
        case "remove":
            _remove(document, path)
        case "replace":
            if not path:
                return operation["value"]
            _lookup(document, path)
            _set(document, path, operation["value"])
        case "test":
            if _lookup(document, path, missing=None) != operation.get("value"):
                raise ValueError("test failed")
        case "move":
            source = _pointer(operation["from"])
            value = _lookup(document, source)
            _remove(document, source)
            return _add(document, path, value)
        case "copy":
            return _add(document, path, _copy(_lookup(document, _pointer(operation["from"]))))
        case _:
            raise ValueError(kind)
    return document


def _pointer(text: str) -> list[str]:
    if text == "":
        return []
    if not text.startswith("/"):
        raise ValueError(text)
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


_ABSENT = object()


def _lookup(document: Any, path: list[str], missing: Any = _ABSENT) -> Any:
    value = document
    for i, step in enumerate(path):
        if isinstance(value, list):
            value = value[_index(step, len(value) - 1)]
        elif isinstance(value, dict):
            if step not in value and missing is not _ABSENT and i == len(path) - 1:
                return missing
            value = value[step]
        else:
            raise KeyError(step)
    return value


def _index(step: str, last: int) -> int:
    position = int(step)
    if position < 0:
        position += last + 1
    if not 0 <= position <= last:
        raise IndexError(step)
    return position


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _lookup(document, path[:-1])
    if isinstance(parent, list):
        parent.insert(len(parent) if path[-1] == "-" else _index(path[-1], len(parent)), value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise KeyError(path[-1])
    return document


def _set(document: Any, path: list[str], value: Any) -> None:
    parent = _lookup(document, path[:-1])
    if isinstance(parent, list):
        parent[_index(path[-1], len(parent) - 1)] = value
    else:
        parent[path[-1]] = value


def _remove(document: Any, path: list[str]) -> None:
    parent = _lookup(document, path[:-1])
    if isinstance(parent, list):
        del parent[_index(path[-1], len(parent) - 1)]
    else:
        del parent[path[-1]]


def _copy(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))


def strategic_merge(node: SchemaNode, target: Any, patch: Any) -> Any:
    """Return `target` with a strategic merge patch applied, lists of objects merged by the keys of `node`.

    Directives: `$patch: delete|replace|merge`, `$retainKeys`, `$setElementOrder/<list>`,
    `$deleteFromPrimitiveList/<list>`
    (Kubernetes, "strategic-merge-patch.md"). Raises ApiError 400 on a malformed directive.
    """
    if not isinstance(patch, dict):
        return patch
    directive = patch.get("$patch")
    if directive == "replace":
        return _plain({key: value for key, value in patch.items() if key != "$patch"})
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"Unrecognized patch type: {directive}")
    result = dict(target) if isinstance(target, dict) else {}
    if (retained := patch.get("$retainKeys")) is not None:
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key.startswith("$setElementOrder/") or key in ("$patch", "$retainKeys"):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name) or [] if item not in value]
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = _strategic_value(
                node.child(key), result.get(key), value, patch.get(f"$setElementOrder/{key}")
            )
    return result


def _strategic_value(node: SchemaNode, current: Any, value: Any, order: list[Any] | None) -> Any:
    if isinstance(value, dict):
        return strategic_merge(node, current, value)
    if not isinstance(value, list):
        return value
    if node.keys and all(isinstance(item, dict) for item in value):
        return _merge_by_key(node, node.keys[0], current or [], value, order)
    if node.is_set:
        merged = [*(current or []), *(item for item in value if item not in (current or []))]
        return _ordered(merged, order or value, current or [], lambda item: item)
    return _plain(value)


def _merge_by_key(
    node: SchemaNode, key: str, current: list[Any], patch: list[Any], order: list[Any] | None
) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [_plain(item) for item in patch if item.get("$patch") != "replace"]
    result = list(current)
    for item in patch:
        directive = item.get("$patch")
        if key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        where = next((i for i, old in enumerate(result) if isinstance(old, dict) and old.get(key) == item[key]), None)
        if directive == "delete":
            result = [old for old in result if not (isinstance(old, dict) and old.get(key) == item[key])]
        elif where is None:
            result.append(strategic_merge(node.element(), {}, item))
        else:
            result[where] = strategic_merge(node.element(), result[where], item)

    def name(item: Any) -> Any:
        return item.get(key) if isinstance(item, dict) else item

    return _ordered(result, [name(item) for item in order or patch], [name(item) for item in current], name)


def _ordered(items: list[Any], wanted: list[Any], before: list[Any], name: Callable[[Any], Any]) -> list[Any]:
    """Order a merged list: the patch's items in its order, the other items where they were before.

    The algorithm of normalizeElementOrder in k8s.io/apimachinery/pkg/util/strategicpatch.
    """
    patched = sorted((item for item in items if name(item) in wanted), key=lambda item: wanted.index(name(item)))
    kept = [item for item in items if name(item) not in wanted]
    result: list[Any] = []
    while kept and patched:
        mine, theirs = name(kept[0]), name(patched[0])
        first = mine in before and theirs in before and before.index(mine) < before.index(theirs)
        result.append((kept if first else patched).pop(0))
    return [*result, *kept, *patched]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if not key.startswith("$") and item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value if not (isinstance(item, dict) and item.get("$patch") == "delete")]
    return value
