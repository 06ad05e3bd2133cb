"""Small worlds for the reasons that random clusters seldom or never give: one of each, varied by chance.

The table names the reason with which job j waits at first in each world; its way out, followed, gets it placed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from belay.engine.model.history import History, JobMemory
from belay.engine.model.times import rfc3339
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from tests import listing, worlds
from tests.followers import declared, follow_to_the_end
from tests.listing import Item, job, node, params, report
from tests.waiting_devices import attached_to_the_limit, claims_asked_for, crowded_claim, few_devices
from tests.waiting_jobs import (
    A3,
    HOST,
    KINDS,
    POLICY,
    Waiting,
    beside_chips,
    busy,
    document,
    gang,
    in_queue,
    of_claims,
    of_volumes,
    servers,
    unwell,
    with_port,
)
from tests.waiting_nodes import (
    cannot_cut,
    cores,
    cut_by_layouts_only,
    fragmented,
    leaving,
    no_memory,
    no_rack,
    no_shares,
    no_super_pod,
    no_tree_labels,
    other_card,
    other_server,
    report_refused,
    several_trees,
    shares_only,
    starting,
    subhealthy,
)
from tests.waiting_objects import CORE, cut_on_demand

SHARE: Final = "huawei.com/scheduler.softShareDev."
RACK_POLICY: Final = "chip8-node8-ra64-sp"
SP_POLICY: Final = "chip2-node16-sp"
DRIVER: Final = "csi.example.com"


def made_at(item: Item, at: float) -> Item:
    """The object as if it had been made then."""
    item["metadata"]["creationTimestamp"] = rfc3339(at)
    return item


def owned(item: Item, kind: str, name: str, api: str = "apps/v1") -> Item:
    """The pod as one of a workload."""
    item["metadata"]["ownerReferences"] = [
        {"apiVersion": api, "kind": kind, "name": name, "uid": f"u-{name}", "controller": True}
    ]
    return item


# what ends with time


def kubelet_rejects(chance: random.Random) -> Waiting:
    """Kubelet rejected the job's pods as often as the policy allows."""
    most = chance.choice((1, 2, 3))
    spec = {"attempts": {"reschedule": {"max": most, "window": "10m"}}}
    items: list[Item] = [node("n0"), report("n0")]
    for number in range(most):
        failed = owned(busy(f"j-old{number}", range(8)), "ReplicaSet", "j")
        failed["status"] |= {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
        items.append(made_at(failed, worlds.NOW - 60 - number))
    fresh = listing.pod("j-new", count=chance.choice((1, 8)), notes={listing.POLICY: POLICY})
    return Waiting([*items, owned(fresh, "ReplicaSet", "j")], {"policies/p.yaml": document("FaultPolicy", "p", spec)})


def node_reserved(chance: random.Random) -> Waiting:
    """The free nodes are kept for a large job, until it starts or its time is over."""
    held = busy("b0", range(8), "n1")
    if chance.random() < 0.5:
        held["metadata"]["deletionTimestamp"] = listing.NOW_TEXT
    items = [node("n0"), report("n0"), node("n1"), report("n1"), held, *job("big", 2, 8, policy=POLICY)]
    items += [made_at(item, worlds.NOW - 30) for item in job("j", 1, chance.choice((4, 8)), policy=POLICY)]
    spec = {"starvation": {"after": "10m", "hold": "15m"}}
    memory = JobMemory(uid="u-big", reserved=("n0", "n1"), reserved_at=int(worlds.NOW * 1000))
    history = History(jobs={"train/PodGroup/big": memory})
    return Waiting(items, {"policies/s.yaml": document("SchedulingSettings", "s", spec)}, history)


def training(name: str, where: Iterable[str], labels: dict[str, str], strategies: str) -> list[Item]:
    """An AscendJob of two pods with eight chips each; one without a node waits for it."""
    notes = {"belay.dev/checkpoint-time": str(worlds.NOW - 60), "recover-strategy": strategies}
    items = []
    for rank, on in enumerate(where):
        kind = "worker" if rank else "master"
        made = listing.pod(
            f"{name}-{rank}", on=on, chips=range(8) if on else (), count=8, labels=labels | {"replica-type": kind},
            notes=notes | {"hccl/rankIndex": str(rank)},
        )  # fmt: skip
        if not on:
            made["metadata"]["uid"] = f"u-again-{name}-{rank}"
        items.append(owned(made, "AscendJob", name, "mindxdl.gitee.com/v1"))
    return items


def kept_for_recovery(chance: random.Random) -> Waiting:
    """Two jobs lost a node each and one is spare: it is kept for the job that loses more, for two minutes."""
    elastic = {"fault-scheduling": "force", "process-recover-enable": "on"}
    strict = {"fault-scheduling": "force", "pod-rescheduling": "on"}
    strategies = "recover,elastic-training"
    bad = [report(name, unhealthy=[3]) for name in ("n1", "n3")]
    cluster = [*(node(f"n{i}") for i in range(5)), *(report(f"n{i}") for i in (0, 2, 4)), *bad]
    running = [*training("j", ("n0", "n1"), elastic, strategies), *training("other", ("n2", "n3"), strict, "")]
    history = plan(declared({}), observe([*cluster, *running]), worlds.NOW - 5).history
    gone = [*training("j", ("n0", ""), elastic, strategies), *training("other", ("n2", ""), strict, "")]
    return Waiting([*cluster, *(made_at(item, worlds.NOW) for item in gone)], {}, history)


def vnpu_under_way(chance: random.Random) -> Waiting:
    """A vNPU of another template is being made on the node."""
    waits = cores(chance.choice((1, 4)))
    other = listing.pod("a", kind="npu-core", count=2, on="n0", notes={CORE: "0-vir02_1c"})
    other["metadata"]["labels"]["ring-controller.atlas"] = "ascend-310P"
    return Waiting([*cut_on_demand("n0", 2), params(presetVirtualDevice="false"), other, waits])


def held_by_gates(chance: random.Random) -> Waiting:
    """What queues the job has not admitted it yet."""
    made = job("j", chance.choice((1, 2)), 8, policy=POLICY)
    for item in made:
        if item["kind"] == "Pod":
            item["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    return Waiting([node("n0"), report("n0"), node("n1"), report("n1"), *made])


# what Kubernetes rules, and jobs as a whole


def ports_taken(chance: random.Random) -> Waiting:
    items = servers(chance, 1)
    items = [item for item in items if item["kind"] != "Pod"]
    made = job("j", 1, 8, policy=POLICY)
    made[1]["spec"]["containers"][0]["ports"] = with_port()["containers"][0]["ports"]
    return Waiting([*items, listing.pod("web", on="n0", spec=with_port()), *made])


def spread_out(chance: random.Random) -> Waiting:
    items = [node("n0"), report("n0"), node("n1", unschedulable=True), report("n1")]
    items.append(listing.pod("a", on="n0", labels={"app": "j"}))
    rule = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule"}
    made = job("j", 1, 8, policy=POLICY)
    made[1]["metadata"]["labels"]["app"] = "j"
    made[1]["spec"]["topologySpreadConstraints"] = [{**rule, "labelSelector": {"matchLabels": {"app": "j"}}}]
    return Waiting([*items, *made])


def no_such_policy(chance: random.Random) -> Waiting:
    items = [node("n0", kind="npu"), report("n0", kind="npu")]
    return Waiting([*items, *job("j", 1, 4, kind="npu", policy=chance.choice(("", "chip4-node9", "nothing")))])


def other_resource(chance: random.Random) -> Waiting:
    """No node offers the resource at all."""
    made = job("j", 1, chance.choice((1, 8)), policy=POLICY)
    return Waiting([node("n0", kind="npu"), report("n0", kind="npu"), *made])


def no_nodes(chance: random.Random) -> Waiting:
    made = job("j", 1, 0)
    made[1]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    return Waiting(made)


def wrong_request(chance: random.Random) -> Waiting:
    """A namespace that is left alone, or jobs whose rule the scheduler's configuration does not know."""
    items = [node("n0", chips=16), report("n0", chips=16)]
    if chance.choice(("namespace", "parameter")) == "namespace":
        made = job("j", 1, 4, policy=POLICY)
        for item in made:
            item["metadata"]["namespace"] = "kube-system"
        return Waiting([node("n1"), report("n1"), *made])
    notes = {"huawei.com/affinity-config": "level1=1"}
    return Waiting([*items, *job("j", 1, 16, policy="multilevel", notes=notes)])


def old_pods(chance: random.Random) -> Waiting:
    """A job after a fault: its old pods are still leaving healthy nodes."""
    items: list[Item] = []
    for number in range(3):
        name = f"n{number}"
        items += [node(name, chips=16, labels=A3), report(name, chips=16, super_pod=0, index=number)]
    leaving = busy("j-old", range(16), "n0", group="j", notes={"sp-block": "32", listing.POLICY: SP_POLICY})
    leaving["metadata"]["deletionTimestamp"] = listing.NOW_TEXT
    made = job("j", 2, 16, policy=SP_POLICY, notes={"sp-block": "32"})
    for pod in made[1:]:
        pod["metadata"]["annotations"] |= {"sp-block": "32", listing.POLICY: SP_POLICY}
        made_at(pod, worlds.NOW - chance.choice((1, 4, 9)))
    memory = JobMemory(uid="u-j", fault_nodes=("n1",), super_pods={"0": ("n0", "n1")})
    return Waiting([*items, *made, leaving], None, History(jobs={"train/PodGroup/j": memory}))


class Certain(random.Random):
    """Chance that takes these values wherever it may, the fewest of anything, and nothing that is only likely."""

    def __init__(self, seed: int, wanted: tuple[Any, ...]) -> None:
        super().__init__(seed)
        self._wanted = wanted

    def choice(self, seq: Any) -> Any:
        return next((one for one in self._wanted if one in seq), None) or super().choice(seq)

    def random(self) -> float:
        return 0.99

    def randint(self, a: int, b: int) -> int:
        return a


def sure(kind: Callable[[random.Random], Waiting], *wanted: Any) -> Callable[[random.Random], Waiting]:
    """The random kind with these of its choices."""
    return lambda chance: kind(Certain(chance.getrandbits(32), wanted))


#: Reasons with a world of each that is not left to chance; several where their ways out differ.
WORLDS: Final[tuple[tuple[str, Callable[[random.Random], Waiting]], ...]] = (
    # they end with time
    ("AttemptBudget", kubelet_rejects),
    ("ReservedForGang", node_reserved),
    ("RecoveryReserved", kept_for_recovery),
    ("VNPUInFlight", vnpu_under_way),
    ("ResourceClaimsNotAllocated", claims_asked_for),
    ("WaitingForRelease", old_pods),
    ("SchedulingGated", held_by_gates),
    # of nodes
    ("NodeReportRefused", report_refused),
    ("NodeInvalid", other_server),
    ("RackUnknown", no_rack),
    ("SuperPodUnknown", no_super_pod),
    ("TopologyLabelMissing", no_tree_labels),
    ("TopologyNotMet", several_trees),
    ("NodeLabelMismatch", other_card),
    ("NodeRefused", subhealthy),
    ("NodeNotReady", sure(unwell, "not ready", "False")),
    ("NodeReportMissing", sure(unwell, "no report")),
    ("PoolSuspended", sure(unwell, "suspended")),
    ("NodeUnstable", sure(beside_chips, "unstable")),
    ("NetworkStateUnknown", sure(beside_chips, "network")),
    ("NodeIsolated", sure(unwell, "isolated")),
    ("NodeLeaving", leaving),
    ("TaintNotTolerated", starting),
    ("NodeReportStale", sure(unwell, "old report")),
    ("NodeUnhealthy", sure(unwell, "server", ("SeparateFault", "UnHealthy"))),
    ("NodePreSeparate", sure(unwell, "server", ("PreSeparateFault", "PreSeparate"))),
    # of chips and their parts
    ("SoftShareOnly", shares_only),
    ("SoftShareNotEnabled", no_shares),
    ("ChipMemoryUnknown", no_memory),
    ("VNPUNodeInvalid", cannot_cut),
    ("Fragmented", fragmented),
    ("NPUResourceMissing", other_resource),
    # of devices, volumes, and what Kubernetes rules
    ("ResourceClaimDevicesShort", few_devices),
    ("ResourceClaimUsersExhausted", crowded_claim),
    ("VolumeLimitReached", attached_to_the_limit),
    ("VolumeNodeSelected", sure(of_volumes, "selected")),
    ("VolumeNotAvailable", sure(of_volumes, "none")),
    ("ResourceClaimNodeMismatch", sure(of_claims, "elsewhere")),
    ("ResourceClaimNotAllocated", sure(of_claims, "open")),
    ("VolumeClaimNotReady", sure(of_volumes, "missing")),
    ("VolumeNodeAffinityConflict", sure(of_volumes, "elsewhere")),
    ("VolumeSpaceShortage", sure(of_volumes, "storage")),
    ("VolumeClaimInUse", sure(of_volumes, "alone")),
    ("VolumesNotBound", sure(of_volumes, "slow")),
    ("PortConflict", ports_taken),
    ("Insufficient", sure(beside_chips, "cpu", "500")),
    ("TopologySpreadConflict", spread_out),
    ("PodAffinityMismatch", sure(beside_chips, "beside")),
    ("PodAntiAffinityConflict", sure(gang, "rule")),
    # of the job and its queue
    ("NotSupportPolicy", no_such_policy),
    ("InvalidRequest", sure(wrong_request, "namespace")),
    ("InvalidRequest", sure(wrong_request, "parameter")),
    ("InvalidRequest", cut_by_layouts_only),
    ("GangIncomplete", sure(gang, "pods", 3)),
    ("JobEnqueueFailed", sure(gang, "stated")),
    ("SwitchTopologyUnknown", sure(beside_chips, "switches")),
    ("QueueExhausted", sure(in_queue, "small", "1")),
    ("QueueExhausted", sure(in_queue, "guaranteed")),
    ("PodGroupMissing", sure(gang, "group")),
    ("QueueNotFound", sure(in_queue, "missing")),
    ("QueueNotOpen", sure(in_queue, "closed", "Closed")),
    ("QueueNotOpen", sure(in_queue, "parent")),
    ("NoNodes", no_nodes),
)


def history(seed: int) -> int:
    """Follow one random case to its end; returns how many steps it took."""
    chance = random.Random(seed)
    made = chance.choice(KINDS) if chance.random() < 0.6 else chance.choice(WORLDS)[1]
    return len(follow_to_the_end(*made(chance)))
