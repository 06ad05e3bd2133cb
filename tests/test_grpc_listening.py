"""A server that cannot serve gRPC is seen in the status and as an Event, as long as that is so."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP, EVENT
from belay.engine.serve.grpc import listening
from belay.engine.serve.grpc.server import serving
from belay.engine.settings import from_environment
from belay.engine.status.status_reader import SELECTOR, read_status
from tests.grpc_world import World, play


async def findings(world: World) -> list[str]:
    listing = await world.kube.list(CONFIGMAP, "belay-system", SELECTOR)
    return [f"{row['severity']} {row['object']}: {row['message']}" for row in read_status(listing.items).diagnostics]


def test_a_taken_port_is_said_where_people_look_until_it_is_served(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            environment = {"BELAY_GRPC_LISTEN": address, "BELAY_IDENTITY": "server-0", "BELAY_GRPC_HEALTH_PORT": "0"}
            settings = from_environment(environment)
            for _ in range(2):
                with pytest.raises(InputError, match="cannot listen"):
                    async with serving(settings, world.kube):
                        raise AssertionError("it serves")
            (found,) = await findings(world)
            assert found.startswith(f"error belay server {settings.identity}: serves no gRPC")
            assert f"cannot listen on {address}" in found
            events = (await world.kube.list(EVENT, "belay-system")).items
            (event,) = [one for one in events if one["reason"] == "GRPCNotServed"]
            assert (event["type"], event["count"], event["involvedObject"]["name"]) == ("Warning", 2, "belay-server")
        async with serving(settings, world.kube) as server:
            assert server is not None
            assert await findings(world) == []

    play(tmp_path, scenario)


def test_servers_keep_keys_of_their_own_and_dead_ones_are_forgotten(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await listening.publish_problem(world.kube, "a", "", 0.0)
        assert await world.kube.get(CONFIGMAP, "belay-server", "belay-system") is None, "nothing to say"
        await asyncio.gather(
            *(listening.publish_problem(world.kube, name, f"no port for {name}", 1000.0) for name in "abc")
        )
        assert len(await findings(world)) == 3
        await listening.publish_problem(world.kube, "b", "", 1100.0)
        assert [line.split(":")[0] for line in await findings(world) if "server b" in line] == []
        await listening.publish_problem(world.kube, "d", "", 1000.0 + listening.LASTS_SECONDS)
        assert await findings(world) == []

    play(tmp_path, scenario)
