"""The topology of an Ascend950 server in the shared folder of the slow-network feature.

``<RAS_NET_ROOT_PATH>/cluster/super-pod-<S>/rack-<R>/topo_<I>.json`` is the driver's own file for the kind of super pod,
put there once the super pod's folder exists. ClusterD's analysis reads from it which ports are joined. Source:
component/ascend-device-plugin/pkg/topology/{rack_topology,topo}.go.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from pathlib import Path
from typing import Final

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import Machine
from belay.agents.kubelet.response import topo_file

EVERY: Final = 30.0
"""Seconds between two looks at the folder."""
MAX_BYTES: Final = 10 << 20
#: Kinds of super pods that have such a file.
KINDS: Final = range(5)
_log = Log("topology")


class TopologyFile:
    """Keeps the file up to date. ``root`` is RAS_NET_ROOT_PATH, ``driver`` the driver's file (found by default)."""

    def __init__(self, machine: Machine, root: Path, clock: Clock, driver: Path | None = None) -> None:
        self._pod = root / "cluster" / f"super-pod-{machine.super_pod_id}"
        rack = machine.rack_id if machine.rack_id is not None else -1
        self._file = self._pod / f"rack-{rack}" / f"topo_{machine.server_index}.json"
        self._clock = clock
        known = topo_file(machine.super_pod_type, 0) if machine.super_pod_type in KINDS else ""
        self._driver = driver or (Path(known) if known else None)
        self._problem = ""

    async def run(self) -> None:
        """Run until cancelled; ends at once on servers without such a file."""
        if self._driver is None:
            return
        while True:
            await asyncio.to_thread(self.step)
            await self._clock.pause(EVERY)

    def step(self) -> None:
        """Write the file where it is missing or differs; a problem is logged once."""
        try:
            self._write()
            self._problem = ""
        except (OSError, ValueError, RecursionError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                _log.warning("the topology is not written, tried again", file=self._file, error=error)

    def _write(self) -> None:
        if self._driver is None or not self._pod.is_dir():
            return
        content = _read(self._driver)
        json.loads(content)  # a half-written file of a driver's upgrade is not passed on
        self._file.parent.mkdir(mode=0o755, exist_ok=True)
        folder = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.fchmod(folder, 0o755)
            if _present(folder, self._file.name) == content:
                return
            name = f".{self._file.name}.{secrets.token_hex(4)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, 0o644, dir_fd=folder), "wb") as out:
                os.fchmod(out.fileno(), 0o644)
                out.write(content)
            os.replace(name, self._file.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)
        _log.info("the topology of the server is written", file=self._file)


def _read(file: Path) -> bytes:
    with file.open("rb") as source:
        content = source.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{file} is longer than {MAX_BYTES} bytes")
    return content


def _present(folder: int, name: str) -> bytes | None:
    try:
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb") as source:
            return source.read(MAX_BYTES + 1)
    except OSError:
        return None  # missing, or a link: replaced
