"""`belay server` judges step times: faults begin and end, another server goes on, settings turn it on and off."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from belay.engine.cli.explanation import explain
from belay.engine.kube import CONFIGMAP, KubeError, Object
from belay.engine.load import load
from belay.engine.model import public_faults
from belay.engine.model.step_times import GroupTime, NodeSteps, SlowFinding, Slowness, StepWindow
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.serve.grpc import public_faults as grpc_faults
from belay.engine.serve.grpc import slow_nodes
from belay.engine.wire import slownode, steptimes
from belay.engine.wire.errors import WireError
from tests.grpc_world import World, play, until
from tests.training_fleet import Injected, Layout, windows
from tests.worlds import A2_LABELS, NOW, device_report

LAYOUT = Layout(8, 1, 2)
SLOW = Injected(0, 200, work={5: 1.1})


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_nodes, "PERIOD", 0.05)


def rows(steps: int, injected: Injected | None = SLOW) -> list[list[StepWindow]]:
    return list(windows(LAYOUT, steps, 3, injected))


async def report(world: World, job: str, chosen: Sequence[Sequence[StepWindow]]) -> None:
    """What the agents of n0 and n1 write; eight ranks on each."""
    for number in range(2):
        own = tuple(one for each in chosen for one in each if one.rank // 8 == number)
        body = steptimes.steps_map(f"n{number}", int(time.time() * 1000), [NodeSteps(f"n{number}", job, own)])
        await world.kube.apply(body, field_manager="agent")


async def standing(world: World) -> dict[str, Any]:
    live = await world.kube.get(CONFIGMAP, "belay-slow-nodes", "belay-system")
    return {key: json.loads(text) for key, text in ((live or {}).get("data") or {}).items()}


async def claims(world: World) -> list[tuple[str, str, str]]:
    """Code, assertion and node of every fault in the inbox, in the order of their messages."""
    live = await world.kube.get(CONFIGMAP, "belay-public-faults", "belay-system")
    found = [json.loads(text) for text in ((live or {}).get("data") or {}).values()]
    found.sort(key=lambda body: body["timestamp"])
    return [
        (row["faultCode"], row["assertion"], row["influence"][0]["nodeName"])
        for body in found
        for row in body["faults"]
    ]


async def settings(world: World, on: int, namespace: str = "mindx-dl", **more: Any) -> None:
    text = json.dumps({"jobName": "pretrain", "jobNamespace": "train", "SlowNode": on} | more)
    await world.kube.apply({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"FeatConf": text},
        "metadata": {
            "name": "ras-feature-slownode-pretrain", "namespace": namespace, "labels": {"fd-ol-slow-node": "true"},
        },
    })  # fmt: skip


def test_a_slow_chip_is_reported_with_its_figures_and_ends_when_it_is_gone(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        job = await world.job()
        measured = rows(500)
        async with world.server():
            await report(world, job, measured[:4])
            await until(lambda: standing(world), "the slow chip is recorded")
            (row,) = (await standing(world)).values()
            assert (row["code"], row["nodes"], row["ranks"]) == ("110001010", {"n0": [5]}, [5])
            assert "rank 5 computes" in row["text"] and "train/pretrain" in row["text"]
            assert await claims(world) == [("110001010", "occur", "n0")]
        # another server goes on with what the first one reported
        async with world.server("server-1"):
            await asyncio.sleep(0)
            await report(world, job, measured[6:10])
            await until(lambda: _none(world), "the fault has ended")
            assert (await claims(world))[-1] == ("110001010", "recover", "n0")

    play(tmp_path, scenario)


async def _none(world: World) -> bool:
    live = await world.kube.get(CONFIGMAP, "belay-slow-nodes", "belay-system")
    return live is not None and not (live.get("data") or {})


def test_settings_turn_the_detection_of_a_job_off_and_set_its_limits(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        job = await world.job()
        measured = rows(200)
        async with world.server():
            await report(world, job, measured)
            await until(lambda: standing(world), "the slow chip is recorded")
            await settings(world, 0)
            await until(lambda: _none(world), "a job that is not watched has no slow chips")
            await settings(world, 1, degradationPercentage=0.05)
            await until(lambda: standing(world), "the slow chip is recorded again")
            assert [claim[1] for claim in await claims(world)] == ["occur", "recover", "occur"]

    play(tmp_path, scenario)


def test_a_tenant_changes_nothing_of_another_namespaces_job(tmp_path: Path) -> None:
    def of(namespace: str, job_namespace: str) -> slownode.SlowNodeSettings:
        text = json.dumps({"jobName": "pretrain", "jobNamespace": job_namespace, "SlowNode": 0})
        metadata = {"name": "ras-feature-slownode-x", "namespace": namespace}
        return slownode.parse_settings({"metadata": metadata, "data": {"FeatConf": text}})

    for namespace in ("train", "mindx-dl", "cluster-system", "kube-system", "belay-system"):
        assert of(namespace, "train").namespace == "train"
    with pytest.raises(WireError, match="'train' must be 'eve'"):
        of("eve", "train")

    async def scenario(world: World) -> None:
        job = await world.job()
        await world.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "eve"}})
        async with world.server():
            await settings(world, 0, "eve")
            await report(world, job, rows(200))
            await until(lambda: standing(world), "the slow chip is recorded all the same")

    play(tmp_path, scenario)


def test_a_report_that_cannot_be_read_and_a_job_that_is_gone_stop_nothing(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        job = await world.job()
        async with world.server():
            await world.kube.apply({
                "apiVersion": "v1", "kind": "ConfigMap", "data": {"steps.json": "{"},
                "metadata": {
                    "name": "belay-steps-n7", "namespace": "belay-nodes", "labels": {"belay.dev/about": "steps"},
                },
            })  # fmt: skip
            await report(world, "no-such-job", rows(200))
            await report(world, job, rows(200))
            await until(lambda: standing(world), "the slow chip is recorded")
            assert {row["job"] for row in (await standing(world)).values()} == {job}

    play(tmp_path, scenario)


def test_explain_says_what_is_slow_with_its_figures() -> None:
    found = SlowFinding(Slowness.COMPUTATION, (5,), "", 0.047, 776_400, 740_900, 31, 0.033, 6)
    rows = slownode.faults("uid-1", "train/pretrain", [found], {5: "n0"}, {5: 5})
    notes = {"baseDeviceInfos": json.dumps({f"Ascend910-{chip}": {"IP": "", "SuperDeviceID": 0} for chip in range(8)})}
    server = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0", "labels": A2_LABELS, "annotations": notes}}
    seen = observe([server, device_report("n0", 8, {}, int(NOW)), slownode.record(rows)])
    made = plan(load({}).desired, seen, NOW)
    (text,) = explain("chip", "n0/5", made, seen)["slow"]
    assert text.startswith("110001010 job train/pretrain: rank 5 computes 776.4 ms of each step")
    assert explain("node", "n0", made, seen)["slow"] == [text]
    assert "slow" not in explain("chip", "n0/4", made, seen)


def test_what_cannot_be_recorded_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        job = await world.job()
        refused, create = [], world.kube.create

        async def refusing(kind: Any, body: Object, *more: Any, **named: Any) -> Object:
            if body["metadata"]["name"] == "belay-slow-nodes" and len(refused) < 5:
                refused.append(body)
                raise KubeError("forbidden")
            return await create(kind, body, *more, **named)

        monkeypatch.setattr(world.kube, "create", refusing)
        async with world.server():
            await report(world, job, rows(200))
            await until(lambda: standing(world), "it is recorded at last")
            assert len(refused) == 5
            assert await claims(world) == [("110001010", "occur", "n0")]

    play(tmp_path, scenario)


def test_what_the_inbox_cannot_hold_is_split_sent_once_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(number: int, size: int) -> dict[str, Any]:
        nodes = {f"node-{index:05}": [0] for index in range(size)}
        words = {"job": "j", "name": "train/x", "kind": "computation", "text": "slow"}
        return {"id": f"f{number}", "code": "110001010", "nodes": nodes, "ranks": [0], **words}

    async def scenario(world: World) -> None:
        async with world.server() as server:
            slow, sent = server.slow_nodes, []
            full = {"full": True}

            async def report(body: dict[str, Any]) -> str:
                sent.append([fault["faultId"] for fault in body["faults"]])
                return "no room" if full["full"] and len(sent) > 1 else ""

            async def quiet() -> None:
                """The server's own look would take back what no job asks for."""

            monkeypatch.setattr(slow, "step", quiet)
            monkeypatch.setattr(server.public, "report", report)
            monkeypatch.setattr(grpc_faults, "MAX_INBOX", 6000)
            wanted = {f"k{number}": row(number, 20) for number in range(6)} | {"k9": row(9, 500)}
            await slow._report(wanted)
            assert len(sent) == 2 and 0 < len(sent[0]) < 6, "one message was stored, the next found no room"
            assert set(await standing(world)) == {f"k{number[1:]}" for number in sent[0]}
            first, full["full"] = sent[0], False
            sent.clear()
            await slow._report(wanted)
            again = [fault for part in sent for fault in part]
            assert sorted(first + again) == [f"f{number}" for number in range(6)], "each once, and never the huge one"
            sent.clear()
            await slow._report(wanted)
            assert sent == [], "what no inbox can hold is not tried again"

    play(tmp_path, scenario)


@pytest.mark.parametrize("group", ["tp", "ep dp:1/\u00e9\n\t", "x" * 40])
def test_groups_of_any_name_make_faults_that_the_inbox_takes(group: str) -> None:
    """One job's odd name must not have the faults of all jobs refused."""
    times = (GroupTime(group, (0, 8), 5),)
    _, _, (read,) = steptimes.parse_steps(
        steptimes.steps_map("n0", 1, [NodeSteps("n0", "uid-1", (StepWindow(0, 3, 50, 100, 80, 1, times),))])
    )
    name = read.windows[0].groups[0].kind
    found = SlowFinding(Slowness.COMMUNICATION, (0, 8), name, 0.2, 120, 100, 3, 0.05, 3)
    made = slownode.faults("j" * 36, "train/pretrain", [found], {0: "n0", 8: "n1"}, {0: 0, 8: 0})
    rows = [slownode.claim(row, "occur", 1_800_000_000_000) for row in made.values()]
    body = slownode.message("slow-nodes-1800000000000-0", 1_800_000_000_000, rows)
    assert len(rows) == 1 and public_faults.read(body)[1] == ()
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) for key in slownode.record(made)["data"])
