"""Why a job waits, in the words that users of MindCluster search for, as `belay plan` prints them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import listing
from tests.listing import Item, job, node, params, report

SP, SP850, RACK = "chip2-node16-sp", "chip8-node8-sp", "chip8-node8-ra64-sp"


def _one(kind: str = "Ascend910", chips: int = 8, labels: Any = None, **more: Any) -> list[Item]:
    return [node("n0", kind=kind, chips=chips, labels=labels), report("n0", kind=kind, chips=chips, **more)]


def _many(count: int, kind: str = "Ascend910", chips: int = 16, rack: int | None = None) -> list[Item]:
    nodes = [node(f"s{i}", kind=kind, chips=chips) for i in range(count)]
    return nodes + [report(f"s{i}", kind=kind, chips=chips, super_pod=0, index=i, rack=rack) for i in range(count)]


def _sp(count: int, each: int, block: str | None, **more: Any) -> list[Item]:
    notes = {} if block is None else {"sp-block": block}
    return [
        *_many(3),
        params(super_pod_size="3", reserve_nodes="1"),
        *job("j", count, each, policy=SP, notes=notes, **more),
    ]


def _850(count: int, each: int, block: str) -> list[Item]:
    return [*_many(3, "npu", 8), *job("j", count, each, kind="npu", policy=SP850, notes={"sp-block": block})]


def _950(count: int, each: int, size: str | None = "64", **notes: str) -> list[Item]:
    named = {key.replace("_", "-"): value for key, value in notes.items() if key != "ub"}
    named |= {"huawei.com/schedule_ubmemory": "true"} if "ub" in notes else {}
    settings = [params(super_pod_size=size) if size else params(shared_tor_num="2") if size is None else params()]
    return [*_many(3, "npu", 8, rack=0), *settings, *job("j", count, each, kind="npu", policy=RACK, notes=named)]


DUO = {"infer-card-type": "card-300i-duo"}
SPREAD = {"duo": "true", "distributed": "true"}
INVALID: dict[str, tuple[list[Item], str]] = {
    "ring 3": (
        [*_one(), *job("j", 1, 3)],
        "InvalidResourceRequest: expected: job<j> req npu num should small than 8, "
        "and not in map[3:{} 5:{} 6:{} 7:{}], actual: task<worker> req npu: 3, ",
    ),
    "half 3": ([*_one(chips=4), *job("j", 1, 3, policy="chip4-node4")], "small than 4, and not in map[3:{}]"),
    "A2 9": ([*_one(), *job("j", 1, 9, policy="chip8-node8")], "should small than 8, and not in map[], actual: task"),
    "Box16 9": ([*_one(chips=16), *job("j", 1, 9, policy="chip8-node16")], "not in map[9:{} 11:{} 13:{} 15:{}]"),
    "A3 one die in two pods": (
        [*_one(chips=16), *job("j", 2, 1, policy="chip2-node16")],
        "only standalone job can request single npu, npu num required by task in a3×16 job must be 2n, and <= 16",
    ),
    "A3 odd": (
        [*_one(chips=16), *job("j", 1, 3, policy="chip2-node16")],
        "except for single task job can request single npu, job require npu num should be even number, instead of 3",
    ),
    "A3 18": ([*_one(chips=16), *job("j", 1, 18, policy="chip2-node16")], "must be 2n, and <= 16"),
    "300I card 5": (
        [*_one("Ascend310"), *job("j", 1, 5, kind="Ascend310", labels={"npu-310-strategy": "card"})],
        "req npu num should small than 4",
    ),
    "Duo chip, spread over two pods": (
        [*_one("Ascend310P", labels=DUO), *job("j", 2, 2, kind="Ascend310P", labels=SPREAD)],
        "job <j> task num <2> is invalid, job with label of distributed=true should have only 1 npu pod ",
    ),
    "Duo card, spread over two pods": (
        [*_one("Ascend310P", labels=DUO), *job(
            "j", 2, 2, kind="Ascend310P", labels={**SPREAD, "npu-310-strategy": "card"}
        )],
        "job with label of distributed=true should has only 1 npu pod ",
    ),
    "vNPU 2": (
        [node("n0", kind="Ascend910-2c"), *job("j", 1, 2, kind="Ascend910-2c")],
        "job <j> task num is <1>, request vnpu num <2> more than 1 virtual device, keep job pending ",
    ),
    "sp 0": (_sp(2, 16, "0"), "sp-block is invalid"),
    "sp text": (_sp(2, 16, "many"), "sp-block is invalid"),
    "sp below a node": (_sp(2, 16, "8"), "sp-block is invalid"),
    "sp no multiple": (_sp(2, 16, "40"), "sp-block is invalid"),
    "sp beyond the super pod": (_sp(4, 16, "64"), "sp-block(64/16=4) is bigger than size of super-pod(3)"),
    "sp single, other block": (_sp(1, 4, "16"), "sp-block is invalid"),
    "sp single 3": (_sp(1, 3, "3"), "npu num is invalid"),
    "sp not whole blocks": (_sp(3, 16, "32"), "npu num is invalid"),
    "sp half nodes": (
        _sp(2, 8, "16"), "distributed super-pod job require npu(0) should be equal to node npu(16)",
    ),
    "sp default is the whole job": (_sp(4, 16, None), "sp-block(64/16=4) is bigger than size of super-pod(3)"),
    "850 single 9": (_850(1, 9, "9"), "single super-pod job require npu [1, 2*n], instead of 9"),
    "850 single, other block": (
        _850(1, 4, "8"), "single super-pod job sp-block annotation should equal require npu num",
    ),
    "850 single, block of a part": (
        _850(1, 3, "4"), "single super-pod job sp-block annotation should equal require npu num",
    ),
    "850 not whole blocks": (
        _850(2, 5, "16"), "distributed super-pod job require npu(10) should be multiple of sp-block",
    ),
    "850 half nodes": (_850(2, 3, "16"), "distributed super-pod job require npu 8*n, instead of 3"),
    "950 without arguments in Volcano's ConfigMap": (
        _950(2, 8, "", sp_block="16"), "Parameter super-pod-size(0) in volcano.yaml is invalid",
    ),
    "950 without a size in Volcano's ConfigMap": (
        _950(2, 8, None, sp_block="16"),
        "Parameter super-pod-size(0) in volcano.yaml is invalid which should be in range [1,1024]",
    ),
    "950 too large a size": (_950(2, 8, "1025", sp_block="16"), "Parameter super-pod-size is invalid."),
    "950 block": (_950(2, 8, sp_block="10"), "Parameter sp-block(10) is not multiple of node npu (8)"),
    "950 block beyond the super pod": (
        _950(4, 8, "2", sp_block="32"), "Parameter spBlock(32/8=4) is bigger than size of super-pod-size(2)",
    ),
    "950 rack block 0": (
        _950(2, 8, sp_block="16", ra_block="0"),
        "Parameter ra-block is invalid, it should be a number in the range from 1 to 64",
    ),
    "950 rack block 48": (
        _950(8, 8, sp_block="64", ra_block="48"), "Parameter ra-block(48) must be the power of 2",
    ),
    "950 rack block beyond the block": (
        _950(4, 8, sp_block="16", ra_block="32"),
        "Parameter ra-block(32)/8 could not be bigger than sp-block(16)/8",
    ),
    "950 pods per rack block": (
        _950(3, 8, sp_block="24", ra_block="16"),
        "number of tasks(3) must be multiple of nodes occupied by ra-block(2)",
    ),
    "950 rack blocks per block": (
        _950(6, 8, sp_block="24", ra_block="16"), "spBlock= 24 / 8 must be multiple of tpBlock= 16 / 8",
    ),
    "950 pods per block": (
        _950(5, 8, sp_block="32"), "job require total Pod(5) should be multiple of a sp-block size 4",
    ),
    "950 single 9": (_950(1, 9, sp_block="8"), "single super-pod job require npu [1, 8], instead of 9"),
    "950 single, other block": (
        _950(1, 4, sp_block="8"), "single super-pod job sp-block annotation should equal require npu num",
    ),
    "950 half nodes": (_950(4, 6, sp_block="8"), "distributed job require npu 8, instead of 6"),
    "950 memory": (
        _950(136, 8, sp_block="64", ub="true"),
        "in ubmem scene, task require npu nums should smaller than 1024, but recevice 1088",
    ),
    "multilevel, no multiple": (
        [*_many(3), params(resource_level_config='{"default":{"level1":{"label":"a"}}}'),
         *job("j", 3, 16, policy="multilevel", notes={"huawei.com/affinity-config": "level1=2"})],
        "3 pods are not a multiple of 2",
    ),
    "multilevel, not configured": (
        [*_many(3), *job("j", 2, 16, policy="multilevel", notes={"huawei.com/affinity-config": "level1=2"})],
        "resource-level-config is not set",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_requests_that_no_cluster_can_meet(case: str, tmp_path: Path) -> None:
    items, words = INVALID[case]
    found = listing.plan(items, tmp_path)
    assert not found.bound
    assert found.pending["reason"] == "InvalidRequest" and words in found.pending["message"], found.pending


UNSUPPORTED: dict[str, list[Item]] = {
    "npu without a policy": [*_one("npu"), *job("j", 1, 4, kind="npu")],
    "unknown accelerator": [*_one(), *job("j", 1, 4, spec={"nodeSelector": {"accelerator-type": "module-x"}})],
    "unknown kind": [*_one(), *job("j", 1, 0, notes={"volcano.sh/schedule.plugin": "Ascend999"})],
    "mixed insert": [node("n0", kind="Ascend310P-V"), *job("j", 1, 1, kind="Ascend310P-V")],
    "300I strategy": [*_one("Ascend310"), *job("j", 1, 1, kind="Ascend310", labels={"npu-310-strategy": "card|chip"})],
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_jobs_without_a_handler(case: str, tmp_path: Path) -> None:
    found = listing.plan(UNSUPPORTED[case], tmp_path)
    assert not found.bound and found.pending["reason"] == "NotSupportPolicy"
    assert "no policy handler registered, NPU type may be invalid" in found.pending["message"]
    assert found.pending["unblock"]


UNFIT: dict[str, tuple[list[Item], str, str]] = {
    "short": (
        [*_one(unhealthy=[0, 1]), *job("j", 1, 8, policy="chip8-node8")],
        "NPUResourceShortage", "NPUResourceShortage: node don't have enough resource, req<8>, idle<6>",
    ),
    "cluster short": (
        [*_one(unhealthy=[0, 1]), *job("j", 1, 8, policy="chip8-node8")],
        "NPUResourceShortage", "require npu num is 8, but cluster npu num is 6",
    ),
    "ring": (
        [*_one(unhealthy=[0, 1, 6, 7], network=[2]), *job("j", 1, 4)],
        "TopologyNotMet", "npu topology not meet job require,network unhealthy card is [ Ascend910-2 ]",
    ),
    "Box16": (
        [*_one(chips=16, unhealthy=[0, 1, 2, 9, 10, 11]), *job("j", 1, 6, policy="chip8-node16")],
        "TopologyNotMet", "NPUResourceShortage: node top<[3 4 5 6 7 8 12 13 14 15]> can not meet task req<6>",
    ),
    "A3": (
        [*_one(chips=16, unhealthy=range(0, 14, 2)), *job("j", 1, 6, policy="chip2-node16")],
        "TopologyNotMet", "the npus on this node don't satisfy the schedulable topology",
    ),
    "mesh": (
        [*_one("npu", unhealthy=[0, 4]), *job("j", 1, 4, kind="npu", policy="chip4-node8")],
        "TopologyNotMet", "not meet task in 4Pmesh",
    ),
    "300I card": (
        [*_one("Ascend310", unhealthy=[2, 3, 5, 6, 7]), *job(
            "j", 1, 3, kind="Ascend310", labels={"npu-310-strategy": "card"}
        )],
        "TopologyNotMet",
        "checkNodeNPUByTask the npus on this node don't satisfy the schedulable topology : req npu(3) illegal not meet "
        "node top<[0 1 4]>",
    ),
    "Duo without its label": (
        [*_one("Ascend310P"), *job("j", 1, 2, kind="Ascend310P", labels={"duo": "true"})],
        "NodeLabelMismatch", "judgeNodeLabel node card label not right, is ",
    ),
    "Duo, half cards": (
        [*_one("Ascend310P", labels=DUO, unhealthy=[1, 3, 5, 6, 7]), *job(
            "j", 1, 2, kind="Ascend310P", labels=SPREAD
        )],
        "TopologyNotMet", "node full cards is 0",
    ),
    "no network list": (
        [*_one(network=None), node("n1"), report("n1", network=None), *job("j", 2, 8, policy="chip8-node8")],
        "NetworkStateUnknown", "don't have huawei.com/Ascend910-NetworkUnhealthy",
    ),
    "no super pod": (
        [*_one(chips=16), *job("j", 1, 16, policy=SP, notes={"sp-block": "16"})],
        "SuperPodUnknown", "the super-pod-id of node is invalid for node=n0, id=-1",
    ),
    "no rack": (
        [*_many(1, "npu", 8), params(super_pod_size="8"), *job(
            "j", 1, 8, kind="npu", policy=RACK, notes={"sp-block": "8"}
        )],
        "RackUnknown", "node rack-id is invalid for node=s0, id=-1",
    ),
    "rack node short": (
        [node("s0", kind="npu"), report("s0", kind="npu", super_pod=0, rack=0, unhealthy=range(6)),
         params(super_pod_size="8"), *job("j", 1, 8, kind="npu", policy=RACK, notes={"sp-block": "8"})],
        "NPUResourceShortage",
        "checkNodeNPUByTask the npus on this node don't satisfy the schedulable topology err: NPUResourceShortage: "
        "node don't have enough resource, req<8>, idle<2>",
    ),
    "super pod": (
        _sp(4, 16, "32"), "TopologyNotMet", "select super pod failed, required 2, total 1, node top: super-pod-id: 0",
    ),
    "racks": (
        _950(4, 8, sp_block="32"),
        "TopologyNotMet", "before scheduling, required sp-block count=1, but total sp-block count=0",
    ),
    "tree labels": (
        [*_many(2), params(resource_level_config='{"default":{"level1":{"label":"a"}}}'),
         *job("j", 2, 16, policy="multilevel", notes={"huawei.com/affinity-config": "level1=2"})],
        "TopologyLabelMissing", "topology label does not match config",
    ),
    "unstable": (
        [node("n0", sizes={"huawei.com/Ascend910": "6"}), report("n0"), *job("j", 1, 1, policy="chip8-node8")],
        "NodeUnstable", "huawei.com/Ascend910 not stable:device-info is 8 but k8s is 6",
    ),
    "other resource": (
        [*_one("npu"), *job("j", 1, 1, policy="chip8-node8")], "NPUResourceShortage", "not have huawei.com/Ascend910",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_nodes_that_do_not_fit_are_counted_by_reason(case: str, tmp_path: Path) -> None:
    items, reason, words = UNFIT[case]
    found = listing.plan(items, tmp_path)
    assert not found.bound and words in found.pending["message"], found.pending
    assert found.pending["reason"] == reason, found.pending
    assert sum(found.pending["nodes"].values()) == sum(1 for item in items if item["kind"] == "Node")


def test_missing_pods_are_named(tmp_path: Path) -> None:
    items = [*_one(), listing.group("j", 3, 8, policy="chip8-node8"), listing.pod("j-0", count=8, group="j")]
    found = listing.plan(items, tmp_path)
    assert found.pending["reason"] == "GangIncomplete"
    assert "NotEnoughPod: the pods of job is not enough, req: 3, actual: 1" in found.pending["message"]


# edge decisions


def test_network_unhealthy_chips_serve_single_pods_only(tmp_path: Path) -> None:
    pair = [node("n0"), report("n0", network=range(8)), node("n1"), report("n1", network=range(8))]
    assert listing.plan([*pair, *job("j", 1, 8, policy="chip8-node8")], tmp_path).bound
    assert not listing.plan([*pair, *job("j", 2, 8, policy="chip8-node8")], tmp_path).bound
    unaware = [*pair, *job("j", 2, 8, spec={"nodeSelector": {"accelerator-type": "card-910b-infer"}})]
    for item in unaware[:3:2]:
        item["metadata"]["labels"]["accelerator-type"] = "card-910b-infer"
    assert len(listing.plan(unaware, tmp_path).bound) == 2


def test_a_missing_network_list_does_not_stop_single_pods(tmp_path: Path) -> None:
    assert listing.plan([*_one(network=None), *job("j", 1, 8, policy="chip8-node8")], tmp_path).bound


def test_three_chips_are_illegal_on_rings_and_legal_on_meshes(tmp_path: Path) -> None:
    found = listing.plan([*_one(), *job("j", 1, 3, policy="chip4-node8")], tmp_path)
    assert found.chips("j-0") == [0, 1, 2]


def test_a_single_die_goes_beside_a_broken_module(tmp_path: Path) -> None:
    broken = [node("b", chips=16), report("b", chips=16, unhealthy=[5])]
    found = listing.plan([*_one(chips=16), *broken, *job("j", 1, 1, policy="chip2-node16")], tmp_path)
    assert found.nodes == {"j-0": "b"} and found.chips("j-0") == [4]
    assert found.scores("j-0") == {"b": 16 * (32 - 14), "n0": 16 * (32 - 15 - 16)}


def test_the_reserve_is_used_last(tmp_path: Path) -> None:
    def world(**sizes: int) -> list[Item]:
        named = [(f"{key}{i}", int(key[1])) for key, size in sizes.items() for i in range(size)]
        return [
            *(node(name, chips=16) for name, _ in named),
            *(report(name, chips=16, super_pod=home) for name, home in named),
            params(super_pod_size="10", reserve_nodes="2"),
            *job("j", 2, 16, policy=SP, notes={"sp-block": "32"}),
        ]

    assert set(listing.plan(world(s0=2), tmp_path).nodes.values()) == {"s00", "s01"}
    assert {name[:2] for name in listing.plan(world(s0=2, s1=4), tmp_path).nodes.values()} == {"s1"}


def test_a_tree_job_wants_every_free_chip_of_its_node(tmp_path: Path) -> None:
    config = params(resource_level_config='{"default":{"level1":{"label":"a"}}}')
    notes = {"huawei.com/affinity-config": "level1=1"}
    for want, bound in ((15, False), (16, True)):
        items = [*_one(chips=16, labels={"a": "x"}), config, *job("j", 1, want, policy="multilevel", notes=notes)]
        assert bool(listing.plan(items, tmp_path).bound) is bound


def test_the_plugin_annotation_counts_only_without_a_resource(tmp_path: Path) -> None:
    notes = {"volcano.sh/schedule.plugin": "Ascend999"}
    assert listing.plan([*_one(), *job("j", 1, 8, policy="chip8-node8", notes=notes)], tmp_path).bound


def test_a_pod_without_chips_passes_super_pod_checks(tmp_path: Path) -> None:
    items = _sp(2, 16, "32")
    note = {"volcano.sh/task-spec": "scheduler", "hccl/rankIndex": "2"}
    items.append(listing.pod("j-scheduler", group="j", notes=note, requests={"cpu": "1"}))
    assert set(listing.plan(items, tmp_path).bound) == {"j-0", "j-1", "j-scheduler"}


# MindCluster's functional tests of the kind named by annotation


@pytest.mark.parametrize(
    ("kind", "notes", "each", "count", "bound"),
    [
        ("Ascend910", {"volcano.sh/schedule.plugin": "Ascend910"}, 0, 8, {"j-0"}),
        ("Ascend310P", {"volcano.sh/schedule.plugin": "Ascend310P"}, 0, 3, {"j-0"}),
        ("Ascend910", {"volcano.sh/schedule.plugin": "Ascend310P"}, 8, 8, {"j-0"}),
        ("Ascend910", {}, 0, 0, {"j-0"}),
        ("Ascend910", {"volcano.sh/schedule.plugin": "Ascend999"}, 0, 8, set()),
    ],
)
def test_the_kind_of_chip_by_annotation(
    kind: str, notes: dict[str, str], each: int, count: int, bound: set[str], tmp_path: Path
) -> None:
    pods = [listing.pod("j-0", kind=kind, count=count, group="j", requests={"cpu": "1"})]
    found = listing.plan([*_one(kind), listing.group("j", 1, each, kind=kind, notes=notes), *pods], tmp_path)
    assert set(found.bound) == bound
    assert bound or found.pending["reason"] == "NotSupportPolicy"


def test_a_job_mixes_pods_with_and_without_chips(tmp_path: Path) -> None:
    named = listing.group("j", 2, 0, notes={"volcano.sh/schedule.plugin": "Ascend910"})
    pods = [listing.pod("j-0", count=8, group="j"), listing.pod("j-1", group="j", requests={"cpu": "1"})]
    found = listing.plan([*_one(), named, *pods], tmp_path)
    assert found.chips("j-0") == list(range(8)) and found.chips("j-1") == []


def test_a_service_of_one_card_servers(tmp_path: Path) -> None:
    labels = {"servertype": "soc"}
    items = [*_one("Ascend310P", 1, labels=labels), *job("j", 1, 1, kind="Ascend310P", spec={"nodeSelector": labels})]
    found = listing.plan(items, tmp_path)
    assert found.chips("j-0") == [0] and found.scores("j-0") == {"n0": 6399}


def test_an_operator_pod_has_every_annotation_that_a_device_plugin_reads(tmp_path: Path) -> None:
    items = [*_one(), *job("j", 1, 2, policy="chip8-node8")]
    items[-1]["metadata"]["labels"]["training.kubeflow.org/operator-name"] = "ascendjob-controller"
    notes = listing.plan(items, tmp_path).bound["j-0"]["annotations"]
    address = items[0]["status"]["addresses"][0]["address"]
    assert notes == {
        "ascend.kubectl.kubernetes.io/ascend-910-configuration": (
            '{"pod_name":"j-0","server_id":"u-train-j-0","server_ip":"HOST","host_ip":"HOST","super_pod_id":-1,"rack_id":-1,'
            '"server_index":"0","devices":[{"device_id":"0","device_ip":"192.168.0.1","super_device_id":"0"},'
            '{"device_id":"1","device_ip":"192.168.1.1","super_device_id":"1"}]}'
        ).replace("HOST", address),
        "distributed-job": "false",
        "huawei.com/Ascend910": "Ascend910-0,Ascend910-1",
        "huawei.com/AscendReal": "Ascend910-0,Ascend910-1",
        "predicate-time": "1788249600000000000",
    }


@pytest.mark.parametrize(("held", "unhealthy"), [(range(6), ()), ((), range(6)), ((2, 3, 5, 6, 7), ())])
def test_too_few_chips_of_a_ring_are_reported_as_topology_not_met(held: Any, unhealthy: Any, tmp_path: Path) -> None:
    """The family answers before Kubernetes' own count does."""
    labels = {"accelerator-type": "module"}
    items = _one(labels=labels, unhealthy=unhealthy)
    if held:
        items.append(listing.pod("busy", on="n0", chips=held))
    found = listing.plan([*items, *job("j", 1, 4, spec={"nodeSelector": labels})], tmp_path).pending
    assert found["reason"] == "TopologyNotMet" and found["nodes"] == {"TopologyNotMet": 1}
    assert "npu topology not meet job require,network unhealthy card is [" in found["message"]


