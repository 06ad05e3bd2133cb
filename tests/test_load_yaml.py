"""YAML 1.2 values, refusals with places, and bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.load import yaml12


def value(text: str) -> Any:
    (node,) = yaml12.compose(text.encode())
    found, faults = yaml12.build(node, yaml12.may_alias(text.encode()))
    assert faults == []
    return found


def faults(text: str | bytes) -> list[tuple[int, int, str]]:
    data = text.encode() if isinstance(text, str) else text
    try:
        found = [fault for node in yaml12.compose(data) for fault in yaml12.build(node, yaml12.may_alias(data))[1]]
    except yaml12.YAMLProblem as fault:
        found = [fault]
    return [(fault.line, fault.column, fault.message) for fault in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("y", "y"), ("0777", "0777"), ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"), ("1e3", 1000.0), ("1_000", "1_000"), ("0o17", 15), ("0x1F", 31), ("-0", 0),
        ("+12", 12), (".5", 0.5), ("1.", 1.0), ("null", None), ("~", None), ("", None), ("Null", None),
        ("true", True), ("FALSE", False), ("tRue", "tRue"), ("'1'", "1"), ('"true"', "true"), ("-", [None]),
        ("=", "="), ("1.2.3", "1.2.3"), ("0100000D", "0100000D"), ("020000002", "020000002"), ("!!str 12", "12"),
        ("!!int 12", 12), ("!!float 1", 1.0), ("9007199254740993", 9007199254740993),
    ],
)  # fmt: skip
def test_scalars_follow_the_core_schema(text: str, expected: object) -> None:
    found = value(f"a: {text}") if text != "-" else {"a": value("-")}
    assert found == {"a": expected}
    assert type(found["a"]) is type(expected)


def test_keys_are_text_as_written() -> None:
    assert value("{80E01801: a, on: b, 1: c, true: d, 0777: e}") == {
        "80E01801": "a", "on": "b", "1": "c", "true": "d", "0777": "e",
    }  # fmt: skip


def test_merge_keys_yield_to_own_keys() -> None:
    assert value("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")["b"] == {"x": 1, "y": 3}
    assert value("a: &a {x: 1}\nb: &b {x: 2, z: 3}\nc: {<<: [*a, *b]}\n")["c"] == {"x": 1, "z": 3}


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, 1, "given twice: first at line 1, column 1"),
        ("a:\n  - {x: 1, x: 2}\n", 2, 12, "given twice: first at line 2, column 6"),
        ("a: 80E01801\n", 1, 4, "put it in quotes"),
        ("a: .inf\n", 1, 4, "put it in quotes"),
        ("a: 99999999999999999999999\n", 1, 4, "put it in quotes"),
        ("a: !!binary aGk=\n", 1, 4, "not supported"),
        ("a: !own x\n", 1, 4, "not supported"),
        ("a: !!timestamp 2026-01-01\n", 1, 4, "not supported"),
        ("a: !!set {x}\n", 1, 4, "not supported"),
        ("? [a]\n: 1\n", 1, 3, "keys must be text"),
        ("a:\n\tb: 1\n", 2, 1, "a tab where YAML wants spaces"),
        ("a: 'x\n", 2, 1, "scanning a quoted scalar"),
        ("a: *b\n", 1, 4, "undefined alias; an anchor &b must stand before *b"),
        ("a: 1\n<<<<<<< HEAD\nb: 2\n=======\nb: 3\n>>>>>>> other\n", 2, 1, "an unresolved merge conflict"),
        ("a:\n\u00a0 b: 1\n  c: 2\n", 2, 1, "U+00A0 looks like a space"),
        ("a:\n\u3000b: 1\n  c: 2\n", 2, 1, "U+3000 looks like a space"),
        ("a: 1\nb\uff1a 2\nc: 3\n", 2, 2, "U+FF1A looks like a colon"),
        ("a: [1\nb: 2\n", 2, 2, "close the list that begins with ["),
        ("a: 1\n b: 2\n", 2, 3, "indent this line like its neighbours"),
        ("a: &a [*a]\n", 1, 4, "never ends"),
        ("a: {<<: 1}\n", 1, 9, "merge key"),
        ("a: \x01\n", 1, 4, "control character"),
        ("[" * 65 + "]" * 65, 1, 65, "nested deeper"),
        ("[" * 500_000, 1, 65, "nested deeper"),
        ("- " * 400_000, 1, 129, "nested deeper"),
    ],
)
def test_refusals_name_their_place(text: str, line: int, column: int, words: str) -> None:
    found = faults(text)
    assert [(line, column)] == [(at, by) for at, by, message in found if words in message], found


@pytest.mark.parametrize(
    ("data", "line", "column", "words"),
    [
        (b"a: \xff\n", 1, 4, "not UTF-8"),
        ("a: ü\nb: ".encode() + b"\xe9", 2, 4, "not UTF-8"),
        ("a: 1".encode("utf-16"), 1, 1, "UTF-16"),
        (b"#" * ((1 << 20) + 1), 1, 1, "larger than 1 MiB"),
        (b"---\na: 1\n" * 1001, 2002, 1, "more than 1000 documents"),
    ],
)
def test_files_that_cannot_be_read_name_their_place(data: bytes, line: int, column: int, words: str) -> None:
    ((at, by, message),) = faults(data)
    assert (at, by) == (line, column)
    assert words in message


def test_aliases_are_bounded_by_their_expansion() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{name}: &{name} [*{before}, *{before}, *{before}, *{before}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert [message for *_, message in faults(bomb) if "aliases expand" in message]
    wide = "a: &a [" + "'" + "x" * 50_000 + "'" + "]\nb: [" + ", ".join(["*a"] * 100) + "]\n"
    assert [message for *_, message in faults(wide) if "aliases expand" in message]
    many = "a: &a [x]\nb: [" + ", ".join(["*a"] * 1000) + "]\n"
    assert faults(many) == []
    assert [message for *_, message in faults(many.replace("b: [", "b: [*a, ")) if "aliases expand" in message]


def test_aliases_cannot_stack_depth() -> None:
    deep = "a: &a " + "[" * 40 + "]" * 40 + "\nb: " + "[" * 40 + "*a" + "]" * 40 + "\n"
    assert [message for *_, message in faults(deep) if "nested deeper" in message]


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert yaml12.build(yaml12.compose(b"\xef\xbb\xbfa: 1\n")[0], False)[0] == {"a": 1}


def test_empty_documents_do_not_count() -> None:
    assert len(yaml12.compose(b"# only a comment\n---\n---\na: 1\n---\nnull\n")) == 1


def test_json_is_read_as_well() -> None:
    assert value('{\n\t"a": [1, true, null, "\\u00e9"]\n}') == {"a": [1, True, None, "é"]}


def test_places_of_paths() -> None:
    (node,) = yaml12.compose(b"spec:\n  a: &x\n    b: [1, two]\n  c:\n    <<: *x\n    d: 4\n")
    assert yaml12.locate(node, ("spec", "a", "b", 1)) == (3, 12, "spec.a.b[1]")
    assert yaml12.locate(node, ("spec", "c", "d"), at_key=True) == (6, 5, "spec.c.d")
    assert yaml12.locate(node, ("spec", "c", "b", 0)) == (3, 9, "spec.c.b[0]")
    assert yaml12.locate(node, ("spec", "c", "missing")) == (5, 5, "spec.c.missing")
    assert yaml12.locate(node, ("spec", "a", "b", 7)) == (3, 8, "spec.a.b")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(alphabet="ab:-?[]{},&*!|>'\"%#@ \n\t0.eE<~", max_size=120).map(str.encode))
def test_no_bytes_raise_anything_but_a_fault(data: bytes) -> None:
    for line, column, message in faults(data):
        assert line >= 1 and column >= 1 and message


def test_modes_of_files_are_octal_as_for_kubectl() -> None:
    assert value("{defaultMode: 0644, mode: 0400, other: 0644}") == {"defaultMode": 420, "mode": 256, "other": "0644"}
    assert value("{mode: enforce, defaultMode: 420}") == {"mode": "enforce", "defaultMode": 420}
    assert value("{mode: '0644', defaultMode: 0888}") == {"mode": "0644", "defaultMode": "0888"}
