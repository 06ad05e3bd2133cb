"""What one pass works on: intent, snapshot, time, and the state that passes derive for each other.

Passes run in the order of ``engine.plan`` and each adds to the scope; nothing here reads a clock,
a client or the environment. ``fork`` copies the mutable part, so that a what-if is the same code on a
copied world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from engine.model.actions import AnyAction
from engine.model.cluster import DeviceReport, Node, Observed, Pod, ids_of
from engine.model.costs import Estimate, Measured
from engine.model.diagnostics import Diagnostic
from engine.model.history import History, JobMemory, NodeMemory
from engine.model.jobs import Gang
from engine.model.levels import NORMAL
from engine.model.links import LinkState
from engine.model.plan import ChipState, Deferred, LemonState, NodeState, Pending, PlaneLevels

if TYPE_CHECKING:
    from engine.documents import Desired, Product
    from engine.plan.judge import Judge


class NodeView(msgspec.Struct, gc=False):
    """One node as the passes see it; chip sets are bit masks of physical ids.

    ``base``: every chip the node has (ruling 1). ``unhealthy``: what the report (and policy) call
    unhealthy. ``unavailable``: chips that take no new work for any reason (unhealthy, recovering,
    resetting, isolated, held). ``network``: network-unhealthy chips, None when the report lacks the key.
    ``used``: chips of live pods and of the ledger's claims, ``used_by`` who holds each.
    ``closed``: (reason, message) why the node takes no new NPU pod, None when it does.
    ``requested``: sums of what its live pods request, per resource, in the units of Node.allocatable.
    ``groups``: chips that reset together. ``fresh``: the report in force is neither missing, refused nor stale.
    ``down``: why every task on the node is hit (a node fault), empty when none is. ``hit``: chips whose fault
    demands that the task on them goes. ``sub_healthy``: chips with a sub-health fault. ``resettable``: faulty chips
    that a reset may heal once idle; ``tolerated``: chips in use whose fault may be healed under
    their job; ``resetting`` chips under a reset order without an answer, ``recovering`` those reset and not yet
    reported clean. ``suspended``: the pool is suspended, so nothing is decided for the node.
    ``lemons``: chips that failed so often that others are taken where they are as good.
    ``carved``: chips with vNPUs; ``static_chips``, ``dynamic_chips``, ``soft_chips``: chips that a VNPULayout of that
    mode is about; ``cut``: all of these, which nobody takes whole.
    ``shared``: the view is the one that ``engine.plan.settled`` keeps, so ``Scope.own`` comes before any change.
    ``settled``: an earlier pass judged this very state of the node (``engine.plan.settled``), so health need not;
    ``rows`` then are its rows of the plan's ``chips``, ``told`` is what the plan says of it
    while state, level, codes and pool are untouched. Such a view is ``lent``: its lists and maps belong to all passes
    and cannot be changed. Whoever changes what is in one calls ``Scope.own`` first.
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
    used_by: dict[int, str]
    pods: list[Pod]
    requested: dict[str, int]
    state: str = "healthy"
    level: str = NORMAL
    codes: tuple[str, ...] = ()
    closed: tuple[str, str] | None = None
    chip_level: dict[int, str] = msgspec.field(default_factory=dict)
    chip_codes: dict[int, tuple[str, ...]] = msgspec.field(default_factory=dict)
    chip_state: dict[int, str] = msgspec.field(default_factory=dict)
    chip_types: dict[int, tuple[str, ...]] = msgspec.field(default_factory=dict)
    groups: tuple[int, ...] = ()
    fresh: bool = False
    down: str = ""
    hit: int = 0
    sub_healthy: int = 0
    switch_sub_healthy: bool = False
    resettable: int = 0
    tolerated: int = 0
    resetting: int = 0
    recovering: int = 0
    suspended: bool = False
    lemons: int = 0
    carved: int = 0
    static_chips: int = 0
    dynamic_chips: int = 0
    soft_chips: int = 0
    cut: int = 0
    settled: bool = False
    rows: tuple[ChipState, ...] = ()
    told: NodeState | None = None
    lent: bool = False
    shared: bool = False

    def own(self) -> None:
        """Makes the lists and maps this pass' own, so that they may be changed."""
        assert not self.shared, "a view that passes share is changed: Scope.own gives one that may be"
        if self.lent:
            self.lent = False
            self.used_by, self.requested, self.pods = dict(self.used_by), dict(self.requested), list(self.pods)
            self.chip_level, self.chip_codes, self.chip_state, self.chip_types = {}, {}, {}, {}

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


@dataclass(slots=True)
class Memory:
    """The next value of the history: a draft over the observed one; only touched entries are kept."""

    nodes: dict[str, NodeMemory]
    jobs: dict[str, JobMemory]
    budgets: dict[str, tuple[tuple[int, str, int], ...]]
    ready_drops: dict[str, tuple[int, ...]]
    policy_revision: str = ""

    @staticmethod
    def of(history: History) -> Memory:
        """A draft that starts as a copy of ``history``."""
        return Memory(
            dict(history.nodes),
            dict(history.jobs),
            dict(history.budgets),
            dict(history.ready_drops),
            history.policy_revision,
        )

    def frozen(self, policy_revision: str = "") -> History:
        """The history to write; the argument only stands in where the health pass did not set ``policy_revision``."""
        return History(
            nodes=dict(sorted(self.nodes.items())),
            jobs=dict(sorted(self.jobs.items())),
            budgets=dict(sorted(self.budgets.items())),
            ready_drops=dict(sorted(self.ready_drops.items())),
            policy_revision=self.policy_revision or policy_revision,
        )


