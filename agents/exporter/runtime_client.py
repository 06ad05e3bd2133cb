"""One container runtime's gRPC services, of which the exporter uses a few calls.

gRPC and its messages take 10 MiB, so this is imported once there is a socket to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from belay.agents.exporter.api import runtimes_pb2 as pb
from belay.agents.exporter.entries import NotServed, RuntimeFault

CALL_SECONDS: Final = 5.0
MOST_MESSAGE: Final = 16 << 20
_OPTIONS: Final = [("grpc.max_receive_message_length", MOST_MESSAGE), ("grpc.default_authority", "localhost")]


class RuntimeClient:
    """The services behind one socket. Every call raises RuntimeFault, NotServed where there is no such service."""

    def __init__(self, path: str) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix://{path}", options=_OPTIONS)

    async def running(self, version: str) -> Sequence[Any]:
        """The running containers, by the CRI of this version."""
        request = pb.ListContainersRequest(
            filter=pb.ContainerFilter(state=pb.ContainerStateValue(state=pb.CONTAINER_RUNNING))
        )
        answer = await self._call(
            f"/runtime.{version}.RuntimeService/ListContainers", request, pb.ListContainersResponse
        )
        return [one for one in answer.containers if one.state == pb.CONTAINER_RUNNING]

    async def inspection(self, identity: str) -> str:
        """What iSulad says of a container, as JSON."""
        request = pb.InspectRequest(id=identity, timeout=3)
        answer = await self._call("/containers.ContainerService/Inspect", request, pb.InspectResponse)
        return str(answer.container_json)

    async def spec(self, identity: str, namespace: str) -> bytes:
        """The OCI spec that containerd has of a container, as JSON."""
        path, request = "/containerd.services.containers.v1.Containers/Get", pb.GetContainerRequest(id=identity)
        answer = await self._call(path, request, pb.GetContainerResponse, namespace)
        return bytes(answer.container.spec.value)

    async def pids(self, identity: str, namespace: str) -> frozenset[int]:
        """The processes of a container."""
        path, request = "/containerd.services.tasks.v1.Tasks/ListPids", pb.ListPidsRequest(container_id=identity)
        answer = await self._call(path, request, pb.ListPidsResponse, namespace)
        return frozenset(process.pid for process in answer.processes)

    async def close(self) -> None:
        """Close the socket."""
        await self._channel.close(None)

    async def _call(self, path: str, request: Any, answer: Any, namespace: str = "") -> Any:
        call = self._channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        metadata = (("containerd-namespace", namespace),) if namespace else ()
        try:
            return await call(request, metadata=metadata, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            text = f"{error.code().name}: {error.details() or ''}"[:300]
            kind = NotServed if error.code() == grpc.StatusCode.UNIMPLEMENTED else RuntimeFault
            raise kind(text) from error
