"""One worker process: its connections, its event loop, its shards."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, TypeVar

import msgspec

from belay.engine.act import Edge, Fence, PodWatch, refusals
from belay.engine.act import batch as batches
from belay.engine.controller.loop import reconcile
from belay.engine.controller.queues import ACT, RECONCILE
from belay.engine.controller.shard import Shard, ShardLost
from belay.engine.controller.status_writer import write_events
from belay.engine.controller.triggers import Triggers
from belay.engine.errors import BelayError
from belay.engine.kube import Backoff, Kube, KubeError, cancel_all
from belay.engine.kube.lease import release_former_leases
from belay.engine.kube.order_keys import OrderKeys
from belay.engine.log import get, in_pass
from belay.engine.metrics import counter_name
from belay.engine.model.actions import kind_of
from belay.engine.model.freshness import Hindrance
from belay.engine.settings import Settings, kube_variables
from belay.engine.store import (
    BatchResult,
    Keyring,
    PassStore,
    ProcessLiveness,
    StoredRevisions,
    StoredSnapshots,
    StoreUnavailable,
    connect,
)
from belay.engine.store.redis_library import redis

_log = get("worker")
T = TypeVar("T")
TASK_SECONDS = 120.0
"""Longest time for one task. A longer pass or batch is cancelled and repeated when its claim has expired."""
AGAIN_SECONDS = 5.0
"""After a shorter pass, one that was asked for meanwhile follows at once, in the same task."""
SOON_SECONDS = 0.25
"""A pass that is wanted on time within so many seconds is sent for then, by the worker itself."""
PULSE_SECONDS = 1.0
MOST_CARRIED_OUT = 10_000
"""Batches that a worker remembers to have carried out; a message expires long before so many others came."""
COMPLAINT_SECONDS = 1.0
"""Seconds between log lines about messages without a seal: a queue may hold thousands of them."""
MOST_SHARDS = 1000
"""Shards that one worker serves; their names come in messages."""


class Worker:
    """What the tasks of one process share. Made after the fork, on first use; safe for tasks in several threads."""

    def __init__(self, settings: Settings, send: Callable[[str, str], None]) -> None:
        kube = Kube.from_config(settings.kubeconfig or None, settings.context or None, kube_variables(settings))
        self.set_up(settings, send, connect(settings.redis_url), kube)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="belay-loop", daemon=True).start()
        self._run(self._kube.__aenter__(), 30.0)
        self.liveness.start(self.triggers.owners_in, self.free_claims_of_the_dead, self.triggers.ask_owners)

    def set_up(self, settings: Settings, send: Callable[[str, str], None], client: redis.Redis, kube: Kube) -> None:
        """Set up everything but the event loop, which simulations replace. ``send`` sends a task with its argument."""
        self.settings = settings
        self.keys = Keyring(settings.batch_key_file)
        self.triggers = Triggers(client)
        self.passes = PassStore(client, keys=self.keys)
        self._unsealed, self._complained = 0, float("-inf")
        self._carried_out: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._client = client
        self._send = send
        self._shards: dict[str, Shard] = {}
        self._soon: dict[str, asyncio.Task[None]] = {}
        self._busy: dict[str, threading.Lock] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._guard = threading.Lock()
        self._kube = kube
        self._pods = PodWatch(kube)
        self._gate = asyncio.Semaphore(settings.in_flight)
        self.order_keys = OrderKeys(settings.order_keys)
        self.liveness = ProcessLiveness(client, "worker", settings.identity, settings.silence)

    def free_claims_of_the_dead(self) -> None:
        """Free the claims of workers that are dead, so that their shards are due now. Raises StoreUnavailable."""
        for owner in sorted(self.liveness.dead()):
            if self.triggers.free(owner):
                _log.warning("worker is silent, its shards are due again", was=owner)

    def resume(self) -> None:
        """Release the Leases that this process held when it was killed; else others wait until they end."""
        try:
            self._run(self.release_former_leases(), 30.0)
        except (BelayError, CancelledError, TimeoutError) as error:
            reason = f"{type(error).__name__}: {error}"[:256]
            _log.warning("Leases of a former run are not released", identity=self.settings.identity, reason=reason)

    async def release_former_leases(self) -> None:
        """Release the Leases of shards that a former run of this process holds. Raises KubeError."""
        for shard in await release_former_leases(self._kube, self.settings.identity):
            _log.info("Lease of a former run released", shard=shard)
            self.triggers.mark(shard, self.passes.now())

    def close(self) -> None:
        """End what still waits, and the connections."""
        self.liveness.stop()
        try:
            self._run(self.aclose(), 10.0)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)

    async def aclose(self) -> None:
        """End the messages that were to be sent soon (the controller sends them), then the connections."""
        await cancel_all(*self._soon.values())
        await self._kube.__aexit__()

    def reconcile(self, text: str) -> str:
        """Run one pass over the shard that a message names; returns its outcome."""
        name = self.opened(RECONCILE, text)
        if name is None:
            return "not sealed by a key of ours"
        with self._guard:
            if name not in self._busy and len(self._busy) >= MOST_SHARDS:
                _log.error("shard not served: too many", shard=name, limit=MOST_SHARDS)
                return "too many shards"
            busy = self._busy.setdefault(name, threading.Lock())
        if not busy.acquire(blocking=False):  # after a flush of Redis two messages may reach one process
            return "another thread serves the shard"
        try:
            return self._run(self.run_pass(name), TASK_SECONDS)
        except (CancelledError, TimeoutError) as error:
            _log.warning("pass not finished", shard=name, reason=f"{type(error).__name__}: {error}"[:256])
            return "not finished"
        finally:
            busy.release()

    async def run_pass(self, name: str) -> str:
        """Run one pass in the worker's event loop; returns its outcome and raises nothing."""
        try:
            self.passes.beat(f"worker/{self.settings.identity}", self.passes.now())
            shard = self._shards.get(name) or self._shards.setdefault(name, self._shard(name))
            began, outcome = time.monotonic(), await reconcile(shard)
            # what was marked meanwhile need not wait for the controller's next look
            if shard.again and time.monotonic() - began < AGAIN_SECONDS:
                outcome = await reconcile(shard)
            if shard.due_in is not None and shard.due_in < SOON_SECONDS and name not in self._soon:
                task = self._soon[name] = asyncio.create_task(self._send_soon(shard.due_in))
                task.add_done_callback(lambda _: self._soon.pop(name, None))
            return outcome
        except (ShardLost, StoreUnavailable, KubeError) as error:
            self.passes.heal()
            _log.warning("pass not finished", shard=name, reason=f"{type(error).__name__}: {error}"[:256])
            return "not finished"
        except Exception as error:  # a bug must not stop the shard: the pass is tried again
            _log.exception("pass failed", shard=name)
            self._failed(name)
            if name in self._shards:
                problem = f"each pass fails: {type(error).__name__}; the worker's log says where"
                await self._shards[name].reporter.hindered(Hindrance.NOT_COMPLETED, problem)
            return f"failed: {type(error).__name__}: {error}"

    def act(self, text: str) -> str:
        """Carry out one batch, unless it expired or a newer pass began."""
        opened = self.opened(ACT, text)
        if opened is None:
            return "not sealed by a key of ours"
        try:
            batch = batches.decode(opened)
        except (msgspec.DecodeError, RecursionError) as error:
            _log.error("unreadable batch dropped", reason=str(error)[:256])
            return "unreadable"
        try:
            with in_pass(batch.record.pass_id):
                return self._run(self.run_batch(batch), TASK_SECONDS)
        except (BelayError, CancelledError, TimeoutError) as error:
            _log.warning("batch not finished", batch=batch.number, reason=f"{type(error).__name__}: {error}"[:256])
            return "not finished"

    def opened(self, task: str, text: str) -> str | None:
        """The argument in a message for this task; None when its seal is not right."""
        found = self.keys.unwrap(task, text)
        if found is None:
            self._unsealed += 1
        if found is None and time.monotonic() - self._complained >= COMPLAINT_SECONDS:
            self._complained = time.monotonic()
            _log.error(
                "message dropped: no key of BELAY_BATCH_KEY_FILE sealed it",
                task=task,
                seal=text[:8],
                dropped=self._unsealed,
                hint="give every controller and worker the same keys; else a foreign process writes into Redis",
            )
        return found

    def _failed(self, name: str) -> None:
        try:
            self.passes.count({counter_name("pass_failures", shard=name): 1})
        except StoreUnavailable as error:
            _log.warning("failure not counted", reason=str(error))

    async def run_batch(self, batch: batches.Batch) -> str:
        """Carry out one batch in the worker's event loop. Raises BelayError when Redis or the cluster fails."""
        record = batch.record
        if (record.pass_id, batch.number) in self._carried_out or self.passes.carried_out(record, batch.number):
            return "carried out already"
        if self.passes.now() > record.expires:
            self.passes.finish(record, batches.dropped(batch, "expired before a worker took it"))
            return "expired"
        current = self.passes.current(record.shard)
        if current is not None and current.pass_id != record.pass_id:
            return "superseded"
        self.passes.batch_heartbeat(record)
        heartbeats = asyncio.create_task(self._send_heartbeats(batch))
        fence = Fence(self._kube, record.shard, record.epoch)
        life, revision = self.settings.order_life, batch.revision
        edge = Edge(
            self._kube, record.shard, fence, order_life=life, revision=revision, pods=self._pods, gate=self._gate,
            keys=self.order_keys, plan=record.digest, traces=_traces_of(batch),
        )  # fmt: skip
        try:
            result = await batches.run(edge, batch, self.settings.in_flight)
        finally:
            await cancel_all(heartbeats)
        self._carried_out[record.pass_id, batch.number] = None
        while len(self._carried_out) > MOST_CARRIED_OUT:
            self._carried_out.popitem(last=False)
        result = await self._with_refusals(batch, result)
        self.passes.finish(record, result)
        await self._after(batch, result)
        return f"{len(result.outcomes)} outcomes"

    async def _with_refusals(self, batch: batches.Batch, result: BatchResult) -> BatchResult:
        """Record what the API server refused, before the result is: the next pass waits for the record too."""
        outcomes = {outcome.index: outcome for outcome in result.outcomes}
        tried = [(action, outcomes[index]) for index, action in batch.actions if index in outcomes]
        now_ms = int(self.passes.now() * 1000)
        try:
            write = await refusals.record(self._kube, batch.record.shard, tried, now_ms, known=batch.refusals)
        except KubeError as error:  # the next refusal is recorded instead
            _log.warning("refusals not recorded", shard=batch.record.shard, reason=str(error))
            return result
        return result if write is None else msgspec.structs.replace(result, writes=[*result.writes, write])

    async def _after(self, batch: batches.Batch, result: BatchResult) -> None:
        words = {outcome.index: outcome.result for outcome in result.outcomes}
        refused_at = {outcome.index for outcome in result.outcomes if outcome.cause}  # these have times of their own
        carried_out = [(index, action) for index, action in batch.actions if words.get(index) == "done"]
        done, by_index = [action for _, action in carried_out], _traces_of(batch)
        traces = [by_index.get(index, "") for index, _ in carried_out]
        backoff = self._backoffs.setdefault(batch.record.shard, Backoff(base=1.0, cap=60.0, floor=0.5))
        if any(word in {"refused", "failed", "dropped"} for index, word in words.items() if index not in refused_at):
            self.triggers.mark(batch.record.shard, self.passes.now() + backoff.next())
        else:
            backoff.reset()
        counts: dict[str, int] = {}
        for index, action in batch.actions:
            name = counter_name("actions", kind=kind_of(action), result=words.get(index, "lost"))
            counts[name] = counts.get(name, 0) + 1
        self.passes.count(counts)
        why = {outcome.index: outcome.message for outcome in result.outcomes if outcome.result in {"refused", "failed"}}
        refused = [(action, why[index]) for index, action in batch.actions if index in why]
        await write_events(self._kube, done, refused, self.passes.now(), batch.record.batches, traces)

    async def _send_heartbeats(self, batch: batches.Batch) -> None:
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            self.passes.batch_heartbeat(batch.record)

    def _shard(self, name: str) -> Shard:
        return Shard(
            name,
            self.settings,
            self._kube,
            self.triggers,
            self.passes,
            StoredSnapshots(self._client, keys=self.keys),
            StoredRevisions(self._client, keys=self.keys),
            self._send_batch,
            order_keys=self.order_keys,
            ended=self.liveness.is_dead,
        )

    async def _send_soon(self, seconds: float) -> None:
        """Send for the shards that are due after so many seconds; where that fails, the controller does it."""
        await asyncio.sleep(seconds)
        with contextlib.suppress(StoreUnavailable):
            for shard in self.triggers.ready():
                await self._send_task(RECONCILE, shard)

    async def _send_batch(self, text: str) -> None:
        await self._send_task(ACT, text)

    async def _send_task(self, task: str, argument: str) -> None:
        sealed = self.keys.wrap(task, argument)
        await asyncio.get_running_loop().run_in_executor(None, partial(self._send, task, sealed))

    def _run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise


def _traces_of(batch: batches.Batch) -> dict[int, str]:
    """The traces of a batch's actions, by their place in the plan."""
    return {index: trace for (index, _), trace in zip(batch.actions, batch.traces, strict=False)}
