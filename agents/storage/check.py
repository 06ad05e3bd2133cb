"""The whole check of a folder: its mount, its room, then the probes in a process of their own.

Sources: nfs(5), proc_pid_mountinfo(5); for the time that a full checkpoint may take, MindCluster's guide to elastic
training.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from belay.agents.storage.findings import Finding
from belay.agents.storage.probes import explained
from belay.agents.training.checkpoint.places import Mount, mount_of

CHECKPOINT_SECONDS = 15 * 60
"""How long a full checkpoint may take to be stored, so that elastic training can end a pod in order."""
_MOST_LINKS = 40
"""As Linux itself follows in one path (path_resolution(7))."""
_SHARED = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "fuse.glusterfs", "dpc", "9p", "virtiofs")


def check_folder(
    folder: Path, size: int, seconds: float, checkpoint: int = 0, table: str | None = None
) -> Iterator[Finding]:
    """Findings in their order.

    Args:
        folder: where the volume is mounted.
        size: bytes that the probe of speed writes.
        seconds: how long one probe may be silent before it counts as hanging.
        checkpoint: size in bytes of a full checkpoint, to judge the speed by; 0: not judged.
        table: the text of /proc/self/mountinfo, if not this host's.
    """
    if table is None:
        table = Path("/proc/self/mountinfo").read_text(errors="replace")
    try:
        folder = located(folder, table)
    except OSError as error:
        yield explained("mount", error, f"{folder} cannot be followed")
        return
    mount = mount_of(folder, table)
    if mount is not None:
        yield from check_mount(mount)
    yield from _probed(folder, size, seconds, checkpoint)


def located(folder: Path, table: str) -> Path:
    """The folder's path without symbolic links, as far as that can be asked without waiting for a server.

    Links that lie on this host are followed. What lies on shared storage is not looked at: a hard mount waits for ever
    for a server that is away, and that is for the probes, which have a time limit, to find.

    Raises:
        OSError: links lead in a circle.
    """
    path = Path("/")
    waiting = list(reversed(Path(os.path.abspath(folder)).parts[1:]))
    followed = 0
    while waiting:
        part = waiting.pop()
        if part == "..":
            path = path.parent
            continue
        step = path / part
        mount = mount_of(step, table)
        if mount is not None and (mount.kind in _SHARED or mount.kind.startswith("fuse")):
            return Path(os.path.normpath(step.joinpath(*reversed(waiting))))
        try:
            target = os.readlink(step)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise
            path = step  # it is not a link, or the probes say what is wrong with it
            continue
        followed += 1
        if followed > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
        if target.startswith("/"):
            path = Path("/")
        waiting += [one for one in reversed(target.split("/")) if one not in ("", ".")]
    return path


def check_mount(mount: Mount) -> Iterator[Finding]:
    """What the options of a mount mean for data and checkpoints."""
    options = mount.options
    yield Finding("mount", "ok", f"{mount.point} is {mount.kind} from {mount.source}")
    if "ro" in options:
        yield Finding(
            "mount", "note", f"{mount.point} is read-only", "mount option ro", "Right for data sets; outputs need rw."
        )
    if mount.kind in ("tmpfs", "ramfs"):
        yield Finding(
            "mount", "error", "it is memory", f"type {mount.kind}", "Nothing there outlives the host: mount a volume."
        )
    elif mount.kind == "overlay":
        yield Finding(
            "mount",
            "warning",
            "it is the container's own layer and goes with it",
            "no volume is mounted there",
            "Mount one (volumeMounts).",
        )
    elif mount.kind.startswith("fuse") and mount.kind not in _SHARED:
        yield Finding(
            "mount",
            "note",
            "whether other hosts see it is up to what stands behind FUSE",
            f"type {mount.kind}",
            "Look from two hosts. File systems behind FUSE often lack locks or atomic renames: see those findings.",
        )
    elif mount.kind not in _SHARED:
        yield Finding(
            "mount",
            "note",
            "only this host sees it",
            f"type {mount.kind}",
            "Ranks of other hosts need shared storage, as NFS.",
        )
    if mount.kind in ("nfs", "nfs4"):
        yield from _nfs(mount)


def _nfs(mount: Mount) -> Iterator[Finding]:
    options, version = mount.options, mount.value("vers") or "?"
    if options & {"soft", "softerr"}:
        yield Finding(
            "mount",
            "error",
            "writes are lost when the server is slow",
            "mount option soft",
            "Mount it with hard (the default).",
        )
    if "nolock" in options or mount.value("local_lock") in ("all", "flock", "posix"):
        yield Finding(
            "mount",
            "error",
            "other hosts do not see locks",
            "mount option nolock or local_lock",
            "Mount without it; vers=4.2 needs no lock service.",
        )
    if version.startswith(("2", "3")):
        yield Finding(
            "mount",
            "warning",
            f"NFS {version}: locks need lockd and statd on both sides, and their ports",
            f"mount option vers={version}",
            "Mount with vers=4.2.",
        )
    if mount.value("proto") in ("udp", "udp6"):
        yield Finding(
            "mount", "error", "packets that are lost can damage data", "mount option proto=udp", "Mount with proto=tcp."
        )
    if "sync" in options:
        yield Finding(
            "mount",
            "warning",
            "every write waits for the server",
            "mount option sync",
            "Remove it: fsync is what checkpoints need.",
        )
    if "noac" in options or mount.value("actimeo") == "0":
        yield Finding(
            "mount", "warning", "every look at a file asks the server", "mount option noac or actimeo=0", "Remove it."
        )
    for name in ("rsize", "wsize"):
        text = mount.value(name) or ""
        if text.isdecimal() and int(text) < 262144:
            yield Finding(
                "mount",
                "warning",
                f"{name} is {int(text)} bytes",
                "a mount option, or the server's limit",
                f"Mount with {name}=1048576.",
            )


def _probed(folder: Path, size: int, seconds: float, checkpoint: int) -> Iterator[Finding]:
    child = subprocess.Popen(
        [sys.executable, "-m", "belay.agents.storage.probes", str(folder), str(size)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    doing, ended, failed, measured = "the start", False, False, False
    try:
        for line in _lines(child, seconds):
            document = msgspec.json.decode(line)
            if "begins" in document:
                doing = document["begins"]
                ended = not doing
                continue
            finding = msgspec.convert(document, Finding)
            failed = failed or finding.check == "write"
            if finding.check == "rate":
                measured = True
                yield from _judged(int(finding.found), checkpoint)
            else:
                yield finding
            if finding.check == "write":
                ended = True
    except TimeoutError:
        yield Finding(
            doing,
            "error",
            f"no answer for {seconds:.0f} s while trying {doing}",
            "the server does not answer, or its lock service does not (a hard mount waits for ever), or one step of it "
            "takes longer than that",
            "From this host: ping the server, then nc -z SERVER 2049 (NFS 3 also 111 and the ports of rpcinfo -p). "
            f"Remove {folder}/.belay-check-* when it answers again.",
        )
        ended = failed = True  # and its room would be asked of the same server
    finally:
        # one that hangs in the kernel cannot be ended; it goes when the server answers
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1)
        if child.stdout is not None:
            child.stdout.close()
    if not ended:
        yield Finding(
            doing,
            "unknown",
            f"the probes ended while trying {doing}",
            "",
            "Run python -m belay.agents.storage.probes FOLDER 1048576 to see why.",
        )
    elif not failed:
        yield from _room(folder, checkpoint)
    if checkpoint and not measured:
        yield Finding(
            "checkpoint",
            "unknown",
            "the time that a checkpoint takes is not known",
            "its speed was not measured",
            "Mend what the other findings say, and check again.",
        )


def _lines(child: subprocess.Popen[bytes], seconds: float) -> Iterator[bytes]:
    """Lines of a process. Raises TimeoutError after ``seconds`` without one."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as chosen:
        chosen.register(child.stdout, selectors.EVENT_READ)
        held = b""
        while True:
            if not chosen.select(seconds):
                raise TimeoutError
            data = os.read(child.stdout.fileno(), 65536)
            if not data:
                return
            *whole, held = (held + data).split(b"\n")
            yield from whole


