"""Who holds which part of which chip: vNPUs cut on demand and soft shares, from pods' annotations and this pass' seats.

Source: component/ascend-for-volcano/plugin/vnode.go and internal/npu/policy/chip1softsharedev/node.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.model.cluster import Pod, ids_of, mask_of
from engine.model.cores import Tenant
from engine.model.vnpu import Size, Totals
from engine.plan.cutting import SERVER_TYPE_LABEL, chip_totals, templates_of
from engine.plan.place.sharing import kind_of
from engine.plan.place.verdict import Refusal
from engine.plan.scope import NodeView
from engine.wire.parts import NPU_CORE, Share, parse_cores, parse_share, vgroup
from engine.wire.podannotations import ASCEND_REAL

if TYPE_CHECKING:
    from engine.documents import Desired, VNPUTemplates

INVALID_NODE: Final = "VNPUNodeInvalid"
INVALID_TEXT: Final = "checkNodeNPUByDyTask invalid VNode"

Given = str | Share
"""What a pod got in this pass: the template of a vNPU, or a soft share."""


class CoreNode(NamedTuple):
    """A node that offers AI cores: its chips' templates, what one has to give, which chips it may be cut from."""

    templates: VNPUTemplates
    kind: str
    totals: Totals
    chips: int

    def size(self, template: str) -> Size | None:
        """What a template takes of one of the node's chips; None for a template that the chips do not know."""
        found = self.templates.by_name.get(template)
        return found.size(self.totals.aicore) if found is not None else None

    @property
    def vgroups(self) -> bool:
        """Whether the chips are divided into vGroups."""
        return bool(self.templates.spec.rules.vgroups)


Tenants = Mapping[int, tuple[Tenant, ...]]


class Parts:
    """The parts of chips on the nodes of one pass."""

    def __init__(self, desired: Desired) -> None:
        self._desired = desired
        self._given: dict[str, tuple[str, int, Given]] = {}
        self._nodes: dict[str, CoreNode | Refusal] = {}
        self._tenants: dict[str, Tenants] = {}
        self._shares: dict[str, dict[int, list[Share]]] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._settled = False

    def give(self, pod: Pod, node: str, chip: int, what: Given) -> None:
        """A pod got a part of a chip in this pass."""
        self._given[pod.key] = (node, chip, what)
        self.touch(node)

    def take_back(self, pod: Pod) -> None:
        """Undoes ``give``."""
        seat = self._given.pop(pod.key, None)
        if seat is not None:
            self.touch(seat[0])

    def rehearse(self, settled: bool) -> None:
        """While what-ifs look ahead, vNPUs given in this pass count as made already."""
        self._settled = settled
        self._tenants.clear()

    def touch(self, node: str) -> None:
        """Pods came to a node or left it."""
        self._tenants.pop(node, None)
        self._shares.pop(node, None)

    def given(self, pod: str) -> tuple[str, int, Given] | None:
        """(node, chip, part) of a pod placed in this pass."""
        return self._given.get(pod)

    def core_node(self, view: NodeView) -> CoreNode | Refusal:
        """The node as a place for AI cores, or why it is none."""
        name = view.node.name
        found = self._nodes.get(name)
        if found is None:
            found = self._nodes[name] = _core_node(self._desired, view)
        return found

    def tenants(self, view: NodeView, node: CoreNode) -> Tenants:
        """Who is on each chip that can be cut; chips without anybody are there with none."""
        name = view.node.name
        found = self._tenants.get(name)
        if found is None:
            found = self._tenants[name] = self._read_tenants(view, node)
        return found

    def shares(self, view: NodeView) -> Mapping[int, list[Share]]:
        """The soft shares on each chip that has some."""
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
        """The next number of a sharer on a chip: one more than the highest known or given in this pass."""
        place = (view.node.name, chip)
        number = max(self._numbers.get(place, -1), *known, -1) + 1
        self._numbers[place] = number
        return number

    def _read_shares(self, pods: Iterable[Pod]) -> dict[int, list[Share]]:
        found: dict[int, list[Share]] = {}
        for pod in pods:
            seat = self._given.get(pod.key)
            given = seat[2] if seat is not None else parse_share(pod.annotations, pod.resource)
            if isinstance(given, Share):
                found.setdefault(given.chip, []).append(given)
        return found

    def _read_tenants(self, view: NodeView, node: CoreNode) -> Tenants:
        found: dict[int, list[Tenant]] = {}
        for pod in view.pods:
            seat = self._given.get(pod.key)
            if seat is not None:
                if isinstance(seat[2], str):
                    found.setdefault(seat[1], []).append(Tenant(node.size(seat[2]), coming=not self._settled))
                continue
            held = parse_cores(pod.annotations.get(NPU_CORE, "")) if NPU_CORE in pod.annotations else None
            if held is None:
                continue
            real = pod.annotations.get(ASCEND_REAL, "")
            for chip in held.chips:
                tenant = Tenant(
                    size=node.size(held.template) if held.template else None,
                    whole=not held.template,
                    coming=not real,
                    unstable=not real,
                    group=vgroup(real.split(",")[0].strip()),
                )
                found.setdefault(chip, []).append(tenant)
        occupied = mask_of(sorted(found))
        usable = (occupied | _offered(view) & view.base) & ~view.unavailable & ~_elsewhere(view)
        return {
            chip: tuple(found.get(chip) or ([Tenant(None, whole=True)] if view.used >> chip & 1 else ()))
            for chip in ids_of(usable)
        }


