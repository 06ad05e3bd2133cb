"""Questions to `belay server`: its address, the caller's proof, and an answer or why there is none."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from belay.engine.errors import BelayError, InputError, bounded
from belay.engine.http_calls import HttpConnection
from belay.engine.kube.credentials import loader, server_of
from belay.engine.proxies import proxy_for

SERVER: Final = "BELAY_SERVER"
ANSWER_SECONDS: Final = 70.0
CONNECT_SECONDS: Final = 3.0
MOST_BYTES: Final = 256 * 1024 * 1024


class NoServer(BelayError):
    """The server cannot answer, so that what the cluster itself says is the next best.

    ``said`` are the server's own words, where it answered with another status than the questions have.
    """

    def __init__(self, message: str, *, hint: str = "", status: int = 0, said: str = "") -> None:
        self.status, self.said = status, said
        super().__init__(message, hint=hint)

    code = "NoServer"


def server_address(kubeconfig: str | None, context: str | None) -> str:
    """Where the cluster's server is: as $BELAY_SERVER says of the cluster that is meant where none is named, else as
    the kubeconfig says; empty if neither does.
    """
    usual = os.environ.get(SERVER, "") if not (kubeconfig or context) else ""
    return usual or server_of(kubeconfig, context)


def ask_server(
    url: str, path: str, values: Mapping[str, str], kubeconfig: str | None, context: str | None
) -> dict[str, Any]:
    """The answer of a server to one question.

    Raises:
        NoServer: it does not answer, or cannot. InputError: what is asked is not understood, or the
            caller may not look.
    """
    return _answer("GET", url, path, values, {}, kubeconfig, context)


def ask_test(receiver: str, *, server: str | None, kubeconfig: str | None) -> dict[str, Any]:
    """What became of test messages that a server sent to receivers of notifications (all with an empty name).

    Raises:
        InputError: no server is known, or it sends nothing. NoServer: it does not answer, or cannot.
    """
    url = server or server_address(kubeconfig, None)
    if not url:
        raise InputError("no server is known", hint=f"Set {SERVER}, or give --server URL (docs/history.md).")
    values = {"receiver": receiver} if receiver else {}
    marks = {"X-Belay-Request": "test"}
    try:
        return _answer("POST", url, "notifications/test", values, marks, kubeconfig, None)
    except NoServer as error:
        if error.status == 404 and error.said:
            raise InputError(error.said, hint=error.hint, code="NoSuchObject") from error
        raise


def ask_fetch(*, server: str | None, kubeconfig: str | None, context: str | None) -> list[str]:
    """Ask the controllers, over a server, to fetch now; the shards that were asked.

    Raises:
        NoServer: none is known, it does not answer, or cannot. InputError: the caller may not ask.
    """
    url = server or server_address(kubeconfig, context)
    if not url:
        raise NoServer("no server is known", hint=f"Set {SERVER}, or give --server URL.")
    answer = _answer("POST", url, "fetch", {}, {"X-Belay-Request": "fetch"}, kubeconfig, context)
    shards = answer.get("shards")
    return [str(one) for one in shards] if isinstance(shards, list) else []


def _answer(
    method: str,
    url: str,
    path: str,
    values: Mapping[str, str],
    marks: Mapping[str, str],
    kubeconfig: str | None,
    context: str | None,
) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url[:80]!r} is not the address of a server", hint="Write http://127.0.0.1:8080.")
    headers = {**marks, **_proof(parts.scheme, parts.hostname, kubeconfig, context)}
    address = f"{parts.scheme}://{parts.netloc}{parts.path}"
    try:
        connection = HttpConnection(address, proxy=proxy_for(address))
        try:
            answer = connection.call(
                method,
                f"/api/v1/{path}" + (f"?{urlencode(values)}" if values else ""),
                headers,
                connect_within=CONNECT_SECONDS,
                within=ANSWER_SECONDS,
                most_bytes=MOST_BYTES,
            )
        finally:
            connection.close()
    except (HTTPException, OSError, ValueError) as error:
        raise NoServer(f"the server at {url} does not answer ({type(error).__name__})") from error
    return _body(answer.status, answer.body, url)


def _proof(scheme: str, host: str, kubeconfig: str | None, context: str | None) -> dict[str, str]:
    """The caller's token of the cluster, for a server that is reached on loopback or by TLS."""
    if scheme != "https" and not _loopback(host):
        return {}
    try:
        return loader(kubeconfig, context)().headers
    except BelayError:
        return {}


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
        raise InputError(f"the server at {url} refuses you: {said}", hint=hint)
    own = said if body.get("error") else ""
    raise NoServer(f"the server at {url} cannot answer: {said}", hint=hint, status=status, said=own)
