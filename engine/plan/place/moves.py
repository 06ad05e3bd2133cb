"""Pods that are moved for a job: who may be, and the order to go.

A move is an eviction of a pod whose owner makes it anew elsewhere. Who makes room for vNPUs (``repartition``) and who
makes room for whole chips (``consolidate``) move pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from engine.model.actions import EvictPod, Evidence, Owner
from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.plan.place.job import Job
from engine.plan.queue import words
from engine.plan.scope import Displacement, Scope
from engine.plan.victims import memory_of

MOVED: Final = "Moved"
#: A job whose pod was moved is left alone for so long, in milliseconds.
REST_MS: Final = 600_000
#: Owners that make a pod anew on their own, one by one.
MOVABLE: Final = frozenset({"Deployment", "ReplicaSet"})


class Placing(Protocol):
    """A gang after its turn."""

    @property
    def gang(self) -> Gang:
        """The gang."""

    @property
    def job(self) -> Job | None:
        """The job behind it."""

    @property
    def left(self) -> Sequence[Pod]:
        """Its pods without a place."""

    @property
    def why(self) -> str:
        """The reason of its pending entry."""


def together(scope: Scope, placing: Placing) -> Sequence[Pod]:
    """The pods of a gang that must start together, else one."""
    needs = placing.gang.min_available - sum(1 for key in placing.gang.pods if scope.observed.pods[key].node)
    return placing.left[: max(1, needs)]


def owner_of(scope: Scope, pod: Pod, gang: Gang) -> Gang | None:
    """The job of a pod that may be moved for the gang: its owner makes it anew, it is no more important, and it was
    left alone long enough; else None.
    """
    owner = scope.gangs.get(scope.gang_of.get(pod.key, ""))
    if owner is None or owner.kind not in MOVABLE or owner.key == gang.key or owner.priority > gang.priority:
        return None
    recent = scope.now_ms - REST_MS
    story = memory_of(scope, owner).timeline
    return None if any(at > recent and text.startswith(MOVED.lower()) for at, text in story) else owner


def order(scope: Scope, gang: Gang, pod: Pod, evidence: Evidence) -> None:
    """Orders a pod to go, so that the gang fits where it is."""
    owner = scope.gangs[scope.gang_of[pod.key]]
    scope.displaced[pod.key] = Displacement(gang.key, owner.key, (pod.key,), MOVED)
    scope.evicting.add(pod.key)
    scope.actions.append(
        EvictPod(
            namespace=pod.namespace,
            pod=pod.name,
            grace_period_seconds=pod.grace_seconds,
            force=False,
            owner=Owner(owner.kind, owner.name),
            budget_unit=pod.key,
            reason=MOVED,
            message=f"pod {pod.key} of {words.named(owner)} moves, so that {words.named(gang)} fits on {pod.node}",
            evidence=evidence,
            preconditions={"uid": pod.uid, "node": pod.node},
        )
    )
