"""Sets of fields in the form of managedFields (`fieldsV1`): tries of `f:name`, `k:{keys}` and `v:value`.

A node with no children, or with the child `.`, is a member of the set. The rules are those of
sigs.k8s.io/structured-merge-diff.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from belay.engine.sandbox.api.kinds import JSON
from belay.engine.sandbox.api.schema import KEY_DEFAULTS, SchemaNode

Trie = JSON


def _leaf(node: SchemaNode, value: Any) -> bool:
    if node.atomic or not isinstance(value, dict | list) or not value:
        return True
    return isinstance(value, list) and not node.keys and not node.is_set


def item_key(node: SchemaNode, item: Any) -> str:
    """Return the name of a list item within its list: by its merge keys, or by value in a set."""
    if node.keys and isinstance(item, dict):
        keys = {key: item.get(key, KEY_DEFAULTS.get(key)) for key in node.keys}
        return (
            "k:" + orjson.dumps({k: v for k, v in keys.items() if v is not None}, option=orjson.OPT_SORT_KEYS).decode()
        )
    return "v:" + orjson.dumps(item).decode()


def _children(node: SchemaNode, value: Any) -> Iterator[tuple[str, SchemaNode, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield "f:" + key, node.child(key), item
    else:
        for item in value:
            yield item_key(node, item), node.element(), item


def of_value(node: SchemaNode, value: Any) -> Trie:
    """Return the set of all fields that `value` has."""
    if _leaf(node, value):
        return {}
    found: Trie = {}
    for name, child, item in _children(node, value):
        below = of_value(child, item)
        if name.startswith("k:"):
            below = {".": {}, **below}
        found[name] = below
    return found


def of_empty(node: SchemaNode, value: JSON) -> Trie:
    """Return the set of the fields that hold an empty map or list: applied configurations own these, too."""
    found: Trie = {}
    for key, item in value.items():
        child = node.child(key)
        if child.type in ("map", "list") and isinstance(item, dict | list) and not item:
            found["f:" + key] = {}
        elif isinstance(item, dict) and not child.atomic and (below := of_empty(child, item)):
            found["f:" + key] = below
    return found


def compare(node: SchemaNode, old: Any, new: Any) -> tuple[Trie | None, Trie | None]:
    """Return (added or modified fields, removed fields); None for none."""
    if old == new:
        return None, None
    comparable = (isinstance(old, dict) and isinstance(new, dict)) or (isinstance(old, list) and isinstance(new, list))
    if not comparable or _leaf(node, old) or _leaf(node, new):
        removed = of_value(node, old) if isinstance(old, dict | list) and not _leaf(node, old) else None
        return of_value(node, new), removed
    before = {name: (child, item) for name, child, item in _children(node, old)}
    changed: Trie = {}
    removed = {}
    for name, child, item in _children(node, new):
        if name not in before:
            below = of_value(child, item)
            changed[name] = {".": {}, **below} if name.startswith("k:") else below
            continue
        was = before.pop(name)[1]
        below_changed, below_removed = compare(child, was, item)
        if below_changed is not None:
            changed[name] = below_changed
        if below_removed is not None:
            removed[name] = below_removed
    for name, (child, item) in before.items():
        below = of_value(child, item)
        removed[name] = {".": {}, **below}
    return changed or None, removed or None


def _member(trie: Trie) -> bool:
    return not trie or "." in trie


def union(a: Trie, b: Trie) -> Trie:
    """Return the fields in either set."""
    if not a and not b:
        return {}
    result = dict(a)
    # a leaf joined with deeper fields stays a member of its own
    if (_member(a) != _member(b) or (not a or not b)) and (_member(a) or _member(b)):
        result["."] = {}
    for name, below in b.items():
        result[name] = union(result[name], below) if name in result else below
    return result


def difference(a: Trie, b: Trie) -> Trie | None:
    """Return the fields of `a` that are not in `b`; None when none is left."""
    if not a:
        return None if _member(b) else {}
    result: Trie = {}
    for name, below in a.items():
        if name == ".":
            if not _member(b):
                result["."] = {}
        elif name not in b:
            result[name] = below
        else:
            left = difference(below, b[name])
            if left is not None:
                result[name] = left
    return result or None


def intersection(a: Trie, b: Trie) -> Trie | None:
    """Return the fields in both sets; None when there is none."""
    result: Trie = {}
    if _member(a) and _member(b):
        if not a or not b:
            return {}
        result["."] = {}
    for name, below in a.items():
        if name != "." and name in b:
            both = intersection(below, b[name])
            if both is not None:
                result[name] = both
    return result or None


def paths(trie: Trie, prefix: str = "") -> Iterator[str]:
    """Yield the members as dotted paths, as conflict messages show them: `.spec.containers[name="a"].image`."""
    if _member(trie):
        yield prefix
    for name, below in sorted(trie.items()):
        if name == ".":
            continue
        kind, _, text = name.partition(":")
        if kind == "f":
            step = f".{text}"
        elif kind == "k":
            keys = orjson.loads(text)
            step = "[" + ",".join(f"{k}={orjson.dumps(v).decode()}" for k, v in sorted(keys.items())) + "]"
        else:
            step = f"[={text}]"
        yield from paths(below, prefix + step)


def merge(node: SchemaNode, live: Any, config: Any) -> Any:
    """Return `live` overlaid with `config`."""
    if _leaf(node, config) and not (config == {} and isinstance(live, dict) and not node.atomic):
        return config
    if isinstance(config, dict):
        result = dict(live) if isinstance(live, dict) else {}
        for key, value in config.items():
            result[key] = merge(node.child(key), result[key], value) if key in result else value
        return result
    if not isinstance(live, list):
        return config
    wanted = {item_key(node, item): item for item in config}
    merged: list[Any] = []
    for item in live:
        name = item_key(node, item)
        merged.append(merge(node.element(), item, wanted.pop(name)) if name in wanted else item)
    return [*merged, *wanted.values()]


def prune(node: SchemaNode, value: Any, gone: Trie) -> Any:
    """Return `value` without the fields in `gone`, and without containers that become empty."""
    if isinstance(value, dict):
        result: JSON = {}
        for key, item in value.items():
            below = gone.get("f:" + key)
            if below is None:
                result[key] = item
            elif below and isinstance(item, dict | list) and not _leaf(node.child(key), item):
                left = prune(node.child(key), item, below)
                if left or ("." not in below and left == item):
                    result[key] = left
        return result
    if isinstance(value, list):
        kept: list[Any] = []
        for item in value:
            below = gone.get(item_key(node, item))
            if below is None:
                kept.append(item)
            elif below and "." not in below:
                kept.append(prune(node.element(), item, below))
        return kept
    return value
