"""The pure room: ``plan(desired, observed, now) -> Plan``, one file per pass.

Same inputs, same plan, byte for byte: no clock, random, environment, logging or client in here.
The passes run in the order listed below; each reads what earlier ones derived in the scope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.model.cluster import Observed
from engine.model.plan import Plan
from engine.plan.scope import Memory, Scope

if TYPE_CHECKING:
    from engine.documents import Desired


def passes() -> tuple[tuple[str, Callable[[Scope], None]], ...]:
    """Name and pass, in the fixed, readable order; ``views`` and ``gangs`` derive the nouns the others share.

    Imported on the first call, so that one pass can be imported without the others.
    """
    from engine.plan import (
        elastic,
        expand,
        explain,
        forget,
        groups,
        groupstatus,
        health,
        layout,
        ledger,
        links,
        online,
        place,
        queue,
        recall,
        recover,
        reset,
        safety,
        sync,
        views,
    )

    return (
        ("recall", recall.run),
        ("views", views.run),
        ("gangs", groups.run),
        ("sync", sync.run),
        ("health", health.run),
        ("online", online.run),
        ("recover", recover.run),
        ("expand", expand.run),
        ("layout", layout.run),
        ("queue", queue.run),
        ("place", place.run),
        ("elastic", elastic.run),
        ("groupstatus", groupstatus.run),
        ("reset", reset.run),
        ("safety", safety.run),
        ("links", links.run),
        ("ledger", ledger.run),
        ("forget", forget.run),
        ("explain", explain.run),
    )


def plan(desired: Desired, observed: Observed, now: float, *, shard: str = "main", about: str = "") -> Plan:
    """One pass: what should change, and why.

    Args:
        desired: what Git declares, compiled by ``engine.load``.
        observed: one consistent snapshot, built by ``engine.observe``.
        now: Unix seconds; the only time the pass knows.
        shard: which shard's nodes and jobs this pass decides.
        about: a job or pod that somebody asks about, ``name`` or ``namespace/name``; decides nothing, but the way out
            of its pending entry is looked for with more effort.
    """
    from engine.plan import explain, shadow

    def run(desired: Desired, observed: Observed) -> Plan:
        scope = Scope(
            desired=desired, observed=observed, now=now, shard=shard, memory=Memory.of(observed.history), about=about
        )
        for _name, one in passes():
            one(scope)
        return explain.document(scope)

    return shadow.cast(desired, observed, run(desired, observed), run)
