"""Where the history is read: from `belay server`, from its database, or what the cluster itself still says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from belay.engine.cli.server_client import SERVER, NoServer, ask_server, server_address
from belay.engine.errors import BelayError, InputError
from belay.engine.model.times import rfc3339

if TYPE_CHECKING:
    from belay.engine.kube import Lister
    from belay.engine.serve.records.store import RecordStore

_ITSELF: Final = "cli"


class HistoryAnswer(msgspec.Struct, frozen=True):
    """An answer, and what must be said beside it: why it reaches back less far than asked, or is not up to date."""

    body: dict[str, Any]
    note: str = ""


def ask(
    word: str, values: Mapping[str, str], *, server: str | None, database: str | None, kubeconfig: str | None,
    context: str | None = None,
) -> HistoryAnswer:  # fmt: skip
    """The answer to one question of the history.

    Raises:
        InputError: something asked cannot be understood, or the caller may not look. BelayError: nothing answers.
    """
    if database:
        return HistoryAnswer(_of_database(word, values, database))
    url = server or server_address(kubeconfig, context)
    if not url:
        note = f"no server is known: set {SERVER}, or give --server URL (docs/history.md)"
        return _of_cluster(word, values, kubeconfig, context, note)
    try:
        body = ask_server(url, word, values, kubeconfig, context)
    except NoServer as error:
        return _of_cluster(word, values, kubeconfig, context, str(error))
    problem = str(body.pop("problem", ""))
    return HistoryAnswer(body, f"the history is not written now: {problem}" if problem else "")


def _of_database(word: str, values: Mapping[str, str], url: str) -> dict[str, Any]:
    from belay.engine.serve.records.questions import QUESTIONS
    from belay.engine.serve.records.store import RecordStore, missing_file

    store = RecordStore(url, asked_by="--database")
    if file := missing_file(url):
        # SQLite would make an empty one, and say that it has no tables
        raise InputError(f"{file} does not exist", where="--database")
    try:
        return QUESTIONS[word](store, values, round(time.time() * 1000))
    finally:
        store.close()


def _of_cluster(
    word: str, values: Mapping[str, str], kubeconfig: str | None, context: str | None, why: str
) -> HistoryAnswer:
    """The answer from what the cluster still says: its status, and Events, which Kubernetes keeps for an hour."""
    if word == "verify":
        raise BelayError(f"there is no history to verify: {why}")
    from belay.engine.kube import ask_once
    from belay.engine.serve.records.questions import QUESTIONS

    store = ask_once(kubeconfig, _read, context=context)
    try:
        body = QUESTIONS[word](store, values, round(time.time() * 1000))
    finally:
        store.close()
    return HistoryAnswer(body, f"about the last hour only: {why}")


async def _read(kube: Lister) -> RecordStore:
    from belay.engine.kube import CONFIGMAP, EVENT
    from belay.engine.serve.console.document import SELECTOR, data_of
    from belay.engine.serve.records.changes import LookTimes, bindings, changes, evictions
    from belay.engine.serve.records.events import FIELDS, read_events
    from belay.engine.serve.records.reading import StatusReading
    from belay.engine.serve.records.store import MEMORY, RecordStore
    from belay.engine.wire import names

    status = await kube.list(CONFIGMAP, names.SYSTEM, SELECTOR)
    events = await kube.list(EVENT, None, None, FIELDS)
    now = round(time.time() * 1000)
    found = read_events(events.items)
    seen = StatusReading().read(data_of(status.items))
    store = RecordStore(MEMORY)
    store.prepare()
    times = LookTimes(now, 0, bindings(found), evictions(found), {})
    store.write(changes({}, seen, found, times), by=_ITSELF, now=now)
    return store


def asked_times(since: float | None, until: float | None) -> dict[str, str]:
    """The parameters of a time that was asked for (Unix seconds)."""
    given = {"since": since, "until": until}
    return {key: rfc3339(value) for key, value in given.items() if value is not None}
