"""``job-summary-<job>`` in the job's namespace: a job's state and rank table for other components, in ClusterD's form.

What must last (when the job was first seen and deleted, its last state) is read back from the ConfigMaps, as ClusterD
does; no decision depends on it. Sources: component/clusterd/pkg/domain/job/{job_cm_util,
job_util}.go, pkg/domain/pod/pod_util.go (ConstructRankTableByPod), docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from belay.engine.gangs.forming import declared_rank, parse_min_available
from belay.engine.gangs.grouping import group
from belay.engine.gangs.owners import POD_GROUP_APIS, controller_of, labels_of, tasks_of
from belay.engine.model.cluster import Node, Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import (
    BACKUP_SOURCE_POD,
    CUSTOM_JOB_ID,
    CUSTOM_JOB_KEY,
    FRAMEWORK_LABEL,
    IS_SHARED_TOR,
    MANAGED_BY,
    NPU,
    OUTSIDE_JOB_INFO,
    POD_TYPE,
    PRODUCT_SERIAL,
    RING_CONTROLLER,
    SHARED_TOR_IP,
)
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache
from belay.engine.model.unstructured import nested_list
from belay.engine.status.bodies import MAX_BYTES, config_map
from belay.engine.wire import podannotations
from belay.engine.wire.gojson import go_json
from belay.engine.wire.names import JOB_SUMMARY_PREFIX as PREFIX
from belay.engine.wire.names import bounded
from belay.engine.wire.ranktable import INITIALIZING, RankTablePod, TableError, build

PENDING, RUNNING, COMPLETE, FAILED = "pending", "running", "complete", "failed"
#: Seconds for which the summary of a deleted job is kept.
KEPT: Final = 60
_ATLAS: Final = {RING_CONTROLLER: "ascend-910"}
_NEW: Final = go_json(INITIALIZING)
#: Owners whose pods form jobs; a bare pod is not a job.
_KINDS: Final = frozenset({"AscendJob", "Job", "Deployment", "StatefulSet", "PodGroup"})
_TABLES: Final = CacheKey("rank tables of summaries", Memo[tuple[bool, list[str], int]], limit=16384)


class JobSummary(NamedTuple):
    """One job's summary: the parts of its rank table, and the data that all parts share."""

    id: str
    namespace: str
    name: str
    status: str
    parts: tuple[str, ...]
    data: dict[str, str]
    cards: int
    npu: bool

    def bodies(self) -> Iterator[dict[str, Any]]:
        """Return the ConfigMaps of the summary, one for each part of the rank table."""
        labels = {OUTSIDE_JOB_INFO: "true", **({} if self.npu else _ATLAS)}
        for index, table in enumerate(self.parts):
            tail = f"-{index}" if index else ""
            data = {**self.data, "hccl.json": table, "cm_index": str(index), "total": str(len(self.parts))}
            yield config_map(self.namespace, bounded(f"{PREFIX}{self.name}{tail}"), data, labels)


#: Most digits of a part's index.
MAX_INDEX: Final = 6


def job_summaries(observed: Observed, now: float, cache: PlanCache | None = None) -> list[JobSummary]:
    """Summaries of all jobs that request chips, by namespace and name, and of those deleted a moment ago."""
    cache = cache or PlanCache()
    gangs, gang_of = group(observed, cache)
    ended: dict[str, list[Pod]] = {}
    for key, name in gang_of.items():
        if observed.pods[key].finished:
            ended.setdefault(name, []).append(observed.pods[key])
    published, tables = _published(observed), _published_tables(observed)
    found: dict[tuple[str, str], JobSummary] = {}
    for key, gang in gangs.items():
        pods = _own_pods([observed.pods[pod] for pod in gang.pods] + ended.get(key, []))
        if gang.kind in _KINDS and gang.uid and any(pod.count for pod in pods):
            place = (gang.namespace, gang.name)
            found.setdefault(place, _summary(gang, pods, published.get(place, {}), observed, now, cache))
    for summary in _waiting(observed, published, now):
        found.setdefault((summary.namespace, summary.name), summary)
    for place, old in sorted(published.items()):
        if place not in found:
            gone = _gone(place, old, observed, now, tables.get(place, (_NEW,)))
            if gone is not None:
                found[place] = gone
    return [found[place] for place in sorted(found)]


