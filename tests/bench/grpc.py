"""ClusterD's services under load: signals, rank tables, subscribers, the control plane's share of a recovery.

A `belay server`'s gRPC part as a process of its own on the sandbox's API server, clients over loopback in this one.
"Stop signal" is the time from the report of the fault to the message at each of 125 subscribers, one per pod; the
recovery's share is the sum of the waits for the server between a fault and the decision, its second for the last faults
left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from belay.engine.kube import CONFIGMAP, NODE, Kube
from belay.engine.serve.grpc.server import GrpcServer
from belay.engine.wire import globaltable
from belay.engine.wire.clusterd import config_pb2
from tests.bench.measure import Result
from tests.bench.running import cpu_seconds, resident
from tests.grpc_world import NS, Client, World, until
from tests.test_grpc_chaos import channel, join

SUBSCRIBERS = 1_000
PODS = 125
CHIPS = 10_240


def run() -> list[Result]:
    """All rows."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_run(Path(folder)))


def serve(kubeconfig: str, pipe: Any) -> None:
    """The process that serves; says its port."""

    async def go() -> None:
        async with Kube.from_config(kubeconfig) as kube, GrpcServer(kube, identity="bench", callers="any") as server:
            while server.leader is None or not server.leader.leads:
                await asyncio.sleep(0.05)  # the Lease of the section before runs out first
            pipe.send(server.port)
            while not await asyncio.to_thread(pipe.poll, 3600):
                continue

    asyncio.run(go())


@contextlib.asynccontextmanager
async def server(world: World) -> AsyncIterator[tuple[int, int]]:
    """(port, process id) of a server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(str(world.folder / "kubeconfig"), theirs), daemon=True)
    process.start()
    try:
        assert await asyncio.to_thread(ours.poll, 180), "the server does not come up"
        yield ours.recv(), int(process.pid or 0)
    finally:
        process.kill()
        process.join()


async def _run(folder: Path) -> list[Result]:
    world = World(folder)
    await world.start()
    try:
        rows = [*await _signals(world), await _table(world), *await _idle(world)]
        return [*rows, *await _share(world), *await _crowd(world)]
    finally:
        await world.stop()


async def _signals(world: World) -> list[Result]:
    """Fault known → stop signal at all subscribers of a 125-pod job."""
    result = Result("fault reported → stop signal at all 125 subscribers", "ms", 200, percentile=99)
    job = await world.job("wide", pods=PODS, strategy="recover")
    async with server(world) as (port, _):
        channels = [channel(port) for _ in range(4)]
        clients = [Client(port, job, f"pod-{i}", channels[i % 4]) for i in range(PODS)]
        for client in clients:
            await join(client)
        for round_ in range(20):
            begin = time.perf_counter()
            waits = [asyncio.ensure_future(_heard(client, begin)) for client in clients]
            await clients[0].broke((str(8 * (1 + round_ % 100)), "1"))
            result.runs += await asyncio.gather(*waits)
            await clients[0].stopped(404)
            await asyncio.gather(*(client.next() for client in clients))
            await _subscribed_again(clients)
        for client in clients:
            await client.hang_up()
        for one in channels:
            await one.close(None)
    return [result]


async def _subscribed_again(clients: Sequence[Client]) -> None:
    """The server ends the streams with their conversation, and clients come back."""
    await until(lambda: all(client.ended for client in clients), "the streams end")
    await asyncio.gather(*(client.listen() for client in clients))


async def _heard(client: Client, begin: float) -> float:
    await client.next()
    return (time.perf_counter() - begin) * 1000


async def _table(world: World) -> Result:
    """The last member's table written → the global table at a subscriber."""
    result = Result(f"rank table of {CHIPS:,} chips: made and pushed", "ms", 300)
    members = 16
    for index in range(members):
        await world.kube.create(CONFIGMAP, _rings(index, index != 0))
    async with server(world) as (port, _):
        client = Client(port, "service")
        info = config_pb2.ClientInfo(jobId="service", role="controller")
        await client.call("Register", info, config_pb2.Status, "config.Config")
        call = client.stream("SubscribeRankTable", info, config_pb2.RankTableStream, "config.Config")
        await call.initial_metadata()
        for version in range(5):
            await asyncio.sleep(0.5)
            await world.kube.replace(CONFIGMAP, _rings(0, True, version))
            begin = time.perf_counter()
            body = json.loads((await call.read()).rankTable)
            result.runs.append((time.perf_counter() - begin) * 1000)
            chips = sum(len(s["device"]) for g in body["server_group_list"] for s in g["server_list"])
            assert chips == CHIPS
        await client.close()
    return result


