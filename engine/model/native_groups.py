"""PodGroups of Kubernetes itself (``scheduling.k8s.io``), which pods name in ``spec.schedulingGroup``.

Their policy is ``gang`` with the number of pods that start together, or ``basic``, which demands nothing. Sources:
Kubernetes, "Gang Scheduling" and "PodGroup API"; k8s.io/api/scheduling/v1beta1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.unstructured import nested_map

#: The versions that have the policy in this form, the newest first: a cluster may serve several of one object.
NATIVE_GROUP_APIS: Final = ("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha3", "scheduling.k8s.io/v1alpha2")
NATIVE_GROUP: Final = "PodGroup"
#: The condition that its scheduler sets, by version; ``True`` is its last state in the newer ones.
SCHEDULED_CONDITION: Final[Mapping[str, str]] = {
    "scheduling.k8s.io/v1beta1": "PodGroupInitiallyScheduled",
    "scheduling.k8s.io/v1alpha3": "PodGroupInitiallyScheduled",
    "scheduling.k8s.io/v1alpha2": "PodGroupScheduled",
}


def find_native_group(
    objects: Mapping[ObjectKey, Mapping[str, Any]], namespace: str, name: str
) -> tuple[str, Mapping[str, Any]]:
    """The ``apiVersion`` of a PodGroup of Kubernetes itself and the raw object, empty if there is none."""
    for api in NATIVE_GROUP_APIS:
        raw = objects.get(ObjectKey(api, NATIVE_GROUP, namespace, name)) if name else None
        if raw is not None:
            return api, raw
    return NATIVE_GROUP_APIS[0], {}


def gang_minimum(raw: Mapping[str, Any]) -> int:
    """How many pods of a PodGroup start together; 0 where its policy demands nothing."""
    number = nested_map(raw, "spec", "schedulingPolicy", "gang").get("minCount")
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else 0
