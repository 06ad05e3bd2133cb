"""Elastic training in its old form: a Volcano Job that a fault stopped restarts smaller if its full size has no room.

This is what MindCluster's Resilience Controller did. The job object stays as declared; its memory holds the size at
which its pods are created. A job opts in by labels ``fault-scheduling=grace`` and ``elastic-scheduling=on``,
annotation ``minReplicas``, ``minAvailable: 1`` and ``maxRetry: 0``, with one task of whole chips. Its full size is
tried first; then a distributed job gets as many pods as there is room for, at least ``minReplicas``, and a single pod
half its chips, down to one. Training resumes from the last checkpoint. Full size is tried again whenever all pods are
re-created, and the job grows back without a fault: once there has been room for its full size for ten minutes without
interruption, its pods are evicted together, as one unit of the safety budgets. That time doubles with each growth, so
that a chip that fails again and again does not restart the job for ever; annotation ``belay.dev/grow-after`` sets it
(``30m``), or ``off``. Source: docs/zh/scheduling/04_usage (elastic training, Resilience Controller); growth without a
fault is Belay's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from belay.engine.documents.scalars import parse_duration
from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.history import JobMemory
from belay.engine.model.history_lines import with_line
from belay.engine.model.labels import ELASTIC_SCHEDULING, GROW_AFTER, MIN_REPLICAS
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_map
from belay.engine.model.wording import counted
from belay.engine.plan.jobs.lifecycle import ExpansionContext, JobObject
from belay.engine.plan.jobs.pod_template import containers, npu_of, pod_spec
from belay.engine.plan.jobs.volcanojob_spec import VolcanoSpec

#: Seconds that pods wait at one size before the next smaller one is tried.
RETRY_SECONDS: Final = 30.0
#: Seconds for which there has to be room before a job grows back for the first time, and the most doublings of it.
GROW_SECONDS: Final = 600.0
_DOUBLINGS: Final = 6


class ElasticRule(NamedTuple):
    """How far a job may shrink: from ``full`` to ``minimum`` pods, or a single pod of ``chips``."""

    full: int
    minimum: int
    chips: int
    resource: str

    @property
    def single(self) -> bool:
        """Whether the job has one pod, which shrinks by chips."""
        return self.full == 1


def rule_of(job: JobObject, spec: VolcanoSpec) -> ElasticRule | None:
    """The job's rule, None for a job that did not opt in, or not in full (``obstacle``)."""
    if not spec.options.elastic_scheduling or obstacle(job, spec):
        return None
    resource, chips = npu_of(spec.tasks[0].template)
    full = spec.tasks[0].replicas
    return ElasticRule(full, min(spec.options.min_replicas, full), chips, resource)


def obstacle(job: JobObject, spec: VolcanoSpec) -> tuple[str, str] | None:
    """What keeps a job with label ``elastic-scheduling=on`` from being elastic: a field, and what it must be."""
    if spec.problem:
        return "spec", spec.problem
    if spec.options.fault_scheduling != "grace":
        return "metadata.labels[fault-scheduling]", "must be grace"
    if spec.options.min_replicas < 1:
        return f"metadata.annotations[{MIN_REPLICAS}]", "must be a number of pods, 1 or more"
    if nested_map(job.raw, "spec").get("maxRetry") != 0:
        return "spec.maxRetry", "must be 0"
    if spec.min_available != 1:
        return "spec.minAvailable", "must be 1"
    if len(spec.tasks) != 1 or not spec.tasks[0].replicas:
        return "spec.tasks", "must be one task with pods"
    resource, chips = npu_of(spec.tasks[0].template)
    if not (chips and resource.startswith("huawei.com/Ascend") and "-" not in resource):
        return "spec.tasks[0].template", "must ask for whole chips, such as huawei.com/Ascend910"
    return None


