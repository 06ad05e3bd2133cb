"""Volcano's job plugins: what ``env``, ``svc``, ``ssh`` and those of frameworks add to a job and its pods.

Sources: github.com/volcano-sh/volcano/pkg/controllers/job/plugins/{env,svc,ssh}. Key pairs are generated when the
action is carried out (``belay.engine.act.ssh_keys``), since the planner must not use random numbers.
"""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any, Final

from belay.engine.gangs.job_status import merge_patch
from belay.engine.model.actions import (
    Generate,
    OwnerReference,
)
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import SSH_KEYS, VOLCANO_JOB_NAME, VOLCANO_JOB_NAMESPACE, VOLCANO_TASK_SPEC
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.jobs import volcanojob_frameworks as frameworks
from belay.engine.plan.jobs.lifecycle import ExpansionContext, JobObject
from belay.engine.plan.jobs.pod_template import containers, plain, set_env
from belay.engine.plan.jobs.volcanojob_spec import TaskSpec, VolcanoSpec

_HOSTS_PATH: Final = "/etc/volcano"
_KEY_PATH: Final = "/root/.ssh"
_KEY_FILES: Final = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")
_SSH_FOLDER: Final = ".ssh"


def controlled_resources(spec: VolcanoSpec) -> dict[str, str]:
    """``status.controlledResources``: the plugins in use."""
    return {f"plugin-{name}": name for name in spec.plugins if name != "hcclrank"}


def prepare(context: ExpansionContext, job: JobObject, spec: VolcanoSpec) -> None:
    """Plan the objects that the plugins keep for the whole job."""
    for name, wrong in frameworks.problems(spec):
        context.warn(job, f"spec.plugins.{name}", wrong, PassCode.FIELD_IGNORED)
    if "svc" in spec.plugins:
        _hosts(context, job, spec)
        _service(context, job, spec)
    if "ssh" in spec.plugins and job.annotations.get(SSH_KEYS) != _secret(job):
        _keys(context, job, spec)
    if "ray" in spec.plugins:
        _head_service(context, job, spec)


def discard(context: ExpansionContext, job: JobObject, spec: VolcanoSpec) -> None:
    """Delete the plugins' objects of a job that has ended."""
    if "svc" in spec.plugins:
        message = f"{job.key} has ended: deleting what its plugin svc made"
        context.delete(
            job, ObjectKey("v1", "ConfigMap", job.key.namespace, _config_map(job)), ActionReason.JOB_FINISHED, message
        )
        context.delete(
            job, ObjectKey("v1", "Service", job.key.namespace, job.key.name), ActionReason.JOB_FINISHED, message
        )
    if "ray" in spec.plugins:
        message = f"{job.key} has ended: deleting the Service of its Ray head"
        context.delete(job, head_service_of(job), ActionReason.JOB_FINISHED, message)


def apply_to_pod(job: JobObject, spec: VolcanoSpec, task: TaskSpec, pod: dict[str, Any], index: int) -> None:
    """Add the plugins' variables, ports, commands, mounts and volumes to one pod of a task."""
    frameworks.apply(spec, job.key.name, task, pod, index)
    inner = pod["spec"]
    rows = [*containers(inner), *containers(inner, "initContainers")]
    if "env" in spec.plugins:
        for row in rows:
            set_env(row, [plain("VK_TASK_INDEX", index), plain("VC_TASK_INDEX", index)])
    if "svc" in spec.plugins:
        inner["hostname"] = inner.get("hostname") or pod["metadata"]["name"]
        inner["subdomain"] = inner.get("subdomain") or job.key.name
        for row in rows:
            set_env(row, [_from_config_map(job, name) for task in spec.tasks for name in _names(task)])
            _mount(row, _config_map(job), _HOSTS_PATH)
        _add_volume(inner, {"name": _config_map(job), "configMap": {"name": _config_map(job)}})
    if "ssh" in spec.plugins:
        path = _key_path(spec)
        for row in rows:
            _mount(row, _secret(job), path, _SSH_FOLDER)
        items = [{"key": name, "path": f"{_SSH_FOLDER}/{name}"} for name in _KEY_FILES]
        secret = {"secretName": _secret(job), "items": items, "defaultMode": 0o600}
        _add_volume(inner, {"name": _secret(job), "secret": secret})


def head_service_of(job: JobObject) -> ObjectKey:
    """The Service of a Ray head (plugin ``ray``)."""
    return ObjectKey("v1", "Service", job.key.namespace, f"{job.key.name}-head-svc")


def hosts(job: JobObject, spec: VolcanoSpec) -> dict[str, str]:
    """Host names per task: contents of the host files and values of the variables."""
    out: dict[str, str] = {}
    for task in spec.tasks:
        inner = nested_map(dict(task.template), "spec")
        names = (
            [str(inner["hostname"])]
            if inner.get("hostname")
            else [f"{job.key.name}-{task.name}-{i}" for i in range(task.replicas)]
        )
        full = [f"{name}.{inner.get('subdomain') or job.key.name}" for name in names]
        hosts_name, number_name = _names(task)
        out[f"{task.name.replace('-', '_')}.host"] = "\n".join(full)
        out[hosts_name] = ",".join(full)
        out[number_name] = str(len(full))
    return dict(sorted(out.items()))


