"""The document of a plan: of a recorded pass, a file, or a simulated moment. The way is that of the live cluster.

The status ConfigMaps are made from the plan as a worker makes them, and the document from these.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from belay.engine.documents import Desired
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.serve.console.document import Builder, StateDocument, data_of
from belay.engine.serve.console.repository import RepositoryCommit
from belay.engine.serve.console.texts import rows
from belay.engine.status import status_bodies
from belay.engine.status.conditions import StatusCondition
from belay.engine.status.jobs import job_status
from belay.engine.status.sync_status import SyncState
from belay.engine.wire import names

_SYNC: Final = ObjectKey("v1", "ConfigMap", names.SYSTEM, names.SYNC)


def document_of(
    plan: Plan,
    observed: Observed,
    desired: Desired,
    *,
    builder: Builder,
    shard: str = names.MAIN_SHARD,
    identity: str = "",
    findings: tuple[Diagnostic, ...] = (),
    cache: PlanCache | None = None,
    git: tuple[RepositoryCommit, ...] = (),
) -> StateDocument:
    """The document as of a plan; ``identity`` is its moment's id, by default from its content."""
    standing = (observed.objects.get(_SYNC) or {}).get("data") or {}
    conditions = tuple(
        StatusCondition(*(str(row.get(key) or "") for key in ("type", "status", "reason", "message", "severity")))
        for row in rows(str(standing.get("conditions.json") or ""))
        if row.get("type") != "PruneHeld"  # the plan decides that again
    )
    revision = plan.revision or str(standing.get("appliedRevision") or "")
    state = SyncState(attempted=revision, applied=revision, conditions=conditions, diagnostics=findings)
    bodies = [
        *status_bodies(plan, observed, state, None, desired, cache, shard),
        *job_status(plan, observed, desired, cache),
    ]
    found = data_of(bodies)
    found[names.SYNC] = found.get(names.sync_config_map(shard), {})
    for key, raw in observed.objects.items():
        if key.namespace == names.SYSTEM and key.kind == "ConfigMap" and key.name.startswith(names.REVISIONS):
            found |= data_of([raw])
    document = builder.build(found, time=plan.now, git=git)
    moment: dict[str, Any] = {**document.moment, "shard": shard}
    return msgspec.structs.replace(document, moment={**moment, "id": identity} if identity else moment)
