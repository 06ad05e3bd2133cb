"""Step times of the node's training jobs: read from their profiling, sent to the engine.

Training containers write ``<root>/<job>/<rank>/<unix seconds>`` (records, a file is at most 10 MiB) and
``parallel_group.json`` beside it, as MindCluster's TaskD does; a job writes only while its profiling is on. The folder
belongs to containers: no link is followed, and everything is bounded. Sources: component/taskd (profiling,
group_info.py), component/ascend-faultdiag-online/pkg/service/servicefunc/slownode/constants (paths).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from belay.agents.common import hostfiles
from belay.agents.common.client import ApiServer
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.node.publisher import Publisher
from belay.agents.node.steprecords import Groups, RankSteps, kind_of
from belay.engine.model.step_times import NodeSteps
from belay.engine.wire import steptimes as wire

ROOT: Final = Path("/user/cluster-info/profiling")
GROUPS_FILE: Final = "parallel_group.json"
PERIOD: Final = 5.0
SPACING: Final = 15.0
"""Least seconds between two writes."""
RESEND: Final = 300.0
FORGET: Final = 600.0
"""Seconds without new records after which a job counts as ended."""
MAX_READ: Final = 4 << 20
"""Bytes that are read of one rank in one look."""
MAX_BEHIND: Final = 32 << 20
"""Bytes of one rank that may wait; if there are more, reading goes on with the newest file."""
MAX_GROUPS_FILE: Final = 10 << 20
MAX_JOBS: Final = 16
MAX_RANKS: Final = 64
MAX_FILES: Final = 4096
_JOB: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_log = Log("step times")


class ProfilingReader:
    """The files of one rank, read on from where the last look ended."""

    def __init__(self, rank: int) -> None:
        self.steps = RankSteps(rank)
        self.seen = 0.0
        self.bad = 0
        self._file = ""
        self._offset = 0
        self._rest = b""
        self._groups: Groups = {}
        self._groups_at: tuple[int, int] = (0, 0)

    def look(self, folder: int, now: float) -> None:
        """Read what is new. Raises OSError."""
        names = _files(folder)
        if not names:
            return
        if self._file not in names:  # at first, or its file was removed to keep the quota
            self._begin(names[-1])
        self._read_groups(folder)
        waiting = names[names.index(self._file) :]
        if sum(_size(folder, name) for name in waiting) - self._offset > MAX_BEHIND:
            _log.warning("profiling is written faster than it can be read, steps are skipped", rank=self.steps.rank)
            self._begin(names[-1])
            waiting = names[-1:]
        left = MAX_READ
        for name in waiting:
            if name != self._file:
                self._begin(name)
            content = _read(folder, name, self._offset, left)
            if content:
                self.seen, left, self._offset = now, left - len(content), self._offset + len(content)
                lines = (self._rest + content).split(b"\n")
                self._rest = lines.pop()[:65_536]
                self.bad += self.steps.take((line for line in lines if line), self._groups)
            if left <= 0:
                return

    def _begin(self, name: str) -> None:
        self._file, self._offset, self._rest = name, 0, b""

    def _read_groups(self, folder: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(GROUPS_FILE, dir_fd=folder, follow_symlinks=False)
            version = (found.st_mtime_ns, found.st_size)
            if version != self._groups_at:
                self._groups_at = version
                content = hostfiles.read(folder, GROUPS_FILE, MAX_GROUPS_FILE) or b""
                self._groups = groups_of(content) if len(content) <= MAX_GROUPS_FILE else {}


class StepTimes:
    """Reads the jobs below ``root``, and keeps ``belay-steps-<node>`` up to date. Runs beside the agent."""

    def __init__(
        self,
        node: str,
        cluster: ApiServer,
        root: Path = ROOT,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._node, self._root, self._clock = node, root, clock or Clock()
        self._jobs: dict[str, dict[int, ProfilingReader]] = {}
        self._problem = ""
        self._publisher = Publisher(
            f"step times of {node}",
            build=self._body,
            write=cluster.put_config_map,
            period=lambda: RESEND,
            spacing=SPACING,
            clock=self._clock,
            chance=chance or random.Random(),
        )

    async def run(self) -> None:
        """Run until cancelled. A node that never had profiling gets no ConfigMap."""
        async with asyncio.TaskGroup() as group:
            publishing: asyncio.Task[None] | None = None
            while True:
                await asyncio.to_thread(self.look)
                found = self.jobs()
                if found or publishing is not None:
                    self._publisher.update(found)
                    publishing = publishing or group.create_task(self._publisher.run())
                await self._clock.pause(PERIOD if self._jobs else 6 * PERIOD)

    def jobs(self) -> tuple[NodeSteps, ...]:
        """The windows of every job, by id."""
        return tuple(
            NodeSteps(self._node, job, windows)
            for job, ranks in sorted(self._jobs.items())
            if (windows := tuple(one for _, rank in sorted(ranks.items()) for one in rank.steps.windows))
        )

    def look(self) -> None:
        """Read every rank once."""
        now, problem = self._clock.monotonic(), ""
        try:
            root = hostfiles.open_folder(self._root)
        except FileNotFoundError:
            self._jobs.clear()
            return
        except OSError as error:
            root, problem = -1, f"{self._root} cannot be read: {error.strerror}"
        else:
            with _closing(root):
                problem = self._look(root, now)
        for job, ranks in list(self._jobs.items()):
            if now - max(one.seen for one in ranks.values()) > FORGET:
                del self._jobs[job]
        if problem and problem != self._problem:
            _log.warning("profiling cannot be read", node=self._node, reason=problem)
        self._problem = problem

    def _look(self, root: int, now: float) -> str:
        problem = ""
        folders = sorted(name for name in _entries(root) if _JOB.fullmatch(name))
        # the newest jobs, however many old folders there are
        folders.sort(key=lambda name: -os.stat(name, dir_fd=root, follow_symlinks=False).st_mtime)
        for job in folders[:MAX_JOBS]:
            try:
                with _closing(_open_at(root, job)) as folder:
                    for name in sorted((one for one in _entries(folder) if one.isdigit()), key=int)[:MAX_RANKS]:
                        with _closing(_open_at(folder, name)) as place:
                            known = self._jobs.get(job, {}).get(int(name)) or ProfilingReader(int(name))
                            known.look(place, now)
                            if known.seen:
                                self._jobs.setdefault(job, {})[int(name)] = known
            except OSError as error:
                problem = f"job {job}: {error.filename or ''} {error.strerror}"
        return problem

    def _body(self) -> dict[str, Any]:
        return wire.steps_map(self._node, self._clock.now_ms(), self.jobs())


def groups_of(content: bytes) -> dict[str, tuple[str, tuple[int, ...]]]:
    """``parallel_group.json``: name of a communicator → kind and global ranks; empty when it cannot be read."""
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, group in raw.items() if isinstance(raw, dict) else ():
        ranks = group.get("global_ranks") if isinstance(group, dict) else None
        if not isinstance(ranks, list) or len(ranks) > wire.MAX_MEMBERS or len(found) >= wire.MAX_GROUPS:
            continue
        if all(type(rank) is int and 0 <= rank <= wire.MAX_RANK for rank in ranks):
            found[str(name)] = (kind_of(str(group.get("group_name") or "")), tuple(ranks))
    return found


@contextlib.contextmanager
def _closing(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)


def _open_at(folder: int, name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)


def _entries(folder: int) -> list[str]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
            if len(found) >= MAX_FILES:
                break
    return found


def _files(folder: int) -> list[str]:
    """The record files of a rank, oldest first."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(entry.name) == 10 and entry.name.isdigit() and entry.is_file(follow_symlinks=False):
                found.append(entry.name)
            if len(found) >= MAX_FILES:
                break
    return sorted(found)


def _size(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def _read(folder: int, name: str, offset: int, limit: int) -> bytes:
    try:
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return b""
    with os.fdopen(number, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return b""
        stream.seek(offset)
        return stream.read(limit)
