"""Reads of a command that asks the API server once and ends: no event loop, no client that keeps connections.

What a command reads is written once, as a coroutine over a `Lister`: `-w` and the engine's own processes await it on a
loop, and ``ask_once`` runs it over calls that block, so that it never waits.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from belay.engine.errors import BelayError, InputError
from belay.engine.http_calls import AnswerTooLarge, HttpAnswer, HttpConnection
from belay.engine.kube.credentials import loader
from belay.engine.kube.endpoint import Endpoint, Loader
from belay.engine.kube.errors import KubeError, TooMany, Unavailable, from_answer
from belay.engine.kube.lister import ANSWER_LIMIT, Lister

T = TypeVar("T")
ANSWERS_WITHIN: Final = 3.0
"""Seconds in which the API server must answer a first call."""
CALL_WITHIN: Final = 15.0
"""Longest time for one call, in seconds; a page of 500 large objects takes a few."""
_NOT_TRUSTED: Final = "NotTrusted"
_FIRST_PAUSE: Final = 0.1
"""Seconds before the second try of a call; each later pause is twice as long."""


def ask_once(
    kubeconfig: str | None,
    use: Callable[[Lister], Coroutine[Any, Any, T]],
    within: float = CALL_WITHIN,
    context: str | None = None,
) -> T:
    """Run one coroutine that only reads; ``within`` bounds each of its calls, in seconds.

    Raises:
        BelayError: no cluster is configured, or it does not answer.
    """
    calls = BlockingCalls(loader(kubeconfig, context), within)
    try:
        calls.connect()
        return _finished(use(Lister(calls)))
    except KubeError as error:
        raise BelayError(str(error), hint="Is KUBECONFIG set to the cluster you mean?") from error
    finally:
        calls.disconnect()


def server_address(url: str) -> str:
    """Scheme, host and port of a server; paths and user names may be secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def no_answer(host: str, error: KubeError) -> BelayError:
    """What to say of a server that does not answer a first call."""
    return BelayError(
        f"the API server {server_address(host)} does not answer ({error.message})",
        hint="Is it running, and KUBECONFIG set to the cluster you mean?",
    )


class BlockingCalls:
    """Calls over one connection; each ends within ``within`` seconds, its retries included."""

    def __init__(self, load: Loader, within: float) -> None:
        self._load, self._within = load, within
        self._endpoint: Endpoint | None = None
        self._connection: HttpConnection | None = None

    @property
    def host(self) -> str:
        return self._endpoint.host if self._endpoint else ""

    def connect(self) -> None:
        """Read the credentials, and see that a server answers at all: a user waits.

        Raises:
            InputError: there are no credentials. BelayError: no server answers.
        """
        self._renew()
        try:
            self._call("GET", "/version", {}, ANSWERS_WITHIN, withhold=False)
        except Unavailable as error:
            raise no_answer(self.host, error) from error
        except KubeError:
            return  # it shows in later calls

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def call(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, withhold: bool = False
    ) -> Any:
        """One call and its retries within the deadline; returns the decoded JSON answer. Raises KubeError."""
        return self._call(method, path, params or {}, self._within, withhold=withhold)

    def _call(self, method: str, path: str, params: Mapping[str, str], within: float, *, withhold: bool) -> Any:
        target = f"{path}?{urlencode(params)}" if params else path
        where, ends, pause = f"{method} {path}", time.monotonic() + within, _FIRST_PAUSE
        while True:
            try:
                return self._once(method, target, where, max(0.05, ends - time.monotonic()), withhold)
            except (TooMany, Unavailable) as error:
                delay = pause + (error.retry_after if isinstance(error, TooMany) else 0.0)
                if error.reason == _NOT_TRUSTED or time.monotonic() + delay >= ends:
                    raise
                time.sleep(delay)
                pause *= 2

    def _once(self, method: str, target: str, where: str, within: float, withhold: bool) -> Any:
        answer = self._exchange(method, target, where, within)
        if answer.status == 401 and self._renewed():
            answer = self._exchange(method, target, where, within)
        if answer.status >= 300:
            retry_after = answer.headers.get("retry-after")
            raise from_answer(answer.status, answer.body, where, retry_after=retry_after, withhold=withhold)
        try:
            return msgspec.json.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unavailable(f"{where}: the answer is not JSON", reason="BadAnswer") from error

    def _exchange(self, method: str, target: str, where: str, within: float) -> HttpAnswer:
        if self._endpoint is None or self._connection is None:
            raise RuntimeError("the calls are not connected")
        try:
            return self._connection.call(
                method,
                target,
                {**self._endpoint.headers, "Accept": "application/json"},
                connect_within=min(5.0, within),
                within=within,
                most_bytes=ANSWER_LIMIT,
            )
        except AnswerTooLarge as error:
            raise Unavailable(f"{where}: {error}", reason="AnswerTooLarge") from error
        except ssl.SSLCertVerificationError as error:
            said = f"{where}: its certificate is not trusted: {error.verify_message}"
            raise Unavailable(said, reason=_NOT_TRUSTED) from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{where}: {_cause(error)}", reason="NoAnswer") from error

    def _renew(self) -> None:
        self.disconnect()
        found = self._endpoint = self._load()
        self._connection = HttpConnection(
            found.host, tls=found.tls, server_name=found.server_name or "", proxy=found.proxy
        )

    def _renewed(self) -> bool:
        """Whether the credentials, which were refused, could be read again."""
        try:
            self._renew()
        except InputError:
            return False
        return True


def _cause(error: OSError | http.client.HTTPException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def _finished(reading: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine whose calls block, so that it has no reason to wait for a loop."""
    try:
        reading.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    reading.close()
    raise RuntimeError("a read over blocking calls waits for an event loop")
