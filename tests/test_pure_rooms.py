"""Modules that plan and write status keep no state: what outlives a pass is in the shard's ``PlanCache``."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import pkgutil
import re
import types
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pydantic
import pytest

from belay.engine.model.plan_cache import CacheKey

ROOMS = ("belay.engine.gangs", "belay.engine.plan", "belay.engine.status")
#: Functions whose results are kept for the process: they map short texts and numbers to what these spell.
SPELLINGS = frozenset({
    "belay.engine.plan.jobs.rank_tables._configuration", "belay.engine.plan.links.states.key_of",
    "belay.engine.plan.place.nodes.equivalence._words", "belay.engine.plan.node_view._names",
    "belay.engine.plan.views._ids",
    "belay.engine.plan.views.device_id",
})  # fmt: skip
CHANGING = frozenset({
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault",
    "sort", "update",
})  # fmt: skip
PLAIN = (
    bool, int, float, str, bytes, frozenset, type(None), type, enum.Enum, re.Pattern, CacheKey,
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MappingProxyType,
)  # fmt: skip
#: Modules whose objects at module level are types and flags of the compiler.
OF_TYPES = ("__future__", "collections.abc", "types", "typing")


def modules() -> list[str]:
    """Every module of the rooms."""
    found = []
    for room in ROOMS:
        package = importlib.import_module(room)
        found += [room, *(row.name for row in pkgutil.walk_packages(package.__path__, f"{room}."))]
    return found


@pytest.mark.parametrize("name", modules())
def test_no_module_of_the_pure_rooms_holds_mutable_state(name: str) -> None:
    module = importlib.import_module(name)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    found = [*_objects(name, vars(module)), *_changes(tree), *_caches(name, tree)]
    assert not found, f"{name}: {', '.join(found)}: keep it in the PlanCache (belay.engine.model.plan_cache)"


def test_the_check_finds_state() -> None:
    text = "def f(x):\n    global N\n    SEEN[x] = 1\n    KNOWN.update(x)\n    other.ALL.append(x)\n"
    assert list(_changes(ast.parse(text))) == ["global N", "SEEN is changed", "KNOWN is changed", "ALL is changed"]
    assert list(_objects("m", {"SEEN": {}, "BOX": [1], "_state": object()})) == ["SEEN is empty", "_state: object"]
    cached = "@lru_cache(maxsize=8)\ndef f(x): ...\n@functools.cache\ndef g(x): ...\n"
    assert list(_caches("m", ast.parse(cached))) == ["f keeps results", "g keeps results"]


def _objects(name: str, found: dict[str, object]) -> Iterator[str]:
    """Module-level objects that can be changed; filled tables are looked after by ``_changes``."""
    for key, value in found.items():
        if key.startswith("__"):
            continue
        if isinstance(value, dict | list | set):
            if not value:
                yield f"{key} is empty"
        elif not _frozen(value):
            yield f"{key}: {type(value).__name__}"


def _frozen(value: object) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(item, dict | list | set) or _frozen(item) for item in value)
    if isinstance(value, msgspec.Struct):
        return value.__struct_config__.frozen
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return bool(value.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    if isinstance(value, pydantic.BaseModel):
        return bool(value.model_config.get("frozen"))
    return isinstance(value, PLAIN) or type(value).__module__ in OF_TYPES or hasattr(value, "cache_info")


def _changes(tree: ast.AST) -> Iterator[str]:
    """Statements that change a module's object; such names are written in capitals."""
    for node in ast.walk(tree):
        match node:
            case ast.Global(names=names):
                yield f"global {', '.join(names)}"
            case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), ctx=ast.Store() | ast.Del()):
                if name.isupper():
                    yield f"{name} is changed"
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=method)):
                if name.isupper() and method in CHANGING:
                    yield f"{name} is changed"


def _caches(name: str, tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if (
                ast.unparse(called).rpartition(".")[2] in ("lru_cache", "cache")
                and f"{name}.{node.name}" not in SPELLINGS
            ):
                yield f"{node.name} keeps results"
