"""YAML 1.2 (core schema) to JSON values, with every problem at its line and column.

PyYAML's C parser composes the node tree; this module resolves and builds the values, because PyYAML follows YAML 1.1
(``no`` is False, ``1:30`` is 90, dates become objects) and silently keeps the last of duplicate keys.

Decisions where people may expect otherwise:

- Keys are text exactly as written, whatever they look like (``80E01801:`` and ``on:`` are strings), as in JSON.
- Merge keys (``<<``) are supported, as in kubectl; an own key overrides a merged one.
- A number with a leading zero (``0777``) stays text: YAML 1.1 reads it as octal, YAML 1.2 as decimal.
  The modes of files (``mode``, ``defaultMode``) are read as kubectl reads them, in octal.
- Values that JSON cannot hold (infinities, integers beyond 64 bits, dates, binary, own tags) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 64
MAX_DOCUMENTS: Final = 1_000
MAX_EXPANSIONS: Final = 1_000
MAX_EXPANDED_CHARS: Final = 4 << 20
#: libyaml's composer recurses in C without a guard and overflows the stack at some ten thousand levels. Up to this many
#: possible levels it is safe; beyond, the events are counted first.
_SAFE_DEPTH: Final = 1_000

_PLAIN: Final = "plain"
_STR: Final = "tag:yaml.org,2002:str"
_CONSTANTS: Final[dict[str, Any]] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_NUMERIC_START: Final = frozenset("+-.0123456789")
_OCTAL: Final = re.compile(r"0[0-7]{1,4}\Z")
#: Fields of Kubernetes that hold the mode of a file: there, as for kubectl, a leading zero means octal.
_MODES: Final = frozenset({"defaultMode", "mode"})
_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_RADIX: Final = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_LEADING_ZERO: Final = re.compile(r"[-+]?0[0-9]+\Z")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_JSON: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")

_CONFLICT: Final = re.compile(rb"^(?:<{7} |>{7} |={7}\r?$)", re.MULTILINE)
#: Characters of keyboards and web pages that look like those of YAML, at the beginning of a line or behind a key.
_LOOKALIKES: Final = re.compile(r"^[ \t-]*(?:(?P<space>[\u00a0\u2000-\u200b\u202f\u3000])|[\w./-]+(?P<colon>\uff1a))")
#: What libyaml's words mean for the person who wrote the file.
_HINTS: Final = {
    "could not find expected ':'": "this line, or the one before, is neither 'key: value' nor '- item'",
    "did not find expected key": "indent this line like its neighbours",
    "mapping values are not allowed in this context": "indent this line like its neighbours, or quote its value",
    "did not find expected ',' or ']'": "close the list that begins with [",
    "did not find expected ',' or '}'": "close the mapping that begins with {",
    "found unexpected end of stream": "close the quote, [ or {",
    "did not find expected '-' indicator": "indent this line like its neighbours",
}

_SURROGATES: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


class YAMLProblem(Exception):
    """A problem at a place; lines and columns count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


