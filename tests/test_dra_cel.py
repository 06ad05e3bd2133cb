"""The expression language of selectors: what it computes, what it refuses by name, and its bounds."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from belay.engine.plan.claims.cel import MAX_LENGTH, Amount, CelError, Domains, holds, parse, version

DEVICE = {
    "driver": "npu.huawei.com",
    "attributes": Domains({"npu.huawei.com": {
        "physicId": 3, "ring": 0, "type": "npu", "deviceType": "Ascend910B", "fast": True,
        "firmware": version("24.1.2-rc.1"),
    }}),
    "capacity": Domains({"npu.huawei.com": {"memory": Amount(Fraction(64 << 30))}}),
}  # fmt: skip
OWN = 'device.attributes["npu.huawei.com"]'


def true(text: str) -> bool:
    return holds(parse(text), {"device": DEVICE})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("device.driver == 'npu.huawei.com'", True),
        (f"{OWN}.physicId == 3", True),
        (f"{OWN}.physicId in [1, 2]", False),
        (f"{OWN}.ring == 0 && !({OWN}.type != 'npu')", True),
        (f"{OWN}['deviceType'].startsWith('Ascend910') || false", True),
        (f"{OWN}.deviceType.lowerAscii().contains('910b')", True),
        (f"{OWN}.fast ? {OWN}.physicId % 2 == 1 : false", True),
        (f"has({OWN}.rackId)", False),
        ("has(device.attributes['other.domain'].x)", False),
        ("'other' in device.attributes", False),
        ('device.capacity["npu.huawei.com"].memory.compareTo(quantity("32Gi")) >= 0', True),
        ('device.capacity["npu.huawei.com"].memory.isLessThan(quantity("64G"))', False),
        (f"{OWN}.firmware.isLessThan(semver('24.1.2'))", True),
        (f"{OWN}.firmware.major() == 24", True),
        (f"cel.bind(own, {OWN}, own.physicId >= 2 && own.physicId < 4)", True),
        (f"[1, 2, 3].exists(n, n == {OWN}.physicId) && [1, 2].all(n, n < 3)", True),
        ("size('abc') == 3 && [1, 2].map(n, n * 2) == [2, 4]", True),
        ("1 == 1.0 && '1' != 1 && true != 1", True),
        ("-7 / 2 == -3 && -7 % 2 == -1", True),
        ("'a\\'b' == \"a'b\"", True),
        # an error counts only where the other side does not decide
        (f"true || {OWN}.nothing == 1", True),
        (f"{OWN}.nothing == 1 || true", True),
        (f"{OWN}.nothing == 1 && false", False),
    ],
)
def test_an_expression_has_this_value(text: str, expected: bool) -> None:
    assert true(text) is expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{OWN}.nothing == 1", "no field 'nothing'"),
        ("device.driver", "not true or false"),
        ("1 + 'a' == 2", r"\+ does not go with"),
        ("1 / 0 == 1", "/ does not go with"),
        ("device.driver.matches('a+')", "no function 'matches'"),
        ("now() > 1", r"function now\(\)"),
        ("other == 1", "nothing is named 'other'"),
        ("(1", "missing"),
        ("1 ==", "ends too early"),
        ("1 == 1 1", "unexpected '1'"),
        ("'open", "unreadable at character 1"),
        ("true " + "&& true" * MAX_LENGTH, "at most"),
        ("(" * 500 + "true" + ")" * 500, "nested"),
        ("!" * 500 + "true", "too many signs"),
    ],
)
def test_what_cannot_be_computed_is_said(text: str, problem: str) -> None:
    with pytest.raises(CelError, match=problem):
        true(text)


def test_an_expression_ends_after_a_bounded_number_of_steps() -> None:
    many = ",".join("1" * 100)
    inner = f"[{many}].all(c, a + b + c > 0)"
    with pytest.raises(CelError, match="more than 10000 steps"):
        true(f"[{many}].all(a, [{many}].all(b, {inner}))")


def test_versions_are_ordered_as_semver_says() -> None:
    rising = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0", "1.0.1", "1.10.0"]
    found: list[Any] = [version(text) for text in rising]
    assert found == sorted(found) and len(set(found)) == len(found)


def bound(first: str, step: str, times: int, end: str) -> str:
    """``end`` where ``x`` was made by doing ``step`` again and again, each with the result before as ``$``."""
    for number in reversed(range(times)):
        value = step.replace("$", f"x{number - 1}") if number else first
        end = f"cel.bind(x{number}, {value}, {end})"
    return end


@pytest.mark.parametrize(
    "text",
    [
        "1" * 5000 + " == 1",
        "012 == 12",
        "1" * 400 + ".5 > 1.0",
        bound("'aaaaaaaaaa'", "$ + $", 28, "size(x27) > 0"),
        bound("99", "$ * $", 28, "x27 > 0"),
        bound("99.5", "$ * $", 28, "x27 > 0.0"),
        bound("[1]", "[$, $]", 27, bound("[1]", "[$, $]", 27, "true").replace("x", "y").replace("true", "x26 == y26")),
        "[[1]] in [[[1]]]",
        "[1][[1]] == 1",
        "device[[1]] == 1",
        "device" + ".a" * 4500,
        "+".join(["1"] * 4000) + " == 1",
        "[" * 9000,
    ],
    ids=[
        "digits",
        "octal",
        "float",
        "texts",
        "numbers",
        "floats",
        "lists",
        "in",
        "key",
        "item",
        "members",
        "chain",
        "[",
    ],
)
def test_no_expression_ends_or_stalls_the_planner(text: str) -> None:
    """Every account that may create a claim can write these."""
    with pytest.raises(CelError):
        true(text)
