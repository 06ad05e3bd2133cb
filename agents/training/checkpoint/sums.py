"""Checksums of a file, per block, kept beside it in ``.belay/NAME.sums``: the file itself stays byte for byte what
other readers expect.

A file of sums describes up to two contents of its file, the new one and the one that it replaces. It is written before
the new content gets its name, so a crash in between leaves a file with valid sums in either case.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belay.agents.training.checkpoint.errors import Damaged, Unsupported

xxhash: Any
try:
    import xxhash
except ImportError:
    xxhash = None

BLOCK = 8 << 20
"""Bytes under one checksum."""
FOLDER = ".belay"
_NOT_KNOWN = (errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP)
_making = threading.Lock()
LIMIT = 64 << 20
"""Maximum size of a file of sums in bytes: enough for 32 TiB in blocks of 8 MiB."""


def _crc32(data: Any) -> int:
    return zlib.crc32(data)


ALGORITHMS: dict[str, Callable[[Any], int]] = {"crc32": _crc32}
if xxhash is not None:
    ALGORITHMS["xxh3"] = xxhash.xxh3_64_intdigest
PREFERRED = "xxh3" if xxhash is not None else "crc32"
"""xxh3 hashes about three times as fast as the standard library's crc32; it needs the package ``xxhash``."""


@dataclass(frozen=True)
class Sums:
    """One content of a file: ``size`` in bytes, and a checksum for every ``block`` bytes from its beginning."""

    size: int
    values: tuple[int, ...]
    algorithm: str = PREFERRED
    block: int = BLOCK

    @property
    def identity(self) -> str:
        """A short name of the content, equal for equal content."""
        text = f"{self.size} {self.algorithm} {self.block} " + " ".join(f"{value:x}" for value in self.values)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def function(algorithm: str, where: str) -> Callable[[Any], int]:
    """The checksum function of this name. Raises :class:`Unsupported`, naming the package to install."""
    if algorithm not in ALGORITHMS:
        hint = "install the package xxhash" if algorithm == "xxh3" else "a newer version may have written it"
        raise Unsupported(f"{where}: checksums are of the kind {algorithm!r:.40}, which is not known here; {hint}")
    return ALGORITHMS[algorithm]


def place(path: Path) -> Path:
    """The file of the sums of ``path``."""
    return path.parent / FOLDER / f"{path.name}.sums"


def read(path: Path) -> list[Sums]:
    """The known contents of ``path``, newest first; none without sums. Raises :class:`Damaged` when unreadable."""
    where = place(path)
    try:
        with open(where, "rb") as file:
            data = file.read(LIMIT + 1)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Damaged(f"{where} cannot be read: {error.strerror}") from error
    body, _, digest = data.rstrip(b"\n").rpartition(b"\n")
    if len(data) > LIMIT or hashlib.sha256(body).hexdigest().encode() != digest:
        raise Damaged(f"{where} is damaged: its own digest does not match; remove it to load without checksums")
    try:
        return [_parse(entry) for entry in json.loads(body)["contents"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{where} is damaged: {type(error).__name__}: {str(error)[:100]}") from error


def write(path: Path, contents: list[Sums]) -> None:
    """Write these contents (newest first) for ``path`` durably. Raises ``OSError``."""
    where = place(path)
    with _making:
        if not where.parent.is_dir():
            where.parent.mkdir(mode=0o755, exist_ok=True)
            sync_folder(path.parent)
    body = json.dumps({"version": 1, "contents": [_entry(sums) for sums in contents]}, separators=(",", ":")).encode()
    text = body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"
    staging = where.with_name(where.name + ".stg")
    try:
        with open(staging, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staging, where)
    except OSError:
        staging.unlink(missing_ok=True)
        raise
    sync_folder(where.parent)


def forget(path: Path) -> None:
    """Remove the sums of a removed file."""
    place(path).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync ``folder``. File systems that cannot sync folders are accepted; ``OSError`` when the disk fails."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        # some network and FUSE file systems do not know this: nothing more can be done for their renames
        if error.errno not in _NOT_KNOWN:
            raise
    finally:
        os.close(handle)


def _entry(sums: Sums) -> dict[str, Any]:
    values = "".join(f"{value:016x}" for value in sums.values)
    return {"size": sums.size, "algorithm": sums.algorithm, "block": sums.block, "values": values}


def _parse(entry: dict[str, Any]) -> Sums:
    size, block, text = entry["size"], entry["block"], entry["values"]
    if not (type(size) is int and type(block) is int and size >= 0 and 4096 <= block <= 1 << 30):
        raise ValueError(f"size {size!r:.40} or block {block!r:.40} out of range")
    values = tuple(int(text[i : i + 16], 16) for i in range(0, len(text), 16))
    if len(values) != -(-size // block):
        raise ValueError(f"{len(values)} checksums for {size} bytes in blocks of {block}")
    return Sums(size, values, str(entry["algorithm"]), block)
