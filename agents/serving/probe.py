"""The health probe of all agents: ``GET /`` is 200 ``ok``, or 503 with the problem.

Source: component/ascend-common/common-utils/healthz: other paths 404, other methods 405, more than one request a second
(five at once) 429.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from belay.agents.serving.http import Handler, HttpResponse, Server
from belay.agents.serving.limits import Limits, RequestLimiter
from belay.agents.serving.tls import Certificate

PER_SECOND: Final = 1.0
BURST: Final = 5
_LIMITS: Final = Limits(concurrency=16, spacing=0.0, per_address=16, total=64)


class ProbeLimiter(RequestLimiter):
    """One request a second from all addresses together, five at once."""

    def __init__(self) -> None:
        super().__init__(_LIMITS)
        self._tokens, self._at = float(BURST), 0.0

    def request(self, address: str, now: float) -> bool:
        """Take a token; False when the request comes too soon."""
        self._tokens = min(float(BURST), self._tokens + max(0.0, now - self._at) * PER_SECOND)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def handler(trouble: Callable[[], str]) -> Handler:
    """Answers by ``trouble``: empty when all is well."""

    def answer(path: str, gzip: bool) -> HttpResponse:
        if path != "/":
            return HttpResponse(HTTPStatus.NOT_FOUND, b"404 page not found\n")
        text = trouble()
        return (
            HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, text.encode()) if text else HttpResponse(HTTPStatus.OK, b"ok")
        )

    return answer


def server(trouble: Callable[[], str], certificate: Certificate | None = None) -> Server:
    """Return the probe's server, which answers by ``trouble``."""
    return Server(
        handler(trouble),
        ProbeLimiter(),
        tls=certificate.context if certificate else None,
        busy=HTTPStatus.TOO_MANY_REQUESTS,
        other_methods=HTTPStatus.METHOD_NOT_ALLOWED,
    )