def usable_shares(view: NodeView, shares: Mapping[int, list[Share]]) -> tuple[int, ...]:
    """Chips that may be shared softly: offered by the report or shared already, in service, and nobody's alone."""
    shared = mask_of(sorted(shares))
    usable = (_listed(view) & view.base | shared) & ~view.unavailable & ~(view.used & ~shared) & ~view.carved
    usable &= ~(view.static_chips | view.dynamic_chips)
    return ids_of(usable & view.soft_chips if view.soft_chips else usable)


def _core_node(desired: Desired, view: NodeView) -> CoreNode | Refusal:
    invalid = Refusal(INVALID_NODE, INVALID_TEXT)
    templates = templates_of(desired, view)
    if templates is None or not templates.spec.dynamic:
        return Refusal(INVALID_NODE, f"{INVALID_TEXT}: its chips cannot be cut on demand")
    if view.product is not None and view.product.name in templates.spec.rules.excluded_products:
        return Refusal(INVALID_NODE, f"{INVALID_TEXT}: {view.product.spec.title} cannot be cut on demand")
    totals = chip_totals(view, templates)
    cores = view.node.capacity.get(NPU_CORE, 0)
    told = _told_cores(view.node.labels.get(SERVER_TYPE_LABEL, ""))
    if told not in (None, totals.aicore) or not cores or cores % totals.aicore:
        text = f"{cores} AI cores, label {SERVER_TYPE_LABEL}={view.node.labels.get(SERVER_TYPE_LABEL, '')}"
        return invalid._replace(message=f"{INVALID_TEXT}: {text}, but its chips have {totals.aicore} each")
    return CoreNode(templates, kind_of(templates), totals, cores // totals.aicore)


def _told_cores(server_type: str) -> int | None:
    """AI cores per chip in a label such as ``Ascend310P-8``; None when it tells none."""
    pieces = server_type.split("-")
    return int(pieces[1]) if len(pieces) > 1 and pieces[1].isascii() and pieces[1].isdecimal() else None


def _listed(view: NodeView) -> int:
    return view.report.free if view.report is not None else 0


def _offered(view: NodeView) -> int:
    """Chips without tenants that may be cut: the report's free ones, and those whose leftover vNPUs nobody uses."""
    return _listed(view) | view.carved


def _elsewhere(view: NodeView) -> int:
    """Chips that documents declare for something else than cutting on demand."""
    others = view.static_chips | view.soft_chips
    return others | (view.base & ~view.dynamic_chips if view.dynamic_chips else 0)
