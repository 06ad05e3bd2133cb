"""Public faults: form and limits of messages, what is remembered of them, and what a pass makes of them."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.model import public_faults
from belay.engine.model.history import History
from belay.engine.model.public_faults import PublicFaultClaim, fold, read, respond, spend
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.status.mindcluster import ClusterInfo
from belay.engine.status.rescheduling import fault_npu
from belay.engine.wire import history as history_wire
from belay.engine.wire import publicinfo
from tests.steps import Steps
from tests.worlds import NOW, decide, desired, document, fault, node, observed, pod, report

MS = int(NOW * 1000)


def message(
    assertion: str = "occur",
    *,
    at: int = MS - 4000,
    code: str = "220001001",
    fault_id: str = "fault-0001",
    resource: str = "pingmesh",
    chips: Any = (0, 3),
    where: Any = None,
    **head: Any,
) -> dict[str, Any]:
    row = {
        "faultId": fault_id,
        "faultType": "NPU",
        "faultCode": code,
        "faultTime": MS - 5000,
        "assertion": assertion,
        "faultLocation": {"rack": "7"},
        "influence": [{"nodeName": "n0", "deviceIds": list(chips)}] if where is None else where,
        "description": "",
    }
    return {"id": f"message-{at}", "timestamp": at, "version": "1.0", "resource": resource, "faults": [row]} | head


def public(*bodies: dict[str, Any]) -> dict[str, Any]:
    return {f"kube-system/m{i}": publicinfo.parse(publicinfo.build("kube-system", f"m{i}", body))
            for i, body in enumerate(bodies)}  # fmt: skip


def scope(
    *bodies: dict[str, Any], now: float = NOW, history: History | None = None, policies: Any = (), **more: Any
) -> Steps:
    reports = [report("n0", update_time=now - 2, faults=more.pop("faults", ())), report("n1", update_time=now - 2)]
    nodes = more.pop("nodes", None) or [node("n0"), node("n1")]
    said = more.pop("public", None) or public(*bodies)
    world = observed(nodes, reports, more.pop("pods", ()), history=history, public=said, **more)
    return decide(world, desired(*policies), now=now)


def chips(result: Steps) -> dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return {f"{c.node}/{c.chip[10:]}": (c.state, c.level, c.codes, c.fault_type) for c in result.chips}


def set_at(body: Any, path: str, value: Any) -> Any:
    body = copy.deepcopy(body)
    *before, last = path.split(".")
    target = body
    for part in before:
        target = target[int(part)] if part.isdigit() else target[part]
    if value is KeyError:
        del target[last]
    else:
        target[int(last) if last.isdigit() else last] = value
    return body


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("id", "short", "id"), ("id", "x" * 129, "id"), ("id", "with blank", "id"), ("id", KeyError, "id"),
        ("timestamp", 1735689599999, "timestamp"), ("timestamp", MS // 1000, "timestamp"),
        ("timestamp", True, "timestamp"), ("version", "2.0", "version"), ("resource", "", "resource"),
        ("faults", [], "faults"), ("faults", [{}] * 101, "faults"),
        ("faults.0", "text", "faults[0]"),
        ("faults.0.faultId", "a b c d e f", "faults[0].faultId"), ("faults.0.faultType", "Disk", "faults[0].faultType"),
        ("faults.0.faultCode", "22000100", "faults[0].faultCode"), ("faults.0.faultTime", 0, "faults[0].faultTime"),
        ("faults.0.assertion", "gone", "faults[0].assertion"),
        ("faults.0.faultLocation", {f"k{i}": "" for i in range(11)}, "faults[0].faultLocation"),
        ("faults.0.faultLocation", {"k" * 17: ""}, "faults[0].faultLocation"),
        ("faults.0.faultLocation", {"k": "v" * 129}, "faults[0].faultLocation"),
        ("faults.0.description", "d" * 513, "faults[0].description"),
        ("faults.0.description", "two\nlines", "faults[0].description"),
        ("faults.0.description", "a\ttab", "faults[0].description"),
        ("faults.0.influence", [], "faults[0].influence"),
        ("faults.0.influence", [{"nodeName": "n0", "deviceIds": [0]}] * 1001, "faults[0].influence"),
        ("faults.0.influence.0.nodeName", "N0", "faults[0].influence[0].nodeName"),
        ("faults.0.influence.0.nodeName", "n" * 254, "faults[0].influence[0].nodeName"),
        ("faults.0.influence.0", {"deviceIds": [0]}, "faults[0].influence[0]"),
        ("faults.0.influence.0.deviceIds", [], "faults[0].influence[0].deviceIds"),
        ("faults.0.influence.0.deviceIds", [1, 1], "faults[0].influence[0].deviceIds"),
        ("faults.0.influence.0.deviceIds", [32], "faults[0].influence[0].deviceIds"),
        ("faults.0.influence.0.deviceIds", [True], "faults[0].influence[0].deviceIds"),
        ("faults.0.influence.0.deviceIds", list(range(33)), "faults[0].influence[0].deviceIds"),
    ],
)  # fmt: skip
def test_every_limit_of_the_format_is_named(path: str, value: Any, field: str) -> None:
    found, problems = read(set_at(message(), path, value))
    assert found is None
    assert [p.field for p in problems] == [field]


def test_the_limits_themselves_are_allowed() -> None:
    body = message(chips=range(32), id="a" * 128)
    body["faults"] = [dict(body["faults"][0], faultId=f"fault-{i:04d}") for i in range(100)]
    body["faults"][0] |= {"description": "d" * 512, "faultLocation": {f"{i:016d}": "v" * 128 for i in range(10)}}
    found, problems = read(body)
    assert found is not None and not problems
    assert len(found.faults) == 100


def test_an_invalid_fault_is_dropped_and_a_message_without_valid_faults_is_refused() -> None:
    body = message()
    body["faults"].append(dict(body["faults"][0], faultCode="999999999", faultId="fault-0002"))
    body["faults"].append(dict(body["faults"][0], assertion="perhaps", faultId="fault-0003"))
    code, info, found = respond(body, {"pingmesh"}, {"220001001"})
    assert (code, [f.id for f in found.faults] if found else None) == (0, ["fault-0001"])
    assert "faults[1].faultCode" in info and "faults[2].assertion" in info
    assert respond(body, {"CCAE"}, {"220001001"})[0] == public_faults.BAD_PARAMETER
    assert respond(body, {"pingmesh"}, set())[2] is None


def test_a_sender_may_send_a_hundred_at_once_and_one_a_second() -> None:
    tokens, at = 100.0, MS
    for _ in range(100):
        tokens, passed = spend(tokens, at, at)
        assert passed
    assert spend(tokens, at, at + 999) == (pytest.approx(0.999), False)
    assert spend(tokens, at, at + 1000) == (pytest.approx(0.0), True)
    assert spend(tokens, at, at + 10**9)[0] == 99


@pytest.mark.parametrize(
    ("code", "resource", "state", "level"),
    [
        ("220001001", "pingmesh", "isolated", "SeparateNPU"),
        ("110001022", "dtfsStorage", "isolated", "PreSeparateNPU"),
        ("110001020", "dpcStorage", "sub-healthy", "SubHealthFault"),
        ("200001010", "Netmind", "healthy", "NotHandleFault"),
        ("110001010", "fd-online", "sub-healthy", "SubHealthFault"),
        ("020001004", "CCAE", "isolated", "SeparateNPU"),
        ("000001B01", "belay-train", "healthy", "NotHandleFault"),
    ],
)
def test_public_levels_behave_as_the_chip_levels_of_the_same_name(
    code: str, resource: str, state: str, level: str
) -> None:
    found = chips(scope(message(code=code, resource=resource)))
    assert found == {f"n0/{i}": (state, level, (code,), ("PublicFault",)) for i in (0, 3)}


def test_pre_separate_spares_the_pod_in_place() -> None:
    running = pod("p", node="n0", chips=[0], owner=("AscendJob", "j"), labels={"fault-scheduling": "force"})
    found = scope(message(code="110001022", resource="dtfsStorage"), pods=[running])
    assert not [a for a in found.actions if type(a).__name__ == "EvictPod"]
    assert found.nodes["n0"].free == 0b11110110


def test_faults_outlive_their_config_map_and_end_with_a_recovery_of_the_same_sender_and_id() -> None:
    first = scope(message())
    kept = first.memory.frozen()
    later = scope(history=kept, now=NOW + 3600)
    assert set(chips(later)) == {"n0/0", "n0/3"}
    other = message("recover", at=MS, resource="CCAE")
    assert set(chips(scope(other, history=kept, now=NOW + 3600))) == {"n0/0", "n0/3"}
    gone = scope(message("recover", at=MS), history=kept, now=NOW + 3600)
    assert not chips(gone)


def test_an_old_message_that_is_still_there_cannot_bring_a_fault_back() -> None:
    kept = scope(message()).memory.frozen()
    both = scope(message(), message("recover", at=MS), history=kept, now=NOW + 60)
    assert not chips(both)
    only_old = scope(message(), history=both.memory.frozen(), now=NOW + 120)
    assert not chips(only_old)
    none = scope(history=only_old.memory.frozen(), now=NOW + 180)
    assert not none.memory.nodes["n0"].public
    again = scope(message(at=MS + 100_000), history=only_old.memory.frozen(), now=NOW + 180)
    assert set(chips(again)) == {"n0/0", "n0/3"}


def test_what_happens_once_and_what_recovers_at_once_stay_visible_for_five_seconds() -> None:
    for bodies in ([message("once")], [message(), message("recover", at=MS - 3000)]):
        kept = scope(*bodies)
        assert set(chips(kept)) == {"n0/0", "n0/3"}
        assert set(chips(scope(*bodies, history=kept.memory.frozen(), now=NOW + 4.999))) == {"n0/0", "n0/3"}
        assert not chips(scope(*bodies, history=kept.memory.frozen(), now=NOW + 5))


def test_a_fault_that_ended_long_before_its_first_pass_isolates_nothing() -> None:
    bodies = [message(at=MS - 600_000), message("recover", at=MS - 61_000)]
    assert not chips(scope(*bodies)) and not chips(scope(*reversed(bodies)))
    assert chips(scope(bodies[0], message("recover", at=MS - 59_000)))


def test_one_code_on_one_chip_is_shown_once_and_a_chip_fault_is_kept_beside_it() -> None:
    twice = scope(message(), message(fault_id="fault-0002", at=MS - 1), faults=[fault(3)])
    report_now = twice.nodes["n0"].report
    assert report_now is not None
    assert sorted((f.kind, f.chip) for f in report_now.faults) == [
        ("CardUnhealthy", 3), ("PublicFault", 0), ("PublicFault", 3),
    ]  # fmt: skip
    assert chips(twice)["n0/3"][1:] == ("SeparateNPU", ("220001001", "80C98001"), ("CardUnhealthy", "PublicFault"))


def test_nodes_are_found_by_serial_number_and_the_name_wins() -> None:
    nodes = [node("n0"), node("n1", annotations={"product-serial-number": "SN-1"})]
    by_serial = message(where=[{"nodeSN": "SN-1", "deviceIds": [5]}])
    assert set(chips(scope(by_serial, nodes=nodes))) == {"n1/5"}
    both = message(where=[{"nodeSN": "SN-1", "nodeName": "n0", "deviceIds": [5]}])
    assert set(chips(scope(both, nodes=nodes))) == {"n0/5"}
    nowhere = scope(message(where=[{"nodeSN": "SN-2", "deviceIds": [5]}]))
    assert not chips(nowhere)
    assert any("no node has" in d.message for d in nowhere.diagnostics)


def test_a_policy_may_change_the_level_of_a_public_code_in_its_scope() -> None:
    rule = document("FaultPolicy", "p", levels={"220001001": "SubHealthFault"}, scope={"nodes": ["n0"]})
    assert chips(scope(message(), policies=[rule]))["n0/0"][:2] == ("sub-healthy", "SubHealthFault")
    # a chip that computed a wrong result is shown only, unless a policy says more
    rule = document("FaultPolicy", "p", levels={"000001B01": "SeparateNPU"})
    wrong = message(code="000001B01", resource="belay-train")
    assert chips(scope(wrong, policies=[rule]))["n0/0"][:2] == ("isolated", "SeparateNPU")


def test_bad_messages_are_named_by_object_and_field() -> None:
    found = scope(message(code="999999999"), message(resource="stranger"), message(version="2"))
    errors = {(d.object, d.field) for d in found.diagnostics if d.severity == "error"}
    assert errors == {
        ("ConfigMap/kube-system/m0", "data.PublicFault.faults[0].faultCode"),
        ("ConfigMap/kube-system/m1", "data.PublicFault.resource"),
        ("ConfigMap/kube-system/m2", "data.PublicFault.version"),
    }
    assert not chips(found)


def test_any_labelled_config_map_is_read_and_no_other() -> None:
    body = publicinfo.build("anywhere", "at-all", message())
    assert list(observe([body]).public) == ["anywhere/at-all"]
    unlabelled = {**body, "metadata": {"name": "at-all", "namespace": "anywhere"}}
    assert not observe([unlabelled]).public
    broken = {**body, "data": {"PublicFault": "{"}}
    (problem,) = observe([broken]).public["anywhere/at-all"].problems
    assert problem.field == "data.PublicFault" and "JSON" in problem.message
    inbox = publicinfo.build_messages([message(), message("recover", at=MS)])
    (parsed,) = observe([inbox]).public.values()
    assert len(parsed.messages) == 2


def reported(namespace: str, *sources: dict[str, Any], name: str = "m", **more: Any) -> Steps:
    """What a ConfigMap of a namespace leads to, where these sources are allowed."""
    settings = [document("SchedulingSettings", "s", publicFaultSources=list(sources))] if sources else []
    pool = document("NodePool", "team", selector={"matchLabels": {"team": "a"}})
    pool["spec"]["product"] = "atlas-800t-a2"
    plain = node("n1")
    nodes = [node("n0"), msgspec.structs.replace(plain, labels={**plain.labels, "team": "a"})]
    both = [{"nodeName": n, "deviceIds": [3]} for n in ("n0", "n1")]
    found = publicinfo.parse(publicinfo.build(namespace, name, message(where=both)))
    return scope(policies=[*settings, pool], public={f"{namespace}/{name}": found}, nodes=nodes, **more)


def test_a_tenants_public_faults_move_nothing_and_the_status_says_so() -> None:
    for namespace in ("mindx-dl", "cluster-system", "kube-system"):
        assert set(chips(reported(namespace))) == {"n0/3", "n1/3"}, "where MindCluster's components write them"
    for namespace in ("tenant", "belay-system", "belay-nodes"):
        found = reported(namespace)
        assert not chips(found)
        (finding,) = [d for d in found.diagnostics if d.severity == "error"]
        assert finding.object == f"Namespace/{namespace}" and "publicFaultSources" in finding.message
    assert set(chips(reported("belay-system", name=publicinfo.MESSAGES))) == {"n0/3", "n1/3"}, "checked by gRPC"


def test_a_namespace_may_be_allowed_for_all_nodes_or_for_those_of_a_pool() -> None:
    assert set(chips(reported("tenant", {"namespace": "tenant"}))) == {"n0/3", "n1/3"}
    assert set(chips(reported("tenant", {"namespace": "*"}))) == {"n0/3", "n1/3"}
    assert not chips(reported("mindx-dl", {"namespace": "tenant"})), "the list replaces the default"
    found = reported("tenant", {"namespace": "tenant", "pools": ["team"]})
    assert set(chips(found)) == {"n1/3"}
    (finding,) = [d for d in found.diagnostics if d.severity == "error"]
    assert finding.object == "ConfigMap/tenant/m" and "names 1 node outside the pools team" in finding.message
    assert finding.message.endswith("which does not count: n0")


def test_findings_about_many_namespaces_are_bounded() -> None:
    body = publicinfo.parse(publicinfo.build("x", "m", message()))
    found = scope(public={f"tenant-{i:03}/{name}": body for i in range(300) for name in ("a", "b")})
    errors = [d.message for d in found.diagnostics if d.severity == "error"]
    assert len(errors) == 21 and errors[0].startswith("2 ConfigMaps") and "280 more namespaces" in errors[-1]


def test_two_messages_with_one_id_are_both_kept() -> None:
    first, second = ("message-0001", '{"a":1}'), ("message-0001", '{"a":2}')
    data = publicinfo.with_messages({}, [first, second, first])
    assert sorted(data.values()) == [first[1], second[1]]
    assert publicinfo.with_messages(data, [second, first]) == data, "sent again, nothing is added"
    body = message()
    stored = publicinfo.with_messages(
        {}, [(body["id"], json.dumps(body)), (body["id"], json.dumps(message("recover")))]
    )
    (parsed,) = observe([{**publicinfo.build_messages(()), "data": stored}]).public.values()
    assert len(parsed.messages) == 2


def test_a_live_clusterds_own_list_counts_while_it_lists_and_belays_list_does_not() -> None:
    rows = '{"n0":[{"resource":"CCAE","devIds":[1],"faultId":"by-grpc-1","type":"NPU","faultCode":"020001001",' \
           '"level":"SeparateNPU","faultTime":1788249000}]}'  # fmt: skip
    listing: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": "cluster-system", "name": "statistic-fault-info"},
        "data": {"PublicFaults": rows, "FaultNum": '{"publicFaultNum":1}'},
    }
    assert set(chips(scope(objects=[listing]))) == {"n0/1"}
    heard = message("recover", fault_id="by-grpc-1", resource="CCAE", code="020001001", chips=[1], at=MS)
    own = message(fault_id="by-grpc-1", resource="CCAE", code="020001001", chips=[2], at=MS - 1000)
    known = scope(own).memory.frozen()
    assert set(chips(scope(own, history=known, objects=[listing]))) == {"n0/2"}, "Belay's own word on it is newer"
    ended = scope(heard, own, history=known, objects=[listing])
    assert "n0/1" not in chips(ended), "the list has not heard of the end yet"
    listing["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "belay"}
    assert not chips(scope(objects=[listing]))


def test_storage_is_bounded_and_drops_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.engine.plan.health.public_faults.MAX_PER_NODE", 3)
    bodies = [message(fault_id=f"fault-{i:04d}", at=MS - 100 + i, chips=[i]) for i in range(5)]
    first = scope(*bodies)
    assert set(chips(first)) == {"n0/0", "n0/1", "n0/2"}
    assert any("2 public faults are not stored" in d.message for d in first.diagnostics)
    recovered = scope(message("recover", fault_id="fault-0000", at=MS), *bodies, history=first.memory.frozen())
    assert "n0/1" in chips(recovered)


def test_readers_of_mindcluster_see_the_faults_in_seconds_and_the_list_of_them() -> None:
    world = observed([node("n0")], [report("n0")], public=public(message()))
    result = plan(desired(), world, NOW)
    bodies = {b["metadata"]["name"]: b["data"] for b in ClusterInfo().bodies(result, world)}
    device = bodies["cluster-info-device-0"]["cluster-info-device-0"]
    assert '\\"fault_type\\":\\"PublicFault\\"' in device
    assert '"RackID":0' in device, "outside racks, as ClusterD has it"
    assert '\\"fault_time\\":' + str((MS - 5000) // 1000) in device
    assert '"huawei.com/Ascend910-Unhealthy":"Ascend910-0,Ascend910-3"' in device
    (row,) = json.loads(fault_npu(result, world)["data"]["fault-node"])
    assert row["UnhealthyNPU"] == ["Ascend910-0", "Ascend910-3"] and row["NodeHealthState"] == "CardUnhealthy"
    assert [(e["fault_type"], e["npu_name"], e["fault_code"]) for e in row["FaultDeviceList"]] == [
        ("PublicFault", "Ascend910-0", "220001001"), ("PublicFault", "Ascend910-3", "220001001")
    ]  # fmt: skip
    mild = observed([node("n0")], [report("n0")], public=public(message(code="110001010", chips=[2])))
    (row,) = json.loads(fault_npu(plan(desired(), mild, NOW), mild)["data"]["fault-node"])
    assert [e["fault_level"] for e in row["FaultDeviceList"]] == ["SubHealthFault"] and row["UnhealthyNPU"] == []
    listed = bodies["statistic-fault-info"]
    assert listed["FaultNum"] == '{"publicFaultNum":1}'
    assert listed["PublicFaults"] == (
        '{"n0":[{"resource":"pingmesh","devIds":[0,3],"faultId":"fault-0001","type":"NPU",'
        f'"faultCode":"220001001","level":"SeparateNPU","faultTime":{(MS - 5000) // 1000}}}]}}'
    )


def test_the_memory_survives_its_config_map() -> None:
    memory = scope(message()).memory.nodes["n0"]
    body = {"metadata": {"name": "belay-history-n0"}, "data": history_wire.node_data(memory)}
    assert history_wire.parse_node(body) == ("n0", memory)


def test_a_message_may_be_deleted_once_the_memory_holds_it() -> None:
    found, _ = read(message())
    assert found is not None
    empty: dict[str, Any] = {"n0": {}}
    assert not public_faults.consumed(found, empty)
    kept = {"n0": fold({}, [claim for _, claim in public_faults.claims(found, {})], MS)}
    assert public_faults.consumed(found, kept)
    end, _ = read(message("recover", at=MS))
    assert end is not None
    assert not public_faults.consumed(end, kept)
    assert public_faults.consumed(end, empty)
    assert not public_faults.consumed(found, {})


claims = st.builds(
    PublicFaultClaim,
    stamp=st.integers(0, 5).map(lambda n: MS + n * 1000),
    message=st.sampled_from(["message-a", "message-b"]),
    place=st.integers(0, 2),
    key=st.sampled_from(["CCAE/fault-0001", "CCAE/fault-0002"]),
    code=st.just("220001001"),
    assertion=st.sampled_from(["occur", "recover", "once"]),
    time_ms=st.just(MS),
    chips=st.just((0,)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(claims, max_size=8, unique_by=lambda c: (c.stamp, c.message, c.place)), st.randoms())
def test_order_and_repetition_of_messages_change_nothing(said: list[PublicFaultClaim], chance: Any) -> None:
    shuffled = [*said, *said]
    chance.shuffle(shuffled)
    once = fold({}, said, MS)
    assert fold({}, shuffled, MS) == once
    assert fold(once, said, MS) == once
    end = fold(once, said, MS + 60_000)
    newest = {c.key: c for c in sorted(said)}
    assert {k for k, seen in end.items() if not seen.over} == {k for k, c in newest.items() if c.assertion == "occur"}
    assert not [k for k, seen in fold(end, [], MS + 60_000).items() if seen.over]


def test_belays_own_config_map_may_be_empty_and_no_other() -> None:
    assert publicinfo.parse(publicinfo.build_messages([])).problems == ()
    other = publicinfo.build_messages([])
    other["metadata"]["name"] = "faults"
    assert [problem.field for problem in publicinfo.parse(other).problems] == ["data.PublicFault"]
