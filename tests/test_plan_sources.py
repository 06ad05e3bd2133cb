"""`belay plan --cluster FILE`: what MindCluster's own ConfigMaps, as kubectl prints them, make of chips and nodes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from belay.engine import cli
from belay.engine.model.cluster import NodeDevice
from belay.engine.wire import deviceinfo, nodeinfo
from belay.engine.wire.gojson import check_code, go_json
from tests.worlds import A2_LABELS, NOW

UPDATED = int(NOW) - 3
MS = UPDATED * 1000


def server(name: str, **status: Any) -> dict[str, Any]:
    devices = {f"Ascend910-{i}": {"IP": f"10.0.0.{i}", "SuperDeviceID": i} for i in range(8)}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-09-01T00:00:00Z"}
    amounts = {"cpu": "192", "memory": "1536Gi", "pods": "110", "huawei.com/Ascend910": "8"}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": dict(A2_LABELS),
                     "annotations": {"baseDeviceInfos": json.dumps(devices)}},
        "status": {"conditions": [ready | status], "capacity": amounts, "allocatable": amounts},
    }  # fmt: skip


def devices(name: str = "n0", elements: Any = (), **more: Any) -> dict[str, Any]:
    lists = {key: more.pop(key, "") for key in ("unhealthy", "network", "recovering")}
    every = [f"Ascend910-{i}" for i in range(8)]
    out = set(lists["unhealthy"].split(","))
    return deviceinfo.build(
        name,
        device_list={
            "huawei.com/Ascend910": ",".join(d for d in every if d not in out),
            "huawei.com/Ascend910-Unhealthy": lists["unhealthy"],
            "huawei.com/Ascend910-NetworkUnhealthy": lists["network"],
            "huawei.com/Ascend910-Recovering": lists["recovering"],
            "huawei.com/Ascend910-Fault": go_json(list(elements)),
        },
        update_time=UPDATED,
        **more,
    )


def element(chip: int, code: str, level: str, kind: str = "CardUnhealthy", age: float = 600.0) -> dict[str, Any]:
    return deviceinfo.fault_element(kind, f"Ascend910-{chip}", {code: (int((NOW - age) * 1000), level)}, level)


def run(tmp_path: Path, *objects: dict[str, Any]) -> dict[str, Any]:
    file = tmp_path / "cluster.json"
    items = [server("n0"), *([] if any(o["metadata"]["name"].endswith("-n0") and "deviceinfo" in o["metadata"]["name"]
                                       for o in objects) else [devices()]), *objects]  # fmt: skip
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    result = CliRunner().invoke(
        cli.main, ["plan", "--cluster", str(file), "--now", "2026-09-01T08:00:00Z", "-o", "json"]
    )
    assert result.exit_code == 0, result.output
    body: dict[str, Any] = json.loads(result.stdout)
    return body


def chip(body: dict[str, Any], number: int) -> tuple[str, str, list[str], list[str]] | None:
    row = next((c for c in body["chips"] if c["chip"] == f"Ascend910-{number}"), None)
    return (row["state"], row["level"], row["codes"], row["faultType"]) if row else None


CARD, NETWORK, PUBLIC = ["CardUnhealthy"], ["CardNetworkUnhealthy"], ["PublicFault"]


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (devices(elements=[element(3, "80C98001", "RestartNPU")], unhealthy="Ascend910-3"),
         ("isolated", "RestartNPU", ["80C98001"], CARD)),
        (devices(elements=[element(3, "80818C06", "SubHealthFault")]),
         ("sub-healthy", "SubHealthFault", ["80818C06"], CARD)),
        (devices(elements=[element(3, "80818200", "NotHandleFault")]),
         ("healthy", "NotHandleFault", ["80818200"], CARD)),
        (devices(elements=[element(3, "81078603", "PreSeparateNPU", "CardNetworkUnhealthy")], network="Ascend910-3"),
         ("sub-healthy", "PreSeparateNPU", ["81078603"], NETWORK)),
        (devices(elements=[element(3, "81078603", "NotHandleFault", "CardNetworkUnhealthy", age=19)]),
         ("suspect", "NotHandleFault", ["81078603"], NETWORK)),
        (devices(elements=[element(3, "81078603", "NotHandleFault", "CardNetworkUnhealthy", age=21)]),
         ("sub-healthy", "PreSeparateNPU", ["81078603"], NETWORK)),
        (devices(elements=[element(3, "020001001", "SeparateNPU", "PublicFault")], unhealthy="Ascend910-3"),
         ("isolated", "SeparateNPU", ["020001001"], PUBLIC)),
        (devices(elements=[element(3, "", "ManuallySeparateNPU")], unhealthy="Ascend910-3", manual=["Ascend910-3"]),
         ("manually-isolated", "ManuallySeparateNPU", [], CARD)),
        (devices(unhealthy="Ascend910-3", manual=["Ascend910-3"], upgrades={"Ascend910-3": [
            {"upgrade_time": MS, "fault_code": "80c98001", "fault_level": "ManuallySeparateNPU",
             "upgrade_type": "FaultFrequency"}]}),
         ("manually-isolated", "ManuallySeparateNPU", ["80C98001"], CARD)),
        (devices(elements=[element(3, "40F84E00", "RestartNPU")], unhealthy="Ascend910-3"),
         ("isolated", "RestartNPU", ["40F84E00"], CARD)),
        (devices(elements=[element(3, "200001002", "NotHandleFault")]),
         ("healthy", "NotHandleFault", ["200001002"], CARD)),
        (devices(recovering="Ascend910-3"), ("recovering", "NormalNPU", [], [])),
    ],
    ids=["card", "sub-health", "not-handle", "network", "link 19 s", "link 21 s", "public in report", "manual",
         "upgrade", "card drop", "hang", "recovering"],
)  # fmt: skip
def test_chip_faults_as_the_device_plugin_reports_them(
    report: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    body = run(tmp_path, report)
    assert chip(body, 3) == expected
    assert not [d for d in body["diagnostics"] if d["severity"] == "error"]


def test_one_element_with_several_codes_is_split_and_the_worst_counts(tmp_path: Path) -> None:
    codes = {"80C98001": (MS - 60_000, "RestartNPU"), "80DF8402": (MS - 60_000, "SeparateNPU")}
    several = deviceinfo.fault_element("CardUnhealthy", "Ascend910-3", codes, "SeparateNPU")
    body = run(tmp_path, devices(elements=[several], unhealthy="Ascend910-3"))
    assert chip(body, 3) == ("isolated", "SeparateNPU", ["80C98001", "80DF8402"], CARD)
    (action,) = [a for a in body["actions"] if a["kind"] == "IsolateChip"]
    assert (action["chips"], action["level"], action["evidence"]["codes"]) == (
        ["Ascend910-3"], "SeparateNPU", ["80C98001", "80DF8402"],
    )  # fmt: skip


def public(assertion: str = "occur", **fault: Any) -> dict[str, Any]:
    row = {"faultId": "11937763019252715133", "faultType": "NPU", "faultCode": "020001001", "faultTime": MS,
           "assertion": assertion, "influence": [{"nodeName": "n0", "deviceIds": [0, 1]}]} | fault  # fmt: skip
    message = {"id": "11937763019252715133", "timestamp": MS, "version": "1.0", "resource": "CCAE", "faults": [row]}
    metadata = {"name": "mindx-dl-publicinfo", "namespace": "mindx-dl", "labels": {"mc-consumer-publicfault": "true"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"PublicFault": json.dumps(message)}}


def test_a_public_fault_by_config_map(tmp_path: Path) -> None:
    body = run(tmp_path, public())
    assert chip(body, 0) == chip(body, 1) == ("isolated", "SeparateNPU", ["020001001"], PUBLIC)
    assert chip(run(tmp_path, public("recover")), 0) is None
    refused = run(tmp_path, public(faultCode="999999999"))
    assert chip(refused, 0) is None
    (problem,) = [d for d in refused["diagnostics"] if d["severity"] == "error"]
    assert (problem["object"], problem["field"]) == (
        "ConfigMap/mindx-dl/mindx-dl-publicinfo", "data.PublicFault.faults[0].faultCode",
    )  # fmt: skip


def state(body: dict[str, Any]) -> tuple[str, str, list[str]]:
    (row,) = body["nodes"]
    return row["state"], row["level"], row["codes"]


@pytest.mark.parametrize(
    ("level", "status", "expected"),
    [
        ("NotHandleFault", "Healthy", "healthy"), ("PreSeparateFault", "PreSeparate", "pre-isolated"),
        ("SeparateFault", "UnHealthy", "isolated"),
    ],
)  # fmt: skip
def test_node_hardware_as_noded_reports_it(level: str, status: str, expected: str, tmp_path: Path) -> None:
    told = nodeinfo.build("n0", [NodeDevice("CPU", 1, ("00000011",), level)], status, NOW)
    assert state(run(tmp_path, told)) == (expected, level, ["00000011"])


@pytest.mark.parametrize(
    ("level", "status", "expected"),
    [
        ("NotHandle", "Healthy", "healthy"), ("SubHealthFault", "SubHealthy", "sub-healthy"),
        ("RestartRequest", "UnHealthy", "isolated"), ("PreSeparate", "PreSeparate", "pre-isolated"),
        ("Separate", "UnHealthy", "isolated"),
    ],
)  # fmt: skip
def test_the_switch_as_the_device_plugin_reports_it(level: str, status: str, expected: str, tmp_path: Path) -> None:
    code = "[0x00f1fef5,155912,cpu,na]"
    event = {"EventType": 1, "AssembledFaultCode": code, "PeerPortDevice": 0, "PeerPortId": 0, "SwitchChipId": 1,
             "SwitchPortId": 2, "Severity": 3, "Assertion": 1, "AlarmRaisedTime": MS}  # fmt: skip
    for listed in (go_json(event), code):  # older releases put plain codes
        switch = {"FaultCode": [listed], "FaultLevel": level, "UpdateTime": UPDATED, "NodeStatus": status,
                  "FaultTimeAndLevelMap": {f"{code}_1_2": {"fault_time": MS, "fault_level": level}}}  # fmt: skip
        body = run(tmp_path, devices(switch=switch))
        assert (state(body)[0], state(body)[2]) == (expected, [code])


def test_a_node_that_is_not_ready(tmp_path: Path) -> None:
    silent = server("n0", status="Unknown", lastTransitionTime="2026-09-01T07:58:00Z")
    file = tmp_path / "cluster.json"
    others = [item for i in (1, 2) for item in (server(f"n{i}"), devices(f"n{i}"))]
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [silent, devices(), *others]}))
    result = CliRunner().invoke(
        cli.main, ["plan", "--cluster", str(file), "--now", "2026-09-01T08:00:00Z", "-o", "json"]
    )
    row = json.loads(result.stdout)["nodes"][0]
    assert (row["state"], row["level"], row["codes"]) == ("not-ready", "Separate", ["heartbeatTimeOut"])


def test_manual_isolation_by_clusterd(tmp_path: Path) -> None:
    detail = {"FaultCode": "8C084E00", "FaultLevel": "ManuallySeparateNPU", "LastSeparateTime": MS}
    text = go_json({"Total": ["Ascend910-5"], "Detail": {"Ascend910-5": [detail]}})
    listed = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"n0": text},
              "metadata": {"name": "clusterd-manual-info-cm", "namespace": "cluster-system"}}  # fmt: skip
    assert chip(run(tmp_path, listed), 5) == ("manually-isolated", "ManuallySeparateNPU", [], CARD)


def test_users_tables_apply_unchanged(tmp_path: Path) -> None:
    table = {"faultCode.json": go_json({"SubHealthFaultCodes": ["80c98001"]}), "PollInterval": "300"}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "data": table,
              "metadata": {"name": "mindx-dl-fault-config", "namespace": "kube-system"}}  # fmt: skip
    unlevelled = element(3, "80C98001", "")
    body = run(tmp_path, config, devices(elements=[unlevelled]))
    assert chip(body, 3) == ("sub-healthy", "SubHealthFault", ["80C98001"], CARD)
    # what the report says of the level stands over the table
    levelled = run(tmp_path, config, devices(elements=[element(3, "80C98001", "RestartNPU")], unhealthy="Ascend910-3"))
    assert chip(levelled, 3) == ("isolated", "RestartNPU", ["80C98001"], CARD)


@pytest.mark.parametrize("bad", ["", "0" * 64, None])
def test_a_report_with_a_bad_check_code_is_refused_and_named(bad: str | None, tmp_path: Path) -> None:
    report = devices(elements=[element(3, "80C98001", "RestartNPU")], unhealthy="Ascend910-3")
    outer = json.loads(report["data"]["DeviceInfoCfg"])
    outer = {k: v for k, v in outer.items() if k != "CheckCode"} | ({"CheckCode": bad} if bad is not None else {})
    report["data"]["DeviceInfoCfg"] = json.dumps(outer)
    body = run(tmp_path, report)
    assert body["chips"] == [] and state(body)[0] == "unknown"
    (problem,) = [d for d in body["diagnostics"] if d["severity"] == "error"]
    assert problem["object"] == "ConfigMap/kube-system/mindx-dl-deviceinfo-n0"
    assert problem["field"] == "data.DeviceInfoCfg.CheckCode"


def test_a_node_report_with_a_bad_check_code_is_refused_and_named(tmp_path: Path) -> None:
    told = nodeinfo.build("n0", [NodeDevice("CPU", 1, ("00000011",), "SeparateFault")], "UnHealthy", NOW)
    changed = copy.deepcopy(told)
    changed["data"]["NodeInfo"] = changed["data"]["NodeInfo"].replace("UnHealthy", "Healthy")
    body = run(tmp_path, changed)
    assert state(body)[0] == "healthy"
    (problem,) = [d for d in body["diagnostics"] if d["severity"] == "error"]
    assert problem["field"] == "data.NodeInfo.CheckCode"
    inner = {"FaultDevList": [], "NodeStatus": "Healthy"}
    assert check_code(inner) == "de38ed93b4fcbb7e7314695274a68ccf4aaece2c8fa2df361942d25731584886"
