"""Reading takes time in proportion to the lists of a document."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import pytest

from belay.engine.load import load, schemas

API = "belay.dev/v1alpha1"
FEW, MANY = 40, 320
#: Eight times the entries may cost at most this many times the lines of code: exponent 1.25.
LIMIT = (MANY / FEW) ** 1.25
Path = tuple[str, ...]


def kinds() -> dict[str, Mapping[str, Any]]:
    """The JSON Schema of every kind, by kind."""
    found = {}
    for body in schemas().values():
        kind = body.get("properties", {}).get("kind", {}).get("const")
        if kind:
            found[kind] = body
    return found


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema with its reference followed and the most capacious of its alternatives taken."""
    while "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = root["$defs"][name]
    options = [resolved(option, root) for key in ("anyOf", "oneOf", "allOf") for option in schema.get(key, ())]
    order = ("array", "object", "string", "integer", "number", "boolean")
    ranked = sorted((o for o in options if o.get("type") in order), key=lambda o: order.index(o["type"]))
    return ranked[0] if ranked else schema


def entries(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of the values of a free mapping; ``None`` for other objects."""
    free = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), None)
    return free if isinstance(free, Mapping) else None


def growing(schema: Mapping[str, Any], root: Mapping[str, Any], at: Path = ()) -> Iterator[Path]:
    """Paths of the lists and free mappings of a kind; ``*`` stands for an entry."""
    schema = resolved(schema, root)
    if len(at) > 8:
        return
    if schema.get("type") == "array":
        yield at
        yield from growing(schema.get("items", {}), root, (*at, "*"))
    elif (free := entries(schema)) is not None:
        yield at
        yield from growing(free, root, (*at, "*"))
    for name, child in schema.get("properties", {}).items():
        yield from growing(child, root, (*at, name))


def sample(schema: Mapping[str, Any], root: Mapping[str, Any], target: Path | None, count: int, number: int = 0) -> Any:
    """A value of a schema whose list at ``target`` has ``count`` different entries, other lists one."""
    schema = resolved(schema, root)
    if "const" in schema or schema.get("enum"):
        return schema.get("const", (schema.get("enum") or [None])[number % len(schema.get("enum") or [0])])
    size = count if target == () else 1

    def inner(name: str, child: Mapping[str, Any], index: int = 0) -> Any:
        follows = target is not None and target[:1] == (name,)
        return sample(child, root, target[1:] if follows and target else None, count, index)

    kind = schema.get("type")
    if kind == "array":
        return [inner("*", schema.get("items", {}), number + n) for n in range(size)]
    if kind == "object" or "properties" in schema:
        if (free := entries(schema)) is not None:
            return {f"{0x80000000 + n:08X}": inner("*", free, n) for n in range(size)}
        wanted = set(schema.get("required", ())) | set(target[:1] if target else ())
        return {name: inner(name, child, number) for name, child in schema["properties"].items() if name in wanted}
    if kind == "integer" or kind == "number":
        return int(schema.get("minimum", 0)) + number
    if kind == "boolean":
        return True
    return f"{0x80000000 + number:08x}"


def document(kind: str, target: Path, count: int) -> bytes:
    body = sample(kinds()[kind], kinds()[kind], target, count)
    body |= {"apiVersion": API, "kind": kind, "metadata": {"name": "x"}}
    return json.dumps(body).encode()


def lines_of(data: bytes) -> int:
    """Lines of Belay's code that reading one file runs."""
    count = 0

    def inside(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return inside

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return inside if "/engine/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        load({"policies/x.yaml": data}, shipped={})
    finally:
        sys.settrace(before)
    return count


CASES = [
    (kind, path) for kind, schema in sorted(kinds().items()) for path in dict.fromkeys(growing(schema, schema)) if path
]


@pytest.mark.parametrize(("kind", "path"), CASES, ids=[f"{kind}.{'.'.join(path)}" for kind, path in CASES])
def test_reading_grows_with_the_length_of_a_list(kind: str, path: Path) -> None:
    few, many = (lines_of(document(kind, path, count)) for count in (FEW, MANY))
    assert many <= LIMIT * few, f"{MANY / FEW:.0f} times the entries cost {many / few:.1f} times the lines"


def test_a_fault_policy_of_20000_codes_is_read_in_seconds() -> None:
    levels = "".join(f"    '{0x80000000 + number:08X}': RestartNPU\n" for number in range(20_000))
    text = f"apiVersion: {API}\nkind: FaultPolicy\nmetadata: {{name: x}}\nspec:\n  levels:\n{levels}"
    start = time.process_time()
    loaded = load({"policies/x.yaml": text.encode()})
    spent = time.process_time() - start
    assert spent < 20, f"{spent:.1f} s of CPU; it was far beyond a minute when each warning read the file again"
    assert len(loaded.diagnostics) <= 2_100
    assert not [found for found in loaded.diagnostics if found.severity == "error" and "not shown" not in found.message]
