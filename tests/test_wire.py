"""Reports, orders, memory and ledger: read, written, and refused by name when they lie."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from belay.engine.model.chip_masks import ids_of, mask_of
from belay.engine.model.cluster import AgentChip, AgentReport, AgentVNPU, NodeDevice, Orders, ResetOrder, SwitchFault
from belay.engine.model.history import ChipMemory, CodeMemory, Hold, JobMemory, NodeMemory
from belay.engine.model.labels import CONFIGURATION_NPU
from belay.engine.model.recovery import Conversation, FaultyRank, State
from belay.engine.wire import deviceinfo, globaltable, history, ledger, nodeinfo, orders, podannotations, recoveryrecord
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import check_code, go_json

#: The object printed in docs/zh/scheduling/07_references/02_common_operations.md, with its code.
PUBLISHED_CODE = "a550811fdfafb5717555526816af2ca4ac6c3e102f5907574048578e0c8fcc73"
PUBLISHED = {
    "DeviceList": {
        "huawei.com/Ascend910": "Ascend910-0,Ascend910-1,Ascend910-2,Ascend910-3,Ascend910-5,Ascend910-6,Ascend910-7",
        "huawei.com/Ascend910-Fault": (
            '[{"fault_type":"CardNetworkUnhealthy","npu_name":"Ascend910-0","large_model_fault_level":"'
            'PreSeparateNPU","fault_level":"PreSeparateNPU","fault_handling":"PreSeparateNPU","fault_co'
            'de":"81078603","fault_time_and_level_map":{"81078603":{"fault_time":1744168468259,"fault_l'
            'evel":"PreSeparateNPU"}}},{"fault_type":"CardUnhealthy","npu_name":"Ascend910-4","large_mo'
            'del_fault_level":"SeparateNPU","fault_level":"SeparateNPU","fault_handling":"SeparateNPU",'
            '"fault_code":"A8028801,A4028801,80E18402,80E18401","fault_time_and_level_map":{"80E18401":'
            '{"fault_time":1744167455784,"fault_level":"NotHandleFault"},"80E18402":{"fault_time":17441'
            '67455784,"fault_level":"SeparateNPU"},"A4028801":{"fault_time":1744167455784,"fault_level"'
            ':"NotHandleFault"},"A8028801":{"fault_time":1744167455784,"fault_level":"SeparateNPU"}}}]'
        ),
        "huawei.com/Ascend910-NetworkUnhealthy": "Ascend910-0",
        "huawei.com/Ascend910-Recovering": "",
        "huawei.com/Ascend910-Unhealthy": "Ascend910-4",
    },
    "UpdateTime": 1744182144,
}


def device_map(**changes: Any) -> dict[str, Any]:
    lists = {
        "huawei.com/Ascend910": "Ascend910-0,Ascend910-2",
        "huawei.com/Ascend910-Unhealthy": "Ascend910-1",
        "huawei.com/Ascend910-NetworkUnhealthy": "Ascend910-3",
        "huawei.com/Ascend910-Recovering": "",
        "huawei.com/Ascend910-Fault": go_json(
            [
                deviceinfo.fault_element(
                    "CardUnhealthy",
                    "Ascend910-1",
                    {"80C98001": (1788249000000, "RestartNPU"), "80E01801": (1788249001000, "RestartBusiness")},
                    "RestartNPU",
                )
            ]
        ),
    }
    lists.update(changes)
    return deviceinfo.build("n1", device_list=lists, update_time=1788249598, super_pod_id=3, server_index=1)


def test_the_published_sample_hashes_to_its_published_code() -> None:
    assert check_code(PUBLISHED) == PUBLISHED_CODE


def test_the_node_constants_of_the_protocol() -> None:
    empty = {"FaultDevList": [], "NodeStatus": "Healthy"}
    assert check_code(empty) == "de38ed93b4fcbb7e7314695274a68ccf4aaece2c8fa2df361942d25731584886"
    null = {"FaultDevList": None, "NodeStatus": "Healthy"}
    assert check_code(null) == "0e41611c88c69578c004cb930ce23dc99e68844eae5cbac1ea0b6a9f789bfaf0"


def test_go_escapes_five_characters_and_keeps_utf8() -> None:
    assert go_json({"a": "<é>&\u2028\u2029"}) == '{"a":"\\u003cé\\u003e\\u0026\\u2028\\u2029"}'


def test_a_device_report_comes_back_as_written() -> None:
    report = deviceinfo.parse(device_map())
    assert (report.node, report.resource, report.prefix) == ("n1", "huawei.com/Ascend910", "Ascend910-")
    assert ids_of(report.free) == (0, 2)
    assert ids_of(report.unhealthy) == (1,)
    assert ids_of(report.network_unhealthy or 0) == (3,)
    assert ids_of(report.listed) == (0, 1, 2, 3)
    assert [(f.chip, f.code, f.level) for f in report.faults] == [
        (1, "80C98001", "RestartNPU"),
        (1, "80E01801", "RestartBusiness"),
    ]
    assert (report.super_pod_id, report.server_index, report.update_time) == (3, 1, 1788249598.0)


def test_one_bad_token_empties_the_free_list_as_in_the_reference() -> None:
    assert deviceinfo.parse(device_map(**{"huawei.com/Ascend910": "Ascend910-0, Ascend910-2"})).free == 0


def test_a_missing_network_list_is_not_an_empty_one() -> None:
    cm = deviceinfo.build("n1", device_list={"huawei.com/Ascend910": "Ascend910-0"}, update_time=1)
    assert deviceinfo.parse(cm).network_unhealthy is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda b: b.update(CheckCode="0" * 64), "CheckCode"),
        (lambda b: b.pop("CheckCode"), "CheckCode"),
        (lambda b: b["DeviceInfo"].update(UpdateTime=1), "CheckCode"),
        (lambda b: b["DeviceInfo"].update(UpdateTime="now"), "UpdateTime"),
        (lambda b: b["DeviceInfo"].update(DeviceList=[1]), "DeviceList"),
        (lambda b: b.update(DeviceInfo=None), "DeviceInfo"),
        (lambda b: b.update(SuperPodID="x"), "SuperPodID"),
    ],
)
def test_an_invalid_report_raises_an_error_that_names_the_field(change: Any, field: str) -> None:
    cm = device_map()
    body = json.loads(cm["data"]["DeviceInfoCfg"])
    change(body)
    cm["data"]["DeviceInfoCfg"] = json.dumps(body)
    with pytest.raises(WireError) as error:
        deviceinfo.parse(cm)
    assert field in error.value.field
    assert "mindx-dl-deviceinfo-n1" in error.value.object


@pytest.mark.parametrize(
    "text",
    [None, 7, "", "{", "[]", "9" * (1024 * 1024 + 1), "[" * 100_000],
    ids=["none", "int", "", "{", "[]", "long", "deep"],
)
def test_any_invalid_payload_raises_wire_error(text: Any) -> None:
    cm = device_map()
    cm["data"]["DeviceInfoCfg"] = text
    with pytest.raises(WireError):
        deviceinfo.parse(cm)


def test_a_foreign_chip_name_is_refused() -> None:
    with pytest.raises(WireError, match="not a device name"):
        deviceinfo.parse(device_map(**{"huawei.com/Ascend910-Unhealthy": "Ascend310P-1"}))


def test_faults_of_310_chips_are_under_the_key_of_310p() -> None:
    element = deviceinfo.fault_element("CardUnhealthy", "Ascend310-2", {"80C98001": (1, "RestartNPU")}, "RestartNPU")
    cm = deviceinfo.build(
        "n1",
        device_list={"huawei.com/Ascend310": "Ascend310-0", "huawei.com/Ascend310P-Fault": go_json([element])},
        update_time=1,
    )
    assert [f.chip for f in deviceinfo.parse(cm).faults] == [2]


def test_a_node_report_comes_back_and_a_changed_one_is_refused() -> None:
    cm = nodeinfo.build("n1", [NodeDevice("CPU", 1, ("00000011",), "SeparateFault")], "UnHealthy", 1788249598.7)
    assert cm["data"]["updateTime"] == "2026-09-01T07:59:58Z", "whole seconds, as NodeD writes them"
    report = nodeinfo.parse(cm)
    assert (report.node, report.status, report.devices[0].codes) == ("n1", "UnHealthy", ("00000011",))
    cm["data"]["NodeInfo"] = cm["data"]["NodeInfo"].replace("00000011", "00000012")
    with pytest.raises(WireError, match="does not match"):
        nodeinfo.parse(cm)


def test_orders_round_trip_by_device_name() -> None:
    order = Orders(
        node="n1",
        resource_version="",
        generation=4,
        revision="abc",
        policy_digest="d",
        issued_ms=1,
        not_after_ms=2,
        isolate={4: "RestartNPU"},
        resets={4: ResetOrder(7, (4, 5), "ChipFault", 1)},
        vnpu_epoch=3,
        vnpu_layout={0: ("vir04", "vir02")},
    )
    cm = orders.build_orders(order, "Ascend910-")
    assert json.loads(cm["data"]["orders.json"])["chips"]["Ascend910-4"]["reset"]["group"] == [
        "Ascend910-4",
        "Ascend910-5",
    ]
    assert orders.parse_orders(cm) == order


def test_an_agent_report_of_another_node_is_ignored() -> None:
    report = AgentReport(
        "n1", "b", 1, 2, 3, {0: AgentChip("S", 0, 5, 7, "ok")}, 2, "ok", (AgentVNPU(100, 0, "vir04", "a/b"),), ()
    )
    cm = orders.build_report(report, "Ascend310P-", {"name": "simulated"})
    assert orders.parse_report(cm) == report
    grouped = msgspec.structs.replace(report, reset_groups=((0, 1), (2,)))
    assert orders.parse_report(orders.build_report(grouped, "Ascend310P-", {})) == grouped
    many = msgspec.structs.replace(report, reset_groups=(tuple(range(orders.MAX_GROUPED + 1)),))
    with pytest.raises(WireError, match="at most 1024 chips"):
        orders.parse_report(orders.build_report(many, "Ascend310P-", {}))
    cm["metadata"]["name"] = "belay-report-n2"
    with pytest.raises(WireError, match="belongs to node 'n2'"):
        orders.parse_report(cm)


@pytest.mark.parametrize("epoch", [2**64, 2**53, -1])
def test_an_epoch_without_a_successor_is_rejected(epoch: int) -> None:
    body = {"node": "n1", "chips": {"Ascend910-0": {"resetEpochDone": epoch}}}
    cm = {"metadata": {"name": "belay-report-n1"}, "data": {"report.json": json.dumps(body)}}
    with pytest.raises(WireError, match="belay-report-n1"):
        orders.parse_report(cm)


def test_memory_round_trips_and_an_invalid_one_names_its_object() -> None:
    memory = NodeMemory(
        chips={
            3: ChipMemory(
                codes={"80C98001": CodeMemory(1, 2)}, holds=(Hold("manual", "ManuallySeparateNPU", 5),), epoch=9
            )
        }
    )
    cm = {"metadata": {"name": "belay-history-n1", "namespace": "belay-system"}, "data": history.node_data(memory)}
    assert history.parse_node(cm) == ("n1", memory)
    cm["data"]["history.json"] = "{"
    with pytest.raises(WireError, match="not a memory"):
        history.parse_node(cm)
    job = {"metadata": {"name": "x"}, "data": history.job_data("a/AscendJob/j", JobMemory(retries=2))}
    assert history.parse_job(job) == ("a/AscendJob/j", JobMemory(retries=2))


def test_a_ledger_names_every_claimed_chip() -> None:
    claim = ledger.Claim("a/p", "n1", "Ascend910-", f"{mask_of([0, 9]):x}", 5)
    cm = ledger.build("main", {"uid-1": claim})
    assert ledger.parse(cm) == {"uid-1": claim}
    assert claim.chips() == ("n1/Ascend910-0", "n1/Ascend910-9")
    cm["data"]["claims.json"] = '{"u":["a/p","n1","Ascend910-","zz",5]}'
    with pytest.raises(WireError, match="nothing is placed"):
        ledger.parse(cm)


@pytest.mark.parametrize("text", ["null", "", "{}"])
def test_null_from_go_counts_as_empty(text: str) -> None:
    """A nil map or pointer is written as ``null``; the CheckCode covers neither, so neither makes a report doubtful."""
    made = device_map()
    made["data"] |= {"UpgradeFaultReason": text, "SwitchInfoCfg": text}
    read = deviceinfo.parse(made)
    assert read.upgrades == () and (read.switch is None or (text == "{}" and read.switch.node_status == "Healthy"))
    for key in ("UpgradeFaultReason", "SwitchInfoCfg"):
        made = device_map()
        made["data"][key] = "[]"
        with pytest.raises(WireError, match=f"data.{key}"):
            deviceinfo.parse(made)


def test_a_switch_report_holds_its_faults_one_by_one() -> None:
    code, other = "[0x00f1ff09,155912,cpu,na]", "[0x08520003,na,L2,na]"
    entries = [go_json({"AssembledFaultCode": code, "SwitchChipId": 0, "SwitchPortId": port}) for port in (1, 2)]
    times = {f"{code}_0_{port}": {"fault_time": 1788249590000 + port, "fault_level": "Separate"} for port in (2, 1)}
    body = {
        "FaultCode": [*entries, other], "FaultLevel": "Separate", "UpdateTime": 1788249598, "NodeStatus": "UnHealthy",
        "FaultTimeAndLevelMap": times | {"[0x1,na,na,na]_0_0": {"fault_time": 1, "fault_level": "NotHandle"}},
    }  # fmt: skip
    made = device_map()
    made["data"]["SwitchInfoCfg"] = go_json(body)
    read = deviceinfo.parse(made).switch
    assert read is not None and read.codes == (code, other)
    assert read.faults == (
        SwitchFault(code, "Separate", 1788249590001), SwitchFault(code, "Separate", 1788249590002), SwitchFault(other)
    )  # fmt: skip
    for odd in (None, [], {f"{code}_0_1": "soon"}, {f"{code}_0_1": {"fault_time": "soon", "fault_level": None}}):
        made["data"]["SwitchInfoCfg"] = go_json(body | {"FaultTimeAndLevelMap": odd})
        unknown = deviceinfo.parse(made).switch
        assert unknown is not None and unknown.faults == (SwitchFault(code), SwitchFault(other))


DEEP = '{"x":' + "[" * 100_000 + "]" * 100_000 + "}"


def test_conversations_and_tables_that_nest_too_deeply_are_invalid() -> None:
    with pytest.raises(WireError, match=r"data\.conversation\.json"):
        recoveryrecord.parse({"metadata": {"name": "n"}, "data": {recoveryrecord.KEY: DEEP}})
    assert globaltable.read(DEEP) == {}
    with pytest.raises(ValueError, match="cannot be read"):
        podannotations.configuration({CONFIGURATION_NPU: DEEP[:100_000]})


@pytest.mark.parametrize(
    "table",
    [
        {"server_list": 1, "super_pod_list": 2},
        {"server_list": [1, {"device": 1}], "super_pod_list": [3, {"server_list": 4}]},
        {"server_list": [{"device": [1, None, {"device_id": 0}], "host_ip": {}}]},
    ],
)
def test_a_rank_table_that_someone_wrote_by_hand_ends_no_stream(table: dict[str, Any]) -> None:
    built = globaltable.build([globaltable.Group("j", {"status": "completed", **table}, "0")])
    assert json.loads(globaltable.text(built))["server_group_list"][0]["group_id"] == "2"


def test_servers_of_inference_name_their_hardware() -> None:
    server = {"device": [], "host_ip": "10.0.0.1", "container_ip": "10.1.0.1", "hardware_type": "800I-A2-64G"}
    built = globaltable.build([globaltable.Group("j", {"status": "completed", "server_list": [server]}, "0")])
    assert built["server_group_list"][0]["server_list"] == [
        {"device": [], "server_id": "10.0.0.1", "server_ip": "10.1.0.1", "hardware_type": "800I-A2-64G"}
    ]


def test_conversations_of_other_versions_continue() -> None:
    """What the version before did not know is at its default; what only a later one knows is left out."""
    known = recoveryrecord.Record(
        conversation=Conversation(job="j", state=State.WAIT_STOP, late=(FaultyRank("1", "1"),))
    )
    stored = recoveryrecord.build(known)
    assert recoveryrecord.parse(stored) == known
    body = json.loads(stored["data"][recoveryrecord.KEY])
    for name in ("late", "undone", "paused"):
        del body["conversation"][name]
    before = stored | {"data": {recoveryrecord.KEY: json.dumps(body)}}
    assert recoveryrecord.parse(before).conversation == Conversation(job="j", state=State.WAIT_STOP)
    body["conversation"]["unheard_of"] = 1
    after = stored | {"data": {recoveryrecord.KEY: json.dumps(body)}}
    assert recoveryrecord.parse(after).conversation == Conversation(job="j", state=State.WAIT_STOP)


def test_codes_are_upper_case_after_parsing() -> None:
    """Configurations mix the case, and so do some reports; the level of a code is found all the same."""
    element = deviceinfo.fault_element("CardUnhealthy", "Ascend910-1", {"80c98001": (5, "RestartNPU")}, "SeparateNPU")
    mixed = {**element, "fault_code": "80c98001, 80E01801", "fault_level": "SeparateNPU"}
    read = deviceinfo.parse(device_map(**{"huawei.com/Ascend910-Fault": go_json([mixed])}))
    assert [(f.code, f.level, f.time_ms) for f in read.faults] == [
        ("80C98001", "RestartNPU", 5), ("80E01801", "SeparateNPU", 0)
    ]  # fmt: skip
