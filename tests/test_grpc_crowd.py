"""Jobs with several clients each, faults in half of them, servers killed in between: the small sister of the soak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import grpc_crowd
from tests.grpc_world import World, play
from tests.test_grpc_chaos import Servers

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize("seed", [1])
def test_many_clients_survive_their_servers(tmp_path: Path, seed: int) -> None:
    async def story(world: World) -> None:
        servers = Servers(world)
        await servers.start()
        size = grpc_crowd.Size(jobs=12, clients=4, waves=2, hit=6, kills=2)
        assert await grpc_crowd.play(world, servers, seed, size) == 12
        assert servers.kills == 4
        await servers.stop()

    play(tmp_path, story)
