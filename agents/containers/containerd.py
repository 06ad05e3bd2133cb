"""containerd through its socket, using the part of its gRPC API in `agents/containers/api`."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from belay.agents.common.log import Log
from belay.agents.containers.api import (
    containers_pb2,
    containers_pb2_grpc,
    namespaces_pb2,
    namespaces_pb2_grpc,
    snapshots_pb2,
    snapshots_pb2_grpc,
    tasks_pb2,
    tasks_pb2_grpc,
)
from belay.agents.containers.runtime import Container, RuntimeFailure
from belay.agents.containers.usage import UsageError, chips_of_environment, chips_of_rules, driver_majors

#: Docker's own containers, which are managed through Docker.
NOT_OURS: Final = frozenset({"moby"})
MAX_MESSAGE: Final = 64 << 20
SECONDS: Final = 10.0
END_SECONDS: Final = 15.0
END_POLL: Final = 0.1
_ALIVE: Final = frozenset({tasks_pb2.CREATED, tasks_pb2.RUNNING, tasks_pb2.PAUSED, tasks_pb2.PAUSING})
_log = Log("containerd")


class Containerd:
    """One containerd. ``majors`` are the NPU driver's device numbers."""

    def __init__(self, socket: Path, majors: frozenset[int] | None = None) -> None:
        self._socket, self._majors = socket, majors
        self._channel: grpc.aio.Channel | None = None
        self._chips: dict[tuple[str, str], tuple[bytes, tuple[int, ...]]] = {}
        self._streams: dict[tuple[str, str], tasks_pb2.Process] = {}

    async def containers(self) -> Sequence[Container]:
        """List the containers of every namespace that use chips."""
        spaces = await self._ask(
            self._stub(namespaces_pb2_grpc.NamespacesStub).List, namespaces_pb2.ListNamespacesRequest()
        )
        found: list[Container] = []
        known: dict[tuple[str, str], tuple[bytes, tuple[int, ...]]] = {}
        for space in sorted({one.name for one in spaces.namespaces} - NOT_OURS):
            objects = await self._ask(
                self._stub(containers_pb2_grpc.ContainersStub).List, containers_pb2.ListContainersRequest(), space
            )
            tasks = await self._ask(self._stub(tasks_pb2_grpc.TasksStub).List, tasks_pb2.ListTasksRequest(), space)
            # a shim that does not answer is listed with an unknown status; its processes may still run
            alive = {task.id or task.container_id for task in tasks.tasks if task.status != tasks_pb2.STOPPED}
            for one in objects.containers:
                key, spec = (space, one.id), one.spec.value
                kept = self._chips.get(key)
                known[key] = kept if kept is not None and kept[0] == spec else (spec, self._used(key, spec))
                if known[key][1]:
                    found.append(Container(one.id, space, known[key][1], one.id in alive))
        self._chips = known
        self._streams = {key: task for key, task in self._streams.items() if key in known}
        return found

    def _used(self, key: tuple[str, str], spec: bytes) -> tuple[int, ...]:
        if self._majors is None or not self._majors:
            self._majors = driver_majors()
        try:
            return chips_of_spec(spec, self._majors)
        except UsageError as error:
            _log.warning("container is not managed", namespace=key[0], container=key[1], error=error)
            return ()

    async def stop(self, namespace: str, container: str) -> None:
        """Kill the task and everything in it, wait for its end, and delete it. The container itself stays."""
        tasks, key = self._stub(tasks_pb2_grpc.TasksStub), (namespace, container)
        seen = await self._tried(tasks.Get, tasks_pb2.GetRequest(container_id=container), namespace)
        if seen is None:
            return
        self._streams[key] = seen.process
        kill = tasks_pb2.KillRequest(container_id=container, signal=int(signal.SIGKILL))
        await self._tried(tasks.Kill, kill, namespace)
        kill.all = True
        await self._tried(tasks.Kill, kill, namespace)
        try:
            async with asyncio.timeout(END_SECONDS):
                while await self._alive(namespace, container):
                    await asyncio.sleep(END_POLL)
        except TimeoutError:
            raise RuntimeFailure(f"container {container[:64]} did not end in {END_SECONDS:g} s") from None
        await self._tried(tasks.Delete, tasks_pb2.DeleteTaskRequest(container_id=container), namespace)

    async def _alive(self, namespace: str, container: str) -> bool:
        tasks = self._stub(tasks_pb2_grpc.TasksStub)
        seen = await self._tried(tasks.Get, tasks_pb2.GetRequest(container_id=container), namespace)
        return seen is not None and seen.process.status in _ALIVE

    async def start(self, namespace: str, container: str) -> None:
        """Make a new task from the container object and start it; its output goes to the file or logger used before;
        output to pipes is discarded, because they end with their client."""
        tasks = self._stub(tasks_pb2_grpc.TasksStub)
        if await self._alive(namespace, container):
            return
        await self._tried(tasks.Delete, tasks_pb2.DeleteTaskRequest(container_id=container), namespace)
        described = await self._ask(
            self._stub(containers_pb2_grpc.ContainersStub).Get,
            containers_pb2.GetContainerRequest(id=container),
            namespace,
        )
        made = tasks_pb2.CreateTaskRequest(container_id=container)
        if described.container.snapshot_key:
            mounts = await self._ask(
                self._stub(snapshots_pb2_grpc.SnapshotsStub).Mounts,
                snapshots_pb2.MountsRequest(
                    snapshotter=described.container.snapshotter, key=described.container.snapshot_key
                ),
                namespace,
            )
            made.rootfs.extend(mounts.mounts)
        made.terminal = _terminal(described.container.spec.value)
        before = self._streams.get((namespace, container))
        if before is not None:
            made.stdout, made.stderr = _lasting(before.stdout), _lasting(before.stderr)
        if made.terminal and not made.stdout:
            made.stdout = "file:///dev/null"
        await self._ask(tasks.Create, made, namespace, END_SECONDS)
        try:
            await self._ask(tasks.Start, tasks_pb2.StartRequest(container_id=container), namespace)
        except RuntimeFailure:
            # a task that was created and cannot start would block the next attempt
            await self._tried(tasks.Delete, tasks_pb2.DeleteTaskRequest(container_id=container), namespace)
            raise
        self._streams.pop((namespace, container), None)

    async def close(self) -> None:
        """Close the socket."""
        if self._channel is not None:
            await self._channel.close(None)
            self._channel = None

    def _stub(self, kind: Any) -> Any:
        if self._channel is None:
            options = [("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.default_authority", "localhost")]
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
        return kind(self._channel)

    async def _ask(self, call: Any, request: Any, namespace: str = "", seconds: float = SECONDS) -> Any:
        metadata = [("containerd-namespace", namespace)] if namespace else []
        try:
            answer: Awaitable[Any] = call(request, metadata=metadata, timeout=seconds)
            return await answer
        except grpc.aio.AioRpcError as error:
            details = " ".join((error.details() or "").split())[:200]
            raise ContainerdFailure(error.code(), f"containerd: {error.code().name} {details}") from error

    async def _tried(self, call: Any, request: Any, namespace: str) -> Any:
        """Call a method; return None when its object is gone or has finished already."""
        try:
            return await self._ask(call, request, namespace)
        except ContainerdFailure as error:
            if error.code is grpc.StatusCode.NOT_FOUND or "already finished" in str(error):
                return None
            raise


