"""Finds the lines of a log that rules match, and which ranks and devices they name.

A file is searched text by text, as a whole: the cost follows its length and the number of rules, whatever it holds.
Forms of the lines: CANN's "HCCL User Guide" (fault locating, EI0002, EI0006, communicator logs).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from agents.node.diagnosis.redaction import redacted
from agents.node.diagnosis.times import Stamp, stamp_of, zone_of
from engine.model.log_evidence import (
    MAX_EVENTS,
    MAX_EXAMPLE,
    MAX_NAMED,
    MAX_RANKS,
    EventRole,
    LogEvent,
    LogRule,
    LogSource,
)

#: Bytes before and after a match that belong to its line; a longer line is cut.
_REACH: Final = 2048
#: Digits of a rank; more are no rank, and would make the whole report unreadable.
_DIGITS: Final = 7
#: Matches of one text in one file that are looked at; more are not counted.
_MOST: Final = 5000
_REMOTE: Final = re.compile(r"(?i)remote[ _]?rank\W{0,3}(\d{1,7})")
_UNREACHED: Final = re.compile(r"Failed to connect agent\[([\d, ]{1,512})")
_LINK: Final = re.compile(r"\|\s*[\w.:]{3,64}\((\d{1,7})\)\s*\|[^|]{0,64}\|\s*[\w.:]{3,64}\((\d{1,7})\)\s*\|")
_PLACES: Final = (
    re.compile(r"Cluster Exception Location\[IP/ID\]:\s*\[([\w.:]{3,64})/(\d{1,4})\]"),
    re.compile(r"crimer rank\s*\[([\w.:]{3,64})/(\d{1,4})\]"),
    re.compile(r"serverId\[([\w.:]{3,64})\],\s*deviceId\[(\d{1,4})\]"),
)
_PREFIX: Final = re.compile(r"\[rank(\d{1,7})\]")
_COMMUNICATOR: Final = re.compile(r"ranks\[(\d{1,7})\],\s*rank\[(\d{1,7})\]")
_PROCESS: Final = re.compile(r"^\[\w+\] ?\w+\((\d{1,10}),|(?:plog|device)-(\d{1,10})_")
_CRI: Final = re.compile(r"^(\S{20,40}) (?:stdout|stderr) [FP] ")


class LogText(NamedTuple):
    """One log's text: the end of a file. ``written_ms``: when the file was written last."""

    source: LogSource
    name: str
    data: bytes
    written_ms: int


