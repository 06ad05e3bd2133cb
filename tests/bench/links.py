"""Links between inference clusters over TCP on loopback (agents/datadist).

512 servers, each an `LLMDataDist` of its own, live in another process; one client links to all of them in one call. The
dead peer takes connections and never answers; what it adds is over its own time-out. A pull reads 256 MiB of registered
host memory in blocks of 1 MiB; beside it: the same bytes through a plain socket, read with `recv_into`. Mending is
measured by a keeper: from the end of 512 links, all at once, to all of them linked again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from belay.agents.datadist import (
    BlocksCacheKey,
    CacheDesc,
    DataType,
    LLMClusterInfo,
    LLMDataDist,
    LLMRole,
    LLMStatusCode,
    Placement,
)
from belay.agents.node.linkfiles import LinkFolders
from belay.engine.model.links import EndOrders, LinkOrder
from tests.bench.measure import ROOT, RUNS, Result

LINKS, PEERS = 512, 64
TIMEOUT_MS = 1000
BLOCKS, BLOCK = 256, 1 << 20
CLIENT = 1_000_000
LOGGER = "belay.datadist"
SERVERS = """
import asyncio, logging, sys
from belay.agents.datadist import BlocksCacheKey, CacheDesc, DataType, LLMDataDist, LLMRole, Placement
count, blocks, block = map(int, sys.argv[2:])
logging.getLogger(sys.argv[1]).setLevel(logging.ERROR)
ends = []
for number in range(1, count + 1):
    end = LLMDataDist(LLMRole.PROMPT, number)
    end.init({"llm.listenIpInfo": "127.0.0.1:0"})
    size = (blocks, block) if number == 1 else (1, 64)
    desc = CacheDesc(1, list(size), DataType.DT_UINT8, Placement.HOST)
    end.cache_manager.allocate_blocks_cache(desc, BlocksCacheKey(number))
    ends.append(end)
