"""Every splice at every place of a text: what it may change, as a reader and a comparison of its own say.

The reader is PyYAML's base loader, which knows nothing of Belay: all scalars stay text. Where the splice is not
refused, the edited text has to say the old values and the change. Nothing goes but what the edit replaces or takes out,
and no comment but one that stood inside of that; what is added leaves every line as it was, but for a comma.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import yaml

from belay.engine.cli.acts import splices
from belay.engine.errors import InputError

Path = tuple[str | int, ...]
VALUES: tuple[str | int | bool, ...] = (7, "plain", "no", "a: b # c", "it's [x", True)
"""What is written: a number, words that look like other things, and words that need quotes."""


class Tally(NamedTuple):
    """How many splices were made, and how many were refused."""

    made: int
    refused: int


class Difference(NamedTuple):
    """The one piece in which two texts differ: what is before it, what went, what came."""

    head: str
    gone: str
    come: str


def check_every_place(text: str, take: Callable[[int], bool] = lambda _: True) -> Tally:
    """Make every splice at every place of a text that the engine reads; ``take`` chooses by number.

    Raises AssertionError where one of them breaks a promise.
    """
    made = refused = 0
    for number, splice in enumerate(every_splice(text)):
        if not take(number):
            continue
        if splice(text):
            made += 1
        else:
            refused += 1
    return Tally(made, refused)


def every_splice(text: str) -> Iterator[Callable[[str], bool]]:
    """Each splice as a function that makes and checks it, and says whether it was made (False: refused)."""
    documents = read(text)
    yield _document_added
    for number, body in enumerate(documents):
        yield partial(_document_taken, number)
        for path, value in places(body):
            yield from _at(number, path, value)


def _at(number: int, path: Path, value: Any) -> Iterator[Callable[[str], bool]]:
    if isinstance(value, dict):
        yield partial(_value_set, number, (*path, "belay-test"), "plain")
        yield partial(_value_set, number, (*path, "belay-test", "deep"), True)
        yield partial(_item_added, number, (*path, "belay-list"))
    elif isinstance(value, list):
        yield partial(_item_added, number, path)
    elif path:
        for new in VALUES:
            yield partial(_value_set, number, path, new)
    if path:
        yield partial(_value_taken, number, path)


def places(body: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value of a document with its path, the document itself first."""
    yield path, body
    if isinstance(body, dict):
        for key, value in body.items():
            yield from places(value, (*path, key))
    elif isinstance(body, list):
        for index, value in enumerate(body):
            yield from places(value, (*path, index))


def read(text: str) -> list[Any]:
    """The documents of a text that are not empty, all scalars as text; what aliases share is no longer shared."""
    nodes = list(yaml.compose_all(text.encode(), yaml.CBaseLoader))
    loaded = list(yaml.load_all(text.encode(), yaml.CBaseLoader))
    kept = [body for node, body in zip(nodes, loaded, strict=True) if not _says_nothing(node)]
    found: list[Any] = json.loads(json.dumps(kept))
    return found


def _says_nothing(node: yaml.Node | None) -> bool:
    return node is None or (
        isinstance(node, yaml.ScalarNode) and not node.style and node.value.lower() in ("", "~", "null")
    )


def _value_set(number: int, path: Path, value: str | int | bool, text: str) -> bool:
    try:
        edited = splices.with_value(text, number, path, value)
    except InputError as error:
        return _refused_at_a_line(error)

    wanted = read(text)
    written = str(value).lower() if isinstance(value, bool) else str(value)
    existed = _put(wanted[number], path, written)
    assert read(edited) == wanted, _shown("another meaning", text, edited, path)

    if existed:
        assert "\n" not in difference(text, edited).come, _shown("a value became lines", text, edited, path)
        _assert_no_comment_lost(text, edited, path)
    else:
        _assert_added(text, edited, path)
    return True


def _item_added(number: int, path: Path, text: str) -> bool:
    try:
        edited = splices.with_item(text, number, path, "{belay: test}")
    except InputError as error:
        return _refused_at_a_line(error)

    wanted = read(text)
    holder = _holder(wanted[number], path)
    old = holder.get(path[-1]) if path and isinstance(holder, dict) else (holder[path[-1]] if path else wanted[number])
    new = [*(old or ()), {"belay": "test"}]
    if path:
        holder[path[-1]] = new
    else:
        wanted[number] = new
    assert read(edited) == wanted, _shown("another meaning", text, edited, path)
    _assert_added(text, edited, path)
    return True


