"""Names and namespaces of the ConfigMaps that Belay and MindCluster exchange."""

from __future__ import annotations

import hashlib
from typing import Final

DEVICE_NAMESPACE: Final = "kube-system"
DEVICE_PREFIX: Final = "mindx-dl-deviceinfo-"
NODE_NAMESPACE: Final = "mindx-dl"
NODE_PREFIX: Final = "mindx-dl-nodeinfo-"
DPU_PREFIX: Final = "dpuinfo-"
DPU_KEY: Final = "DpuInfoCfg"
SYSTEM: Final = "belay-system"
#: What Events name as the controller that reports them.
REPORTING_COMPONENT: Final = "belay.dev/engine"
NODES: Final = "belay-nodes"
#: Conversations with jobs, where RBAC alone bounds what a server may write (deploy/components/without-admission).
RECOVERIES: Final = "belay-recovery"
ORDERS_PREFIX: Final = "belay-orders-"
POLICY_PREFIX: Final = "belay-policy-"
REPORT_PREFIX: Final = "belay-report-"
#: Step times of a node's training jobs.
STEPS_PREFIX: Final = "belay-steps-"
#: Pings between a node's chips and others.
PINGS_PREFIX: Final = "belay-pings-"
#: What slow-node detection reported and has not ended.
SLOW_NODES: Final = "belay-slow-nodes"
#: The same of the network between chips.
SLOW_NETWORKS: Final = "belay-slow-networks"
HISTORY_PREFIX: Final = "belay-history-"
HISTORY: Final = "belay-history"
#: The shard of all pools that have no shard of their own.
MAIN_SHARD: Final = "main"
#: The pool of nodes that no ``NodePool`` selects.
DEFAULT_POOL: Final = "default"
LEDGER_PREFIX: Final = "belay-ledger-"
JOB_PREFIX: Final = "belay-job-"
POOL_PREFIX: Final = "belay-pool-"
#: Where every node and chip stands, and how the chips are; in parts, per shard.
MAP_PREFIX: Final = "belay-map-"
CHIPS_PREFIX: Final = "belay-chips-"
LINK_PREFIX: Final = "belay-link-"
#: What each queue may have, has and waits for, per shard.
QUEUES_PREFIX: Final = "belay-queues-"
QUEUES_KEY: Final = "queues.json"
#: How another shard's nodes and waiting jobs stand, for the main shard's lists of all nodes; in parts, per shard.
VIEW_PREFIX: Final = "belay-view."
SYNC: Final = "belay-sync"
#: Servers that cannot serve gRPC, and why.
SERVER: Final = "belay-server"
#: What notifications reported to whom, and receivers that take none.
NOTIFY: Final = "belay-notify"
#: Inference services whose controllers are subscribed to faults.
FAULT_SUBSCRIBERS: Final = "belay-fault-subscribers"
#: The repository that the controller follows; workers read it here and need no setting of their own.
SOURCE: Final = "belay-source"
#: Accepted revisions, a log that only grows.
REVISIONS: Final = "belay-revisions"
COMMIT: Final = "belay-commit"
#: The last pass of a shard, and what hinders the next one.
PASS: Final = "belay-pass"
#: What the API server refused, per shard.
REFUSALS: Final = "belay-refused"
#: Chips with frequency holds, so that operators can end a hold.
MANUAL: Final = "belay-manual"
BUDGET: Final = "belay-budget"
SIM_PREFIX: Final = "belay-sim-"
SCHEDULER_NAMESPACE: Final = "volcano-system"
SCHEDULER_CONFIGMAP: Final = "volcano-scheduler-configmap"
SCHEDULER_KEY: Final = "volcano-scheduler.conf"

#: ClusterD's ConfigMaps about jobs: a summary per job, counts, and why jobs cannot start.
JOB_SUMMARY_PREFIX: Final = "job-summary-"
JOB_STATISTIC: Final = "current-job-statistic"
SCHEDULING_EXCEPTIONS: Final = "scheduling-exception-report"


_MAX_NAME = 253


def bounded(name: str) -> str:
    """A valid object name: beyond 253 characters a hash replaces the tail, so that names stay unique and stable."""
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: _MAX_NAME - 17]}-{digest}"


def history_config_map(shard: str) -> str:
    """``belay-history`` of the main shard, ``belay-history.<shard>`` of another shard."""
    return HISTORY if shard == MAIN_SHARD else bounded(f"{HISTORY}.{shard}")


def sync_config_map(shard: str) -> str:
    """``belay-sync`` of the main shard, ``belay-sync.<shard>`` of another shard."""
    return SYNC if shard == MAIN_SHARD else bounded(f"{SYNC}.{shard}")


def source_config_map(shard: str) -> str:
    """``belay-source`` of the main shard, ``belay-source.<shard>`` of another shard."""
    return SOURCE if shard == MAIN_SHARD else bounded(f"{SOURCE}.{shard}")


def revisions_config_map(shard: str) -> str:
    """``belay-revisions`` of the main shard, ``belay-revisions.<shard>`` of another shard."""
    return REVISIONS if shard == MAIN_SHARD else bounded(f"{REVISIONS}.{shard}")


def commit_config_map(shard: str) -> str:
    """``belay-commit`` of the main shard, ``belay-commit.<shard>`` of another shard."""
    return COMMIT if shard == MAIN_SHARD else bounded(f"{COMMIT}.{shard}")


def refusals_config_map(shard: str) -> str:
    """``belay-refused`` of the main shard, ``belay-refused.<shard>`` of another shard."""
    return REFUSALS if shard == MAIN_SHARD else bounded(f"{REFUSALS}.{shard}")


def job_config_map(namespace: str, kind: str, name: str) -> str:
    """``belay-job-<namespace>.<kind>.<name>`` in lower case, hashed when too long."""
    return bounded(f"{JOB_PREFIX}{namespace}.{kind.lower()}.{name}")
