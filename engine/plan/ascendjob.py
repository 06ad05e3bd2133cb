"""AscendJobs become pods and a service, live through failures, and end: what MindCluster's operator does.

One call looks at one job and plans the next steps from what is there; nothing but the job's memory and status is
carried from pass to pass. Source: component/ascend-operator/pkg/controllers/v1/{job,pod,service,labels}.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from engine.model.cluster import Pod
from engine.model.diagnostics import ObjectKey
from engine.model.history import JobMemory
from engine.plan import podgroup, scaling
from engine.plan.ascendspec import (
    PORT_NAME,
    WORKER,
    AscendSpec,
    Replica,
    port_of,
    ports,
    read,
    refusal_of,
)
from engine.plan.ascendstatus import Counts, condition_of, retries_left, retry_condition, settle, write
from engine.plan.environment import CLUSTERD_DOMAIN, Surroundings, inject
from engine.plan.jobstatus import CREATED, RESTARTING, SUCCEEDED, Condition, finished
from engine.plan.lifecycle import VERSION_LABEL, Bench, Job, next_round, part, rows
from engine.plan.memo import Memo
from engine.plan.podtemplate import (
    ASCEND,
    DEFAULT_SCHEDULER,
    GROUP_NAME,
    TASK_SPEC,
    container,
    min_resources,
    pod,
    pod_spec,
)
from engine.wire.podannotations import OPERATOR_NAME, RANK_INDEX

API: Final = "mindxdl.gitee.com/v1"
KIND: Final = "AscendJob"
_GROUP: Final = "mindxdl.gitee.com"
_OPERATOR: Final = "ascendjob-controller"
#: Exit code that stands in while a container has not said one, as the operator's code has it.
_NO_EXIT_CODE: Final = 0xBEEF
_LONGEST_NAME: Final = 63
_SERVICE_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SPECS: Memo[AscendSpec] = Memo(8192)


@dataclass(slots=True)
class _Case:
    """One job in one pass."""

    bench: Bench
    job: Job
    spec: AscendSpec
    memory: JobMemory
    pods: dict[str, Pod]

    def of_replica(self, replica: Replica) -> list[Pod]:
        """Pods of one type, backup pods of a hot switch left out."""
        label = replica.lower
        return [p for name, p in self.pods.items() if p.labels.get("replica-type") == label and not _is_backup(p, name)]


def spec_of(job: Job) -> AscendSpec:
    """The job's spec, read once per version."""
    return _SPECS.of(job.key, job.raw, lambda: read(job))


def expand(bench: Bench, job: Job) -> bool:
    """Plans what one job needs next.

    Returns whether that depends on nothing but the job, its pods, its memory, its PodGroup and the queues.
    """
    end = finished(job.conditions)
    spec = spec_of(job)
    if end:
        _clean_up(bench, job, spec, end)
        return spec.policy.get("cleanPodPolicy") in (None, "None")
    refusal = refusal_of(spec, bench.queues)
    if refusal is not None:
        settle(bench, job, {}, Condition("Failed", "JobValidFailed", f"{refusal.reason}: {refusal.message}"))
        return True
    case = _Case(bench, job, spec, bench.memory(job), _standing({p.name: p for p in bench.pods_of(job)}))
    _count_round(case)
    if not _beyond_backoff(case):
        _keep_going(case)
    bench.remember(job, case.memory)
    whole = all(name in case.pods for name, _, _ in spec.expected)
    return whole and not any(p.phase == "Failed" for p in case.pods.values())


def backup(bench: Bench, job: Job, source: Pod, name: str) -> dict[str, Any] | None:
    """A second pod like ``source`` under another name; None while the job or its service does not allow one."""
    spec = spec_of(job)
    found = next((row for row in spec.expected if row[0] == source.name), None)
    if found is None or refusal_of(spec, bench.queues) is not None:
        return None
    case = _Case(bench, job, spec, bench.memory(job), {})
    around = _surroundings(case)
    return None if around is None else _pod(case, spec.replicas[found[1]], found[2], name, around)


def _count_round(case: _Case) -> None:
    pods = [p if p.name == name else msgspec.structs.replace(p, name=name) for name, p in case.pods.items()]
    versions = {p.key: _version(p) for p in pods}
    expected = [name for name, _, _ in case.spec.expected]
    # Pods that another operator made tell how often the job was re-created before Belay came.
    current = max(case.memory.version, *versions.values()) if versions else case.memory.version
    memory = msgspec.structs.replace(case.memory, version=current) if current > case.memory.version else case.memory
    case.memory, _ = next_round(memory, expected, pods, versions)


