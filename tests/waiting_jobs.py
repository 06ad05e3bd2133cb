"""Random jobs that wait: for nodes, chips, queues, pods, volumes, claims, health, whole blocks, and several at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from belay.engine.model.cluster import NodeDevice
from belay.engine.model.history import History
from belay.engine.wire import nodeinfo
from tests import listing, worlds
from tests.claim_objects import DRIVER, allocated, capacity, claim, mounting, queue, storage_class, volume
from tests.followers import Documents
from tests.listing import Item, job, node, report
from tests.waiting_objects import of_size

RACK: dict[str, Any] = {"key": "rack", "operator": "In", "values": ["r1", "r2"]}
TAINT = {"key": "team", "value": "vision", "effect": "NoSchedule"}
A3 = {**worlds.A2_LABELS, "accelerator-type": "module-a3-16-super-pod"}
POLICY = "chip8-node8"
HOST = "kubernetes.io/hostname"
DEVICES = "mindx-dl-deviceinfo-"


UNWELL = ("server", "not ready", "no report", "old report", "isolated", "suspended", "chips", "busy")


class Waiting(NamedTuple):
    """A cluster in which job j waits; with ``files``, a repository is part of the matter, and ``history`` the memory of
    its passes.
    """

    items: list[Item]
    files: Documents | None = None
    history: History | None = None


def busy(name: str, chips: range, on: str = "n0", **more: Any) -> Item:
    return listing.pod(name, on=on, chips=chips, **more)


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    term = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}


def of_nodes(chance: random.Random) -> Waiting:
    """Several reasons at once on a cluster of servers of 8."""
    spec: dict[str, Any] = {}
    if chance.random() < 0.4:
        spec["nodeSelector"] = {"zone": chance.choice("abc")}
    if chance.random() < 0.3:
        row: dict[str, Any] = chance.choice([
            RACK, {"key": "rack", "operator": "Exists"},
            {"key": "zone", "operator": "NotIn", "values": ["d"]}, {"key": "age", "operator": "Gt", "values": ["3"]},
        ])  # fmt: skip
        spec |= affinity(row)
    items: list[Item] = []
    for number in range(chance.randint(1, 5)):
        name = f"n{number}"
        labels = {key: chance.choice(["a", "d"]) for key in ("zone", "rack") if chance.random() < 0.5}
        taints = [TAINT] if chance.random() < 0.3 else []
        items += [
            node(name, labels=labels, taints=taints, unschedulable=chance.random() < 0.2), report(name),
        ]  # fmt: skip
        items += [busy(f"b{number}-{at}", range(at, at + 1), name) for at in range(8) if chance.random() < 0.4]
    return Waiting([*items, *job("j", 1, chance.choice([1, 2, 3, 5, 8, 9, 16]), policy=POLICY, spec=spec)])


def servers(chance: random.Random, most: int = 3) -> list[Item]:
    """Servers of 8 chips with other work on some of them."""
    items: list[Item] = []
    for number in range(chance.randint(1, most)):
        name = f"n{number}"
        items += [node(name), report(name)]
        items += [busy(f"b{number}-{at}", range(4 * at, 4 * at + 4), name) for at in range(2) if chance.random() < 0.3]
    return items


def in_queue(chance: random.Random) -> Waiting:
    """A queue that is closed, missing, too small, not a leaf, or squeezed by what others are guaranteed."""
    items = servers(chance)
    made = job("j", chance.choice((1, 2)), 8, policy=POLICY)
    made[0]["spec"]["queue"] = "q"
    resource = "huawei.com/Ascend910"
    match chance.choice(("closed", "missing", "small", "parent", "guaranteed")):
        case "closed":
            items.append(queue("q", chance.choice(("Closed", "Closing"))))
        case "missing":
            items.append(queue("other"))
        case "small":
            items.append(queue("q", capability={resource: str(chance.choice((0, 1, 8)))}))
        case "parent":
            items += [queue("q"), queue("below", parent="q")]
        case _:
            most = str(8 * sum(item["kind"] == "Node" for item in items))
            items += [queue("q"), queue("other", guarantee={"resource": {resource: most}})]
    return Waiting([*items, *made])


def gang(chance: random.Random) -> Waiting:
    """A gang that lacks pods or its PodGroup, or whose PodGroup states more than there is."""
    items, count = servers(chance), chance.choice((2, 3))
    made = job("j", count, 4, policy=POLICY)
    match chance.choice(("pods", "group", "stated", "rule")):
        case "pods":
            made = made[: chance.randint(2, count)]
        case "group":
            made = made[1:]
        case "stated":
            made[0]["spec"]["minResources"]["huawei.com/Ascend910"] = str(8 * len(items) + 8)
        case _:
            for pod in made[1:]:
                pod["metadata"].setdefault("labels", {})["app"] = "j"
                pod["spec"]["affinity"] = {
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"labelSelector": {"matchLabels": {"app": "j"}}, "topologyKey": "kubernetes.io/hostname"}
                        ]
                    }
                }
    return Waiting([*items, *made])


def of_volumes(chance: random.Random) -> Waiting:
    """A volume that is missing, elsewhere, too large for the storage, tied to another node, or not made yet."""
    by_hand = storage_class(provisioner="kubernetes.io/no-provisioner")
    items = [*servers(chance), node("away", kind="cpu"), by_hand]
    match chance.choice(("missing", "lost", "none", "elsewhere", "storage", "selected", "alone", "slow")):
        case "missing":
            pass
        case "lost":
            items.append(claim("data", status={"phase": "Lost"}))
        case "none":
            items += [claim("data"), *([volume("far", "away")] if chance.random() < 0.5 else [])]
        case "elsewhere":
            bound = claim("data", status={"phase": "Bound"})
            bound["spec"]["volumeName"] = "far"
            items += [bound, volume("far", "away")]
        case "alone":
            bound = claim("data", status={"phase": "Bound"})
            bound["spec"] |= {"volumeName": "mine", "accessModes": ["ReadWriteOncePod"]}
            items += [bound, volume("mine", "n0"), listing.pod("user", on="n0", spec=mounting("data"))]
        case "storage":
            items[-1] = storage_class()
            items += [DRIVER, claim("data"), capacity("small", "n0", "1Gi")]
        case "selected":
            items[-1] = storage_class()
            items.append(claim("data", metadata={"annotations": {"volume.kubernetes.io/selected-node": "away"}}))
        case _:
            items[-1] = storage_class()
            items.append(claim("data"))
    made = job("j", 1, chance.choice((1, 8)), policy=POLICY)
    made[1]["spec"] |= mounting("data")
    return Waiting([*items, *made])


def of_claims(chance: random.Random) -> Waiting:
    """A resource claim that is missing, not allocated, another pod's, or tied to another node."""
    items = [*servers(chance), node("away", kind="cpu")]
    match chance.choice(("missing", "open", "another", "elsewhere")):
        case "missing":
            pass
        case "open":
            items.append(allocated("npu") | {"status": {}})
        case "another":
            items.append(allocated("npu", user="u-another"))
        case _:
            items.append(allocated("npu", host="away"))
    made = job("j", 1, chance.choice((1, 8)), policy=POLICY)
    made[1]["spec"]["resourceClaims"] = [{"name": "npus", "resourceClaimName": "npu"}]
    return Waiting([*items, *made])


