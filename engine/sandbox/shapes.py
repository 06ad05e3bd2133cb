"""Servers that the sandbox can simulate: the rows of policies/products, and the vNPU resource names of policies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec

from belay.engine.documents.products import Product
from belay.engine.documents.vnpu import VNPUTemplates
from belay.engine.errors import InputError
from belay.engine.load import load
from belay.engine.model.labels import ASCEND_310P
from belay.engine.sandbox.nodes_shape import Shape, of_product

INFERENCE_CHIPS = 8
MOST_CHIPS = 16
"""Most chips of a simulated server; card products allow more, which only slows demonstrations."""


class Shapes(msgspec.Struct, frozen=True):
    """Products that can be simulated; ``suffixes`` maps a vNPU template to the tail of its resource name."""

    products: Mapping[str, Product]
    suffixes: Mapping[str, str]

    def of(self, name: str, most: int = 64) -> Shape:
        """The server of a product, with at most ``most`` chips.

        Raises:
            InputError: there is no such product, or it is not a server model.
        """
        product = self.products.get(name)
        if product is None:
            known = ", ".join(sorted(n for n, p in self.products.items() if p.spec.node_labels))
            raise InputError(f"product {name!r} is unknown", where="--product", hint=f"Choose one of: {known}.")
        try:
            return of_product(product, most)
        except ValueError as error:
            raise InputError(str(error), where="--product") from error

    def most_chips(self, name: str) -> int:
        """Most chips of a simulated server of a product."""
        product = self.products.get(name)
        is_card = product is not None and product.spec.resource == ASCEND_310P
        return INFERENCE_CHIPS if is_card else MOST_CHIPS

    @property
    def inference(self) -> str:
        """The product of the node ``infer-1``: a plain 310P card server."""
        names = [n for n, p in self.products.items() if p.spec.resource == ASCEND_310P and p.spec.node_labels]
        if not names:
            raise InputError(f"policies/products has no server with {ASCEND_310P}")
        return min(names, key=lambda name: ("pro" not in name, "duo" in name, name))


@cache
def shipped_shapes() -> Shapes:
    """The products and templates that come with Belay."""
    desired = load({}).desired
    products = {name: declared.document for name, declared in desired.products.items()}
    templates: list[VNPUTemplates] = [declared.document for declared in desired.templates.values()]
    return Shapes(products, {row.name: row.suffix for family in templates for row in family.spec.templates})
