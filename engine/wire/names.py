"""Names and places of the ConfigMaps that Belay and MindCluster exchange."""

from __future__ import annotations

import hashlib
from typing import Final

DEVICE_NAMESPACE: Final = "kube-system"
DEVICE_PREFIX: Final = "mindx-dl-deviceinfo-"
NODE_NAMESPACE: Final = "mindx-dl"
NODE_PREFIX: Final = "mindx-dl-nodeinfo-"
SYSTEM: Final = "belay-system"
NODES: Final = "belay-nodes"
ORDERS_PREFIX: Final = "belay-orders-"
POLICY_PREFIX: Final = "belay-policy-"
REPORT_PREFIX: Final = "belay-report-"
HISTORY_PREFIX: Final = "belay-history-"
HISTORY: Final = "belay-history"
#: The shard of everything that no pool splits off.
MAIN_SHARD: Final = "main"
LEDGER_PREFIX: Final = "belay-ledger-"
JOB_PREFIX: Final = "belay-job-"
POOL_PREFIX: Final = "belay-pool-"
SYNC: Final = "belay-sync"
#: Chips with frequency holds, so that people can end them.
MANUAL: Final = "belay-manual"
BUDGET: Final = "belay-budget"
SIM_PREFIX: Final = "belay-sim-"
SCHEDULER_NAMESPACE: Final = "volcano-system"
SCHEDULER_CONFIGMAP: Final = "volcano-scheduler-configmap"
SCHEDULER_KEY: Final = "volcano-scheduler.conf"

#: What ClusterD tells of jobs: one by one, as numbers, and what keeps them from starting.
JOB_SUMMARY_PREFIX: Final = "job-summary-"
JOB_STATISTIC: Final = "current-job-statistic"
SCHEDULING_EXCEPTIONS: Final = "scheduling-exception-report"

#: Label by which MindCluster's readers find node reports.
CIM_LABEL: Final = "mx-consumer-cim"
#: Label by which Volcano's plugin finds aggregated reports.
VOLCANO_LABEL: Final = "mx-consumer-volcano"
#: Label of ConfigMaps that tell people something: ``sync``, ``pool`` or ``job``.
ABOUT_LABEL: Final = "belay.dev/about"

#: Label of an orders ConfigMap: the node's pool, and with it the policy to follow.
POOL_LABEL: Final = "belay.dev/pool"

#: Annotation of a Volcano Job: name of the Secret with the key pair of its plugin ``ssh``, once that stands.
SSH_KEYS: Final = "belay.dev/ssh-keys"
#: Precondition of a CreateObject whose content is made at the edge: ``{"what", "for"}``.
GENERATE: Final = "generate"

_MAX_NAME = 253


def bounded(name: str) -> str:
    """A legal object name: beyond 253 characters the tail becomes a hash, so that names stay unique and stable."""
    if len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: _MAX_NAME - 17]}-{digest}"


def history_config_map(shard: str) -> str:
    """``belay-history`` of the main shard, ``belay-history.<shard>`` of another: each writes its own."""
    return HISTORY if shard == MAIN_SHARD else bounded(f"{HISTORY}.{shard}")


def job_config_map(namespace: str, kind: str, name: str) -> str:
    """``belay-job-<namespace>.<kind>.<name>`` in lower case, hashed when too long."""
    return bounded(f"{JOB_PREFIX}{namespace}.{kind.lower()}.{name}")
