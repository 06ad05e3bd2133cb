"""Lines of the logs of several pods: what is new in a log that is read again, one order for all, and how they show."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

_STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")
_DRAWING: Final = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_MOST_KEPT: Final = 2_000


class LogLine(NamedTuple):
    """A line, and when the container wrote it: RFC 3339 with nine digits, which sorts; empty where that is unknown."""

    stamp: str
    text: str


def read_line(line: str) -> LogLine:
    """A line as the API gives it with ``timestamps``."""
    found = _STAMP.match(line)
    if found is None:
        return LogLine("", line)
    return LogLine(f"{found[1]}.{(found[2] or '').ljust(9, '0')}{found[3]}", line[found.end() :])


class ContinuedLog:
    """What is new in the log of one container, which is read again when the connection ends.

    A kubelet repeats the lines of the second from which it is asked; a server that keeps no times repeats all it has.
    """

    def __init__(self) -> None:
        self.last = ""
        self._at_last: set[str] = set()
        self._kept: list[str] = []
        self._again: list[str] | None = None

    def begin(self) -> None:
        """The log is read again from here on."""
        self._again = list(self._kept)

    def takes(self, line: LogLine) -> bool:
        """Whether the line was not there before."""
        return self._is_later(line) if line.stamp else self._is_further(line.text)

    def _is_later(self, line: LogLine) -> bool:
        if line.stamp < self.last or (line.stamp == self.last and line.text in self._at_last):
            return False
        if line.stamp > self.last:
            self.last, self._at_last = line.stamp, set()
        self._at_last.add(line.text)
        return True

    def _is_further(self, text: str) -> bool:
        if self._again:
            # the server may have dropped the oldest lines that were seen
            if text in self._again:
                del self._again[: self._again.index(text) + 1]
                return False
            self._again = None
        self._kept.append(text)
        del self._kept[:-_MOST_KEPT]
        return True


def merged(logs: Sequence[tuple[str, Iterable[LogLine]]]) -> Iterator[tuple[str, LogLine]]:
    """The lines of several logs by time, each with its prefix; a line without a time stays behind the one before it."""

    def timed(number: int, prefix: str, lines: Iterable[LogLine]) -> Iterator[tuple[str, int, int, str, LogLine]]:
        stamp = ""
        for at, line in enumerate(lines):
            stamp = max(stamp, line.stamp)
            yield stamp, number, at, prefix, line

    rows = heapq.merge(*(timed(number, prefix, lines) for number, (prefix, lines) in enumerate(logs)))
    return ((prefix, line) for _, _, _, prefix, line in rows)


def shown(line: str, *, terminal: bool) -> str:
    """A line as it is printed: on a terminal without what moves the cursor or asks it for something; colours stay."""
    return _DRAWING.sub(lambda found: f"\\u{ord(found[0]):04x}", line) if terminal else line
