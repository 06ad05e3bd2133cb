"""Job plugins of Volcano: what ``env``, ``svc`` and ``ssh`` add to a job and its pods.

Sources: github.com/volcano-sh/volcano/pkg/controllers/job/plugins/{env,svc,ssh}. Keys are made at the edge
(``engine.act.sshkeys``): nothing here may be random.
"""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any, Final

from engine.model.diagnostics import ObjectKey
from engine.plan.jobstatus import merge_patch
from engine.plan.lifecycle import Bench, Job, part
from engine.plan.podtemplate import containers, plain, set_env
from engine.plan.volcanospec import Task, VolcanoSpec
from engine.wire.names import GENERATE, SSH_KEYS

JOB_NAME: Final = "volcano.sh/job-name"
JOB_NAMESPACE: Final = "volcano.sh/job-namespace"
_PLAYED: Final = frozenset({"env", "svc", "ssh"})
_HOSTS_PATH: Final = "/etc/volcano"
_KEY_PATH: Final = "/root/.ssh"
_KEY_FILES: Final = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")
_SSH_FOLDER: Final = ".ssh"


def controlled(spec: VolcanoSpec) -> dict[str, str]:
    """``status.controlledResources``: the plugins in use."""
    return {f"plugin-{name}": name for name in spec.plugins}


def prepare(bench: Bench, job: Job, spec: VolcanoSpec) -> None:
    """Objects that the plugins keep for the whole job."""
    for name in spec.plugins:
        if name not in _PLAYED:
            bench.warn(job, f"spec.plugins.{name}", "Belay does not play this plugin; its pods run without it")
    if "svc" in spec.plugins:
        _hosts(bench, job, spec)
        _service(bench, job, spec)
    if "ssh" in spec.plugins and job.annotations.get(SSH_KEYS) != _secret(job):
        _keys(bench, job, spec)


def discard(bench: Bench, job: Job, spec: VolcanoSpec) -> None:
    """Removes what the plugins kept, once the job has ended."""
    if "svc" in spec.plugins:
        message = f"{job.key} has ended: deleting what its plugin svc made"
        bench.delete(job, ObjectKey("v1", "ConfigMap", job.key.namespace, _config_map(job)), "JobFinished", message)
        bench.delete(job, ObjectKey("v1", "Service", job.key.namespace, job.key.name), "JobFinished", message)


def furnish(bench: Bench, job: Job, spec: VolcanoSpec, pod: dict[str, Any], index: int) -> None:
    """What the plugins add to one pod."""
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


def hosts(job: Job, spec: VolcanoSpec) -> dict[str, str]:
    """Host names per task, as file and as variables."""
    out: dict[str, str] = {}
    for task in spec.tasks:
        inner = part(dict(task.template), "spec")
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


def _names(task: Task) -> tuple[str, str]:
    word = task.name.replace("-", "_").upper()
    return f"VC_{word}_HOSTS", f"VC_{word}_NUM"


def _from_config_map(job: Job, name: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"configMapKeyRef": {"name": _config_map(job), "key": name}}}


def _config_map(job: Job) -> str:
    return f"{job.key.name}-svc"


def _secret(job: Job) -> str:
    return f"{job.key.name}-ssh"


def _metadata(job: Job, name: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": job.key.namespace}
    owners = job.owner_references()
    if owners:
        metadata["ownerReferences"] = owners
    return metadata


def _hosts(bench: Bench, job: Job, spec: VolcanoSpec) -> None:
    wanted = hosts(job, spec)
    live = bench.object("v1", "ConfigMap", job.key.namespace, _config_map(job))
    if live is None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job, _config_map(job)), "data": wanted}
        bench.create_object(job, body, "HostsMissing", f"{job.key}: creating the hosts of its plugin svc")
    elif part(live, "data") != wanted:
        patch = {"data": merge_patch(part(live, "data"), wanted)}
        key = ObjectKey("v1", "ConfigMap", job.key.namespace, _config_map(job))
        bench.patch(job, key, patch, "HostsChanged", f"{job.key}: its tasks have changed, writing their hosts")


def _service(bench: Bench, job: Job, spec: VolcanoSpec) -> None:
    if bench.object("v1", "Service", job.key.namespace, job.key.name) is not None:
        return
    inner: dict[str, Any] = {
        "clusterIP": "None",
        "selector": {JOB_NAME: job.key.name, JOB_NAMESPACE: job.key.namespace},
    }
    if any(argument.lstrip("-") in _PUBLISH for argument in spec.plugins["svc"]):
        inner["publishNotReadyAddresses"] = True
    body = {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(job, job.key.name), "spec": inner}
    bench.create_object(job, body, "ServiceMissing", f"{job.key}: creating the headless service of its plugin svc")


_PUBLISH: Final = frozenset({"publish-not-ready-addresses", "publish-not-ready-addresses=true"})


def _keys(bench: Bench, job: Job, spec: VolcanoSpec) -> None:
    """The Secret of the plugin ``ssh``; its key pair is made where the action is carried out, never here."""
    lines = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
    for task in spec.tasks:
        inner = part(dict(task.template), "spec")
        domain = str(inner.get("subdomain") or job.key.name)
        for index in range(task.replicas):
            name = str(inner.get("hostname") or f"{job.key.name}-{task.name}-{index}")
            lines += [f"Host {name}", f"  HostName {name}.{domain}"]
    config = base64.b64encode(("\n".join(lines) + "\n").encode()).decode()
    body = {
        "apiVersion": "v1", "kind": "Secret", "metadata": _metadata(job, _secret(job)), "type": "Opaque",
        "data": {"config": config},
    }  # fmt: skip
    owner = {"apiVersion": job.key.api_version, "kind": job.key.kind, "name": job.key.name, "uid": job.uid}
    making = {GENERATE: {"what": "ssh-keys", "for": owner}}
    message = f"{job.key}: creating the Secret of its plugin ssh; its key pair is made when this is carried out"
    bench.create_object(job, body, "KeysMissing", message, preconditions=making)


def _key_path(spec: VolcanoSpec) -> str:
    """Where the keys are mounted: argument ``--ssh-key-file-path``, as one word or two."""
    words = [word for argument in spec.plugins["ssh"] for word in argument.replace("=", " ", 1).split()]
    found = next((after for word, after in pairwise(words) if word.lstrip("-") == "ssh-key-file-path"), "")
    return found if found.startswith("/") else _KEY_PATH


def _mount(row: dict[str, Any], name: str, path: str, folder: str = "") -> None:
    entry = {"name": name, "mountPath": path} | ({"subPath": folder} if folder else {})
    row["volumeMounts"] = [*(row.get("volumeMounts") or []), entry]


def _add_volume(inner: dict[str, Any], volume: dict[str, Any]) -> None:
    inner["volumes"] = [*(inner.get("volumes") or []), volume]
