"""Edits of YAML text that leave every other byte as it is.

ruamel.yaml says where a value stands; the edit is a splice of the text at this place. So comments, order, quoting,
anchors, line ends and indentation stay. After the splice the text is read again: what the edit was meant to change, and
nothing else, must differ. A place that a splice cannot change safely (a value that other places share by an anchor) is
refused with its line.
"""

from __future__ import annotations

import re
from io import StringIO
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from belay.engine.cli.acts.text_nodes import (
    BLOCK_SCALARS,
    Path,
    Row,
    UneditableText,
    bounds,
    content_end,
    documents,
    follow,
    in_flow,
    is_nothing,
    line_end,
    line_start,
    newline,
    rows,
    uneditable,
)
from belay.engine.load import yaml12

_COMMENT_OR_SPACE: Final = r"(?:\s|(?<=\s)#[^\r\n]*)*"
_COMMA: Final = re.compile(_COMMENT_OR_SPACE + ",")
#: What may follow an entry of a flow collection on its last line: its comma and a comment.
_REST_OF_LINE: Final = re.compile(r"[ \t]*,?[ \t]*(?:(?<=[ \t])#[^\r\n]*)?(?:\r?\n)")
_COMMENT_LINE: Final = re.compile(r"^[ \t]*#", re.MULTILINE)
_BARE_MARKER: Final = re.compile(r"---[ \t]*(?:\r?\n|\Z)")


def with_value(text: str, document: int, path: Path, value: str | int | bool) -> str:
    """The text with a scalar at ``path`` of its ``document`` (counted from 0); missing mappings on the way are made.

    Raises:
        UneditableText: the path leads through something else than mappings and lists, or through a shared value.
    """
    root = documents(text)[document]
    node, depth = follow(root, path)
    rest = path[depth:]
    if depth and is_nothing(node):
        edited = _filled(text, root, path, depth, _scalar(value))
    elif not rest:
        edited = _replaced(text, node, _scalar(value, node))
    elif isinstance(node, MappingNode):
        edited = _with_key(text, node, [str(part) for part in rest], _scalar(value))
    else:
        raise uneditable(f"there is no mapping to put {rest[0]!r} into", node)

    wanted = bodies(text)
    holder = _made_holder(wanted[document], path)
    old = holder.get(path[-1]) if isinstance(holder, dict) else None
    holder[path[-1]] = str(value) if isinstance(old, str) and isinstance(value, int) else value
    return _proven(edited, wanted, path, node)


def with_item(text: str, document: int, path: Path, item: str) -> str:
    """The text with one more item, of one line, at the end of the list at ``path``; a list that is missing is made.

    Raises:
        UneditableText: there is something else than a list, or other places share it.
    """
    root = documents(text)[document]
    node, depth = follow(root, path)
    rest = [str(part) for part in path[depth:]]
    if rest and isinstance(node, MappingNode):
        edited = _with_key(text, node, rest, f"[{item}]")
    elif isinstance(node, SequenceNode) and not rest:
        edited = _with_flow_entry(text, node, item) if in_flow(node) else _with_line(text, node, item)
    else:
        raise uneditable(f"{'.'.join(map(str, path))} is no list: edit it by hand", node)

    wanted = bodies(text)
    (added,) = bodies(f"- {item}\n")[0]
    if path:
        holder = _made_holder(wanted[document], path)
        old = holder.get(path[-1]) if isinstance(holder, dict) else holder[int(path[-1])]
        holder[path[-1]] = [*(old or ()), added]
    else:
        wanted[document].append(added)
    return _proven(edited, wanted, path, node)


