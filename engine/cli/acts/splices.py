"""Edits of YAML text that leave every other byte as it is.

ruamel.yaml says where a value stands; the edit is a splice of the text at this place. So comments, order, quoting,
anchors, line ends and indentation stay. After the splice the text is read again: what the edit was meant to change, and
nothing else, must differ. A place that a splice cannot change safely (a value that other places share by an anchor) is
refused with its line.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from belay.engine.errors import InputError
from belay.engine.load import yaml12

Path = Sequence[str | int]
_BLOCK_SCALARS: Final = ("|", ">")


def with_value(text: str, document: int, path: Path, value: str | int | bool) -> str:
    """The text with a scalar at ``path`` of its ``document`` (counted from 0); missing mappings on the way are made.

    Raises:
        InputError: the path leads through something else than mappings and lists, or through a shared value.
    """
    root = _documents(text)[document]
    node, depth = _follow(text, root, path)
    rest = path[depth:]
    if depth and _is_nothing(node):
        edited = _filled(text, root, path, depth, _scalar(value))
    elif not rest:
        edited = _replaced(text, node, _scalar(value, node))
    elif isinstance(node, MappingNode):
        edited = _with_key(text, node, [str(part) for part in rest], _scalar(value))
    else:
        raise InputError(f"there is no mapping to put {rest[0]!r} into", where=_place(node))
    return _proven(text, edited, document, path, value)


def with_item(text: str, document: int, path: Path, item: str) -> str:
    """The text with one more item, of one line, at the end of the list at ``path``; a list that is missing is made.

    Raises:
        InputError: there is something else than a list, or other places share it.
    """
    root = _documents(text)[document]
    node, depth = _follow(text, root, path)
    rest = [str(part) for part in path[depth:]]
    if rest and isinstance(node, MappingNode) and not _is_nothing(node):
        edited = _with_key(text, node, rest, f"[{item}]")
    elif isinstance(node, SequenceNode) and not rest:
        edited = _with_flow_item(text, node, item) if _in_flow(node) else _with_line(text, node, item)
    else:
        raise InputError(f"{'.'.join(map(str, path))} is no list: edit it by hand", where=_place(node))
    (added,) = bodies(f"- {item}\n")[0]
    return _proven_item(text, edited, document, path, added)


def without(text: str, document: int, path: Path) -> str:
    """The text without the key or list item at ``path``.

    Raises:
        InputError: there is no such place, or other places share it.
    """
    root = _documents(text)[document]
    parent, depth = _follow(text, root, path[:-1])
    last = path[-1]
    if depth < len(path) - 1:
        raise InputError(f"there is no {'.'.join(map(str, path))}", where=_place(parent))
    rows = _rows(parent)
    index = next((n for n, row in enumerate(rows) if row[0] == last), None)
    if index is None:
        raise InputError(f"there is no {'.'.join(map(str, path))}", where=_place(parent))
    start, end = rows[index][1].start_mark.index, _end(rows[index][2])
    edited = _without_flow(text, parent, rows, index) if _in_flow(parent) else _without_lines(text, start, end)
    return _proven(text, edited, document, path, None)


def with_document(text: str, body: str) -> str:
    """The text with one more document at its end."""
    newline = _newline(text)
    body = body.replace("\n", newline)
    if not _documents(text):
        head = text if not text or text.endswith(("\n", "\r")) else text + newline
        return head + body
    head = text if text.endswith(("\n", "\r")) else text + newline
    return f"{head}---{newline}{body}"


def without_document(text: str, document: int) -> str:
    """The text without one of its documents; what stands above the first document of a file stays with the file."""
    bounds = list(_bounds(text))
    start, end = bounds[document]
    if document == 0 and len(bounds) > 1:
        return text[:start] + text[end:].partition("\n")[2]
    return text[:start] + text[end:]


def bodies(text: str) -> list[Any]:
    """The values of all documents of a text, as the engine reads them."""
    data = text.encode()
    aliases = yaml12.may_alias(data)
    return [yaml12.build(node, aliases)[0] for node in yaml12.compose(data)]


def written(value: str) -> str:
    """A text as YAML of one line, in quotes where either version of YAML would read something else."""
    return _scalar(value)


def quoted(value: str) -> str:
    """A text in double quotes, as codes of faults are written."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def is_shared(text: str, document: int, path: Path) -> bool:
    """Whether the value at ``path`` stands elsewhere and is only named here, by an alias."""
    try:
        _follow(text, _documents(text)[document], path)
    except InputError:
        return True
    return False


def _documents(text: str) -> list[Node]:
    """The node trees of all documents that are not empty.

    Raises:
        InputError: the engine would refuse the text, or the two readers do not see the same documents in it.
    """
    try:
        known = len(yaml12.compose(text.encode()))
        found = [node for node in YAML().compose_all(text) if node is not None and not _is_nothing(node)]
    except yaml12.YAMLProblem as problem:
        raise InputError(problem.message, where=f"{problem.line}:{problem.column}") from problem
    except (YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"this is no YAML: {' '.join(str(error).split())[:300]}") from error
    if len(found) != known:
        raise InputError("where its documents begin is not clear: edit it by hand")
    return found


