"""What-if over time: plan, act, let the rest of the cluster react, until nothing is left to do.

The clock jumps: by one second after an action (a change wakes the engine), else to the next time that matters: an
event, a due report, the end of a pod's grace period, a deferred action, the end of a hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from belay.engine.model import action_documents
from belay.engine.model.actions import AnyAction, kind_of
from belay.engine.model.cluster import Observed
from belay.engine.model.plan import Plan
from belay.engine.model.times import parse_rfc3339, rfc3339
from belay.engine.plan import reservations_due
from belay.engine.simulate.effects import apply_event
from belay.engine.simulate.timeline import Event
from belay.engine.simulate.world import World

#: Most passes of a simulation.
MAX_PASSES: Final = 10_000
#: Most actions that an outcome lists; the counts include all.
MAX_ACTIONS: Final = 20_000
#: Seconds between passes without a trigger (the periodic resync).
RESYNC: Final = 60.0
#: Idle passes after which a simulation ends; no duration rule lasts longer.
QUIET: Final = 11
#: Longest wait in seconds to which the clock jumps; longer waits are listed as left over.
PATIENCE: Final = 7 * 86_400.0


class Moment(msgspec.Struct, frozen=True):
    """One pass: seconds after the start, events from outside, actions, and actions that were not taken."""

    after: float
    time: str
    events: tuple[str, ...]
    actions: tuple[AnyAction, ...]
    deferred: int
    pending: int


class Outcome(msgspec.Struct, frozen=True):
    """The result of a simulation. ``ended``: ``quiet``, ``duration`` or ``passes``; ``last`` is the last plan.

    ``stranded``: how many pods with chips of each job, as ``namespace/Kind/name``, stay on nodes that are down.
    """

    start: str
    end: str
    ended: str
    passes: int
    counts: dict[str, int]
    moments: tuple[Moment, ...]
    last: Plan
    left_out: int = 0
    stranded: dict[str, int] = {}

    def document(self) -> dict[str, Any]:
        """Plain JSON values; ``state`` is the last plan's document."""
        body: dict[str, Any] = {
            name: msgspec.to_builtins(getattr(self, name)) for name in ("start", "end", "ended", "passes", "counts")
        }
        body["moments"] = [
            msgspec.to_builtins(moment) | {"actions": [action_documents.document(one) for one in moment.actions]}
            for moment in self.moments
        ]
        if self.left_out:
            body["leftOut"] = f"{self.left_out} actions are counted but not listed"
        body["state"] = self.last.document()
        return body


def simulate(
    world: World,
    events: Sequence[Event],
    *,
    duration: float | None = None,
    first: Plan | None = None,
    most: int = MAX_PASSES,
    rest: int = QUIET,
    watch: Callable[[World, Plan], None] | None = None,
    over: Callable[[], bool] | None = None,
) -> Outcome:
    """Simulate a world.

    Args:
        events: events from outside, in order of time.
        duration: length in seconds; None: until nothing is left to do after the last event.
        first: the plan of the first pass, if the caller has it.
        most: most passes.
        rest: idle passes in a row after which it ends as ``quiet``.
        watch: called with each plan before it is carried out.
        over: asked before each pass but the first; once it holds, the simulation ends as ``time``.
    """
    start, todo = world.now, list(events)
    moments: list[Moment] = []
    counts: Counter[str] = Counter()
    passes = quiet = listed = left_out = 0
    ended, result = "passes", None
    while passes < most:
        if passes and over is not None and over():
            ended = "time"
            break
        happened = _apply_due(world, todo, world.now - start)
        before = world.version
        result = _pass(world, first if not passes and not happened else None, watch)
        passes += 1
        moved = world.version != before
        counts.update(kind_of(action) for action in result.actions)
        shown = result.actions[: MAX_ACTIONS - listed]
        listed, left_out = listed + len(shown), left_out + len(result.actions) - len(shown)
        if happened or result.actions:
            moment = Moment(
                round(world.now - start, 3), rfc3339(world.now), tuple(happened), shown,
                len(result.deferred), len(result.pending),
            )  # fmt: skip
            moments.append(moment)
        quiet = 0 if moved or happened else quiet + 1
        following = _next(world, result, todo, start, busy=bool(result.actions), resting=quiet >= rest)
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
        _stranded(world.observed()),
    )


def _stranded(observed: Observed) -> dict[str, int]:
    found: Counter[str] = Counter()
    for pod in observed.pods.values():
        node = observed.nodes.get(pod.node)
        if node is not None and not node.ready and pod.count and pod.deleting is None and not pod.finished:
            found[f"{pod.namespace}/{pod.owner_kind or 'Pod'}/{pod.owner_name or pod.name}"] += 1
    return dict(sorted(found.items()))


def _apply_due(world: World, todo: list[Event], after: float) -> list[str]:
    """Apply the events that are due ``after`` so many seconds, and remove them from ``todo``; each as text."""
    happened = []
    while todo and todo[0].at <= after + 1e-9:
        event = todo.pop(0)
        apply_event(world, event)
        happened.append(str(event))
    return happened


def _pass(world: World, known: Plan | None, watch: Callable[[World, Plan], None] | None) -> Plan:
    result = world.plan() if known is None else known
    if watch is not None:
        watch(world, result)
    world.remember(result)
    for action in result.actions:
        world.apply(action)
    if world.desired.has_git:
        world.record_inventory()
    world.move()
    return result


def _next(
    world: World, result: Plan, todo: Sequence[Event], start: float, *, busy: bool, resting: bool
) -> float | None:
    """The time of the next pass; None if nothing more can happen."""
    if busy:
        return world.now + 1.0
    # a wait is over just after its end, and reports have whole seconds
    waits = [math.floor(at) + 1.0 for at in _waits(world, result) if world.now < at <= world.now + PATIENCE]
    if todo:
        waits.append(start + todo[0].at)
    if not resting:
        waits.append(world.now + RESYNC)
    return max(world.now + 0.001, min(waits)) if waits else None


def _waits(world: World, result: Plan) -> Iterator[float]:
    """Times at which a deferred action, an eviction or a reservation comes due."""
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
    yield from reservations_due(world.desired.settings.starvation, result, world.observer.observed().pods)


def _ends(moments: Iterable[float]) -> Iterator[float]:
    yield from (at for at in moments if at)
