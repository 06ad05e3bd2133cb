"""Several values in one payload."""

from __future__ import annotations

import struct

_COUNT = struct.Struct("!I")


def join(values: list[bytes]) -> bytes:
    """Several values as one payload: count, lengths (unsigned 32-bit, big-endian), values."""
    lengths = struct.pack(f"!{len(values) + 1}I", len(values), *(len(value) for value in values))
    return lengths + b"".join(values)


def split(payload: bytes) -> list[bytes]:
    """The values that ``join`` packed. Raises ``ValueError`` for any other payload."""
    if len(payload) < _COUNT.size:
        return []
    (count,) = _COUNT.unpack_from(payload)
    if count * 4 + 4 > len(payload):
        raise ValueError(f"a payload of {len(payload)} bytes announces {count} values")
    lengths = struct.unpack_from(f"!{count}I", payload, 4)
    values, at = [], 4 + 4 * count
    for length in lengths:
        values.append(payload[at : at + length])
        at += length
    return values