def unwell(chance: random.Random) -> Waiting:
    """Nodes that are not ready, silent, isolated, suspended, of broken chips, or cordoned, with other work on them."""
    files: Documents = {}
    items: list[Item] = []
    for number in range(chance.randint(1, 3)):
        name = f"n{number}"
        made, said = node(name, unschedulable=chance.random() < 0.15), [report(name)]
        match chance.choice(UNWELL):
            case "server":
                level, status = chance.choice((("SeparateFault", "UnHealthy"), ("PreSeparateFault", "PreSeparate")))
                device = NodeDevice("CPU", 1, ("00000011",), level)
                items.append(nodeinfo.build(name, [device], status, worlds.NOW))
            case "not ready":
                made["status"]["conditions"][0]["status"] = chance.choice(("False", "Unknown"))
            case "no report":
                said = []
            case "old report":
                said = [report(name, at=worlds.NOW - 7200)]
            case "isolated":
                files[f"policies/{name}.yaml"] = document("Isolation", name, {"nodes": [name], "reason": "service"})
            case "suspended":
                spec = {"selector": {"matchLabels": {"kubernetes.io/hostname": name}}, "suspend": True}
                files[f"policies/{name}.yaml"] = document("NodePool", name, spec)
            case "chips":
                said = [report(name, unhealthy=chance.sample(range(8), chance.randint(1, 8)))]
            case _:
                items += [busy(f"b{number}-{at}", range(at, at + 1), name) for at in range(8) if chance.random() < 0.4]
        items += [made, *said]
    return Waiting([*items, *job("j", chance.choice((1, 1, 2)), 8, policy=POLICY)], files)


