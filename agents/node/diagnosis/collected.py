"""Logs that people collected into a folder, node by node, in the layout that MindCluster's FaultDiag documents
("Collecting Logs"), or as agents keep them (`archive.py`).

A folder is one node where logs or folders of logs lie in it; else each folder in it is one. No link is followed; of
each file the end is read. Local times are those of the node's own zone, where one of its logs states it.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from belay.agents.node.diagnosis.checks import look_at_checks
from belay.agents.node.diagnosis.matching import Findings, LogText, last_stamp
from belay.agents.node.diagnosis.times import offset_in, zone_of
from belay.engine.model.log_evidence import LogRule, LogSource, PodEvidence

#: Bytes of the end of a file that are read, and of all that a compressed file is unpacked to.
FILE_BYTES: Final = 24 << 20
MOST_UNPACKED: Final = 512 << 20
#: Files and levels of folders of one node, and nodes of a collection.
MAX_FILES: Final = 20_000
MAX_NODES: Final = 10_000
_DEPTH: Final = 12
_TAIL: Final = 64 << 10
#: Logs of a node that are asked for its zone; a file counts as written with its last line within this many ms.
_SAMPLE: Final = 64
_CLOSE: Final = 20_000
#: Sources whose silence means something: processes of a job wrote them.
PROCESSES: Final = frozenset({LogSource.TRAINING, LogSource.PLOG, LogSource.INFERENCE})
#: Folders whose name says what lies below; the innermost counts.
_FOLDERS: Final = {
    "process_log": LogSource.PLOG, "plog": LogSource.PLOG, "device_log": LogSource.DEVICE, "slog": LogSource.DEVICE,
    "hisi_logs": LogSource.DEVICE, "dl_log": LogSource.COMPONENT, "mindx-dl": LogSource.COMPONENT,
    "ttp_log": LogSource.TRAINING, "mindie": LogSource.INFERENCE, "mindie_log": LogSource.INFERENCE,
    "mindie_cluster_log": LogSource.INFERENCE, "pymotor_vllm_log": LogSource.INFERENCE, "vllm_log": LogSource.INFERENCE,
    "amct_log": LogSource.TRAINING, "environment_check": LogSource.CHECK, "bmc_log": LogSource.BMC,
    "dump_info": LogSource.BMC, "lcne_log": LogSource.SWITCH, "bus_log": LogSource.SWITCH, "host_log": LogSource.HOST,
    "train_log": LogSource.TRAINING, "crash": LogSource.HOST,
}  # fmt: skip
_NAMES: Final = (
    (re.compile(r"plog-\d+_\d+\.log"), LogSource.PLOG),
    (re.compile(r"device-\d+_\d+\.log"), LogSource.DEVICE),
    (re.compile(r"npu_info_(before|after)\.txt"), LogSource.CHECK),
    (re.compile(r"(messages|syslog|kern\.log|dmesg|vmcore[-_]dmesg|sysmonitor)([-.].*)?"), LogSource.HOST),
    (re.compile(r"(vllm|mindie)[-_].*\.log"), LogSource.INFERENCE),
    (re.compile(r"(device-?plugin|noded|volcano-|npu-exporter|hook-run|runtime-run|clusterd|ascend-operator).*\.log"),
     LogSource.COMPONENT),
    (re.compile(r"rank[-_]?\d+.*\.(txt|log)|worker[-_]?\d+.*\.(txt|log)|(std(out|err)|train\w*)\.(log|txt)"),
     LogSource.TRAINING),
)  # fmt: skip
_OTHER: Final = re.compile(r".+\.(log|txt|out)")
_IGNORED: Final = re.compile(
    r".*\.(csv|json|ya?ml|zip|tar|tgz|xz|bz2|zst|py|sh|md|html?|pt|bin)|dmidecode.*|readme.*|.*\.tar\.gz"
)
_RANK: Final = re.compile(r"rank[-_]?(\d{1,7})\b")
_ARCHIVE: Final = re.compile(r"(\d{15})-([A-Za-z0-9._-]{1,180})\.log\.gz")
_SECTION: Final = re.compile(rb"(?m)^==> (\w{1,20}) (.{0,400}) <==$")


class CollectedLog(NamedTuple):
    """A file of a collection; ``certain``: its folder or name says what it is."""

    path: Path
    source: LogSource
    certain: bool


class CollectedNode(NamedTuple):
    """The logs of one node. ``skipped``: files that were not taken: packed, too many, or of no known kind."""

    name: str
    logs: tuple[CollectedLog, ...]
    skipped: int


def nodes_in(folder: Path) -> list[CollectedNode]:
    """The nodes of a collection, by name; those without logs are left out. Raises OSError."""
    whole = _node(folder.resolve().name, folder)
    folders = [one for one in _entries(folder) if one.is_dir(follow_symlinks=False)]
    here = [log for log in whole.logs if log.path.parent == folder and log.certain]
    if here or not folders or any(one.name.lower() in _FOLDERS for one in folders):
        return [whole] if whole.logs else []
    found = [_node(one.name, Path(one.path)) for one in folders[:MAX_NODES]]
    return [one for one in found if one.logs]


def newest_line(nodes: Sequence[CollectedNode], zone: int | None) -> int:
    """The time of the last line that a process of the job wrote, Unix ms; 0 without one."""
    newest = 0
    for node in nodes:
        logs = [log for log in node.logs if log.source in PROCESSES]
        shift = _zone(node, zone)
        for log in logs:
            stamp = last_stamp(_text(log, _end(log.path, _TAIL), 0))
            if stamp is not None:
                newest = max(newest, stamp.ms + (shift if stamp.local else 0))
    return newest


def read_node(
    node: CollectedNode, rules: Sequence[LogRule], since_ms: int, zone: int | None, *, addresses: bool = False
) -> list[PodEvidence]:
    """What the logs of a node say; one evidence for each archive of a pod in it, and one for all the rest.

    Args:
        zone: ms east of UTC of times without a zone, where no log of the node states it; None: 0.
        addresses: also hide IP addresses in examples.
    """
    shift = _zone(node, zone)
    findings = Findings(rules, since_ms, addresses=addresses)
    found, files, cut = list[PodEvidence](), 0, False
    for log in node.logs:
        archive = _ARCHIVE.fullmatch(log.path.name)
        if archive is not None:
            found.append(_archived(node.name, archive, log, rules, addresses))
            continue
        data = _end(log.path, FILE_BYTES)
        files, cut = files + bool(data), cut or len(data) >= FILE_BYTES
        findings.read(_text(log, data, shift))
        if log.source is LogSource.CHECK:
            look_at_checks(findings, _text(log, data, shift))
    if files:
        silent = not any(log.source in PROCESSES for log in node.logs)
        found.append(PodEvidence(
            "", node.name, node.name, node=node.name, host_ip=findings.host, chips=findings.devices,
            ranks=findings.ranks, world=findings.world, files=files, cut=cut, events=findings.events(),
            bystander=silent, why="collected",
        ))  # fmt: skip
    return found


def _archived(
    node: str, name: re.Match[str], log: CollectedLog, rules: Sequence[LogRule], addresses: bool
) -> PodEvidence:
    """The evidence of a pod from what its agent kept of its logs."""
    data, written = _end(log.path, FILE_BYTES), int(name[1])
    findings, files, marks = Findings(rules, 0, addresses=addresses), 0, list(_SECTION.finditer(data))
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        source = next((one for one in LogSource if one.value == mark[1].decode()), LogSource.TRAINING)
        text = data[mark.end() + 1 : after.start() if after is not None else len(data)]
        findings.read(LogText(source, mark[2].decode(errors="replace"), text, written))
        files += 1
    return PodEvidence(
        "", name[2], log.path.name, node=node, ranks=findings.ranks, world=findings.world, files=files,
        events=findings.events(), why="collected",
    )  # fmt: skip


def _node(name: str, folder: Path) -> CollectedNode:
    logs, skipped = list[CollectedLog](), 0
    for path, within in _files(folder, ()):
        found = _source(path.name.lower(), within)
        if found is None or len(logs) >= MAX_FILES:
            skipped += 1
        else:
            logs.append(CollectedLog(path, *found))
    return CollectedNode(name, tuple(logs), skipped)


def _source(name: str, within: Sequence[str]) -> tuple[LogSource, bool] | None:
    if _ARCHIVE.fullmatch(name):
        return LogSource.TRAINING, True
    if _IGNORED.fullmatch(name):
        return None
    plain = name.removesuffix(".gz")
    folder = next((_FOLDERS[part] for part in reversed(within) if part in _FOLDERS), None)
    named = next((source for pattern, source in _NAMES if pattern.fullmatch(plain)), None)
    # what its name says of a file counts below folders that hold several kinds
    if folder is None or (folder is LogSource.PLOG and named is LogSource.DEVICE) or named is LogSource.CHECK:
        if named is not None:
            return named, True
        if folder is None:
            return (LogSource.TRAINING, False) if _OTHER.fullmatch(plain) else None
    return (folder, True) if folder is not LogSource.CHECK else None


def _files(folder: Path, within: tuple[str, ...]) -> Iterator[tuple[Path, tuple[str, ...]]]:
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            if len(within) < _DEPTH:
                yield from _files(Path(entry.path), (*within, entry.name.lower()))
        elif entry.is_file(follow_symlinks=False):
            yield Path(entry.path), within


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda one: one.name)


def _zone(node: CollectedNode, zone: int | None) -> int:
    """What to add to local times of a node, in ms: as a log states it, as the caller says, or as the times say at which
    files were written last, where these were kept (all logs of processes then end within seconds of them)."""
    logs = [log for log in node.logs if not _ARCHIVE.fullmatch(log.path.name)][:_SAMPLE]
    shifts = []
    for log in logs:
        data = _end(log.path, _TAIL)
        for raw in data[-4096:].splitlines()[-8:]:
            east = offset_in(raw[:200].decode(errors="replace"))
            if east is not None:
                return -east
        text = _text(log, data, 0)
        stamp = last_stamp(text) if log.source in PROCESSES else None
        if stamp is not None and stamp.local:
            shift = zone_of(stamp, text.written_ms)
            shifts.append(shift if abs(text.written_ms - stamp.ms - shift) < _CLOSE else None)
    if zone is None and len(shifts) > 1 and len(set(shifts)) == 1 and shifts[0] is not None:
        return shifts[0]
    return -(zone or 0)


def _text(log: CollectedLog, data: bytes, shift: int) -> LogText:
    rank = _RANK.search(log.path.name.lower()) if log.source is LogSource.TRAINING else None
    try:
        written = int(log.path.stat().st_mtime * 1000)
    except OSError:
        written = 0
    return LogText(log.source, str(log.path), data, written, int(rank[1]) if rank is not None else -1, shift)


def _end(path: Path, limit: int) -> bytes:
    """The last bytes of a file, unpacked; empty where it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as stream:
            if path.name.endswith(".gz"):
                return _unpacked(stream, limit)
            size = os.fstat(stream.fileno()).st_size
            stream.seek(max(0, size - limit))
            return stream.read(limit)
    except OSError:
        return b""


def _unpacked(stream: BinaryIO, limit: int) -> bytes:
    """The end of what a gzip file holds; where it is damaged, of what comes before the damage."""
    kept, total, engine = b"", 0, zlib.decompressobj(wbits=31)
    with contextlib.suppress(zlib.error):
        while total < MOST_UNPACKED and (data := engine.unconsumed_tail or engine.unused_data or stream.read(1 << 18)):
            if engine.eof:  # another member follows
                engine = zlib.decompressobj(wbits=31)
            part = engine.decompress(data, 1 << 20)
            total += len(part) or 1
            kept = (kept + part)[-limit:]
    return kept
