"""All that one worker keeps for one shard between passes: none of it is needed, it only saves reading."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import orjson

from engine import __version__, recording
from engine.act import Edge, Fence, Refused, claim
from engine.act.batch import Numbered, split
from engine.act.budget import FIELD, reserve
from engine.documents import Desired
from engine.errors import BelayError
from engine.kube import Kube, KubeError, end
from engine.lease import shard_lease
from engine.log import get
from engine.metrics import MICRO, Summary, counter_name
from engine.model.actions import BindPod
from engine.model.cluster import Observed
from engine.model.plan import Plan
from engine.plan.roles import resolve
from engine.reconcile.copy import Copy
from engine.reconcile.intent import Intent
from engine.reconcile.policies import Policies, hand_out, policy_bodies
from engine.reconcile.teller import Teller
from engine.settings import Settings
from engine.status import forgotten, memory_bodies, status_bodies, surplus, sync_body
from engine.store import ActionOutcome, BatchResult, PassRecord, PassStore, RevisionReader, SnapshotReader, Write
from engine.triggers import Triggers

_log = get("reconcile")
RECORDED_BYTES = 64 * 1024 * 1024
"""Largest world that is recorded."""
RECORDED_EVERY = 10.0
"""Seconds between recordings of passes that did nothing but saw other faults."""
Send = Callable[[str], Awaitable[None]]
"""Hands a batch's text to queue ``act``."""


class Lost(BelayError):
    """The claim or the Lease was lost while the pass ran: another worker is at it, stop."""


