"""Rank tables as files: ``<root>/<namespace>.<job>/hccl.json`` and ``version``, for containers that mount them.

Every node with a pod of the job writes the same bytes, so that the file is there whether the volume is a folder of the
node or one that all nodes share. Folder 0744, files 0644, symbolic links refused, replaced in one step, and gone with
the job. Source: component/ascend-operator/pkg/ranktable/generator (WriteToFile, DeleteFile).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from agents.node.client import Cluster
from agents.node.clock import Clock
from agents.node.log import Log
from agents.node.settings import MAX_TEXT
from agents.node.state import NodeState
from engine.wire import rankfile
from engine.wire.errors import WireError
from engine.wire.names import SYSTEM
from engine.wire.rankfile import RankFile

#: Where MindCluster's operator puts them, and pods mount them from.
ROOT: Final = Path("/user/mindx-dl/ranktable")
TABLE: Final = "hccl.json"
VERSION: Final = "version"
FOLDER_MODE: Final = 0o744
FILE_MODE: Final = 0o644
#: Jobs whose tables one node follows at most; a node has few chips, so more of them are a mistake.
MAX_JOBS: Final = 256
#: Seconds between two looks at which jobs have pods here, and after a failed write.
PERIOD: Final = 1.0
_log = Log("rank tables")
_Job = tuple[str, str]


class RankFiles:
    """The files under one root. Raises OSError for what the disk or a hostile link does not allow."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def write(self, file: RankFile) -> bool:
        """Put a table in place; False when it stands there already."""
        folder = self._folder(file.namespace, file.job)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=FOLDER_MODE)
        handle = _open_folder(folder)
        try:
            os.fchmod(handle, FOLDER_MODE)
            if _read(handle, TABLE) == file.table.encode() and _read(handle, VERSION) == file.version.encode():
                return False
            # readers look at the version first: it must never be newer than the table
            _replace(handle, TABLE, file.table.encode())
            _replace(handle, VERSION, file.version.encode())
        finally:
            os.close(handle)
        return True

    def remove(self, file: RankFile) -> bool:
        """Take a table away with its folder, unless another life of the job has written its own meanwhile."""
        folder = self._folder(file.namespace, file.job)
        try:
            handle = _open_folder(folder)
        except FileNotFoundError:
            return False
        try:
            if _read(handle, TABLE) != file.table.encode():
                return False
            for name in (VERSION, TABLE):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=handle)
        finally:
            os.close(handle)
        with contextlib.suppress(OSError):
            folder.rmdir()  # what others put there stays
        return True

    def _folder(self, namespace: str, job: str) -> Path:
        name = f"{namespace}.{job}"
        if "/" in name or name.startswith("."):
            raise OSError(errno.EINVAL, "no name of a job", name)
        return self._root / name


async def keep_rank_files(state: NodeState, cluster: Cluster, clock: Clock, root: Path) -> None:
    """Follow the tables of jobs that have pods with the volume here. Never returns."""
    files, following = RankFiles(root), dict[_Job, _Follower]()
    async with asyncio.TaskGroup() as group:
        while True:
            wanted = _wanted(state)
            for job in sorted(wanted - following.keys()):
                following[job] = _Follower(state, cluster, clock, files, job)
                following[job].task = group.create_task(following[job].run())
            for job in sorted(following.keys() - wanted):
                # a table that was written here is followed until it goes, even when the pods have left before it
                if following[job].written is None:
                    following[job].stop()
                    del following[job]
            await clock.sleep(PERIOD)


def _wanted(state: NodeState) -> set[_Job]:
    """Jobs with a live pod here that mounts a rank table."""
    found = {
        (pod.namespace, rankfile.job_of(pod.labels))
        for pod in state.pods
        if rankfile.VOLUME in pod.volumes and not pod.finished and rankfile.job_of(pod.labels)
    }
    return set(sorted(found)[:MAX_JOBS])


class _Follower:
    """One job's table on this node: ``written`` is what stands in the file."""

    def __init__(self, state: NodeState, cluster: Cluster, clock: Clock, files: RankFiles, job: _Job) -> None:
        self._state, self._cluster, self._clock, self._files, self._job = state, cluster, clock, files, job
        self.written: RankFile | None = None
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Write what the ConfigMap says, and take the files away once it is gone."""
        problem = f"rank table {self._job[0]}.{self._job[1]}"
        async for body in self._cluster.config_map(SYSTEM, rankfile.name_of(*self._job)):
            try:
                file = rankfile.parse(body) if body is not None else None
            except WireError as error:
                self._state.problems[problem] = f"rank table is ignored: {error}"[:MAX_TEXT]
                continue
            while not await self._done(file, problem):
                await self._clock.sleep(PERIOD)

    async def _done(self, file: RankFile | None, problem: str) -> bool:
        try:
            if file is not None:
                if await asyncio.to_thread(self._files.write, file):
                    _log.info("rank table written", job="/".join(self._job), version=file.version)
            elif self.written is not None:
                await asyncio.to_thread(self._files.remove, self.written)
        except OSError as error:
            self._state.problems[problem] = f"rank table cannot be written: {error.strerror or error}"[:MAX_TEXT]
            return False
        self._state.problems.pop(problem, None)
        self.written = file
        return True

    def stop(self) -> None:
        """No pod here wants the table any more, and none stands here."""
        if self.task is not None:
            self.task.cancel()


def _open_folder(folder: Path) -> int:
    """The folder itself, never what a link points to."""
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(errno.ELOOP, "is a symbolic link or no folder, refused", str(folder)) from error
        raise


def _read(handle: int, name: str) -> bytes | None:
    try:
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a symbolic link, refused", name) from error
        raise
    with os.fdopen(number, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no file, refused", name)
        return stream.read(rankfile.MAX_BYTES + 1)


def _replace(handle: int, name: str, content: bytes) -> None:
    draft = f".{name}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=handle)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    number = os.open(draft, flags, FILE_MODE, dir_fd=handle)
    with os.fdopen(number, "wb") as stream:
        os.fchmod(stream.fileno(), FILE_MODE)
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(draft, name, src_dir_fd=handle, dst_dir_fd=handle)
