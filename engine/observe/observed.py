"""One snapshot, Observed, from cluster objects and reports.

The same parsing serves a ``kubectl get … -o json`` List and live watches: objects come in one by one,
parsed once per version, and ``observed()`` returns an immutable snapshot. A report that is corrupt,
oversized or misnamed becomes a diagnostic, and the last good one stays; bad cluster content raises
nothing here. The pass, which knows ``now``, decides whether a report is stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any

import msgspec

from belay.engine.model import stress
from belay.engine.model.cluster import AgentReport, DeviceReport, Node, NodeReport, Observed, Orders, Pod, PublicReport
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.fault_subscriptions import NO_SUBSCRIPTIONS
from belay.engine.model.history import History, JobMemory, NodeMemory
from belay.engine.model.last_changes import Place
from belay.engine.model.log_evidence import PodEvidence
from belay.engine.model.recovery.progress import RecoveryProgress, progress_of
from belay.engine.model.refusals import RefusalKey, ServerRefusal
from belay.engine.observe.corrections import NodesUnderTest, PhysicalChips
from belay.engine.observe.report_checks import ReportsInForce, device_jump, epoch_jump, own_public_faults, went_back
from belay.engine.wire import (
    deviceinfo,
    evidence,
    faultsubscriptions,
    history,
    ledger,
    names,
    nodeinfo,
    objects,
    orders,
    podannotations,
    publicinfo,
    recoveryrecord,
    refusals,
    reservations,
    schedulerconf,
    sync,
)
from belay.engine.wire.errors import WireError
from belay.engine.wire.field_types import wrong_type
from belay.engine.wire.unwritten import is_unwritten


def observe(items: Iterable[Mapping[str, Any]], shard: str = names.MAIN_SHARD) -> Observed:
    """Observed from plain objects, e.g. the items of a List; their order does not matter. ``shard``: whose memory."""
    observer = Observer()
    for item in items:
        observer.put(item)
    return observer.observed(shard)


def key_of(obj: Mapping[str, Any]) -> ObjectKey:
    """The object's key; missing parts are empty."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, Mapping):
        metadata = {}
    return ObjectKey(
        str(obj.get("apiVersion", "")),
        str(obj.get("kind", "")),
        str(metadata.get("namespace") or ""),
        str(metadata.get("name", "")),
    )


