"""The spans of a pass: one in each trace that its actions belong to, and those of recoveries that it saw end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice, pairwise
from typing import Final

from belay.engine import tracing
from belay.engine.documents import Desired
from belay.engine.load.cluster import subject_of
from belay.engine.metrics.counters import ended_recoveries
from belay.engine.model.actions import AnyAction, BindPod
from belay.engine.model.cluster import Observed
from belay.engine.model.history import Recovery
from belay.engine.model.plan import Plan
from belay.engine.model.traces import Trace, TraceOrigin, of_actions, of_recovery

MOST_TRACES: Final = 32
"""Traces that one pass adds to; a pass with more causes leaves the rest without a span of it."""
_MOST_FAULTS: Final = 1000


class PassTraces:
    """Spans of one shard's passes. ``clock`` gives Unix seconds."""

    def __init__(self, shard: str, clock: Callable[[], float]) -> None:
        self._shard = shard
        self._clock = clock
        self._traces: list[Trace] = []
        self._faults: OrderedDict[str, None] = OrderedDict()
        """Traces whose root span was sent."""
        self._commits: tuple[Desired | None, dict[str, str]] = (None, {})

    def of(self, plan: Plan, pass_id: str, desired: Desired, observed: Observed) -> list[str]:
        """The trace of each action of a pass; empty where no spans are sent."""
        self._traces = []
        if tracing.on():
            if self._commits[0] is not desired:
                self._commits = (desired, _commits(desired))
            self._traces = of_actions(plan, pass_id, partial(_commit_of, observed, self._commits[1]))
        return [trace.id for trace in self._traces]

    def passed(self, plan: Plan, observed: Observed, seconds: float) -> None:
        """Record a pass that ends now."""
        if not tracing.on():
            return
        ends = self._clock()
        said: tracing.Attributes = {
            "belay.shard": self._shard,
            "belay.actions": len(plan.actions),
            "belay.deferred": len(plan.deferred),
            "vcs.ref.head.revision": plan.revision,
        }
        for trace in islice(dict.fromkeys(self._traces), MOST_TRACES):
            if trace.origin is TraceOrigin.FAULT and trace.id not in self._faults:
                self._faults[trace.id] = None
                tracing.record("fault", trace.id, trace.began / 1000, ends, {"belay.shard": self._shard}, root=True)
            tracing.record("pass", trace.id, ends - seconds, ends, said, root=trace.origin is TraceOrigin.PASS)
        while len(self._faults) > _MOST_FAULTS:
            self._faults.popitem(last=False)
        self._traces = []

        for job, recovery in ended_recoveries(plan, observed):
            _record_recovery(job, recovery)


def _commits(desired: Desired) -> dict[str, str]:
    """The commit that last changed each declared object, by ``Kind/namespace/name``."""
    return {subject_of(item.key): desired.place_of(item.origin).commit for item in desired.manifests}


def _commit_of(observed: Observed, commits: Mapping[str, str], action: AnyAction) -> str:
    """The commit that declares the job of a pod that an action binds; empty where none does, or for other actions."""
    if not isinstance(action, BindPod):
        return ""
    pod = observed.pods.get(f"{action.namespace}/{action.pod}")
    owner = (pod.owner_kind, pod.owner_name) if pod is not None and pod.owner_kind else ("Pod", action.pod)
    if owner[0] == "ReplicaSet":
        owner = "Deployment", owner[1].rpartition("-")[0]
    return commits.get(f"{owner[0]}/{action.namespace}/{owner[1]}", "")


def _record_recovery(job: str, one: Recovery) -> None:
    """A recovery from the first sign of its fault to the resumed training, and its stages as far as they are known."""
    trace = of_recovery(job, one.at)
    said: tracing.Attributes = {
        "belay.job": job,
        "belay.recovery.level": one.level,
        "belay.recovery.reason": one.reason,
        "belay.recovery.chips": one.chips,
        "belay.fault.codes": list(one.codes),
    }
    tracing.record("recovery", trace, (one.seen or one.at) / 1000, one.back / 1000, said, root=True)

    moments = [
        ("", one.seen),
        ("decide", one.at),
        ("schedule", one.placed),
        ("start", one.running),
        ("resume", one.back),
    ]
    known = [(stage, moment) for stage, moment in moments if moment]
    for (_, began), (stage, ended) in pairwise(known):
        tracing.record(stage, trace, began / 1000, ended / 1000, {"belay.job": job})
