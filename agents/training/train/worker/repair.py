"""Copies state from a donor's memory to another rank, over the new generation's group.

The first message has a fixed size, so that a small state needs no other one. Large tensors are sent from where they
lie, in pieces; small ones share a piece. Pieces are in flight while checksums of others are computed, and every piece
has one, so that a wrong weight is never taken over silently. A receiver takes pieces into memory of its own and copies
them afterwards: an abandoned group may still write into the memory that it was given. Of tensors on a device only those
whose pieces are under way lie in host memory.
"""

from __future__ import annotations

import ctypes
import json
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from belay.agents.training.train.worker.encoding import described
from belay.agents.training.train.worker.interruption import Interrupted
from belay.agents.training.train.worker.protected import Protected

PIECE = 16 << 20
"""Maximum size of a piece in bytes."""
SMALL = 1 << 20
"""Tensors below this size in bytes share a piece."""
FIRST = 64 << 10
"""Size of the first message in bytes."""
FLYING = 4
"""Number of pieces in flight."""
TEXT_LIMIT = 1 << 30
"""Largest description of a state in bytes."""
_HEAD = struct.Struct("!QI")
"""Bytes of the text, and the checksum of the text and of what follows it in the first message."""

Parts = list[tuple[int, int, int]]
"""What a piece holds, in order: index of a tensor, first byte, number of bytes."""
Kind = tuple[torch.dtype, list[int], str]
"""Element type, shape and kind of device of a tensor."""


def send_state(protected: Protected, receiver: int, step: int) -> None:
    """Send this rank's state to ``receiver``."""
    meta, tensors = protected.capture()
    text = json.dumps({"step": step, "meta": meta}).encode()
    outgoing = _Outgoing(tensors)
    first, pieces = _inline(len(text), _pieces([tensor.numel() * tensor.element_size() for tensor in tensors]))
    packed = text + b"".join(_raw(view, 0, view.numel()) for view in outgoing.views(first))
    dist.send(_first(len(text), packed), receiver)
    if len(text) > FIRST - _HEAD.size:
        dist.send(torch.frombuffer(bytearray(text), dtype=torch.uint8), receiver)
    sums: list[int] = []
    flying: deque[tuple[Any, torch.Tensor]] = deque()
    for parts in pieces:
        views = outgoing.views(parts)
        data = views[0] if len(views) == 1 else torch.cat(views)
        # the buffer stays referenced until it is sent
        flying.append((dist.isend(data, receiver), data))
        sums.append(_checksum(data))
        if len(flying) > FLYING:
            flying.popleft()[0].wait()
    while flying:
        flying.popleft()[0].wait()
    if sums:
        dist.send(torch.tensor(sums, dtype=torch.int64), receiver)


def receive_state(protected: Protected, donor: int, step: int) -> int:
    """Receive the state of ``donor`` and restore it; the number of bytes. This rank holds none until the caller has all
    that belongs to it and marks it as whole."""
    protected.whole = False
    text, rest = _receive_first(donor)
    message: dict[str, Any] = json.loads(text)
    if message["step"] != step:
        raise Interrupted(f"rank {donor} sends step {message['step']}, step {step} was planned")
    kinds = described(message["meta"], [])
    incoming = _Incoming(kinds)
    first, pieces = _inline(len(text), _pieces(incoming.sizes))
    if first:
        incoming.put(first, torch.frombuffer(rest, dtype=torch.uint8))
    _receive_pieces(incoming, pieces, donor)
    protected.restore(message["meta"], incoming.tensors())
    return sum(incoming.sizes)


