"""From descriptors to handlers: every method of a service is served here, or handed on to the server that serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from engine.serve.grpc.leader import Leader
from engine.serve.grpc.streams import Context, peer_host

#: Metadata of a call that was handed on, and the client's address.
RELAYED: Final = "x-belay-relayed"
OPTIONS: Final = (
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),
    ("grpc.max_send_message_length", 8 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),  # else all channels to one address share a connection
)
#: Calls that one connection carries, below the server's own limit (`server.OPTIONS`), and connections at most: the
#: server that serves takes 512 from one host.
PER_LINE: Final = 60
MAX_LINES: Final = 256


class Line:
    """One connection to the server that serves, and how many calls it carries."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.calls = 0
        self.broken = False

    async def free(self) -> None:
        """A call has ended; a connection that broke goes with its last one."""
        self.calls -= 1
        if self.broken and not self.calls:
            await self.channel.close(None)


class Relay:
    """Connections to the server that serves, as many as its calls need: one carries 64 at a time, and a stream of
    signals lasts for days. ``credentials`` gives the newest ones for each connection; None speaks plaintext.
    """

    def __init__(self, leader: Leader, credentials: Callable[[], grpc.ChannelCredentials] | None = None) -> None:
        self.leader = leader
        self._credentials = credentials
        self._address = ""
        self._lines: list[Line] = []

    async def line(self, context: Context) -> Line | None:
        """Where to hand the call on, to be freed by the caller; None when it is served here. Aborts when nobody
        serves.
        """
        leader = self.leader
        await leader.settled()
        if leader.leads:
            return None
        handed = any(key == RELAYED for key, _ in context.invocation_metadata() or ())
        if not leader.holder or handed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no server serves jobs at the moment; try again")
        if leader.holder != self._address:
            old, self._lines, self._address = self._lines, [], leader.holder
            for one in old:
                await one.channel.close(None)
        self._lines = [one for one in self._lines if not one.broken]
        line = next((one for one in self._lines if one.calls < PER_LINE), None)
        if line is None:
            if len(self._lines) >= MAX_LINES:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls to hand on; try again")
            line = Line(self._connected())
            self._lines.append(line)
        line.calls += 1
        return line

    def _connected(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=OPTIONS)
        return grpc.aio.secure_channel(self._address, self._credentials(), options=OPTIONS)

    async def aclose(self) -> None:
        """Close every connection."""
        lines, self._lines = self._lines, []
        for one in lines:
            await one.channel.close(None)


def handlers(service: ServiceDescriptor, implementation: object, relay: Relay) -> grpc.GenericRpcHandler[Any, Any]:
    """The handlers of one service; ``implementation`` has a method named as each RPC."""
    table = {method.name: _handler(service, method, implementation, relay) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, table)


def caller(context: Context) -> str:
    """The address of the client, also when another server handed its call on."""
    for key, value in context.invocation_metadata() or ():
        if key == RELAYED:
            return value if isinstance(value, str) else value.decode()
    return peer_host(context.peer())


def _handler(
    service: ServiceDescriptor, method: MethodDescriptor, implementation: object, relay: Relay
) -> grpc.RpcMethodHandler[Any, Any]:
    request: Any = message_factory.GetMessageClass(method.input_type)
    response: Any = message_factory.GetMessageClass(method.output_type)
    serve = getattr(implementation, method.name)
    path = f"/{service.full_name}/{method.name}"

    async def unary(message: Any, context: Context) -> Any:
        while (line := await relay.line(context)) is not None:
            call = line.channel.unary_unary(
                path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
            )
            try:
                return await call(message, metadata=((RELAYED, peer_host(context.peer())),), timeout=_left(context))
            except grpc.aio.AioRpcError as error:
                if not await _died(error, line):
                    await context.abort(error.code(), error.details() or "")
            finally:
                await line.free()
        return await serve(message, context)

    async def stream(message: Any, context: Context) -> None:
        while (line := await relay.line(context)) is not None:
            call = line.channel.unary_stream(
                path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
            )
            ongoing = call(message, metadata=((RELAYED, peer_host(context.peer())),))
            began = False
            try:
                await ongoing.initial_metadata()  # also returns when the call has failed
                if not ongoing.done():
                    began = True
                    await context.send_initial_metadata(())
                async for item in ongoing:
                    await context.write(item)
                return
            except grpc.aio.AioRpcError as error:
                if not await _died(error, line, began=began):
                    await context.abort(error.code(), error.details() or "")
            finally:
                ongoing.cancel()
                await line.free()
        await serve(message, context)

    async def _died(error: grpc.aio.AioRpcError, line: Line, *, began: bool = False) -> bool:
        """Whether the server that served is gone and another one has come, for a call that had not begun there."""
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            return False
        line.broken = True  # the next call connects anew, with the credentials of that moment
        return not began and await relay.leader.moved_on()

    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            stream, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )
    return grpc.unary_unary_rpc_method_handler(
        unary, request_deserializer=request.FromString, response_serializer=response.SerializeToString
    )


def _left(context: Context) -> float | None:
    """Seconds that the client still waits; None when it waits for ever."""
    return context.time_remaining()


__all__ = ["MAX_LINES", "PER_LINE", "Line", "Relay", "caller", "handlers"]
