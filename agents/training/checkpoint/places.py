"""Checks whether a folder is suitable for checkpoints: mount, rights, locks, renames, speed.

For NFS it finds the mistakes that cost checkpoints: soft mounts, locks that only this host sees, squashed root, stale
exports. Sources: nfs(5), exports(5), and MindCluster's storage set-up for training (shared storage by NFS).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from belay.agents.training.checkpoint import layout, pages
from belay.agents.training.checkpoint.durable import PAGE

STEP = 4 << 20
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "fuse.glusterfs", "dpc", "9p", "virtiofs"}
_DISKS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "overlay"}
"""File systems of this host, whose files stay readable while they are mapped, also after their removal."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mountinfo: mount point, type, source (``server:/export``), options."""

    point: str
    kind: str
    source: str
    options: frozenset[str]

    def value(self, name: str) -> str | None:
        """The value of an option ``name=value``."""
        return next((one.partition("=")[2] for one in self.options if one.startswith(name + "=")), None)


@dataclass
class PlaceReport:
    """Findings: ``facts``, ``warnings``, ``errors`` (each with the next step)."""

    facts: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def mount_of(folder: Path, table: str) -> Mount | None:
    """The mount that ``folder`` lies on, by the text of /proc/self/mountinfo; later mounts hide earlier ones."""
    best: Mount | None = None
    for line in table.splitlines():
        left, separator, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = str(folder) == point or str(folder).startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best.point)):
            best = Mount(point, rest[0], rest[1], frozenset([*fields[5].split(","), *rest[2].split(",")]))
    return best


def mappable(path: Path, *, table: str | None = None) -> bool:
    """Whether the file ``path`` is large, and lies on a file system of this host: a private mapping of it is then as
    good as a copy in memory. On network storage a server takes files away while they are mapped.
    """
    try:
        size = path.stat().st_size
        table = Path("/proc/self/mountinfo").read_text(errors="replace") if table is None else table
    except OSError:
        return False
    mount = mount_of(path, table)
    return size >= layout.LARGE and mount is not None and mount.kind in _DISKS and pages.can_populate()


def check(
    folder: Path, size: int = 256 << 20, *, table: str | None = None, progress: Callable[[int], None] | None = None
) -> PlaceReport:
    """Check ``folder``, and test it with a file of ``size`` bytes, which is removed again."""
    folder, report = folder.resolve(), PlaceReport()
    if table is None:
        table = Path("/proc/self/mountinfo").read_text(errors="replace")
    mount = mount_of(folder, table)
    if mount is not None:
        _check_mount(mount, report)
    _room(folder, size, report)
    probe = folder / f".belay-check-{uuid.uuid4().hex[:12]}"
    try:
        _rights(probe, report)
        if probe.exists():
            _locks(probe, report)
            _names(probe, report)
            _speed(probe, size, report, progress)
    except OSError as error:
        report.errors.append(_explain(error, folder))
    finally:
        for path in (probe, probe.with_name(probe.name + ".link"), probe.with_name(probe.name + ".new")):
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return report


def _check_mount(mount: Mount, report: PlaceReport) -> None:
    report.facts.append(f"{mount.point} is {mount.kind} from {mount.source}")
    if "ro" in mount.options:
        report.errors.append(f"{mount.point} is mounted read-only: mount it with rw, and export it with rw")
    if mount.kind in ("tmpfs", "ramfs"):
        report.errors.append(f"{mount.point} is memory ({mount.kind}): nothing there survives the host; use a disk")
    if mount.kind == "overlay":
        report.warnings.append(f"{mount.point} is a container's own layer and goes with it: mount a volume")
    if mount.kind in ("nfs", "nfs4"):
        _check_nfs(mount, report)
    elif mount.kind not in _NETWORK:
        report.facts.append("only this host sees it: ranks of other hosts need shared storage as a second place")


def _check_nfs(mount: Mount, report: PlaceReport) -> None:
    version = mount.value("vers") or "?"
    report.facts.append(
        f"NFS version {version}, {mount.value('proto') or 'tcp'}, server {mount.source.partition(':')[0]}"
    )
    if mount.options & {"soft", "softerr"}:
        report.errors.append("the mount is soft: writes are lost when the server is slow; mount it with hard")
    if mount.options & {"nolock"} or mount.value("local_lock") in ("all", "flock"):
        report.warnings.append("locks are local (nolock, local_lock): two hosts may write one name; mount without them")
    if version.startswith(("2", "3")):
        report.warnings.append(
            f"NFS version {version} needs lockd and statd on both sides for locks; mount with vers=4.2"
        )
    if "async" in mount.options:
        report.warnings.append("the mount is async: the server may answer before the disk has the bytes")
    for name in ("rsize", "wsize"):
        text = mount.value(name)
        if text and text.isdecimal() and int(text) < 262144:
            report.warnings.append(f"{name}={text} is small: 1048576 lets great files through faster")


