"""Clients that join a conversation at the moment in which a signal is sent."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from belay.engine.kube import CONFIGMAP, POD
from belay.engine.model.recovery.conversation import MarkPods, Signal
from belay.engine.serve.grpc.recovery import operations, subscribers
from belay.engine.serve.grpc.recovery.subscribers import Subscribers
from belay.engine.serve.grpc.streams import MessageQueue
from tests.grpc_world import NS, Client, Time, World, play, until

pytestmark = pytest.mark.real_time

STOP = Signal("stopTrain", ("stop_train",), uuid="u")
REQUEST = '{"ranks": ["1"], "ops": [true]}'
FAULT = Signal("globalFault", ("on_global_rank",), uuid="u")


def waiting(outbox: MessageQueue[Any]) -> list[str]:
    return [message.signalType for message, _ in outbox._items]


def leaves(outbox: MessageQueue[Any]) -> None:
    """What waits longest is handed to the connection."""
    _, future = outbox._items.popleft()
    assert future is not None
    future.set_result(True)


@pytest.mark.parametrize("first", [True, False])
def test_a_client_that_joins_during_a_delivery_gets_the_signal_once(first: bool) -> None:
    async def main() -> None:
        subscribers, slow, late = Subscribers("job", returning=False), MessageQueue[Any](), MessageQueue[Any]()
        subscribers.join(slow)
        saying = asyncio.ensure_future(subscribers.deliver(STOP, "u", 1, lambda: True))
        if first:
            subscribers.join(late)  # before anything was handed over
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not first:
            assert waiting(slow) == ["stopTrain"]  # it reads slowly
            subscribers.join(late)
        assert waiting(late) == ["stopTrain"]
        slow.discard()
        late.discard()
        await saying
        after = MessageQueue[Any]()
        subscribers.join(after)
        assert waiting(after) == [], "it was said before this one came"

    asyncio.run(main())


def test_an_executor_that_joins_gets_the_operation_on_its_way() -> None:
    async def main() -> None:
        subscribers, slow, late = Subscribers("job", returning=False), MessageQueue[Any](), MessageQueue[Any]()
        subscribers.join_executors(operations.NIC, slow)
        saying = asyncio.ensure_future(subscribers.notify(operations.NIC, REQUEST, lambda: True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        subscribers.join_executors(operations.NIC, late)
        assert len(late._items) == 1
        slow.discard()
        await saying

    asyncio.run(main())


def test_a_signal_waits_for_clients_of_a_dead_server_also_after_another_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stream broke again in the storm: the next signal has the patience that the first one had."""
    monkeypatch.setattr("belay.engine.serve.grpc.recovery.subscribers.ENQUEUE", 0.01)

    async def main() -> None:
        subscribers, late = Subscribers("job", returning=True), MessageQueue[Any]()
        lost = asyncio.ensure_future(subscribers.repeat(STOP, 1, lambda: False))  # a client has answered it meanwhile
        saying = asyncio.ensure_future(subscribers.deliver(FAULT, "u", 1, lambda: True))
        await lost
        await asyncio.wait([saying], timeout=0.1)
        assert not saying.done()
        subscribers.join(late)
        await until(lambda: waiting(late) == ["globalFault"], "it is said")
        leaves(late)
        assert await saying is True

    asyncio.run(main())


def test_a_signal_whose_stream_broke_is_sent_to_the_next_one() -> None:
    async def main() -> None:
        subscribers, broken, whole = Subscribers("job", returning=True), MessageQueue[Any](), MessageQueue[Any]()
        subscribers.join(broken)
        saying = asyncio.ensure_future(subscribers.deliver(STOP, "u", 1, lambda: True))
        await until(lambda: waiting(broken) == ["stopTrain"], "it is on its way")
        broken.discard()
        subscribers.signals.discard(broken)
        await asyncio.sleep(0.05)
        assert not saying.done()
        subscribers.join(whole)
        await until(lambda: waiting(whole) == ["stopTrain"], "it is said again")
        leaves(whole)
        assert await saying is True

    asyncio.run(main())


def test_a_client_that_joins_during_a_delivery_counts_as_reached() -> None:
    async def main() -> None:
        subscribers, broken, late = Subscribers("job", returning=False), MessageQueue[Any](), MessageQueue[Any]()
        subscribers.join(broken)
        saying = asyncio.ensure_future(subscribers.deliver(STOP, "u", 1, lambda: True))
        await until(lambda: waiting(broken) == ["stopTrain"], "it is on its way")
        subscribers.join(late)
        broken.discard()
        leaves(late)
        assert await saying is True

    asyncio.run(main())


def test_an_operation_waits_for_executors_of_a_dead_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.engine.serve.grpc.recovery.subscribers.ENQUEUE", 0.01)

    async def main() -> None:
        subscribers, late = Subscribers("job", returning=True), MessageQueue[Any]()
        saying = asyncio.ensure_future(subscribers.notify(operations.NIC, REQUEST, lambda: True))
        await asyncio.wait([saying], timeout=0.1)
        assert not saying.done()
        subscribers.join_executors(operations.NIC, late)
        await until(lambda: len(late._items) == 1, "it is said")
        late.discard()
        assert await saying is False

    asyncio.run(main())


