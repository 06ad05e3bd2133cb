"""What nodes say by labels and annotations that steers the planner, each read in one place.

Device plugins, NodeD and people write the labels; the cordon's annotation is Belay's own. Source: MindCluster,
docs/zh/scheduling/06_api/12_k8s.md.
"""

from __future__ import annotations

from typing import Final

from belay.engine.model.cluster import Node
from belay.engine.model.labels import (
    CHIP_NAME,
    CORDONED_ANNOTATION,
    SERVER_TYPE,
    SOFT_SHARING_ENABLED,
    TOPOLOGY_TREE,
)

DEFAULT_TREE: Final = "default"


def cordon_rule(node: Node) -> str | None:
    """The rule for which Belay has cordoned the node; None where it has not: another's cordon is never taken back."""
    return node.annotations.get(CORDONED_ANNOTATION)


def shares_chips(node: Node) -> bool:
    """Whether the chips are shared softly: each is offered as a hundred devices."""
    return node.labels.get(SOFT_SHARING_ENABLED) == "true"


def labelled_chip(node: Node) -> str:
    """The model of the chips as device plugins name it; empty without the label."""
    return node.labels.get(CHIP_NAME, "")


def server_type(node: Node) -> str:
    """The kind of chips and the AI cores of each, such as ``Ascend310P-8``; empty without the label."""
    return node.labels.get(SERVER_TYPE, "")


def topology_tree(node: Node) -> str:
    """The tree of the network that the node belongs to."""
    return node.labels.get(TOPOLOGY_TREE, DEFAULT_TREE)
