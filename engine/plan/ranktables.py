"""Rank tables of running jobs: completed when all pods are placed, cleared when one leaves.

A table is written where the user has provided its ConfigMap ``rings-config-<job>``, and as a file where the job mounts
a volume ``ranktable``: then it goes into a ConfigMap from which the nodes' agents write the file. Sources:
component/ascend-operator/pkg/controllers/v1/pod.go (genRankTable, saveRankTable) and its pkg/ranktable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from engine.model.actions import WriteRankTable
from engine.model.cluster import Pod
from engine.model.diagnostics import ObjectKey
from engine.model.quantities import whole
from engine.plan import ascendjob, resilience, volcanojob
from engine.plan.environment import sp_block
from engine.plan.gangs import MAIN_SHARD, SHARD_LABEL, shard_for
from engine.plan.jobstatus import finished
from engine.plan.lifecycle import Bench, Job, part, rows, texts
from engine.plan.memo import Memo
from engine.plan.podtemplate import RANK_TABLE_VOLUME, has_volume, npu_of, pod_spec
from engine.wire import podannotations, rankfile, ranktable
from engine.wire.errors import WireError
from engine.wire.names import SYSTEM

PREFIX: Final = "rings-config-"
FILE: Final = "hccl.json"
VERSION_KEY: Final = "version"
_ATLAS: Final = "ring-controller.atlas"
_APPS: Final = "apps/v1"
#: Kinds of volumes that no agent can put a file into.
_OTHER_VOLUMES: Final = frozenset({"configMap", "secret", "emptyDir", "projected", "downwardAPI"})


class Plan(NamedTuple):
    """What the pods of one owner amount to: how many, which version, which options."""

    replicas: int
    version: ranktable.Version
    sp_block: int
    scaleout: str
    soft: bool
    inference: bool
    file: bool


_PLANS: Memo[Plan | None] = Memo(8192)
_CURRENT: Memo[Any] = Memo(8192)


def of_deployments(bench: Bench) -> None:
    """Rank tables of Deployments and StatefulSets, whose pods Kubernetes makes."""
    keys = [key for kind in ("Deployment", "StatefulSet") for key in bench.kinds.get((_APPS, kind), ())]
    objects = bench.scope.observed.objects
    if not any(config_map_of(key) in objects or _wants_file(objects[key]) for key in keys):
        return
    by_label = _by_deploy_name(bench)
    for kind in ("Deployment", "StatefulSet"):
        for job in bench.jobs(_APPS, kind):
            if is_mine(bench, job):
                _sync(bench, job, by_label.get((job.key.namespace, job.key.name), []))


def of_ascend_job(bench: Bench, job: Job) -> None:
    """The rank table of an AscendJob that has not ended."""
    if not finished(job.conditions):
        _sync(bench, job, bench.pods_of(job))


def of_volcano_job(bench: Bench, job: Job) -> None:
    """The rank table of a Volcano Job that has not ended."""
    if volcanojob.phase_of(job) not in volcanojob.ENDS:
        _sync(bench, job, bench.pods_of(job))


def config_map_of(owner: ObjectKey) -> ObjectKey:
    """The ConfigMap that the user provides for an owner's table."""
    return ObjectKey("v1", "ConfigMap", owner.namespace, PREFIX + owner.name)


def file_of(owner: ObjectKey) -> ObjectKey:
    """The ConfigMap from which agents write an owner's table as a file."""
    return ObjectKey("v1", "ConfigMap", SYSTEM, rankfile.name_of(owner.namespace, owner.name))


def _wants_file(raw: Mapping[str, Any]) -> bool:
    return _file_volume(part(part(raw, "spec"), "template"))


def _file_volume(template: Mapping[str, Any]) -> bool:
    """Whether a template mounts a volume ``ranktable`` that holds files of the node or of a share."""
    volumes = rows(pod_spec(template), "volumes")
    return any(row.get("name") == rankfile.VOLUME and not _OTHER_VOLUMES & row.keys() for row in volumes)


def _by_deploy_name(bench: Bench) -> dict[tuple[str, str], list[Pod]]:
    found: dict[tuple[str, str], list[Pod]] = {}
    for pod in bench.scope.observed.pods.values():
        name = pod.labels.get("deploy-name")
        if name:
            found.setdefault((pod.namespace, name), []).append(pod)
    return found


