"""What one pass works on: intent, snapshot, time, and the state that passes derive for each other.

Passes run in the order of ``belay.engine.plan`` and each adds to the scope; nothing here reads a clock, a client or the
environment. What-ifs place and take back pods in the same scope.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from belay.engine.model.cluster import Pod, SwitchReport
from belay.engine.model.costs import Estimate, MeasuredTimes
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.holds import Held
from belay.engine.model.jobs import Gang
from belay.engine.model.links import LinkState
from belay.engine.model.plan import (
    BudgetUse,
    ChipState,
    IgnoredObject,
    PlaneLevels,
    PruneHold,
    RepeatOffender,
)
from belay.engine.model.refusals import ServerRefusal
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.node_view import NodeView, PassNodes

if TYPE_CHECKING:
    from belay.engine.plan.rules.fault_rules import FaultRules


class NodeRefusal(NamedTuple):
    """Why one job may not take a node that others may: a word of ``belay.engine.model.pending_reasons``, and the
    sentence."""

    reason: str
    message: str


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

    facts: Facts
    draft: Draft
    nodes: PassNodes = field(default_factory=PassNodes)
    unassessed: list[str] = field(default_factory=list)
    contested: set[str] = field(default_factory=set)
    gangs: dict[str, Gang] = field(default_factory=dict)
    gang_of: dict[str, str] = field(default_factory=dict)
    members: Mapping[str, Sequence[Pod]] = field(default_factory=dict)
    chips: list[ChipState] = field(default_factory=list)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    refused: dict[str, dict[str, NodeRefusal]] = field(default_factory=dict)
    penalty: dict[str, dict[str, int]] = field(default_factory=dict)
    queue: list[str] = field(default_factory=list)
    fault_rules: FaultRules | None = None
    blamed: dict[str, str] = field(default_factory=dict)
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
    made_groups: set[tuple[str, str]] = field(default_factory=set)

    def reassess(self, name: str) -> None:
        """Have health assess a node that an earlier pass has assessed; no effect on nodes of other shards."""
        if name in self.nodes and self.nodes[name].assessed is not None:
            self.nodes.change(name, assessed=None)
            insort(self.unassessed, name)

    def unassessed_views(self) -> list[tuple[str, NodeView]]:
        """The nodes that this pass must assess, with their current views."""
        return [(name, self.nodes[name]) for name in self.unassessed]
