"""The live pods of each node, followed from snapshot to snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.plan_cache import CacheKey, PlanCache, Slot, differing

#: The pods of the newest snapshot, and the live ones of each node.
_LAST: Final = CacheKey("live pods of the last snapshot", Slot[tuple[Mapping[str, Pod], dict[str, list[Pod]]]])
#: If more than one in so many pods changed, all pods are sorted again.
_FEW: Final = 8


def by_node(observed: Observed, cache: PlanCache) -> Mapping[str, list[Pod]]:
    """Pods that are bound and not finished, by node, in order of key.

    A node whose last pod left may remain with an empty list.
    """
    last = cache[_LAST]
    pods, (before, known) = observed.pods, last.value or ({}, {})
    keys = {key for key in differing(pods, before) if pods.get(key) != before.get(key)}
    if len(keys) > len(pods) // _FEW:
        known = _sort_all(observed)
    elif keys:
        known = dict(known)
        changed = [pod for key in keys for pod in (pods.get(key), before.get(key)) if pod is not None]
        for name in {pod.node for pod in changed if pod.node}:
            own = [pod for pod in known.get(name, ()) if pod.key not in keys]
            own += [pods[key] for key in keys if key in pods and pods[key].node == name and not pods[key].finished]
            known[name] = sorted(own, key=lambda pod: pod.key)
    last.value = (pods, known)
    return known


def _sort_all(observed: Observed) -> dict[str, list[Pod]]:
    live: dict[str, list[Pod]] = {}
    for key in sorted(observed.pods):
        pod = observed.pods[key]
        if pod.holds_chips:
            live.setdefault(pod.node, []).append(pod)
    return live
