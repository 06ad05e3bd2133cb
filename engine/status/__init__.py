"""Bodies of ConfigMaps and Events from a plan and its outcomes. Pure, but for the bookkeeping of one writer.

``memory_bodies`` are written before anything disruptive, ``status_bodies`` after a pass.

What other rooms ask is in ``__all__``; each name is imported on first use, so that commands that only read a status
back load no planner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from belay.engine.status.conditions import StatusCondition
    from belay.engine.status.memory import forgotten, memory_bodies
    from belay.engine.status.mindcluster import ClusterInfo
    from belay.engine.status.pass_bodies import job_bodies, status_bodies, surplus
    from belay.engine.status.pools import PublishedPools
    from belay.engine.status.shards import outdated_parts
    from belay.engine.status.sync_status import SyncState, sync_bodies, sync_body
    from belay.engine.status.writer import WriteTracker, is_foreign

#: Where the names of this door are defined.
_DEFINED: Final = {
    "ClusterInfo": "mindcluster",
    "PublishedPools": "pools",
    "StatusCondition": "conditions",
    "SyncState": "sync_status",
    "WriteTracker": "writer",
    "forgotten": "memory",
    "is_foreign": "writer",
    "job_bodies": "pass_bodies",
    "memory_bodies": "memory",
    "outdated_parts": "shards",
    "status_bodies": "pass_bodies",
    "surplus": "pass_bodies",
    "sync_bodies": "sync_status",
    "sync_body": "sync_status",
}


def __getattr__(name: str) -> Any:
    """Imports a name of the door on first use."""
    if name not in _DEFINED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_DEFINED[name]}"), name)


__all__ = [
    "ClusterInfo",
    "PublishedPools",
    "StatusCondition",
    "SyncState",
    "WriteTracker",
    "forgotten",
    "is_foreign",
    "job_bodies",
    "memory_bodies",
    "outdated_parts",
    "status_bodies",
    "surplus",
    "sync_bodies",
    "sync_body",
]
