"""docs/threat-model.md: every attack names the tests that prove what stops it, and these tests exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import yaml

from belay.engine.model.actions import AnyAction
from tests.test_contributing import KINDS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "threat-model.md"
TEST = re.compile(r"`((?:\w+/)*test_\w+\.py)::(test_\w+)`")
HEADING = "## Attacks and the tests that prove what stops them"


@cache
def functions(path: str) -> frozenset[str]:
    """The tests of a file, also those in classes."""
    tree = ast.parse((ROOT / "tests" / path).read_text())
    found = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in found if name.startswith("test_"))


def rows() -> list[list[str]]:
    """The cells of each attack."""
    text = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if not line.startswith("| attack")
    ]


def test_every_attack_names_what_stops_it_and_tests_that_exist() -> None:
    attacks = rows()
    assert len(attacks) > 25
    for attack, stopped_by, tests in attacks:
        named = TEST.findall(tests)
        assert attack and stopped_by and named, f"{attack}: no test is named"
        for path, name in named:
            assert (ROOT / "tests" / path).is_file(), f"{attack}: there is no tests/{path}"
            assert name in functions(path), f"{attack}: tests/{path} has no {name}"


def test_a_test_that_does_not_exist_would_be_noticed() -> None:
    assert TEST.findall("`test_x.py::test_one`, `e2e/test_y.py::test_two`") == [
        ("test_x.py", "test_one"),
        ("e2e/test_y.py", "test_two"),
    ]
    assert "test_a_test_that_does_not_exist_would_be_noticed" in functions("test_threat_model.py")
    assert "test_nothing_of_this_name" not in functions("test_threat_model.py")


def test_every_account_and_action_of_the_manifests_is_on_the_page() -> None:
    text = PAGE.read_text()
    documents = yaml.safe_load_all((ROOT / "deploy" / "base" / "rbac.yaml").read_text())
    accounts = [one["metadata"]["name"] for one in documents if one and one["kind"] == "ServiceAccount"]
    assert accounts and [name for name in accounts if f"`{name}`" not in text] == []
    assert KINDS and AnyAction, "the closed set that the page refers to"
