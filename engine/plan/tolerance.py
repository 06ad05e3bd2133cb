"""What a job rides out: faults that stay hidden from it for a while, by its annotations and its recovery strategy.

A hidden fault neither isolates the chip nor moves the pod; its time over, it counts like any other. Codes tolerated
for no time at all count at once. A job that tells in time of a step that it tries again is given the time for that;
one whose processes are being started again in their pods keeps these for as long as that is under way.

Where ClusterD remembers an HCCL fault that came once for 60 s, and a switch's lost links for 180 s, so that its
recovery service still finds them, nothing is remembered here: the conversation that a fault begins keeps it, and a chip
whose newest report is clean is in service unless a hold of the closed list covers it. Source:
component/clusterd/pkg/application/faultmanager/cmprocess (custom filter, recover-in-place, retry).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.model.cluster import ChipFault, Pod
from engine.model.costs import CHOICE_KEY, narrowed
from engine.model.diagnostics import Diagnostic
from engine.model.faults import NETWORK, UCE_CODE, Filters, code_key, filters, level_of
from engine.model.jobs import Gang
from engine.model.levels import NOT_HANDLE, RESTART_BUSINESS, RESTART_REQUEST, SUB_HEALTH
from engine.model.recovery import steps
from engine.model.recovery.standing import Standing
from engine.model.recovery.steps import Retried
from engine.model.times import rfc3339
from engine.plan import victims
from engine.plan.gangs import declared_rank
from engine.plan.judge import Judge, use_of
from engine.plan.scope import NodeView, Scope
from engine.plan.views import chip_ids

FILTER_CODE_KEY: Final = "huawei.com/schedule.filter.faultCode"
FILTER_LEVEL_KEY: Final = "huawei.com/schedule.filter.faultLevel"
STRATEGY_KEY: Final = "recover-strategy"
ENABLE_KEY: Final = "process-recover-enable"
#: MindIE servers subscribe to faults and ride out a RestartRequest for 60 s (component/clusterd).
MINDIE_SERVER: Final = "mindie-ms-server"
IN_PLACE_MS: Final = 60_000
RETRY_MS: Final = 10_000
#: An uncorrectable HBM error and a failed collective operation can be repaired by going one step back.
RETRY_CODES: Final = (UCE_CODE, "8C1F860B")
_RETRY_KEYS: Final = frozenset(code_key(code) for code in RETRY_CODES)
_NONE: Final = Filters()
_IN_PLACE: Final = {RESTART_REQUEST: IN_PLACE_MS, RESTART_BUSINESS: IN_PLACE_MS}


#: Longer than any fault lasts (ms).
_ALWAYS: Final = 1 << 62


class Tolerance:
    """What the pods of one pass tolerate, worked out when a chip of theirs is faulty."""

    def __init__(self, scope: Scope, judge: Judge) -> None:
        self._scope, self.judge = scope, judge
        self._known: dict[str, Filters] = {}
        self._told: dict[str, Retried | None] = {}

    def retried(self, pod: Pod | None, chip: int, code: str, raised_ms: int) -> bool:
        """Whether the job on a chip told in time that it repeats the step which the fault broke, and did or may."""
        if pod is None or code_key(code) not in _RETRY_KEYS:
            return False
        gang = self._scope.gangs.get(self._scope.gang_of.get(pod.key, ""))
        if gang is None or "retry" not in _strategies(gang.annotations | pod.annotations):
            return False
        if gang.key not in self._told:
            first = _first(self._scope, gang)
            self._told[gang.key] = steps.read((first.annotations if first else {}) | gang.annotations)
        told, chips, rank = self._told[gang.key], chip_ids(pod), _rank(gang, pod)
        if told is None or rank is None or chip not in chips:
            return False
        return told.hides(rank * len(chips) + chips.index(chip), raised_ms, self._scope.now_ms)

    def of(self, pod: Pod | None) -> Filters:
        """What the job on a chip tolerates; nothing on an idle one."""
        if pod is None:
            return _NONE
        found = self._known.get(pod.key)
        if found is None:
            found = self._known[pod.key] = self._filters(pod)
        return found

    def _filters(self, pod: Pod) -> Filters:
        gang = self._scope.gangs.get(self._scope.gang_of.get(pod.key, ""))
        notes = (gang.annotations if gang else {}) | pod.annotations
        parsed = filters(notes.get(FILTER_CODE_KEY, ""), notes.get(FILTER_LEVEL_KEY, ""))
        codes, levels = dict(parsed.codes), dict(parsed.levels)
        if pod.labels.get("app") == MINDIE_SERVER:
            levels.setdefault(RESTART_REQUEST, 60_000)
        strategies = _strategies(notes)
        if "retry" in strategies:
            for code in RETRY_CODES:
                codes.setdefault(code_key(code), RETRY_MS)
        if gang is not None and "recover-in-place" in strategies and self._mends_in_place(gang, pod):
            levels = _IN_PLACE | levels
            if restarting(self._scope, gang, pod) is not None:
                levels |= dict.fromkeys(_IN_PLACE, _ALWAYS)
        return Filters(codes, levels) if codes or levels else _NONE

    def _mends_in_place(self, gang: Gang, pod: Pod) -> bool:
        """Whether nothing worse than what a restart of the process mends is on the pod, nor on the pod of rank 0."""
        first = _first(self._scope, gang)
        light = {NOT_HANDLE, *_IN_PLACE} | ({SUB_HEALTH} if victims.strategy(gang) == "ignore" else set())
        return all(self._levels(one) <= light for one in (pod, first) if one is not None)

    def _levels(self, pod: Pod) -> set[str]:
        """Levels of the codes on the pod's chips, by their tables; the parameter plane is no matter for a process."""
        view = self._scope.nodes.get(pod.node)
        chips = set(chip_ids(pod))
        faults: list[ChipFault] = [f for f in view.report.faults if f.chip in chips] if view and view.report else []
        if view is None or not faults:
            return set()
        rules = self.judge.of(view, use_of(pod)).rules
        return {level_of(rules, f.kind, f.code, f.level)[0] if f.code else f.level for f in faults if f.kind != NETWORK}


