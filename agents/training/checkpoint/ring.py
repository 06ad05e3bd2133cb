"""The ring of writing processes: keeps copies for a peer, sends its own saves, fetches lost ones back."""

from __future__ import annotations

import dataclasses
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from belay.agents.training.checkpoint import peers
from belay.agents.training.checkpoint.errors import CheckpointError
from belay.agents.training.checkpoint.peers import SentContent
from belay.agents.training.checkpoint.pool import Pool, Slot
from belay.agents.training.checkpoint.slots import SlotState

log = logging.getLogger("belay.checkpoint")

WAITING = 16
"""Maximum number of saves that wait to be sent; further ones are skipped with a warning."""
SENDER = -2
"""The reader number under which a slot is held while it is sent."""
PEERS = 16


class Ring:
    """``listen`` and ``to`` are ``host:port`` or empty; ``changed`` guards the pool."""

    def __init__(self, pool: Pool, changed: threading.Condition, listen: str, to: str, key: bytes) -> None:
        self.pool, self.changed, self.to, self.key = pool, changed, to, key
        self.sent_bytes, self.sent_s, self.skipped, self.port = 0, 0.0, 0, 0
        self._waiting: queue.Queue[tuple[Slot, int, str]] = queue.Queue(WAITING)
        self._places = threading.Semaphore(PEERS)
        if listen:
            host, port = peers.address(listen)
            server = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
            self.port = server.getsockname()[1]
            threading.Thread(target=self._serve, args=(server,), daemon=True, name="peer-server").start()
        if to:
            threading.Thread(target=self._send_all, daemon=True, name="peer-sender").start()

    def offer(self, slot: Slot) -> None:
        """Queue a save for the peer; called with the lock held. When the queue is full, it is skipped."""
        if not self.to:
            return
        try:
            self._waiting.put_nowait((slot, slot.generation, slot.path))
            slot.readers[SENDER] = slot.readers.get(SENDER, 0) + 1
        except queue.Full:
            self.skipped += 1
            log.warning("%s has no copy at %s: %d saves wait for the network", slot.path, self.to, WAITING)

    def status(self) -> dict[str, Any]:
        """Return the numbers of the copies to the peer, for an operator."""
        return {"peer_bytes": self.sent_bytes, "peer_seconds": round(self.sent_s, 3), "peer_skipped": self.skipped,
                "peer_waiting": self._waiting.qsize(), "peer_port": self.port}  # fmt: skip

    def _send_all(self) -> None:
        while True:
            slot, generation, path = self._waiting.get()
            try:
                begin = time.monotonic()
                if slot.generation == generation:
                    self._send(SentContent.of(path, slot.memory.content(slot.size)), slot)
                    self.sent_bytes += slot.size
                    self.sent_s += time.monotonic() - begin
            except (OSError, EOFError, ValueError, CheckpointError) as error:
                self.skipped += 1
                log.warning("%s has no copy at %s: %s", path, self.to, error)
            finally:
                with self.changed:
                    self._release(slot)

    def _release(self, slot: Slot) -> None:
        if slot.readers.get(SENDER, 0) > 1:
            slot.readers[SENDER] -= 1
        else:
            slot.readers.pop(SENDER, None)
        self.changed.notify_all()

    def _send(self, what: SentContent, slot: Slot) -> None:
        with peers.connect(self.to, self.key) as end:
            peers.send_header(end, {"do": "put", **dataclasses.asdict(what)})
            if refused := peers.receive_header(end).get("error"):
                raise CheckpointError(f"refused: {str(refused)[:200]}")
            end.sendall(slot.memory.content(what.size))
            if refused := peers.receive_header(end).get("error"):
                raise CheckpointError(f"refused: {str(refused)[:200]}")

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                end, _ = server.accept()
            except OSError as error:
                log.error("copies of peers are no longer taken: %s", error)
                return
            if not self._places.acquire(blocking=False):
                end.close()
                continue
            threading.Thread(target=self._serve_peer, args=(end,), daemon=True, name="peer").start()

    def _serve_peer(self, end: socket.socket) -> None:
        try:
            with end:
                if not peers.accept(end, self.key):
                    log.warning("a peer without the secret was disconnected")
                    return
                request = peers.receive_header(end)
                work = {"put": self._put, "list": self._list, "get": self._get}.get(str(request.get("do")))
                if work is None:
                    peers.send_header(end, {"error": "unknown request"})
                else:
                    work(end, request)
        except (OSError, EOFError, ValueError, CheckpointError) as error:
            log.warning("a peer's request ended: %s", str(error)[:300])
        finally:
            self._places.release()

    def _put(self, end: socket.socket, request: dict[str, Any]) -> None:
        what = peers.content(request)
        path = Path(what.path)
        try:
            with self.changed:
                # two copies of each rank's file are kept: while one arrives the other stays
                slot = self.pool.allocate(what.size, f"peer {path.parent.parent} {path.name}", SENDER)
        except ValueError as error:
            peers.send_header(end, {"error": str(error)})
            return
        if slot is None:
            peers.send_header(end, {"error": "no room in the pool"})
            return
        whole = False
        try:
            peers.send_header(end, {})
            peers.into(end, slot.memory.content(what.size))
            what.prove(slot.memory.content(what.size), "from a peer")
            whole = True
        finally:
            with self.changed:
                if whole:
                    slot.path, slot.client = what.path, None
                    slot.mark(SlotState.HELD)
                else:
                    self.pool.release(slot)
                self.changed.notify_all()
        peers.send_header(end, {})

    def _held(self) -> dict[str, Slot]:
        found: dict[str, Slot] = {}
        for slot in sorted(self.pool.slots.values(), key=lambda slot: slot.generation):
            if slot.state is SlotState.HELD:
                found[slot.path] = slot
        return found

    def _list(self, end: socket.socket, request: dict[str, Any]) -> None:
        prefix = str(request.get("folder", "")).rstrip("/") + "/"
        with self.changed:
            files = sorted(path for path in self._held() if path.startswith(prefix))[:1000]
        peers.send_header(end, {"files": files})

    def _get(self, end: socket.socket, request: dict[str, Any]) -> None:
        with self.changed:
            slot = self._held().get(str(request.get("path")))
            if slot is not None:
                slot.readers[SENDER] = slot.readers.get(SENDER, 0) + 1
        if slot is None:
            peers.send_header(end, {"error": "not here"})
            return
        try:
            data = slot.memory.content(slot.size)
            peers.send_header(end, dataclasses.asdict(SentContent.of(slot.path, data)))
            end.sendall(data)
        finally:
            with self.changed:
                self._release(slot)

    def fetch(
        self, folder: Path, take: Callable[[SentContent], Slot], give: Callable[[Slot, str], None]
    ) -> tuple[int, int]:
        """Fetch the files of the newest set below ``folder`` that the peer keeps, and of older ones that have files
        which the newer ones lack: this host may have been lost in the middle of a save. Number of files and bytes.

        ``take`` returns a slot for a content, ``give`` receives the filled slot. Raises ``OSError``,
        :class:`CheckpointError`.
        """
        with peers.connect(self.to, self.key) as end:
            peers.send_header(end, {"do": "list", "folder": str(folder)})
            files = [str(path) for path in peers.receive_header(end).get("files", [])]
        found = [path for path in _wanted(files) if not Path(path).exists()]
        size = 0
        for path in found:
            with peers.connect(self.to, self.key) as end:
                peers.send_header(end, {"do": "get", "path": path})
                answer = peers.receive_header(end)
                if "error" in answer:
                    raise CheckpointError(f"{self.to} lost {path}: {str(answer['error'])[:200]}")
                what = peers.content(answer)
                slot = take(what)
                peers.into(end, slot.memory.content(what.size))
                what.prove(slot.memory.content(what.size), self.to)
                give(slot, path)
                size += what.size
        return len(found), size


def _wanted(files: list[str]) -> list[str]:
    names: dict[Path, set[str]] = {}
    for path in map(Path, files):
        names.setdefault(path.parent, set()).add(path.name)
    found, seen = [], set[str]()
    for folder in sorted(names, reverse=True):
        if names[folder] - seen:
            found += [str(folder / name) for name in sorted(names[folder])]
            seen |= names[folder]
    return found
