"""Dynamic resource allocation (DRA): names that the driver on nodes and the planner share.

Sources: component/ascend-dynamic-resource-allocation (driver, DeviceClass and attribute names), resource.k8s.io/v1.
"""

from __future__ import annotations

from typing import Final

#: The driver's name, also of its DeviceClass.
DRIVER: Final = "npu.huawei.com"
#: Versions of resource.k8s.io that serve claims with structured parameters, newest first.
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
#: Versions of it that serve DeviceTaintRules, newest first (1.33 has v1alpha3, 1.35 v1beta2).
TAINT_RULE_VERSIONS: Final = ("v1", "v1beta2", "v1alpha3")
#: Key of the taint on devices that take no new work.
TAINT_UNHEALTHY: Final = f"{DRIVER}/unhealthy"
#: Key of the taint on devices that pods hold through the device plugin: a scheduler that knows claims only would give
#: them again, and the pod could not start.
TAINT_IN_USE: Final = f"{DRIVER}/in-use"
#: How such a claim is called among a pod's claims; no claim in a pod's spec can have this name.
EXTENDED_CLAIM_NAME: Final = "<extended-resources>"
#: Attributes by which the planner knows a device's chip, and whether it is a part of one.
PHYSICAL_ID: Final = "physicId"
TYPE: Final = "type"
VNPU: Final = "vnpu"

__all__ = [
    "DRIVER",
    "EXTENDED_CLAIM_NAME",
    "PHYSICAL_ID",
    "TAINT_IN_USE",
    "TAINT_RULE_VERSIONS",
    "TAINT_UNHEALTHY",
    "TYPE",
    "VERSIONS",
    "VNPU",
]
