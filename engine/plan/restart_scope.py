"""The restart scope of a job: which pods are evicted when some are hit (those, their block, or the whole job).

Source: component/ascend-for-volcano/internal/rescheduling; docs/zh/scheduling/06_api/15_yaml_configuration.md.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from belay.engine.gangs.forming import declared_rank, in_rank_order
from belay.engine.gangs.retries import recorded_retries
from belay.engine.model.cluster import Pod
from belay.engine.model.history import JobMemory
from belay.engine.model.job_options import stated_chips
from belay.engine.model.jobs import INDEPENDENT_KINDS, Gang
from belay.engine.model.labels import (
    SUPER_POD_RANK,
)
from belay.engine.model.pod_options import has_handed_over, is_worker, super_pod_rank
from belay.engine.model.wording import counted
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.rules.fault_rules import DEFAULT_ATTEMPTS, SERVING

_LEVELS: Final = re.compile(r"level\d+=(\d{1,6})")
RACK_POLICY: Final = "chip8-node8-ra64-sp"
RACK: Final = "rack block"
SUPER_POD: Final = "logical super pod"
LEVEL: Final = "topology block"
JOB: Final = "job"

#: Stages by which a pod-level reschedule widens: after how many pending sessions (one second each) of the
#: replacements, and to which pods. A job under process recovery widens to its rack block only.
STAGES: Final[dict[str, tuple[tuple[int, str], ...]]] = {
    "plain": ((12, JOB),),
    "super-pod": ((6, SUPER_POD), (12, JOB)),
    "rack": ((3, RACK), (6, SUPER_POD), (12, JOB)),
    "multilevel": ((6, LEVEL), (12, JOB)),
    "process": (),
    "process-rack": ((3, RACK),),
}
#: MindIE's controller and coordinator, and OME services, are only ever rescheduled pod by pod.
_POD_APPS: Final = frozenset({"mindie-ms-controller", "mindie-ms-coordinator"})

__all__ = [
    "DEFAULT_ATTEMPTS",
    "Victims",
    "choose",
    "failed",
    "is_master",
    "memory_of",
    "narrow_only",
    "pod_level",
    "retries_left",
    "retryable",
    "strategy",
]


class Victims(NamedTuple):
    """Keys of the pods to evict; ``whole``: the gang is one unit; ``text``: which pods and why, for people."""

    keys: frozenset[str]
    whole: bool
    text: str


def memory_of(draft: Draft, gang: Gang) -> JobMemory:
    """The job's memory; empty when it belongs to an earlier job of the same name."""
    memory = draft.memory.jobs.get(gang.key, JobMemory())
    return memory if not memory.uid or not gang.uid or memory.uid == gang.uid else JobMemory(uid=gang.uid)


def failed(pod: Pod) -> bool:
    """Whether the pod failed, or the current or last exit code of a container is not 0."""
    return pod.phase == "Failed" or any((c.exit_code or 0) != 0 or (c.last_exit_code or 0) != 0 for c in pod.containers)


def retryable(gang: Gang, pod: Pod) -> bool:
    """Whether a failure of the pod counts for ``fault-retry-times``: kubelet does not restart its containers.

    A training pod must have restartPolicy Never (component/ascend-for-volcano, documentation of ``fault-retry-times``);
    pods of inference workloads can only have Always, and are retried with it.
    """
    return gang.kind in SERVING or pod.restart_policy in ("", "Never")


def retries_left(facts: Facts, draft: Draft, gang: Gang) -> int:
    """Remaining reschedules for failed pods: ``fault-retry-times`` minus those used (0: none wanted)."""
    allowed = gang.options.fault_retry_times
    used = memory_of(draft, gang).retries
    if used < 0:
        used = recorded_retries(facts.observed, gang, gang.uid)
    return min(allowed, used) if used >= 0 else allowed


def strategy(gang: Gang) -> str:
    """What the job wants of sub-healthy chips; anything unknown is ``ignore``."""
    return gang.options.sub_health


def pod_level(gang: Gang) -> bool:
    """Whether the job asks for its faulty pods only."""
    options = gang.options
    return options.pod_rescheduling or options.recovers_processes or _never_widens(gang)


