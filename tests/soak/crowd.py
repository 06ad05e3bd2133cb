"""The crowd of a large site: 1,000 jobs with 8 clients each over loopback, faults in a hundred of them at a time, the
server a process of its own that is killed for good (SIGKILL) and started again in the middle of it.

JOBS makes it smaller.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from engine.kube import Kube
from engine.serve.grpc.server import GrpcServer
from tests.grpc_crowd import Size, play
from tests.grpc_world import World
from tests.test_grpc_chaos import free_port

JOBS = 1_000
CLIENTS = 8
STARTS = 180.0


def history(seed: int) -> None:
    """One life of the crowd. Raises AssertionError for what did not hold."""
    jobs = int(os.environ.get("JOBS", str(JOBS)))
    size = Size(jobs=jobs, clients=CLIENTS, waves=3, hit=max(1, jobs // 10), kills=1, patience=600.0)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_live(Path(folder), seed, size))


async def _live(folder: Path, seed: int, size: Size) -> None:
    world = World(folder)
    await world.start()
    servers = Processes(folder / "kubeconfig")
    try:
        await servers.start()
        await play(world, servers, seed, size)
    finally:
        servers.end()
        await world.stop()


class Processes:
    """One server after the other on one port, each a process that dies without a word."""

    def __init__(self, kubeconfig: Path) -> None:
        self.port = free_port()
        self._kubeconfig = kubeconfig
        self._process: BaseProcess | None = None
        self._line: Any = None  # it ends when this does

    async def start(self) -> None:
        """Start one, and wait until it serves."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(str(self._kubeconfig), self.port, theirs))
        process.start()
        self._process, self._line = process, ours
        assert await asyncio.to_thread(ours.poll, STARTS), "the server does not come up"
        ours.recv()

    async def kill(self) -> None:
        """Kill it with SIGKILL and start the next one."""
        await asyncio.to_thread(self.end)
        await self.start()

    def end(self) -> None:
        """Kill it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()


def serve(kubeconfig: str, port: int, pipe: Any) -> None:
    """The process that serves; says when it does, and ends with the one that started it."""

    async def go() -> None:
        async with Kube.from_config(kubeconfig) as kube, GrpcServer(kube, identity="server-0", port=port) as server:
            while server.leader is None or not server.leader.leads:
                await asyncio.sleep(0.05)
            pipe.send(server.port)
            try:
                while not await asyncio.to_thread(pipe.poll, 3600):
                    continue
            except (OSError, EOFError):
                return

    asyncio.run(go())