def restarting(scope: Scope, gang: Gang, pod: Pod) -> Standing | None:
    """The recovery that starts the pod's processes again where they are, or may still decide so; None without one.

    Believed no longer than its record is kept up: whoever serves it moves it on at its limit, or nobody does any more.
    """
    found = scope.observed.recoveries.get(gang.uid)
    if found is None or not found.in_place_open(scope.now_ms) or gang.labels.get(ENABLE_KEY) == "pause":
        return None
    rank, each = _rank(gang, pod), max(1, len(chip_ids(pod)))
    hit = rank is not None and any(r.rank.isdecimal() and int(r.rank) // each == rank for r in found.ranks)
    return found if hit else None


def notes(scope: Scope) -> None:
    """Say which pods stay on faulty chips because their processes are being started again in them."""
    now = scope.now_ms
    under_way = {uid: one for uid, one in scope.observed.recoveries.items() if one.in_place_open(now)}
    for gang in [one for one in scope.gangs.values() if one.uid in under_way] if under_way else ():
        for pod in [scope.observed.pods[key] for key in gang.pods]:
            view = scope.nodes.get(pod.node)
            if view is None or not view.chip_level:
                continue
            bad = [f"{view.chip(c)} {view.chip_level[c]}" for c in chip_ids(pod) if _withheld(view, c)]
            found = restarting(scope, gang, pod) if bad else None
            if found is not None:
                text = (
                    f"stays on node {pod.node} in spite of {', '.join(bad)}: its processes are being started again in "
                    f"place ({found.state.value} since {rfc3339(found.since / 1000)}); unless that gets on, the pod "
                    f"goes after {rfc3339(found.until / 1000)}"
                )
                scope.diagnostics.append(Diagnostic("info", f"Pod/{pod.key}", "", 0, 0, "", text))


def _withheld(view: NodeView, chip: int) -> bool:
    return view.chip_state.get(chip) == "suspect" and view.chip_level.get(chip) in _IN_PLACE


def _strategies(notes: Mapping[str, str]) -> set[str]:
    """What process recovery may do for a job, as far as the choice by cost leaves it."""
    given = [word.strip() for word in notes.get(STRATEGY_KEY, "").split(",")]
    return set(narrowed(given, notes.get(CHOICE_KEY, "")))


def _first(scope: Scope, gang: Gang) -> Pod | None:
    """The pod of rank 0."""
    pods = (scope.observed.pods.get(key) for key in gang.pods)
    return next((pod for pod in pods if pod is not None and declared_rank(pod) == 0), None)


def _rank(gang: Gang, pod: Pod) -> int | None:
    """The pod's rank: as declared, else its place among the gang's pods."""
    declared = declared_rank(pod)
    if declared is not None:
        return declared
    return next((i for i, key in enumerate(gang.pods) if key == pod.key), None)
