"""Pings over the host's network cards between servers of super pods (Ascend950): ICMP echoes of this process.

A shared folder holds the lists of pings and receives the results. Source: component/noded/pkg/pingmesh,
docs/zh/scheduling (pingmesh): ConfigMap ``pingmesh-config``, key ``roce``; one packet for each destination every
``task_interval`` seconds, lost after one second; at most 16 destinations.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.node.hardware import pinglist
from belay.agents.node.hardware.pinglist import INTERNAL, Config, PingError, Target, Tasks
from belay.agents.node.hardware.pingresults import PingFiles
from belay.agents.node.hardware.pings import (
    COLLECT_FACTOR,
    CONFIG_MAP,
    NAMESPACE,
    Maps,
    PingRecords,
    Rounds,
    read_list,
    settings,
)
from belay.engine.model.labels import ACCELERATOR_TYPE

FOLDER: Final = "super-pod-roce"
RANGE: Final = "ping_list_range.json"
SERVERS: Final = "950-superpod-atlas-8"
MAX_ENTRIES: Final = 16
LOST_AFTER: Final = 1.0
LOOK_EVERY: Final = 60.0
_ECHO, _REPLY = 8, 0
_PAYLOAD: Final = bytes(56)
_log = Log("roce pings")

Echo = Callable[[str, str], Awaitable[int | None]]
"""One echo from an address to another: microseconds until its answer, None when it was lost."""


class NodeReader(Maps, Protocol):
    """The reads from the API server."""

    async def get_node(self, node: str) -> Mapping[str, Any] | None:
        """Read a node."""
        ...


class RocePings:
    """``folder`` holds the lists of all super pods."""

    def __init__(
        self,
        node: str,
        super_pod: int,
        server_index: int,
        cluster: NodeReader,
        clock: Clock,
        files: PingFiles,
        folder: Path,
        echo: Echo | None = None,
        rounds: Rounds | None = None,
    ) -> None:
        self._node, self._super_pod, self._index = node, super_pod, server_index
        self._cluster, self._clock, self._folder = cluster, clock, folder
        self._notes = PingRecords(_log, node, clock, files, rounds)
        self._echo = echo or ping
        self._chosen = Config(False, 1)
        self._tasks: Tasks = {}
        self._uid = ""
        self._times: dict[Target, list[int | None]] = {}
        self._rounds = 0
        self._due = 0.0

    async def run(self) -> None:
        """Run until cancelled; ends at once on servers that have no such pings. Raises ApiError."""
        labels = (((await self._cluster.get_node(self._node)) or {}).get("metadata") or {}).get("labels") or {}
        if SERVERS not in str(labels.get(ACCELERATOR_TYPE, "")):
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow())
                while True:
                    begin = self._clock.monotonic()
                    await self.step()
                    pause = self._chosen.interval if self._tasks else 1.0
                    await self._clock.sleep(max(0.0, pause - (self._clock.monotonic() - begin)))
        finally:
            self._notes.close()

    async def _follow(self) -> None:
        async for body in self._cluster.config_map(NAMESPACE, CONFIG_MAP):
            self.receive(body)

    def receive(self, body: Mapping[str, Any] | None) -> None:
        """The configuration as it stands now; what cannot be read changes nothing."""
        given = settings(body)
        if given is None:
            return
        try:
            chosen = pinglist.roce_config(given)
        except PingError as error:
            self._notes.problem(str(error))
            return
        if chosen is not None and chosen != self._chosen:
            self._chosen, self._due = chosen, 0.0

    async def step(self) -> None:
        """One packet to each destination; after ten of them the results are written."""
        if self._clock.monotonic() >= self._due:
            self._due = self._clock.monotonic() + LOOK_EVERY
            await self._refresh()
        if not self._tasks:
            return
        targets = self._tasks[0][INTERNAL]
        answers = await asyncio.gather(*(self._echo(one.src, one.dst) for one in targets))
        for target, answer in zip(targets, answers, strict=True):
            self._times.setdefault(target, []).append(answer)
        self._rounds += 1
        if self._rounds >= COLLECT_FACTOR:
            await self._write(targets)

    async def _refresh(self) -> None:
        """Read the list again; without one, or switched off, no chip is pinged."""
        try:
            uid, tasks = await asyncio.to_thread(self._read) if self._chosen.active else ("", {})
            self._notes.solved()
        except (OSError, ValueError, RecursionError) as error:
            self._notes.problem(f"the list cannot be used: {error}")
            return
        if uid != self._uid:
            self._uid, self._tasks, self._times, self._rounds = uid, tasks, {}, 0

    def _read(self) -> tuple[str, Tasks]:
        members = json.loads(read_list(self._folder / RANGE))
        servers = members.get(str(self._super_pod)) if isinstance(members, dict) else None
        if not isinstance(servers, list) or str(self._index) not in servers:
            return "", {}
        data = read_list(self._folder / f"ping_list_{self._super_pod}_{self._index}.json")
        found = [one for by_task in pinglist.listed(data).values() for one in by_task[INTERNAL]][:MAX_ENTRIES]
        for one in found:
            for text in (one.src, one.dst):
                ipaddress.IPv4Address(text)
        uid = hashlib.sha256(data + json.dumps(self._chosen).encode()).hexdigest()
        return uid, {0: {INTERNAL: tuple(found)}} if found else {}

    async def _write(self, targets: tuple[Target, ...]) -> None:
        times, self._times, self._rounds = self._times, {}, 0
        results = {0: {INTERNAL: [_result(one, times.get(one, [])) for one in targets]}}
        await self._notes.results(self._uid, self._chosen, self._tasks, results)


def _result(target: Target, answers: list[int | None]) -> dict[str, Any]:
    came = sorted(one for one in answers if one is not None)
    return {
        "source": target.src, "target": target.dst, "ok": len(came), "lost": len(answers) - len(came),
        "max": came[-1] if came else -1, "min": came[0] if came else -1,
        "average": sum(came) // len(came) if came else -1, "tp95": tp95(came), "replies": len(came),
        "total": len(answers),
    }  # fmt: skip


def tp95(ascending: list[int]) -> int:
    """The value at index n*95/100; -1 without any."""
    return ascending[len(ascending) * 95 // 100] if ascending else -1


async def ping(source: str, target: str) -> int | None:
    """One ICMP echo; microseconds until the answer, None when none came within a second. Needs CAP_NET_RAW."""
    loop, number = asyncio.get_running_loop(), os.urandom(4)
    head = struct.pack("!BBH", _ECHO, 0, 0)
    request = head[:2] + struct.pack("!H", _checksum(head + number + _PAYLOAD)) + number + _PAYLOAD
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as line:
            line.setblocking(False)
            line.bind((source, 0))
            line.connect((target, 0))
            begin = time.monotonic()
            async with asyncio.timeout(LOST_AFTER):
                await loop.sock_sendall(line, request)
                while True:
                    packet: bytes = await loop.sock_recv(line, 2048)
                    body = packet[(packet[0] & 0xF) * 4 :] if packet else b""
                    if len(body) >= 8 and body[0] == _REPLY and body[4:8] == number:
                        return int((time.monotonic() - begin) * 1_000_000)
    except (OSError, TimeoutError):
        return None  # a packet that does not return counts as lost, whatever the cause


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