def _sync(bench: Bench, job: Job, pods: Sequence[Pod]) -> None:
    """Plans the next saves of one owner's table, if there is anything to save."""
    key, file = config_map_of(job.key), file_of(job.key)
    objects = bench.scope.observed.objects
    plan = None if job.deleting else _PLANS.of(job.key, job.raw, lambda: _plan(job))
    if plan is None or plan.replicas <= 0 or not (plan.file or key in objects):
        return
    if job.key.kind == volcanojob.KIND:
        plan = plan._replace(replicas=resilience.pods_wanted(bench.memory(job), plan.replicas))
    allocated = [pod for pod in pods if podannotations.is_allocated(pod)]
    if len(allocated) > plan.replicas:
        return  # a hot switch is under way
    whole = len(allocated) == plan.replicas
    table = _complete(bench, job, plan, allocated) if whole else dict(ranktable.INITIALIZING)
    if table is None:
        return
    saved = False
    for place in ([key] if key in objects else []) + ([file] if plan.file else []):
        current = _standing(place, objects.get(place), job.uid)
        if table != current and (whole or current.get("status") == "completed"):
            _save(bench, job, place, objects.get(place), table, len(allocated))
            saved = True
    if saved:
        bench.remember(job, msgspec.structs.replace(bench.memory(job), saved=int(bench.scope.now)))


def _standing(key: ObjectKey, config_map: Mapping[str, Any] | None, uid: str) -> dict[str, Any]:
    """The table that stands in a ConfigMap; that of an earlier job of the same name is none."""
    if config_map is None:
        return {}
    if key.namespace != SYSTEM or not key.name.startswith(rankfile.PREFIX):
        text = part(config_map, "data").get(FILE)
        return dict(_CURRENT.of(key, text, lambda: _parse(text)))
    inputs = (config_map.get("data"), config_map.get("binaryData"), uid)
    return dict(_CURRENT.of(key, inputs, lambda: _filed(config_map, uid)))


def _filed(config_map: Mapping[str, Any], uid: str) -> dict[str, Any]:
    try:
        file = rankfile.parse(config_map)
    except WireError:
        return {}  # somebody broke it: it is written anew
    return _parse(file.table) if file.uid == uid else {}


def _complete(bench: Bench, job: Job, plan: Plan, pods: Sequence[Pod]) -> dict[str, Any] | None:
    """The completed table; None while a pod lacks what it needs."""
    ranks = _ranks(bench, job, sorted(pods, key=lambda pod: pod.name))
    members = []
    for pod in sorted(pods, key=lambda pod: pod.name):
        try:
            configuration = _configuration(
                pod.annotations.get(podannotations.CONFIGURATION_910),
                pod.annotations.get(podannotations.CONFIGURATION_NPU),
            )
        except ValueError as error:
            bench.warn(job, f"pod {pod.key}", f"the rank table waits: {error}")
            return None
        if configuration is not None:
            members.append(_member(pod, ranks[pod.key], configuration, plan.inference))
    if not members:
        return None
    try:
        return _build(plan, tuple(members))
    except ranktable.TableError as error:
        # A pod gets its IP a moment after its binding: only what does not pass by itself is worth a word.
        if all(member.pod_ip for member in members):
            bench.warn(job, "rank table", f"the rank table waits: {error}")
        return None


def _member(pod: Pod, rank: int, configuration: podannotations.Configuration, inference: bool) -> ranktable.Member:
    return ranktable.Member(
        pod=pod.key,
        node=pod.node,
        pod_ip=pod.pod_ip,
        rank=rank,
        configuration=configuration,
        super_pod_rank=pod.annotations.get(podannotations.SUPER_POD_RANK, ""),
        super_pod_id=pod.annotations.get(podannotations.SUPER_POD_ID, ""),
        hardware_type=pod.annotations.get(podannotations.HARDWARE_TYPE, "") if inference else "",
    )


@lru_cache(maxsize=32768)
def _configuration(first: str | None, second: str | None) -> podannotations.Configuration | None:
    written = {podannotations.CONFIGURATION_910: first, podannotations.CONFIGURATION_NPU: second}
    return podannotations.configuration({key: text for key, text in written.items() if text is not None})


_TABLES: Memo[dict[str, Any]] = Memo(8192)


def _build(plan: Plan, members: tuple[ranktable.Member, ...]) -> dict[str, Any]:
    return _TABLES.of(
        members[0].pod,
        (plan, members),
        lambda: ranktable.build(
            plan.version,
            members,
            sp_block=plan.sp_block,
            scaleout=plan.scaleout,
            soft=plan.soft,
            inference=plan.inference,
        ),
    )


def _ranks(bench: Bench, job: Job, pods: Sequence[Pod]) -> dict[str, int]:
    """Each pod's rank; missing ones get the lowest free numbers in name order, written on the pods."""
    ranks = {pod.key: rank for pod in pods if (rank := podannotations.rank_index(pod.annotations)) is not None}
    taken = set(ranks.values())
    free = (number for number in range(len(pods) + len(taken)) if number not in taken)
    for pod in pods:
        if pod.key not in ranks:
            ranks[pod.key] = next(free)
            _write_rank(bench, job, pod, ranks[pod.key])
    return ranks


