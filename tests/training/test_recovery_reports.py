"""Recoveries that training carries out alone, reported to `belay server`: accounts, Events, numbers."""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from prometheus_client.exposition import generate_latest

from belay.agents.training.train import reporting
from belay.agents.training.train.agent.coordinator_host import CoordinatorHost
from belay.agents.training.train.decide.members import Limits, Recovery
from belay.agents.training.train.reporting import Reporter, reporter
from belay.engine.kube import CONFIGMAP, EVENT
from belay.engine.load import load
from belay.engine.model.history import JobMemory
from belay.engine.model.history import Recovery as Entered
from belay.engine.model.labels import PROCESS_RECOVERIES
from belay.engine.model.public_faults import Influence
from belay.engine.model.recovery import summary
from belay.engine.serve.grpc.recovery.wrong_results import CODE, SENDER
from belay.engine.status.recoveries import recovery_sentences
from belay.engine.wire import publicinfo
from belay.engine.wire.clusterd import recover_pb2_grpc
from belay.engine.wire.training import training_pb2 as pb
from tests.grpc_world import NS, Client, World, play, until


def told(job: str, *, generation: int = 2, age_us: int = 2_000_000, **more: Any) -> pb.Recovery:
    stages = [pb.Stage(name="freed", after_us=9_000), pb.Stage(name="stepped", after_us=61_500)]
    fields = {
        "cause": "rank 9 was killed",
        "ranks": [9],
        "world_size": 16,
        "local_world_size": 8,
        "step": 843,
        "stages": stages,
        **more,
    }
    return pb.Recovery(job_id=job, generation=generation, age_us=age_us, **fields)


async def ask(port: int, request: pb.Recovery) -> pb.Answer:
    client = Client(port, request.job_id)
    try:
        answer: pb.Answer = await client.call("ReportRecovery", request, pb.Answer, "belay.training.v1.Training")
        return answer
    finally:
        await client.channel.close()


def test_a_reported_recovery_becomes_a_summary_an_event_and_metrics_once(tmp_path: Path) -> None:
    async def tale(world: World) -> None:
        async with world.server() as server:
            uid = await world.job()
            await until(lambda: uid in server.cluster.jobs, "the job is known")
            assert (await ask(server.port, told(uid))).info == "taken"
            assert (await ask(server.port, told(uid, age_us=2_100_000))).info == "known"
            assert (await ask(server.port, told(uid, generation=3))).info == "taken"
            first, second = summary.read((await world.marks("pretrain"))[PROCESS_RECOVERIES])
            assert (first.level, first.good, first.pods) == ("process", True, (1,))
            assert [(note.event, note.at - first.begun) for note in first.steps] == [
                ("fault", 0), ("freed", 9), ("stepped", 61),
            ]  # fmt: skip
            assert second.begun > first.begun
            events = [one for one in (await world.kube.list(EVENT, NS)).items if one["reason"] == "TrainingRecovered"]
            assert {one["involvedObject"]["uid"] for one in events} == {uid}
            assert "rank 9 of 16 lost (rank 9 was killed): training goes on at step 843" in events[0]["message"]
            numbers = generate_latest(server.training.metrics).decode()
            assert 'belay_training_recovery_seconds_count{stage="stepped"} 2.0' in numbers
            assert f'belay_training_ranks_lost_total{{job="pretrain",namespace="{NS}"}} 2.0' in numbers

    play(tmp_path, tale)


def test_a_chip_that_computed_a_wrong_result_gets_a_fault_that_a_policy_grades(tmp_path: Path) -> None:
    async def tale(world: World) -> None:
        async with world.server() as server:
            uid = await world.job()
            await until(lambda: uid in server.cluster.jobs, "the job is known")
            cause = "rank 9 on node 1 computed a wrong result: after step 842 its state differs"
            answer = await ask(server.port, told(uid, cause=cause, wrong=[9]))
            assert answer.info == "taken"
            inbox = await world.kube.get(CONFIGMAP, publicinfo.MESSAGES, publicinfo.MESSAGES_NAMESPACE)
            assert inbox is not None
            [message] = publicinfo.parse(inbox).messages
            [fault] = message.faults
            # the second chip of the pod of ranks 8 to 15
            assert (fault.code, fault.influences) == (CODE, (Influence("n1", "", (1,)),))
            [text] = inbox["data"].values()
            assert f"rank 9 of {NS}/pretrain: {cause}" in text

    play(tmp_path, tale)
    table = load({}).desired.tables["public"]
    assert table.code_levels[CODE] == "NotHandleFault" and SENDER in table.spec.senders


def test_wrong_reports_are_refused_by_field_and_change_nothing(tmp_path: Path) -> None:
    bad = {
        "job_id": {"job": ""},
        "stages": {"stages": []},
        "'a b'": {"stages": [pb.Stage(name="a b", after_us=1)]},
        "'late'": {"stages": [pb.Stage(name="late", after_us=3_000_000)]},
        "age_us": {"age_us": 1 << 40},
        "ranks": {"ranks": range(2000)},
    }

    async def tale(world: World) -> None:
        async with world.server() as server:
            uid = await world.job()
            await until(lambda: uid in server.cluster.jobs, "the job is known")
            for word, change in bad.items():
                answer = await ask(server.port, told(str(change.pop("job", uid)), **change))
                assert answer.code == 400 and word in answer.info, (word, answer)
            assert (await ask(server.port, told("no-such-job"))).code == 404
            assert PROCESS_RECOVERIES not in await world.marks("pretrain")

    play(tmp_path, tale)


