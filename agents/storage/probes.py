"""What is tried in a folder, one probe after the other; each yields findings and removes what it made.

`python -m belay.agents.storage.probes FOLDER SIZE` prints one JSON document a line: {"begins": NAME} before a probe
and, once a second, while it goes on; and its findings. The process that started it judges silence
(`belay.agents.storage.check`): a slow store is measured, one that does not answer is silent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import multiprocessing
import os
import random
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from belay.agents.storage.findings import Finding

BLOCK = 4 * 1024 * 1024
SMALL_FILES = 200
RENAMES = 300
CLOCK_SECONDS = 5.0
LONGEST = 20.0
"""Seconds that one measurement may go on; a slow store is judged by what it did until then."""
_SYNC_SECONDS = 2.0
_BEAT_SECONDS = 1.0
Probing = Iterator[Finding | None]
"""Findings, and None after each step that the storage answered."""
_WHY = {
    errno.EACCES: (
        "the server or the folder's mode refuses this user; as root that is root_squash",
        "Run as a user that may write there (runAsUser, fsGroup), or change owner and mode on the server.",
    ),
    errno.EPERM: (
        "the server refuses this user; as root that is root_squash",
        "Run as a user that owns the folder, or see exports(5).",
    ),
    errno.EROFS: (
        "it is mounted or exported read-only",
        "Mount it with rw (readOnly: false in the pod), and export it with rw.",
    ),
    errno.ESTALE: (
        "the export was made again or moved",
        "Unmount and mount it again: start the pods on this node again.",
    ),
    errno.ENOSPC: ("it is full", "Make room: belay checkpoint prune, or a larger volume."),
    errno.EDQUOT: ("the quota is used up", "Make room, or ask for more."),
    errno.EIO: (
        "the storage answers with errors, or the mount is soft and the server slow",
        "Look at the server's log, and mount it with hard.",
    ),
    errno.ENOLCK: (
        "the lock service does not answer: with NFS 3 rpc.statd and lockd are needed on both sides",
        "Mount with vers=4.2 (one port, 2049), or start rpc-statd and open its ports.",
    ),
    errno.ENOENT: ("it is not there", "Mount the volume there, or name another folder."),
    errno.ENOTDIR: ("it is not a folder", "Name the folder that the volume is mounted at."),
}


def explained(check: str, error: OSError, what: str) -> Finding:
    """The finding for an error of the system."""
    name = errno.errorcode.get(error.errno or 0, "an unknown error")
    cause, step = _WHY.get(
        error.errno or 0,
        (f"the system says {name}", "See the log of the kernel (dmesg) on this host, and of the server."),
    )
    return Finding(check, "error", f"{what}: {error.strerror or error}", cause, step)


def rights(folder: Path) -> Probing:
    """Who owns a new file, and whether modes stay: root squash, all_squash, a mapping of users."""
    path, user = folder / "own", os.geteuid()
    path.write_bytes(b"belay")
    state = path.stat()
    if state.st_uid == user:
        yield Finding("owner", "ok", f"a file of user {user} belongs to user {state.st_uid}, group {state.st_gid}")
    elif user == 0:
        yield Finding(
            "owner",
            "warning",
            f"a file of root belongs to user {state.st_uid}",
            "root_squash (the default of exports), all_squash, or NFS 4 maps users by names and the domains differ",
            "Run pods as the folder's owner (runAsUser, runAsGroup); chown and private folders fail for root.",
        )
    else:
        anonymous = state.st_uid in (65534, 4294967294)
        yield Finding(
            "owner",
            "error",
            f"a file of user {user} belongs to user {state.st_uid}",
            "all_squash, or NFS 4 maps users by names and the domains differ (idmapd.conf)"
            if anonymous
            else "all_squash with anonuid, or a user mapping",
            "Export without all_squash, and write the same Domain into /etc/idmapd.conf of both sides.",
        )
    os.chmod(path, 0o640)
    if path.stat().st_mode & 0o777 != 0o640:
        yield Finding(
            "modes",
            "warning",
            f"mode 0640 became {path.stat().st_mode & 0o777:04o}",
            "the file system keeps no modes",
            "Use fsGroup, or mount options for uid, gid and modes.",
        )


def clock(folder: Path) -> Probing:
    """The server's clock against this one."""
    path = folder / "clock"
    begin = time.time()
    path.write_bytes(b"x")
    apart = path.stat().st_mtime - begin
    if -CLOCK_SECONDS <= apart <= CLOCK_SECONDS:
        yield Finding("clock", "ok", f"times of files are within {CLOCK_SECONDS:.0f} s of this host's clock")
    else:
        yield Finding(
            "clock",
            "warning",
            f"times of files are {apart:+.0f} s apart from this host's clock",
            "the clock of the server or of this host is wrong",
            "Run chrony on both: retention by age, and make, decide by these times.",
        )