def without(text: str, document: int, path: Path) -> str:
    """The text without the key or list item at ``path``.

    Raises:
        UneditableText: there is no such place, or other places share it.
    """
    root = documents(text)[document]
    parent, depth = follow(root, path[:-1])
    children = rows(parent)
    index = next((n for n, row in enumerate(children) if row[0] == path[-1]), None)
    if depth < len(path) - 1 or index is None:
        raise uneditable(f"there is no {'.'.join(map(str, path))}", parent)

    begin = children[index][1]
    if in_flow(parent):
        edited = _without_flow(text, parent, children, index)
    else:
        edited = _without_lines(text, begin, content_end(text, children[index][2]))

    wanted = bodies(text)
    del _made_holder(wanted[document], path)[path[-1]]
    return _proven(edited, wanted, path, begin)


def with_document(text: str, body: str) -> str:
    """The text with one more document at its end.

    Raises:
        UneditableText: what stands there would change by it.
    """
    found = documents(text)
    end = newline(text, len(text))
    head = text if not text or text.endswith(("\n", "\r")) else text + end
    separator = f"---{end}" if found else ""
    edited = head + separator + body.replace("\n", end)
    return _proven_documents(edited, [*bodies(text), *bodies(body)], text.count("\n") + 1)


def without_document(text: str, document: int) -> str:
    """The text without one of its documents; what stands above the first document of a file stays with the file.

    Raises:
        UneditableText: the others would change by it.
    """
    start, end = bounds(text)[document]
    marker = _BARE_MARKER.match(text, end) if document == 0 else None
    tail = text[marker.end() if marker else end :]

    wanted = bodies(text)
    del wanted[document]
    return _proven_documents(text[:start] + tail, wanted, text.count("\n", 0, start) + 1)


def bodies(text: str) -> list[Any]:
    """The values of all documents of a text, as the engine reads them; each place has values of its own."""
    data = text.encode()
    aliases = yaml12.may_alias(data)
    return [_unshared(yaml12.build(node, aliases)[0]) for node in yaml12.compose(data)]


def written(value: str) -> str:
    """A text as YAML of one line, in quotes where either version of YAML would read something else."""
    return _scalar(value)


