"""YAML from ConfigMaps and files, bounded before the C composer sees it.

libyaml's composer recurses in C once per level of nesting and overflows the stack some ten thousand levels down, which
ends the process. Its parser, which only lists events, does not recurse; it runs first on text that could nest
deeply or repeat values through aliases.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

MAX_DEPTH: Final = 64
"""Levels of lists and mappings in the configuration files that Belay reads."""
MAX_VALUES: Final = 100_000
"""Values after every alias is written out."""
_BRACKET: Final = re.compile(r"[\[\]{}]")
_ALIAS: Final = re.compile(r"(?:^|[\s\[{,:-])\*[^\s*]", re.MULTILINE)


def load(text: str, loader: Any = yaml.CSafeLoader) -> Any:
    """Read one YAML document with a loader class of PyYAML.

    Raises:
        ValueError: not YAML, nested deeper than MAX_DEPTH, or more than MAX_VALUES values with aliases written out.
    """
    try:
        check(text)
        return yaml.load(text, Loader=loader)
    except (yaml.YAMLError, RecursionError, TypeError) as error:
        raise ValueError(_short(error)) from error


def load_all(text: str, loader: Any = yaml.CSafeLoader) -> list[Any]:
    """Read every document of a YAML text; raises ValueError as :func:`load` does."""
    try:
        check(text)
        return list(yaml.load_all(text, Loader=loader))
    except (yaml.YAMLError, RecursionError, TypeError) as error:
        raise ValueError(_short(error)) from error


def check(text: str | bytes, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> None:
    """Reject a text that nests too deeply or expands too far through aliases.

    Args:
        text: one or several YAML documents.
        depth: allowed levels of nesting.
        values: allowed values with aliases written out.

    Raises:
        ValueError: the text exceeds a limit; the message names the line and column.
        yaml.YAMLError: the text is not YAML.
    """
    plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    if not (_ALIAS.search(plain) or may_be_deep(plain, depth)):
        return
    _count(plain, depth, values)


def may_be_deep(text: str, depth: int = MAX_DEPTH) -> bool:
    """Whether the text could nest deeper than ``depth`` levels: long indentation or many open brackets."""
    if re.search(rf"^[ ?:-]{{{depth}}}", text, re.MULTILINE):
        return True
    level = 0
    for bracket in _BRACKET.finditer(text):
        level = level + 1 if bracket[0] in "[{" else max(0, level - 1)
        if level > depth:
            return True
    return False


def _count(text: str, depth: int, values: int) -> None:
    """Check the limits over the parser's events, without recursion."""
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1))
            size = 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_nodes.pop()
            if anchor:
                sizes[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise ValueError(f"alias {event.anchor} at {_place(event)} contains itself or nothing")
            size = sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
            if event.anchor:
                sizes[event.anchor] = size
        else:
            continue
        anchor, total = open_nodes[-1]
        open_nodes[-1] = (anchor, total + size)
        if len(open_nodes) > depth:
            raise ValueError(f"nested deeper than {depth} levels at {_place(event)}")
        if total + size > values:
            raise ValueError(f"its aliases expand to more than {values} values")


def _place(event: yaml.Event) -> str:
    mark = event.start_mark
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "an unknown place"


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
