"""Random nodes, running pods and waiting pods that use what kube-scheduler's filters read.

Every body is what an API server of 1.37 takes from people. Labels, zones and sizes are few, so that rules meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests import listing

Object = dict[str, Any]

SPACES = ("verdict-a", "verdict-b")
NPU = "huawei.com/Ascend910"
HOST, ZONE, RACK = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "rack"
NODES, RUNNING, WAITING = 8, 14, 24
#: Runtime class whose pods have an overhead, and priority classes.
HEAVY = "heavy"
OF_THE_POD = "resources of the pod"
DEVICE_CLAIM, DEVICES, DEVICE_DRIVER = "device claims", "resource.k8s.io/v1", "npu.huawei.com"
PRIORITIES = {"verdict-low": 10, "verdict-high": 1000}
#: Claims by name, each of which exists in both namespaces (`volumes`); `missing` does not.
CLAIMS = (
    "bound-a",
    "bound-b",
    "alone-a",
    "late-local",
    "late-made",
    "late-small",
    "at-once",
    "going",
    "missing",
    "zoned",
)
#: What only one pod at a time may use.
ALONE = ("alone-a", "alone-b")
DRIVER = "csi.verdict.belay.dev"


@dataclass
class World:
    """A random cluster: nodes, the pods that run there, and those that wait, with their ``features`` by name."""

    mark: str
    nodes: list[Object] = field(default_factory=list)
    running: list[Object] = field(default_factory=list)
    #: Of running pods: what a status says beside, and whether they are being deleted.
    statuses: dict[str, Object] = field(default_factory=dict)
    ending: set[str] = field(default_factory=set)
    csi_nodes: list[Object] = field(default_factory=list)
    #: Devices of nodes, and claims for them; the status of those that are allocated.
    slices: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    allocations: dict[str, Object] = field(default_factory=dict)
    waiting: list[Object] = field(default_factory=list)
    features: dict[str, tuple[str, ...]] = field(default_factory=dict)


def world(seed: int) -> World:
    """The world of a seed; its names begin with ``w<seed>-``."""
    rng = Random(seed)
    made = World(f"w{seed}")
    for index in range(NODES):
        _node(made, rng, f"{made.mark}-n{index}")
    for index in range(RUNNING):
        _running(made, rng, f"{made.mark}-r{index}")
    for index in range(WAITING):
        name = f"{made.mark}-p{index}"
        pod = _pod(rng, name)
        chosen = _features(rng, sorted(FEATURES), (1, 1, 2, 2, 3))
        for feature in chosen:
            FEATURES[feature](pod["spec"], rng, made)
        _ask_for_a_chip(pod, rng)
        made.waiting.append(pod)
        made.features[name] = tuple(chosen)
    return made


def _features(rng: Random, among: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Some features; the resources of the whole pod come after those of its containers, its claims last."""
    last = (OF_THE_POD, DEVICE_CLAIM)
    return sorted(rng.sample(among, rng.choice(counts)), key=lambda name: last.index(name) if name in last else -1)


def _node(made: World, rng: Random, name: str) -> None:
    labels = {"tier": rng.choice(("1", "2", "3"))}
    for key, values in ((ZONE, "aabbc"), (RACK, "012")):
        if rng.random() < 0.85:
            labels[key] = rng.choice(values)
    if rng.random() < 0.7:
        labels["speed"] = rng.choice(("5", "10", "1_0", "0x10", "07", "fast", "99999999999999999999"))
    sizes = {
        "cpu": rng.choice(("2", "4", "4500m", "8")), "memory": rng.choice(("4Gi", "8Gi", "8000M")),
        "pods": rng.choice(("3", "4", "110", "110", "110")), "ephemeral-storage": rng.choice(("10Gi", "20G")),
        "hugepages-2Mi": rng.choice(("0", "64Mi")),
    }  # fmt: skip
    if rng.random() < 0.6:
        sizes["example.com/fpga"] = rng.choice(("1", "2"))
    body = listing.node(name, labels=labels, sizes=sizes, taints=_taints(rng), unschedulable=rng.random() < 0.12)
    body["metadata"] = {key: body["metadata"][key] for key in ("name", "labels", "annotations")}
    if body["spec"].get("unschedulable") and rng.random() < 0.7:
        cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        body["spec"]["taints"] = [*body["spec"].get("taints", []), cordon]
    if rng.random() < 0.06:
        body["status"]["conditions"][0]["status"] = rng.choice(("False", "Unknown"))
    made.nodes.append(body)
    if rng.random() < 0.6:
        _devices(made, rng, name)
    if rng.random() < 0.5:
        driver = {"name": DRIVER, "nodeID": name, "allocatable": {"count": rng.choice((1, 2))}}
        made.csi_nodes.append({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
            "spec": {"drivers": [driver]},
        })  # fmt: skip


