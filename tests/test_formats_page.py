"""docs/mindcluster-formats.md names every field written in MindCluster's ConfigMaps, and every return code."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.agents.node.hardware import pinglist
from belay.engine.model.history import History, NodeMemory, PublicFaultMemory
from belay.engine.model.labels import PUBLIC_FAULT_CONSUMER
from belay.engine.model.recovery.protocol import Code
from belay.engine.plan import plan
from belay.engine.serve.grpc import profiling
from belay.engine.status import public_fault_statistics, statistics
from belay.engine.status.mindcluster import ClusterInfo
from belay.engine.status.rescheduling import scheduler_bodies
from belay.engine.status.summaries import job_summaries
from belay.engine.wire import deviceinfo, faultconfig, names, publicinfo, resetinfo, superpods
from tests import worlds
from tests.test_features import cluster, files_of

PAGE = (Path(__file__).resolve().parents[1] / "docs/mindcluster-formats.md").read_text()
#: Names that are data (nodes, chips, codes, jobs) or stand for the resource P.
_DATA = re.compile(r"n\d+|mindx-dl-.*|huawei\.com/.*|Ascend910-\d+|[0-9A-F]{8}|train/.*|cluster-info-.*")


def keys(value: Any) -> Iterator[str]:
    """Every key, at any depth, also inside texts that hold JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        # a switch's older codes are lists without quotes
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def bodies() -> dict[str, dict[str, Any]]:
    """What Belay writes about a small world in which much is wrong."""
    faults = [worlds.fault(3), worlds.fault(4, "81078603", "PreSeparateNPU", kind="CardNetworkUnhealthy")]
    pod = worlds.pod("j-0", node="n0", chips=[1], owner=("AscendJob", "j"), labels={"fault-retry-times": "3"})
    reports = [worlds.report("n0", faults=faults, unhealthy=[3], network=[4], switch=worlds.switch())]
    seen = worlds.observed(
        [worlds.node("n0")], reports, [pod], node_reports=[worlds.node_report("n0")]
    )  # fmt: skip
    made = plan(worlds.desired(), seen, worlds.NOW)
    found = {body["metadata"]["name"]: body["data"] for body in ClusterInfo().bodies(made, seen)}
    found |= {body["metadata"]["name"]: body["data"] for body in scheduler_bodies(made, seen)}
    for summary in job_summaries(seen, worlds.NOW):
        found |= {body["metadata"]["name"]: body["data"] for body in summary.bodies()}
    own = deviceinfo.build("n0", device_list={"huawei.com/Ascend910": ""}, update_time=worlds.NOW)
    return found | {"mindx-dl-deviceinfo-n0": own["data"]}


def named(key: str) -> bool:
    """Whether the page has the field, alone or in a path."""
    return any(text in PAGE for text in (f"`{key}`", f".{key}`", f"`{key}."))


def test_every_field_that_is_written_stands_on_the_page() -> None:
    written = {name: sorted({key for key in keys(data) if not _DATA.fullmatch(key)}) for name, data in bodies().items()}
    assert {"cluster-info-device-0", "cluster-info-node-cm", "vcjob-fault-npu-cm"} <= set(written)
    assert len(written["cluster-info-device-0"]) >= 12, "a world in which something is wrong"
    unnamed = {name: [key for key in found if not named(key)] for name, found in written.items()}
    assert {name: rest for name, rest in unnamed.items() if rest} == {}


def others() -> dict[str, set[str]]:
    """The ConfigMaps of the page's last table: what their last cell has in code, by each name in the first."""
    table = PAGE.partition("## Other ConfigMaps")[2].partition("\n## ")[0].splitlines()
    found = {}
    for row in (line.strip("|").split("|") for line in table if line.startswith("| `") or line.startswith("| public")):
        for name in re.findall(r"`([^`]+)`", row[0])[:1]:
            found[name] = set(re.findall(r"`([^`]+)`", row[2]))
    return found


