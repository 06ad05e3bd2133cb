"""The actions and memory of a placed gang: one binding per pod, and the node of every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec

from belay.engine.gangs.owners import GROUP_NAME_KEYS, generated_group
from belay.engine.model.actions import (
    BindPod,
    Evidence,
    Preconditions,
)
from belay.engine.model.chip_masks import ids_of
from belay.engine.model.cluster import Pod
from belay.engine.model.history import JobMemory
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import (
    BASE_DEVICES,
    KUBEFLOW_OPERATOR_NAME,
    RANK_INDEX,
    RESCHEDULE_IN_PLACE,
    SUPER_POD_ID,
    SUPER_POD_RANK,
)
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache
from belay.engine.model.pod_options import super_pod_rank
from belay.engine.model.reasons import ActionReason
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place import part_bindings, switch_config
from belay.engine.plan.place.gangs import returning
from belay.engine.plan.place.job import SchedulerJob
from belay.engine.plan.place.part_requests import DynamicVNPU
from belay.engine.plan.place.state import Assignment, PlacementState
from belay.engine.plan.scope import Scope
from belay.engine.wire.podannotations import (
    CHIP_ANNOTATIONS,
    CHIP_LABELS,
    ChipFacts,
    Device,
    SuperPodPosition,
    allocation,
    chip_facts,
    counted_device,
    devices_of,
)

#: Devices of a node for configurations, while the node's text about them is unchanged: text, since 1, 1.0 and true are
#: equal but written differently.
_DEVICES: Final = CacheKey("devices of nodes", Memo[dict[str, Device]], limit=16384)
#: Facts of chips by node and mask, while node and report are unchanged.
_CHIP_FACTS: Final = CacheKey("chip facts of pods", Memo[ChipFacts], limit=16384)
PLACED: Final = ActionReason.PLACED
#: Owners that give a replaced pod the name of the old one.
NAMED_KINDS: Final = frozenset({"AscendJob", "Job", "StatefulSet", "PodGroup"})


class Bindings:
    """The bindings of one gang in one pass; ``ranks`` are those of its pods by key."""

    def __init__(
        self,
        scope: Scope,
        state: PlacementState,
        gang: Gang,
        job: SchedulerJob,
        ranks: Mapping[str, int],
        memory: JobMemory | None,
    ) -> None:
        self.scope, self.state, self.gang, self.job, self.ranks, self.memory = scope, state, gang, job, ranks, memory

    def append_actions(self, placed: Sequence[Assignment]) -> None:
        """Append a binding for each assignment."""
        memory = self.memory
        partial = len(placed) < len(self.job.pods)
        moment = round(self.scope.facts.now * 1_000_000_000)
        for item in placed:
            # a device plugin orders the pods of its node by this time, so no two of a pass may be equal
            action = self._action(item, moment + self.state.binding_number(item.node))
            if partial and memory is not None and self._returns_in_place(item, memory):
                action = msgspec.structs.replace(action, annotations=action.annotations | {RESCHEDULE_IN_PLACE: "true"})
            self.scope.draft.actions.append(action)

    def _returns_in_place(self, item: Assignment, memory: JobMemory) -> bool:
        """Whether a pod of a job under recovery returns under its own name to the node where it failed."""
        named = self.gang.kind in NAMED_KINDS and self.gang.api_version != "batch/v1"
        rank = self.ranks.get(item.pod.key)
        return named and bool(memory.evicted) and rank is not None and memory.nodes.get(str(rank)) == item.node

    def _action(self, item: Assignment, now_ns: int) -> BindPod:
        job, view = self.job, self.state.views[item.node]
        chips = ids_of(item.chips)
        annotations: dict[str, str] = {}
        if chips:
            annotations = allocation(
                item.pod,
                self._chip_annotations(view, item.chips),
                resource=item.pod.resource,
                now_ns=now_ns,
                distributed=job.distributed,
                is_operator_pod=KUBEFLOW_OPERATOR_NAME in item.pod.labels,
                whole_node=item.chips == view.base and job.shared is None,
                rank=self._rank(item.pod),
            )
        elif job.resource and item.pod.count:
            annotations = counted_device(distributed=job.distributed, rank=self._rank(item.pod))
        if item.logical >= 0:
            annotations |= {SUPER_POD_RANK: str(item.logical), SUPER_POD_ID: str(item.super_pod)}
        if self.state.pod_annotations:
            annotations |= self.state.pod_annotations.get(item.pod.key, {})
        group = generated_group(item.pod)
        if group and (self.gang.pod_group == group or (item.pod.namespace, group) in self.scope.made_groups):
            annotations.setdefault(GROUP_NAME_KEYS[0], group)
        if chips:
            annotations = part_bindings.amended(job, item, view, annotations, self.state.parts)
        names = view.names(item.chips)
        where = f"{item.node} ({', '.join(names)})" if names else item.node
        report = view.report
        seen = f"kube-system/mindx-dl-deviceinfo-{item.node}@{report.resource_version}" if report and chips else ""
        evidence = Evidence(
            rule=_rule(job), revision=self.scope.facts.desired.revision, reports=(seen,) if seen else ()
        )
        return BindPod(
            reason=PLACED,
            message=f"{self.gang.kind} {self.gang.namespace}/{self.gang.name}: pod {item.pod.name} to {where}",
            evidence=evidence,
            preconditions=Preconditions(uid=item.pod.uid),
            gang=self.gang.key,
            namespace=item.pod.namespace,
            pod=item.pod.name,
            node=item.node,
            chips=names,
            template=part_bindings.template_of(item),
            annotations=annotations,
        )

    def _chip_annotations(self, view: NodeView, chips: int) -> ChipFacts:
        node, report = view.node, view.report
        place = SuperPodPosition(report.super_pod_id, report.server_index, report.rack_id) if report else None
        notes, labels = node.annotations, node.labels
        facts = (
            *map(notes.get, CHIP_ANNOTATIONS),
            *map(labels.get, CHIP_LABELS),
            node.internal_ip,
            node.base_devices,
            view.prefix,
            place,
        )
        cache = self.scope.facts.cache
        return cache[_CHIP_FACTS].of((node.name, chips), facts, lambda: _describe_chips(cache, view, chips, place))

    def _rank(self, pod: Pod) -> int | None:
        """The rank to write for a pod with chips, None where it has one already.

        Source: component/ascend-for-volcano/plugin/job.go: its own annotation, the ordinal in a StatefulSet, the index
        in its Volcano task, else the smallest number that is free in the job.
        """
        return None if RANK_INDEX in pod.annotations else self._ranks_to_write.get(pod.key)

    @cached_property
    def _ranks_to_write(self) -> Mapping[str, int]:
        """The ranks by which the job's processes find each other: in a rollout, old and new pods have their own."""
        if not self.gang.rollout:
            return self.ranks

        pods = self.scope.facts.observed.pods
        found: dict[str, int] = {}
        for part in self.gang.rollout:
            found |= returning.ranks_of([pods[key] for key in part.pods])
        return found

    def record(self, placed: Sequence[Assignment], *, bound: bool = True) -> None:
        """Record in the job memory where each rank runs now; bare pods and jobs without NPU never return.

        ``bound``: the pods are bound in this pass; else what they get under switches is kept until they are.
        """
        if not self.job.resource or self.gang.kind == "Pod":
            return
        old = self.memory or JobMemory(uid=self.gang.uid)
        nodes = dict(old.nodes)
        nodes.update({str(self.ranks[item.pod.key]): item.node for item in placed if item.pod.key in self.ranks})
        self.scope.draft.memory.jobs[self.gang.key] = msgspec.structs.replace(
            old,
            uid=self.gang.uid,
            nodes=dict(sorted(nodes.items())),
            super_pods=self._super_pods(placed, old),
            away=0,
            switches={} if bound or self.job.topology != switch_config.RULE else self._switches(placed),
        )

    def _switches(self, placed: Sequence[Assignment]) -> dict[str, dict[str, str]]:
        notes = self.state.pod_annotations
        return {item.node: dict(notes.get(item.pod.key, {})) for item in sorted(placed, key=lambda one: one.node)
                if item.pod.count}  # fmt: skip

    def _super_pods(self, placed: Sequence[Assignment], old: JobMemory) -> dict[str, tuple[str, ...]]:
        if self.job.topology not in ("superpod", "rack"):
            return old.super_pods
        blocks: dict[int, dict[int, str]] = {}
        new = {item.pod.key: (item.logical, item.node) for item in placed if item.logical >= 0}
        for pod in self.job.pods:
            number = super_pod_rank(pod)
            known = (number, pod.node) if number is not None and pod.node else None
            found = new.get(pod.key, known)
            if found is not None and pod.key in self.ranks:
                blocks.setdefault(found[0], {})[self.ranks[pod.key]] = found[1]
        return {str(key): tuple(row[rank] for rank in sorted(row)) for key, row in sorted(blocks.items())}


def _describe_chips(cache: PlanCache, view: NodeView, chips: int, place: SuperPodPosition | None) -> ChipFacts:
    node = view.node
    facts = node.annotations.get(BASE_DEVICES), node.base_devices
    devices = cache[_DEVICES].of(node.name, facts, lambda: devices_of(node))
    return chip_facts(node, ids_of(chips), view.prefix, place=place, devices=devices)


def _rule(job: SchedulerJob) -> str:
    if job.topology:
        return f"place/{job.topology}"
    if job.shared is not None:
        return "place/dynamic" if isinstance(job.shared, DynamicVNPU) else "place/soft"
    if job.family is None:
        return "place/count" if job.resource else "place/least-requested"
    return f"place/{type(job.family).__name__.lower()}"
