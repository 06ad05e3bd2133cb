"""Small worlds with the shipped products for tests that run only the passes that placement needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec

from belay.engine.documents import Declared, Desired, Queue, SchedulingSettings
from belay.engine.load import load
from belay.engine.model.actions import BindPod
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.diagnostics import Origin
from tests import worlds
from tests.steps import Steps

POLICY = "huawei.com/schedule_policy"
GROUP = "scheduling.k8s.io/group-name"


@cache
def shipped() -> Desired:
    """The declared state of an empty repository: shipped policies only."""
    return load({}, has_git=False).desired


def with_settings(**spec: Any) -> Desired:
    """Shipped policies under settings of the repository."""
    body = {"apiVersion": "belay.dev/v1alpha1", "kind": "SchedulingSettings", "metadata": {"name": "own"}, "spec": spec}
    own = Declared(SchedulingSettings.model_validate(body), Origin("policies/settings.yaml"))
    return replace(shipped(), scheduling=(own,))


def scope_of(observed: Observed, *, desired: Desired | None = None, shard: str = "main", **fields: Any) -> Steps:
    """A scope after the passes up to placement; ``fields`` set what other passes would have (penalty, refused …)."""
    scope = Steps(desired or shipped(), observed, worlds.NOW, shard).run("views", "grouping")
    closed = fields.pop("closed", {})
    states = fields.pop("states", {})
    for name, value in fields.items():
        setattr(scope, name, value)
    for name, why in closed.items():
        scope.nodes.change(name, closed=why)
    for name, state in states.items():
        scope.nodes.change(name, state=state)
    return scope.run("queue", "placement", "explain")


def bindings(scope: Steps) -> dict[str, BindPod]:
    """What was bound, by pod name."""
    return {action.pod: action for action in scope.actions if isinstance(action, BindPod)}


def nodes_of(scope: Steps) -> dict[str, str]:
    """The node of each bound pod."""
    return {name: action.node for name, action in bindings(scope).items()}


def chips_of(action: BindPod) -> list[int]:
    """The chip ids of a binding."""
    return [int(name.rpartition("-")[2]) for name in action.chips]


def gang(
    count: int,
    each: int,
    *,
    name: str = "case",
    annotations: dict[str, str] | None = None,
    least: int | None = None,
    **pod: Any,
) -> tuple[list[Pod], dict[str, Any]]:
    """``count`` pending pods that want ``each`` chips, and their PodGroup, which states what its minimum needs."""
    notes = {GROUP: name, "volcano.sh/task-spec": "worker"}
    pods = [
        worlds.pod(f"{name}-{i}", count=each, rank=i, annotations=dict(notes), **{"owner": None, **pod})
        for i in range(count)
    ]
    resource = pod.get("resource", "huawei.com/Ascend910")
    start = count if least is None else least
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"namespace": "train", "name": name, "uid": f"u-{name}", "annotations": annotations or {}},
        "spec": {"minMember": start, "minResources": {resource: str(start * each)}},
    }
    return pods, group


def busy(node: str, chips: Iterable[int], **pod: Any) -> Pod:
    """A running pod of another job on these chips."""
    ids = list(chips)
    name = f"busy-{node}-{'-'.join(map(str, ids))}"
    return worlds.pod(name, namespace="tenants", node=node, chips=ids, **pod)


def edited(pod: Pod, **fields: Any) -> Pod:
    """A copy of a pod with some fields replaced."""
    return msgspec.structs.replace(pod, **fields)


def capacity_queue(name: str, **capability: int) -> Queue:
    """A queue of the settings with a capability."""
    return Queue(name=name, capability=capability)
