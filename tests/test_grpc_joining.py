"""Clients that come to a conversation at the very moment in which something is said in it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from engine.kube import CONFIGMAP, POD
from engine.model.recovery.conversation import MarkPods, Signal
from engine.serve.grpc import operations
from engine.serve.grpc.streams import Outbox
from engine.serve.grpc.voice import Voice
from tests.grpc_world import NS, Client, Time, World, play, until

STOP = Signal("stopTrain", ("stop_train",), uuid="u")
REQUEST = '{"ranks": ["1"], "ops": [true]}'
FAULT = Signal("globalFault", ("on_global_rank",), uuid="u")


def waiting(outbox: Outbox[Any]) -> list[str]:
    return [message.signalType for message, _ in outbox._items]


def leaves(outbox: Outbox[Any]) -> None:
    """What waits longest is handed to the connection."""
    _, future = outbox._items.popleft()
    assert future is not None
    future.set_result(True)


@pytest.mark.parametrize("first", [True, False])
def test_whoever_joins_while_a_signal_is_on_its_way_hears_it_once(first: bool) -> None:
    async def main() -> None:
        voice, slow, late = Voice("job", returning=False), Outbox[Any](), Outbox[Any]()
        voice.join(slow)
        saying = asyncio.ensure_future(voice.deliver(STOP, "u", 1, lambda: True))
        if first:
            voice.join(late)  # before anything was handed over
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not first:
            assert waiting(slow) == ["stopTrain"]  # it reads slowly
            voice.join(late)
        assert waiting(late) == ["stopTrain"]
        slow.discard()
        late.discard()
        await saying
        after = Outbox[Any]()
        voice.join(after)
        assert waiting(after) == [], "it was said before this one came"

    asyncio.run(main())


def test_whoever_executes_hears_of_an_operation_on_its_way() -> None:
    async def main() -> None:
        voice, slow, late = Voice("job", returning=False), Outbox[Any](), Outbox[Any]()
        voice.execute(operations.NIC, slow)
        saying = asyncio.ensure_future(voice.notify(operations.NIC, REQUEST, lambda: True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        voice.execute(operations.NIC, late)
        assert len(late._items) == 1
        slow.discard()
        await saying

    asyncio.run(main())


def test_a_signal_waits_for_clients_of_a_dead_server_also_after_another_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stream broke again in the storm: the next signal has the patience that the first one had."""
    monkeypatch.setattr("engine.serve.grpc.voice.ENQUEUE", 0.01)

    async def main() -> None:
        voice, late = Voice("job", returning=True), Outbox[Any]()
        lost = asyncio.ensure_future(voice.repeat(STOP, 1, lambda: False))  # somebody has answered it meanwhile
        saying = asyncio.ensure_future(voice.deliver(FAULT, "u", 1, lambda: True))
        await lost
        await asyncio.wait([saying], timeout=0.1)
        assert not saying.done()
        voice.join(late)
        await until(lambda: waiting(late) == ["globalFault"], "it is said")
        leaves(late)
        assert await saying is True

    asyncio.run(main())


def test_a_signal_whose_stream_broke_in_the_storm_is_said_to_the_next_one() -> None:
    async def main() -> None:
        voice, broken, whole = Voice("job", returning=True), Outbox[Any](), Outbox[Any]()
        voice.join(broken)
        saying = asyncio.ensure_future(voice.deliver(STOP, "u", 1, lambda: True))
        await until(lambda: waiting(broken) == ["stopTrain"], "it is on its way")
        broken.discard()
        voice.signals.discard(broken)
        await asyncio.sleep(0.05)
        assert not saying.done()
        voice.join(whole)
        await until(lambda: waiting(whole) == ["stopTrain"], "it is said again")
        leaves(whole)
        assert await saying is True

    asyncio.run(main())


def test_whoever_joins_while_a_signal_is_on_its_way_counts_as_heard() -> None:
    async def main() -> None:
        voice, broken, late = Voice("job", returning=False), Outbox[Any](), Outbox[Any]()
        voice.join(broken)
        saying = asyncio.ensure_future(voice.deliver(STOP, "u", 1, lambda: True))
        await until(lambda: waiting(broken) == ["stopTrain"], "it is on its way")
        voice.join(late)
        broken.discard()
        leaves(late)
        assert await saying is True

    asyncio.run(main())


