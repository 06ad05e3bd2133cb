"""Writes a file so that it appears under its name only once it is complete and on the disk.

Bytes go to ``NAME.m.stg`` with O_DIRECT where the file system has it, by several threads, hashed on the way; the file
is synced, its sums are kept, the name is given, the folder is synced. Whatever fails, the old content stays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from belay.agents.training.checkpoint import sums
from belay.agents.training.checkpoint.errors import Damaged
from belay.agents.training.checkpoint.sums import Sums

STAGING = ".m.stg"
"""Suffix of an incomplete file (MindIO's suffix for files being copied)."""
PAGE = 4096
ABOVE = 2
"""Levels of folders above a file's own whose names are synced with it."""


def staging(path: Path) -> Path:
    """The staging file of ``path``."""
    return path.with_name(path.name + STAGING)


def write(
    path: Path,
    data: memoryview,
    *,
    mode: int = 0o600,
    threads: int = 2,
    links: tuple[Path, ...] = (),
    progress: Callable[[int], None] | None = None,
) -> Sums:
    """Make ``data`` the content of ``path`` and of every name in ``links``, durable when this returns.

    ``data`` that begins on a page boundary is written without the page cache. A link that cannot be made is written as
    a file of its own. ``progress`` gets the bytes of each finished block. Raises ``OSError``; the names that it has not
    reached keep their old content then.
    """
    new = _whole(path, data, mode, threads, progress)
    for link in links:
        if link == path:
            continue
        try:
            _link(path, link, new)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
                raise
            _whole(link, data, mode, threads, progress)
    return new


def _whole(path: Path, data: memoryview, mode: int, threads: int, progress: Callable[[int], None] | None) -> Sums:
    stage = staging(path)
    with _staged(stage, mode) as handle:
        try:
            new = _fill(handle, data, threads, progress)
            os.fsync(handle)
            publish(path, stage, new)
        except BaseException:
            # links that another writer has made since must stay; the lock is still held here
            with contextlib.suppress(OSError):
                os.unlink(stage)
            raise
    return new


def publish(path: Path, stage: Path, new: Sums) -> None:
    """Publish a complete, synced file: write its sums, rename it, sync the folder."""
    sums.write(path, [new, *_known(path)])
    os.replace(stage, path)
    sums.sync_folder(path.parent)
    _sync_above(path.parent)


def _sync_above(folder: Path) -> None:
    """Sync the names of the folders that a file lies in: a trainer has just made them (``iter_0000100/mp_rank_00``),
    and a power cut may take a folder with all that was synced in it.
    """
    for inner, outer in itertools.islice(zip((folder, *folder.parents), folder.parents, strict=False), ABOVE):
        try:
            if os.stat(inner).st_dev != os.stat(outer).st_dev:
                return
            sums.sync_folder(outer)
        except PermissionError:
            # a folder that may be passed through but not read was there before
            return


def _known(path: Path) -> list[Sums]:
    """The sums that the content now under ``path`` may have, at most two, so that a crash leaves them readable."""
    if not path.exists():
        return []
    try:
        found = sums.read(path)
    except Damaged:
        # unreadable sums are dropped; the new content gets its own
        return []
    size = path.stat().st_size
    return [entry for entry in found if entry.size == size][:2]


def _link(path: Path, link: Path, new: Sums) -> None:
    stage = staging(link)
    with _staged(stage, 0o600):
        os.unlink(stage)
        os.link(path, stage)
        try:
            publish(link, stage, new)
        except BaseException:
            stage.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _staged(stage: Path, mode: int) -> Iterator[int]:
    """The empty staging file, locked while it is written; one of a dead writer is reused."""
    for _ in range(100):
        handle = os.open(stage, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            _lock(handle, stage)
            try:
                same = os.stat(stage).st_ino == os.fstat(handle).st_ino
            except FileNotFoundError:
                same = False
            if same:
                os.ftruncate(handle, 0)
                yield handle
                return
        finally:
            os.close(handle)
    raise OSError(errno.EBUSY, "other writers keep locking this name", str(stage))


def _lock(handle: int, stage: Path) -> None:
    """Wait for another writer of the same name; without a lock if the file system has none."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            raise


def folder(path: Path) -> None:
    """Make the folder ``path`` and those above it, as far as they do not exist, durably. Raises ``OSError``."""
    if path.is_dir():
        return
    folder(path.parent)
    path.mkdir(exist_ok=True)
    # a folder that may be written to but not read (mode 1733) cannot be opened, hence not synced
    with contextlib.suppress(PermissionError):
        sums.sync_folder(path.parent)


def abandoned(stage: Path) -> bool:
    """Whether the staging file ``stage`` belongs to no living writer on this host."""
    try:
        handle = os.open(stage, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _fill(handle: int, data: memoryview, threads: int, progress: Callable[[int], None] | None) -> Sums:
    """Write all of ``data`` and return its sums. Raises the first ``OSError`` of any thread."""
    size, block, hashing = len(data), sums.BLOCK, sums.ALGORITHMS[sums.PREFERRED]
    blocks = -(-size // block)
    whole = size // PAGE * PAGE
    direct = _direct(handle) if size >= block else False
    if size >= block:
        try:
            os.posix_fallocate(handle, 0, size)
        except OSError as error:
            # a full disk fails here, before a byte is written; file systems without this call continue
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    values, numbers, guard, failed = [0] * blocks, itertools.count(), threading.Lock(), threading.Event()

    def work() -> None:
        try:
            while not failed.is_set():
                with guard:
                    number = next(numbers)
                if number >= blocks:
                    return
                start, end = number * block, min(size, (number + 1) * block)
                piece = data[start:end]
                values[number] = hashing(piece)
                if direct and end > whole:
                    _put(handle, data[start : max(start, whole)], start)
                else:
                    _put(handle, piece, start)
                if progress:
                    progress(end - start)
        except BaseException:
            failed.set()
            raise

    workers = max(1, min(threads, blocks))
    if workers == 1:
        work()
    else:
        with ThreadPoolExecutor(workers) as pool:
            for future in [pool.submit(work) for _ in range(workers)]:
                future.result()
    if direct and whole < size:
        # the last part of a page cannot be written past the cache
        flags = fcntl.fcntl(handle, fcntl.F_GETFL)
        fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        _put(handle, data[whole:size], whole)
    if os.fstat(handle).st_size != size:
        os.ftruncate(handle, size)
    return Sums(size, tuple(values))


def _direct(handle: int) -> bool:
    """Switch the page cache off; False if the file system refuses (tmpfs, some network file systems)."""
    try:
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | os.O_DIRECT)
        with mmap.mmap(-1, PAGE) as probe:
            os.pwrite(handle, probe, 0)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) & ~os.O_DIRECT)
        return False
    return True


def _put(handle: int, piece: memoryview, offset: int) -> None:
    """Write the whole piece; a short write continues where it ended."""
    while len(piece):
        # asked before the call: another thread may switch it off meanwhile
        direct = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_DIRECT
        try:
            done = os.pwrite(handle, piece, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
            # memory or offset not aligned to this disk's sectors: through the cache then
            fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) & ~os.O_DIRECT)
            continue
        if done == 0:
            raise OSError(errno.ENOSPC, "the disk takes no more bytes")
        piece, offset = piece[done:], offset + done
