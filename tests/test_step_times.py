"""Step times from the records of profiling to the ConfigMap of a node, and the settings and faults of slow nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belay.agents.kubelet.slownode import settings_of
from belay.agents.node.steprecords import RankSteps, kind_of
from belay.agents.node.steptimes import StepTimes, groups_of
from belay.agents.training.compat.taskd.profiling import Profiler, collective
from belay.agents.training.compat.taskd.profiling_files import Records
from belay.engine.model import public_faults
from belay.engine.model.step_times import GroupTime, NodeSteps, SlowFinding, Slowness, StepWindow
from belay.engine.wire import slownode, steptimes
from belay.engine.wire.errors import WireError
from tests.agent_world import FakeCluster, VirtualClock

MS = 1_000_000
GROUPS = {"c1": ("tp", (0, 1)), "c2": ("dp", (0, 8))}


def marker(
    number: int, name: str, begin: int, end: int, domain: str = "default", *, device: bool = False
) -> list[bytes]:
    flags = (16, 32) if device else (2, 4)
    return [
        json.dumps({
            "Kind": 1, "Flag": flag, "SourceKind": int(device), "Timestamp": at, "Id": number, "Name": name,
            "Domain": domain, "MsptiObjectId": {"Pt": {"ProcessId": 1, "ThreadId": 2}, "Ds": {"DeviceId": 0}},
        }).encode()
        for flag, at in zip(flags, (begin, end), strict=True)
    ]  # fmt: skip


def steps(first: int, count: int, *, device: bool = False) -> Iterator[bytes]:
    """Steps of 100 ms: 5 ms of data, 20 ms in group tp, 10 ms in dp of which 4 overlap with tp; nothing else waits."""
    for number in range(first, first + count):
        begin = (1000 + number) * 100 * MS
        rows = [
            ("dataloader", 0, 5, "default", False),
            ('{"opName":"all_reduce","groupName":"c1"}', 40, 60, "communication", device),
            ('{"opName":"all_gather","groupName":"c2"}', 56, 66, "communication", device),
            (f"step {number}", 0, 100, "default", device),
        ]
        if device:  # what the host spends on starting a collective is not a time of the collective
            rows.insert(1, ('{"opName":"all_reduce","groupName":"c1"}', 40, 41, "communication", False))
        for place, (name, start, end, domain, own) in enumerate(rows):
            yield from marker(number * 10 + place, name, begin + start * MS, begin + end * MS, domain, device=own)


@pytest.mark.parametrize("device", [False, True])
def test_the_time_of_a_step_is_split_into_work_data_and_groups(device: bool) -> None:
    rank = RankSteps(0)
    assert rank.take(steps(0, 101, device=device), GROUPS) == 0
    assert [one.number for one in rank.windows] == [0]
    assert rank.windows[0] == StepWindow(
        0, 0, 50, 100_000, 69_000, 5_000, (GroupTime("tp", (0, 1), 20_000), GroupTime("dp", (0, 8), 10_000))
    )


def test_only_the_newest_windows_are_kept_and_short_ones_are_left_out() -> None:
    rank = RankSteps(3)
    rank.take(steps(40, 400), {})
    assert [one.number for one in rank.windows] == [4, 5, 6, 7] and not rank.windows[0].groups


def test_records_that_cannot_be_read_are_counted_and_passed_over() -> None:
    rank = RankSteps(0)
    lines = [b"{", b"[]", b'{"Flag":"x"}', b"\xff\xfe", *steps(0, 60), *marker(9, "step x", 5, 1)]
    assert rank.take(lines, GROUPS) == 4 and len(rank.windows) == 1


def test_names_of_groups_are_kinds() -> None:
    assert [kind_of(name) for name in ("tp", "dp_12", "7", "", "default_group")] == [
        "tp", "dp", "group", "group", "default_group",
    ]  # fmt: skip
    assert groups_of(b'{"c": {"group_name": "tp", "group_rank": 0, "global_ranks": [0, 1]}, "d": 3}') == {
        "c": ("tp", (0, 1))
    }
    assert groups_of(b"[") == {}


def _job(root: Path, rank: int, first: int, count: int, name: str = "1700000000") -> Path:
    folder = root / "job-1" / str(rank)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "ab") as stream:
        stream.write(b"\n".join(steps(first, count)) + b"\n")
    table = {name: {"group_name": kind, "global_ranks": ranks} for name, (kind, ranks) in GROUPS.items()}
    (folder / "parallel_group.json").write_text(json.dumps(table))
    return folder


def test_an_agent_reads_on_where_it_ended_and_goes_to_the_next_file(tmp_path: Path) -> None:
    part = StepTimes("n0", FakeCluster(VirtualClock()), tmp_path)
    part.look()
    assert part.jobs() == ()
    folder = _job(tmp_path, 0, 0, 70)
    part.look()
    (one,) = part.jobs()
    assert (one.node, one.job) == ("n0", "job-1") and [window.number for window in one.windows] == [0]
    half = b"\n".join(steps(70, 40)) + b"\n"
    with open(folder / "1700000000", "ab") as stream:
        stream.write(half[:1000])
    part.look()
    with open(folder / "1700000000", "ab") as stream:
        stream.write(half[1000:])
    _job(tmp_path, 0, 110, 60, "1700000600")
    part.look()
    assert [(window.number, window.steps) for window in part.jobs()[0].windows] == [(0, 50), (1, 50), (2, 50)]


def test_links_in_the_folder_of_containers_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    _job(secret, 0, 0, 70)
    root = tmp_path / "profiling"
    (root / "job-2" / "0").mkdir(parents=True)
    os.symlink(secret / "job-1", root / "job-1")
    os.symlink(secret / "job-1" / "0" / "1700000000", root / "job-2" / "0" / "1700000000")
    part = StepTimes("n0", FakeCluster(VirtualClock()), root)
    part.look()
    assert part.jobs() == ()


def test_what_is_written_is_read_back() -> None:
    window = StepWindow(
        3, 7, 50, 100, 60, 5, (GroupTime("dp", tuple(range(3, 4099, 8)), 9), GroupTime("tp", (3, 4), 1))
    )
    body = steptimes.steps_map("n0", 5, [NodeSteps("n0", "job", (window,))])
    assert steptimes.parse_steps(body) == ("n0", 5, (NodeSteps("n0", "job", (window,)),))
    assert '"3-4091:8"' in body["data"]["steps.json"]


@given(st.lists(st.integers(0, 5000), max_size=60))
def test_ranks_survive_as_text(ranks: list[int]) -> None:
    assert steptimes.ranks_of(steptimes.runs(ranks)) == tuple(ranks)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"node": "n1"}, "node"),
        ({"jobs": {"../x": {}}}, "jobs"),
        ({"jobs": {"j": {"groups": {"0": {"kind": "tp", "ranks": "0-99999999"}}}}}, "groups.0"),
        ({"jobs": {"j": {"windows": [[1]]}}}, "steps.json"),
        ({"jobs": {f"j{i}": {} for i in range(17)}}, "jobs"),
    ],
)
def test_a_report_that_is_wrong_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    body = steptimes.steps_map("n0", 5, [])
    body["data"]["steps.json"] = json.dumps({"node": "n0", "time": 5, "jobs": {}} | change)
    with pytest.raises(WireError) as problem:
        steptimes.parse_steps(body)
    assert field in problem.value.field


FEATURE = (
    '{"jobName":"pretrain","jobNamespace":"train","normalNumber":20,"nSigma":3,"degradationPercentage":0.3,'
    '"nConsecAnomaliesSignifySlow":5,"nSecondsDoOneDetection":30,"clusterMeanDistance":1.3,"cardOneNode":16,"SlowNode":1}'
)


def _feature(text: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "mindx-dl", "name": "ras-feature-slownode-a"}, "data": {"FeatConf": text}}


def test_the_documented_settings_are_read_and_wrong_ones_named() -> None:
    found = slownode.parse_settings(_feature(FEATURE))
    assert (found.namespace, found.job, found.on) == ("train", "pretrain", True)
    assert (found.limits.degradation, found.limits.sigmas, found.limits.windows) == (0.3, 3.0, 5)
    least = slownode.parse_settings(_feature('{"jobname":"x","slownode":0}'))
    assert (least.namespace, least.on, least.limits.degradation) == ("default", False, 0.03)
    for text, field in (('{"jobName":"x","nSigma":"3"}', "nSigma"), ("{}", "jobName"), ("[", "FeatConf")):
        with pytest.raises(WireError, match=field):
            slownode.parse_settings(_feature(text))


def _found(group: str, ranks: tuple[int, ...], kind: Slowness = Slowness.COMMUNICATION) -> SlowFinding:
    return SlowFinding(kind, ranks, group, 0.05, 9000, 4000, 7, 0.03, 4)


def test_faults_name_the_chips_and_say_the_figures() -> None:
    node_of = {rank: f"n{rank // 2}" for rank in range(8)}
    chips = {rank: rank % 2 for rank in range(8)}

    def codes(*findings: SlowFinding, shared: Any = None) -> list[tuple[str, dict[str, list[int]]]]:
        rows = slownode.faults("uid-1", "train/pretrain", findings, node_of, chips, shared)
        body = slownode.message("slow-nodes-1", 1_788_249_600_000, [
            slownode.claim(row, "occur", 1_788_249_600_000) for row in rows.values()
        ])  # fmt: skip
        message, problems = public_faults.read(body)
        assert message is not None and not problems
        return [(row["code"], row["nodes"]) for row in rows.values()]

    assert codes(_found("", (3,), Slowness.COMPUTATION)) == [("110001010", {"n1": [1]})]
    assert codes(_found("tp", (0, 1))) == [("200001010", {"n0": [0, 1]})]
    assert codes(_found("dp", (0, 2))) == [("200001011", {"n0": [0], "n1": [0]})]
    two = (_found("dp", (0, 2)), _found("dp", (0, 4)))
    assert {code for code, _ in codes(*two)} == {"200001012"}
    assert codes(*two, shared={"dp": (0,)}) == [("200001011", {"n0": [0]})] * 2
    (row,) = slownode.faults("uid-1", "train/pretrain", two[:1], node_of, chips).values()
    text = row["text"]
    assert "9.0 ms of each step" in text and "5.0% of a step more (limit 3.0%), since step 200" in text


def test_the_documented_settings_of_containers_are_json_under_any_key() -> None:
    given = {"PerfDumpPath": "/dump", "PerfDumpConfig": "enable:true"}
    assert settings_of({"any": json.dumps({"data": given})}) == {
        "PERF_DUMP_PATH": "/dump", "PERF_DUMP_CONFIG": "enable:true",
    }  # fmt: skip
    assert settings_of({"any": "{", "other": '{"data": 3}', "third": "[[]]"}) == {}


def test_collectives_are_recorded_with_their_operation(tmp_path: Path) -> None:
    records = Records(tmp_path / "0", 1)
    profiler = Profiler(records)
    profiler.communication = True

    def all_reduce(tensor: int, group: Any = None) -> int:
        return tensor

    assert profiler._around(all_reduce, "all_reduce", "communication")(4, group=object()) == 4
    records.flush()
    (file,) = (tmp_path / "0").iterdir()
    assert json.loads(json.loads(file.read_text().splitlines()[0])["Name"])["opName"] == "all_reduce"
    assert json.loads(collective("barrier", None))["opName"] == "barrier"
