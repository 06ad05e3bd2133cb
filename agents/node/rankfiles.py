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
from pathlib import Path
from typing import Final

from belay.agents.common.client import ApiServer
from belay.agents.common.clock import Clock
from belay.agents.common.hostfiles import open_folder, read, remove, replace
from belay.agents.common.log import Log
from belay.agents.node.settings import MAX_TEXT
from belay.agents.node.state import NodeState
from belay.engine.wire import rankfile
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import SYSTEM
from belay.engine.wire.rankfile import RankFile

#: The folder where MindCluster's operator writes them and from which pods mount them.
ROOT: Final = Path("/user/mindx-dl/ranktable")
TABLE: Final = "hccl.json"
VERSION: Final = "version"
FOLDER_MODE: Final = 0o744
#: Jobs whose tables one node follows at most; a node has few chips, so more of them are a mistake.
MAX_JOBS: Final = 256
#: Seconds between two checks of the jobs with pods here, and after a failed write.
PERIOD: Final = 1.0
_log = Log("rank tables")
_Job = tuple[str, str]


class RankFiles:
    """The files under one root. Raises OSError for what the disk or a hostile link does not allow."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def write(self, file: RankFile) -> bool:
        """Write a table; False when the file has it already."""
        folder = self._folder(file.namespace, file.job)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=FOLDER_MODE)
        handle = open_folder(folder)
        try:
            os.fchmod(handle, FOLDER_MODE)
            standing = [read(handle, name, rankfile.MAX_BYTES) for name in (TABLE, VERSION)]
            if standing == [file.table.encode(), file.version.encode()]:
                return False
            # readers look at the version first: it must never be newer than the table
            replace(handle, TABLE, file.table.encode())
            replace(handle, VERSION, file.version.encode())
        finally:
            os.close(handle)
        return True

    def remove(self, file: RankFile) -> bool:
        """Remove a table and its folder, unless another instance of the job has written its own meanwhile."""
        folder = self._folder(file.namespace, file.job)
        try:
            handle = open_folder(folder)
        except FileNotFoundError:
            return False
        try:
            if read(handle, TABLE, rankfile.MAX_BYTES) != file.table.encode():
                return False
            for name in (VERSION, TABLE):
                remove(handle, name)
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


async def keep_rank_files(state: NodeState, cluster: ApiServer, clock: Clock, root: Path) -> None:
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
                if await following[job].stop():
                    del following[job]
            await clock.pause(PERIOD)


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

    def __init__(self, state: NodeState, cluster: ApiServer, clock: Clock, files: RankFiles, job: _Job) -> None:
        self._state, self._cluster, self._clock, self._files, self._job = state, cluster, clock, files, job
        self.written: RankFile | None = None
        self.task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Write the ConfigMap's table, and remove the files once it is deleted."""
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
        async with self._writing:
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

    async def stop(self) -> bool:
        """Stop following, unless a table is written here. No pod here wants the table any more."""
        async with self._writing:  # a thread that writes outlives a cancellation
            if self.written is None and self.task is not None:
                self.task.cancel()
            return self.written is None
