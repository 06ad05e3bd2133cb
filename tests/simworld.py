"""A whole cluster in memory for narratives and properties: raw objects, a faked kubelet, agent and controllers.

The planner is the real one. ``World.step`` runs one pass on the observed objects, applies its actions and lets the
faked rest move in a seeded random order; ``until_quiet`` repeats that until nothing changes. Invariants are checked
while the world moves, where they can be broken: when chips are handed out, when a reset really happens.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from engine.documents import Desired
from engine.load import load
from engine.model import actions as act
from engine.model.actions import kind_of
from engine.model.cluster import AgentChip, AgentReport, AgentVNPU, NodeDevice, Orders, ResetOrder
from engine.model.diagnostics import ObjectKey
from engine.model.levels import node_status
from engine.model.plan import Plan
from engine.model.times import parse_rfc3339, rfc3339
from engine.observe import Observer, key_of, observe
from engine.plan import plan
from engine.status import forgotten, memory_bodies
from engine.wire import deviceinfo, names, nodeinfo, orders, sync
from engine.wire.orders import chip_number

START = 1788249600.0
NOT_AFTER_MS = 15 * 60 * 1000
POD_GONE = ("Succeeded", "Failed")


class Node:
    """One simulated node: its chips' faults, its journal of epochs and its vNPUs."""

    def __init__(self, name: str, *, chips: int = 8, kind: str = "Ascend910", labels: Mapping[str, str]) -> None:
        self.name = name
        self.chips = chips
        self.prefix = f"{kind}-"
        self.resource = f"huawei.com/{kind}"
        self.labels = dict(labels)
        self.faults: dict[int, dict[str, tuple[int, str]]] = {}
        self.network: dict[int, dict[str, tuple[int, str]]] = {}
        self.hardware = ""
        self.switch = ""
        self.gone = False
        self.ready = True
        self.done: dict[int, int] = {}
        self.results: dict[int, str] = {}
        self.reset_log: list[tuple[int, tuple[int, ...]]] = []
        self.reset_times: list[float] = []
        self.reset_fails = 0
        self.vnpus: list[AgentVNPU] = []
        self.vnpu_done = 0
        self.orders_seen = 0
        self.silent = False

    def device_name(self, chip: int) -> str:
        return f"{self.prefix}{chip}"


A2 = {
    "accelerator": "huawei-Ascend910",
    "accelerator-type": "module-910b-8",
    "host-arch": "huawei-arm",
    "servertype": "Ascend910B-20",
    "node.kubernetes.io/npu.chip.name": "910B3",
}
INFER = {
    "accelerator": "huawei-Ascend310P",
    "host-arch": "huawei-arm",
    "servertype": "Ascend310P-8",
    "node.kubernetes.io/npu.chip.name": "310P3",
}


