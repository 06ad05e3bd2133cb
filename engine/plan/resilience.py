"""Elastic training in its old form: a Volcano Job that a fault stopped and that finds no room starts again smaller.

What MindCluster's Resilience Controller did, as a rule of the expansion: the job stays as declared, its memory holds
the size at which its pods are made. A job opts in by labels ``fault-scheduling=grace`` and ``elastic-scheduling=on``,
annotation ``minReplicas``, ``minAvailable: 1`` and ``maxRetry: 0``, with one task of whole chips. It is first tried at
its own size; after that a distributed job gets as many pods as there is room for, not fewer than ``minReplicas``, and a
single pod half its chips, down to one. Training goes on from the last checkpoint. Full size is tried again whenever the
pods are made anew. Source: docs/zh/scheduling/04_usage (elastic training, Resilience Controller).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from engine.model.cluster import Pod
from engine.model.history import JobMemory
from engine.plan.lifecycle import Bench, Job, part
from engine.plan.podtemplate import containers, npu_of, pod_spec
from engine.plan.volcanospec import VolcanoSpec

ELASTIC: Final = "elastic-scheduling"
MIN_REPLICAS: Final = "minReplicas"
#: Seconds for which the size that was tried last is tried before the next smaller one.
TRIED: Final = 30.0
_TIMELINE: Final = 20


class Rule(NamedTuple):
    """How far a job may shrink: pods of a distributed job, chips of a single pod."""

    full: int
    least: int
    chips: int
    resource: str

    @property
    def single(self) -> bool:
        """Whether the job is one pod, which shrinks by chips."""
        return self.full == 1


def rule_of(job: Job, spec: VolcanoSpec) -> Rule | None:
    """The job's rule, None for a job that did not opt in."""
    if spec.labels.get("fault-scheduling") != "grace" or spec.labels.get(ELASTIC) != "on" or spec.problem:
        return None
    raw = part(job.raw, "spec")
    text = spec.annotations.get(MIN_REPLICAS, "")
    least = int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0
    if raw.get("maxRetry") != 0 or spec.min_available != 1 or len(spec.tasks) != 1 or least < 1:
        return None
    resource, chips = npu_of(spec.tasks[0].template)
    full = spec.tasks[0].replicas
    whole = resource.startswith("huawei.com/Ascend") and "-" not in resource
    return Rule(full, min(least, full), chips, resource) if whole and chips and full else None


def sized(bench: Bench, job: Job, spec: VolcanoSpec, memory: JobMemory, pods: Sequence[Pod]) -> JobMemory:
    """The memory with the size at which the job's pods are to be made now (0: as declared)."""
    rule = rule_of(job, spec)
    if rule is None:
        return memory if not memory.size else msgspec.structs.replace(memory, size=0)
    alive = [pod for pod in pods if not pod.finished and pod.deleting is None]
    if not alive:
        # made anew: at full size, unless it is known not to fit
        if memory.size and _room(bench, rule, rule.chips) >= rule.full:
            return _resized(bench, job, rule, memory, 0)
        return memory
    waiting = [pod for pod in alive if not pod.node]
    if not memory.rescheduled or not waiting or bench.scope.now - min(p.created for p in waiting) < TRIED:
        return memory
    size = _smaller(bench, rule, memory, alive)
    return _resized(bench, job, rule, memory, size) if size else memory


def applied(spec: VolcanoSpec, rule: Rule | None, memory: JobMemory) -> VolcanoSpec:
    """The spec at the job's size."""
    if rule is None or not memory.size:
        return spec
    task = spec.tasks[0]
    if rule.single:
        return spec._replace(tasks=(task._replace(template=_halved(task.template, rule, memory.size)),))
    kept = tuple(row for row in spec.expected if row[2] < memory.size)
    return spec._replace(tasks=(task._replace(replicas=memory.size),), expected=kept)


def outgrown(rule: Rule | None, memory: JobMemory, pods: Sequence[Pod]) -> list[Pod]:
    """Waiting pods of a single-pod job that ask for another number of chips than its size."""
    if rule is None or not rule.single:
        return []
    size = memory.size or rule.chips
    return [pod for pod in pods if not pod.node and pod.deleting is None and pod.count != size]


def pods_wanted(memory: JobMemory, declared: int) -> int:
    """How many pods a job's rank table counts: its size where it has one in pods."""
    return memory.size if memory.size and declared > 1 else declared


def _smaller(bench: Bench, rule: Rule, memory: JobMemory, alive: Sequence[Pod]) -> int:
    """The next smaller size that there is room for, 0 when there is none."""
    if rule.single:
        size = (memory.size or rule.chips) // 2
        while size and not _room(bench, rule, size):
            size //= 2
        return size
    placed = sum(bool(pod.node) for pod in alive)
    size = min(memory.size or rule.full, placed + _room(bench, rule, rule.chips))
    return size if rule.least <= size < (memory.size or rule.full) else 0


def _room(bench: Bench, rule: Rule, chips: int) -> int:
    """Pods of so many chips that free chips would hold."""
    fits = (
        view.free.bit_count() // chips
        for view in bench.scope.nodes.values()
        if view.resource == rule.resource and view.closed is None and not view.suspended and not view.down
    )
    return sum(fits)


def _resized(bench: Bench, job: Job, rule: Rule, memory: JobMemory, size: int) -> JobMemory:
    what = "chips" if rule.single else "pods"
    full = rule.chips if rule.single else rule.full
    text = f"elastic-scheduling: {size or full} of {full} {what}" + ("" if size else ", there is room for all again")
    bench.scope.diagnostics.append(bench.info(job, text))
    line = (bench.scope.now_ms, text)
    return msgspec.structs.replace(memory, size=size, timeline=(*memory.timeline, line)[-_TIMELINE:])


def _halved(template: Any, rule: Rule, chips: int) -> dict[str, Any]:
    """The template asking for so many chips."""
    out: dict[str, Any] = copy.deepcopy(dict(template))
    for row in containers(pod_spec(out)):
        for kind in ("requests", "limits"):
            amounts = part(part(row, "resources"), kind)
            if rule.resource in amounts:
                amounts[rule.resource] = chips
    return out
