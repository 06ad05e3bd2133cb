"""Output for people and programs: tables by default, JSON or YAML on request.

Colours only on a terminal and never with NO_COLOR set; only a terminal's width cuts tables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

import msgspec

FORMATS: Final = ("table", "wide", "json", "yaml")
_PIPE_WIDTH: Final = 10_000
_STYLES: Final[Mapping[str, str]] = {
    "healthy": "green",
    "Running": "green",
    "ok": "green",
    "sub-healthy": "yellow",
    "suspect": "yellow",
    "resetting": "yellow",
    "recovering": "yellow",
    "pre-isolated": "yellow",
    "Pending": "yellow",
    "isolated": "red",
    "manually-isolated": "red",
    "not-ready": "red",
    "error": "red",
}


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
    """Print rows under upper-case headings, as kubectl does; says so when there are none."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = stream or sys.stdout
    console = Console(file=out, highlight=False, width=None if out.isatty() else _PIPE_WIDTH, soft_wrap=False)
    if not rows:
        console.print("nothing found")
        return
    grid = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns:
        grid.add_column(column.upper(), no_wrap=True, overflow="ellipsis")
    for row in rows:
        grid.add_row(*(Text(_cell(value), style=_STYLES.get(_cell(value), "")) for value in row))
    for line in _lines(console, grid):
        out.write(line)


def _lines(console: Any, grid: Any) -> list[str]:
    with console.capture() as capture:
        console.print(grid)
    return [line.rstrip() + "\n" for line in capture.get().splitlines()]


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{k}: {v}" for k, v in value.items()) or "-"
    return str(value)
