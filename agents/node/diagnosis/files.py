"""The logs of one pod on its node, opened so that no pod can make the agent read anything else.

Pods name paths of the host, and what lies there is theirs: only folders below the roots that the agent's operator
names are read, no link is followed on the way, only regular files count, and of each only the end is read.
Layouts: kubelet's ``/var/log/pods``; CANN's "Log Reference" (``debug/plog``, ``run/plog``, ``device-<n>``); the
driver's ``/var/log/npu/slog``; MindIE's ``mindie/log``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from belay.agents.node.diagnosis.matching import LogText
from belay.engine.model.log_evidence import LogSource
from belay.engine.model.unstructured import nested_list, nested_map

ROOTS: Final = (Path("/var/log"),)
PODS: Final = Path("/var/log/pods")
#: Of one file, of one pod, of one collection: bytes that are read.
FILE_BYTES: Final = 8 << 20
POD_BYTES: Final = 96 << 20
#: Files of one pod, and entries of a folder and levels of folders that are looked at.
MAX_FILES: Final = 96
_ENTRIES: Final = 2000
_DEPTH: Final = 5
#: Folders of one pod that are looked at: a pod makes as many as it likes.
_FOLDERS: Final = 500
#: Names of folders in containers that CANN and inference servers write to.
_PLOG: Final = ("ascend/log", "npu/slog", "plog")
_INFERENCE: Final = ("mindie/log", "mindie_log", "vllm/log")
#: Logs of the host, below the roots.
_HOST: Final = (
    "/var/log/messages", "/var/log/syslog", "/var/log/kern.log", "/var/log/dmesg",
)  # fmt: skip
_DEVICE: Final = Path("/var/log/npu/slog")


class Candidate(NamedTuple):
    """A file that may be read: newest first."""

    written: float
    size: int
    path: Path
    source: LogSource


def logs_of(body: Mapping[str, Any], roots: Sequence[Path], since: float) -> Iterator[LogText]:
    """The logs of a pod and of its host that were written after ``since`` (Unix s), the newest of each source first.

    Files that cannot be read are left out.
    """
    left = POD_BYTES
    for found in _chosen(body, roots, since):
        if left <= 0:
            return
        data = read_end(found.path, roots, min(FILE_BYTES, left))
        if data:
            left -= len(data)
            yield LogText(found.source, str(found.path), data, int(found.written * 1000))


def cut(body: Mapping[str, Any], roots: Sequence[Path], since: float) -> bool:
    """Whether some logs are longer than what is read of them."""
    found = _chosen(body, roots, since)
    return any(one.size > FILE_BYTES for one in found) or sum(min(one.size, FILE_BYTES) for one in found) > POD_BYTES


def read_end(path: Path, roots: Sequence[Path], limit: int) -> bytes:
    """The last bytes of a file below one of the roots; empty if it is not a file, not there or behind a link."""
    with contextlib.suppress(OSError):
        handle = _open(path, roots)
        if handle is not None:
            with os.fdopen(handle, "rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if size > limit:
                    stream.seek(size - limit)
                return stream.read(limit)
    return b""


def _chosen(body: Mapping[str, Any], roots: Sequence[Path], since: float) -> list[Candidate]:
    found: list[Candidate] = []
    left = itertools.count(_FOLDERS, -1)
    for folder, source in _folders(body):
        found += _below(folder, roots, source, since, left)
    for name in _HOST:
        path = Path(name)
        if (one := _candidate(path, roots, LogSource.HOST)) is not None and one.written >= since:
            found.append(one)

    # one source cannot crowd out the others: the newest of each in turn
    by_source: dict[LogSource, list[Candidate]] = {}
    for one in sorted(set(found), key=lambda one: (-one.written, str(one.path))):
        by_source.setdefault(one.source, []).append(one)
    turns = itertools.zip_longest(*by_source.values())
    chosen = (one for turn in turns for one in turn if one is not None)
    return list(itertools.islice(chosen, MAX_FILES))


def _folders(body: Mapping[str, Any]) -> Iterator[tuple[Path, LogSource]]:
    """The folders with logs of a pod and of its chips."""
    metadata, spec = nested_map(body, "metadata"), nested_map(body, "spec")
    name = "_".join(str(metadata.get(key) or "") for key in ("namespace", "name", "uid"))
    if "/" not in name and ".." not in name:
        yield PODS / name, LogSource.TRAINING
    yield _DEVICE, LogSource.DEVICE

    volumes = {}
    for volume in nested_list(spec, "volumes"):
        if host_path := nested_map(volume, "hostPath"):
            volumes[str(volume.get("name"))] = str(host_path.get("path") or "")
    for container in nested_list(spec, "containers"):
        yield from _mounted(container, volumes)


def _mounted(container: Mapping[str, Any], volumes: Mapping[str, str]) -> Iterator[tuple[Path, LogSource]]:
    """The folders of the host to which a container writes logs. ``volumes``: name → folder of the host."""
    plog = ""
    for variable in nested_list(container, "env"):
        if variable.get("name") == "ASCEND_PROCESS_LOG_PATH":
            plog = str(variable.get("value") or "")

    for mount in nested_list(container, "volumeMounts"):
        volume, below = volumes.get(str(mount.get("name")), ""), str(mount.get("subPath") or "")
        if not volume.startswith("/") or ".." in volume or ".." in below:
            continue
        folder, inside = Path(volume) / below.lstrip("/"), str(mount.get("mountPath") or "")
        lower = inside.lower().rstrip("/")
        if lower.endswith(_INFERENCE):
            yield folder, LogSource.INFERENCE
        elif lower.endswith(_PLOG):
            yield folder, LogSource.PLOG
        elif plog and ".." not in plog and PurePosixPath(plog).is_relative_to(inside or "/"):
            yield folder / PurePosixPath(plog).relative_to(inside), LogSource.PLOG


def _below(
    folder: Path, roots: Sequence[Path], source: LogSource, since: float, left: Iterator[int], depth: int = 0
) -> list[Candidate]:
    """Logs in a folder and the folders in it, ``left`` of them; links and other files are left out."""
    found: list[Candidate] = []
    if next(left) <= 0:
        return found
    with contextlib.suppress(OSError):
        handle = _open(folder, roots, folder=True)
        if handle is None:
            return []
        try:
            with os.scandir(handle) as entries:
                for number, entry in enumerate(entries):
                    if number >= _ENTRIES:
                        break
                    if entry.is_dir(follow_symlinks=False) and depth < _DEPTH:
                        found += _below(folder / entry.name, roots, source, since, left, depth + 1)
                    elif entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        if status.st_mtime >= since and not entry.name.endswith((".gz", ".zip", ".xz")):
                            path = folder / entry.name
                            kind = LogSource.DEVICE if entry.name.startswith("device-") else source
                            found.append(Candidate(status.st_mtime, status.st_size, path, kind))
        finally:
            os.close(handle)
    found.sort(key=lambda one: (-one.written, str(one.path)))
    return found[:MAX_FILES]


def _candidate(path: Path, roots: Sequence[Path], source: LogSource) -> Candidate | None:
    with contextlib.suppress(OSError):
        handle = _open(path, roots)
        if handle is not None:
            try:
                status = os.fstat(handle)
                return Candidate(status.st_mtime, status.st_size, path, source)
            finally:
                os.close(handle)
    return None


def _open(path: Path, roots: Sequence[Path], *, folder: bool = False) -> int | None:
    """The file or folder itself, step by step from its root; None outside the roots, behind a link or of another type.
    Raises OSError."""
    root = next((root for root in roots if path == root or root in path.parents), None)
    if root is None or ".." in path.parts:
        return None
    parts = path.relative_to(root).parts
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for position, part in enumerate(parts):
            last = position == len(parts) - 1
            kind = os.O_DIRECTORY if folder or not last else 0
            below = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | kind, dir_fd=at)
            os.close(at)
            at = below
        if not folder and not stat.S_ISREG(os.fstat(at).st_mode):
            os.close(at)
            return None
    except OSError:
        os.close(at)
        raise
    return at