def test_waiting_for_clients_ends_with_their_arrival_and_hardly_polls() -> None:
    """Thousands of jobs wait at once after the death of a server: each may cost next to nothing."""

    async def main() -> None:
        subscribers, looks, late = Subscribers("job", returning=True), [0], MessageQueue[Any]()

        def current() -> bool:
            looks[0] += 1
            return True

        saying = asyncio.ensure_future(subscribers.deliver(STOP, "u", 1, current))
        await asyncio.wait([saying], timeout=0.6)
        assert not saying.done() and looks[0] <= 4
        subscribers.join(late)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waiting(late) == ["stopTrain"], "at once"
        late.discard()
        saying.cancel()

    asyncio.run(main())


def test_a_signal_that_became_void_without_subscribers_is_not_sent() -> None:
    async def main() -> None:
        subscribers, current = Subscribers("job", returning=False), [True]
        saying = asyncio.ensure_future(subscribers.deliver(STOP, "u", 1, lambda: current[0]))
        await asyncio.sleep(0)
        outbox = MessageQueue[Any]()
        current[0] = False
        subscribers.join(outbox)
        assert await saying is False
        assert waiting(outbox) == []

    asyncio.run(main())


def test_an_operation_that_became_void_is_not_carried_out() -> None:
    """Links must not move in a job whose processes run again: the conversation restarted without executors."""

    async def main() -> None:
        subscribers, current, late = Subscribers("job", returning=False), [True], MessageQueue[Any]()
        saying = asyncio.ensure_future(subscribers.notify(operations.NIC, REQUEST, lambda: current[0]))
        await asyncio.sleep(0)
        current[0] = False
        subscribers.join_executors(operations.NIC, late)
        assert await saying is False
        assert not late._items

    asyncio.run(main())


def test_a_lost_signal_waits_for_a_client_that_lost_its_stream_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.engine.model.recovery.protocol.REPEAT", 0.01)

    async def main() -> None:
        subscribers, broken, late = Subscribers("job", returning=True), MessageQueue[Any](), MessageQueue[Any]()
        subscribers.join(broken)
        saying = asyncio.ensure_future(subscribers.repeat(STOP, 1, lambda: True))
        await asyncio.sleep(0.05)
        broken.discard()
        subscribers.signals.discard(broken)
        await asyncio.wait([saying], timeout=0.5)
        assert not saying.done()
        subscribers.join(late)
        await until(lambda: waiting(late) == ["stopTrain"], "it is said to the stream that stands")
        leaves(late)
        assert await saying is True

    asyncio.run(main())


