"""Kind ``Product``: one server model or scheduling policy as a row of data.

The rows restate the product matrix of docs/zh/scheduling (resource names, policies, topologies, legal sizes) and
component/ascend-device-plugin's reset groups; a new server model is a new file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictInt, StringConstraints, model_validator

from belay.engine.documents.kinds import BelayDocument, LabelKey, LabelValue
from belay.engine.documents.scalars import Chips, Document, Flag, Positive, Sizes, Text
from belay.engine.model.generations import Generation, generation_of

Handler = Literal[
    "base", "ring8", "half", "box16", "a3", "superpod", "mesh4", "card", "card310", "chip310", "duo-card", "duo-chip",
    "superpod850", "rack950", "multilevel", "softshare", "vnpu",
]  # fmt: skip
Scalar = StrictInt | Flag | str


class PlacementStrategy(Document):
    """How chips are chosen on a node: the handler and the request sizes that it accepts per pod.

    ``single`` applies to jobs of one pod, ``distributed`` to the others; an empty list leaves it to the handler.
    ``network_aware`` handlers keep distributed pods off chips with a broken parameter plane.
    """

    handler: Handler
    max: Positive
    network_aware: Flag = False
    single: Sizes = ()
    distributed: Sizes = ()


class Placement(PlacementStrategy):
    """A strategy with its topology: ``ring_size`` chips share fast links; ``options`` are the handler's own.

    ``strategies`` holds alternatives that a job picks by label, such as ``card`` and ``chip`` on 300I.
    """

    ring_size: Positive | None = None
    options: Mapping[str, Scalar] = Field(default_factory=dict)
    strategies: Mapping[str, PlacementStrategy] = Field(default_factory=dict)


class ResetRule(Document):
    """Which chips reset together: written groups, groups of equal size, or a scope; ``out_of_band`` by the BMC.

    Scope ``a3-module`` is the chip's module plus the module it shares optical ports with.
    """

    groups: tuple[Chips, ...] = ()
    group_size: Positive | None = None
    scope: Literal["chip", "card", "ring", "node", "a3-module"] | None = None
    out_of_band: Flag = False

    @model_validator(mode="after")
    def _one_way(self) -> ResetRule:
        if (bool(self.groups), self.group_size is not None, self.scope is not None).count(True) != 1:
            raise ValueError("give exactly one of groups, groupSize and scope")
        return self


class VNPUSupport(Document):
    """Ways of sharing a chip that the product supports.

    Without ``family`` the label ``servertype`` of a node or the name of its chips selects the templates;
    ``server_types`` are the types that nodes of the product have where chip names say nothing.
    """

    family: Text | None = None
    server_types: tuple[Text, ...] = ()
    static: Flag = False
    dynamic: Flag = False
    soft: Flag = False


class ProductSpec(Document):
    """One product; ``chips_per_node`` is the most a server of it holds, ``usual_chips`` what one usually does.

    ``generation`` follows from ``device_prefix`` where it is left out.
    """

    title: Text
    resource: Annotated[str, StringConstraints(pattern=r"^(huawei\.com/[A-Za-z0-9-]+|\*)$")]
    device_prefix: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]+-)?$")]
    chips_per_node: Annotated[StrictInt, Field(ge=1, le=64)]
    usual_chips: Annotated[StrictInt, Field(ge=1, le=64)] | None = None
    chips_per_card: Positive | None = None
    generation: Generation | None = None
    node_labels: tuple[Annotated[Mapping[LabelKey, LabelValue], Field(min_length=1)], ...] = ()
    schedule_policies: tuple[Text, ...] = ()
    accelerator_types: tuple[Text, ...] = ()
    chip_names: tuple[Text, ...] = ()
    placement: Placement
    reset: ResetRule | None = None
    vnpu: VNPUSupport = VNPUSupport()

    @model_validator(mode="after")
    def _prefix_fits(self) -> ProductSpec:
        if self.generation is not None and self.device_prefix != self.generation.device_prefix:
            raise ValueError(f"devicePrefix of {self.generation} must be {self.generation.device_prefix}")
        return self


class Product(BelayDocument):
    """A server model, or a policy that runs on several (those have no ``node_labels`` and resource ``*``)."""

    KIND: ClassVar[str] = "Product"
    kind: Literal["Product"]
    spec: ProductSpec

    @property
    def generation(self) -> Generation:
        """The generation of its chips: as written, else by the prefix of its devices."""
        return self.spec.generation or generation_of(self.spec.device_prefix)

    @cached_property
    def reset_groups(self) -> tuple[tuple[int, ...], ...]:
        """Chips that reset together on a full node, ascending; chips in no group reset alone.

        Scope ``a3-module`` follows the node's port map, which only the agent knows; here neighbouring modules (four
        dies) count as partners.
        """
        rule, chips = self.spec.reset, self.spec.chips_per_node
        if rule is None:
            return ()
        if rule.groups:
            return tuple(rule.groups)
        size = (
            rule.group_size
            or {
                "chip": 1,
                "card": self.spec.chips_per_card or 1,
                "ring": self.spec.placement.ring_size or 1,
                "node": chips,
                "a3-module": 4,
                None: 1,
            }[rule.scope]
        )
        return tuple(tuple(range(first, min(first + size, chips))) for first in range(0, chips, size))

    def reset_group(self, chip: int) -> tuple[int, ...]:
        """The chips that reset together with one chip, itself included."""
        return next((group for group in self.reset_groups if chip in group), (chip,))

    def label_rank(self, labels: Mapping[str, str]) -> tuple[int, int] | None:
        """How well node labels match, smaller is better; ``None`` when no label set of the product matches."""
        ranks = [
            (-len(wanted), position)
            for position, wanted in enumerate(self.spec.node_labels)
            if all(labels.get(key) == value for key, value in wanted.items())
        ]
        return min(ranks, default=None)


__all__ = [
    "Handler", "Placement", "Product", "ProductSpec", "ResetRule", "Sizes", "PlacementStrategy", "VNPUSupport",
]  # fmt: skip
