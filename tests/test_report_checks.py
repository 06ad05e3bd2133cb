"""Reports that are well formed and cannot be true are held: named in the findings, the last good one stays."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from belay.engine.model.cluster import AgentChip, AgentReport, Orders, ResetOrder
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.observe.observed import Observer
from belay.engine.observe.report_checks import PLAUSIBLE_EPOCH
from belay.engine.wire import deviceinfo, publicinfo
from belay.engine.wire.orders import build_orders, build_report
from tests.test_observe import node, pod

REPORT = "ConfigMap/belay-nodes/belay-report-n1"
DEVICE = "ConfigMap/kube-system/mindx-dl-deviceinfo-n1"


def device(
    name: str = "n1", *, chips: str = "Ascend910-0,Ascend910-1", at: int = 100, super_pod: int = 3
) -> dict[str, Any]:
    resource = "huawei.com/" + chips.partition("-")[0]
    return deviceinfo.build("n1", device_list={resource: chips}, update_time=at, super_pod_id=super_pod)


def holder(phase: str = "Running") -> dict[str, Any]:
    body = pod("p", nodeName="n1", annotations={"huawei.com/AscendReal": "Ascend910-0"})
    body["status"]["phase"] = phase
    return body


def agent(seq: int = 1, boot: str = "b1", done: int = 0, vnpu: int = 0, name: str = "n1") -> dict[str, Any]:
    chip = AgentChip(
        serial="s", processes=0, idle_since_ms=None, reset_epoch_done=done, reset_result="", reset_stage=""
    )
    report = AgentReport(
        node=name, boot=boot, seq=seq, time_ms=1, orders_seen=0, chips={0: chip}, vnpu_epoch_done=vnpu, vnpu_result="",
        vnpus=(), errors=(),
    )  # fmt: skip
    return build_report(report, "Ascend910-", {})


def ordered(epoch: int) -> dict[str, Any]:
    reset = ResetOrder(epoch=epoch, group=(0,), reason="r", not_before_ms=0)
    orders = Orders(
        node="n1", resource_version="", generation=1, revision="", policy_digest="", issued_ms=0, not_after_ms=0,
        isolate={}, resets={0: reset}, vnpu_epoch=epoch, vnpu_layout={},
    )  # fmt: skip
    return build_orders(orders, "Ascend910-")


def observer(*items: dict[str, Any]) -> Observer:
    made = Observer()
    for item in (node("n1"), *items):
        made.put(item)
    made.observed()
    return made


JUMPS = {
    "another product": (device(chips="Ascend310P-0", at=200), "DeviceList", "its chips are Ascend310P-N"),
    "another super pod": (device(super_pod=9, at=200), "SuperPodID", "super pod 9 was 3"),
    "no super pod": (device(super_pod=-1, at=200), "SuperPodID", "super pod -1 was 3"),
}


@pytest.mark.parametrize(("jump", "field", "said"), JUMPS.values(), ids=JUMPS)
def test_a_node_with_pods_on_its_chips_stays_what_it_is(jump: dict[str, Any], field: str, said: str) -> None:
    watched = observer(device(), holder())
    watched.put(jump)
    for _ in range(2):
        seen = watched.observed()
        assert seen.reports["n1"].update_time == 100 and seen.reports["n1"].super_pod_id == 3
        (found,) = seen.diagnostics
        assert found.severity == "error" and found.object == DEVICE and field in found.field
        assert said in found.message and "the last one before it stays in force" in found.message
    watched.put(device(at=300))
    assert watched.observed().reports["n1"].update_time == 300 and watched.observed().diagnostics == ()


@pytest.mark.parametrize(("jump", "field", "said"), JUMPS.values(), ids=JUMPS)
def test_without_pods_a_node_may_be_rebuilt(jump: dict[str, Any], field: str, said: str) -> None:
    watched = observer(device(), holder())
    watched.put(jump)
    assert watched.observed().reports["n1"].update_time == 100
    watched.put(holder("Succeeded"))
    seen = watched.observed()
    assert seen.reports["n1"].update_time == 200 and seen.diagnostics == ()


def test_deleting_the_report_first_does_not_hide_a_jump() -> None:
    watched = observer(device(), holder())
    watched.delete(ObjectKey("v1", "ConfigMap", "kube-system", "mindx-dl-deviceinfo-n1"))
    assert watched.observed().reports == {}
    watched.put(device(super_pod=9, at=200))
    seen = watched.observed()
    assert "super pod 9 was 3" in seen.diagnostics[0].message and seen.reports["n1"].super_pod_id == 3
    watched.delete(ObjectKey("v1", "Node", "", "n1"))
    watched.put(node("n1"))
    watched.put(device(super_pod=9, at=300))
    assert watched.observed().reports["n1"].super_pod_id == 9, "a Node that joins again is a new one"


def test_faults_and_missing_chips_are_no_jump() -> None:
    watched = observer(device(), holder())
    watched.put(device(chips="Ascend910-1", at=200))
    assert watched.observed().reports["n1"].update_time == 200
    watched.put(device(chips="Ascend910-0,Ascend910-1,Ascend910-2", at=300))
    assert watched.observed().reports["n1"].update_time == 300 and watched.observed().diagnostics == ()


@pytest.mark.parametrize("field", ["done", "vnpu"])
def test_an_epoch_that_cannot_have_been_ordered_is_held(field: str) -> None:
    watched = observer(agent(seq=1))
    forged = {field: PLAUSIBLE_EPOCH + 5}
    watched.put(agent(seq=2, **forged))
    seen = watched.observed()
    (found,) = [one for one in seen.diagnostics if one.object == REPORT]
    assert seen.agents["n1"].seq == 1 and f"epoch {PLAUSIBLE_EPOCH + 5}" in found.message and "held" in found.message
    watched.put(ordered(PLAUSIBLE_EPOCH + 5))
    watched.put(agent(seq=3, **forged))
    assert watched.observed().agents["n1"].seq == 3, "an epoch that was ordered is believed"
    fresh = observer(agent(seq=2, **forged))
    assert fresh.observed().agents == {} and "it is not used" in fresh.observed().diagnostics[0].message


def test_an_earlier_report_of_the_same_run_is_ignored() -> None:
    watched = observer(agent(seq=5, done=2))
    watched.put(agent(seq=4, done=1))
    seen = watched.observed()
    assert seen.agents["n1"].chips[0].reset_epoch_done == 2 and "seq 4 is older than 5" in seen.diagnostics[0].message
    watched.put(agent(seq=1, boot="b2"))
    assert watched.observed().agents["n1"].boot == "b2" and watched.observed().diagnostics == ()


def test_an_agent_report_that_names_another_node_is_ignored() -> None:
    watched = observer(node("n2"), agent())
    other = agent(name="n2", seq=9)
    other["metadata"]["name"] = "belay-report-n1"
    watched.put(other)
    seen = watched.observed()
    assert seen.agents["n1"].seq == 1 and "n2" not in seen.agents and "says 'n2'" in seen.diagnostics[0].message


def public(name: str, *nodes: str, namespace: str = "cluster-system") -> dict[str, Any]:
    fault = {
        "faultId": "fault-0001", "faultType": "Storage", "faultCode": "010001001", "faultTime": 1_790_000_000_000,
        "assertion": "occur", "influence": [{"nodeName": one, "deviceIds": [0]} for one in nodes],
    }  # fmt: skip
    body = {
        "id": "message-0001",
        "timestamp": 1_790_000_000_000,
        "version": "1.0",
        "resource": "DPC",
        "faults": [fault],
    }
    return publicinfo.build(namespace, name, body)


def named(watched: Observer) -> set[str]:
    reports = watched.observed().public.values()
    return {one.node for r in reports for m in r.messages for fault in m.faults for one in fault.influences}


def test_an_agents_public_faults_are_about_its_own_node() -> None:
    watched = observer(node("n2"), public("dpc-fault-n1", "n1", "n2"))
    assert named(watched) == {"n1"}
    (report,) = watched.observed().public.values()
    assert report.found == 1 and "names 1 other nodes in the ConfigMap of node n1" in report.problems[0].message
    watched.put(public("dpc-fault-n1", "n2"))
    assert named(watched) == set()


def test_other_senders_may_speak_of_several_nodes() -> None:
    watched = observer(node("n2"), public("storage-fault-watcher", "n1", "n2"))
    assert named(watched) == {"n1", "n2"}
    assert named(observer(public("dpc-fault-n1", "n1"))) == {"n1"}
    assert msgspec.to_builtins(observer().observed().public) == {}
