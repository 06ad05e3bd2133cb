"""Volcano's job plugins ``pytorch``, ``tensorflow``, ``mpi``, ``ray`` and ``hcclrank``: what they add to a job's pods.

Source: github.com/volcano-sh/volcano, pkg/controllers/job/plugins/distributed-framework; the plugins that they need
besides are those of pkg/webhooks/admission/jobs/mutate (patchDefaultPlugins).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.model.labels import RANK_INDEX
from belay.engine.model.quantities import whole_number
from belay.engine.model.unstructured import nested_list, nested_map, string_map
from belay.engine.plan.jobs.pod_template import containers, plain, set_env
from belay.engine.plan.jobs.volcanojob_spec import TaskSpec, VolcanoSpec

_WAITING: Final = "wait-for-master"

_PYTORCH: Final[Mapping[str, str]] = {
    "master": "master", "worker": "worker", "port": "23456", "wait-master-enabled": "false",
    "wait-master-timeout": "300", "wait-master-image": "busybox:1.36.1",
}  # fmt: skip
_TENSORFLOW: Final[Mapping[str, str]] = {
    "ps": "ps", "worker": "worker", "chief": "chief", "evaluator": "evaluator", "port": "2222",
}  # fmt: skip
_MPI: Final[Mapping[str, str]] = {"master": "master", "worker": "worker", "port": "22"}
_RAY: Final[Mapping[str, str]] = {
    "head": "head", "headContainer": "head", "worker": "worker", "workerContainer": "worker", "port": "6379",
    "dashboardPort": "8265", "clientPort": "10001",
}  # fmt: skip
_HCCLRANK: Final[Mapping[str, str]] = {"master": "master", "worker": "worker"}
_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "pytorch": _PYTORCH, "tensorflow": _TENSORFLOW, "mpi": _MPI, "ray": _RAY, "hcclrank": _HCCLRANK,
}  # fmt: skip
_NUMBERS: Final = frozenset({"port", "wait-master-timeout", "dashboardPort", "clientPort"})


def options(spec: VolcanoSpec, plugin: str) -> dict[str, str]:
    """The arguments of a plugin over its defaults, in Go's notations: ``--name=value``, ``-name value``, ``--flag``.

    Unknown and malformed arguments are left out (``problems``).
    """
    found = dict(_DEFAULTS[plugin])
    found.update({name: value for name, value in _given(spec.plugins[plugin]) if _fits(plugin, name, value)})
    return found


def problems(spec: VolcanoSpec) -> list[tuple[str, str]]:
    """Plugins with arguments that they do not have, or without the task that they need, and what is wrong."""
    out = []
    for plugin in sorted(_DEFAULTS.keys() & spec.plugins.keys()):
        for name, value in _given(spec.plugins[plugin]):
            if not _fits(plugin, name, value):
                known = ", ".join(_DEFAULTS[plugin])
                out.append((plugin, f"argument {name[:60]}={value[:60]} is not used: it takes {known}"))
        leader = {"pytorch": "master", "ray": "head"}.get(plugin)
        if leader is not None and _task(spec, options(spec, plugin)[leader]) is None:
            name = options(spec, plugin)[leader]
            out.append((plugin, f"the job has no task {name}: name it with --{leader}, or its pods get nothing"))
    return out


def apply(spec: VolcanoSpec, job: str, task: TaskSpec, pod: dict[str, Any], index: int) -> None:
    """Add variables, ports, commands and the rank to one pod of ``task``."""
    if "pytorch" in spec.plugins:
        _pytorch(spec, job, task, pod, index)
    if "tensorflow" in spec.plugins:
        _tensorflow(spec, job, task, pod, index)
    if "mpi" in spec.plugins:
        _mpi(spec, job, task, pod)
    if "ray" in spec.plugins:
        _ray(spec, job, task, pod)
    if "hcclrank" in spec.plugins:
        _hcclrank(spec, task, pod, index)


def head_ports(spec: VolcanoSpec) -> list[tuple[str, int]]:
    """Names and numbers of the ports of a Ray head."""
    given = options(spec, "ray")
    return [
        ("gcs", int(given["port"])), ("dashboard", int(given["dashboardPort"])),
        ("client-server", int(given["clientPort"])),
    ]  # fmt: skip


def addresses(task: TaskSpec, job: str) -> list[str]:
    """Host names of a task's pods under the headless Service of plugin ``svc``; one for a task with a host name."""
    inner = nested_map(dict(task.template), "spec")
    domain = str(inner.get("subdomain") or job)
    if inner.get("hostname"):
        return [f"{inner['hostname']}.{domain}"] if task.replicas else []
    return [f"{job}-{task.name}-{index}.{domain}" for index in range(task.replicas)]


def _pytorch(spec: VolcanoSpec, job: str, task: TaskSpec, pod: dict[str, Any], index: int) -> None:
    given = options(spec, "pytorch")
    master = _task(spec, given["master"])
    if master is None:
        return
    address, port = (addresses(master, job) or [f"{job}-{master.name}-0.{job}"])[0], int(given["port"])
    ranks = {given["master"]: "0", given["worker"]: str(index + 1)}
    total = sum(one.replicas for one in spec.tasks if one.name in ranks)
    variables = [plain("MASTER_ADDR", address), plain("MASTER_PORT", port), plain("WORLD_SIZE", total)]
    if task.name in ranks:
        variables.append(plain("RANK", "0" if task.name == given["master"] else str(index + 1)))
    for row in containers(pod["spec"]):
        _open(row, "pytorchjob-port", port)
        set_env(row, variables)
    if task.name == given["worker"] and given["wait-master-enabled"] == "true":
        _wait_for(pod["spec"], address, port, int(given["wait-master-timeout"]), given["wait-master-image"])


