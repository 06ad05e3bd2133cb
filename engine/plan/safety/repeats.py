"""The general brake: the same job, object or chips are not evicted, created, reset or partitioned again and again.

Each of these actions answers a cause, and done once it should have ended it. What is done to the same thing more often
than ``SafetyBudget.spec.repeats`` allows is undone by something each time: it stops, with a warning, until its window
has room. This bounds every loop, also one that no budget counts; the causes of loops are mended where they are.

The times are in ``History.repeats``, by action and thing. Of many things that were done once only the newest are kept:
a loop comes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from belay.engine.documents import REPEATS, RepeatLimit, SafetyBudget, format_duration
from belay.engine.documents.desired import Declared
from belay.engine.model.actions import AnyAction, CreateObject, CreatePod, PartitionChip, ResetChips, kind_of
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, Origin
from belay.engine.model.jobs import INDEPENDENT_KINDS
from belay.engine.model.plan import REPEATED
from belay.engine.model.times import rfc3339
from belay.engine.plan.budgets import BudgetRefusal
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs

#: Most things whose times are kept.
MAX_THINGS: Final = 2000
#: More pods than this that one pass makes for a job count as all of the job's pods.
MAX_NAMED: Final = 16
#: Each replica of an independent workload may be evicted as often as a job; so many replicas count at most.
MAX_REPLICAS: Final = 20
#: Most warnings of one pass; what is deferred is listed in any case.
MAX_TOLD: Final = 50
_DONE: Final = {
    "EvictPod": "evicted",
    "CreatePod": "created",
    "CreateObject": "created",
    "ResetChips": "reset",
    "PartitionChip": "partitioned",
}


class _Rule:
    """A limit in force with the document that says it."""

    def __init__(self, name: str, origin: Origin | None, number: int, limit: RepeatLimit) -> None:
        self.name, self.limit, self.field = name, limit, f"spec.repeats[{number}]"
        self.file, self.line = (origin.file, origin.line) if origin else ("", 0)


class RepeatBrake:
    """What of this pass' actions is done too often to the same thing; counts what is admitted."""

    def __init__(self, facts: Facts, draft: Draft, gangs: PassGangs) -> None:
        self._facts, self._draft, self._gangs = facts, draft, gangs
        self._rules: dict[str, list[_Rule]] = {}
        for rule in _rules(facts.desired.budgets):
            for kind in rule.limit.actions:
                self._rules.setdefault(kind, []).append(rule)
        self._refused: dict[str, BudgetRefusal | None] = {}
        self._told: set[str] = set()
        self._created = _pods_created(draft)

    def refusal(self, job: str) -> BudgetRefusal | None:
        """The refusal of one more eviction of a job; counts nothing."""
        return self._decide("EvictPod", (f"EvictPod {job}",), _named(job), self._replicas(job) or 1)

    def evict(self, job: str) -> BudgetRefusal | None:
        """The refusal of one more eviction of a job; None counts it."""
        replicas = self._replicas(job)
        return self._take("EvictPod", job, _named(job), replicas or 1, each=bool(replicas))

    def _replicas(self, job: str) -> int:
        """How many replicas of the job count, each as a job of its own; 0 for a job that starts as one."""
        gang = self._gangs.get(job)
        independent = gang is not None and gang.kind in INDEPENDENT_KINDS
        return min(max(1, gang.replicas), MAX_REPLICAS) if gang is not None and independent else 0

    def take(self, action: AnyAction) -> BudgetRefusal | None:
        """The refusal of a creation, reset or partition; None counts it."""
        kind = kind_of(action)
        match action:
            case CreatePod():
                return self._take_pod(action)
            case CreateObject():
                thing = f"{action.object_kind}/{action.namespace}/{action.name}".replace("//", "/")
                return self._take(kind, f"{action.api_version}|{thing}", thing)
            case ResetChips():
                return self._take(kind, f"{action.node}/{action.chips[0]}", f"Node/{action.node} {action.chips[0]}")
            case PartitionChip():
                return self._take(kind, f"{action.node}/{action.chip}", f"Node/{action.node} {action.chip}")
        return None

    def _take_pod(self, action: CreatePod) -> BudgetRefusal | None:
        """A pod's creations are those under its name and those of all pods of its job at once."""
        job = f"{action.namespace}/{action.owner.kind}/{action.owner.name}"
        every, own = f"{job}/*", f"{action.namespace}/{action.pod}"
        names = self._created[job]
        together = len(names) > MAX_NAMED and len(names) >= self._size(job)
        if together:
            return self._take("CreatePod", every, _named(job))
        return self._take("CreatePod", own, f"Pod/{own}", also=every)

    def _size(self, job: str) -> int:
        gang = self._gangs.get(job)
        return gang.replicas if gang is not None and gang.pods else 0

    def _take(
        self, kind: str, thing: str, shown: str, factor: int = 1, *, also: str = "", each: bool = False
    ) -> BudgetRefusal | None:
        key = f"{kind} {thing}"
        if key not in self._refused:
            self._refused[key] = self._decide(kind, (key, f"{kind} {also}") if also else (key,), shown, factor)
            if self._refused[key] is None:
                self._count(kind, key, factor)
        elif each and self._refused[key] is None:
            self._count(kind, key, factor)
        return self._refused[key]

    def _decide(self, kind: str, keys: tuple[str, ...], shown: str, factor: int) -> BudgetRefusal | None:
        now = self._facts.now_ms
        times = sorted(at for key in keys for at in self._draft.memory.repeats.get(key, ()))
        worst: tuple[float, _Rule, int] | None = None
        for rule in self._rules.get(kind, ()):
            most, window = rule.limit.max * factor, round(rule.limit.window * 1000)
            recent = [at for at in times if now - window < at <= now]
            if len(recent) >= most:
                until = (recent[len(recent) - most] + window) / 1000
                if worst is None or until > worst[0]:
                    worst = (until, rule, len(recent))
        if worst is None:
            return None
        until, rule, count = worst
        if keys[0] not in self._told and len(self._told) < MAX_TOLD:
            self._draft.diagnostics.append(_diagnostic(kind, shown, rule, count, until))
        self._told.add(keys[0])
        return BudgetRefusal(f"{REPEATED}{rule.name}", until)

    def _count(self, kind: str, key: str, factor: int) -> None:
        table, now = self._draft.memory.repeats, self._facts.now_ms
        most = max((rule.limit.max for rule in self._rules.get(kind, ())), default=0) * factor
        if not most:
            return
        table[key] = (*table.get(key, ()), now)[-most:]

    def close(self) -> None:
        """Drop times that no window holds any more, and the oldest of what was done once; only after a count."""
        table = self._draft.memory.repeats
        if table == self._facts.observed.history.repeats:
            return
        longest = {kind: max(rule.limit.window for rule in rules) for kind, rules in self._rules.items()}
        kept = {}
        for key, times in table.items():
            oldest = self._facts.now_ms - longest.get(key.partition(" ")[0], 0.0) * 1000
            recent = tuple(at for at in times if at > oldest)
            if recent:
                kept[key] = recent
        if len(kept) > MAX_THINGS:
            order = sorted(kept, key=lambda key: (-len(kept[key]), -kept[key][-1], key))
            kept = {key: kept[key] for key in order[:MAX_THINGS]}
        self._draft.memory.repeats = kept


