"""The services of `Recover` and the others through a real kube-apiserver.

Without definitions it knows jobs by their pods. With Belay's definitions the conversations of the other test files are
played again in it, as they stand there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from belay.engine.kube import CONFIGMAP, NODE, POD, Kube
from belay.engine.observe.observed import observe
from tests import test_force_release, test_grpc_recover, test_grpc_rules
from tests.grpc_world import ASCEND_JOB, NS, POD_GROUP, Client, World, until
from tests.kube_server import define, real_cluster, wipe
from tests.needs import assets
from tests.test_grpc_chaos import Servers, recovers

pytestmark = pytest.mark.real_time

#: What is played again: each writes or watches something else of the cluster.
AGAIN = (
    (test_grpc_rules, "test_init_and_register_in_their_order"),
    (test_grpc_rules, "test_a_job_whose_pod_group_is_deleted_is_forgotten"),
    (test_grpc_rules, "test_a_global_rank_table_is_pushed_when_all_members_are_complete"),
    (test_grpc_rules, "test_faults_reach_subscribers_and_queries"),
    (test_grpc_rules, "test_summaries_are_sent_to_known_roles"),
    (test_grpc_rules, "test_profiling_switches"),
    (test_grpc_rules, "test_public_faults_enter_by_the_door_of_their_config_maps"),
    (test_grpc_recover, "test_a_process_fault_is_recovered_with_new_pods"),
    (test_grpc_recover, "test_a_memory_fault_is_retried_in_the_step"),
    (test_grpc_recover, "test_a_platform_takes_part"),
    (test_grpc_recover, "test_links_are_moved_and_the_operator_learns_of_it"),
    (test_grpc_recover, "test_a_stress_test_that_finds_a_fault_isolates_the_node_and_recovers"),
    (test_grpc_recover, "test_a_sub_healthy_pod_is_switched_to_its_backup"),
    (test_grpc_recover, "test_a_smaller_job_grows_again"),
    (test_force_release, "test_the_cluster_gets_an_entry_and_loses_it"),
)


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The kubeconfig of a real kube-apiserver that serves AscendJobs and PodGroups too."""
    control_plane = assets("etcd", "kube-apiserver")
    folder = tmp_path_factory.mktemp("lent")

    with real_cluster(control_plane, folder) as path:
        define(path)
        yield str(path)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("module", "name"), AGAIN, ids=[name for _, name in AGAIN])
def test_a_real_cluster_gives_the_same_results(
    module: ModuleType, name: str, lent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = 0

    def play(folder: Path, story: Callable[[World], Awaitable[None]], *, pod_groups: bool = True) -> None:
        async def go() -> None:
            nonlocal played
            world = World(folder)
            async with Kube.from_config(lent) as kube:
                world.kube = kube
                await wipe(kube, (POD, POD_GROUP, ASCEND_JOB, NODE, CONFIGMAP))
                world.custom = False  # the definitions are there already
                await world.prepare()
                world.custom = True
                await story(world)
                played += 1

        asyncio.run(go())

    monkeypatch.setattr(module, "play", play)
    getattr(module, name)(tmp_path)
    assert played == 1


def test_a_recovery_is_carried_through(kubeconfig: str, tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        world.custom = world.pod_groups = False
        world.recoveries = "belay-recovery"  # as an installation without admission has it
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
                assert record["metadata"]["namespace"] == world.recoveries
                assert list(observe([record]).recoveries) == [job], "a pass reads it there"
                await server.kill()
            async with world.server("server-1", duration=1.0) as server:
                await client.close()
                client = await Client(server.port, job).listen()  # waits until the dead server's Lease has run out
                await until(lambda: server.registry.sessions[job].signals, "the client is back")
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


def test_servers_are_killed_after_every_message(kubeconfig: str, tmp_path: Path) -> None:
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
