"""Small files in folders of the host that containers see too: no link is followed, nothing is read without end.

A reader sees a file whole, as it was or as it is: files are replaced in one step.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o644


def open_folder(folder: Path) -> int:
    """The folder itself, never what a link points to; the caller closes the handle. Raises OSError."""
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(errno.ELOOP, "is a symbolic link or no folder, refused", str(folder)) from error
        raise


def read(handle: int, name: str, limit: int) -> bytes | None:
    """The file in an open folder, at most ``limit`` bytes and one more; None without one. Raises OSError."""
    try:
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a symbolic link, refused", name) from error
        raise
    with os.fdopen(number, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a file, refused", name)
        return stream.read(limit + 1)


def replace(handle: int, name: str, content: bytes, *, durable: bool = True) -> None:
    """Put ``content`` in the place of the file; ``durable`` waits for the disk. Raises OSError."""
    draft = f".{name}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=handle)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    number = os.open(draft, flags, FILE_MODE, dir_fd=handle)
    with os.fdopen(number, "wb") as stream:
        os.fchmod(stream.fileno(), FILE_MODE)
        stream.write(content)
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
    os.rename(draft, name, src_dir_fd=handle, dst_dir_fd=handle)


def remove(handle: int, name: str) -> None:
    """Take the file away, if it is there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=handle)