print(*(end.listening[0][1] for end in ends), flush=True)
sys.stdin.readline()
"""


def run() -> list[Result]:
    linking = Result("512 links to loopback servers, one call", "ms", 1000)
    unlinking = Result("512 links ended on both sides, one call", "ms")
    healthy = Result("64 links, all peers answer", "ms", remark="for the next row")
    dead = Result("64 links, one peer never answers: over its time-out of 1,000 ms", "ms", 100)
    mending = Result("512 kept links end at once: all linked again", "ms")
    pull = Result("pull of 256 MiB in blocks of 1 MiB", "MiB/s")
    logging.getLogger(LOGGER).setLevel(logging.ERROR)  # what breaks here is meant to
    with _servers(LINKS) as ports:
        infos = [_info(number, port) for number, port in enumerate(ports, start=1)]
        for _ in range(RUNS):
            with _client() as client:
                linking.runs.append(_timed(client, infos))
                began = time.perf_counter()
                assert client.unlink_clusters(infos, 10_000)[0] is LLMStatusCode.LLM_SUCCESS
                unlinking.runs.append(_since(began))
        for _ in range(RUNS):
            with _client() as client:
                healthy.runs.append(_timed(client, infos[:PEERS]))
            with _client() as client, _mute() as port:
                some = [*infos[: PEERS - 1], _info(LINKS + 1, port)]
                dead.runs.append(_timed(client, some, dead=1) - TIMEOUT_MS)
        mending.runs = [_mended(ports) for _ in range(RUNS)]
        pull.runs = [_pulled(infos[0]) for _ in range(RUNS)]
    plain = sorted(_plain() for _ in range(RUNS))[RUNS // 2]
    pull.remark = f"a plain socket: {plain:,.0f} MiB/s"
    return [linking, unlinking, healthy, dead, mending, pull]


def _timed(client: LLMDataDist, infos: list[LLMClusterInfo], dead: int = 0) -> float:
    began = time.perf_counter()
    _, codes = client.link_clusters(infos, TIMEOUT_MS)
    took = _since(began)
    assert sum(code is not LLMStatusCode.LLM_SUCCESS for code in codes) == dead, codes
    return took


def _mended(ports: list[int]) -> float:
    """The ends of all links are closed under the keeper; the clock stops when every one answers again."""
    with tempfile.TemporaryDirectory(prefix="belay-bench-") as folder, _client() as client:
        folders = LinkFolders(Path(folder))
        links = tuple(LinkOrder(n, (f"127.0.0.1:{port}",), 3000) for n, port in enumerate(ports, start=1))
        orders = EndOrders(CLIENT, "cluster-1", links)
        folders.order(orders)
        client.keep_links(Path(folder) / "cluster-1")

        def linked() -> bool:
            now = client.linked()
            return len(now) == len(ports) and all(broken is None for broken in now.values())

        _until(linked)
        _until(lambda: all(link.state == "linked" for link in folders.report(orders).links))
        began = time.perf_counter()
        client._loop.call_soon_threadsafe(_cut, client)  # type: ignore[union-attr]
        _until(lambda: not linked())
        _until(linked)
        return _since(began)


def _cut(client: LLMDataDist) -> None:
    """Shut every socket down, as when the far host restarts."""
    for peer in client._links.peers.values():  # type: ignore[union-attr]
        with contextlib.suppress(OSError):
            peer._sock.shutdown(socket.SHUT_RDWR)


def _pulled(info: LLMClusterInfo) -> float:
    with _client() as client:
        desc = CacheDesc(1, [BLOCKS, BLOCK], DataType.DT_UINT8, Placement.HOST)
        cache = client.cache_manager.allocate_blocks_cache(desc)
        assert client.link_clusters([info], 3000)[0] is LLMStatusCode.LLM_SUCCESS
        every = list(range(BLOCKS))
        client.cache_manager.pull_blocks(BlocksCacheKey(1), cache, every, every)  # touches every page once
        began = time.perf_counter()
        client.cache_manager.pull_blocks(BlocksCacheKey(1), cache, every, every)
        return BLOCKS * BLOCK / (1 << 20) / (time.perf_counter() - began)


def _plain() -> float:
    size = BLOCKS * BLOCK
    code = (
        "import socket,sys\nmemory = memoryview(bytearray(int(sys.argv[1])))\n"
        "server = socket.create_server(('127.0.0.1', 0))\nprint(server.getsockname()[1], flush=True)\n"
        "sock, _ = server.accept()\nsock.sendall(memory)\nsock.sendall(memory)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(size)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as sock:
            buffer, took = memoryview(bytearray(size)), 0.0
            for _ in range(2):
                began, at = time.perf_counter(), 0
                while at < size:
                    at += sock.recv_into(buffer[at:])
                took = time.perf_counter() - began
    return size / (1 << 20) / took


@contextlib.contextmanager
def _client() -> Iterator[LLMDataDist]:
    end = LLMDataDist(LLMRole.DECODER, CLIENT)
    end.init({"llm.SyncKvCacheWaitTime": "60000"})
    try:
        yield end
    finally:
        end.finalize()


@contextlib.contextmanager
def _servers(count: int) -> Iterator[list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVERS, LOGGER, str(count), str(BLOCKS), str(BLOCK)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield [int(port) for port in process.stdout.readline().split()]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def _mute() -> Iterator[int]:
    """A peer that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=4) as server:
        held: list[socket.socket] = []

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    held.append(server.accept()[0])

        threading.Thread(target=take, daemon=True).start()
        yield server.getsockname()[1]
        for sock in held:
            sock.close()


def _info(number: int, port: int) -> LLMClusterInfo:
    info = LLMClusterInfo()
    info.remote_cluster_id = number
    info.append_local_ip_info("127.0.0.1", 1)
    info.append_remote_ip_info("127.0.0.1", port)
    return info


def _since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def _until(condition: object, seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.005)
