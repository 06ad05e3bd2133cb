"""The crowd of a large site: 1,000 jobs with 8 clients each over loopback, faults in a hundred of them at a time, the
server a process of its own that is killed (SIGKILL) and started again in the middle of it. So is the API
server: answered by the loop in which 8,000 clients live it would be too late for the server's Lease.

JOBS makes it smaller. A crowd that is not through after LIMIT seconds has failed, and says how far it came.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from belay.engine.kube import Kube
from belay.engine.sandbox.api import ApiServer
from belay.engine.serve.grpc.server import GrpcServer
from tests.grpc_crowd import Size, play
from tests.grpc_world import World
from tests.test_grpc_chaos import free_port

JOBS = 1_000
CLIENTS = 8
STARTS = 180.0
LIMIT = 540.0
#: Long, so that a busy machine is no reason to serve again: a server that is killed here comes back under its own name.
LEASE = 30.0


def history(seed: int) -> None:
    """One life of the crowd. Raises AssertionError for what did not hold."""
    jobs = int(os.environ.get("JOBS", str(JOBS)))
    size = Size(jobs=jobs, clients=CLIENTS, waves=3, hit=max(1, jobs // 10), kills=1, patience=LIMIT)
    begin, said = time.monotonic(), ["nothing yet"]

    def say(what: str) -> None:
        said.append(f"{what} after {time.monotonic() - begin:.0f} s")
        print(f"crowd {seed} of {jobs} jobs: {said[-1]}", flush=True)

    async def bounded(folder: Path) -> None:
        async with asyncio.timeout(LIMIT):
            await _live(folder, seed, size, say)

    with tempfile.TemporaryDirectory() as folder:
        try:
            asyncio.run(bounded(Path(folder)))
        except TimeoutError:
            raise AssertionError(f"not through after {LIMIT:g} s; last: {said[-1]}") from None


async def _live(folder: Path, seed: int, size: Size, say: Callable[[str], None]) -> None:
    kubeconfig = folder / "kubeconfig"
    api, servers = Process(answer, str(kubeconfig)), Servers(kubeconfig)
    try:
        await api.start()
        async with Kube.from_config(str(kubeconfig)) as kube:
            world = World(folder)
            world.kube = kube
            await world.prepare()
            await servers.start()
            await play(world, servers, seed, size, say)
    finally:
        servers.end()
        api.end()


class Process:
    """A process that runs ``target(*arguments, pipe)``, says on the pipe when it is there, and dies without a word."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self._target, self._arguments = target, arguments
        self._process: BaseProcess | None = None
        self._line: Any = None  # it ends when this does

    async def start(self) -> None:
        """Start it, and wait until it is there."""
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=self._target, args=(*self._arguments, theirs))
        self._process.start()
        assert await asyncio.to_thread(self._line.poll, STARTS), f"{self._target.__name__} does not come up"
        self._line.recv()

    def end(self) -> None:
        """Kill it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()


class Servers(Process):
    """One server after the other on one port."""

    def __init__(self, kubeconfig: Path) -> None:
        self.port = free_port()
        super().__init__(serve, str(kubeconfig), self.port)

    async def kill(self) -> None:
        """Kill it with SIGKILL and start the next one."""
        await asyncio.to_thread(self.end)
        await self.start()


def answer(kubeconfig: str, pipe: Any) -> None:
    """The process of the API server."""

    async def go() -> None:
        api = ApiServer()
        await api.start()
        api.write_kubeconfig(Path(kubeconfig))
        pipe.send("answers")
        await _until_closed(pipe)

    asyncio.run(go())


def serve(kubeconfig: str, port: int, pipe: Any) -> None:
    """The process that serves."""

    async def go() -> None:
        async with (
            Kube.from_config(kubeconfig) as kube,
            GrpcServer(kube, identity="server-0", port=port, duration=LEASE, callers="any") as server,
        ):
            while server.leader is None or not server.leader.leads:
                await asyncio.sleep(0.05)
            pipe.send("serves")
            await _until_closed(pipe)

    asyncio.run(go())


async def _until_closed(pipe: Any) -> None:
    """Until the one who started this process is gone."""
    try:
        while not await asyncio.to_thread(pipe.poll, 3600):
            continue
    except (OSError, EOFError):
        return
