"""Output: tables by default, JSON or YAML on request.

Colours only on a terminal and never with NO_COLOR set. Lines are as wide as the terminal, or as COLUMNS says;
elsewhere, such as in a pipe, a row is one line. Nothing is cut: names must stay whole to be copied. Text from the
cluster cannot control the terminal: control characters are escaped. Times in tables and texts are distances from now;
documents keep RFC 3339.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final, TextIO

import click
import msgspec

from belay.engine.cli.ages import readable
from belay.engine.cli.layout import Grid, beneath, grid, laid_out, width, wrapped
from belay.engine.model.states import CONCERNS

#: Columns where a terminal does not say how many it has.
_USUAL: Final = 80
_FEWEST: Final = 20
_COLOURS: Final = {"": "green", "warn": "yellow", "bad": "red"}
_STYLES: Final[Mapping[str, str]] = {
    **{word: _COLOURS[how] for word, how in CONCERNS.items()},
    "Running": "green",
    "ok": "green",
    "Pending": "yellow",
    "error": "red",
}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
#: A whole chip, as the device plugin names it: product, id.
_CHIP: Final = re.compile(r"(Ascend[0-9A-Za-z]*-|npu-)([0-9]{1,6})")
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


def line(value: Any, stream: TextIO | None = None) -> None:
    """Print a value as one line of JSON."""
    (stream or sys.stdout).write(msgspec.json.encode(msgspec.to_builtins(value, str_keys=True)).decode() + "\n")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    stream: TextIO | None = None,
    *,
    now: float | None = None,
    indent: str = "",
    headings: bool = True,
) -> None:
    """Print rows under upper-case headings (``usedBy`` → ``USED BY``); nothing if there are none.
    Without ``headings`` the rows alone.

    Times in the rows are shown as distances from ``now`` (Unix seconds).
    """
    if rows:
        GrowingTable(columns, stream, indent=indent, headings=headings).add(rows, now=now)


class GrowingTable:
    """A table to which rows are added over time: the first ones decide how wide its columns are."""

    def __init__(
        self, columns: Sequence[str], stream: TextIO | None = None, *, indent: str = "", headings: bool = True
    ) -> None:
        self._out, self._indent, self._titled = stream or sys.stdout, indent, headings
        self._headings = [_CAMEL.sub(" ", column).upper() for column in columns]
        self._grid: Grid | None = None

    def add(self, rows: Sequence[Sequence[object]], *, now: float | None = None) -> None:
        """Print rows, the first time under the headings."""
        cells = [[readable(cell(value), now) for value in row] for row in rows]
        out, wide, colours = self._out, room(self._out), coloured(self._out)
        wide = wide - len(self._indent) if wide is not None else None
        if self._grid is None:
            self._grid = grid(self._headings, cells, wide)
            for line in laid_out(self._headings, self._grid) if self._titled else ():
                out.write(self._indent + _line(line, self._grid.gap, {} if not colours else None))
        for row in cells:
            for line in laid_out(row, self._grid):
                out.write(self._indent + _line(line, self._grid.gap, _STYLES if colours else {}))
            for text in beneath(self._headings, row, self._grid, wide):
                out.write(f"{self._indent}{text}\n")


def text(words: str, stream: TextIO | None = None, *, now: float | None = None, hang: int = 0) -> None:
    """Print one line of text, wrapped at words where the width is known; a line break before it makes room.

    ``hang`` indents all lines but the first by so many columns more.
    """
    out = stream or sys.stdout
    if words.startswith("\n"):
        out.write("\n")
    for one in lines(words.lstrip("\n"), room(out), now=now, hang=hang):
        out.write(f"{one}\n")


def lines(words: str, wide: int | None, *, now: float | None = None, hang: int = 0) -> list[str]:
    """One line of text as `text` prints it."""
    shown = readable(plain(words), now)
    found = wrapped(shown, wide)
    if len(found) == 1 or not hang:
        return found
    indent = len(shown) - len(shown.lstrip(" "))
    rest = " ".join(one.strip() for one in found[1:])
    return [found[0], *wrapped(" " * (indent + hang) + rest, wide)]


class ScreenText(io.StringIO):
    """What a screen shows at one moment: a stream with the width and the colours of a terminal."""

    def __init__(self, columns: int, *, colours: bool) -> None:
        super().__init__()
        self.columns, self.colours = columns, colours


def room(stream: TextIO) -> int | None:
    """Columns of a line; None where lines have no end."""
    if isinstance(stream, ScreenText):
        return stream.columns
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdecimal() and int(given[:6]) > 0:
        return max(_FEWEST, int(given[:6]))
    if not stream.isatty():
        return None
    try:
        return max(_FEWEST, os.get_terminal_size(stream.fileno()).columns or _USUAL)
    except (OSError, ValueError):
        return _USUAL


def coloured(stream: TextIO) -> bool:
    """Whether to print colours (https://no-color.org)."""
    if isinstance(stream, ScreenText):
        return stream.colours
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def plain(text: str) -> str:
    """Text on one line, with control characters escaped."""
    return _CONTROL.sub(lambda found: " " if found[0] in "\n\t" else f"\\u{ord(found[0]):04x}", text)


def cell(value: object) -> str:
    """One value of a table."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return plain(",".join(_in_runs([str(item) for item in value]))) or "-"
    if isinstance(value, dict):
        return plain(", ".join(f"{k}: {v}" for k, v in value.items())) or "-"
    return plain(str(value))


def _in_runs(names: Sequence[str]) -> list[str]:
    """Names with three and more chips in a row as one, as Slurm writes nodes: ``Ascend910-[0-7]`` for eight of them."""
    shown: list[str] = []
    for (prefix, _), members in groupby(enumerate(names), key=_row_of):
        run = [name for _, name in members]
        ends = run[0].removeprefix(prefix), run[-1].removeprefix(prefix)
        shown += run if len(run) < 3 else [f"{prefix}[{ends[0]}-{ends[1]}]"]
    return shown


def _row_of(numbered: tuple[int, str]) -> tuple[str, int]:
    """The same for chips whose ids grow by one with their place in a list; another for every other name."""
    place, name = numbered
    chip = _CHIP.fullmatch(name)
    return (chip[1], int(chip[2]) - place) if chip else (name, place)


def _line(cells: Sequence[tuple[int, str]], gap: int, styles: Mapping[str, str] | None) -> str:
    """One line; ``styles`` None makes it bold."""
    parts = []
    for wide, text in cells:
        colour = None if styles is None else styles.get(text)
        bold = True if styles is None else None
        shown = click.style(text, fg=colour, bold=bold) if text and (colour or bold) else text
        parts.append(shown + " " * max(0, wide - width(text)))
    return (" " * gap).join(parts).rstrip() + "\n"
