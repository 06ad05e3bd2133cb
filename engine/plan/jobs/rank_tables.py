"""Rank tables of running jobs: completed when all pods are placed, reset when one leaves.

A table is written where the user has provided its ConfigMap ``rings-config-<job>``, and as a file where the job mounts
a volume ``ranktable``: then it goes into a ConfigMap from which the nodes' agents write the file. Sources:
component/ascend-operator/pkg/controllers/v1/pod.go (genRankTable, saveRankTable) and its pkg/ranktable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from belay.engine.gangs.job_status import finished
from belay.engine.model.actions import (
    Preconditions,
    WriteRankTable,
)
from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.job_options import JobOptions, read_options, stated_chips
from belay.engine.model.labels import (
    CONFIGURATION_910,
    CONFIGURATION_NPU,
    DEPLOY_NAME,
    HARDWARE_TYPE,
    RANK_INDEX,
    RING_CONTROLLER,
    SHARD_LABEL,
    SUPER_POD_ID,
    SUPER_POD_RANK,
)
from belay.engine.model.plan_cache import CacheKey, Memo
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_list, nested_map, string_map
from belay.engine.model.wording import counted
from belay.engine.plan.grouping import shard_for
from belay.engine.plan.jobs import ascendjob, resilience, volcanojob
from belay.engine.plan.jobs.environment import sp_block
from belay.engine.plan.jobs.lifecycle import ExpansionContext, JobObject
from belay.engine.plan.jobs.pod_template import RANK_TABLE_VOLUME, has_volume, npu_of, pod_spec
from belay.engine.wire import podannotations, rankfile, ranktable
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import MAIN_SHARD, SYSTEM

PREFIX: Final = "rings-config-"
FILE: Final = "hccl.json"
VERSION_KEY: Final = "version"
_APPS: Final = "apps/v1"
#: Kinds of volumes that an agent cannot write a file into.
_OTHER_VOLUMES: Final = frozenset({"configMap", "secret", "emptyDir", "projected", "downwardAPI"})


class TableSpec(NamedTuple):
    """How one owner's table is built: number of pods, version of the format, options."""

    replicas: int
    version: ranktable.Version
    sp_block: int
    scaleout: str
    soft: bool
    inference: bool
    file: bool


_TABLE_SPECS: Final = CacheKey("specs of rank tables", Memo[TableSpec | None], limit=8192)
_CURRENT: Final = CacheKey("rank tables in ConfigMaps", Memo[dict[str, Any]], limit=8192)
_TABLES: Final = CacheKey("completed rank tables", Memo[dict[str, Any]], limit=8192)


def of_deployments(context: ExpansionContext) -> None:
    """Write the rank tables of Deployments and StatefulSets, whose pods Kubernetes creates."""
    keys = [key for kind in ("Deployment", "StatefulSet") for key in context.kinds.get((_APPS, kind), ())]
    objects = context.facts.observed.objects
    if not any(config_map_of(key) in objects or _wants_file(objects[key]) for key in keys):
        return
    by_label = _by_deploy_name(context)
    for kind in ("Deployment", "StatefulSet"):
        for job in context.jobs(_APPS, kind):
            if in_this_shard(context, job):
                _sync(context, job, by_label.get((job.key.namespace, job.key.name), []))


def of_ascend_job(context: ExpansionContext, job: JobObject) -> None:
    """Write the rank table of an AscendJob that has not ended."""
    if not finished(job.conditions):
        _sync(context, job, context.pods_of(job))


def of_volcano_job(context: ExpansionContext, job: JobObject) -> None:
    """Write the rank table of a Volcano Job that has not ended."""
    if volcanojob.phase_of(job) not in volcanojob.TERMINAL_PHASES:
        _sync(context, job, context.pods_of(job))


def config_map_of(owner: ObjectKey) -> ObjectKey:
    """The ConfigMap that the user provides for an owner's table."""
    return ObjectKey("v1", "ConfigMap", owner.namespace, PREFIX + owner.name)


