"""Texts from the cluster, for a document: bounded, one line each, without secrets, and never markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from belay.engine.errors import bounded
from belay.engine.log import redact

LONGEST: Final = 400
"""Longest text of a document, in characters."""
NAME: Final = 253
"""Longest name of an object, in characters."""
LONGEST_FACT: Final = 2_000
"""Longest text of an answer that is no row of a table, in characters."""
MOST_FACTS: Final = 200_000
"""Most values of such an answer; a text counts once more for every 64 characters."""
DEEPEST: Final = 24
MOST_ROWS: Final = 2_000
"""Most rows of a list that can grow without bound, such as faults and findings."""


def line(value: object, limit: int = LONGEST, *, indented: bool = False) -> str:
    """A text on one line, cut to ``limit`` characters, without control characters and secrets of known forms.
    ``indented`` keeps its spaces: those at its beginning, and between the columns of a table.
    """
    if value is None:
        return ""
    # cut before and after: redaction must not look at a megabyte, and what it puts in may be longer
    text = bounded(str(value), 4 * limit)
    shown = "".join(char if char.isprintable() else " " for char in text)
    return bounded(redact(shown.rstrip() if indented else " ".join(shown.split())), limit)


def name(value: object) -> str:
    """A name as Kubernetes allows it, at most 253 characters; of anything else, what a text may show."""
    text = str(value) if isinstance(value, str) else ""
    return text if _may_leave(text, NAME) else line(text, NAME)


def _may_leave(text: str, limit: int) -> bool:
    return len(text) <= limit and text.isprintable() and redact(text) == text


def cleaned(value: Any, limit: int = LONGEST_FACT, most: int = MOST_FACTS) -> Any:
    """A plain JSON value in which every text, keys of mappings too, is one that may leave: see :func:`line`. Beyond
    ``most`` values (see MOST_FACTS), and beyond a depth that no answer has, the rest is left out.
    """
    left = [most]

    def clean(one: Any, depth: int) -> Any:
        left[0] -= 1
        if isinstance(one, str):
            shown = one if _may_leave(one, limit) else line(one, limit)
            left[0] -= len(shown) // 64
            return shown
        if isinstance(one, Mapping):
            return {name(str(key)): clean(part, depth + 1) for key, part in one.items() if _more(depth)}
        if isinstance(one, list | tuple):
            return [clean(part, depth + 1) for part in one if _more(depth)]
        return one if one is None or isinstance(one, bool | int | float) else line(one, limit)

    def _more(depth: int) -> bool:
        return left[0] > 0 and depth < DEEPEST

    return clean(value, 0)


def decoded(text: str | None) -> Any:
    """JSON in a ConfigMap; None where it cannot be read, such as after an edit by hand."""
    try:
        return msgspec.json.decode(text or "null")
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def rows(text: str | None) -> list[dict[str, Any]]:
    """A list of mappings in a ConfigMap; what is none is left out."""
    value = decoded(text)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def mapping(value: Any) -> dict[str, Any]:
    """The mapping; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def numbers(value: Any) -> dict[str, float]:
    """Names with numbers; what is none is left out."""
    return {
        name(key): number
        for key, number in mapping(value).items()
        if isinstance(number, int | float) and not isinstance(number, bool)
    }


def number(value: Any) -> float | int | None:
    """The number; None for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def first(found: list[Any], most: int = MOST_ROWS) -> tuple[list[Any], int]:
    """The first rows, and how many are left out."""
    return found[:most], max(0, len(found) - most)


def words(values: Iterable[Any] | Any, most: int = 32) -> list[str]:
    """A list of short texts."""
    listed = values if isinstance(values, list | tuple) else []
    return [line(value, 120) for value in listed[:most]]


def picked(item: Mapping[str, Any], *keys: str) -> dict[str, str]:
    """Some texts of a mapping."""
    return {key: line(item.get(key)) for key in keys}
