"""Pod specs as users of Kubernetes write them, decided by `belay plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import listing
from tests.listing import Item, job, node, report

CLEAN = "kubernetes.io/hostname"


def _nodes(**labels: dict[str, str]) -> list[Item]:
    return [item for name, own in labels.items() for item in (node(name, labels=own), report(name))]


def _job(count: int, each: int, spec: dict[str, Any], **more: Any) -> list[Item]:
    items = job("j", count, each, policy="chip8-node8", spec=spec, **more)
    for item in items[1:]:
        item["metadata"]["labels"]["app"] = "j"
    return items


def _spread(key: str = "zone", skew: int = 1, **more: Any) -> dict[str, Any]:
    row = {"maxSkew": skew, "topologyKey": key, "labelSelector": {"matchLabels": {"app": "j"}}, **more}
    return {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule", **row}]}


ZONES = {f"{zone}{i}": {"zone": zone} for zone in "ab" for i in range(2)}


def _by_zone(found: listing.Answer) -> list[int]:
    zones = [name[0] for name in found.nodes.values()]
    return [zones.count(zone) for zone in "ab"]


def test_pods_spread_over_zones(tmp_path: Path) -> None:
    assert _by_zone(listing.plan([*_nodes(**ZONES), *_job(4, 4, {})], tmp_path)) == [4, 0]
    assert _by_zone(listing.plan([*_nodes(**ZONES), *_job(4, 4, _spread())], tmp_path)) == [2, 2]


def test_a_preferred_spread_decides_among_equal_nodes(tmp_path: Path) -> None:
    anyway = _spread(whenUnsatisfiable="ScheduleAnyway")
    found = listing.plan([*_nodes(**ZONES), *_job(4, 4, anyway)], tmp_path)
    assert [found.nodes[f"j-{i}"] for i in range(4)] == ["a0", "a0", "b0", "b0"], "nodes are filled first"
    world = [*_nodes(a0={"zone": "a"}, a1={"zone": "a"}, b0={"zone": "b"}, x={})]
    assert _by_zone(listing.plan([*world, *_job(2, 8, anyway)], tmp_path)) == [1, 1]
    found = listing.plan([*world, *_job(4, 8, anyway)], tmp_path)
    assert len(found.bound) == 4 and found.nodes["j-3"] == "x", "a node without the key comes last, but is taken"


@pytest.mark.parametrize(("skew", "bound"), [(1, False), (2, True)])
def test_running_pods_count_towards_the_skew(skew: int, bound: bool, tmp_path: Path) -> None:
    old = listing.pod("old", on="a0", chips=range(8), labels={"app": "j"})
    world = [*_nodes(a0={"zone": "a"}, a1={"zone": "a"}, b0={"zone": "b"}), old]
    world.append(listing.pod("full", on="b0", chips=range(8)))
    found = listing.plan([*world, *_job(1, 8, _spread(skew=skew))], tmp_path)
    assert bool(found.bound) is bound
    if not bound:
        assert found.pending["nodes"] == {"NPUResourceShortage": 2, "TopologySpreadConflict": 1}


def test_nodes_without_the_key_and_too_few_domains(tmp_path: Path) -> None:
    found = listing.plan([*_nodes(x={}), *_job(1, 8, _spread())], tmp_path)
    assert "missing required label" in found.pending["message"]
    world = _nodes(a0={"zone": "a"}, a1={"zone": "a"})
    assert len(listing.plan([*world, *_job(2, 8, _spread())], tmp_path).bound) == 2
    assert not listing.plan([*world, *_job(2, 8, _spread(minDomains=2))], tmp_path).bound


def test_only_nodes_that_the_pod_may_use_are_domains(tmp_path: Path) -> None:
    world = _nodes(a0={"zone": "a", "kind": "x"}, a1={"zone": "a", "kind": "x"}, b0={"zone": "b", "kind": "y"})
    spec = {"nodeSelector": {"kind": "x"}}
    assert len(listing.plan([*world, *_job(2, 8, spec | _spread())], tmp_path).bound) == 2
    ignored = spec | _spread(nodeAffinityPolicy="Ignore")
    assert not listing.plan([*world, *_job(2, 8, ignored)], tmp_path).bound


def test_a_cordoned_node_is_no_domain_where_taints_are_honoured(tmp_path: Path) -> None:
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    closed = [node("b0", labels={"zone": "b"}, unschedulable=True, taints=[cordon]), report("b0")]
    world = [*_nodes(a0={"zone": "a"}, a1={"zone": "a"}), *closed]
    assert not listing.plan([*world, *_job(2, 8, _spread())], tmp_path).bound
    assert len(listing.plan([*world, *_job(2, 8, _spread(nodeTaintsPolicy="Honor"))], tmp_path).bound) == 2


def test_a_spread_with_an_empty_selector_counts_no_pod(tmp_path: Path) -> None:
    """As for kube-scheduler, though an empty selector selects all."""
    world = _nodes(a0={"zone": "a"}, a1={"zone": "a"}, b0={"zone": "b"})
    world.append(listing.pod("full", namespace="other", on="b0", chips=range(8)))
    assert not listing.plan([*world, *_job(2, 8, _spread())], tmp_path).bound
    assert len(listing.plan([*world, *_job(2, 8, _spread(labelSelector={}))], tmp_path).bound) == 2


def test_match_label_keys_separate_generations(tmp_path: Path) -> None:
    world = _nodes(a0={"zone": "a"}, b0={"zone": "b"})
    world.append(listing.pod("old", on="b0", chips=[0], labels={"app": "j", "rev": "1"}))
    items = _job(1, 2, _spread(matchLabelKeys=["rev"]))
    items[1]["metadata"]["labels"]["rev"] = "2"
    assert listing.plan([*world, *items], tmp_path).nodes == {"j-0": "b0"}  # fuller, and nothing of its own there
    items = _job(1, 2, _spread())
    assert listing.plan([*world, *items], tmp_path).nodes == {"j-0": "a0"}


def _volume(name: str, zone: str | None) -> list[Item]:
    claim: Item = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": "train", "name": name},
        "spec": {"volumeName": f"pv-{name}"},
    }  # fmt: skip
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]
    volume: Item = {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"pv-{name}"},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if zone else {},
    }  # fmt: skip
    return [claim, volume]


def _mounting(*claims: str) -> dict[str, Any]:
    return {"volumes": [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]}


def test_pods_follow_their_volumes(tmp_path: Path) -> None:
    world = _nodes(a0={"zone": "a"}, b0={"zone": "b"})
    assert listing.plan([*world, *_volume("d", "b"), *_job(1, 2, _mounting("d"))], tmp_path).nodes == {"j-0": "b0"}
    assert listing.plan([*world, *_volume("d", None), *_job(1, 2, _mounting("d"))], tmp_path).nodes == {"j-0": "a0"}
    assert listing.plan([*world, *_job(1, 2, _mounting("unseen"))], tmp_path).nodes == {"j-0": "a0"}
    torn = [*world, *_volume("d", "a"), *_volume("e", "b"), *_job(1, 2, _mounting("d", "e"))]
    found = listing.plan(torn, tmp_path)
    assert found.pending["nodes"] == {"VolumeNodeAffinityConflict": 2}
    own = {"volumes": [{"name": "tmp", "ephemeral": {"volumeClaimTemplate": {}}}]}
    assert listing.plan([*world, *_volume("j-0-tmp", "b"), *_job(1, 2, own)], tmp_path).nodes == {"j-0": "b0"}


def test_a_volume_is_in_the_zones_that_its_labels_say(tmp_path: Path) -> None:
    zone = "topology.kubernetes.io/zone"
    claim, volume = _volume("d", None)
    volume["metadata"]["labels"] = {zone: "b__c"}
    items = [claim, volume, *_job(1, 8, _mounting("d"))]
    for labels, bound in (({zone: "a"}, False), ({zone: "c"}, True), ({}, True), ({"x": "a"}, True)):
        assert bool(listing.plan([*_nodes(n0=labels), *items], tmp_path).bound) is bound, labels
    volume["metadata"]["labels"] = {"failure-domain.beta.kubernetes.io/zone": "b"}
    for labels, bound in (({zone: "a"}, False), ({zone: "b"}, True)):
        assert bool(listing.plan([*_nodes(n0=labels), *items], tmp_path).bound) is bound, labels


@pytest.mark.parametrize(("mode", "bound"), [("ReadWriteOncePod", False), ("ReadWriteOnce", True)])
def test_a_claim_for_one_pod_waits_until_that_is_gone(mode: str, bound: bool, tmp_path: Path) -> None:
    claim, volume = _volume("d", None)
    claim["spec"]["accessModes"] = [mode]
    user = listing.pod("user", on="n0", spec=_mounting("d"))
    world = [*_nodes(n0={}, n1={}), claim, volume]
    found = listing.plan([*world, user, *_job(1, 8, _mounting("d"))], tmp_path)
    assert bool(found.bound) is bound
    if not bound:
        assert found.pending["nodes"] == {"VolumeClaimInUse": 2} and "train/user" in found.pending["message"]
    user["status"]["phase"] = "Succeeded"
    assert listing.plan([*world, user, *_job(1, 8, _mounting("d"))], tmp_path).bound

    assert bool(listing.plan([*world, *_job(2, 4, _mounting("d"))], tmp_path).bound) is bound, "two of one pass"


def _company(part: str, weight: int = 10) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": CLEAN}
    wish = [{"weight": weight, "podAffinityTerm": term}]
    return {"affinity": {part: {"preferredDuringSchedulingIgnoredDuringExecution": wish}}}


def test_preferred_pod_affinity_decides_between_equal_nodes(tmp_path: Path) -> None:
    world = [*_nodes(n0={}, n1={}, n2={}), listing.pod("db", on="n1", labels={"app": "db"}, requests={"cpu": "1"})]
    assert listing.plan([*world, *_job(1, 8, {})], tmp_path).nodes == {"j-0": "n0"}
    assert listing.plan([*world, *_job(1, 8, _company("podAffinity"))], tmp_path).nodes == {"j-0": "n1"}
    first = [*world, listing.pod("db2", on="n0", labels={"app": "db"}, requests={"cpu": "1"})]
    assert listing.plan([*first, *_job(1, 8, _company("podAntiAffinity"))], tmp_path).nodes == {"j-0": "n2"}
    fuller = [*world, listing.pod("busy", on="n2", chips=[0])]
    assert listing.plan([*fuller, *_job(1, 4, _company("podAffinity"))], tmp_path).nodes == {"j-0": "n2"}


@pytest.mark.parametrize(
    ("effect", "toleration", "bound"),
    [
        ("NoSchedule", None, False),
        ("NoExecute", None, False),
        ("PreferNoSchedule", None, True),
        ("NoExecute", {"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}, True),
        ("NoExecute", {"key": "k", "operator": "Exists", "effect": "NoSchedule"}, False),
        ("NoSchedule", {"operator": "Exists"}, True),
        ("NoSchedule", {"key": "k", "value": "v"}, True),
        ("NoSchedule", {"key": "k", "value": "w"}, False),
    ],
)
def test_taints(effect: str, toleration: dict[str, Any] | None, bound: bool, tmp_path: Path) -> None:
    tainted = node("n0", taints=[{"key": "k", "value": "v", "effect": effect}])
    spec = {"tolerations": [toleration]} if toleration else {}
    found = listing.plan([tainted, report("n0"), *_job(1, 8, spec)], tmp_path)
    assert bool(found.bound) is bound
    if not bound:
        assert found.pending["nodes"] == {"TaintNotTolerated": 1}
        assert found.pending["reason"] == "TaintNotTolerated"


def test_soft_taints_come_last_among_equals(tmp_path: Path) -> None:
    tainted = node("n0", taints=[{"key": "k", "value": "v", "effect": "PreferNoSchedule"}])
    world = [tainted, report("n0"), node("n1"), report("n1")]
    assert listing.plan([*world, *_job(1, 8, {})], tmp_path).nodes == {"j-0": "n1"}


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ({"cpu": "193"}, "InsufficientCpu"),
        ({"memory": "769Gi"}, "InsufficientMemory"),
        ({"ephemeral-storage": "801Gi"}, "InsufficientEphemeralStorage"),
        ({"example.com/fpga": "1"}, "InsufficientFpga"),
    ],
)
def test_resources_other_than_chips_must_fit(requests: dict[str, str], reason: str, tmp_path: Path) -> None:
    items = job("j", 1, 8, policy="chip8-node8", requests=requests)
    found = listing.plan([node("n0"), report("n0"), *items], tmp_path)
    assert found.pending["nodes"] == {reason: 1} and found.pending["reason"] == reason


def test_too_many_pods_and_cordoned_nodes(tmp_path: Path) -> None:
    full = [node("n0", sizes={"pods": "1"}), report("n0"), listing.pod("x", on="n0", requests={"cpu": "1"})]
    assert listing.plan([*full, *_job(1, 8, {})], tmp_path).pending["nodes"] == {"TooManyPods": 1}
    cordoned = [node("n0", unschedulable=True), report("n0")]
    assert listing.plan([*cordoned, *_job(1, 8, {})], tmp_path).pending["reason"] == "NodeUnschedulable"


def test_sidecars_count_beside_containers_and_other_init_containers_do_not(tmp_path: Path) -> None:
    def init(cpu: str, stays: bool) -> dict[str, Any]:
        amount = {"requests": {"cpu": cpu}}
        return {"name": f"i{cpu}", "image": "i", "resources": amount} | ({"restartPolicy": "Always"} if stays else {})

    world = [node("n0", sizes={"cpu": "10"}), report("n0")]
    for containers, bound in (
        ([init("10", False)], True),
        ([init("11", False)], False),
        ([init("2", True), init("8", False)], True),
        ([init("2", True), init("9", False)], False),
        ([init("9", False), init("2", True)], True),
        ([init("5", True), init("5", True)], False),
    ):
        items = job("j", 1, 8, policy="chip8-node8", requests={"cpu": "1"}, spec={"initContainers": containers})
        assert bool(listing.plan([*world, *items], tmp_path).bound) is bound, containers


def test_resources_of_the_pod_count_in_place_of_those_of_its_containers(tmp_path: Path) -> None:
    world = [node("n0", sizes={"cpu": "10"}), report("n0")]
    for resources, more, bound in (
        ({"requests": {"cpu": "5000"}}, {}, False),
        ({"requests": {"cpu": "10"}}, {}, True),
        ({"requests": {"cpu": "10"}}, {"overhead": {"cpu": "1"}}, False),
        ({"limits": {"memory": "5000Gi"}}, {}, False),
        ({"limits": {"cpu": "5000"}}, {}, True),  # its container requests one
        ({"requests": {"cpu": "2"}}, {"initContainers": [
            {"name": "i", "image": "i", "resources": {"requests": {"cpu": "11"}}}]}, True),
        ({"requests": {"huawei.com/Ascend910": "9"}}, {}, True),  # no pod-level resource: API servers refuse it
    ):  # fmt: skip
        spec = {"resources": resources, **more}
        items = job("j", 1, 8, policy="chip8-node8", requests={"cpu": "1"}, spec=spec)
        assert bool(listing.plan([*world, *items], tmp_path).bound) is bound, spec


def test_host_ports_and_anti_affinity_per_host(tmp_path: Path) -> None:
    port = {"name": "ascend", "image": "i", "ports": [{"containerPort": 2222, "hostPort": 2222}]}
    taken = listing.pod("other", on="n0", spec={"containers": [port]})
    items = _job(1, 8, {})
    items[1]["spec"]["containers"][0]["ports"] = port["ports"]
    found = listing.plan([*_nodes(n0={}), taken, *items], tmp_path)
    assert found.pending["nodes"] == {"PortConflict": 1}
    assert found.pending["unblock"] == (
        "give the job other host ports than 2222, or end the pod that has them, for example on n0"
    )
    term = {"labelSelector": {"matchLabels": {"app": "j"}}, "topologyKey": CLEAN}
    apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    assert not listing.plan([*_nodes(n0={}), *_job(2, 4, apart)], tmp_path).bound
    assert len(set(listing.plan([*_nodes(n0={}, n1={}), *_job(2, 4, apart)], tmp_path).nodes.values())) == 2


def test_a_sidecar_keeps_its_host_port(tmp_path: Path) -> None:
    """kube-scheduler counts the ports of sidecars, of other init containers none."""
    for stays, bound in ((True, False), (False, True)):
        sidecar = {"name": "s", "image": "i", "ports": [{"containerPort": 2222, "hostPort": 2222}]}
        sidecar |= {"restartPolicy": "Always"} if stays else {}
        taken = listing.pod("other", on="n0", spec={"initContainers": [sidecar]})
        items = _job(1, 8, {"initContainers": [sidecar]})
        assert bool(listing.plan([*_nodes(n0={}), taken, *items], tmp_path).bound) is bound


@pytest.mark.parametrize(
    ("told", "condition", "free"),
    [
        ({"allocatedResources": {"cpu": "4"}, "resources": {"requests": {"cpu": "4"}}}, "", 6),
        ({"allocatedResources": {"cpu": "4"}, "resources": {"requests": {"cpu": "6"}}}, "Deferred", 4),
        ({"allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}}}, "Deferred", 8),
        ({"allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}}}, "Infeasible", 9),
        ({}, "", 8),
    ],
)
def test_a_resize_in_place_holds_the_most_of_what_is_asked_and_given(
    told: dict[str, Any], condition: str, free: int, tmp_path: Path
) -> None:
    resized = listing.pod("old", on="n0", requests={"cpu": "2"})
    resized["status"]["containerStatuses"] = [{"name": "ascend", **told}]
    if condition:
        resized["status"]["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": condition}]
    world = [node("n0", sizes={"cpu": "10"}), report("n0"), resized]
    for cpu, bound in ((free, True), (free + 1, False)):
        items = job("j", 1, 8, policy="chip8-node8", requests={"cpu": str(cpu)})
        assert bool(listing.plan([*world, *items], tmp_path).bound) is bound, cpu


def test_a_resize_of_the_whole_pod_counts(tmp_path: Path) -> None:
    resized = listing.pod("old", on="n0", spec={"resources": {"requests": {"cpu": "2"}}})
    resized["status"] |= {"allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "7"}}}
    world = [node("n0", sizes={"cpu": "10"}), report("n0"), resized]
    for cpu, bound in ((3, True), (4, False)):
        items = job("j", 1, 8, policy="chip8-node8", requests={"cpu": str(cpu)})
        assert bool(listing.plan([*world, *items], tmp_path).bound) is bound, cpu


def test_one_pod_must_meet_all_terms_of_pod_affinity(tmp_path: Path) -> None:
    terms = [{"labelSelector": {"matchLabels": {key: "1"}}, "topologyKey": CLEAN} for key in ("a", "b")]
    spec = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    apart = [listing.pod(key, on="n0", requests={"cpu": "1"}, labels={key: "1"}) for key in ("a", "b")]
    found = listing.plan([*_nodes(n0={}), *apart, *_job(1, 8, spec)], tmp_path)
    assert not found.bound and found.pending["nodes"] == {"PodAffinityMismatch": 1}

    together = listing.pod("ab", on="n0", requests={"cpu": "1"}, labels={"a": "1", "b": "1"})
    assert listing.plan([*_nodes(n0={}), together, *_job(1, 8, spec)], tmp_path).bound


@pytest.mark.parametrize(("label", "bound"), [("7", True), ("07", True), ("1_0", False), ("9" * 20, False)])
def test_labels_are_numbers_as_kubernetes_reads_them(label: str, bound: bool, tmp_path: Path) -> None:
    row = {"key": "speed", "operator": "Gt", "values": ["5"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [row]}]}
    spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    assert bool(listing.plan([*_nodes(n0={"speed": label}), *_job(1, 8, spec)], tmp_path).bound) is bound


def test_weights_of_preferred_node_affinity_add_up(tmp_path: Path) -> None:
    def wish(weight: int, key: str) -> dict[str, Any]:
        return {"weight": weight, "preference": {"matchExpressions": [{"key": key, "operator": "Exists"}]}}

    preferred = [wish(10, "a"), wish(4, "b"), wish(7, "c")]
    spec = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}
    world = _nodes(n0={"a": "1"}, n1={"b": "1", "c": "1"}, n2={"c": "1"})
    assert listing.plan([*world, *_job(1, 8, spec)], tmp_path).nodes == {"j-0": "n1"}


@pytest.mark.parametrize("row", ["x", {"maxSkew": "1"}, {"topologyKey": 1}])
def test_a_spread_of_a_wrong_shape_is_named(row: Any, tmp_path: Path) -> None:
    found = listing.plan([*_nodes(n0={}), *_job(1, 8, {"topologySpreadConstraints": [row]})], tmp_path)
    (error,) = [one for one in found.body["diagnostics"] if one["severity"] == "error"]
    assert error["object"] == "Pod/train/j-0" and error["field"] == "spec.topologySpreadConstraints"


def test_terminating_pods_do_not_count_in_a_spread(tmp_path: Path) -> None:
    """Node b is full, but still a domain without pods of the selector."""
    apart = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    spread = {"topologySpreadConstraints": [{**apart, "labelSelector": {"matchLabels": {"app": "j"}}}]}
    nodes = [node("a"), report("a"), node("b"), report("b", busy=range(8))]
    full = listing.pod("full", on="b", chips=range(8))
    for ending in (True, False):
        old = listing.pod("old", on="a", chips=[0], labels={"app": "j"})
        if ending:
            old["metadata"] |= {"deletionTimestamp": "2026-09-01T07:59:50Z", "deletionGracePeriodSeconds": 30}
        items = job("j", 1, 1, policy="chip8-node8", spec=spread)
        items[1]["metadata"]["labels"] = {"app": "j"}
        answer = listing.plan([*nodes, full, old, *items], tmp_path)
        assert answer.nodes == ({"j-0": "a"} if ending else {})
        assert ending or answer.pending["nodes"]["TopologySpreadConflict"] == 1
