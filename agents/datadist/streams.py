"""Frames over one connection: bounded reads, whole writes."""

from __future__ import annotations

import socket
from typing import TypeVar

from belay.agents.datadist import frames
from belay.agents.datadist.channels import Channel
from belay.agents.datadist.frames import BadFrame, Kind

Body = TypeVar("Body")
#: Milliseconds that sent bytes may stay without acknowledgement before the connection ends (tcp(7)).
USER_TIMEOUT_MS = 30_000


async def read_into(channel: Channel, view: memoryview) -> None:
    """Fill ``view``. Raises ConnectionError when the peer ends the stream first."""
    while len(view):
        count = await channel.receive_into(view)
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        view = view[count:]


async def read_body(channel: Channel, length: int) -> bytearray:
    """Read a JSON body. Raises BadFrame when it exceeds the maximum length."""
    if length > frames.MAX_BODY:
        raise BadFrame(f"a body of {length} bytes, at most {frames.MAX_BODY} are read")
    data = bytearray(length)
    await read_into(channel, memoryview(data))
    return data


async def read_head(channel: Channel) -> tuple[Kind, int, int, int]:
    """Read the next frame's head as (kind, status, request, length)."""
    data = bytearray(frames.HEAD.size)
    await read_into(channel, memoryview(data))
    return frames.read_head(data)


async def send(channel: Channel, kind: Kind, request: int, body: bytes = b"", status: int = 0) -> None:
    """Send one frame with a JSON body."""
    await channel.send(frames.head(kind, request, len(body), status) + body)


def tune(sock: socket.socket) -> None:
    """Send without delay, and let the kernel detect a vanished peer too."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    # keepalive sends nothing while bytes are unacknowledged, which would otherwise last a quarter of an hour
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