def published_summaries(observed: Observed) -> list[tuple[str, str]]:
    """Namespace and name of Belay's summaries in the cluster."""
    return [(key.namespace, key.name) for key, _ in _owned(observed)]


def status_of(gang: Gang, pods: Sequence[Pod], before: str) -> str:
    """A job's state by its pods, the first rule that fits; where none does, a job that ran has failed."""
    last = FAILED if before == RUNNING else before
    if not pods:
        return last
    least = max(gang.min_available, parse_min_available(gang.annotations) or 0)
    phases = {pod.phase for pod in pods}
    if "Failed" in phases:
        return FAILED
    if phases == {"Succeeded"} and len(pods) >= least:
        return COMPLETE
    up = all(p.phase == "Succeeded" or (p.phase == "Running" and podannotations.is_allocated(p)) for p in pods)
    return RUNNING if up and len(pods) >= least > 0 else last


def _ended(status: str, old: Mapping[str, str], now: float) -> dict[str, str]:
    """``deleteTime`` of a job that has failed or is complete: since when; nothing for others."""
    if status not in (COMPLETE, FAILED):
        return {}
    since = old.get("deleteTime") if old.get("job_status") == status else None
    return {"deleteTime": since or str(int(now))}


def _own_pods(pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """Pods in rank order, without the backups of a hot switch whose source still exists."""
    names = {pod.name for pod in pods}
    own = [p for p in pods if p.annotations.get(POD_TYPE) != "backup"
           or p.annotations.get(BACKUP_SOURCE_POD) not in names]  # fmt: skip
    return tuple(sorted(own, key=lambda pod: (declared_rank(pod) if declared_rank(pod) is not None else -1, pod.name)))


def _summary(
    gang: Gang, pods: tuple[Pod, ...], old: Mapping[str, str], observed: Observed, now: float, cache: PlanCache
) -> JobSummary:
    known = old if old.get("job_id") == gang.uid and old.get("operator") != "delete" else {}
    status = status_of(gang, pods, known.get("job_status", PENDING))
    resource = next((pod.resource for pod in pods if pod.count), "")
    nodes = tuple(observed.nodes.get(pod.node) for pod in pods)
    whole, parts, cards = cache[_TABLES].of(gang.key, (gang, pods, nodes), partial(_table, gang, pods, nodes, resource))
    framework = _framework(gang, pods, observed)
    data = {
        "job_id": gang.uid,
        "job_name": gang.name,
        "framework": framework,
        "job_status": status,
        "operator": "add",
        "time": known.get("time") or str(int(now)),
        "sid": _sid(gang),
        **_ended(status, known, now),
    }
    if framework == "pytorch":
        data["sharedTorIp"] = _shared_switches(pods) if whole else known.get("sharedTorIp", "")
        data["masterAddr"] = _master(gang, pods, observed) if whole else known.get("masterAddr", "")
    npu = resource == NPU
    return JobSummary(gang.uid, gang.namespace, gang.name, status, tuple(parts), data, cards, npu)


def _waiting(
    observed: Observed, published: Mapping[tuple[str, str], Mapping[str, str]], now: float
) -> Iterator[JobSummary]:
    """Jobs that have only a PodGroup so far."""
    for key, raw in observed.objects.items():
        owner = controller_of(raw) if key.kind == "PodGroup" and key.api_version in POD_GROUP_APIS else {}
        uid, name = str(owner.get("uid") or ""), str(owner.get("name") or "")
        old = published.get((key.namespace, name), {})
        if (
            not uid
            or owner.get("kind") not in _KINDS
            or (old.get("job_id") == uid and old.get("job_status") != PENDING)
        ):
            continue
        labels = labels_of(raw)
        named = labels.get(CUSTOM_JOB_KEY)
        sid = (labels.get(named, "") if named else "") or labels.get(CUSTOM_JOB_ID) or uid
        data = {
            "job_id": uid, "job_name": name, "framework": labels.get(FRAMEWORK_LABEL, ""), "job_status": PENDING,
            "operator": "add", "time": (old.get("time") if old.get("job_id") == uid else None) or str(int(now)),
            "sid": sid,
        }  # fmt: skip
        yield JobSummary(uid, key.namespace, name, PENDING, (_NEW,), data, 0, False)


def _gone(
    place: tuple[str, str], old: Mapping[str, str], observed: Observed, now: float, table: tuple[str, ...]
) -> JobSummary | None:
    """The summary of a job without pods: kept while the job exists, then marked as deleted for ``KEPT`` seconds.

    A deleted job keeps its last ``table``, where its readers look up which chips it had.
    """
    live = any(
        key.kind in _KINDS and (key.namespace, key.name) == place
        and str((raw.get("metadata") or {}).get("uid")) == old.get("job_id")
        for key, raw in observed.objects.items()
    )  # fmt: skip
    before = old.get("job_status", PENDING)
    shared = {k: v for k, v in old.items() if k not in ("hccl.json", "cm_index", "total", "deleteTime")}
    if live:
        status = FAILED if before == RUNNING else before
        data = {**shared, "job_status": status, **_ended(status, old, now)}
        return JobSummary(old.get("job_id", ""), *place, status, (_NEW,), data, 0, False)
    deleted = _seconds(old.get("deleteTime")) if old.get("operator") == "delete" else int(now)
    if now >= deleted + KEPT:
        return None
    status = before if before == COMPLETE else FAILED
    data = {**shared, "job_status": status, "operator": "delete", "deleteTime": str(deleted)}
    return JobSummary(old.get("job_id", ""), *place, status, table, data, 0, False)


def _table(
    gang: Gang, pods: tuple[Pod, ...], nodes: tuple[Node | None, ...], resource: str
) -> tuple[bool, list[str], int]:
    """Whether all pods have their chips, the parts of the table, and how many chips there are."""
    ready = sum(podannotations.is_allocated(pod) for pod in pods)
    members = [(pod, node, found) for pod, node in zip(pods, nodes, strict=True) if (found := _configured(pod))]
    whole = bool(members) and ready >= max(1, gang.min_available)
    cards = sum(len(found.devices) for _, _, found in members)
    base: dict[str, Any] = {"status": "complete" if whole else "initializing"}
    if not members:
        return whole, [_NEW], 0
    ranks = _ranks(gang, [(pod, found) for pod, _, found in members]) if resource == NPU else {}
    alone = len({pod.node for pod, _, _ in members}) == len(members)
    servers = [_server(pod, node, found, alone) for pod, node, found in members]
    groups = _split(servers)
    tail = {"server_count": str(len(servers)), "total": len(groups)}
    parts = [go_json({**base, "server_list": part, **tail, **ranks}) for part in groups]
    return whole, parts, cards


def _configured(pod: Pod) -> podannotations.Configuration | None:
    try:
        return podannotations.configuration(pod.annotations) if pod.deleting is None else None
    except ValueError:
        return None  # the planner reports it; the summary shows what can be read


def _server(pod: Pod, node: Node | None, own: podannotations.Configuration, alone: bool) -> dict[str, Any]:
    first = (declared_rank(pod) or 0) * len(own.devices)
    devices = []
    for position, chip in enumerate(own.devices):
        row = {"device_id": chip.device_id, "device_ip": chip.device_ip, "rank_id": str(first + position)}
        if chip.super_device_id:
            row["super_device_id"] = chip.super_device_id
        devices.append(row)
    return {
        "device": devices,
        "server_id": own.host_ip if alone and own.host_ip else own.server_id,
        "host_ip": own.host_ip,
        "super_pod_id": own.super_pod_id,
        "server_name": pod.node,
        "server_sn": node.annotations.get(PRODUCT_SERIAL, "") if node is not None else "",
        "pod_name": own.pod_name or pod.name,
        "container_ids": {},
    }


def _ranks(gang: Gang, members: Sequence[tuple[Pod, podannotations.Configuration]]) -> dict[str, Any]:
    """The flat list of ranks of version 2.0, beside the servers."""
    rows_of = [
        RankTablePod(pod=p.key, node=p.node, pod_ip=p.pod_ip, rank=declared_rank(p) or 0, configuration=c)
        for p, c in members
    ]
    try:
        table = build("2.0", rows_of, scaleout=gang.options.scaleout)
    except TableError:
        return {}
    return {"version": "2.0", "rank_list": table["rank_list"], "rank_count": table["rank_count"]}


def _split(servers: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Servers in parts that each fit into a ConfigMap."""
    parts: list[list[dict[str, Any]]] = [[]]
    used = 0
    for server in servers:
        size = len(go_json(server)) + 1
        if used + size > MAX_BYTES and parts[-1]:
            parts.append([])
            used = 0
        parts[-1].append(server)
        used += size
    return parts


def _framework(gang: Gang, pods: Sequence[Pod], observed: Observed) -> str:
    """Label ``framework``, else the variable of that name in a Volcano Job's containers, in lower case."""
    named = gang.labels.get(FRAMEWORK_LABEL)
    if named:
        return named
    raw = observed.objects.get(ObjectKey(gang.api_version, gang.kind, gang.namespace, gang.name)) or {}
    for task in tasks_of(raw.get("spec") or {}):
        for row in nested_list(task, "template", "spec", "containers"):
            for variable in nested_list(row, "env"):
                if variable.get("name") == "framework" and variable.get("value"):
                    return str(variable["value"]).lower()
    return next((pod.labels[FRAMEWORK_LABEL] for pod in pods if pod.labels.get(FRAMEWORK_LABEL)), "")


def _sid(gang: Gang) -> str:
    """The job's id on the user's platform."""
    named = gang.labels.get(CUSTOM_JOB_KEY)
    return (gang.labels.get(named, "") if named else "") or gang.labels.get(CUSTOM_JOB_ID) or gang.uid


def _shared_switches(pods: Sequence[Pod]) -> str:
    found = dict.fromkeys(
        p.annotations[SHARED_TOR_IP] for p in pods
        if p.annotations.get(IS_SHARED_TOR) == "1" and p.annotations.get(SHARED_TOR_IP)
    )  # fmt: skip
    return go_json(list(found)) if found else ""


def _master(gang: Gang, pods: Sequence[Pod], observed: Observed) -> str:
    """MASTER_ADDR of an AscendJob, the address of its leader's service; a Volcano Job's first server."""
    if gang.kind != "AscendJob":
        return next((found.host_ip for pod in pods if (found := _configured(pod)) is not None), "")
    service = observed.objects.get(ObjectKey("v1", "Service", gang.namespace, f"{gang.name}-master-0")) or {}
    return str((service.get("spec") or {}).get("clusterIP") or "")


def _owned(observed: Observed) -> Iterator[tuple[ObjectKey, dict[str, Any]]]:
    for key, raw in observed.objects.items():
        if key.kind == "ConfigMap" and key.name.startswith(PREFIX) and labels_of(raw).get(MANAGED_BY) == "belay":
            yield key, raw


def _published(observed: Observed) -> dict[tuple[str, str], dict[str, str]]:
    """The data of the first part of each summary in the cluster, by the job's namespace and name."""
    found = {}
    for key, raw in _owned(observed):
        data = {str(k): str(v) for k, v in (raw.get("data") or {}).items()}
        if data.get("cm_index", "0") == "0" and data.get("job_name"):
            found[key.namespace, data["job_name"]] = data
    return found


def _seconds(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= 12 else 0


def _published_tables(observed: Observed) -> dict[tuple[str, str], tuple[str, ...]]:
    """The parts of each summary's table in the cluster, in order."""
    parts: dict[tuple[str, str], dict[int, str]] = {}
    for key, raw in _owned(observed):
        data = raw.get("data") or {}
        index, table = str(data.get("cm_index", "0")), data.get("hccl.json")
        if data.get("job_name") and table and index.isascii() and index.isdecimal() and len(index) < MAX_INDEX:
            parts.setdefault((key.namespace, str(data["job_name"])), {})[int(index)] = str(table)
    return {place: tuple(found[index] for index in sorted(found)) for place, found in parts.items()}
