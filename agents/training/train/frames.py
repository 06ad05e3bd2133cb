"""Frames between rank, node agent and coordinator: a JSON header and raw bytes behind it.

On the wire: two unsigned 32-bit big-endian lengths (header, payload), the header as UTF-8 JSON object, the payload.
Nothing is unpickled. Lengths are bounded, so that a foreign client of the port cannot make a process allocate memory.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

HEADER_LIMIT = 1 << 20
"""Largest header in bytes."""
PAYLOAD_LIMIT = 16 << 20
"""Largest payload in bytes; weights do not travel here but between ranks."""
_LENGTHS = struct.Struct("!II")

Message = dict[str, Any]


class FrameError(ValueError):
    """The received bytes are not a frame; the connection cannot be used any further."""


def pack(message: Message, payload: bytes = b"") -> bytes:
    """One frame. Raises ``FrameError`` when it is larger than a receiver accepts."""
    header = json.dumps(message, separators=(",", ":")).encode()
    if len(header) > HEADER_LIMIT or len(payload) > PAYLOAD_LIMIT:
        raise FrameError(
            f"a message {message.get('t')!r} of {len(header)} + {len(payload)} bytes is larger than "
            f"{HEADER_LIMIT} + {PAYLOAD_LIMIT}"
        )
    return _LENGTHS.pack(len(header), len(payload)) + header + payload


class FrameDecoder:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Message, bytes]]:
        """The messages that ``data`` completes. Raises ``FrameError``."""
        self._buffer += data
        found = []
        while len(self._buffer) >= _LENGTHS.size:
            header_size, payload_size = _LENGTHS.unpack_from(self._buffer)
            if header_size > HEADER_LIMIT or payload_size > PAYLOAD_LIMIT:
                raise FrameError(f"a frame announces {header_size} + {payload_size} bytes: this is not our protocol")
            end = _LENGTHS.size + header_size + payload_size
            if len(self._buffer) < end:
                break
            header = bytes(self._buffer[_LENGTHS.size : _LENGTHS.size + header_size])
            payload = bytes(self._buffer[_LENGTHS.size + header_size : end])
            del self._buffer[:end]
            try:
                message = json.loads(header)
            except (ValueError, RecursionError) as error:
                raise FrameError(f"a frame's header is not JSON: {error}") from None
            if not isinstance(message, dict) or not isinstance(message.get("t"), str):
                raise FrameError("a frame's header is not an object with a text 't'")
            found.append((message, payload))
        return found


class Connection:
    """One end of a connection that never blocks: bytes that the kernel does not accept are kept until ``flush``.

    Reading and writing raise ``OSError`` or ``FrameError``; the owner then closes the connection.
    """

    OUTBOX_LIMIT = 64 << 20

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._frames = FrameDecoder()
        self._out = bytearray()

    @property
    def waiting(self) -> bool:
        """Whether bytes are still to be written."""
        return bool(self._out)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message, payload: bytes = b"") -> None:
        """Write one frame, as far as the kernel accepts it; the rest is kept."""
        if len(self._out) > self.OUTBOX_LIMIT:
            raise OSError(f"the other end has not read {len(self._out)} bytes")
        self._out += pack(message, payload)
        self.flush()

    def flush(self) -> None:
        """Write the kept bytes."""
        while self._out:
            try:
                sent = self.sock.send(self._out)
            except BlockingIOError:
                return
            del self._out[:sent]

    def receive(self) -> list[tuple[Message, bytes]] | None:
        """Messages that have arrived, without waiting; None when the other end has closed."""
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return []
        if not data:
            return None
        return self._frames.feed(data)

    def close(self) -> None:
        self.sock.close()
