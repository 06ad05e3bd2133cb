"""What placement reports of one gang to the steps that make room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.pending_reasons import lacks_room

if TYPE_CHECKING:
    from belay.engine.plan.place.job import SchedulerJob


TOPOLOGY: Final = "TopologyNotMet"
#: Reasons that evictions can cure.
CURABLE: Final = frozenset(
    {"NPUResourceShortage", "JobEnqueueFailed", TOPOLOGY, "QueueExhausted", "NodeUnstable", "TooManyPods"}
)
#: Prefix of reasons for resources other than chips, which evictions can cure too.


def curable(reason: str) -> bool:
    """Whether a gang that waits for this reason may start once other pods have gone."""
    return reason in CURABLE or lacks_room(reason)


class GangOutcome(Protocol):
    """A gang after placement has tried it."""

    @property
    def gang(self) -> Gang:
        """The gang."""

    @property
    def job(self) -> SchedulerJob | None:
        """The job behind it, None when it can never be placed."""

    @property
    def unplaced(self) -> Sequence[Pod]:
        """Its pods without a node."""

    @property
    def reason(self) -> str:
        """The reason of its pending entry; empty when every pod has a node."""