def _rules(budgets: Iterable[Declared[SafetyBudget]]) -> list[_Rule]:
    """The limits of all budgets by name; for actions that none names, the limits that always hold."""
    rules = [
        _Rule(item.document.name, item.origin, number, limit)
        for item in sorted(budgets, key=lambda item: item.document.name)
        for number, limit in enumerate(item.document.spec.repeats)
    ]
    said = {kind for rule in rules for kind in rule.limit.actions}
    left = tuple(kind for kind in REPEATS.actions if kind not in said)
    if left:
        rules.append(_Rule("default", None, 0, REPEATS.model_copy(update={"actions": left})))
    return rules


def _pods_created(draft: Draft) -> dict[str, set[str]]:
    """The pods that this pass makes, by job."""
    found: dict[str, set[str]] = {}
    for action in draft.actions:
        if isinstance(action, CreatePod):
            job = f"{action.namespace}/{action.owner.kind}/{action.owner.name}"
            found.setdefault(job, set()).add(action.pod)
    return found


def _named(job: str) -> str:
    """``namespace/Kind/name`` as diagnostics name objects: ``Kind/namespace/name``."""
    namespace, kind, name = job.split("/", 2)
    return f"{kind}/{namespace}/{name}"


def _diagnostic(kind: str, shown: str, rule: _Rule, count: int, until: float) -> Diagnostic:
    done, window = _DONE[kind], format_duration(rule.limit.window)
    text = (
        f"{shown} was {done} {count} times within {window}, so something undoes it each time: it is not {done} again "
        f"before {rfc3339(until)}. Look for the cause in its Events and history; to go on sooner, raise max of "
        f"repeats in SafetyBudget {rule.name}"
    )
    about = shown.partition(" ")[0]
    return Diagnostic("warning", about, rule.file, rule.line, 0, rule.field, text, PassCode.REPEATS)
