"""Each RPC's rules: codes, texts, limits, as MindCluster's clients know them; over real gRPC on loopback."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import msgspec
import pytest

from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP, POD
from belay.engine.model.cluster import ChipFault, NodeDevice, NodeReport
from belay.engine.model.fault_subscriptions import NO_SUBSCRIPTIONS, FaultSubscriptions
from belay.engine.model.recovery import FaultyRank
from belay.engine.observe.observed import observe
from belay.engine.serve.grpc import fault_view
from belay.engine.serve.grpc.jobs import MAX_NPUS, signal
from belay.engine.serve.grpc.limits import Connections, Rates, TokenBucket
from belay.engine.serve.grpc.publishers import Publisher, Publishers
from belay.engine.serve.grpc.recovery.service import _ranks
from belay.engine.serve.grpc.server import where
from belay.engine.serve.grpc.streams import MessageQueue
from belay.engine.serve.grpc.subscribers import SubscribersRecord
from belay.engine.settings import Settings
from belay.engine.status.summaries import JobSummary
from belay.engine.wire import names, publicinfo
from belay.engine.wire.clusterd import config_pb2, fault_pb2, job_pb2, profiling_pb2, pubfault_pb2
from belay.engine.wire.clusterd import recover_pb2 as pb
from belay.engine.wire.deviceinfo import parse
from tests.grpc_world import NS, POD_GROUP, Client, Time, World, play, until
from tests.worlds import device_report

NOW_MS = 1_788_249_600_000


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    """The error of a call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    return caught.value.code(), caught.value.details() or ""


