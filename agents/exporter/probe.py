"""The health probe of all agents: ``GET /`` is 200 ``ok``, or 503 with what is wrong.

Source: component/ascend-common/common-utils/healthz: other paths 404, other methods 405, more than one request a second
(five at once) 429.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from agents.exporter.http import Answer, Handler, Server
from agents.exporter.limits import Gate, Limits
from agents.exporter.tls import Certificate

PER_SECOND: Final = 1.0
BURST: Final = 5
_LIMITS: Final = Limits(concurrency=16, spacing=0.0, per_address=16, total=64)


class Bucket(Gate):
    """One request a second from all addresses together, five at once."""

    def __init__(self) -> None:
        super().__init__(_LIMITS)
        self._tokens, self._at = float(BURST), 0.0

    def request(self, address: str, now: float) -> bool:
        """Take a token."""
        self._tokens = min(float(BURST), self._tokens + max(0.0, now - self._at) * PER_SECOND)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def handler(trouble: Callable[[], str]) -> Handler:
    """Answers by ``trouble``: empty when all is well."""

    def answer(path: str, gzip: bool) -> Answer:
        if path != "/":
            return Answer(HTTPStatus.NOT_FOUND, b"404 page not found\n")
        text = trouble()
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, text.encode()) if text else Answer(HTTPStatus.OK, b"ok")

    return answer


def server(trouble: Callable[[], str], certificate: Certificate | None = None) -> Server:
    """The probe's server."""
    return Server(
        handler(trouble),
        Bucket(),
        tls=certificate.context if certificate else None,
        busy=HTTPStatus.TOO_MANY_REQUESTS,
        other_methods=HTTPStatus.METHOD_NOT_ALLOWED,
    )


__all__ = ["Bucket", "handler", "server"]