def _write_rank(bench: Bench, job: Job, pod: Pod, rank: int) -> None:
    key = ObjectKey("v1", "Pod", pod.namespace, pod.name)
    patch = {"metadata": {"annotations": {podannotations.RANK_INDEX: str(rank)}}}
    bench.patch(job, key, patch, "RankAssigned", f"pod {pod.key} gets rank {rank} of {job.key}", uid=pod.uid)


def _save(
    bench: Bench, job: Job, key: ObjectKey, config_map: Mapping[str, Any] | None, table: dict[str, Any], allocated: int
) -> None:
    """One save. The version key tells readers of a change: the time of the save before, 0 for the first."""
    done = table["status"] == "completed"
    where = {"configMap": key.name, "uid": str(part(config_map or {}, "metadata").get("uid") or "")}
    if key.namespace == SYSTEM:
        folder = f"{job.key.namespace}.{job.key.name}"
        where = {"configMap": key.name, "namespace": SYSTEM, "file": f"{folder}/{FILE}", "jobUid": job.uid}
    bench.scope.actions.append(
        WriteRankTable(
            reason="RankTableCompleted" if done else "RankTableCleared",
            message=(
                f"{job.key}: all {allocated} pods are placed, completing its rank table"
                if done
                else f"{job.key}: only {allocated} pods are placed, its rank table is being initialized again"
            ),
            evidence=bench.evidence(job),
            preconditions={**where, "version": str(bench.memory(job).saved)},
            namespace=job.key.namespace,
            name=job.key.name,
            table=table,
        )
    )


def _parse(text: object) -> dict[str, Any]:
    """The table in the ConfigMap; an unreadable one is none."""
    try:
        table = msgspec.json.decode(text) if isinstance(text, str) else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def _plan(job: Job) -> Plan | None:
    """How an owner's table is made; None for owners without one."""
    templates = _templates(job)
    labels = job.labels
    asked = job.key.kind == ascendjob.KIND or _ATLAS in labels
    if not asked and not any(has_volume(template, RANK_TABLE_VOLUME) for template, _ in templates):
        return None
    resources = [npu_of(template) for template, _ in templates]
    if not any(count for _, count in resources):
        return None
    annotations = dict(job.annotations)
    if job.key.kind != ascendjob.KIND and templates:
        template_notes = texts(part(part(templates[0][0], "metadata"), "annotations") or None)
        annotations = {**template_notes, **annotations}
    version = ranktable.version_of(
        resources=[name for name, _ in resources], annotations=annotations, node_selectors=selectors(job)
    )
    return Plan(
        replicas=sum(count for _, count in templates),
        version=version,
        sp_block=_block(job, annotations),
        scaleout=labels.get("scaleout-type", "").strip().upper(),
        soft=labels.get("super-pod-affinity") == "soft",
        inference=bool(labels.get("jobID") and labels.get("app")),
        file=any(_file_volume(template) for template, _ in templates),
    )


def is_mine(bench: Bench, job: Job) -> bool:
    """Whether this pass's shard decides for the job."""
    scope = bench.scope
    if bench.one_shard and SHARD_LABEL not in part(job.metadata, "labels"):
        return scope.shard == MAIN_SHARD
    return shard_for(scope, job.labels, selectors(job)[:1]) == scope.shard


def selectors(job: Job) -> list[dict[str, str]]:
    """Node selectors of an owner's pod templates, the leader's first."""
    return [texts(pod_spec(template).get("nodeSelector")) for template, _ in _templates(job)]


def _block(job: Job, annotations: Mapping[str, str]) -> int:
    if job.key.kind == ascendjob.KIND:
        return sp_block(ascendjob.spec_of(job))
    return whole(annotations.get("sp-block", ""))


def _templates(job: Job) -> list[tuple[Mapping[str, Any], int]]:
    """Pod templates of an owner and how many pods each makes."""
    spec = part(job.raw, "spec")
    if job.key.kind == ascendjob.KIND:
        return [(replica.template, replica.size) for replica in ascendjob.spec_of(job).replicas]
    if job.key.kind == "Job":
        tasks = spec.get("tasks")
        rows = [task for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []
        return [(part(task, "template"), _replicas(task)) for task in rows]
    return [(part(spec, "template"), _replicas(spec))]


def _replicas(spec: Mapping[str, Any]) -> int:
    value = spec.get("replicas", 1)
    return value if isinstance(value, int) and not isinstance(value, bool) else 1
