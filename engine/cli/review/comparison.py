"""What a change does: findings of its tree, and how its outcome differs from the outcome without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from belay.engine.cli.forecast import Eviction, Forecast, JobOutcome, Pruned, end_of, forecast
from belay.engine.cli.invocation import debugging
from belay.engine.model.actions import (
    AnyAction,
    IsolateChip,
    IsolateNode,
    PartitionChip,
    ReleaseChip,
    ReleaseNode,
    ResetChips,
)
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.plan import Plan
from belay.engine.model.times import rfc3339
from belay.engine.replay.offline import given_time, plan_offline, validated


class Finding(msgspec.Struct, frozen=True, rename="camel"):
    """A finding of the change's tree; ``new``: the tree before it has none of this text for the same object."""

    severity: str
    place: str
    field: str
    message: str
    new: bool
    code: str = ""


class JobChange(msgspec.Struct, frozen=True, rename="camel"):
    """A job whose outcome the change makes another: with it, and without (None: no job of this name, or not hit)."""

    kind: str
    namespace: str
    name: str
    after: JobOutcome | None
    before: JobOutcome | None


class HardwareChange(msgspec.Struct, frozen=True, rename="camel"):
    """What the change orders of chips (``chips`` of one ``node``), or of a whole node: then they are empty.

    ``kind``, ``reason`` and ``message`` are those of the action. It is ordered at once, or ``held_by`` names the budget
    that defers it, and ``until`` (RFC 3339) for how long; None: until a person decides.
    """

    kind: str
    node: str
    chips: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    held_by: str = ""
    until: str | None = None


class Review(msgspec.Struct, frozen=True, rename="camel"):
    """What a reviewer reads.

    ``hardware`` is what its first pass orders or defers of nodes and chips, and the pass without it does not.
    ``evicted`` and ``pruned`` are what the change causes; what happens without it too is only counted
    (``evicted_anyway``, ``pruned_anyway``), as are jobs that end the same (``unchanged``). ``chip_hours_lost`` is of
    the pods in ``evicted``. ``notes`` say what could not be looked at. ``planned``: a cluster was given.
    """

    findings: tuple[Finding, ...]
    fixed: int
    jobs: tuple[JobChange, ...] = ()
    unchanged: int = 0
    hardware: tuple[HardwareChange, ...] = ()
    evicted: tuple[Eviction, ...] = ()
    evicted_anyway: int = 0
    pruned: tuple[Pruned, ...] = ()
    pruned_anyway: int = 0
    chip_hours_lost: float = 0.0
    deferred: int = 0
    now: str = ""
    planned: bool = False
    against: str = ""
    notes: tuple[str, ...] = ()

    def count(self, severity: str) -> int:
        """The number of findings of this severity."""
        return sum(one.severity == severity for one in self.findings)

    def outcomes(self, *words: str) -> int:
        """The number of jobs that end so with the change and did not without."""
        return sum(one.after is not None and one.after.outcome in words for one in self.jobs)


def review(
    tree: str,
    base: str | None,
    *,
    cluster: Sequence[Mapping[str, Any]] | None,
    overlays: Sequence[str] = (),
    now: str | None = None,
    clock: float | None = None,
    live: bool = False,
    against: str = "",
    notes: Sequence[str] = (),
) -> Review:
    """Compare the tree of a change with the tree before it.

    Args:
        tree: the state repository with the change.
        base: the same without it; None if there is none.
        cluster: its objects; None: only findings are compared.
        overlays, now, clock, live: as `belay plan` takes them.
        against: what ``base`` is, for readers.

    Raises:
        InputError: a folder or the time is not usable.
    """
    today = given_time(now) if now is not None else clock or 0.0
    found = validated(tree, overlays, cluster, today).diagnostics
    known = {_about(one) for one in validated(base, overlays, cluster, today).diagnostics} if base else set()
    findings = tuple(
        Finding(
            one.severity,
            f"{one.file}:{one.line}:{one.column}" if one.file else one.object,
            one.field,
            one.message,
            base is not None and _about(one) not in known,
            one.code,
        )
        for one in sorted(
            found, key=lambda one: ("error warning info".find(one.severity), one.file, one.line, one.column)
        )
    )
    fixed = len(known - {_about(one) for one in found})
    if cluster is None:
        return Review(findings, fixed, against=against, notes=tuple(notes))
    said = list(notes)

    def outcome(folder: str | None, about: str) -> tuple[Plan | None, Forecast | None]:
        if folder is None:
            return None, None
        plan, _, desired = plan_offline(cluster, tree=folder, overlays=overlays, now=now, clock=clock, live=live)
        try:
            played = forecast(plan, desired, cluster)
        except Exception as error:  # the plan itself is good, whatever the copy of a strange cluster does
            if debugging():
                raise
            said.append(f"the outcome {about} was not simulated: {type(error).__name__}: {str(error)[:200]}")
            return plan, None
        if played is None:
            said.append(f"the outcome {about} was not simulated: no node has a device report")
        elif played.ended != "quiet":
            said.append(f"the outcome {about} was {end_of(played, plan)}")
        return plan, played

    plan, after = outcome(tree, "with the change")
    other, before = outcome(base, "without it")
    assert plan is not None
    ordered = {_order(one) for one in _hardware(other)}
    first = Review(
        findings,
        fixed,
        hardware=tuple(one for one in _hardware(plan) if _order(one) not in ordered),
        against=against,
        planned=after is not None,
    )
    return _compared(first, plan, after, before, said)


