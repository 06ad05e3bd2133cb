"""One pass as prose: refresh, plan, write memory, claim, send, write status."""

from __future__ import annotations

import asyncio
import time

from belay.engine.act import Refused
from belay.engine.controller.shard import Shard
from belay.engine.kube import KubeError
from belay.engine.kube.lease import NAMESPACE
from belay.engine.log import get, in_pass
from belay.engine.model.freshness import Hindrance

_log = get("reconcile")
WAIT_SECONDS = 0.1
"""Seconds for which a pass waits in its turn for what the one before wrote; then it ends, and comes again as late."""
LOOK_SECONDS = 0.02
"""Seconds between two looks meanwhile; more where a look takes long, so that looking is a fifth of the time at most."""
RETRY_SECONDS = 1.0


async def reconcile(shard: Shard) -> str:
    """One pass over a shard; returns its outcome in a few words. Safe to run twice or late, or to be killed."""
    async with shard.claim_pass() as ours:
        if not ours:
            return "nothing to do"
        if waiting := await _wait(shard):
            shard.hindrance = Hindrance.SNAPSHOT_WAITS, f"the snapshot is not complete: {waiting}"
            shard.requeue(WAIT_SECONDS)
            return f"waiting: {waiting}"
        try:
            return await _pass(shard)
        except (KubeError, Refused) as error:
            _log.warning("pass ended early", shard=shard.name, reason=str(error))
            shard.hindrance = Hindrance.ENDED_EARLY, f"each pass ends early: {error}"
            shard.requeue(RETRY_SECONDS)
            return f"ended early: {error}"


async def _wait(shard: Shard) -> str:
    """Wait until a pass may start, a moment at most. Returns what it still waits for, empty when it may.

    Nothing marks the shard when our own writes arrive in the snapshot. So one that ended at once would come again only
    when the controller looks for what is due, and a fault that is reported just after a pass would wait for that.
    """
    clock = asyncio.get_running_loop().time
    ends = clock() + WAIT_SECONDS
    while True:
        began = clock()
        waiting = shard.refresh()
        now = clock()
        if not waiting or now >= ends:
            return waiting
        await asyncio.sleep(min(max(LOOK_SECONDS, 4 * (now - began)), ends - now))


async def _pass(shard: Shard) -> str:
    began = time.monotonic()
    epoch = await shard.lease.acquire()
    if epoch is None:
        text = f"the Lease {NAMESPACE}/{shard.lease.name} is held by {shard.lease.holder or 'another worker'}"
        shard.hindrance = Hindrance.LEASE_HELD, text
    if epoch is None or (waiting := shard.refresh()):
        shard.requeue(WAIT_SECONDS if epoch else RETRY_SECONDS)
        return f"waiting: {waiting}" if epoch else "waiting: another worker writes for the shard"
    observed = shard.snapshot.observed()
    loaded = shard.revision.load(observed)
    if loaded is None:
        shard.hindrance = Hindrance.NO_REVISION, "the controller has fetched no revision yet"
        shard.requeue(RETRY_SECONDS)
        return "waiting: no revision is known yet"
    observed = loaded.desired.reading(observed)
    plan = await shard.plan(loaded.desired, observed)
    writes = plan.actions or plan.history != observed.history or shard.stale_claims(observed)
    record = shard.open_pass(plan) if writes else None
    traces = shard.traces.of(plan, record.pass_id, loaded.desired, observed) if record is not None else []
    with in_pass(record.pass_id if record else ""):
        if record is not None:
            written = await shard.write_memory(plan, observed, loaded.desired)
            claimed, refused = await shard.claim_chips(plan, observed)
            await shard.send(record, plan, [*written, *claimed], refused, traces)
        await shard.write_status(plan, observed, loaded.desired, remembered=record is not None)
        await shard.reporter.completed(record.pass_id if record is not None else "", plan.revision)
        shard.record_metrics(plan, observed, record, time.monotonic() - began)
        shard.traces.passed(plan, observed, time.monotonic() - began)
        log = _log.info if record is not None else _log.debug
        log("pass done", shard=shard.name, actions=len(plan.actions), deferred=len(plan.deferred), epoch=epoch)
    return f"{len(plan.actions)} actions"
