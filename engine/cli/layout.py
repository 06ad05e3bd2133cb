"""Lines of a given width: text wrapped at words, tables whose columns shrink.

A word is never broken, because names are copied: a list may be broken after a comma, anything else only at spaces.
A table that is too wide first narrows its gaps, then wraps its long columns; what has no room left goes below its row,
under the column's name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple

#: Least width of a column that is wrapped: narrower ones are hard to read.
_NARROWEST: Final = 24
_GAPS: Final = (3, 2, 1)
_WRAPPED_GAP: Final = 2
_INDENT: Final = "  "
_PIECES: Final = re.compile(r"[^\s,]*,+(?=[^\s,])|\S+")


class Grid(NamedTuple):
    """How a table is laid out: columns side by side with their widths, columns below each row, and the gap."""

    beside: tuple[int, ...]
    widths: tuple[int, ...]
    below: tuple[int, ...]
    gap: int


def width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    return len(text) if text.isascii() else sum(_columns(char) for char in text)


def wrapped(text: str, room: int | None) -> list[str]:
    """The text in lines of at most ``room`` columns, longer only where a single word is; None does not wrap.

    Spaces at the start of the text indent every line.
    """
    if room is None or width(text) <= room:
        return [text]
    indent = text[: len(text) - len(text.lstrip(" "))]
    lines: list[str] = []
    line = ""
    spaced = False
    for found in _PIECES.finditer(text):
        piece = found[0]
        joint = " " if spaced or not line else ""
        joint = joint if line else indent
        if line and width(line) + width(joint) + width(piece) > room:
            lines.append(line)
            line, joint = "", indent
        line += joint + piece
        # a piece that ends in the middle of a list is followed by the next without a space
        spaced = text[found.end() : found.end() + 1].isspace()
    return [*lines, line] if line else lines or [""]


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]], room: int | None) -> Grid:
    """The layout of a table within ``room`` columns."""
    every = tuple(range(len(headings)))
    natural = [max(width(row[index]) for row in (headings, *rows)) for index in every]
    if room is None:
        return Grid(every, tuple(natural), (), _GAPS[0])
    least = [_least(headings[index], [row[index] for row in rows], natural[index]) for index in every]
    beside, below = list(every), list[int]()
    while True:
        for gap in _GAPS:
            free = room - gap * (len(beside) - 1)
            if sum(natural[index] for index in beside) <= free:
                return Grid(tuple(beside), tuple(natural[index] for index in beside), tuple(below), gap)
        free = room - _WRAPPED_GAP * (len(beside) - 1)
        if sum(least[index] for index in beside) <= free or len(beside) == 1:
            widths = _shrunk([natural[index] for index in beside], [least[index] for index in beside], free)
            return Grid(tuple(beside), widths, tuple(below), _WRAPPED_GAP)
        # the first column names the row and stays
        widest = max(beside[1:], key=lambda index: (least[index], natural[index]))
        beside.remove(widest)
        below = sorted([*below, widest])


def laid_out(row: Sequence[str], plan: Grid) -> list[list[tuple[int, str]]]:
    """One row as lines of (width, text), without the columns below."""
    cells = [wrapped(row[index], wide) for index, wide in zip(plan.beside, plan.widths, strict=True)]
    height = max(len(lines) for lines in cells)
    return [
        [(wide, lines[number] if number < len(lines) else "") for wide, lines in zip(plan.widths, cells, strict=True)]
        for number in range(height)
    ]


def beneath(headings: Sequence[str], row: Sequence[str], plan: Grid, room: int | None) -> list[str]:
    """The columns of a row that have no room beside the others, each under its name."""
    lines: list[str] = []
    for index in plan.below:
        if row[index] in ("", "-"):
            continue
        first = f"{_INDENT}{headings[index].lower()}: "
        inner = None if room is None else max(1, room - 2 * len(_INDENT))
        body = wrapped(f"{first.strip()} {row[index]}", inner)
        lines += [(_INDENT if number == 0 else _INDENT * 2) + line for number, line in enumerate(body)]
    return lines


def _least(heading: str, cells: Sequence[str], natural: int) -> int:
    """The width that a column needs at least: its longest piece, and enough to read it."""
    longest = max(width(found[0]) for text in (heading, *cells, "-") for found in _PIECES.finditer(text))
    return min(natural, max(longest, _NARROWEST))


def _shrunk(natural: Sequence[int], least: Sequence[int], free: int) -> tuple[int, ...]:
    """Widths whose sum is ``free`` where the least ones allow it: the widest column gives first."""
    widths = list(natural)
    while sum(widths) > free:
        spare = [index for index in range(len(widths)) if widths[index] > least[index]]
        if not spare:
            break
        widest = max(spare, key=lambda index: widths[index])
        second = max((widths[index] for index in spare if index != widest), default=0)
        over = sum(widths) - free
        widths[widest] = max(least[widest], widths[widest] - over, min(second, widths[widest] - 1))
    return tuple(widths)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