def file_of(owner: ObjectKey) -> ObjectKey:
    """The ConfigMap from which agents write an owner's table as a file."""
    return ObjectKey("v1", "ConfigMap", SYSTEM, rankfile.name_of(owner.namespace, owner.name))


def _wants_file(raw: Mapping[str, Any]) -> bool:
    return _file_volume(nested_map(raw, "spec", "template"))


def _file_volume(template: Mapping[str, Any]) -> bool:
    """Whether a template mounts a volume ``ranktable`` that holds files of the node or of a share."""
    volumes = nested_list(pod_spec(template), "volumes")
    return any(row.get("name") == rankfile.VOLUME and not _OTHER_VOLUMES & row.keys() for row in volumes)


def _by_deploy_name(context: ExpansionContext) -> dict[tuple[str, str], list[Pod]]:
    found: dict[tuple[str, str], list[Pod]] = {}
    for pod in context.facts.observed.pods.values():
        name = pod.labels.get(DEPLOY_NAME)
        if name:
            found.setdefault((pod.namespace, name), []).append(pod)
    return found


def _sync(context: ExpansionContext, job: JobObject, pods: Sequence[Pod]) -> None:
    """Plan the writes of one owner's table, if it has changed."""
    key, file = config_map_of(job.key), file_of(job.key)
    objects = context.facts.observed.objects
    spec = (
        None
        if job.deleting
        else context.facts.cache[_TABLE_SPECS].of(job.key, job.raw, lambda: _table_spec(context, job))
    )
    if spec is None or spec.replicas <= 0 or not (spec.file or key in objects):
        return
    if job.key.kind == volcanojob.KIND:
        spec = spec._replace(replicas=resilience.pods_wanted(context.memory(job), spec.replicas))
    allocated = [pod for pod in pods if podannotations.is_allocated(pod)]
    if len(allocated) > spec.replicas:
        return  # a hot switch is under way
    whole = len(allocated) == spec.replicas
    table = _complete(context, job, spec, allocated) if whole else dict(ranktable.INITIALIZING)
    if table is None:
        return
    saved = False
    for place in ([key] if key in objects else []) + ([file] if spec.file else []):
        current = _current_table(context, place, objects.get(place), job.uid)
        if table != current and (whole or current.get("status") == "completed"):
            _save(context, job, place, objects.get(place), table, len(allocated))
            saved = True
    if saved:
        context.remember(job, msgspec.structs.replace(context.memory(job), saved=int(context.facts.now)))


def _current_table(
    context: ExpansionContext, key: ObjectKey, config_map: Mapping[str, Any] | None, uid: str
) -> dict[str, Any]:
    """The table in a ConfigMap; empty if it belongs to an earlier job of the same name."""
    if config_map is None:
        return {}
    known = context.facts.cache[_CURRENT]
    if key.namespace != SYSTEM or not key.name.startswith(rankfile.PREFIX):
        text = nested_map(config_map, "data").get(FILE)
        return dict(known.of(key, text, lambda: _parse(text)))
    inputs = (config_map.get("data"), config_map.get("binaryData"), uid)
    return dict(known.of(key, inputs, lambda: _table_of_file(config_map, uid)))


def _table_of_file(config_map: Mapping[str, Any], uid: str) -> dict[str, Any]:
    try:
        file = rankfile.parse(config_map)
    except WireError:
        return {}  # unreadable: it is written again
    return _parse(file.table) if file.uid == uid else {}


def _complete(context: ExpansionContext, job: JobObject, spec: TableSpec, pods: Sequence[Pod]) -> dict[str, Any] | None:
    """The completed table; None while a pod lacks what it needs."""
    ranks = _ranks(context, job, sorted(pods, key=lambda pod: pod.name))
    members = []
    for pod in sorted(pods, key=lambda pod: pod.name):
        try:
            configuration = _configuration(
                pod.annotations.get(CONFIGURATION_910),
                pod.annotations.get(CONFIGURATION_NPU),
            )
        except ValueError as error:
            context.warn(job, f"pod {pod.key}", f"the rank table waits: {error}", PassCode.RANK_TABLE_WAITS)
            return None
        if configuration is not None:
            members.append(_member(pod, ranks[pod.key], configuration, spec.inference))
    if not members:
        return None
    _warn_of_equal_ranks(context, job, members)
    try:
        return _build(context, spec, tuple(members))
    except ranktable.TableError as error:
        # A pod gets its IP shortly after its binding, so a missing IP is not worth a warning.
        if all(member.pod_ip for member in members):
            context.warn(job, "rank table", f"the rank table waits: {error}", PassCode.RANK_TABLE_WAITS)
        return None