def _second(path: str, how: str, answer: multiprocessing.SimpleQueue[str]) -> None:
    """Another process tries to lock."""
    lock: Callable[..., None] = fcntl.flock if how == "flock" else fcntl.lockf
    with open(path, "r+b") as file:
        try:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            answer.put("given")
        except OSError as error:
            answer.put("refused" if error.errno in (errno.EAGAIN, errno.EACCES) else error.strerror or "failed")


def locks(folder: Path) -> Probing:
    """Whether a second process is refused a lock, both kinds, and gets it when the first one gave it back."""
    path = folder / "lock"
    path.write_bytes(b"x")
    processes = multiprocessing.get_context("fork")
    for how in ("flock", "fcntl"):
        lock: Callable[..., None] = fcntl.flock if how == "flock" else fcntl.lockf
        with open(path, "r+b") as file:
            try:
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                yield explained("locks", error, f"{how} does not work")
                continue
            answer: multiprocessing.SimpleQueue[str] = processes.SimpleQueue()
            other = processes.Process(target=_second, args=(str(path), how, answer))
            other.start()
            said = answer.get()
            other.join()
            if said == "refused":
                yield Finding("locks", "ok", f"{how}: a second process is refused")
            else:
                yield Finding(
                    "locks",
                    "error",
                    f"{how}: a second process {'got the lock too' if said == 'given' else f'failed: {said}'}",
                    "the file system keeps no locks",
                    "Mount without nolock and local_lock; for FUSE switch locks on.",
                )


def exclusive(folder: Path) -> Probing:
    """Exclusive creation, by which one of many writers wins."""
    path = folder / "once"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        yield Finding("exclusive", "ok", "a name is made once (O_EXCL)")
    else:
        yield Finding(
            "exclusive",
            "error",
            "a name was made twice (O_EXCL)",
            "NFS 2, or a file system without it",
            "Mount with vers=4.2.",
        )


def _rewrite(path: str, times: int, seconds: float, done: mmap.mmap) -> None:
    """Replace a file again and again; how often is the first number in ``done``."""
    ends = time.monotonic() + seconds
    for number in range(times):
        new = f"{path}.new"
        with open(new, "wb") as file:
            file.write(bytes([number % 256]) * 8192)
        os.replace(new, path)
        done[:8] = (number + 1).to_bytes(8, "little")
        if time.monotonic() > ends:
            return


