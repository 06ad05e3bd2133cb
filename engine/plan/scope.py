"""What one pass works on: intent, snapshot, time, and the state that passes derive for each other.

Passes run in the order of ``belay.engine.plan`` and each adds to the scope; nothing here reads a clock, a client or the
environment. What-ifs place and take back pods in the same scope.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from belay.engine.model.actions import AnyAction
from belay.engine.model.cluster import Observed, Pod, SwitchReport
from belay.engine.model.costs import Estimate, MeasuredTimes
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.history import HeldPrune, History, JobMemory, NodeMemory, PoolEdit
from belay.engine.model.holds import Held
from belay.engine.model.jobs import Gang
from belay.engine.model.links import LinkState
from belay.engine.model.plan import (
    BudgetUse,
    ChipState,
    Deferred,
    IgnoredObject,
    Pending,
    PlaneLevels,
    PruneHold,
    RepeatOffender,
)
from belay.engine.model.plan_cache import PlanCache
from belay.engine.model.refusals import ServerRefusal
from belay.engine.plan.node_view import NodeView, PassNodes

if TYPE_CHECKING:
    from belay.engine.documents import Desired
    from belay.engine.plan.claims.holding import DeviceClaims
    from belay.engine.plan.rules.fault_rules import FaultRules


@dataclass(slots=True)
class Memory:
    """The next value of the history: a draft over the observed one; only touched entries are kept."""

    nodes: dict[str, NodeMemory]
    jobs: dict[str, JobMemory]
    budgets: dict[str, tuple[tuple[int, str, int], ...]]
    ready_drops: dict[str, tuple[int, ...]]
    policy_revision: str = ""
    prunes: tuple[HeldPrune, ...] = ()
    repeats: dict[str, tuple[int, ...]] = field(default_factory=dict)
    pool_edit: PoolEdit | None = None
    retemplated: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(history: History) -> Memory:
        """A draft that starts as a copy of ``history``."""
        return Memory(
            dict(history.nodes),
            dict(history.jobs),
            dict(history.budgets),
            dict(history.ready_drops),
            history.policy_revision,
            history.prunes,
            dict(history.repeats),
            history.pool_edit,
            dict(history.retemplated),
        )

    def frozen(self, policy_revision: str = "") -> History:
        """The history to write; the argument applies only where the health pass did not set ``policy_revision``."""
        return History(
            nodes=dict(sorted(self.nodes.items())),
            jobs=dict(sorted(self.jobs.items())),
            budgets=dict(sorted(self.budgets.items())),
            ready_drops=dict(sorted(self.ready_drops.items())),
            policy_revision=self.policy_revision or policy_revision,
            prunes=self.prunes,
            repeats=dict(sorted(self.repeats.items())),
            pool_edit=self.pool_edit,
            retemplated=dict(sorted(self.retemplated.items())),
        )


@dataclass(frozen=True, slots=True)
class Reschedule:
    """What the eviction of one budget unit leaves in its job's memory, once safety admits it.

    ``pods`` are all pods it evicts, ``answered`` hit pods that others delete already. ``counted`` is False when it only
    continues an earlier decision, so that no attempt is spent twice; ``spends`` is False when it evicts no pod that an
    earlier pass did not, so that no budget is. ``planned``: people work on the node, so it is neither a fault nor a
    recovery, and spends budgets only. ``failed`` consumes one of ``fault-retry-times``. ``hits`` are
    fault type, pod, node and rank of the pods that a fault hit.
    """

    gang: str
    reason: str
    pods: tuple[str, ...]
    fault_nodes: tuple[str, ...]
    counted: bool = True
    spends: bool = True
    answered: tuple[str, ...] = ()
    planned: bool = False
    failed: bool = False
    retries: int = -1
    hits: tuple[tuple[str, str, str, str], ...] = ()


class NodeRefusal(NamedTuple):
    """Why one job may not take a node that others may: a word of ``belay.engine.model.pending_reasons``, and the
    sentence."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Displacement:
    """The eviction of one budget unit to make room for the gang ``preemptor``; all units of a preemptor go or none.

    ``victim`` is the evicted pods' gang. ``counted`` is False when it only repeats an earlier eviction.
    """

    preemptor: str
    victim: str
    pods: tuple[str, ...]
    reason: str
    counted: bool = True


