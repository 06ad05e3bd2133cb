"""The writing process: owns the pool, writes saves to the disk, serves reads from memory.

One per user and work folder. It survives the ranks that it serves; when it dies, ranks write their own pending saves
from the shared memory, which they keep mapped.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from belay.agents.training.checkpoint import blocks, durable, peers, sources, sums, wire
from belay.agents.training.checkpoint.client_jobs import ClientJobs
from belay.agents.training.checkpoint.errors import CheckpointError, Damaged
from belay.agents.training.checkpoint.jobs import WriteJob, WriteQueue
from belay.agents.training.checkpoint.peers import SentContent
from belay.agents.training.checkpoint.pool import Pool, Slot
from belay.agents.training.checkpoint.ring import Ring
from belay.agents.training.checkpoint.settings import WriterSettings
from belay.agents.training.checkpoint.slots import SlotState
from belay.agents.training.checkpoint.sources import FileSource

log = logging.getLogger("belay.checkpoint")

WAIT_LIMIT_S = 5.0
"""Maximum seconds that a request waits in this process; clients ask again."""
CLIENTS = 512
DRAIN_S = 25.0
_FAILURES = 1000


class Writer:
    """Serves clients on ``listener`` until it has been idle for long or is asked to stop."""

    def __init__(self, listener: socket.socket, work: Path, settings: WriterSettings) -> None:
        self.listener, self.settings = listener, settings
        self.changed = threading.Condition()
        # the numbers of saves differ from those of earlier processes
        self.pool = Pool(settings.capacity, first=time.time_ns())
        cores = blocks.workers(64)
        # more threads than a disk can use only cost: writers for several files, with two threads each
        self.jobs = WriteQueue(
            self._finished, writers=min(settings.writers, 4 * cores), threads=min(4, cores), work=work,
            forever=settings.forever,
        )  # fmt: skip
        key = peers.secret(settings.peer_secret) if settings.peer_listen or settings.peer else b""
        self.ring = Ring(self.pool, self.changed, settings.peer_listen, settings.peer, key)
        self.failures: OrderedDict[int, tuple[str, str]] = OrderedDict()
        self.durable: dict[str, tuple[int, int, int, int]] = {}
        self.preloading: set[str] = set()
        self.clients: dict[int, socket.socket] = {}
        self._numbers = itertools.count(1)
        self._last = time.monotonic()
        self._jobs = ClientJobs()
        self._probe = 0.0
        self.stopping = False

    def serve(self) -> None:
        """Accept clients until their jobs have ended, nothing has happened for ``idle_s`` seconds, or until
        :meth:`stop`."""
        self.listener.settimeout(0)
        while not self.stopping:
            self._jobs.wait(self.listener, 1.0)
            try:
                end, _ = self.listener.accept()
            except BlockingIOError:
                if self._idle():
                    break
                continue
            if not _same_user(end) or len(self.clients) >= CLIENTS:
                end.close()
                continue
            number = next(self._numbers)
            with self.changed:
                self.clients[number] = end
            threading.Thread(
                target=self._serve_client, args=(number, end), daemon=True, name=f"client-{number}"
            ).start()
        self._drain()
        self.jobs.stop()

    def _drain(self) -> None:
        """Write complete saves to the disk before leaving, within the grace period of a container."""
        until = time.monotonic() + DRAIN_S
        with self.changed:
            while any(slot.state is SlotState.COMMITTED for slot in self.pool.slots.values()):
                if not self.changed.wait(until - time.monotonic()):
                    return

    def _idle(self) -> bool:
        with self.changed:
            status = self.jobs.status()
            if self.clients or status["waiting"] or status["running"]:
                self._last = time.monotonic()
                return False
            # copies of another host outlive the job of this one
            if self._jobs.ended() and not self.settings.peer_listen:
                return True
            return time.monotonic() - self._last > self.settings.idle_s

    def _serve_client(self, number: int, end: socket.socket) -> None:
        end.settimeout(None)
        try:
            while True:
                request, handle = wire.receive(end)
                if handle is not None:
                    os.close(handle)
                answer, given = self._answer(number, request)
                wire.send(end, answer, given)
        except (EOFError, OSError, ValueError) as error:
            if isinstance(error, ValueError):
                log.warning("client %d sent an unreadable message and is disconnected: %s", number, error)
        finally:
            with self.changed:
                del self.clients[number]
                self.pool.leave(number)
                self._last = time.monotonic()
                self.changed.notify_all()
            end.close()

    def _answer(self, client: int, request: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        method = getattr(self, f"_do_{request.get('do')}", None)
        if method is None:
            return {"error": f"unknown request {request.get('do')!r:.40}"}, None
        try:
            answer: dict[str, Any] | tuple[dict[str, Any], int] = method(client, request)
        except (KeyError, ValueError, TypeError, OSError) as error:
            return {"error": f"{type(error).__name__}: {str(error)[:500]}"}, None
        return answer if isinstance(answer, tuple) else (answer, None)

    def _do_hello(self, client: int, request: dict[str, Any]) -> dict[str, Any]:
        self._jobs.came(request.get("job"))
        return {"version": wire.VERSION, "pid": os.getpid(), "capacity": self.pool.limit}

    def _do_allocate(self, client: int, request: dict[str, Any]) -> dict[str, Any] | tuple[dict[str, Any], int]:
        size, owner = request["size"], str(request["owner"])[:200]
        if type(size) is not int or size < 0:
            raise ValueError("size must be a number of bytes")
        until = time.monotonic() + min(float(request.get("wait", 0)), WAIT_LIMIT_S)
        with self.changed:
            if not self.jobs.serviceable and time.monotonic() - self._probe < 10.0:
                return {"refused": f"{self.jobs.in_row} writes in a row have failed", **self._numbers_now()}
            if not self.jobs.serviceable:
                # an occasional save tests whether the storage works again
                self._probe = time.monotonic()
            while (slot := self.pool.allocate(size, owner, client)) is None:
                if not self.changed.wait(until - time.monotonic()) and time.monotonic() >= until:
                    return {"full": True, **self._numbers_now()}
            return {
                "slot": slot.number,
                "generation": slot.generation,
                "length": slot.memory.length,
            }, slot.memory.handle

    def _do_commit(self, client: int, request: dict[str, Any]) -> dict[str, Any]:
        paths = [_path(text) for text in request["paths"]]
        size, mode = request["size"], request.get("mode", 0o600)
        with self.changed:
            slot = self.pool.find(request["slot"], request["generation"])
            if slot.client != client or slot.state is not SlotState.FILLING:
                raise ValueError(f"slot {slot.number} is not being filled by this client")
            if type(size) is not int or not 0 <= size <= slot.memory.capacity or type(mode) is not int or not paths:
                raise ValueError("size, mode or paths are out of range")
            slot.size, slot.path, slot.links = size, str(paths[0]), tuple(str(path) for path in paths[1:])
            slot.mark(SlotState.COMMITTED)
            for old in list(self.pool.slots.values()):
                # older content of this name is replaced; one that is being written stays until it is done
                if old.path == slot.path and old is not slot and old.idle:
                    old.path, old.links = "", ()
            self.jobs.add(slot, paths[0], tuple(paths[1:]), mode & 0o777)
            self.ring.offer(slot)
        return {}

    def _do_restore(self, client: int, request: dict[str, Any]) -> dict[str, Any]:
        """Fetch the newest set below a folder from the peer: into memory, and from there to the disk."""
        folder = _path(request["folder"])

        def take(what: SentContent) -> Slot:
            with self.changed:
                slot = self.pool.allocate(what.size, "restored", client)
            if slot is None:
                raise OSError(f"no room in the pool for {what.path}")
            return slot

        def give(slot: Slot, path: str) -> None:
            durable.folder(Path(path).parent)
            with self.changed:
                slot.path = path
                slot.mark(SlotState.COMMITTED)
                self.jobs.add(slot, Path(path), (), 0o600)

        if not self.settings.peer:
            raise ValueError("no peer is set")
        try:
            files, size = self.ring.fetch(folder, take, give)
        except (EOFError, CheckpointError) as error:
            raise OSError(str(error)) from error
        return {"files": files, "bytes": size}

    def _do_drop(self, client: int, request: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            slot = self.pool.find(request["slot"], request["generation"])
            if slot.client == client and slot.state is SlotState.FILLING:
                self.pool.release(slot)
                self.changed.notify_all()
        return {}

    def _do_wait(self, client: int, request: dict[str, Any]) -> dict[str, Any]:
        """Wait until the listed saves, or all, are durable or failed."""
        wanted = [int(number) for number in request["generations"]] if request.get("generations") else None
        until = time.monotonic() + min(float(request.get("wait", 0)), WAIT_LIMIT_S)
        with self.changed:
            while True:
                pending = [
                    slot.generation
                    for slot in self.pool.slots.values()
                    if slot.state is SlotState.COMMITTED and (wanted is None or slot.generation in wanted)
                ]
                if not pending or not self.changed.wait(max(0.0, until - time.monotonic())):
                    break
            failed = {
                str(number): list(reason)
                for number, reason in self.failures.items()
                if wanted is None or number in wanted
            }
            return {"pending": pending[:1000], "failed": dict(list(failed.items())[:50])}

    def _do_open(self, client: int, request: dict[str, Any]) -> dict[str, Any] | tuple[dict[str, Any], int]:
        path = _path(request["path"])
        with self.changed:
            if str(path) in self.preloading and not self.changed.wait_for(
                lambda: str(path) not in self.preloading, min(float(request.get("wait", 0)), WAIT_LIMIT_S)
            ):
                return {"loading": True}
            slot = self.pool.resident(str(path))
            if slot is None or (slot.state is SlotState.DURABLE and self.durable.get(str(path)) != _identity(path)):
                # never in memory, or another program replaced or removed the file
                return {"absent": True}
            slot.readers[client] = slot.readers.get(client, 0) + 1
            self.pool.touch(slot)
            answer = {
                "slot": slot.number,
                "generation": slot.generation,
                "size": slot.size,
                "length": slot.memory.length,
            }
            return answer, slot.memory.handle

    def _do_list(self, client: int, request: dict[str, Any]) -> dict[str, Any]:
        """Complete files in memory below a folder, 500 at a time in order; ``after`` is the last known one."""
        prefix, after = str(_path(request["folder"])).rstrip("/") + "/", str(request.get("after", ""))
        with self.changed:
            found = {
                path: (slot.size, slot.state is SlotState.DURABLE)
                for slot in self.pool.slots.values()
                for path in (slot.path, *slot.links)
                if path.startswith(prefix) and path > after and slot.state in (SlotState.COMMITTED, SlotState.DURABLE)
            }
        # durable content is served from memory only while the file on the disk is unchanged
        fresh = sorted(
            (path, size)
            for path, (size, durable) in found.items()
            if not durable or self.durable.get(path) == _identity(Path(path))
        )
        return {"files": fresh[:500], "more": len(fresh) > 500}

    def _do_close(self, client: int, request: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            slot = self.pool.find(request["slot"], request["generation"])
            if slot.readers.get(client, 0) > 1:
                slot.readers[client] -= 1
            else:
                slot.readers.pop(client, None)
            self.changed.notify_all()
        return {}

    def _do_preload(self, client: int, request: dict[str, Any]) -> dict[str, Any]:
        paths = [_path(text) for text in request["paths"]]
        missing = [str(path) for path in paths if not path.is_file()]
        if missing:
            raise ValueError(f"not a file: {', '.join(missing)[:400]}")
        with self.changed:
            # ranks of one host ask for the same files
            paths = [path for path in dict.fromkeys(paths) if str(path) not in self.preloading]
            self.preloading.update(map(str, paths))
        threading.Thread(target=self._preload, args=(paths,), daemon=True, name="preload").start()
        return {}

    def _preload(self, paths: list[Path]) -> None:
        for path in paths:
            try:
                self._preload_one(path)
            except Exception as error:
                log.warning("%s was not taken into memory: %s", path, error)
            finally:
                with self.changed:
                    self.preloading.discard(str(path))
                    self.changed.notify_all()

    def _preload_one(self, path: Path) -> None:
        identity, source = _identity(path), FileSource(path)
        try:
            with self.changed:
                if identity is None or (self.pool.resident(str(path)) and self.durable.get(str(path)) == identity):
                    return
                slot = self.pool.allocate(source.size, "preload", -1)
            if slot is None:
                raise OSError("no room in the pool")
            try:
                self._fill(slot, source, path)
            except BaseException:
                with self.changed:
                    self.pool.release(slot)
                raise
            with self.changed:
                slot.path, slot.client = str(path), None
                slot.mark(SlotState.DURABLE)
                self.durable[str(path)] = identity
                self.changed.notify_all()
        finally:
            source.close()

    def _fill(self, slot: Slot, source: FileSource, path: Path) -> None:
        """Read a whole file, verified: what comes from memory later is not verified again."""
        content = slot.memory.content(source.size)
        known: list[sums.Sums | None] = [*sums.read(path)]
        fitting = [entry for entry in known if entry and entry.size == source.size] if known else [None]
        if not any(not sources.gather(source, [(0, content)], entry, blocks.workers()) for entry in fitting):
            raise Damaged(f"{path} does not match the checksums kept beside it")

    def _do_status(self, client: int, request: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            return {**self.jobs.status(), **self._numbers_now(), **self.ring.status(), "clients": len(self.clients)}

    def _do_watch(self, client: int, request: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _do_stop(self, client: int, request: dict[str, Any]) -> dict[str, Any]:
        self.stopping = True
        return {}

    def _numbers_now(self) -> dict[str, Any]:
        states = [slot.state for slot in self.pool.slots.values()]
        return {
            "capacity": self.pool.limit,
            "used": self.pool.used,
            **{state.name.lower(): states.count(state) for state in SlotState},
        }

    def _finished(self, job: WriteJob, error: str | None) -> None:
        with self.changed:
            if error is None:
                for path in (job.path, *job.links):
                    if (identity := _identity(path)) is not None:
                        self.durable[str(path)] = identity
                job.slot.client = None
                self._forget()
                job.slot.mark(SlotState.DURABLE)
            else:
                self.failures[job.generation] = (str(job.path), error[:500])
                while len(self.failures) > _FAILURES:
                    self.failures.popitem(last=False)
                job.slot.mark(SlotState.FAILED)
                self.pool.release(job.slot)
            self.changed.notify_all()

    def _forget(self) -> None:
        """Drop the identities of files that are no longer in memory."""
        resident = {path for other in self.pool.slots.values() for path in (other.path, *other.links)}
        for path in [path for path in self.durable if path not in resident]:
            del self.durable[path]


def _path(text: Any) -> Path:
    if not isinstance(text, str) or not text.startswith("/") or "\0" in text or len(text) > 4096:
        raise ValueError(f"{text!r:.100} is not an absolute path")
    return Path(text)


def _identity(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _same_user(end: socket.socket) -> bool:
    _, user, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user in (os.getuid(), 0))
