"""The outcome of a plan, for reviewers of a change: the cluster is played forward on a copy.

It contains the placement of each job, or why it waits and the way out; the evicted pods, and the work lost with
them; the pruned objects. The first pass is the plan itself; the rest is `belay simulate` without a timeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.cli.restarts import KeptTemplate, changed_templates, kept_templates
from belay.engine.documents import Desired
from belay.engine.gangs.forming import pending_by_gang
from belay.engine.gangs.grouping import group
from belay.engine.model.actions import BindPod, DeleteObject, EvictPod
from belay.engine.model.cluster import Pod
from belay.engine.model.costs import measured
from belay.engine.model.plan import Pending, Plan
from belay.engine.model.rules import RuleKind
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted
from belay.engine.replay.offline import newest
from belay.engine.simulate import World
from belay.engine.simulate.run import MAX_PASSES, QUIET, simulate
from belay.engine.simulate.workloads import SCALED

EFFORT: Final = 250_000
"""Objects looked at, all passes together: a large cluster is played forward for fewer passes."""
FEWEST: Final = 4
"""Passes that even the largest cluster is played forward."""
REPORTS_EVERY = 240.0
"""Seconds between reports of a simulated node."""
STALE_AFTER = 600.0
"""Seconds after which a report is no longer trusted (docs: deviceinfo is rewritten every 5 minutes)."""
PLACED, MOVED, WAITING, GONE = "placed", "moved", "waiting", "gone"


class JobOutcome(msgspec.Struct, frozen=True):
    """The end state of one job: ``placed``, ``moved`` (evicted before), ``waiting`` or ``gone``.

    ``after``: seconds until its last pod was bound. ``nodes``: its device names by node; empty names for pods without
    chips. ``reason``, ``message`` and ``unblock`` (the way out) while it waits.
    """

    kind: str
    namespace: str
    name: str
    outcome: str
    after: float | None
    nodes: dict[str, list[str]]
    reason: str = ""
    message: str = ""
    unblock: str | None = None


class Eviction(msgspec.Struct, frozen=True, rename="camel"):
    """A running pod that is evicted: after how many seconds, why, and the work lost with it in chip-hours.

    The lost work is the time since the pod started, or since its newest checkpoint if it reports one. ``ended``:
    seconds until its chips are free at the latest, its grace time included.
    """

    namespace: str
    pod: str
    job: str
    node: str
    chips: int
    after: float
    reason: str
    message: str
    chip_hours_lost: float
    ended: float = 0.0


class Pruned(msgspec.Struct, frozen=True, rename="camel"):
    """An object that Git no longer declares: when it is deleted, or (``after`` None) which budget defers that."""

    kind: str
    namespace: str
    name: str
    after: float | None
    held_by: str = ""
    until: str | None = None


class Forecast(msgspec.Struct, frozen=True, rename="camel"):
    """The outcome of a plan. ``ended``: ``quiet``, or ``passes`` when it was cut off after so many passes.

    ``kept``: jobs whose running pods keep the pod template that Git has changed.
    """

    ended: str
    end: str
    passes: int
    jobs: tuple[JobOutcome, ...]
    evicted: tuple[Eviction, ...]
    chip_hours_lost: float
    pruned: tuple[Pruned, ...]
    counts: dict[str, int]
    kept: tuple[KeptTemplate, ...] = ()


def forecast(first: Plan, desired: Desired, cluster: Sequence[Mapping[str, Any]]) -> Forecast | None:
    """Play a cluster forward from a plan; None if no node has a device report.

    Args:
        first: the plan of this cluster; the first pass.
        desired: what the plan was made for, with the roles it was made with.
        cluster: the objects.
    """
    world = staged(desired, cluster)
    if not world.nodes:
        return None
    world.now = first.now
    most = min(MAX_PASSES, max(FEWEST, EFFORT // max(1, len(world.objects))))
    watcher = ForecastWatcher(world)
    changed = changed_templates(first, world)
    before = frozenset(pod.uid for pod in world.observer.observed().pods.values() if pod.node and not pod.finished)
    outcome = simulate(world, [], first=first, most=most, rest=QUIET if most > 3 * QUIET else 2, watch=watcher)
    watcher.refresh(world)
    return Forecast(
        ended=outcome.ended,
        end=outcome.end,
        passes=outcome.passes,
        jobs=tuple(watcher.jobs(world, outcome.last)),
        evicted=tuple(watcher.evicted),
        chip_hours_lost=round(sum(one.chip_hours_lost for one in watcher.evicted), 2),
        pruned=tuple(watcher.pruned[key] for key in sorted(watcher.pruned)),
        counts=outcome.counts,
        kept=kept_templates(changed, before, world) if changed else (),
    )


def staged(desired: Desired, cluster: Sequence[Mapping[str, Any]], *, seed: int = 0) -> World:
    """A world of these objects, whose first pass is the plan of `belay plan`; its time is not set.

    Servers whose reports are much older than the newest one stay silent, as nothing shows that they will return.
    """
    world = World(desired, now=0.0, seed=seed, report_every=REPORTS_EVERY, kubelets_die=True)
    world.populate(newest(cluster))
    last = world.observer.observed().newest_report
    for server in world.nodes.values():
        server.silent = server.silent or last - server.reported > STALE_AFTER
    return world


class ForecastWatcher:
    """Records what each pass binds, evicts and prunes."""

    def __init__(self, world: World) -> None:
        self.start = world.now
        self._world = world
        self.evicted: list[Eviction] = []
        self.pruned: dict[tuple[str, str, str], Pruned] = {}
        self.bound: dict[str, float] = {}
        self.hit: set[str] = set()
        self._running: dict[str, tuple[Pod, str]] = {}
        self._why: dict[str, tuple[str, str]] = {}
        self._deleted: dict[str, tuple[str, str]] = {}

    def __call__(self, world: World, result: Plan) -> None:
        self.refresh(world)
        after = round(world.now - self.start, 3)
        for action in result.actions:
            if isinstance(action, BindPod):
                self.bound[action.gang or f"{action.namespace}/Pod/{action.pod}"] = after
            elif isinstance(action, EvictPod):
                self._why[f"{action.namespace}/{action.pod}"] = (action.reason, action.message)
            elif isinstance(action, DeleteObject):
                self._delete(action, after)
        for row in result.deferred:
            held = row.action
            if isinstance(held, DeleteObject) and held.evidence.rule_kind is RuleKind.SYNC:
                key = (held.object_kind, held.namespace, held.name)
                self.pruned[key] = Pruned(*key, None, row.budget, row.until)

    def refresh(self, world: World) -> None:
        """Records which running pods have gone or begun to end since the last call."""
        observed = world.observed()
        _, gang_of = group(observed, world.cache)
        running = {
            pod.uid: (pod, gang_of.get(key) or self._running.get(pod.uid, (pod, ""))[1])
            for key, pod in observed.pods.items()
            if pod.holds_chips and pod.chips and pod.deleting is None
        }
        for uid in sorted(self._running.keys() - running.keys(), key=lambda uid: self._running[uid][0].key):
            pod, gang = self._running[uid]
            now = observed.pods.get(pod.key)
            if now is None or now.uid != uid or not now.finished:
                self._goes(pod, gang, world.now)
        self._running = running

    def jobs(self, world: World, last: Plan) -> list[JobOutcome]:
        """Every job that was placed or hit, or waits at the end, by namespace, kind and name."""
        observed = world.observed()
        gangs, _ = group(observed, world.cache)
        waits = pending_by_gang(last.pending, gangs)
        found = []
        for key in sorted({*self.bound, *self.hit, *waits}):
            gang = gangs.get(key)
            places: dict[str, list[str]] = {}
            for pod in (observed.pods[one] for one in (gang.pods if gang else ()) if one in observed.pods):
                if pod.node and pod.deleting is None:
                    places.setdefault(pod.node, []).extend(pod.chips)
            found.append(_outcome(key, places, waits.get(key), self.bound.get(key), key in self.hit))
        return found

    def _delete(self, action: DeleteObject, after: float) -> None:
        key = (action.object_kind, action.namespace, action.name)
        if action.object_kind == "Pod":
            self._why[f"{action.namespace}/{action.name}"] = (action.reason, action.message)
        else:
            self._deleted["/".join((action.namespace, action.object_kind, action.name))] = (
                action.reason, action.message,
            )  # fmt: skip
        if action.evidence.rule_kind is RuleKind.SYNC:
            self.pruned[key] = Pruned(*key, after)

    def _goes(self, pod: Pod, gang: str, now: float) -> None:
        namespace, kind, name = gang.split("/", 2) if gang else (pod.namespace, "Pod", pod.name)
        job = "/".join((namespace, kind.partition(".")[0], name))
        left = self._world.controllers.departures.get(pod.uid)
        reason, message = (
            self._why.get(pod.key) or left or self._deleted.get(job) or ("Removed", "its job is gone or smaller")
        )
        seconds = max(0.0, now - (pod.started if pod.started is not None else pod.created))
        known = measured([pod.annotations], now, (), 0.0)
        if known is not None:
            seconds = min(seconds, known.checkpoint)
        hours = round(len(pod.chips) * seconds / 3600, 2)
        if reason != SCALED:
            self.hit.add(gang or job)
        after = round(now - self.start, 3)
        ended = round(after + pod.grace_seconds, 3)
        self.evicted.append(
            Eviction(pod.namespace, pod.name, name, pod.node, len(pod.chips), after, reason, message, hours, ended)
        )


def _outcome(
    key: str, places: dict[str, list[str]], wait: Pending | None, bound: float | None, hit: bool
) -> JobOutcome:
    namespace, kind, name = key.split("/", 2)
    nodes = {node: sorted(chips, key=_by_number) for node, chips in sorted(places.items())}
    if wait is not None:
        return JobOutcome(kind, namespace, name, WAITING, bound, nodes, wait.reason, wait.message, wait.unblock)
    if not nodes:
        return JobOutcome(kind, namespace, name, GONE, bound, nodes)
    return JobOutcome(kind, namespace, name, MOVED if hit else PLACED, bound, nodes)


def _by_number(chip: str) -> tuple[str, int, str]:
    head, _, tail = chip.rpartition("-")
    return head, int(tail) if tail.isdecimal() else -1, tail


def end_of(forecast: Forecast, first: Plan) -> str:
    """The end of the forecast as text."""
    if forecast.ended == "quiet":
        return f"quiet at {forecast.end}"
    passes = counted(forecast.passes, "pass", "passes")
    return f"cut off at {forecast.end} (from {rfc3339(first.now)}, {passes}): more may follow"
