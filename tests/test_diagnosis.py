"""From the logs of a broken job to its root: synthetic gangs whose logs have the published forms."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from belay.agents.node.diagnosis.matching import Findings, LogText
from belay.agents.node.diagnosis.rules import shipped_rules
from belay.agents.node.diagnosis.times import stamp_of, zone_of
from belay.engine.gangs.evidence import job_of
from belay.engine.load import load
from belay.engine.model.diagnosis import Diagnosis, diagnose
from belay.engine.model.log_evidence import LogSource, PodEvidence
from belay.engine.model.times import parse_rfc3339
from belay.engine.status.diagnoses import diagnosis_body

RULES = shipped_rules()
START = parse_rfc3339("2026-11-23T08:00:00Z")
CHIPS = 8


def clock(seconds: float) -> str:
    """A time in a plog, on a node eight hours ahead of UTC."""
    moment = time.gmtime(START + seconds + 8 * 3600)
    return time.strftime("%Y-%m-%d-%H:%M:%S", moment) + f".{int(seconds % 1 * 1000):03}.120"


class Gang:
    """Logs of a gang by pod and rank; times are seconds after the start."""

    def __init__(self, pods: int, skew: float = 0.0, seed: int = 0) -> None:
        self.size = pods * CHIPS
        chance = random.Random(seed)
        self.skews = [chance.uniform(-skew, skew) for _ in range(pods)]
        self.plogs: dict[int, list[tuple[float, str]]] = {}
        self.outputs: dict[int, list[tuple[float, str]]] = {}
        self.lost: set[int] = set()
        for rank in range(self.size):
            self.plog(rank, 1.0, f"[op_base.cc:1] [1]Entry-HcclCommInitRootInfoInner:ranks[{self.size}], rank[{rank}], "
                      f"rootinfo: host ip[10.0.0.1] port[60000], deviceLogicId[{rank % CHIPS}]", "INFO")  # fmt: skip

    def plog(self, rank: int, at: float, text: str, level: str = "ERROR") -> None:
        stamp = clock(at + self.skews[rank // CHIPS])
        self.plogs.setdefault(rank, []).append((at, f"[{level}] HCCL({1000 + rank},python):{stamp} {text}"))

    def says(self, pod: int, at: float, text: str) -> None:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(START + at + self.skews[pod]))
        self.outputs.setdefault(pod, []).append((at, f"{moment}.123456789Z stderr F {text}"))

    def waits(self, rank: int, at: float, remote: int | str) -> None:
        text = ("[task_exception.cc:1] [9][TaskExecStage]EI0002: The wait execution of the Notify register times "
                "out. Reason: The Notify register has not received the Notify record from remote rank "
                f"[{remote}]. base information: [streamID:[14], taskID[6], tag[AllReduce_10.0.0.1%enp_0]]")  # fmt: skip
        self.plog(rank, at, text)

    def evidence(self) -> list[PodEvidence]:
        found = []
        for pod in range(self.size // CHIPS):
            if pod in self.lost:
                continue
            findings = Findings(RULES, 0)
            for rank in range(pod * CHIPS, (pod + 1) * CHIPS):
                findings.read(
                    _log(LogSource.PLOG, f"debug/plog/plog-{1000 + rank}_20261123.log", self.plogs[rank], 8, START)
                )
            if pod in self.outputs:
                findings.read(_log(LogSource.TRAINING, "ascend/0.log", self.outputs[pod], 0, START))
            events = findings.events()
            found.append(PodEvidence(
                "team", f"train-worker-{pod}", f"uid-{pod}", node=f"node-{pod}", kind="AscendJob", owner="train",
                api_version="mindxdl.gitee.com/v1", host_ip=f"10.0.{pod // 250}.{pod % 250}", pod_rank=pod,
                chips=tuple(range(CHIPS)), ranks=findings.ranks, world=findings.world, events=events,
                collected_ms=int((START + 2100) * 1000),
            ))  # fmt: skip
        return found

    def broken(self, **more: Any) -> Diagnosis:
        found = diagnose(self.evidence(), **more)
        assert found is not None
        return found


def _log(source: LogSource, name: str, rows: Iterable[tuple[float, str]], zone: int, start: float) -> LogText:
    ordered = sorted(rows)
    last = ordered[-1][0] if ordered else 0
    return LogText(source, name, "\n".join(line for _, line in ordered).encode(), int((start + last + 0.5) * 1000))


def everyone_waits(gang: Gang, root: int, at: float, seed: int = 1) -> None:
    """Each rank but the root times out, waiting for its neighbour in a ring; the root's neighbour for the root."""
    chance = random.Random(seed)
    for rank in range(gang.size):
        if rank != root:
            gang.waits(rank, at + chance.uniform(0, 2), (rank - 1) % gang.size)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("RuntimeError: NPU out of memory. NPU 3; 60.96 GiB total capacity", "DeviceOutOfMemory"),
        ("OSError: [Errno 28] No space left on device: '/ckpt/iter_100'", "DiskFull"),
        ("torch.distributed: exitcode  : -9 (pid: 4242)", "KilledBySignal"),
        ("EZ9999: Inner Error! The aicore execution is abnormal", "AicoreError"),
    ],
)
def test_the_first_error_of_a_rank_is_the_root(text: str, code: str) -> None:
    gang = Gang(12, skew=1.0)
    gang.says(7, 100.0, f"[rank61]: {text}")
    everyone_waits(gang, 61, 1900.0)
    found = gang.broken()
    assert [(root.rank, root.node, root.code) for root in found.roots] == [(61, "node-7", code)]


