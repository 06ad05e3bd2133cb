"""Reports graded by the policies in force, for the services.

Policies are read as documents, which take 14 MiB; few clusters change the levels of codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from belay.engine.model.cluster import Observed

if TYPE_CHECKING:
    from belay.engine.plan import GradedReports


class Grading:
    """Grades the reports of snapshots; documents are loaded with the first policy that sets levels."""

    def __init__(self) -> None:
        self._text = ""
        self._graded: GradedReports | None = None

    def of(self, observed: Observed) -> Observed:
        """The snapshot with graded reports; unchanged reports stay the same objects."""
        text = observed.history.policy_revision
        if self._graded is None and text != self._text:
            self._text = text
            if _sets_levels(text):
                self._graded = _graded_reports()
        return self._graded.of(observed) if self._graded is not None else observed


def _graded_reports() -> GradedReports:
    from belay.engine.load import load
    from belay.engine.plan import GradedReports

    return GradedReports(lambda: load({}).desired)


def _sets_levels(text: str) -> bool:
    """Whether a policy in force sets levels; an unreadable text sets none."""
    try:
        rows = orjson.loads(text or "{}")["faultPolicies"]
        return any(row["document"]["spec"].get("levels") for row in rows)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
