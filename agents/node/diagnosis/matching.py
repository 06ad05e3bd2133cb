"""Finds the lines of a log that rules match, and which ranks and devices they name.

A file is searched text by text, as a whole: the cost follows its length and the number of rules, whatever it holds.
Forms of the lines: CANN's "HCCL User Guide" (fault locating, EI0002, EI0006, communicator logs).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from belay.agents.node.diagnosis.codes import codes_in
from belay.agents.node.diagnosis.redaction import redacted
from belay.agents.node.diagnosis.times import Stamp, stamp_of, zone_of
from belay.agents.node.diagnosis.vocabulary import Vocabulary
from belay.engine.model.log_codes import CANN
from belay.engine.model.log_evidence import (
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
_REMOTE: Final = re.compile(r"(?i)remote[ _]?(?:user)?rank\W{0,3}(\d{1,7})(?!\d)")
_REMOTE_DEVICE: Final = re.compile(r"remote physic id:\s{0,2}(\d{1,4})\b")
_UNREACHED: Final = re.compile(r"Failed to connect agent\[([\d, ]{1,512})")
_LINK: Final = re.compile(r"\|\s*[\w.:]{3,64}\((\d{1,7})\)\s*\|(?:[^|]{0,64}\|)?\s*[\w.:]{3,64}\((\d{1,7})\)\s*\|")
_PLACES: Final = (
    re.compile(r"Cluster Exception Location\[IP/ID\]:\s*\[([\w.:]{3,64})/(\d{1,4})\]"),
    re.compile(r"crimer rank\s*\[([\w.:]{3,64})/(\d{1,4})\]"),
    re.compile(r"serverId\[([\w.:]{3,64})\],\s*deviceId\[(\d{1,4})\]"),
)
_PREFIX: Final = re.compile(r"\[rank(\d{1,7})\]")
_COMMUNICATOR: Final = re.compile(r"(?:nR|\br)ank(?:s|Num)\[(\d{1,7})\],\s*rank\[(\d{1,7})\]")
_OWN_DEVICE: Final = re.compile(r"phydevId\[(\d{1,4})\]")
_OWN_SERVER: Final = re.compile(r"\bserver\[([\d.]{7,15}|[\da-fA-F:]{3,45})[%\]]")
#: What stands in lines that say which rank of how many a process is.
_JOINS: Final = (b"entry-hccl", b"setupagent ranknum[", b"[rootinfodetect] nranks[")
_PROCESS: Final = re.compile(r"^\[\w+\] ?\w+\((\d{1,10}),|(?:plog|device)-(\d{1,10})_")
_CRI: Final = re.compile(r"^(\S{20,40}) (?:stdout|stderr) [FP] ")


class LogText(NamedTuple):
    """One log's text: the end of a file. ``written_ms``: when the file was written last; ``rank``: the one whose output
    it is, -1 where its name does not say; ``zone``: what to add to its local times in ms, None: see `times.zone_of`."""

    source: LogSource
    name: str
    data: bytes
    written_ms: int
    rank: int = -1
    zone: int | None = None


class Findings:
    """What the logs of one pod say; `read` one log after another, then `events`.

    ``since_ms``: older lines do not count. ``addresses``: also hide IP addresses in examples.
    """

    def __init__(self, rules: Sequence[LogRule], since_ms: int, *, addresses: bool = False) -> None:
        self._rules = [
            (rule, [tuple(text.lower().encode() for text in texts) for texts in rule.match]) for rule in rules
        ]
        # codes of CANN that a rule speaks of need no event of their own
        self._ruled = {CANN + text.decode().upper() for _, all_of in self._rules for texts in all_of for text in texts}
        self._since, self._addresses = since_ms, addresses
        self._found: dict[tuple[str, str, int], LogEvent] = {}
        self._rank_of: dict[str, tuple[int, int]] = {}
        self._rank_on: dict[int, int] = {}
        self._awaited: dict[tuple[str, str, int], set[int]] = {}
        self.host = ""  # the address of the node, where its processes say it

    @property
    def world(self) -> int:
        """The number of ranks in the largest communicator."""
        return max((size for size, _ in self._rank_of.values()), default=0)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the pod's processes in the largest communicator."""
        known = {rank for size, rank in self._rank_of.values() if size == self.world}
        return tuple(sorted(known | {rank for _, _, rank in self._found if rank >= 0}))[:MAX_RANKS]

    @property
    def devices(self) -> tuple[int, ...]:
        """The physical devices of `ranks`, in the order of ranks; empty if the logs do not name all of them."""
        device_of = {rank: device for device, rank in self._rank_on.items()}
        found = tuple(device_of.get(rank, -1) for rank in self.ranks)
        return found if -1 not in found and list(found) == sorted(found) else ()

    def read(self, log: LogText) -> None:
        """Add the events, ranks and devices that one log names."""
        lowered = log.data.lower()
        zone = zone_of(last_stamp(log), log.written_ms) if log.zone is None else log.zone
        for anchor in _JOINS:
            for line in _lines_with(log.data, lowered, anchor):
                self._communicator(log, line)
        told: set[tuple[str, int]] = set()
        for code, role, at in codes_in(log.source, lowered):
            line, begin = _line_at(log.data, lowered, at)
            if (code, begin) not in told and code not in self._ruled:
                told.add((code, begin))
                self._take(log, LogRule(code, role, ()), line, zone)
        words = Vocabulary(lowered)
        for rule, alternatives in self._rules:
            if rule.sources and log.source not in rule.sources:
                continue
            seen: set[int] = set()
            for texts in alternatives:
                if not words.may_hold(texts):
                    continue
                anchor = max(texts, key=len)
                for begin, line, low in _matches(log.data, lowered, anchor):
                    if begin not in seen and all(text in low for text in texts):
                        seen.add(begin)
                        self._take(log, rule, line, zone)

    def add(self, log: LogText, rule: LogRule, line: str) -> None:
        """Take what someone else found to be an event of a rule: a state, whose time says nothing about a failure."""
        self._take(log, rule, line, 0, state=True)

    def events(self) -> tuple[LogEvent, ...]:
        """The events, the most telling first: those that may be the cause, then by time."""
        found: list[LogEvent] = []
        for (_, process, rank), event in self._found.items():
            size, own = self._rank_of.get(process, (0, -1))
            known = own if rank < 0 and size == self.world else rank
            awaited = (self._rank_on.get(device, -1) for device in self._awaited.get((event.code, process, rank), ()))
            remotes = tuple(sorted({one for one in (*event.remotes, *awaited) if one not in (known, -1)}))[:MAX_NAMED]
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
                if (device := _OWN_DEVICE.search(line)) is not None and size >= self.world:
                    self._rank_on[int(device[1])] = rank
                if (server := _OWN_SERVER.search(line)) is not None:
                    self.host = server[1]

    def _take(self, log: LogText, rule: LogRule, line: str, zone: int, *, state: bool = False) -> None:
        stamp = stamp_of(line, log.written_ms) if not state else None
        at = 0 if stamp is None else stamp.ms + (zone if stamp.local else 0)
        if at and at < self._since:
            return
        remotes = [int(number) for number in _REMOTE.findall(line)]
        for group in _UNREACHED.findall(line):
            remotes += [int(number) for number in group.replace(" ", "").split(",") if 0 < len(number) <= _DIGITS]
        prefix = _PREFIX.search(line)
        rank = int(prefix[1]) if prefix is not None else log.rank
        if (link := _LINK.search(line)) is not None:
            remotes.append(int(link[1]))
            rank = int(link[2])
        places = [f"{one[0]}/{one[1]}" for pattern in _PLACES for one in pattern.findall(line)]
        key = (rule.code, _process(log, line), rank)
        for device in _REMOTE_DEVICE.findall(line):
            self._awaited.setdefault(key, set()).add(int(device))
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


def last_stamp(log: LogText) -> Stamp | None:
    """The time of the last line that has one."""
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
        begin, end = _bounds(lowered, at)
        yield begin, data[begin:end].decode(errors="replace"), lowered[begin:end]
        at = end if end > at else at + len(anchor)


def _bounds(lowered: bytes, at: int) -> tuple[int, int]:
    begin = lowered.rfind(b"\n", max(0, at - _REACH), at) + 1 or max(0, at - _REACH)
    end = lowered.find(b"\n", at, at + _REACH)
    return begin, min(len(lowered), at + _REACH) if end < 0 else end


def _line_at(data: bytes, lowered: bytes, at: int) -> tuple[str, int]:
    begin, end = _bounds(lowered, at)
    return data[begin:end].decode(errors="replace"), begin


def _lines_with(data: bytes, lowered: bytes, anchor: bytes) -> Iterator[str]:
    for _, line, _ in _matches(data, lowered, anchor):
        yield line