class _Loader(yaml.CSafeLoader):
    """The C parser, with scalars resolved to plain or text only; :meth:`_Builder.scalar` does the rest."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _STR
        return "tag:yaml.org,2002:map" if kind is yaml.MappingNode else "tag:yaml.org,2002:seq"

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        return None

    def ascend_resolver(self) -> None:
        return None


def compose(data: bytes) -> list[yaml.Node]:
    """The documents of a file as node trees; empty documents are left out.

    Raises:
        Fault: the file is too large, not UTF-8, not YAML, too deep, or holds too many documents.
    """
    text = _checked_bytes(data)
    try:
        _guard_depth(text)
        return _documents(text)
    except yaml.MarkedYAMLError as problem:
        raise _syntax_fault(problem, text) from problem
    except yaml.reader.ReaderError as problem:
        before = text[: problem.position]
        line, column = before.count(b"\n") + 1, problem.position - (before.rfind(b"\n") + 1) + 1
        raise YAMLProblem("a control character that YAML does not allow: remove it", line, column) from problem


def json_text(data: bytes) -> bytes:
    """JSON for a YAML parser: pairs of escaped surrogates become one escape."""
    return _SURROGATES.sub(_joined, data) if b"\\u" in data else data


def _joined(pair: re.Match[bytes]) -> bytes:
    high, low = int(pair[2], 16), int(pair[3], 16)
    return pair[1] + b"\\U%08X" % (0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def _documents(text: bytes) -> list[yaml.Node]:
    nodes: list[yaml.Node] = []
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None or _is_empty(node):
                continue
            nodes.append(node)
            if len(nodes) > MAX_DOCUMENTS:
                raise YAMLProblem(f"more than {MAX_DOCUMENTS} documents in one file: split it", *place(node))
    finally:
        loader.dispose()
    return nodes


def _is_empty(node: yaml.Node) -> bool:
    return type(node) is yaml.ScalarNode and node.tag == _PLAIN and _CONSTANTS.get(node.value, "") is None


def _checked_bytes(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise YAMLProblem(f"larger than {MAX_BYTES >> 20} MiB: split the file", 1, 1)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise YAMLProblem("UTF-16 is not read: save the file as UTF-8", 1, 1)
    try:
        data.decode()
    except UnicodeDecodeError as problem:
        before = data[: problem.start]
        column = len(before[before.rfind(b"\n") + 1 :].decode(errors="replace")) + 1
        raise YAMLProblem("not UTF-8: save the file as UTF-8", before.count(b"\n") + 1, column) from problem
    return data.removeprefix(b"\xef\xbb\xbf")


def _guard_depth(text: bytes) -> None:
    """Refuse nesting that would overflow the composer's stack, without composing."""
    flow = text.count(b"[") + text.count(b"{")
    if flow <= _SAFE_DEPTH and max(map(len, text.split(b"\n"))) <= _SAFE_DEPTH:
        return
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                line, column = _mark_place(event.start_mark)
                raise YAMLProblem(_too_deep(), line, column)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _too_deep() -> str:
    return f"nested deeper than {MAX_DEPTH} levels"


def _syntax_fault(problem: yaml.MarkedYAMLError, data: bytes) -> YAMLProblem:
    line, column = _mark_place(problem.problem_mark or problem.context_mark)
    lines = data.split(b"\n", line)
    here = lines[line - 1] if line <= len(lines) else b""
    tabbed = "tab character" in str(problem.problem) or "cannot start any token" in str(problem.problem)
    if tabbed and b"\t" in here[: len(here) - len(here.lstrip())]:
        return YAMLProblem("a tab where YAML wants spaces: indent with spaces", line, here.index(b"\t") + 1)
    conflict = _CONFLICT.search(data)
    if conflict is not None:
        return YAMLProblem(
            "an unresolved merge conflict: keep one side and remove the lines <<<<<<<, ======= and >>>>>>>",
            data.count(b"\n", 0, conflict.start()) + 1, 1,
        )  # fmt: skip
    for number in (line, line - 1):
        found = _LOOKALIKES.match(lines[number - 1].decode(errors="replace")) if 0 < number <= len(lines) else None
        if found is not None:
            wanted = "space" if found["space"] else "colon"
            at = found.start(wanted)
            text = f"U+{ord(found[wanted]):04X} looks like a {wanted} and is none: type the {wanted} again"
            return YAMLProblem(text, number, at + 1)
    text = ": ".join(str(part) for part in (problem.context, problem.problem) if part)
    if str(problem.problem) == "found undefined alias":
        name = re.match(rb"\*([^\s,\]}]{1,80})", here[column - 1 :])
        shown = name[1].decode(errors="replace") if name else ""
        text += f"; an anchor &{shown} must stand before *{shown}, in the same document"
    elif str(problem.problem) in _HINTS:
        text += f"; {_HINTS[str(problem.problem)]}"
    return YAMLProblem(text[:300] or "not YAML", line, column)


def _mark_place(mark: Any) -> tuple[int, int]:
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def place(node: yaml.Node) -> tuple[int, int]:
    """Line and column of a node, from 1."""
    return node.start_mark.line + 1, node.start_mark.column + 1


