"""Types of the nested fields of a pod's spec that the planner reads, checked once on input.

API servers check these types; cluster files written by hand are unchecked. Source: Kubernetes core/v1 Affinity,
Toleration and TopologySpreadConstraint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from belay.engine.wire.errors import WireError


class _Requirement(msgspec.Struct):
    key: str
    operator: str
    values: list[str] | None = None


class _LabelSelector(msgspec.Struct, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: list[_Requirement] | None = None


class _NodeSelectorTerm(msgspec.Struct, rename="camel"):
    match_expressions: list[_Requirement] | None = None
    match_fields: list[_Requirement] | None = None


class _NodeSelector(msgspec.Struct, rename="camel"):
    node_selector_terms: list[_NodeSelectorTerm] | None = None


class _PreferredSchedulingTerm(msgspec.Struct):
    weight: int
    preference: _NodeSelectorTerm


class _NodeAffinity(msgspec.Struct, rename="camel"):
    required: _NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[_PreferredSchedulingTerm] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class _PodAffinityTerm(msgspec.Struct, rename="camel"):
    topology_key: str = ""
    label_selector: _LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: _LabelSelector | None = None


class _WeightedPodAffinityTerm(msgspec.Struct, rename="camel"):
    weight: int
    pod_affinity_term: _PodAffinityTerm


class _PodAffinity(msgspec.Struct):
    required: list[_PodAffinityTerm] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[_WeightedPodAffinityTerm] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class _Affinity(msgspec.Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Toleration(msgspec.Struct):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _TopologySpreadConstraint(msgspec.Struct, rename="camel"):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str | None = None
    label_selector: _LabelSelector | None = None
    min_domains: int | None = None
    match_label_keys: list[str] | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


def check(where: str, spec: Mapping[str, Any]) -> None:
    """Reject a pod whose affinity, tolerations, node selector, priority or spread constraints have a wrong type.

    Raises:
        WireError: names the field that is wrong.
    """
    for field, shape in _FIELD_TYPES.items():
        value = spec.get(field)
        if value:
            try:
                msgspec.convert(value, shape)
            except msgspec.ValidationError as error:
                raise WireError(where, f"spec.{field}", f"has a wrong shape: {error}") from error


_FIELD_TYPES: dict[str, Any] = {
    "affinity": _Affinity,
    "tolerations": list[_Toleration],
    "nodeSelector": dict[str, str],
    "priority": int,
    "topologySpreadConstraints": list[_TopologySpreadConstraint],
}