def _rings(index: int, complete: bool, version: int = 0) -> dict[str, Any]:
    servers = [
        {
            "device": [
                {"device_id": str(d), "device_ip": f"10.{version}.{s}.{d}", "rank_id": str(s * 8 + d)} for d in range(8)
            ],
            "server_id": f"10.{index}.0.{s}",
            "host_ip": f"10.{index}.0.{s}",
            "container_ip": f"10.{index}.1.{s}",
        }
        for s in range(CHIPS // 8 // 16)
    ]
    table = {"status": "completed" if complete else "initializing", "version": "1.0", "server_list": servers}
    labels = {"jobID": "service", "app": "mindie-ms-server", "grt-group/deploy-server": str(index)}
    metadata = {"name": f"{globaltable.PREFIX}server-{index}", "namespace": NS, "labels": labels}
    data = {globaltable.FILE: json.dumps(table)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def _idle(world: World) -> list[Result]:
    """1,000 subscribers that have nothing to hear but signs of life."""
    memory = Result(f"{SUBSCRIBERS:,} subscribers: memory of the server", "MiB", 300)
    cores = Result(f"{SUBSCRIBERS:,} subscribers: cores of an idle server", "cores", 0.2)
    storm = Result(f"{SUBSCRIBERS:,} clients come at once: all subscribed", "s")
    jobs = [await world.job(f"idle-{i}", pods=1, reset=False, nodes=False, chips=8) for i in range(125)]
    async with server(world) as (port, process):
        channels = [channel(port) for _ in range(25)]
        clients = [Client(port, jobs[i // 8], f"pod-{i}", channels[i % 25]) for i in range(SUBSCRIBERS)]
        begin = time.perf_counter()
        await asyncio.gather(*(join(client) for client in clients))
        storm.runs.append(time.perf_counter() - begin)
        await asyncio.sleep(5)
        for _ in range(3):
            used, begin = cpu_seconds(process), time.perf_counter()
            await asyncio.sleep(6)
            cores.runs.append((cpu_seconds(process) - used) / (time.perf_counter() - begin))
            memory.runs.append(resident(process))
        for client in clients:
            await client.hang_up()
        for one in channels:
            await one.close(None)
    return [memory, cores, storm]


async def _crowd(world: World) -> list[Result]:
    """1,000 jobs with 8 clients each; a fault in every tenth of them at the same moment."""
    heard = Result("1,000 jobs × 8 clients: faults in 100 jobs at once → all their clients stop", "ms", percentile=99)
    memory = Result("1,000 jobs × 8 clients: memory of the server", "MiB")
    jobs = [await world.job(f"crowd-{i}", pods=1, reset=i % 10 == 0, nodes=False) for i in range(1000)]
    async with server(world) as (port, process):
        channels = [channel(port) for _ in range(160)]
        clients = [Client(port, jobs[i // 8], f"pod-{i % 8}", channels[i % 160]) for i in range(8000)]
        for first in range(0, len(clients), 800):
            await asyncio.gather(*(join(client) for client in clients[first : first + 800]))
        memory.runs.append(resident(process))
        hit = [clients[i : i + 8] for i in range(0, len(clients), 80)]
        tellers = [Client(port, group[0].job, channel=channel(port)) for group in hit]
        begin = time.perf_counter()
        waits = [asyncio.ensure_future(_heard(client, begin)) for group in hit for client in group]
        await asyncio.gather(*(teller.broke(("3", "1")) for teller in tellers))
        heard.runs += await asyncio.gather(*waits)
        for client in clients:
            await client.hang_up()
        for one in (*channels, *(teller.channel for teller in tellers)):
            await one.close(None)
    return [heard, memory]


async def _share(world: World) -> list[Result]:
    """What the control plane adds to a process-level recovery, by the size of the job."""
    rows = []
    for chips in (8, 1024, 16_384):
        result = Result(f"control plane's share of a process recovery, {chips:,} chips", "s", 2)
        pods = max(1, chips // 8)
        name = f"share-{chips}"
        for rank in range(pods):
            if await world.kube.get(NODE, f"n{rank}") is None:
                await world.node(f"n{rank}")
        job = await world.job(name, pods=pods, strategy="recover", nodes=False)
        async with server(world) as (port, _):
            client = Client(port, job, channel=channel(port))
            await join(client)
            for _ in range(3):
                result.runs.append(await _recovery(world, client, name, pods - 1))
                await _subscribed_again([client])
            await client.hang_up()
            await client.channel.close(None)
        rows.append(result)
    return rows


async def _recovery(world: World, client: Client, name: str, rank: int) -> float:
    begin = time.perf_counter()
    await client.broke((str(rank * 8), "1"))
    await client.next()
    await client.stopped()
    await client.next()
    await client.offers("recover", "exit")
    await client.next()
    spent = time.perf_counter() - begin - 1.0  # the second for the last faults is not the control plane's work
    await world.replace(name, rank, node=f"n{rank}")
    begin = time.perf_counter()
    await until(lambda: _cleared(world, name), "it is cleared")
    await client.done("recover")
    spent += time.perf_counter() - begin
    await until(lambda: _over(world), "it is over")
    return spent


async def _cleared(world: World, name: str) -> bool:
    return not (await world.reset_json(name))["RankList"]


async def _over(world: World) -> bool:
    return not await world.records()