def _room(folder: Path, size: int, report: PlaceReport) -> None:
    found, nodes = shutil.disk_usage(folder), os.statvfs(folder)
    report.facts.append(f"{found.free >> 20} MiB of {found.total >> 20} MiB are free, {nodes.f_favail} files more fit")
    if found.free < 2 * size:
        report.errors.append(f"only {found.free >> 20} MiB are free in {folder}: make room (belay checkpoint prune)")
    if nodes.f_files and nodes.f_favail < 1000:
        report.errors.append(f"only {nodes.f_favail} more files fit into {folder}")


def _rights(probe: Path, report: PlaceReport) -> None:
    user = os.geteuid()
    with open(probe, "xb") as file:
        file.write(b"belay")
        file.flush()
        os.fsync(file.fileno())
        owner = os.fstat(file.fileno()).st_uid
    if owner != user:
        who = "root is squashed" if user == 0 else "users are squashed or mapped otherwise"
        report.errors.append(
            f"a file made by user {user} belongs to user {owner}: {who} by the server; run training as a user that the "
            "server knows, or export with no_root_squash (all_squash needs anonuid set to the owner of the folder)"
        )


def _locks(probe: Path, report: PlaceReport) -> None:
    with open(probe, "r+b") as first, open(probe, "r+b") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            report.errors.append(
                f"locks do not work: {error.strerror}; for NFS 3 start rpc.statd, or mount with vers=4.2"
            )
            return
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            report.errors.append("a lock was given twice: two writers of one name would not notice each other")
        except OSError:
            report.facts.append("locks hold")


def _names(probe: Path, report: PlaceReport) -> None:
    try:
        os.link(probe, probe.with_name(probe.name + ".link"))
        report.facts.append("hard links work")
    except OSError as error:
        report.warnings.append(f"hard links do not work ({error.strerror}): several names cost a file each")
    new = probe.with_name(probe.name + ".new")
    new.write_bytes(b"newer")
    os.replace(new, probe)
    if probe.read_bytes() != b"newer":
        report.errors.append("a renamed file does not hold what was written: do not keep checkpoints here")
    handle = os.open(probe.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        report.warnings.append(
            f"folders cannot be synced ({error.strerror}): a name may be lost with the server's power"
        )
    finally:
        os.close(handle)


def _speed(probe: Path, size: int, report: PlaceReport, progress: Callable[[int], None] | None) -> None:
    flags, way = os.O_DIRECT, "past the cache"
    try:
        handle = os.open(probe, os.O_RDWR | flags)
    except OSError:
        handle, way = os.open(probe, os.O_RDWR), "through the cache"
    with mmap.mmap(-1, STEP) as buffer:
        buffer.write(os.urandom(PAGE) * (STEP // PAGE))
        try:
            written = _timed(handle, buffer, size, os.pwrite, progress)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            readback = _timed(handle, buffer, size, lambda end, data, place: os.preadv(end, [data], place), progress)
        finally:
            os.close(handle)
    rates = f"written at {size / written / 1e6:.0f} MB/s, read at {size / readback / 1e6:.0f} MB/s"
    report.facts.append(f"{size >> 20} MiB {way}: {rates}")


def _timed(
    handle: int, buffer: mmap.mmap, size: int, work: Callable[[int, mmap.mmap, int], int],
    progress: Callable[[int], None] | None,
) -> float:  # fmt: skip
    begin = time.perf_counter()
    for place in range(0, size, STEP):
        if work(handle, buffer, place) != STEP:
            raise OSError(errno.EIO, "a read or a write was cut short")
        if progress:
            progress(STEP)
    os.fsync(handle)
    return max(time.perf_counter() - begin, 1e-9)


def _explain(error: OSError, folder: Path) -> str:
    hints = {
        errno.EACCES: "the server or the folder's rights refuse this user; as root that is root_squash: see exports(5)",
        errno.EPERM: "the server refuses this user; as root that is root_squash: see exports(5)",
        errno.EROFS: "it is exported or mounted read-only",
        errno.ESTALE: "the export was recreated or moved: unmount and mount it again",
        errno.ENOSPC: "it is full: belay checkpoint prune",
        errno.EDQUOT: "the quota is used up",
        errno.EIO: "the storage answers with errors: look at the server's log",
    }
    hint = hints.get(error.errno or 0, "")
    return f"{folder} cannot be used: {error.strerror}" + (f"; {hint}" if hint else "")
