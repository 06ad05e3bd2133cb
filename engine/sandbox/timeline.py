"""A timeline of faults in YAML: rows with ``at``, a place and an event; every error has its file:line:column.

    timeline:
      - {at: 10s, node: node-1, chip: 3, code: "80C98001"}
      - {at: 2m, node: node-1, chip: 3, code: "80C98001", assertion: recover}
      - {at: 3m, node: node-2, hardware: "2C000031", device: CPU}

`belay inject --timeline FILE` plays it against the sandbox; tests play it in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from belay.engine.documents.scalars import parse_duration
from belay.engine.errors import InputError
from belay.engine.load.yaml12 import YAMLProblem, compose, place
from belay.engine.model.levels import CHIP_LEVELS, NODE_LEVELS, SWITCH_LEVELS
from belay.engine.simulate.surroundings import SUB_HEALTH_CODE

__all__ = ["ASSERTIONS", "KINDS", "SUB_HEALTH_CODE", "SandboxEvent", "parse", "read"]

MAX_BYTES: Final = 1 << 20
MAX_EVENTS: Final = 10_000
#: Longest timeline in seconds; longer ones belong into a soak test.
MAX_SECONDS: Final = 7 * 86_400.0
_SHOWN: Final = 20
ASSERTIONS: Final = ("occur", "recover", "once")

_CODE: Final = re.compile(r"[0-9A-Fa-f]{8,9}\Z")
_NODE_CODE: Final = re.compile(r"[0-9A-Za-z]{8}\Z")
_PUBLIC_CODE: Final = re.compile(r"[0-9A-Za-z]{9}\Z")
_SWITCH_CODE: Final = re.compile(r"\[[0-9A-Za-z_.-]+(,[0-9A-Za-z_.-]+){3}\]\Z")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
_POD: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z")
_ID: Final = re.compile(r"[a-zA-Z0-9\-_.]{8,128}\Z")
_DEVICE: Final = re.compile(r"[A-Za-z0-9 ./&-]{1,64}\Z")


class SandboxEvent(NamedTuple):
    """One event: ``what`` is the row's kind, ``value`` its value, ``more`` its other fields."""

    at: float
    what: str
    value: Any
    node: str
    chip: int | None
    assertion: str
    more: dict[str, Any]
    line: int


class _Kind(NamedTuple):
    """A kind of row: the parser of its value, whether it needs a node and a chip, and its other fields."""

    read: Callable[[Any], Any]
    node: bool = True
    chip: bool = False
    assertions: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