def _is_nothing(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value == "" and node.style is None


def _bounds(text: str) -> Iterator[tuple[int, int]]:
    """From where to where each document that is not empty reaches, its ``---`` included where it has one."""
    nodes = _documents(text)
    starts = [_document_start(text, node) for node in nodes]
    return zip(starts, [*starts[1:], len(text)], strict=True)


def _document_start(text: str, node: Node) -> int:
    """Where the ``---`` line before a document begins; for a first document without one, where it begins itself."""
    before = text[: node.start_mark.index]
    position = len(before)
    for line in reversed(before.splitlines(keepends=True)):
        position -= len(line)
        if line.startswith("---"):
            return position
    return int(node.start_mark.index)


def _follow(text: str, root: Node, path: Path) -> tuple[Node, int]:
    """The node at ``path``, or the last one on the way that exists, and how far the path led."""
    node = root
    for depth, part in enumerate(path):
        child = next((row[2] for row in _rows(node) if row[0] == part), None)
        if child is None:
            return node, depth
        if not _is_nothing(child) and not node.start_mark.index <= child.start_mark.index < max(
            node.end_mark.index, node.start_mark.index + 1
        ):
            where = ".".join(map(str, path[: depth + 1]))
            raise InputError(f"{where} is shared with other places by an anchor: edit it by hand", where=_place(child))
        node = child
    return node, len(path)


def _in_flow(node: Node) -> bool:
    """Whether a mapping or list is written in braces or brackets."""
    return bool(getattr(node, "flow_style", False))


def _rows(node: Node) -> list[tuple[str | int, Node, Node]]:
    """(key or index, where it begins, value) of each child of a mapping or list; none of a scalar."""
    if isinstance(node, MappingNode):
        return [(str(key.value), key, value) for key, value in node.value]
    if isinstance(node, SequenceNode):
        return [(index, value, value) for index, value in enumerate(node.value)]
    return []


def _replaced(text: str, node: Node, written: str) -> str:
    if not isinstance(node, ScalarNode) or node.style in _BLOCK_SCALARS:
        raise InputError("this is no plain value: edit it by hand", where=_place(node))
    start, end = node.start_mark.index, node.end_mark.index
    if text[start:end].startswith(("&", "!")):
        raise InputError("this value has an anchor or a tag: edit it by hand", where=_place(node))
    return text[:start] + written + text[end:]


def _with_key(text: str, node: MappingNode, names: list[str], written: str) -> str:
    if _in_flow(node):
        inner = "{" + ": {".join(names) + ": " + written + "}" * len(names)
        return _with_flow_entry(text, node, inner[1:-1])
    indent, newline = node.start_mark.column, _newline(text)
    place = _line_end(text, _end(node))
    return text[:place] + newline + newline.join(_nested(names, written, indent)) + text[place:]


def _filled(text: str, root: Node, path: Path, depth: int, written: str) -> str:
    """``key:`` without a value gets one, or becomes a mapping."""
    parent, _ = _follow(text, root, path[: depth - 1])
    key = next(row[1] for row in _rows(parent) if row[0] == path[depth - 1])
    if _in_flow(parent) or not isinstance(parent, MappingNode):
        raise InputError("an empty value in a flow mapping or a list: edit it by hand", where=_place(key))
    names = [str(part) for part in path[depth:]]
    if not names:
        place = text.index(":", key.end_mark.index) + 1
        return f"{text[:place]} {written}{text[place:]}"
    newline, place = _newline(text), _line_end(text, key.end_mark.index)
    return text[:place] + newline + newline.join(_nested(names, written, key.start_mark.column + 2)) + text[place:]


def _with_flow_entry(text: str, node: MappingNode, entry: str) -> str:
    close = node.end_mark.index - 1
    if not node.value:
        return text[: node.start_mark.index + 1] + entry + text[close:]
    last = _end(node.value[-1][1])
    comma = "," in text[last:close]
    if comma:
        after = text.index(",", last) + 1
        return f"{text[:after]} {entry}{text[after:]}"
    return f"{text[:last]}, {entry}{text[last:]}"


def _with_flow_item(text: str, node: SequenceNode, item: str) -> str:
    close = node.end_mark.index - 1
    if not node.value:
        return text[: node.start_mark.index + 1] + item + text[close:]
    last = _end(node.value[-1])
    return f"{text[:last]}, {item}{text[last:]}"


def _with_line(text: str, node: SequenceNode, item: str) -> str:
    """A block list with one more line, indented as its dashes are."""
    place = _line_end(text, _end(node))
    return f"{text[:place]}{_newline(text)}{' ' * node.start_mark.column}- {item}{text[place:]}"


def _nested(names: list[str], written: str, indent: int) -> list[str]:
    lines = [f"{' ' * (indent + 2 * depth)}{_scalar(name)}:" for depth, name in enumerate(names)]
    lines[-1] += f" {written}"
    return lines


def _without_lines(text: str, start: int, end: int) -> str:
    """Without the lines from one place to another; a list item goes with its dash."""
    first = text.rfind("\n", 0, start) + 1
    dash = text[first:start].strip()
    if dash and dash != "-":
        raise InputError("this value shares its line with others: edit it by hand")
    after = _line_end(text, end)
    after = after + len(_newline(text)) if after < len(text) else after
    return text[:first] + text[after:]


def _without_flow(text: str, parent: Node, rows: list[tuple[str | int, Node, Node]], index: int) -> str:
    start, end = rows[index][1].start_mark.index, _end(rows[index][2])
    if index + 1 < len(rows):
        return text[:start] + text[rows[index + 1][1].start_mark.index :]
    if index:
        return text[: _end(rows[index - 1][2])] + text[end:]
    return text[: parent.start_mark.index + 1] + text[parent.end_mark.index - 1 :]


def _end(node: Node) -> int:
    """Where the last content of a node ends, without the comments and blank lines that follow it."""
    if _in_flow(node) or isinstance(node, ScalarNode):
        return int(node.end_mark.index)
    rows = [row for row in _rows(node) if row[2].start_mark.index >= node.start_mark.index]
    own = [row for row in rows if row[2].start_mark.index < node.end_mark.index]
    last = own[-1] if own else None
    if last is None or (rows and rows[-1] is not last):
        return int(node.end_mark.index)
    return max(_end(last[2]), int(last[1].end_mark.index) if last[1] is not last[2] else 0)


def _line_end(text: str, place: int) -> int:
    """The end of the line at ``place``, before its line break; of a line that has just ended, that place."""
    if place and text[place - 1] == "\n":
        place -= 2 if text[: place - 1].endswith("\r") else 1
        return place
    found = text.find("\n", place)
    if found < 0:
        return len(text)
    return found - 1 if text[found - 1] == "\r" else found


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _scalar(value: str | int | bool, old: Node | None = None) -> str:
    """A value as text of one line, in the quotes that the old one had."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        style = old.style if isinstance(old, ScalarNode) else None
        return f"{style}{value}{style}" if style in ("'", '"') else str(value)
    if isinstance(old, ScalarNode) and old.style == '"' and "\\" not in value and '"' not in value:
        return f'"{value}"'
    if isinstance(old, ScalarNode) and old.style == "'" and "'" not in value:
        return f"'{value}'"
    if set(value) & set(",[]{}"):
        return "'" + value.replace("'", "''") + "'"
    out, writer = StringIO(), YAML()
    # kubectl reads YAML 1.1, where `no` is a boolean and `012` a number: what either version reads otherwise is quoted
    writer.version = (1, 1)
    writer.width = 1 << 20
    writer.dump([value], out)
    return out.getvalue().partition("\n- ")[2].rstrip("\n")


def _proven(before: str, after: str, document: int, path: Path, value: object) -> str:
    """The edited text, once read again: it differs from the text before in what was meant, and in nothing else."""
    wanted = copy.deepcopy(bodies(before))
    holder: Any = wanted[document]
    for part in path[:-1]:
        if isinstance(holder, dict) and holder.get(part) is None:
            holder[part] = {}
        holder = holder[part]
    old = holder.get(path[-1]) if isinstance(holder, dict) else None
    if value is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = str(value) if isinstance(old, str) and isinstance(value, int) else value
    try:
        found = bodies(after)
    except yaml12.YAMLProblem as problem:
        raise InputError(_by_hand(path), where=f"{problem.line}:{problem.column}") from problem
    if found != wanted:
        raise InputError(_by_hand(path))
    return after


def _proven_item(before: str, after: str, document: int, path: Path, item: Any) -> str:
    """The edited text, once read again: the list at ``path`` ends with the item, and nothing else differs."""
    wanted = copy.deepcopy(bodies(before))
    holder: Any = wanted[document]
    for part in path[:-1]:
        if isinstance(holder, dict) and holder.get(part) is None:
            holder[part] = {}
        holder = holder[part]
    holder[path[-1]] = [*(holder.get(path[-1]) or ()), item]
    try:
        found = bodies(after)
    except yaml12.YAMLProblem as problem:
        raise InputError(_by_hand(path), where=f"{problem.line}:{problem.column}") from problem
    if found != wanted:
        raise InputError(_by_hand(path))
    return after


def _by_hand(path: Path) -> str:
    return f"{'.'.join(map(str, path))} cannot be edited without touching other fields: edit it by hand"


def _place(node: Node) -> str:
    return f"{node.start_mark.line + 1}:{node.start_mark.column + 1}"