def test_an_operation_waits_for_executors_of_a_dead_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.serve.grpc.voice.ENQUEUE", 0.01)

    async def main() -> None:
        voice, late = Voice("job", returning=True), Outbox[Any]()
        saying = asyncio.ensure_future(voice.notify(operations.NIC, REQUEST, lambda: True))
        await asyncio.wait([saying], timeout=0.1)
        assert not saying.done()
        voice.execute(operations.NIC, late)
        await until(lambda: len(late._items) == 1, "it is said")
        late.discard()
        assert await saying is False

    asyncio.run(main())


def test_who_waits_for_clients_is_woken_by_them_and_hardly_looks() -> None:
    """Thousands of jobs wait at once after the death of a server: each may cost next to nothing."""

    async def main() -> None:
        voice, looks, late = Voice("job", returning=True), [0], Outbox[Any]()

        def current() -> bool:
            looks[0] += 1
            return True

        saying = asyncio.ensure_future(voice.deliver(STOP, "u", 1, current))
        await asyncio.wait([saying], timeout=0.6)
        assert not saying.done() and looks[0] <= 4
        voice.join(late)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waiting(late) == ["stopTrain"], "at once"
        late.discard()
        saying.cancel()

    asyncio.run(main())


def test_what_became_void_while_nobody_listened_is_not_said() -> None:
    async def main() -> None:
        voice, current = Voice("job", returning=False), [True]
        saying = asyncio.ensure_future(voice.deliver(STOP, "u", 1, lambda: current[0]))
        await asyncio.sleep(0)
        outbox = Outbox[Any]()
        current[0] = False
        voice.join(outbox)
        assert await saying is False
        assert waiting(outbox) == []

    asyncio.run(main())


def test_an_operation_that_became_void_is_carried_out_by_nobody() -> None:
    """Links must not move in a job whose processes run again: the conversation began anew while nobody listened."""

    async def main() -> None:
        voice, current, late = Voice("job", returning=False), [True], Outbox[Any]()
        saying = asyncio.ensure_future(voice.notify(operations.NIC, REQUEST, lambda: current[0]))
        await asyncio.sleep(0)
        current[0] = False
        voice.execute(operations.NIC, late)
        assert await saying is False
        assert not late._items

    asyncio.run(main())


def test_what_was_lost_with_a_server_waits_for_whoever_lost_the_stream_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model.recovery.words.REPEAT", 0.01)

    async def main() -> None:
        voice, broken, late = Voice("job", returning=True), Outbox[Any](), Outbox[Any]()
        voice.join(broken)
        saying = asyncio.ensure_future(voice.repeat(STOP, 1, lambda: True))
        await asyncio.sleep(0.05)
        broken.discard()
        voice.signals.discard(broken)
        await asyncio.wait([saying], timeout=0.5)
        assert not saying.done()
        voice.join(late)
        await until(lambda: waiting(late) == ["stopTrain"], "it is said to the stream that stands")
        leaves(late)
        assert await saying is True

    asyncio.run(main())


def test_whoever_joins_before_the_outcome_of_a_signal_is_noted_hears_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            client = await Client(server.port, job).join()
            talk = server.desk.talks[job]
            deliver, late = talk.voice.deliver, Outbox[Any](role="agent 1", host="h")

            async def then_somebody_comes(*args: Any) -> bool:
                ok = await deliver(*args)
                await talk.attach(late)
                return ok

            talk.voice.deliver = then_somebody_comes  # type: ignore[method-assign]
            await client.broke(("9", "1"))
            assert (await client.next()).signalType == "stopTrain"
            await until(lambda: talk.conversation.state == "WaitReportStopCompleteState", "it is noted")
            assert waiting(late) == ["stopTrain"]
            await client.close()

    play(tmp_path, story)


