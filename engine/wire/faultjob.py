"""``cluster-system/fault-job-info``: the super devices that the other nodes of a job must release after a fault.

For process-level recovery on A3 super pods; NodeD on every node reads it. Source: ClusterD (domain/job)
and docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from belay.engine.wire.gojson import go_json

NAME: Final = "fault-job-info"
NAMESPACE: Final = "cluster-system"


class JobServer(NamedTuple):
    """A node of the job: its super pod (below 0: none) and the super device ids of all its chips, in their order."""

    node: str
    super_pod: int
    devices: tuple[str, ...]


def release_entry(job: str, servers: Sequence[JobServer], faulty: Collection[str], now: int) -> str:
    """The job's entry; empty if there is nothing to release.

    One row for each super pod with a faulty node: the devices of its faulty nodes, and the job's other nodes in it.
    The entry is empty if a node is in no super pod, or if no healthy node is left.

    Args:
        servers: the nodes of the job, in rank order.
        faulty: names of the nodes whose processes have been abandoned.
        now: Unix seconds.
    """
    if any(server.super_pod < 0 for server in servers) or all(server.node in faulty for server in servers):
        return ""
    devices: dict[int, list[str]] = {}
    others: dict[int, list[str]] = {}
    for server in servers:
        if server.node in faulty:
            devices.setdefault(server.super_pod, []).extend(server.devices)
        else:
            others.setdefault(server.super_pod, []).append(server.node)
    rows = {
        str(pod): {"SdIds": devices[pod], "NodeNames": others.get(pod), "FaultTimes": now, "JobId": job}
        for pod in sorted(devices, key=str)
        if devices[pod]
    }
    return go_json(rows) if rows else ""


def entries_of_known_jobs(data: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """The entries of jobs that still exist."""
    return {job: text for job, text in data.items() if job in known}


__all__ = ["NAME", "NAMESPACE", "JobServer", "entries_of_known_jobs", "release_entry"]
