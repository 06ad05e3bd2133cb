"""The pass that forgets: the memory of jobs that are gone for good.

A job is gone when neither its object nor any of its pods is there; a new job of the same name starts afresh anyway,
because memory is bound to the UID.
"""

from __future__ import annotations

from engine.plan.scope import Scope


def run(scope: Scope) -> None:
    """Drops memory that nobody will ask for again."""
    live = {(key.kind, key.namespace, key.name) for key in scope.observed.objects}
    declared = {(key.kind, key.namespace, key.name) for key in scope.desired.manifest_index}
    for key in list(scope.memory.jobs):
        if key in scope.gangs:
            continue
        namespace, kind, name = key.split("/", 2)
        owner = (kind.partition(".")[0], namespace, name)
        if owner not in live and owner not in declared:
            del scope.memory.jobs[key]
