"""docs/track-record.md is what the table says, and every row has a test that runs."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests import track_record
from tests.soak.__main__ import KINDS
from tests.track_record import BREACHES, PAGE, PROMISES, ROOT, page

IDS = sorted({test for promise in PROMISES for test in promise.tests} | {breach.test for breach in BREACHES})


def why_not_run(test: str) -> str:
    """Why a test id stands for no running test; empty where it does."""
    path, _, name = test.partition("::")
    file = ROOT / "tests" / path
    if not file.is_file():
        return f"there is no tests/{path}"
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
            return "it is skipped" if "mark.skip" in marks or "mark.xfail" in marks else ""
    return f"tests/{path} has no {name}"


@pytest.mark.parametrize("test", IDS)
def test_every_row_has_a_test_that_runs(test: str) -> None:
    assert why_not_run(test) == ""


def test_a_row_without_a_running_test_is_seen(tmp_path: Path) -> None:
    assert why_not_run("test_nothing.py::test_one") and why_not_run("test_truth.py::test_nothing_of_this_name")
    assert all(promise.tests for promise in PROMISES)


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == page(), "run: make reference"
    assert {kind for promise in PROMISES for kind in promise.soaks} <= set(KINDS)


def test_what_was_tried_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tried.json"
    file.write_text("{}")
    monkeypatch.setattr(track_record, "TRIED", file)
    track_record.count("truth", 50, 1)
    track_record.count("truth", 25, 0)
    assert json.loads(file.read_text()) == {"truth": {"tried": 75, "failed": 1}}
    assert "kind `truth`: 75 tried, 1 failed" in page()
