"""Why people changed what is explained: how the messages of their commits begin."""

from __future__ import annotations

from typing import Any, NamedTuple

from belay.engine.documents import Desired
from belay.engine.model.cluster import Observed


class Whys(NamedTuple):
    """Why people changed documents, as their commits say."""

    desired: Desired | None
    observed: Observed

    def of(self, file: str, commit: str) -> str:
        """Why a commit changed a file; empty if it is not said, or another commit changed it since."""
        change = self.desired.last_changes.get(file) if self.desired is not None else None
        return change.why if change is not None and change.commit == commit else ""

    def of_job(self, key: str) -> dict[str, Any]:
        """Who changed a job's document last, and why, where the commit says it."""
        namespace, kind, name = key.split("/", 2)
        place = self.observed.places.get(f"{kind.partition('.')[0]}/{namespace}/{name}")
        if place is None or not place.why:
            return {}
        return {"declaredBy": place.text, "why": place.why}
