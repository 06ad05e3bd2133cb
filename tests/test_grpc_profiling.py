"""Switches of profiling: what is answered is what holds, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from belay.engine.kube import POD, Kube, Unavailable
from belay.engine.serve.grpc import profiling
from belay.engine.serve.grpc.observed_cluster import ContainerSettings
from belay.engine.serve.grpc.server import GrpcServer
from belay.engine.wire.clusterd import profiling_pb2 as pb
from tests.grpc_world import ASCEND_JOB, NS, POD_GROUP, Client, World, play, until

SERVICE = "TrainingDataTrace"
ON = dict.fromkeys(("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader"), "on")


class Lossy:
    """A client of the API server; ``lose`` makes the answers of so many writes get lost after they were carried out."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.lose = 0
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kube, name)

    async def get(self, *args: Any) -> Any:
        found = await self._kube.get(*args)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return found

    async def create(self, *args: Any) -> Any:
        return self._answered(await self._kube.create(*args))

    async def replace(self, *args: Any) -> Any:
        return self._answered(await self._kube.replace(*args))

    def _answered(self, found: Any) -> Any:
        if self.lose:
            self.lose -= 1
            raise Unavailable("the connection broke before the answer")
        return found


async def modify(client: Client, **switches: str) -> pb.DataTypeRes:
    wanted = pb.ProfilingSwitch(**{**ON, **switches})
    request = pb.DataTypeReq(jobNsName=f"{NS}/pretrain", profilingSwitch=wanted)
    return cast(pb.DataTypeRes, await client.call("ModifyTrainingDataTraceSwitch", request, pb.DataTypeRes, SERVICE))


def mount(server: GrpcServer) -> None:
    for view in server.cluster.jobs.values():
        for pod in view.pods:
            server.cluster._container_settings[(pod.namespace, pod.name)] = ContainerSettings(data_trace=True)


def test_a_write_whose_answer_is_lost_is_no_failure(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job()
        async with world.server() as server:
            kube = server.tracing._kube = cast(Any, Lossy(world.kube))
            client = Client(server.port, job)
            mount(server)
            for step, communication in enumerate(("on", "off")):  # created, then replaced
                kube.lose = 1
                answer = await modify(client, CommunicationOperator=communication)
                assert answer.code == 200, (step, answer)
                found = await world.config_map("data-trace-pretrain")
                assert found is not None
                assert json.loads(found["data"]["profilingSwitch"])["CommunicationOperator"] == communication
            # the switches that stand there already are not written again
            kube.lose = 1
            assert (await modify(client, CommunicationOperator="off")).code == 200
            assert kube.lose == 1
            await client.close()

    play(tmp_path, story)


def test_switches_changed_during_a_subscription_reach_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job()
        async with world.server() as server:
            kube = server.tracing._kube = cast(Any, Lossy(world.kube))
            client, mounted = Client(server.port, job), Client(server.port, job)
            mount(server)
            kube.meanwhile = lambda: modify(mounted, CommunicationOperator="off")
            info = pb.ProfilingClientInfo(jobId=job, role="r")
            call = client.stream("SubscribeDataTraceSwitch", info, pb.DataStatusRes, SERVICE)
            async with asyncio.timeout(20):
                assert (await call.read()).profilingSwitch.CommunicationOperator == "off"
            await client.close()
            await mounted.close()

    play(tmp_path, story)


def test_a_subscription_to_an_unknown_job_is_refused(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job()
        async with world.server() as server:
            client = Client(server.port, job)
            for name in ("", "no-such-job"):
                info = pb.ProfilingClientInfo(jobId=name, role="r")
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await client.stream("SubscribeDataTraceSwitch", info, pb.DataStatusRes, SERVICE).read()
                assert refused.value.details() == f"jobId={name} not registered, role=r"
            await client.close()

    play(tmp_path, story)


def test_nothing_is_kept_of_jobs_that_are_gone(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        jobs = [await world.job(), await world.job("other", nodes=False)]
        async with world.server() as server:
            client = Client(server.port, jobs[0])
            mount(server)
            assert (await modify(client)).code == 200
            assert set(server.tracing._switches) == {jobs[0]}
            for rank in (0, 1):
                await world.kube.delete(POD, f"pretrain-worker-{rank}", NS, grace=0)
            await world.kube.delete(POD_GROUP, f"pretrain-{jobs[0]}", NS)
            await world.kube.delete(ASCEND_JOB, "pretrain", NS)
            await until(lambda: jobs[0] not in server.cluster.jobs, "the job is gone")
            info = pb.ProfilingClientInfo(jobId=jobs[1], role="r")
            call = client.stream("SubscribeDataTraceSwitch", info, pb.DataStatusRes, SERVICE)
            await call.initial_metadata()
            assert server.tracing._switches == {}
            await client.close()

    play(tmp_path, story)


def test_switches_that_cannot_be_read_are_none() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    for text in (deep, "[]", "{", '{"Step":5}'):
        read = profiling._read({"data": {"profilingSwitch": text}})
        assert read is None or set(read.values()) == {"off"}, text