def _devices(made: World, rng: Random, node: str) -> None:
    """The slice that an agent publishes, and a claim that holds some of its devices."""
    rows: list[Object] = []
    for chip in range(rng.choice((2, 4, 8))):
        attributes = {"physicId": {"int": chip}, "ring": {"int": chip // 2}, "type": {"string": "npu"}}
        row: Object = {
            "name": f"ascend910-{chip}", "attributes": attributes,
            "capacity": {"memory": {"value": rng.choice(("32Gi", "64Gi"))}},
        }  # fmt: skip
        if rng.random() < 0.15:
            row["taints"] = [{"key": "npu.huawei.com/unhealthy", "effect": rng.choice(("NoSchedule", "NoExecute"))}]
        rows.append(row)
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1 if rng.random() < 0.95 else 2}
    made.slices.append({
        "apiVersion": DEVICES, "kind": "ResourceSlice", "metadata": {"name": f"{node}-{DEVICE_DRIVER}-0"},
        "spec": {"driver": DEVICE_DRIVER, "nodeName": node, "pool": pool, "devices": rows},
    })  # fmt: skip
    held = rng.choice((0, 0, 1, 2))
    if held:
        name = f"{node}-held"
        results = [
            {"request": "npus", "driver": DEVICE_DRIVER, "pool": node, "device": row["name"]} for row in rows[:held]
        ]
        made.claims.append(_device_claim_of(SPACES[0], name, [_request(held)], []))
        made.allocations[name] = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "user", "uid": f"user-of-{name}"}],
        }


def _device_claim_of(space: str, name: str, requests: list[Object], constraints: list[Object]) -> Object:
    devices: Object = {"requests": requests} | ({"constraints": constraints} if constraints else {})
    # it is there before its devices are given: else Belay first writes it
    metadata = {"namespace": space, "name": name, "finalizers": ["resource.kubernetes.io/delete-protection"]}
    return {"apiVersion": DEVICES, "kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": devices}}


def _request(count: int, *selectors: str, **more: Any) -> Object:
    rows = [{"cel": {"expression": text}} for text in selectors]
    exactly: Object = {"deviceClassName": DEVICE_DRIVER, **({"selectors": rows} if rows else {}), **more}
    return {"name": "npus", "exactly": exactly | ({} if "allocationMode" in more else {"count": count})}


def _taints(rng: Random) -> list[Object]:
    keys = rng.sample(("dedicated", "level", "gone"), rng.choice((0, 0, 0, 1, 1, 2)))
    return [
        {
            "key": key,
            "value": rng.choice(("", "x", "3", "5")),
            "effect": rng.choice(("NoSchedule", "NoExecute", "PreferNoSchedule")),
        }
        for key in keys
    ]


def _running(made: World, rng: Random, name: str) -> None:
    pod = _pod(rng, name)
    spec = pod["spec"]
    spec["nodeName"] = rng.choice(made.nodes)["metadata"]["name"]
    spec["tolerations"] = [{"operator": "Exists"}]
    for feature in _features(rng, HELD, (1, 1, 2, 3)):
        FEATURES[feature](spec, rng, made)
    if "volumes" not in spec and rng.random() < 0.15:
        _mount(spec, rng.choice(ALONE))
    made.running.append(pod)
    fate = rng.random()
    if fate < 0.1:
        made.statuses[name] = {"phase": rng.choice(("Succeeded", "Failed"))}
    elif fate < 0.2:
        made.ending.add(name)
    elif fate < 0.4:
        _resize(made, rng, pod)


