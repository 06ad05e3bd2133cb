"""Which modules parse what others wrote, derived from the tree: a new parser without a harness fails a test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.fuzz.execution import ROOT

DECODERS: Final = frozenset(
    {
        "json.loads",
        "orjson.loads",
        "tomllib.loads",
        "msgspec.json.decode",
        "msgspec.convert",
        "yaml.load",
        "yaml.load_all",
        "yaml.safe_load",
        "yaml.safe_load_all",
        "yaml.compose_all",
        "yamltext.load",
        "yamltext.load_all",
        "yaml12.compose",
        "base64.b64decode",
        "bytes.fromhex",
        "plistlib.loads",
        "pickle.loads",
        "marshal.loads",
    }
)
METHODS: Final = frozenset(
    {"FromString", "ParseFromString", "MergeFromString", "unpack", "unpack_from", "iter_unpack", "from_buffer_copy"}
)
"""Decoders by the name of their method, whatever holds it."""
ROOMS: Final = ("engine/wire", "engine/load")
"""Rooms in which every function named as below counts, too."""
VERBS: Final = ("parse", "read", "load", "decode")
_LIKELY: Final = re.compile(r"loads|decode\(|convert\(|yaml|FromString|unpack|from_buffer_copy|fromhex")
"""What a module outside these rooms must hold to be looked at closely."""
MADE: Final = ("_pb2.py", "_pb2_grpc.py")


@cache
def parsers() -> dict[str, str]:
    """Every module of ``engine`` and ``agents`` that parses, with what shows that it does."""
    found: dict[str, str] = {}
    for room in ("engine", "agents"):
        for file in sorted((ROOT / room).rglob("*.py")):
            if not file.name.endswith(MADE) and (sign := _sign(file)):
                found[str(file.relative_to(ROOT))] = sign
    return found


def _sign(file: Path) -> str:
    own = str(file.relative_to(ROOT)).startswith(ROOMS)
    source = file.read_text()
    if not own and not _LIKELY.search(source):
        return ""
    tree = ast.parse(source)
    return next(iter([*_decodes(tree), *(_functions(tree) if own else ())]), "")


def _decodes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = ast.unparse(node.func)
            if (
                name in DECODERS
                or node.func.attr in METHODS
                or (node.func.attr == "decode" and "DECODER" in name.upper())
            ):
                yield f"line {node.lineno}: {name[:60]}"


def _functions(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.split("_")[0] in VERBS:
            yield f"line {node.lineno}: def {node.name}"


__all__ = ["parsers"]
