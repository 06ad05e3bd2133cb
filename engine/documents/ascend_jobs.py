"""The validation rules of AscendJob (``mindxdl.gitee.com/v1``), all reported, in the operator's order and words.

Source: component/ascend-operator/pkg/controllers/v1 (validator) and docs/zh/scheduling/06_api/14_ascend_job.md. The
check that the queue exists needs the cluster and is the planner's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belay.engine.documents.containers import check_amounts
from belay.engine.documents.pods import check_retried, check_template
from belay.engine.documents.problems import Path, Problems
from belay.engine.documents.spelling import unknown_fields
from belay.engine.model.labels import (
    FRAMEWORK_LABEL,
    RECOVER_STRATEGY,
    SCALEOUT_TYPE,
    SCALING_GROUP,
    SCALING_RULE,
    SERVICE_JOB_ID,
)
from belay.engine.model.unstructured import nested_map

MAX_REPLICAS: Final = 20_000
MAX_NAME: Final = 63
FRAMEWORKS: Final = ("pytorch", "mindspore", "tensorflow")
LEADERS: Final[Mapping[str, str]] = {"pytorch": "Master", "tensorflow": "Chief", "mindspore": "Scheduler"}
CONTAINER: Final = "ascend"
_SPEC_FIELDS: Final = ("replicaSpecs", "runPolicy", "schedulerName", "successPolicy")
_POLICY_FIELDS: Final = (
    "activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "schedulingPolicy", "suspend",
    "ttlSecondsAfterFinished",
)  # fmt: skip
_STRATEGIES: Final = ("retry", "recover", "recover-in-place", "elastic-training", "dump", "exit")
_RESTART: Final = ("Always", "OnFailure", "Never", "ExitCode")


def replica_type(name: str) -> str:
    """The Camel-case form of a replica type: ``master`` and ``MASTER`` are ``Master``."""
    return name[:1].upper() + name[1:].lower()


def check_ascend_job(problems: Problems, body: Mapping[str, Any], name: str, labels: Mapping[str, Any]) -> None:
    """Report everything that the operator would refuse or silently ignore."""
    _check_scaling(problems, name, labels)
    _check_strategies(problems, body, labels)
    spec = problems.mapping(body, "spec", (), required=True)
    replicas = spec.get("replicaSpecs")
    if not isinstance(replicas, dict) or not replicas:
        problems.error(("spec", "replicaSpecs"), "InvalidSpecs: replicaSpecs is not set, please modify your job")
        replicas = {}
    if spec.get("successPolicy") not in (None, "", "AllWorkers"):
        message = 'job success policy is invalid, it must be one of <"", AllWorkers>'
        problems.error(("spec", "successPolicy"), f"InvalidSuccessPolicy: {message}")
    _check_run_policy(problems, spec)
    framework = _framework(problems, labels)
    service = f"{name}-{LEADERS.get(framework, 'Master').lower()}-0"
    if len(service) > MAX_NAME >= len(name):
        text = f"the job's Service {service} would be longer than {MAX_NAME} characters: give a shorter name"
        problems.error(("metadata", "name"), text)
    _check_replicas(problems, replicas, framework)
    _check_minimum(problems, spec, replicas)
    for key, replica in replicas.items():
        policy = replica.get("restartPolicy") if isinstance(replica, dict) else None
        check_retried(problems, labels, policy, ("spec", "replicaSpecs", key, "restartPolicy"))
    unknown_fields(problems, spec, _SPEC_FIELDS, ("spec",))


def _check_scaling(problems: Problems, name: str, labels: Mapping[str, Any]) -> None:
    where = ("metadata", "labels")
    if SCALING_RULE in labels:
        rule = (*where, SCALING_RULE)
        if not labels.get(SCALING_GROUP):
            text = f"job {name} has no group name, please set label of mind-cluster/group-name=<the group of job>"
            problems.error(rule, f"InvalidScalingConfig: {text}")
        if not labels.get(SERVICE_JOB_ID):
            text = f"job {name} has no jobID, please set label of jobID=<the jobID of job>"
            problems.error(rule, f"InvalidScalingConfig: {text}")
    scale_out = labels.get(SCALEOUT_TYPE)
    if isinstance(scale_out, str) and scale_out.strip().upper() not in ("", "ROCE", "UBOE"):
        text = "the value of label scaleout-type is invalid, which should be ROCE or UBOE"
        problems.error((*where, SCALEOUT_TYPE), f"InvalidScaleOutConfig: {text}")


def _check_strategies(problems: Problems, body: Mapping[str, Any], labels: Mapping[str, Any]) -> None:
    """Report words of ``recover-strategy`` that have no effect."""
    metadata = body.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    text = annotations.get(RECOVER_STRATEGY) if isinstance(annotations, dict) else None
    for word in text.split(",") if isinstance(text, str) else ():
        where: Path = ("metadata", "annotations", RECOVER_STRATEGY)
        if word.strip() not in _STRATEGIES:
            problems.warn(where, f"{word.strip()!r:.80} has no effect here: known are {', '.join(_STRATEGIES)}")
        elif word.strip() == "elastic-training" and labels.get(FRAMEWORK_LABEL) == "mindspore":
            problems.warn(where, "'elastic-training' is not supported for mindspore")


def _framework(problems: Problems, labels: Mapping[str, Any]) -> str:
    framework = labels.get(FRAMEWORK_LABEL)
    if framework is None or framework == "":
        text = "framework label is not set, please set label framework as one of <pytorch,mindspore,tensorflow>"
        problems.error(("metadata", "labels", FRAMEWORK_LABEL), f"InvalidFramework: {text}")
        return ""
    if framework not in FRAMEWORKS:
        text = f"framework label<{framework!s:.63}> is not in [{' '.join(FRAMEWORKS)}]"
        problems.error(("metadata", "labels", FRAMEWORK_LABEL), f"InvalidFramework: {text}")
        return ""
    return str(framework)


def _check_run_policy(problems: Problems, spec: Mapping[str, Any]) -> None:
    path: Path = ("spec", "runPolicy")
    policy = problems.mapping(spec, "runPolicy", ("spec",))
    problems.text(spec, "schedulerName", ("spec",))
    problems.integer(policy, "backoffLimit", path)
    problems.integer(policy, "activeDeadlineSeconds", path, minimum=0)
    problems.integer(policy, "ttlSecondsAfterFinished", path, minimum=0)
    problems.flag(policy, "suspend", path)
    problems.choice(policy, "cleanPodPolicy", path, ("", "None", "Running", "All"))
    scheduling = problems.mapping(policy, "schedulingPolicy", path)
    where = (*path, "schedulingPolicy")
    problems.integer(scheduling, "minAvailable", where, minimum=0)
    problems.text(scheduling, "queue", where)
    problems.text(scheduling, "priorityClass", where)
    amounts = problems.mapping(scheduling, "minResources", where)
    check_amounts(problems, amounts, (*where, "minResources"))
    unknown_fields(problems, policy, _POLICY_FIELDS, path)
    unknown_fields(problems, scheduling, ("minAvailable", "minResources", "priorityClass", "queue"), where)


def _check_minimum(problems: Problems, spec: Mapping[str, Any], replicas: Mapping[str, Any]) -> None:
    """Warn of a gang that is larger than its job: it would wait for ever."""
    policy = spec.get("runPolicy")
    scheduling = policy.get("schedulingPolicy") if isinstance(policy, dict) else None
    least = scheduling.get("minAvailable") if isinstance(scheduling, dict) else None
    counts = [replica.get("replicas") for replica in replicas.values() if isinstance(replica, dict)]
    if type(least) is not int or not all(count is None or type(count) is int for count in counts):
        return
    total = sum(1 if count is None else count for count in counts)
    if least > total > 0:
        where: Path = ("spec", "runPolicy", "schedulingPolicy", "minAvailable")
        problems.warn(where, f"the job would never start: it has {total} pods, fewer than minAvailable {least}")


def _check_replicas(problems: Problems, replicas: Mapping[str, Any], framework: str) -> None:
    leader = LEADERS.get(framework, "")
    allowed = [leader, "Worker"] if leader else sorted({*LEADERS.values(), "Worker"})
    seen: dict[str, str] = {}
    chips = 0
    for key, replica in replicas.items():
        path: Path = ("spec", "replicaSpecs", key)
        kind = replica_type(key)
        if kind not in allowed:
            text = f"replicaType is {key:.63} but must be one of [{' '.join(allowed)}]"
            problems.error(path, f"InvalidReplicaType: {text}", at_key=True)
        elif kind in seen:
            problems.error(path, f"InvalidReplicaType: replicaType {kind} is given twice", at_key=True)
        seen[kind] = key
        if not isinstance(replica, dict):
            text = f"{kind} replicaSpec is not set, please modify your job"
            problems.error(path, f"InvalidReplicaSpec: {text}")
            continue
        chips += _check_replica(problems, replica, kind, bool(leader) and kind == leader, path)
    if not leader or leader in seen or not replicas:
        return
    if framework == "mindspore":
        if chips > 1:
            text = "replicaSpec is not valid: when scheduler not found, the req num must be 1"
            problems.error(("spec", "replicaSpecs"), f"InvalidReplicaSpec: {text}")
        return
    text = "replicaType is not valid: there need 1 leader replicaType, Master for pytorch, Chief of tensorflow"
    problems.error(("spec", "replicaSpecs"), f"InvalidReplicaType: {text}")


def _check_replica(problems: Problems, replica: Mapping[str, Any], kind: str, leads: bool, path: Path) -> int:
    count = problems.integer(replica, "replicas", path)
    invalid = f"InvalidReplicaSpec: {kind} replicaSpec is not valid"
    if count is not None and count < 0:
        problems.error((*path, "replicas"), f"{invalid}: replicas can not be negative num, but got {count}")
    elif count is not None and count > MAX_REPLICAS:
        text = f"replicas can not be larger than {MAX_REPLICAS}, but got {count}"
        problems.error((*path, "replicas"), f"{invalid}: {text}")
    elif leads and count not in (None, 1):
        problems.error((*path, "replicas"), f"{invalid}, the replicas must be only 1")
    problems.choice(replica, "restartPolicy", path, ("", *_RESTART))
    unknown_fields(problems, replica, ("replicas", "restartPolicy", "template"), path, ("replicas",))
    template = problems.mapping(replica, "template", path)
    spec = nested_map(template, "spec")
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        problems.error((*path, "template", "spec", "containers"), f"{invalid}: containers is undefined")
        return 0
    chips = check_template(problems, template, (*path, "template"))
    _check_overwritten(problems, replica, spec, (*path, "template", "spec", "restartPolicy"))
    _check_container(problems, containers, kind, (*path, "template", "spec", "containers"))
    return chips * (1 if count is None else max(count, 0))


def _check_overwritten(problems: Problems, replica: Mapping[str, Any], pod: Mapping[str, Any], path: Path) -> None:
    """Report a template's restart policy that the replica's overwrites, by the reason of the operator's event."""
    chosen, written = replica.get("restartPolicy") or "Never", pod.get("restartPolicy")
    kept = "Never" if chosen == "ExitCode" else chosen
    if isinstance(written, str) and written not in ("", kept):
        text = f"{written:.63} is overwritten by the replica's restartPolicy, {chosen!s:.63}: write it there"
        problems.warn(path, f"SettedPodTemplateRestartPolicy: {text}")


def _check_container(problems: Problems, containers: list[Any], kind: str, path: Path) -> None:
    invalid = f"InvalidContainer: {kind} replicaSpec is not valid"
    found = False
    for index, container in enumerate(containers):
        if isinstance(container, dict) and container.get("name") == CONTAINER:
            found = True
            if not container.get("image"):
                problems[:] = [one for one in problems if one.path != (*path, index, "image")]  # said in other words
                text = "Image is undefined in the container of ascend"
                problems.error((*path, index, "image"), f"{invalid}: {text}")
    if not found:
        problems.error(path, f"{invalid}: There is no container named ascend")