def _warn_of_equal_ranks(context: ExpansionContext, job: JobObject, members: Sequence[ranktable.RankTablePod]) -> None:
    """Name the first two pods of one rank: the table holds each of their ranks twice, and HCCL cannot start."""
    pods: dict[int, str] = {}
    for member in members:
        other = pods.setdefault(member.rank, member.pod)
        if other != member.pod:
            key = RANK_INDEX
            text = f"pods {other} and {member.pod} both have {key} {member.rank}: each pod needs a rank of its own"
            context.warn(job, "rank table", text, PassCode.EQUAL_RANKS)
            return


def _member(
    pod: Pod, rank: int, configuration: podannotations.Configuration, inference: bool
) -> ranktable.RankTablePod:
    return ranktable.RankTablePod(
        pod=pod.key,
        node=pod.node,
        pod_ip=pod.pod_ip,
        rank=rank,
        configuration=configuration,
        super_pod_rank=pod.annotations.get(SUPER_POD_RANK, ""),
        super_pod_id=pod.annotations.get(SUPER_POD_ID, ""),
        hardware_type=pod.annotations.get(HARDWARE_TYPE, "") if inference else "",
    )


@lru_cache(maxsize=32768)
def _configuration(first: str | None, second: str | None) -> podannotations.Configuration | None:
    written = {CONFIGURATION_910: first, CONFIGURATION_NPU: second}
    return podannotations.configuration({key: text for key, text in written.items() if text is not None})


def _build(context: ExpansionContext, spec: TableSpec, members: tuple[ranktable.RankTablePod, ...]) -> dict[str, Any]:
    return context.facts.cache[_TABLES].of(
        members[0].pod,
        (spec, members),
        lambda: ranktable.build(
            spec.version,
            members,
            sp_block=spec.sp_block,
            scaleout=spec.scaleout,
            soft=spec.soft,
            inference=spec.inference,
        ),
    )


def _ranks(context: ExpansionContext, job: JobObject, pods: Sequence[Pod]) -> dict[str, int]:
    """Each pod's rank; pods without one get the lowest free numbers, in order of name, written as an annotation."""
    ranks = {pod.key: rank for pod in pods if (rank := podannotations.rank_index(pod.annotations)) is not None}
    taken = set(ranks.values())
    free = (number for number in range(len(pods) + len(taken)) if number not in taken)
    for pod in pods:
        if pod.key not in ranks:
            ranks[pod.key] = next(free)
            _write_rank(context, job, pod, ranks[pod.key])
    return ranks


def _write_rank(context: ExpansionContext, job: JobObject, pod: Pod, rank: int) -> None:
    key = ObjectKey("v1", "Pod", pod.namespace, pod.name)
    patch = {"metadata": {"annotations": {RANK_INDEX: str(rank)}}}
    context.patch(
        job, key, patch, ActionReason.RANK_ASSIGNED, f"pod {pod.key} gets rank {rank} of {job.key}", uid=pod.uid
    )