def _wait_for(inner: dict[str, Any], address: str, port: int, seconds: int, image: str) -> None:
    """An init container that ends when the master answers, and fails after the timeout."""
    if any(row.get("name") == _WAITING for row in containers(inner, "initContainers")):
        return
    script = (
        f"left={seconds}; until nc -z {address} {port} 2>/dev/null; do "
        f'[ "$left" -gt 0 ] || {{ echo "{address}:{port} does not answer within {seconds} s"; exit 1; }}; '
        "left=$((left - 2)); sleep 2; done"
    )
    row = {"name": _WAITING, "image": image, "command": ["sh", "-c", script]}
    inner["initContainers"] = [*(inner.get("initContainers") or []), row]


def _tensorflow(spec: VolcanoSpec, job: str, task: TaskSpec, pod: dict[str, Any], index: int) -> None:
    if len(spec.tasks) == 1 and spec.tasks[0].replicas == 1:
        return  # one pod needs no cluster
    given = options(spec, "tensorflow")
    roles = {given[role]: role for role in ("ps", "worker", "chief", "evaluator")}
    cluster = {}
    for role in ("ps", "worker", "chief", "evaluator"):
        hosts = [f"{host}:{given['port']}" for one in spec.tasks if one.name == given[role]
                 for host in addresses(one, job)]  # fmt: skip
        if hosts:
            cluster[role] = hosts
    config = {"cluster": cluster, "task": {"type": roles.get(task.name, task.name), "index": index}}
    for row in containers(pod["spec"]):
        set_env(row, [plain("TF_CONFIG", msgspec.json.encode(config).decode())])


def _mpi(spec: VolcanoSpec, job: str, task: TaskSpec, pod: dict[str, Any]) -> None:
    given = options(spec, "mpi")
    workers = _task(spec, given["worker"])
    leads = task.name == given["master"]
    if leads and workers is None:
        return
    for row in [*containers(pod["spec"], "initContainers"), *containers(pod["spec"])]:
        _open(row, "mpijob-port", int(given["port"]))
        if leads and workers is not None:
            set_env(row, [plain("MPI_HOST", ",".join(addresses(workers, job)))])


def _ray(spec: VolcanoSpec, job: str, task: TaskSpec, pod: dict[str, Any]) -> None:
    given = options(spec, "ray")
    head = _task(spec, given["head"])
    if head is None:
        return
    for row in containers(pod["spec"]):
        if task.name == given["head"] and row.get("name") == given["headContainer"]:
            for name, port in head_ports(spec):
                _open(row, name, port)
            command = (
                f"ray start --head --block --dashboard-host=0.0.0.0 --port={given['port']} "
                f"--dashboard-port={given['dashboardPort']} --ray-client-server-port={given['clientPort']}"
            )
            row["command"] = ["sh", "-c", command]
        elif task.name == given["worker"] and row.get("name") == given["workerContainer"]:
            address = (addresses(head, job) or [f"{job}-{head.name}-0.{job}"])[0]
            row["command"] = ["sh", "-c", f"ray start --block --address={address}:{given['port']}"]


def _hcclrank(spec: VolcanoSpec, task: TaskSpec, pod: dict[str, Any], index: int) -> None:
    """The rank: the template's, else variable ``RANK``, else by the tasks of masters and workers."""
    given = options(spec, "hcclrank")
    annotations = pod["metadata"].setdefault("annotations", {})
    own = string_map(nested_map(dict(task.template), "metadata", "annotations")).get(RANK_INDEX)
    variables = (e for row in containers(pod["spec"]) for e in nested_list(row, "env") if e.get("name") == "RANK")
    rank = own or next((str(e["value"]) for e in variables if e.get("value")), "")
    if not rank and task.name == given["master"]:
        rank = str(index)
    elif not rank and task.name == given["worker"]:
        masters = _task(spec, given["master"])
        rank = str((masters.replicas if masters is not None else 0) + index)
    if rank:
        annotations[RANK_INDEX] = rank


def _open(row: dict[str, Any], name: str, port: int) -> None:
    """Open a container's port unless it is open."""
    if not any(one.get("containerPort") == port for one in nested_list(row, "ports")):
        row["ports"] = [*(row.get("ports") or []), {"name": name, "containerPort": port, "protocol": "TCP"}]


def _task(spec: VolcanoSpec, name: str) -> TaskSpec | None:
    return next((task for task in spec.tasks if task.name == name), None)


def _given(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Names and values of Go flags; one without a value is ``true``."""
    words = [word for argument in arguments for word in argument.split()]
    out: list[tuple[str, str]] = []
    position = 0
    while position < len(words):
        name, equals, value = words[position].lstrip("-").partition("=")
        position += 1
        if not equals and position < len(words) and not words[position].startswith("-"):
            value, position = words[position], position + 1
        out.append((name, value or "true"))
    return out


def _fits(plugin: str, name: str, value: str) -> bool:
    if name not in _DEFAULTS[plugin]:
        return False
    if name in _NUMBERS:
        return 0 < (whole_number(value, digits=5) or 0) < 65_536
    return name != "wait-master-enabled" or value in ("true", "false")
