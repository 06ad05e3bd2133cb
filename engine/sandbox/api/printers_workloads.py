"""Columns of pods and workloads, like pkg/printers/internalversion/printers.go of Kubernetes."""

from __future__ import annotations

from typing import Any

from belay.engine.sandbox.api.durations import human_duration
from belay.engine.sandbox.api.kinds import JSON
from belay.engine.sandbox.api.metadata import parse_time
from belay.engine.sandbox.api.printing import Age, Printer, columns, container_texts, joined, meta, selector_text


def _pod(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    containers = spec.get("containers") or ()
    statuses = status.get("containerStatuses") or ()
    restarts = sum(c.get("restartCount", 0) for c in statuses)
    gates = spec.get("readinessGates") or ()
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
    ready = sum(bool(c.get("ready")) for c in statuses)
    return [
        meta(obj)["name"],
        f"{ready}/{len(containers)}",
        _pod_reason(obj, statuses),
        str(restarts),
        age(meta(obj).get("creationTimestamp")),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"{sum(conditions.get(g.get('conditionType')) == 'True' for g in gates)}/{len(gates)}" if gates else "<none>",
    ]


def _pod_reason(obj: JSON, statuses: Any) -> str:
    status = obj.get("status") or {}
    reason: str = status.get("reason") or status.get("phase") or "Unknown"
    if any(
        c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in status.get("conditions") or ()
    ):
        reason = "SchedulingGated"
    for container in statuses:
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif terminated:
            reason = terminated.get("reason") or f"ExitCode:{terminated.get('exitCode', 0)}"
    if "deletionTimestamp" in obj["metadata"]:
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _deployment(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    names, images = container_texts((spec.get("template") or {}).get("spec") or {})
    return [
        meta(obj)["name"],
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        age(meta(obj).get("creationTimestamp")),
        names,
        images,
        selector_text(spec.get("selector")),
    ]


def _statefulset(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    names, images = container_texts((spec.get("template") or {}).get("spec") or {})
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    return [meta(obj)["name"], ready, age(meta(obj).get("creationTimestamp")), names, images]


def _replicaset(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    names, images = container_texts((spec.get("template") or {}).get("spec") or {})
    counts = [spec.get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [
        meta(obj)["name"],
        *counts,
        age(meta(obj).get("creationTimestamp")),
        names,
        images,
        selector_text(spec.get("selector")),
    ]


def _daemonset(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    names, images = container_texts(template)
    fields = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    counts = [status.get(field, 0) for field in fields]
    created = age(meta(obj).get("creationTimestamp"))
    return [
        meta(obj)["name"],
        *counts,
        joined(template.get("nodeSelector")),
        created,
        names,
        images,
        selector_text(spec.get("selector")),
    ]


def _job(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    names, images = container_texts((spec.get("template") or {}).get("spec") or {})
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
    word = next(
        (
            word
            for kind, word in (("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended"))
            if conditions.get(kind) == "True"
        ),
        "Running",
    )
    if "deletionTimestamp" in meta(obj):
        word = "Terminating"
    wanted = spec.get("completions")
    parallel = spec.get("parallelism", 1)
    total = wanted if wanted is not None else f"1 of {parallel}" if parallel > 1 else 1
    return [
        meta(obj)["name"],
        word,
        f"{status.get('succeeded', 0)}/{total}",
        age(status.get("startTime")) if status.get("startTime") and not status.get("completionTime") else _span(status),
        age(meta(obj).get("creationTimestamp")),
        names,
        images,
        selector_text(spec.get("selector")),
    ]


def _span(status: JSON) -> str:
    if not status.get("startTime") or not status.get("completionTime"):
        return ""
    return human_duration(parse_time(status["completionTime"]) - parse_time(status["startTime"]))


def _cronjob(obj: JSON, age: Age) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    last = age(status["lastScheduleTime"]) if status.get("lastScheduleTime") else "<none>"
    active = len(status.get("active") or ())
    created = age(meta(obj).get("creationTimestamp"))
    return [
        meta(obj)["name"],
        spec.get("schedule", ""),
        spec.get("timeZone") or "<none>",
        str(bool(spec.get("suspend"))),
        active,
        last,
        created,
    ]


_WORKLOAD = "Containers*|Images*|Selector*"

WORKLOAD_PRINTERS: dict[str, Printer] = {
    "pods": Printer(columns("Name|Ready|Status|Restarts|Age|IP*|Node*|Nominated Node*|Readiness Gates*"), _pod),
    "deployments.apps": Printer(
        columns(f"Name|Ready|Up-to-date:integer|Available:integer|Age|{_WORKLOAD}"), _deployment
    ),
    "statefulsets.apps": Printer(columns("Name|Ready|Age|Containers*|Images*"), _statefulset),
    "replicasets.apps": Printer(
        columns(f"Name|Desired:integer|Current:integer|Ready:integer|Age|{_WORKLOAD}"), _replicaset
    ),
    "replicationcontrollers": Printer(
        columns(f"Name|Desired:integer|Current:integer|Ready:integer|Age|{_WORKLOAD}"), _replicaset
    ),
    "daemonsets.apps": Printer(
        columns(
            f"Name|Desired:integer|Current:integer|Ready:integer|Up-to-date:integer|Available:integer|Node "
            f"Selector|Age|{_WORKLOAD}"
        ),
        _daemonset,
    ),
    "jobs.batch": Printer(columns(f"Name|Status|Completions|Duration|Age|{_WORKLOAD}"), _job),
    "cronjobs.batch": Printer(columns("Name|Schedule|Timezone|Suspend|Active:integer|Last Schedule|Age"), _cronjob),
}
"""Printers of pods and workloads, by collection."""
