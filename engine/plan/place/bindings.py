"""What a placed gang becomes: a binding per pod, and the memory of where its ranks run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from engine.model.actions import BindPod, Evidence
from engine.model.cluster import Pod, ids_of
from engine.model.history import JobMemory
from engine.model.jobs import Gang
from engine.plan.gangs import MIN_AVAILABLE_KEY
from engine.plan.memo import Memo
from engine.plan.place import binding
from engine.plan.place.bench import Bench, Seated
from engine.plan.place.job import Job
from engine.plan.scope import NodeView, Scope
from engine.wire.podannotations import (
    BASE_DEVICES,
    OPERATOR_NAME,
    SEATING_ANNOTATIONS,
    SEATING_LABELS,
    SUPER_POD_ID,
    SUPER_POD_RANK,
    Device,
    Place,
    Seating,
    allocation,
    devices_of,
    seating,
)

#: What configurations tell of a node's chips, while the node says the same of them: to the letter, since 1 equals 1.0
#: and true, and they are not written alike.
_DEVICES: Final[Memo[dict[str, Device]]] = Memo(16384)
#: What pods are told of chips, by node and mask, while node and report say the same of them.
_SEATINGS: Final[Memo[Seating]] = Memo(16384)
PLACED: Final = "Placed"
IN_PLACE: Final = "reschedule-in-place"
#: Owners that give a replaced pod the name of the old one.
NAMED_KINDS: Final = frozenset({"AscendJob", "Job", "StatefulSet", "PodGroup"})


class Bindings:
    """The bindings of one gang in one pass; ``ranks`` are those of its pods by key."""

    def __init__(
        self, scope: Scope, bench: Bench, gang: Gang, job: Job, ranks: Mapping[str, int], memory: JobMemory | None
    ) -> None:
        self.scope, self.bench, self.gang, self.job, self.ranks, self.memory = scope, bench, gang, job, ranks, memory

    def order(self, placed: Sequence[Seated]) -> None:
        """Appends a binding for each seat."""
        memory = self.memory
        partial = len(placed) < len(self.job.pods)
        moment = round(self.scope.now * 1_000_000_000)
        for item in placed:
            # a device plugin serves the pods of its node by this time: those of one pass must differ
            action = self._action(item, moment + self.bench.serial(item.node))
            if partial and memory is not None and self._returns(item, memory):
                action = msgspec.structs.replace(action, annotations=action.annotations | {IN_PLACE: "true"})
            self.scope.actions.append(action)

    def _returns(self, item: Seated, memory: JobMemory) -> bool:
        """Whether a pod of a job under recovery comes back, by its own name, to the node where it failed."""
        named = self.gang.kind in NAMED_KINDS and self.gang.api_version != "batch/v1"
        rank = self.ranks.get(item.pod.key)
        return named and bool(memory.evicted) and rank is not None and memory.nodes.get(str(rank)) == item.node

    def _action(self, item: Seated, now_ns: int) -> BindPod:
        job, view = self.job, self.bench.views[item.node]
        chips = ids_of(item.chips)
        annotations: dict[str, str] = {}
        if chips:
            annotations = allocation(
                item.pod,
                self._seating(view, item.chips),
                resource=item.pod.resource,
                now_ns=now_ns,
                distributed=job.distributed,
                is_operator_pod=OPERATOR_NAME in item.pod.labels,
                whole_node=item.chips == view.base,
                rank=self._rank(item.pod),
            )
        if item.logical >= 0:
            annotations |= {SUPER_POD_RANK: str(item.logical), SUPER_POD_ID: str(item.super_pod)}
        if self.bench.given:
            annotations |= self.bench.given.get(item.pod.key, {})
        if chips:
            annotations = binding.amended(job, item, view, annotations, self.bench.parts)
        names = view.names(item.chips)
        where = f"{item.node} ({', '.join(names)})" if names else item.node
        report = view.report
        seen = f"kube-system/mindx-dl-deviceinfo-{item.node}@{report.resource_version}" if report and chips else ""
        evidence = Evidence(rule=_rule(job), revision=self.scope.desired.revision, reports=(seen,) if seen else ())
        return BindPod(
            reason=PLACED,
            message=f"{self.gang.kind} {self.gang.namespace}/{self.gang.name}: pod {item.pod.name} to {where}",
            evidence=evidence,
            preconditions={"uid": item.pod.uid, "gang": self.gang.key},
            namespace=item.pod.namespace,
            pod=item.pod.name,
            node=item.node,
            chips=names,
            template=binding.template_of(item),
            annotations=annotations,
        )

    @staticmethod
    def _seating(view: NodeView, chips: int) -> Seating:
        node, report = view.node, view.report
        place = Place(report.super_pod_id, report.server_index, report.rack_id) if report else None
        notes, labels = node.annotations, node.labels
        told = (
            *map(notes.get, SEATING_ANNOTATIONS),
            *map(labels.get, SEATING_LABELS),
            node.internal_ip,
            node.base_devices,
            view.prefix,
            place,
        )
        return _SEATINGS.of((node.name, chips), told, lambda: _seated(view, chips, place))

    def _rank(self, pod: Pod) -> int | None:
        """The rank to write: for pods of a ReplicaSet or of a gang sized by annotation, unless the pod has one."""
        sized = MIN_AVAILABLE_KEY in self.gang.annotations
        if "hccl/rankIndex" in pod.annotations or not (pod.owner_kind == "ReplicaSet" or sized):
            return None
        return self.ranks.get(pod.key)

    def remember(self, placed: Sequence[Seated]) -> None:
        """Where each rank runs now, for the next time; bare pods and jobs without NPU have no next time."""
        if not self.job.resource or self.gang.kind == "Pod":
            return
        old = self.memory or JobMemory(uid=self.gang.uid)
        nodes = dict(old.nodes)
        nodes.update({str(self.ranks[item.pod.key]): item.node for item in placed if item.pod.key in self.ranks})
        self.scope.memory.jobs[self.gang.key] = msgspec.structs.replace(
            old,
            uid=self.gang.uid,
            nodes=dict(sorted(nodes.items())),
            super_pods=self._super_pods(placed, old),
            away=0,
        )

    def _super_pods(self, placed: Sequence[Seated], old: JobMemory) -> dict[str, tuple[str, ...]]:
        if self.job.topology not in ("superpod", "rack"):
            return old.super_pods
        blocks: dict[int, dict[int, str]] = {}
        new = {item.pod.key: (item.logical, item.node) for item in placed if item.logical >= 0}
        for pod in self.job.pods:
            text = pod.annotations.get(SUPER_POD_RANK, "")
            number = text.isascii() and text.isdecimal() and len(text) <= 9
            known = (int(text), pod.node) if number and pod.node else None
            seat = new.get(pod.key, known)
            if seat is not None and pod.key in self.ranks:
                blocks.setdefault(seat[0], {})[self.ranks[pod.key]] = seat[1]
        return {str(key): tuple(row[rank] for rank in sorted(row)) for key, row in sorted(blocks.items())}


def _seated(view: NodeView, chips: int, place: Place | None) -> Seating:
    node = view.node
    told = node.annotations.get(BASE_DEVICES), node.base_devices
    devices = _DEVICES.of(node.name, told, lambda: devices_of(node))
    return seating(node, ids_of(chips), view.prefix, place=place, devices=devices)


def _rule(job: Job) -> str:
    if job.topology:
        return f"place/{job.topology}"
    if job.shared is not None:
        return f"place/{type(job.shared).__name__.lower()}"
    if job.family is None:
        return "place/count" if job.resource else "place/least-requested"
    return f"place/{type(job.family).__name__.lower()}"