def _judged(rate: int, checkpoint: int) -> Iterator[Finding]:
    if not checkpoint:
        return
    takes = checkpoint / max(rate, 1)
    good = takes <= CHECKPOINT_SECONDS
    yield Finding(
        "checkpoint",
        "ok" if good else "error",
        f"a checkpoint of {checkpoint / 2**30:.1f} GiB takes {takes:,.0f} s at {rate / 1e6:,.0f} MB/s, one writer",
        "" if good else f"elastic training waits {CHECKPOINT_SECONDS} s for it",
        "" if good else "Use faster disks or network, several writers, nconnect=8, or two tiers (docs/storage.md).",
    )


def _room(folder: Path, checkpoint: int) -> Iterator[Finding]:
    begin = time.monotonic()
    try:
        state = os.statvfs(folder)
    except OSError as error:
        yield explained("room", error, f"the room of {folder} is not known")
        return
    free, total = state.f_bavail * state.f_frsize, max(state.f_blocks * state.f_frsize, 1)
    shown = f"{free / 2**30:,.1f} GiB of {total / 2**30:,.1f} GiB are free"
    if free < 2 * checkpoint:
        yield Finding(
            "room",
            "error",
            shown,
            "two checkpoints do not fit: a new one is written before an old one goes",
            "Make room: belay checkpoint prune, or a larger volume.",
        )
    elif free < total * 0.05:
        yield Finding("room", "warning", shown, "less than 5 %", "Make room before it is full.")
    else:
        yield Finding("room", "ok", shown)
    if state.f_files and state.f_favail < 10_000:
        yield Finding(
            "room",
            "warning",
            f"{state.f_favail:,} more files fit",
            "the server's file system has few inodes left",
            "Remove small files, or make a file system with more.",
        )
    if (took := time.monotonic() - begin) > 2:
        yield Finding("room", "warning", f"asking for it took {took:.0f} s", "the server is slow", "Look at its load.")
