"""What readers beside Belay are told of faults: the reports with what the policies in force make of them.

They act on levels and lists by themselves, so that what a policy has done about a level is told as a level too.
"""

from __future__ import annotations

from typing import Final

from engine.documents import Desired
from engine.model.cluster import Observed
from engine.model.plan import Plan
from engine.plan.grading import Grading

NOTHING: Final = Desired()
_GRADINGS: Final[list[tuple[Desired, Grading]]] = []


def judged(plan: Plan, observed: Observed, desired: Desired) -> tuple[Observed, Grading]:
    """The snapshot as the plan has its policies in force, and who graded it; the same object where none speaks."""
    if not _GRADINGS or _GRADINGS[0][0] is not desired:
        _GRADINGS[:] = [(desired, Grading(desired, acts=True))]
    grading = _GRADINGS[0][1]
    return grading.of(observed, plan.history.policy_revision), grading