def _save(
    context: ExpansionContext,
    job: JobObject,
    key: ObjectKey,
    config_map: Mapping[str, Any] | None,
    table: dict[str, Any],
    allocated: int,
) -> None:
    """Plan one write. The version key shows readers a change: it is the time of the previous write, 0 at first."""
    done = table["status"] == "completed"
    by_agents = key.namespace == SYSTEM
    uid = str(nested_map(config_map or {}, "metadata").get("uid") or "")
    placed = f"{counted(allocated, 'pod')} {'is' if allocated == 1 else 'are'} placed"
    context.draft.actions.append(
        WriteRankTable(
            reason=ActionReason.RANK_TABLE_COMPLETED if done else ActionReason.RANK_TABLE_CLEARED,
            message=(
                f"{job.key}: all its pods are placed ({allocated}): its rank table is completed"
                if done
                else f"{job.key}: only {placed}, its rank table is being initialized again"
            ),
            evidence=context.evidence(job),
            preconditions=Preconditions(job_uid=job.uid) if by_agents else Preconditions(uid=uid),
            config_map=key.name,
            config_map_namespace=SYSTEM if by_agents else None,
            file=f"{job.key.namespace}.{job.key.name}/{FILE}" if by_agents else None,
            version=str(context.memory(job).saved),
            namespace=job.key.namespace,
            name=job.key.name,
            table=table,
        )
    )


def _parse(text: object) -> dict[str, Any]:
    """The table in a text, empty when it is unreadable."""
    try:
        table = msgspec.json.decode(text) if isinstance(text, str) else {}
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    return table if isinstance(table, dict) else {}


def _table_spec(context: ExpansionContext, job: JobObject) -> TableSpec | None:
    """How an owner's table is built; None for owners without one."""
    templates = _templates(context, job)
    labels = job.labels
    asked = job.key.kind == ascendjob.KIND or RING_CONTROLLER in labels
    if not asked and not any(has_volume(template, RANK_TABLE_VOLUME) for template, _ in templates):
        return None
    resources = [npu_of(template) for template, _ in templates]
    if not any(count for _, count in resources):
        return None
    annotations = dict(job.annotations)
    if job.key.kind != ascendjob.KIND and templates:
        template_notes = string_map(nested_map(templates[0][0], "metadata", "annotations") or None)
        annotations = {**template_notes, **annotations}
    options = read_options(labels, annotations)
    version = ranktable.version_of(
        resources=[name for name, _ in resources], annotations=annotations, node_selectors=selectors(context, job)
    )
    return TableSpec(
        replicas=sum(count for _, count in templates),
        version=version,
        sp_block=_block(context, job, options),
        scaleout=options.scaleout,
        soft=options.soft_affinity,
        inference=options.is_mindie,
        file=any(_file_volume(template) for template, _ in templates),
    )


def in_this_shard(context: ExpansionContext, job: JobObject) -> bool:
    """Whether this pass's shard decides for the job."""
    facts = context.facts
    if context.one_shard and SHARD_LABEL not in nested_map(job.metadata, "labels"):
        return facts.shard == MAIN_SHARD
    return shard_for(facts, job.labels, selectors(context, job)[:1]) == facts.shard


def selectors(context: ExpansionContext, job: JobObject) -> list[dict[str, str]]:
    """Node selectors of an owner's pod templates, the leader's first."""
    return [string_map(pod_spec(template).get("nodeSelector")) for template, _ in _templates(context, job)]


def _block(context: ExpansionContext, job: JobObject, options: JobOptions) -> int:
    if job.key.kind == ascendjob.KIND:
        return sp_block(ascendjob.spec_of(context, job))
    return stated_chips(options.sp_block, 0)


def _templates(context: ExpansionContext, job: JobObject) -> list[tuple[Mapping[str, Any], int]]:
    """Pod templates of an owner and the number of pods of each."""
    spec = nested_map(job.raw, "spec")
    if job.key.kind == ascendjob.KIND:
        return [(replica.template, replica.size) for replica in ascendjob.spec_of(context, job).replicas]
    if job.key.kind == "Job":
        tasks = spec.get("tasks")
        rows = [task for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []
        return [(nested_map(task, "template"), _replicas(task)) for task in rows]
    return [(nested_map(spec, "template"), _replicas(spec))]


def _replicas(spec: Mapping[str, Any]) -> int:
    value = spec.get("replicas", 1)
    return value if isinstance(value, int) and not isinstance(value, bool) else 1
