"""The product of a node, and whether what the node reports contradicts it.

The product of a pool is what people wrote, and the reset rings and cuts of chips follow from it. A product that the
node's own report contradicts is therefore no ground for an order that destroys something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from belay.engine.documents import Desired, NodePool, Product
from belay.engine.model.cluster import AgentReport, DeviceReport, Node
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.node_options import labelled_chip
from belay.engine.plan.node_view import NodeView

_SHOWN_NODES: Final = 3
_SHOWN_PRODUCTS: Final = 4


class Products:
    """The product of a node: its pool's, else the one of its labels; computed once per set of relevant labels."""

    def __init__(self, desired: Desired) -> None:
        self._desired = desired
        self._keys = sorted(
            {key for row in desired.products.values() for labels in row.document.spec.node_labels for key in labels}
        )
        self._known: dict[tuple[str | None, ...], Product | None] = {}

    def of(self, node: Node, pool: NodePool | None) -> Product | None:
        if pool and pool.spec.product:
            declared = self._desired.products.get(pool.spec.product)
            return declared.document if declared else None
        telling = tuple(node.labels.get(key) for key in self._keys)
        if telling not in self._known:
            self._known[telling] = self._desired.product_of(node.labels)
        return self._known[telling]


def chip_name(node: Node, agent: AgentReport | None) -> str:
    """The model of a node's chips: as its agent's driver names it, else by the label that device plugins write."""
    return (agent.chip_name if agent is not None else "") or labelled_chip(node)


def contradiction(desired: Desired, product: Product | None, report: DeviceReport | None, chip: str) -> str:
    """What a node reports that its product does not have; empty when they agree.

    A model of chip that no product knows contradicts nothing: it may be newer than the list.
    """
    if product is None:
        return ""
    if report is not None and product.spec.resource not in ("*", report.resource):
        return f"resource {report.resource}"

    having = desired.products_with_chip(chip)
    if product.spec.chip_names and having and product.name not in having:
        return f"chips {chip}"
    return ""


def withheld(view: NodeView) -> str:
    """Why chips of a node that contradicts its product are neither reset nor cut."""
    product = view.product.name if view.product is not None else ""
    return (
        f"held: node {view.node.name} reports {view.contradiction}, which product {product} does not have, so which "
        f"chips belong together is unknown; correct spec.product of pool {view.pool}, or the node's labels"
    )


def findings(desired: Desired, nodes: Mapping[str, NodeView]) -> Iterable[Diagnostic]:
    """One error for each pool, product and contradiction, with the nodes."""
    contradicted: dict[tuple[str, str, str], list[NodeView]] = {}
    for _, view in sorted(nodes.items()):
        if view.contradiction and view.product is not None:
            contradicted.setdefault((view.pool, view.product.name, view.contradiction), []).append(view)

    for (pool, product, what), views in contradicted.items():
        yield _finding(desired, pool, product, what, views)


def _finding(desired: Desired, pool: str, product: str, what: str, views: list[NodeView]) -> Diagnostic:
    declared = desired.pool_index.get(pool)
    names = _listed([view.node.name for view in views], _SHOWN_NODES)
    report = "reports" if len(views) == 1 else "report"
    fitting = _fitting(desired, what, views[0])
    consequence = "its chips are neither reset nor cut" if len(views) == 1 else "their chips are neither reset nor cut"

    if declared is not None and declared.document.spec.product:
        step = f"correct spec.product to {fitting}, or leave it out" if fitting else "correct spec.product"
        text = f"pool {pool} says product {product}, but {names} {report} {what}{_of(fitting)}: {consequence}; {step}"
        origin = declared.origin
        about, place = f"NodePool/{pool}", (origin.file, origin.line, origin.column)
        return Diagnostic("error", about, *place, "spec.product", text, PassCode.PRODUCT_CONTRADICTED)

    step = "correct its labels accelerator-type and accelerator" if len(views) == 1 else "correct their labels"
    text = f"labels say product {product}, but {names} {report} {what}{_of(fitting)}: {consequence}; {step}"
    about = f"Node/{views[0].node.name}"
    return Diagnostic("error", about, "", 0, 0, "metadata.labels", text, PassCode.PRODUCT_CONTRADICTED)


def _fitting(desired: Desired, what: str, view: NodeView) -> str:
    """The products that have what the node reports: the one of its labels first, else all that do."""
    by_labels = desired.product_of(view.node.labels)
    kind, _, value = what.partition(" ")
    if kind == "chips":
        having = desired.products_with_chip(value)
    else:
        rows = sorted(desired.products.items())
        having = tuple(name for name, row in rows if row.document.spec.resource == value)
    if by_labels is not None and by_labels.name in having:
        return by_labels.name
    return _listed(having, _SHOWN_PRODUCTS, "or")


def _of(fitting: str) -> str:
    return f" of {fitting}" if fitting else ""


def _listed(names: Iterable[str], most: int, last: str = "and") -> str:
    """The first of these names, and how many more there are."""
    ordered = list(names)
    if len(ordered) > most:
        return f"{', '.join(ordered[:most])} and {len(ordered) - most} more"
    return f" {last} ".join(filter(None, (", ".join(ordered[:-1]), *ordered[-1:])))
