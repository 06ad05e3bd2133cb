"""The pods of a gang that this pass may place, those that already run, and the pending entry of a waiting gang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from belay.engine.gangs.forming import counts_as_started
from belay.engine.model.actions import DeleteObject
from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.pending_reasons import RejectedAt
from belay.engine.model.plan import MAX_NEAR, Pending
from belay.engine.model.remedies import Remedy
from belay.engine.plan import roles
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs

MAX_MESSAGE: Final = 1024


class WaitingPods:
    """Which pods of a gang this pass may place, and which already count towards its minimum."""

    def __init__(self, facts: Facts, draft: Draft, gangs: PassGangs) -> None:
        self._facts, self._gangs = facts, gangs
        self._names = roles.names(facts)
        deleted = (a for a in draft.actions if isinstance(a, DeleteObject) and a.object_kind == "Pod")
        self._leaving = draft.evicting | {f"{action.namespace}/{action.name}" for action in deleted}

    def waiting(self, gang: Gang) -> list[Pod]:
        """Pods that Belay schedules and that are unbound, not terminating and not gated, in rank order."""
        pods, names, leaving = self._facts.observed.pods, self._names, self._leaving
        return [
            pod
            for key, pod in zip(gang.pods, map(pods.__getitem__, gang.pods), strict=True)
            if not pod.node and pod.deleting is None and not pod.gates and pod.scheduler in names and key not in leaving
        ]

    def gated(self, gang: Gang) -> list[Pod]:
        """Pods that Belay schedules, in rank order, which their scheduling gates still hold."""
        pods = map(self._facts.observed.pods.__getitem__, gang.pods)
        return [
            pod for pod in pods if pod.gates and not pod.node and pod.deleting is None and pod.scheduler in self._names
        ]

    def beside(self, gang: Gang, waiting: Sequence[Pod]) -> list[Pod]:
        """The pods that have started, beside these waiting ones."""
        return [] if len(waiting) == len(self._gangs.members[gang.key]) else self.started(gang)

    def started(self, gang: Gang) -> list[Pod]:
        """Pods that are bound and stay, and those that have succeeded."""
        pods = map(self._facts.observed.pods.__getitem__, gang.pods)
        bound = [pod for pod in pods if counts_as_started(pod) and pod.key not in self._leaving]
        # finished pods are not in the gang, but among its members
        if len(self._gangs.members[gang.key]) == len(gang.pods):
            return bound
        return bound + [pod for pod in self._gangs.members[gang.key] if pod.phase == "Succeeded"]


def pending_entry(
    gang: Gang,
    pods: Iterable[Pod],
    reason: str,
    message: str,
    *,
    nodes: Mapping[str, int],
    unblock: str | None,
    near: Sequence[str] = (),
    remedy: Remedy | None = None,
    state: str = "",
    rejected: RejectedAt = RejectedAt.PREDICATE,
) -> Pending:
    """The pending entry of a gang; its message is limited to ``MAX_MESSAGE`` characters, ``near`` to ``MAX_NEAR``.

    ``message`` is MindCluster's line, before which ``state`` is set.
    """
    message = f"{state}; {message}" if state else message
    return Pending(
        kind=gang.kind,
        namespace=gang.namespace,
        name=gang.name,
        pods=tuple(sorted(pod.name for pod in pods)),
        reason=reason,
        message=message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…",
        nodes=dict(sorted(nodes.items())),
        unblock=unblock,
        near=tuple(near[:MAX_NEAR]),
        remedy=remedy,
        state=state,
        rejected=rejected,
    )
