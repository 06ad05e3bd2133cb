"""AscendJobs: pods, Service, restarts and clean-up, as MindCluster's operator does them.

One call plans the next steps of one job from the snapshot; only the job's memory and status are carried from pass to
pass. Source: component/ascend-operator/pkg/controllers/v1/{job,pod,service,labels}.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from belay.engine.gangs.job_status import CREATED, RESTARTING, RUNNING, SUCCEEDED, JobCondition, finished
from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.history import JobMemory
from belay.engine.model.labels import (
    GROUP_NAME,
    JOB_NAME_LABEL,
    KUBEFLOW_JOB_NAME,
    KUBEFLOW_JOB_ROLE,
    KUBEFLOW_OPERATOR_NAME,
    KUBEFLOW_REPLICA_INDEX,
    KUBEFLOW_REPLICA_TYPE,
    RANK_INDEX,
    REPLICA_INDEX,
    REPLICA_TYPE,
    VOLCANO_TASK_SPEC,
)
from belay.engine.model.plan_cache import CacheKey, Memo
from belay.engine.model.pod_options import backup_source_name, is_backup
from belay.engine.model.quantities import whole_number
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.plan.jobs import podgroup, scaling_rule, suspension
from belay.engine.plan.jobs.ascendjob_spec import (
    INVALID_QUEUE,
    PORT_NAME,
    WORKER,
    AscendSpec,
    ReplicaSpec,
    SpecProblem,
    pod_group_spec,
    port_of,
    ports,
    problem_of,
    read,
)
from belay.engine.plan.jobs.ascendjob_status import (
    ReplicaCounts,
    condition_of,
    end_job,
    retries_left,
    retry_condition,
    write,
)
from belay.engine.plan.jobs.environment import CLUSTERD_DOMAIN, ServiceAddresses, inject
from belay.engine.plan.jobs.lifecycle import VERSION_LABEL, ExpansionContext, JobObject, next_round
from belay.engine.plan.jobs.pod_template import (
    ASCEND,
    container,
    pod,
    pod_spec,
)

API: Final = "mindxdl.gitee.com/v1"
KIND: Final = "AscendJob"
_GROUP: Final = "mindxdl.gitee.com"
_OPERATOR: Final = "ascendjob-controller"
#: Exit code assumed while a container reports none, as in the operator's code.
_NO_EXIT_CODE: Final = 0xBEEF
_LONGEST_NAME: Final = 63
_SERVICE_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SPECS: Final = CacheKey("AscendJob specs", Memo[AscendSpec], limit=8192)


@dataclass(slots=True)
class _Expansion:
    """One job in one pass."""

    context: ExpansionContext
    job: JobObject
    spec: AscendSpec
    memory: JobMemory
    pods: dict[str, Pod]

    @property
    def schedulers(self) -> set[str]:
        """The schedulers of the job's pods."""
        return {self.spec.scheduler_of(replica, self.context.default_scheduler) for replica in self.spec.replicas}

    def of_replica(self, replica: ReplicaSpec) -> list[Pod]:
        """Pods of one type, without backup pods of a hot switch."""
        label = replica.lower
        return [p for name, p in self.pods.items() if p.labels.get(REPLICA_TYPE) == label and not _is_backup(p, name)]


def spec_of(context: ExpansionContext, job: JobObject) -> AscendSpec:
    """Return the job's spec, read once per version of the job."""
    return context.facts.cache[_SPECS].of(job.key, job.raw, lambda: read(job))


