"""A whole cluster in memory: raw objects, a virtual clock, and simulated components around the real planner.

``apply`` carries out an action as ``act`` does; ``move`` runs kubelets, the garbage collector, the workload controllers
and the node agents. Tests derive from ``World`` and check invariants where they could break.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec

from belay.engine.documents import Desired
from belay.engine.model import actions as act
from belay.engine.model.cluster import NodeDevice, Observed, Orders
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import CORDONED_ANNOTATION, SSH_KEYS
from belay.engine.model.levels import (
    RESTART,
    node_rank,
    node_status,
)
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.model.times import parse_rfc3339, rfc3339
from belay.engine.observe.observed import key_of
from belay.engine.plan import declared_keys, plan
from belay.engine.simulate.agents import Agents
from belay.engine.simulate.objects import applied, merged
from belay.engine.simulate.owners import absent_owners, replica_sets, unlisted_uids
from belay.engine.simulate.server import SimulatedServer
from belay.engine.simulate.workloads import (
    WorkloadControllers,
    adopted,
    taken_for_ready,
    unlisted_revisions,
    with_defaults,
    with_namespaces,
)
from belay.engine.status import forgotten, memory_bodies
from belay.engine.wire import names, nodeinfo, orders, rankfile, resetinfo, sync
from belay.engine.wire.errors import WireError
from belay.engine.wire.orders import chip_number

#: Time in ms for which an order is valid (docs: notAfter, 15 min).
NOT_AFTER_MS: Final = 15 * 60 * 1000
_SCALED: Final = {"Deployment": "apps/v1", "StatefulSet": "apps/v1", "ReplicaSet": "apps/v1"}


def _grace(pod: Mapping[str, Any]) -> int:
    """Seconds that Kubernetes grants a pod to end."""
    found = pod["spec"].get("terminationGracePeriodSeconds")
    return found if isinstance(found, int) else 30


class World(Agents):
    """Raw objects, time and the simulated servers.

    ``kubelets_die``: no pod starts or ends on a node that is not ready; without it kubelets run on.
    """

    def __init__(
        self, desired: Desired, *, now: float, seed: int = 0, report_every: float = 0.0, kubelets_die: bool = False
    ) -> None:
        super().__init__(now, seed=seed, report_every=report_every)
        self.desired = desired
        self.cache = PlanCache()
        self.kubelets_die = kubelets_die
        self.controllers = WorkloadControllers()
        self._removed: dict[str, dict[str, Any]] = {}

    @property
    def vnpu_suffixes(self) -> Mapping[str, str]:
        """The ends of the resource names of vNPUs, by template."""
        return {template: suffix for suffix, template in self.desired.template_of_suffix.items()}

    # what hardware does

    def fault(self, node: str, chip: int, code: str = "80C98001", level: str = RESTART) -> None:
        """Set a fault code on a chip and report it."""
        self.nodes[node].faults.setdefault(chip, {})[code] = (int(self.now * 1000), level)
        self.report(self.nodes[node])

    def heal(self, node: str, chip: int) -> None:
        """Clear a chip's faults and report it healthy."""
        self.nodes[node].faults.pop(chip, None)
        self.report(self.nodes[node])

    def hardware(self, node: SimulatedServer, level: str, codes: tuple[str, ...] = ("00000011",)) -> None:
        """NodeD reports a fault of this level; empty: the node is healthy and the report is deleted."""
        self.board(node, [NodeDevice("CPU", 1, codes, level)] if level else [])

    def board(self, node: SimulatedServer, devices: Sequence[NodeDevice]) -> None:
        """NodeD's report on the devices of the board; it exists only while a device is faulty."""
        node.hardware = max((device.level for device in devices), key=node_rank, default="")
        body = nodeinfo.build(node.name, devices, node_status(node.hardware), self.now)
        if devices:
            self.put(body)
        else:
            self.delete(key_of(body))

    def readiness(self, node: SimulatedServer, ready: bool) -> None:
        """The node's Ready condition changes; a node that is not ready is silent."""
        live = self.objects.get(ObjectKey("v1", "Node", "", node.name))
        if live is None or node.ready is ready:
            return
        node.ready, node.silent = ready, not ready
        body = copy.deepcopy(live)
        body.setdefault("status", {})["conditions"] = [
            {"type": "Ready", "status": "True" if ready else "Unknown", "lastTransitionTime": rfc3339(self.now)}
        ]
        self.put(body)

    def remove(self, node: SimulatedServer) -> None:
        """Delete the Node object; its pods stay until they are deleted."""
        key = ObjectKey("v1", "Node", "", node.name)
        node.gone = node.silent = True
        self._removed[node.name] = self.objects.get(key) or self._removed.get(node.name) or {}
        self.delete(key)

    def restore(self, node: SimulatedServer) -> None:
        """A deleted node registers again as it was, and is ready."""
        body = self._removed.pop(node.name, None)
        if node.gone and body:
            node.gone = node.silent = False
            node.ready = True
            metadata = {k: v for k, v in body["metadata"].items() if k not in ("uid", "creationTimestamp")}
            ready = [{"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(self.now)}]
            self.put({**body, "metadata": metadata, "status": {**(body.get("status") or {}), "conditions": ready}})
            self.report(node)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock and write due reports."""
        self.now += seconds
        for node in self.nodes.values():
            if not node.silent and self.now - node.reported >= self.report_every:
                self.report(node)

    # the engine

    def plan(self) -> Plan:
        """One pass over the world as it is now."""
        return plan(self.desired, self.observed(), self.now, cache=self.cache)

    def observed(self) -> Observed:
        """The snapshot of the world, owners of pods read by the declared table."""
        return self.desired.reading(self.observer.observed())

    def remember(self, result: Plan) -> None:
        """Write the plan's memory, as the engine does before anything disruptive."""
        seen = self.observed()
        for body in memory_bodies(result, seen, cache=self.cache):
            live = self.objects.get(key_of(body))
            if live is None or live.get("data") != body["data"]:
                self.put(body)
        for name in forgotten(result, seen, self.cache):
            self.delete(ObjectKey("v1", "ConfigMap", names.SYSTEM, name))

    def apply(self, action: act.AnyAction) -> None:
        """Carry out one action as ``act`` would."""
        match action:
            case act.CreateObject():
                self.put(copy.deepcopy(action.object), owner_check=True)
                self._mark_keys(action)
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
                self.evict(
                    ObjectKey("v1", "Pod", action.namespace, action.pod),
                    0 if action.force else action.grace_period_seconds,
                )
            case act.IsolateChip() | act.ReleaseChip() | act.ResetChips() | act.PartitionChip():
                self._order(action)
            case act.WriteRankTable():
                self._rank_table(action)
            case act.IsolateNode():
                self._cordon(action.node, True if action.cordon else None, action.evidence.rule)
            case act.ReleaseNode():
                self._cordon(action.node, False if action.uncordon else None)
            case act.ScaleJob():
                self._scale(action)
            case act.SignalJob():
                self._signal(action)
            case _:
                assert_never(action)

    def move(self) -> None:
        """Run every component around the engine once, in a seeded random order."""
        moves: list[Callable[[], None]] = [self._kubelet, self._collect, self._controllers, self._agents]
        self.random.shuffle(moves)
        for one in moves:
            one()

    # actions

    def _cordon(self, name: str, cordon: bool | None, rule: str = "") -> None:
        """Cordon a node for a document, or take Belay's own cordon back; None: it is isolated in the history only."""
        live = self.objects.get(ObjectKey("v1", "Node", "", name))
        if live is None or cordon is None:
            return
        if cordon or CORDONED_ANNOTATION in (live["metadata"].get("annotations") or {}):
            note = (rule or "cordoned") if cordon else None
            change = {
                "metadata": {"annotations": {CORDONED_ANNOTATION: note}},
                "spec": {"unschedulable": cordon or None},
            }
            self.put(merged(live, change))

    def _bind(self, action: act.BindPod) -> None:
        key = ObjectKey("v1", "Pod", action.namespace, action.pod)
        pod = self.objects.get(key)
        if pod is None or pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return
        if action.preconditions.uid not in (None, "", pod["metadata"].get("uid")):
            return
        self.check_binding(action)
        pod = copy.deepcopy(pod)
        pod["spec"]["nodeName"] = action.node
        pod["metadata"].setdefault("annotations", {}).update(action.annotations)
        self.put(pod)

    def check_binding(self, action: act.BindPod) -> None:
        """Called just before a binding lands; subclasses check invariants here and may raise AssertionError."""

    def evict(self, key: ObjectKey, grace: int) -> None:
        """Delete a pod, gracefully when it runs and there is grace."""
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

    def _mark_keys(self, action: act.CreateObject) -> None:
        """Mark the job of a Secret whose content the worker creates, as ``act`` does."""
        if action.generate is not None:
            owner = action.generate.owner
            live = self.objects.get(ObjectKey(owner.api_version, owner.kind, action.namespace, owner.name))
            if live is not None:
                self.put(merged(live, {"metadata": {"annotations": {SSH_KEYS: action.name}}}))

    def _patch(self, action: act.PatchObject) -> None:
        key = ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)
        live = self.objects.get(key)
        if live is not None:
            whole = action.patch_type is act.PatchType.APPLY
            self.put(applied(live, action.patch) if whole else merged(live, action.patch))

    def _scale(self, action: act.ScaleJob) -> None:
        kind = action.job_kind.partition(".")[0]
        key = ObjectKey(_SCALED.get(kind, ""), kind, action.namespace, action.name)
        live = self.objects.get(key)
        if live is not None:
            self.put(merged(live, {"spec": {"replicas": action.replicas}}))

    def _signal(self, action: act.SignalJob) -> None:
        older = self.objects.get(ObjectKey("v1", "ConfigMap", action.namespace, f"fault-config-{action.name}"))
        if older is not None:
            known = resetinfo.with_legacy_signal(older, action.signal, action.ranks, int(self.now))
            if known is not None:
                self.put(merged(older, {"data": known}))
        key = ObjectKey("v1", "ConfigMap", action.namespace, f"reset-config-{action.name}")
        live = self.objects.get(key)
        if live is None:
            return
        try:
            rank_list = msgspec.to_builtins(action.rank_list or ())
            data = resetinfo.with_signal(live, action.signal, action.ranks, int(self.now), rank_list=rank_list)
        except (WireError, ValueError):
            return  # ``act`` refuses it
        if data is not None:
            self.put(merged(live, {"data": data}))

    def _rank_table(self, action: act.WriteRankTable) -> None:
        if action.file is not None:
            self.put(rankfile.build(rankfile.of(action)))
            return
        name = action.config_map or f"rings-config-{action.name}"
        live = self.objects.get(ObjectKey("v1", "ConfigMap", action.namespace, name))
        if live is not None:
            obj = copy.deepcopy(live)
            obj.setdefault("data", {})["hccl.json"] = json.dumps(action.table)
            self.put(obj)

    def _order(self, action: act.AnyAction) -> None:
        node = self.nodes.get(getattr(action, "node", ""))
        if node is None:
            return
        current = self.observer.orders(node.name) or Orders(node.name, "", 0, "", "", 0, 0, {}, {}, 0, {})
        isolate, resets = dict(current.isolate), dict(current.resets)
        if 0 < current.not_after_ms < self.now * 1000:
            resets = {}  # expired orders must not become valid with a new date
        layout, epoch = dict(current.vnpu_layout), current.vnpu_epoch
        match action:
            case act.IsolateChip():
                isolate.update({chip_number(c): action.level for c in action.chips})
            case act.ReleaseChip():
                for name in action.chips:
                    isolate.pop(chip_number(name), None)
            case act.ResetChips():
                group = tuple(chip_number(c) for c in action.chips)
                for chip in group:
                    assert action.epoch > node.done.get(chip, 0), "an epoch must grow"
                resets.update(dict.fromkeys(group, orders.reset_order(action, int(self.now * 1000))))
            case act.PartitionChip():
                layout[chip_number(action.chip)], epoch = action.templates, action.epoch
        now_ms, fresh = int(self.now * 1000), isinstance(action, act.ResetChips | act.PartitionChip)
        fresh = fresh or not current.issued_ms
        standing = Orders(
            node.name, "", current.generation + 1, self.desired.revision, current.policy_digest,
            now_ms if fresh else current.issued_ms, now_ms + NOT_AFTER_MS if fresh else current.not_after_ms,
            isolate, resets, epoch, layout,
        )  # fmt: skip
        self.put(orders.build_orders(standing, node.prefix))

    # the simulated components

    def _kubelet(self) -> None:
        for key in [key for node in sorted(self._bound) for key in sorted(self._bound[node])]:
            pod = self.objects[key]
            ends = pod["metadata"].get("deletionTimestamp")
            if ends:
                if parse_rfc3339(ends) <= self.now and not self._silent(pod):
                    self.delete(key)
            elif (pod.get("status") or {}).get("phase", "Pending") == "Pending" and not self._silent(pod):
                pod = copy.deepcopy(pod)
                pod["status"].update(phase="Running", podIP=f"10.1.{self.version % 250}.2", startTime=rfc3339(self.now))
                ready = {"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(self.now)}
                pod["status"]["conditions"] = [ready]
                pod["status"]["containerStatuses"] = [
                    {"name": c["name"], "ready": True, "restartCount": 0, "state": {"running": {}}}
                    for c in pod["spec"]["containers"]
                ]
                self.put(pod)

    def _silent(self, pod: Mapping[str, Any]) -> bool:
        """Whether the pod's kubelet is silent."""
        node = self.nodes.get(pod["spec"]["nodeName"])
        return self.kubelets_die and node is not None and (node.gone or not node.ready)

    def _collect(self) -> None:
        """Owner garbage collection."""
        uids = self.unlisted | {obj["metadata"].get("uid") for obj in self.objects.values()}
        for key, obj in list(self.objects.items()):
            refs = obj["metadata"].get("ownerReferences") or ()
            if refs and not any(ref.get("uid") in uids for ref in refs):
                self.evict(key, _grace(obj)) if key.kind == "Pod" else self.delete(key)

    def _controllers(self) -> None:
        """Workload controllers keep their replicas and roll changed templates out."""
        self.controllers.run(self)

    def number(self) -> int:
        """A number that no name of this world has used."""
        self.uids += 1
        return self.uids

    def record_inventory(self) -> None:
        """Write the inventory of objects from Git into ``belay-sync``, as the engine does after a pass."""
        observed = self.observer.observed()
        keys = {*declared_keys(self.desired, observed, self.cache)} | {
            key for key in observed.inventory or () if key in self.objects
        }
        data = {sync.APPLIED: self.desired.revision, sync.INVENTORY: sync.inventory_text(keys)}
        metadata = {"name": names.SYNC, "namespace": names.SYSTEM}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        live = self.objects.get(key_of(body))
        if live is None or live["data"] != data:
            self.put(body)

    def populate(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Load the objects of a cluster, with a server for every node with a valid device report."""
        for item in items:
            held = copy.deepcopy(dict(item))
            if held.get("kind") == "Pod":  # as an API server would have stored it
                held.setdefault("status", {}).setdefault("phase", "Pending")
                held.setdefault("spec", {}).setdefault("containers", [])
                held = taken_for_ready(held)
            self.take(held)
        self.absent = absent_owners(self.objects)
        with_namespaces(self.objects.values())
        for obj in replica_sets(self.objects, self.absent):
            self.take(obj)
        self.unlisted = unlisted_uids(self.objects.values())  # without the ReplicaSets that are objects now
        for obj in list(self.objects.values()):
            filled = with_defaults(obj)
            if filled is not obj:
                self.take(filled)
        for obj in [*adopted(self.objects)]:
            self.take(obj)
        for obj in [*unlisted_revisions(self.objects)]:
            self.take(obj)
        observed = self.observer.observed()
        versions = [int(v) for o in self.objects.values() if (v := _version(o)).isdigit() and len(v) < 16]
        self.version = max(versions, default=0)
        for name, report in observed.reports.items():
            node = observed.nodes.get(name)
            if node is not None:
                self.nodes[name] = SimulatedServer.of(node, report, observed.agents.get(name))


def _version(obj: Mapping[str, Any]) -> str:
    return str((obj.get("metadata") or {}).get("resourceVersion") or "")
