"""What a pass starts from and no step of it changes: intent, snapshot, time, and what the shard keeps for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from belay.engine.model.cluster import Observed
from belay.engine.model.plan_cache import PlanCache

if TYPE_CHECKING:
    from belay.engine.documents import Desired
    from belay.engine.plan.claims.holding import DeviceClaims


def _no_claims() -> DeviceClaims:
    """No claims; imported when facts are made, so that the planner's door stays cheap."""
    from belay.engine.plan.claims.holding import DeviceClaims

    return DeviceClaims()


@dataclass(frozen=True, slots=True)
class Facts:
    """The inputs of one pass.

    ``now``: Unix seconds. ``shard``: whose nodes and jobs this pass decides. ``about``: the job or pod that a user asks
    about. ``claims`` are the claims of dynamic resource allocation; pods of ``observed`` have their chips. ``cache``
    holds results that the shard keeps between passes.
    """

    desired: Desired
    observed: Observed
    now: float
    shard: str
    about: str = ""
    claims: DeviceClaims = field(default_factory=_no_claims)
    cache: PlanCache = field(default_factory=PlanCache)

    @property
    def now_ms(self) -> int:
        """``now`` in Unix milliseconds."""
        return round(self.now * 1000)
