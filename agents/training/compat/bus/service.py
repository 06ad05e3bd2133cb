"""The service TaskNet of members of levels 2 and 3: registration, paths, messages up, streams down."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from belay.agents.training.compat.bus import codes, wire
from belay.agents.training.compat.bus.membership import Membership
from belay.agents.training.compat.bus.position import NONE, Position
from belay.agents.training.compat.bus.streams import DownStream
from belay.engine.wire.clusterd import tasknet_pb2_grpc

log = logging.getLogger(__name__)

CALLS_PER_SECOND: Final = 10_000


class Rate:
    """A token bucket of ``CALLS_PER_SECOND`` calls."""

    def __init__(self, limit: int = CALLS_PER_SECOND) -> None:
        self._limit, self._left, self._at = limit, float(limit), time.monotonic()

    def take(self) -> bool:
        """Take a token; whether the call is allowed."""
        now = time.monotonic()
        self._left = min(float(self._limit), self._left + (now - self._at) * self._limit)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class TaskNet(tasknet_pb2_grpc.TaskNetServicer):
    """The four calls of the bus, for the members of one job: this one's, or that of the first that says its own.

    MindCluster's members say none. One of them is admitted, but has no position that a member of the job has taken.
    """

    def __init__(self, member: Membership) -> None:
        self._member = member
        self._rate = Rate()
        self._job = member.job
        self._taken: dict[Position, str] = {}
        """Registered positions, and the job that each has said."""

    async def _allowed(self, context: Any, position: Position) -> bool:
        """Rate and job of a call by the member at ``position``; a member of another job is refused."""
        if not self._rate.take():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {CALLS_PER_SECOND} calls a second")
        theirs = _job_of(context)
        if theirs:
            return not self._job or theirs == self._job
        return not self._taken.get(position) or position not in self._member.routes.members

    async def Register(self, request: Any, context: Any) -> Any:
        """A member joins, or joins again: its old stream is closed."""
        own = self._member
        position = wire.from_wire(request.pos)
        if not await self._allowed(context, position):
            log.warning("%s refuses %s: it belongs to another job", own.own, position)
            return wire.ack(request.uuid, codes.CLIENT_ERROR, own.own)
        code = codes.NO_POSITION if not request.HasField("pos") else own.routes.register(position)
        if code == codes.OK:
            self._taken[position] = _job_of(context)
            self._job = self._job or self._taken[position]
            own.end_stream(position)
        else:
            log.warning("%s refuses a registration: %s", own.own, codes.explained(code))
        return wire.ack(request.uuid, code, own.own)

    async def PathDiscovery(self, request: Any, context: Any) -> Any:
        """Record the route to every position on the path, and pass the path upward."""
        own = self._member
        if not await self._allowed(context, wire.from_wire(request.proxyPos)):
            return wire.ack(request.uuid, codes.CLIENT_ERROR, own.own)
        if not request.HasField("proxyPos") or not request.path:
            return wire.ack(request.uuid, codes.NO_POSITION, own.own)
        path = tuple(wire.from_wire(one) for one in request.path)
        code = own.routes.learn(wire.from_wire(request.proxyPos), path)
        if code == codes.OK:
            code = await own.announce(path)
        return wire.ack(request.uuid, code, own.own)

    async def TransferMessage(self, request: Any, context: Any) -> Any:
        """A message on its way up."""
        own = self._member
        uuid = request.header.uuid
        if not await self._allowed(context, wire.from_wire(request.header.src)):
            return wire.ack(uuid, codes.CLIENT_ERROR, own.own)
        code = wire.checked(request)
        if code == codes.OK:
            code = await own.forward(request, from_below=wire.from_wire(request.header.src))
        return wire.ack(uuid, code, own.own)

    async def InitServerDownStream(self, acks: Any, context: Any) -> AsyncIterator[Any]:
        """The stream of messages to a member that registered before."""
        metadata = dict(context.invocation_metadata() or ())
        position = Position(
            metadata.get("role", ""), metadata.get("serverrank", ""), metadata.get("processrank", "") or NONE
        )
        if not await self._allowed(context, position):
            log.warning("%s refuses a stream to %s: it belongs to another job", self._member.own, position)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{position} belongs to another job")
            return
        stream = self._member.begin_stream(position)
        if stream is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{position} is not registered here")
            return
        reading = asyncio.ensure_future(self._read(acks, stream))
        try:
            # the member learns at once that its stream is open
            await context.send_initial_metadata(())
            async for message in stream.outgoing():
                yield message
        finally:
            reading.cancel()
            self._member.stream_ended(position, stream)

    async def _read(self, acks: Any, stream: DownStream) -> None:
        try:
            async for found in acks:
                stream.acknowledged(found.uuid, found.code)
        except grpc.RpcError as error:
            log.debug("a stream of acknowledgements broke: %s", error)
        finally:
            stream.close()


def _job_of(context: Any) -> str:
    """The job that a caller says."""
    return str(dict(context.invocation_metadata() or ()).get(wire.JOB_KEY, ""))
