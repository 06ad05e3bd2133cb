"""MindCluster's components as a cluster shows them, and what of each Belay takes over: flags, labels, ConfigMaps.

Source: the manifests and ``main.go`` files of github.com/Ascend/mind-cluster, component/*/build and component/*.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

#: A flag that Belay's part has under the same name and with the same meaning.
SAME: Final = "same"
_LOGS: Final = "logs go to standard error; kubectl logs shows them"
_PROBES: Final = "each process has its own probe; see the manifests"
_COMMON: Final = {
    "logFile": _LOGS, "logLevel": "BELAY_DEBUG, or --log-level of a process", "maxAge": _LOGS, "maxBackups": _LOGS,
    "isCompress": _LOGS, "version": "belay version", "enable-healthz": _PROBES, "healthz-address": _PROBES,
    "tls-cert-file": _PROBES, "tls-private-key-file": _PROBES,
}  # fmt: skip


class Component(NamedTuple):
    """One component: ``labels`` and ``image`` by which its pods are known, the ``step`` of the move that replaces it.

    ``role`` is the field of ``SchedulingSettings.spec.roles``; empty without one. ``flags`` are those that differ.
    """

    name: str
    step: int
    labels: tuple[tuple[str, str], ...]
    image: str
    role: str
    becomes: str
    flags: Mapping[str, str] = {}


COMPONENTS: Final = (
    Component(
        "volcano-scheduler", 1, (("app", "volcano-scheduler"),), "vc-scheduler", "schedule",
        "belay controller and belay worker place pods; volcano-scheduler-configmap keeps its meaning",
        {"scheduler-conf": "volcano-scheduler-configmap is read", "scheduler-name": "SchedulingSettings names them",
         "leader-elect": "controllers hold a Lease", "default-queue": "queue default",
         "kube-api-qps": "BELAY_IN_FLIGHT bounds the writes",
         "kube-api-burst": "BELAY_IN_FLIGHT bounds the writes",
         "percentage-nodes-to-find": "every node is looked at"},
    ),
    Component(
        "volcano-controller", 1, (("app", "volcano-controller"),), "vc-controller-manager", "expand_volcano_job",
        "belay worker expands Volcano Jobs, PodGroups, Queues, Commands",
        {"scheduler-name": "SchedulingSettings names them", "worker-threads": "passes need no number of threads",
         "leader-elect": "controllers hold a Lease"},
    ),
    Component(
        "volcano-admission", 1, (("app", "volcano-admission"),), "vc-webhook-manager", "",
        "may stay; belay validate checks documents before the push",
    ),
    Component(
        "ascend-operator", 1, (("app", "controller-manager"), ("app", "ascend-operator")), "ascend-operator",
        "expand_ascend_job", "belay worker expands AscendJobs, with environment, rank tables and Services",
        {"enableGangScheduling": "SchedulingSettings.spec.defaultScheduler: default-scheduler, where it is false",
         "kubeApiQps": "BELAY_IN_FLIGHT bounds the writes",
         "kubeApiBurst": "BELAY_IN_FLIGHT bounds the writes"},
    ),
    Component(
        "infer-operator", 1, (("app", "infer-operator"), ("control-plane", "infer-operator")), "infer-operator", "",
        "belay worker keeps inference services; no running pod changes",
        {"snapshotTimeout": "60 min"},
    ),
    Component(
        "clusterd", 2, (("app", "clusterd"),), "clusterd", "aggregate",
        "belay worker writes its ConfigMaps; belay server --grpc speaks its services",
        {"useProxy": "BELAY_GRPC_CALLERS says who may call"},
    ),
    Component(
        "ascend-device-plugin", 3, (("name", "ascend-device-plugin-ds"),), "ascend-k8sdeviceplugin", "device_report",
        "belay agent --device-plugin, under the same flags",
    ),
    Component(
        "noded", 3, (("app", "noded"),), "noded", "", "belay agent --hardware",
        {"reportInterval": SAME, "monitorPeriod": SAME, "resultMaxAge": SAME},
    ),
    Component(
        "npu-exporter", 3, (("app", "npu-exporter"), ("name", "npu-exporter")), "npu-exporter", "",
        "belay exporter, or --exporter of the agent, under the same flags",
    ),
    Component(
        "resilience-controller", 1, (("app", "resilience-controller"),), "resilience-controller", "",
        "belay worker shrinks and grows elastic jobs",
    ),
    Component(
        "rdma-shared-device-plugin", 3, (("name", "rdma-shared-dp-ds"),), "k8s-rdma-shared-dp", "", "see docs/peer.md",
    ),
)  # fmt: skip

#: ConfigMaps of MindCluster by the beginning of their names → what Belay does with them.
CONFIG_MAPS: Final[Mapping[str, str]] = {
    "volcano-scheduler-configmap": "settings of the scheduler are read",
    "mindx-dl-fault-config": "levels of chip faults are read",
    "mindx-dl-node-fault-config": "levels of node faults are read",
    "mindx-dl-deviceinfo-": "reports of device plugins are read; belay agent writes them",
    "mindx-dl-nodeinfo-": "reports of NodeD are read; belay agent writes them",
    "mindx-dl-switchinfo-": "reports of switches are read",
    "cluster-info-": "written where Belay aggregates",
    "statistic-fault-info": "written where Belay aggregates",
    "job-summary-": "written where Belay aggregates",
    "job-reschedule-reason": "written where Belay schedules",
    "vcjob-fault-npu-cm": "nodes with faults and retries left: read and written where Belay schedules",
    "tor-share-cm": "the state of switches is written where Belay schedules",
    "current-job-statistic": "written where Belay aggregates",
    "scheduling-exception-report": "written where Belay aggregates",
    "fault-job-info": "releases of super pods: written by belay server",
    "clusterd-manual-info-cm": "chips isolated by hand are read; delete a name there to end its isolation",
    "pingmesh-fault-": "public faults are read, as from any ConfigMap with their label",
    "ras-feature-": "switches and limits of the diagnosis of slow nodes are read",
    "steptime-dtpgroup": "settings of the degradation diagnosis are read by agents",
    "dpuinfo-": "reports of RDMA cards: written by belay agent",
    "reset-config-": "read and written: the conversation about resets",
    "data-trace-": "read: profiling of jobs",
    "rings-config-": "rank tables: written",
    "basic-tor-node-cm": "the plan of switches is read",
    "super-pod-": "read by agents",
    "pingmesh-config": "read by agents",
    "clusterd-config-cm": "settings of manual isolation are read",
    "infer-operator-config": "settings of inference services are read",
    "snapshot-metadata-": "container snapshots: read and written",
}


def known_flags(component: Component) -> Mapping[str, str]:
    """The flags of a component that Belay understands → ``SAME``, or what stands for them."""
    same: dict[str, str] = {}
    if component.name == "ascend-device-plugin":
        from belay.agents.kubelet.flags import FLAGS

        same = {flag.name: SAME for flag in FLAGS}
    elif component.name == "npu-exporter":
        from belay.agents.exporter.settings import FLAG_NAMES

        same = dict.fromkeys(FLAG_NAMES, SAME)
    return {**same, **_COMMON, **component.flags}


__all__ = ["COMPONENTS", "CONFIG_MAPS", "SAME", "Component", "known_flags"]
