"""Fault tables from the cluster's ConfigMaps: read as MindCluster reads them, bad parts named and left out."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from belay.agents.node.shipped import shipped_policy
from belay.engine.documents import Desired
from belay.engine.model.faults import CodeRules, level_of
from belay.engine.model.hardware_faults import ManualPolicy
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan.rules import fault_tables
from belay.engine.plan.rules.fault_rules import FaultRules
from belay.engine.wire import faultconfig
from belay.engine.wire.policy import NodePolicy, build_policy, parse_policy
from tests.worlds import NOW, decide, desired, document, fault, node, node_report, observed, report, switch

DEVICE, NODE, CLUSTER = faultconfig.DEVICE, faultconfig.NODE, faultconfig.CLUSTER


def config_map(place: tuple[str, str], **data: Any) -> dict[str, Any]:
    texts = {k.replace("__", "."): v if isinstance(v, str) else json.dumps(v) for k, v in data.items()}
    metadata = {"namespace": place[0], "name": place[1]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": texts}


def in_force(*objects: dict[str, Any], declared: Desired | None = None) -> tuple[Desired, list[str]]:
    world, intent = observed([node("n0")], objects=objects), declared or desired()
    notes = [f"{d.field}: {d.message}" for d in fault_tables.diagnostics(intent, world, PlanCache())]
    return fault_tables.tables_in_force(intent, world, PlanCache()), notes


def rules(*objects: dict[str, Any], declared: Desired | None = None) -> CodeRules:
    found, _ = in_force(*objects, declared=declared)
    return FaultRules(found, ()).for_pool("default", "").rules


def test_without_config_maps_the_shipped_tables_hold() -> None:
    shipped = desired()
    assert in_force(declared=shipped)[0] is shipped


def test_fault_codes_replace_the_table_and_the_worse_of_two_lists_holds() -> None:
    table = config_map(
        DEVICE,
        faultCode__json={
            "NotHandleFaultCodes": ["80c98001", "80E01801"],
            "SeparateNPUCodes": ["80E01801", "81078603"],
            "PreSeparateNPUNetworkCodes": ["81078607", "99999999"],
            "RestartRequestCodes": None,
        },
    )
    found = rules(table)
    assert level_of(found, "CardUnhealthy", "80C98001", "")[0] == "NotHandleFault"
    assert level_of(found, "CardUnhealthy", "80E01801", "")[0] == "SeparateNPU"
    assert level_of(found, "CardNetworkUnhealthy", "81078603", "")[0] == "SeparateNPU"
    assert level_of(found, "CardNetworkUnhealthy", "99999999", "")[0] == "PreSeparateNPU"
    # a full replacement: what the file does not list is unlisted
    assert level_of(found, "CardUnhealthy", "80818200", "") == ("SeparateNPU", "unlisted")
    assert level_of(found, "CardUnhealthy", "80818200", "", severity=1) == ("NotHandleFault", "unlisted")
    assert "99999999" in FaultRules(in_force(table)[0], ()).network_codes
    # public codes and rules stay
    assert level_of(found, "PublicFault", "220001001", "")[0] == "SeparateNPU"
    assert found.frequency["80E18005"].times == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "data.faultCode.json: is not valid JSON"),
        ("[]", "data.faultCode.json: must be a JSON object"),
        ('{"SeparateNPUCodes": "80E01801"}', "data.faultCode.json.SeparateNPUCodes: must be a list of codes"),
    ],
)
def test_a_part_that_cannot_be_read_leaves_the_shipped_one(text: str, problem: str) -> None:
    found, notes = in_force(config_map(DEVICE, faultCode__json=text))
    assert found.tables["chip"].level_of("80E01801") == "RestartBusiness"
    (note,) = notes
    assert note.startswith(problem) and "shipped table stays in force" in note


def test_a_bad_code_and_an_unknown_list_are_named_and_the_rest_holds() -> None:
    table = {"SeparateNPUCodes": ["80E01801", "not hex", 5], "SepparateNPUCodes": ["80C98001"]}
    found, notes = in_force(config_map(DEVICE, faultCode__json=table))
    assert found.tables["chip"].code_levels == {"80E01801": "SeparateNPU"}
    assert [note.partition(":")[0] for note in notes] == [
        "data.faultCode.json.SeparateNPUCodes[1]",
        "data.faultCode.json.SeparateNPUCodes[2]",
        "data.faultCode.json.SepparateNPUCodes",
    ]


GOOD = {
    "EventId": ["80C98001"],
    "TimeWindow": 3600,
    "Times": 2,
    "FaultHandling": "SeparateNPU",
    "ReleaseTimeWindow": 60,
}
HELD = {"EventId": ["80c98001"], "FaultTimeout": 10, "RecoverTimeout": 20, "FaultHandling": "PreSeparateNPU"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"EventId": []}, "EventId"), ({"EventId": ["xyz"]}, "EventId"), ({"EventId": "80C98001"}, "EventId"),
        ({"TimeWindow": 59}, "60 to 864000"), ({"TimeWindow": 864_001}, "60 to 864000"),
        ({"TimeWindow": "1h"}, "60 to"),
        ({"Times": 0}, "1 to 100"), ({"Times": 101}, "1 to 100"), ({"FaultHandling": "NormalNPU"}, "FaultHandling"),
        ({"FaultHandling": "Bad"}, "FaultHandling"), ({"ReleaseTimeWindow": 59}, "60 to 2^32"),
        ({"ReleaseTimeWindow": 2**32 + 1}, "60 to 2^32"), ({"ReleaseTimeWindow": 0}, "is required"),
        ({"ReleaseTimeWindow": 2**32}, "is required"),
        ({"FaultHandling": ["SeparateNPU"]}, "FaultHandling"), ({"FaultHandling": {}}, "FaultHandling"),
    ],
)  # fmt: skip
def test_frequency_rules_out_of_range_are_left_out_and_the_others_hold(change: dict[str, Any], problem: str) -> None:
    custom = {"FaultFrequency": [GOOD | change, GOOD | {"EventId": ["80E01801"]}]}
    found, notes = in_force(config_map(DEVICE, faultCustomization__json=custom))
    assert [rule.codes for rule in found.tables["chip"].spec.frequency] == [("80E01801",)]
    (note,) = notes
    assert note.startswith("data.faultCustomization.json.FaultFrequency[0]") and problem in note


@pytest.mark.parametrize("change", [
    {"TimeWindow": 60}, {"TimeWindow": 864_000}, {"Times": 1}, {"Times": 100}, {"ReleaseTimeWindow": 2**32 - 1},
    {"FaultHandling": "ManuallySeparateNPU", "ReleaseTimeWindow": 2**32},
    {"FaultHandling": "ManuallySeparateNPU", "ReleaseTimeWindow": 0}, {"FaultHandling": "NotHandleFault"},
])  # fmt: skip
def test_frequency_rules_at_their_limits_hold(change: dict[str, Any]) -> None:
    found = in_force(config_map(DEVICE, faultCustomization__json={"FaultFrequency": [GOOD | change]}))
    assert len(found[0].tables["chip"].spec.frequency) == 1
    assert not found[1]


@pytest.mark.parametrize("change", [
    {"EventId": None}, {"FaultTimeout": -1}, {"FaultTimeout": 601}, {"RecoverTimeout": 86_401},
    {"FaultHandling": "ManuallySeparateNPU"}, {"FaultHandling": "NormalNPU"}, {"FaultTimeout": True},
    {"FaultHandling": ["SeparateNPU"]},
])  # fmt: skip
def test_duration_rules_out_of_range_are_left_out(change: dict[str, Any]) -> None:
    custom = {"FaultDuration": [HELD | change, HELD | {"FaultTimeout": 0, "RecoverTimeout": 0}]}
    found, notes = in_force(config_map(DEVICE, faultCustomization__json=custom))
    assert [rule.timeout for rule in found.tables["chip"].spec.duration] == [0]
    assert [note.partition(":")[0] for note in notes] == ["data.faultCustomization.json.FaultDuration[0]"]


def test_customisation_replaces_all_rules_and_the_first_of_two_for_a_code_wins() -> None:
    custom = {
        "GraceTolerance": {"WaitProcessReadCMTime": 4, "WaitDeviceResetTime": 150},
        "FaultFrequency": [GOOD, GOOD | {"Times": 9, "EventId": ["80c98001", "80E01801"]}],
        "FaultDuration": [HELD],
    }
    objects = config_map(DEVICE, faultCustomization__json=custom)
    found = rules(objects)
    assert (found.frequency["80C98001"].times, found.frequency["80E01801"].times) == (2, 9)
    assert found.frequency["80C98001"].release_ms == 60_000
    assert "80E18005" not in found.frequency
    assert set(found.duration) == {"80C98001"}
    assert level_of(found, "CardUnhealthy", "80E01801", "")[0] == "RestartBusiness"
    (note,) = in_force(objects)[1]
    assert note.startswith("data.faultCustomization.json.GraceTolerance.WaitProcessReadCMTime: must be 5 to 90")


def test_switch_lists_take_all_six_keys() -> None:
    codes = {key: [f"[0x0000000{i},na,cpu,na]"] for i, key in enumerate((
        "NotHandleFaultCodes", "SubHealthFaultCodes", "RestartRequestFaultCodes", "PreSeparateFaultCodes",
        "ResetFaultCodes", "SeparateFaultCodes"))}  # fmt: skip
    found, notes = in_force(config_map(DEVICE, SwitchFaultCode__json=codes))
    assert not notes
    assert list(found.tables["switch"].code_levels.values()) == [
        "NotHandleFault", "SubHealthFault", "RestartRequestFault", "PreSeparateFault", "SeparateFault", "SeparateFault",
    ]  # fmt: skip


NODED = {"NotHandleFaultCodes": ["0100000d"], "PreSeparateFaultCodes": [], "SeparateFaultCodes": ["2C000031"]}


@pytest.mark.parametrize(
    "lists",
    [
        NODED | {"SeparateFaultCodes": ["0100000D"]}, NODED | {"SeparateFaultCodes": ["0100"]},
        NODED | {"SeparateFaultCodes": ["0100000-"]}, NODED | {"Other": []}, NODED | {"SeparateFaultCodes": "x"},
    ],
)  # fmt: skip
def test_a_bad_node_table_is_refused_whole(lists: dict[str, Any]) -> None:
    found, notes = in_force(config_map(NODE, NodeDConfiguration__json={"FaultTypeCode": lists}))
    assert len(found.tables["node"].code_levels) == 59
    assert notes


def test_a_good_node_table_replaces_the_shipped_one_upper_cased() -> None:
    found, notes = in_force(config_map(NODE, NodeDConfiguration__json={"FaultTypeCode": NODED}))
    assert not notes
    assert found.tables["node"].code_levels == {"0100000D": "NotHandleFault", "2C000031": "SeparateFault"}


def test_the_tables_judge_reports_that_carry_no_level() -> None:
    table = config_map(DEVICE, faultCode__json={"SeparateNPUCodes": ["80818200"], "NotHandleFaultCodes": ["80C98001"]})
    nodes, reports = (
        [node("n0")],
        [report("n0", faults=[fault(1, "80818200", ""), fault(2, "80C98001", "")], unhealthy=[1])],
    )
    scope = decide(observed(nodes, reports, objects=[table]))
    assert [(c.chip, c.level) for c in scope.chips] == [
        ("Ascend910-1", "SeparateNPU"), ("Ascend910-2", "NotHandleFault"),
    ]  # fmt: skip
    own = document("FaultPolicy", "p", levels={"80818200": "SubHealthFault"})
    scope = decide(observed(nodes, reports, objects=[table]), desired(own))
    assert scope.chips[0].level == "SubHealthFault"


def test_a_table_of_ones_own_says_what_codes_mean_that_it_does_not_list() -> None:
    said = {"rule": "level", "bySeverity": {"0": "SubHealthFault"}, "otherwise": "RestartNPU"}
    own = document("FaultTable", "mine", plane="chip", severity=["NotHandleFault"], levels={}, unlisted=said)
    world = observed([node("n0")], [report("n0", faults=[fault(1, "8ABCDEF0", "")], unhealthy=[1])])
    assert [c.level for c in decide(world, desired()).chips] == ["SeparateNPU"]
    assert [c.level for c in decide(world, desired(own)).chips] == ["RestartNPU"]
    judged = FaultRules(desired(own), ()).for_pool("default", "").rules
    assert level_of(judged, "CardUnhealthy", "8ABCDEF0", "", severity=0) == ("SubHealthFault", "unlisted")
    assert level_of(judged, "CardNetworkUnhealthy", "8ABCDEF0", "") == ("PreSeparateNPU", "unlisted")
    told = parse_policy(build_policy(NodePolicy("default", judged))).rules
    assert told == judged, "agents judge alike"


def test_the_shipped_table_is_the_agents_own_too() -> None:
    assert shipped_policy().rules.unlisted == FaultRules(desired(), ()).for_pool("default", "").rules.unlisted


def test_node_and_switch_codes_without_a_level_follow_the_tables() -> None:
    table = config_map(NODE, NodeDConfiguration__json={"FaultTypeCode": {"PreSeparateFaultCodes": ["00000011"]}})
    world = observed([node("n0")], [report("n0")], node_reports=[node_report("n0", "", codes=["00000011"])],
                     objects=[table])  # fmt: skip
    assert decide(world).nodes["n0"].level in ("PreSeparateFault", "SeparateFault")
    sub = config_map(DEVICE, SwitchFaultCode__json={"SubHealthFaultCodes": ["[0x00f1fef5,155912,cpu,na]"]})
    rule = document("FaultPolicy", "p", levels={"[0x00f1fef5,155913,cpu,na]": "NotHandleFault"})
    reported = switch("Separate", codes=["[0x00f1fef5,155912,cpu,na]", "[0x00f1fef5,155913,cpu,na]"])
    world = observed([node("n0")], [report("n0", switch=reported)], objects=[sub])
    assert decide(world, desired(rule)).nodes["n0"].state == "sub-healthy"


def test_the_repositorys_own_table_hides_the_clusters_and_says_so() -> None:
    own = document(
        "FaultTable", "mine", plane="node", severity=["NotHandleFault", "SeparateFault"],
        levels={"SeparateFault": ["00000001"]}, unlisted={"rule": "drop"},
    )  # fmt: skip
    table = config_map(NODE, NodeDConfiguration__json={"FaultTypeCode": NODED})
    found, notes = in_force(table, declared=desired(own))
    assert found.tables["node"].code_levels == {"00000001": "SeparateFault"}
    assert any("stays in force over the cluster's ConfigMap" in note for note in notes)


def test_public_codes_and_senders_can_be_replaced() -> None:
    body = {
        "publicFaultCode": {"SubHealthFaultCodes": ["010011234"], "SeparateNPUCodes": []},
        "publicFaultResource": ["my-sender"],
    }
    found, notes = in_force(config_map(CLUSTER, publicFaultConfiguration__json=body))
    assert not notes
    assert found.tables["public"].code_levels == {"010011234": "SubHealthFault"}
    assert found.tables["public"].spec.senders == ("my-sender",)


@pytest.mark.parametrize(
    ("text", "expected", "problems"),
    [
        ("enabled: true", ManualPolicy(True), 0),
        ("separate: {fault_threshold: 5}", ManualPolicy(False, threshold=5), 0),
        ("enabled: true\nseparate: {fault_window_hours: 720, fault_threshold: 50}\nrelease: {fault_free_hours: -1}",
         ManualPolicy(True, 720, 50, -1), 0),
        ("enabled: true\nseparate: {fault_window_hours: 721, fault_threshold: 0}\nrelease: {fault_free_hours: 0}",
         ManualPolicy(True), 3),
        ("enabled: yes please", ManualPolicy(), 1),
        ("enabled: [", None, 1),
        ("text", None, 1),
    ],
)  # fmt: skip
def test_the_rule_for_failing_hardware(text: str, expected: ManualPolicy | None, problems: int) -> None:
    world = observed([node("n0")], objects=[config_map(CLUSTER, manually_separate_policy__conf=text)])
    assert fault_tables.manual_policy(world, PlanCache()) == expected
    assert len(fault_tables.diagnostics(desired(), world, PlanCache())) == problems


def test_no_config_map_of_these_names_crashes_a_pass() -> None:
    for place in (DEVICE, NODE, CLUSTER):
        for data in (None, {}, {"faultCode.json": 5, "NodeDConfiguration.json": [], "PollInterval": "x"}):
            body = {"apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"namespace": place[0], "name": place[1]}, "data": data}  # fmt: skip
            world = observed([node("n0")], [report("n0", update_time=NOW - 1)], objects=[body])
            assert decide(world).nodes["n0"].state == "healthy"


def test_the_text_of_a_policy_is_made_once_and_its_digest_is_over_it() -> None:
    """A pass asks for both several times, of thousands of codes that seldom change."""
    policy = NodePolicy("default", CodeRules(table={"80C98001": "NotHandleFault"}))
    again = parse_policy(build_policy(policy))
    assert again == policy and again.digest == policy.digest != NodePolicy("default").digest
    assert policy.text is policy.text and policy.digest is policy.digest
    other = msgspec.structs.replace(policy, pool="p")
    assert other.text != policy.text and other.digest != policy.digest, "nothing of another policy is kept"
    assert msgspec.json.decode(policy.text) == msgspec.to_builtins(policy)