def _matches(pattern: re.Pattern[str], like: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if isinstance(value, str) and pattern.match(value):
            return value
        quoted = " (put it in quotes: YAML reads it as a number)" if isinstance(value, (int, float)) else ""
        raise ValueError(f"{str(value)[:60]!r} is not a {like}{quoted}")

    return read


def _one_of(*words: Any) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if any(value is word or (isinstance(word, str) and value == word) for word in words):
            return value
        raise ValueError(f"must be one of {', '.join(str(word).lower() for word in words)}")

    return read


def _number(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is int and low <= value <= high:
            return value
        raise ValueError(f"must be a whole number from {low} to {high}")

    return read


def _chips(value: Any) -> tuple[int, ...]:
    if isinstance(value, list) and 1 <= len(value) <= 32 and all(type(v) is int and 0 <= v < 32 for v in value):
        return tuple(sorted(set(value)))
    raise ValueError("must be a list of 1 to 32 chip numbers from 0 to 31")


def _or_level(words: tuple[str, ...], read: Callable[[Any], str]) -> Callable[[Any], str]:
    """Parse a level, as `belay simulate` does, or a code."""
    return lambda value: value if isinstance(value, str) and value in words else read(value)


_FLAG: Final = _one_of(True, False)
#: Levels of a node's board and switch: a code with that level is used; the first one means healthy.
BOARD_LEVELS: Final = ("Healthy", *NODE_LEVELS)
_BOTH: Final = ("occur", "recover")
KINDS: Final[dict[str, _Kind]] = {
    "code": _Kind(_matches(_CODE, 'fault code such as "80C98001"'), chip=True, assertions=ASSERTIONS, more=("level",)),
    "network": _Kind(_matches(_CODE, 'fault code such as "81078603"'), chip=True, assertions=_BOTH, more=("level",)),
    "subHealth": _Kind(_FLAG, chip=True),
    "drop": _Kind(_FLAG, chip=True),
    "hang": _Kind(_FLAG, chip=True),
    "ping": _Kind(_one_of("ok", "lost", "unknown"), chip=True),
    "switch": _Kind(
        _or_level(SWITCH_LEVELS, _matches(_SWITCH_CODE, 'switch code such as "[0x00f1fef5,155912,cpu,na]"')),
        assertions=_BOTH,
        more=("switchChip", "switchPort"),
    ),
    "hardware": _Kind(
        _or_level(BOARD_LEVELS, _matches(_NODE_CODE, 'node code such as "2C000031"')),
        assertions=_BOTH,
        more=("device", "deviceId"),
    ),
    "storage": _Kind(_one_of("dpc", "dtfs"), assertions=_BOTH, more=("part",)),
    "ready": _Kind(_FLAG),
    "silent": _Kind(_FLAG),
    "state": _Kind(_one_of("ready", "not-ready", "silent", "speaking")),
    "phase": _Kind(_one_of("Failed", "Succeeded", "Deleted"), node=False, more=("pod",)),
    "resetFails": _Kind(_number(0, 100)),
    "public": _Kind(
        _matches(_PUBLIC_CODE, 'public code such as "220001001"'),
        assertions=ASSERTIONS,
        more=("sender", "faultId", "chips"),
    ),
    "pod": _Kind(_matches(_POD, "pod such as train/pretrain-0"), node=False, more=("exit",)),
}  # fmt: skip
_MORE: Final[dict[str, Callable[[Any], Any]]] = {
    "switchChip": _number(0, 65_535), "switchPort": _number(0, 65_535), "device": _matches(_DEVICE, "device type"),
    "deviceId": _number(0, 65_535), "part": _one_of("process", "memory"), "exit": _number(1, 255),
    "sender": _matches(re.compile(r"\S{1,64}\Z"), "sender"), "faultId": _matches(_ID, "fault id (8 to 128 characters)"),
    "chips": _chips, "level": _one_of(*CHIP_LEVELS), "pod": _matches(_POD, "pod such as train/pretrain-0"),
}  # fmt: skip
#: States of a node, and the events that they abbreviate.
_STATES: Final = {"ready": ("ready", True), "not-ready": ("ready", False), "silent": ("silent", True),
                  "speaking": ("silent", False)}  # fmt: skip
_COMMON: Final = frozenset({"at", "node", "chip", "assertion"})


def read(path: Path) -> tuple[SandboxEvent, ...]:
    """Read the timeline in a file, in order of time.

    Raises:
        InputError: the file cannot be read or has mistakes; each is reported with its line and column.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    return parse(data, str(path))


def parse(data: bytes, name: str) -> tuple[SandboxEvent, ...]:
    """As :func:`read`, for the content of a file."""
    mistakes: list[YAMLProblem] = []
    events: list[SandboxEvent] = []
    try:
        for row in _rows(compose(data)):
            event = _event(row, mistakes)
            if event is not None:
                events.append(event)
    except YAMLProblem as fault:
        mistakes.append(fault)
    if mistakes:
        reported = [
            f"{name}:{m.line}:{m.column}: {m.message}" for m in sorted(mistakes, key=lambda m: (m.line, m.column))
        ]
        more = f"\nand {len(reported) - _SHOWN} more" if len(reported) > _SHOWN else ""
        raise InputError("\n".join(reported[:_SHOWN]) + more)
    return tuple(sorted(events, key=lambda event: (event.at, event.line)))


def _rows(documents: list[yaml.Node]) -> list[yaml.Node]:
    """The rows of a document with the key ``timeline``, or of a bare list, as `belay simulate` reads it."""
    root = documents[0] if len(documents) == 1 else None
    if type(root) is not yaml.MappingNode and type(root) is not yaml.SequenceNode:
        line, column = place(documents[1]) if len(documents) > 1 else (1, 1)
        raise YAMLProblem("must be one document with the key timeline", line, column)
    keys = {"timeline": root} if type(root) is yaml.SequenceNode else dict(_pairs(root))
    for key, value in keys.items():
        if key != "timeline":
            raise YAMLProblem(f"unknown key {key!r:.80}: only timeline is known", *place(value))
    rows = keys.get("timeline")
    if type(rows) is not yaml.SequenceNode or not rows.value:
        raise YAMLProblem("timeline must be a list of events", *(place(rows) if rows is not None else (1, 1)))
    if len(rows.value) > MAX_EVENTS:
        raise YAMLProblem(f"more than {MAX_EVENTS} events: split the timeline", *place(rows.value[MAX_EVENTS]))
    found: list[yaml.Node] = rows.value
    return found


def _pairs(node: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    seen: set[str] = set()
    for key, value in node.value:
        text = key.value if type(key) is yaml.ScalarNode else ""
        if not text or text in seen:
            raise YAMLProblem(f"key {text!r:.80} is given twice" if text else "keys must be text", *place(key))
        seen.add(text)
        yield text, value


def _event(row: yaml.Node, mistakes: list[YAMLProblem]) -> SandboxEvent | None:
    """Parse one row; its errors are added to ``mistakes``."""
    if type(row) is not yaml.MappingNode:
        mistakes.append(
            YAMLProblem("an event is a mapping, such as {at: 10s, node: node-1, chip: 3, code: …}", *place(row))
        )
        return None
    try:
        fields = dict(_pairs(row))
        what = _what_happens(row, fields)
    except YAMLProblem as fault:
        mistakes.append(fault)
        return None

    before = len(mistakes)
    values = _read_fields(what, fields, mistakes)
    mistakes += [YAMLProblem(f"{what} needs {key}", *place(row)) for key in _needed(what) if key not in fields]
    if len(mistakes) > before:
        return None

    kind, value = what, values[what]
    more = {key: field for key, field in values.items() if key not in _COMMON and key != what}
    if what == "state":
        kind, value = _STATES[value]
    elif what == "phase":
        if "pod" not in more:
            mistakes.append(YAMLProblem("phase needs pod", *place(row)))
            return None
        kind, value, more = "pod", more["pod"], {"phase": value}
    return SandboxEvent(
        at=values["at"],
        what=kind,
        value=value,
        node=values.get("node", ""),
        chip=values.get("chip"),
        assertion=values.get("assertion", "occur"),
        more=more,
        line=place(row)[0],
    )


def _what_happens(row: yaml.Node, fields: Mapping[str, yaml.Node]) -> str:
    """The kind of an event: the one field that says what happens. A pod with a phase is one event.

    Raises:
        YAMLProblem: no field says it, or several do.
    """
    kinds = [key for key in fields if key in KINDS and not (key == "pod" and "phase" in fields)]
    if not kinds:
        raise YAMLProblem(f"does not say what happens: one of {', '.join(KINDS)}", *place(row))
    if len(kinds) > 1:
        raise YAMLProblem(f"gives {' and '.join(kinds)}: one event, one thing", *place(row))
    return kinds[0]


def _read_fields(what: str, fields: Mapping[str, yaml.Node], mistakes: list[YAMLProblem]) -> dict[str, Any]:
    """The values of an event's fields; those that it does not take or that cannot be read are mistakes."""
    readers = _readers(what)
    values: dict[str, Any] = {}
    for key, node in fields.items():
        if key not in readers:
            known = ", ".join(field for field in readers if field != what)
            mistakes.append(YAMLProblem(f"{what} takes no {key!r:.80}; it takes {known}", *place(node)))
            continue
        try:
            values[key] = readers[key](_value(node))
        except ValueError as error:
            mistakes.append(YAMLProblem(f"{key}: {error}", *place(node)))
    return values


def _readers(what: str) -> dict[str, Callable[[Any], Any]]:
    """How the fields that a kind of event takes are read."""
    kind = KINDS[what]
    readers: dict[str, Callable[[Any], Any]] = {"at": _moment, what: kind.read}
    for key in kind.more:
        readers[key] = _MORE[key]
    if kind.node:
        readers["node"] = _matches(_NAME, "node name")
    if kind.chip:
        readers["chip"] = _number(0, 1023)
    if kind.assertions:
        readers["assertion"] = _one_of(*kind.assertions)
    return readers


def _needed(what: str) -> Iterator[str]:
    """The fields that an event must have beside the one that says what happens."""
    kind = KINDS[what]
    yield "at"
    if kind.node:
        yield "node"
    if kind.chip:
        yield "chip"


def _moment(value: Any) -> float:
    seconds = 0.0 if value == 0 and type(value) is int else parse_duration(value)
    if not 0 <= seconds <= MAX_SECONDS:
        raise ValueError("must be within seven days")
    return seconds


def _value(node: yaml.Node) -> Any:
    """A scalar or a list of scalars, plain scalars by the rules of YAML 1.2."""
    if type(node) is yaml.SequenceNode:
        return [_value(item) for item in node.value]
    if type(node) is not yaml.ScalarNode:
        return None
    text: str = node.value
    if node.tag != "plain":
        return text
    if text in ("true", "false"):
        return text == "true"
    # a code with leading zeros or an exponent stays text, so that 0100000D and 80E01801 need no quotes
    return int(text) if re.match(r"(0|[1-9][0-9]{0,6})\Z", text) else text
