"""Super-pod jobs: the other nodes release what faulty chips hold, through ``cluster-system/fault-job-info``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from belay.agents.node.hardware.superpod import wanted
from belay.engine.kube import CONFIGMAP, Object
from belay.engine.model.recovery import State
from belay.engine.model.recovery.conversation import Done, Offered, Release, Report, StopComplete
from belay.engine.wire import faultjob
from belay.engine.wire.faultjob import JobServer, release_entry
from tests.grpc_world import Client, Time, World, play, until
from tests.recovery_conversation import CAN, software
from tests.recovery_conversation import Play as Machine

A, B, C = JobServer("a", 0, ("10", "11")), JobServer("b", 0, ("20",)), JobServer("c", 1, ("30",))


@pytest.mark.parametrize(
    ("servers", "faulty", "rows"),
    [
        ((A, B, C), {"a"}, {"0": (["10", "11"], ["b"])}),
        ((A, B, C), {"c"}, {"1": (["30"], None)}),
        ((A, B, C), {"a", "c"}, {"0": (["10", "11"], ["b"]), "1": (["30"], None)}),
        ((A, B), {"a", "b"}, {}),
        ((A, JobServer("d", -1, ())), {"a"}, {}),
        ((A, JobServer("d", -2, ("4",))), {"a"}, {}),
        ((JobServer("e", 3, ()), A), {"e"}, {}),
        ((A, B), {"x"}, {}),
    ],
)
def test_the_entry_of_a_job(
    servers: tuple[JobServer, ...], faulty: set[str], rows: dict[str, tuple[list[str], list[str] | None]]
) -> None:
    text = release_entry("job", servers, faulty, 1_790_000_000)
    expected = {
        pod: {"SdIds": ids, "NodeNames": names, "FaultTimes": 1_790_000_000, "JobId": "job"}
        for pod, (ids, names) in rows.items()
    }
    assert text == (json.dumps(expected, separators=(",", ":")) if rows else "")


def test_nodes_mark_what_the_entry_names() -> None:
    data = {"job": release_entry("job", (A, B, C), {"a"}, 1_790_000_000)}
    assert wanted(data, "b") == {"job": ("[1790000000]", (10, 11))}
    assert wanted(data, "a") == {} and wanted(data, "c") == {}


def test_training_gets_the_fault_once_the_others_had_time_to_release() -> None:
    play = Machine(super_pod=True).tell(software(("9", "1")))
    play.tell(StopComplete(Report())).after(1)
    assert play.heard()[-1] == "release 8,9,10,11,12,13,14,15"
    assert (play.state, play.talk.phase, play.talk.released) == (State.GLOBAL_FAULT, "released", True)
    assert play.after(9.9).heard() == []
    assert play.after(0.1).heard() == ["reset faults 8-15", "globalFault on_global_rank+fault_nodes_exit nodes=1"]
    play.tell(Offered(Report(strategies=CAN))).after(5).tell(Done(Report(strategy="recover")))
    assert play.state is State.INIT
    assert "release clear" in play.heard()


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({}, ("9", "1")),
        ({"super_pod": True, "configured": ("dump", "exit"), "health": "Healthy"}, ("9", "1")),
        ({"super_pod": True, "configured": ("retry", "recover", "exit")}, ("9", "0")),
    ],
)
def test_nothing_waits_where_nothing_is_released(facts: dict[str, Any], fault: tuple[str, str]) -> None:
    play = Machine(**facts).tell(software(fault)).tell(StopComplete(Report())).after(1)
    heard = play.heard()
    assert play.state is State.WAIT_STRATEGY and not any(text.startswith("release") for text in heard)


def test_a_job_with_nothing_to_release_continues_at_once() -> None:
    play = Machine(super_pod=True)
    play.fails = [Release]
    play.tell(software(("9", "1"))).tell(StopComplete(Report())).after(1)
    assert play.heard()[-1] == "globalFault on_global_rank+fault_nodes_exit nodes=1"
    assert not play.talk.released


def test_whatever_the_end_the_mark_is_taken_back() -> None:
    play = Machine(super_pod=True).tell(software(("9", "1")))
    play.tell(StopComplete(Report())).after(1).after(10)
    play.heard()
    for seconds in (901, 1, 136, 61):
        play.after(seconds)
    assert play.state is State.INIT and "release clear" in play.heard()


async def entries(world: World) -> dict[str, Any]:
    found: Object | None = await world.kube.get(CONFIGMAP, faultjob.NAME, faultjob.NAMESPACE)
    return {job: json.loads(text) for job, text in ((found or {}).get("data") or {}).items()}


def test_the_cluster_gets_an_entry_and_loses_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        for name in ("n0", "n1"):
            await world.report(name, super_pod=2)
        left = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"long-gone": "{}"}}
        await world.kube.create(
            CONFIGMAP, {**left, "metadata": {"name": faultjob.NAME, "namespace": faultjob.NAMESPACE}}
        )
        time = Time()

        async def forgotten() -> bool:
            return await entries(world) == {}

        async with world.server(clock=time) as server:
            await until(lambda: server.cluster.observed.reports["n1"].super_pod_id == 2, "the super pods are known")
            await until(forgotten, "the entry of an unknown job is taken back")
            client = await Client(server.port, job).join()
            await client.broke(("9", "1"))
            await client.next()
            await client.stopped()
            time.pass_by(1)
            await server.registry.refresh()

            async def told() -> bool:
                return job in await entries(world)

            await until(told, "the entry is written")
            row = (await entries(world))[job]["2"]
            assert row == {
                "SdIds": [str(i) for i in range(8)], "NodeNames": ["n0"], "FaultTimes": row["FaultTimes"], "JobId": job,
            }  # fmt: skip
            assert client.heard == []
            time.pass_by(10)
            await server.registry.refresh()
            assert (await client.next()).signalType == "globalFault"
            await client.offers("recover", "exit")
            await client.next()
            await world.replace("pretrain", 1)
            await client.done("recover")

            await until(forgotten, "the entry is taken back")
            await client.close()

    play(tmp_path, story)