def test_nodes_that_fit_but_for_the_rule_of_the_gang_are_counted(tmp_path: Path) -> None:
    cordoned = {**node("n9", chips=16), "spec": {"unschedulable": True}}
    items = [*_many(3), cordoned, report("n9", chips=16), *job("j", 4, 16, policy=SP, notes={"sp-block": "32"})]
    found = listing.plan([*items, params(super_pod_size="4", reserve_nodes="1")], tmp_path).pending
    assert found["reason"] == "TopologyNotMet" and found["nodes"] == {"NodeUnschedulable": 1, "TopologyNotMet": 3}
    rest = "3/4 nodes fit a single pod, but not the job's rule: 1 node(s) were unschedulable (n9) [pod j-0 of 4]"
    assert "; select super pod failed, required 2, total 1, " in found["message"] and found["message"].endswith(rest)


def test_the_way_out_names_what_is_missing(tmp_path: Path) -> None:
    """Chips with a healthy network for a distributed job; vNPUs of the size asked for."""
    nodes = [item for name in ("n1", "n2") for item in (listing.node(name), listing.report(name, network=[0]))]
    found = listing.plan([*nodes, *job("j", 2, 8, policy="chip8-node8")], tmp_path)
    assert "needs 8 free chips with a healthy network on 2 more nodes" in found.pending["unblock"]
    assert found.pending["near"] == ["n1", "n2"]
    size = "huawei.com/Ascend910-2c"
    cut = [listing.node("n1", sizes={size: "4"}), listing.report("n1")]
    pods = [listing.pod(f"v-{i}", group="v", requests={size: "1"}) for i in range(6)]
    group = listing.group("v", 6, 0)
    group["spec"]["minResources"] = {size: "6"}
    found = listing.plan([*cut, group, *pods], tmp_path)
    assert found.pending["unblock"] == f"needs 1 free {size} for each of 2 more pods (nearest is n1 with 0 free)"
    assert found.pending["near"] == ["n1"]


def test_the_way_out_of_a_cluster_without_agents_is_an_agent(tmp_path: Path) -> None:
    found = listing.plan([listing.node("n1"), listing.node("n2"), *job("j", 1, 8, policy="chip8-node8")], tmp_path)
    assert found.pending["reason"] == "NodeReportMissing"
    assert found.pending["unblock"] == (
        "let a node report its chips, for example n1: run belay agent (deploy/overlays/nodes) or MindCluster's device "
        "plugin there"
    )
