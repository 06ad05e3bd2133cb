"""Pings of a node as the engine judges them: windows of rounds in ``belay-pings-<node>``.

A window is numbered by the clock, so that the agents of a super pod fill the same windows (`belay.engine.model.pings`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Final

from belay.agents.common.client import ApiServer
from belay.agents.common.clock import Clock
from belay.agents.node.hardware.pinglist import Config, Tasks
from belay.agents.node.hardware.pingresults import Results, matched
from belay.agents.node.publisher import Publisher
from belay.engine.model.pings import WINDOW_ROUNDS, NodePings, PathWindow
from belay.engine.wire import pings as wire

KEPT: Final = 3
"""Finished windows that are published."""
SPACING: Final = 15.0
"""Least seconds between two writes."""
RESEND: Final = 300.0
LOOK_EVERY: Final = 5.0
ROUND_FACTOR: Final = 10
"""Packets of a path in one round, one every ``task_interval`` seconds."""
_Path = tuple[int, str, str]


class PingWindows:
    """Collects the rounds of both kinds of pings. ``run`` keeps the ConfigMap up to date, once there is a window."""

    def __init__(self, node: str, cluster: ApiServer, clock: Clock, chance: random.Random | None = None) -> None:
        self._node, self._clock = node, clock
        self._seconds = 0
        self._number = 0
        self._rounds: dict[_Path, list[tuple[int, int, int]]] = {}
        self._done: dict[int, tuple[PathWindow, ...]] = {}
        self._publisher = Publisher(
            f"pings of {node}",
            build=self._body,
            write=cluster.put_config_map,
            period=lambda: RESEND,
            spacing=SPACING,
            clock=clock,
            chance=chance or random.Random(),
        )

    async def run(self) -> None:
        """Run until cancelled. A node that never pinged gets no ConfigMap."""
        async with asyncio.TaskGroup() as group:
            publishing: asyncio.Task[None] | None = None
            while True:
                if self._done or publishing is not None:
                    self._publisher.update((self._seconds, *sorted(self._done)))
                    publishing = publishing or group.create_task(self._publisher.run())
                await self._clock.pause(LOOK_EVERY)

    def add(self, chosen: Config, tasks: Tasks, results: Results) -> None:
        """Take a round's results; a round of another length, or of an earlier window, begins everything again."""
        seconds = WINDOW_ROUNDS * ROUND_FACTOR * chosen.interval
        if seconds != self._seconds:
            self._seconds, self._rounds, self._done, self._number = seconds, {}, {}, 0
        number = self._clock.now_ms() // (seconds * 1000)
        if number < self._number:
            # the clock was set back: windows of the time that has not come yet would push out those of now
            self._rounds, self._done, self._number = {}, {}, number
        if number != self._number:
            self._close()
            self._number = number
        for chip, _, target, one in matched(tasks, results):
            key = (chip, target.src.lower(), target.dst.lower())
            delay = one["average"] if one["ok"] else -1
            self._rounds.setdefault(key, []).append((int(delay), int(one["ok"]), int(one["lost"])))

    def _close(self) -> None:
        if self._rounds:
            rows = tuple(_window(key, self._number, rounds) for key, rounds in sorted(self._rounds.items()))
            self._done = dict(sorted({**self._done, self._number: rows}.items())[-KEPT:])
        self._rounds = {}

    def pings(self) -> NodePings:
        """Return the finished windows of the node."""
        return NodePings(self._node, max(1, self._seconds), tuple(one for rows in self._done.values() for one in rows))

    def _body(self) -> dict[str, Any]:
        return wire.pings_map(self.pings(), self._clock.now_ms())


def _window(key: _Path, number: int, rounds: Sequence[tuple[int, int, int]]) -> PathWindow:
    """The mean of the rounds without the fastest and the slowest; the driver's times are microseconds."""
    delays = sorted(delay for delay, _, _ in rounds if delay >= 0)
    kept = delays[1:-1] if len(delays) > 3 else delays
    mean = round(1000 * sum(kept) / len(kept)) if kept else 0
    chip, source, target = key
    lost = sum(one for _, _, one in rounds)
    return PathWindow(chip, source, target, number, len(rounds), mean, lost + sum(ok for _, ok, _ in rounds), lost)
