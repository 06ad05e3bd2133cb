"""Checkpoints of inference containers that ask for one, by the container runtime's own command.

Source: component/noded (container snapshot), docs/zh/scheduling (inference snapshots).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from belay.agents.common.client import ApiError
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.common.processes import kill_session
from belay.engine.model.labels import INFERENCE_MANAGED, SNAPSHOT_FINISHED, SNAPSHOT_MODE

VARIABLE: Final = "host_snapshot_path"
RUNTIME: Final = "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"
AT_ONCE: Final = 8
RETRY: Final = 60.0
#: The file of a checkpoint that the container runtime writes last (agents/runtime/oci/runtime.h, SNAPSHOT_DIGEST).
DIGEST: Final = "rootfs-diff.digest"
SECONDS: Final = 1800.0
MAX_OUTPUT: Final = 4096
_NUMBERS: Final = re.compile(r"[0-9]+")
_CONTAINER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_log = Log("snapshots")


class PodWriter(Protocol):
    """The calls to the API server."""

    def pods(self, node: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """Follow the pods of a node."""
        ...

    async def patch_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of a pod."""
        ...


class Wanted(NamedTuple):
    """A checkpoint that a pod asks for."""

    namespace: str
    name: str
    uid: str
    container: str
    folder: str


def wanted(pod: Mapping[str, Any]) -> Wanted | None:
    """What a pod asks for; None when it asks for nothing, has got it, or is not ready."""
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    if not _asks(metadata) or metadata.get("deletionTimestamp") or not _is_ready(status):
        return None

    containers, running = spec.get("containers") or [], status.get("containerStatuses") or []
    if len(containers) != 1 or len(running) != 1:
        return None
    container = str(running[0].get("containerID", "")).rpartition("://")[2]
    folder = _folder(containers[0])
    # instances of a service differ in the last number of their names
    numbers = _NUMBERS.findall(str(metadata.get("name", "")))
    if not folder or not numbers or not _CONTAINER.fullmatch(container):
        return None

    return Wanted(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        container=container,
        folder=f"{folder.rstrip('/')}/{numbers[-1]}",
    )


def _asks(metadata: Mapping[str, Any]) -> bool:
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    is_managed = labels.get(INFERENCE_MANAGED) == "true"
    return is_managed and annotations.get(SNAPSHOT_MODE) == "save" and SNAPSHOT_FINISHED not in annotations


def _is_ready(status: Mapping[str, Any]) -> bool:
    conditions = status.get("conditions") or []
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)


def _folder(container: Mapping[str, Any]) -> str:
    """Where a container says that checkpoints go; empty when it does not."""
    for variable in container.get("env") or []:
        if variable.get("name") == VARIABLE:
            return variable.get("value") or ""
    return ""


class Snapshots:
    """Runs until cancelled; at most eight checkpoints at a time, the others when a minute has passed."""

    def __init__(
        self, node: str, cluster: PodWriter, clock: Clock, *, runtime: str = RUNTIME, seconds: float = SECONDS
    ) -> None:
        self._node, self._cluster, self._clock, self._runtime, self._seconds = node, cluster, clock, runtime, seconds
        self._pods: Sequence[Mapping[str, Any]] = ()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._done: dict[str, str] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow the pods and start what they ask for."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow())
                while True:
                    self.start(self._pods)
                    await self._clock.wait(self._changed, RETRY)
        finally:
            for task in self._busy.values():
                task.cancel()
            await asyncio.gather(*self._busy.values(), return_exceptions=True)

    async def _follow(self) -> None:
        async for pods in self._cluster.pods(self._node):
            self._pods = list(pods)
            self._changed.set()

    def start(self, pods: Sequence[Mapping[str, Any]]) -> list[asyncio.Task[None]]:
        """Start the requested checkpoints within the limit; return the tasks started."""
        started = []
        asked = {one.uid: one for one in map(wanted, pods) if one is not None}
        self._done = {uid: result for uid, result in self._done.items() if uid in asked}
        for uid, one in sorted(asked.items()):
            if uid in self._busy:
                continue
            if len(self._busy) >= AT_ONCE:
                break
            task = self._busy[uid] = asyncio.create_task(self._make(one))
            task.add_done_callback(lambda _, uid=uid: self._busy.pop(uid, None))  # type: ignore[misc]
            started.append(task)
        return started

    async def _make(self, one: Wanted) -> None:
        # a result that could not be written does not repeat the checkpoint
        result = self._done.get(one.uid)
        if result is None:
            try:
                await self._checkpoint(one)
                result = "true"
            except (OSError, SnapshotError) as error:
                _log.error("a snapshot failed", pod=f"{one.namespace}/{one.name}", error=error)
                result = "false"
            self._done[one.uid] = result
        try:
            await self._cluster.patch_pod(one.namespace, one.name, one.uid, {SNAPSHOT_FINISHED: result})
        except ApiError as error:
            _log.warning("a snapshot's end cannot be reported", pod=f"{one.namespace}/{one.name}", error=error)

    async def _checkpoint(self, one: Wanted) -> None:
        folder = Path(one.folder)
        if not folder.is_absolute() or ".." in folder.parts:
            raise SnapshotError(f"{VARIABLE} {one.folder[:200]!r} must be an absolute path")
        if folder.is_dir():
            if (folder / DIGEST).is_file():
                _log.info("a snapshot is there already", pod=f"{one.namespace}/{one.name}", folder=one.folder)
                return
            state = f"has no {DIGEST}" if any(folder.iterdir()) else "is empty"
            raise SnapshotError(
                f"{one.folder} exists and {state}: an earlier attempt did not end; remove the folder and the pod's "
                f"annotation {SNAPSHOT_FINISHED} to try again"
            )
        process = await asyncio.create_subprocess_exec(
            self._runtime, "checkpoint", "--image-path", one.folder, one.container,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert process.stderr is not None
        try:
            async with asyncio.timeout(self._seconds):
                said = await _tail(process.stderr)
                code = await process.wait()
        except TimeoutError:
            raise SnapshotError(f"the checkpoint did not finish in {self._seconds:g} s and was ended") from None
        finally:
            await kill_session(process)
        if code:
            raise SnapshotError(f"the checkpoint ended with code {code}: {said}")


class SnapshotError(Exception):
    """A checkpoint could not be made."""


async def _tail(stream: asyncio.StreamReader) -> str:
    last = b""
    while chunk := await stream.read(MAX_OUTPUT):
        last = (last + chunk)[-MAX_OUTPUT:]
    return " ".join(last.decode("utf-8", "replace").split())[-200:]
