"""Output: tables by default, JSON or YAML on request.

Colours only on a terminal and never with NO_COLOR set. Tables are never cut, as kubectl's: names must stay whole to be
copied. Text from the cluster cannot control the terminal: control characters are escaped.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

import click
import msgspec

from engine.model.states import CONCERNS

_GAP: Final = "   "
_COLOURS: Final = {"": "green", "warn": "yellow", "bad": "red"}
_STYLES: Final[Mapping[str, str]] = {
    **{word: _COLOURS[how] for word, how in CONCERNS.items()},
    "Running": "green",
    "ok": "green",
    "Pending": "yellow",
    "error": "red",
}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def document(value: Any, output: str, stream: TextIO | None = None) -> None:
    """Print a value as one JSON or YAML document."""
    out = stream or sys.stdout
    plain = msgspec.to_builtins(value, str_keys=True)
    if output == "yaml":
        import yaml

        out.write(yaml.dump(plain, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=120))
    else:
        out.write(msgspec.json.format(msgspec.json.encode(plain), indent=1).decode() + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], stream: TextIO | None = None) -> None:
    """Print rows under upper-case headings (``usedBy`` → ``USED BY``); nothing if there are none."""
    out = stream or sys.stdout
    if not rows:
        return
    cells = [[cell(value) for value in row] for row in rows]
    headings = [_CAMEL.sub(" ", column).upper() for column in columns]
    widths = [max(_width(row[index]) for row in (headings, *cells)) for index in range(len(headings))]
    colours = coloured(out)
    out.write(_line(headings, widths, {} if not colours else None))
    for row in cells:
        out.write(_line(row, widths, _STYLES if colours else {}))


def coloured(stream: TextIO) -> bool:
    """Whether to print colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def plain(text: str) -> str:
    """Text on one line, with control characters escaped."""
    return _CONTROL.sub(lambda found: " " if found[0] in "\n\t" else f"\\u{ord(found[0]):04x}", text)


def cell(value: object) -> str:
    """One value of a table."""
    if value is None or value == "":
        return "-"
    if isinstance(value, list | tuple):
        return plain(",".join(str(item) for item in value)) or "-"
    if isinstance(value, dict):
        return plain(", ".join(f"{k}: {v}" for k, v in value.items())) or "-"
    return plain(str(value))


def _line(row: Sequence[str], widths: Sequence[int], styles: Mapping[str, str] | None) -> str:
    """One line; ``styles`` None makes it bold."""
    parts = []
    for text, width in zip(row, widths, strict=True):
        colour = None if styles is None else styles.get(text)
        shown = click.style(text, fg=colour, bold=styles is None) if colour or styles is None else text
        parts.append(shown + " " * (width - _width(text)))
    return _GAP.join(parts).rstrip() + "\n"


def _width(text: str) -> int:
    """Columns on a terminal."""
    return len(text) if text.isascii() else sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
