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

EXTERNAL_FORCE: Final = "external-force"
EXTERNAL: Final = frozenset({EXTERNAL_FORCE, "external-grace"})

PRIORITY: Final = "Priority"
PARALLEL: Final = "Parallel"

PAUSED: Final = "paused"
RUNNING: Final = "running"

#: Reason of conditions and Events of objects that cannot be used.
VALIDATE_ERROR: Final = "ValidateError"
MAX_SERVICES: Final = 64
MAX_ROLES: Final = 32
MAX_REPLICAS: Final = 256
DEFAULT_PORT: Final = 8080
