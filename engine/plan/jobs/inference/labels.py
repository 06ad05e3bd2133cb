"""Names of inference services, as MindCluster's infer operator writes them.

Source: component/infer-operator/pkg/common/constant.go and utils.go.
"""

from __future__ import annotations

from typing import Final

API: Final = "mindcluster.huawei.com/v1"
SET, SERVICE, INSTANCES = "InferServiceSet", "InferService", "InstanceSet"
KINDS: Final = (SET, SERVICE, INSTANCES)
APPS: Final = "apps/v1"
WORKLOADS: Final = frozenset({"Deployment", "StatefulSet"})
SCALER: Final = "HorizontalPodAutoscaler"
#: Newest first; clusters before 1.23 serve only the second, of the same form.
SCALER_APIS: Final = ("autoscaling/v2", "autoscaling/v2beta2")

_LABEL: Final = "infer.huawei.com/"
MANAGED: Final = _LABEL + "ascend-infer-operator"
SET_NAME: Final = _LABEL + "inferserviceset-name"
SERVICE_NAME: Final = _LABEL + "inferservice-name"
SERVICE_INDEX: Final = _LABEL + "inferservice-index"
#: The role's name, not the name of the InstanceSet.
ROLE: Final = _LABEL + "instanceset-name"
INSTANCE_INDEX: Final = _LABEL + "instanceset-index"
#: The role in the selectors of external metrics.
METRIC_ROLE: Final = _LABEL + "role-name"
STRATEGY: Final = _LABEL + "priority-scheduling-strategy"
GANG: Final = _LABEL + "gang-schedule"
SCALES: Final = _LABEL + "scaling-owned-by"
#: Without the prefix: the scheduler's affinity of services reads it (engine.plan.place.gangs.services).
SERVICE_ID: Final = "inferserviceid"
SCHEDULE_POLICY: Final = "huawei.com/schedule_policy"
POD_STATUS: Final = "huawei.com/pod-status"
FAULT_SCHEDULING: Final = "fault-scheduling"
EXTERNAL_FORCE: Final = "external-force"
EXTERNAL: Final = frozenset({EXTERNAL_FORCE, "external-grace"})

PRIORITY: Final = "Priority"
PARALLEL: Final = "Parallel"

#: Belay's own annotations. On a role, service or set: how a changed template reaches its instances.
MAX_UNAVAILABLE: Final = "belay.dev/max-unavailable"
MAX_SURGE: Final = "belay.dev/max-surge"
ROLLOUT: Final = "belay.dev/rollout"
PAUSED: Final = "paused"
RUNNING: Final = "running"
#: On a workload or Service: digest of what it was made from.
TEMPLATE: Final = "belay.dev/instance-template"
#: On a workload beyond the declared number, which stands in while others are replaced.
SURGE: Final = "belay.dev/surge-instance"

#: Reason of conditions and Events of objects that cannot be used.
VALIDATE_ERROR: Final = "ValidateError"
MAX_SERVICES: Final = 64
MAX_ROLES: Final = 32
MAX_REPLICAS: Final = 256
DEFAULT_PORT: Final = 8080