def choose(draft: Draft, nodes: PassNodes, gang: Gang, pods: list[Pod], hit: set[str], *, now: float) -> Victims:
    """The pods to evict for the hit ones."""
    if gang.kind in INDEPENDENT_KINDS:
        return Victims(frozenset(hit), False, "its replica is recreated elsewhere")
    whole_job = Victims(
        frozenset(p.key for p in pods), True, f"the whole job {gang.key} ({counted(len(pods), 'pod')}) is rescheduled"
    )
    switching = {p.key for p in pods if p.key in hit and has_handed_over(p)}
    if switching and switching == hit:
        return Victims(frozenset(hit), False, "its backup pod has taken over")
    if not pod_level(gang):
        return whole_job if hit else Victims(frozenset(), True, whole_job.text)
    hit_only = Victims(frozenset(hit), False, "only the faulty pods are rescheduled")
    if _never_widens(gang):
        return hit_only
    if any(p.key in hit and is_master(p) for p in pods):
        return whole_job
    return _widen(draft, nodes, gang, pods, hit, now, hit_only, whole_job)


def _widen(
    draft: Draft,
    nodes: PassNodes,
    gang: Gang,
    pods: list[Pod],
    hit: set[str],
    now: float,
    narrow: Victims,
    whole_job: Victims,
) -> Victims:
    """Widen a pod-level reschedule while replacements find no place: first to their block, then to the job."""
    standing = [p for p in pods if not p.finished and p.deleting is None]
    waiting = [p for p in standing if not p.node]
    if not memory_of(draft, gang).evicted or not waiting or len(waiting) == len(standing):
        return narrow  # pods that terminate make room by themselves, however long a lost node keeps them
    sessions = now - min(p.created for p in waiting)
    stage = ""
    for after, name in STAGES[_stages_of(nodes, gang, pods)]:
        if sessions >= after:
            stage = name
    if stage == JOB:
        return whole_job
    size = _block(gang, pods, stage)
    wanted = {p.key for p in waiting} | hit
    block = _pods_of_blocks(pods, wanted, stage, size) if size else {}
    # pods that wait already stay: they wait for the same room, and their age counts the sessions
    idle = {p.key for p in waiting}
    keys = frozenset({key for found in block.values() for key in found - idle} | hit)
    if not keys - hit:
        return narrow
    if any(p.key in keys and is_master(p) for p in pods):
        return whole_job
    return Victims(keys, False, f"the pods of {stage} {', '.join(map(str, sorted(block)))} go")


def _stages_of(nodes: PassNodes, gang: Gang, pods: list[Pod]) -> str:
    """Key of the job's stages in ``STAGES``."""
    on_rack = gang.options.schedule_policy == RACK_POLICY or any(
        view.product is not None and view.product.spec.placement.handler == "rack950"
        for p in pods
        if (view := nodes.get(p.node)) is not None
    )
    if gang.options.recovers_processes:
        return "process-rack" if on_rack else "process"
    if on_rack:
        return "rack"
    if gang.options.affinity_config is not None:
        return "multilevel"
    in_blocks = gang.options.sp_block is not None or any(SUPER_POD_RANK in p.annotations for p in pods)
    return "super-pod" if in_blocks else "plain"


def _block(gang: Gang, pods: list[Pod], stage: str) -> int:
    """Number of pods in a block of a stage; 0 when the job has no such blocks. Consecutive ranks share a block."""
    if stage == LEVEL:
        sizes = [int(text) for text in _LEVELS.findall(gang.options.affinity_config or "")]
        return max((size for size in sizes if size < len(pods)), default=0)
    each = max((p.count for p in pods), default=0)
    chips = stated_chips(gang.options.ra_block if stage == RACK else gang.options.sp_block, 0)
    if stage == SUPER_POD and not chips:
        known = [p.annotations[SUPER_POD_RANK] for p in pods if SUPER_POD_RANK in p.annotations]
        return max((known.count(rank) for rank in set(known)), default=0)
    return -(-chips // each) if stage and each and chips else 0


def _pods_of_blocks(pods: list[Pod], wanted: set[str], stage: str, size: int) -> dict[int, set[str]]:
    """Keys of the pods of each block that has a wanted pod. A replacement has a rank, but no node yet."""
    ordered = in_rank_order(pods)
    number: dict[str, int] = {}
    for position, pod in enumerate(ordered):
        rank = declared_rank(pod)
        stated = super_pod_rank(pod) if stage == SUPER_POD else None
        number[pod.key] = stated if stated is not None else (position if rank is None else rank) // size
    blocks = {number[key] for key in wanted if key in number}
    return {block: {key for key, own in number.items() if own == block} for block in sorted(blocks)}


def narrow_only(gang: Gang) -> bool:
    """Whether the job is always rescheduled pod by pod."""
    return _never_widens(gang)


def _never_widens(gang: Gang) -> bool:
    options = gang.options
    return options.recover_policy_path == "pod" or options.app in _POD_APPS or options.ome


def is_master(pod: Pod) -> bool:
    """Whether the pod is rank 0 and not a worker replica."""
    return declared_rank(pod) == 0 and not is_worker(pod)
