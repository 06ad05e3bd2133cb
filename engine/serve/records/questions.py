"""The questions that the history answers, by their word: what an address or a command asks with text parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.serve.records.answers import history, query_of, verdict
from engine.serve.records.store import RecordStore

Question = Callable[[RecordStore, Mapping[str, str], int], dict[str, Any]]
"""Given a store, parameters and the present (Unix ms), a document of plain JSON values; raises InputError or
HistoryUnavailable."""


def _records(store: RecordStore, values: Mapping[str, str], _: int) -> dict[str, Any]:
    return history(store, query_of(values))


def _verify(store: RecordStore, values: Mapping[str, str], _: int) -> dict[str, Any]:
    return verdict(store, values.get("expected", ""))


QUESTIONS: Final[dict[str, Question]] = {"records": _records, "verify": _verify}