@dataclass(frozen=True, slots=True)
class Reschedule:
    """What evicting one budget unit leaves in its job's memory, once safety lets it pass.

    ``pods`` are all pods it evicts. ``counted`` is False when it only continues an earlier decision, so that
    neither the attempts nor the budgets are spent twice. ``failed`` consumes one of ``fault-retry-times``. ``hits`` are
    fault type, pod, node and rank of the pods that a fault hit.
    """

    gang: str
    reason: str
    pods: tuple[str, ...]
    fault_nodes: tuple[str, ...]
    counted: bool = True
    failed: bool = False
    retries: int = -1
    hits: tuple[tuple[str, str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Displacement:
    """What evicting one budget unit is for: room for the gang ``preemptor``. All units of a preemptor go or none.

    ``victim`` is the evicted pods' gang. ``counted`` is False when it only repeats an eviction that was decided before.
    """

    preemptor: str
    victim: str
    pods: tuple[str, ...]
    reason: str
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """How a hit job is recovered: the chosen estimate, all that were weighed, and what they follow from.

    ``held`` says why room that there is goes to another job first, empty when it does not; ``codes`` are the faults'.
    """

    chosen: Estimate
    weighed: tuple[Estimate, ...]
    known: Measured
    held: str = ""
    codes: tuple[str, ...] = ()


@dataclass(slots=True)
class Scope:
    """The whole working state of one pass.

    ``evicting`` are keys of pods this pass decided to evict; ``refused`` maps a gang key to nodes that
    must not take its new pods and why (rulings 3, 4; sub-health, previous faults); ``penalty`` lowers a
    node's score for a gang (sub-health -1, earlier fault -64). ``reschedules`` are what each evicted budget unit stands
    for, ``displaced`` the units that go for other jobs.
    ``judge`` holds the fault policies in force, once the health pass has settled which those are. ``roles`` says
    which roles Belay plays, filled on first use by ``engine.plan.roles``. ``blamed`` maps a pod's key to what relation
    faults decided for it (Separate or SubHealth). ``about``: the job or pod that somebody asks about. ``choices`` are
    the ways of recovery that were chosen by cost, by gang. ``unsettled`` are the views of the nodes that no earlier
    pass has judged as they are now, in the order of names: of all others health has nothing to say. ``members`` are
    all pods of each gang, finished ones included, in the order of their keys.
    """

    desired: Desired
    observed: Observed
    now: float
    shard: str
    memory: Memory
    nodes: dict[str, NodeView] = field(default_factory=dict)
    unsettled: dict[str, NodeView] = field(default_factory=dict)
    gangs: dict[str, Gang] = field(default_factory=dict)
    gang_of: dict[str, str] = field(default_factory=dict)
    members: Mapping[str, Sequence[Pod]] = field(default_factory=dict)
    actions: list[AnyAction] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    chips: list[ChipState] = field(default_factory=list)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    evicting: set[str] = field(default_factory=set)
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    penalty: dict[str, dict[str, int]] = field(default_factory=dict)
    queue: list[str] = field(default_factory=list)
    reschedules: dict[str, Reschedule] = field(default_factory=dict)
    displaced: dict[str, Displacement] = field(default_factory=dict)
    judge: Judge | None = None
    blamed: dict[str, str] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    about: str = ""
    choices: dict[str, Choice] = field(default_factory=dict)
    planes: dict[str, dict[int, PlaneLevels]] = field(default_factory=dict)
    lemons: list[LemonState] = field(default_factory=list)
    links: list[LinkState] = field(default_factory=list)

    @property
    def now_ms(self) -> int:
        """``now`` in Unix milliseconds."""
        return round(self.now * 1000)

    def unsettle(self, name: str) -> None:
        """Have health look at a node although it is as an earlier pass judged it; nothing for a node of others."""
        if name in self.nodes and self.nodes[name].settled:
            view = self.unsettled[name] = self.own(name)
            view.settled = False

    def own(self, name: str) -> NodeView:
        """A node's view for whoever is going to change it: views of settled nodes are shared by all passes."""
        view = self.nodes[name]
        if view.shared:
            view = self.nodes[name] = copy(view)
            view.shared = False
        view.told = None
        view.own()
        return view

    def own_all(self) -> None:
        """The same for every node at once; lists and maps are still each ``NodeView.own``'s to copy."""
        for name in [name for name, view in self.nodes.items() if view.shared]:
            view = self.nodes[name] = copy(self.nodes[name])
            view.shared = False


@lru_cache(maxsize=4096)
def _names(prefix: str, mask: int) -> tuple[str, ...]:
    return tuple([f"{prefix}{chip}" for chip in ids_of(mask)])
