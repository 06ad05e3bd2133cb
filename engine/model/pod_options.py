"""What pods say for themselves by labels and annotations, each read in one place.

A pod is asked for one or two of these, so each is a function. What a whole job says is in ``job_options``.

Source: MindCluster, component/ascend-operator/pkg/api/v1; component/clusterd/pkg/common/constant/constant.go.
"""

from __future__ import annotations

from belay.engine.model.cluster import Pod
from belay.engine.model.labels import (
    BACKUP_SOURCE_POD,
    FAULT_TYPE,
    KUBEFLOW_REPLICA_TYPE,
    NEED_OPERATOR,
    NEED_VOLCANO,
    POD_STATUS_LABEL,
    POD_TYPE,
    REPLICA_TYPE,
    SNAPSHOT_FINISHED,
    SUPER_POD_RANK,
)
from belay.engine.model.quantities import whole_number


def is_backup(pod: Pod) -> bool:
    """Whether the pod was made to take over from one that runs."""
    return pod.annotations.get(POD_TYPE) == "backup"


def backup_source_name(pod: Pod) -> str:
    """Name of the pod that a backup takes over from; empty where it names none."""
    return pod.annotations.get(BACKUP_SOURCE_POD, "")


def operator_request(pod: Pod) -> str:
    """What a hot switch asks of the operator for the pod: ``create`` a backup, or ``delete`` it; empty for nothing."""
    return pod.annotations.get(NEED_OPERATOR, "")


def has_handed_over(pod: Pod) -> bool:
    """Whether a hot switch wants the pod gone: its backup has taken over."""
    return pod.annotations.get(NEED_VOLCANO) == "delete"


def fault_type(pod: Pod) -> str:
    """How the pod's processes failed, such as ``software`` or ``Separate``; empty where nothing has marked it."""
    return pod.labels.get(FAULT_TYPE, "")


def external_status(pod: Pod) -> str:
    """``Unhealthy-…``, written for the controller that deletes the pod; empty without."""
    return pod.annotations.get(POD_STATUS_LABEL, "")


def super_pod_rank(pod: Pod) -> int | None:
    """Number of the logical super pod where the scheduler has put the pod."""
    return whole_number(pod.annotations.get(SUPER_POD_RANK, ""))


def is_worker(pod: Pod) -> bool:
    """Whether the pod is of a job's workers, by its replica type."""
    kind = pod.labels.get(KUBEFLOW_REPLICA_TYPE) or pod.labels.get(REPLICA_TYPE, "")
    return kind.lower() == "worker"


def snapshot_result(pod: Pod) -> bool | None:
    """Whether the pod has taken its snapshot; None while it is not known."""
    return {"true": True, "false": False}.get(pod.annotations.get(SNAPSHOT_FINISHED, ""))
