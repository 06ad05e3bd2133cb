"""The parts of a pod's spec that the planner reads deeply, checked once where they come in.

API servers check these shapes themselves; files written by hand do not. Shapes: Kubernetes core/v1 Affinity and
Toleration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.wire.errors import WireError


class _Requirement(msgspec.Struct):
    key: str
    operator: str
    values: list[str] | None = None


class _Selector(msgspec.Struct, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: list[_Requirement] | None = None


class _NodeTerm(msgspec.Struct, rename="camel"):
    match_expressions: list[_Requirement] | None = None
    match_fields: list[_Requirement] | None = None


class _NodeTerms(msgspec.Struct, rename="camel"):
    node_selector_terms: list[_NodeTerm] | None = None


class _NodeWish(msgspec.Struct):
    weight: int
    preference: _NodeTerm


class _NodeAffinity(msgspec.Struct, rename="camel"):
    required: _NodeTerms | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[_NodeWish] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class _PodTerm(msgspec.Struct, rename="camel"):
    topology_key: str = ""
    label_selector: _Selector | None = None
    namespaces: list[str] | None = None
    namespace_selector: _Selector | None = None


class _PodWish(msgspec.Struct, rename="camel"):
    weight: int
    pod_affinity_term: _PodTerm


class _PodAffinity(msgspec.Struct):
    required: list[_PodTerm] | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[_PodWish] | None = msgspec.field(
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


class _Spread(msgspec.Struct, rename="camel"):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str | None = None
    label_selector: _Selector | None = None
    min_domains: int | None = None
    match_label_keys: list[str] | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


def check(where: str, spec: Mapping[str, Any]) -> None:
    """Refuses a pod whose affinity, tolerations, node selector or priority have another shape than Kubernetes gives.

    Raises:
        WireError: names the field that is wrong.
    """
    for field, shape in _SHAPES.items():
        value = spec.get(field)
        if value:
            try:
                msgspec.convert(value, shape)
            except msgspec.ValidationError as error:
                raise WireError(where, f"spec.{field}", f"has a wrong shape: {error}") from error


_SHAPES: dict[str, Any] = {
    "affinity": _Affinity,
    "tolerations": list[_Toleration],
    "nodeSelector": dict[str, str],
    "priority": int,
    "topologySpreadConstraints": list[_Spread],
}
