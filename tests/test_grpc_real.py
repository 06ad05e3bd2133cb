"""A recovery through a real kube-apiserver, which here stores no custom objects: jobs are known by their pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.kube import NODE, POD, Kube
from tests.grpc_world import NS, Client, World, until
from tests.kube_server import kubeconfig  # noqa: F401
from tests.test_grpc_chaos import Servers, recovers


def test_a_recovery_is_carried_through(kubeconfig: str, tmp_path: Path) -> None:  # noqa: F811
    async def go() -> None:
        world = World(tmp_path)
        world.custom = world.pod_groups = False
        async with Kube.from_config(kubeconfig) as kube:
            world.kube = kube
            await world.prepare()
            job = await world.job(strategy="recover")
            async with world.server() as server:
                client = await Client(server.port, job).join()
                await client.broke(("9", "1"))
                assert (await client.next()).signalType == "stopTrain"
                assert (await world.reset_json("pretrain"))["FaultFlushing"] is True
                (record,) = await world.records()
                await server.kill()
            async with world.server("server-1", duration=1.0) as server:
                await client.close()
                client = await Client(server.port, job).listen()  # waits until the dead server's Lease has run out
                await until(lambda: server.desk.talks[job].signals, "the client is back")
                await client.stopped()
                assert (await client.next()).signalType == "globalFault"
                await client.offers("recover", "exit")
                assert (await client.next()).changeStrategy == "recover"
                await world.replace("pretrain", 1)
                await client.done("recover")
                await until(lambda: _gone(world), "it is over")
                pod = await kube.get(POD, "pretrain-worker-0", NS)
                assert pod is not None
                assert pod["metadata"]["annotations"]["ProcessRecoverStatus"] == "recover-success"
                await client.close()
            assert record["metadata"]["name"].startswith("belay-recovery-")

    asyncio.run(go())


def test_servers_are_killed_after_every_message(kubeconfig: str, tmp_path: Path) -> None:  # noqa: F811
    async def go() -> None:
        world = World(tmp_path)
        world.custom = world.pod_groups = False
        async with Kube.from_config(kubeconfig) as kube:
            world.kube = kube
            await world.prepare()
            for name in ("n0", "n1"):
                if await kube.get(NODE, name) is None:
                    await world.node(name)

            def event_of(servers: Servers) -> Callable[[str], Any]:
                async def event(_: str) -> None:
                    await servers.kill()

                return event

            assert (await recovers(world, event_of, "again", nodes=False)).kills == 6

    asyncio.run(go())


async def _gone(world: World) -> bool:
    return not await world.records()
