"""The loop as prose: look, plan, remember, claim, send, tell."""

from __future__ import annotations

import asyncio
import time

from engine.act import Refused
from engine.kube import KubeError
from engine.log import get, in_pass
from engine.plan import plan as make_plan
from engine.reconcile.shard import Shard

_log = get("reconcile")
WAIT_SECONDS = 0.1
RETRY_SECONDS = 1.0


async def reconcile(shard: Shard) -> str:
    """One pass over a shard; says in a few words what came of it. Safe to run twice, late, or to be killed anywhere."""
    async with shard.turn() as ours:
        if not ours:
            return "nothing to do"
        if waiting := shard.look():
            shard.again(WAIT_SECONDS)
            return f"waiting: {waiting}"
        try:
            return await _pass(shard)
        except (KubeError, Refused) as error:
            _log.warning("pass ended early", shard=shard.name, reason=str(error))
            shard.again(RETRY_SECONDS)
            return f"ended early: {error}"


async def _pass(shard: Shard) -> str:
    began = time.monotonic()
    epoch = await shard.lease.acquire()
    if epoch is None or (waiting := shard.look()):
        shard.again(WAIT_SECONDS if epoch else RETRY_SECONDS)
        return f"waiting: {waiting}" if epoch else "waiting: another worker writes for the shard"
    observed = shard.copy.observed()
    loaded = shard.intent.load(observed)
    if loaded is None:
        shard.again(RETRY_SECONDS)
        return "waiting: no revision is known yet"
    plan = await asyncio.to_thread(make_plan, loaded.desired, observed, shard.clock(), shard=shard.name)
    writes = plan.actions or plan.history != observed.history or shard.stale_claims(observed)
    record = shard.open_pass(plan) if writes else None
    with in_pass(record.pass_id if record else ""):
        if record is not None:
            written = await shard.remember(plan, observed, loaded.desired)
            claimed, refused = await shard.claim(plan, observed)
            await shard.send(record, plan, [*written, *claimed], refused)
        await shard.tell(plan, observed, loaded.desired, remembered=record is not None)
        shard.account(plan, observed, record, time.monotonic() - began)
        tell = _log.info if record is not None else _log.debug
        tell("pass done", shard=shard.name, actions=len(plan.actions), deferred=len(plan.deferred), epoch=epoch)
    return f"{len(plan.actions)} actions"
