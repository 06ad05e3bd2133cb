"""Handlers from descriptors: each method of a service is served here, or relayed to the serving server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from belay.engine.serve.grpc.access import Access
from belay.engine.serve.grpc.callers import RELAYED
from belay.engine.serve.grpc.leader import Leader
from belay.engine.serve.grpc.messages import reader
from belay.engine.serve.grpc.streams import Context

OPTIONS: Final = (
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),
    ("grpc.max_send_message_length", 8 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),  # else all channels to one address share a connection
)
#: Calls per connection, below the server's own limit (`server.OPTIONS`), and most connections: the serving server
#: accepts 512 from one host.
CALLS_PER_CHANNEL: Final = 60
MAX_CHANNELS: Final = 256


class RelayChannel:
    """One connection to the serving server, and how many calls it carries."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.calls = 0
        self.broken = False

    async def release(self) -> None:
        """Count a call that ended; a broken connection is closed with its last call."""
        self.calls -= 1
        if self.broken and not self.calls:
            await self.channel.close(None)


class Relay:
    """Connections to the serving server, as many as the calls need: one carries 64 at a time, and a stream of signals
    lasts for days. ``credentials`` gives the newest ones for each connection; None means plaintext.
    """

    def __init__(self, leader: Leader, credentials: Callable[[], grpc.ChannelCredentials] | None = None) -> None:
        self.leader = leader
        self._credentials = credentials
        self._address = ""
        self._channels: list[RelayChannel] = []

    async def channel_for(self, context: Context) -> RelayChannel | None:
        """The connection to relay a call on, which the caller releases; None when this server serves. Aborts the call
        when no server serves.
        """
        leader = self.leader
        await leader.known()
        if leader.leads:
            return None
        handed = any(key == RELAYED for key, _ in context.invocation_metadata() or ())
        if not leader.holder or handed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no server serves jobs at the moment; try again")
        if leader.holder != self._address:
            old, self._channels, self._address = self._channels, [], leader.holder
            for one in old:
                await one.channel.close(None)
        self._channels = [one for one in self._channels if not one.broken]
        relayed = next((one for one in self._channels if one.calls < CALLS_PER_CHANNEL), None)
        if relayed is None:
            if len(self._channels) >= MAX_CHANNELS:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls to relay; try again")
            relayed = RelayChannel(self._connected())
            self._channels.append(relayed)
        relayed.calls += 1
        return relayed

    def _connected(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=OPTIONS)
        return grpc.aio.secure_channel(self._address, self._credentials(), options=OPTIONS)

    async def aclose(self) -> None:
        """Close every connection."""
        channels, self._channels = self._channels, []
        for one in channels:
            await one.channel.close(None)


def handlers(
    service: ServiceDescriptor, implementation: object, relay: Relay, access: Access
) -> grpc.GenericRpcHandler[Any, Any]:
    """The handlers of one service; ``implementation`` has a method named as each RPC. ``access`` admits the calls that
    this server serves, and those that it relays: the serving server may run with a setting that admits more.
    """
    table = {method.name: _handler(service, method, implementation, relay, access) for method in service.methods}
    return grpc.method_handlers_generic_handler(service.full_name, table)


def _handler(
    service: ServiceDescriptor, method: MethodDescriptor, implementation: object, relay: Relay, access: Access
) -> grpc.RpcMethodHandler[Any, Any]:
    request: Any = message_factory.GetMessageClass(method.input_type)
    response: Any = message_factory.GetMessageClass(method.output_type)
    serve = getattr(implementation, method.name)
    path = f"/{service.full_name}/{method.name}"

    async def channel_for(message: Any, context: Context) -> RelayChannel | None:
        await relay.leader.known()
        if not relay.leader.leads:
            await access.admit_to_relay(path, message, context)
        return await relay.channel_for(context)

    async def unary(message: Any, context: Context) -> Any:
        while (relayed := await channel_for(message, context)) is not None:
            call = relayed.channel.unary_unary(
                path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
            )
            try:
                metadata = access.callers.relayed_metadata(context)
                return await call(message, metadata=metadata, timeout=_left(context))
            except grpc.aio.AioRpcError as error:
                if not await _failed_over(error, relayed):
                    await context.abort(error.code(), error.details() or "")
            finally:
                await relayed.release()
        await access.admit(path, message, context)
        return await serve(message, context)

    async def stream(message: Any, context: Context) -> None:
        while (relayed := await channel_for(message, context)) is not None:
            call = relayed.channel.unary_stream(
                path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
            )
            ongoing = call(message, metadata=access.callers.relayed_metadata(context))
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
                if not await _failed_over(error, relayed, began=began):
                    await context.abort(error.code(), error.details() or "")
            finally:
                ongoing.cancel()
                await relayed.release()
        await access.admit(path, message, context)
        await serve(message, context)

    async def _failed_over(error: grpc.aio.AioRpcError, relayed: RelayChannel, *, began: bool = False) -> bool:
        """Whether the call can be retried: the serving server died before the call began, and another one serves."""
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            return False
        relayed.broken = True  # the next call opens a connection with the newest credentials
        return not began and await relay.leader.replaced()

    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            stream, request_deserializer=reader(request), response_serializer=response.SerializeToString
        )
    return grpc.unary_unary_rpc_method_handler(
        unary, request_deserializer=reader(request), response_serializer=response.SerializeToString
    )


def _left(context: Context) -> float | None:
    """Seconds until the client's deadline; None without one."""
    return context.time_remaining()


__all__ = ["MAX_CHANNELS", "CALLS_PER_CHANNEL", "RelayChannel", "Relay", "handlers"]
