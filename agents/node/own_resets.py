"""Resets that the agent decides on itself while no engine does, as MindCluster's device plugin does with ``-hotReset``.

Candidates are chips with a code that a reset can heal, whose whole reset group has been unused for a minute since it
was there, so that a fault which heals meanwhile costs no reset. Each group has three resets in six hours; the times are
on the disk before the reset begins. What the executor checks before an ordered reset it checks before these too. A
second device plugin on the node ends them, so that no two reset.
Source: component/ascend-device-plugin/pkg/server/hot_reset_manager.go, token_bucket.go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from belay.agents.common.clock import Clock
from belay.agents.common.linefile import LineFile, lines_of, records_of
from belay.agents.common.log import Log
from belay.agents.drivers.base import Driver, DriverError
from belay.agents.node.acts import Act
from belay.agents.node.engine_presence import EnginePresence
from belay.agents.node.settings import MAX_TEXT, Settings
from belay.agents.node.state import NodeState
from belay.engine.model.levels import RESETTABLE

#: Resets of one group within the window, and the window in seconds.
TOKENS: Final = 3
WINDOW: Final = 6 * 3600.0
#: Seconds after which a reset that had to wait is tried again.
AGAIN: Final = 30.0
_FILE: Final = "own-resets"
_PLUGIN_LABEL: Final = "ascend-device-plugin-ds"
_log = Log("agent")


class _Spent(msgspec.Struct, frozen=True):
    """One reset: when it began (Unix ms), and the chips it reset."""

    time: int
    chips: tuple[int, ...]


class OwnResets:
    """Decides which chips the agent resets without orders. ``problem`` is for the report, empty without one."""

    def __init__(
        self,
        state: NodeState,
        presence: EnginePresence,
        driver: Driver,
        clock: Clock,
        settings: Settings,
        folder: Path,
    ) -> None:
        self._state, self._presence, self._driver = state, presence, driver
        self._clock, self._settings = clock, settings
        self._file = LineFile(folder / _FILE)
        self._spent: list[_Spent] = []
        self._rings: dict[int, tuple[int, ...]] = {}
        self._later: dict[tuple[int, ...], float] = {}
        self._ill: dict[int, float] = {}
        self.problem = ""
        self._load()

    async def learn(self) -> None:
        """Ask the driver what resets together with each chip that may need it."""
        for chip in self._candidates():
            if chip in self._rings:
                continue
            try:
                ring = await self._clock.limit(self._driver.reset_group(chip), self._settings.driver_timeout)
            except (DriverError, TimeoutError) as error:
                why = str(error) or "no answer in time"
                text = f"the driver does not say what resets with {self._state.name(chip)}: {why}"
                self.problem = text[:MAX_TEXT]
                continue
            self._rings[chip] = tuple(sorted({chip, *ring}))

    def acts(self, last: Callable[[str], int]) -> list[Act]:
        """The resets to do now, one per group; ``last`` gives the newest epoch of a chip's name.

        Also settles which chips have no reset left (``state.exhausted``)."""
        state, monotonic = self._state, self._clock.monotonic()
        state.exhausted = set()
        candidates = self._candidates()
        self._ill = {chip: self._ill.get(chip, monotonic) for chip in candidates}
        if not self._presence.absent(monotonic):
            return []
        found: dict[tuple[int, ...], Act] = {}
        for chip in candidates:
            ring = self._rings.get(chip)
            if ring is None or ring in found or not set(ring) <= set(state.ids):
                continue
            left = self.left(ring)
            if left <= 0:
                state.exhausted.add(chip)
            elif self._ready(ring, monotonic):
                keys = tuple(state.name(c) for c in ring)
                found[ring] = Act(keys, ring, max(map(last, keys)) + 1, left=left - 1, own=True)
        if found and (other := self._other_plugin()):
            self.problem = f"chips are not reset: pod {other}, another device plugin, is on the node"[:MAX_TEXT]
            return []
        return list(found.values())

    def left(self, ring: Sequence[int]) -> int:
        """How many resets the chips have left now: the least of them."""
        now = self._clock.now_ms()
        # a time in the future comes from a clock that was wrong: it counts from now on, not for ever
        self._spent = [_Spent(min(spent.time, now), spent.chips) for spent in self._spent]
        self._spent = [spent for spent in self._spent if now - spent.time < WINDOW * 1000]
        counts = [sum(1 for spent in self._spent if chip in spent.chips) for chip in ring]
        return TOKENS - max(counts, default=0)

    def spend(self, act: Act) -> None:
        """Take a reset from the budget, on the disk. Raises OSError; then nothing may be reset."""
        spent = [*self._spent, _Spent(self._clock.now_ms(), act.chips)]
        self._file.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file.replace(lines_of(spent))
        self._spent, self.problem = spent, ""

    def refund(self) -> None:
        """Give the last reset back to the budget: it could not be written to the journal, so it never began."""
        self._spent = self._spent[:-1]
        with contextlib.suppress(OSError):  # the reset then stays counted, which is the safe side
            self._file.replace(lines_of(self._spent))

    def postpone(self, act: Act, why: str) -> None:
        """Try an act again later, because a fact does not allow it now or cannot be read."""
        self._later = {ring: until for ring, until in self._later.items() if until > self._clock.monotonic()}
        self._later[act.chips] = self._clock.monotonic() + self._settings.scaled(AGAIN)
        for chip in act.chips:
            self._rings.pop(chip, None)
        text = f"{act.keys[0]} is not reset by the agent itself yet: {why}"[:MAX_TEXT]
        if text != self.problem:
            _log.info("a reset waits", node=self._state.node, chips=",".join(act.keys), reason=why)
        self.problem = text

    async def confirm_absence(self) -> None:
        """Raise FactUnavailable unless no engine is there now."""
        await self._presence.confirm_absence()

    def settle(self) -> None:
        """Drop what no longer holds: without a faulty chip there is nothing to report."""
        if not self._candidates():
            self.problem = ""
            self._later.clear()

    def _candidates(self) -> list[int]:
        state = self._state
        return [
            chip
            for chip in state.ids
            if chip not in state.unread
            and state.judge.local_level(chip, state.book.chip(chip)) in RESETTABLE
            and not state.judge.healthy(state.book.chip(chip))
        ]

    def _ready(self, ring: tuple[int, ...], monotonic: float) -> bool:
        state = self._state
        if state.resetting & set(ring) or state.unread & set(ring) or not state.pods_read:
            return False
        if self._later.get(ring, 0.0) > monotonic:
            return False
        ill_for = monotonic - min(self._ill[chip] for chip in ring if chip in self._ill)
        return min(ill_for, state.idle_for(ring, monotonic)) >= self._settings.scaled(self._settings.idle)

    def _other_plugin(self) -> str:
        """The pod of MindCluster's device plugin on this node; empty without one."""
        return next(
            (
                pod.key
                for pod in self._state.pods
                if pod.labels.get("name") == _PLUGIN_LABEL and pod.phase not in ("Succeeded", "Failed")
            ),
            "",
        )

    def _load(self) -> None:
        try:
            self._spent = list(records_of(self._file.read(), _Spent))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            # how many resets there were is not known: none is left until the window is over
            _log.warning("past resets cannot be read, all count as used", node=self._state.node, error=error)
            self._spent = [_Spent(self._clock.now_ms(), tuple(self._state.ids))] * TOKENS
