"""A rank's side of the pool: fills slots by parallel copies, follows saves to the disk, survives the writing process.

When the writing process dies, this process writes its saves that are not yet durable, from the shared memory that it
still holds; later saves start a new writing process, or go to the disk directly when none can be started.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from belay import IMPORT_ROOT
from belay.agents.training.checkpoint import blocks, durable, wire
from belay.agents.training.checkpoint.errors import CheckpointError, PoolFull, WriterGone
from belay.agents.training.checkpoint.settings import WriterSettings
from belay.agents.training.checkpoint.slots import Memory, SlotState

log = logging.getLogger("belay.checkpoint")

STARTS = 3
START_WAIT_S = 60.0
DEATH_WAIT_S = 2.0
DIRECT_WAIT_S = 600.0
RESTORE_WAIT_S = 3600.0
PRELOAD_WAIT_S = 600.0
"""Seconds for which a file that is being taken into memory is awaited, before it is read a second time."""
REQUEST_WAIT_S = 30.0
"""Limit of one answer; the writing process itself waits at most 5 s."""


@dataclass
class Ticket:
    """A save in shared memory: ``paths`` it goes to, ``size`` in bytes; ``error`` when it could not be written."""

    memory: Memory
    slot: int
    generation: int
    size: int
    paths: tuple[Path, ...] = ()
    mode: int = 0o600
    epoch: int = 0
    error: str | None = None
    rescued: threading.Event = field(default_factory=threading.Event)

    @property
    def durable(self) -> bool:
        """Whether the save is on the disk under all its names."""
        if self.error is not None:
            return False
        generation, state, _ = self.memory.header
        # another generation: the slot was reused, which happens to durable saves only
        return self.rescued.is_set() or generation != self.generation or state is SlotState.DURABLE


@dataclass(frozen=True)
class Resident:
    """A file that lies in a slot of the pool; ``size`` in bytes."""

    memory: Memory
    size: int

    @property
    def content(self) -> memoryview:
        """Its bytes."""
        return self.memory.content(self.size)


class WriterClient:
    """One connection of this process to the writing process of ``work``; safe for threads."""

    def __init__(self, work: Path, settings: WriterSettings | None = None, owner: str = "", job: int = 0) -> None:
        """``job``: the process with which this client's job ends (0: unknown)."""
        self.job = job
        self.work, self.settings = work.absolute(), settings or WriterSettings()
        self.owner = owner or f"pid-{os.getpid()}"
        self._guard = threading.RLock()
        self._end: socket.socket | None = None
        self._memories: dict[int, Memory] = {}
        self._pending: list[Ticket] = []
        self._epoch = 0
        self._dead: dict[int, threading.Event] = {}

    @property
    def threads(self) -> int:
        """Threads that copy a save."""
        return blocks.workers(self.settings.threads) if self.settings.parallel else 1

    def connect(self, start: bool = True) -> None:
        """Ensure a connection; with ``start``, start the writing process if there is none.

        Raises :class:`WriterGone` with the cause.
        """
        with self._guard:
            if self._end is not None:
                return
            # first write the saves of a dead writing process, which would otherwise replace newer ones
            self._rescue()
            try:
                self._end = self._connected()
            except OSError as error:
                if not start:
                    raise WriterGone(f"no writing process in {self.work}: {error}") from error
                self._end = self._started()
            self._memories = {}
            self._epoch += 1
            self._dead[self._epoch] = threading.Event()
            watcher = threading.Thread(target=self._watch, args=(self._epoch,), daemon=True, name="checkpoint-watch")
            watcher.start()

    def _connected(self) -> socket.socket:
        end = wire.connect(self.work, REQUEST_WAIT_S)
        try:
            wire.send(end, {"do": "hello", "job": self.job})
            answer, _ = wire.receive(end)
        except (EOFError, ValueError) as error:
            end.close()
            raise ConnectionError(str(error)) from error
        if answer.get("version") != wire.VERSION:
            end.close()
            raise ConnectionError(
                f"the writing process speaks version {answer.get('version')!r:.20}, not {wire.VERSION}"
            )
        return end

    def _started(self) -> socket.socket:
        """Start the writing process, one rank at a time, at most three tries within a minute."""
        reason, until = "", time.monotonic() + START_WAIT_S
        self.work.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.work / ".start.lock", "w") as lock:
            for _ in range(STARTS):
                try:
                    _locked(lock.fileno(), until)
                    return self._connected()
                except OSError as error:
                    reason = str(error)
                try:
                    self._spawn(max(1.0, until - time.monotonic()))
                    return self._connected()
                except (OSError, subprocess.SubprocessError, WriterGone) as error:
                    reason = str(error)
                if time.monotonic() > until:
                    break
        raise WriterGone(f"the writing process of {self.work} cannot be started: {reason[:300]}")

    def _spawn(self, wait_s: float) -> None:
        known = os.environ.get("PYTHONPATH")
        environment = {**os.environ, "PYTHONPATH": f"{IMPORT_ROOT}:{known}" if known else str(IMPORT_ROOT)}
        # libraries that training preloads are not needed in the writing process
        environment.pop("LD_PRELOAD", None)
        done = subprocess.run(
            [sys.executable, "-m", "belay.agents.training.checkpoint", str(self.work), self.settings.text()],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            timeout=wait_s, check=False, close_fds=True,
        )  # fmt: skip
        if done.returncode:
            raise WriterGone(done.stderr.decode(errors="replace").strip()[-300:])

    def _watch(self, epoch: int) -> None:
        """Detect the death of the writing process at once."""
        try:
            end = self._connected()
            end.settimeout(None)
            end.recv(1)
            end.close()
        except OSError:
            # it died in between
            pass
        self._dead[epoch].set()
        with self._guard:
            if epoch == self._epoch and self._end is not None:
                self._end.close()
                self._end = None
                self._memories = {}
            self._rescue()

    def _rescue(self) -> None:
        """Write the saves that dead writing processes had not written, in order."""
        with self._guard:
            left = [ticket for ticket in self._pending if self._dead[ticket.epoch].is_set()]
            self._pending = [ticket for ticket in self._pending if ticket not in left]
            left = [ticket for ticket in left if not (ticket.durable or ticket.error)]
            if left:
                log.warning("the writing process of %s has died; %d saves are written directly", self.work, len(left))
            for ticket in left:
                try:
                    self.write(ticket)
                except OSError as error:
                    log.error("%s was not written: %s", ticket.paths[0], error)

    def ask(self, request: dict[str, Any], epoch: int | None = None) -> tuple[dict[str, Any], int | None]:
        """Send a request and return its answer; with ``epoch`` only to that writing process.

        Raises :class:`WriterGone`, and :class:`CheckpointError` when the request is refused.
        """
        with self._guard:
            if epoch is not None and (self._end is None or epoch != self._epoch):
                raise WriterGone(f"the writing process of {self.work} that held the slot is gone")
            self.connect()
            assert self._end is not None
            try:
                wire.send(self._end, request)
                answer, handle = wire.receive(self._end)
            except (OSError, EOFError, ValueError) as error:
                self._end.close()
                self._end = None
                if isinstance(error, ValueError):
                    raise CheckpointError(str(error)) from error
                raise WriterGone(f"the writing process of {self.work} is gone: {error}") from error
        if "error" in answer:
            raise CheckpointError(f"the writing process refuses {request.get('do')}: {answer['error']}")
        return answer, handle

    def allocate(self, size: int, wait_s: float = 600.0) -> Ticket:
        """Shared memory for a save. Raises :class:`PoolFull` with numbers when no room comes within ``wait_s``."""
        until, waited = time.monotonic() + wait_s, False
        while True:
            left = until - time.monotonic()
            answer, handle = self.ask({"do": "allocate", "size": size, "owner": self.owner, "wait": min(left, 1.0)})
            if handle is not None:
                memory = self._memory(answer, handle)
                return Ticket(memory, answer["slot"], answer["generation"], size, epoch=self._epoch)
            if "refused" in answer or left <= 0:
                raise PoolFull(_full(size, answer))
            if not waited:
                log.warning("saving waits for the disk: %s", _full(size, answer))
                waited = True

    def _memory(self, answer: dict[str, Any], handle: int) -> Memory:
        with self._guard:
            known = self._memories.get(answer["slot"])
            if known is not None and os.path.sameopenfile(known.handle, handle):
                os.close(handle)
                return known
            memory = self._memories[answer["slot"]] = Memory(handle, answer["length"])
            return memory

    def commit(self, ticket: Ticket, paths: tuple[Path, ...], mode: int = 0o600) -> None:
        """Commit a filled slot: from now on it will be written, even if one of the processes dies.

        Should the writing process be dead, this process writes the save before it returns; ``OSError`` then, if that
        fails. Raises :class:`WriterGone` when it lives but no longer keeps the slot for us.
        """
        ticket.paths, ticket.mode = paths, mode
        request = {"do": "commit", "slot": ticket.slot, "generation": ticket.generation, "size": ticket.size,
                   "paths": [str(path) for path in paths], "mode": mode}  # fmt: skip
        with self._guard:
            failed = [other for other in self._pending if other.error][-100:]
            self._pending = failed + [other for other in self._pending if not (other.durable or other.error)]
            same = self._end is not None and ticket.epoch == self._epoch
            if same:
                self._pending.append(ticket)
        try:
            if not same:
                raise WriterGone("the writing process was lost while the save was being copied")
            self.ask(request, ticket.epoch)
        except WriterGone as error:
            if not self._dead[ticket.epoch].wait(DEATH_WAIT_S):
                # the slot may have been reused: it must not be written from
                self._withdraw(ticket)
                raise
            self.before_direct(paths, ticket)
            log.warning("%s; %s is written directly", error, paths[0])
            self.write(ticket)
        except CheckpointError:
            self._withdraw(ticket)
            raise

    def _withdraw(self, ticket: Ticket) -> None:
        """Forget a save that the caller writes in another way."""
        with self._guard:
            self._pending = [other for other in self._pending if other is not ticket]

    def before_direct(self, paths: tuple[Path, ...], itself: Ticket | None = None) -> None:
        """Wait until earlier saves of these names are on the disk, since they would replace a direct write.

        Raises ``OSError`` when they still wait for the storage after ten minutes.
        """
        with self._guard:
            self._rescue()
            earlier = [
                ticket for ticket in self._pending if ticket is not itself and not set(paths).isdisjoint(ticket.paths)
            ]
        if self.wait(earlier, DIRECT_WAIT_S):
            raise OSError(errno.EBUSY, "earlier saves of this name still wait for the storage", str(paths[0]))

    def failures(self) -> list[str]:
        """Saves of this process that could not be written, with reasons; each is returned once."""
        with self._guard:
            failed = [ticket for ticket in self._pending if ticket.error]
            self._pending = [ticket for ticket in self._pending if not ticket.error]
        return [f"{ticket.paths[0]}: {ticket.error}" for ticket in failed]

    def drop(self, ticket: Ticket) -> None:
        """Release a slot whose save was abandoned."""
        try:
            self.ask({"do": "drop", "slot": ticket.slot, "generation": ticket.generation}, ticket.epoch)
        except CheckpointError:
            # a dead writing process holds no slots
            pass

    def write(self, ticket: Ticket) -> None:
        """Write a save from its slot by this process. Raises ``OSError``."""
        with self._guard:
            if ticket.rescued.is_set() or ticket.error:
                return
            content = ticket.memory.content(ticket.size)
            try:
                durable.write(ticket.paths[0], content, mode=ticket.mode, threads=self.threads, links=ticket.paths[1:])
            except OSError as error:
                ticket.error = str(error)
                raise
            ticket.rescued.set()

    def wait(self, tickets: list[Ticket] | None, wait_s: float) -> list[Ticket]:
        """Wait until the saves (all of this writing process when ``None``) are durable or failed; those still pending.

        A failed one has its ``error`` set. Raises ``TimeoutError`` when all were asked for and some are still pending.
        """
        until = time.monotonic() + wait_s
        with ExitStack() as open_ends:
            patient: socket.socket | None = None
            while True:
                asked = [ticket for ticket in tickets or [] if not (ticket.durable or ticket.error)]
                left = max(0.0, until - time.monotonic())
                if tickets is not None and (not asked or left <= 0):
                    return asked
                try:
                    if patient is None:
                        # a separate connection, so that other threads can use this one
                        patient = open_ends.enter_context(self._connected())
                    wanted = [ticket.generation for ticket in asked[:1000]]
                    wire.send(patient, {"do": "wait", "generations": wanted, "wait": min(left, 1.0)})
                    answer, _ = wire.receive(patient)
                except (OSError, EOFError):
                    patient = None
                    self._rescue()
                    if tickets is None:
                        return []
                    time.sleep(0.01)
                    continue
                with self._guard:
                    known = [*asked, *self._pending]
                for ticket in known:
                    if reason := answer["failed"].get(str(ticket.generation)):
                        ticket.error = reason[1]
                if tickets is None and not answer["pending"]:
                    return []
                if tickets is None and left <= 0:
                    raise TimeoutError(f"{len(answer['pending'])} saves are not on the disk after {wait_s:.0f} s")

    @contextmanager
    def resident(self, path: Path) -> Iterator[Resident | None]:
        """A context with the content of ``path`` in memory, or ``None`` when it is not there."""
        try:
            self.connect(start=False)
            epoch = self._epoch
            until = time.monotonic() + PRELOAD_WAIT_S
            while True:
                answer, handle = self.ask({"do": "open", "path": str(path), "wait": 1.0})
                if "loading" not in answer or time.monotonic() > until:
                    break
        except (CheckpointError, OSError):
            yield None
            return
        if handle is None:
            yield None
            return
        memory = self._memory(answer, handle)
        try:
            yield Resident(memory, answer["size"])
        finally:
            try:
                self.ask({"do": "close", "slot": answer["slot"], "generation": answer["generation"]}, epoch)
            except CheckpointError:
                # a dead writing process holds no slots
                pass

    def listed(self, folder: Path) -> dict[str, int]:
        """Complete files below ``folder`` in memory, with their sizes; empty without a writing process."""
        found: dict[str, int] = {}
        after, more = "", True
        try:
            self.connect(start=False)
            while more and len(found) < 100_000:
                answer, _ = self.ask({"do": "list", "folder": str(folder), "after": after})
                found.update(dict(answer["files"]))
                more, after = answer["more"], max(found, default="")
        except (CheckpointError, OSError):
            return found
        return found

    def restore(self, folder: Path) -> int:
        """Let the writing process fetch the newest set below ``folder`` from its peer; number of files.

        Raises :class:`CheckpointError` when there is no peer or it does not answer.
        """
        self.connect()
        try:
            with self._connected() as end:
                end.settimeout(RESTORE_WAIT_S)
                wire.send(end, {"do": "restore", "folder": str(folder)})
                answer, _ = wire.receive(end)
        except (OSError, EOFError) as error:
            raise WriterGone(f"the writing process of {self.work} is gone: {error}") from error
        if "error" in answer:
            raise CheckpointError(f"nothing was restored from the peer: {answer['error']}")
        return int(answer["files"])

    def reserve(self, size: int, slots: int = 1, prepare: Callable[[Memory], object] | None = None) -> None:
        """Allocate memory for ``slots`` saves now, so that the first ones cost no more than later ones; ``prepare`` is
        called with each.

        Raises :class:`PoolFull` when the pool has no room for so many.
        """
        tickets: list[Ticket] = []
        try:
            for _ in range(slots):
                tickets.append(self.allocate(size, 0.0))
                tickets[-1].memory.populate(self.threads)
                if prepare is not None:
                    prepare(tickets[-1].memory)
        finally:
            for ticket in tickets:
                self.drop(ticket)


def _locked(handle: int, until: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _full(size: int, answer: dict[str, Any]) -> str:
    if "refused" in answer:
        return f"the writing process accepts nothing: {answer['refused']}"
    return (
        f"{size} bytes find no room in a pool of {answer['capacity']}: {answer['used']} are used, "
        f"{answer['committed']} saves wait for the disk, {answer['filling']} are being copied"
    )
