"""Servers that die, stand by and take over, clients that hang up and storm back: no conversation is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from belay.engine.kube import CONFIGMAP, NAMESPACE
from belay.engine.model.labels import PROCESS_RECOVERIES
from belay.engine.model.recovery import summary
from belay.engine.serve.grpc.server import GrpcServer
from belay.engine.wire import recoveryrecord
from belay.engine.wire.clusterd import recover_pb2 as pb
from tests.grpc_world import Client, World, play, until
from tests.ports import free_port

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.timeout(600),
]


class Servers:
    """One server at a time on one port, as one pod that is killed and starts again."""

    def __init__(self, world: World) -> None:
        self.world, self.port = world, free_port()
        self.current: GrpcServer | None = None
        self.kills = 0
        self._one = asyncio.Lock()

    async def start(self) -> None:
        self.current = GrpcServer(self.world.kube, identity="server-0", port=self.port, callers="any")
        await self.current.__aenter__()

    async def kill(self) -> None:
        async with self._one:
            if self.current is None:
                return  # a kill that comes after the end
            self.kills += 1
            await self.current.kill()
            await self.start()

    async def stop(self) -> None:
        async with self._one:
            assert self.current is not None
            last, self.current = self.current, None
            await last.aclose()


class Trainer:
    """A client as it lives in a job: comes back whenever its stream breaks, tries each report until it is answered.

    ``event`` is called after everything that it hears or has reported.
    """

    def __init__(
        self,
        port: int,
        job: str,
        event: Callable[[str], Any],
        role: str = "master agent",
        shared: grpc.aio.Channel | None = None,
    ) -> None:
        self.client = Client(port, job, role, channel=shared or channel(port))
        self.heard: list[str] = []
        self._event = event
        self._seen: set[tuple[str, ...]] = set()
        self.replaced: Callable[[], Any] | None = None
        self.listens = False

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                await self.client.call("Init", self.client.info)
                await self.client.call("Register", self.client.info)
                call = self.client.stream("SubscribeProcessManageSignal", self.client.info)
                await call.initial_metadata()
                self.listens = True
                async for signal in call:
                    failures = 0
                    if signal.signalType == "keep-alive":
                        continue
                    key = (signal.uuid, signal.signalType, *signal.actions, signal.changeStrategy)
                    if key not in self._seen:
                        self._seen.add(key)
                        self.heard.append(f"{signal.signalType} {signal.changeStrategy}".strip())
                        await self.answer(signal)
            except grpc.aio.AioRpcError:
                self.listens = False
                failures += 1
                await asyncio.sleep(self.pause(failures))

    def pause(self, failures: int) -> float:
        """Seconds until it comes back after so many failures in a row."""
        return 0.05

    async def answer(self, signal: pb.ProcessManageSignal) -> None:
        await self._event(f"heard {signal.signalType}")
        if "stop_train" in signal.actions:
            await self.until_answered(lambda: self.client.stopped())
        elif "on_global_rank" in signal.actions:
            await self.until_answered(lambda: self.client.offers("recover", "dump", "exit"))
        elif signal.changeStrategy == "recover":
            if self.replaced is not None:
                await self.replaced()
            await self.until_answered(lambda: self.client.done("recover"))
        else:
            return
        await self._event(f"reported {signal.signalType}")

    async def until_answered(self, report: Callable[[], Any]) -> None:
        for failures in range(1, 201):
            with contextlib.suppress(grpc.aio.AioRpcError):
                if (await report()).code == 0:
                    return
            await asyncio.sleep(self.pause(failures))
        raise AssertionError("never answered")


def channel(port: int) -> grpc.aio.Channel:
    options = (
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 100),
        ("grpc.use_local_subchannel_pool", 1),  # else all channels of a process share one connection
    )
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)


def recovered(folder: Path, event_of: Callable[[Servers], Callable[[str], Any]]) -> Servers:
    """A process recovery from fault to success, with something happening at every event."""
    kept: list[Servers] = []

    async def story(world: World) -> None:
        kept.append(await recovers(world, event_of))

    play(folder, story)
    return kept[0]


async def recovers(
    world: World, event_of: Callable[[Servers], Callable[[str], Any]], name: str = "pretrain", **options: Any
) -> Servers:
    """The same in a world that is there."""
    job = await world.job(name, strategy="recover", **options)
    servers = Servers(world)
    await servers.start()
    trainer = Trainer(servers.port, job, event_of(servers))
    trainer.replaced = lambda: world.replace(name, 1)
    life = asyncio.ensure_future(trainer.run())
    await until(lambda: listening(servers, job), "the client listens", 60)
    await trainer.until_answered(lambda: trainer.client.broke(("9", "1")))

    async def told() -> bool:
        return (await world.marks(name)).get("ProcessRecoverStatus") == "recover-success" and not (
            await world.records()
        )

    try:
        # a signal that is lost with its server is repeated after ten seconds, and six may be lost
        await until(told, "recovered", 240)
    except AssertionError as error:
        session = servers.current.registry.sessions.get(job) if servers.current is not None else None
        state = session and (session.conversation.state, len(session.signals), session.conversation.story[-4:])
        raise AssertionError(f"{error}: heard {trainer.heard}, {servers.kills} kills, {state}") from error
    assert trainer.heard == ["stopTrain", "globalFault", "changeStrategy recover"]
    (one,) = summary.read((await world.marks(name))[PROCESS_RECOVERIES])
    assert (one.level, one.good, one.pods) == ("process", True, (1,))
    body = await world.reset_json(name)
    assert (body["RankList"], body["FaultFlushing"]) == ([], False)
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)
    await trainer.client.channel.close(None)
    await servers.stop()
    return servers


def listening(servers: Servers, job: str) -> bool:
    session = servers.current.registry.sessions.get(job) if servers.current is not None else None
    return session is not None and bool(session.signals)


def test_a_server_killed_after_every_message_loses_nothing(tmp_path: Path) -> None:
    def event_of(servers: Servers) -> Callable[[str], Any]:
        async def event(_: str) -> None:
            await servers.kill()

        return event

    assert recovered(tmp_path, event_of).kills == 6


@pytest.mark.parametrize("seed", range(4))
def test_a_server_killed_in_the_middle_of_whatever_it_does_loses_nothing(tmp_path: Path, seed: int) -> None:
    def event_of(servers: Servers) -> Callable[[str], Any]:
        chance = random.Random(seed)

        async def event(_: str) -> None:
            if chance.random() < 0.7:
                # while the next signal or report is on its way
                asyncio.get_running_loop().call_later(
                    chance.random() * 0.05, lambda: asyncio.ensure_future(servers.kill())
                )

        return event

    recovered(tmp_path, event_of)


def test_a_signal_lost_with_its_server_is_repeated(tmp_path: Path) -> None:
    """The server wrote that the signal was on the connection, and died before it had left."""

    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        servers = Servers(world)
        await servers.start()
        client = Client(servers.port, job, channel=channel(servers.port))
        await join(client)
        await client.broke(("9", "1"))
        first = await client.next()
        assert servers.current is not None
        session = servers.current.registry.sessions[job]
        await until(lambda: session.conversation.state == "WaitReportStopCompleteState", "it waits for the report")
        await servers.kill()
        await until(lambda: client.error is not None, "the stream broke")
        await join(client)
        again = await client.next()  # a client that knows its uuid passes over it
        assert (again.signalType, again.uuid) == (first.signalType, first.uuid)
        assert (await client.stopped()).code == 0
        assert (await client.next()).signalType == "globalFault"
        await client.hang_up()
        await client.channel.close(None)
        await servers.stop()

    play(tmp_path, story)


def test_a_standby_hands_calls_on_and_takes_over(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        first = GrpcServer(world.kube, identity="server-0", duration=1.0, callers="any")
        async with first, world.server("server-1", duration=1.0) as second:
            assert first.leader is not None and second.leader is not None
            assert (first.leader.leads, second.leader.leads) == (True, False)
            client = await Client(second.port, job).join()  # through the standby
            assert job in first.registry.sessions and job not in second.registry.sessions
            await client.broke(("9", "1"))
            assert (await client.next()).signalType == "stopTrain"
            await first.kill()
            await until(lambda: second.leader is not None and second.leader.leads, "the standby serves")
            assert second.registry.sessions[job].conversation.state == "WaitReportStopCompleteState"
            await until(lambda: client.error is not None, "the stream broke")
            assert client.error is not None and client.error.code() == grpc.StatusCode.UNAVAILABLE
            await client.listen()
            assert (await client.stopped()).code == 0
            assert (await client.next()).signalType == "globalFault"
            await client.close()

    play(tmp_path, story)


def test_a_server_comes_up_in_a_cluster_that_knows_nothing_of_belay(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.kube.delete(NAMESPACE, "belay-system")

        async def gone() -> bool:
            return await world.kube.get(NAMESPACE, "belay-system") is None

        await until(gone, "the namespace is gone")
        async with world.server() as server:
            assert server.leader is not None and server.leader.leads

    play(tmp_path, story)


def test_a_record_that_a_user_edited_is_overwritten(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            client = await Client(server.port, job).join()
            await client.broke(("9", "1"))
            await client.next()
            session = server.registry.sessions[job]
            await until(lambda: session.conversation.state == "WaitReportStopCompleteState", "it waits for the report")
            await asyncio.sleep(0.2)
            (record,) = await world.records()
            record["metadata"]["annotations"] = {"somebody": "was here"}  # by the hand of a person: no newer server
            await world.kube.replace(CONFIGMAP, record)
            assert (await client.stopped()).code == 0
            assert (await client.next()).signalType == "globalFault"
            await client.close()

    play(tmp_path, story)


def test_an_outlived_server_cannot_write_over_its_successor(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            client = await Client(server.port, job).join()
            await client.broke(("9", "1"))
            await client.next()
            session = server.registry.sessions[job]
            await until(lambda: session.conversation.state == "WaitReportStopCompleteState", "it waits for the report")
            await asyncio.sleep(0.2)
            (record,) = await world.records()
            newer = recoveryrecord.parse(record)
            newer = type(newer)(conversation=newer.conversation, epoch=newer.epoch + 1)
            await world.kube.replace(CONFIGMAP, recoveryrecord.build(newer, record))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.stopped()
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            (record,) = await world.records()
            assert recoveryrecord.parse(record) == newer
            await client.close()

    play(tmp_path, story)


def test_a_client_that_hangs_up_ends_the_conversation_and_one_of_many_does_not(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            master, agent = await Client(server.port, job).join(), await Client(server.port, job, "agent").listen()
            await master.broke(("9", "1"))
            assert (await master.next()).uuid == (await agent.next()).uuid
            await agent.hang_up()
            await asyncio.sleep(0.3)
            session = server.registry.sessions[job]
            await until(lambda: session.conversation.state == "WaitReportStopCompleteState", "it goes on")
            await master.hang_up()
            await until(lambda: session.conversation.state == "INIT", "it ends")
            assert session.conversation.story[-1].code == 506

            async def cleared() -> bool:
                return not (await world.reset_json("pretrain"))["FaultFlushing"]

            await until(cleared, "agents wait no longer")
            await master.close()
            await agent.close()

    play(tmp_path, story)


def test_a_thousand_clients_at_once(tmp_path: Path) -> None:
    """A reconnect storm: every client of 20 jobs comes at the same moment, twice; all of them get the next signal."""

    async def story(world: World) -> None:
        jobs = [await world.job(f"job-{index}", pods=1, reset=False, nodes=index == 0) for index in range(20)]
        async with world.server() as server:
            channels = [channel(server.port) for _ in range(25)]
            clients = [
                Client(server.port, jobs[index % len(jobs)], f"agent-{index}", channels[index % len(channels)])
                for index in range(1000)
            ]
            for one in clients[: len(jobs)]:
                await join(one)
            await asyncio.gather(*(join(one) for one in clients[len(jobs) :]))
            await until(
                lambda: sum(len(session.signals) for session in server.registry.sessions.values()) == 1000, "all listen"
            )
            await asyncio.gather(*(one.hang_up() for one in clients))
            await until(
                lambda: not any(session.signals for session in server.registry.sessions.values()), "all are gone"
            )
            await asyncio.gather(*(one.listen() for one in clients))
            await until(
                lambda: sum(len(session.signals) for session in server.registry.sessions.values()) == 1000,
                "all are back",
            )
            await clients[0].broke(("1", "1"))  # its job has no reset ConfigMap: every client gets the signal to end
            heard = await asyncio.gather(*(one.next() for one in clients if one.job == jobs[0]))
            assert {signal.signalType for signal in heard} == {"killMaster"}
            await asyncio.gather(*(one.hang_up() for one in clients))
            for one in channels:
                await one.close(None)

    play(tmp_path, story)


async def join(client: Client) -> None:
    """Join, trying again where the rate of calls is exceeded."""
    for _ in range(200):
        try:
            await client.join()
            return
        except grpc.aio.AioRpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE or "qps exceeded" in (error.details() or "")
            await asyncio.sleep(random.uniform(0.2, 1.0))
    raise AssertionError("never joined")


def test_more_clients_than_a_connection_carries_come_by_a_server_that_stands_by(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server("server-0") as leads, world.server("server-1") as stands_by:
            clients = [
                Client(stands_by.port, job, f"agent {number}", channel=channel(stands_by.port)) for number in range(130)
            ]
            for call in ("Init", "Register"):
                assert (await clients[0].call(call, clients[0].info)).code == 0
            async with asyncio.timeout(60):
                await asyncio.gather(*(client.listen() for client in clients))
            await until(lambda: len(leads.registry.sessions[job].signals) == len(clients), "all listen")
            assert (await clients[0].broke(("9", "1"))).code == 0, "calls still come through"
            assert {(await client.next()).signalType for client in clients} == {"stopTrain"}
            for client in clients:
                await client.hang_up()
            await until(lambda: not leads.registry.sessions[job].signals, "all have left")
            assert stands_by._relay is not None
            await until(lambda: not any(one.calls for one in stands_by._relay._channels), "nothing is counted as open")
            for client in clients:
                await client.channel.close(None)

    play(tmp_path, story)