def test_those_who_are_not_back_yet_are_not_forgotten_by_the_record(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            client = await Client(server.port, job).join()
            other = await Client(server.port, job, "agent 1").listen()
            talk = server.desk.talks[job]
            await client.broke(("9", "1"))
            await client.next()
            await until(lambda: talk.record.subscribers == 2, "both are counted")
            talk.voice._until = time.monotonic() + 60.0  # as after the death of the server before
            await client.hang_up()
            await other.hang_up()
            await until(lambda: not talk.signals, "nobody is back")
            await client.stopped()
            await until(lambda: talk.conversation.state == "NotifyGlobalFaultState", "it goes on")
            assert talk.record.subscribers == 2
            await client.close()
            await other.close()

    play(tmp_path, story)


def test_what_nobody_was_there_to_hear_is_void_when_its_conversation_is_over(tmp_path: Path) -> None:
    """The processes of a job that starts anew must not be ended by the last word to those before."""

    async def story(world: World) -> None:
        job, now = await world.job(strategy="recover"), Time()
        async with world.server(clock=now) as server:
            client = Client(server.port, job)
            assert (await client.call("Init", client.info)).code == 0
            assert (await client.call("Register", client.info)).code == 0
            talk = server.desk.talks[job]
            talk.voice._until = time.monotonic() + 60.0  # as after the death of the server before
            await world.kube.delete(CONFIGMAP, "reset-config-pretrain", NS)
            await client.broke(("9", "1"))
            await until(lambda: talk.conversation.state == "NotifyKillJobState", "it shall end, and nobody hears it")
            now.pass_by(60)
            await server.desk.pulse()
            await until(lambda: talk.conversation.state == "INIT", "it is over")
            await client.listen()
            await until(lambda: talk.signals, "the processes of the new start listen")
            await until(lambda: talk._worker is None or talk._worker.done(), "nothing is said any more")
            assert client.heard == []
            await client.close()

    play(tmp_path, story)


def test_the_first_client_begins_anew_and_hears_nothing_of_before(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            client = Client(server.port, job)
            assert (await client.call("Init", client.info)).code == 0
            assert (await client.call("Register", client.info)).code == 0
            await client.broke(("9", "1"))
            talk = server.desk.talks[job]
            await until(lambda: talk.conversation.uuid, "training shall stop, and nobody hears it")
            before = talk.conversation.uuid
            await client.listen()
            await until(lambda: talk.signals, "it listens")
            await client.broke(("10", "1"))
            heard = await client.next()
            assert [rank.rankId for rank in heard.faultRanks] == ["10"] and heard.uuid != before
            await client.close()

    play(tmp_path, story)


def test_clients_that_come_at_the_same_time_share_one_conversation(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            first = await Client(server.port, job).join()
            await first.close()
            clients = [Client(server.port, job, f"agent {number}") for number in range(8)]
            await asyncio.gather(*(client.listen() for client in clients))
            talk = server.desk.talks[job]
            await until(lambda: len(talk.signals) == len(clients), "all listen")
            await clients[0].broke(("9", "1"))
            heard = [await client.next() for client in clients]
            assert {signal.uuid for signal in heard} == {talk.conversation.uuid}
            await clients[0].hang_up()  # one of many: the others go on
            await clients[1].stopped()
            assert [(await client.next()).signalType for client in clients[1:]] == ["globalFault"] * 7
            for client in clients:
                await client.close()

    play(tmp_path, story)


def test_a_stream_that_breaks_while_others_come_back_ends_nothing(tmp_path: Path) -> None:
    """Thousands come back to a new server at once; the first of a job may lose its stream again before the second."""

    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            client = await Client(server.port, job).join()
            talk = server.desk.talks[job]
            await client.broke(("9", "1"))
            assert (await client.next()).signalType == "stopTrain"
            before = talk.conversation.uuid
            talk.voice._until = time.monotonic() + 60.0  # as after the death of the server before
            await client.hang_up()
            await until(lambda: not talk.signals, "its stream is gone")
            other = Client(server.port, job, "agent 1")
            await other.listen()
            await until(lambda: talk.signals, "the next one is back")
            assert talk.conversation.uuid == before
            await other.stopped()
            assert (await other.next()).signalType in ("stopTrain", "globalFault")
            await other.close()

    play(tmp_path, story)


def test_a_client_that_hangs_up_while_it_joins_is_not_kept(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            client = await Client(server.port, job).join()
            await client.close()
            talk = server.desk.talks[job]
            await until(lambda: not talk.signals, "it has left")
            outbox = Outbox[Any](role="r", host="h")
            async with talk._lock:  # something is being written
                joining = asyncio.ensure_future(talk.attach(outbox))
                await asyncio.sleep(0)
                outbox.discard()
            await joining
            assert not talk.signals

    play(tmp_path, story)


def test_a_mark_for_a_pod_does_not_meet_the_one_that_replaced_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            view = server.cluster.jobs[job]
            await world.replace("pretrain", 1)
            marks = MarkPods(("9",), labels={"fault-type": "software"})
            assert await server.desk.hand.mark_pods(view, marks, 8) is False
            pod = await world.kube.get(POD, "pretrain-worker-1", NS)
            assert pod is not None and "fault-type" not in pod["metadata"].get("labels", {})

    play(tmp_path, story)