def expand(context: ExpansionContext, job: JobObject) -> bool:
    """Plan the next actions of one job.

    Returns:
        Whether they follow from the job, its pods, its memory, its PodGroup and the queues alone.
    """
    end = finished(job.conditions)
    spec = spec_of(context, job)
    if end:
        _clean_up(context, job, spec, end)
        return spec.policy.get("cleanPodPolicy") in (None, "None")
    if suspension.step(context, job, spec):
        return False
    problem = problem_of(spec, context.queues)
    if problem is not None and _keeps_running(context, job, problem):
        if spec.problem is not None:
            text = f"{spec.problem.reason}: {spec.problem.message}"
            context.warn(
                job, "spec", f"{text}; its pods run on as they are until the job is valid again", PassCode.INVALID_JOB
            )
            return True
        text = f"{problem.message}; its pods run on, new ones wait: create the queue or name another one"
        context.warn(job, "spec.runPolicy.schedulingPolicy.queue", text, PassCode.UNKNOWN_QUEUE)
    elif problem is not None:
        end_job(context, job, {}, JobCondition("Failed", "JobValidFailed", f"{problem.reason}: {problem.message}"))
        return True
    expansion = _Expansion(
        context, job, spec, context.memory(job), _effective_pods({p.name: p for p in context.pods_of(job)})
    )
    _advance_round(expansion)
    if not _exceeds_backoff(expansion):
        _reconcile(expansion)
    context.remember(job, expansion.memory)
    whole = all(name in expansion.pods for name, _, _ in spec.expected)
    return whole and not any(p.phase == "Failed" for p in expansion.pods.values())


def _keeps_running(context: ExpansionContext, job: JobObject, problem: SpecProblem) -> bool:
    """Whether a mistake in a job's manifest, or a queue that is gone, finds the job at work: it ends no such job.

    A queue can be created again, so that a job without one may also wait between two rounds of its pods.
    """
    if any(not pod.finished for pod in context.pods_of(job)):
        return True
    started = any(isinstance(row, dict) and row.get("type") in (RUNNING, RESTARTING) for row in job.conditions)
    return started and problem.reason == INVALID_QUEUE


def backup_pod(context: ExpansionContext, job: JobObject, source: Pod, name: str) -> dict[str, Any] | None:
    """Build a second pod like ``source`` under another name; None while the job or its Service does not allow one."""
    spec = spec_of(context, job)
    found = next((row for row in spec.expected if row[0] == source.name), None)
    if found is None or problem_of(spec, context.queues) is not None:
        return None
    expansion = _Expansion(context, job, spec, context.memory(job), {})
    addresses = _service_addresses(expansion)
    return None if addresses is None else _pod(expansion, spec.replicas[found[1]], found[2], name, addresses)


def _advance_round(expansion: _Expansion) -> None:
    pods = [p if p.name == name else msgspec.structs.replace(p, name=name) for name, p in expansion.pods.items()]
    versions = {p.key: _version(p) for p in pods}
    expected = [name for name, _, _ in expansion.spec.expected]
    # Pods that another operator created show how often the job was re-created before Belay took over.
    current = max(expansion.memory.version, *versions.values()) if versions else expansion.memory.version
    memory = (
        msgspec.structs.replace(expansion.memory, version=current)
        if current > expansion.memory.version
        else expansion.memory
    )
    expansion.memory, _ = next_round(memory, expected, pods, versions)


def _version(one: Pod) -> int:
    """The round a pod was created in; a pod without the label belongs to the first."""
    return whole_number(one.labels.get(VERSION_LABEL, "")) or 0


def _effective_pods(pods: dict[str, Pod]) -> dict[str, Pod]:
    """The pods by the names they stand for: a backup takes over the name of its source once that is gone."""
    found = {}
    for name, one in pods.items():
        source = backup_source_name(one)
        took_over = _is_backup(one, name) and bool(source) and source not in pods and one.phase != "Failed"
        found[source if took_over else name] = one
    return found


def _is_backup(one: Pod, stands_for: str) -> bool:
    """Whether a pod is a backup whose source still exists."""
    return is_backup(one) and one.name == stands_for


def backoff_limit(spec: AscendSpec) -> int:
    """How many re-creations are allowed; 0 or less means any number."""
    limit = spec.policy.get("backoffLimit")
    if isinstance(limit, int) and not isinstance(limit, bool):
        return limit
    return spec.options.fault_retry_times


def _exceeds_backoff(expansion: _Expansion) -> bool:
    limit = backoff_limit(expansion.spec)
    if limit <= 0 or expansion.memory.version <= limit:
        return False
    message = f"Job {expansion.job.key.name} has failed because it has reached the specified backoff limit"
    end_job(expansion.context, expansion.job, _count(expansion), JobCondition("Failed", "JobFailed", message))
    return True


