"""Which pod holds which part of which chip: vNPUs cut on demand and soft shares, observed or assigned in this pass.

Source: component/ascend-for-volcano/plugin/vnode.go and internal/npu/policy/chip1softsharedev/node.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from belay.engine.model.chip_masks import ids_of, mask_of
from belay.engine.model.cluster import Pod
from belay.engine.model.cores import ChipUse
from belay.engine.model.labels import ASCEND_REAL, NPU_CORE, SERVER_TYPE
from belay.engine.model.node_options import server_type
from belay.engine.model.quantities import whole_number
from belay.engine.model.vnpu import ChipCapacity, TemplateSize
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.place.causes import CannotBeCut, CoresDisagree
from belay.engine.plan.place.handler import Refusal
from belay.engine.plan.place.part_requests import kind_of
from belay.engine.plan.vnpu.templates import chip_totals, cut_by_layout, cut_on_demand, templates_of
from belay.engine.wire.parts import Share, held_cores, parse_share, vgroup

if TYPE_CHECKING:
    from belay.engine.documents import Desired, VNPUTemplates

INVALID_NODE: Final = "VNPUNodeInvalid"
INVALID_TEXT: Final = "checkNodeNPUByDyTask invalid VNode"

ChipPart = str | Share
"""The part that a pod got in this pass: the template of a vNPU, or a soft share."""


class CoreNode(NamedTuple):
    """A node that offers AI cores: the templates of its chips, their kind, the resources of one chip, the number of
    chips.
    """

    templates: VNPUTemplates
    kind: str
    totals: ChipCapacity
    chips: int

    def size(self, template: str) -> TemplateSize | None:
        """What a template takes of one of the node's chips; None for a template that the chips do not know."""
        found = self.templates.by_name.get(template)
        return found.size(self.totals.aicore) if found is not None else None

    @property
    def vgroups(self) -> bool:
        """Whether the chips are divided into vGroups."""
        return bool(self.templates.spec.rules.vgroups)


Tenants = Mapping[int, tuple[ChipUse, ...]]


class ChipParts:
    """The parts of chips on the nodes of one pass."""

    def __init__(self, desired: Desired) -> None:
        self._desired = desired
        self._assigned: dict[str, tuple[str, int, ChipPart]] = {}
        self._nodes: dict[str, CoreNode | Refusal] = {}
        self._tenants: dict[str, Tenants] = {}
        self._shares: dict[str, dict[int, list[Share]]] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._assume_made = False

    def assign(self, pod: Pod, node: str, chip: int, what: ChipPart) -> None:
        """Assign a part of a chip to a pod."""
        self._assigned[pod.key] = (node, chip, what)
        self.invalidate(node)

    def unassign(self, pod: Pod) -> None:
        """Take back the part that ``assign`` gave the pod."""
        assigned = self._assigned.pop(pod.key, None)
        if assigned is not None:
            self.invalidate(assigned[0])

    def assume_made(self, made: bool) -> None:
        """Whether what-ifs count vNPUs assigned in this pass as made already."""
        self._assume_made = made
        self._tenants.clear()

    def invalidate(self, node: str) -> None:
        """Read the node's parts again: its pods changed."""
        self._tenants.pop(node, None)
        self._shares.pop(node, None)

    def assigned(self, pod: str) -> tuple[str, int, ChipPart] | None:
        """(node, chip, part) of a pod placed in this pass."""
        return self._assigned.get(pod)

    def core_node(self, view: NodeView) -> CoreNode | Refusal:
        """The node as an offer of AI cores, or why it offers none."""
        name = view.node.name
        found = self._nodes.get(name)
        if found is None:
            found = self._nodes[name] = _core_node(self._desired, view)
        return found

    def tenants(self, view: NodeView, node: CoreNode) -> Tenants:
        """The tenants of each chip that can be cut; chips without tenants are included."""
        name = view.node.name
        found = self._tenants.get(name)
        if found is None:
            found = self._tenants[name] = self._read_tenants(view, node)
        return found

    def shares(self, view: NodeView) -> Mapping[int, list[Share]]:
        """The soft shares of each chip that has any."""
        name = view.node.name
        found = self._shares.get(name)
        if found is None:
            found = self._shares[name] = self._read_shares(view.pods)
        return found

    def shares_of_others(self, view: NodeView, own: Collection[str]) -> Mapping[int, list[Share]]:
        """The soft shares of all pods but these."""
        if any(pod.key in own for pod in view.pods):
            return self._read_shares(pod for pod in view.pods if pod.key not in own)
        return self.shares(view)

    def share_number(self, view: NodeView, chip: int, known: Iterable[int]) -> int:
        """The next share number of a chip: one more than the highest known or assigned in this pass."""
        place = (view.node.name, chip)
        number = max(self._numbers.get(place, -1), *known, -1) + 1
        self._numbers[place] = number
        return number

    def _read_shares(self, pods: Iterable[Pod]) -> dict[int, list[Share]]:
        found: dict[int, list[Share]] = {}
        for pod in pods:
            assigned = self._assigned.get(pod.key)
            part = assigned[2] if assigned is not None else parse_share(pod.annotations, pod.resource)
            if isinstance(part, Share):
                found.setdefault(part.chip, []).append(part)
        return found

    def _read_tenants(self, view: NodeView, node: CoreNode) -> Tenants:
        found: dict[int, list[ChipUse]] = {}
        for pod in view.pods:
            assigned = self._assigned.get(pod.key)
            if assigned is not None:
                if isinstance(assigned[2], str):
                    found.setdefault(assigned[1], []).append(
                        ChipUse(node.size(assigned[2]), coming=not self._assume_made)
                    )
                continue
            held = held_cores(pod)
            if held is None:
                continue
            real = pod.annotations.get(ASCEND_REAL, "")
            for chip in held.chips:
                tenant = ChipUse(
                    size=node.size(held.template) if held.template else None,
                    whole=not held.template,
                    coming=not real,
                    unstable=not real,
                    group=vgroup(real.split(",")[0].strip()),
                )
                found.setdefault(chip, []).append(tenant)
        occupied = mask_of(sorted(found))
        usable = (occupied | _offered(view) & view.base) & ~view.unavailable & ~_declared_otherwise(view)
        return {
            chip: tuple(found.get(chip) or ([ChipUse(None, whole=True)] if view.used >> chip & 1 else ()))
            for chip in ids_of(usable)
        }