class World:
    """Raw objects, time and the simulated nodes."""

    def __init__(self, files: Mapping[str, bytes], nodes: Iterable[Node], seed: int = 0) -> None:
        self.now = START
        self.random = random.Random(seed)
        self.nodes = {node.name: node for node in nodes}
        self.objects: dict[ObjectKey, dict[str, Any]] = {}
        self.observer = Observer()
        self.version = 0
        self.uids = 0
        self.revision = ""
        self.isolated: frozenset[tuple[str, int]] = frozenset()
        self.desired: Desired
        self.story: list[str] = []
        self.disruptions: list[tuple[float, str, str]] = []
        self._evictions: dict[str, tuple[float, set[str]]] = {}
        self.push(files)
        for node in self.nodes.values():
            self._register(node)
            self.report(node)
        self.put({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "default"},
                  "spec": {"weight": 1}, "status": {"state": "Open"}})  # fmt: skip

    # what people and hardware do

    def push(self, files: Mapping[str, bytes], *, broken: bool = False) -> None:
        """A new revision of the state repository; ``broken`` ones are loaded without knowing an older version."""
        self.files = dict(files)
        self.revision = f"rev-{int(self.revision.removeprefix('rev-') or 0) + 1}"
        loaded = load(self.files, revision=self.revision)
        bad = [str(d) for d in loaded.diagnostics if d.severity == "error"]
        assert bool(bad) is broken, bad
        self.desired = loaded.desired
        self.isolated = frozenset(
            (row.node, chip)
            for item in self.desired.isolations
            for row in item.document.spec.chips
            for chip in row.chips
        )

    def fault(self, node: str, chip: int, code: str = "80C98001", level: str = "RestartNPU") -> None:
        """A fault code appears on a chip and is reported."""
        self.nodes[node].faults.setdefault(chip, {})[code] = (int(self.now * 1000), level)
        self.report(self.nodes[node])

    def heal(self, node: str, chip: int) -> None:
        """A chip's faults vanish and the clean report is written."""
        self.nodes[node].faults.pop(chip, None)
        self.report(self.nodes[node])

    def hardware(self, node: Node, level: str) -> None:
        """NodeD reports a fault of this level; empty: the node is well and the report is deleted."""
        node.hardware = level
        body = nodeinfo.build(node.name, [NodeDevice("CPU", 1, ("00000011",), level)], node_status(level), self.now)
        if level:
            self.put(body, merge=False)
        else:
            self.delete(key_of(body))

    def readiness(self, node: Node, ready: bool) -> None:
        """The node's Ready condition changes; a node that is not ready is silent."""
        live = self.objects.get(ObjectKey("v1", "Node", "", node.name))
        if live is None or node.ready is ready:
            return
        node.ready, node.silent = ready, not ready
        body = copy.deepcopy(live)
        body["status"]["conditions"] = [
            {"type": "Ready", "status": "True" if ready else "Unknown", "lastTransitionTime": rfc3339(self.now)}
        ]
        self.put(body, merge=False)

    def remove(self, node: Node) -> None:
        """The Node object is deleted; its pods stay until somebody deletes them."""
        node.gone = node.silent = True
        self.delete(ObjectKey("v1", "Node", "", node.name))

    def bring_back(self, node: Node) -> None:
        """A deleted node registers again under its name."""
        if node.gone:
            node.gone = node.silent = False
            node.ready = True
            self._register(node)

    def pass_time(self, seconds: float) -> None:
        """Time goes by; reports that are due are written."""
        self.now += seconds
        for node in self.nodes.values():
            if not node.silent:
                self.report(node)

    # the engine

    def plan(self) -> Plan:
        """One pass; the same inputs in another order must give the same plan, byte for byte."""
        result = plan(self.desired, self.observer.observed(), self.now)
        if self.random.random() < 0.1:
            shuffled = list(self.objects.values())
            self.random.shuffle(shuffled)
            again = plan(self.desired, observe(shuffled), self.now)
            assert again.digest() == result.digest(), "the same snapshot in another order gave another plan"
        return result

    def step(self, *, some: float = 1.0) -> Plan:
        """One pass, its actions applied (each with probability ``some``; gangs' bindings too), then the rest moves."""
        result = self.plan()
        self.check_plan(result)
        seen = self.observer.observed()
        for body in memory_bodies(result, seen):
            self.put(body, merge=False)
        for name in forgotten(result, seen):
            self.delete(ObjectKey("v1", "ConfigMap", names.SYSTEM, name))
        for action in result.actions:
            if self.random.random() <= some:
                self.apply(action)
        self._inventory(result)
        moves: list[Callable[[], None]] = [self._kubelet, self._collect, self._controllers, self._agents]
        self.random.shuffle(moves)
        for move in moves:
            move()
        self.check_world()
        return result

    def until_quiet(self, *, ceiling: int = 40, seconds: float = 61.0, some: float = 1.0) -> list[Plan]:
        """Steps until two passes in a row have no actions and the world stands still; fails beyond the ceiling."""
        plans: list[Plan] = []
        quiet = 0
        for _ in range(ceiling):
            before = self._fingerprint()
            result = self.step(some=some)
            plans.append(result)
            for action in result.actions:
                self.story.append(f"{kind_of(action)} {action.message}")
            self.pass_time(seconds)
            quiet = quiet + 1 if not result.actions and before == self._fingerprint() else 0
            if quiet == 2:
                return plans
        last = [f"{kind_of(a)}: {a.message}" for a in plans[-1].actions]
        raise AssertionError(f"not quiet after {ceiling} passes; the last one wanted {last}")

    # actions

    def apply(self, action: act.AnyAction) -> None:
        """Carry out one action, checking what ``act`` checks at the edge."""
        if isinstance(action, act.EvictPod):
            self.disruptions.append((self._begun(action), "EvictPod", action.budget_unit))
        elif isinstance(action, act.ResetChips):
            self.disruptions.append((self.now, "ResetChips", f"{action.node}/{','.join(action.chips)}"))
        match action:
            case act.CreateObject():
                self.put(copy.deepcopy(action.object), owner_check=True)
            case act.PatchObject():
                self._patch(action)
            case act.DeleteObject():
                self.delete(ObjectKey(action.api_version, action.object_kind, action.namespace, action.name))
            case act.CreatePod():
                key = ObjectKey("v1", "Pod", action.namespace, action.pod)
                if key not in self.objects:
                    self.put(copy.deepcopy(action.object))
            case act.BindPod():
                self._bind(action)
            case act.EvictPod():
                self._evict(
                    ObjectKey("v1", "Pod", action.namespace, action.pod),
                    0 if action.force else action.grace_period_seconds,
                )
            case act.IsolateChip() | act.ReleaseChip() | act.ResetChips() | act.PartitionChip():
                self._order(action)
            case act.WriteRankTable():
                key = ObjectKey("v1", "ConfigMap", action.namespace, f"rings-config-{action.name}")
                obj = copy.deepcopy(self.objects[key])
                obj.setdefault("data", {})["hccl.json"] = json.dumps(action.table)
                self.put(obj)
            case act.IsolateNode() | act.ReleaseNode():
                pass  # remembered in the history; nodes take no order of their own
            case _:
                raise AssertionError(f"no {kind_of(action)} in these worlds")

    def _begun(self, action: act.EvictPod) -> float:
        """When the eviction of this unit began: a pod that was there then and goes only now is no new disruption."""
        pod = self.objects.get(ObjectKey("v1", "Pod", action.namespace, action.pod))
        uid = pod["metadata"]["uid"] if pod else ""
        begun, uids = self._evictions.get(action.budget_unit, (self.now, set()))
        if uid in uids:
            return begun
        owner = action.owner.name if action.owner else action.pod
        there = {
            p["metadata"]["uid"]
            for k, p in self.objects.items()
            if k.kind == "Pod" and (k.name == action.pod or _owner_name(p) == owner) and k.namespace == action.namespace
        }
        self._evictions[action.budget_unit] = (self.now, there)
        return self.now

    def _bind(self, action: act.BindPod) -> None:
        key = ObjectKey("v1", "Pod", action.namespace, action.pod)
        pod = self.objects.get(key)
        if pod is None or pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return
        if action.preconditions.get("uid") not in (None, pod["metadata"]["uid"]):
            return
        taken = self.owners(action.node)
        where = self.nodes[action.node]
        assert where.hardware not in ("SeparateFault", "PreSeparateFault"), (
            f"{action.pod} landed on broken {where.name}"
        )
        for chip in action.chips:
            place = (action.node, chip_number(chip))
            assert place not in self.isolated, f"{action.pod} landed on {place}, which a person took out"
            assert chip not in taken or action.template, (
                f"{action.node}/{chip} is {taken[chip]}'s, given to {action.pod}"
            )
            assert not self.nodes[action.node].faults.get(chip_number(chip)) or self._usable(action, chip), (
                f"{action.pod} landed on faulty {action.node}/{chip}"
            )
        pod = copy.deepcopy(pod)
        pod["spec"]["nodeName"] = action.node
        pod["metadata"].setdefault("annotations", {}).update(action.annotations)
        self.put(pod)

    def _usable(self, action: act.BindPod, chip: str) -> bool:
        levels = {level for _, level in self.nodes[action.node].faults[chip_number(chip)].values()}
        return levels <= {"NotHandleFault", "SubHealthFault"}

    def _evict(self, key: ObjectKey, grace: int) -> None:
        pod = self.objects.get(key)
        if pod is None:
            return
        if not pod["spec"].get("nodeName") or grace == 0:
            self.delete(key)
            return
        if not pod["metadata"].get("deletionTimestamp"):
            pod = copy.deepcopy(pod)
            pod["metadata"]["deletionTimestamp"] = rfc3339(self.now + grace)
            pod["metadata"]["deletionGracePeriodSeconds"] = grace
            self.put(pod)

    def _patch(self, action: act.PatchObject) -> None:
        key = ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)
        live = self.objects.get(key)
        if live is None:
            return
        self.put(merged(live, action.patch))

    def _order(self, action: act.AnyAction) -> None:
        node = self.nodes[action.node]  # type: ignore[union-attr]
        current = self.observer.observed().orders.get(node.name) or Orders(
            node.name, "", 0, "", "", 0, 0, {}, {}, 0, {}
        )
        isolate, resets, layout, epoch = (
            dict(current.isolate),
            dict(current.resets),
            dict(current.vnpu_layout),
            current.vnpu_epoch,
        )
        match action:
            case act.IsolateChip():
                isolate.update({chip_number(c): action.level for c in action.chips})
            case act.ReleaseChip():
                for chip in action.chips:
                    isolate.pop(chip_number(chip), None)
            case act.ResetChips():
                group = tuple(chip_number(c) for c in action.chips)
                for chip in group:
                    assert action.epoch > node.done.get(chip, 0), "an epoch must grow"
                resets.update({c: ResetOrder(action.epoch, group, action.reason, int(self.now * 1000)) for c in group})
            case act.PartitionChip():
                layout[chip_number(action.chip)], epoch = action.templates, action.epoch
        now_ms = int(self.now * 1000)
        self.put(
            orders.build_orders(
                Orders(node.name, "", current.generation + 1, self.revision, "", now_ms, now_ms + NOT_AFTER_MS,
                       isolate, resets, epoch, layout),
                node.prefix,
            ),
            merge=False,
        )  # fmt: skip

    # the faked rest

    def _kubelet(self) -> None:
        for key, pod in list(self.objects.items()):
            if key.kind != "Pod" or not pod["spec"].get("nodeName"):
                continue
            metadata = pod["metadata"]
            if metadata.get("deletionTimestamp"):
                if parse_rfc3339(metadata["deletionTimestamp"]) <= self.now:
                    self.delete(key)
            elif pod["status"]["phase"] == "Pending":
                pod = copy.deepcopy(pod)
                pod["status"].update(phase="Running", podIP=f"10.1.{self.version % 250}.2", startTime=rfc3339(self.now))
                pod["status"]["containerStatuses"] = [
                    {"name": c["name"], "ready": True, "restartCount": 0, "state": {"running": {}}}
                    for c in pod["spec"]["containers"]
                ]
                self.put(pod)

    def _collect(self) -> None:
        """Owner garbage collection."""
        uids = {obj["metadata"].get("uid") for obj in self.objects.values()}
        for key, obj in list(self.objects.items()):
            refs = obj["metadata"].get("ownerReferences") or ()
            if refs and not any(ref["uid"] in uids for ref in refs):
                self._evict(key, 0) if key.kind == "Pod" else self.delete(key)

    def _controllers(self) -> None:
        """Deployments keep their replicas; failed and deleted pods are replaced."""
        for key, obj in list(self.objects.items()):
            if key.kind != "Deployment":
                continue
            rs = ObjectKey("apps/v1", "ReplicaSet", key.namespace, f"{key.name}-1")
            if rs not in self.objects:
                self.put(_owned({"apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": obj["spec"]}, rs, obj))
            owner = self.objects[rs]
            live = [
                k
                for k, p in self.objects.items()
                if k.kind == "Pod"
                and not p["metadata"].get("deletionTimestamp")
                and p["status"]["phase"] not in POD_GONE
                and any(r["uid"] == owner["metadata"]["uid"] for r in p["metadata"].get("ownerReferences") or ())
            ]
            for _ in range(obj["spec"].get("replicas", 1) - len(live)):
                self.uids += 1
                template = copy.deepcopy(obj["spec"]["template"])
                pod = {"apiVersion": "v1", "kind": "Pod", **template}
                pod_key = ObjectKey("v1", "Pod", key.namespace, f"{rs.name}-{self.uids:05d}")
                self.put(_owned(pod, pod_key, owner))

    def _agents(self) -> None:
        names_in_order = list(self.nodes)
        self.random.shuffle(names_in_order)
        for name in names_in_order:
            node = self.nodes[name]
            if not node.silent:
                self._agent(node)

    def _agent(self, node: Node) -> None:
        standing = self.observer.observed().orders.get(node.name)
        if standing is None:
            return
        node.orders_seen = standing.generation
        if int(self.now * 1000) <= standing.not_after_ms:
            for chip, reset in sorted(standing.resets.items()):
                if reset.epoch > node.done.get(chip, 0):
                    self._reset(node, reset)
            if standing.vnpu_epoch > node.vnpu_done:
                self._partition(node, standing)
        self.report(node)

    def _reset(self, node: Node, reset: ResetOrder) -> None:
        taken = self.owners(node.name)
        busy = [c for c in reset.group if node.device_name(c) in taken]
        if busy:
            result = "refused: in use"
        elif node.reset_fails:
            node.reset_fails -= 1
            result = "failed: the chip did not boot"
        else:
            result = "ok"
            node.reset_log.append((reset.epoch, reset.group))
            node.reset_times.append(self.now)
            recent = [at for at in node.reset_times if at > self.now - 6 * 3600]
            assert len(recent) <= 3, f"{node.name} was reset {len(recent)} times within six hours"
            for chip in reset.group:
                node.faults.pop(chip, None)
        for chip in reset.group:
            assert reset.epoch > node.done.get(chip, 0), f"epoch {reset.epoch} ran twice on {node.name}/{chip}"
            node.done[chip], node.results[chip] = reset.epoch, result

    def _partition(self, node: Node, standing: Orders) -> None:
        kept = [v for v in node.vnpus if v.used_by or v.chip not in standing.vnpu_layout]
        number = 100
        for chip, templates in sorted(standing.vnpu_layout.items()):
            have = [v.template for v in kept if v.chip == chip]
            for template in templates:
                if template in have:
                    have.remove(template)
                    continue
                while any(v.id == number for v in kept):
                    number += 1
                kept.append(AgentVNPU(number, chip, template, ""))
        node.vnpus, node.vnpu_done = kept, standing.vnpu_epoch

    # reports

    def report(self, node: Node) -> None:
        """The node writes its device-info and its agent's report."""
        taken = self.owners(node.name)
        lists: dict[str, list[int]] = {"": [], "-Unhealthy": [], "-NetworkUnhealthy": [], "-Recovering": []}
        elements = []
        for chip in range(node.chips):
            codes = node.faults.get(chip, {})
            levels = {level for _, level in codes.values()}
            bad = bool(levels - {"NotHandleFault", "SubHealthFault"})
            if (bad and levels != {"PreSeparateNPU"}) or (bad and node.device_name(chip) not in taken):
                lists["-Unhealthy"].append(chip)
            elif node.device_name(chip) not in taken:
                lists[""].append(chip)
            if codes:
                level = max(levels, key=_LEVELS.index)
                elements.append(deviceinfo.fault_element("CardUnhealthy", node.device_name(chip), codes, level))
            plane = node.network.get(chip, {})
            if plane:
                level = max((level for _, level in plane.values()), key=_LEVELS.index)
                elements.append(deviceinfo.fault_element("CardNetworkUnhealthy", node.device_name(chip), plane, level))
                if level != "NotHandleFault":
                    lists["-NetworkUnhealthy"].append(chip)
        device_list = {f"{node.resource}{k}": ",".join(node.device_name(c) for c in v) for k, v in lists.items()}
        device_list[f"{node.resource}-Fault"] = json.dumps(elements, separators=(",", ":"))
        switch = {"FaultCode": ["[0x1,1,na,na]"], "FaultLevel": node.switch, "UpdateTime": int(self.now)}
        switch["NodeStatus"] = {"SubHealthFault": "SubHealthy", "PreSeparate": "PreSeparate"}.get(
            node.switch, "UnHealthy"
        )
        body = deviceinfo.build(
            node.name, device_list=device_list, update_time=int(self.now), switch=switch if node.switch else None
        )
        self.put(body, merge=False)
        agent = AgentReport(
            node=node.name,
            boot="b",
            seq=self.version,
            time_ms=int(self.now * 1000),
            orders_seen=node.orders_seen,
            chips={
                c: AgentChip(
                    serial=f"S-{node.name}-{c}",
                    processes=1 if node.device_name(c) in taken else 0,
                    idle_since_ms=None if node.device_name(c) in taken else int(self.now * 1000) - 120_000,
                    reset_epoch_done=node.done.get(c, 0),
                    reset_result=node.results.get(c, ""),
                )
                for c in range(node.chips)
            },
            vnpu_epoch_done=node.vnpu_done,
            vnpu_result="ok" if node.vnpu_done else "",
            vnpus=tuple(node.vnpus),
            errors=(),
        )
        self.put(orders.build_report(agent, node.prefix, {"name": "simulated"}), merge=False)

    def _register(self, node: Node) -> None:
        number = len(self.objects) + 1
        self.put(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": node.name,
                    "labels": {"kubernetes.io/hostname": node.name, **node.labels},
                    "annotations": {
                        "baseDeviceInfos": json.dumps(
                            {
                                node.device_name(c): {"IP": f"192.168.{c}.{number}", "SuperDeviceID": 0}
                                for c in range(node.chips)
                            }
                        )
                    },
                },
                "spec": {},
                "status": {
                    "capacity": {"cpu": "192", "memory": "1536Gi", "pods": "110", node.resource: str(node.chips)},
                    "allocatable": {"cpu": "192", "memory": "1536Gi", "pods": "110", node.resource: str(node.chips)},
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(self.now - 3600)}],
                    "addresses": [{"type": "InternalIP", "address": f"10.0.0.{number}"}],
                },
            }
        )

    # bookkeeping

    def put(self, obj: dict[str, Any], *, merge: bool = True, owner_check: bool = False) -> None:
        """Create or replace an object as an API server would stamp it."""
        key = key_of(obj)
        live = self.objects.get(key)
        if owner_check and live is not None:
            return
        metadata = obj.setdefault("metadata", {})
        self.version += 1
        if live is None:
            self.uids += 1
            metadata.setdefault("uid", f"uid-{self.uids}")
            metadata.setdefault("creationTimestamp", rfc3339(self.now))
            if key.kind == "Pod":
                obj.setdefault("status", {}).setdefault("phase", "Pending")
            if key.kind == "Service":
                obj.setdefault("spec", {}).setdefault("clusterIP", f"10.96.0.{self.uids % 250}")
        else:
            for field in ("uid", "creationTimestamp"):
                metadata[field] = live["metadata"][field]
        metadata["resourceVersion"] = str(self.version)
        self.objects[key] = obj
        self.observer.put(obj)

    def delete(self, key: ObjectKey) -> None:
        """An object is gone."""
        if self.objects.pop(key, None) is not None:
            self.observer.delete(key)

    def pods(self, namespace: str = "") -> dict[str, dict[str, Any]]:
        """Live pods by name."""
        return {
            k.name: p
            for k, p in sorted(self.objects.items())
            if k.kind == "Pod" and (not namespace or k.namespace == namespace) and p["status"]["phase"] not in POD_GONE
        }

    def owners(self, node: str) -> dict[str, str]:
        """Chip name → live pod that holds it; two holders are an error."""
        taken: dict[str, str] = {}
        for key, pod in self.objects.items():
            if key.kind != "Pod" or pod["spec"].get("nodeName") != node or pod["status"]["phase"] in POD_GONE:
                continue
            annotations = pod["metadata"].get("annotations") or {}
            text = annotations.get("huawei.com/AscendReal") or annotations.get(self.nodes[node].resource) or ""
            for chip in filter(None, text.split(",")):
                assert chip not in taken, f"{node}/{chip} has two owners: {taken[chip]} and {key.name}"
                taken[chip] = key.name
        return taken

    def check_world(self) -> None:
        """Invariants that hold at every moment."""
        for name in self.nodes:
            self.owners(name)

    def check_plan(self, result: Plan) -> None:
        """Invariants of a plan itself: gangs whole, no two owners, nothing excluded, nothing twice."""
        out = {
            (c.node, c.chip)
            for c in result.chips
            if c.state in ("isolated", "manually-isolated", "resetting", "recovering")
        }
        given: dict[tuple[str, str], str] = {}
        for action in result.actions:
            if isinstance(action, act.BindPod):
                for chip in action.chips:
                    place = (action.node, chip)
                    assert place not in given or action.template, (
                        f"{place} given to {given.get(place)} and {action.pod}"
                    )
                    assert place not in out, f"{action.pod} placed on {place}, which is out of service"
                    given[place] = action.pod
        resets = [(a.node, c) for a in result.actions if isinstance(a, act.ResetChips) for c in a.chips]
        assert len(resets) == len(set(resets)), f"a chip is reset twice in one pass: {resets}"
        assert not {*resets} & {*given}, "a chip is given to a pod and reset in one pass"

    def spent(self, kind: str, window: float) -> int:
        """The most units of a disruptive action within any window of that many seconds."""
        rows = sorted((at, unit) for at, name, unit in self.disruptions if name == kind)
        return max((len({unit for at, unit in rows if start <= at < start + window}) for start, _ in rows), default=0)

    def _inventory(self, result: Plan) -> None:
        deferred = {
            (d.action.object_kind, d.action.namespace, d.action.name)
            for d in result.deferred
            if isinstance(d.action, act.DeleteObject)
        }
        before = self.observer.observed().inventory or ()
        keys = {m.key for m in self.desired.manifests} | {
            k for k in before if (k.kind, k.namespace, k.name) in deferred and k in self.objects
        }
        data = {sync.APPLIED: self.revision, sync.INVENTORY: sync.inventory_text(keys)}
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": names.SYNC, "namespace": names.SYSTEM},
            "data": data,
        }
        live = self.objects.get(key_of(body))
        if live is None or live["data"] != data:
            self.put(body, merge=False)

    def _fingerprint(self) -> str:
        """What must stand still: everything but heartbeats."""
        still = {
            str(key): {k: v for k, v in obj.items() if k != "metadata"} | {"labels": obj["metadata"].get("labels")}
            for key, obj in self.objects.items()
            if not key.name.startswith((names.REPORT_PREFIX, names.DEVICE_PREFIX))
        }
        return msgspec.json.encode(still, order="sorted").decode()


_LEVELS = (
    "NotHandleFault",
    "SubHealthFault",
    "RestartRequest",
    "RestartBusiness",
    "FreeRestartNPU",
    "RestartNPU",
    "PreSeparateNPU",
    "SeparateNPU",
    "ManuallySeparateNPU",
)


def merged(live: Any, patch: Any) -> Any:
    """JSON merge patch."""
    if not isinstance(patch, dict) or not isinstance(live, dict):
        return copy.deepcopy(patch)
    result = copy.deepcopy(live)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _owned(obj: dict[str, Any], key: ObjectKey, owner: dict[str, Any]) -> dict[str, Any]:
    obj = copy.deepcopy(obj)
    metadata = obj.setdefault("metadata", {})
    metadata.update(name=key.name, namespace=key.namespace)
    metadata["ownerReferences"] = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
    ]
    return obj


def _owner_name(obj: dict[str, Any]) -> str:
    return next((ref["name"] for ref in obj["metadata"].get("ownerReferences") or () if ref.get("controller")), "")