def renames(folder: Path) -> Probing:
    """A reader of a name that is replaced all the time sees a whole file, old or new; the name is always there."""
    path, done = folder / "name", mmap.mmap(-1, 8)
    path.write_bytes(bytes(8192))
    writer = multiprocessing.get_context("fork").Process(target=_rewrite, args=(str(path), RENAMES, LONGEST, done))
    writer.start()
    reads, seen = 0, b""
    wrong = ""
    while writer.is_alive() or not reads:
        # a reader that is answered from a cache does not show that the server answers: the writer's number does
        if done[:8] != seen:
            seen = done[:8]
            yield None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            wrong = "the name was missing for a moment"
            continue
        except OSError as error:
            # an open file that the server no longer has: NFS says so instead of giving old bytes
            if error.errno != errno.ESTALE:
                raise
            continue
        reads += 1
        if len(data) != 8192 or data != data[:1] * 8192:
            wrong = f"a reader saw {len(data)} bytes of two files"
    writer.join()
    if wrong or writer.exitcode:
        yield Finding(
            "rename",
            "error",
            f"replacing a file is not atomic: {wrong or 'the writer failed'}",
            "the file system copies instead of renaming (object storage behind FUSE)",
            "Keep checkpoints and trackers on a file system that renames, as NFS.",
        )
    else:
        times = int.from_bytes(done[:8], "little")
        yield Finding("rename", "ok", f"{times} replacements, {reads} reads: always a whole file")