def test_the_first_error_of_a_rank_among_a_thousand_is_the_root() -> None:
    gang = Gang(125, skew=1.0)
    gang.says(77, 100.0, "[rank619]: RuntimeError: NPU out of memory. NPU 3; 60.96 GiB total capacity")
    everyone_waits(gang, 619, 1900.0)
    found = gang.broken()
    assert (found.rule, found.heard) == ("firstError", 125)
    assert [(root.rank, root.node, root.code) for root in found.roots] == [(619, "node-77", "DeviceOutOfMemory")]
    assert abs(found.roots[0].at_ms - (START + 100) * 1000) <= 1200
    assert {event.code: event.pods for event in found.events}["NotifyWaitTimeout"] == 125


def test_a_silent_rank_among_a_thousand_is_the_root() -> None:
    gang = Gang(125, skew=2.0)
    everyone_waits(gang, 400, 1900.0)
    found = gang.broken()
    assert (found.rule, [(root.rank, root.node) for root in found.roots]) == ("silent", [(400, "node-50")])
    assert "999 ranks wait for others and 1 of 1000 report nothing" in found.figures


def test_a_pod_whose_node_is_gone_is_the_root() -> None:
    gang = Gang(8)
    for rank in range(gang.size):
        if rank // CHIPS != 3:
            gang.waits(rank, 1900.0, "unknown")
    gang.lost.add(3)
    found = gang.broken(expected={f"train-worker-{i}": f"node-{i}" for i in range(8)})
    assert (found.rule, [(root.pod, root.node) for root in found.roots]) == ("silent", [("train-worker-3", "node-3")])
    assert (found.heard, found.expected) == (7, 8)


def test_the_device_that_heartbeats_name_is_the_root() -> None:
    gang = Gang(16)
    for rank in range(gang.size):
        gang.waits(rank, 1900.0, "unknown")
        text = ("Cluster Exception Location[IP/ID]:[10.0.0.5/2], Arrival Time:[Mon Nov 23 16:30:00 2026], Discoverer:"
                "[10.0.0.4/1], ExceptionType:[Heartbeat Lost Occurred], Possible Reason:1. Process exited")  # fmt: skip
        gang.plog(rank, 1900.1, text)
    found = gang.broken()
    assert (found.rule, [(root.rank, root.node) for root in found.roots]) == ("located", [(42, "node-5")])


def test_the_end_of_a_chain_of_connections_is_the_root() -> None:
    gang = Gang(2)
    for rank in range(gang.size):
        remote = 11 if rank != 11 else 12
        gang.plog(rank, 120.0, "[hccl_socket_manager.cc:816] [1][Wait][LinkEstablish]wait socket establish timeout, "
                  f"role[0] rank[{rank}] timeout[120 s]")  # fmt: skip
        if rank != 11:
            gang.plog(rank, 120.1, f"[hccl_socket_manager.cc:599] [1]| 192.168.2.198({remote}) | 16666 | "
                      f"192.168.2.199({rank}) | 0 | server | time out | DISABLE |")  # fmt: skip
    found = gang.broken()
    assert (found.rule, [(root.rank, root.node) for root in found.roots]) == ("waitedFor", [(11, "node-1")])


def test_ranks_that_never_joined_are_named() -> None:
    gang = Gang(2)
    gang.plog(0, 120.0, '[topoinfo_exchange_base.cc:119] [1][Recv][ClusterInfoMsg] TopoDetect ERROR occur !!! '
              'fault_type[1], fault_info["Failed to connect agent[9,]"]')  # fmt: skip
    found = gang.broken()
    assert [(root.rank, root.node) for root in found.roots] == [(9, "node-1")]


def test_the_rank_that_comes_late_is_the_root_where_all_time_out() -> None:
    gang = Gang(4)
    for rank in range(gang.size):
        gang.waits(rank, 4000.0 if rank == 13 else 1900.0 + rank / 100, "unknown")
    found = gang.broken()
    assert (found.rule, [root.rank for root in found.roots]) == ("late", [13])
    assert "it reported 2100 s after the first rank" in found.figures


