"""Whether a live object still matches its manifest.

Only declared fields are compared; fields that defaults or others added do not count. Lists of objects are matched by
the keys that Kubernetes merges them by, quantities and numbers by value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.engine.model import quantities

#: Keys by which Kubernetes merges lists of objects, tried in this order.
_MERGE_KEYS: Final[tuple[tuple[str, ...], ...]] = (
    ("name",),
    ("mountPath",),
    ("containerPort", "protocol"),
    ("containerPort",),
    ("port", "protocol"),
    ("port",),
    ("key", "operator", "effect"),
    ("key", "effect"),
    ("key",),
    ("type",),
    ("uid",),
    ("ip",),
)
#: Fields below which values are quantities.
_QUANTITIES: Final = frozenset({"requests", "limits", "capacity", "minResources", "hard", "sizeLimit", "capability"})
#: Fields where Kubernetes replaces an empty text or 0 by its default.
_DEFAULTED: Final = frozenset(
    {
        "clusterIP", "dnsPolicy", "failureThreshold", "healthCheckNodePort", "imagePullPolicy", "nodePort",
        "periodSeconds", "podManagementPolicy", "protocol", "restartPolicy", "scheme", "serviceAccountName",
        "sessionAffinity", "successThreshold", "targetPort", "terminationMessagePath", "terminationMessagePolicy",
        "timeoutSeconds", "type",
    }
)  # fmt: skip
_METADATA: Final = ("labels", "annotations")
#: Fields at the top of an object that are maps of text.
_TEXTS: Final = frozenset({"data", "binaryData"})


def first_difference(body: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    """Path of the first declared field whose live value differs; empty when there is none.

    Status, and metadata beside labels and annotations, are Kubernetes' own and never compared.
    """
    metadata, live_metadata = _mapping(body.get("metadata")), _mapping(live.get("metadata"))
    for field in _METADATA:
        path = _compare_texts(metadata.get(field), live_metadata.get(field), f"metadata.{field}")
        if path:
            return path
    for field in sorted(body):
        if field in ("metadata", "status", "apiVersion", "kind"):
            continue
        if field == "stringData":
            continue  # write-only: the API server stores it as data
        compare = _compare_texts if field in _TEXTS else _compare
        path = compare(body[field], live.get(field), field)
        if path:
            return path
    return ""


def _compare_texts(want: Any, have: Any, path: str) -> str:
    """Compare maps of text; an empty text is a value like any other."""
    there = _mapping(have)
    for key, value in _mapping(want).items():
        if value is not None and (key not in there or str(value) != str(there[key])):
            return f"{path}.{key}"
    return ""


def _compare(want: Any, have: Any, path: str, quantity: bool = False) -> str:
    if want is None or want is have or want == have:
        return ""  # null leaves the value to the API server
    if isinstance(want, Mapping):
        return _compare_maps(want, have, path, quantity)
    if isinstance(want, list):
        return _compare_lists(want, have, path, quantity)
    return "" if _same_value(want, have, quantity) else path


def _compare_maps(want: Mapping[str, Any], have: Any, path: str, quantity: bool) -> str:
    if not isinstance(have, Mapping):
        return "" if have is None and _is_empty(want) else path
    for key, value in want.items():
        if key in _DEFAULTED and value in ("", 0):
            continue
        found = _compare(value, have.get(key), f"{path}.{key}", quantity or key in _QUANTITIES)
        if found:
            return found
    return ""


def _compare_lists(want: Sequence[Any], have: Any, path: str, quantity: bool) -> str:
    if not isinstance(have, list):
        return "" if have is None and not want else path
    keys = _merge_key(want, have)
    if keys is None:
        if len(want) != len(have):
            return path
        for position, (left, right) in enumerate(zip(want, have, strict=True)):
            found = _compare(left, right, f"{path}[{position}]", quantity)
            if found:
                return found
        return ""
    by_key = {_identity(row, keys): row for row in have}
    for row in want:
        identity = _identity(row, keys)
        if identity not in by_key:
            return f"{path}[{','.join(map(str, identity))}]"
        found = _compare(row, by_key[identity], f"{path}[{','.join(map(str, identity))}]", quantity)
        if found:
            return found
    return ""


def _merge_key(want: Sequence[Any], have: Sequence[Any]) -> tuple[str, ...] | None:
    """The key fields that identify all rows of both lists; None when the lists must agree row by row."""
    rows = [*want, *have]
    if not want or not all(isinstance(row, Mapping) for row in rows):
        return None
    for keys in _MERGE_KEYS:
        if all(key in row for row in want for key in keys[:1]):
            mine, theirs = [_identity(row, keys) for row in want], [_identity(row, keys) for row in have]
            if len(set(mine)) == len(mine) and len(set(theirs)) == len(theirs):
                return keys
    return None


def _identity(row: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(row.get(key, "TCP" if key == "protocol" else "")) for key in keys)


def _same_value(want: Any, have: Any, quantity: bool) -> bool:
    if have is None:
        # The API server drops zero values of optional fields.
        return want in ("", 0, False, None) or _is_empty(want)
    if quantity:
        left, right = quantities.parse(str(want)), quantities.parse(str(have))
        return left is not None and left == right
    return str(want) == str(have)


def _is_empty(value: Any) -> bool:
    """Whether a value is null, an empty list, or a map of such values only."""
    if isinstance(value, Mapping):
        return all(_is_empty(inner) for inner in value.values())
    if isinstance(value, list):
        return not value
    return value is None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