def _hardware(plan: Plan | None) -> tuple[HardwareChange, ...]:
    """The orders of a plan about nodes and chips: those of its first pass, then those that a budget defers."""
    if plan is None:
        return ()
    at_once = map(_hardware_change, plan.actions)
    later = (_hardware_change(one.action, one.budget, one.until) for one in plan.deferred)
    return tuple(change for change in (*at_once, *later) if change is not None)


def _hardware_change(action: AnyAction, held_by: str = "", until: str | None = None) -> HardwareChange | None:
    """The change that an action is; None for one that is of no node or chip."""
    match action:
        case IsolateNode() | ReleaseNode():
            chips: tuple[str, ...] = ()
        case IsolateChip() | ReleaseChip() | ResetChips():
            chips = action.chips
        case PartitionChip():
            chips = (action.chip,)
        case _:
            return None
    kind = type(action).__name__
    return HardwareChange(kind, action.node, chips, action.reason, action.message, held_by, until)


def _order(one: HardwareChange) -> object:
    """What two orders are compared by: not by their words, and not by the time until which a budget defers them."""
    return one.kind, one.node, one.chips, one.held_by


def _compared(
    first: Review, plan: Plan, after: Forecast | None, before: Forecast | None, notes: Sequence[str]
) -> Review:
    jobs = _jobs(after)
    were = _jobs(before)
    changed = [
        JobChange(*key, jobs.get(key), were.get(key))
        for key in sorted(jobs.keys() | were.keys(), key=lambda key: (key[1], key[0], key[2]))
        if _end(jobs.get(key)) != _end(were.get(key))
    ]
    gone = {(one.namespace, one.pod) for one in (before.evicted if before else ())}
    dropped = {(one.kind, one.namespace, one.name, one.held_by) for one in (before.pruned if before else ())}
    evicted = tuple(one for one in (after.evicted if after else ()) if (one.namespace, one.pod) not in gone)
    pruned = tuple(
        one
        for one in (after.pruned if after else ())
        if (one.kind, one.namespace, one.name, one.held_by) not in dropped
    )
    return msgspec.structs.replace(
        first,
        jobs=tuple(changed),
        unchanged=len(jobs) - sum(one.after is not None for one in changed),
        evicted=evicted,
        evicted_anyway=(len(after.evicted) if after else 0) - len(evicted),
        pruned=pruned,
        pruned_anyway=(len(after.pruned) if after else 0) - len(pruned),
        chip_hours_lost=round(sum(one.chip_hours_lost for one in evicted), 2),
        deferred=len(plan.deferred),
        now=rfc3339(plan.now),
        notes=tuple(notes),
    )


def _jobs(played: Forecast | None) -> dict[tuple[str, str, str], JobOutcome]:
    return {(job.kind, job.namespace, job.name): job for job in (played.jobs if played else ())}


def _end(job: JobOutcome | None) -> object:
    """What two outcomes are compared by: not by the seconds until they come."""
    return None if job is None else (job.outcome, job.nodes, job.reason)


def _about(one: Diagnostic) -> tuple[str, str, str, str, str]:
    """A finding without its line, which moves when others are added above it."""
    return one.severity, one.object, one.file, one.field, one.message