def in_blocks(chance: random.Random) -> Waiting:
    """A job that wants whole free nodes of one super pod."""
    items: list[Item] = []
    for number in range(chance.randint(1, 3)):
        for index in range(chance.randint(1, 4)):
            name = f"s{number}-{index}"
            said = number if chance.random() < 0.9 else -1
            items += [node(name, chips=16, labels=A3), report(name, chips=16, super_pod=said, index=index)]
            items += [busy(f"b{name}", range(2), name)] if chance.random() < 0.4 else []
    size = chance.choice((1, 2, 3))
    own = {listing.POLICY: "chip2-node16-sp", "sp-block": str(size * 16)}
    made = job("j", size * chance.choice((1, 2)), 16, notes=own)
    for pod in made[1:]:
        pod["metadata"]["annotations"] |= own
    return Waiting([*items, *made])


def beside_chips(chance: random.Random) -> Waiting:
    """What Kubernetes counts or rules beside chips, a report that disagrees with it, switches, and pods that leave."""
    items = servers(chance)
    names = [item["metadata"]["name"] for item in items if item["kind"] == "Node"]
    count, labels, spec, requests = 1, {}, {}, {}
    match chance.choice(("ports", "cpu", "pods", "spread", "beside", "unstable", "switches", "network")):
        case "ports":
            spec = with_port()
            items += [listing.pod(f"port-{name}", on=name, spec=with_port()) for name in names]
        case "cpu":
            requests = {"cpu": chance.choice(("10", "500"))}
            items += [listing.pod(f"cpu-{name}", on=name, requests={"cpu": "190"}) for name in names]
        case "pods":
            items = [of_size(item, "pods", "2") for item in items]
            items += [listing.pod(f"w{number}-{name}", on=name) for number in range(2) for name in names]
        case "spread":
            count, labels = 3, {"app": "j"}
            spread = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule"}
            spec = {"topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": labels}}]}
        case "beside":
            term = {"labelSelector": {"matchLabels": {"app": "nowhere"}}, "topologyKey": HOST}
            spec = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
        case "unstable":
            items = [of_size(item, "huawei.com/Ascend910", "6") for item in items]
        case "switches":
            count, labels = 2, {"tor-affinity": "large-model-schema"}
        case _:
            count = 2
            items = [item for item in items if not item["metadata"]["name"].startswith(DEVICES)]
            items += [report(name, network=None) for name in names]

    made = job("j", count, 8, policy=POLICY, labels=labels, requests=requests)
    for pod in made[1:]:
        pod["metadata"]["labels"] |= labels
        pod["spec"] |= spec if "containers" not in spec else {}
        if "containers" in spec:
            pod["spec"]["containers"][0]["ports"] = spec["containers"][0]["ports"]
    return Waiting([*items, *made])


def with_port() -> dict[str, Any]:
    """The spec of a pod that occupies a port of its host."""
    return {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}]}


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "belay.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


KINDS: tuple[Callable[[random.Random], Waiting], ...] = (
    of_nodes, of_nodes, in_queue, gang, of_volumes, of_claims, unwell, unwell, in_blocks,
    beside_chips,
)  # fmt: skip