def _resize(made: World, rng: Random, pod: Object) -> None:
    """A resize in place that kubelet has not finished: it holds the larger of what is asked and what was given."""
    spec, rows = pod["spec"], []
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        given, runs = ({"cpu": rng.choice(("250m", "1", "2")), "memory": rng.choice(("1Gi", "3Gi"))} for _ in range(2))
        row = {
            "name": container["name"], "image": "i", "imageID": "i", "ready": True, "restartCount": 0,
            "allocatedResources": given, "resources": {"requests": runs},
        }  # fmt: skip
        if rng.random() < 0.1:
            del row[rng.choice(("allocatedResources", "resources"))]
        rows.append(row)
    mains = len(spec["containers"])
    status: Object = {
        "phase": "Running", "containerStatuses": rows[:mains], "initContainerStatuses": rows[mains:],
    }  # fmt: skip
    if "resources" in spec and rng.random() < 0.7:
        status["allocatedResources"] = {"cpu": rng.choice(("1", "4"))}
        status["resources"] = {"requests": {"cpu": rng.choice(("1", "3")), "memory": "2Gi"}}
    if rng.random() < 0.3:
        pending = {"type": "PodResizePending", "status": "True", "reason": rng.choice(("Infeasible", "Deferred"))}
        status["conditions"] = [pending | {"lastTransitionTime": "2026-09-01T00:00:00Z"}]
    made.statuses[pod["metadata"]["name"]] = status


def _pod(rng: Random, name: str) -> Object:
    labels = {"app": rng.choice("xyz"), "rev": rng.choice("12")}
    if rng.random() < 0.5:
        labels["also"] = "yes"
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": rng.choice(SPACES), "labels": labels},
        "spec": {
            "containers": [{"name": "main", "image": "i", "resources": {}}], "terminationGracePeriodSeconds": 3600,
            "priorityClassName": rng.choice(sorted(PRIORITIES)),
        },
    }  # fmt: skip


def _ask_for_a_chip(pod: Object, rng: Random) -> None:
    """Belay's list of a pod's nodes is of those with chips."""
    if "resourceClaims" in pod["spec"]:
        return  # a pod has chips one way or the other
    resources = pod["spec"]["containers"][0]["resources"]
    for part in ("requests", "limits"):
        resources[part] = {**resources.get(part, {}), NPU: "1"}


# what a pod asks of its node itself


def _amounts(spec: Object, rng: Random, made: World) -> None:
    wanted = {"cpu": rng.choice(("0", "250m", "1", "1900m", "3")), "memory": rng.choice(("0", "1500M", "3Gi", "7.5Gi"))}
    part = rng.choice(("requests", "limits"))
    spec["containers"][0]["resources"] = {
        part: {key: wanted[key] for key in rng.sample(sorted(wanted), rng.choice((1, 2)))}
    }


def _storage(spec: Object, rng: Random, made: World) -> None:
    spec["containers"][0]["resources"] = {"requests": {"ephemeral-storage": rng.choice(("1Gi", "9Gi", "15Gi"))}}


def _fpga(spec: Object, rng: Random, made: World) -> None:
    spec["containers"][0]["resources"] = {"limits": {"example.com/fpga": rng.choice(("1", "2"))}}


def _huge_pages(spec: Object, rng: Random, made: World) -> None:
    limits = {"hugepages-2Mi": rng.choice(("32Mi", "64Mi")), "cpu": "100m"}
    spec["containers"][0]["resources"] = {"limits": limits}


def _init_containers(spec: Object, rng: Random, made: World) -> None:
    rows = spec.setdefault("initContainers", [])
    for _ in range(rng.choice((1, 2, 3))):
        wanted = {"cpu": rng.choice(("500m", "1", "2500m")), "memory": rng.choice(("1Gi", "3Gi"))}
        container: Object = {"name": f"i{len(rows)}", "image": "i", "resources": {"requests": wanted}}
        if rng.random() < 0.5:
            container["restartPolicy"] = "Always"
        rows.append(container)


