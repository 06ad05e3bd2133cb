"""The product's code gets no denser: what `make shape` counts may fall, and the limits here fall with it."""

from __future__ import annotations

import ast

import pytest

from tests.shape import decisions, shape

LIMITS = {
    "engine": {"decisions": 0.37, "over_20": 64, "unbroken": 0.81, "nested": 129},
    "agents": {"decisions": 0.31, "over_20": 0, "unbroken": 0.79, "nested": 34},
}
"""By folder: decisions a line of function, functions with more than 20, share of long bodies without a blank line,
comprehensions inside comprehensions."""


@pytest.mark.parametrize("folder", sorted(LIMITS))
def test_code_gets_no_denser(folder: str) -> None:
    counted, limits = shape(folder), LIMITS[folder]
    found = {
        "decisions": round(counted.decisions / counted.function_lines, 2),
        "over_20": counted.over_20,
        "unbroken": round(counted.unbroken / counted.long_bodies, 2),
        "nested": counted.nested,
    }
    assert {name: value for name, value in found.items() if value > limits[name]} == {}, "see `make shape`"


def test_decisions_inside_expressions_count() -> None:
    (function,) = ast.parse("def f(a, b):\n    return [x for x in a if x or b] if a and b else 0\n").body
    assert decisions(function) == 5