def _names(task: TaskSpec) -> tuple[str, str]:
    word = task.name.replace("-", "_").upper()
    return f"VC_{word}_HOSTS", f"VC_{word}_NUM"


def _from_config_map(job: JobObject, name: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"configMapKeyRef": {"name": _config_map(job), "key": name}}}


def _config_map(job: JobObject) -> str:
    return f"{job.key.name}-svc"


def _secret(job: JobObject) -> str:
    return f"{job.key.name}-ssh"


def _metadata(job: JobObject, name: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": job.key.namespace}
    owners = job.owner_references()
    if owners:
        metadata["ownerReferences"] = owners
    return metadata


def _hosts(context: ExpansionContext, job: JobObject, spec: VolcanoSpec) -> None:
    wanted = hosts(job, spec)
    live = context.object("v1", "ConfigMap", job.key.namespace, _config_map(job))
    if live is None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job, _config_map(job)), "data": wanted}
        context.create_object(job, body, ActionReason.HOSTS_MISSING, f"{job.key}: creating the hosts of its plugin svc")
    elif nested_map(live, "data") != wanted:
        patch = {"data": merge_patch(nested_map(live, "data"), wanted)}
        key = ObjectKey("v1", "ConfigMap", job.key.namespace, _config_map(job))
        context.patch(
            job, key, patch, ActionReason.HOSTS_CHANGED, f"{job.key}: its tasks have changed, writing their hosts"
        )


def _service(context: ExpansionContext, job: JobObject, spec: VolcanoSpec) -> None:
    if context.object("v1", "Service", job.key.namespace, job.key.name) is not None:
        return
    inner: dict[str, Any] = {
        "clusterIP": "None",
        "selector": {VOLCANO_JOB_NAME: job.key.name, VOLCANO_JOB_NAMESPACE: job.key.namespace},
    }
    if any(argument.lstrip("-") in _PUBLISH for argument in spec.plugins["svc"]):
        inner["publishNotReadyAddresses"] = True
    body = {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(job, job.key.name), "spec": inner}
    context.create_object(
        job, body, ActionReason.SERVICE_MISSING, f"{job.key}: creating the headless service of its plugin svc"
    )


def _head_service(context: ExpansionContext, job: JobObject, spec: VolcanoSpec) -> None:
    key = head_service_of(job)
    if context.object("v1", "Service", key.namespace, key.name) is not None:
        return
    head = frameworks.options(spec, "ray")["head"]
    ports = [
        {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
        for name, port in frameworks.head_ports(spec)
    ]
    selector = {VOLCANO_JOB_NAME: job.key.name, VOLCANO_JOB_NAMESPACE: job.key.namespace, VOLCANO_TASK_SPEC: head}
    inner = {"selector": selector, "ports": ports}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(job, key.name), "spec": inner}
    context.create_object(job, body, ActionReason.SERVICE_MISSING, f"{job.key}: creating the Service of its Ray head")


_PUBLISH: Final = frozenset({"publish-not-ready-addresses", "publish-not-ready-addresses=true"})


def _keys(context: ExpansionContext, job: JobObject, spec: VolcanoSpec) -> None:
    """Plan the Secret of plugin ``ssh``; its key pair is generated when the action is carried out."""
    lines = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
    for task in spec.tasks:
        inner = nested_map(dict(task.template), "spec")
        domain = str(inner.get("subdomain") or job.key.name)
        for index in range(task.replicas):
            name = str(inner.get("hostname") or f"{job.key.name}-{task.name}-{index}")
            lines += [f"Host {name}", f"  HostName {name}.{domain}"]
    config = base64.b64encode(("\n".join(lines) + "\n").encode()).decode()
    body = {
        "apiVersion": "v1", "kind": "Secret", "metadata": _metadata(job, _secret(job)), "type": "Opaque",
        "data": {"config": config},
    }  # fmt: skip
    owner = OwnerReference(job.key.api_version, job.key.kind, job.key.name, job.uid)
    message = f"{job.key}: creating the Secret of its plugin ssh; its key pair is generated when this is carried out"
    context.create_object(job, body, ActionReason.KEYS_MISSING, message, generate=Generate("ssh-keys", owner))


def _key_path(spec: VolcanoSpec) -> str:
    """Where the keys are mounted: argument ``--ssh-key-file-path``, with ``=`` or a space."""
    words = [word for argument in spec.plugins["ssh"] for word in argument.replace("=", " ", 1).split()]
    found = next((after for word, after in pairwise(words) if word.lstrip("-") == "ssh-key-file-path"), "")
    return found if found.startswith("/") else _KEY_PATH


def _mount(row: dict[str, Any], name: str, path: str, folder: str = "") -> None:
    entry = {"name": name, "mountPath": path} | ({"subPath": folder} if folder else {})
    row["volumeMounts"] = [*(row.get("volumeMounts") or []), entry]


def _add_volume(inner: dict[str, Any], volume: dict[str, Any]) -> None:
    inner["volumes"] = [*(inner.get("volumes") or []), volume]