def resize(
    context: ExpansionContext,
    job: JobObject,
    spec: VolcanoSpec,
    memory: JobMemory,
    pods: Sequence[Pod],
    staying: Sequence[Pod],
) -> JobMemory:
    """The memory with the size at which the job's pods are created now (0: as declared).

    ``staying`` are the pods of the current round. A job shrinks only when these are complete: until then its old pods
    may still hold the chips that they need.
    """
    rule = rule_of(job, spec)
    if rule is None and spec.options.elastic_scheduling and (found := obstacle(job, spec)) is not None:
        context.warn(
            job,
            found[0],
            f"{found[1]}: the job has label {ELASTIC_SCHEDULING}=on, and does not become smaller without",
            PassCode.STAYS_WHOLE,
        )
    if rule is None:
        return memory if not memory.size else msgspec.structs.replace(memory, size=0)
    alive = [pod for pod in pods if not pod.finished and pod.deleting is None]
    if not alive:
        # all pods are re-created: at full size, unless that is known not to fit
        if memory.size and _room(context, rule, rule.chips) >= rule.full:
            memory = msgspec.structs.replace(memory, grown=memory.grown + bool(memory.roomy), roomy=0)
            return _resized(context, job, rule, memory, 0)
        return memory
    waiting = [pod for pod in alive if not pod.node]
    if not waiting:
        return _watched(context, rule, memory, alive)
    if memory.size and memory.roomy and not rule.single and _has_waited(context, job, memory, memory.roomy):
        # a part of its pods has gone and come back before the others: as they have not begun, it grows now
        own = sum(1 for pod in pods if pod.node and not pod.finished)
        if _room(context, rule, rule.chips) + own >= rule.full:
            memory = msgspec.structs.replace(memory, grown=memory.grown + 1, roomy=0)
            return _resized(context, job, rule, memory, 0)
    restarted = memory.rescheduled or memory.version
    complete = rule.single or len(staying) == len(pods) >= (memory.size or rule.full)
    if not restarted or not complete or context.facts.now - min(p.created for p in waiting) < RETRY_SECONDS:
        return memory
    size = _smaller(context, rule, memory, alive)
    return _resized(context, job, rule, memory, size) if size else memory


def make_way_for_growth(
    context: ExpansionContext, job: JobObject, spec: VolcanoSpec, memory: JobMemory, pods: Sequence[Pod]
) -> None:
    """Evict the pods of a job that has had room for its declared size for long enough, so that all of them come back.

    ``spec`` is as declared. Decided again in every pass: what a safety budget defers is dropped once the room is gone.
    """
    rule = rule_of(job, spec)
    if rule is None or not memory.size or not memory.roomy or not _has_waited(context, job, memory, memory.roomy):
        return
    if any(not pod.node and not pod.finished and pod.deleting is None for pod in pods):
        return  # some have gone already and come back: evicting these would begin again

    seconds = (context.facts.now_ms - memory.roomy) // 1000
    declared = counted(rule.chips, "chip") if rule.single else counted(rule.full, "pod")
    text = f"{job.key} trains with {memory.size} of {declared}; there has been room for all for {seconds} s"
    for one in pods:
        context.remove_pod(job, one, ActionReason.ELASTIC_GROWTH, f"{text}: evicting pod {one.name}")


def _has_waited(context: ExpansionContext, job: JobObject, memory: JobMemory, roomy: int) -> bool:
    """Whether there has been room for the whole job for long enough, since ``roomy``."""
    wait = _grow_after(context, job)
    seconds = (context.facts.now_ms - roomy) // 1000
    return wait is not None and seconds >= wait * 2 ** min(memory.grown, _DOUBLINGS)


def _grow_after(context: ExpansionContext, job: JobObject) -> float | None:
    """Seconds of room after which the job grows back; None where it must not."""
    text = job.options.grow_after
    if not text or text == "off":
        return None if text else GROW_SECONDS
    try:
        return parse_duration(text)
    except ValueError as error:
        context.warn(job, f"metadata.annotations.{GROW_AFTER}", f"{error}, or off; 10m is used", PassCode.FIELD_IGNORED)
        return GROW_SECONDS


