"""What queued gangs are placed on, and by which rules; what-ifs place and take back pods in the same scope."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.node_view import PassNodes
from belay.engine.plan.recover.outcome import RecoveryOutcome
from belay.engine.plan.rules.fault_rules import FaultRules


@dataclass(frozen=True, slots=True)
class Scope:
    """What the pass of placement works on.

    ``queue`` are the keys of the gangs that may be placed, in their order. ``rules`` are the fault policies in force,
    None without a health pass. ``made_groups`` are namespace and name of the PodGroups that this pass makes for
    workloads. ``scores`` are the scores of nodes by placed pod.
    """

    facts: Facts
    draft: Draft
    nodes: PassNodes
    gangs: PassGangs
    queue: Sequence[str] = ()
    rules: FaultRules | None = None
    recovery: RecoveryOutcome = field(default_factory=RecoveryOutcome)
    made_groups: AbstractSet[tuple[str, str]] = frozenset()
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
