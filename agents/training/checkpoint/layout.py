"""The layout of a checkpoint file, without torch: record map, tail, and the checks of both.

    data.pkl · storages back to back · pickled map {"data.pkl": (start, size), "data/0": …} · start · size · flag

``start`` and ``size`` of the map are unsigned 64-bit little-endian numbers, the flag is ``mindio`` and a zero byte.
A bytes object is stored as it is, with the map ``{"mindio_save_data_type": "directly_bytes", "bytes_length": n}``.
Source: MindIO ACP, ``acc_io/serialization`` of the public MindCluster repository.
"""

from __future__ import annotations

import io
import pickle
import struct
from dataclasses import dataclass

from belay.agents.training.checkpoint.errors import Damaged, NotThisFormat

FLAG = b"mindio\x00"
TAIL = struct.Struct("<QQ7s")
ALIGNMENT = 64
LARGE = 64 << 20
"""Size in bytes from which storages are aligned in their file, so that it can be mapped instead of read."""
STRUCTURE = "data.pkl"
"""The record with the pickled object, whose tensors are references to the other records."""
MAP_LIMIT = 256 << 20
"""Maximum size of a record map in bytes (about five million storages); a greater one counts as damaged."""
_KIND = "mindio_save_data_type"
_PLAIN = "directly_bytes"
_LENGTH = "bytes_length"


@dataclass(frozen=True)
class Contents:
    """The content of a file: records by name as (start, size) in bytes, or the ``length`` of plain bytes."""

    records: dict[str, tuple[int, int]]
    length: int | None = None


def tail(start: int, size: int) -> bytes:
    """The last 23 bytes of a file whose map is ``size`` bytes long and begins at ``start``."""
    return TAIL.pack(start, size, FLAG)


def padding(structure: int, storages: int) -> bytes:
    """Zero bytes after a pickle of ``structure`` bytes that align the storages of a large file, ``storages`` bytes long
    together. They count as part of ``data.pkl``: readers of pickles stop at its end. Small files get none.
    """
    return bytes(-structure % ALIGNMENT if storages >= LARGE else 0)


def tensors_map(structure: int, storages: list[int]) -> bytes:
    """The pickled map of a file whose ``data.pkl`` has ``structure`` bytes and whose storages have these sizes."""
    records, start = {STRUCTURE: (0, structure)}, structure
    for key, size in enumerate(storages):
        records[f"data/{key}"] = (start, size)
        start += size
    return pickle.dumps(records, protocol=4)


def bytes_map(length: int) -> bytes:
    """The pickled map of a file that holds plain bytes."""
    return pickle.dumps({_KIND: _PLAIN, _LENGTH: length}, protocol=4)


def read_tail(name: str, last: bytes, size: int) -> tuple[int, int]:
    """Start and size of the map; ``last`` are the last bytes (at least 23, if there are) of a file of ``size`` bytes.

    Raises :class:`NotThisFormat` without the flag, :class:`Damaged` when the map cannot lie where the tail says.
    """
    if len(last) < TAIL.size or not last.endswith(FLAG):
        raise NotThisFormat(f"{name} does not end with the flag of a .mindio file")
    start, length, _ = TAIL.unpack(last[-TAIL.size :])
    if start + length + TAIL.size != size:
        raise Damaged(
            f"{name}: the tail places the map at {start} with {length} bytes, "
            f"but a file of {size} bytes needs {size - TAIL.size - start} there: truncated or overwritten"
        )
    if length > MAP_LIMIT:
        raise Damaged(f"{name}: a record map of {length} bytes is beyond the limit of {MAP_LIMIT}")
    return start, length


def read_map(name: str, data: bytes, start: int) -> Contents:
    """The content described by the pickled map; every record must lie before ``start``, the place of the map.

    The map is data only: a global, a persistent id or another type than expected raises :class:`Damaged`.
    """
    try:
        found = _DataOnly(io.BytesIO(data)).load()
    except Exception as error:
        raise Damaged(f"{name}: the record map cannot be read: {type(error).__name__}: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise Damaged(f"{name}: the record map is a {type(found).__name__}, not a dictionary")
    if found.get(_KIND) == _PLAIN:
        length = found.get(_LENGTH)
        if type(length) is not int or length != start:
            raise Damaged(f"{name}: {_LENGTH} is {length!r:.40}, but {start} bytes precede the map")
        return Contents({}, length)
    for key, place in found.items():
        if not (isinstance(key, str) and isinstance(place, tuple) and [type(part) for part in place] == [int, int]):
            raise Damaged(f"{name}: record {key!r:.80} of the map has no place (start, size)")
        if place[0] < 0 or place[1] < 0 or place[0] + place[1] > start:
            raise Damaged(f"{name}: record {key:.80} lies at {place[0]} with {place[1]} bytes, outside 0..{start}")
    if STRUCTURE not in found:
        raise Damaged(f"{name}: the record map names no {STRUCTURE}")
    return Contents(found)


class _DataOnly(pickle._Unpickler):
    """Reads containers, text and numbers. The unpickler in Python, because the one in C takes memory for a memo index
    as high as the file claims.
    """

    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"the global {module}.{name} is not allowed in a record map")

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError("a persistent id is not allowed in a record map")