def _reconcile(expansion: _Expansion) -> None:
    context, job = expansion.context, expansion.job
    asked = pod_group_spec(expansion.spec)
    if podgroup.starts_together(context, expansion.schedulers):
        podgroup.ensure(context, job, asked)
        podgroup.adjust(context, job, asked)
    _remove_surplus(expansion)
    restarting = _restart_by_exit_code(expansion) or _retried_elsewhere(expansion)
    counts = _count(expansion)
    condition = condition_of(context, job, expansion.spec, expansion.memory, counts, restarting)
    _restart_whole(expansion, counts, condition)
    missing = [row for row in expansion.spec.expected if row[0] not in expansion.pods]
    if missing and (condition is None or condition.type not in ("Failed", SUCCEEDED)):
        condition = _create(expansion, missing) or condition
    write(context, job, counts, condition)


def _count(expansion: _Expansion) -> dict[str, ReplicaCounts]:
    """Pods per type: Running counts as active, Failed unless the pod is terminating."""
    out = {}
    for replica in expansion.spec.replicas:
        active = failed = succeeded = 0
        for one in expansion.of_replica(replica):
            active += one.phase == "Running"
            succeeded += one.phase == "Succeeded"
            failed += one.phase == "Failed" and not _is_terminating(expansion, one)
        out[replica.type] = ReplicaCounts(active, failed, succeeded)
    return out


def _is_terminating(expansion: _Expansion, one: Pod) -> bool:
    """Whether a pod is deleted, evicted in this pass, or of a round that starts again."""
    evicted = one.key in expansion.context.draft.evicting
    return evicted or one.deleting is not None or _version(one) <= expansion.memory.killed


def _remove_surplus(expansion: _Expansion) -> None:
    """Remove pods beyond the replicas that the job now asks for."""
    wanted = {name for name, _, _ in expansion.spec.expected}
    for name, one in expansion.pods.items():
        if name not in wanted and not _is_backup(one, name) and REPLICA_INDEX in one.labels:
            expansion.context.remove_pod(
                expansion.job, one, ActionReason.SCALED_DOWN, f"{expansion.job.key} no longer asks for pod {name}"
            )


def _restart_by_exit_code(expansion: _Expansion) -> JobCondition | None:
    """restartPolicy ExitCode: delete and re-create pods whose container exited with 128 or more."""
    condition = None
    for replica in expansion.spec.replicas:
        if replica.restart_policy != "ExitCode":
            continue
        for one in expansion.of_replica(replica):
            code = _exit_code(one)
            if one.phase == "Failed" and one.deleting is None and code >= 128:
                message = f"Pod: {one.namespace}.{one.name} exited with code {code}"
                expansion.context.remove_pod(expansion.job, one, ActionReason.EXITED_WITH_CODE, message)
                text = f"Job {expansion.job.key.name} is restarting because {replica.type} replica(s) failed."
                condition = JobCondition(RESTARTING, "jobRestarting", text)
    return condition


def _retried_elsewhere(expansion: _Expansion) -> JobCondition | None:
    """The condition for a failed pod that ``recover`` evicts in this pass because the job has retries left."""
    evicting = expansion.context.draft.evicting
    if not any(p.phase == "Failed" and p.key in evicting for p in expansion.pods.values()):
        return None
    left = retries_left(expansion.context, expansion.job, expansion.spec, expansion.memory)
    return retry_condition(expansion.job, left) if left > 0 else None


def _exit_code(one: Pod) -> int:
    row = next((c for c in one.containers if c.name == ASCEND), None)
    return _NO_EXIT_CODE if row is None or row.exit_code is None else row.exit_code


