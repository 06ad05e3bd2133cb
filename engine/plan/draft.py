"""What a pass decides: the lists to which the steps of a pass add, and the next value of the memory.

Everything here grows from step to step; ``belay.engine.plan.facts`` holds what no step changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from belay.engine.model.actions import AnyAction
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.history import HeldPrune, History, JobMemory, NodeMemory, PoolEdit
from belay.engine.model.plan import Deferred, Pending


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


@dataclass(slots=True)
class Draft:
    """The decisions of one pass so far.

    ``actions`` stay in the order in which they are decided, which is the order of execution. ``evicting`` are the keys
    of pods that this pass decided to evict; ``reschedules`` and ``displaced`` say by evicted budget unit why: a fault,
    or room for another job.
    """

    memory: Memory
    actions: list[AnyAction] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    evicting: set[str] = field(default_factory=set)
    reschedules: dict[str, Reschedule] = field(default_factory=dict)
    displaced: dict[str, Displacement] = field(default_factory=dict)
