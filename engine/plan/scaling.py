"""The elastic scaling rule of inference groups: the smallest configuration is filled first, then the next.

Source: component/ascend-operator/pkg/controllers/scaling/controller.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec

from engine.plan import podgroup
from engine.plan.ascendspec import read
from engine.plan.lifecycle import POD_GROUP_API, Bench, Job, part, texts

_ASCEND_JOB: Final = ("mindxdl.gitee.com/v1", "AscendJob")
RULE: Final = "mind-cluster/scaling-rule"
GROUP: Final = "mind-cluster/group-name"
_KEY: Final = "elastic_scaling.json"


def may_create(bench: Bench, job: Job) -> bool:
    """Whether a job may have pods now: always without a scaling rule, else while its group is short in the
    configuration that is being filled.
    """
    labels = job.labels
    if RULE not in labels:
        return True
    raw = bench.object("v1", "ConfigMap", job.key.namespace, labels[RULE])
    steps = _steps(part(raw or {}, "data").get(_KEY))
    if steps is None:
        bench.warn(job, f"metadata.labels[{RULE}]", _refused(job, labels[RULE]))
        return False
    running = _running(bench, job.key.namespace, labels[RULE], labels.get("jobID", ""))
    group = labels.get(GROUP, "")
    for step in reversed(steps):
        if any(running.get(name, 0) < number for name, number in step.items()):
            return running.get(group, 0) < step.get(group, 0)
    return False


def _steps(text: object) -> list[dict[str, int]] | None:
    """Groups and their numbers per configuration, largest first; None when the rule is missing or not monotonous."""
    if not isinstance(text, str):
        return None
    try:
        body = msgspec.json.decode(text, type=dict[str, Any])
        steps = [
            {str(row["group_name"]): (int(row["group_num"]), int(row["server_num_per_group"])) for row in entry}
            for entry in (step["group_list"] for step in body["elastic_scaling_list"])
        ]
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, KeyError, TypeError, ValueError):
        return None
    for before, after in pairwise(steps):
        for name, sizes in after.items():
            if name not in before or any(now > then for now, then in zip(sizes, before[name], strict=True)):
                return None
    return [{name: sizes[0] for name, sizes in step.items()} for step in steps]


def _running(bench: Bench, namespace: str, rule: str, job_id: str) -> Mapping[str, int]:
    """Running members of the rule and instance, per group: by their PodGroups where Volcano keeps the phases, and by
    their pods, since nobody keeps the phases while Belay schedules.
    """
    members: dict[str, str] = {}
    for key in bench.kinds.get((POD_GROUP_API, "PodGroup"), ()):
        raw = bench.scope.observed.objects[key]
        labels = texts(part(raw, "metadata").get("labels"))
        mine = key.namespace == namespace and labels.get(RULE) == rule and labels.get("jobID", "") == job_id
        if mine and part(raw, "status").get("phase") == "Running":
            members[key.name] = labels.get(GROUP, "")
    for job in bench.jobs(*_ASCEND_JOB):
        labels = job.labels
        mine = job.key.namespace == namespace and labels.get(RULE) == rule and labels.get("jobID", "") == job_id
        if mine and _has_started(bench, job):
            members[podgroup.name_of(job)] = labels.get(GROUP, "")
    return Counter(members.values())


def _has_started(bench: Bench, job: Job) -> bool:
    """Whether as many pods as start together are placed or done."""
    spec = read(job)
    least = (spec.scheduling or {}).get("minAvailable")
    needed = least if isinstance(least, int) and not isinstance(least, bool) else spec.total
    placed = sum(pod.deleting is None and (pod.holds_chips or pod.phase == "Succeeded") for pod in bench.pods_of(job))
    return 0 < needed <= placed


def _refused(job: Job, rule: str) -> str:
    return (
        f"job {job.key.name} waits: ConfigMap {job.key.namespace}/{rule} has no valid {_KEY} "
        "(groups may only shrink from one configuration to the next)"
    )
