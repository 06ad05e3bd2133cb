"""Kubernetes quantities (``500m``, ``16Gi``, ``8``): parse, compare, add.

Source: the serialisation rules of Kubernetes' resource.Quantity.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Final

_BINARY: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_DECIMAL: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_PATTERN: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d{1,2})?", re.ASCII)
#: Longest text that is read as a quantity.
_LONGEST: Final = 64


@lru_cache(maxsize=4096)
def parse(text: str) -> Fraction | None:
    """The exact value of a quantity; None when the text is not a quantity."""
    match = _PATTERN.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        return None
    number, suffix = Fraction(match[1]), match[2] or ""
    if suffix in _BINARY:
        return number * _BINARY[suffix]
    if suffix in _DECIMAL:
        return number * _DECIMAL[suffix]
    return number * Fraction(10) ** int(suffix[1:])


def whole(value: object) -> int:
    """A count from a number or text, rounded up as Kubernetes does; 0 when it is not a quantity."""
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return value
    exact = parse(str(value)) if isinstance(value, str | float) else None
    return 0 if exact is None else -((-exact.numerator) // exact.denominator)


def whole_number(text: str, digits: int = 9) -> int | None:
    """The number, from 0 on, that at most so many ASCII digits write; None for any other text.

    The limit keeps what people write from becoming numbers that no field holds, or that Python refuses to convert.
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else None


def signed_number(text: str, digits: int = 9) -> int | None:
    """The same for a number that may begin with a minus."""
    number = whole_number(text.removeprefix("-"), digits)
    return -number if number is not None and text.startswith("-") else number


def total(texts: Iterable[str]) -> str:
    """The sum in canonical form: with a binary suffix when every summand has one, else a number or milli-units."""
    parts = list(texts)
    value = sum((parse(part) or Fraction(0) for part in parts), Fraction(0))
    if value.denominator != 1:
        return f"{-((-value * 1000).__floor__())}m"
    if parts and all(part[-2:] in _BINARY for part in parts):
        for suffix, size in reversed(_BINARY.items()):
            if value and value % size == 0:
                return f"{value.numerator // size}{suffix}"
    return str(value.numerator)


def amount(resource: str, value: object) -> int:
    """A resource amount in whole units: ``cpu`` in milli-cores, everything else rounded up to pieces or bytes.

    Raises:
        ValueError: not a quantity.
    """
    scale = 1000 if resource == "cpu" else 1
    if isinstance(value, str) and value.isdigit() and len(value) <= _LONGEST:
        return int(value) * scale
    if isinstance(value, int) and not isinstance(value, bool):
        return value * scale
    exact = parse(str(value)) if isinstance(value, str | float) else None
    if exact is None:
        raise ValueError(f"{str(value)[:40]!r} is not a Kubernetes quantity")
    scaled = exact * scale
    return -((-scaled.numerator) // scaled.denominator)


def text_of(resource: str, value: int) -> str:
    """The quantity of an amount, the inverse of `amount`: ``cpu`` comes in milli-cores."""
    if resource != "cpu":
        return str(value)
    return f"{value}m" if value % 1000 else str(value // 1000)
