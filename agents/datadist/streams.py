"""Frames over one TCP connection: bounded reads, whole writes."""

from __future__ import annotations

import asyncio
import socket
from typing import TypeVar

from agents.datadist import frames
from agents.datadist.frames import BadFrame, Kind

Body = TypeVar("Body")
#: Milliseconds that sent bytes may stay without acknowledgement before the connection ends (tcp(7)).
USER_TIMEOUT_MS = 30_000


async def read_into(sock: socket.socket, view: memoryview) -> None:
    """Fill ``view``. Raises ConnectionError when the peer ends the stream before."""
    loop = asyncio.get_running_loop()
    while len(view):
        count = await loop.sock_recv_into(sock, view)
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        view = view[count:]


async def read_body(sock: socket.socket, length: int) -> bytearray:
    """A described body. Raises BadFrame when it is longer than any may be."""
    if length > frames.MAX_BODY:
        raise BadFrame(f"a body of {length} bytes, at most {frames.MAX_BODY} are read")
    data = bytearray(length)
    await read_into(sock, memoryview(data))
    return data


async def read_head(sock: socket.socket) -> tuple[Kind, int, int, int]:
    """(kind, status, request, length) of the next frame."""
    data = bytearray(frames.HEAD.size)
    await read_into(sock, memoryview(data))
    return frames.read_head(data)


async def send(sock: socket.socket, kind: Kind, request: int, body: bytes = b"", status: int = 0) -> None:
    """One frame with a described body."""
    await asyncio.get_running_loop().sock_sendall(sock, frames.head(kind, request, len(body), status) + body)


def tune(sock: socket.socket) -> None:
    """No waiting for more bytes; a peer that vanished is noticed by the kernel too."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    # keepalive says nothing while bytes wait to be acknowledged; without this they would for a quarter of an hour
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


__all__ = ["read_body", "read_head", "read_into", "send", "tune"]
