"""The connection of a member to the one above it: joins, rejoins, sends up, receives what comes down."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import grpc

from belay.agents.training.compat.bus import codes, wire
from belay.agents.training.compat.bus.membership import Membership
from belay.agents.training.compat.bus.position import Position
from belay.engine.wire.clusterd import tasknet_pb2 as pb
from belay.engine.wire.clusterd import tasknet_pb2_grpc

log = logging.getLogger(__name__)

FIRST_WAIT: Final = 0.05
MAX_WAIT: Final = 1.0
STREAM_SECONDS: Final = 5.0
REMINDER: Final = 30
"""Failed attempts between two log messages."""


class Uplink:
    """Joins the member at ``address``, and rejoins it until it is closed."""

    def __init__(self, member: Membership, address: str) -> None:
        self._member, self.address = member, address
        self._stub: Any = None
        self._task: asyncio.Task[None] | None = None
        self.joined = asyncio.Event()
        self.trouble = "not connected yet"

    def start(self) -> None:
        """Begin to join; in the bus thread."""
        self._task = asyncio.ensure_future(self._stay())

    async def close(self) -> None:
        """Leave the bus and close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        own, job = self._member.own, self._member.job
        found = (("role", own.role), ("serverrank", own.server), ("processrank", own.process))
        return (*found, (wire.JOB_KEY, job)) if job and job.isascii() else found

    async def _stay(self) -> None:
        wait, failed = FIRST_WAIT, 0
        while True:
            try:
                joined = await self._once()
            except grpc.RpcError as error:
                joined, self.trouble = False, _words(error)
            except TimeoutError:
                joined, self.trouble = False, "no answer in time"
            wait, failed = (FIRST_WAIT, 0) if joined else (min(MAX_WAIT, wait * 2), failed + 1)
            if failed % REMINDER == 3:
                log.warning(
                    "%s cannot join %s, tried %d times: %s", self._member.own, self.address, failed, self.trouble
                )
            await asyncio.sleep(wait)

    async def _once(self) -> bool:
        """Connect, join and read until the connection ends; whether it had joined."""
        own = self._member.own
        metadata = self._metadata()
        joined = False
        async with grpc.aio.insecure_channel(self.address, wire.CLIENT_OPTIONS) as channel:
            self._stub = tasknet_pb2_grpc.TaskNetStub(channel)  # type: ignore[no-untyped-call]
            try:
                request = pb.RegisterReq(uuid=wire.new_uuid(), pos=wire.to_wire(own))
                answer = await self._stub.Register(request, timeout=wire.ACK_SECONDS, metadata=metadata)
                if answer.code != codes.OK:
                    self.trouble = codes.explained(answer.code)
                    return False
                if own.level == 1 and (code := await self.discover((own,))) != codes.OK:
                    self.trouble = f"no path to the manager: {codes.explained(code)}"
                    return False
                call = self._stub.InitServerDownStream(metadata=metadata)
                async with asyncio.timeout(STREAM_SECONDS):
                    await call.initial_metadata()
                joined = True
                self.trouble = ""
                self.joined.set()
                await self._member.came_up()
                await self._listen(call)
            except grpc.RpcError as error:
                self.trouble = _words(error)
            finally:
                self.joined.clear()
                self._stub = None
        return joined

    async def _listen(self, call: Any) -> None:
        while (found := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            code = wire.checked(found)
            if code == codes.OK:
                code = await self._member.forward(found, from_above=True)
            await call.write(wire.ack(found.header.uuid, code, self._member.own))

    async def discover(self, path: tuple[Position, ...]) -> int:
        """Announce a path upward; 0, 6002 without a connection, or the answer."""
        stub = self._stub
        if stub is None:
            return codes.NO_STREAM
        request = pb.PathDiscoveryReq(uuid=wire.new_uuid(), proxyPos=wire.to_wire(self._member.own))
        request.path.extend(wire.to_wire(one) for one in path)
        return await self._answered(stub.PathDiscovery(request, timeout=wire.ACK_SECONDS, metadata=self._metadata()))

    async def transfer(self, message: Any) -> int:
        """Send a message up; its answer, 6000, 6001 or 6002."""
        stub = self._stub
        if stub is None or not self.joined.is_set():
            return codes.NO_STREAM
        return await self._answered(stub.TransferMessage(message, timeout=wire.ACK_SECONDS, metadata=self._metadata()))

    async def _answered(self, call: Any) -> int:
        try:
            return int((await call).code)
        except grpc.aio.AioRpcError as error:
            return codes.ACK_LOST if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED else codes.SEND_LOST
        except grpc.aio.UsageError:
            # the channel was closed between two lines
            return codes.NO_STREAM
        except asyncio.CancelledError:
            # the channel was closed under the call; a cancellation of this task itself goes on
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return codes.SEND_LOST


def _words(error: grpc.RpcError) -> str:
    details = getattr(error, "details", None)
    return str(details() if callable(details) else error)[:200]
