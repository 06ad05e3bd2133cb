"""The wire format between two linked clusters.

A frame is a 16-byte head and a body: magic `BKVL`, version, kind, status index, request number, length (network byte
order). Bodies of HELLO, READ and WRITE are JSON; the bytes of blocks follow the answer to READ, and WRITE, as they are.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, TypeVar

import msgspec

MAGIC = b"BKVL"
VERSION = 1
HEAD = struct.Struct("!4sBBHII")
_TLS_VERSIONS = (b"\x03\x01", b"\x03\x03")  # of a record, after its type
MAX_BODY = 1 << 20  # of a JSON body; block bytes are bounded by the region they are read from


class Kind(IntEnum):
    """The request or answer that a frame carries."""

    HELLO = 1
    PING = 2
    READ = 3
    WRITE = 4
    UNLINK = 5
    ANSWER = 16


class BadFrame(ValueError):
    """The peer violates the protocol; the connection is closed."""


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first frame: the linking cluster, and the cluster that it expects on the remote side."""

    cluster: int
    peer: int
    role: int


#: A region is named by the key of its blocks (cluster, model, 0), or by its number alone (UNKEYED, 0, cache).
RegionName = tuple[int, int, int]
UNKEYED = 2**64 - 1


class Region(msgspec.Struct, frozen=True, omit_defaults=True):
    """One remotely accessible cache: blocks of ``block`` bytes, ``blocks`` of them in each of ``tensors``."""

    cluster: int
    model: int
    tensors: int
    blocks: int
    block: int
    cache: int = 0

    @property
    def name(self) -> RegionName:
        """What requests call it."""
        return self.cluster, self.model, self.cache


class Welcome(msgspec.Struct, frozen=True):
    """The answer to HELLO: the answering cluster, and the regions registered when the link was made."""

    cluster: int
    regions: list[Region]


class Blocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Blocks of tensors of a region, in the order of their bytes. An older peer knows keyed regions only."""

    cluster: int
    model: int
    tensors: list[int]
    blocks: list[int]
    size: int
    cache: int = 0

    @property
    def region(self) -> RegionName:
        """The region that holds them."""
        return self.cluster, self.model, self.cache


Body = TypeVar("Body")


def head(kind: Kind, request: int, length: int, status: int = 0) -> bytes:
    """Return the 16 bytes before a body of ``length`` bytes; ``status`` is an index into the status codes."""
    return HEAD.pack(MAGIC, VERSION, kind, status, request, length)


def read_head(data: bytes | bytearray) -> tuple[Kind, int, int, int]:
    """Parse a head into (kind, status, request, length). Raises BadFrame."""
    magic, version, kind, status, request, length = HEAD.unpack(data)
    if bytes(magic[1:3]) in _TLS_VERSIONS:
        raise BadFrame("the peer speaks TLS and this side does not: name certificates here too, or at neither end")
    if magic != MAGIC or version != VERSION:
        raise BadFrame(f"no frame of this protocol (magic {bytes(magic)!r}, version {version})")
    try:
        return Kind(kind), status, request, length
    except ValueError as error:
        raise BadFrame(f"unknown frame kind {kind}") from error


def encode(body: Any) -> bytes:
    """Encode a JSON body."""
    return msgspec.json.encode(body)


def decode(data: bytes | bytearray, shape: type[Body]) -> Body:
    """Decode a JSON body. Raises BadFrame that states the fault."""
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise BadFrame(f"{shape.__name__}: {error}"[:300]) from error
