"""Limits of the server, with ClusterD's figures: calls per second, and connections.

gRPC for Python exposes calls, not connections. So a connection counts from its first call until it has had none for as
long as a keep-alive takes to find it dead, and each call on a connection beyond the limit is refused.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc

from belay.engine.log import get
from belay.engine.serve.grpc.messages import Malformed
from belay.engine.serve.grpc.streams import peer_host

_log = get("grpc")
HEALTH_METHOD: Final = "/Recover/HealthCheck"
HEALTH_RATE: Final = 10_000
BUSINESS_RATE: Final = 1_000
MAX_CONNECTIONS: Final = 1_024
MAX_PER_HOST: Final = 512
#: Seconds without an open call after which a connection no longer counts: keep-alive time plus its time-out.
IDLE_SECONDS: Final = 65.0

Clock = Callable[[], float]


class TokenBucket:
    """A token bucket: ``rate`` a second, ``burst`` at once."""

    def __init__(self, rate: float, burst: float, clock: Clock = time.monotonic) -> None:
        self.rate, self.burst = rate, burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()

    def take(self) -> bool:
        """Whether one more may pass now."""
        now = self._clock()
        self._tokens = min(float(self.burst), self._tokens + (now - self._at) * self.rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait(self) -> float:
        """Seconds until the next token."""
        return max(0.0, (1 - self._tokens) / self.rate)


class Rates:
    """The rates of unary calls; streams are not counted."""

    def __init__(
        self, clock: Clock = time.monotonic, *, health: int = HEALTH_RATE, business: int = BUSINESS_RATE
    ) -> None:
        self._health = TokenBucket(health, health, clock)
        self._business = TokenBucket(business, business, clock)

    def refusal(self, method: str) -> str:
        """Why a call may not pass now; empty when it may."""
        bucket = self._health if method == HEALTH_METHOD else self._business
        if bucket.take():
            return ""
        return f"qps exceeded, method={method}, limit={bucket.rate:.0f}, burst={bucket.burst:.0f}"


class Connections:
    """Open connections by the peer's address and port."""

    def __init__(
        self, clock: Clock = time.monotonic, *, most: int = MAX_CONNECTIONS, per_host: int = MAX_PER_HOST
    ) -> None:
        self._clock = clock
        self._most, self._per_host = most, per_host
        self._open: dict[str, int] = {}
        self._idle: OrderedDict[str, float] = OrderedDict()
        self._hosts: dict[str, int] = {}

    def enter(self, peer: str) -> bool:
        """Count a call that begins; False when its connection exceeds a limit."""
        if peer not in self._open:
            if peer in self._idle:
                del self._idle[peer]
            else:
                self._sweep()
                host = peer_host(peer)
                if len(self._open) + len(self._idle) >= self._most or self._hosts.get(host, 0) >= self._per_host:
                    return False
                self._hosts[host] = self._hosts.get(host, 0) + 1
            self._open[peer] = 0
        self._open[peer] += 1
        return True

    def leave(self, peer: str) -> None:
        """Count a call that ended."""
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]
            self._idle[peer] = self._clock()

    @property
    def count(self) -> int:
        """Connections that count."""
        return len(self._open) + len(self._idle)

    def _sweep(self) -> None:
        old = self._clock() - IDLE_SECONDS
        while self._idle:
            peer, at = next(iter(self._idle.items()))
            if at > old:
                return
            del self._idle[peer]
            host = peer_host(peer)
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]


if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
    Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    # they take no parameters at run time
    Handler, Interceptor = grpc.RpcMethodHandler, grpc.aio.ServerInterceptor
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]


class LimitInterceptor(Interceptor):
    """Refuse calls beyond the limits before a handler sees them."""

    def __init__(self, rates: Rates, connections: Connections) -> None:
        self._rates = rates
        self._connections = connections

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Handler:
        """The handler behind the limits."""
        handler = await continuation(details)
        if handler is None:
            return handler
        method = details.method
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(handler.unary_stream, method), handler.request_deserializer, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(handler.unary_unary, method), handler.request_deserializer, handler.response_serializer
        )

    def _unary(self, inner: Any, method: str) -> Any:
        async def guarded(request: Any, context: Any) -> Any:
            peer = context.peer()
            if not self._connections.enter(peer):
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many connections")
            try:
                refused = self._rates.refusal(method)
                if refused:
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refused)
                return await _call_handler(inner, request, context, method)
            finally:
                self._connections.leave(peer)

        return guarded

    def _stream(self, inner: Any, method: str) -> Any:
        async def guarded(request: Any, context: Any) -> None:
            peer = context.peer()
            if not self._connections.enter(peer):
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many connections")
            try:
                await _call_handler(inner, request, context, method)
            finally:
                self._connections.leave(peer)

        return guarded


async def _call_handler(inner: Any, request: Any, context: Any, method: str) -> Any:
    """Call the handler with a readable request. A bug in it is one log line here and INTERNAL for the client."""
    if isinstance(request, Malformed):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.reason)
    try:
        return await inner(request, context)
    except (grpc.aio.AbortError, grpc.aio.BaseError):
        raise
    except Exception:
        if context.cancelled():  # the caller is gone: whatever failed, failed for that
            return None
        _log.exception("call failed", method=method)
        await context.abort(grpc.StatusCode.INTERNAL, "internal error")


__all__ = ["BUSINESS_RATE", "HEALTH_RATE", "TokenBucket", "Connections", "LimitInterceptor", "Rates"]
