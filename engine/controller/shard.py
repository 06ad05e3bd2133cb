"""What one worker keeps for one shard between passes; all of it can be read again."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import orjson

from belay.engine import versions
from belay.engine.act import SETTLE_SECONDS, Edge, Fence, Refused, SettlingClaims, claim, ended, refusals
from belay.engine.act.batch import Numbered, split
from belay.engine.act.budget import FIELD, reserve
from belay.engine.controller.link_seals import seal_links
from belay.engine.controller.pass_reporter import PassReporter
from belay.engine.controller.pass_traces import PassTraces
from belay.engine.controller.policies import Policies, assign_policies, policy_bodies
from belay.engine.controller.revision_reader import RevisionReader
from belay.engine.controller.snapshot_reader import SnapshotReader
from belay.engine.controller.status_writer import StatusWriter
from belay.engine.controller.triggers import Triggers
from belay.engine.controller.waiting_writer import WaitingWriter
from belay.engine.documents import Desired
from belay.engine.errors import BelayError
from belay.engine.kube import Kube, KubeError, cancel_all
from belay.engine.kube.lease import shard_lease
from belay.engine.kube.order_keys import OrderKeys
from belay.engine.log import get
from belay.engine.metrics import PassSummary, counter_name, recovery_counts, timed, wait_counts
from belay.engine.model.actions import BindPod
from belay.engine.model.cluster import Observed
from belay.engine.model.freshness import Hindrance
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.model.states import NodeHealth
from belay.engine.plan import plan as make_plan
from belay.engine.plan import resolve_roles
from belay.engine.replay import recording
from belay.engine.replay.summary import write_digest
from belay.engine.settings import Settings
from belay.engine.status import (
    PublishedPools,
    forgotten,
    memory_bodies,
    outdated_parts,
    status_bodies,
    surplus,
    sync_bodies,
)
from belay.engine.status.conditions import StatusCondition
from belay.engine.status.waiting_pods import waiting
from belay.engine.store import (
    ActionOutcome,
    BatchResult,
    ObjectWrite,
    PassRecord,
    PassStore,
    StoredRevisions,
    StoredSnapshots,
)
from belay.engine.wire import sync
from belay.engine.wire.names import MAIN_SHARD

_log = get("reconcile")
RECORDED_BYTES = 64 * 1024 * 1024
"""Largest snapshot, in bytes, that is recorded."""
HEAL_SECONDS, LONGEST_HEAL_SECONDS = 10.0, 300.0
"""Seconds between requests to write again what was altered in Redis, at first and at most."""
RECORDED_EVERY = 10.0
#: Seconds between two passes for which the chips in use now count as in use; a longer gap is left out.
COUNTED_AT_MOST = 900.0
"""Seconds between recordings of passes without actions that saw other faults."""
Send = Callable[[str], Awaitable[None]]
"""Sends a batch as text to queue ``act``."""


class ShardLost(BelayError):
    """The claim or the Lease was lost during a pass: another worker serves the shard."""

    code = "ShardLost"


class Shard:
    """One shard, as one worker serves it."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        kube: Kube,
        triggers: Triggers,
        passes: PassStore,
        snapshots: StoredSnapshots,
        revisions: StoredRevisions,
        send: Send,
        clock: Callable[[], float] = time.time,
        *,
        order_keys: OrderKeys | None = None,
        ended: Callable[[str], bool] = lambda identity: False,
    ) -> None:
        self.order_keys = order_keys or OrderKeys()
        self.name = name
        self.settings = settings
        self.clock = clock
        self.triggers = triggers
        self.passes = passes
        self.lease = shard_lease(kube, name, settings.identity, duration=settings.lease, ended=ended)
        self._stored = snapshots, revisions
        self._healed, self._pause = float("-inf"), HEAL_SECONDS
        self.snapshot = SnapshotReader(name, snapshots, keep_raw=settings.recordings)
        self.revision = RevisionReader(name, revisions, source_url=settings.source_url)
        self.status = StatusWriter(kube)
        self.reporter = PassReporter(kube, name, settings.identity, settings.resync)
        self.waiting = WaitingWriter(kube)
        self.policies = Policies()
        self.traces = PassTraces(name, clock)
        self.cache = PlanCache()
        self._pools = PublishedPools()
        self._kube = kube
        self._send = send
        self.again = False
        """Whether the shard was marked during the last pass and is due now."""
        self.due_in: float | None = None
        """Seconds after which the last pass wants the next one on time; None if it does not."""
        self.hindrance: tuple[Hindrance, str] | None = None
        """Why the last try was no pass; None if it was one, or nothing was due."""
        self._lost = False
        self._settling = SettlingClaims()
        self._recorded = (hash(((), ())), 0.0)
        self._summary: PassSummary | None = None

    @contextlib.asynccontextmanager
    async def claim_pass(self) -> AsyncIterator[bool]:
        """Claim the shard for one pass; yields False when nothing is due or another worker has the claim.

        Claim and Lease are renewed until the context ends; when one is lost, ShardLost is raised inside. At the end the
        shard is due again if it was marked meanwhile.
        """
        self.again, self.due_in, self.hindrance = False, None, None
        claimed = self.triggers.claim(self.name, self.settings.identity, self.settings.claim)
        if claimed is None:
            yield False
            return
        self._lost = False
        keeping = asyncio.create_task(self._renew_claim(claimed, asyncio.current_task()))
        try:
            yield True
        except asyncio.CancelledError:
            if self._lost:
                raise ShardLost("another worker serves the shard now") from None
            raise
        finally:
            await cancel_all(keeping)
            await self._release()
            if self.hindrance is not None:
                await self.reporter.hindered(*self.hindrance)
            self.again = self.triggers.done(self.name, self.settings.identity, claimed)

    def refresh(self) -> str:
        """Read what changed. Returns what a pass waits for, empty when it may start: a pass has seen every write of the
        one before.
        """
        waiting = self.snapshot.refresh(self.passes, self.settings.patience)
        self._settling.answer(self.snapshot.answered)
        self._heal()
        self.status.receive(self.snapshot.own_changes)
        self.snapshot.own_changes = {}
        return waiting

    def _heal(self) -> None:
        """Have the controller write snapshot and revision again when Redis held what no key of ours sealed."""
        snapshots, revisions = self._stored
        why = snapshots.damaged.pop(self.name, "") or (f"{revisions.damaged}: not sealed" if revisions.damaged else "")
        revisions.damaged = ""
        now = time.monotonic()
        if not why:
            self._pause = HEAL_SECONDS if now - self._healed > 2 * LONGEST_HEAL_SECONDS else self._pause
            return
        if now - self._healed < self._pause:
            return
        self._healed, self._pause = now, min(2 * self._pause, LONGEST_HEAL_SECONDS)
        _log.error("what Redis held is thrown away and written again", shard=self.name, reason=why)
        self.passes.ask_relist(self.name)

    def requeue(self, seconds: float, *, on_time: bool = False) -> None:
        """Have the next pass run in ``seconds``: with the controller's next look after that, or ``on_time``."""
        if on_time:
            self.due_in = seconds if self.due_in is None else min(self.due_in, seconds)
        self.triggers.mark(self.name, self.clock() + seconds)

    async def plan(self, desired: Desired, observed: Observed) -> Plan:
        """Derive the plan in a thread, so that claim and Lease are kept meanwhile."""
        now, cache = self.clock(), self.cache
        try:
            return await asyncio.to_thread(make_plan, desired, observed, now, shard=self.name, cache=cache)
        except asyncio.CancelledError:
            self.cache = PlanCache()  # the thread runs on and still uses the old one
            raise

    def open_pass(self, plan: Plan) -> PassRecord:
        """Record the start of a pass that writes; the next one waits for its results."""
        now = self.passes.now()
        digest = plan.digest()
        identifier = f"{self.name}-{self.lease.epoch}-{uuid.uuid4().hex[:8]}"
        record = PassRecord(
            identifier,
            self.name,
            self.lease.epoch or 0,
            digest,
            1,
            now,
            now + self.settings.expiry,
            self.snapshot.generation,
            self.snapshot.seen_up_to("v1", "Pod"),
        )
        self.passes.start(record)
        return record

    async def write_memory(self, plan: Plan, observed: Observed, desired: Desired) -> list[ObjectWrite]:
        """Reserve budgets, then write the memory, both before any disruptive action. Raises Refused or KubeError."""
        seen = self.snapshot.version(FIELD)
        try:
            spent = await reserve(self._kube, self.name, observed.history, plan.history, seen, self.clock())
        except Refused:
            self.passes.clear(self.name)  # nothing was written, so the next pass need not wait
            raise
        bodies = memory_bodies(plan, observed, self.name, desired, self.cache)
        state = self.revision.state(observed, self.cache)
        if self.name == MAIN_SHARD and set(state.inventory or ()) - set(observed.inventory or ()):
            # objects must be in the inventory before they are created
            bodies += sync_bodies(state, plan, observed, desired, self.name)
        writes = await self.status.write_memories(bodies)
        await self.status.delete_memories(forgotten(plan, observed, self.cache))
        return writes if spent is None else [spent, *writes]

    async def claim_chips(self, plan: Plan, observed: Observed) -> tuple[list[ObjectWrite], list[ActionOutcome]]:
        """Claim the chips of every binding. Returns the write of the ledger, and the bindings whose claim was refused.

        Gangs continue without their refused bindings.
        """
        binds = [action for action in plan.actions if isinstance(action, BindPod)]
        if not binds and not self.stale_claims(observed):
            return [], []
        pods = observed.pods.values()
        claimed = await claim(self._kube, self.name, binds, pods, self.clock(), self._settling)
        refused = [
            ActionOutcome(index, "refused", claimed.refused[(action.preconditions.uid or "")])
            for index, action in enumerate(plan.actions)
            if isinstance(action, BindPod) and (action.preconditions.uid or "") in claimed.refused
        ]
        return ([claimed.write] if claimed.write else []), refused

    def stale_claims(self, observed: Observed) -> bool:
        """Whether the ledger holds ended claims: the binding was seen, or none can be under way any more."""
        held = set(observed.ledger.values())
        over = ended(held, observed.pods.values(), self._settling) if held else set()
        if held - over - {pod.uid for pod in observed.pods.values()}:
            self.requeue(SETTLE_SECONDS)
        return bool(over)

    async def send(
        self,
        record: PassRecord,
        plan: Plan,
        own: list[ObjectWrite],
        refused: list[ActionOutcome],
        traces: Sequence[str] = (),
    ) -> None:
        """Record the pass' own writes and send its actions to queue ``act``, with the trace of each."""
        left_out = {outcome.index for outcome in refused}
        actions: list[Numbered] = [(i, action) for i, action in enumerate(plan.actions) if i not in left_out]
        messages = split(
            record, actions, plan.revision, self.settings.batch, self.settings.batch_bytes,
            refusals=bool(plan.refusals), traces=traces,
        )  # fmt: skip
        self.passes.amend(record, 1 + len(messages))
        self.passes.finish(record, BatchResult(0, own, refused))
        for message in messages:
            await self._send(message)

    async def write_status(self, plan: Plan, observed: Observed, desired: Desired, *, remembered: bool) -> None:
        """Write status and policies; the next pass writes what has to wait.

        A pass without ``remembered`` changes no memory, but the status of jobs in the same ConfigMaps may differ.
        """
        if not remembered:
            await self.status.write_memories(memory_bodies(plan, observed, self.name, desired, self.cache))
        policies = self.policies.compile(desired, plan, observed, self.cache)
        roles = resolve_roles(desired, observed)
        state = self.revision.state(observed, self.cache)
        conditions = (self._seals(), *state.conditions) if state.conditions else ()
        state = msgspec.structs.replace(state, roles=roles, conditions=conditions)
        info = self.status.info if roles["aggregate"] == "on" else None
        bodies = status_bodies(plan, observed, state, info, desired, self.cache, self.name)
        foreign = self.settings.foreign_consumers or roles["schedule"].startswith("off")
        own = policy_bodies(policies, desired, observed, self.name, self.order_keys, self.clock())
        later = await self.status.write_status([*bodies, *own], foreign=foreign)
        if roles["schedule"] == "on":
            waits = waiting(plan, observed, desired.settings.scheduler_names)
            later = max(later, await self.waiting.write(waits, plan.now))
        await self.status.write_shadow_events(plan.shadows, plan.now)
        await self.status.write_held_events(plan)
        await self.status.write_release_events(observed, plan)
        await self.status.delete_status(self._pools.outdated(self.name, bodies, desired))
        await self.status.delete_status(outdated_parts(observed, desired, self.name))
        jobs = roles["aggregate"] == "on" and self.name == MAIN_SHARD
        await self.status.delete_status(surplus(observed, bodies, jobs=jobs, links=desired.has_git))
        fence = Fence(self._kube, self.name, self.lease.epoch or 0)
        edge = Edge(self._kube, self.name, fence, keys=self.order_keys, now=self.clock)
        if not await assign_policies(edge, policies, plan, observed):
            later = max(later, 1.0)
        if not await seal_links(edge, plan, observed, desired):
            later = max(later, 1.0)
        await self._follow_refusals(plan, observed)
        if later:
            self.requeue(later, on_time=True)

    async def _follow_refusals(self, plan: Plan, observed: Observed) -> None:
        """Drop records of what no pass wants any more, and come again when the first refused object is due."""
        standing = {row.key for row in plan.refusals}
        stale = {key: row for key, row in observed.refusals.items() if key not in standing}
        if stale:
            await refusals.forget(self._kube, self.name, stale)
        if plan.refusals:
            self.requeue(max(0.1, min(row.retry for row in plan.refusals) / 1000 - plan.now))

    def record_metrics(self, plan: Plan, observed: Observed, record: PassRecord | None, seconds: float) -> None:
        """Write metrics, and a recording of a pass that acted or saw other faults than the last recorded one."""
        before, self._summary = self._summary, PassSummary.of(plan, observed, seconds, self._summary)
        self.passes.put_summary(self.name, msgspec.json.encode(self._summary))
        counts = timed("pass_duration_seconds", seconds, shard=self.name)
        counts[counter_name("passes", shard=self.name)] = 1
        if before is not None and 0 < plan.now - before.time < COUNTED_AT_MOST:
            held = sum(1 for chip in plan.chips if chip.used_by)
            counts[counter_name("held_chip_seconds", shard=self.name)] = round(held * (plan.now - before.time))
        waited = wait_counts(plan, observed) if record is not None else Counter[str]()
        self.passes.count(counts + recovery_counts(plan, observed) + waited)
        if self.settings.recordings and self._worth_recording(plan, acted=record is not None and bool(plan.actions)):
            self._record(plan, record.digest if record is not None else plan.digest())

    def _worth_recording(self, plan: Plan, *, acted: bool) -> bool:
        """Whether to record the pass. Policies are tested on recordings, so new faults without an action count too."""
        faults = hash((
            tuple((chip.node, chip.chip, chip.codes, chip.level) for chip in plan.chips if chip.codes),
            tuple(
                (node.node, node.state, node.codes)
                for node in plan.nodes
                if node.codes or node.state != NodeHealth.HEALTHY
            ),
        ))  # fmt: skip
        if not acted and (faults == self._recorded[0] or plan.now < self._recorded[1] + RECORDED_EVERY):
            return False
        self._recorded = (faults, plan.now)
        return True

    def _record(self, plan: Plan, digest: str) -> None:
        """Write the inputs of the pass for replay. A full disk or a huge snapshot only costs the recording."""
        size = sum(map(len, self.snapshot.raw.values()))
        if size > RECORDED_BYTES:
            _log.warning("pass not recorded: its snapshot is too large", bytes=size, limit=RECORDED_BYTES)
            return
        try:
            file = recording.write(
                self.settings.data_folder / "passes",
                version=versions.version(),
                shard=self.name,
                now=plan.now,
                revision=plan.revision,
                files=self.revision.contents(),
                confirmed=self.revision.confirmed,
                earlier=self.revision.earlier,
                objects=[orjson.loads(self.snapshot.raw[field]) for field in sorted(self.snapshot.raw)],
                digest=digest,
                has_git=self.revision.has_git,
                before=self.revision.before,
                refused_files=self.revision.refused_files,
                last_changes=self.revision.last_changes,
            )
            write_digest(file, plan)
        except OSError as error:
            _log.warning("pass not recorded", reason=str(error))

    def _seals(self) -> StatusCondition:
        """The condition that says whether orders to nodes are signed."""
        key = self.order_keys.signing
        if key is None:
            text = "orders to nodes carry no signature: docs/signed.md says how to make a key"
            return StatusCondition("OrdersSigned", "False", "Unsigned", text, severity=sync.INFO)
        return StatusCondition("OrdersSigned", "True", "Signed", f"by key {key.key_id}")

    async def _release(self) -> None:
        try:
            await self.lease.release()
        except KubeError as error:  # others then wait for its whole duration
            _log.warning("lease not released", shard=self.name, reason=str(error))

    async def _renew_claim(self, claimed: int, worker: asyncio.Task[object] | None) -> None:
        while True:
            await asyncio.sleep(self.settings.claim / 3)
            kept = self.triggers.extend(self.name, self.settings.identity, claimed, self.settings.claim)
            if self.lease.epoch is not None:
                kept = kept and await self.lease.renew()
            if not kept and worker is not None:
                self._lost = True
                worker.cancel()
                return
