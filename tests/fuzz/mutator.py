"""Inputs made from others: bytes, lines, words, and values of JSON documents, also of those inside texts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

from tests.fuzz.harness import Form

LARGEST: Final = 256 << 10
"""Longest input in bytes."""
_ODD_TEXTS: Final = (
    "",
    " ",
    "0",
    "-1",
    "1e999",
    "NaN",
    "Infinity",
    "null",
    "true",
    "9" * 40,
    "4294967296",
    "18446744073709551616",
    "-9223372036854775809",
    "0x10",
    "1.5",
    "٣",
    "²",
    "¼",
    "\x00",
    "\n",
    "\r\n",
    "\u2028",
    "\ufeff",
    "\u202e",
    "é" * 300,
    "a" * 5000,
    "../../etc/passwd",
    "/dev/zero",
    "%s%n",
    "{}",
    "[]",
    "{",
    "Ascend910-0",
    "Ascend910-",
    "Ascend910-0,Ascend910-0",
    "Ascend910-99999999999999999999",
    "2026-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00+24:00",
    "10%",
    "1h",
    "1e5s",
    "-5m",
    "1Ei",
    "1e99Gi",
    "0-99999999999",
    "8-1",
    ",",
    ":",
    "=",
    "[" * 200,
    '{"a":' * 100,
)
_ODD_NUMBERS: Final = (
    0,
    -1,
    1,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**30,
    0.5,
    -0.0,
    1e308,
    5e-324,
)
_ODD_INTEGERS: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
_TOKENS: Final = (
    b"\x00",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\r\n",
    b"\t",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"'",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b":",
    b",",
    b"- ",
    b"&a ",
    b"*a",
    b"<<: *a",
    b"!!binary ",
    b"? ",
    b"|\n",
    b"---\n",
    b"...\n",
    b"#",
    b"=",
    b"%",
    b"$(id)",
    b"NaN",
    b"-",
    b"1e999",
    b"99999999999999999999",
    b"null",
    b"~",
)
_DEPTHS: Final = (30, 70, 300, 1_200, 20_000)


class Mutator:
    """A seeded source of inputs made from a population."""

    def __init__(self, form: Form, words: Sequence[bytes], dice: random.Random) -> None:
        self._form = form
        self._words = (*words, *_TOKENS)
        self._dice = dice

    def next(self, population: Sequence[bytes]) -> bytes:
        """One more input, from one or two of the population."""
        data = self._dice.choice(population) if population else b""
        other = self._dice.choice(population) if population else b""
        for _ in range(1 + min(6, int(self._dice.expovariate(0.7)))):
            changed = self._structure(data, other) if self._form is Form.JSON and self._dice.random() < 0.8 else None
            if changed is None and self._form is Form.TEXT and self._dice.random() < 0.5:
                changed = self._lines(data, other)
            data = (self._bytes(data, other) if changed is None else changed)[:LARGEST]
        return data

    # -- bytes

    def _bytes(self, data: bytes, other: bytes) -> bytes:
        dice = self._dice
        at = dice.randrange(len(data) + 1)
        end = min(len(data), at + 1 + int(dice.expovariate(0.05)))
        match dice.randrange(11):
            case 0:
                return data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]
            case 1:
                return data[:at] + data[end:]
            case 2:
                return data[:at] + dice.choice(self._words) + data[at if dice.random() < 0.5 else end :]
            case 3:
                return data[:end] + data[at:end] * dice.choice((1, 2, 50, 1000)) + data[end:]
            case 4:
                cut = dice.randrange(len(other) + 1)
                return data[:at] + other[cut:]
            case 5:
                cut = dice.randrange(len(other) + 1)
                return data[:at] + other[cut : cut + end - at] + data[at:]
            case 6:
                return data[:at]
            case 7:
                size, order = dice.choice((1, 2, 4, 8)), dice.choice(("little", "big"))
                number = dice.choice(_ODD_INTEGERS) % (1 << 8 * size)
                return data[:at] + number.to_bytes(size, order) + data[at + size :]
            case 8:
                return (
                    data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :] if at < len(data) else data
                )
            case 9:
                return data[:at] + dice.choice(_ODD_TEXTS).encode() + data[end:]
            case _:
                opening, closing = dice.choice(
                    ((b"[", b"]"), (b'{"a":', b"}"), (b"- ", b""), (b"(", b")"), (b"\x0b", b""))
                )
                depth = dice.choice(_DEPTHS)
                return data[:at] + opening * depth + data[at:end] + closing * depth + data[end:]

    # -- lines and words

    def _lines(self, data: bytes, other: bytes) -> bytes:
        dice = self._dice
        lines = data.split(b"\n")
        at = dice.randrange(len(lines))
        match dice.randrange(7):
            case 0:
                del lines[at]
            case 1:
                lines[at:at] = [lines[at]] * dice.choice((1, 2, 500))
            case 2:
                to = dice.randrange(len(lines))
                lines[at], lines[to] = lines[to], lines[at]
            case 3:
                lines.insert(at, dice.choice(other.split(b"\n")))
            case 4:
                lines[at] = b" " * dice.choice((1, 2, 4, 80)) + lines[at]
            case 5:
                words = lines[at].split(b" ")
                words[dice.randrange(len(words))] = dice.choice((*self._words, dice.choice(_ODD_TEXTS).encode()))
                lines[at] = b" ".join(words)
            case _:
                lines[at] = lines[at].lstrip()
        return b"\n".join(lines)

    # -- values

    def _structure(self, data: bytes, other: bytes) -> bytes | None:
        """A document with one value changed; None where the bytes are none."""
        value = _document(data)
        if value is _NONE:
            return None
        changed = self._changed(value, _document(other), 0)
        try:
            return json.dumps(changed, ensure_ascii=self._dice.random() < 0.5).encode("utf-8", "replace")
        except (ValueError, RecursionError):
            return None

    def _changed(self, value: Any, other: Any, depth: int) -> Any:
        dice = self._dice
        if isinstance(value, dict) and value and dice.random() < 0.85:
            key = dice.choice(list(value))
            match dice.randrange(10) if depth else 9:
                case 0:
                    return {k: v for k, v in value.items() if k != key}
                case 1:
                    return {dice.choice(_ODD_TEXTS) if k == key else k: v for k, v in value.items()}
                case 2:
                    return {**value, dice.choice(_ODD_TEXTS): value[key]}
                case _:
                    return {**value, key: self._changed(value[key], other, depth + 1)}
        if isinstance(value, list) and value and dice.random() < 0.85:
            at = dice.randrange(len(value))
            match dice.randrange(8):
                case 0:
                    return value[:at] + value[at + 1 :]
                case 1:
                    return value[:at] + [value[at]] * dice.choice((2, 3, 100, 2000)) + value[at:]
                case _:
                    return [*value[:at], self._changed(value[at], other, depth + 1), *value[at + 1 :]]
        if isinstance(value, str) and value[:1] in ("{", "[") and dice.random() < 0.9:
            inner = _document(value.encode("utf-8", "replace"))
            if inner is not _NONE:
                return _text(self._changed(inner, other, depth + 1))
        return self._replaced(value, other)

    def _replaced(self, value: Any, other: Any) -> Any:
        dice = self._dice
        match dice.randrange(12):
            case 0 | 1:
                return dice.choice(_ODD_TEXTS)
            case 2 | 3:
                return dice.choice(_ODD_NUMBERS)
            case 4:
                return dice.choice((None, True, False, [], {}, [None], {"": None}, [[]], [{}]))
            case 5:
                return [value]
            case 6:
                return {"a": value}
            case 7 if other is not _NONE:
                return self._part(other)
            case 8:
                return _text(value) if not isinstance(value, str) else _parsed(value)
            case 9 if isinstance(value, str):
                changed = self._bytes(value.encode("utf-8", "replace"), b"").decode("utf-8", "replace")
                return changed
            case 10 if isinstance(value, int | float):
                return -value
            case 11:
                deep: Any = value
                for _ in range(dice.choice((5, 70, 300))):
                    deep = [deep] if dice.random() < 0.5 else {"a": deep}
                return deep
            case _:
                return {str(number): value for number in range(dice.choice((10, 500)))}

    def _part(self, value: Any) -> Any:
        while isinstance(value, dict | list) and value and self._dice.random() < 0.8:
            value = self._dice.choice(list(value.values()) if isinstance(value, dict) else value)
        return value


_NONE: Final = object()


def _document(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return _NONE


def _text(value: Any) -> str:
    try:
        return json.dumps(value)
    except (ValueError, RecursionError):
        return ""


def _parsed(text: str) -> Any:
    found = _document(text.encode("utf-8", "replace"))
    return text.split(",") if found is _NONE else found


__all__ = ["LARGEST", "Mutator"]
