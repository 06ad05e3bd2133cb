"""What-if over time: plan, act, let the rest of the cluster move, until nothing happens any more.

The clock jumps: a second after something was done (as a change wakes the engine), else to the next moment at which
anything can happen: an event, a report that is due, a pod's grace, a deferred action, a hold's end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from engine.model.actions import AnyAction, kind_of
from engine.model.plan import Plan
from engine.model.times import parse_rfc3339, rfc3339
from engine.simulate.timeline import Event, happen
from engine.simulate.world import World

#: A simulation never takes more passes.
MAX_PASSES: Final = 10_000
#: Actions that an outcome lists; the counts go on.
MAX_ACTIONS: Final = 20_000
#: How often the engine looks without a reason (the periodic resync), in seconds.
RESYNC: Final = 60.0
#: So many looks without anything to do, and nothing to wait for, are the end: no duration rule is longer.
QUIET: Final = 11
#: Waits that end by the clock and are worth waiting for, in seconds; longer ones are told as what is left.
PATIENCE: Final = 7 * 86_400.0


class Moment(msgspec.Struct, frozen=True):
    """One moment of the story: seconds after the start, what happened from outside, what was done, what was not."""

    after: float
    time: str
    events: tuple[str, ...]
    actions: tuple[AnyAction, ...]
    deferred: int
    pending: int


class Outcome(msgspec.Struct, frozen=True):
    """The whole story. ``ended``: ``quiet``, ``duration`` or ``passes``; ``last`` is the last plan."""

    start: str
    end: str
    ended: str
    passes: int
    counts: dict[str, int]
    moments: tuple[Moment, ...]
    last: Plan
    left_out: int = 0

    def document(self) -> dict[str, Any]:
        """Plain JSON values; ``state`` is the last plan's document."""
        body: dict[str, Any] = {
            name: msgspec.to_builtins(getattr(self, name)) for name in ("start", "end", "ended", "passes", "counts")
        }
        body["moments"] = msgspec.to_builtins(self.moments)
        if self.left_out:
            body["leftOut"] = f"{self.left_out} actions are counted but not listed"
        body["state"] = self.last.document()
        return body


def simulate(world: World, events: Sequence[Event], *, duration: float | None = None) -> Outcome:
    """Run the story of a world.

    Args:
        events: what happens from outside, in order of time.
        duration: seconds after which it ends; None: when everything is quiet after the last event.
    """
    start, todo = world.now, list(events)
    moments: list[Moment] = []
    counts: Counter[str] = Counter()
    passes = quiet = listed = left_out = 0
    ended, result = "passes", None
    while passes < MAX_PASSES:
        told = []
        while todo and todo[0].at <= world.now - start + 1e-9:
            event = todo.pop(0)
            happen(world, event)
            told.append(str(event))
        before = world.version
        result = _pass(world)
        passes += 1
        moved = world.version != before
        counts.update(kind_of(action) for action in result.actions)
        shown = result.actions[: MAX_ACTIONS - listed]
        listed, left_out = listed + len(shown), left_out + len(result.actions) - len(shown)
        if told or result.actions:
            moment = Moment(
                round(world.now - start, 3), rfc3339(world.now), tuple(told), shown,
                len(result.deferred), len(result.pending),
            )  # fmt: skip
            moments.append(moment)
        quiet = 0 if moved or told else quiet + 1
        following = _next(world, result, todo, start, busy=bool(result.actions), resting=quiet >= QUIET)
        if following is None and duration is None:
            ended = "quiet"
            break
        following = world.now + RESYNC if following is None else following
        if duration is not None and following - start > duration:
            world.pass_time(max(0.0, start + duration - world.now))
            ended = "duration"
            break
        world.pass_time(following - world.now)
    assert result is not None
    return Outcome(
        rfc3339(start),
        rfc3339(world.now),
        ended,
        passes,
        dict(sorted(counts.items())),
        tuple(moments),
        result,
        left_out,
    )


def _pass(world: World) -> Plan:
    result = world.plan()
    world.remember(result)
    for action in result.actions:
        world.apply(action)
    if world.desired.has_git:
        world.record_inventory(result)
    world.move()
    return result


def _next(
    world: World, result: Plan, todo: Sequence[Event], start: float, *, busy: bool, resting: bool
) -> float | None:
    """The next moment that is worth a look; None when there is none."""
    if busy:
        return world.now + 1.0
    # what ends by the clock is over a moment after it, and reports carry whole seconds
    waits = [math.floor(at) + 1.0 for at in _waits(world, result) if world.now < at <= world.now + PATIENCE]
    if todo:
        waits.append(start + todo[0].at)
    if not resting:
        waits.append(world.now + RESYNC)
    return max(world.now + 0.001, min(waits)) if waits else None


def _waits(world: World, result: Plan) -> Iterator[float]:
    """Moments at which something that was held back, or was told to go, comes due."""
    for row in result.deferred:
        if row.until is not None:
            yield parse_rfc3339(row.until)
    for memory in result.history.nodes.values():
        yield from _ends(hold.until / 1000 for chip in memory.chips.values() for hold in chip.holds)
    for orders in world.observer.observed().orders.values():
        yield orders.not_after_ms / 1000
    for pod in world.observer.observed().pods.values():
        if pod.deleting is not None:
            yield pod.deleting
            yield pod.deleting + 900.0  # grace-over-time: then it is deleted by force


def _ends(moments: Iterable[float]) -> Iterator[float]:
    yield from (at for at in moments if at)
