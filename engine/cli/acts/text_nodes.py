"""Where the values of a YAML text stand: its nodes as ruamel.yaml places them, and where their lines end.

ruamel.yaml refuses some tabs that the engine's reader takes, such as one before a comment. A tab is a space to it here:
places stay the same, and no value is taken from these nodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from belay.engine.errors import InputError
from belay.engine.load import yaml12

Path = Sequence[str | int]
Row = tuple[str | int, Node, Node]
BLOCK_SCALARS: Final = ("|", ">")
_NEXT_MARKER: Final = re.compile(r"^---(?=\s|\Z)", re.MULTILINE)
_MARGIN_COMMENT: Final = re.compile(r"^#", re.MULTILINE)
_BLOCK_HEADER: Final = re.compile(r"[|>](?P<marks>[0-9+-]*)[ \t]*(?:#[^\r\n]*)?(?:\r?\n|\Z)")


class UneditableText(InputError):
    """A place in a text that no splice changes safely; lines and columns count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        self.line, self.column = line, column
        super().__init__(message, where=f"{line}:{column}")


def uneditable(message: str, node: Node) -> UneditableText:
    """The refusal of an edit, at the node that it would change."""
    return UneditableText(message, node.start_mark.line + 1, node.start_mark.column + 1)


def documents(text: str) -> list[Node]:
    """The node trees of all documents that are not empty.

    Raises:
        UneditableText: the engine would refuse the text, or the two readers do not see the same documents in it.
    """
    try:
        known = len(yaml12.compose(text.encode()))
        reader = YAML(typ="safe", pure=True)
        found = [node for node in reader.compose_all(text.replace("\t", " ")) if node is not None]
    except yaml12.YAMLProblem as problem:
        raise UneditableText(problem.message, problem.line, problem.column) from problem
    except (YAMLError, ValueError, RecursionError, NotImplementedError) as error:
        raise _unread(error) from error

    kept = [node for node in found if not is_nothing(node)]
    if len(kept) != known:
        raise UneditableText("where its documents begin is not clear: edit it by hand", 1, 1)
    return kept


def _unread(error: Exception) -> UneditableText:
    """What ruamel.yaml cannot place, though the engine reads it."""
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    problem = (error.problem if isinstance(error, MarkedYAMLError) else None) or str(error)
    words = " ".join(problem.split())[:200]
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    return UneditableText(f"where its values stand is not clear ({words}): edit it by hand", line, column)


def is_nothing(node: Node) -> bool:
    """Whether a value is left out: ``key:`` and no more."""
    return isinstance(node, ScalarNode) and node.value == "" and node.style is None


def in_flow(node: Node) -> bool:
    """Whether a mapping or list is written in braces or brackets."""
    return bool(getattr(node, "flow_style", False))


def rows(node: Node) -> list[Row]:
    """(key or index, where it begins, value) of each child of a mapping or list; none of a scalar."""
    if isinstance(node, MappingNode):
        return [(str(key.value), key, value) for key, value in node.value]
    if isinstance(node, SequenceNode):
        return [(index, value, value) for index, value in enumerate(node.value)]
    return []


def follow(root: Node, path: Path) -> tuple[Node, int]:
    """The node at ``path``, or the last one on the way that exists, and how far the path led.

    Raises:
        UneditableText: an alias on the way names a value that stands elsewhere.
    """
    node = root
    for depth, part in enumerate(path):
        child = next((row[2] for row in rows(node) if row[0] == part), None)
        if child is None:
            return node, depth

        begin, end = node.start_mark.index, max(node.end_mark.index, node.start_mark.index + 1)
        if not is_nothing(child) and not begin <= child.start_mark.index < end:
            where = ".".join(map(str, path[: depth + 1]))
            raise uneditable(f"{where} is shared with other places by an anchor: edit it by hand", child)
        node = child
    return node, len(path)


def bounds(text: str) -> list[tuple[int, int]]:
    """From where to where each document that is not empty reaches, its ``---`` included where it has one.

    It ends where the next one begins, were that empty; the last one leaves comments at the left margin to the file.
    """
    nodes = documents(text)
    ends = [int(node.end_mark.index) for node in nodes]
    starts = [_document_start(text, node, end) for node, end in zip(nodes, [0, *ends], strict=False)]
    return [(start, _document_end(text, node)) for start, node in zip(starts, nodes, strict=True)]


def _document_end(text: str, node: Node) -> int:
    after = line_end(text, content_end(text, node))
    marker = _NEXT_MARKER.search(text, after)
    if marker is not None:
        return marker.start()
    comment = _MARGIN_COMMENT.search(text, after)
    return comment.start() if comment is not None else len(text)


def _document_start(text: str, node: Node, least: int) -> int:
    """Where the ``---`` line before a document begins; for a document without one, where it begins itself."""
    before = text[: node.start_mark.index]
    position = len(before)
    for line in reversed(before.splitlines(keepends=True)):
        position -= len(line)
        if position < least:
            break
        if line.startswith("---"):
            return position
    return int(node.start_mark.index)


def content_end(text: str, node: Node) -> int:
    """Where the last content of a node ends, without the comments and blank lines that follow it."""
    if isinstance(node, ScalarNode) and node.style in BLOCK_SCALARS:
        return _block_scalar_end(text, node)
    if in_flow(node) or isinstance(node, ScalarNode):
        return int(node.end_mark.index)

    children = [row for row in rows(node) if row[2].start_mark.index >= node.start_mark.index]
    own = [row for row in children if row[2].start_mark.index < node.end_mark.index]
    last = own[-1] if own else None
    if last is None or (children and children[-1] is not last):
        return int(node.end_mark.index)
    return max(content_end(text, last[2]), int(last[1].end_mark.index) if last[1] is not last[2] else 0)


def _block_scalar_end(text: str, node: ScalarNode) -> int:
    """The end of a block scalar's last line; with ``+`` the blank lines below it are its own, too."""
    header = _BLOCK_HEADER.search(text, node.start_mark.index, node.end_mark.index)
    if header is None:
        return int(node.end_mark.index)

    end = at = header.end()
    indent = 0
    for line in text[at : node.end_mark.index].splitlines(keepends=True):
        at += len(line)
        blank, own = not line.strip(), len(line) - len(line.lstrip(" "))
        if not blank and own < max(indent, 1) and node.start_mark.column:
            break
        if not blank:
            indent = indent or own
        if not blank or "+" in header["marks"]:
            end = at
    return end


def line_start(text: str, place: int) -> int:
    """Where the line at ``place`` begins."""
    return text.rfind("\n", 0, place) + 1


def line_end(text: str, place: int) -> int:
    """The end of the line at ``place``, before its line break; of a line that has just ended, that place."""
    if place and text[place - 1] == "\n":
        return place - (2 if text[: place - 1].endswith("\r") else 1)
    found = text.find("\n", place)
    if found < 0:
        return len(text)
    return found - 1 if text[found - 1 : found] == "\r" else found


def newline(text: str, place: int = 0) -> str:
    """The line break that a new line at ``place`` gets: that of its neighbour, in a file that may mix them."""
    after = text.find("\n", place)
    found = after if after >= 0 else text.rfind("\n", 0, place)
    return "\r\n" if found > 0 and text[found - 1] == "\r" else "\n"
