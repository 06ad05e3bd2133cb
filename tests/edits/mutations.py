"""Small mistakes of people, editors and merges, each named by the file and a number so that it can be made again.

All edits of the files below ``desired/`` are made. Files below ``policies/`` are tables, of which rows of one shape
(names, numbers and the text of comments left out) differ in their values alone: single characters are changed in the
first row of each shape there, and neither in the midst of long words nor of long rows; whole lines in the first three
of each shape in a file.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

INSERTED = " :-\t#{}[]\"'"
_ROW = re.compile(rb"(?:[\"']?[A-Za-z0-9_./%-]+[\"']?(?:, *)?)+")
"""A word, in quotes or not, or several with commas between them: the shape of a row does not depend on how many."""


class Edit(NamedTuple):
    """One edit of one file: ``kind`` and where; ``more`` is what is inserted, by how much, or a seed."""

    path: str
    kind: str
    at: int
    more: str = ""

    def __str__(self) -> str:
        return f"{self.path} {self.kind} {self.at} {self.more!r}"


def every_edit(files: Mapping[str, bytes], merges: int = 100) -> Iterator[Edit]:
    """All edits of all files, in a fixed order; ``merges`` is how many random merges each file gets."""
    known: set[bytes] = set()
    for path in sorted(files):
        text, table = files[path], not path.startswith("desired/")
        rows: Counter[bytes] = Counter()
        at = 0
        for number, line in enumerate(text.splitlines(keepends=True)):
            shape = b"#" if line.lstrip().startswith(b"#") else _ROW.sub(b"w", line)
            if not table or shape not in known:
                yield from _of_characters(path, text, at, len(line), table)
            if table:
                known.add(shape)
                rows[shape] += 1
            at += len(line)
            if rows[shape] <= 3:
                yield from _of_lines(path, number)
        yield from (Edit(path, "insert", len(text), char) for char in INSERTED)
        for whole in ("crlf", "bom", "bom utf-16", "double", "double document", "tabs", "no last newline"):
            yield Edit(path, whole, 0)
        yield from (Edit(path, "merge", seed) for seed in range(merges))


def _of_characters(path: str, text: bytes, begin: int, length: int, table: bool) -> Iterator[Edit]:
    for place in range(begin, begin + length):
        if not (table and _repeats(text, place, begin, length)):
            yield Edit(path, "delete", place)
            yield from (Edit(path, "insert", place, char) for char in INSERTED)
            yield Edit(path, "cut", place)


def _of_lines(path: str, number: int) -> Iterator[Edit]:
    for kind in ("delete line", "swap lines", "double line", "comment line", "crlf line"):
        yield Edit(path, kind, number)
    yield from (Edit(path, "indent", number, step) for step in ("1", "2", "-1", "-2", "tab"))
    yield from (Edit(path, "indent rest", number, step) for step in ("2", "-2"))


def _repeats(text: bytes, place: int, begin: int, length: int) -> bool:
    """Whether a character stands inside a long word, or inside a long row of words."""
    return text[place - 2 : place + 3].isalnum() or 40 <= place - begin < length - 8


def edited(text: bytes, edit: Edit) -> bytes:
    """The text with the edit made."""
    at = edit.at
    match edit.kind:
        case "delete":
            return text[:at] + text[at + 1 :]
        case "insert":
            return text[:at] + edit.more.encode() + text[at:]
        case "cut":
            return text[:at]
        case "crlf":
            return text.replace(b"\n", b"\r\n")
        case "bom":
            return b"\xef\xbb\xbf" + text
        case "bom utf-16":
            return text.decode().encode("utf-16")
        case "double":
            return text + text
        case "double document":
            return text + b"---\n" + text.rpartition(b"\n---\n")[2]
        case "tabs":
            return re.sub(rb"(?m)^((?:  )+)", lambda found: b"\t" * (len(found[1]) // 2), text)
        case "no last newline":
            return text.rstrip(b"\n")
        case "merge":
            return _merge(text, random.Random(f"{edit.path} {at}"))
    return b"".join(_line_edit(text.splitlines(keepends=True), edit))


def _line_edit(lines: list[bytes], edit: Edit) -> list[bytes]:
    at, line = edit.at, lines[edit.at]
    match edit.kind:
        case "delete line":
            lines[at : at + 1] = []
        case "swap lines":
            lines[at : at + 2] = lines[at : at + 2][::-1]
        case "double line":
            lines[at : at + 1] = [line, line]
        case "comment line":
            lines[at] = b"# " + line
        case "crlf line":
            lines[at] = line.rstrip(b"\n") + b"\r\n"
        case "indent":
            lines[at] = _indented(line, edit.more)
        case "indent rest":
            end = next((n for n in range(at, len(lines)) if not lines[n].strip() or lines[n] == b"---\n"), len(lines))
            lines[at:end] = [_indented(one, edit.more) for one in lines[at:end]]
        case _:
            raise ValueError(edit.kind)
    return lines


def _indented(line: bytes, step: str) -> bytes:
    if step == "tab":
        return b"\t" + line
    return b" " * int(step) + line if int(step) > 0 else line[min(-int(step), len(line) - len(line.lstrip(b" "))) :]


def _merge(text: bytes, chance: random.Random) -> bytes:
    """The results of two edits of the same text: both, or a hunk of each with or without marks of the conflict."""
    lines = text.splitlines(keepends=True)
    begin = chance.randrange(len(lines))
    end = min(len(lines), begin + chance.randint(1, 6))
    ours, theirs = _valid(lines[begin:end], chance), _valid(lines[begin:end], chance)
    hunk = chance.choice((
        ours + theirs,
        theirs,
        [b"<<<<<<< HEAD\n", *ours, b"=======\n", *theirs, b">>>>>>> theirs\n"],
        [b"<<<<<<< HEAD\n", *ours, b"=======\n", *theirs],
        [b"=======\n", *theirs, b">>>>>>> theirs\n"],
        [*ours[: len(ours) // 2], *theirs[len(theirs) // 2 :]],
    ))  # fmt: skip
    return b"".join([*lines[:begin], *hunk, *lines[end:]])


def _valid(lines: list[bytes], chance: random.Random) -> list[bytes]:
    """What a person may make of some lines: another number, another word, a line more or less, a comment."""
    made = list(lines)
    at = chance.randrange(len(made))
    match chance.randrange(5):
        case 0:
            made[at] = re.sub(rb"\d+", lambda found: b"%d" % (int(found[0]) + 1), made[at], count=1)
        case 1:
            made[at] = re.sub(rb": ([a-z]\w*)\s*$", rb": \1x\n", made[at])
        case 2:
            made[at:at] = [b"# a note\n"]
        case 3:
            made[at : at + 1] = []
        case _:
            made[at:at] = [made[at]]
    return made
