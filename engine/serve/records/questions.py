"""The questions that the history answers, by their word: what an address or a command asks with text parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import or_, select

from belay.engine.errors import InputError
from belay.engine.model.times import rfc3339
from belay.engine.serve.records.answers import history, query_of, time_of, verdict
from belay.engine.serve.records.facts import Span
from belay.engine.serve.records.report import report
from belay.engine.serve.records.schema import SPANS
from belay.engine.serve.records.store import RecordStore, span_of
from belay.engine.serve.records.usage import Window, check_group, usage_rows, used

MOST_SPANS: Final = 2_000_000
"""Most spans that one report or usage is made of; each takes about half a KiB while it is made."""
_WEEK_MS: Final = 7 * 86_400_000

Question = Callable[[RecordStore, Mapping[str, str], int], dict[str, Any]]
"""Given a store, parameters and the present (Unix ms), a document of plain JSON values; raises InputError or
HistoryUnavailable."""


def _records(store: RecordStore, values: Mapping[str, str], _: int) -> dict[str, Any]:
    return history(store, query_of(values))


def _verify(store: RecordStore, values: Mapping[str, str], _: int) -> dict[str, Any]:
    return verdict(store, values.get("expected", ""))


def _usage(store: RecordStore, values: Mapping[str, str], now: int) -> dict[str, Any]:
    by, window = check_group(values.get("by", "user")), _window(values, now)
    rows = usage_rows(by, used(by, spans_within(store, window), window))
    return _times(window) | {"by": by, "usage": rows}


def _report(store: RecordStore, values: Mapping[str, str], now: int) -> dict[str, Any]:
    window = _window(values, now)
    return report(spans_within(store, window), window)


def _window(values: Mapping[str, str], now: int) -> Window:
    end = time_of(values, "until", now)
    begin = time_of(values, "since", end - _WEEK_MS)
    if begin >= end:
        raise InputError("the time ends before it begins", where="since, until")
    return Window(begin, end, now)


def _times(window: Window) -> dict[str, Any]:
    return {"since": rfc3339(window.begin / 1000), "until": rfc3339(min(window.end, window.now) / 1000)}


def spans_within(store: RecordStore, window: Window) -> list[Span]:
    """The spans of which some part, or the beginning, lies within a window. Raises HistoryUnavailable."""
    overlapping = (SPANS.c.begun <= window.end, or_(SPANS.c.ended == 0, SPANS.c.ended >= window.begin))
    with store.reading() as connection:
        query = select(SPANS).where(*overlapping).order_by(SPANS.c.begun).limit(MOST_SPANS + 1)
        found = [span_of(row) for row in connection.execute(query).mappings()]
    if len(found) > MOST_SPANS:
        raise InputError(f"there are more than {MOST_SPANS} spans in this time", hint="Ask for a shorter time.")
    return found


QUESTIONS: Final[dict[str, Question]] = {
    "records": _records, "report": _report, "usage": _usage, "verify": _verify,
}  # fmt: skip
