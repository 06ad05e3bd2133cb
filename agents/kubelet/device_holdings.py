"""Read which container holds which ids from kubelet's pod resources socket and its device checkpoint.

The socket lists the ids that kubelet counts as allocated now, by pod name; the checkpoint adds the pod's UID and the
device plugin's answer, so the real devices are known even after the agent has lost its ledger.
Sources: k8s.io/kubelet/pkg/apis/podresources, kubernetes pkg/kubelet/cm/devicemanager/checkpoint.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec
from google.protobuf.message import DecodeError

from belay.agents.kubelet.api import deviceplugin_pb2, podresources_v1_pb2, podresources_v1_pb2_grpc
from belay.agents.kubelet.pods import VISIBLE
from belay.agents.node.publicnames import PublicNames
from belay.engine.model.labels import HUAWEI_PREFIX

CHECKPOINT: Final = "kubelet_internal_checkpoint"
MAX_CHECKPOINT: Final = 10 << 20
OLDER_LIST: Final = "/v1alpha1.PodResourcesLister/List"
"""Its messages have the fields and numbers of v1, as far as they are read here."""
MAX_ANSWER: Final = 16 << 20
#: Seconds from the deadline of the last call over a connection until it is closed.
RETIRE_SECONDS: Final = 0.5
#: kubelet's server refuses the authority that gRPC derives from a path; any other is accepted on a local socket.
CHANNEL: Final = (("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", MAX_ANSWER))


class HoldingsError(Exception):
    """Kubelet's records cannot be read now; the text states which and why."""


class Holding(msgspec.Struct, frozen=True):
    """The devices of one container in kubelet's records.

    ``uid`` is empty if the socket is the only source or the pod is ambiguous; ``visible`` are the devices in the
    container's environment, ``nodes`` the numbers N of its ``/dev/davinciN``.
    """

    uid: str
    namespace: str
    name: str
    container: str
    resource: str
    ids: tuple[str, ...]
    visible: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()


class DeviceHoldings:
    """Read both records. ``socket`` is read with API v1, or v1alpha1 where kubelet has no other."""

    def __init__(self, socket: Path, checkpoint: Path, timeout: float, names: PublicNames | None = None) -> None:
        self._names = names or PublicNames()
        self._socket, self._checkpoint, self._timeout = socket, checkpoint, timeout
        self._channel: grpc.aio.Channel | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._alpha = False
        self._stamp: tuple[int, ...] = ()
        self._read: tuple[Holding, ...] = ()

    async def close(self) -> None:
        """Close the connection."""
        channel, self._channel = self._channel, None
        for task in list(self._closing):
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        if channel is not None:
            await channel.close(None)

    def _retire(self, channel: grpc.aio.Channel | None) -> None:
        """Replace this connection. Its pending calls keep their deadline: closing it immediately would cancel their
        tasks."""
        if channel is None or channel is not self._channel:
            return
        self._channel = None
        task = asyncio.create_task(channel.close(self._timeout + RETIRE_SECONDS))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def listed(self) -> list[Holding]:
        """Read Belay's resources from the pod resources socket. Raises HoldingsError."""
        if not self._socket.exists():
            self._retire(self._channel)
            raise HoldingsError(f"there is no {self._socket}")
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=CHANNEL)
        channel = self._channel
        try:
            answer = await self._ask(channel)
        except grpc.aio.AioRpcError as error:
            self._retire(channel)
            raise HoldingsError(f"{self._socket}: {error.code().name}: {str(error.details())[:120]}") from error
        return [
            Holding("", pod.namespace, pod.name, container.name, resource, self._own(devices.device_ids))
            for pod in answer.pod_resources
            for container in pod.containers
            for devices in container.devices
            if (resource := self._names.resource(devices.resource_name, outward=False)).startswith(HUAWEI_PREFIX)
            and devices.device_ids
        ]

    def _own(self, ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._names.device(name, outward=False) for name in ids)

    async def _ask(self, channel: grpc.aio.Channel) -> Any:
        if not self._alpha:
            stub = podresources_v1_pb2_grpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
            try:
                return await stub.List(podresources_v1_pb2.ListPodResourcesRequest(), timeout=self._timeout)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
                self._alpha = True
        older = channel.unary_unary(
            OLDER_LIST,
            request_serializer=podresources_v1_pb2.ListPodResourcesRequest.SerializeToString,
            response_deserializer=podresources_v1_pb2.ListPodResourcesResponse.FromString,
        )
        return await older(podresources_v1_pb2.ListPodResourcesRequest(), timeout=self._timeout)

    def checkpoint(self) -> tuple[Holding, ...]:
        """Read Belay's resources from the checkpoint; empty when kubelet never wrote one. Raises HoldingsError."""
        try:
            found = self._checkpoint.stat()
        except FileNotFoundError:
            self._stamp, self._read = (), ()
            return ()
        except OSError as error:
            raise HoldingsError(f"{self._checkpoint}: {error.strerror}") from error
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        if stamp != self._stamp:
            if found.st_size > MAX_CHECKPOINT:
                raise HoldingsError(f"{self._checkpoint} is larger than {MAX_CHECKPOINT >> 20} MiB")
            try:
                self._read = parse_checkpoint(self._checkpoint.read_bytes(), self._names)
            except OSError as error:
                raise HoldingsError(f"{self._checkpoint}: {error.strerror}") from error
            except ValueError as error:
                raise HoldingsError(f"{self._checkpoint}: {error}") from error
            self._stamp = stamp
        return self._read

    async def all(self, uids: Mapping[str, str]) -> list[Holding]:
        """Return all holdings now. ``uids`` maps ``namespace/name`` of live pods to their UID.

        The socket decides which ids are held, the checkpoint which pod of that name holds them and which real devices
        they are; when one cannot be read, the other is used alone. Raises HoldingsError when neither can.
        """
        trouble: list[str] = []
        listed: list[Holding] | None = None
        written: tuple[Holding, ...] | None = None
        try:
            listed = await self.listed()
        except (HoldingsError, TimeoutError) as error:
            trouble.append(str(error) or "no answer in time")
        try:
            written = self.checkpoint()
        except HoldingsError as error:
            trouble.append(str(error))
        if listed is None and written is None:
            raise HoldingsError("; ".join(trouble))
        if listed is None:
            keys = {uid: key for key, uid in uids.items()}
            return [_named(entry, keys[entry.uid]) for entry in written or () if entry.uid in keys]
        return [_joined(entry, written or (), uids.get(f"{entry.namespace}/{entry.name}", "")) for entry in listed]


