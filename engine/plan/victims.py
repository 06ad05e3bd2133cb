"""Which pods of a job go when some of them are hit: the whole job, the hit pods, or a block in between.

Source: component/ascend-for-volcano/internal/rescheduling; docs/zh/scheduling/06_api/15_yaml_configuration.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from engine.model.cluster import Pod
from engine.model.history import JobMemory
from engine.model.jobs import Gang
from engine.plan.budgets import INDEPENDENT_KINDS
from engine.plan.gangs import declared_rank
from engine.plan.judge import DEFAULT_ATTEMPTS
from engine.plan.scope import Scope

PATH_KEY: Final = "huawei.com/recover_policy_path"
SUPER_POD_KEY: Final = "super-pod-rank"
#: Scheduling sessions (one second each) that replacements may stay pending before more pods go.
BLOCK_AFTER: Final = 6
JOB_AFTER: Final = 12
#: MindIE's controller and coordinator, and OME services, are only ever rescheduled pod by pod.
_POD_APPS: Final = frozenset({"mindie-ms-controller", "mindie-ms-coordinator"})

__all__ = ["DEFAULT_ATTEMPTS", "Victims", "choose", "failed", "memory_of", "pod_level", "retries_left", "strategy"]


class Victims(NamedTuple):
    """Keys of the pods that go; ``whole`` when the gang is one unit; ``text`` says which and why."""

    keys: frozenset[str]
    whole: bool
    text: str


def memory_of(scope: Scope, gang: Gang) -> JobMemory:
    """The job's memory; one of an earlier job of the same name is not its own."""
    memory = scope.memory.jobs.get(gang.key, JobMemory())
    return memory if not memory.uid or not gang.uid or memory.uid == gang.uid else JobMemory(uid=gang.uid)


def failed(pod: Pod) -> bool:
    """Failed, or a container whose current or last termination had another code than 0."""
    return pod.phase == "Failed" or any((c.exit_code or 0) != 0 or (c.last_exit_code or 0) != 0 for c in pod.containers)


def retries_left(scope: Scope, gang: Gang) -> int:
    """How many reschedules for failed pods remain: ``fault-retry-times`` less what was used (0: none are wanted)."""
    text = gang.labels.get("fault-retry-times", "")
    allowed = int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0
    used = memory_of(scope, gang).retries
    return min(allowed, used) if used >= 0 else allowed


def strategy(gang: Gang) -> str:
    """Label ``subHealthyStrategy``; anything unknown is ``ignore``."""
    value = gang.labels.get("subHealthyStrategy", "ignore")
    return value if value in ("graceExit", "forceExit", "hotSwitch") else "ignore"


def pod_level(gang: Gang) -> bool:
    """Whether the job asks for its faulty pods only."""
    return (
        gang.labels.get("pod-rescheduling") == "on"
        or gang.labels.get("process-recover-enable") == "on"
        or _never_widens(gang)
    )


def choose(scope: Scope, gang: Gang, pods: list[Pod], hit: set[str], *, now: float) -> Victims:
    """The pods that go for the hit ones."""
    if gang.kind in INDEPENDENT_KINDS:
        return Victims(frozenset(hit), False, "its replica is made anew elsewhere")
    everyone = Victims(
        frozenset(p.key for p in pods), True, f"the whole job {gang.key} ({len(pods)} pods) is rescheduled"
    )
    switching = {p.key for p in pods if p.key in hit and p.annotations.get("needVolcanoOpe") == "delete"}
    if switching and switching == hit:
        return Victims(frozenset(hit), False, "its backup pod has taken over")
    if not pod_level(gang):
        return everyone if hit else Victims(frozenset(), True, everyone.text)
    one_by_one = Victims(frozenset(hit), False, "only the faulty pods are rescheduled")
    if _never_widens(gang):
        return one_by_one
    if any(p.key in hit and _is_master(p) for p in pods):
        return everyone
    if gang.labels.get("process-recover-enable") == "on":
        return one_by_one
    return _widened(scope, gang, pods, hit, now, one_by_one, everyone)


def _widened(
    scope: Scope, gang: Gang, pods: list[Pod], hit: set[str], now: float, narrow: Victims, everyone: Victims
) -> Victims:
    """Pod level grows while the replacements of evicted pods find no place: first their super pod, then the job."""
    waiting = [p for p in pods if not p.node and not p.finished and p.deleting is None]
    if not memory_of(scope, gang).evicted or not waiting or all(not p.node for p in pods if not p.finished):
        return narrow
    sessions = now - min(p.created for p in waiting)
    if sessions >= JOB_AFTER:
        return everyone
    ranks = {p.annotations[SUPER_POD_KEY] for p in waiting if SUPER_POD_KEY in p.annotations}
    if sessions >= BLOCK_AFTER and ranks:
        block = {p.key for p in pods if p.annotations.get(SUPER_POD_KEY) in ranks}
        return Victims(frozenset(block | hit), False, f"the pods of logical super pod {', '.join(sorted(ranks))} go")
    return narrow


def _never_widens(gang: Gang) -> bool:
    path = gang.annotations.get(PATH_KEY) or gang.labels.get(PATH_KEY, "")
    return path == "pod" or gang.labels.get("app") in _POD_APPS or "ome.io/inferenceservice" in gang.labels


def _is_master(pod: Pod) -> bool:
    """Rank 0, and not a worker replica."""
    kind = pod.labels.get("training.kubeflow.org/replica-type") or pod.labels.get("replica-type", "")
    return declared_rank(pod) == 0 and kind.lower() != "worker"
