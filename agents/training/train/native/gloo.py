"""Gloo: a blocked collective ends when the sockets of its group are shut down.

PyTorch 2.13's ``ProcessGroupGloo.abort`` and ``shutdown`` return and free nothing; a killed peer frees its ring
neighbours only (``torch/csrc/distributed/c10d/ProcessGroupGloo.cpp``; measured). ``shutdown(2)`` of the group's
connected TCP sockets by another thread frees every rank in a few milliseconds. The listening socket stays open:
shutting it down ends the process.

Gloo does not close every socket that was shut down: of one whose message has lost its buffer it neither reads the end
nor takes the error of a write, so epoll_wait returns at once, for ever, and the thread of the ended group uses a whole
processor. Such a socket is made edge-triggered, which epoll reports once; it stays registered, for gloo ends the
process when it cannot remove it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

EPOLL_CTL_MOD = 3


class _Event(ctypes.Structure):
    """``struct epoll_event``, which is packed on x86-64 only."""

    if platform.machine() == "x86_64":
        _pack_ = 1
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


def is_connected(descriptor: int) -> bool:
    """Whether this is a connected TCP socket."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with _borrowed(descriptor) as sock:
            if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                return False
            sock.getpeername()
            return True
    except OSError:
        # closed meanwhile, or not connected
        return False


def epolls() -> list[int]:
    """The epoll descriptors of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                found.append(int(name))
    return found


def entries(loop: int) -> list[dict[str, str]]:
    """What an epoll holds, as the kernel shows it."""
    try:
        # not by pathlib, which would intern the number
        with open(f"/proc/self/fdinfo/{loop}") as file:
            lines = file.read().splitlines()
    except OSError:
        # closed meanwhile
        return []
    # tfd:       11 events:       1d data:     7f3f70005c50  pos:0 ino:451dc sdev:9
    found = [dict(zip(*[iter(line.replace(":", ": ").split())] * 2, strict=False)) for line in lines]
    return [one for one in found if "tfd:" in one]


def held(loop: int) -> dict[int, int]:
    """Descriptor → inode of what an epoll holds."""
    # kernels before 4.13 show no inode
    return {
        int(one["tfd:"]): int(one["ino:"], 16) if "ino:" in one else _inode(int(one["tfd:"])) for one in entries(loop)
    }


class Sockets:
    """The sockets of gloo's groups, with the generation of each: those that the epoll of its device holds. Groups of
    several generations connect at once, in threads, so that when a socket was opened says nothing.
    """

    def __init__(self) -> None:
        self._of_groups: dict[int, tuple[int, int]] = {}
        """Descriptor → inode, generation."""
        self._loops: list[tuple[int, int]] = []
        """The epoll of each device, as a descriptor of its own, and the generation."""
        self._making = threading.Lock()
        self._shut: dict[int, int] = {}

    def device(self, generation: int, create: Callable[[], Any]) -> Any:
        """Let gloo make the device of a group: it has an epoll of its own, with a listening socket from the start."""
        with self._making:
            before = {inode for loop in epolls() for inode in held(loop).values()}
            made = create()
            before.update(inode for loop, _ in self._loops for inode in held(loop).values())
            for loop in epolls():
                inodes = set(held(loop).values())
                if inodes and not inodes & before:
                    with contextlib.suppress(OSError):
                        self._loops.append((os.dup(loop), generation))
                    break
        return made

    def connected(self, generation: int) -> None:
        """The groups of this generation, and of those before it, may have connected sockets."""
        self.forget()
        with self._making:
            for loop, number in self._loops:
                if number <= generation:
                    sockets = held(loop)
                    found = ((descriptor, inode) for descriptor, inode in sockets.items() if is_connected(descriptor))
                    self._of_groups.update({descriptor: (inode, number) for descriptor, inode in found})

    def forget(self) -> None:
        """Let the loops go of groups that are gone: nothing is in them."""
        with self._making:
            for loop, number in list(self._loops):
                if not held(loop):
                    self._loops.remove((loop, number))
                    os.close(loop)

    def broken(self, generation: int) -> bool:
        """Whether a link of this generation's groups is closed or shut down."""
        poll, watched = select.poll(), False
        for descriptor, (inode, number) in list(self._of_groups.items()):
            if number != generation:
                continue
            if _inode(descriptor) != inode:
                return True
            poll.register(descriptor, select.POLLRDHUP)
            watched = True
        return watched and bool(poll.poll(0))

    def shut(self, generation: int) -> int:
        """Shut down the sockets of groups of generations before this one, those of the next group may be connected
        already; their number. A descriptor that now belongs to another socket is left alone."""
        self.connected(generation - 1)
        count = 0
        for descriptor, (inode, number) in list(self._of_groups.items()):
            if number >= generation:
                continue
            if _inode(descriptor) != inode:
                # closed by the group itself; the number may belong to anything now
                self._of_groups.pop(descriptor, None)
                continue
            self._shut[descriptor] = inode
            count += _shut_down(descriptor, inode)
        return count

    def closed(self, generation: int) -> bool:
        """Whether gloo has closed all sockets of groups of generations before this one."""
        of_groups = list(self._of_groups.items())
        return not any(number < generation and _inode(fd) == inode for fd, (inode, number) in of_groups)

    def quiet(self) -> int:
        """Let no thread spin on sockets that were shut down and that their group has not closed; their number. Called
        when this rank has left the collectives of that group."""
        shut, self._shut = self._shut, {}
        return quiet({fd: inode for fd, inode in shut.items() if _inode(fd) == inode})


def quiet(sockets: Mapping[int, int]) -> int:
    """Make these sockets (descriptor → inode) edge-triggered in every epoll of this process that holds them; how many
    changes that were."""
    count = 0
    for loop in epolls() if sockets else ():
        for found in entries(loop):
            descriptor = int(found["tfd:"])
            if descriptor in sockets and int(found.get("ino:", "0"), 16) == sockets[descriptor]:
                events = int(found["events:"], 16) | select.EPOLLET
                count += _modify(loop, descriptor, events, int(found["data:"], 16))
    return count


def _modify(epoll: int, descriptor: int, events: int, data: int) -> bool:
    """epoll_ctl(2) that keeps the data of an entry, which Python's does not. False when there is no such entry now."""
    event = _Event(events, data)
    return bool(ctypes.CDLL(None).epoll_ctl(epoll, EPOLL_CTL_MOD, descriptor, ctypes.byref(event)) == 0)


def _shut_down(descriptor: int, inode: int) -> bool:
    """Shut a socket down, if this is still the one; False when it is closed, or its peer is gone."""
    try:
        # one of its own: the number may belong to another socket as soon as gloo closes this one, and a listening
        # socket that is shut down ends the process
        own = os.dup(descriptor)
    except OSError:
        return False
    try:
        if _inode(own) != inode:
            return False
        with _borrowed(own) as sock:
            sock.shutdown(socket.SHUT_RDWR)
        return True
    except OSError:
        return False
    finally:
        os.close(own)


def _inode(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return -1


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    sock = socket.socket(fileno=descriptor)
    try:
        yield sock
    finally:
        sock.detach()