@dataclass(frozen=True, slots=True)
class RecoveryChoice:
    """The recovery level of a hit job: the chosen estimate, all that were weighed, and the times behind them.

    ``held``: why another job gets the room first, empty when none does. ``codes``: the fault codes.
    """

    chosen: Estimate
    weighed: tuple[Estimate, ...]
    known: MeasuredTimes
    held: str = ""
    codes: tuple[str, ...] = ()


def _no_claims() -> DeviceClaims:
    """No claims; imported when a scope is made, so that the planner's door stays cheap."""
    from belay.engine.plan.claims.holding import DeviceClaims

    return DeviceClaims()


@dataclass(slots=True)
class Scope:
    """The whole working state of one pass.

    ``evicting`` are keys of pods this pass decided to evict; ``refused`` maps a gang key to nodes that
    must not take its new pods and why (rulings 3, 4; sub-health, previous faults); ``penalty`` lowers a
    node's score for a gang (sub-health -1, earlier fault -64). ``reschedules`` are the reschedules by evicted
    budget unit, ``displaced`` the units evicted for other jobs.
    ``fault_rules`` holds the fault policies in force, once the health pass has chosen them. ``roles`` says
    which roles Belay plays, filled on first use by ``belay.engine.plan.roles``. ``blamed`` maps a pod's key to the
    strategy of relation faults for it (Separate or SubHealth). ``about``: the job or pod that a user asks about.
    ``choices`` are the recovery levels chosen by cost, by gang. ``unassessed`` are the sorted names of the nodes that
    this pass must assess; the results of an earlier pass hold for all others. ``contested`` are the nodes that several
    pools select. ``members`` are
    all pods of each gang, finished ones included, in the order of their keys. ``undeclared`` are live objects that Git
    applied and no longer declares, ``held_prune`` those whose deletion waits for a person. ``claims`` are the claims of
    dynamic resource allocation; pods of ``observed`` have their chips. ``made_groups`` are namespace and name of the
    PodGroups that this pass makes for workloads. ``refusals`` are what the API server refuses, ``holds`` what holds
    nodes and chips. ``cache`` holds results that the shard keeps between passes.
    """

    desired: Desired
    observed: Observed
    now: float
    shard: str
    memory: Memory
    nodes: PassNodes = field(default_factory=PassNodes)
    unassessed: list[str] = field(default_factory=list)
    contested: set[str] = field(default_factory=set)
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
    refused: dict[str, dict[str, NodeRefusal]] = field(default_factory=dict)
    penalty: dict[str, dict[str, int]] = field(default_factory=dict)
    queue: list[str] = field(default_factory=list)
    reschedules: dict[str, Reschedule] = field(default_factory=dict)
    displaced: dict[str, Displacement] = field(default_factory=dict)
    fault_rules: FaultRules | None = None
    blamed: dict[str, str] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    about: str = ""
    choices: dict[str, RecoveryChoice] = field(default_factory=dict)
    planes: dict[str, dict[int, PlaneLevels]] = field(default_factory=dict)
    switches: dict[str, SwitchReport] = field(default_factory=dict)
    repeat_offenders: list[RepeatOffender] = field(default_factory=list)
    links: list[LinkState] = field(default_factory=list)
    ignored: list[IgnoredObject] = field(default_factory=list)
    undeclared: set[ObjectKey] = field(default_factory=set)
    held_prune: PruneHold | None = None
    holds: list[Held] = field(default_factory=list)
    budgets: tuple[BudgetUse, ...] = ()
    refusals: list[ServerRefusal] = field(default_factory=list)
    claims: DeviceClaims = field(default_factory=_no_claims)
    made_groups: set[tuple[str, str]] = field(default_factory=set)
    cache: PlanCache = field(default_factory=PlanCache)

    @property
    def now_ms(self) -> int:
        """``now`` in Unix milliseconds."""
        return round(self.now * 1000)

    def reassess(self, name: str) -> None:
        """Have health assess a node that an earlier pass has assessed; no effect on nodes of other shards."""
        if name in self.nodes and self.nodes[name].assessed is not None:
            self.nodes.change(name, assessed=None)
            insort(self.unassessed, name)

    def unassessed_views(self) -> list[tuple[str, NodeView]]:
        """The nodes that this pass must assess, with their current views."""
        return [(name, self.nodes[name]) for name in self.unassessed]
