"""The view of a node, which passes share: frozen, so that a change is a new view (``PassNodes.change``)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from belay.engine.model.chip_masks import ids_of
from belay.engine.model.cluster import DeviceReport, Node, Pod
from belay.engine.model.levels import NORMAL
from belay.engine.model.plan import ChipState, NodeState
from belay.engine.model.states import ChipHealth, NodeHealth

if TYPE_CHECKING:
    from belay.engine.documents import Product

#: A device report is rewritten every 300 s; one older than this (s) is stale.
STALE_AFTER: Final = 600.0
#: How far ahead the clock of a node may be (s).
FUTURE_TOLERANCE: Final = 60.0
_NONE: Final[Mapping[Any, Any]] = MappingProxyType({})


#: Why every task on a node goes: a fault of the whole node, or work on it that people planned.
NODE_DOWN: Final = "NodeUnhealthy"
MAINTENANCE: Final = "Maintenance"


class EarlierAssessment(NamedTuple):
    """Results of an earlier pass for a node: its rows of the plan's ``chips``, and its entry in ``nodes``."""

    chips: tuple[ChipState, ...]
    node: NodeState


class NodeView(msgspec.Struct, frozen=True, gc=False):
    """One node for the passes; sets of chips are bit masks of physical ids.

    ``base``: all chips of the node (ruling 1). ``unhealthy``: chips that the report, under the policies, calls
    unhealthy. ``unavailable``: chips that take no new work for any reason (unhealthy, recovering,
    resetting, isolated, held). ``network``: network-unhealthy chips, None when the report lacks the key.
    ``used``: chips of live pods and of the ledger's claims, ``used_by`` the key of the pod on each.
    ``closed``: (reason, message) why the node takes no new NPU pod, None when it does.
    ``requested``: sums of what its live pods request, per resource, in the units of Node.allocatable.
    ``groups``: chips that reset together. ``fresh``: the report in force is neither missing, refused nor stale.
    ``down``: why every task on the node goes: ``NODE_DOWN`` (a node fault), ``MAINTENANCE``, empty when none does.
    ``maintenance``: by what the node is in maintenance, for people; ``waits``: for pods that their annotations keep,
    too. ``hit``: chips whose fault
    evicts the task on them. ``sub_healthy``: chips with a sub-health fault. ``resettable``: faulty chips
    that a reset may heal once idle; ``tolerated``: chips in use whose fault may be healed under
    their job; ``resetting``: chips under a reset order without an answer; ``recovering``: chips reset and not
    yet reported clean. ``suspended``: the pool is suspended, so nothing is decided for the node.
    ``repeat_offenders``: chips that failed so often that placement avoids them among equals.
    ``carved``: chips with vNPUs; ``static_chips``, ``dynamic_chips``, ``soft_chips``: chips of a VNPULayout of that
    mode; ``cut``: all of these, which no pod takes whole. ``contradiction``: what the node reports that its product
    does not have, such as ``chips 910B3``; empty when they agree.
    ``assessed``: results of an earlier pass for this same state of the node (``belay.engine.plan.node_cache``); None
    when health must assess it.
    """

    node: Node
    pool: str
    product: Product | None
    report: DeviceReport | None
    resource: str
    prefix: str
    base: int
    unhealthy: int
    unavailable: int
    network: int | None
    used: int
    used_by: Mapping[int, str]
    pods: Sequence[Pod]
    requested: Mapping[str, int]
    state: NodeHealth = NodeHealth.HEALTHY
    level: str = NORMAL
    codes: tuple[str, ...] = ()
    closed: tuple[str, str] | None = None
    chip_level: Mapping[int, str] = _NONE
    chip_codes: Mapping[int, tuple[str, ...]] = _NONE
    chip_state: Mapping[int, ChipHealth] = _NONE
    chip_types: Mapping[int, tuple[str, ...]] = _NONE
    chip_rules: Mapping[int, str] = _NONE
    groups: tuple[int, ...] = ()
    fresh: bool = False
    down: str = ""
    maintenance: str = ""
    waits: bool = False
    hit: int = 0
    sub_healthy: int = 0
    switch_sub_healthy: bool = False
    resettable: int = 0
    tolerated: int = 0
    resetting: int = 0
    recovering: int = 0
    suspended: bool = False
    repeat_offenders: int = 0
    carved: int = 0
    static_chips: int = 0
    dynamic_chips: int = 0
    soft_chips: int = 0
    cut: int = 0
    contradiction: str = ""
    assessed: EarlierAssessment | None = None

    @property
    def free(self) -> int:
        """Chips that new work may take whole."""
        return self.base & ~self.unavailable & ~self.used & ~self.cut

    def names(self, mask: int) -> tuple[str, ...]:
        """The device names of a mask's chips, lowest first."""
        return _names(self.prefix, mask)

    def chip(self, index: int) -> str:
        """The chip's device name, e.g. ``Ascend910-4``."""
        return f"{self.prefix}{index}"


class PassNodes(dict[str, NodeView]):
    """The nodes of one pass by name: shared views of the snapshot, overlaid with the changes of this pass.

    ``unassessed`` are the sorted names of the nodes that this pass must assess; the results of an earlier pass hold for
    all others. ``contested`` are the nodes that several pools select.
    """

    __slots__ = ("contested", "unassessed")

    def __init__(self, views: Iterable[tuple[str, NodeView]] = ()) -> None:
        super().__init__(views)
        self.unassessed: list[str] = []
        self.contested: set[str] = set()

    def change(self, name: str, **changes: Any) -> NodeView:
        """Replace fields of a node's view; views read before stay unchanged."""
        view = self[name] = msgspec.structs.replace(self[name], **changes)
        return view

    def reassess(self, name: str) -> None:
        """Have health assess a node that an earlier pass has assessed; no effect on nodes of other shards."""
        if name in self and self[name].assessed is not None:
            self.change(name, assessed=None)
            insort(self.unassessed, name)

    def unassessed_views(self) -> list[tuple[str, NodeView]]:
        """The nodes that this pass must assess, with their current views."""
        return [(name, self[name]) for name in self.unassessed]


@lru_cache(maxsize=4096)
def _names(prefix: str, mask: int) -> tuple[str, ...]:
    return tuple([f"{prefix}{chip}" for chip in ids_of(mask)])