class Findings:
    """What the logs of one pod say; `read` one log after another, then `events`.

    ``since_ms``: older lines do not count. ``addresses``: also hide IP addresses in examples.
    """

    def __init__(self, rules: Sequence[LogRule], since_ms: int, *, addresses: bool = False) -> None:
        self._rules = [
            (rule, [tuple(text.lower().encode() for text in texts) for texts in rule.match]) for rule in rules
        ]
        self._since, self._addresses = since_ms, addresses
        self._found: dict[tuple[str, str, int], LogEvent] = {}
        self._rank_of: dict[str, tuple[int, int]] = {}

    @property
    def world(self) -> int:
        """The number of ranks in the largest communicator."""
        return max((size for size, _ in self._rank_of.values()), default=0)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the pod's processes in the largest communicator."""
        known = {rank for size, rank in self._rank_of.values() if size == self.world}
        return tuple(sorted(known | {rank for _, _, rank in self._found if rank >= 0}))[:MAX_RANKS]

    def read(self, log: LogText) -> None:
        """Take one log."""
        lowered = log.data.lower()
        zone = zone_of(_last_stamp(log), log.written_ms)
        for line in _lines_with(log.data, lowered, b"entry-hccl"):
            self._communicator(log, line)
        for rule, alternatives in self._rules:
            if rule.sources and log.source not in rule.sources:
                continue
            seen: set[int] = set()
            for texts in alternatives:
                anchor = max(texts, key=len)
                for begin, line, low in _matches(log.data, lowered, anchor):
                    if begin not in seen and all(text in low for text in texts):
                        seen.add(begin)
                        self._take(log, rule, line, zone)

    def events(self) -> tuple[LogEvent, ...]:
        """The events, the most telling first: those that may be the cause, then by time."""
        found: list[LogEvent] = []
        for (_, process, rank), event in self._found.items():
            size, own = self._rank_of.get(process, (0, -1))
            known = own if rank < 0 and size == self.world else rank
            remotes = tuple(one for one in event.remotes if one != known)
            found.append(LogEvent(
                event.code, event.role, event.first_ms, event.count, known, remotes, event.places, event.source,
                event.example,
            ))  # fmt: skip
        order = list(EventRole)
        found.sort(key=lambda one: (order.index(one.role), one.first_ms or 1 << 62, one.code, one.rank))
        return tuple(found[:MAX_EVENTS])

    def _communicator(self, log: LogText, line: str) -> None:
        found = _COMMUNICATOR.search(line)
        if found is not None:
            process, size, rank = _process(log, line), int(found[1]), int(found[2])
            if size > self._rank_of.get(process, (0, 0))[0] and len(self._rank_of) < MAX_RANKS:
                self._rank_of[process] = (size, rank)

    def _take(self, log: LogText, rule: LogRule, line: str, zone: int) -> None:
        stamp = stamp_of(line, log.written_ms)
        at = 0 if stamp is None else stamp.ms + (zone if stamp.local else 0)
        if at and at < self._since:
            return
        remotes = [int(number) for number in _REMOTE.findall(line)]
        for group in _UNREACHED.findall(line):
            remotes += [int(number) for number in group.replace(" ", "").split(",") if 0 < len(number) <= _DIGITS]
        prefix = _PREFIX.search(line)
        rank = int(prefix[1]) if prefix is not None else -1
        if (link := _LINK.search(line)) is not None:
            remotes.append(int(link[1]))
            rank = int(link[2])
        places = [f"{one[0]}/{one[1]}" for pattern in _PLACES for one in pattern.findall(line)]
        key = (rule.code, _process(log, line), rank)
        old = self._found.get(key)
        if old is None:
            if len(self._found) >= 4 * MAX_EVENTS:
                return
            text = redacted(_CRI.sub("", line), addresses=self._addresses)[:MAX_EXAMPLE]
            old = LogEvent(rule.code, rule.role, at, 0, rank, source=log.source, example=text)
        self._found[key] = LogEvent(
            old.code, old.role, min(filter(None, (old.first_ms, at)), default=0), old.count + 1, rank,
            tuple(sorted({*old.remotes, *remotes}))[:MAX_NAMED], tuple(sorted({*old.places, *places}))[:MAX_NAMED],
            old.source, old.example,
        )  # fmt: skip


def _process(log: LogText, line: str) -> str:
    """The number of the process that wrote a line, as the line or the file's name says it; else the file."""
    found = _PROCESS.search(_CRI.sub("", line)) or _PROCESS.search(log.name.rpartition("/")[2])
    return (found[1] or found[2]) if found is not None else log.name


def _last_stamp(log: LogText) -> Stamp | None:
    for raw in reversed(log.data[-8192:].splitlines()):
        stamp = stamp_of(raw[:_REACH].decode(errors="replace"), log.written_ms)
        if stamp is not None:
            return stamp
    return None


def _matches(data: bytes, lowered: bytes, anchor: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Begin, text and lower-case bytes of the lines that hold a text, each once."""
    at = 0
    for _ in range(_MOST):
        at = lowered.find(anchor, at)
        if at < 0:
            return
        begin = lowered.rfind(b"\n", max(0, at - _REACH), at) + 1 or max(0, at - _REACH)
        end = lowered.find(b"\n", at, at + _REACH)
        end = min(len(data), at + _REACH) if end < 0 else end
        yield begin, data[begin:end].decode(errors="replace"), lowered[begin:end]
        at = end if end > at else at + len(anchor)


def _lines_with(data: bytes, lowered: bytes, anchor: bytes) -> Iterator[str]:
    for _, line, _ in _matches(data, lowered, anchor):
        yield line


__all__ = ["Findings", "LogText"]