def _of_the_pod(spec: Object, rng: Random, made: World) -> None:
    amounts = {"cpu": rng.choice(("500m", "2", "3500m")), "memory": rng.choice(("1Gi", "5Gi"))}
    kept = {key: amounts[key] for key in rng.sample(sorted(amounts), rng.choice((1, 2)))}
    # an API server wants no container to ask for more than its pod
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        container["resources"] = {}
    spec["resources"] = {rng.choice(("requests", "limits")): kept}


def _overhead(spec: Object, rng: Random, made: World) -> None:
    spec["runtimeClassName"] = HEAVY


# which nodes a pod may have


def _selector(spec: Object, rng: Random, made: World) -> None:
    spec["nodeSelector"] = rng.choice(({ZONE: "a"}, {ZONE: "b"}, {RACK: "1"}, {"tier": "2"}, {ZONE: "a", "tier": "1"}))


def _node_affinity(spec: Object, rng: Random, made: World) -> None:
    terms = [_node_term(rng, made) for _ in range(rng.choice((1, 1, 2)))]
    affinity = spec.setdefault("affinity", {})
    affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _node_term(rng: Random, made: World) -> Object:
    if rng.random() < 0.15:
        name = rng.choice(made.nodes)["metadata"]["name"]
        return {"matchFields": [{"key": "metadata.name", "operator": rng.choice(("In", "NotIn")), "values": [name]}]}
    rows = []
    for _ in range(rng.choice((1, 1, 2))):
        kind = rng.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
        row: Object = {"key": rng.choice((ZONE, RACK, "tier", "speed")), "operator": kind}
        if kind in ("In", "NotIn"):
            row["values"] = rng.sample(("a", "b", "1", "2", "fast"), rng.choice((1, 2)))
        elif kind in ("Gt", "Lt"):
            row |= {"key": rng.choice(("speed", "tier")), "values": [rng.choice(("1", "2", "7", "1_0"))]}
        rows.append(row)
    return {"matchExpressions": rows} if rng.random() < 0.95 else {}


def _tolerations(spec: Object, rng: Random, made: World) -> None:
    rows = spec.setdefault("tolerations", [])
    for _ in range(rng.choice((1, 2))):
        row: Object = {"key": rng.choice(("dedicated", "level", "gone", "node.kubernetes.io/unschedulable"))}
        if rng.random() < 0.5:
            row["operator"] = "Exists"
        else:
            row |= {"operator": "Equal", "value": rng.choice(("", "x", "3"))}
        if rng.random() < 0.7:
            row["effect"] = rng.choice(("NoSchedule", "NoExecute"))
        if row.get("effect") == "NoExecute" and rng.random() < 0.5:
            row["tolerationSeconds"] = 60
        rows.append(row if rng.random() < 0.9 else {"operator": "Exists"})


def _gates(spec: Object, rng: Random, made: World) -> None:
    if "nodeName" not in spec and rng.random() < 0.4:
        spec["schedulingGates"] = [{"name": "example.org/wait"}]


# other pods


def _label_selector(rng: Random) -> Object | None:
    return rng.choice((
        {"matchLabels": {"app": rng.choice("xyz")}},
        {"matchLabels": {"app": rng.choice("xyz")}},
        {"matchExpressions": [{"key": "app", "operator": rng.choice(("In", "NotIn")), "values": ["x", "y"]}]},
        {"matchExpressions": [{"key": "also", "operator": rng.choice(("Exists", "DoesNotExist"))}]},
        {},
        None,
    ))  # fmt: skip