def usable_shares(view: NodeView, shares: Mapping[int, list[Share]]) -> tuple[int, ...]:
    """Chips that may be shared softly: in service, free in the report or shared already, and not held by one pod
    alone.
    """
    shared = mask_of(sorted(shares))
    usable = (_listed(view) & view.base | shared) & ~view.unavailable & ~(view.used & ~shared) & ~view.carved
    usable &= ~(view.static_chips | view.dynamic_chips)
    return ids_of(usable & view.soft_chips if view.soft_chips else usable)


def _core_node(desired: Desired, view: NodeView) -> CoreNode | Refusal:
    templates = templates_of(desired, view)
    if templates is None or not templates.spec.dynamic:
        uncut = CannotBeCut(NPU_CORE, "", templates is not None and cut_by_layout(view))
        return Refusal(INVALID_NODE, f"{INVALID_TEXT}: its chips cannot be cut on demand", uncut)
    if not cut_on_demand(view, templates):
        title = view.product.spec.title if view.product is not None else "this product"
        uncut = CannotBeCut(NPU_CORE, title, cut_by_layout(view))
        return Refusal(INVALID_NODE, f"{INVALID_TEXT}: chips of {title} cannot be cut on demand", uncut)

    totals = chip_totals(view, templates)
    cores = view.node.capacity.get(NPU_CORE, 0)
    label = server_type(view.node)
    if _labelled_cores(label) not in (None, totals.aicore) or not cores or cores % totals.aicore:
        text = f"{cores} AI cores, label {SERVER_TYPE}={label}, but its chips have {totals.aicore} each"
        cause = CoresDisagree(view.node.name, cores, totals.aicore, SERVER_TYPE, label)
        return Refusal(INVALID_NODE, f"{INVALID_TEXT}: {text}", cause)
    return CoreNode(templates, kind_of(templates), totals, cores // totals.aicore)


def _labelled_cores(server_type: str) -> int | None:
    """AI cores per chip by a label such as ``Ascend310P-8``; None when it states none."""
    pieces = server_type.split("-")
    return whole_number(pieces[1]) if len(pieces) > 1 else None


def _listed(view: NodeView) -> int:
    return view.report.free if view.report is not None else 0


def _offered(view: NodeView) -> int:
    """Chips without tenants that may be cut: free in the report, or holding only unused leftover vNPUs."""
    return _listed(view) | view.carved


def _declared_otherwise(view: NodeView) -> int:
    """Chips that documents declare for another use than cutting on demand."""
    others = view.static_chips | view.soft_chips
    return others | (view.base & ~view.dynamic_chips if view.dynamic_chips else 0)