def _named(entry: Holding, key: str) -> Holding:
    namespace, _, name = key.partition("/")
    return msgspec.structs.replace(entry, namespace=namespace, name=name)


def _joined(entry: Holding, written: Sequence[Holding], uid: str) -> Holding:
    """Add the checkpoint's entry to the socket's: the last with these ids in that container, the live pod's preferred.

    Where the checkpoint has them only under another UID, the holder is ambiguous: an earlier pod of the same name may
    not be released yet, or its entry may be about to be replaced by the live pod's.
    """
    wanted = set(entry.ids)
    same = [
        other
        for other in written
        if other.resource == entry.resource and other.container == entry.container and set(other.ids) == wanted
    ]
    same.sort(key=lambda other: other.uid == uid)
    if not same:
        return msgspec.structs.replace(entry, uid=uid)
    best = same[-1]
    whose = best.uid if uid in ("", best.uid) else ""
    return msgspec.structs.replace(entry, uid=whose, visible=best.visible, nodes=best.nodes)


def parse_checkpoint(raw: bytes, names: PublicNames | None = None) -> tuple[Holding, ...]:
    """Read the checkpoint's entries of Belay's resources. Raises ValueError.

    ``DeviceIDs`` is a list; since Kubernetes 1.20, one list per NUMA node.
    """
    try:
        data = msgspec.json.decode(raw)["Data"]
        entries = data.get("PodDeviceEntries") or []
        out, public = [], names or PublicNames()
        for entry in entries:
            resource = public.resource(str(entry["ResourceName"]), outward=False)
            if not resource.startswith(HUAWEI_PREFIX):
                continue
            ids = entry.get("DeviceIDs") or []
            if isinstance(ids, dict):
                ids = [name for node in sorted(ids) for name in ids[node] or ()]
            visible, nodes = _answer(str(entry.get("AllocResp") or ""))
            out.append(
                Holding(
                    str(entry["PodUID"]), "", "", str(entry.get("ContainerName") or ""), resource,
                    tuple(sorted(public.device(str(name), outward=False) for name in ids)), visible, nodes,
                )
            )  # fmt: skip
        return tuple(out)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"is no checkpoint of devices: {type(error).__name__} {error}"[:200]) from error


def _answer(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    try:
        answer = deviceplugin_pb2.ContainerAllocateResponse.FromString(base64.b64decode(text.encode(), validate=True))
    except (DecodeError, binascii.Error):
        return (), ()
    visible = tuple(part for part in answer.envs.get(VISIBLE, "").split(",") if part.isdecimal())
    nodes = []
    for device in answer.devices:
        tail = device.container_path.rpartition("/davinci")[2]
        if tail.isdecimal():
            nodes.append(int(tail))
    return visible, tuple(sorted(nodes))