def _pod_term(rng: Random) -> Object:
    term: Object = {"topologyKey": rng.choice((HOST, ZONE, RACK))}
    selector = _label_selector(rng)
    if selector is not None:
        term["labelSelector"] = selector
        if rng.random() < 0.2:
            term[rng.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["rev"]
    if rng.random() < 0.25:
        term["namespaces"] = [rng.choice(SPACES)]
    if rng.random() < 0.25:
        term["namespaceSelector"] = rng.choice(({}, {"matchLabels": {"team": "b"}}))
    return term


def _pod_affinity(spec: Object, rng: Random, made: World) -> None:
    terms = [_pod_term(rng) for _ in range(rng.choice((1, 1, 2)))]
    spec.setdefault("affinity", {})["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def _pod_anti_affinity(spec: Object, rng: Random, made: World) -> None:
    terms = [_pod_term(rng) for _ in range(rng.choice((1, 1, 2)))]
    spec.setdefault("affinity", {})["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def _spread(spec: Object, rng: Random, made: World) -> None:
    rows = []
    for key in rng.sample((HOST, ZONE, RACK), rng.choice((1, 1, 2))):
        hard = rng.random() < 0.85
        row: Object = {
            "maxSkew": rng.choice((1, 1, 2)), "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
        }  # fmt: skip
        selector = _label_selector(rng)
        if selector is not None:
            row["labelSelector"] = selector
            if rng.random() < 0.25:
                row["matchLabelKeys"] = ["rev"]
        if hard and rng.random() < 0.2:
            row["minDomains"] = rng.choice((2, 3, 5))
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if rng.random() < 0.35:
                row[policy] = rng.choice(("Honor", "Ignore"))
        rows.append(row)
    spec["topologySpreadConstraints"] = rows


def _ports(spec: Object, rng: Random, made: World) -> None:
    port: Object = {"containerPort": 8000, "hostPort": rng.choice((8000, 8000, 9000))}
    if rng.random() < 0.3:
        port["protocol"] = rng.choice(("TCP", "UDP"))
    if rng.random() < 0.3:
        port["hostIP"] = rng.choice(("0.0.0.0", "127.0.0.1", "10.0.0.1"))
    if rng.random() < 0.3:
        kind = {"restartPolicy": "Always"} if rng.random() < 0.7 else {}
        spec.setdefault("initContainers", []).append({"name": "port", "image": "i", "ports": [port], **kind})
    elif rng.random() < 0.2:
        spec["hostNetwork"] = True
        spec["containers"][0]["ports"] = [{"containerPort": port["hostPort"]}]
    else:
        spec["containers"][0]["ports"] = [port]


# volumes


def _mount(spec: Object, *names: str) -> None:
    spec["volumes"] = [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(names)]


def _volumes(spec: Object, rng: Random, made: World) -> None:
    _mount(spec, *rng.sample(CLAIMS, rng.choice((1, 1, 2))))


def _device_claim(spec: Object, rng: Random, made: World) -> None:
    selectors = rng.choice((
        [], [], [f'device.attributes["{DEVICE_DRIVER}"].physicId >= 1'],
        [f'device.capacity["{DEVICE_DRIVER}"].memory.compareTo(quantity("64Gi")) >= 0'],
    ))  # fmt: skip
    more: Object = {}
    if rng.random() < 0.2:
        more["allocationMode"] = "All"
    if rng.random() < 0.3:
        more["tolerations"] = [{"key": "npu.huawei.com/unhealthy", "operator": "Exists"}]
    rules = rng.choice(([], [], [{"matchAttribute": f"{DEVICE_DRIVER}/ring", "requests": ["npus"]}]))
    name = f"{made.mark}-c{len(made.claims)}"
    request = _request(rng.choice((1, 1, 2, 4)), *selectors, **more)
    made.claims += [_device_claim_of(space, name, [request], rules) for space in SPACES]
    spec["resourceClaims"] = [{"name": "chips", "resourceClaimName": name}]
    spec["containers"][0].setdefault("resources", {})["claims"] = [{"name": "chips"}]


FEATURES: dict[str, Callable[[Object, Random, World], None]] = {
    "amounts": _amounts, "ephemeral storage": _storage, "extended resource": _fpga, "huge pages": _huge_pages,
    "init containers": _init_containers, OF_THE_POD: _of_the_pod, "overhead": _overhead,
    "node selector": _selector, "node affinity": _node_affinity, "tolerations": _tolerations, "gates": _gates,
    "pod affinity": _pod_affinity, "pod anti-affinity": _pod_anti_affinity, "topology spread": _spread,
    "host ports": _ports, "volumes": _volumes, DEVICE_CLAIM: _device_claim,
}  # fmt: skip
#: What running pods have that concerns others.
HELD = (
    "amounts", "ephemeral storage", "extended resource", "huge pages", "init containers", OF_THE_POD,
    "overhead", "pod anti-affinity", "host ports",
)  # fmt: skip


# what all worlds share


def shared() -> list[Object]:
    """Namespaces, classes, claims and volumes, in the order in which they are created."""
    spaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": name[-1]}}}
        for name in SPACES
    ]
    classes: list[Object] = [
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        for name, value in PRIORITIES.items()
    ]
    classes.append({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": HEAVY}, "handler": "heavy",
        "overhead": {"podFixed": {"cpu": "500m", "memory": "1Gi"}},
    })  # fmt: skip
    driver = {"cel": {"expression": f"device.driver == '{DEVICE_DRIVER}'"}}
    classes.append({
        "apiVersion": DEVICES, "kind": "DeviceClass", "metadata": {"name": DEVICE_DRIVER},
        "spec": {"selectors": [driver]},
    })  # fmt: skip
    return [*spaces, *classes, *_storage_classes(), *_claims_and_volumes()]


def _storage_classes() -> list[Object]:
    def of(name: str, mode: str, provisioner: str, **more: Any) -> Object:
        return {
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": provisioner, "volumeBindingMode": mode, **more,
        }  # fmt: skip

    zone_b = [{"matchLabelExpressions": [{"key": ZONE, "values": ["b"]}]}]
    late = "WaitForFirstConsumer"
    return [
        of("at-once", "Immediate", DRIVER),
        of("late-local", late, "kubernetes.io/no-provisioner"),
        of("late-made", late, DRIVER, allowedTopologies=zone_b),
    ]


def _claims_and_volumes() -> list[Object]:
    made: list[Object] = []
    for space in SPACES:
        for name, zone, mode in (
            ("bound-a", "a", "ReadWriteOnce"), ("bound-b", "b", "ReadWriteMany"), ("alone-a", "a", "ReadWriteOncePod"),
            ("alone-b", "b", "ReadWriteOncePod"),
        ):  # fmt: skip
            made += _bound(space, name, mode, zone=zone)
        made += _bound(space, "going", "ReadWriteOnce")
        made += _bound(space, "zoned", "ReadWriteOnce", labels={ZONE: "a__c"})
        made += [_claim(space, "at-once", "at-once"), _claim(space, "late-local", "late-local", size="4Gi")]
        made += [_claim(space, "late-small", "late-local", size="1Gi"), _claim(space, "late-made", "late-made")]
    made.append(_volume("local-c", "late-local", zone="c", size="5Gi"))
    made.append(_volume("local-a", "late-local", zone="a", size="2Gi"))
    return made


def _bound(space: str, name: str, mode: str, *, zone: str = "", labels: dict[str, str] | None = None) -> list[Object]:
    volume = _volume(f"{space}-{name}", "", zone=zone, mode=mode, labels=labels)
    volume["spec"]["claimRef"] = {"namespace": space, "name": name}
    claim = _claim(space, name, "", mode=mode)
    claim["spec"]["volumeName"] = f"{space}-{name}"
    claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    return [volume, claim]


def _claim(space: str, name: str, storage: str, *, mode: str = "ReadWriteOnce", size: str = "1Gi") -> Object:
    spec = {"accessModes": [mode], "storageClassName": storage, "resources": {"requests": {"storage": size}}}
    metadata = {"namespace": space, "name": name}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _volume(
    name: str, storage: str, *, zone: str = "", mode: str = "ReadWriteOnce", size: str = "10Gi",
    labels: dict[str, str] | None = None,
) -> Object:  # fmt: skip
    spec: Object = {
        "accessModes": [mode], "capacity": {"storage": size}, "storageClassName": storage,
        "csi": {"driver": DRIVER, "volumeHandle": name},
    }  # fmt: skip
    if zone:
        terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    metadata = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}
