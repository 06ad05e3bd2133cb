"""Small edits of TOML files that operators maintain: comments, order and blanks of everything else stay as they are.

tomllib reads, these functions write lines, and tomllib reads again: an edit counts only when the document then means
exactly what was wanted. Documents that cannot be edited by lines (inline tables on the path) are refused.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

Path = tuple[str, ...]

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_PART: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*""")
_HEADER: Final = re.compile(r"\s*\[(?!\[)\s*(.*?)\s*\]\s*(?:#.*)?$")
_KEY: Final = re.compile(r"\s*[\w.\"'-]+\s*=")
_ARRAY_HEADER: Final = re.compile(r"\s*\[\[")
MAX_DEPTH: Final = 64
"""Levels of tables and lists in a document."""


class EditError(ValueError):
    """The document cannot be edited; the text says where and why, without the file's name."""


def read(text: str) -> dict[str, Any]:
    """The document. Raises EditError with line and column, or for one that nests too deeply."""
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise EditError(str(error)) from error
    level: list[Any] = [found]
    for _ in range(MAX_DEPTH):
        level = [part for one in level for part in _parts_of(one)]
        if not level:
            return found
    raise EditError(f"tables and lists nest deeper than {MAX_DEPTH} levels")


def _parts_of(value: Any) -> Iterable[Any]:
    """The tables and lists directly in a value."""
    inner = value.values() if isinstance(value, Mapping) else value
    return [part for part in inner if isinstance(part, Mapping | list)]


def table(document: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any] | None:
    """The table at a path, None when there is none. Raises EditError when another value is there."""
    found = document
    for depth, name in enumerate(path):
        value = found.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise EditError(f"{dotted(path[: depth + 1])} is not a table")
        found = value
    return found


def set_value(text: str, path: Sequence[str], name: str, value: str) -> str:
    """``name = "value"`` in the table at ``path``, which is appended when it is missing."""
    wanted = read(text)
    below = wanted
    for step in path:
        below = below.setdefault(step, {})
        if not isinstance(below, dict):
            raise EditError(f"{dotted(path)} is not a table")
    if below.get(name) == value:
        return text
    below[name] = value
    lines = text.splitlines(keepends=True)
    entry = f"{name} = {_literal(value)}\n"
    span = next((span for span in _spans(lines) if span[0] == tuple(path)), None)
    if span is None:
        return _checked(_joined(text) + f"[{dotted(path)}]\n  {entry}", wanted, path)
    _, start, end = span
    for at in range(start + 1, end):
        found = re.match(rf"""(\s*)(?:{re.escape(name)}|"{re.escape(name)}"|'{re.escape(name)}')\s*=""", lines[at])
        if found:
            comment = re.search(r"(\s+#[^\"']*)$", lines[at].rstrip("\r\n"))
            lines[at] = found[1] + entry.rstrip("\n") + (comment[1] if comment else "") + _ending(lines[at])
            break
    else:
        header = lines[start] if start >= 0 else ""
        indent = header[: len(header) - len(header.lstrip())].rstrip("\r\n")
        lines.insert(start + 1, f"{indent}  {entry}" if start >= 0 else entry)
    return _checked("".join(lines), wanted, path)


def add_table(text: str, path: Sequence[str], values: Mapping[str, Any]) -> str:
    """The table at ``path`` with exactly these values, appended; an existing one is removed first."""
    text = remove_table(text, path)
    wanted = read(text)
    below = wanted
    for step in path[:-1]:
        below = below.setdefault(step, {})
        if not isinstance(below, dict):
            raise EditError(f"{dotted(path)} is not a table")
    below[path[-1]] = copy.deepcopy(dict(values))
    return _checked(_joined(text) + "\n".join(_written(tuple(path), values)) + "\n", wanted, path)


def remove_table(text: str, path: Sequence[str]) -> str:
    """The document without the table at ``path`` and what lies below it; parents left empty are removed too."""
    wanted = read(text)
    if table(wanted, path) is None:
        return text
    lines = text.splitlines(keepends=True)
    for gone, start, end in reversed(list(_spans(lines))):
        if gone[: len(path)] == tuple(path):
            # comments and blanks before the next header belong to that
            while end > start + 1 and re.fullmatch(r"\s*(#.*)?\s*", lines[end - 1]) and end < len(lines):
                end -= 1
            del lines[start:end]
    for depth in range(len(path), 0, -1):
        parent = table(wanted, path[: depth - 1])
        assert isinstance(parent, dict)
        if depth == len(path) or not parent[path[depth - 1]]:
            del parent[path[depth - 1]]
            _drop_header(lines, tuple(path[:depth]))
        else:
            break
    while len(lines) > 1 and not lines[-1].strip():
        del lines[-1]
    return _checked("".join(lines), wanted, path)


def _drop_header(lines: list[str], path: Path) -> None:
    for found, start, end in reversed(list(_spans(lines))):
        if found == path and start >= 0 and not "".join(lines[start + 1 : end]).strip():
            del lines[start:end]


def dotted(path: Sequence[str]) -> str:
    """The path as written in a header."""
    return ".".join(name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False) for name in path)


def _checked(text: str, wanted: Mapping[str, Any], path: Sequence[str]) -> str:
    try:
        right = read(text) == wanted
    except EditError:
        right = False
    if not right:
        raise EditError(f"{dotted(path)} is written in a way that cannot be edited (an inline table?); edit it by hand")
    return text


def _joined(text: str) -> str:
    """Ends in a newline and, unless empty, a blank line."""
    return text if not text else text.rstrip("\n") + "\n\n"


def _ending(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :] or "\n"


def _written(path: Path, values: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{dotted(path)}]"
    for name, value in values.items():
        if not isinstance(value, Mapping):
            yield f"  {dotted([name])} = {_literal(value)}"
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ("", *_written((*path, name), value))


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{dotted([name])} = {_literal(item)}" for name, item in value.items()) + "}"
    return str(value)


def _spans(lines: Sequence[str]) -> Iterator[tuple[Path, int, int]]:
    """Each table's path, line of its header (-1: before any) and line after its end, in order."""
    path: Path | None = ()
    start = -1
    found: list[tuple[Path, int, int]] = []
    first = 0  # after the last line that begins a table or a value
    for number, line in enumerate(lines):
        if number and (_HEADER.match(lines[number - 1]) or _KEY.match(lines[number - 1])):
            first = number
        if not _open(lines, first, number):
            header = _HEADER.match(line)
            parts = _parts(header[1]) if header else None
            if parts is not None or _ARRAY_HEADER.match(line):
                if path is not None:
                    found.append((path, start, number))
                path, start = parts, number
    if path is not None:
        found.append((path, start, len(lines)))
    return iter(found)


def _open(lines: Sequence[str], first: int, number: int) -> bool:
    """Whether the value that begins before line ``first`` (an array or a text over many lines) is still open at line
    ``number``."""
    if first == number or first == 0:
        return False
    try:
        tomllib.loads("".join(lines[first - 1 : number]))
    except (ValueError, RecursionError):
        return True
    return False


def _parts(text: str) -> Path | None:
    names, at = [], 0
    while found := _PART.match(text, at):
        try:
            names.append(found[3] or found[2] or (json.loads(f'"{found[1]}"') if found[1] is not None else ""))
        except (ValueError, RecursionError):  # an escape or control character that TOML refuses, too
            return None
        at = found.end()
        if at == len(text):
            return tuple(names)
        if text[at] != ".":
            return None
        at += 1
    return None
