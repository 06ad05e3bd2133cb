"""Decisions in the pure rooms are taken from causes, never from texts that were written for people.

A sentence may be reworded at any time; what a pass decides may not change with it. So no condition there looks into a
field of text: a comparison, a search for a piece, or a piece cut out by a separator or a pattern.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("documents", "gangs", "model", "plan", "wire", "workloads")

#: Fields that hold sentences.
SENTENCES = frozenset({"detail", "message", "sentence", "text", "timeline"})
#: Fields that hold names with a grammar of their own, read by one parser (``rule_kind``), or words of others.
NAMES = frozenset({"reason", "rule"})
PIECES = frozenset({"endswith", "find", "index", "partition", "rfind", "rpartition", "rsplit", "split", "startswith"})
PATTERNS = frozenset({"findall", "finditer", "fullmatch", "match", "search"})


def field_of(node: ast.expr) -> str:
    """The field that an expression reads, also of one element: ``timeline`` of ``memory.timeline[-1][1]``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else ""


def operands(node: ast.Compare) -> Iterator[ast.expr]:
    """What is compared, one by one, with the elements of tuples."""
    for side in (node.left, *node.comparators):
        yield from side.elts if isinstance(side, ast.Tuple) else (side,)


def is_prose(node: ast.AST) -> bool:
    """Whether a decision looks into a text."""
    if isinstance(node, ast.Compare):
        compared = list(operands(node))
        literal = any(isinstance(one, ast.JoinedStr) or _is_word(one) for one in compared)
        fields = {field_of(one) for one in compared}
        return bool(fields & SENTENCES) or ("rule" in fields and literal)

    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in PIECES:
        return field_of(node.func.value) in SENTENCES | NAMES
    return node.func.attr in PATTERNS and any(field_of(one) in SENTENCES | NAMES for one in node.args)


def _is_word(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


@pytest.mark.parametrize("room", ROOMS)
def test_no_decision_of_a_pure_room_is_read_from_prose(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted((ROOT / "engine" / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.expr) and is_prose(node)
    ]
    assert not found, "decide by a cause (a field, an enum), and make the text from it:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("code", "prose"),
    [
        ('action.evidence.rule == "sync"', True),
        ('action.evidence.rule.startswith("fault-scheduling")', True),
        ("action.evidence.rule_kind is RuleKind.SYNC", False),
        ("job.resource in refusal.message", True),
        ("refusal.resource == job.resource", False),
        ('memory.timeline[-1][1].startswith("eviction refused")', True),
        ("line not in memory.timeline", True),
        ("_IDLE.search(refusal.message)", True),
        ('(found.message, 1) < ("", 2)', True),
        ("refusal.reason in CURABLE", False),
        ('why.reason.partition(": ")', True),
    ],
)
def test_the_rule_sees_what_it_forbids(code: str, prose: bool) -> None:
    assert any(is_prose(node) for node in ast.walk(ast.parse(code))) is prose
