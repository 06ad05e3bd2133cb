"""The reports for other components, with the levels that the policies in force give.

These components act on levels and lists, so an effect of a policy must reach them as a level.
"""

from __future__ import annotations

from typing import Final

from belay.engine.documents import Desired
from belay.engine.model.cluster import Observed
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan import GradedReports, graded_reports

NOTHING: Final = Desired()


def graded_for_readers(
    plan: Plan, observed: Observed, desired: Desired, cache: PlanCache | None = None
) -> tuple[Observed, GradedReports]:
    """The snapshot with the levels of the policies in force (itself where none applies), and its grading."""
    grading = graded_reports(desired, cache or PlanCache(), by_action=True)
    return grading.of(observed, plan.history.policy_revision), grading
