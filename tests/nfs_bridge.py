"""An NFS export as a folder: libnfs behind FUSE, for kernels without an NFS client. nfs_bridge.py URL FOLDER

Calls reach the server as the user that makes them (AUTH_SYS). Locks are the kernel's own: they do not reach the server.
FUSE finds files by their paths, so a file that is replaced between lookup and opening is missing for a moment.
Debian's Python runs it, which has fusepy (python3-fusepy). Source: libnfs.h of libnfs 4.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Any

import fusepy  # type: ignore[import-not-found]

_STAT = "dev ino mode nlink uid gid rdev size blksize blocks atime mtime ctime atime_ns mtime_ns ctime_ns used"
_ROOM = "f_bsize f_frsize f_blocks f_bfree f_bavail f_files f_ffree f_favail f_fsid f_flag f_namemax"


class _Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _STAT.split()]


class _Room(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_ulong) for name in _ROOM.split()), ("rest", ctypes.c_int * 16)]


class _Entry(ctypes.Structure):
    _fields_ = [("next", ctypes.c_void_p), ("name", ctypes.c_char_p)]


class Export(fusepy.Operations):  # type: ignore[misc]
    """One export; one call at a time, as a context of libnfs wants it."""

    use_ns = True

    def __init__(self, url: str) -> None:
        self._lib = ctypes.CDLL("libnfs.so.13")
        self._lib.nfs_init_context.restype = ctypes.c_void_p
        self._lib.nfs_parse_url_dir.restype = ctypes.c_void_p
        self._lib.nfs_readdir.restype = ctypes.POINTER(_Entry)
        self._lib.nfs_get_error.restype = ctypes.c_char_p
        self._context = ctypes.c_void_p(self._lib.nfs_init_context())
        parsed = self._lib.nfs_parse_url_dir(self._context, url.encode())
        if not parsed:
            raise SystemExit(f"{url}: {self._lib.nfs_get_error(self._context).decode()}")
        server, path = (ctypes.cast(parsed, ctypes.POINTER(ctypes.c_char_p))[index] for index in (0, 1))
        if self._lib.nfs_mount(self._context, server, path) < 0:
            raise SystemExit(f"{url}: {self._lib.nfs_get_error(self._context).decode()}")
        self._files: dict[int, ctypes.c_void_p] = {}
        self._next = 1

    def _call(self, name: str, *arguments: Any) -> int:
        user, group, _ = fusepy.fuse_get_context()
        self._lib.nfs_set_uid(self._context, user)
        self._lib.nfs_set_gid(self._context, group)
        done = int(getattr(self._lib, f"nfs_{name}")(self._context, *arguments))
        if done < 0:
            raise fusepy.FuseOSError(-done)
        return done

    def _kept(self, handle: ctypes.c_void_p) -> int:
        self._files[self._next] = handle
        self._next += 1
        return self._next - 1

    def init(self, path: str) -> None:
        """Called once the folder is mounted."""
        sys.stdout.write("mounted\n")
        sys.stdout.flush()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        found = _Stat()
        if fh in self._files:
            self._call("fstat64", self._files[fh], ctypes.byref(found))
        else:
            self._call("lstat64", path.encode(), ctypes.byref(found))
        times = {
            f"st_{name}": getattr(found, name) * 10**9 + getattr(found, f"{name}_ns")
            for name in ("atime", "mtime", "ctime")
        }
        return times | {
            f"st_{name}": getattr(found, name) for name in ("mode", "nlink", "uid", "gid", "size", "blocks")
        }

    def readdir(self, path: str, fh: int) -> list[str]:
        folder = ctypes.c_void_p()
        self._call("opendir", path.encode(), ctypes.byref(folder))
        names = []
        while entry := self._lib.nfs_readdir(self._context, folder):
            names.append(os.fsdecode(entry.contents.name))
        self._lib.nfs_closedir(self._context, folder)
        return names

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        handle = ctypes.c_void_p()
        # without O_EXCL: the kernel has looked for the name, and libnfs would leave its mark in the file's times
        self._call("open2", path.encode(), os.O_CREAT | os.O_RDWR, mode & 0o7777, ctypes.byref(handle))
        return self._kept(handle)

    def open(self, path: str, flags: int) -> int:
        handle = ctypes.c_void_p()
        self._call("open", path.encode(), flags & (os.O_ACCMODE | os.O_APPEND | os.O_TRUNC), ctypes.byref(handle))
        return self._kept(handle)

    def release(self, path: str, fh: int) -> int:
        return self._call("close", self._files.pop(fh))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        count = self._call("pread", self._files[fh], ctypes.c_uint64(offset), ctypes.c_uint64(size), data)
        return data.raw[:count]

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return self._call("pwrite", self._files[fh], ctypes.c_uint64(offset), ctypes.c_uint64(len(data)), data)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        return self._call("fsync", self._files[fh])

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        return self._call("truncate", path.encode(), ctypes.c_uint64(length))

    def unlink(self, path: str) -> int:
        return self._call("unlink", path.encode())

    def mkdir(self, path: str, mode: int) -> int:
        return self._call("mkdir2", path.encode(), mode)

    def rmdir(self, path: str) -> int:
        return self._call("rmdir", path.encode())

    def rename(self, old: str, new: str) -> int:
        return self._call("rename", old.encode(), new.encode())

    def chmod(self, path: str, mode: int) -> int:
        return self._call("chmod", path.encode(), mode & 0o7777)

    def utimens(self, path: str, times: Any = None) -> int:
        raise fusepy.FuseOSError(errno.ENOTSUP)

    def statfs(self, path: str) -> dict[str, int]:
        found = _Room()
        self._call("statvfs", path.encode(), ctypes.byref(found))
        return {name: getattr(found, name) for name in _ROOM.split() if name != "f_fsid"}


if __name__ == "__main__":
    # nothing is kept here: every call asks the server
    options = {"direct_io": True, "attr_timeout": 0, "entry_timeout": 0, "allow_other": True, "nothreads": True}
    name = sys.argv[1].partition("?")[0]
    fusepy.FUSE(Export(sys.argv[1]), sys.argv[2], foreground=True, fsname=name, **options)
