"""Many jobs with many clients each, faults in some of them, a server that is killed at any moment: all of it seeded.

One client of a job answers for its processes (as the manager of its training does), the others only listen. What must
hold at the end: every job that was hit recovered, every client heard only what was meant for its job and in the order
of a conversation, and nothing is kept of conversations that are over.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import grpc

from belay.engine.model.labels import PROCESS_RECOVERIES
from belay.engine.model.recovery import summary
from belay.engine.wire.clusterd import recover_pb2 as pb
from tests.grpc_world import POD_GROUP, Client, World, until
from tests.test_grpc_chaos import Trainer, channel

#: The order of a conversation's signals; a repetition after a server's death is the same signal again.
ORDER = ("stopTrain", "globalFault", "changeStrategy")
#: Clients that share a connection: it carries 64 calls at a time, and one host has 512 connections.
SHARED = 40
#: Longest pause of a client between two tries, as in MindCluster's client library (seconds).
LONGEST = 10.0


class Killable(Protocol):
    """A server on one port that may be killed and comes back."""

    port: int

    async def kill(self) -> None:
        """Kill it; it is back when this returns."""


class Size(NamedTuple):
    """How large a crowd is: jobs with clients, waves of faults in so many jobs, kills in each wave."""

    jobs: int
    clients: int
    waves: int
    hit: int
    kills: int
    patience: float = 120.0


class Listener(Client):
    """A client that receives and never answers; it reconnects whenever its stream breaks."""

    def __init__(self, port: int, job: str, role: str, shared: grpc.aio.Channel, chance: random.Random) -> None:
        super().__init__(port, job, role, shared)
        self.signals: list[pb.ProcessManageSignal] = []
        self.listens = False
        self._chance = chance

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                await self.call("Init", self.info)
                await self.call("Register", self.info)
                call = self.stream("SubscribeProcessManageSignal", self.info)
                await call.initial_metadata()
                self.listens = True
                async for signal in call:
                    failures = 0
                    if signal.signalType != "keep-alive":
                        self.signals.append(signal)
            except grpc.aio.AioRpcError:
                pass
            self.listens = False
            failures += 1
            await asyncio.sleep(_pause(self._chance, failures))


class Master(Trainer):
    """The client that answers for its job."""

    def __init__(
        self,
        world: World,
        name: str,
        port: int,
        job: str,
        event: Callable[[str], Awaitable[None]],
        shared: grpc.aio.Channel,
        chance: random.Random,
    ) -> None:
        super().__init__(port, job, event, shared=shared)
        self.name = name
        self.replaced = lambda: world.replace(name, 0)
        self.doubtful = 0  # reports of a fault whose answer was lost: heard or not, they are said again
        self._chance = chance

    def pause(self, failures: int) -> float:
        return _pause(self._chance, failures)

    @property
    def recoveries(self) -> int:
        return self.heard.count("changeStrategy recover")


def _pause(chance: random.Random, failures: int) -> float:
    """Seconds before the next try: a storm of clients without backoff would always be refused."""
    return chance.uniform(0.5, 1.0) * min(LONGEST, 0.25 * 2.0 ** min(failures, 8))


async def play(world: World, servers: Killable, seed: int, size: Size, say: Callable[[str], None] = print) -> int:
    """Run all waves; returns the number of conversations. ``say`` is called with the progress."""
    chance = random.Random(seed)
    await world.node("n0")
    names = [f"crowd-{i}" for i in range(size.jobs)]
    ids: dict[str, str] = {}
    for at in range(0, size.jobs, 16):
        some = names[at : at + 16]
        made = await asyncio.gather(*(world.job(name, pods=1, strategy="recover", nodes=False) for name in some))
        ids.update(zip(some, made, strict=True))

    async def event(_: str) -> None:
        return

    shared = [channel(servers.port) for _ in range(1 + size.jobs * size.clients // SHARED)]
    masters = [
        Master(world, name, servers.port, job, event, shared[at % len(shared)], chance)
        for at, (name, job) in enumerate(ids.items())
    ]
    listeners = [
        Listener(servers.port, job, f"agent {i}", shared[(i + at) % len(shared)], chance)
        for at, job in enumerate(ids.values())
        for i in range(1, size.clients)
    ]
    async with _living([*(one.run() for one in masters), *(one.run() for one in listeners)]):
        everyone = [*masters, *listeners]
        await _all_listen(everyone, say, size)
        told: dict[str, int] = {}
        for wave in range(1, size.waves + 1):
            hit = chance.sample(masters, size.hit)
            for one in hit:
                told[one.name] = told.get(one.name, 0) + 1
            await asyncio.gather(_killed(servers, chance, size.kills), *(_break(one, chance) for one in hit))
            for count, one in enumerate(hit, 1):
                times = told[one.name]
                await until(partial(_recovered, world, one.name, times), f"{one.name} recovered", size.patience)
                if count == len(hit):
                    say(f"wave {wave} of {size.waves}: {count} jobs recovered")
            await until(lambda: _empty(world), "nothing is kept", size.patience)
            await _all_listen(everyone, say, size)
        most = {one.client.job: told.get(one.name, 0) + one.doubtful for one in masters}
        for listener in listeners:
            _check(listener, most[listener.job])
        for one in masters:
            assert told.get(one.name, 0) <= one.recoveries <= most[one.client.job], (one.name, one.heard)
    for one in shared:
        await one.close(None)
    return sum(told.values())


async def _all_listen(listeners: Sequence[Listener | Master], say: Callable[[str], None], size: Size) -> None:
    try:
        await until(lambda: all(one.listens for one in listeners), "all listen", size.patience)
    except AssertionError as error:
        raise AssertionError(f"{error}: {sum(one.listens for one in listeners)} of {len(listeners)} do") from None
    say(f"all {len(listeners)} listen")


@contextlib.asynccontextmanager
async def _living(lives: list[Any]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(life) for life in lives]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for one in ended:
        assert isinstance(one, asyncio.CancelledError), f"a client broke: {one!r}"


async def _break(one: Master, chance: random.Random) -> None:
    await asyncio.sleep(chance.uniform(0, 0.5))
    rank = str(chance.randrange(1, 8))

    async def report() -> pb.Status:
        try:
            return await one.client.broke((rank, "1"))
        except grpc.aio.AioRpcError:
            one.doubtful += 1
            raise

    await one.until_answered(report)


async def _killed(servers: Killable, chance: random.Random, kills: int) -> None:
    for _ in range(kills):
        await asyncio.sleep(chance.uniform(0.05, 1.5))
        await servers.kill()


async def _recovered(world: World, name: str, times: int) -> bool:
    """Whether the newest account of the job is a good one, and not that of an earlier wave."""
    group = await world.kube.get(POD_GROUP, f"{name}-{world.uids[name]}", "train")
    accounts = summary.read(((group or {}).get("metadata") or {}).get("annotations", {}).get(PROCESS_RECOVERIES, ""))
    return len([one for one in accounts if one.good]) >= min(times, 3)


async def _empty(world: World) -> bool:
    return not await world.records()


def _check(listener: Listener, conversations: int) -> None:
    """Only its own job's signals, in the order of a conversation, of no more conversations than there were."""
    uuids: dict[str, int] = {}
    for signal in listener.signals:
        assert signal.jobId == listener.job, "a signal of another job"
        at = ORDER.index(signal.signalType)
        assert at >= uuids.get(signal.uuid, 0), f"{signal.signalType} came late"
        uuids[signal.uuid] = at
    assert len(uuids) <= conversations, f"{len(uuids)} conversations were heard of {conversations}"


__all__ = ["Killable", "Size", "play"]
