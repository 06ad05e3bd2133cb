"""The roles of MindCluster and Volcano that Belay plays.

``on`` and ``off`` are taken as written; ``auto`` takes a role only when no live component plays it. A component is
live while a pod with the labels of its manifests runs; who acts on a single node: ``belay.engine.plan.node_agents``
(docs/zh/scheduling/03_installation_guide and Volcano's installer).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from belay.engine.documents import Desired
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.plan_cache import CacheKey, Slot
from belay.engine.plan.facts import Facts
from belay.engine.wire.reserved import SYSTEM_NAMESPACES

#: role → (namespace, label, value) of the components that play it.
_HOLDERS: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "schedule": (("volcano-system", "app", "volcano-scheduler"),),
    "expand_ascend_job": (("mindx-dl", "app", "controller-manager"), ("mindx-dl", "app", "ascend-operator")),
    "expand_volcano_job": (("volcano-system", "app", "volcano-controller"),),
    "aggregate": (("mindx-dl", "app", "clusterd"),),
    "device_report": (("kube-system", "name", "ascend-device-plugin-ds"),),
}


class _Resolved(NamedTuple):
    """The roles of the pass that read these inputs."""

    desired: Desired
    observed: Observed
    roles: Mapping[str, str]


_RESOLVED: Final = CacheKey("roles that Belay plays", Slot[_Resolved])
_NAMESPACES: Final = frozenset(namespace for holders in _HOLDERS.values() for namespace, _, _ in holders)


def holders(observed: Observed) -> dict[str, str]:
    """Roles that live components play, each with the pod that shows it (``namespace/name``, the first by name)."""
    found: dict[str, str] = {}
    for key, pod in observed.pods.items():
        if pod.namespace not in _NAMESPACES or pod.phase != "Running" or pod.deleting is not None:
            continue
        for role, rows in _HOLDERS.items():
            if role not in found and any(pod.namespace == n and pod.labels.get(k) == v for n, k, v in rows):
                found[role] = key
    return found


def resolve_roles(desired: Desired, observed: Observed) -> dict[str, str]:
    """Each role by its field name: ``on``, or ``off`` with the reason."""
    if desired.every_role:
        return dict.fromkeys(sorted(_HOLDERS), "on")
    settings, live = desired.settings.roles, holders(observed)
    result = {}
    for role in sorted(_HOLDERS):
        setting = getattr(settings, role)
        if setting == "auto":
            setting = f"off: {live[role]} runs" if role in live else "on"
        result[role] = setting
    return result


def schedules(facts: Facts, pod: Pod) -> bool:
    """Whether Belay places and moves the pod: its ``schedulerName`` is among those of the settings.

    Pods of other schedulers are neither annotated nor evicted, as Volcano reschedules its own pods only.
    """
    return is_ours(pod, names(facts))


def is_ours(pod: Pod, schedulers: frozenset[str]) -> bool:
    """Whether a pod is of these schedulers; pods in namespaces of Kubernetes and Belay are no jobs, whatever else."""
    return pod.scheduler in schedulers and pod.namespace not in SYSTEM_NAMESPACES


def names(facts: Facts) -> frozenset[str]:
    """The scheduler names whose pods Belay places and moves; for tests of many pods."""
    return frozenset(facts.desired.settings.scheduler_names)


def plays(facts: Facts, role: str) -> bool:
    """Whether Belay plays a role in this pass; resolved on first use."""
    kept = facts.cache[_RESOLVED]
    known = kept.value
    if known is None or known.desired is not facts.desired or known.observed is not facts.observed:
        known = _Resolved(facts.desired, facts.observed, resolve_roles(facts.desired, facts.observed))
        kept.value = known
    return known.roles[role] == "on"
