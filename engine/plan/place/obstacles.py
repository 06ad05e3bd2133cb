"""What keeps a pod off the node that is nearest to taking it, with the values of that node.

Nodes are refused by the first rule that applies, so the most frequent reason says little: a selector that leaves out a
hundred nodes is right, and one node that matches lacks a single thing. The nearest node is the one with the least of
what would have to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from belay.engine.model import taints
from belay.engine.model.cluster import Node, Pod, Taint
from belay.engine.model.labels import HUAWEI_PREFIX
from belay.engine.model.quantities import signed_number
from belay.engine.model.remedies import Remedy, Step
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.nodes import fit
from belay.engine.plan.place.nodes.selectors import unmet
from belay.engine.plan.place.nodes.table import MISSING

#: Nodes of one reason and text that are looked at.
MAX_ALIKE: Final = 64
_SHOWN: Final = 4
#: How much it takes to remove an obstacle: a label of a node is nothing, another kind of chip is another server.
_SMALL, _CUT, _OTHER_CHIPS = 1, 2, 20


class Obstacle(NamedTuple):
    """One thing that keeps a pod off a node: its reason, ``state`` after the node's name, the change, its size."""

    reason: str
    state: str
    change: str
    remedy: Remedy
    size: int = _SMALL


class NearestNode(NamedTuple):
    """The node that least keeps from taking a pod, and all that keeps it."""

    name: str
    obstacles: tuple[Obstacle, ...]

    @property
    def state(self) -> str:
        """What is the matter there, in words."""
        return f"the nearest node, {self.name}, {' and '.join(obstacle.state for obstacle in self.obstacles)}"

    @property
    def change(self) -> str:
        """What would have to change, in words."""
        return ", and ".join(obstacle.change for obstacle in self.obstacles)


def nearest(
    pod: Pod, refusals: Mapping[str, Refusal], views: Mapping[str, NodeView], templates: Mapping[str, str]
) -> NearestNode | None:
    """The nearest of the nodes that the pod's own rules leave out or that lack its resource; None without any.

    ``templates`` are the vNPU templates by the suffix of their resource.
    """
    best: tuple[int, str, tuple[Obstacle, ...]] | None = None
    alike: dict[tuple[str, str], int] = {}
    for name in sorted(refusals):
        view = views.get(name)
        kind = refusals[name][:2]
        alike[kind] = alike.get(kind, 0) + 1
        if view is None or alike[kind] > MAX_ALIKE:
            continue
        found = tuple(_obstacles(pod, view, templates))
        far = sum(obstacle.size for obstacle in found)
        if found and (best is None or (far, name) < best[:2]):
            best = (far, name, found)
    return NearestNode(best[1], best[2]) if best else None


def _obstacles(pod: Pod, view: NodeView, templates: Mapping[str, str]) -> Iterator[Obstacle]:
    """Everything that a person would have to change before the node's chips and room are looked at."""
    node = view.node
    yield from _of_resource(pod, view, templates)
    yield from _of_selector(pod, node)
    yield from _of_affinity(pod, node)
    if node.unschedulable and not taints.tolerates(pod, taints.UNSCHEDULABLE):
        remedy = Remedy(Step.UNCORDON, node.name)
        yield Obstacle("NodeUnschedulable", "is cordoned", f"uncordon {node.name}", remedy)
    for taint in taints.untolerated(pod, node):
        yield _of_taint(taint, pod, node)


def _of_taint(taint: Taint, pod: Pod, node: Node) -> Obstacle:
    """A taint that keeps the pod off; of the well-known ones who sets and removes it: people leave it to them."""
    shown = f"{taint.key}={taint.value}" if taint.value else taint.key
    state = f"has taint {shown}:{taint.effect}"
    owner = taints.owner_of(taint)
    if owner is not None:
        state = f"{state}: {owner.who} {owner.says}"
        if owner.meaning in taints.REMOVING:
            remedy = Remedy(Step.ADD_NODE, count=pod.count, values={pod.resource: ""})
            return Obstacle("TaintNotTolerated", state, "add a node, or wait for the one that replaces it", remedy)
        return Obstacle("TaintNotTolerated", state, f"wait for {owner.who}", Remedy(Step.WAIT, node.name))
    change = f"add a toleration of {shown} to the job, or remove the taint from {node.name}"
    return Obstacle(
        "TaintNotTolerated", state, change, Remedy(Step.TOLERATE, node.name, values={taint.key: taint.value})
    )