class _Outgoing:
    """The bytes of tensors in host memory, from the first piece of each to its last. Those on the host are not
    copied."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._flats: dict[int, torch.Tensor] = {}

    def views(self, parts: Parts) -> list[torch.Tensor]:
        """The bytes of each part; the pieces of a tensor are asked for in order."""
        found = []
        for index, at, size in parts:
            flat = _bytes(self._tensors[index]) if at == 0 else self._flats.pop(index)
            found.append(flat[at : at + size])
            if at + size < flat.numel():
                self._flats[index] = flat
        return found


class _Incoming:
    """Memory for tensors of these kinds: on the host from the first piece of each, on its device after its last."""

    def __init__(self, kinds: list[Kind]) -> None:
        self._kinds = kinds
        self.sizes = [_size(dtype, shape) for dtype, shape, _ in kinds]
        self._flats: dict[int, torch.Tensor] = {}
        self._whole: dict[int, torch.Tensor] = {}

    def room(self, index: int, begin: int, size: int) -> torch.Tensor:
        """Return the memory that a part is received into."""
        if index not in self._flats:
            self._flats[index] = _host(self.sizes[index])
        return self._flats[index][begin : begin + size]

    def put(self, parts: Parts, data: torch.Tensor) -> None:
        """Take the bytes of a piece that holds several parts."""
        at = 0
        for index, begin, size in parts:
            self.room(index, begin, size)[:] = data[at : at + size]
            self.arrived(index, begin + size)
            at += size

    def arrived(self, index: int, end: int) -> None:
        """All bytes of a tensor up to ``end`` are there."""
        if end == self.sizes[index]:
            self._whole[index] = _placed(self._flats.pop(index), self._kinds[index])

    def tensors(self) -> list[torch.Tensor]:
        """All tensors; empty ones come in no piece."""
        return [
            self._whole[index] if size else _placed(_host(0), self._kinds[index])
            for index, size in enumerate(self.sizes)
        ]


def _first(length: int, packed: bytes) -> torch.Tensor:
    """The first message: head, text, small tensors; a text that does not fit is a message of its own."""
    inline = packed if len(packed) <= FIRST - _HEAD.size else b""
    body = _HEAD.pack(length, zlib.adler32(packed)) + inline
    return torch.frombuffer(bytearray(body.ljust(FIRST, b"\0")), dtype=torch.uint8)


def _receive_first(donor: int) -> tuple[bytes, bytearray]:
    """The text, and the bytes that follow it in the first message."""
    buffer = torch.empty(FIRST, dtype=torch.uint8)
    dist.recv(buffer, donor)
    data = _raw(buffer, 0, FIRST)
    length, checksum = _HEAD.unpack_from(data)
    if length > TEXT_LIMIT:
        raise Interrupted(f"rank {donor} announces a description of {length} bytes, at most {TEXT_LIMIT} are taken")
    if length > FIRST - _HEAD.size:
        longer = torch.empty(length, dtype=torch.uint8)
        dist.recv(longer, donor)
        text, rest = _raw(longer, 0, length), b""
    else:
        text, rest = data[_HEAD.size : _HEAD.size + length], data[_HEAD.size + length :]
        rest = rest[: _inlined(text)]
    if zlib.adler32(text + rest) != checksum:
        raise Interrupted(f"the description of the state arrived from rank {donor} with another checksum")
    return text, bytearray(rest)


def _inlined(text: bytes) -> int:
    """Bytes of tensors that follow this text in the first message."""
    try:
        kinds = described(json.loads(text)["meta"], [])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise Interrupted(f"the description of the state from another rank cannot be read: {error}") from error
    first, _ = _inline(len(text), _pieces([_size(dtype, shape) for dtype, shape, _ in kinds]))
    return sum(size for _, _, size in first)


def _receive_pieces(incoming: _Incoming, pieces: list[Parts], donor: int) -> None:
    """Receive pieces; their checksums are computed while the next ones arrive."""
    flying: deque[tuple[Any, torch.Tensor, Parts]] = deque()
    sums: list[int] = []

    def arrived() -> None:
        work, data, parts = flying.popleft()
        work.wait()
        sums.append(_checksum(data))
        if len(parts) > 1:
            incoming.put(parts, data)
        else:
            index, begin, size = parts[0]
            incoming.arrived(index, begin + size)

    for parts in pieces:
        index, begin, size = parts[0]
        if len(parts) == 1:
            data = incoming.room(index, begin, size)
        else:
            data = torch.empty(sum(part[2] for part in parts), dtype=torch.uint8)
        flying.append((dist.irecv(data, donor), data, parts))
        if len(flying) > FLYING:
            arrived()
    while flying:
        arrived()
    if sums:
        sent = torch.zeros(len(sums), dtype=torch.int64)
        dist.recv(sent, donor)
        if sent.tolist() != sums:
            raise Interrupted(f"a part of the state arrived from rank {donor} with another checksum")


def _pieces(sizes: list[int]) -> list[Parts]:
    """How tensors of these sizes in bytes are divided: large ones into pieces, small ones together."""
    return list(_divide(sizes))


def _divide(sizes: list[int]) -> Iterator[Parts]:
    small: Parts = []
    held = 0
    for index, size in enumerate(sizes):
        if size >= SMALL:
            yield from ([(index, at, min(PIECE, size - at))] for at in range(0, size, PIECE))
        elif size:
            if held + size > PIECE:
                yield small
                small, held = [], 0
            small.append((index, 0, size))
            held += size
    if small:
        yield small


def _inline(length: int, pieces: list[Parts]) -> tuple[Parts, list[Parts]]:
    """The parts that fit into the first message behind a text of ``length`` bytes: all or none; and the pieces that
    remain."""
    whole = len(pieces) == 1 and length + sum(size for _, _, size in pieces[0]) <= FIRST - _HEAD.size
    return (pieces[0], []) if whole else ([], pieces)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)


def _host(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def _placed(flat: torch.Tensor, kind: Kind) -> torch.Tensor:
    dtype, shape, device = kind
    whole = flat.view(dtype).view(shape)
    return whole if device == "cpu" else whole.to(device)


def _raw(flat: torch.Tensor, at: int, size: int) -> bytes:
    return ctypes.string_at(flat.data_ptr() + at, size) if size else b""


def _size(dtype: torch.dtype, shape: list[int]) -> int:
    count: int = dtype.itemsize
    for size in shape:
        count *= size
    return count


def _checksum(flat: torch.Tensor) -> int:
    return zlib.adler32((ctypes.c_char * flat.numel()).from_address(flat.data_ptr()))
