"""The conditions of ``belay-sync``: what was read from Git, held against the cluster and against what this pass wants.

``Applied`` is True only while every declared object is in force: it exists, is not going, and no pass wants to change
it. An object that is refused, held back or on its way makes it False, and so ``Ready``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from belay.engine.model.actions import (
    AnyAction,
    CreateObject,
    DeleteObject,
    IsolateChip,
    IsolateNode,
    PartitionChip,
    PatchObject,
    ReleaseChip,
    ReleaseNode,
)
from belay.engine.model.causes import Cause, CauseKind
from belay.engine.model.cluster import Observed
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.freshness import APPLIED, READY
from belay.engine.model.plan import REFUSED, Deferred, Plan
from belay.engine.model.reasons import ActionReason
from belay.engine.model.refusals import ServerRefusal
from belay.engine.model.rules import RuleKind
from belay.engine.model.unstructured import nested_map
from belay.engine.model.wording import counted

EVERYTHING: Final = "Everything"
EXCEPT_REFUSED: Final = "ExceptRefused"
API_REFUSES: Final = "RefusedByServer"
HELD_BACK: Final = "HeldBack"
APPLYING: Final = "Applying"
_LONGEST_MESSAGE: Final = 1024
_OF_LAYOUTS: Final = frozenset({ActionReason.LAYOUT_DIFFERS, ActionReason.LAYOUT_REMOVED})


class StatusCondition(msgspec.Struct, frozen=True):
    """A Kubernetes-style condition: ``status`` True, False or Unknown, ``reason`` a CamelCase constant.

    ``severity`` is ``info`` where False is a choice and no trouble; it is published only then, as Cluster API does.
    """

    type: str
    status: str
    reason: str
    message: str = ""
    severity: str = ""


def condition_row(one: StatusCondition) -> dict[str, str]:
    """The condition as it is published."""
    row: dict[str, str] = msgspec.to_builtins(one)
    if not one.severity:
        del row["severity"]
    return row


class Standing(msgspec.Struct, frozen=True):
    """How the objects of the revision in force stand: each is in exactly one of these.

    ``waiting`` are on their way, ``held`` wait for a budget, a window or a person, ``refused`` are refused by the API
    server. Objects that are to be deleted count too, until they are gone.
    """

    in_force: int = 0
    waiting: tuple[ObjectKey, ...] = ()
    held: tuple[Deferred, ...] = ()
    refused: tuple[ServerRefusal, ...] = ()

    @property
    def total(self) -> int:
        """All of them."""
        return self.in_force + len(self.waiting) + len(self.held) + len(self.refused)

    @property
    def counts(self) -> dict[str, int]:
        """The four numbers by their names."""
        return {
            "inForce": self.in_force,
            "waiting": len(self.waiting),
            "heldBack": len(self.held),
            "refused": len(self.refused),
        }


def standing(plan: Plan, observed: Observed, declared: Iterable[ObjectKey]) -> Standing:
    """How each declared object, and each that is to be deleted, stands in the cluster of this pass."""
    refused = {row.key.object: row for row in plan.refusals}
    held = {key: row for row in plan.deferred if row.budget != REFUSED and (key := _synced(row.action)) is not None}
    ordered = {key for action in plan.actions if (key := _synced(action)) is not None} | _being_cut(plan)
    wanted = set(declared)
    elsewhere = {key for key in (*held, *ordered) if key not in wanted}
    deleted = {row.key.object for row in plan.refusals if row.key.verb == "DeleteObject"}

    in_force, waiting, withheld, not_accepted = 0, [], [], []
    for key in sorted(wanted | elsewhere | deleted):
        if key in refused:
            not_accepted.append(refused[key])
        elif key in held:
            withheld.append(held[key])
        elif key in ordered or not _stands(observed, key):
            waiting.append(key)
        else:
            in_force += 1
    return Standing(in_force, tuple(waiting), tuple(withheld), tuple(not_accepted))


def conditions(
    read: Sequence[StatusCondition], applied: StatusCondition | None, plan: Plan, stands: Standing
) -> tuple[StatusCondition, ...]:
    """The conditions of the repository, with ``Applied`` and ``Ready`` held against the world; Ready stays last.

    ``read`` is what source and documents say, ``applied`` what would be in force by reading alone; None without Git.
    """
    found = list(read[:-1])
    ready = list(read[-1:])
    if applied is not None:
        applied = _with_held_policy(_applied(applied, stands), plan)
        found.append(applied)
    if plan.held_prune is not None:
        hold = plan.held_prune
        message = f"deleting {hold.size} waits for a person; a commit with the trailer '{hold.trailer}' lets it be done"
        found.append(StatusCondition("PruneHeld", "True", "WaitsForConfirmation", message))

    reason = _not_ready(applied, plan)
    if reason is not None and ready and ready[0].type == READY and ready[0].status == "True":
        ready = [reason]
    return (*found, *ready)


def _applied(read: StatusCondition, stands: Standing) -> StatusCondition:
    """``Applied`` by the world: the worst of what keeps an object from being in force is its reason."""
    if stands.refused:
        reason, first = API_REFUSES, "first " + _refused_text(stands.refused[0])
    elif stands.held:
        reason, first = HELD_BACK, "first " + _held_text(stands.held[0])
    elif stands.waiting:
        reason, first = APPLYING, f"first {stands.waiting[0]}"
    else:
        return read

    counts = [f"{stands.in_force} of {counted(stands.total, 'object')} {'is' if stands.total == 1 else 'are'} in force"]
    counts += [f"{number} {word}" for number, word in _numbers(stands) if number]
    message = f"{', '.join(counts)}; {first}"
    if read.reason != EVERYTHING:
        message = f"{message}; {read.message}"
    return StatusCondition(APPLIED, "False", reason, message[:_LONGEST_MESSAGE])


def _with_held_policy(applied: StatusCondition, plan: Plan) -> StatusCondition:
    """``Applied`` is False while a policy of the revision is held back, as the version before it counts."""
    held = next((one for one in plan.diagnostics if one.code == PassCode.POLICY_HELD_BACK), None)
    if held is None or applied.status != "True":
        return applied
    return StatusCondition(APPLIED, "False", HELD_BACK, f"{held.object}: {held.message}"[:_LONGEST_MESSAGE])


def _not_ready(applied: StatusCondition | None, plan: Plan) -> StatusCondition | None:
    """Why the whole is not ready although the source is; pods of a job may be refused while the job is in force."""
    if applied is not None and applied.status != "True":
        return StatusCondition(READY, "False", applied.reason, applied.message)
    if plan.refusals:
        refused = counted(len(plan.refusals), "object")
        text = f"the API server refuses {refused}, first {_refused_text(plan.refusals[0])}"
        return StatusCondition(READY, "False", API_REFUSES, text[:_LONGEST_MESSAGE])
    return None


def _numbers(stands: Standing) -> tuple[tuple[int, str], ...]:
    return (
        (len(stands.refused), "refused by the API server"),
        (len(stands.held), "held back"),
        (len(stands.waiting), "on the way"),
    )


def _refused_text(row: ServerRefusal) -> str:
    place = f" ({row.file}:{row.line}@{row.revision[:12]})" if row.file else ""
    return f"{row.key.object}{place}: {row.cause}: {row.answer}"


def _held_text(row: Deferred) -> str:
    until = f"until {row.until}" if row.until else "until a person decides"
    return f"{row.action.message} (by {row.budget}, {until})"


def _synced(action: AnyAction) -> ObjectKey | None:
    """The object that the action brings in line with Git, of an Isolation its node; None for any other action."""
    if isinstance(action, CreateObject | PatchObject) and action.evidence.rule_kind is RuleKind.SYNC:
        return ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)
    if isinstance(action, DeleteObject) and action.reason == ActionReason.PRUNED:
        return ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)
    # status is written while what the pass ordered is on its way: an Isolation is in force once nothing is ordered
    if isinstance(action, IsolateNode | IsolateChip) and action.evidence.rule_kind is RuleKind.ISOLATION:
        return ObjectKey("v1", "Node", "", action.node)
    if isinstance(action, ReleaseNode | ReleaseChip) and _by_document(action):
        return ObjectKey("v1", "Node", "", action.node)
    if isinstance(action, PartitionChip) and action.reason in _OF_LAYOUTS:
        return ObjectKey("v1", "Node", "", action.node)
    return None


def _by_document(action: ReleaseNode | ReleaseChip) -> bool:
    """Whether it comes back because a document was changed or removed, not because its faults have ended."""
    cause = action.evidence.cause
    return isinstance(cause, Cause) and cause.kind is CauseKind.DOCUMENT


def _being_cut(plan: Plan) -> set[ObjectKey]:
    """The nodes that have not answered the order by which their chips are cut as a layout says."""
    found = (one.object for one in plan.diagnostics if one.code == PassCode.LAYOUT_ORDERED)
    return {ObjectKey("v1", "Node", "", name.removeprefix("Node/")) for name in found}


def _stands(observed: Observed, key: ObjectKey) -> bool:
    live = observed.objects.get(key)
    return live is not None and not nested_map(live, "metadata").get("deletionTimestamp")