def _of_resource(pod: Pod, view: NodeView, templates: Mapping[str, str]) -> Iterator[Obstacle]:
    """That the node offers none of what the pod asks for, and what it offers instead."""
    node, wanted = view.node, pod.resource
    if not pod.count or (node.allocatable.get(wanted) and node.capacity.get(wanted)):
        return
    offered = sorted(name for name, count in node.allocatable.items() if name.startswith(HUAWEI_PREFIX) and count)
    instead = f"it offers {', '.join(offered[:_SHOWN])}" if offered else "it offers no NPU resource"
    suffix = wanted.partition("-")[2]
    same_chips = bool(view.resource) and (wanted == view.resource or wanted.startswith(f"{view.resource}-"))
    if same_chips and wanted != view.resource:
        change = f"declare a VNPULayout that cuts {templates.get(suffix, 'vNPUs')} ({wanted}) on {node.name}"
    elif same_chips:
        change = f"let the device plugin of {node.name} offer {wanted}"
    else:
        change = f"add a node that offers {wanted}"
    if offered:
        change = f"{change}, or ask for {' or '.join(offered[:_SHOWN])}"
    remedy = Remedy(Step.OFFER, node.name, count=max(1, pod.count), values={wanted: ""})
    size = _CUT if same_chips else _OTHER_CHIPS
    yield Obstacle(MISSING, f"offers no {wanted} ({instead})", change, remedy, size)


def _of_selector(pod: Pod, node: Node) -> Iterator[Obstacle]:
    """The labels of the pod's node selector that the node lacks."""
    lacking = {key: value for key, value in sorted(pod.node_selector.items()) if node.labels.get(key) != value}
    if not lacking:
        return
    wanted = ", ".join(f"{key}={value}" for key, value in lacking.items())
    has = ", ".join(f"{key}={node.labels[key]}" for key in lacking if key in node.labels)
    state = f"does not match the pod's nodeSelector {wanted}" + (f" (it has {has})" if has else "")
    change = f"label {node.name} with {wanted}, or write what it has into the job's nodeSelector"
    remedy = Remedy(Step.LABEL_NODE, node.name, values=lacking)
    yield Obstacle("NodeSelectorMismatch", state, change, remedy, _SMALL * len(lacking))


def _of_affinity(pod: Pod, node: Node) -> Iterator[Obstacle]:
    """What the node lacks for the term of the required node affinity that it is nearest to."""
    terms = fit.required_terms(pod)
    if not terms:
        return
    lacking = min((unmet(term, node) for term in terms), key=len)
    if not lacking:
        return
    values: dict[str, str] = {}
    remove: list[str] = []
    for row in lacking:
        _collect(row, values, remove)
    wanted = ", ".join(_shown(row) for row in lacking)
    steps = [f"label {node.name} with {', '.join(f'{key}={value}' for key, value in values.items())}"] if values else []
    if remove:
        steps.append(f"remove label {', '.join(remove)} from {node.name}")
    if any(row.get("field") for row in lacking):
        steps = ["add such a node"]
    change = f"{' and '.join(steps)}, or widen the job's node affinity"
    state = f"does not meet the pod's required node affinity {wanted}"
    remedy = Remedy(Step.LABEL_NODE, node.name, values=values, remove=tuple(remove))
    yield Obstacle("NodeAffinityMismatch", state, change, remedy, _SMALL * len(lacking))


def _collect(row: Mapping[str, Any], values: dict[str, str], remove: list[str]) -> None:
    """The label that would satisfy one expression."""
    key, given = str(row.get("key")), [str(value) for value in row.get("values") or ()]
    bound = signed_number(given[0], digits=18) if given else None
    match row.get("operator"):
        case "In" if given:
            values[key] = given[0]
        case "Exists":
            values[key] = "true"
        case "NotIn" | "DoesNotExist":
            remove.append(key)
        case "Gt" if bound is not None:
            values[key] = str(bound + 1)
        case "Lt" if bound is not None:
            values[key] = str(bound - 1)


def _shown(row: Mapping[str, Any]) -> str:
    """One expression as people write it: ``zone in [a, b]``."""
    key, given = str(row.get("key")), ", ".join(str(value) for value in row.get("values") or ())
    match row.get("operator"):
        case "In":
            return f"{key} in [{given}]"
        case "NotIn":
            return f"{key} not in [{given}]"
        case "Exists":
            return f"{key} exists"
        case "DoesNotExist":
            return f"{key} does not exist"
        case operator:
            return f"{key} {operator} {given}"
