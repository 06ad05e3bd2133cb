"""The agent of one node: follow orders, policy and pods; watch the driver; report; execute."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.agents.common.client import ApiError, ApiServer
from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import Driver
from belay.agents.node import fault_events, reporting, reset_groups
from belay.agents.node.acts import baseline, catch_up, reported
from belay.agents.node.cluster_tables import ClusterTables
from belay.agents.node.driver_watch import DriverWatch
from belay.agents.node.engine_presence import EnginePresence
from belay.agents.node.executor import Executor
from belay.agents.node.facts import FactUnavailable
from belay.agents.node.fault_events import FaultEvents
from belay.agents.node.followed_orders import FollowedOrders
from belay.agents.node.hooks import Hooks
from belay.agents.node.jobfiles import TRACE_ROOT, Roots, keep_job_files
from belay.agents.node.journal import Done, Journal, JournalLost
from belay.agents.node.labels import keep_node
from belay.agents.node.live_facts import LiveFacts
from belay.agents.node.notices import Notice, released
from belay.agents.node.own_resets import OwnResets
from belay.agents.node.plugins import ResetPlugins
from belay.agents.node.policy import DiskCache, FaultLevels
from belay.agents.node.published import MANUAL_SECONDS as MANUAL
from belay.agents.node.published import PublishedUpgrades
from belay.agents.node.publisher import Publisher
from belay.agents.node.rankfiles import keep_rank_files
from belay.agents.node.settings import MAX_TEXT, Settings
from belay.agents.node.state import NodeState
from belay.agents.node.trust import OrderTrust
from belay.agents.node.witness import Witness
from belay.engine.wire import objects
from belay.engine.wire.errors import NewerFormat, WireError
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX, NODES, REPORT_PREFIX
from belay.engine.wire.orders import parse_report
from belay.engine.wire.policy import NodePolicy
from belay.engine.wire.unwritten import is_unwritten

_LEAST_PAUSE: Final = 0.02
_QUIET: Final = 3600.0
_log = Log("agent")


class NodeAgent:
    """Runs until cancelled. `journal_dir` must survive restarts of the agent; `policy` applies until another policy
    has been read."""

    def __init__(
        self,
        node_name: str,
        driver: Driver,
        cluster: ApiServer,
        journal_dir: Path,
        settings: Settings | None = None,
        clock: Clock | None = None,
        *,
        policy: NodePolicy | None = None,
        chance: random.Random | None = None,
        plugins: Path | None = None,
        hooks: Path | None = None,
    ) -> None:
        self.node = node_name
        self.state: NodeState | None = None
        self._driver, self._cluster = driver, cluster
        self._settings, self._clock = settings or Settings(), clock or Clock()
        self._chance = chance or random.Random()
        self._wake = asyncio.Event()
        self._policy = policy or NodePolicy(self._settings.pool)
        self._plugins, self._hooks = ResetPlugins(plugins), Hooks(hooks)

        # what is kept on disk
        self._journal, self._cache = Journal(journal_dir), DiskCache(journal_dir)
        self._journal_open, self._journal_due, self._journal_tries = False, 0.0, 0
        self._published, self._edits = PublishedUpgrades(self._cache), 0
        self._trust = OrderTrust(self._settings.order_trust, journal_dir, node_name)

        # what it reads and writes
        self._watch = DriverWatch(driver, self._clock, self._settings, self._chance, self._wake.set)
        self._facts = LiveFacts(node_name, cluster, self._trust, self._read_driver)
        self._events, self._news = FaultEvents(), asyncio.Event()
        self._boot, self._seq = uuid.uuid4().hex[:12], 0
        self._passing: list[Any] = []

        # parts that take part, see `join`
        self._claimed: Mapping[int, str] = {}
        self._witnesses: list[Witness] = []
        self._observers: list[Callable[[], None]] = []

        # known once it runs
        self._group: asyncio.TaskGroup | None = None
        self._followed: FollowedOrders | None = None
        self._presence: EnginePresence | None = None
        self._tables: ClusterTables | None = None
        self._own: OwnResets | None = None
        self._executor: Executor | None = None

    def join(
        self,
        *,
        witnesses: Sequence[Witness] = (),
        observer: Callable[[], None] | None = None,
        claimed: Mapping[int, str] | None = None,
    ) -> None:
        """Let a part take part in what the agent decides. Before `run` only.

        Args:
            witnesses: asked for users of chips before a reset.
            observer: called after orders were processed, whenever something may have changed.
            claimed: who holds which chip by a claim, kept current by the part.
        """
        self._witnesses += witnesses
        if observer is not None:
            self._observers.append(observer)
        if claimed is not None:
            self._claimed = claimed

    def known_state(self) -> NodeState | None:
        """What is known about the node; None until the driver has answered."""
        return self.state

    async def run(self) -> None:
        """Run the agent.

        A failure that is a bug ends it with an exception group; everything else is handled and reported.
        """
        followed = self._followed = await self._start()
        device, report = self._publishers()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                followed.follow(group)
                if self._presence is not None:
                    group.create_task(self._presence.follow())
                if self._tables is not None:
                    self._tables.follow(group)
                group.create_task(self._follow_pods())
                group.create_task(self._watch.follow(self._known()))
                group.create_task(self._report_faults())
                group.create_task(self._follow_operators())

                self._keep_files(group)
                group.create_task(device.run())
                group.create_task(self._loop(device, report))
        finally:
            if self._executor is not None:
                await self._executor.close()

    def _keep_files(self, group: asyncio.TaskGroup) -> None:
        """Keep the node's labels, and the files of its jobs where folders for them are configured."""
        known = self._known(), self._cluster, self._clock
        group.create_task(keep_node(*known, self._settings, self._chance))
        if self._settings.rank_root:
            group.create_task(keep_rank_files(*known, Path(self._settings.rank_root)))
        if self._settings.reset_root:
            roots = Roots(Path(self._settings.reset_root), Path(self._settings.trace_root or TRACE_ROOT))
            group.create_task(keep_job_files(*known, roots))

    def withheld(self, chip: int) -> str | None:
        """Return why a chip must not be given to new work, None when it may. The device plugin uses this."""
        return "the agent has not started" if self.state is None else self.state.withheld(chip)

    def refresh_soon(self) -> None:
        """Read the driver again at once, because another source than the driver saw a change."""
        self._watch.due = 0.0
        self._wake.set()

    # ---- start

    async def _start(self) -> FollowedOrders:
        """Read the node's chips from the driver, retrying, and load the state kept on disk."""
        self.state = await self._watch.first_state(self.node, FaultLevels(self._policy), self._claimed)
        pool, wake = self._settings.pool, self._wake.set
        followed = FollowedOrders(self.state, self._cluster, self._cache, pool, wake, self._trust)
        if self._settings.cluster_tables:
            self._tables = ClusterTables(self._policy, self._cluster, self._cache, self.state, wake)
            self._tables.remember()
            self._tables.apply(self.state.judge)
        followed.remember()
        if self._settings.cluster_tables or self._settings.own_resets:
            self._presence = EnginePresence(self.node, self._cluster, followed, self._trust, self._settings)
        self._published.remember(self.state, self._clock.now_ms())
        self._open_journal()
        return followed

    def _open_journal(self) -> None:
        try:
            self._journal.open()
            self._journal_open = True
        except JournalLost as error:
            _log.warning("journal is lost, epochs ordered until now count as done", node=self.node, reason=error)
        except OSError as error:
            self._known().problems["journal"] = f"journal cannot be read: {error.strerror}"

    # ---- follow

    async def _follow_pods(self) -> None:
        state = self._known()
        async for bodies in self._cluster.pods(self.node):
            pods, bad = [], ""
            for body in bodies:
                try:
                    pods.append(objects.pod(body))
                except (WireError, TypeError, ValueError, AttributeError) as error:
                    bad = f"a pod cannot be read: {error}"[:MAX_TEXT]
            state.pods, state.bodies, state.pods_read = pods, bodies, True
            if bad:
                state.problems["pods"] = bad
            else:
                state.problems.pop("pods", None)
            self._wake.set()

    async def _follow_operators(self) -> None:
        """Notice names that operators take out of ``ManuallySeparateNPU``, while it has any."""
        state = self._known()
        while True:
            await self._clock.pause(self._settings.scaled(MANUAL))
            if not self._published.names_chips:
                continue
            before = self._published.writes
            try:
                live = await self._cluster.get_config_map(DEVICE_NAMESPACE, DEVICE_PREFIX + self.node)
            except ApiError:
                continue  # the report's own writes say so
            if before == self._published.writes:  # what was read is not older than what the agent has written
                self._edits += self._published.edited(state, live)
                self._published.compare(state, live, self._clock.now_ms())
                self._wake.set()

    async def _report_faults(self) -> None:
        """Write Events for faults that come and go. A lost Event affects nothing else."""
        pod = self._settings.pod or f"belay-agent-{self.node}"
        while True:
            now_ms = self._clock.now_ms()
            change = self._events.due(now_ms)
            if change is None:
                await self._clock.wait(self._news, max(_LEAST_PAUSE, min(self._events.wait(now_ms), _QUIET)))
                continue
            try:
                body = fault_events.event(change, self.node, pod, self._known().machine.prefix, now_ms)
                await self._cluster.create_event(body)
                self._known().problems.pop("fault events", None)
            except ApiError as error:
                self._known().problems["fault events"] = f"an event could not be written: {error}"[:MAX_TEXT]

    # ---- the loop

    async def _loop(self, device: Publisher, report: Publisher) -> None:
        reporting_task: asyncio.Task[None] | None = None
        while True:
            if self._clock.monotonic() >= self._watch.due:
                await self._poll()
            wait = await self._refresh()
            state = self._known()
            device.update((reporting.device_signature(state, self._clock.now_ms()), self._edits))
            if self._executor is not None:
                # the journal is established from the last report: writing one earlier would overwrite it
                report.update(self._report())
                if reporting_task is None and self._group is not None:
                    reporting_task = self._group.create_task(report.run())
            until_poll = self._watch.due - self._clock.monotonic()
            await self._clock.wait(self._wake, max(_LEAST_PAUSE, min(wait, until_poll)))

    async def _refresh(self) -> float:
        """Derive levels, upgrades and acts from the state. Returns the seconds until the next refresh."""
        state = self._known()
        now_ms = self._clock.now_ms()
        self._settle_engine()
        state.settle_users(self._clock.monotonic(), now_ms)
        if self._events.refresh(state):
            self._news.set()
        state.judge.observe({chip: state.book.chip(chip) for chip in state.ids}, now_ms, state.book.again())
        self._keep_upgrades(now_ms)
        if self._executor is None:
            await self._establish()
        wait = self._settings.tick if self._executor is None else self._executor.step()
        for observer in self._observers:
            observer()
        return wait

    def _settle_engine(self) -> None:
        """Put the policy in force that counts now: an engine's, else the cluster's own tables."""
        if self._presence is None or self._followed is None:
            return
        self._presence.settle(self._clock.monotonic())
        if self._presence.absent(self._clock.monotonic()):
            self._followed.forget_policy()
        if self._tables is not None and self._followed.engine_policy is None:
            self._tables.apply(self._known().judge)
        if self._own is not None:
            self._own.settle()

    def _keep_upgrades(self, now_ms: int) -> None:
        """Write the upgrades to disk, and report those that have ended."""
        state = self._known()
        self._published.keep(state)
        if state.judge.upgrades.ended:
            ended, state.judge.upgrades.ended = state.judge.upgrades.ended, []
            self._report_notice(released(ended, state.name, now_ms))

    def _report_notice(self, notice: Notice) -> None:
        self._events.add(notice)
        self._news.set()

    async def _poll(self) -> None:
        self._watch.plan_next()
        try:
            await self._read_driver()
            await reset_groups.learn(self._known(), self._driver, self._clock, self._settings.driver_timeout)
            if self._own is not None:
                await self._own.learn()
        except FactUnavailable as error:
            self._known().problems["driver"] = f"driver: {error}"[:MAX_TEXT]

    async def _read_driver(self) -> None:
        await self._watch.read(self._known())

    # ---- journal and report

    async def _establish(self) -> None:
        """Make the journal trustworthy: compare it with the last report, or start it from that when it is lost.

        Until both the report and the orders have been read, nothing destructive happens.
        """
        state = self._known()
        if self._followed is None or not self._followed.orders_known or self._clock.monotonic() < self._journal_due:
            return
        try:
            body = await self._cluster.get_config_map(NODES, REPORT_PREFIX + self.node)
            done = self._done(body)
            if self._journal_open:
                catch_up(self._journal, done)
            else:
                self._journal.establish(baseline(state, done, state.orders))
                self._journal_open = True
        except (ApiError, WireError) as error:
            state.problems["journal"] = f"the last report cannot be read, nothing destructive is done: {error}"[
                :MAX_TEXT
            ]
        except OSError as error:
            state.problems["journal"] = f"journal cannot be written, nothing destructive is done: {error.strerror}"
        else:
            state.problems.pop("journal", None)
            self._begin_acts(state)
            return

        self._journal_tries += 1
        pause = self._chance.uniform(0, min(60.0, 2.0 ** min(self._journal_tries, 10)))
        self._journal_due = self._clock.monotonic() + max(self._settings.tick, pause)

    def _begin_acts(self, state: NodeState) -> None:
        """From now on orders are carried out: it is known which were before."""
        if self._settings.own_resets and self._presence is not None:
            self._own = OwnResets(
                state, self._presence, self._driver, self._clock, self._settings, self._journal.folder
            )
        self._executor = Executor(
            state,
            self._journal,
            self._driver,
            self._facts,
            self._clock,
            self._settings,
            self._wake.set,
            self._witnesses,
            plugins=self._plugins,
            hooks=self._hooks,
            notify=self._report_notice,
            trust=self._trust,
            own=self._own,
        )

    def _done(self, report: Mapping[str, Any] | None) -> Mapping[str, Done]:
        """What the last report lists as done. Raises WireError where it is damaged.

        One of a newer agent, whose place this one took, is not read: every epoch that is ordered now counts as done,
        so that none runs twice. This agent's report takes its place then, else the node would be without one.
        """
        state = self._known()
        if report is None or is_unwritten(report):
            return {}
        try:
            return reported(state, parse_report(report))
        except NewerFormat:
            return baseline(state, {}, state.orders)

    def _report(self) -> Any:
        assert self._executor is not None
        state = self._known()
        own = [self._own.problem] if self._own is not None and self._own.problem else []
        errors = sorted([*own, *state.problems.values()])[: self._settings.max_errors]
        executor = self._executor
        report = reporting.agent_report(state, executor.results, executor.orders_seen, errors, executor.stages)
        wait = round(self._settings.scaled(self._settings.idle), 3)
        return msgspec.structs.replace(report, orders_trust=self._trust.verdict, idle_wait=wait)

    def _publishers(self) -> tuple[Publisher, Publisher]:
        settings = self._settings
        device = Publisher(
            f"device information of {self.node}",
            build=self._device_body,
            write=self._write_device,
            period=lambda: settings.scaled(settings.device_period),
            spacing=settings.spacing,
            clock=self._clock,
            chance=self._chance,
            written=self._end_cycle,
        )
        report = Publisher(
            f"report of {self.node}",
            build=self._report_body,
            write=self._cluster.put_config_map,
            period=lambda: (
                settings.scaled(settings.heartbeat)
                * self._chance.uniform(1 - settings.heartbeat_spread, 1 + settings.heartbeat_spread)
            ),
            spacing=settings.spacing,
            clock=self._clock,
            chance=self._chance,
        )
        return device, report

    def _device_body(self) -> dict[str, Any]:
        self._passing = self._known().book.passing()
        return reporting.device_info(self._known(), self._clock.now_ms())

    async def _write_device(self, body: dict[str, Any]) -> None:
        """Write the device information, after reading operators' changes to it where they matter."""
        state = self._known()
        if self._published.must_compare(state):
            live = await self._cluster.get_config_map(DEVICE_NAMESPACE, DEVICE_PREFIX + self.node)
            self._published.compare(state, live, self._clock.now_ms())
            body = self._device_body()
        await self._cluster.put_config_map(body)
        self._published.wrote(state)

    def _end_cycle(self) -> None:
        if self._passing:
            self._known().book.end_cycle(self._passing)
            self._passing = []
            self._wake.set()

    def _report_body(self) -> dict[str, Any]:
        self._seq += 1
        sent = reporting.stamped(self._report(), self._boot, self._seq, self._clock.now_ms())
        return reporting.report_config_map(sent, self._known())

    def _known(self) -> NodeState:
        assert self.state is not None
        return self.state
