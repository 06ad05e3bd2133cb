"""What a job rides out: faults that stay hidden from it for a while, by its annotations and its recovery strategy.

A hidden fault neither isolates the chip nor moves the pod; its time over, it counts like any other. Codes tolerated
for no time at all count at once. Source: component/clusterd/pkg/application/faultmanager/cmprocess (custom filter,
recover-in-place, retry).
"""

from __future__ import annotations

from typing import Final

from engine.model.cluster import ChipFault, Pod
from engine.model.faults import NETWORK, UCE_CODE, Filters, code_key, filters, level_of
from engine.model.jobs import Gang
from engine.model.levels import NOT_HANDLE, RESTART_BUSINESS, RESTART_REQUEST, SUB_HEALTH
from engine.plan import victims
from engine.plan.gangs import declared_rank
from engine.plan.judge import Judge, use_of
from engine.plan.scope import Scope
from engine.plan.views import chip_ids

FILTER_CODE_KEY: Final = "huawei.com/schedule.filter.faultCode"
FILTER_LEVEL_KEY: Final = "huawei.com/schedule.filter.faultLevel"
STRATEGY_KEY: Final = "recover-strategy"
#: MindIE servers subscribe to faults and ride out a RestartRequest for 60 s (component/clusterd).
MINDIE_SERVER: Final = "mindie-ms-server"
IN_PLACE_MS: Final = 60_000
RETRY_MS: Final = 10_000
#: An uncorrectable HBM error and a failed collective operation can be repaired by going one step back.
RETRY_CODES: Final = (UCE_CODE, "8C1F860B")
_NONE: Final = Filters()
_IN_PLACE: Final = {RESTART_REQUEST: IN_PLACE_MS, RESTART_BUSINESS: IN_PLACE_MS}


class Tolerance:
    """What the pods of one pass tolerate, worked out when a chip of theirs is faulty."""

    def __init__(self, scope: Scope, judge: Judge) -> None:
        self._scope, self.judge = scope, judge
        self._known: dict[str, Filters] = {}

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
        strategies = {word.strip() for word in notes.get(STRATEGY_KEY, "").split(",")}
        if "retry" in strategies:
            for code in RETRY_CODES:
                codes.setdefault(code_key(code), RETRY_MS)
        if gang is not None and "recover-in-place" in strategies and self._mends_in_place(gang, pod):
            levels = _IN_PLACE | levels
        return Filters(codes, levels) if codes or levels else _NONE

    def _mends_in_place(self, gang: Gang, pod: Pod) -> bool:
        """Whether nothing worse than what a restart of the process mends is on the pod, nor on the pod of rank 0."""
        first = next(
            (p for key in gang.pods if (p := self._scope.observed.pods.get(key)) and declared_rank(p) == 0), None
        )
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