def test_init_and_register_in_their_order(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job()
        off = await world.job("off", labels={"process-recover-enable": "off"}, nodes=False)
        hot = await world.job(
            "hot", labels={"process-recover-enable": "", "subHealthyStrategy": "hotSwitch"}, nodes=False
        )
        async with world.server() as server:
            for name, code, info in (
                ("absent", 502, ""),
                (off, 403, ""),
                (hot, 0, f"job(uid={hot}) init success"),
            ):
                client = Client(server.port, name)
                answer = await client.call("Init", client.info)
                assert (answer.code, not info or answer.info == info) == (code, True), answer
                await client.close()
            client = Client(server.port, job)
            answer = await client.call("Register", client.info)
            assert (answer.code, answer.info) == (408, f"jobId={job} not inited")
            for _ in range(2):
                answer = await client.call("Init", client.info)
                assert (answer.code, answer.info) == (0, f"job(uid={job}) init success")
            assert (await refused(client.stream("SubscribeProcessManageSignal", client.info)))[
                1
            ] == f"jobId={job} not registed"
            for name in ("Stop", "Strategy", "Status", "Fault"):
                answer = await report(client, name)
                assert (answer.code, answer.info) == (400, f"jobId={job} not registed"), name
            for _ in range(2):
                answer = await client.call("Register", client.info)
                assert (answer.code, answer.info) == (0, "register success")
            labels = (await world.group("pretrain"))["metadata"]["labels"]
            assert labels["process-recover-enable"] == "on"
            assert (await client.call("HealthCheck", client.info)).code == 0
            server.registry._max_jobs = 1
            other = Client(server.port, hot)
            assert (await other.call("Register", other.info)).code == 500
            server.registry._max_jobs = 10
            await world.kube.delete(POD_GROUP, f"hot-{hot}", NS)
            await until(lambda: not server.cluster.jobs[hot].group, "the PodGroup is gone")
            assert (await other.call("Register", other.info)).code == 402
            await other.close()
            await client.close()

    play(tmp_path, story)


async def report(client: Client, what: str) -> Any:
    if what == "Stop":
        return await client.stopped()
    if what == "Strategy":
        return await client.offers("exit")
    if what == "Status":
        return await client.done("exit")
    return await client.broke(("0", "1"))


def test_both_kinds_of_fault_of_one_rank_are_received() -> None:
    told = (("8", "2"), ("8", "0"), ("9", "0"), ("9", "1"), ("x", "1"), ("7", "5"), ("-1", "0"), ("٣", "1"))
    rows = [pb.FaultRank(rankId=rank, faultType=kind) for rank, kind in told]
    assert _ranks(rows) == (FaultyRank("7", "1"), FaultyRank("8", "0"), FaultyRank("8", "2"), FaultyRank("9", "1"))


def test_a_second_report_waits_until_the_first_is_taken_or_the_conversation_restarts(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job()
        async with world.server() as server:
            client = await Client(server.port, job).join()
            assert (await client.offers("exit")).code == 0  # buffered without a waiting caller
            second = asyncio.ensure_future(client.offers("exit"))
            await asyncio.sleep(0.2)
            assert not second.done()
            again = await Client(server.port, job).listen()  # subscribing again restarts the conversation
            answer = await second
            assert answer.code == 599
            assert answer.info.endswith("chan closed")
            await again.close()
            await client.close()

    play(tmp_path, story)


def test_a_job_whose_pod_group_is_deleted_is_forgotten(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job()
        async with world.server() as server:
            client = await Client(server.port, job).join()
            await client.broke(("9", "1"))
            await client.next()
            assert await world.records()
            await world.kube.delete(POD_GROUP, f"pretrain-{job}", NS)
            await until(lambda: job not in server.registry.sessions, "the job is forgotten")
            await until(lambda: none(world), "nothing is kept of it")
            assert (await client.stopped()).code == 400
            await client.close()

    play(tmp_path, story)


async def none(world: World) -> bool:
    return not await world.records()


@pytest.mark.parametrize(
    ("nics", "info"),
    [
        ({}, "nics is nil"),
        ({"n7": (["0"], [True])}, "node:n7 not exist in job:JOB"),
        ({"n0": (["0"], [True, False])}, "dev and op length is not equal"),
        ({"n0": ([], [])}, "dev or op is empty"),
        ({"n0": (["9"], [True])}, "device:9 not exist in node:n0"),
        ({"n0": (["0"], [True])}, "node:n0 should operate in superPodID"),
    ],
)
def test_parameters_of_a_link_switch(tmp_path: Path, nics: dict[str, Any], info: str) -> None:
    async def story(world: World) -> None:
        job = await world.job()
        async with world.server() as server:
            client = await Client(server.port, job).join()
            ops = {node: pb.DeviceList(dev=dev, op=op) for node, (dev, op) in nics.items()}
            answer = await client.call("SwitchNicTrack", pb.SwitchNics(jobID=job, nicOps=ops))
            assert (answer.code, answer.info) == (413, info.replace("JOB", job))
            await client.close()

    play(tmp_path, story)


def test_operations_need_a_registered_running_job(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job()
        async with world.server() as server:
            client = Client(server.port, job)
            ops = {"n0": pb.DeviceList(dev=["0"], op=[True])}
            for name, info in (("absent", "job:absent not exist"), (job, f"job:{job} is not registered")):
                answer = await client.call("SwitchNicTrack", pb.SwitchNics(jobID=name, nicOps=ops))
                assert (answer.code, answer.info) == (413, info)
                answer = await client.call("StressTest", pb.StressTestParam(jobID=name, allNodesOps=[0]))
                assert (answer.code, answer.info) == (413, info)
            await client.join()
            assert (
                await client.call("ReplySwitchNicResult", pb.SwitchResult(jobId=job, result=True))
            ).info == "reply success"
            status, text = await refused(
                client.stream("SubscribeSwitchNicSignal", pb.SwitchNicRequest(jobID=job), pb.SwitchNicResponse)
            )
            assert (status, text) == (grpc.StatusCode.UNKNOWN, f"jobId={job} is not swtiching nic")
            status, text = await refused(
                client.stream("SubscribeStressTestResponse", pb.StressTestRequest(jobID=job), pb.StressTestResponse)
            )
            assert text == f"jobId={job} is not stress test"
            status, text = await refused(
                client.stream("SubscribeNotifySwitch", pb.ClientInfo(jobId="absent"), pb.SwitchRankList)
            )
            assert text == "jobId=absent not registed, please wait agent register"
            await world.phase("pretrain-worker-1", "Pending")
            await until(lambda: not server.cluster.jobs[job].running, "it does not run")
            answer = await client.call("SwitchNicTrack", pb.SwitchNics(jobID=job, nicOps=ops))
            assert (answer.code, answer.info) == (413, f"job:{job} is not running")
            await client.close()

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("params", "everywhere", "info"),
    [
        ({}, [], "stress test node is nil"),
        ({"n0": []}, [], "node:n0 stress test ops is 0"),
        ({"n7": [0]}, [], "node:n7 not exist in job:JOB"),
        ({"n0": [2]}, [], "op:2 not exist in support operation:[0 1]"),
        ({"n0": [0, 0]}, [], "node:n0 stress test ops should not repeat"),
        ({"n7": [0]}, [0, 1, 1], "node:n0 stress test ops should not repeat"),
    ],
)
def test_parameters_of_a_stress_test(
    tmp_path: Path, params: dict[str, list[int]], everywhere: list[int], info: str
) -> None:
    async def story(world: World) -> None:
        job = await world.job()
        async with world.server() as server:
            client = await Client(server.port, job).join()
            ops = {node: pb.StressOpList(ops=values) for node, values in params.items()}
            answer = await client.call(
                "StressTest", pb.StressTestParam(jobID=job, stressParam=ops, allNodesOps=everywhere)
            )
            assert (answer.code, answer.info) == (413, info.replace("JOB", job))
            await client.close()

    play(tmp_path, story)


# -- the other services


def table(host: str, ip: str, rank: int) -> str:
    device = {"device_id": "0", "device_ip": "10.1.0.0", "rank_id": str(rank), "super_device_id": "7"}
    server = {"device": [device], "server_id": f"id-{host}", "host_ip": host, "container_ip": ip}
    pods = [{"super_pod_id": "0", "server_list": [{"server_id": f"id-{host}"}]}]
    return json.dumps({"status": "completed", "version": "1.2", "server_list": [server], "super_pod_list": pods})


def test_a_global_rank_table_is_pushed_when_all_members_are_complete(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        for index in range(2):
            labels = {"jobID": "mindie-1", "app": "mindie-ms-server", "grt-group/deploy-server": str(index)}
            text = table(f"10.0.0.{index}", f"10.2.0.{index}", 0) if index == 0 else '{"status":"initializing"}'
            await world.kube.create(CONFIGMAP, rings(f"server-{index}", labels, text))
        async with world.server() as server:
            client = Client(server.port, "mindie-1")
            info = config_pb2.ClientInfo(jobId="mindie-1", role="controller")
            status, text = await refused(
                client.stream("SubscribeRankTable", info, config_pb2.RankTableStream, "config.Config")
            )
            assert (status, text) == (
                grpc.StatusCode.UNKNOWN, "jobId=mindie-1 not registered, role=controller"
            )  # fmt: skip
            answer = await client.call("Register", info, config_pb2.Status, "config.Config")
            assert (answer.code, answer.info) == (0, "register success")
            call = client.stream("SubscribeRankTable", info, config_pb2.RankTableStream, "config.Config")
            await call.initial_metadata()
            labels = {"jobID": "mindie-1", "app": "mindie-ms-server", "grt-group/deploy-server": "1"}
            await world.kube.replace(CONFIGMAP, rings("server-1", labels, table("10.0.0.9", "10.2.0.9", 0)))
            message = await call.read()
            body = json.loads(message.rankTable)
            assert (message.jobId, body["version"], body["status"]) == ("mindie-1", "1.2", "completed")
            groups = {group["group_id"]: group for group in body["server_group_list"]}
            assert sorted(groups) == ["2", "3"]
            assert groups["3"] == {
                "group_id": "3",
                "deploy_server": "1",
                "server_count": "1",
                "server_list": [
                    {
                        "device": [
                            {
                                "device_id": "0",
                                "device_ip": "10.1.0.0",
                                "super_device_id": "7",
                                "device_logical_id": "0",
                                "rank_id": "0",
                            }
                        ],
                        "server_id": "10.0.0.9",
                        "server_ip": "10.2.0.9",
                    }
                ],
                "super_pod_list": [{"super_pod_id": "0", "server_list": [{"server_id": "10.0.0.9"}]}],
            }
            again = client.stream("SubscribeRankTable", info, config_pb2.RankTableStream, "config.Config")
            assert (await again.read()).rankTable == message.rankTable  # a later subscriber gets it at once
            other = config_pb2.ClientInfo(jobId="mindie-1", role="coordinator")
            third = client.stream("SubscribeRankTable", other, config_pb2.RankTableStream, "config.Config")
            assert (await third.read()).rankTable == message.rankTable  # whatever role registered
            answer = await client.call("Register", other, config_pb2.Status, "config.Config")
            assert await call.read() is grpc.aio.EOF  # a new registration stops the older publisher
            assert await third.read() is grpc.aio.EOF
            await client.close()

    play(tmp_path, story)


def rings(name: str, labels: dict[str, str], text: str) -> dict[str, Any]:
    metadata = {"name": f"rings-config-{name}", "namespace": NS, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"hccl.json": text}}


def test_faults_reach_subscribers_and_queries(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job()
        async with world.server() as server:
            client = Client(server.port, job)

            async def query(name: str) -> Any:
                info = fault_pb2.ClientInfo(jobId=name, role="r")
                return await client.call("GetFaultMsgSignal", info, fault_pb2.FaultQueryResult, "fault.Fault")

            def register(name: str, role: str = "r") -> Any:
                info = fault_pb2.ClientInfo(jobId=name, role=role)
                return client.call("Register", info, fault_pb2.Status, "fault.Fault")

            for name in (job, ""):
                assert (await register(name)).info == "register success"
            unknown = "jobId=absent-there not exist and is not multi-instance"
            assert await refused(register("absent-there")) == (grpc.StatusCode.UNKNOWN, unknown)
            assert (await refused(register(job, "")))[1] == "request is nil or role is empty"
            answer = await query(job)
            assert (answer.code, answer.info, answer.faultSignal.signalType) == (200, "all info returned", "normal")
            answer = await query("absent-there")
            assert (answer.code, answer.info) == (200, "job with jobId: absent-there not found fault info")
            assert not answer.HasField("faultSignal")
            assert (await query("")).info == "Succeed"
            assert (await refused(query("short")))[1] == "job with jobId: short is invalid"
            assert "is invalid" in (await refused(query("任务编号任务编号任务")))[1]
            info = fault_pb2.ClientInfo(jobId=job, role="r")
            call = client.stream("SubscribeFaultMsgSignal", info, fault_pb2.FaultMsgSignal, "fault.Fault")
            await call.initial_metadata()
            await world.report("n1", bad={3: ("80C98001", "RestartNPU"), 4: ("81078603", "NotHandleFault")}, at=NOW_MS)
            first = await call.read()  # nothing is said before there is something to say
            (node,) = first.nodeFaultInfo
            assert (first.signalType, node.nodeName, node.nodeIP, node.nodeSN) == ("fault", "n1", "10.0.0.1", "sn-n1")
            shown = [(one.deviceId, one.deviceType, one.faultLevel, list(one.faultType)) for one in node.faultDevice]
            assert shown == [("3", "NPU", "UnHealthy", []), ("4", "NPU", "Healthy", [])]
            device = node.faultDevice[0]
            assert (list(device.faultCodes), list(device.faultLevels)) == (["80C98001"], ["RestartNPU"])
            answer = await query(job)
            assert (answer.info, answer.faultSignal.nodeFaultInfo[0].nodeName) == ("all info returned", "n1")
            await world.report("n1")
            assert (await call.read()).signalType == "normal"
            await world.ready("n0", False)
            third = await call.read()
            device = third.nodeFaultInfo[0].faultDevice[0]
            assert (device.deviceId, device.deviceType, device.faultLevel) == ("-1", "Node", "UnHealthy")
            await client.close()

    play(tmp_path, story)


def test_a_subscriber_to_the_cluster_gets_a_signal_for_each_job(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        first = await world.job("first", pods=1)
        other = await world.job("other", pods=1, nodes=False)
        await world.node("n1")
        await world.node("n2")
        await world.pod("other", 1, node="n1")
        async with world.server() as server:
            client = Client(server.port, "")
            info = fault_pb2.ClientInfo(role="r")
            await client.call("Register", info, fault_pb2.Status, "fault.Fault")
            call = client.stream("SubscribeFaultMsgSignal", info, fault_pb2.FaultMsgSignal, "fault.Fault")
            await call.initial_metadata()

            async def heard(count: int) -> list[tuple[str, str, int]]:
                signals = [await call.read() for _ in range(count)]
                return sorted((one.jobId, one.signalType, len(one.nodeFaultInfo)) for one in signals)

            bad = {3: ("80C98001", "RestartNPU")}
            await world.report("n2", bad=bad, at=NOW_MS)  # no job works there
            await world.report("n1", bad=bad, at=NOW_MS)
            assert await heard(1) == [(other, "fault", 1)]
            await world.report("n0", bad=bad, at=NOW_MS)
            assert await heard(2) == sorted([(first, "fault", 1), (other, "fault", 2)])
            late = client.stream("SubscribeFaultMsgSignal", info, fault_pb2.FaultMsgSignal, "fault.Fault")
            assert {(await late.read()).jobId, (await late.read()).jobId} == {first, other}
            await world.report("n0")
            assert await heard(2) == sorted([(first, "normal", 0), (other, "fault", 1)])
            await client.close()

    play(tmp_path, story)


def test_a_chip_that_is_reset_once_it_is_free_is_no_fault_of_its_job() -> None:
    """Whether it concerns the job is what the device plugin says: it lists the chip as unhealthy, or does not."""
    fault = ChipFault("CardUnhealthy", 3, "80F38008", "FreeRestartNPU", NOW_MS)
    rows = []
    for unhealthy in (0, 1 << 3):
        report = msgspec.structs.replace(
            parse(device_report("n0", 8, {}, NOW_MS // 1000)), faults=(fault,), unhealthy=unhealthy
        )
        rows.append([(one.deviceId, one.faultLevel) for one in fault_view._chips(report, {3})])
    assert rows == [[], [("3", "UnHealthy")]]


def test_devices_of_a_node_keep_their_numbers() -> None:
    report = NodeReport("n0", (NodeDevice("CPU", 2, ("00000011",), "NotHandleFault"),), "Healthy")
    (device,) = fault_view._hardware(report, in_job=True)
    assert (device.deviceId, device.deviceType, device.faultLevel) == ("2", "CPU", "Healthy")


def test_an_inference_service_gets_the_faults_of_all_its_jobs(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        service = {"jobID": "mindie-ms-1", "process-recover-enable": ""}
        await world.job("prefill", pods=1, labels={**service, "app": "mindie-ms-server"})
        await world.job("decode", pods=2, nodes=False, labels={**service, "app": "mindie-ms-server"})
        await world.node("n1")
        await world.job("other", pods=1, nodes=False, labels={"jobID": "mindie-ms-2"})
        async with world.server() as server:
            client = Client(server.port, "")
            info = fault_pb2.ClientInfo(jobId="mindie-ms-1", role="controller")
            absent = fault_pb2.ClientInfo(jobId="mindie-ms-9", role="controller")
            assert (await client.call("Register", info, fault_pb2.Status, "fault.Fault")).code == 0
            text = (await refused(client.call("Register", absent, fault_pb2.Status, "fault.Fault")))[1]
            assert text == "jobId=mindie-ms-9 not exist and is not multi-instance"
            call = client.stream("SubscribeFaultMsgSignal", info, fault_pb2.FaultMsgSignal, "fault.Fault")
            await call.initial_metadata()
            await world.report("n1", bad={3: ("80C98001", "RestartNPU")}, at=NOW_MS)
            first = await call.read()
            assert (first.jobId, first.signalType) == ("mindie-ms-1", "fault")
            assert [node.nodeName for node in first.nodeFaultInfo] == ["n1"]
            answer = await client.call("GetFaultMsgSignal", info, fault_pb2.FaultQueryResult, "fault.Fault")
            assert (answer.code, answer.info) == (200, "all info returned")

            # passes learn who hears of faults, and from which server
            while not (record := await recorded_subscribers(world)).services:
                await asyncio.sleep(0.1)
            assert (record.services, record.server) == (frozenset({"mindie-ms-1"}), "server-0")
            assert record.epoch == server.registry.epoch
            await client.close()

    play(tmp_path, story)


async def recorded_subscribers(world: World) -> FaultSubscriptions:
    """The record as a pass reads it."""
    found = await world.kube.get(CONFIGMAP, names.FAULT_SUBSCRIBERS, names.SYSTEM)
    return observe([found] if found is not None else []).fault_subscriptions


def test_subscribers_are_recorded_by_the_serving_server_alone(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        clock = Time()
        connected: dict[str, set[str]] = {"server-0": set(), "server-1": set()}
        epochs: dict[str, int | None] = {"server-0": 3, "server-1": None}
        first, second = (
            SubscribersRecord(
                world.kube, name, lambda name=name: connected[name], lambda name=name: epochs[name],  # type: ignore[misc]
                asyncio.Event(), clock=clock, monotonic=lambda: clock.now / 1000,
            )
            for name in connected
        )  # fmt: skip

        async def both() -> FaultSubscriptions:
            await first.step()
            await second.step()
            return await recorded_subscribers(world)

        assert await both() == NO_SUBSCRIPTIONS, "nothing to record"
        connected["server-0"] = {"chat", "vision"}
        began = await both()
        assert began == FaultSubscriptions(frozenset({"chat", "vision"}), clock.now, 3, "server-0")
        clock.pass_by(59)
        assert await both() == began, "it is not written again before a minute"
        clock.pass_by(1)
        assert (await both()).time_ms == clock.now

        # the other server takes over: controllers have half a minute to connect to it
        epochs["server-1"] = 4
        connected["server-1"] = {"chat"}
        assert (await both()) == FaultSubscriptions(began.services, clock.now, 4, "server-1")
        clock.pass_by(61)
        connected["server-0"] = {"other"}
        assert (await both()).services == {"chat"}, "a server that has not noticed does not write over it"

        # no server serves: the record grows old, and is not taken for the truth by the next server
        epochs.update({"server-0": None, "server-1": None})
        clock.pass_by(149)
        assert (await both()).covers("chat", clock.now)
        clock.pass_by(1)
        assert not (await both()).covers("chat", clock.now)
        epochs["server-0"], connected["server-0"] = 5, set()
        assert (await both()).services == set()

    play(tmp_path, story)


def test_queries_beyond_the_rate_wait_and_then_are_refused(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with world.server() as server:
            server.fault._sleep = forever
            server.fault._bucket = TokenBucket(10, 10, lambda: 0.0)
            client = Client(server.port, "")
            info = fault_pb2.ClientInfo(role="r")
            calls = [
                asyncio.ensure_future(client.call("GetFaultMsgSignal", info, fault_pb2.FaultQueryResult, "fault.Fault"))
                for _ in range(61)
            ]
            done, waiting = await asyncio.wait(calls, timeout=1.0)
            refusals = [call.exception() for call in done if call.exception() is not None]
            assert (len(done) - len(refusals), len(waiting), len(refusals)) == (10, 50, 1)
            (error,) = refusals
            text = "rate limited, there is too many requests, please retry later"
            assert isinstance(error, grpc.aio.AioRpcError) and error.details() == text
            for call in waiting:
                call.cancel()
            await client.close()

    play(tmp_path, story)


async def forever(_: float) -> None:
    await asyncio.Event().wait()


def test_summaries_are_sent_to_known_roles(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job()
        async with world.server() as server:
            client = Client(server.port, "")

            async def name(role: str) -> Any:
                return await client.call("Register", job_pb2.ClientInfo(role=role), job_pb2.Status, "job.Job")

            status, text = await refused(name("Stranger"))
            assert (status, text) == (grpc.StatusCode.UNKNOWN, "role:Stranger is not in whitelist")
            answer = await name("CCAgent")
            assert (answer.code, answer.info) == (200, "registration successful")
            unknown = job_pb2.ClientInfo(role="CCAgent", clientId="absent")
            status, text = await refused(
                client.stream("SubscribeJobSummarySignal", unknown, job_pb2.JobSummarySignal, "job.Job")
            )
            assert text == "invalid clientId: absent, please register first"
            info = job_pb2.ClientInfo(role="CCAgent", clientId=answer.clientId)
            call = client.stream("SubscribeJobSummarySignalList", info, job_pb2.JobSummarySignalList, "job.Job")
            page = await call.read()
            (row,) = page.jobSummarySignals
            assert (page.JobTotalNum, row.jobId, row.jobName, row.namespace) == (1, job, "pretrain", NS)
            assert len(page.ReportTime) == len(str(NOW_MS))  # milliseconds
            assert (row.operator, row.frameWork, row.cmIndex, row.sid) == ("add", "pytorch", "0", job)
            other = job_pb2.ClientInfo(role="FdAgent", clientId=(await name("FdAgent")).clientId)
            single = client.stream("SubscribeJobSummarySignal", other, job_pb2.JobSummarySignal, "job.Job")
            await single.initial_metadata()
            await world.phase("pretrain-worker-0", "Failed")
            changed = await single.read()
            assert (changed.jobStatus, bool(changed.deleteTime)) == ("failed", True)
            assert (await call.read()).jobSummarySignals[0].jobStatus == "failed"
            again = client.stream("SubscribeJobSummarySignal", info, job_pb2.JobSummarySignal, "job.Job")
            await again.initial_metadata()
            assert await call.read() is grpc.aio.EOF  # a client has one stream: the newest
            wrong = job_pb2.ClientInfo(role="CCAgent", clientId=other.clientId)
            text = (
                await refused(client.stream("SubscribeJobSummarySignal", wrong, job_pb2.JobSummarySignal, "job.Job"))
            )[1]
            assert text == "invalid role: CCAgent, please check role first"
            await world.job("second", pods=1, nodes=False)
            news = await again.read()
            assert news.jobName == "second"
            await client.close()

    play(tmp_path, story)


def test_a_change_of_a_job_counts_one_job_in_a_list(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.job("first", pods=1)
        await world.job("second", pods=1, nodes=False)
        async with world.server() as server:
            client = Client(server.port, "")
            named = await client.call("Register", job_pb2.ClientInfo(role="CCAgent"), job_pb2.Status, "job.Job")
            info = job_pb2.ClientInfo(role="CCAgent", clientId=named.clientId)
            call = client.stream("SubscribeJobSummarySignalList", info, job_pb2.JobSummarySignalList, "job.Job")
            page = await call.read()
            assert (page.JobTotalNum, len(page.jobSummarySignals)) == (2, 2)
            await world.phase("first-worker-0", "Failed")
            page = await call.read()
            assert (page.JobTotalNum, len(page.jobSummarySignals)) == (1, 1)
            await client.close()

    play(tmp_path, story)


@pytest.mark.parametrize(("cards", "told"), [(MAX_NPUS, True), (MAX_NPUS + 1, False)])
def test_the_rank_table_of_a_job_that_is_too_large_is_not_sent(cards: int, told: bool) -> None:
    job = JobSummary("id", NS, "j", "running", ('{"status":"complete"}',), {}, cards, npu=False)
    assert bool(signal(job, "uuid").HcclJson) is told


def test_a_role_has_twenty_subscriptions(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with world.server() as server:
            server.jobs._rate = TokenBucket(1000, 1000)
            client = Client(server.port, "")
            calls = []
            for index in range(21):
                named = await client.call("Register", job_pb2.ClientInfo(role="CCAgent"), job_pb2.Status, "job.Job")
                info = job_pb2.ClientInfo(role="CCAgent", clientId=named.clientId)
                call = client.stream("SubscribeJobSummarySignal", info, job_pb2.JobSummarySignal, "job.Job")
                if index < 20:
                    await call.initial_metadata()
                    calls.append(call)
                else:
                    text = "role CCAgent exceeded max subscription limit: current 20, max 20"
                    assert (await refused(call))[1] == text
            for call in calls:
                call.cancel()
            await client.close()

    play(tmp_path, story)


def test_profiling_switches(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        job = await world.job()
        async with world.server() as server:
            client = Client(server.port, job)

            async def modify(name: str, **switches: str) -> Any:
                wanted = dict.fromkeys(("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader"), "on")
                request = profiling_pb2.DataTypeReq(
                    jobNsName=name, profilingSwitch=profiling_pb2.ProfilingSwitch(**{**wanted, **switches})
                )
                return await client.call(
                    "ModifyTrainingDataTraceSwitch", request, profiling_pb2.DataTypeRes, "TrainingDataTrace"
                )

            async def get(name: str) -> Any:
                request = profiling_pb2.DataStatusReq(jobNsName=name)
                return await client.call(
                    "GetTrainingDataTraceSwitch", request, profiling_pb2.DataStatusRes, "TrainingDataTrace"
                )

            assert (await modify("pretrain")).code == 300
            assert (await modify(f"{NS}/pretrain", Step="maybe")).code == 300
            assert (await modify(f"{NS}/pretrain", Step="off")).code == 300  # four of them switch together
            assert (await modify(f"{NS}/nothing")).code == 404
            answer = await modify(f"{NS}/pretrain")
            assert (answer.code, answer.message) == (500, "notify subscribe failed")
            assert (await get(f"{NS}/pretrain")).code == 404, "what failed is not in force"
            info = profiling_pb2.ProfilingClientInfo(jobId=job, role="r")
            call = client.stream("SubscribeDataTraceSwitch", info, profiling_pb2.DataStatusRes, "TrainingDataTrace")
            await call.initial_metadata()
            assert (await modify(f"{NS}/pretrain", CommunicationOperator="off")).code == 200
            assert (await call.read()).profilingSwitch.CommunicationOperator == "off"
            assert await world.config_map("data-trace-pretrain") is None  # the pods mount none
            assert (await get(f"{NS}/pretrain")).profilingSwitch.CommunicationOperator == "off"
            for view in server.cluster.jobs.values():
                for pod in view.pods:
                    server.cluster._container_settings[(pod.namespace, pod.name)] = type(
                        server.cluster.container_settings(pod)
                    )(None, "", True)
            assert (await modify(f"{NS}/pretrain")).code == 200
            written = await world.config_map("data-trace-pretrain")
            assert written is not None
            assert written["metadata"]["labels"]["reset"] == "true"
            assert written["metadata"]["ownerReferences"][0]["uid"] == job
            assert json.loads(written["data"]["profilingSwitch"])["Step"] == "on"
            assert (await get(f"{NS}/pretrain")).code == 200
            assert (await get(f"{NS}/nothing")).code == 404
            await client.close()

    play(tmp_path, story)


def public(**fields: Any) -> pubfault_pb2.PublicFaultRequest:
    fault = pubfault_pb2.Fault(
        faultId="fault-0001", faultType="NPU", faultCode="220001001", faultTime=NOW_MS, assertion="occur",
        influence=[pubfault_pb2.PubFaultInfo(nodeName="n0", deviceIds=[0, 1])],
    )  # fmt: skip
    values = {"id": "message-0001", "timestamp": NOW_MS, "version": "1.0", "resource": "CCAE", "faults": [fault]}
    return pubfault_pb2.PublicFaultRequest(**{**values, **fields})


def test_public_faults_enter_by_the_door_of_their_config_maps(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.node("n0")
        async with world.server() as server:
            client = Client(server.port, "")

            async def send(request: Any) -> Any:
                return await client.call("SendPublicFault", request, pubfault_pb2.RespStatus, "PubFault")

            answer = await send(public())
            assert (answer.code, answer.info) == (0, "public fault send successfully")
            kept = await world.config_map(publicinfo.MESSAGES, publicinfo.MESSAGES_NAMESPACE)
            assert kept is not None and publicinfo.has_public_faults(kept)
            (message,) = publicinfo.parse(kept).messages
            assert (message.id, message.faults[0].code, message.faults[0].influences[0].chips) == (
                "message-0001", "220001001", (0, 1)
            )  # fmt: skip
            for wrong in ({"resource": "stranger"}, {"version": "2.0"}, {"id": "short"}, {"faults": []}):
                answer = await send(public(**wrong))
                assert answer.code == 409
                assert answer.info.startswith("check public fault info failed, error: ")
            answers = [await send(public(id=f"message-{index:04}")) for index in range(2, 130)]
            codes = [answer.code for answer in answers]
            assert codes[:99] == [0] * 99 and codes[-1] == 410
            assert answers[-1].info == "limiter work by resource failed"
            answer = await send(public(resource="pingmesh", id="message-9999"))
            assert answer.code == 0  # each sender has a limit of its own
            await client.close()

    play(tmp_path, story)


# -- the server itself


def test_calls_beyond_the_rate_are_named(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        rates = Rates(lambda: 0.0, business=3)
        async with world.server(rates=rates) as server:
            client = Client(server.port, "absent")
            answers = [await client.call("Init", client.info) for _ in range(3)]
            assert [answer.code for answer in answers] == [502] * 3
            status, text = await refused(client.call("Init", client.info))
            assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert text.startswith("qps exceeded, method=/Recover/Init")
            assert (await client.call("HealthCheck", client.info)).code == 0  # a bucket of its own
            await client.close()

    play(tmp_path, story)


def test_connections_beyond_the_limit_are_refused() -> None:
    now = [0.0]
    found = Connections(lambda: now[0], most=4, per_host=3)
    assert all(found.enter(f"ipv4:10.0.0.1:{port}") for port in (1, 2, 3))
    assert not found.enter("ipv4:10.0.0.1:4")
    assert found.enter("ipv4:10.0.0.2:1")
    assert not found.enter("ipv4:10.0.0.3:1")
    found.leave("ipv4:10.0.0.1:1")
    assert not found.enter("ipv4:10.0.0.3:1")  # it may still be open
    assert found.enter("ipv4:10.0.0.1:1")
    found.leave("ipv4:10.0.0.1:1")
    now[0] = 66.0
    assert found.enter("ipv4:10.0.0.3:1")
    assert found.count == 4


def test_the_probe_and_the_addresses(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with world.server(health_port=0) as server, aiohttp.ClientSession() as session:
            base = f"http://127.0.0.1:{server.health_port}"
            for method, path, status in (("GET", "/", 200), ("GET", "/x", 404), ("POST", "/", 405)):
                async with session.request(method, base + path) as answer:
                    assert answer.status == status
                    if status == 200:
                        assert await answer.text() == "ok"
            assert server.leader is not None
            server.leader.leads = False
            async with session.get(base + "/") as answer:
                assert answer.status == 503
            server.leader.leads = True

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("listen", "pod", "found"),
    [
        ("auto", "10.0.0.7", ("10.0.0.7", 8899, True)),
        ("auto", "fd00::7", ("fd00::7", 8899, True)),
        ("auto", "", ("127.0.0.1", 8899, False)),
        ("off", "10.0.0.7", ("", 0, True)),
        ("[::1]:9000", "", ("::1", 9000, True)),
        ("127.0.0.1:9000", "10.0.0.7", ("127.0.0.1", 9000, True)),
    ],
)
def test_where_to_listen(listen: str, pod: str, found: tuple[str, int, bool]) -> None:
    assert where(Settings(grpc_listen=listen), {"POD_IP": pod} if pod else {}) == found


@pytest.mark.parametrize(
    ("listen", "pod"), [("auto", "0.0.0.0"), ("auto", "::"), ("auto", "255.255.255.255"), ("auto", "x"), ("8899", "")]
)
def test_addresses_that_cannot_be_listened_on_are_refused(listen: str, pod: str) -> None:
    with pytest.raises(InputError):
        where(Settings(grpc_listen=listen), {"POD_IP": pod})


class Written:
    """The context of a stream: what was written to it."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    async def send_initial_metadata(self, _: Any) -> None:
        return None

    async def write(self, message: Any) -> None:
        self.told.append(message)


def test_a_subscriber_that_joins_after_a_change_leaves_it_to_the_others() -> None:
    async def story() -> None:
        publisher: Publisher[str] = Publisher("job", "role")
        first, second = Written(), Written()
        calls = [asyncio.ensure_future(publisher.serve(first, {"job": "old"}))]  # type: ignore[arg-type]
        await until(lambda: first.told == ["old"], "it has what there is")
        calls.append(asyncio.ensure_future(publisher.serve(second, {"job": "new"})))  # type: ignore[arg-type]
        await until(lambda: second.told == ["new"], "it has what there is now")
        publisher.publish("new")
        publisher.stop()
        await asyncio.gather(*calls)
        assert (first.told, second.told) == (["old", "new"], ["new"])

    asyncio.run(story())


def test_unused_registrations_make_room_where_they_may() -> None:
    async def story() -> None:
        refusing, yielding = Publishers[str](2), Publishers[str](2, yields=True)
        for each in (refusing, yielding):
            assert each.register("a", "r") is not None and each.register("b", "r") is not None
        assert refusing.register("c", "r") is None
        used = yielding.register("a", "r")
        assert used is not None
        call = asyncio.ensure_future(used.serve(Written(), {}))  # type: ignore[arg-type]
        await until(lambda: used.has_subscribers, "a client listens")
        assert yielding.register("c", "r") is not None
        assert sorted(yielding._jobs) == ["a", "c"]
        used.stop()
        await call

    asyncio.run(story())


def test_a_new_subscriber_leaves_changes_of_jobs_to_the_others(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.job()
        async with world.server() as server:
            client, now = Client(server.port, ""), [0.0]
            jobs, cluster = server.jobs, server.cluster
            jobs._clock = lambda: now[0]
            named = await client.call("Register", job_pb2.ClientInfo(role="CCAgent"), job_pb2.Status, "job.Job")
            info = job_pb2.ClientInfo(role="CCAgent", clientId=named.clientId)
            single = client.stream("SubscribeJobSummarySignal", info, job_pb2.JobSummarySignal, "job.Job")
            await single.initial_metadata()
            now[0] = 121.0
            other = await client.call("Register", job_pb2.ClientInfo(role="FdAgent"), job_pb2.Status, "job.Job")
            pod = await world.kube.get(POD, "pretrain-worker-0", NS)
            assert pod is not None
            late = job_pb2.ClientInfo(role="FdAgent", clientId=other.clientId)
            listing: Any = jobs.SubscribeJobSummarySignalList(late, Written())  # type: ignore[arg-type]
            task = asyncio.ensure_future(listing)  # its turn comes before that of the news
            cluster.put({**pod, "status": {**pod["status"], "phase": "Failed"}})
            cluster.refresh()
            async with asyncio.timeout(5):
                assert (await single.read()).jobStatus == "failed"
            task.cancel()
            # its name is still good: it has listened all the time
            call = client.stream("SubscribeJobSummarySignalList", info, job_pb2.JobSummarySignalList, "job.Job")
            assert (await call.read()).jobSummarySignals[0].jobStatus == "failed"
            for one in (single, call):
                one.cancel()
            await client.close()

    play(tmp_path, story)


def test_a_slow_subscriber_gets_the_newest_and_delays_no_other() -> None:
    async def story() -> None:
        box: MessageQueue[int] = MessageQueue(4)
        futures = [box.send(number) for number in range(10)]
        assert [future.done() for future in futures] == [True] * 6 + [False] * 4
        assert box.dropped == 6

        class Context:
            def __init__(self) -> None:
                self.written: list[int] = []

            async def write(self, item: int) -> None:
                self.written.append(item)

        context: Any = Context()
        box.close()
        await box.pump(context)
        assert context.written == [6, 7, 8, 9]
        assert [future.result() for future in futures] == [False] * 6 + [True] * 4

    asyncio.run(story())