def _version(one: Pod) -> int:
    """The round a pod was made in; a pod that does not say belongs to the first, so that no round before it ended."""
    text = one.labels.get(VERSION_LABEL, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else 0


def _standing(pods: dict[str, Pod]) -> dict[str, Pod]:
    """The pods by the names they stand for: a backup whose source has gone has taken its place and its name's."""
    found = {}
    for name, one in pods.items():
        source = one.annotations.get("backupSourcePodName", "")
        took_over = _is_backup(one, name) and bool(source) and source not in pods and one.phase != "Failed"
        found[source if took_over else name] = one
    return found


def _is_backup(one: Pod, stands_for: str) -> bool:
    """Whether a pod is a backup that still waits for its turn."""
    return one.annotations.get("podType") == "backup" and one.name == stands_for


def backoff_limit(spec: AscendSpec) -> int:
    """How many re-creations are allowed; 0 and below means any number."""
    limit = spec.policy.get("backoffLimit")
    if isinstance(limit, int) and not isinstance(limit, bool):
        return limit
    text = spec.labels.get("fault-retry-times", "")
    return int(text[:9]) if text.isascii() and text.isdecimal() else -1


def _beyond_backoff(case: _Case) -> bool:
    limit = backoff_limit(case.spec)
    if limit <= 0 or case.memory.version <= limit:
        return False
    message = f"Job {case.job.key.name} has failed because it has reached the specified backoff limit"
    settle(case.bench, case.job, _count(case), Condition("Failed", "JobFailed", message))
    return True


def _keep_going(case: _Case) -> None:
    bench, job = case.bench, case.job
    podgroup.ensure(bench, job, _pod_group_spec(case.spec))
    _remove_surplus(case)
    restarting = _restart_by_exit_code(case) or _retried_elsewhere(case)
    counts = _count(case)
    condition = condition_of(bench, job, case.spec, case.memory, counts, restarting)
    _restart_whole(case, counts, condition)
    missing = [row for row in case.spec.expected if row[0] not in case.pods]
    if missing and (condition is None or condition.type not in ("Failed", SUCCEEDED)):
        condition = _create(case, missing) or condition
    write(bench, job, counts, condition)


def _count(case: _Case) -> dict[str, Counts]:
    """Pods per type: Running is active; Failed counts unless the pod is on its way out."""
    out = {}
    for replica in case.spec.replicas:
        active = failed = succeeded = 0
        for one in case.of_replica(replica):
            active += one.phase == "Running"
            succeeded += one.phase == "Succeeded"
            failed += one.phase == "Failed" and not _leaving(case, one)
        out[replica.type] = Counts(active, failed, succeeded)
    return out


def _leaving(case: _Case, one: Pod) -> bool:
    """Whether a pod is on its way out: deleted, evicted in this pass, or of a round that starts again."""
    evicted = one.key in case.bench.scope.evicting
    return evicted or one.deleting is not None or _version(one) <= case.memory.killed


def _remove_surplus(case: _Case) -> None:
    """Pods beyond the replicas that the job now asks for."""
    wanted = {name for name, _, _ in case.spec.expected}
    for name, one in case.pods.items():
        if name not in wanted and not _is_backup(one, name) and "replica-index" in one.labels:
            case.bench.remove(case.job, one, "ScaledDown", f"{case.job.key} no longer asks for pod {name}")


def _restart_by_exit_code(case: _Case) -> Condition | None:
    """restartPolicy ExitCode: a pod whose container ended with 128 or more is deleted and made anew."""
    condition = None
    for replica in case.spec.replicas:
        if replica.restart_policy != "ExitCode":
            continue
        for one in case.of_replica(replica):
            code = _exit_code(one)
            if one.phase == "Failed" and one.deleting is None and code >= 128:
                message = f"Pod: {one.namespace}.{one.name} exited with code {code}"
                case.bench.remove(case.job, one, "ExitedWithCode", message)
                text = f"Job {case.job.key.name} is restarting because {replica.type} replica(s) failed."
                condition = Condition(RESTARTING, "jobRestarting", text)
    return condition


def _retried_elsewhere(case: _Case) -> Condition | None:
    """A failed pod that ``recover`` evicts in this pass, because the job has retries left."""
    evicting = case.bench.scope.evicting
    if not any(p.phase == "Failed" and p.key in evicting for p in case.pods.values()):
        return None
    left = retries_left(case.bench, case.job, case.spec, case.memory)
    return retry_condition(case.job, left) if left > 0 else None


def _exit_code(one: Pod) -> int:
    row = next((c for c in one.containers if c.name == ASCEND), None)
    return _NO_EXIT_CODE if row is None or row.exit_code is None else row.exit_code


def _restart_whole(case: _Case, counts: Mapping[str, Counts], condition: Condition | None) -> None:
    """An unconditional retry: the whole gang goes, and every failure of a round costs one retry once.

    Jobs with label ``fault-scheduling`` are restarted by ``recover``, which also counts their retries.
    """
    memory = case.memory
    mine = case.spec.labels.get("fault-scheduling", "off") == "off"
    failed = mine and any(c.failed for c in counts.values())
    left = retries_left(case.bench, case.job, case.spec, memory) if failed else -1
    if left > 0 and condition is not None and condition.type == RESTARTING:
        memory = msgspec.structs.replace(memory, killed=memory.version, version=memory.version + 1, retries=left - 1)
        case.memory = memory
    for one in case.pods.values():
        if _version(one) <= memory.killed and one.deleting is None:
            case.bench.remove(case.job, one, "JobRetry", f"a pod of {case.job.key} failed: all its pods start again")


def _create(case: _Case, missing: list[tuple[str, int, int]]) -> Condition | None:
    """Plans the missing pods, or says what they wait for."""
    bench, job, spec = case.bench, case.job, case.spec
    impossible = _no_service(case)
    if impossible is not None:
        return impossible
    around = _surroundings(case)
    phase = podgroup.waits_for_volcano(bench, job)
    if phase is not None:
        return _waits_for_group(phase)
    if around is None or not scaling.may_create(bench, job):
        return None
    for name, position, index in missing:
        if f"{job.key.namespace}/{name}" in bench.scope.observed.pods:
            continue  # a pod of another owner has the name; it must go first
        body = _pod(case, spec.replicas[position], index, name, around)
        again = "again " if case.memory.version else ""
        bench.create_pod(job, body, "PodMissing", f"{job.key} wants pod {name}: creating it {again}".rstrip())
    return None


def _no_service(case: _Case) -> Condition | None:
    """Why the leader's pods and followers can have no service: it could not be named, or it has no address."""
    leader = case.spec.leader
    if leader is None:
        return None
    name = case.spec.pod_name(case.job, leader, 0)
    if len(name) > _LONGEST_NAME or not _SERVICE_NAME.fullmatch(name):
        rule = f"at most {_LONGEST_NAME} lower-case letters, digits and '-', a letter first"
        text = f"no service can be named {name}: {rule}"
        return Condition(CREATED, "SyncServiceFailed", text)
    service = case.bench.object("v1", "Service", case.job.key.namespace, name)
    if part(service or {}, "spec").get("clusterIP") == "None":
        text = f"service {name} is headless, so followers have no address to dial: delete it"
        return Condition(CREATED, "SyncServiceFailed", text)
    return None


def _waits_for_group(phase: str) -> Condition:
    if phase:
        return Condition(CREATED, "PodGroupPending", "the cluster resource is not enough")
    hint = "execute command to check the status: kubectl get pod -n volcano-system -l app=volcano-scheduler"
    return Condition(CREATED, "PodGroupNotInitialized", f"volcano-scheduler is maybe not running, {hint}")


def _surroundings(case: _Case) -> Surroundings | None:
    """Addresses for the pods' variables; None while the leader's service has none, after planning the service."""
    bench, job, leader = case.bench, case.job, case.spec.leader
    clusterd = bench.object("v1", "Service", "mindx-dl", "clusterd-grpc-svc")
    clusterd_ip = str(part(clusterd or {}, "spec").get("clusterIP") or CLUSTERD_DOMAIN)
    if leader is None:
        return Surroundings("", "", clusterd_ip, job.uid)
    name = case.spec.pod_name(job, leader, 0)
    service = bench.object("v1", "Service", job.key.namespace, name)
    if service is None:
        message = f"{job.key}: creating its service; the pods follow once the service has an address"
        bench.create_object(job, _service(case, leader, name), "ServiceMissing", message)
        return None
    address = str(part(service, "spec").get("clusterIP") or "")
    if address in ("", "None"):
        return None
    return Surroundings(address, _service_port(service, leader), clusterd_ip, job.uid)


def _service_port(service: Mapping[str, Any], leader: Replica) -> str:
    listed = rows(part(service, "spec"), "ports")
    named = next((row.get("port") for row in listed if row.get("name") == PORT_NAME), None)
    return str(named or port_of(leader))


def _service(case: _Case, leader: Replica, name: str) -> dict[str, Any]:
    labels = _labels(case.job, leader, 0)
    row = container(pod_spec(leader.template), ASCEND) or {}
    listed = [
        {"name": p["name"], "port": p["containerPort"], "protocol": str(p.get("protocol") or "TCP")}
        for p in ports(row)
        if p.get("name")
    ]
    if not any(p["name"] == PORT_NAME for p in listed):
        listed.append({"name": PORT_NAME, "port": port_of(leader), "protocol": "TCP"})
    metadata: dict[str, Any] = {"name": name, "namespace": case.job.key.namespace, "labels": labels}
    owners = case.job.owner_references()
    if owners:
        metadata["ownerReferences"] = owners
    spec = {"selector": labels, "ports": sorted(listed, key=lambda p: str(p["name"]))}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _labels(job: Job, replica: Replica, index: int) -> dict[str, str]:
    return {
        "group-name": _GROUP,
        "job-name": job.key.name,
        "replica-index": str(index),
        "replica-type": replica.lower,
        "training.kubeflow.org/job-name": job.key.name,
        OPERATOR_NAME: _OPERATOR,
        "training.kubeflow.org/replica-index": str(index),
        "training.kubeflow.org/replica-type": replica.lower,
    }


def _pod(case: _Case, replica: Replica, index: int, name: str, around: Surroundings) -> dict[str, Any]:
    job, spec = case.job, case.spec
    labels = {**_labels(job, replica, index), VERSION_LABEL: str(case.memory.version)}
    if replica.type != WORKER:
        labels["training.kubeflow.org/job-role"] = "master"
    annotations = {TASK_SPEC: replica.lower, RANK_INDEX: str(spec.rank(replica, index))}
    if case.bench.pod_groups:
        annotations[GROUP_NAME] = podgroup.name_of(job)
    body = pod(job, replica.template, name, labels=labels, annotations=annotations)
    inner = body["spec"]
    inner["restartPolicy"] = "Never" if replica.restart_policy == "ExitCode" else replica.restart_policy
    inner["schedulerName"] = inner.get("schedulerName") or spec.scheduler or DEFAULT_SCHEDULER
    if replica.type != WORKER:
        _add_port(container(inner, ASCEND) or {})
    inject(body, spec, replica, index, around)
    return body


def _add_port(row: dict[str, Any]) -> None:
    if not any(p.get("name") == PORT_NAME for p in ports(row)):
        row["ports"] = [*(row.get("ports") or []), {"name": PORT_NAME, "containerPort": 2222, "protocol": "TCP"}]


def _pod_group_spec(spec: AscendSpec) -> dict[str, Any]:
    """minMember, minTaskMember, queue, priority class and resources of the job's PodGroup."""
    scheduling = spec.scheduling or {}
    least = scheduling.get("minAvailable")
    members = least if isinstance(least, int) and not isinstance(least, bool) else spec.total
    resources = part(scheduling, "minResources") or min_resources(
        [(replica.template, replica.size) for replica in spec.replicas], members
    )
    out: dict[str, Any] = {
        "minMember": members,
        "minTaskMember": {replica.lower: replica.size for replica in spec.replicas},
        "queue": str(scheduling.get("queue") or "default"),
    }
    if scheduling.get("priorityClass"):
        out["priorityClassName"] = str(scheduling["priorityClass"])
    if resources:
        out["minResources"] = dict(resources)
    return out


def _clean_up(bench: Bench, job: Job, spec: AscendSpec, end: str) -> None:
    """A finished job: pods that never started go, the others by cleanPodPolicy, and so does the PodGroup."""
    policy = str(spec.policy.get("cleanPodPolicy") or "None")
    for one in bench.pods_of(job):
        going = one.phase == "Pending" or policy == "All" or (policy == "Running" and one.phase == "Running")
        if going:
            bench.remove(job, one, "JobFinished", f"{job.key} has ended ({end}): cleaning up pod {one.name}")
    if policy != "None" and spec.leader is not None:
        service = ObjectKey("v1", "Service", job.key.namespace, spec.pod_name(job, spec.leader, 0))
        bench.delete(job, service, "JobFinished", f"{job.key} has ended ({end}): cleaning up its service")
    bench.delete(job, podgroup.key_of(job), "JobFinished", f"{job.key} has ended ({end}): deleting its PodGroup")
