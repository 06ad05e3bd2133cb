"""How a node's chips may be partitioned: their templates and totals, and the layouts that select the node.

Sources: component/ascend-for-volcano/plugin/vnode.go (labels, chip totals), docs/zh/scheduling/04_usage/
02_virtual_instance.
"""

from __future__ import annotations

from collections.abc import Iterator

from belay.engine.documents import Declared, Desired, VNPULayout, VNPUTemplates
from belay.engine.model.node_options import labelled_chip, server_type
from belay.engine.model.vnpu import ChipCapacity
from belay.engine.plan.node_view import NodeView


def templates_of(desired: Desired, view: NodeView) -> VNPUTemplates | None:
    """The templates of the node's chips; None when none are known."""
    return desired.templates_for(view.product, view.node.labels)


def cut_on_demand(view: NodeView, family: VNPUTemplates) -> bool:
    """Whether the node's chips can be cut when a pod needs it: its chips' templates and its product both say so."""
    product = view.product
    if product is None:
        return family.spec.dynamic
    return family.spec.dynamic and product.spec.vnpu.dynamic and product.name not in family.spec.rules.excluded_products


def cut_by_layout(view: NodeView) -> bool:
    """Whether the node's product has vNPUs that exist before a pod asks for them."""
    return view.product is None or view.product.spec.vnpu.static


def chip_totals(view: NodeView, family: VNPUTemplates) -> ChipCapacity:
    """Totals (AI cores, AI CPUs, memory) of one of the node's chips."""
    return family.totals(labelled_chip(view.node), server_type(view.node)).totals


def layouts_of(desired: Desired, view: NodeView) -> Iterator[Declared[VNPULayout]]:
    """The layouts that select a node, by name."""
    for layout in desired.layouts:
        spec = layout.document.spec
        if spec.pool == view.pool if spec.pool else bool(spec.selector and spec.selector.matches(view.node.labels)):
            yield layout
