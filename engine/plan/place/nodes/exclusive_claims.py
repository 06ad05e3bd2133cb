"""Claims of the access mode ReadWriteOncePod, which one pod at a time may mount: kube-scheduler's VolumeRestrictions.

A pod has such a claim from its binding until it is gone, also while it ends. Source:
kubernetes/pkg/scheduler/framework/plugins/volumerestrictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.handler import Refusal

IN_USE: Final = "VolumeClaimInUse"
_MODE: Final = "ReadWriteOncePod"


class ExclusiveClaims:
    """Who has each of these claims, followed through the assignments of a pass."""

    def __init__(self, observed: Observed, views: Mapping[str, NodeView]) -> None:
        self._observed, self._views = observed, views
        self._taken: dict[ObjectKey, str] = {}

    def concerns(self, pod: Pod) -> bool:
        """Whether the pod mounts such a claim."""
        return bool(pod.claims) and any(key in self._claims for key in _mounted(pod))

    def refusal(self, pod: Pod) -> Refusal | None:
        """Why no node may have the pod now: another one has its claim."""
        for key in _mounted(pod):
            holder = self._holder(key, pod) if key in self._claims else ""
            if holder:
                text = f'persistentvolumeclaim "{key.name}" is {_MODE}, and pod {holder} has it'
                return Refusal(IN_USE, text, about=key.name)
        return None

    def take(self, pod: Pod) -> None:
        """The pod is assigned to a node."""
        for key in _mounted(pod):
            if key in self._claims:
                self._taken[key] = pod.key

    def give_back(self, pod: Pod) -> None:
        """Undo ``take``."""
        for key in _mounted(pod):
            if self._taken.get(key) == pod.key:
                del self._taken[key]

    def _holder(self, key: ObjectKey, pod: Pod) -> str:
        """The other pod that has the claim; empty when none has. A what-if takes pods off their nodes."""
        for user in self._users.get(key, ()):
            view = self._views.get(user.node)
            there = user.node in self._observed.nodes if view is None else user in view.pods
            if there and user.key != pod.key:
                return user.key
        taken = self._taken.get(key, "")
        return "" if taken == pod.key else taken

    @cached_property
    def _claims(self) -> frozenset[ObjectKey]:
        return frozenset(
            key
            for key, raw in self._observed.objects.items()
            if key.kind == "PersistentVolumeClaim" and _MODE in (nested_map(raw, "spec").get("accessModes") or ())
        )

    @cached_property
    def _users(self) -> dict[ObjectKey, list[Pod]]:
        """The pods on nodes that mount each claim."""
        out: dict[ObjectKey, list[Pod]] = {}
        for name in sorted(self._observed.pods) if self._claims else ():
            pod = self._observed.pods[name]
            for key in _mounted(pod) if pod.holds_chips else ():
                if key in self._claims:
                    out.setdefault(key, []).append(pod)
        return out


def _mounted(pod: Pod) -> list[ObjectKey]:
    return [ObjectKey("v1", "PersistentVolumeClaim", pod.namespace, name) for name in pod.claims]


__all__ = ["IN_USE", "ExclusiveClaims"]