class Shard:
    """One shard as one worker sees it."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        kube: Kube,
        triggers: Triggers,
        passes: PassStore,
        snapshots: SnapshotReader,
        revisions: RevisionReader,
        send: Send,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.settings = settings
        self.clock = clock
        self.triggers = triggers
        self.passes = passes
        self.lease = shard_lease(kube, name, settings.identity, duration=settings.lease)
        self.copy = Copy(name, snapshots, keep_raw=settings.recordings)
        self.intent = Intent(name, revisions, has_git=bool(settings.source_url))
        self.teller = Teller(kube)
        self.policies = Policies()
        self._kube = kube
        self._send = send
        self._lost = False
        self._recorded = (hash(((), ())), 0.0)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[bool]:
        """This worker's turn on the shard: False when there is nothing to do or another has it.

        While it lasts, claim and Lease are kept; a lost one raises Lost inside. It ends with whatever was marked
        meanwhile being due again.
        """
        claimed = self.triggers.claim(self.name, self.settings.identity, self.settings.claim)
        if claimed is None:
            yield False
            return
        self._lost = False
        keeping = asyncio.create_task(self._keep(claimed, asyncio.current_task()))
        try:
            yield True
        except asyncio.CancelledError:
            if self._lost:
                raise Lost("another worker has the shard now") from None
            raise
        finally:
            await end(keeping)
            await self._release()
            self.triggers.done(self.name, self.settings.identity, claimed)

    def look(self) -> str:
        """Empty when a pass may start, else what it waits for (contracts: a pass has seen every write of the one
        before).
        """
        waiting = self.copy.look(self.passes, self.settings.patience)
        self.teller.learn(self.copy.told)
        self.copy.told = {}
        return waiting

    def again(self, seconds: float) -> None:
        """Come back later."""
        self.triggers.mark(self.name, self.clock() + seconds)

    def open_pass(self, plan: Plan) -> PassRecord:
        """Begin a pass that will write: from now on the next one waits for its account."""
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
            self.copy.generation,
            self.copy.seen_up_to("v1", "Pod"),
        )
        self.passes.start(record)
        return record

    async def remember(self, plan: Plan, observed: Observed, desired: Desired) -> list[Write]:
        """Reserve budgets, then write the memory: both before anything disruptive. Raises Refused or KubeError."""
        seen = self.copy.version(FIELD)
        try:
            spent = await reserve(self._kube, self.name, observed.history, plan.history, seen, self.clock())
        except Refused:
            self.passes.clear(self.name)  # nothing was written, so nobody has to wait for it
            raise
        bodies = memory_bodies(plan, observed, self.name, desired)
        state = self.intent.state(observed)
        if set(state.inventory or ()) - set(observed.inventory or ()):
            bodies.append(sync_body(state, plan))  # what is about to be created must be known as ours before it exists
        writes = await self.teller.remember(bodies)
        await self.teller.forget(forgotten(plan, observed))
        return writes if spent is None else [spent, *writes]

    async def claim(self, plan: Plan, observed: Observed) -> tuple[list[Write], list[ActionOutcome]]:
        """Claim chips for every binding; bindings that got none are refused, with the whole gang going on without
        them.
        """
        binds = [action for action in plan.actions if isinstance(action, BindPod)]
        if not binds and not self.stale_claims(observed):
            return [], []
        claimed = await claim(self._kube, self.name, binds, observed.pods.values(), self.clock())
        refused = [
            ActionOutcome(index, "refused", claimed.refused[str(action.preconditions.get("uid") or "")])
            for index, action in enumerate(plan.actions)
            if isinstance(action, BindPod) and str(action.preconditions.get("uid") or "") in claimed.refused
        ]
        return ([claimed.write] if claimed.write else []), refused

    @staticmethod
    def stale_claims(observed: Observed) -> bool:
        """Whether the ledger holds claims that ended: their binding was seen, or their pod is gone."""
        waiting = {pod.uid for pod in observed.pods.values() if not pod.node and not pod.finished}
        return any(uid not in waiting for uid in observed.ledger.values())

    async def send(self, record: PassRecord, plan: Plan, own: list[Write], refused: list[ActionOutcome]) -> None:
        """Account for the pass' own writes and hand its actions to ``act``."""
        left_out = {outcome.index for outcome in refused}
        actions: list[Numbered] = [(i, action) for i, action in enumerate(plan.actions) if i not in left_out]
        messages = split(record, actions, plan.revision, self.settings.batch, self.settings.batch_bytes)
        self.passes.amend(record, 1 + len(messages))
        self.passes.finish(record, BatchResult(0, own, refused))
        for message in messages:
            await self._send(message)

    async def tell(self, plan: Plan, observed: Observed, desired: Desired, *, remembered: bool) -> None:
        """Write status and policies; what had to wait for its turn is told by the next pass.

        A pass that was not ``remembered`` changes no memory, but how jobs stand may be told beside it.
        """
        if not remembered:
            await self.teller.remember(memory_bodies(plan, observed, self.name, desired))
        policies = self.policies.of(desired, plan, observed)
        roles = resolve(desired, observed)
        state = msgspec.structs.replace(self.intent.state(observed), roles=roles)
        info = self.teller.info if roles["aggregate"] == "on" else None
        bodies = status_bodies(plan, observed, state, info, desired)
        foreign = self.settings.foreign_consumers or roles["schedule"].startswith("off")
        later = await self.teller.tell([*bodies, *policy_bodies(policies)], foreign=foreign)
        await self.teller.tell_shadows(plan.shadows, plan.now)
        await self.teller.tell_releases(observed, plan)
        await self.teller.drop(surplus(observed, bodies, jobs=roles["aggregate"] == "on", links=desired.has_git))
        edge = Edge(self._kube, self.name, Fence(self._kube, self.name, self.lease.epoch or 0))
        if not await hand_out(edge, policies, plan, observed):
            later = max(later, 1.0)
        if later:
            self.again(later)

    def account(self, plan: Plan, observed: Observed, record: PassRecord | None, seconds: float) -> None:
        """Metrics and, for a pass that acted or saw other faults than the last recorded one, its recording."""
        self.passes.put_summary(self.name, msgspec.json.encode(Summary.of(plan, observed, seconds)))
        self.passes.count(
            {counter_name("passes", shard=self.name): 1, counter_name("pass_seconds"): int(seconds * MICRO)}
        )
        if self.settings.recordings and self._worth_recording(plan, acted=record is not None and bool(plan.actions)):
            self._record(plan, record.digest if record is not None else plan.digest())

    def _worth_recording(self, plan: Plan, *, acted: bool) -> bool:
        """A policy is tested against recordings, so they also hold what the policies of their time left alone."""
        faults = hash((
            tuple((chip.node, chip.chip, chip.codes, chip.level) for chip in plan.chips if chip.codes),
            tuple((node.node, node.state, node.codes) for node in plan.nodes if node.codes or node.state != "healthy"),
        ))  # fmt: skip
        if not acted and (faults == self._recorded[0] or plan.now < self._recorded[1] + RECORDED_EVERY):
            return False
        self._recorded = (faults, plan.now)
        return True

    def _record(self, plan: Plan, digest: str) -> None:
        """Keep what the pass was made from, for replay. A full disk or a huge world loses recordings, never a pass."""
        size = sum(map(len, self.copy.raw.values()))
        if size > RECORDED_BYTES:
            _log.warning("pass not recorded: its world is too large", bytes=size, limit=RECORDED_BYTES)
            return
        try:
            recording.write(
                self.settings.data_folder / "passes",
                version=__version__,
                shard=self.name,
                now=plan.now,
                revision=plan.revision,
                files=self.intent.contents(),
                previous=self.intent.previous,
                objects=[orjson.loads(self.copy.raw[field]) for field in sorted(self.copy.raw)],
                digest=digest,
                has_git=bool(self.settings.source_url),
            )
        except OSError as error:
            _log.warning("pass not recorded", reason=str(error))

    async def _release(self) -> None:
        try:
            await self.lease.release()
        except KubeError as error:  # others then wait for its whole duration
            _log.warning("lease not released", shard=self.name, reason=str(error))

    async def _keep(self, claimed: int, worker: asyncio.Task[object] | None) -> None:
        while True:
            await asyncio.sleep(self.settings.claim / 3)
            kept = self.triggers.extend(self.name, self.settings.identity, claimed, self.settings.claim)
            if self.lease.epoch is not None:
                kept = kept and await self.lease.renew()
            if not kept and worker is not None:
                self._lost = True
                worker.cancel()
                return
