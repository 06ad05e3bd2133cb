"""Golden conversations over real gRPC on loopback: what training processes receive, and what is left in the cluster."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from belay.engine.kube import EVENT, NODE, POD
from belay.engine.model.labels import PROCESS_RECOVERIES
from belay.engine.plan import plan
from belay.engine.serve.grpc.server import GrpcServer
from belay.engine.wire.clusterd import recover_pb2 as pb
from tests.grpc_world import NS, POD_GROUP, Client, Time, World, play, until
from tests.worlds import desired

WORKER = ",".join(f"{rank}:1" for rank in range(8, 16))
"""Every rank of the second pod: its processes leave together when one of them is lost."""


def short(signal: pb.ProcessManageSignal) -> str:
    parts = [signal.signalType, "+".join(signal.actions), signal.changeStrategy, signal.extraParams]
    parts += [f"nodes={','.join(signal.nodeRankIds)}"] if signal.nodeRankIds else []
    parts += [f"ranks={','.join(f'{r.rankId}:{r.faultType}' for r in signal.faultRanks)}"] if signal.faultRanks else []
    parts += [f"timeout={signal.timeout}"] if signal.timeout else []
    return " ".join(part for part in parts if part)


def test_a_process_fault_is_recovered_with_new_pods(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job(strategy="recover")
        async with world.server() as server:
            client = await Client(server.port, job).join()
            answer = await client.broke(("9", "1"))
            assert (answer.code, answer.info) == (0, "receive ReportProcessFault")
            stop = await client.next()
            assert short(stop) == "stopTrain stop_train ranks=9:1"
            assert (await world.reset_json("pretrain"))["FaultFlushing"] is True
            answer = await client.stopped()
            about = f"jobId={job}, uuid={stop.uuid}"
            assert (answer.code, answer.info) == (0, f"{about}, receive ReportStopComplete")
            heard = await client.next()
            assert short(heard) == f"globalFault on_global_rank+fault_nodes_exit nodes=1 ranks={WORKER}"
            assert heard.uuid == stop.uuid
            assert re.fullmatch("[0-9A-F]{16}-[0-9a-f]{32}", stop.uuid)
            body = await world.reset_json("pretrain")
            assert [row["RankId"] for row in body["RankList"]] == list(range(8, 16))
            assert (body["FaultFlushing"], body["RestartFaultProcess"]) == (False, False)
            pod = await world.kube.get(POD, "pretrain-worker-1", "train")
            assert pod is not None and pod["metadata"]["labels"]["fault-type"] == "software"
            await client.offers("recover", "dump", "exit")
            assert short(await client.next()) == f"changeStrategy change_strategy recover nodes=1 ranks={WORKER}"
            await world.replace("pretrain", 1)
            await until(lambda: cleared(world), "the reset ConfigMap is cleared")
            assert (await client.done("recover")).info == f"{about}, receive ReportRecoverStatus"
            await until(lambda: annotated(world, "recover-success"), "the outcome is annotated")
            await until(lambda: client.ended, "the stream ends with its conversation")
            await until(lambda: gone(world), "nothing is kept")
            await until(lambda: told(world), "an Event reports it")
            await client.close()

    play(tmp_path, story)


async def cleared(world: World) -> bool:
    return not (await world.reset_json("pretrain"))["RankList"]


async def annotated(world: World, value: str) -> bool:
    return (await world.group("pretrain"))["metadata"]["annotations"].get("ProcessRecoverStatus") == value


async def told(world: World) -> bool:
    events = (await world.kube.list(EVENT, NS)).items
    return any(one["reason"] == "ProcessRecovered" and "NotifyGlobalFault" in one["message"] for one in events)


async def gone(world: World) -> bool:
    return not await world.records()


class Play:
    """One job, one client, a clock that the test moves; `heard` are received signals in short."""

    def __init__(self, world: World, server: GrpcServer, client: Client, time: Time) -> None:
        self.world, self.server, self.client, self.time = world, server, client, time

    async def hears(self, *signals: str) -> None:
        for expected in signals:
            assert short(await self.client.next()) == expected

    async def after(self, seconds: float) -> None:
        self.time.pass_by(seconds)
        await self.server.registry.refresh()

    async def waits_for(self, state: str) -> None:
        await until(lambda: self.state == state, f"{state}, it is {self.state}")

    @property
    def state(self) -> str:
        session = self.server.registry.find(self.client.job)
        assert session is not None
        return session.conversation.state.value

    async def marks(self, kind: str, key: str) -> str:
        return str((await self.world.group("pretrain"))["metadata"].get(kind, {}).get(key, ""))

    async def settled(self, status: str) -> None:
        async def told() -> bool:
            return await self.marks("annotations", "ProcessRecoverStatus") == status

        await until(told, f"ProcessRecoverStatus={status}")
        await self.waits_for("INIT")

    async def decided(self, *offers: str) -> None:
        """The way from a fault to the decision: the client stops and offers."""
        await self.client.stopped()
        await self.waits_for("WaitFaultFlushFinishedState")
        await self.after(1)
        await self.client.next()
        await self.client.offers(*offers)


def conversation(folder: Path, story: Callable[[Play], Awaitable[None]], **job: Any) -> None:
    async def whole(world: World) -> None:
        name = await world.job(**job)
        time = Time()
        async with world.server(clock=time) as server:
            client = await Client(server.port, name).join()
            try:
                await story(Play(world, server, client, time))
            finally:
                await client.close()

    play(folder, whole)


def test_a_broken_chip_gives_its_processes_time_to_speak_then_begins(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.world.report("n1", bad={3: ("80C98001", "RestartNPU")}, at=at.time())
        await until(lambda: at.server.registry.sessions[at.client.job].conversation.ranks, "the fault is known")
        assert (at.state, at.client.heard) == ("INIT", [])
        await at.after(10)
        await at.hears("preExitProcess pre exit process nodes=1 ranks=11:1")
        await at.after(60)
        await at.hears("stopTrain stop_train ranks=11:1")
        await at.decided("dump", "exit")
        await at.hears(f"changeStrategy change_strategy dump nodes=1 ranks={WORKER}")
        await at.client.done("dump")
        await at.hears("changeStrategy change_strategy exit dump_exit nodes=1")
        assert await at.marks("annotations", "ProcessRecoverStatus") == "dump-success"
        await at.waits_for("ListenScheduleResultState")
        await at.after(15)
        await at.waits_for("ListenScheduleResultState")  # it runs with the pods that broke: they may still be replaced
        await at.after(5)
        await at.waits_for("WaitRestartAllProcessState")
        assert (await at.world.reset_json("pretrain"))["RetryTime"] == 1
        await at.after(60)
        await at.hears("changeStrategy change_strategy exit dump_exit nodes=1")
        assert await at.marks("labels", "process-recover-enable") == "pause"
        await at.after(5)
        await at.waits_for("INIT")
        assert await at.marks("labels", "process-recover-enable") == "on"
        # the same fault is still reported and starts nothing again
        await at.after(30)
        assert at.client.heard == []

    conversation(tmp_path, story)


def test_a_new_time_limit_wakes_the_loop_that_checks_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int | None] = []

    async def story(at: Play) -> None:
        session = at.server.registry.sessions[at.client.job]
        await at.world.report("n1", bad={3: ("80C98001", "RestartNPU")}, at=at.time())
        await until(lambda: session.conversation.ranks, "the fault is known")
        await at.after(10)
        await at.hears("preExitProcess pre exit process nodes=1 ranks=11:1")
        await at.after(60)
        await at.hears("stopTrain stop_train ranks=11:1")
        monkeypatch.setattr(at.server.registry, "wake", lambda: woken.append(session.due))
        await at.client.stopped()
        await at.waits_for("WaitFaultFlushFinishedState")
        assert woken[-1] == at.time() + 200

    conversation(tmp_path, story)


def test_a_memory_fault_is_retried_in_the_step(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.world.report("n0", bad={2: ("80E01801", "RestartRequest")}, at=at.time())
        await at.hears("stopTrain stop_train ranks=2:0")
        await at.client.stopped()
        await at.hears("globalFault on_global_rank ranks=2:0")
        assert (await at.world.reset_json("pretrain"))["RankList"] == []
        await at.client.offers("retry", "recover", "exit")
        await at.hears("changeStrategy change_strategy retry nodes=0 ranks=2:0")
        await at.client.done("retry")
        await at.settled("retry-success")

        async def told() -> bool:
            notes = [await at.marks("annotations", f"belay.dev/step-{word}") for word in ("retry", "retried")]
            return notes == [f"{at.time()}:2", str(at.time())]

        await until(told, "the planner gets the retry and its end")

    conversation(tmp_path, story, strategy="retry,recover")


def test_a_retry_enters_the_ledger_of_training_time(tmp_path: Path) -> None:
    """From the report of the processes over the PodGroup's account to the planner's memory of the job."""

    async def story(at: Play) -> None:
        await at.client.broke(("2", "0"))
        await at.hears("stopTrain stop_train ranks=2:0")
        await at.client.stopped()
        await at.hears("globalFault on_global_rank ranks=2:0")
        await at.client.offers("retry", "exit")
        await at.hears("changeStrategy change_strategy retry nodes=0 ranks=2:0")
        at.time.pass_by(9)
        await at.client.done("retry")
        await at.settled("retry-success")
        cluster = at.server.cluster

        def told() -> bool:
            view = cluster.jobs.get(at.client.job)
            return view is not None and PROCESS_RECOVERIES in view.annotations

        await until(told, "the account is on the PodGroup")
        made = plan(desired(), cluster.observed, at.time() / 1000)
        (row,) = made.history.jobs["train/AscendJob/pretrain"].recoveries
        assert (row.level, row.codes, row.chips, row.hit) == ("retry", ("80E01801",), 16, 8)
        assert row.back - row.at == 9000 and row.steps[-1][1:] == ("recoverSuccess", "INIT", 0)

    conversation(tmp_path, story, strategy="retry,exit")


def test_a_lost_link_waits_for_routes_before_the_retry(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.client.broke(("2", "2"), ("9", "2"))
        await at.hears("stopTrain stop_train ranks=2:2,9:2")
        await at.client.stopped()
        await at.hears("globalFault on_global_rank ranks=2:2,9:2 timeout=33")
        await at.client.offers("retry", "exit")
        await at.after(2)
        assert at.client.heard == []
        await at.after(1)
        await at.hears("changeStrategy change_strategy retry nodes=0,1 ranks=2:2,9:2")
        await at.client.done("retry", 406)
        await at.waits_for("ListenScheduleResultState")  # no recover is offered any more: exit

    conversation(tmp_path, story, strategy="retry")


def test_a_lost_node_is_reported_by_the_surviving_processes(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.world.ready("n1", False)
        await until(lambda: not at.server.cluster.observed.nodes["n1"].ready, "the node is lost")
        await at.after(70)
        assert (at.state, at.client.heard) == ("INIT", [])
        await at.client.broke(*((str(rank), "1") for rank in range(8, 16)))
        await at.hears("stopTrain stop_train ranks=" + ",".join(f"{rank}:1" for rank in range(8, 16)))
        await at.decided("recover", "exit")
        ranks = ",".join(f"{rank}:1" for rank in range(8, 16))
        await at.hears(f"changeStrategy change_strategy recover nodes=1 ranks={ranks}")
        await at.waits_for("WaitReportProcessRecoverStatusState")
        await at.after(270)
        await at.hears("changeStrategy change_strategy exit dump_exit nodes=1")  # nothing replaced it in time
        await at.waits_for("FaultRetryState")
        await at.world.replace("pretrain", 1, node="n0")
        await at.after(5)
        await at.waits_for("INIT")
        assert await at.marks("labels", "process-recover-enable") == "on"

    conversation(tmp_path, story)


def test_processes_restart_in_their_pods(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.client.broke(("9", "1"))
        await at.hears("stopTrain stop_train ranks=9:1")
        await at.client.stopped()
        await at.waits_for("WaitFaultFlushFinishedState")
        await at.after(1)
        await at.hears("globalFault on_global_rank+fault_nodes_exit ranks=9:1")
        assert (await at.world.reset_json("pretrain"))["RestartFaultProcess"] is True
        await at.client.offers("recover", "exit")
        await at.hears("changeStrategy change_strategy+fault_nodes_restart recover recover-in-place nodes=1 ranks=9:1")
        pod = await at.world.kube.get(POD, "pretrain-worker-1", NS)
        assert pod is not None and "fault-type" not in pod["metadata"].get("labels", {})  # it stays
        await at.client.done("recover")
        await at.settled("recover-success")

    conversation(tmp_path, story, strategy="recover-in-place,recover")


def test_pods_that_were_to_stay_are_replaced_when_a_chip_breaks_meanwhile(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.client.broke(("9", "1"))
        await at.hears("stopTrain stop_train ranks=9:1")
        await at.world.report("n0", bad={2: ("80C98001", "RestartNPU")}, at=at.time())
        await until(
            lambda: len(at.server.registry.sessions[at.client.job].conversation.ranks) == 2, "both faults are known"
        )
        await at.client.stopped()
        await at.waits_for("WaitFaultFlushFinishedState")
        await at.after(1)
        heard = await at.client.next()
        assert (heard.signalType, list(heard.nodeRankIds)) == ("globalFault", ["0", "1"])

        async def marked() -> bool:
            pod = await at.world.kube.get(POD, "pretrain-worker-1", NS)
            return pod is not None and pod["metadata"].get("labels", {}).get("fault-type") == "software"

        await until(marked, "the planner learns that the pod leaves")

    conversation(tmp_path, story, strategy="recover-in-place,recover")


def test_a_platform_takes_part(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        world, group = at.world, f"pretrain-{at.client.job}"

        async def platform(**notes: str) -> None:
            await world.kube.patch(POD_GROUP, group, {"metadata": {"annotations": notes}}, NS)
            key, value = next(iter(notes.items()))
            await until(lambda: at.server.cluster.jobs[at.client.job].annotations.get(key) == value, "it is seen")
            await at.server.registry.refresh()

        await at.client.broke(("9", "1"))
        await at.after(30)
        assert (at.state, at.client.heard) == ("NotifyWaitFaultFlushingState", [])
        await platform(ProcessRecoverStrategy="recover")
        await at.hears("stopTrain stop_train ranks=9:1")
        await at.client.stopped()
        await at.waits_for("WaitFaultFlushFinishedState")
        await at.after(1)
        await until(lambda: at.marks("annotations", "ProcessConfirmFault"), "the faults are handed over")
        assert await at.marks("annotations", "ProcessConfirmFault") == "9:1"
        await platform(ProcessResultFault="9:1,10:1")
        await at.hears(f"globalFault on_global_rank+fault_nodes_exit nodes=1 ranks={WORKER}")
        await at.client.offers("recover", "exit")
        await at.after(10)
        assert at.client.heard == []
        await platform(RankTableReady="true")
        await at.hears(f"changeStrategy change_strategy recover nodes=1 ranks={WORKER}")

    conversation(tmp_path, story, notes={"ProcessRecoverStrategy": ""})


def test_a_platform_that_never_decides_leaves_the_job_to_rescheduling(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.client.broke(("9", "1"))
        await at.waits_for("NotifyWaitFaultFlushingState")
        await at.after(300)
        await at.hears("changeStrategy change_strategy exit dump_exit nodes=1")
        assert await at.marks("labels", "process-recover-enable") == "pause"

    conversation(tmp_path, story, notes={"ProcessRecoverStrategy": ""})


def test_a_client_that_never_reports_costs_a_quarter_of_an_hour(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.client.broke(("9", "1"))
        await at.hears("stopTrain stop_train ranks=9:1")
        await at.waits_for("WaitReportStopCompleteState")
        await at.after(899)
        assert at.state == "WaitReportStopCompleteState"
        await at.after(1)
        await at.hears("changeStrategy change_strategy exit dump_exit nodes=1")
        assert (await at.world.reset_json("pretrain"))["FaultFlushing"] is False
        await at.after(135)
        await at.waits_for("INIT")

    conversation(tmp_path, story)


def test_a_job_whose_clients_go_with_its_pods_is_taken_back_when_it_runs(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.client.broke(("9", "1"))
        await at.hears("stopTrain stop_train ranks=9:1")
        await at.waits_for("WaitReportStopCompleteState")
        await at.after(900)
        await at.hears("changeStrategy change_strategy exit dump_exit nodes=1")
        assert await at.marks("labels", "process-recover-enable") == "pause"
        await at.client.hang_up()
        await at.waits_for("INIT")
        await at.client.join()
        await until(lambda: at.server.cluster.jobs[at.client.job].labels["process-recover-enable"] == "pause", "seen")
        await at.after(5)

        async def taken_back() -> bool:
            return await at.marks("labels", "process-recover-enable") == "on"

        await until(taken_back, "it is taken back")
        await until(lambda: at.server.cluster.jobs[at.client.job].labels["process-recover-enable"] == "on", "seen")
        await at.after(5)
        await until(lambda: gone(at.world), "nothing is kept")

    conversation(tmp_path, story)


def test_no_process_is_linked_when_training_shall_stop(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.client.broke(("9", "1"))
        await at.hears("stopTrain stop_train ranks=9:1")
        await at.client.stopped(404)
        await at.hears("killMaster")
        await at.waits_for("INIT")

    conversation(tmp_path, story)


def test_without_its_reset_config_map_a_job_is_killed(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.client.broke(("9", "1"))
        await at.hears("killMaster")
        await at.waits_for("INIT")
        session = at.server.registry.last_conversations[at.client.job]
        assert 501 in [note.code for note in session.story]

    conversation(tmp_path, story, reset=False)


def test_links_are_moved_and_the_operator_learns_of_it(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        client, job = at.client, at.client.job
        await at.world.report("n1", super_pod=0)
        await until(lambda: at.server.cluster.observed.reports["n1"].super_pod_id == 0, "the report is seen")
        executor = client.stream("SubscribeNotifySwitch", client.info, pb.SwitchRankList)
        await executor.initial_metadata()
        request = pb.SwitchNics(jobID=job, nicOps={"n1": pb.DeviceList(dev=["1", "3"], op=[True, False])})
        answer = await client.call("SwitchNicTrack", request)
        assert (answer.code, answer.info) == (0, "switching operation was successfully distributed")
        answer = await client.call("SwitchNicTrack", request)
        assert (answer.code, answer.info) == (411, f"jobId={job} nic is swtiching, or job recovering")
        result = client.stream("SubscribeSwitchNicSignal", pb.SwitchNicRequest(jobID=job), pb.SwitchNicResponse)
        await at.hears("stopTrain pause_train")
        await client.stopped()
        order = await executor.read()
        assert (list(order.rankID), list(order.op), order.jobId) == (["9", "11"], [True, False], job)
        assert (await client.call("ReplySwitchNicResult", pb.SwitchResult(jobId=job, result=True))).code == 0
        await at.hears("changeStrategy change_strategy continue")
        await client.done("continue")
        assert (await result.read()).msg == "switch nic finish"
        assert await result.read() is grpc.aio.EOF
        await at.waits_for("INIT")

    conversation(tmp_path, story)


def test_what_a_stress_test_makes_chips_report_does_not_end_it(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        client, job = at.client, at.client.job
        executor = client.stream("SubscribeNotifyExecStressTest", client.info, pb.StressTestRankParams)
        await executor.initial_metadata()
        request = pb.StressTestParam(jobID=job, stressParam={"n1": pb.StressOpList(ops=[0])})
        assert (await client.call("StressTest", request)).code == 0
        await at.hears("stopTrain pause_train timeout=900")
        await client.stopped()
        await executor.read()
        await at.waits_for("WaitStressTestFinishedState")
        await at.world.report("n1", bad={3: ("80818C05", "SeparateNPU")}, at=at.time())
        await until(lambda: at.server.cluster.observed.reports["n1"].faults, "the report is seen")
        await at.after(1)
        assert at.state == "WaitStressTestFinishedState"
        await at.world.report("n0", bad={3: ("80818C05", "SeparateNPU")}, at=at.time())  # not under test
        await at.waits_for("WaitReportStopCompleteState")
        recovery = at.server.registry.sessions[job].conversation
        assert "3" in [rank.rank for rank in recovery.ranks]  # faults of chips that were tested follow

    conversation(tmp_path, story)


def test_an_operator_waits_for_a_bounded_time(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        client, job = at.client, at.client.job
        request = pb.StressTestParam(jobID=job, stressParam={"n1": pb.StressOpList(ops=[0])})
        assert (await client.call("StressTest", request)).code == 0
        at.server._recover._patience = 0.1
        asked = pb.StressTestRequest(jobID=job)
        result = client.stream("SubscribeStressTestResponse", asked, pb.StressTestResponse)
        assert (await result.read()).msg == "report stress test result timeout, please check manually"
        assert await result.read() is grpc.aio.EOF
        at.server._recover._patience = 60.0
        again = client.stream("SubscribeStressTestResponse", asked, pb.StressTestResponse)
        await again.initial_metadata()
        await at.after(900)
        assert (await again.read()).msg == "pause train timeout"

    conversation(tmp_path, story)


def test_a_chip_that_is_merely_sub_healthy_does_not_leave_with_one_that_broke(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.world.report("n0", bad={2: ("80C98009", "SubHealthFault")}, at=at.time())
        await at.world.report("n1", bad={1: ("80C98001", "RestartNPU")}, at=at.time())

        def session() -> Any:
            return at.server.registry.sessions[at.client.job].conversation

        await until(lambda: session().ranks, "the broken chip is known")
        assert [rank.rank for rank in session().ranks] == ["9"]
        await at.world.report("n1", bad={}, at=at.time())
        await until(lambda: not session().seen, "only the other is left")
        assert [rank.rank for rank in session().ranks] == ["9"]

    conversation(tmp_path, story)


def test_a_stress_test_that_finds_a_fault_isolates_the_node_and_recovers(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        client, job = at.client, at.client.job
        executor = client.stream("SubscribeNotifyExecStressTest", client.info, pb.StressTestRankParams)
        await executor.initial_metadata()
        request = pb.StressTestParam(jobID=job, stressParam={"n1": pb.StressOpList(ops=[0, 1])})
        answer = await client.call("StressTest", request)
        assert (answer.code, answer.info) == (0, "stress test operation was successfully distributed")
        result = client.stream("SubscribeStressTestResponse", pb.StressTestRequest(jobID=job), pb.StressTestResponse)
        await at.hears("stopTrain pause_train timeout=900")
        await client.stopped()
        order = await executor.read()
        assert {rank: list(row.ops) for rank, row in order.stressParam.items()} == {
            str(rank): [0, 1] for rank in range(8, 16)
        }
        bad = pb.StressTestRankResult(rankResult={"0": pb.StressTestOpResult(code="2", result="aic fault")})
        good = pb.StressTestRankResult(rankResult={"0": pb.StressTestOpResult(code="0", result="ok")})
        reply = pb.StressTestResult(jobId=job, stressResult={"8": good, "9": bad})
        assert (await client.call("ReplyStressTestResult", reply)).info == "reply success"
        message = await result.read()
        assert message.msg.startswith('stress test find fault, isolate node:[n1],result:{"8":')
        ranks = ",".join(f"{rank}:1" for rank in range(8, 16))
        await at.hears(f"stopTrain stop_train ranks={ranks}")
        node = await at.world.kube.get(NODE, "n1")
        assert node is not None and node["metadata"]["annotations"]["NodeHealthyStatus"] == "UnHealthy"

    conversation(tmp_path, story)


HOT = {"subHealthyStrategy": "hotSwitch"}


async def sub_healthy(at: Play) -> None:
    await at.world.report("n1", bad={3: ("80C98009", "SubHealthFault")}, at=at.time())
    await at.hears(f"hot-switch hot switch ranks={WORKER}")
    await until(lambda: noted(at, "needOperatorOpe", "create"), "a backup is asked for")


async def noted(at: Play, key: str, value: str) -> bool:
    pod = await at.world.kube.get(POD, "pretrain-worker-1", NS)
    return pod is not None and pod["metadata"]["annotations"].get(key) == value


def test_a_sub_healthy_pod_is_switched_to_its_backup(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await sub_healthy(at)
        notes = {"podType": "backup", "backupSourcePodName": "pretrain-worker-1", "inHotSwitchFlow": "true"}
        await at.world.node("n2")
        await at.world.pod("pretrain", 1, notes=notes, name="pretrain-worker-1-hot", node="n2")
        await at.hears(f"hot-switch new pod running ranks={WORKER}")
        await at.client.offers("migration", "exit")
        await until(lambda: noted(at, "needVolcanoOpe", "delete"), "the old pod is given up")
        await at.world.kube.delete(POD, "pretrain-worker-1", NS, grace=0)
        await at.hears(f"changeStrategy change_strategy migration ranks={WORKER}")
        await at.client.done("migration")
        await at.waits_for("INIT")
        await until(lambda: nothing(at), "nothing is kept")

    conversation(tmp_path, story, labels=HOT)


async def nothing(at: Play) -> bool:
    return not await at.world.records()


def test_a_backup_that_never_runs_ends_hot_switches_for_the_job(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await sub_healthy(at)
        notes = {"podType": "backup", "backupSourcePodName": "pretrain-worker-1"}
        await at.world.node("n2")
        await at.world.pod("pretrain", 1, notes=notes, name="pretrain-worker-1-hot", node="n2", running=False)
        await until(lambda: at.server.cluster.jobs[at.client.job].backups, "the backup is seen")
        await at.after(60)
        await at.hears(f"hot-switch stop switch ranks={WORKER}")
        await at.waits_for("INIT")

        async def called_off() -> bool:
            backup = await at.world.kube.get(POD, "pretrain-worker-1-hot", NS)
            assert backup is not None
            return backup["metadata"]["annotations"].get("needOperatorOpe") == "delete"

        await until(called_off, "the backup is called off")
        assert not await noted(at, "inHotSwitchFlow", "true")
        await at.after(120)
        assert (at.state, at.client.heard) == ("INIT", [])  # degraded to ignore

    conversation(tmp_path, story, labels=HOT)


def test_a_smaller_job_grows_again(tmp_path: Path) -> None:
    async def story(at: Play) -> None:
        await at.client.broke(("9", "1"))
        await at.hears("stopTrain stop_train ranks=9:1")
        await at.world.kube.delete(POD, "pretrain-worker-1", NS, grace=0)
        await until(lambda: len(at.server.cluster.jobs[at.client.job].pods) == 1, "the pod is gone")
        await at.decided("downgrade", "exit")
        await at.waits_for("NotifyDecidedStrategyState")
        await at.after(20)
        await at.hears(f'changeStrategy change_strategy downgrade {{"scale-in-strategy": "DP"}} nodes=1 ranks={WORKER}')
        await at.client.done("downgrade", 201, ("8", "9"))
        await at.hears("faultNodesExit fault_nodes_exit nodes=1")
        await at.client.done("downgrade")
        await at.waits_for("ScaleRunningState")
        await at.world.pod("pretrain", 1)
        await until(lambda: at.server.cluster.jobs[at.client.job].running, "the pod is back")
        await at.after(5)
        await at.hears(f'changeStrategy change_strategy upgrade {{"scale-out-strategy": "DP"}} nodes=1 ranks={WORKER}')
        await at.client.done("upgrade")
        await at.waits_for("INIT")

    conversation(tmp_path, story, strategy="elastic-training")


def test_it_works_in_a_cluster_without_pod_groups(tmp_path: Path) -> None:
    async def whole(world: World) -> None:
        name = await world.job(strategy="recover")
        async with world.server() as server:
            client = await Client(server.port, name).join()
            await client.broke(("9", "1"))
            assert short(await client.next()) == "stopTrain stop_train ranks=9:1"
            pod = await world.kube.get(POD, "pretrain-worker-0", NS)
            assert pod is not None and pod["metadata"]["annotations"]["belay.dev/process-recovery"] == "registered"
            await client.close()

    play(tmp_path, whole, pod_groups=False)
