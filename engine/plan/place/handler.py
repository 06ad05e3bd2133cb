"""What a topology family is asked and answers: a node's chips and a pod's request in, a score or a refusal out."""

from __future__ import annotations

from functools import cached_property
from typing import Final, NamedTuple, Protocol

import msgspec

from belay.engine.model.chip_masks import ids_of
from belay.engine.model.job_options import JobOptions, read_options
from belay.engine.plan.place.causes import Cause

#: MindCluster's prefix when chips are missing.
SHORTAGE_PREFIX: Final = "NPUResourceShortage: "
#: MindCluster's words when chips are free in the wrong places.
UNSCHEDULABLE_TOPOLOGY: Final = "the npus on this node don't satisfy the schedulable topology"


class IdleChips(NamedTuple):
    """Too few chips are idle on a node, in MindCluster's words; ``head`` is what its handler writes before them."""

    wanted: int
    idle: int
    head: str = ""

    @property
    def text(self) -> str:
        """The sentence."""
        return f"{self.head}{SHORTAGE_PREFIX}node don't have enough resource, req<{self.wanted}>, idle<{self.idle}>"


class Refusal(NamedTuple):
    """Why a node or a gang is refused: ``reason`` is a word of ``belay.engine.model.pending_reasons``, ``message`` a
    sentence in MindCluster's words, by which nothing is decided. ``cause`` is what a request has wrong, as values,
    where its values say it. ``about`` is the claim that it is about, where there is one.

    ``resource`` is the resource that is missing or short, where one alone is. ``idle`` are the chips of a node with too
    few. ``evictable``: MindCluster looks for victims on such a node.
    """

    reason: str
    message: str
    cause: Cause | None = None
    about: str = ""
    resource: str = ""
    idle: IdleChips | None = None
    evictable: bool = False


class NodeChips(NamedTuple):
    """One node's chips as a family sees them.

    ``free``: mask of chips that the pod may take (without network-unhealthy ones where that applies); ``unhealthy``:
    how many chips the report calls unhealthy; ``allocatable``: chips that Kubernetes counts; ``card``: label
    ``infer-card-type`` of the node; ``network``: mask of network-unhealthy chips, for messages.
    """

    free: int
    unhealthy: int
    allocatable: int
    card: str = ""
    network: int = 0


class PodRequest(NamedTuple):
    """One pod's request: number of ``chips``; ``distributed``: several pods of the job ask for chips; ``spread``: label
    ``distributed=true`` of the job (300I Duo).
    """

    chips: int
    distributed: bool = False
    spread: bool = False


class TaskRequest(NamedTuple):
    """Pods of one task: its name and the chips that each asks for; every family accepts 0."""

    name: str
    chips: int


class JobRequest(msgspec.Struct, frozen=True, dict=True):
    """A job's request as its family checks it: ``total`` chips in the ``pods`` pods that ask for any."""

    name: str
    total: int
    pods: int
    tasks: tuple[TaskRequest, ...]
    labels: dict[str, str]
    annotations: dict[str, str]

    @cached_property
    def options(self) -> JobOptions:
        """What the job says by labels and annotations."""
        return read_options(self.labels, self.annotations)


ScoreOrRefusal = int | Refusal


class Family(Protocol):
    """One topology family: legal requests, the score of a node, the chips to take."""

    def __hash__(self) -> int:
        """Families are values."""

    @property
    def max(self) -> int:
        """Most chips of a node."""

    @property
    def network_aware(self) -> bool:
        """Whether distributed pods stay off chips with a broken parameter plane."""

    def check(self, job: JobRequest) -> Refusal | None:
        """Why the job can never be placed, None when its request is legal."""

    def score(self, node: NodeChips, request: PodRequest) -> ScoreOrRefusal:
        """The node's raw score (higher is better), or why it does not fit."""

    def choose(self, node: NodeChips, request: PodRequest) -> int:
        """The mask of chips to take on a node that ``score`` accepted."""


def lowest(mask: int, count: int) -> int:
    """The mask of the ``count`` lowest chips of ``mask``."""
    out = 0
    for _ in range(count):
        low = mask & -mask
        out |= low
        mask ^= low
    return out


def groups(mask: int, size: int, limit: int) -> list[int]:
    """``mask`` divided into groups of ``size`` neighbouring ids below ``limit``, empty groups included."""
    window = (1 << size) - 1
    return [mask & (window << first) for first in range(0, limit, size)]


def listed(mask: int) -> str:
    """The chip ids as MindCluster prints a topology: ``[0 1 4]``."""
    return "[" + " ".join(str(i) for i in ids_of(mask)) + "]"
