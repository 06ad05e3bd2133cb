"""Where the history is read: from `belay server`, from its database, or what the cluster itself still says."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from engine.errors import BelayError, InputError, bounded
from engine.kube import CONFIGMAP, EVENT, Kube
from engine.kube.credentials import loader, server_of
from engine.model.times import rfc3339
from engine.observe.live import with_kube
from engine.serve.console.document import SELECTOR, data_of
from engine.serve.records.changes import LookTimes, bindings, changes, evictions
from engine.serve.records.events import FIELDS, read_events
from engine.serve.records.questions import QUESTIONS
from engine.serve.records.reading import StatusReading
from engine.serve.records.store import MEMORY, RecordStore
from engine.wire import names

SERVER: Final = "BELAY_SERVER"
ANSWER_SECONDS: Final = 70.0
CONNECT_SECONDS: Final = 3.0
MOST_BYTES: Final = 256 * 1024 * 1024
_ITSELF: Final = "cli"


class _NoServer(BelayError):
    """The server cannot answer, so that what the cluster itself says is the next best."""


class HistoryAnswer(msgspec.Struct, frozen=True):
    """An answer, and what must be said beside it: why it reaches back less far than asked, or is not up to date."""

    body: dict[str, Any]
    note: str = ""


def ask(
    word: str, values: Mapping[str, str], *, server: str | None, database: str | None, kubeconfig: str | None
) -> HistoryAnswer:
    """The answer to one question of the history.

    Raises:
        InputError: something asked cannot be understood, or the caller may not look. BelayError: nothing answers.
    """
    if database:
        return HistoryAnswer(_of_database(word, values, database))
    url = server or os.environ.get(SERVER) or server_of(kubeconfig)
    if not url:
        note = f"no server is known: set {SERVER}, or give --server URL (docs/history.md)"
        return _of_cluster(word, values, kubeconfig, note)
    try:
        body = asyncio.run(_of_server(word, values, url, kubeconfig))
    except _NoServer as error:
        return _of_cluster(word, values, kubeconfig, str(error))
    problem = str(body.pop("problem", ""))
    return HistoryAnswer(body, f"the history is not written now: {problem}" if problem else "")


def _of_database(word: str, values: Mapping[str, str], url: str) -> dict[str, Any]:
    store = RecordStore(url)
    try:
        return QUESTIONS[word](store, values, round(time.time() * 1000))
    finally:
        store.close()


async def _of_server(word: str, values: Mapping[str, str], url: str, kubeconfig: str | None) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url[:80]!r} is not the address of a server", hint="Write http://127.0.0.1:8080.")
    headers = await _proof(parts.scheme, parts.hostname, kubeconfig)
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
    address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/api/v1/{word}"
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.get(address, params=dict(values), headers=headers, allow_redirects=False) as response,
        ):
            data = await response.content.read(MOST_BYTES + 1)
            return _body(response.status, data, url)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _NoServer(f"the server at {url} does not answer ({type(error).__name__})") from error


async def _proof(scheme: str, host: str, kubeconfig: str | None) -> dict[str, str]:
    """The caller's token of the cluster, for a server that is reached on loopback or by TLS."""
    if scheme != "https" and not _loopback(host):
        return {}
    try:
        found = await asyncio.to_thread(loader(kubeconfig))
    except BelayError:
        return {}
    return found.headers


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _body(status: int, data: bytes, url: str) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        body = None
    body = body if isinstance(body, dict) else {}
    said = bounded(str(body.get("error") or f"it answers {status}"), 300)
    hint = bounded(str(body.get("hint") or ""), 300)
    if status == 200 and body:
        return body
    if status == 400:
        raise InputError(said, hint=hint)
    if status in (401, 403):
        raise InputError(f"the server at {url} shows you nothing: {said}", hint=hint)
    raise _NoServer(f"the server at {url} has no history to show: {said}")


def _of_cluster(word: str, values: Mapping[str, str], kubeconfig: str | None, why: str) -> HistoryAnswer:
    """The answer from what the cluster still says: its status, and Events, which Kubernetes keeps for an hour."""
    if word == "verify":
        raise BelayError(f"there is no history to verify: {why}")
    store = with_kube(kubeconfig, _read)
    try:
        body = QUESTIONS[word](store, values, round(time.time() * 1000))
    finally:
        store.close()
    return HistoryAnswer(body, f"about the last hour only: {why}")


async def _read(kube: Kube) -> RecordStore:
    status, events = await asyncio.gather(
        kube.list(CONFIGMAP, names.SYSTEM, SELECTOR), kube.list(EVENT, None, None, FIELDS)
    )
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
