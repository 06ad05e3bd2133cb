"""The live pods of each node, followed from snapshot to snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.model.cluster import Observed, Pod
from engine.plan.memo import differing

#: The pods of the newest snapshot, and the live ones of each node.
_LAST: Final[dict[str, tuple[Mapping[str, Pod], dict[str, list[Pod]]]]] = {}
#: Beyond this share of changed pods all are looked at.
_FEW: Final = 8


def by_node(observed: Observed) -> Mapping[str, list[Pod]]:
    """The pods that are bound and not finished, by node, in the order of their keys. A node whose last one went may be
    there without any.
    """
    pods, (before, known) = observed.pods, _LAST.get("", ({}, {}))
    keys = {key for key in differing(pods, before) if pods.get(key) != before.get(key)}
    if len(keys) > len(pods) // _FEW:
        known = _anew(observed)
    elif keys:
        known = dict(known)
        changed = [pod for key in keys for pod in (pods.get(key), before.get(key)) if pod is not None]
        for name in {pod.node for pod in changed if pod.node}:
            own = [pod for pod in known.get(name, ()) if pod.key not in keys]
            own += [pods[key] for key in keys if key in pods and pods[key].node == name and not pods[key].finished]
            known[name] = sorted(own, key=lambda pod: pod.key)
    _LAST[""] = (pods, known)
    return known


def forget() -> None:
    """As in a process that has seen no snapshot yet: for tests and benchmarks of first passes."""
    _LAST.clear()


def _anew(observed: Observed) -> dict[str, list[Pod]]:
    live: dict[str, list[Pod]] = {}
    for key in sorted(observed.pods):
        pod = observed.pods[key]
        if pod.holds_chips:
            live.setdefault(pod.node, []).append(pod)
    return live
