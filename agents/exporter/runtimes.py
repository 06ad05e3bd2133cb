"""Asking container runtimes which containers hold which devices: CRI lists, containerd or iSulad names devices and
processes.

Addresses and limits: component/npu-exporter/collector/container. A container's devices do not change, so each is asked
about once; its processes are asked for every round.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from belay.agents.common.log import Log
from belay.agents.exporter import visible
from belay.agents.exporter.entries import Container, Containers, NotServed, RuntimeFault

if TYPE_CHECKING:
    from belay.agents.exporter.runtime_client import RuntimeClient

MOST_CONTAINERS: Final = 1024
LONGEST_ID: Final = 2048
LONGEST_LABEL: Final = 512
ROUND_SECONDS: Final = 5.0
KEPT_SECONDS: Final = 100.0
AT_ONCE: Final = 16
CRI_VERSIONS: Final = ("v1", "v1alpha2")
LABELS: Final = ("io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name")
MAJORS: Final = Path("/proc/devices")
MOST_LINES: Final = 512
_log = Log("exporter")


class Addresses(NamedTuple):
    """Sockets to try in turn, and containerd's namespace."""

    cri: tuple[str, ...]
    oci: tuple[str, ...]
    namespace: str


_CONTAINERD: Final = "/run/containerd/containerd.sock"
MODES: Final[Mapping[str, Addresses]] = {
    "docker": Addresses(
        ("/run/dockershim.sock", "/run/cri-dockerd.sock"),
        ("/run/docker/containerd/docker-containerd.sock", _CONTAINERD, "/run/docker/containerd/containerd.sock"),
        "moby",
    ),
    "containerd": Addresses((_CONTAINERD,), (_CONTAINERD,), "k8s.io"),
    "isula": Addresses(("/run/isulad.sock",), ("/run/isulad.sock",), "k8s.io"),
}


class Runtimes:
    """One node's container runtime. ``owners`` may own sockets; ``now`` is a monotonic clock in seconds."""

    def __init__(
        self,
        mode: str,
        now: Callable[[], float],
        *,
        cri: str = "",
        oci: str = "",
        owners: frozenset[int] = frozenset({0}),
        majors: frozenset[int] | None = None,
    ) -> None:
        found = MODES[mode]
        self._cri = (cri.removeprefix("unix://"),) if cri else found.cri
        self._oci = (oci.removeprefix("unix://"),) if oci else found.oci
        self._namespace, self._isula = found.namespace, mode == "isula"
        self._now, self._owners, self._majors = now, owners, majors
        self._clients: dict[str, RuntimeClient] = {}
        self._version = 0
        self._devices: dict[str, tuple[int, ...]] = {}
        self._last: Containers = {}
        self._until = 0.0
        self._trouble = ""

    async def read(self) -> Containers:
        """The containers that hold each device; the last answer is kept for 100 s while the runtime cannot be asked."""
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                self._last = await self._round()
            self._until = self._now() + KEPT_SECONDS
            self._trouble = ""
        except (RuntimeFault, TimeoutError) as error:
            text = _said(error)
            if text != self._trouble:
                _log.warning("containers cannot be listed", error=text)
                self._trouble = text
            if self._now() >= self._until:
                self._last = {}
        return self._last

    async def _round(self) -> Containers:
        listed = await self._list()
        if len(listed) > MOST_CONTAINERS:
            _log.warning("too many containers", count=len(listed), most=MOST_CONTAINERS)
            return {}
        ids = {container.id for container in listed}
        self._devices = {id_: devices for id_, devices in self._devices.items() if id_ in ids}
        free = asyncio.Semaphore(AT_ONCE)

        async def one(listed_one: Any) -> Container | None:
            async with free:
                try:
                    return await self._container(listed_one)
                except (RuntimeFault, ValueError) as error:
                    _log.warning("a container cannot be read", id=listed_one.id[:64], error=_said(error))
                    return None

        found: dict[int, list[Container]] = {}
        for container in await asyncio.gather(*(one(item) for item in sorted(listed, key=lambda item: str(item.id)))):
            for device in dict.fromkeys(container.devices) if container else ():
                assert container is not None
                found.setdefault(device, []).append(container)
        return found

    async def _list(self) -> Sequence[Any]:
        client = self._client(self._cri)
        for version in range(self._version, len(CRI_VERSIONS)):
            try:
                found = await client.running(CRI_VERSIONS[version])
            except NotServed:
                if version + 1 < len(CRI_VERSIONS):
                    continue
                raise
            self._version = version
            return found
        return []

    async def _container(self, listed: Any) -> Container | None:
        if len(listed.id) > LONGEST_ID:
            raise ValueError(f"its id is longer than {LONGEST_ID}")
        if listed.id not in self._devices:
            self._devices[listed.id] = await self._given(listed.id)
        devices = self._devices[listed.id]
        if not devices:
            return None
        parts = [listed.labels.get(label, "") for label in LABELS]
        for label, part in zip(LABELS, parts, strict=True):
            if not 1 <= len(part) <= LONGEST_LABEL:
                raise ValueError(f"label {label} has {len(part)} characters, 1 to {LONGEST_LABEL} are allowed")
        return Container(listed.id, "_".join(parts), devices, await self._pids(listed.id))

    async def _given(self, id_: str) -> tuple[int, ...]:
        client = self._client(self._oci)
        if self._isula:
            return visible.of_inspection(_object(await client.inspection(id_)))
        spec = _object(await client.spec(id_, self._namespace))
        if self._majors is None:
            self._majors = driver_majors()
        return visible.of_spec(spec, self._majors)

    async def _pids(self, id_: str) -> frozenset[int]:
        return frozenset() if self._isula else await self._client(self._oci).pids(id_, self._namespace)

    def _client(self, paths: Sequence[str]) -> RuntimeClient:
        for path in paths:
            if not Path(path).exists():
                continue
            _trusted(Path(path), self._owners)
            if path not in self._clients:
                from belay.agents.exporter.runtime_client import RuntimeClient

                self._clients[path] = RuntimeClient(path)
            return self._clients[path]
        raise RuntimeFault(f"no container runtime at {', '.join(paths)}; see -containerMode, -endpoint and -containerd")

    async def close(self) -> None:
        """Close the sockets."""
        for client in self._clients.values():
            await client.close()


def _object(text: bytes | str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("its description nests too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("its description is not an object")
    return found


def _said(error: BaseException) -> str:
    return str(error)[:300] or type(error).__name__


def _trusted(path: Path, owners: frozenset[int]) -> None:
    status = os.stat(path)
    if not stat.S_ISSOCK(status.st_mode):
        raise RuntimeFault(f"{path}: is not a socket")
    if status.st_uid not in owners:
        raise RuntimeFault(f"{path}: belongs to user {status.st_uid}, not to root; chown it")
    if status.st_mode & stat.S_IWOTH:
        raise RuntimeFault(f"{path}: mode {stat.S_IMODE(status.st_mode):04o} lets everybody write; chmod o-w it")


def driver_majors(path: Path = MAJORS) -> frozenset[int]:
    """Major numbers of the driver's character devices."""
    found = set()
    try:
        with open(path) as file:
            for _, line in zip(range(MOST_LINES), file, strict=False):
                number, _, name = line.strip().partition(" ")
                if number.isdecimal() and len(number) <= 3 and name in ("devdrv-cdev", "vdevdrv-cdev"):
                    found.add(int(number))
    except OSError as error:
        _log.warning("device numbers cannot be read", path=str(path), error=error)
    return frozenset(found)
