"""How a node's chips may be cut: which templates they know, what one has to give, and what documents declare for them.

Sources: component/ascend-for-volcano/plugin/vnode.go (labels, chip totals), docs/zh/scheduling/04_usage/
02_virtual_instance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.documents import Declared, Desired, VNPULayout, VNPUTemplates
from engine.model.vnpu import Totals
from engine.plan.scope import NodeView

CHIP_NAME_LABEL: Final = "node.kubernetes.io/npu.chip.name"
SERVER_TYPE_LABEL: Final = "servertype"


def templates_of(desired: Desired, view: NodeView) -> VNPUTemplates | None:
    """The templates of the node's chips; None when nobody knows any."""
    return desired.templates_for(view.product, view.node.labels)


def chip_totals(view: NodeView, family: VNPUTemplates) -> Totals:
    """What one of the node's chips has to give."""
    labels = view.node.labels
    return family.totals(labels.get(CHIP_NAME_LABEL, ""), labels.get(SERVER_TYPE_LABEL, "")).totals


def layouts_of(desired: Desired, view: NodeView) -> Iterator[Declared[VNPULayout]]:
    """The layouts that select a node, by name."""
    for layout in desired.layouts:
        spec = layout.document.spec
        if spec.pool == view.pool if spec.pool else bool(spec.selector and spec.selector.matches(view.node.labels)):
            yield layout