def syncs(folder: Path) -> Probing:
    """fsync of files and folders."""
    path, times = folder / "sync", []
    with open(path, "wb") as file:
        for _ in range(8):
            file.write(os.urandom(65536))
            file.flush()
            begin = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begin)
            yield None
    middle = sorted(times)[len(times) // 2] * 1000
    slow = middle > 200
    yield Finding(
        "fsync",
        "warning" if slow else "ok",
        f"fsync of 64 KiB takes {middle:.1f} ms",
        "the server's disk, or its network, is slow" if slow else "",
        "Look at the server's disks (iostat -x 1)." if slow else "",
    )
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        yield Finding(
            "fsync",
            "warning",
            f"folders cannot be synced: {error.strerror}",
            "the file system has no such call",
            "A new name may be lost with the server's power: keep an older checkpoint.",
        )
    finally:
        os.close(handle)


def small_files(folder: Path) -> Probing:
    """How fast many small files are made, as data sets and caches of compilers have them."""
    own = folder / "small"
    own.mkdir()
    begin = time.perf_counter()
    made = 0
    while made < SMALL_FILES and (not made or time.perf_counter() - begin < LONGEST):
        (own / str(made)).write_bytes(b"x")
        made += 1
        yield None
    rate = made / max(time.perf_counter() - begin, 1e-9)
    listed = len(os.listdir(own))
    if listed != made:
        yield Finding(
            "small files",
            "error",
            f"{made} files were made, {listed} are listed",
            "the folder's listing is cached or damaged",
            "Mount without lookupcache=all and nocto.",
        )
    slow = rate < 100
    yield Finding(
        "small files",
        "warning" if slow else "ok",
        f"{rate:,.0f} files a second" if rate >= 10 else f"{rate:.1f} files a second",
        "each needs several round trips" if slow else "",
        "Pack data sets into archives (tar, MindRecord), and mount data read-only with nocto,actimeo=600."
        if slow
        else "",
    )


def large_offset(folder: Path) -> Probing:
    """A file beyond 4 GiB, as a checkpoint is; it takes one block of room."""
    path = folder / "large"
    with open(path, "wb") as file:
        os.pwrite(file.fileno(), b"end", 5 * 2**30)
    size = path.stat().st_size
    good = size == 5 * 2**30 + 3
    yield Finding(
        "large files",
        "ok" if good else "error",
        f"a file of 5 GiB has {size:,} bytes",
        "" if good else "the file system holds no large files",
        "" if good else "Use another one.",
    )


def _written(handle: int, data: mmap.mmap, places: list[int]) -> Iterator[tuple[int, float]]:
    """Write blocks at places and sync; (blocks, seconds) each time that something of it is done. The last one counts.

    Through a cache the store is asked by fsync alone, so there is one for about every two seconds of writing.
    """
    begin = time.perf_counter()
    pending, least = 0, 1
    for number, place in enumerate(places, 1):
        if os.pwrite(handle, data, place * BLOCK) != BLOCK:
            raise OSError(errno.EIO, "a write was cut short")
        pending += 1
        if pending >= least or number == len(places):
            os.fsync(handle)
            spent = max(time.perf_counter() - begin, 1e-9)
            pending, least = 0, max(1, int(number / spent * _SYNC_SECONDS))
            yield number, spent
            if spent > LONGEST:
                return


def speed(folder: Path, size: int) -> Probing:
    """Sequential and random writing with fsync, and reading what was written, compared by a hash.

    Each of the three ends after `LONGEST` seconds, and its rate is that of what was done by then.
    """
    path, blocks = folder / "speed", max(1, size // BLOCK)
    data = mmap.mmap(-1, BLOCK)
    data.write(os.urandom(BLOCK))
    way = "past the cache"
    try:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
    except OSError:
        handle, way = os.open(path, os.O_CREAT | os.O_RDWR, 0o600), "through the cache"
    try:
        rates = {}
        places = list(range(blocks))
        for name in ("sequential", "random"):
            if name == "random":
                random.Random(1).shuffle(places)
            count, spent = 0, 1e-9
            for done in _written(handle, data, places):
                count, spent = done
                yield None
            rates[name] = count * BLOCK / spent
            if name == "sequential":
                # at random inside what there is; a second pass over all would take as long again
                blocks = count
                places = list(range(blocks))
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        wanted, back = hashlib.blake2b(data).digest(), mmap.mmap(-1, BLOCK)
        begin = time.perf_counter()
        count = 0
        while count < blocks and (not count or time.perf_counter() - begin < LONGEST):
            if os.preadv(handle, [back], count * BLOCK) != BLOCK or hashlib.blake2b(back).digest() != wanted:
                yield Finding(
                    "contents",
                    "error",
                    f"block {count} is not what was written",
                    "storage or network damage data",
                    "Do not use it; look for errors of the server's disks.",
                )
                return
            count += 1
            yield None
        rates["read"] = count * BLOCK / max(time.perf_counter() - begin, 1e-9)
    finally:
        os.close(handle)
    shown = ", ".join(f"{name} {_shown(rate)}" for name, rate in rates.items())
    yield Finding("speed", "ok", f"{blocks * BLOCK >> 20} MiB {way}: {shown}")
    yield Finding("rate", "ok", str(int(rates["random"])))


def _shown(rate: float) -> str:
    return f"{rate / 1e6:,.0f} MB/s" if rate >= 1e7 else f"{rate / 1e6:,.1f} MB/s"


PROBES: dict[str, Callable[[Path], Probing]] = {
    "owner": rights,
    "clock": clock,
    "exclusive": exclusive,
    "locks": locks,
    "rename": renames,
    "fsync": syncs,
    "small files": small_files,
    "large files": large_offset,
}


def main(folder: Path, size: int) -> None:
    """Run every probe in a folder of their own below ``folder``, which is removed again."""

    beat = 0.0

    def say(document: object) -> None:
        nonlocal beat
        beat = time.monotonic()
        sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
        sys.stdout.buffer.flush()

    own = folder / f".belay-check-{uuid.uuid4().hex[:12]}"
    say({"begins": "write"})
    try:
        own.mkdir(mode=0o700)
    except OSError as error:
        say(explained("write", error, f"no folder can be made in {folder}"))
        return
    try:
        for name, probe in [*PROBES.items(), ("speed", lambda place: speed(place, size))]:
            say({"begins": name})
            try:
                for finding in probe(own):
                    if finding is not None:
                        say(finding)
                    elif time.monotonic() - beat >= _BEAT_SECONDS:
                        say({"begins": name})
            except OSError as error:
                say(explained(name, error, f"{name} could not be tried"))
    finally:
        say({"begins": "removal"})
        with contextlib.suppress(OSError):
            shutil.rmtree(own)
    say({"begins": ""})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