class Observer:
    """Keeps every object in parsed form and makes snapshots."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._reports: dict[str, DeviceReport] = {}
        self._problems: dict[str, str] = {}
        self._node_reports: dict[str, NodeReport] = {}
        self._agents: dict[str, AgentReport] = {}
        self._orders: dict[str, Orders] = {}
        self._pods: dict[str, Pod] = {}
        self._physical = PhysicalChips()
        self._objects: dict[ObjectKey, dict[str, Any]] = {}
        self._memories: dict[str, NodeMemory] = {}
        self._jobs: dict[str, tuple[str, JobMemory]] = {}
        self._clusters: dict[str, history.ClusterMemory] = {}
        self._ledgers: dict[str, dict[str, ledger.Claim]] = {}
        self._broken_ledgers: set[str] = set()
        self._reserved: dict[str, tuple[reservations.Reservation, ...]] = {}
        self._reserved_broken = False
        self._refusals: dict[str, dict[RefusalKey, ServerRefusal]] = {}
        self._inventory: tuple[ObjectKey, ...] | None = None
        self._places: dict[str, Place] = {}
        self._applied = ""
        self._init_params: dict[str, str] = {}
        self._findings: dict[ObjectKey, Diagnostic] = {}
        self._unsorted = False
        self._public: dict[ObjectKey, PublicReport] = {}
        self._recoveries: dict[str, RecoveryProgress] = {}
        self._evidence: dict[str, tuple[PodEvidence, ...]] = {}
        self._subscriptions = NO_SUBSCRIPTIONS
        self._tested = NodesUnderTest()
        self._devices = ReportsInForce[DeviceReport](
            lambda node: ObjectKey("v1", "ConfigMap", names.DEVICE_NAMESPACE, names.DEVICE_PREFIX + node)
        )
        self._agents_in_force = ReportsInForce[AgentReport](
            lambda node: ObjectKey("v1", "ConfigMap", names.NODES, names.REPORT_PREFIX + node)
        )

    def put(self, obj: Mapping[str, Any]) -> None:
        """Receive an object's newest version."""
        key = key_of(obj)
        self._findings.pop(key, None)
        before = self._size()
        try:
            self._parse(key, obj)
        except WireError as error:
            self._refuse(key, error)
        except (TypeError, AttributeError, ValueError) as error:
            field, text = wrong_type(obj)
            self._refuse(key, WireError(str(key), field, text or f"has a field of a wrong type: {error}"))
        # a newer version keeps the place of the older one; only a new name is added at the end
        self._unsorted = self._unsorted or self._size() > before

    def delete(self, key: ObjectKey) -> None:
        """Remove an object that is gone."""
        self._findings.pop(key, None)
        if key.kind == "Node":
            self._nodes.pop(key.name, None)
            self._physical.forget_node(key.name)
            self._devices.forget(key.name)
            self._agents_in_force.forget(key.name)
        elif key.kind == "Pod":
            self._pods.pop(f"{key.namespace}/{key.name}", None)
            self._physical.forget_pod(f"{key.namespace}/{key.name}")
        elif key.kind == "ConfigMap":
            self._forget_config_map(key)
            self._public.pop(key, None)
        self._objects.pop(key, None)

    def observed(self, shard: str = names.MAIN_SHARD) -> Observed:
        """An immutable snapshot of everything seen so far, with the memory of that shard."""
        cluster = self._clusters.get(names.history_config_map(shard), history.ClusterMemory())
        if self._unsorted:
            self._sort()
        claims: dict[str, str] = {}
        for shard_claims in self._ledgers.values():
            # those of waiting pods last: they win over an earlier claim on the same chips that still settles
            for uid, claim in sorted(shard_claims.items(), key=lambda row: ledger.SETTLING not in row[0]):
                claims.update((chip, uid) for chip in claim.chips())
        return Observed(
            nodes=dict(self._nodes),
            reports=self._good_reports(),
            problems=dict(sorted(self._problems.items())),
            node_reports=dict(self._node_reports),
            agents=self._agents_in_force.of(self._agents, lambda _, new: epoch_jump(new, self._orders.get(new.node))),
            orders=dict(self._orders),
            pods=self._physical.of(self._pods),
            objects=dict(self._objects),
            history=History(
                nodes=dict(self._memories),
                jobs=dict(sorted(self._jobs.values())),
                budgets=cluster.budgets,
                ready_drops=cluster.ready_drops,
                policy_revision=cluster.policy_revision,
                prunes=cluster.prunes,
                repeats=cluster.repeats,
                pool_edit=cluster.pool_edit,
                retemplated=cluster.retemplated,
            ),
            ledger=dict(sorted(claims.items())),
            ledger_broken=bool(self._broken_ledgers),
            reserved=self._reserved,
            reserved_broken=self._reserved_broken,
            refusals=self._refusals.get(names.refusals_config_map(shard), {}),
            inventory=self._inventory,
            places=self._places,
            applied_revision=self._applied,
            init_params=dict(self._init_params),
            diagnostics=self._diagnostics(),
            newest_report=max(
                max((r.update_time for r in self._reports.values()), default=0.0),
                max((a.time_ms / 1000 for a in self._agents.values()), default=0.0),
            ),
            public={
                f"{key.namespace}/{key.name}": own_public_faults(key, self._public[key], self._nodes)
                for key in sorted(self._public)
            },
            recoveries={one.job: one for _, one in sorted(self._recoveries.items())},
            evidence=dict(sorted(self._evidence.items())),
            fault_subscriptions=self._subscriptions,
        )

    def orders(self, node: str) -> Orders | None:
        """The orders of a node, without making a snapshot."""
        return self._orders.get(node)

    def _parse(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        if key.kind == "Node" and key.api_version == "v1":
            node = self._nodes[key.name] = objects.node(obj)
            self._physical.put_node(key.name, podannotations.physical_names(node.base_devices))
            objects.check_devices(node)
        elif key.kind == "Pod" and key.api_version == "v1":
            self._take_pod(obj)
        elif key.kind == "ConfigMap" and key.api_version == "v1" and self._parse_config_map(key, obj):
            return
        else:
            self._objects[key] = dict(obj)

    def _take_pod(self, obj: Mapping[str, Any]) -> None:
        try:
            parsed = objects.pod(obj)
        except (TypeError, AttributeError, ValueError):
            held = objects.chips_only(obj)
            known = None if held is None else self._pods.get(held.key)
            if held is not None and (known is None or not known.node):
                self._pods[held.key] = held  # refused, but its chips are not free
            raise
        self._pods[parsed.key] = parsed

    def _parse_config_map(self, key: ObjectKey, obj: Mapping[str, Any]) -> bool:
        """Whether the ConfigMap has one of the formats that are parsed."""
        if publicinfo.has_public_faults(obj):
            self._public[key] = publicinfo.parse(obj)
        else:
            self._public.pop(key, None)
        for namespace, prefix, take in self._FORMATS:
            if key.namespace == namespace and key.name.startswith(prefix):
                if not self._awaits_first_write(key, obj):
                    take(self, key, obj)
                return True
        return False

    def _awaits_first_write(self, key: ObjectKey, obj: Mapping[str, Any]) -> bool:
        """Whether the installation made a record, empty, for a writer that may not make it and has not written yet. One
        that was emptied later is refused."""
        if not is_unwritten(obj):
            return False
        kept: tuple[tuple[str, Mapping[str, Any]], ...] = (
            (names.DEVICE_PREFIX, self._reports), (names.NODE_PREFIX, self._node_reports),
            (names.REPORT_PREFIX, self._agents), (evidence.PREFIX, self._evidence),
        )  # fmt: skip
        for prefix, reports in kept:
            if key.name.startswith(prefix):
                return key.name.removeprefix(prefix) not in reports
        return key.name == names.FAULT_SUBSCRIBERS and self._subscriptions == NO_SUBSCRIPTIONS

    def _take_device(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        node = key.name.removeprefix(names.DEVICE_PREFIX)
        try:
            self._reports[node] = deviceinfo.parse(obj)
        except WireError as error:
            self._problems[node] = f"{error.field}: {error.message}"
            raise
        self._problems.pop(node, None)
        self._devices.change(node)

    def _take_node(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        report = nodeinfo.parse(obj)
        self._node_reports[report.node] = report

    def _take_agent(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        report = orders.parse_report(obj)
        if why := went_back(self._agents.get(report.node), report):
            raise WireError(f"ConfigMap/{key.namespace}/{key.name}", "data.report.json.seq", f"{why}; it is ignored")
        self._agents[report.node] = report
        self._agents_in_force.change(report.node)

    def _take_orders(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        order = orders.parse_orders(obj)
        self._orders[order.node] = order
        self._agents_in_force.change(order.node)

    def _take_node_memory(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        if not key.name.startswith(names.HISTORY_PREFIX):
            self._clusters[key.name] = history.parse_cluster(obj)
            return
        node, memory = history.parse_node(obj)
        self._memories[node] = memory

    def _take_job_memory(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        entry = history.parse_job(obj)
        if entry is None:
            self._jobs.pop(key.name, None)
        else:
            self._jobs[key.name] = entry

    def _take_ledger(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        self._broken_ledgers.add(key.name)
        self._ledgers[key.name] = ledger.parse(obj)
        self._broken_ledgers.discard(key.name)

    def _take_recovery(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        self._recoveries.pop(key.name, None)
        self._tested.put(key.name, None)
        conversation = recoveryrecord.parse(obj).conversation
        if (found := progress_of(conversation)) is not None:
            self._recoveries[key.name] = found
        self._tested.put(key.name, stress.stress_test_of(conversation))

    def _take_reservations(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        if key.name == names.BUDGET:
            self._reserved, self._reserved_broken = {}, True
            self._reserved, self._reserved_broken = reservations.parse(obj), False

    def _take_refusals(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        self._refusals[key.name] = refusals.parse(obj)

    def _take_subscriptions(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        self._subscriptions = NO_SUBSCRIPTIONS
        self._subscriptions = faultsubscriptions.parse(obj)

    def _take_evidence(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        node, pods = evidence.parse(obj)
        self._evidence[node] = pods

    def _take_sync(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        if key.name == names.SYNC:
            self._applied = str((obj.get("data") or {}).get(sync.APPLIED, ""))
            self._inventory, self._places = sync.parse_inventory(obj), sync.parse_places(obj)
        self._objects[key] = dict(obj)

    def _take_scheduler(self, key: ObjectKey, obj: Mapping[str, Any]) -> None:
        if key.name == names.SCHEDULER_CONFIGMAP:
            self._init_params = schedulerconf.arguments(str((obj.get("data") or {}).get(names.SCHEDULER_KEY, "")))
        self._objects[key] = dict(obj)

    _Take = Callable[["Observer", ObjectKey, Mapping[str, Any]], None]
    _FORMATS: tuple[tuple[str, str, _Take], ...] = (
        (names.DEVICE_NAMESPACE, names.DEVICE_PREFIX, _take_device),
        (names.NODE_NAMESPACE, names.NODE_PREFIX, _take_node),
        (names.NODES, names.REPORT_PREFIX, _take_agent),
        (names.NODES, evidence.PREFIX, _take_evidence),
        (names.SYSTEM, names.ORDERS_PREFIX, _take_orders),
        (names.SYSTEM, names.HISTORY, _take_node_memory),
        (names.SYSTEM, names.JOB_PREFIX, _take_job_memory),
        (names.SYSTEM, names.LEDGER_PREFIX, _take_ledger),
        (names.SYSTEM, names.BUDGET, _take_reservations),
        (names.SYSTEM, names.REFUSALS, _take_refusals),
        (names.SYSTEM, names.FAULT_SUBSCRIBERS, _take_subscriptions),
        (names.SYSTEM, recoveryrecord.PREFIX, _take_recovery),
        (names.RECOVERIES, recoveryrecord.PREFIX, _take_recovery),
        (names.SYSTEM, names.SYNC, _take_sync),
        (names.SCHEDULER_NAMESPACE, names.SCHEDULER_CONFIGMAP, _take_scheduler),
    )

    def _forget_config_map(self, key: ObjectKey) -> None:
        if key.namespace == names.DEVICE_NAMESPACE and key.name.startswith(names.DEVICE_PREFIX):
            node = key.name.removeprefix(names.DEVICE_PREFIX)
            self._reports.pop(node, None)
            self._problems.pop(node, None)
        elif key.namespace == names.NODE_NAMESPACE and key.name.startswith(names.NODE_PREFIX):
            self._node_reports.pop(key.name.removeprefix(names.NODE_PREFIX), None)
        elif key.namespace == names.NODES and key.name.startswith(evidence.PREFIX):
            self._evidence.pop(key.name.removeprefix(evidence.PREFIX), None)
        elif key.namespace == names.NODES and key.name.startswith(names.REPORT_PREFIX):
            self._agents.pop(key.name.removeprefix(names.REPORT_PREFIX), None)
        elif key.namespace == names.SCHEDULER_NAMESPACE and key.name == names.SCHEDULER_CONFIGMAP:
            self._init_params = {}
        elif key.namespace == names.RECOVERIES:
            self._recoveries.pop(key.name, None)
            self._tested.put(key.name, None)
        elif key.namespace == names.SYSTEM:
            self._forget_system(key.name)

    def _forget_system(self, name: str) -> None:
        if name.startswith(names.ORDERS_PREFIX):
            self._orders.pop(name.removeprefix(names.ORDERS_PREFIX), None)
        elif name in self._clusters:
            del self._clusters[name]
        elif name.startswith(names.HISTORY_PREFIX):
            self._memories.pop(name.removeprefix(names.HISTORY_PREFIX), None)
        elif name.startswith(names.JOB_PREFIX):
            self._jobs.pop(name, None)
        elif name.startswith(names.LEDGER_PREFIX):
            self._ledgers.pop(name, None)
            self._broken_ledgers.discard(name)
        elif name.startswith(recoveryrecord.PREFIX):
            self._recoveries.pop(name, None)
            self._tested.put(name, None)
        elif name.startswith(names.REFUSALS):
            self._refusals.pop(name, None)
        elif name == names.FAULT_SUBSCRIBERS:
            self._subscriptions = NO_SUBSCRIPTIONS
        elif name == names.BUDGET:
            self._reserved, self._reserved_broken = {}, False
        elif name == names.SYNC:
            self._applied, self._inventory, self._places = "", None, {}

    def _good_reports(self) -> dict[str, DeviceReport]:
        """The newest good report of each node; the memory's copy where this process never saw one."""
        reports = self._devices.of(self._reports, lambda old, new: device_jump(old, new, self._in_use))
        for node in sorted(self._problems):
            memory = self._memories.get(node)
            if node not in reports and memory is not None and memory.last_good:
                try:
                    reports[node] = msgspec.json.decode(memory.last_good, type=DeviceReport)
                except (msgspec.DecodeError, RecursionError, UnicodeError):
                    continue  # an unreadable copy counts as none
        return self._tested.without_test_faults(reports)

    def _in_use(self, node: str) -> bool:
        """Whether live pods hold chips of the node."""
        return any(pod.node == node and pod.chips and not pod.finished for pod in self._pods.values())

    def _diagnostics(self) -> tuple[Diagnostic, ...]:
        found = [*self._findings.values(), *self._devices.findings(), *self._agents_in_force.findings()]
        strangers = [
            (names.DEVICE_NAMESPACE, names.DEVICE_PREFIX + n) for n in self._reports if n not in self._nodes
        ] + [(names.NODES, names.REPORT_PREFIX + n) for n in self._agents if n not in self._nodes]
        for namespace, name in strangers:
            text = "reports a node that does not exist; it is ignored until the node registers"
            found.append(
                Diagnostic(
                    "warning", f"ConfigMap/{namespace}/{name}", "", 0, 0, "metadata.name", text, PassCode.STRANGER
                )
            )
        return tuple(sorted(found))

    def _refuse(self, key: ObjectKey, error: WireError) -> None:
        about = error.object or str(key)
        self._findings[key] = Diagnostic("error", about, "", 0, 0, error.field, error.message, PassCode.UNREADABLE)

    def _size(self) -> int:
        """The number of entries in the collections that snapshots iterate over."""
        iterated: tuple[Sized, ...] = (
            self._nodes,
            self._reports,
            self._node_reports,
            self._agents,
            self._orders,
            self._pods,
            self._objects,
            self._memories,
        )
        return sum(map(len, iterated))

    def _sort(self) -> None:
        """Sort by name, so that snapshots do not depend on the order of arrival."""
        self._nodes = dict(sorted(self._nodes.items()))
        self._reports = dict(sorted(self._reports.items()))
        self._node_reports = dict(sorted(self._node_reports.items()))
        self._agents = dict(sorted(self._agents.items()))
        self._orders = dict(sorted(self._orders.items()))
        self._pods = dict(sorted(self._pods.items()))
        self._objects = {key: self._objects[key] for key in sorted(self._objects)}
        self._memories = dict(sorted(self._memories.items()))
        self._unsorted = False
