"""Executing orders: resets and vNPU layouts, each epoch at most once, and never on a chip in use.

Safety follows from the order: read the facts again, write the journal, act, write the journal, report. The executor
waits while a fact is unknown (the API server is unreachable, the driver hangs), refuses an act that the facts forbid,
and refuses an expired order in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from belay.agents.common.clock import Clock
from belay.agents.common.log import Log
from belay.agents.drivers.base import Driver, DriverError
from belay.agents.node import reset_groups
from belay.agents.node.acts import Act, ordered
from belay.agents.node.facts import ActRefused, Facts, FactUnavailable
from belay.agents.node.hooks import Hooks
from belay.agents.node.in_place_recovery import InPlaceRecovery, Step
from belay.agents.node.journal import Done, Journal
from belay.agents.node.layouts import Layouts
from belay.agents.node.notices import Notice
from belay.agents.node.own_resets import OwnResets
from belay.agents.node.plugins import ResetPlugins
from belay.agents.node.rescans import Rescans
from belay.agents.node.resetter import LATE, Resetter
from belay.agents.node.settings import MAX_TEXT, Settings
from belay.agents.node.state import NodeState
from belay.agents.node.trust import OrderTrust
from belay.agents.node.witness import Witness, WitnessError
from belay.engine.model.cluster import Orders

_log = Log("agent")


class Executor:
    """Executes the orders of one node, one act at a time."""

    def __init__(
        self,
        state: NodeState,
        journal: Journal,
        driver: Driver,
        facts: Facts,
        clock: Clock,
        settings: Settings,
        wake: Callable[[], None],
        witnesses: Sequence[Witness] = (),
        *,
        plugins: ResetPlugins | None = None,
        hooks: Hooks | None = None,
        notify: Callable[[Notice], None] = lambda _: None,
        trust: OrderTrust | None = None,
        own: OwnResets | None = None,
    ) -> None:
        self._trust, self._own = trust, own
        self._witnesses = tuple(witnesses)
        self._resetter = Resetter(state, driver, clock, settings, plugins or ResetPlugins(None), notify, hooks)
        self._watches: dict[tuple[tuple[str, ...], int], InPlaceRecovery] = {}
        self._state, self._journal, self._driver, self._facts = state, journal, driver, facts
        self._clock, self._settings, self._wake = clock, settings, wake
        self._first_seen: dict[tuple[tuple[str, ...], int], float] = {}
        self._unwritten: dict[str, Done] = {}
        self._task: asyncio.Task[None] | None = None
        self._current: Act | None = None
        self._layouts = Layouts(state, driver, facts, clock, settings)
        self._seen_generation = 0
        self._pause_until = 0.0
        failed = {key for key, done in journal.done.items() if done.result.startswith("failed")}
        state.failed_resets |= {chip for chip in state.ids if state.name(chip) in failed}
        self._rescans = Rescans(state, driver, clock, settings)
        self._rescans.failed(state.failed_resets)

    @property
    def results(self) -> Mapping[str, Done]:
        """The newest result per key, including one that the disk refused to take."""
        return {**self._journal.done, **self._unwritten}

    @property
    def orders_seen(self) -> int:
        """The newest generation that is fully applied: while an act that a newer generation withdrew still runs, this
        stays lower, because its chips are not free yet.
        """
        return self._seen_generation

    @property
    def stages(self) -> Mapping[str, str]:
        """The condition that a reset under a job waits for, per chip of its group."""
        return {key: watch.stage for (keys, _), watch in self._watches.items() for key in keys}

    def step(self) -> float:
        """Refuse and start acts as the orders require. Returns seconds until the next call is useful. Call it after
        every change; it never blocks.
        """
        orders = self._state.orders
        acts = ordered(self._state, orders) + (self._own.acts(self._last) if self._own is not None else [])
        pending = [act for act in acts if not self._is_done(act)]
        self._forget(pending)
        self._withdraw(pending)
        if self._current is None or self._current in acts:
            self._seen_generation = orders.generation if orders else 0
        if self._task is not None:
            return self._settings.tick
        soonest = float("inf")
        for act in pending:
            soonest = min(soonest, self._consider(act, orders))
            if self._task is not None:
                return soonest
        wait, chips = self._rescans.next()
        if chips and wait <= 0:
            self._task = asyncio.create_task(self._rescan(chips))
            return self._settings.tick
        return min(soonest, wait)

    async def close(self) -> None:
        """Stop. An act in progress stays begun in the journal."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ---- may it run?

    def _is_done(self, act: Act) -> bool:
        return all(self._last(key) >= act.epoch for key in act.keys)

    def _last(self, key: str) -> int:
        unwritten = self._unwritten.get(key)
        return max(self._journal.last(key), unwritten.epoch if unwritten else 0)

    def _consider(self, act: Act, orders: Orders | None) -> float:
        wait = self._wait(act, orders)
        if wait > 0:
            return wait
        if act.own:
            self._state.withdrawn |= set(act.chips)
        self._current = act
        self._task = asyncio.create_task(self._execute(act))
        return self._settings.tick

    def _wait(self, act: Act, orders: Orders | None) -> float:
        """Return for how long to wait before trying, 0 to try now. An act that will be refused is tried at once."""
        now, monotonic = self._clock.now_ms(), self._clock.monotonic()
        if act.own or orders is None:
            return max(0.0, self._pause_until - monotonic)
        if self._expired(act, orders) or self._stale(act):
            return 0.0
        if not act.layout and not set(act.chips) <= set(self._state.ids):
            return 0.0
        if monotonic < self._pause_until:
            return self._pause_until - monotonic
        if (left := self._until_not_before(act, orders, now)) > 0:
            return min(left, self._settings.tick)
        if act.online is not None:
            return 0.0 if self._barred(act) else self._next_step(act).wait
        if self._state.occupants(act.chips) and not act.layout:
            return (
                0.0 if self._lasted(act) >= self._settings.scaled(self._settings.in_use_grace) else self._settings.tick
            )
        if act.layout or self._state.judge.healthy([e for c in act.chips for e in self._state.book.chip(c)]):
            return 0.0
        return max(0.0, self._settings.scaled(self._settings.idle) - self._state.idle_for(act.chips, monotonic))

    def _until_not_before(self, act: Act, orders: Orders, now: int) -> float:
        """Seconds until the order allows the act.

        The order's own times may be of a clock that ran ahead: from when the act was first seen, it waits no longer
        than from ``issued`` to ``notBefore``.
        """
        left = (act.not_before_ms - now) / 1000
        if orders.issued_ms:
            left = min(left, max(0, act.not_before_ms - orders.issued_ms) / 1000 - self._lasted(act))
        return left

    def _expired(self, act: Act, orders: Orders) -> bool:
        not_after = orders.not_after_ms or orders.issued_ms + int(self._settings.order_life * 1000)
        # the second test holds when the clock was set back
        return self._clock.now_ms() > not_after or self._lasted(act) > self._settings.order_life

    def _stale(self, act: Act) -> bool:
        return any(self._last(key) >= act.epoch for key in act.keys)

    def _lasted(self, act: Act) -> float:
        return self._clock.monotonic() - self._first_seen.get((act.keys, act.epoch), self._clock.monotonic())

    def _forget(self, pending: Sequence[Act]) -> None:
        names = {(act.keys, act.epoch) for act in pending}
        monotonic = self._clock.monotonic()
        self._first_seen = {name: self._first_seen.get(name, monotonic) for name in names}
        self._watches = {name: watch for name, watch in self._watches.items() if name in names}

    def _withdraw(self, pending: Sequence[Act]) -> None:
        """Withdraw chips that an order is about to act on: they are no longer offered. Those of the agent's own resets
        are from the moment one begins, so that a reset that has to wait withholds nothing."""
        acting = set(self._current.chips) if self._current and not self._current.layout else set()
        self._state.withdrawn = (
            acting | self._layouts.cutting | {c for act in pending if not act.layout and not act.own for c in act.chips}
        )
        under = [act for act in [*pending, *([self._current] if self._current else [])] if act.online is not None]
        self._state.healing = {chip for act in under for chip in act.chips}

    # ---- under a job

    def _next_step(self, act: Act) -> Step:
        """The next step of a reset under a job, by the newest facts."""
        assert act.online is not None
        name, now = (act.keys, act.epoch), self._clock.monotonic()
        watch = self._watches.get(name)
        if watch is None:
            watch = self._watches[name] = InPlaceRecovery(act.online, now, self._settings.scale)
        processes = sum(self._state.processes.get(chip, 0) for chip in act.chips)
        return watch.next_step(now, processes, self._faulty(act))

    def _faulty(self, act: Act) -> bool:
        return not self._state.judge.healthy([e for c in act.chips for e in self._state.book.chip(c)])

    def _barred(self, act: Act) -> str:
        """Why the chips must not be touched under the named job; empty when only its pod holds them."""
        assert act.online is not None
        pod = next((p for p in self._state.pods if p.uid == act.online.uid), None)
        if pod is None or pod.finished or pod.deleting is not None:
            return f"pod {act.online.pod} is gone or going"
        others = [user for user in self._state.users.of(act.chips) if user != pod.key]
        return f"in use by {', '.join(others[:3])}" if others else ""

    # ---- run it

    async def _execute(self, act: Act) -> None:
        try:
            await self._run(act)
        except FactUnavailable as error:
            if act.own and self._own is not None:
                self._own.postpone(act, str(error))
            else:
                self._problem("order", f"waits: {error}")
                self._pause()
        except OSError as error:
            # nothing has been done: the journal comes first
            self._problem("journal", f"cannot be written: {error.strerror}; nothing destructive is done")
            self._pause()
            if act.own and self._own is not None:
                self._own.postpone(act, f"its record cannot be written: {error.strerror}")
        finally:
            self._task = self._current = None
            self._wake()

    async def _rescan(self, chips: Sequence[int]) -> None:
        try:
            await self._rescans.rescan(chips, self._facts.driver)
        except FactUnavailable as error:
            _log.warning("what became of chips that were looked for again is not known", error=error)
        finally:
            self._task = None
            self._wake()

    async def _run(self, act: Act) -> None:
        try:
            await self._confirm(act)
            if act.layout:
                await self._lay_out(act)
            elif act.online is not None and (step := self._next_step(act)) != Step():
                if not step.result:
                    raise FactUnavailable(f"{', '.join(act.keys)}: waiting for {step.stage}")
                self._record(act, step.result)
            else:
                await self._reset(act)
        except ActRefused as refusal:
            if act.own:  # it was not ordered, so there is no order to answer
                raise FactUnavailable(str(refusal)) from refusal
            self._record(act, f"refused: {refusal}")
        self._problem("order", None)

    async def _confirm(self, act: Act) -> None:
        """Check everything again on facts read now. Raises ActRefused or FactUnavailable."""
        state = self._state
        if act.own:
            await self._confirm_own(act)
            return
        if self._stale(act):
            raise ActRefused(f"epoch {act.epoch} was already taken for a chip of the group")
        if state.orders is not None and self._expired(act, state.orders):
            raise ActRefused("the order has expired")
        fresh = await self._facts.orders()
        if act not in ordered(state, fresh):
            raise FactUnavailable("the order was withdrawn meanwhile")
        state.orders = fresh
        state.pods = await self._facts.pods()
        await self._facts.driver()
        state.settle_users(self._clock.monotonic(), self._clock.now_ms())
        if fresh is not None and self._expired(act, fresh):
            raise ActRefused("the order has expired")
        if self._trust is not None:
            if self._trust.waits_for_policy(fresh):
                raise FactUnavailable("the policy that the orders name has not come yet")
            if refusal := self._trust.refusal(act, fresh):
                raise ActRefused(refusal)
            if fresh is not None and (name := self._trust.commit_map):
                commit = await self._facts.commit(name)
                if refusal := self._trust.commit_refusal(act, fresh, commit, self._clock.now()):
                    raise ActRefused(refusal)
        if not act.layout:
            await self._confirm_reset(act)

    async def _confirm_own(self, act: Act) -> None:
        """The same for a reset that no order asks for: no engine is there, and all that made it due still holds."""
        state, own = self._state, self._own
        assert own is not None
        await own.confirm_absence()
        state.pods = await self._facts.pods()
        await self._facts.driver()
        state.settle_users(self._clock.monotonic(), self._clock.now_ms())
        await self._confirm_reset(act)
        # last, and nothing is awaited after it: what the watches have seen meanwhile counts
        if act not in own.acts(self._last):
            raise FactUnavailable("it is not due any more, or an engine has come")

    async def _confirm_reset(self, act: Act) -> None:
        state = self._state
        if not self._settings.resets:
            raise ActRefused("resets are switched off on this node (-hotReset=-1)")
        if unknown := [chip for chip in act.chips if chip not in state.ids]:
            raise ActRefused(f"there is no chip {state.name(unknown[0])}")
        limit = self._settings.driver_timeout
        for chip in act.chips:
            try:
                ring = await reset_groups.group_of(chip, state, self._driver, self._clock, limit)
            except (DriverError, TimeoutError) as error:
                raise FactUnavailable(f"the driver does not say what resets with {state.name(chip)}") from error
            if not ring <= set(act.chips):
                missing = ", ".join(state.name(c) for c in sorted(ring - set(act.chips)))
                raise ActRefused(f"{state.name(chip)} resets together with {missing}")
        if act.online is not None:
            if barred := self._barred(act):
                raise ActRefused(barred)
            await self._ask_witnesses(act)
            return
        if occupants := state.occupants(act.chips):
            raise ActRefused(f"in use by {occupants}")
        await self._ask_witnesses(act)
        if state.judge.healthy([e for c in act.chips for e in state.book.chip(c)]):
            raise ActRefused("no fault of the group is left")
        idle = state.idle_for(act.chips, self._clock.monotonic())
        if idle < self._settings.scaled(self._settings.idle):
            raise FactUnavailable("the group has not been idle for long enough")

    async def _ask_witnesses(self, act: Act) -> None:
        """Raise unless every witness reports the chips unused. A holder that is slow to release them gets a grace
        time."""
        for witness in self._witnesses:
            try:
                found = await self._clock.limit(witness.holders(act.chips), self._settings.driver_timeout)
            except (WitnessError, TimeoutError) as error:
                raise FactUnavailable(f"{witness.name} cannot be asked: {error or 'no answer in time'}") from error
            owner = {f"pod {act.online.pod}", f"pod {act.online.uid}"} if act.online is not None else set()
            held = {chip: who for chip, who in found.items() if chip in act.chips and who not in owner}
            if held:
                text = f"{self._state.name(min(held))} is in use by {held[min(held)]} ({witness.name})"
                if self._lasted(act) < self._settings.scaled(self._settings.in_use_grace):
                    raise FactUnavailable(text)
                raise ActRefused(text)

    async def _reset(self, act: Act) -> None:
        state = self._state
        own = self._own if act.own else None
        if own is not None:
            own.spend(act)
        try:
            self._journal.begin(act.keys, act.epoch, self._clock.now_ms())
        except OSError:
            if own is not None:
                own.refund()
            raise
        self._problem("journal", None)
        _log.info("reset begins", node=state.node, epoch=act.epoch, chips=",".join(act.keys), own=act.own)
        state.resetting |= set(act.chips)
        self._problem("hot reset plugins", self._resetter.started(act) or None)
        self._wake()
        try:
            await self._resetter.reset(act)
            await self._facts.driver()
            left = [e.code for c in act.chips for e in state.book.chip(c) if not state.judge.healthy([e])]
            result = f"failed: {', '.join(left[:3])} remains" if left else "ok"
        except DriverError as error:
            result = f"failed: {error}"
        except TimeoutError:
            result = f"failed: {LATE}"
        except FactUnavailable as error:
            result = f"failed: {error}"
        finally:
            state.resetting -= set(act.chips)
        for chip in act.chips:
            state.idle.pop(chip, None)
        state.failed_resets -= set(act.chips)
        self._rescans.over(act.chips)
        if result != "ok":
            state.failed_resets |= set(act.chips)
            self._rescans.failed(act.chips)
        self._finish(act, result)
        self._resetter.ended(act, result)
        if trouble := self._resetter.trouble:
            self._problem("hot reset plugins", trouble)

    # ---- layouts

    async def _lay_out(self, act: Act) -> None:
        doable, blocked = self._layouts.wanted(self._lasted(act))
        if not doable:
            self._record(act, "ok")
            return
        self._journal.begin(act.keys, act.epoch, self._clock.now_ms())
        self._problem("journal", None)
        _log.info("partition begins", node=self._state.node, epoch=act.epoch, chips=len(doable))
        self._state.withdrawn |= set(doable)
        result = await self._layouts.cut(doable, blocked)
        try:
            await self._facts.driver()
        except FactUnavailable as error:
            self._problem("driver", str(error))
        self._finish(act, result)

    # ---- results

    def _record(self, act: Act, result: str) -> None:
        """Write a result for the keys whose epoch this act would have been; older epochs keep theirs."""
        keys = [key for key in act.keys if self._last(key) < act.epoch]
        self._journal.end(keys, act.epoch, result[:MAX_TEXT])
        self._log_result(act, result)

    def _finish(self, act: Act, result: str) -> None:
        """Write the result of an act that ran. When the disk refuses, the result is kept in memory and reported; after
        a restart the act counts as interrupted.
        """
        try:
            self._journal.end(act.keys, act.epoch, result[:MAX_TEXT])
        except OSError as error:
            self._problem("journal", f"cannot be written: {error.strerror}")
            self._unwritten |= {key: Done(act.epoch, result[:MAX_TEXT]) for key in act.keys}
        self._log_result(act, result)

    def _log_result(self, act: Act, result: str) -> None:
        _log.info("order answered", node=self._state.node, epoch=act.epoch, keys=",".join(act.keys), result=result)

    def _problem(self, what: str, text: str | None) -> None:
        if text is None:
            self._state.problems.pop(what, None)
        else:
            self._state.problems[what] = f"{what} {text}"[:MAX_TEXT]

    def _pause(self) -> None:
        self._pause_until = self._clock.monotonic() + self._settings.tick
