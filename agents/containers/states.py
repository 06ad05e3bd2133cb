"""The containers that use chips and the state of each; pure.

running → pausing → paused → resuming → running. A container whose step fails keeps its state, and the step is retried.
Source: component/container-manager/pkg/container (domain and app).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Literal

import msgspec

from belay.agents.containers.runtime import Container

Status = Literal["running", "pausing", "paused", "resuming"]
Strategy = Literal["never", "singleRecover", "ringRecover"]
STRATEGIES: Final[tuple[Strategy, ...]] = ("never", "singleRecover", "ringRecover")


class Tracked(msgspec.Struct):
    """One container; ``since`` in Unix seconds."""

    id: str
    namespace: str
    chips: tuple[int, ...]
    status: Status
    since: int


class States:
    """All of them. ``ring`` names the chips that are handled together with one."""

    def __init__(self, strategy: Strategy, ring: Callable[[int], Collection[int]]) -> None:
        self._strategy, self._ring = strategy, ring
        self._known: dict[tuple[str, str], Tracked] = {}
        self._earlier: dict[str, tuple[Status, int]] = {}

    def remember(self, earlier: Mapping[str, tuple[Status, int]]) -> None:
        """Restore the states of an earlier process, so that the containers it stopped are started again."""
        self._earlier = {key: value for key, value in earlier.items() if value[0] != "running"}

    def see(self, found: Iterable[Container], now: int) -> bool:
        """Apply the runtime's list; return whether anything changed.

        A container that exited uses no chips and is dropped. One that this manager stopped is kept until it is removed,
        and counts as running once it was started.
        """
        before = self.listed()
        seen = set()
        for one in found:
            key = (one.namespace, one.id)
            tracked = self._known.get(key)
            if tracked is None:
                earlier = self._earlier.pop(one.id, None)
                if earlier is not None and not one.running:
                    tracked = Tracked(one.id, one.namespace, one.chips, "paused", earlier[1])
                elif one.running:
                    tracked = Tracked(one.id, one.namespace, one.chips, "running", now)
                else:
                    continue
                self._known[key] = tracked
            if not one.running and tracked.status == "running":
                continue
            seen.add(key)
            tracked.chips = one.chips
            if one.running and tracked.status in ("paused", "resuming"):
                _move(tracked, "running", now)
            elif not one.running and tracked.status == "pausing":
                _move(tracked, "paused", now)
        self._known = {key: one for key, one in self._known.items() if key in seen}
        return self.listed() != before

    def move(self, one: Tracked, status: Status, now: int) -> None:
        """Set a container's state."""
        _move(one, status, now)

    def listed(self) -> list[tuple[str, Status, int]]:
        """(id, status, since) of every container, ascending."""
        return sorted((one.id, one.status, one.since) for one in self._known.values())

    def to_pause(self, bad: Collection[int]) -> list[Tracked]:
        """The containers to stop, including those whose stop failed; ``bad`` chips are faulty or being reset."""
        if self._strategy == "never":
            return []
        return [
            one
            for _, one in sorted(self._known.items())
            if one.status in ("running", "pausing") and not self._reach(one).isdisjoint(bad)
        ]

    def to_resume(self, bad: Collection[int]) -> list[Tracked]:
        """The containers to start, including those whose start failed; ``bad`` chips are faulty, in reset or unread.

        With ringRecover the rings of a container's neighbours must be healthy too: they restart together.
        """
        ready = []
        for _, one in sorted(self._known.items()):
            if one.status not in ("paused", "resuming"):
                continue
            if self._strategy == "ringRecover":
                own = self._reach(one)
                near = [other for other in self._known.values() if not own.isdisjoint(self._reach(other))]
                chips = set[int]().union(*(self._reach(other) for other in near))
            else:
                chips = set(one.chips)
            if chips.isdisjoint(bad):
                ready.append(one)
        return ready

    def held(self, chips: Iterable[int]) -> list[str]:
        """The containers on these chips that are not paused."""
        wanted = set(chips)
        return sorted(
            one.id for one in self._known.values() if one.status != "paused" and not wanted.isdisjoint(one.chips)
        )

    def _reach(self, one: Tracked) -> set[int]:
        if self._strategy != "ringRecover":
            return set(one.chips)
        return {other for chip in one.chips for other in self._ring(chip)} | set(one.chips)


def _move(one: Tracked, status: Status, now: int) -> None:
    if one.status != status:
        one.status, one.since = status, now
