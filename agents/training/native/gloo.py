"""Gloo: a blocked collective ends when the sockets of its group are shut down.

PyTorch 2.13's ``ProcessGroupGloo.abort`` and ``shutdown`` return and free nothing; a killed peer frees its ring
neighbours only (``torch/csrc/distributed/c10d/ProcessGroupGloo.cpp``; measured). ``shutdown(2)`` of the group's
connected TCP sockets by another thread frees every rank in a few milliseconds. The listening socket stays open:
shutting it down ends the process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator


def connected() -> dict[int, int]:
    """Descriptor → inode of every connected TCP socket of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            state = os.fstat(descriptor)
            if not stat.S_ISSOCK(state.st_mode):
                continue
            with _borrowed(descriptor) as sock:
                if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
                    sock.getpeername()
                    found[descriptor] = state.st_ino
        except OSError:
            # closed meanwhile, or not connected
            continue
    return found


class Sockets:
    """The sockets of process groups: those opened while groups were made."""

    def __init__(self) -> None:
        self._of_groups: dict[int, int] = {}
        self._watched: list[dict[int, int]] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Record the sockets that are opened while a group is made."""
        before = connected()
        self._watched.append(before)
        try:
            yield
        finally:
            self._watched.remove(before)
            self._of_groups.update(_new(before))

    def shut(self) -> int:
        """Shut down the sockets of the groups; their number. A descriptor that now belongs to another socket is left
        alone."""
        # sockets of groups that are being made
        for before in list(self._watched):
            self._of_groups.update(_new(before))
        count = 0
        for descriptor, inode in list(self._of_groups.items()):
            try:
                if os.fstat(descriptor).st_ino != inode:
                    continue
                with _borrowed(descriptor) as sock:
                    sock.shutdown(socket.SHUT_RDWR)
                count += 1
            except OSError:
                # closed by the group itself, or its peer is gone
                continue
        return count

    def forget(self) -> None:
        """Forget the sockets of ended groups."""
        self._of_groups.clear()


def _new(before: dict[int, int]) -> dict[int, int]:
    return {descriptor: inode for descriptor, inode in connected().items() if before.get(descriptor) != inode}


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    sock = socket.socket(fileno=descriptor)
    try:
        yield sock
    finally:
        sock.detach()
