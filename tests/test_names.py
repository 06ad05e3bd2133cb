"""One public class name has one meaning in each tree of packages."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: The engine is one tree; what runs on nodes is one tree for each agent.
TREES = [
    "engine",
    *(f"agents/{path.name}" for path in sorted((ROOT / "agents").iterdir()) if (path / "__init__.py").exists()),
]


def public_classes(tree: str) -> dict[str, list[str]]:
    """The places of each public class of a tree; generated code is left out."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / tree).rglob("*.py")):
        if "_pb2" in path.name:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


@pytest.mark.parametrize("tree", TREES)
def test_a_public_class_name_is_used_once(tree: str) -> None:
    assert not {name: places for name, places in public_classes(tree).items() if len(places) > 1}
