"""`belay diagnose`: which collected files are read as what, by node, and what is said of it."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from belay.agents.node.diagnosis import archive, collected
from belay.agents.node.diagnosis.matching import LogText
from belay.agents.node.diagnosis.rules import shipped_rules
from belay.engine.cli import main
from belay.engine.model.diagnosis import diagnose
from belay.engine.model.log_evidence import LogSource
from tests.test_diagnosis import CHIPS, START, Gang, everyone_waits

RULES = shipped_rules()


def write(path: Path, text: str | bytes, at: float = START) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    os.utime(path, (at, at))
    return path


def belay(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["diagnose", *map(str, arguments)])


def answer(*arguments: object) -> dict[str, Any]:
    result = belay(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def gang(tmp_path: Path) -> Path:
    """Four nodes as FaultDiag collects them; rank 9 runs out of memory, the others wait for it half an hour."""
    logs = Gang(4, skew=0.5)
    logs.plog(9, 100.0, "[stream.cc:1] NPU out of memory. Tried to allocate 2.00 GiB")
    everyone_waits(logs, 9, 1900.0)
    for pod in range(4):
        for rank in range(pod * CHIPS, (pod + 1) * CHIPS):
            rows = sorted(logs.plogs[rank])
            name = f"worker-{pod}/process_log/debug/plog/plog-{1000 + rank}_20261123080000000.log"
            write(tmp_path / name, "\n".join(line for _, line in rows) + "\n", START + rows[-1][0])
    return tmp_path


def test_the_root_of_a_collection_is_named_with_what_to_do(gang: Path) -> None:
    result = belay(gang)
    assert result.exit_code == 0
    assert result.output.startswith("4 nodes, 32 logs read by ")
    assert "root: rank 9 (worker-1): its own error came first\n" in result.output
    assert "its own error came first, 1800 s before the first rank stopped waiting" in result.output
    assert "  worker-1: DeviceOutOfMemory at 2026-11-23T08:01:4" in result.output
    assert "    do: Lower batch size" in result.output
    assert "NotifyWaitTimeout (collective)" in result.output
    chinese = belay(gang, "--language", "zh").output
    assert "最早出现自身错误" in chinese
    assert "建议: 减小 batch" in chinese


def test_documents_name_each_node_and_its_logs(gang: Path) -> None:
    write(gang / "worker-2/notes.md", "x")
    found = answer(gang)
    assert found["diagnosis"]["rule"] == "firstError"
    assert [root["rank"] for root in found["diagnosis"]["roots"]] == [9]
    assert "next" not in found["diagnosis"], "no cluster to ask"
    nodes = {row["node"]: row for row in found["nodes"]}
    assert sorted(nodes) == ["worker-0", "worker-1", "worker-2", "worker-3"]
    assert (nodes["worker-2"]["logs"], nodes["worker-2"]["skipped"]) == ({"plog": 8}, 1)
    assert {event["code"] for event in nodes["worker-1"]["events"]} == {"DeviceOutOfMemory", "NotifyWaitTimeout"}
    assert belay(gang, "-o", "yaml").exit_code == 0


def _join(rank: int, of: int, device: int, server: str = "10.0.0.1") -> str:
    return (
        f"[INFO] HCCL({1000 + rank},python3):2026-11-23-16:00:00.000.120 [topoinfo_detect.cc:506] [1][HCCL_TRACE][Flat]"
        f"SetupAgent rankNum[{of}], rank[{rank}], rootInfo identifier[10.0.0.1%eth0_60000_0_1], server[{server}%eth0], "
        f"serverPort[60000]deviceType[2], logicDevId[{device}], phydevId[{device}], deviceIp[192.168.2.{device}]\n"
    )


def _plog(folder: Path, rank: int, of: int, device: int, *lines: str, server: str = "10.0.0.1") -> None:
    text = _join(rank, of, device, server) + "".join(
        f"[ERROR] HCCL({1000 + rank},python3):2026-11-23-16:10:{number:02}.000.120 {line}\n"
        for number, line in enumerate(lines)
    )
    write(folder / f"process_log/debug/plog/plog-{1000 + rank}_2026.log", text)


def _root(folder: Path) -> tuple[str, int | None, str]:
    found = answer(folder)["diagnosis"]
    return found["rule"], found["roots"][0]["rank"], found["roots"][0]["node"]


def test_a_chip_of_the_same_node_that_others_wait_for_is_found_by_its_number(tmp_path: Path) -> None:
    wait = (
        "[a.cc:1] [1][Wait][P2PConnected]connected p2p timeout, timeout:130 s. local logicDevid:0, remote physic id:1."
    )
    table = "[a.cc:2] [1]   |  192.168.2.1(8)   |  16666  |   192.168.2.2(10)   |  0  |  client  | time out |"
    _plog(tmp_path / "worker-1", 8, 16, 0, wait)
    _plog(tmp_path / "worker-1", 9, 16, 1)
    _plog(tmp_path / "worker-1", 10, 16, 2, table)
    _plog(tmp_path / "worker-0", 2, 16, 2, table.replace("(8)", "(10)").replace("2.2(10)", "2.3(2)"))
    found = answer(tmp_path)["diagnosis"]
    assert [(root["rank"], root["node"]) for root in found["roots"]] == [(9, "worker-1")]


def test_tables_of_older_versions_and_failed_transports_name_whom_they_wait_for(tmp_path: Path) -> None:
    old = "[comm_base.cc:1018][1]   |  124.0.0.21({})   |   124.0.0.11({})   |  client  | no connect |"
    failed = "[transport_manager.cc:247] [1][Create]errNo[0x0000000005000006] transport create fail in thread, local " \
             "rank[{}] remote rank[{}]"  # fmt: skip
    for kind, text in (("old", old), ("new", failed)):
        for rank in range(3):
            lines = (
                [text.format(0, rank) if kind == "old" else text.format(rank, 0)] if rank else [text.format(1, 0)[:20]]
            )
            _plog(tmp_path / kind / f"worker-{rank}", rank, 3, 0, *lines)
        assert _root(tmp_path / kind)[1:] == (0, "worker-0"), kind


def test_the_device_that_heartbeats_name_is_found_by_the_addresses_that_processes_say(tmp_path: Path) -> None:
    lost = "[heartbeat.cc:1] Cluster Exception Location[IP/ID]:[10.0.0.2/1], ExceptionType:[Heartbeat Lost Occurred]"
    for node in range(2):
        for device in range(2):
            rank = node * 2 + device
            _plog(tmp_path / f"worker-{node}", rank, 4, device, *([lost, "EI0002: times out"] if rank != 3 else []),
                  server=f"10.0.0.{node + 1}")  # fmt: skip
    assert _root(tmp_path) == ("located", 3, "worker-1")


def test_a_rank_that_is_none_is_not_waited_for(tmp_path: Path) -> None:
    line = "[a.cc:1] [1][TaskException]base information is type:NOTIFY WAIT, localRank:1, remoteRank:4294967295, x"
    _plog(tmp_path / "worker-0", 0, 2, 0, line)
    (event,) = answer(tmp_path / "worker-0")["nodes"][0]["events"]
    assert event["code"] == "NotifyWaitTimeout"
    found = [one for node in collected.nodes_in(tmp_path) for one in collected.read_node(node, RULES, 0, None)]
    assert found[0].events[0].remotes == ()


def test_one_node_alone_is_read_too(gang: Path) -> None:
    found = answer(gang / "worker-1")
    assert [row["node"] for row in found["nodes"]] == ["worker-1"]
    assert found["diagnosis"]["roots"][0]["code"] == "DeviceOutOfMemory"
    both = answer(gang / "worker-1", gang / "worker-0")
    assert [row["node"] for row in both["nodes"]] == ["worker-0", "worker-1"]


def test_a_bmc_is_no_silent_rank_and_its_alarm_may_be_the_root(gang: Path) -> None:
    write(gang / "bmc-7/dump_info/LogDump/x/sel.log", "2026-11-23T15:00:00.123456+08:00 nothing\n")
    assert [root["rank"] for root in answer(gang)["diagnosis"]["roots"]] == [9]
    write(gang / "bmc-7/dump_info/LogDump/x/sel.log",
          "2026-11-23T16:01:20.123456+08:00 [0x2C000031] fatal error Asserted\n")  # fmt: skip
    (root,) = answer(gang)["diagnosis"]["roots"]
    assert (root["node"], root["code"], root["what"]) == ("bmc-7", "Bmc.2C000031", "the server had a fatal error")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("process_log/run/plog/plog-12_20261123.log", "plog"),
        ("process_log/debug/device-0/device-12_20261123.log", "device"),
        ("device_log/slog/dev-os-0/device-0/x.log", "device"),
        ("device_log/hisi_logs/device-0/history.log", "device"),
        ("dl_log/devicePlugin/devicePlugin.log", "component"),
        ("dl_log/noded/noded-1.log.gz", "component"),
        ("dl_log/volcano-scheduler/volcano-scheduler.log", "component"),
        ("dl_log/ttp_log/ttp_log.log.1", "training"),
        ("mindie/log/debug/mindie-server.log", "inference"),
        ("mindie/log/mindie_cluster_log/p.log", "inference"),
        ("pymotor_vllm_log/vllm-p0.log", "inference"),
        ("amct_log/amct_acl.log", "training"),
        ("environment_check/npu_info_before.txt", "check"),
        ("bus_log/log_1_20261123080000.log", "switch"),
        ("lcne_log/a/log.log", "switch"),
        ("dump_info/AppDump/x/y.log", "bmc"),
        ("messages", "host"),
        ("messages-20261122.gz", "host"),
        ("dmesg", "host"),
        ("crash/127.0.0.1-2026/vmcore_dmesg.txt", "host"),
        ("sysmonitor.log", "host"),
        ("rank-0.txt", "training"),
        ("worker-3.log", "training"),
        ("logs/anything.log", "training"),
    ],
)
def test_files_are_known_by_folder_or_name(tmp_path: Path, path: str, source: str) -> None:
    write(tmp_path / "node" / path, "x\n")
    (node,) = collected.nodes_in(tmp_path / "node")
    assert [log.source.value for log in node.logs] == [source]


@pytest.mark.parametrize(
    "path",
    [
        "environment_check/npu_smi_0_details.csv", "environment_check/host_metrics_64.json", "dmidecode.txt",
        "a.tar.gz", "a.zip", "readme.txt", "model.bin", "core.123",
    ],
)  # fmt: skip
def test_other_files_are_left_out_and_counted(tmp_path: Path, path: str) -> None:
    write(tmp_path / "node" / path, "x\n")
    write(tmp_path / "node/messages", "x\n")
    (node,) = collected.nodes_in(tmp_path / "node")
    assert ([log.path.name for log in node.logs], node.skipped) == (["messages"], 1)


def test_a_folder_of_nodes_may_hold_notes(tmp_path: Path) -> None:
    write(tmp_path / "notes.txt", "what we collected\n")
    write(tmp_path / "a/messages", "x\n")
    write(tmp_path / "b/rank-0.txt", "x\n")
    write(tmp_path / "empty/x.csv", "x\n")
    assert [node.name for node in collected.nodes_in(tmp_path)] == ["a", "b"]


def test_no_link_is_followed_and_a_pipe_is_no_log(tmp_path: Path, tmp_path_factory: Any) -> None:
    secret = write(tmp_path_factory.mktemp("other") / "messages", "Kernel panic\n")
    node = tmp_path / "node"
    write(node / "dmesg", "x\n")
    (node / "messages").symlink_to(secret)
    (node / "process_log").symlink_to(secret.parent)
    os.mkfifo(node / "rank-0.txt")
    (found,) = collected.nodes_in(node)
    assert [log.path.name for log in found.logs] == ["dmesg"]


def test_packed_logs_are_read_to_a_bound_and_damage_keeps_what_came_before(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(collected, "MOST_UNPACKED", 4 << 20)
    monkeypatch.setattr(collected, "FILE_BYTES", 1 << 20)
    packed = gzip.compress(b"kernel: Kernel panic - not syncing\n" + b"x" * 100)
    write(tmp_path / "node/messages-1.gz", packed[:-4])
    write(tmp_path / "node/messages-2.gz", gzip.compress(b"\0" * (64 << 20)))
    (node,) = collected.nodes_in(tmp_path / "node")
    (found,) = collected.read_node(node, RULES, 0, None)
    assert [event.code for event in found.events] == ["KernelPanic"]
    assert found.cut


def test_a_rank_is_known_by_the_name_of_its_output(tmp_path: Path) -> None:
    write(tmp_path / "node/rank-5.txt", "2026-11-23 16:00:00 RuntimeError: NPU out of memory.\n")
    (root,) = answer(tmp_path / "node")["diagnosis"]["roots"]
    assert root["rank"] == 5


def test_what_agents_kept_is_read_pod_by_pod(tmp_path: Path) -> None:
    store = archive.LogArchive(tmp_path / "node-1")
    line = b"2026-11-23T08:00:00Z stderr F [rank3]: RuntimeError: NPU out of memory. password=hunter2\n"
    store.keep("team.train-0", int(START * 1000), [
        LogText(LogSource.TRAINING, "ascend/0.log", line, 0),
        LogText(LogSource.HOST, "/var/log/messages", b"Nov 23 08:00:00 n kernel: Kernel panic - not syncing\n", 0),
    ])  # fmt: skip
    found = answer(tmp_path)
    codes = {event["code"]: event for event in found["nodes"][0]["events"]}
    assert set(codes) == {"DeviceOutOfMemory", "KernelPanic"}
    assert codes["KernelPanic"]["source"] == "host"
    assert codes["DeviceOutOfMemory"]["first"] == "2026-11-23T08:00:00Z"
    assert "hunter2" not in json.dumps(found)


def test_secrets_and_on_demand_addresses_stay_out(tmp_path: Path) -> None:
    write(tmp_path / "node/rank-0.txt", "NPU out of memory at 10.0.0.9 token=abcdef123456\n")
    assert "abcdef123456" not in belay(tmp_path / "node").output
    assert "10.0.0.9" in belay(tmp_path / "node").output
    assert "10.0.0.9" not in belay(tmp_path / "node", "--hide-addresses").output


def _times(folder: Path, *more: object) -> list[str | None]:
    return [event["first"] for row in answer(folder, *more)["nodes"] for event in row["events"]]


def test_local_times_get_the_zone_of_their_node(tmp_path: Path) -> None:
    node, late = tmp_path / "node", START + 10**6
    plog = "[ERROR] RUNTIME(1,python):2026-11-23-16:00:00.000.120 HBM MULTI BIT ECC\n"
    write(node / "process_log/plog-1_1.log", plog, late)
    assert _times(node) == ["2026-11-23T16:00:00Z"]
    assert _times(node, "--timezone", "+08:00") == ["2026-11-23T08:00:00Z"]
    write(node / "environment.log", "2026-11-23T16:00:00+08:00 ready\n", late)
    assert _times(node) == ["2026-11-23T08:00:00Z"], "as another log of the node states it"


def test_kept_times_of_files_show_the_zone(tmp_path: Path) -> None:
    for number in (1, 2):
        line = f"[ERROR] RUNTIME({number},python):2026-11-23-16:00:0{number}.000.120 HBM MULTI BIT ECC\n"
        write(tmp_path / f"node/process_log/plog-{number}_1.log", line, START + number + 0.4)
    assert _times(tmp_path / "node") == ["2026-11-23T08:00:01Z", "2026-11-23T08:00:02Z"]
    for number in (1, 2):  # copied later: the times of the files say nothing
        os.utime(tmp_path / f"node/process_log/plog-{number}_1.log", (START + 7000, START + 7000))
    assert _times(tmp_path / "node") == ["2026-11-23T16:00:01Z", "2026-11-23T16:00:02Z"]


def test_older_lines_than_the_window_do_not_count(tmp_path: Path) -> None:
    write(tmp_path / "node/messages", "2026-11-22T08:00:00+00:00 kernel: Kernel panic - not syncing\n")
    write(tmp_path / "node/rank-0.txt", "2026-11-23 08:00:00 NPU out of memory\n2026-11-23 08:00:01 bye\n")

    def codes(*more: object) -> list[str]:
        return [event["code"] for event in answer(tmp_path / "node", *more)["nodes"][0]["events"]]

    assert codes() == ["DeviceOutOfMemory"]
    assert codes("--window", "48h") == ["KernelPanic", "DeviceOutOfMemory"]
    assert codes("--window", "0s") == ["KernelPanic", "DeviceOutOfMemory"]


CHECK = """\
/usr/local/Ascend/driver/tools/hccn_tool -i 2 -link_stat -g
[devid 2]current time        : Fri Sep  1 06:37:26 2023
[devid 2]link change records :
[devid 2]    Fri Sep  1 06:34:43 2023    LINK {state}
[devid 2]    Thu Aug 31 07:30:46 2023    LINK UP
/usr/local/Ascend/driver/tools/hccn_tool -i 3 -optical -g
present              : present
Rx Power0            : {power} mW
RxPower High Thres   : 3.4673 mW
RxPower Low Thres    : 0.1445 mW
Rx Los Flag          : {flag}
/usr/local/Ascend/driver/tools/hccn_tool -i 3 -fec -g
fec mode: rs FEC mode
"""


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ({"state": "UP", "power": "1.2", "flag": "0x0"}, []),
        ({"state": "DOWN", "power": "1.2", "flag": "0x0"}, ["NpuLinkDown"]),
        ({"state": "UP", "power": "0.01", "flag": "0x0"}, ["OpticalPowerOutOfRange"]),
        ({"state": "UP", "power": "9", "flag": "0x0"}, ["OpticalPowerOutOfRange"]),
        ({"state": "UP", "power": "1.2", "flag": "0x1"}, ["OpticalSignalLost"]),
        ({"state": "UP", "power": "NA", "flag": "NA"}, []),
    ],
)
def test_checks_of_network_ports_are_judged_by_their_numbers(
    tmp_path: Path, values: dict[str, str], codes: Sequence[str]
) -> None:
    write(tmp_path / "node/environment_check/npu_info_after.txt", CHECK.format(**values))
    write(tmp_path / "node/rank-0.txt", "2026-11-23 16:00:00 the window begins three hours before this line\n")
    found = answer(tmp_path / "node")
    events = found["nodes"][0]["events"]
    assert [event["code"] for event in events] == codes
    if codes == ["NpuLinkDown"]:
        assert events[0]["example"] == "NPU 2: link is still down since Fri Sep 1 06:34:43 2023".replace("p 1", "p  1")
        assert found["diagnosis"]["roots"][0]["what"] == "The port of a chip is down"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere",), "no such folder"),
        ((".",), "no logs of a known kind"),
        ((), "Missing argument"),
        ((".", "--window", "soon"), "--window"),
        ((".", "--timezone", "Beijing"), "write a zone, as +08:00"),
        ((".", "--policies", "nowhere"), "nowhere"),
    ],
)
def test_wrong_input_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if len(arguments) > 1:
        write(tmp_path / "messages", "x\n")
    result = belay(*arguments)
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output


def test_rules_of_ones_own_are_laid_over_and_a_mistake_is_named(tmp_path: Path) -> None:
    write(tmp_path / "node/rank-0.txt", "quota of team spent\n")
    rules = tmp_path / "repository/policies/diagnosis/ours.yaml"
    text = (
        "apiVersion: belay.dev/v1alpha1\nkind: DiagnosisRules\nmetadata: {name: ours}\nspec:\n  rules:\n"
        "    - code: TeamQuota\n      role: cause\n      match: [[quota of team]]\n      title: {en: Our quota}\n"
        "      advice: {en: Ask the storage team}\n"
    )
    write(rules, text)
    (root,) = answer(tmp_path / "node", "--policies", tmp_path / "repository")["diagnosis"]["roots"]
    assert (root["what"], root["advice"]) == ("Our quota", "Ask the storage team")
    write(rules, text.replace("cause", "guess"))
    result = belay(tmp_path / "node", "--policies", tmp_path / "repository")
    assert result.exit_code == 2
    assert "ours.yaml:7" in result.output


def test_logs_without_a_known_line_say_so(tmp_path: Path) -> None:
    write(tmp_path / "node/rank-0.txt", "iteration 1\n")
    result = belay(tmp_path / "node")
    assert (result.exit_code, "nothing found" in result.output) == (0, True)
    assert answer(tmp_path / "node")["diagnosis"] is None


def test_evidence_of_bystanders_alone_has_no_silent_root(tmp_path: Path) -> None:
    write(tmp_path / "node/rank-0.txt", "EI0002: The wait execution of the Notify register times out.\n")
    for name in ("bmc", "switch"):
        write(tmp_path / name / f"{'dump_info' if name == 'bmc' else 'lcne_log'}/x.log", "x\n")
    evidence = [one for node in collected.nodes_in(tmp_path) for one in collected.read_node(node, RULES, 0, None)]
    assert [one.bystander for one in evidence] == [True, False, True]
    found = diagnose(evidence)
    assert found is not None
    assert (found.rule, found.roots) == ("unclear", ())
