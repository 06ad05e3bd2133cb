"""Golden conversations over real gRPC on loopback: what training processes hear, and what the cluster is left with."""

from __future__ import annotations

from pathlib import Path

from engine.kube import POD
from engine.wire.clusterd import recover_pb2 as pb
from tests.grpc_world import Client, World, play, until


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
            assert (answer.code, answer.info) == (0, "receive ReportStopComplete")
            heard = await client.next()
            assert short(heard) == "globalFault on_global_rank+fault_nodes_exit nodes=1 ranks=9:1"
            assert heard.uuid == stop.uuid
            body = await world.reset_json("pretrain")
            assert [row["RankId"] for row in body["RankList"]] == list(range(8, 16))
            assert (body["FaultFlushing"], body["RestartFaultProcess"]) == (False, False)
            pod = await world.kube.get(POD, "pretrain-worker-1", "train")
            assert pod is not None and pod["metadata"]["labels"]["fault-type"] == "software"
            await client.offers("recover", "dump", "exit")
            assert (
                short(await client.next())
                == "changeStrategy change_strategy+fault_nodes_exit recover nodes=1 ranks=9:1"
            )
            await world.replace("pretrain", 1)
            await until(lambda: cleared(world), "the reset ConfigMap is cleared")
            await client.done("recover")
            await until(lambda: annotated(world, "recover-success"), "the outcome is told")
            await until(lambda: gone(world), "nothing is kept")
            await client.close()

    play(tmp_path, story)


async def cleared(world: World) -> bool:
    return not (await world.reset_json("pretrain"))["RankList"]


async def annotated(world: World, value: str) -> bool:
    return (await world.group("pretrain"))["metadata"]["annotations"].get("ProcessRecoverStatus") == value


async def gone(world: World) -> bool:
    return not await world.records()