def quoted(value: str) -> str:
    """A text in double quotes, as codes of faults are written."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def line_of(text: str, document: int, path: Path) -> int:
    """The line of the value at ``path``, counted from 1; of a text that cannot be placed the first."""
    try:
        return int(follow(documents(text)[document], path)[0].start_mark.line) + 1
    except UneditableText as error:
        return error.line


def _unshared(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unshared(one) for key, one in value.items()}
    return [_unshared(one) for one in value] if isinstance(value, list) else value


def _replaced(text: str, node: Node, written: str) -> str:
    if not isinstance(node, ScalarNode) or node.style in BLOCK_SCALARS:
        raise uneditable("this is no plain value: edit it by hand", node)
    start, end = node.start_mark.index, node.end_mark.index
    if text[start:end].startswith(("&", "!")):
        raise uneditable("this value has an anchor or a tag: edit it by hand", node)
    return text[:start] + written + text[end:]


def _with_key(text: str, node: MappingNode, names: list[str], written: str) -> str:
    if in_flow(node):
        inner = "{" + ": {".join(_scalar(name) for name in names) + ": " + written + "}" * len(names)
        return _with_flow_entry(text, node, inner[1:-1])
    place = line_end(text, content_end(text, node))
    return _with_lines(text, place, _nested(names, written, node.start_mark.column))


def _filled(text: str, root: Node, path: Path, depth: int, written: str) -> str:
    """``key:`` without a value gets one, or becomes a mapping."""
    parent, _ = follow(root, path[: depth - 1])
    key = next(row[1] for row in rows(parent) if row[0] == path[depth - 1])
    colon = text.find(":", key.end_mark.index, line_end(text, key.end_mark.index))
    if in_flow(parent) or not isinstance(parent, MappingNode) or colon < 0:
        raise uneditable("an empty value in a flow mapping, a set or a list: edit it by hand", key)

    names = [str(part) for part in path[depth:]]
    if not names:
        return f"{text[: colon + 1]} {written}{text[colon + 1 :]}"
    place = line_end(text, key.end_mark.index)
    return _with_lines(text, place, _nested(names, written, key.start_mark.column + 2))


def _with_line(text: str, node: SequenceNode, item: str) -> str:
    """A block list with one more line, indented as its dashes are."""
    return _with_lines(text, line_end(text, content_end(text, node)), [f"{' ' * node.start_mark.column}- {item}"])


def _with_lines(text: str, place: int, lines: list[str]) -> str:
    end = newline(text, place)
    return text[:place] + end + end.join(lines) + text[place:]


def _with_flow_entry(text: str, node: MappingNode | SequenceNode, entry: str) -> str:
    """One more entry at the end, on a line of its own where the last one has one."""
    close = node.end_mark.index - 1
    if not node.value:
        return text[: node.start_mark.index + 1] + entry + text[close:]

    begin, value = rows(node)[-1][1:]
    last = max(content_end(text, value), int(begin.end_mark.index))
    comma = _COMMA.match(text, last, close)
    indent = text[line_start(text, begin.start_mark.index) : begin.start_mark.index]
    if not indent.strip() and "\n" in text[last:close]:
        after = comma.end() if comma else last
        head = text[:after] if comma else f"{text[:after]},"
        lines = f"{newline(text, after)}{indent}{entry}{',' if comma else ''}"
        place = line_end(text, after)
        return head + text[after:place] + lines + text[place:]
    if comma:
        return f"{text[: comma.end()]} {entry}{text[comma.end() :]}"
    return f"{text[:last]}, {entry}{text[last:]}"


def _nested(names: list[str], written: str, indent: int) -> list[str]:
    lines = [f"{' ' * (indent + 2 * depth)}{_scalar(name)}:" for depth, name in enumerate(names)]
    lines[-1] += f" {written}"
    return lines


def _without_lines(text: str, begin: Node, end: int) -> str:
    """Without the lines from a node to a place; a list item goes with its dash."""
    first = line_start(text, begin.start_mark.index)
    dash = text[first : begin.start_mark.index].strip()
    if dash and dash != "-":
        raise uneditable("this value shares its line with others: edit it by hand", begin)
    after = line_end(text, end)
    return text[:first] + text[after + len(newline(text, after)) :]


def _without_flow(text: str, parent: Node, children: list[Row], index: int) -> str:
    start, end = children[index][1].start_mark.index, content_end(text, children[index][2])
    end = max(end, int(children[index][1].end_mark.index))
    first, rest = line_start(text, start), _REST_OF_LINE.match(text, end)
    if first > parent.start_mark.index and not text[first:start].strip() and rest:
        return text[:first] + text[rest.end() :]  # an entry on lines of its own goes with them, and with its comment

    if index + 1 < len(children):
        piece = (start, int(children[index + 1][1].start_mark.index))
    elif index:
        piece = (content_end(text, children[index - 1][2]), end)
    else:
        piece = (int(parent.start_mark.index) + 1, int(parent.end_mark.index) - 1)
    if _COMMENT_LINE.search(text, *piece):
        raise uneditable("a comment stands beside this value: edit it by hand", children[index][1])
    return text[: piece[0]] + text[piece[1] :]


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


def _made_holder(body: Any, path: Path) -> Any:
    """What holds the last part of a path, in values that may be changed; missing mappings on the way are made."""
    for part in path[:-1]:
        if isinstance(body, dict) and body.get(part) is None:
            body[part] = {}
        body = body[part]
    return body


def _proven(edited: str, wanted: list[Any], path: Path, node: Node) -> str:
    """The edited text, once read again: it says what is wanted, and nothing else."""
    try:
        same = bodies(edited) == wanted
    except yaml12.YAMLProblem:
        same = False
    if not same:
        where = ".".join(map(str, path))
        raise uneditable(f"{where} cannot be edited without touching other fields: edit it by hand", node)
    return edited


def _proven_documents(edited: str, wanted: list[Any], line: int) -> str:
    try:
        same = bodies(edited) == wanted
    except yaml12.YAMLProblem:
        same = False
    if not same:
        raise UneditableText("a document cannot be put or taken here without touching others: edit it by hand", line, 1)
    return edited