def test_a_client_that_joins_before_the_outcome_is_recorded_gets_the_signal(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            client = await Client(server.port, job).join()
            session = server.registry.sessions[job]
            deliver, late = session.subscribers.deliver, MessageQueue[Any](role="agent 1", host="h")

            async def then_somebody_comes(*args: Any) -> bool:
                ok = await deliver(*args)
                await session.attach(late)
                return ok

            session.subscribers.deliver = then_somebody_comes  # type: ignore[method-assign]
            await client.broke(("9", "1"))
            assert (await client.next()).signalType == "stopTrain"
            await until(lambda: session.conversation.state == "WaitReportStopCompleteState", "it is noted")
            assert waiting(late) == ["stopTrain"]
            await client.close()

    play(tmp_path, story)


def test_those_who_are_not_back_yet_are_not_forgotten_by_the_record(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            client = await Client(server.port, job).join()
            other = await Client(server.port, job, "agent 1").listen()
            session = server.registry.sessions[job]
            await client.broke(("9", "1"))
            await client.next()
            await until(lambda: session.record.subscribers == 2, "both are counted")
            session.subscribers._until = time.monotonic() + 60.0  # as after the death of the server before
            await client.hang_up()
            await other.hang_up()
            await until(lambda: not session.signals, "no client is back")
            await client.stopped()
            await until(lambda: session.conversation.state == "NotifyGlobalFaultState", "it goes on")
            assert session.record.subscribers == 2
            await client.close()
            await other.close()

    play(tmp_path, story)


def test_an_unsent_signal_is_void_when_its_conversation_is_over(tmp_path: Path) -> None:
    """The last signal to the processes of a job must not end those of its next start."""

    async def story(world: World) -> None:
        job, now = await world.job(strategy="recover"), Time()
        async with world.server(clock=now) as server:
            client = Client(server.port, job)
            assert (await client.call("Init", client.info)).code == 0
            assert (await client.call("Register", client.info)).code == 0
            session = server.registry.sessions[job]
            session.subscribers._until = time.monotonic() + 60.0  # as after the death of the server before
            await world.kube.delete(CONFIGMAP, "reset-config-pretrain", NS)
            await client.broke(("9", "1"))
            await until(lambda: session.conversation.state == "NotifyKillJobState", "it shall end, without a client")
            now.pass_by(60)
            await server.registry.refresh()
            await until(lambda: session.conversation.state == "INIT", "it is over")
            await client.listen()
            await until(lambda: session.signals, "the processes of the new start listen")
            await until(lambda: session._worker is None or session._worker.done(), "nothing is said any more")
            assert client.heard == []
            await client.close()

    play(tmp_path, story)


def test_the_first_client_restarts_the_conversation_and_gets_no_earlier_signal(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            client = Client(server.port, job)
            assert (await client.call("Init", client.info)).code == 0
            assert (await client.call("Register", client.info)).code == 0
            await client.broke(("9", "1"))
            session = server.registry.sessions[job]
            await until(lambda: session.conversation.uuid, "training shall stop, without a client")
            before = session.conversation.uuid
            await client.listen()
            await until(lambda: session.signals, "it listens")
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
            session = server.registry.sessions[job]
            await until(lambda: len(session.signals) == len(clients), "all listen")
            await clients[0].broke(("9", "1"))
            heard = [await client.next() for client in clients]
            assert {signal.uuid for signal in heard} == {session.conversation.uuid}
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
            session = server.registry.sessions[job]
            await client.broke(("9", "1"))
            assert (await client.next()).signalType == "stopTrain"
            before = session.conversation.uuid
            session.subscribers._until = time.monotonic() + 60.0  # as after the death of the server before
            await client.hang_up()
            await until(lambda: not session.signals, "its stream is gone")
            other = Client(server.port, job, "agent 1")
            await other.listen()
            await until(lambda: session.signals, "the next one is back")
            assert session.conversation.uuid == before
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
            session = server.registry.sessions[job]
            await until(lambda: not session.signals, "it has left")
            outbox = MessageQueue[Any](role="r", host="h")
            async with session._lock:  # something is being written
                joining = asyncio.ensure_future(session.attach(outbox))
                await asyncio.sleep(0)
                outbox.discard()
            await joining
            assert not session.signals

    play(tmp_path, story)


def test_a_mark_for_a_pod_does_not_meet_the_one_that_replaced_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            view = server.cluster.jobs[job]
            await world.replace("pretrain", 1)
            marks = MarkPods(("9",), labels={"fault-type": "software"})
            assert await server.registry.writer.mark_pods(view, marks, 8) is False
            pod = await world.kube.get(POD, "pretrain-worker-1", NS)
            assert pod is not None and "fault-type" not in pod["metadata"].get("labels", {})

    play(tmp_path, story)


def test_a_new_stream_replaces_that_of_its_role_and_address(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        left = {
            "reset.json": '{"RankList":[{"RankId":9,"Status":"fault"}],"RetryTime":2}',
            "restartType": "podReschedule",
        }
        await world.kube.patch(CONFIGMAP, "reset-config-pretrain", {"data": left}, NS)
        async with world.server() as server:
            first, agent = await Client(server.port, job).join(), await Client(server.port, job, "agent").listen()

            async def cleared() -> bool:
                found = await world.config_map("reset-config-pretrain")
                data = (found or {})["data"]
                return "restartType" not in data and json.loads(data["reset.json"])["RankList"] == []

            await until(cleared, "faults from before its time concern no process")
            assert (await world.reset_json("pretrain"))["RetryTime"] == 2
            second = await Client(server.port, job).listen()
            await until(lambda: first.ended, "the older stream ends")
            assert not agent.ended
            await second.broke(("9", "1"))
            assert (await second.next()).uuid == (await agent.next()).uuid
            assert first.heard == []
            for client in (first, second, agent):
                await client.close()

    play(tmp_path, story)


def test_the_next_fault_waits_for_clients_whose_streams_ended_with_a_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribers, "ENQUEUE", 0.01)

    async def story(world: World) -> None:
        job = await world.job(strategy="retry")
        async with world.server() as server:
            master, agent = await Client(server.port, job).join(), await Client(server.port, job, "agent").listen()
            await master.broke(("9", "0"))
            await master.next()
            await master.stopped()
            await master.next()
            await master.offers("retry")
            await master.next()
            await master.done("retry")
            await until(lambda: master.ended and agent.ended, "the streams end with their conversation")
            agent.heard.clear()
            session = server.registry.sessions[job]
            assert session.subscribers.returning
            await master.broke(("10", "1"))
            await until(lambda: session.conversation.state == "NotifyStopTrainState", "training shall stop")
            await asyncio.sleep(0.05)  # longer than a signal waits for a stream
            await agent.listen()
            await master.listen()
            for client in (agent, master):
                heard = await client.next()
                while heard.signalType != "stopTrain":
                    heard = await client.next()
                assert [rank.rankId for rank in heard.faultRanks] == ["10"]
            await until(lambda: not session.subscribers.returning, "all are back")
            for client in (master, agent):
                await client.close()

    play(tmp_path, story)