def _watched(context: ExpansionContext, rule: ElasticRule, memory: JobMemory, alive: Sequence[Pod]) -> JobMemory:
    """The memory of a small job whose pods all run, with the time since when there has been room for its full size."""
    if rule.single:
        own = {pod.node: pod.count for pod in alive}
        room = any(free + own.get(node, 0) >= rule.chips for node, free in _free_chips(context, rule))
    else:
        room = _room(context, rule, rule.chips) >= rule.full - memory.size
    since = (memory.roomy or context.facts.now_ms) if memory.size and room else 0
    return memory if since == memory.roomy else msgspec.structs.replace(memory, roomy=since)


def resized_spec(spec: VolcanoSpec, rule: ElasticRule | None, memory: JobMemory) -> VolcanoSpec:
    """The spec at the job's size."""
    if rule is None or not memory.size:
        return spec
    task = spec.tasks[0]
    if rule.single:
        return spec._replace(tasks=(task._replace(template=_halved(task.template, rule, memory.size)),))
    kept = tuple(row for row in spec.expected if row[2] < memory.size)
    least = None if task.min_available is None else min(task.min_available, memory.size)
    return spec._replace(tasks=(task._replace(replicas=memory.size, min_available=least),), expected=kept)


def wrongly_sized(rule: ElasticRule | None, memory: JobMemory, pods: Sequence[Pod]) -> list[Pod]:
    """Waiting pods of a single-pod job that request another number of chips than its size."""
    if rule is None or not rule.single:
        return []
    size = memory.size or rule.chips
    return [pod for pod in pods if not pod.node and pod.deleting is None and pod.count != size]


def pods_wanted(memory: JobMemory, declared: int) -> int:
    """Number of pods in a job's rank table: its size if it has one in pods, else as declared."""
    return memory.size if memory.size and declared > 1 else declared


def _smaller(context: ExpansionContext, rule: ElasticRule, memory: JobMemory, alive: Sequence[Pod]) -> int:
    """The next smaller size that fits, 0 when there is none."""
    if rule.single:
        size = (memory.size or rule.chips) // 2
        while size and not _room(context, rule, size):
            size //= 2
        return size
    placed = sum(bool(pod.node) for pod in alive)
    size = min(memory.size or rule.full, placed + _room(context, rule, rule.chips))
    return size if rule.minimum <= size < (memory.size or rule.full) else 0


def _room(context: ExpansionContext, rule: ElasticRule, chips: int) -> int:
    """Number of pods of ``chips`` chips each that fit on free chips."""
    return sum(free // chips for _, free in _free_chips(context, rule))


def _free_chips(context: ExpansionContext, rule: ElasticRule) -> Iterator[tuple[str, int]]:
    """Nodes that take pods of the job, with their number of free chips."""
    for name, view in context.nodes.items():
        if view.resource == rule.resource and view.closed is None and not view.suspended and not view.down:
            yield name, view.free.bit_count()


def _resized(context: ExpansionContext, job: JobObject, rule: ElasticRule, memory: JobMemory, size: int) -> JobMemory:
    what = "chips" if rule.single else "pods"
    full = rule.chips if rule.single else rule.full
    text = f"elastic-scheduling: {size or full} of {full} {what}" + ("" if size else ", there is room for all again")
    context.draft.diagnostics.append(context.info(job, text, PassCode.RUNS_SMALLER))
    return msgspec.structs.replace(memory, size=size, timeline=with_line(memory.timeline, context.facts.now_ms, text))


def _halved(template: Any, rule: ElasticRule, chips: int) -> dict[str, Any]:
    """The template with requests for ``chips`` chips."""
    out: dict[str, Any] = copy.deepcopy(dict(template))
    for row in containers(pod_spec(out)):
        for kind in ("requests", "limits"):
            amounts = nested_map(nested_map(row, "resources"), kind)
            if rule.resource in amounts:
                amounts[rule.resource] = chips
    return out