@cache
def written_elsewhere() -> dict[str, dict[str, Any]]:
    """What Belay writes into the ConfigMaps of that table."""
    world = cluster(files_of("resumable-training"))
    world.until_quiet()
    table = next(body for key, body in world.objects.items() if key.name == "rings-config-resumable")
    job = {"metadata": {"namespace": "train", "name": "reset-config-j"}, "data": {}}
    rank = resetinfo.rank(0, 0, status="unrecovered", policy="reset", initial="reset", codes=["80C98001"])

    public = PublicFaultMemory("220001001", (1,), 1000, level="SeparateNPU", kind="NPU")
    seen = worlds.observed([worlds.node("n0")], [worlds.report("n0")], [worlds.pod("j-0", node="n0", chips=[1])])
    made = msgspec.structs.replace(
        plan(worlds.desired(), seen, worlds.NOW), history=History(nodes={"n0": NodeMemory(public={"a/b": public})})
    )
    (faults,) = public_fault_statistics.bodies(made, seen)
    server = superpods.SuperPodServer(0, {0: "1"}, 2, "950-SuperPod-Atlas-8")
    return {
        "rings-config-<job>": table["data"],
        "fault-config-<job>": resetinfo.with_legacy_signal(job, "unrecovered", [0], 1) or {},
        "reset-config-<job>": resetinfo.with_signal(job, "unrecovered", [0], 1, rank_list=[rank]) or {},
        "statistic-fault-info": faults["data"],
        "super-pod-<id>": superpods.super_pod_map(3, "v", {"n0": server})["data"],
    }


@pytest.mark.parametrize(
    "name", ["rings-config-<job>", "reset-config-<job>", "fault-config-<job>", "statistic-fault-info", "super-pod-<id>"]
)
def test_a_row_about_another_config_map_names_what_is_written(name: str) -> None:
    found = {key for key in keys(written_elsewhere()[name]) if not _DATA.fullmatch(key) and not key.isdecimal()}
    assert found and found <= others()[name]


def test_the_statistic_of_jobs_has_the_fields_of_its_row() -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(statistics.JobStatistic)}
    assert fields | set(statistics.statistic(worlds.observed(), (), 0.0)["data"]) == others()["current-job-statistic"]


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("kube-system", "mindx-dl-fault-config"), ("mindx-dl", "mindx-dl-node-fault-config"),
     ("cluster-system", "clusterd-config-cm")],
)  # fmt: skip
def test_a_row_about_tables_of_faults_names_the_keys_that_are_read(namespace: str, name: str) -> None:
    """What is read and wrong is complained of by its key; a key that is not read may hold anything."""
    said = {*others()[name], "unknown.json"}
    body = {"metadata": {"namespace": namespace, "name": name}, "data": dict.fromkeys(said, "[")}
    _, problems = faultconfig.read([body])
    read = {problem.field.removeprefix("data.") for problem in problems}
    assert read == said - {"unknown.json", "PollInterval"}


def test_rows_about_switches_of_pings_traces_and_public_faults_name_their_keys() -> None:
    assert others()["data-trace-<job>"] == {profiling.KEY, *profiling.SWITCHES}
    assert others()["pingmesh-config"] == {pinglist.GLOBAL, "activate", "task_interval"}
    for missing in ("activate", "task_interval"):
        chosen = {"activate": "on", "task_interval": 5} | {missing: None}
        with pytest.raises(pinglist.PingError, match=missing):
            pinglist.config({pinglist.GLOBAL: json.dumps(chosen)}, 1)
    assert others()["volcano-scheduler-configmap"] == {names.SCHEDULER_KEY, "init-params"}
    assert others()[f"{PUBLIC_FAULT_CONSUMER}=true"] == {publicinfo.KEY}


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_every_return_code_has_a_row(code: Code) -> None:
    assert len(re.findall(rf"^\| {code.value} \| \S", PAGE, re.MULTILINE)) == 1