def test_a_report_waits_for_a_server_that_is_away(tmp_path: Path) -> None:
    async def tale(world: World) -> None:
        async with world.server() as server:
            uid, port = await world.job(), server.port
            await until(lambda: uid in server.cluster.jobs, "the job is known")
        sender = Reporter(uid, 16, 8, f"127.0.0.1:{port}")
        recovery = Recovery("rank 1 was killed", sender._now(), 2, 1.0, step=5, ranks={1})
        recovery.freed = recovery.stepped = recovery.began + 0.001
        sender.put(recovery)
        await asyncio.sleep(0)
        async with world.server(port=port):

            async def kept() -> bool:
                return PROCESS_RECOVERIES in await world.marks("pretrain")

            await until(kept, "the account is kept", 60)
        await asyncio.to_thread(sender.close, 60.0)
        assert sender._thread is not None and not sender._thread.is_alive()

    play(tmp_path, tale)


def test_a_service_without_the_call_is_not_called_again() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    recover_pb2_grpc.add_RecoverServicer_to_server(recover_pb2_grpc.RecoverServicer(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sender = Reporter("job", 2, 2, f"127.0.0.1:{port}")
    recovery = Recovery("x", sender._now(), 2)
    recovery.freed = recovery.began
    sender.put(recovery)
    assert sender._thread is not None
    sender._thread.join(60)
    assert not sender._thread.is_alive()
    server.stop(None)


def test_without_job_or_service_in_the_environment_nothing_is_reported() -> None:
    before = set(threading.enumerate())
    assert reporter({}, 2, 1) is None
    assert reporter({"MINDX_TASK_ID": "j"}, 2, 1) is None
    assert reporter({"MINDX_SERVER_IP": "h"}, 2, 1) is None
    found = reporter({"MINDX_TASK_ID": "j", "MINDX_SERVER_IP": "h"}, 2, 1)
    assert found is not None and found.address == "h:8899"
    assert set(threading.enumerate()) <= before


def test_the_timeline_holds_the_slowest_rank_of_each_stage() -> None:
    kept: list[Recovery] = []
    hub = CoordinatorHost({0: 0, 1: 0}, Limits(), lambda _: None, kept.append)
    hub.node_joined(0, [], 0.0)

    def say(rank: int, inc: int, now: float, kind: str, **fields: Any) -> None:
        hub.take([({"t": "rank", "rank": rank, "inc": inc, "m": {"t": kind, **fields}}, b"")], now)

    for rank in (0, 1):
        say(rank, 1, 1.0, "ready", gen=1, done=0, shard="")
    for rank in (0, 1):
        say(rank, 1, 1.0, "entered", gen=1)
    hub.take([({"t": "progress", "steps": [[0, 1, 5], [1, 1, 5]], "median": 0.02}, b"")], 2.0)
    hub.take([({"t": "lost", "rank": 1, "inc": 1, "why": "was killed"}, b"")], 10.0)
    say(0, 1, 10.01, "ready", gen=2, done=5, shard="")
    say(1, 2, 10.03, "ready", gen=2, done=-1, shard="")
    say(0, 1, 10.05, "times", gen=2, planned=0.0, formed=0.01, repaired=0.005)
    say(1, 2, 10.06, "times", gen=2, planned=0.0, formed=0.008, repaired=0.02)
    say(0, 1, 10.06, "entered", gen=2)
    say(1, 2, 10.07, "entered", gen=2)
    hub.take([({"t": "progress", "steps": [], "firsts": [[0, 1, 2, 0.01]], "median": 0.02}, b"")], 10.1)
    assert kept == []
    hub.take([({"t": "progress", "steps": [], "firsts": [[1, 2, 2, 0.0]], "median": 0.02}, b"")], 10.12)
    [one] = kept
    found = {name: round(after, 3) for name, after in reporting.stages(one).items()}
    assert found == {
        "freed": 0.03, "aligned": 0.03, "formed": 0.04, "repaired": 0.058, "entered": 0.07, "stepped": 0.12,
    }  # fmt: skip
    assert one.ranks == {1}


def test_explain_shows_stages_in_milliseconds() -> None:
    steps = ((1_000, "fault", "generation 2", 0), (1_009, "freed", "", 0), (1_061, "stepped", "", 0))
    one = Entered(
        at=1_000, level="process", reason="ProcessesRecovered", codes=(), chips=16, hit=8, back=1_061, steps=steps
    )
    assert recovery_sentences(JobMemory(recoveries=(one,)))[1:] == [
        "  +0.0 s fault → generation 2",
        "  +0.009 s freed",
        "  +0.061 s stepped",
    ]