def _value_taken(number: int, path: Path, text: str) -> bool:
    try:
        edited = splices.without(text, number, path)
    except InputError as error:
        return _refused_at_a_line(error)

    wanted = read(text)
    holder = _holder(wanted[number], path)
    del holder[path[-1]]
    assert read(edited) == wanted, _shown("another meaning", text, edited, path)
    assert not difference(text, edited).come, _shown("something came", text, edited, path)
    _assert_no_comment_lost(text, edited, path)
    return True


def _document_added(text: str) -> bool:
    try:
        edited = splices.with_document(text, "kind: Belay\nname: test\n")
    except InputError as error:
        return _refused_at_a_line(error)

    assert read(edited) == [*read(text), {"kind": "Belay", "name": "test"}], _shown("another meaning", text, edited, ())
    assert edited.startswith(text), _shown("what stood there changed", text, edited, ())
    return True


def _document_taken(number: int, text: str) -> bool:
    try:
        edited = splices.without_document(text, number)
    except InputError as error:
        return _refused_at_a_line(error)

    wanted = read(text)
    del wanted[number]
    assert read(edited) == wanted, _shown("another meaning", text, edited, (number,))
    assert not difference(text, edited).come, _shown("something came", text, edited, (number,))
    return True


def difference(before: str, after: str) -> Difference:
    """Where two texts differ, as one piece."""
    most = min(len(before), len(after))
    start = next((at for at in range(most) if before[at] != after[at]), most)
    tail = 0
    while tail < most - start and before[len(before) - 1 - tail] == after[len(after) - 1 - tail]:
        tail += 1
    return Difference(before[:start], before[start : len(before) - tail], after[start : len(after) - tail])


def _assert_added(text: str, edited: str, path: Path) -> None:
    """Every line stays, but for one that what is added stands on, or that a comma was put into."""
    gone, come = Counter(text.splitlines()), Counter(edited.splitlines())
    gone.subtract(edited.splitlines())
    come.subtract(text.splitlines())
    lost = [line for line, count in gone.items() for _ in range(count)]
    new = [line for line, count in come.items() for _ in range(count)]
    assert len(lost) <= 1, _shown("more than one line changed", text, edited, path)
    for line in lost:
        longer = any(not difference(line, one).gone.strip() for one in new)
        assert longer, _shown("a line lost something", text, edited, path)


def _assert_no_comment_lost(text: str, edited: str, path: Path) -> None:
    """A line that is a comment goes only if it stands between lines that go with the value."""
    gone = Counter(_comments(text))
    gone.subtract(_comments(edited))
    lost = [line for line, count in gone.items() if count > 0]
    if not lost:
        return
    piece = difference(text, edited).gone.splitlines()
    rest = [line for line in piece if line.strip() and not line.strip().startswith("#")]
    assert rest, _shown("a comment went", text, edited, path)
    first, last = piece.index(rest[0]), len(piece) - 1 - piece[::-1].index(rest[-1])
    around = {line.strip() for at, line in enumerate(piece) if not first <= at <= last}
    assert not around & {line.strip() for line in lost}, _shown("a comment beside it went", text, edited, path)


def _comments(text: str) -> list[str]:
    """The lines that are comments; what looks like one inside of a block scalar is text."""
    scalars: set[int] = set()
    for event in yaml.parse(text.encode(), yaml.CBaseLoader):
        if isinstance(event, yaml.ScalarEvent) and event.style in ("|", ">"):
            begin, end = event.start_mark, event.end_mark
            scalars |= set(range(begin.line + 1, end.line)) if begin and end else set()
    lines = enumerate(line.strip() for line in text.splitlines())
    return [line for number, line in lines if line.startswith("#") and number not in scalars]


def _put(body: Any, path: Path, value: str) -> bool:
    """Set a value; whether the key was there before with a value of its own."""
    holder = body
    for part in path[:-1]:
        if isinstance(holder, dict) and holder.get(part, "") == "":
            holder[part] = {}
        holder = holder[part]
    existed = (path[-1] in holder) if isinstance(holder, dict) else True
    holder[path[-1]] = value
    return existed


def _holder(body: Any, path: Path) -> Any:
    holder = body
    for part in path[:-1]:
        holder = holder[part]
    return holder


def _refused_at_a_line(error: InputError) -> bool:
    """A refusal names its line; always False, as nothing was made."""
    line, colon, column = error.where.partition(":")
    assert colon and line.isdigit() and column.isdigit(), f"no place in the refusal: {error}"
    return False


def _shown(what: str, before: str, after: str, path: Path) -> str:
    return f"{what} at {path}\n--- before\n{before!r}\n--- after\n{after!r}"