def test_an_error_after_the_timeouts_is_no_root() -> None:
    gang = Gang(4)
    everyone_waits(gang, 5, 1900.0)
    gang.says(2, 1960.0, "[rank16]: Traceback (most recent call last):")
    found = gang.broken()
    assert (found.rule, [root.rank for root in found.roots]) == ("silent", [5])


WEIGHTS = {code: rule.priority for code, rule in load({}).desired.diagnosis_rules.items()}


def test_an_error_that_most_pods_print_and_live_on_with_is_no_root() -> None:
    gang = Gang(6)
    for pod in range(6):
        gang.says(pod, 20.0, "WARNING: FileNotFoundError: [Errno 2] No such file or directory: '/cache/kernels'")
    everyone_waits(gang, 17, 1900.0)
    found = gang.broken(priorities=WEIGHTS)
    assert (found.rule, [root.rank for root in found.roots]) == ("silent", [17])


def test_an_error_of_a_rank_that_waits_afterwards_is_no_root() -> None:
    gang = Gang(6)
    gang.says(3, 20.0, "[rank25]: PermissionError: [Errno 13] Permission denied: '/tmp/x', ignored")
    gang.says(2, 900.0, "[rank17]: ModuleNotFoundError: No module named 'apex'")
    everyone_waits(gang, 17, 1900.0)
    found = gang.broken(priorities=WEIGHTS)
    assert [(root.rank, root.code) for root in found.roots] == [(17, "PythonModuleMissing")]


def test_an_error_of_hardware_counts_also_on_a_rank_that_waits() -> None:
    gang = Gang(6)
    everyone_waits(gang, 17, 1900.0)
    gang.plog(25, 100.0, "[a.cc:1] HBM MULTI BIT ECC, device_id=1")
    found = gang.broken(priorities=WEIGHTS)
    assert [(root.rank, root.code) for root in found.roots] == [(25, "DeviceMemoryError")]


def test_an_error_that_ends_all_pods_is_the_root_where_none_waits() -> None:
    gang = Gang(6)
    for pod in range(6):
        gang.says(pod, 20.0, f"[rank{8 * pod}]: ModuleNotFoundError: No module named 'apex'")
    assert {root.code for root in gang.broken(priorities=WEIGHTS).roots} == {"PythonModuleMissing"}


def test_errors_that_clocks_cannot_order_are_named_together() -> None:
    gang = Gang(4, skew=1.0)
    gang.says(1, 100.0, "[rank8]: OSError: [Errno 28] No space left on device")
    gang.says(3, 100.5, "[rank24]: OSError: [Errno 28] No space left on device")
    found = gang.broken()
    assert sorted(root.rank for root in found.roots) == [8, 24]
    assert "clocks cannot order" in found.figures


def test_an_error_of_hardware_comes_before_the_exception_that_it_causes() -> None:
    gang = Gang(2)
    gang.says(0, 100.0, "[rank1]: Traceback (most recent call last):")
    gang.says(0, 100.2, "[rank1]: RuntimeError: ACL stream synchronize failed, error code is 507053 UCE ERROR")
    weights = {code: rule.priority for code, rule in load({}).desired.diagnosis_rules.items()}
    found = gang.broken(priorities=weights)
    assert [(root.rank, root.code) for root in found.roots] == [(1, "DeviceMemoryError")]


def test_the_order_of_evidence_changes_nothing() -> None:
    gang = Gang(6, skew=1.0)
    everyone_waits(gang, 17, 1900.0)
    evidence = gang.evidence()
    expected = diagnose(evidence)
    for seed in range(5):
        random.Random(seed).shuffle(evidence)
        assert diagnose(evidence) == expected


def test_logs_without_an_error_say_nothing() -> None:
    assert diagnose(Gang(2).evidence()) is None


def test_evidence_of_an_earlier_failure_does_not_count() -> None:
    gang = Gang(2)
    gang.says(0, 10.0, "OSError: [Errno 28] No space left on device")
    old = [msgspec.structs.replace(one, collected_ms=one.collected_ms - 7_200_000) for one in gang.evidence()[:1]]
    fresh = Gang(2)
    everyone_waits(fresh, 9, 1900.0)
    found = diagnose([*old, *fresh.evidence()[1:]])
    assert found is not None
    assert [root.rank for root in found.roots] == [9]


