"""From descriptors to handlers: every method of a service is served here, or handed on to the server that serves."""

from __future__ import annotations

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
)


class Relay:
    """Channels to the server that serves; ``credentials`` None speaks plaintext."""

    def __init__(self, leader: Leader, credentials: grpc.ChannelCredentials | None = None) -> None:
        self.leader = leader
        self._credentials = credentials
        self._address = ""
        self._channel: grpc.aio.Channel | None = None

    async def channel(self, context: Context) -> grpc.aio.Channel | None:
        """Where to hand the call on; None when it is served here. Aborts when nobody serves."""
        leader = self.leader
        await leader.settled()
        if leader.leads:
            return None
        handed = any(key == RELAYED for key, _ in context.invocation_metadata() or ())
        if not leader.holder or handed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no server serves jobs at the moment; try again")
        if leader.holder != self._address or self._channel is None:
            await self.aclose()
            self._address = leader.holder
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self._address, options=OPTIONS)
            else:
                self._channel = grpc.aio.secure_channel(self._address, self._credentials, options=OPTIONS)
        return self._channel

    async def aclose(self) -> None:
        """Close the channel."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)


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
        while (channel := await relay.channel(context)) is not None:
            call = channel.unary_unary(
                path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
            )
            try:
                return await call(message, metadata=((RELAYED, peer_host(context.peer())),), timeout=_left(context))
            except grpc.aio.AioRpcError as error:
                if not await _died(error):
                    await context.abort(error.code(), error.details() or "")
        return await serve(message, context)

    async def stream(message: Any, context: Context) -> None:
        while (channel := await relay.channel(context)) is not None:
            call = channel.unary_stream(
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
                if began or not await _died(error):
                    await context.abort(error.code(), error.details() or "")
            finally:
                ongoing.cancel()
        await serve(message, context)

    async def _died(error: grpc.aio.AioRpcError) -> bool:
        """Whether the server that served is gone and another one has come."""
        return error.code() is grpc.StatusCode.UNAVAILABLE and await relay.leader.moved_on()

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


__all__ = ["Relay", "caller", "handlers"]
