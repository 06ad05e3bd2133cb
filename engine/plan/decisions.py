"""The decision table: what a fault of a job's pods leads to, by fault type, label ``fault-scheduling`` and strategy.

Rows are read from the top, the first that fits counts. Which level of a chip or node leads to which fault type is
data of its own (``FaultPolicy.spec.actions``); which pods go is ``victims``'. Sources:
component/ascend-for-volcano/internal/rescheduling/job.go (deleteJobWithLabels, deleteJobWithSubHealthyLabels) and
docs/zh/scheduling/06_api/15_yaml_configuration.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NODE: Final = "NodeUnhealthy"
CARD: Final = "CardUnhealthy"
FAILED: Final = "pod-failed"
RELATION: Final = "RelationFaultSeparate"
SUB: Final = "SubHealthFault"
PROCESS: Final = "process-exception"

#: A job's reason is the first of these among its pods, else pod-failed.
ORDER: Final = (NODE, CARD, SUB, RELATION, PROCESS, FAILED)
#: Fault type → reason of the actions.
REASONS: Final = {
    NODE: "NodeUnhealthy", CARD: "CardUnhealthy", SUB: "SubHealthFault", RELATION: "RelationFaultSeparate",
    PROCESS: "ProcessException", FAILED: "PodFailed",
}  # fmt: skip

#: What may be done. ``nothing``: the pods stay. ``mark``: another controller deletes them, told by an annotation.
#: ``force``: deleted without grace. ``grace``: asked to go, forced after ``grace-over-time``. ``exit``: the processes
#: are told to end through the reset ConfigMap, then as ``grace``. ``switch``: a backup pod takes over first.
NOTHING: Final = "nothing"
MARK: Final = "mark"
FORCE: Final = "force"
GRACE: Final = "grace"
EXIT: Final = "exit"
SWITCH: Final = "switch"

_ANY: Final = frozenset(ORDER)
_HARD: Final = _ANY - {SUB}
_EXTERNAL: Final = ("external-force", "external-grace")


class Row(NamedTuple):
    """One row: fault types, values of ``fault-scheduling`` and of ``subHealthyStrategy`` (empty: any), the action."""

    faults: frozenset[str]
    modes: tuple[str, ...]
    strategies: tuple[str, ...]
    action: str


TABLE: Final = (
    Row(_ANY, ("off",), (), NOTHING),
    Row(_HARD, _EXTERNAL, (), MARK),
    Row(_HARD, ("force",), (), FORCE),
    Row(_HARD, ("grace",), (), GRACE),
    Row(frozenset({SUB}), (), ("ignore",), NOTHING),
    Row(frozenset({SUB}), _EXTERNAL, (), MARK),
    Row(frozenset({SUB}), (), ("graceExit",), EXIT),
    Row(frozenset({SUB}), (), ("forceExit",), FORCE),
    Row(frozenset({SUB}), (), ("hotSwitch",), SWITCH),
)


def reason_of(faults: frozenset[str]) -> str:
    """The fault type that names a job's reschedule: the gravest among its pods."""
    return next((fault for fault in ORDER if fault in faults), FAILED)


def action_of(faults: frozenset[str], mode: str, strategy: str) -> str:
    """What is done about a job's faults. The sub-health rows hold only where nothing else is wrong with its pods."""
    reason = reason_of(faults - {SUB} or faults)
    for row in TABLE:
        if reason in row.faults and mode in (row.modes or (mode,)) and strategy in (row.strategies or (strategy,)):
            return row.action
    return NOTHING
