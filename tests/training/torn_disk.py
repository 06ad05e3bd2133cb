"""A disk for tests that tears what was not synced, mounted through /dev/fuse without a library; needs root.

``python -m tests.training.torn_disk FOLDER ROOM`` mounts it and takes commands, one JSON object a line, each answered
by one line: ``{"do": "off"}`` cuts the power (every request fails), ``{"do": "on", "seed": 1}`` brings back what the
cut left, ``{"do": "hang"}`` and ``{"do": "go"}`` stop answering and begin again, as a server that is gone and returns,
``{"do": "end"}``. The wire is the kernel's: include/uapi/linux/fuse.h, protocol 7.31.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable

from tests.training.torn_files import Node, TornFiles, number_of

_IN, _OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
MOST = 1 << 20
"""Bytes of one write."""
_FORGET, _FORGET_MANY, _INTERRUPT = 2, 42, 36
_SIZE, _MODE = 1 << 3, 1 << 0
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_DIRECT = 1
"""No page cache: every read and write is a request."""
_MNT_DETACH = 2


class TornDisk:
    """Serves ``files`` at ``folder`` until :meth:`end`."""

    def __init__(self, folder: str, files: TornFiles) -> None:
        self.folder, self.files = folder, files
        self.on = True
        self._go = threading.Event()
        self._go.set()
        self._lock = threading.Lock()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._handle},rootmode=40000,user_id=0,group_id=0,allow_other"
        if self._libc.mount(b"torn", folder.encode(), b"fuse", 0, options.encode()):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), folder)
        for _ in range(3):
            threading.Thread(target=self._serve, daemon=True).start()

    def obey(self, order: dict[str, object]) -> dict[str, object]:
        """Carry out one command; what it says."""
        do = order.get("do")
        if do == "hang":
            self._go.clear()
        elif do == "go":
            self._go.set()
        with self._lock:
            if do == "off":
                self.on = False
            elif do == "on":
                self.files.cut(random.Random(int(str(order["seed"]))))
                self.on = True
            return {"on": self.on, "dropped": self.files.dropped, "torn": self.files.torn}

    def end(self) -> None:
        """Unmount; what still waits gets an error."""
        self._libc.umount2(self.folder.encode(), _MNT_DETACH)
        os.close(self._handle)

    def _serve(self) -> None:
        buffer = bytearray(MOST + 65536)
        while True:
            # a server that is gone takes no requests: programs that wait can be killed, as with a hard mount of NFS
            self._go.wait()
            try:
                count = os.readv(self._handle, [buffer])
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return
            self._answer(bytes(buffer[:count]))

    def _answer(self, request: bytes) -> None:
        _, code, unique, number, *_ = _IN.unpack_from(request)
        body = request[_IN.size :]
        if code in (_FORGET, _FORGET_MANY, _INTERRUPT):
            return
        work = _WORK.get(code)
        result, error = b"", 0
        self._go.wait()
        try:
            if work is None:
                raise OSError(errno.ENOSYS, "not here")
            with self._lock:
                if not self.on:
                    raise OSError(errno.EIO, "the power is off")
                result = work(self.files, number, body)
        except (OSError, struct.error) as failure:
            result, error = b"", -number_of(failure)
        try:
            os.writev(self._handle, [_OUT.pack(_OUT.size + len(result), error, unique), result])
        except OSError as failure:
            # the request was interrupted meanwhile
            if failure.errno != errno.ENOENT:
                raise


def _attr(node: Node) -> bytes:
    size, when = len(node.data), int(node.time)
    part = int((node.time - when) * 1e9)
    return _ATTR.pack(node.number, size, -(-size // 512), when, when, when, part, part, part, node.mode,
                      max(1, node.links), os.getuid(), os.getgid(), 0, 4096, 0)  # fmt: skip


def _entry(node: Node) -> bytes:
    # nothing is cached: names and sizes are asked for each time
    return struct.pack("<QQQQII", node.number, 0, 0, 0, 0, 0) + _attr(node)


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode(errors="surrogateescape")


def _init(files: TornFiles, number: int, body: bytes) -> bytes:
    major, minor, ahead, flags = struct.unpack_from("<IIII", body)
    return struct.pack("<IIIIHHIIHHIIHH5I", major, min(minor, 31), ahead, flags & (_BIG_WRITES | _MAX_PAGES), 16, 12,
                       MOST, 1, MOST // 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)  # fmt: skip


def _lookup(files: TornFiles, number: int, body: bytes) -> bytes:
    return _entry(files.child(files.find(number), _text(body)))


def _getattr(files: TornFiles, number: int, body: bytes) -> bytes:
    return struct.pack("<QII", 0, 0, 0) + _attr(files.find(number))


def _setattr(files: TornFiles, number: int, body: bytes) -> bytes:
    node = files.find(number)
    (valid, _, _, size) = struct.unpack_from("<IIQQ", body)
    if valid & _MODE:
        node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(struct.unpack_from("<I", body, 68)[0])
    if valid & _SIZE:
        files.resize(node, size)
    return _getattr(files, number, b"")


def _mkdir(files: TornFiles, number: int, body: bytes) -> bytes:
    (mode,) = struct.unpack_from("<I", body)
    return _entry(files.make(files.find(number), _text(body[8:]), stat.S_IFDIR | mode))


def _create(files: TornFiles, number: int, body: bytes) -> bytes:
    _, mode = struct.unpack_from("<II", body)
    return _entry(files.make(files.find(number), _text(body[16:]), stat.S_IFREG | mode)) + _opened()


def _opened() -> bytes:
    return struct.pack("<QII", 0, _DIRECT, 0)


def _open(files: TornFiles, number: int, body: bytes) -> bytes:
    files.find(number)
    return _opened()


def _opendir(files: TornFiles, number: int, body: bytes) -> bytes:
    files.find(number)
    return struct.pack("<QII", 0, 0, 0)


def _read(files: TornFiles, number: int, body: bytes) -> bytes:
    _, start, size = struct.unpack_from("<QQI", body)
    return bytes(files.find(number).data[start : start + size])


def _write(files: TornFiles, number: int, body: bytes) -> bytes:
    _, start, size = struct.unpack_from("<QQI", body)
    files.write(files.find(number), start, body[40 : 40 + size])
    return struct.pack("<II", size, 0)


def _readdir(files: TornFiles, number: int, body: bytes) -> bytes:
    _, start, room = struct.unpack_from("<QQI", body)
    found = b""
    for place, (name, node) in enumerate(sorted(files.find(number).names.items())):
        text = os.fsencode(name)
        entry = struct.pack("<QQII", node.number, place + 1, len(text), stat.S_IFMT(node.mode) >> 12) + text
        entry += bytes(-len(entry) % 8)
        if place >= start:
            if len(found) + len(entry) > room:
                break
            found += entry
    return found


def _unlink(files: TornFiles, number: int, body: bytes) -> bytes:
    files.remove(files.find(number), _text(body), False)
    return b""


def _rmdir(files: TornFiles, number: int, body: bytes) -> bytes:
    files.remove(files.find(number), _text(body), True)
    return b""


def _rename(head: int) -> Callable[[TornFiles, int, bytes], bytes]:
    def work(files: TornFiles, number: int, body: bytes) -> bytes:
        (target,) = struct.unpack_from("<Q", body)
        old, new = body[head:].split(b"\0")[:2]
        files.rename(files.find(number), _text(old), files.find(target), _text(new))
        return b""

    return work


def _link(files: TornFiles, number: int, body: bytes) -> bytes:
    (of,) = struct.unpack_from("<Q", body)
    node = files.find(of)
    files.link(files.find(number), _text(body[8:]), node)
    return _entry(node)


def _statfs(files: TornFiles, number: int, body: bytes) -> bytes:
    free = max(0, files.room - files.used) // 4096
    return struct.pack("<5Q4I6I", files.room // 4096, free, free, 1 << 20, 1 << 20, 4096, 255, 4096, 0, *[0] * 6)


def _sync(files: TornFiles, number: int, body: bytes) -> bytes:
    files.sync(files.find(number))
    return b""


def _done(files: TornFiles, number: int, body: bytes) -> bytes:
    return b""


_WORK: dict[int, Callable[[TornFiles, int, bytes], bytes]] = {
    1: _lookup, 3: _getattr, 4: _setattr, 9: _mkdir, 10: _unlink, 11: _rmdir, 12: _rename(8), 13: _link, 14: _open,
    15: _read, 16: _write, 17: _statfs, 18: _done, 20: _sync, 25: _done, 26: _init, 27: _opendir, 28: _readdir,
    29: _done, 30: _sync, 35: _create, 38: _done, 45: _rename(16),
}  # fmt: skip
"""Opcode → what answers it; everything else is ENOSYS, which the kernel takes for "not supported"."""


def _say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(words: list[str]) -> int:
    """Mount, obey, unmount."""
    disk = TornDisk(words[0], TornFiles(int(words[1]), time.time))
    try:
        _say({"mounted": words[0]})
        for line in sys.stdin:
            order = json.loads(line)
            if order.get("do") == "end":
                break
            _say(disk.obey(order))
    finally:
        disk.end()
        sys.stdout.flush()
        # threads may still wait for the kernel
        os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