class ContainerdFailure(RuntimeFailure):
    """An error that containerd returned."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def chips_of_spec(spec: bytes, majors: frozenset[int]) -> tuple[int, ...]:
    """The chips of an OCI runtime specification. Raises UsageError."""
    document = _object(spec)
    process, linux = document.get("process") or {}, document.get("linux") or {}
    chips = chips_of_environment([str(entry) for entry in process.get("env") or ()])
    if chips is not None:
        return chips
    rules = (linux.get("resources") or {}).get("devices") or ()
    return chips_of_rules([rule for rule in rules if isinstance(rule, Mapping)], majors)


def _object(spec: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(spec)
    except (ValueError, RecursionError) as error:
        raise UsageError("its specification is not JSON") from error
    if not isinstance(document, dict):
        raise UsageError("its specification has not the form of OCI")
    process, linux = document.get("process") or {}, document.get("linux") or {}
    resources = (linux.get("resources") if isinstance(linux, dict) else None) or {}
    if not isinstance(process, dict) or not isinstance(linux, dict) or not isinstance(resources, dict):
        raise UsageError("its specification has not the form of OCI")
    if not isinstance(process.get("env") or [], list) or not isinstance(resources.get("devices") or [], list):
        raise UsageError("its environment or its device rules are no list")
    return document


def _terminal(spec: bytes) -> bool:
    try:
        return bool((_object(spec).get("process") or {}).get("terminal"))
    except UsageError:
        return False


def _lasting(stream: str) -> str:
    return stream if stream.startswith(("file://", "binary://")) else ""
