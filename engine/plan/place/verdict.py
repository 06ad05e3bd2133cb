"""What handlers are asked and what they answer: seats (a node's chips), asks (a pod's wish), scores or refusals."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from engine.model.cluster import ids_of

INVALID_REQUEST: Final = "InvalidRequest"
NOT_SUPPORTED: Final = "NotSupportPolicy"
SHORTAGE: Final = "NPUResourceShortage"
TOPOLOGY: Final = "TopologyNotMet"
FRAGMENTED: Final = "Fragmented"
GANG_INCOMPLETE: Final = "GangIncomplete"
QUEUE_EXHAUSTED: Final = "QueueExhausted"
ENQUEUE_FAILED: Final = "JobEnqueueFailed"
QUEUE_CLOSED: Final = "QueueNotOpen"
QUEUE_MISSING: Final = "QueueNotFound"
NODE_UNSTABLE: Final = "NodeUnstable"
TOO_MANY_PODS: Final = "TooManyPods"
#: Begins the reasons of what Kubernetes counts beside chips: ``InsufficientCpu`` and the like.
INSUFFICIENT: Final = "Insufficient"

#: Words that upstream puts in front when chips are simply missing.
SHORTAGE_PREFIX: Final = "NPUResourceShortage: "
#: Words of upstream for free chips in the wrong places.
UNSCHEDULABLE_TOPOLOGY: Final = "the npus on this node don't satisfy the schedulable topology"


class Refusal(NamedTuple):
    """Why not: ``reason`` is one of the constants above or of ``fit``, ``message`` a sentence in users' known words."""

    reason: str
    message: str


class Seat(NamedTuple):
    """One node's chips as a handler sees them.

    ``free`` is the mask of chips the pod may take (network-unhealthy ones already removed where that applies),
    ``unhealthy`` how many the report calls unhealthy, ``allocatable`` what Kubernetes counts, ``card`` the node's
    label ``infer-card-type``, ``network`` the mask of network-unhealthy chips (for messages).
    """

    free: int
    unhealthy: int
    allocatable: int
    card: str = ""
    network: int = 0


class Ask(NamedTuple):
    """What one pod wants: ``want`` chips; ``distributed`` when several pods of the job want chips; ``spread`` is the
    job's label ``distributed=true`` (300I Duo)."""

    want: int
    distributed: bool = False
    spread: bool = False


class Task(NamedTuple):
    """Pods of one task: its name and what each asks for; 0 is legal in every family."""

    name: str
    want: int


class Shape(NamedTuple):
    """A job's request as its handler validates it: ``total`` chips in ``pods`` pods that ask for any."""

    name: str
    total: int
    pods: int
    tasks: tuple[Task, ...]
    labels: dict[str, str]
    annotations: dict[str, str]


Verdict = int | Refusal


class Family(Protocol):
    """One topology family: legal requests, which free chips fit, how good a node is, which chips to take."""

    def __hash__(self) -> int:
        """Families are values."""

    @property
    def max(self) -> int:
        """Most chips of a node."""

    @property
    def network_aware(self) -> bool:
        """Whether distributed pods stay off chips with a broken parameter plane."""

    def check(self, shape: Shape) -> Refusal | None:
        """Why the job can never be placed, None when its request is legal."""

    def judge(self, seat: Seat, ask: Ask) -> Verdict:
        """The node's raw score (higher is better), or why it does not fit."""

    def choose(self, seat: Seat, ask: Ask) -> int:
        """The mask of chips to take on a node that ``judge`` accepted."""


def lowest(mask: int, count: int) -> int:
    """The mask of the ``count`` lowest chips of ``mask``."""
    out = 0
    for _ in range(count):
        low = mask & -mask
        out |= low
        mask ^= low
    return out


def groups(mask: int, size: int, limit: int) -> list[int]:
    """``mask`` cut into groups of ``size`` neighbouring ids, for ids below ``limit``; empty groups stay in the list."""
    window = (1 << size) - 1
    return [mask & (window << first) for first in range(0, limit, size)]


def listed(mask: int) -> str:
    """``[0 1 4]``, as upstream prints a topology."""
    return "[" + " ".join(str(i) for i in ids_of(mask)) + "]"
