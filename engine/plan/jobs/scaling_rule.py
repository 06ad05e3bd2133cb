"""The elastic scaling rule of inference groups: the smallest configuration is filled first, then the next.

Source: component/ascend-operator/pkg/controllers/scaling/controller.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec

from belay.engine.model.codes.passes import PassCode
from belay.engine.model.job_options import JobOptions, names_scaling_rule, read_options
from belay.engine.model.labels import SCALING_RULE
from belay.engine.model.unstructured import nested_map, string_map
from belay.engine.plan.jobs import podgroup
from belay.engine.plan.jobs.ascendjob_spec import read
from belay.engine.plan.jobs.lifecycle import POD_GROUP_API, ExpansionContext, JobObject

_ASCEND_JOB: Final = ("mindxdl.gitee.com/v1", "AscendJob")
_KEY: Final = "elastic_scaling.json"


def may_create(context: ExpansionContext, job: JobObject) -> bool:
    """Whether a job may get pods now: without a scaling rule always, else while its group lacks members in the
    configuration that is being filled.
    """
    options = job.options
    if options.scaling_rule is None:
        return True
    raw = context.object("v1", "ConfigMap", job.key.namespace, options.scaling_rule)
    steps = _steps(nested_map(raw or {}, "data").get(_KEY))
    if steps is None:
        refused = _refused(job, options.scaling_rule)
        context.warn(job, f"metadata.labels[{SCALING_RULE}]", refused, PassCode.SCALING_REFUSED)
        return False
    running = _running(context, job.key.namespace, options)
    group = options.scaling_group
    for step in reversed(steps):
        if any(running.get(name, 0) < number for name, number in step.items()):
            return running.get(group, 0) < step.get(group, 0)
    return False


def _steps(text: object) -> list[dict[str, int]] | None:
    """Members per group in each configuration, largest first; None when the rule is missing or not monotonic."""
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


def _running(context: ExpansionContext, namespace: str, wanted: JobOptions) -> Mapping[str, int]:
    """Running members of the rule and instance of a job, per group.

    PodGroups count by their phase, as Volcano keeps it, and jobs by their placed pods.
    """
    members: dict[str, str] = {}
    for key in context.kinds.get((POD_GROUP_API, "PodGroup"), ()):
        raw = context.facts.observed.objects[key]
        if key.namespace != namespace or nested_map(raw, "status").get("phase") != "Running":
            continue
        labels = string_map(nested_map(raw, "metadata").get("labels"))
        if names_scaling_rule(labels) and _scale_together(wanted, options := read_options(labels, {})):
            members[key.name] = options.scaling_group

    for job in context.jobs(*_ASCEND_JOB):
        if job.key.namespace != namespace or not names_scaling_rule(job.labels):
            continue
        options = job.options
        if _scale_together(wanted, options) and _has_started(context, job):
            members[podgroup.name_of(job)] = options.scaling_group
    return Counter(members.values())


def _scale_together(one: JobOptions, other: JobOptions) -> bool:
    """Whether two jobs of a namespace belong to the same rule and inference service."""
    return one.scaling_rule == other.scaling_rule and (one.service_job_id or "") == (other.service_job_id or "")


def _has_started(context: ExpansionContext, job: JobObject) -> bool:
    """Whether at least ``minAvailable`` pods are placed or have succeeded."""
    spec = read(job)
    least = (spec.scheduling or {}).get("minAvailable")
    needed = least if isinstance(least, int) and not isinstance(least, bool) else spec.total
    placed = sum(pod.deleting is None and (pod.holds_chips or pod.phase == "Succeeded") for pod in context.pods_of(job))
    return 0 < needed <= placed


def _refused(job: JobObject, rule: str) -> str:
    return (
        f"job {job.key.name} waits: ConfigMap {job.key.namespace}/{rule} has no valid {_KEY} "
        "(groups may only shrink from one configuration to the next)"
    )
