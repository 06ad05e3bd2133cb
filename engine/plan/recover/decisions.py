"""The decision table: action for a fault of a job's pods, by fault type, label ``fault-scheduling`` and strategy.

The first matching row counts. Which level of a chip or node leads to a fault type is in ``FaultPolicy.spec.actions``;
which pods are evicted is in ``restart_scope``. Sources:
component/ascend-for-volcano/internal/rescheduling/job.go (deleteJobWithLabels, deleteJobWithSubHealthyLabels) and
docs/zh/scheduling/06_api/15_yaml_configuration.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from belay.engine.model.causes import Cause
from belay.engine.model.levels import SUB_HEALTH
from belay.engine.model.reasons import ActionReason
from belay.engine.plan.node_view import MAINTENANCE, NODE_DOWN

NODE: Final = NODE_DOWN
CARD: Final = "CardUnhealthy"
FAILED: Final = "pod-failed"
RELATION: Final = "RelationFaultSeparate"
SUB: Final = SUB_HEALTH.value
PROCESS: Final = "process-exception"

#: A job's reason is the first of these among its pods, else pod-failed.
ORDER: Final = (NODE, CARD, MAINTENANCE, SUB, RELATION, PROCESS, FAILED)
#: Fault type → reason of the actions.
REASONS: Final[dict[str, str]] = {
    NODE: ActionReason.NODE_UNHEALTHY,
    CARD: ActionReason.CARD_UNHEALTHY,
    MAINTENANCE: ActionReason.MAINTENANCE,
    SUB: SUB,
    RELATION: ActionReason.RELATION_FAULT_SEPARATE,
    PROCESS: ActionReason.PROCESS_EXCEPTION,
    FAILED: ActionReason.POD_FAILED,
}

#: Actions. ``nothing``: the pods stay. ``mark``: an annotation asks another controller to delete them. ``force``:
#: deleted without grace period. ``grace``: deleted with grace period, forced after ``grace-over-time``. ``exit``: the
#: reset ConfigMap asks the processes to end, then as ``grace``. ``switch``: a backup pod takes over first.
NOTHING: Final = "nothing"
MARK: Final = "mark"
FORCE: Final = "force"
GRACE: Final = "grace"
EXIT: Final = "exit"
SWITCH: Final = "switch"

_ANY: Final = frozenset(ORDER)
_HARD: Final = _ANY - {SUB}
_EXTERNAL: Final = ("external-force", "external-grace")


class PodFault(NamedTuple):
    """Why a pod is hit: the fault type, the codes behind it, a sentence for people, and the cause."""

    kind: str
    codes: tuple[str, ...]
    text: str
    cause: Cause


class DecisionRow(NamedTuple):
    """One row: fault types, values of ``fault-scheduling`` and of ``subHealthyStrategy`` (empty: any), the action."""

    faults: frozenset[str]
    modes: tuple[str, ...]
    strategies: tuple[str, ...]
    action: str


TABLE: Final = (
    DecisionRow(_ANY, ("off",), (), NOTHING),
    DecisionRow(_HARD, _EXTERNAL, (), MARK),
    # work that people planned leaves a job the time to save
    DecisionRow(frozenset({MAINTENANCE}), (), (), GRACE),
    DecisionRow(_HARD, ("force",), (), FORCE),
    DecisionRow(_HARD, ("grace",), (), GRACE),
    DecisionRow(frozenset({SUB}), (), ("ignore",), NOTHING),
    DecisionRow(frozenset({SUB}), _EXTERNAL, (), MARK),
    DecisionRow(frozenset({SUB}), (), ("graceExit",), EXIT),
    DecisionRow(frozenset({SUB}), (), ("forceExit",), FORCE),
    DecisionRow(frozenset({SUB}), (), ("hotSwitch",), SWITCH),
)


def reason_of(faults: frozenset[str]) -> str:
    """The fault type that names a job's reschedule: the first in ``ORDER`` among its pods."""
    return next((fault for fault in ORDER if fault in faults), FAILED)


def action_of(faults: frozenset[str], mode: str, strategy: str) -> str:
    """The action for a job's faults. Sub-health rows apply only when its pods have no other fault."""
    reason = reason_of(faults - {SUB} or faults)
    for row in TABLE:
        if reason in row.faults and mode in (row.modes or (mode,)) and strategy in (row.strategies or (strategy,)):
            return row.action
    return NOTHING