class _Builder:
    """Builds values from one node tree, collecting problems instead of stopping."""

    __slots__ = ("aliases", "built", "expansions", "faults", "measures", "open", "spread")

    def __init__(self, aliases: bool) -> None:
        self.faults: list[YAMLProblem] = []
        self.aliases = aliases
        self.built: dict[int, Any] = {}
        self.open: set[int] = set()
        self.measures: dict[int, tuple[int, int, int]] = {}
        self.expansions = 0
        self.spread = 0

    def fault(self, message: str, node: yaml.Node) -> None:
        self.faults.append(YAMLProblem(message, *place(node)))

    def build(self, node: yaml.Node, depth: int = 1) -> Any:
        if type(node) is yaml.ScalarNode:
            if node.tag is _STR:
                return node.value
            return self.scalar(node)
        if self.aliases:
            return self.shared(node, depth)
        return self.collection(node, depth)

    def collection(self, node: yaml.Node, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self.fault(_too_deep(), node)
            return None
        if type(node) is yaml.MappingNode:
            return self.mapping(node, depth)
        if node.tag != "tag:yaml.org,2002:seq":
            self.fault(f"tag {node.tag} is not supported", node)
        build = self.build
        return [build(item, depth + 1) for item in node.value]

    def mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Any]:
        if node.tag != "tag:yaml.org,2002:map":
            self.fault(f"tag {node.tag} is not supported", node)
        result: dict[str, Any] = {}
        merges: list[yaml.Node] = []
        for key, value in node.value:
            if type(key) is not yaml.ScalarNode:
                self.fault("keys must be text, not lists or mappings", key)
                continue
            name = key.value
            if name == "<<" and key.tag == _PLAIN:
                merges.append(value)
                continue
            if name in result:
                self.duplicate(node, key)
                continue
            octal = (
                name in _MODES and type(value) is yaml.ScalarNode and value.tag is _PLAIN and _OCTAL.match(value.value)
            )
            result[name] = int(value.value, 8) if octal else self.build(value, depth + 1)
        for merge in merges:
            self.merge(result, merge, depth)
        return result

    def duplicate(self, node: yaml.MappingNode, key: yaml.ScalarNode) -> None:
        first = next(other for other, _ in node.value if getattr(other, "value", None) == key.value)
        line, column = place(first)
        self.fault(f"key {key.value!r:.80} is given twice: first at line {line}, column {column}", key)

    def merge(self, result: dict[str, Any], node: yaml.Node, depth: int) -> None:
        sources = node.value if type(node) is yaml.SequenceNode else [node]
        for source in sources:
            if type(source) is not yaml.MappingNode:
                self.fault("a merge key takes a mapping or a list of mappings", source)
                continue
            for name, value in self.build(source, depth).items():
                result.setdefault(name, value)

    def shared(self, node: yaml.Node, depth: int) -> Any:
        """Build a collection that aliases may repeat; count the size of their expansion."""
        identity = id(node)
        if identity in self.open:
            self.fault("an alias inside what it names never ends", node)
            return None
        if identity in self.built:
            expansions, chars, height = self.measure(node)
            self.expansions += expansions + 1
            self.spread += chars
            if depth + height - 1 > MAX_DEPTH:
                self.fault(_too_deep(), node)
                return None
            if self.expansions > MAX_EXPANSIONS or self.spread > MAX_EXPANDED_CHARS:
                most = f"{MAX_EXPANSIONS} copies or {MAX_EXPANDED_CHARS >> 20} MiB"
                raise YAMLProblem(f"aliases expand to more than {most}", *place(node))
            return self.built[identity]
        self.open.add(identity)
        value = self.collection(node, depth)
        self.open.discard(identity)
        self.built[identity] = value
        return value

    def measure(self, node: yaml.Node, level: int = 1) -> tuple[int, int, int]:
        """Aliases, characters and levels of a fully expanded collection."""
        identity = id(node)
        if identity not in self.measures:
            self.measures[identity] = (0, 0, 1)
            expansions, chars, height = 0, 0, 1
            seen: set[int] = set()
            for child in _children(node) if level <= MAX_DEPTH else ():
                if type(child) is yaml.ScalarNode:
                    chars += len(child.value) + 4
                    continue
                inner = self.measure(child, level + 1)
                expansions += inner[0] + (1 if id(child) in seen else 0)
                chars += inner[1] + 4
                height = max(height, inner[2] + 1)
                seen.add(id(child))
            self.measures[identity] = (expansions, chars, height)
        return self.measures[identity]

    def scalar(self, node: yaml.ScalarNode) -> Any:
        tag, text = node.tag, node.value
        if tag is _PLAIN:
            if text in _CONSTANTS:
                return _CONSTANTS[text]
            return self.number(node) if text[0] in _NUMERIC_START else text
        if tag == _STR:
            return text
        kind = tag.removeprefix("tag:yaml.org,2002:")
        if kind in ("int", "float", "bool", "null"):
            value = _CONSTANTS[text] if text in _CONSTANTS else self.number(node)
            if type(value).__name__ == {"null": "NoneType"}.get(kind, kind):
                return value
            if kind == "float" and type(value) is int:
                return float(value)
        self.fault(f"tag {tag.removeprefix('tag:yaml.org,2002:')!r:.80} is not supported here", node)
        return text

    def number(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        value: Any = text
        if _LEADING_ZERO.match(text):
            return text
        if _INT.match(text):
            value = int(text) if len(text) <= 20 else float("inf")
        elif _RADIX.match(text):
            value = int(text, 0) if len(text) <= 24 else float("inf")
        elif _FLOAT.match(text):
            value = float(text)
        elif _NOT_JSON.match(text):
            value = float("inf")
        if type(value) is str:
            return text
        if (type(value) is int and not -(1 << 63) <= value < 1 << 64) or value in (float("inf"), float("-inf")):
            self.fault(f"{text:.80} reads as a number that JSON cannot hold: put it in quotes if it is text", node)
            return text
        return value


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if type(node) is yaml.MappingNode:
        for key, value in node.value:
            yield key
            yield value
    else:
        yield from node.value


def build(node: yaml.Node, aliases: bool) -> tuple[Any, list[YAMLProblem]]:
    """Build the value of a document; returns it with its problems. ``aliases``: whether the file may hold any.

    Raises:
        Fault: aliases expand beyond bounds.
    """
    builder = _Builder(aliases)
    return builder.build(node), builder.faults


def may_alias(data: bytes) -> bool:
    """Whether a file can hold aliases; most hold none and are built faster."""
    return b"*" in data and b"&" in data


def locate(root: yaml.Node, path: Sequence[str | int], at_key: bool = False) -> tuple[int, int, str]:
    """Line, column and field of a path; for a missing part, those of its parent.

    ``at_key`` points to the key of the last part instead of its value.
    """
    node, spot, parts = root, root, list(path)
    field: list[str] = []
    for index, part in enumerate(parts):
        found = _child(node, part)
        if found is None:
            # of a missing branch, the field is still named in full
            missing = [rest for rest in parts[index:] if isinstance(rest, str) and rest != "[key]"]
            if type(node) is not yaml.SequenceNode and len(missing) == len(parts) - index:
                field += [f".{rest}" for rest in missing]
            break
        key, value = found
        field.append(f"[{part}]" if isinstance(part, int) else f".{part}")
        ends_in_key = index + 2 == len(parts) and parts[-1] == "[key]"
        spot = key if (at_key and index == len(parts) - 1) or ends_in_key else value
        node = value
    return (*place(spot), "".join(field).lstrip("."))


def _keys(node: yaml.MappingNode) -> tuple[dict[str, tuple[yaml.Node, yaml.Node]], list[yaml.Node]]:
    """The first entry of each key and the sources of merge keys; kept on the node, because a long mapping is searched
    thousands of times.
    """
    known: tuple[dict[str, tuple[yaml.Node, yaml.Node]], list[yaml.Node]] | None = getattr(node, "belay_keys", None)
    if known is not None:
        return known
    own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    merged: list[yaml.Node] = []
    for key, value in node.value:
        if type(key) is yaml.ScalarNode:
            own.setdefault(key.value, (key, value))
            if key.value == "<<":
                merged.extend(value.value if type(value) is yaml.SequenceNode else [value])
    vars(node)["belay_keys"] = own, merged
    return own, merged


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    if type(node) is yaml.SequenceNode:
        if isinstance(part, int) and 0 <= part < len(node.value):
            return node.value[part], node.value[part]
        return None
    if type(node) is not yaml.MappingNode:
        return None
    own, merged = _keys(node)
    if isinstance(part, str) and part in own:
        return own[part]
    for source in merged:
        if source is not node and (found := _child(source, part)):
            return found
    return None