@pytest.mark.parametrize(
    ("fields", "job"),
    [
        ({"kind": "AscendJob", "owner": "train", "api_version": "mindxdl.gitee.com/v1"}, "team/AscendJob/train"),
        ({"kind": "Job", "owner": "vc", "api_version": "batch.volcano.sh/v1alpha1"}, "team/Job/vc"),
        ({"kind": "Job", "owner": "b", "api_version": "batch/v1"}, "team/Job.batch/b"),
        (
            {"kind": "ReplicaSet", "owner": "web-5d", "template_hash": "5d", "api_version": "apps/v1"},
            "team/Deployment/web",
        ),
        ({"kind": "RoleSet", "owner": "r", "group": "podgroup-1"}, "team/PodGroup/podgroup-1"),
        ({}, "team/Pod/p"),
    ],
)
def test_evidence_finds_its_job(fields: Mapping[str, str], job: str) -> None:
    assert job_of(PodEvidence("team", "p", "u", **dict(fields))) == job


@pytest.mark.parametrize(
    ("line", "moment"),
    [
        ("[ERROR] HCCL(1,python):2025-11-22-17:37:04.447.996 [a.cc:1]", "2025-11-22T17:37:04.447Z"),
        ("2025-11-22T17:37:04.447996+08:00 stdout F x", "2025-11-22T09:37:04.447Z"),
        ("2025-11-22 17:37:04,447 - ERROR - x", "2025-11-22T17:37:04.447Z"),
        ("Nov 22 17:37:04 node-1 kernel: x", "2025-11-22T17:37:04Z"),
        ("[ERROR]     2025/11/22 17:37:04.447996 1       main.go:80    x", "2025-11-22T17:37:04.447Z"),
        ("E1122 17:37:04.447996       1 job.go:1] x", "2025-11-22T17:37:04Z"),
        ("E1322 17:37:04.447996       1 job.go:1] x", None),
        ("Nov 22 2025 17:37:04+08:00 lsw IFNET/2/linkDown_active", "2025-11-22T09:37:04Z"),
        ("[devid 2]    Sat Nov 22 17:37:04 2025    LINK DOWN", "2025-11-22T17:37:04Z"),
        ("[Sat Nov 32 17:37:04 2025] kernel: x", None),
        ("[2025-13-45 17:37:04] x", None),
        ("no time", None),
    ],
)
def test_times_of_lines_are_read(line: str, moment: str | None) -> None:
    found = stamp_of(line, int(parse_rfc3339("2025-11-23T00:00:00Z") * 1000))
    assert (found.ms if found else None) == (round(parse_rfc3339(moment) * 1000) if moment else None)


def test_the_zone_of_a_file_follows_from_its_last_change() -> None:
    written = int(parse_rfc3339("2026-11-23T08:00:03Z") * 1000)
    local = stamp_of("2026-11-23 16:00:00,000 x", written)
    assert zone_of(local, written) == -8 * 3_600_000
    assert zone_of(None, written) == 0


def test_the_status_of_a_job_says_why_in_both_languages() -> None:
    gang = Gang(2)
    gang.says(1, 100.0, "[rank9]: RuntimeError: NPU out of memory. Tried to allocate 2 GiB")
    everyone_waits(gang, 9, 1900.0)
    body = diagnosis_body(gang.evidence(), load({}).desired)["diagnosis"]
    assert body["root"] == "rank 9 (train-worker-1 on node-1): its own error came first"
    (root,) = body["roots"]
    assert (root["code"], root["what"], root["whatZh"]) == (
        "DeviceOutOfMemory", "The chip has no memory left", "片上内存不足",
    )  # fmt: skip
    assert body["next"] == "belay explain node node-1"
    assert body["podsRead"] == "2 of 2"
    assert body["events"][0]["example"].startswith("[rank9]: RuntimeError: NPU out of memory")


def test_a_rule_of_the_repository_replaces_the_shipped_one() -> None:
    own = (
        "apiVersion: belay.dev/v1alpha1\nkind: DiagnosisRules\nmetadata: {name: ours}\nspec:\n  rules:\n"
        "    - code: DiskFull\n      role: cause\n      match: [[quota of team]]\n      title: {en: Our quota}\n"
        "      advice: {en: Ask the storage team}\n"
    )
    loaded = load({"policies/diagnosis/ours.yaml": own.encode()})
    assert loaded.diagnostics == ()
    assert loaded.desired.diagnosis_rules["DiskFull"].title.of("zh") == "Our quota"
    assert [rule.code for rule in loaded.desired.own_diagnosis_rules] == ["DiskFull"]


def test_a_mistake_in_a_rule_is_an_error_at_its_place() -> None:
    own = (
        "apiVersion: belay.dev/v1alpha1\nkind: DiagnosisRules\nmetadata: {name: ours}\nspec:\n  rules:\n"
        "    - code: Twice\n      role: guess\n      match: [[a text]]\n      title: {en: x}\n      advice: {en: y}\n"
    )
    (found,) = load({"policies/diagnosis/ours.yaml": own.encode()}).diagnostics
    assert (found.file, found.line) == ("policies/diagnosis/ours.yaml", 7)
    assert "spec.rules[0].role" in found.field