def _restart_whole(expansion: _Expansion, counts: Mapping[str, ReplicaCounts], condition: JobCondition | None) -> None:
    """Retry unconditionally: remove the whole gang; the failures of one round cost one retry together.

    Jobs with label ``fault-scheduling`` are restarted by ``recover``, which also counts their retries.
    """
    memory = expansion.memory
    mine = expansion.spec.options.fault_scheduling == "off"
    failed = mine and any(c.failed for c in counts.values())
    left = retries_left(expansion.context, expansion.job, expansion.spec, memory) if failed else -1
    if left > 0 and condition is not None and condition.type == RESTARTING:
        memory = msgspec.structs.replace(memory, killed=memory.version, version=memory.version + 1, retries=left - 1)
        expansion.memory = memory
    for one in expansion.pods.values():
        if _version(one) <= memory.killed and one.deleting is None:
            expansion.context.remove_pod(
                expansion.job,
                one,
                ActionReason.JOB_RETRY,
                f"a pod of {expansion.job.key} failed: all its pods start again",
            )


def _create(expansion: _Expansion, missing: list[tuple[str, int, int]]) -> JobCondition | None:
    """Plan the missing pods, or return the condition that says what they wait for."""
    context, job, spec = expansion.context, expansion.job, expansion.spec
    impossible = _no_service(expansion)
    if impossible is not None:
        return impossible
    addresses = _service_addresses(expansion)
    phase = podgroup.unadmitted_phase(context, job, expansion.schedulers)
    if phase is not None:
        return _waits_for_group(phase)
    if addresses is None or not scaling_rule.may_create(context, job):
        return None
    for name, position, index in missing:
        if f"{job.key.namespace}/{name}" in context.facts.observed.pods:
            continue  # a pod of another owner still has the name
        body = _pod(expansion, spec.replicas[position], index, name, addresses)
        again = "again " if expansion.memory.version else ""
        context.create_pod(
            job, body, ActionReason.POD_MISSING, f"{job.key} wants pod {name}: creating it {again}".rstrip()
        )
    return None


def _no_service(expansion: _Expansion) -> JobCondition | None:
    """Why the leader can have no Service: its name would be invalid, or the existing one has no address."""
    leader = expansion.spec.leader
    if leader is None:
        return None
    name = expansion.spec.pod_name(expansion.job, leader, 0)
    if len(name) > _LONGEST_NAME or not _SERVICE_NAME.fullmatch(name):
        rule = f"at most {_LONGEST_NAME} lower-case letters, digits and '-', a letter first"
        text = f"no service can be named {name}: {rule}"
        return JobCondition(CREATED, "SyncServiceFailed", text)
    service = expansion.context.object("v1", "Service", expansion.job.key.namespace, name)
    if nested_map(service or {}, "spec").get("clusterIP") == "None":
        text = f"service {name} is headless, so followers have no address to dial: delete it"
        return JobCondition(CREATED, "SyncServiceFailed", text)
    return None


def _waits_for_group(phase: str) -> JobCondition:
    if phase:
        return JobCondition(CREATED, "PodGroupPending", "the cluster resource is not enough")
    hint = "execute command to check the status: kubectl get pod -n volcano-system -l app=volcano-scheduler"
    return JobCondition(CREATED, "PodGroupNotInitialized", f"volcano-scheduler is maybe not running, {hint}")


def _service_addresses(expansion: _Expansion) -> ServiceAddresses | None:
    """Addresses for the pods' variables; None while the leader's Service has none (a missing Service is planned)."""
    context, job, leader = expansion.context, expansion.job, expansion.spec.leader
    clusterd = context.object("v1", "Service", "mindx-dl", "clusterd-grpc-svc")
    clusterd_ip = str(nested_map(clusterd or {}, "spec").get("clusterIP") or CLUSTERD_DOMAIN)
    if leader is None:
        return ServiceAddresses("", "", clusterd_ip, job.uid)
    name = expansion.spec.pod_name(job, leader, 0)
    service = context.object("v1", "Service", job.key.namespace, name)
    if service is None:
        message = f"{job.key}: creating its service; the pods follow once the service has an address"
        context.create_object(job, _service(expansion, leader, name), ActionReason.SERVICE_MISSING, message)
        return None
    address = str(nested_map(service, "spec").get("clusterIP") or "")
    if address in ("", "None"):
        return None
    return ServiceAddresses(address, _service_port(service, leader), clusterd_ip, job.uid)


