"""A file system in memory that knows what a power cut leaves: what was synced, and any part of what was not.

Contents are durable after ``fsync`` of the file, names after ``fsync`` of their folder. Writes that were not synced are
dropped, reordered or torn at a cut, page by page; so are changes of names, each of them whole. This is what POSIX
permits, and more than a journal does: what survives here survives on any disk.
"""

from __future__ import annotations

import errno
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

PAGE = 4096
SECTOR = 512


@dataclass
class Node:
    """A file or a folder: what programs see (``data``, ``names``), what the disk has (``safe``, ``safe_names``), and
    the changes in between, in order.
    """

    number: int
    mode: int
    data: bytearray = field(default_factory=bytearray)
    safe: bytes = b""
    dirty: set[int] = field(default_factory=set)
    """Pages written since the last sync."""
    names: dict[str, Node] = field(default_factory=dict)
    safe_names: dict[str, Node] = field(default_factory=dict)
    changes: list[dict[str, Node | None]] = field(default_factory=list)
    """Names given (or taken, ``None``) since the last sync; those of one entry appear together."""
    links: int = 1
    time: float = 0.0

    @property
    def folder(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.mode)


class TornFiles:
    """The files of one disk of ``room`` bytes. Errors are ``OSError`` with the number that a kernel wants."""

    def __init__(self, room: int, clock: Callable[[], float]) -> None:
        self.room, self.clock = room, clock
        self.nodes: dict[int, Node] = {}
        self._last = 0
        self.root = self._node(stat.S_IFDIR | 0o777)
        self.cuts = self.dropped = self.torn = 0

    def _node(self, mode: int) -> Node:
        self._last += 1
        self.nodes[self._last] = Node(self._last, mode, time=self.clock())
        return self.nodes[self._last]

    def find(self, number: int) -> Node:
        """The node of this number; a number from before a cut is stale."""
        try:
            return self.nodes[number]
        except KeyError:
            raise OSError(errno.ESTALE, "from before the cut") from None

    def child(self, parent: Node, name: str) -> Node:
        """The node of this name."""
        if name not in parent.names:
            raise OSError(errno.ENOENT, name)
        return parent.names[name]

    def make(self, parent: Node, name: str, mode: int) -> Node:
        """A new file or folder."""
        if name in parent.names:
            raise OSError(errno.EEXIST, name)
        found = self._node(mode)
        self._rename(parent, {name: found})
        return found

    def link(self, parent: Node, name: str, of: Node) -> None:
        """One more name of a file."""
        if name in parent.names:
            raise OSError(errno.EEXIST, name)
        of.links += 1
        self._rename(parent, {name: of})

    def remove(self, parent: Node, name: str, folder: bool) -> None:
        """Take a name away."""
        found = self.child(parent, name)
        if found.folder != folder:
            raise OSError(errno.ENOTDIR if folder else errno.EISDIR, name)
        if found.names:
            raise OSError(errno.ENOTEMPTY, name)
        found.links -= 1
        self._rename(parent, {name: None})

    def rename(self, parent: Node, old: str, target: Node, new: str) -> None:
        """Rename within one folder, at once."""
        if parent is not target:
            raise OSError(errno.EXDEV, "other folder")
        found = self.child(parent, old)
        if (replaced := parent.names.get(new)) is not None and replaced is not found:
            if replaced.names:
                raise OSError(errno.ENOTEMPTY, new)
            replaced.links -= 1
        self._rename(parent, {old: None, new: found})

    def _rename(self, parent: Node, change: dict[str, Node | None]) -> None:
        parent.changes.append(change)
        parent.time = self.clock()
        _apply(parent.names, change)

    def write(self, node: Node, start: int, data: bytes) -> None:
        """Write bytes; the disk has them after the next sync."""
        end = start + len(data)
        if end > len(node.data):
            if self.used + end - len(node.data) > self.room:
                raise OSError(errno.ENOSPC, "full")
            node.data.extend(bytes(end - len(node.data)))
        node.data[start:end] = data
        node.dirty.update(range(start // PAGE, -(-end // PAGE)))
        node.time = self.clock()

    def resize(self, node: Node, size: int) -> None:
        """Truncate or extend."""
        old = len(node.data)
        if size < old:
            del node.data[size:]
        else:
            node.data.extend(bytes(size - old))
        node.dirty.update(range(min(old, size) // PAGE, max(old, size) // PAGE + 1))

    def sync(self, node: Node) -> None:
        """Everything of this node is on the disk now."""
        if node.folder:
            for change in node.changes:
                _apply(node.safe_names, change)
            node.changes = []
        else:
            node.safe, node.dirty = bytes(node.data), set()

    @property
    def used(self) -> int:
        """Bytes of all files that have a name."""
        return sum(len(node.data) for node in self.nodes.values() if node.links > 0)

    def cut(self, chance: random.Random) -> None:
        """Power is cut: every node becomes what a disk may have of it. All have other numbers afterwards."""
        self.cuts += 1
        known: dict[int, Node] = {}
        old_root, self.nodes = self.root, {}
        self.root = self._left(old_root, chance, known)
        # the root keeps its number, which the kernel never asks for again
        self.nodes[1] = self.root
        self.root.number = 1

    def _left(self, node: Node, chance: random.Random, known: dict[int, Node]) -> Node:
        if node.number in known:
            known[node.number].links += 1
            return known[node.number]
        left = self._node(node.mode)
        known[node.number] = left
        left.time = node.time
        if not node.folder:
            left.safe = self._content(node, chance)
            left.data = bytearray(left.safe)
            return left
        names = dict(node.safe_names)
        whole = chance.random() < 0.5
        upto = chance.randint(0, len(node.changes))
        for place, change in enumerate(node.changes):
            # half of the disks keep the order of changes, as a journal does
            if place < upto if whole else chance.random() < 0.5:
                _apply(names, change)
            else:
                self.dropped += 1
        left.names = {name: self._left(found, chance, known) for name, found in names.items()}
        left.safe_names = dict(left.names)
        return left

    def _content(self, node: Node, chance: random.Random) -> bytes:
        size = len(node.safe) if chance.random() < 0.5 else len(node.data)
        found = bytearray(node.safe[:size].ljust(size, b"\0"))
        for page in node.dirty:
            start = page * PAGE
            new = node.data[start : min(start + PAGE, size)]
            fate = chance.random()
            if fate < 0.4:
                found[start : start + len(new)] = new
            elif fate < 0.7:
                self.dropped += 1
            elif new:
                # only some sectors of the page, not in order
                self.torn += 1
                for sector in range(0, len(new), SECTOR):
                    if chance.random() < 0.5:
                        part = new[sector : sector + SECTOR]
                        found[start + sector : start + sector + len(part)] = part
        return bytes(found[:size])


def _apply(names: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def number_of(error: BaseException) -> int:
    """The errno to answer with."""
    return error.errno or errno.EIO if isinstance(error, OSError) else errno.EIO