def _service_port(service: Mapping[str, Any], leader: ReplicaSpec) -> str:
    listed = nested_list(service, "spec", "ports")
    named = next((row.get("port") for row in listed if row.get("name") == PORT_NAME), None)
    return str(named or port_of(leader))


def _service(expansion: _Expansion, leader: ReplicaSpec, name: str) -> dict[str, Any]:
    labels = _labels(expansion.job, leader, 0)
    row = container(pod_spec(leader.template), ASCEND) or {}
    listed = [
        {"name": p["name"], "port": p["containerPort"], "protocol": str(p.get("protocol") or "TCP")}
        for p in ports(row)
        if p.get("name")
    ]
    if not any(p["name"] == PORT_NAME for p in listed):
        listed.append({"name": PORT_NAME, "port": port_of(leader), "protocol": "TCP"})
    metadata: dict[str, Any] = {"name": name, "namespace": expansion.job.key.namespace, "labels": labels}
    owners = expansion.job.owner_references()
    if owners:
        metadata["ownerReferences"] = owners
    spec = {"selector": labels, "ports": sorted(listed, key=lambda p: str(p["name"]))}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _labels(job: JobObject, replica: ReplicaSpec, index: int) -> dict[str, str]:
    return {
        "group-name": _GROUP,
        JOB_NAME_LABEL: job.key.name,
        REPLICA_INDEX: str(index),
        REPLICA_TYPE: replica.lower,
        KUBEFLOW_JOB_NAME: job.key.name,
        KUBEFLOW_OPERATOR_NAME: _OPERATOR,
        KUBEFLOW_REPLICA_INDEX: str(index),
        KUBEFLOW_REPLICA_TYPE: replica.lower,
    }


def _pod(
    expansion: _Expansion, replica: ReplicaSpec, index: int, name: str, addresses: ServiceAddresses
) -> dict[str, Any]:
    job, spec = expansion.job, expansion.spec
    labels = {**_labels(job, replica, index), VERSION_LABEL: str(expansion.memory.version)}
    if replica.type != WORKER:
        labels[KUBEFLOW_JOB_ROLE] = "master"
    annotations = {VOLCANO_TASK_SPEC: replica.lower, RANK_INDEX: str(spec.rank(replica, index))}
    if podgroup.starts_together(expansion.context, expansion.schedulers):
        annotations[GROUP_NAME] = podgroup.name_of(job)
    body = pod(job, replica.template, name, labels=labels, annotations=annotations)
    inner = body["spec"]
    inner["restartPolicy"] = "Never" if replica.restart_policy == "ExitCode" else replica.restart_policy
    inner["schedulerName"] = spec.scheduler_of(replica, expansion.context.default_scheduler)
    if replica.type != WORKER:
        _add_port(container(inner, ASCEND) or {})
    inject(body, spec, replica, index, addresses)
    return body


def _add_port(row: dict[str, Any]) -> None:
    if not any(p.get("name") == PORT_NAME for p in ports(row)):
        row["ports"] = [*(row.get("ports") or []), {"name": PORT_NAME, "containerPort": 2222, "protocol": "TCP"}]


def _clean_up(context: ExpansionContext, job: JobObject, spec: AscendSpec, end: str) -> None:
    """Clean up a finished job: pods that never started, others by cleanPodPolicy, and the PodGroup."""
    policy = str(spec.policy.get("cleanPodPolicy") or "None")
    for one in context.pods_of(job):
        going = one.phase == "Pending" or policy == "All" or (policy == "Running" and one.phase == "Running")
        if going:
            context.remove_pod(
                job, one, ActionReason.JOB_FINISHED, f"{job.key} has ended ({end}): cleaning up pod {one.name}"
            )
    if policy != "None" and spec.leader is not None:
        service = ObjectKey("v1", "Service", job.key.namespace, spec.pod_name(job, spec.leader, 0))
        context.delete(job, service, ActionReason.JOB_FINISHED, f"{job.key} has ended ({end}): cleaning up its service")
    context.delete(
        job, podgroup.key_of(job), ActionReason.JOB_FINISHED, f"{job.key} has ended ({end}): deleting its PodGroup"
    )
