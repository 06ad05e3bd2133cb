"""Tolerance: faults hidden from a job for a while, by its annotations and its recovery strategy.

A hidden fault neither isolates the chip nor evicts the pod; when its time is over, it counts like any other. A
tolerance of 0 s hides nothing. A job that reports a step retry in time gets the time for it; pods whose processes are
being restarted in place stay for as long as that lasts.

ClusterD remembers a single HCCL fault for 60 s and lost links of a switch for 180 s, so that its recovery service
finds them. Belay need not: the conversation that a fault begins keeps it, and a chip whose newest report is clean is in
service unless a hold covers it. Source:
component/clusterd/pkg/application/faultmanager/cmprocess (custom filter, recover-in-place, retry).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from belay.engine.gangs.forming import declared_rank
from belay.engine.model.cluster import ChipFault, Pod, SwitchFault, SwitchReport
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.costs import narrowed
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.faults import (
    NETWORK,
    TOLERANCE_MS,
    UCE_CODE,
    FaultFilters,
    code_key,
    level_of,
    moment,
    parse_filters,
)
from belay.engine.model.job_options import read_strategies
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import (
    APP_LABEL,
    FILTER_FAULT_CODE,
    FILTER_FAULT_LEVEL,
    RECOVERY_LEVEL,
    SERVICE_JOB_ID,
)
from belay.engine.model.levels import (
    NOT_HANDLE,
    RESTART_BUSINESS,
    RESTART_REQUEST,
    SUB_HEALTH,
    SWITCH_LEVELS,
    SwitchLevel,
)
from belay.engine.model.recovery import steps
from belay.engine.model.recovery.conversation import rank_numbers
from belay.engine.model.recovery.progress import RecoveryProgress
from belay.engine.model.recovery.steps import StepRetries
from belay.engine.model.states import ChipHealth
from belay.engine.model.times import rfc3339
from belay.engine.plan import restart_scope
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.health import node_faults
from belay.engine.plan.node_view import NodeView, PassNodes
from belay.engine.plan.rules.fault_rules import FaultRules, use_of
from belay.engine.plan.views import chip_ids
from belay.engine.wire.names import FAULT_SUBSCRIBERS, SYSTEM

#: MindIE servers whose controller is subscribed to faults tolerate a RestartRequest for 60 s (component/clusterd,
#: custom_filter_fault_processor.go).
MINDIE_SERVER: Final = "mindie-ms-server"
IN_PLACE_MS: Final = 60_000
RETRY_MS: Final = 10_000
#: An uncorrectable HBM error and a failed collective operation, which a step retry can repair.
RETRY_CODES: Final = (UCE_CODE, "8C1F860B")
_RETRY_KEYS: Final = frozenset(code_key(code) for code in RETRY_CODES)
_NO_FILTERS: Final = FaultFilters()
_IN_PLACE: Final = {RESTART_REQUEST: IN_PLACE_MS, RESTART_BUSINESS: IN_PLACE_MS}
_SWITCH_RANK: Final[dict[str, int]] = {level.value: rank for rank, level in enumerate(SWITCH_LEVELS)}

#: Longer than any fault lasts (ms).
_ALWAYS: Final = 1 << 62


class Tolerance:
    """The faults that the pods of one pass tolerate; computed for pods with a faulty chip only."""

    def __init__(self, facts: Facts, nodes: PassNodes, gangs: PassGangs, fault_rules: FaultRules) -> None:
        self._facts, self._nodes, self._gangs, self.fault_rules = facts, nodes, gangs, fault_rules
        self._filters_of: dict[str, FaultFilters] = {}
        self._retries: dict[str, StepRetries | None] = {}

    def is_retried(self, pod: Pod | None, chip: int, code: str, raised_ms: int) -> bool:
        """Whether the pod's job reported in time that it retries the step, and the retry succeeded or is under way."""
        if pod is None or code_key(code) not in _RETRY_KEYS:
            return False
        gang = self._gangs.get(self._gangs.of_pod.get(pod.key, ""))
        if gang is None or "retry" not in _strategies(gang.annotations | pod.annotations):
            return False
        if gang.key not in self._retries:
            first = _first(self._facts, gang)
            self._retries[gang.key] = steps.read((first.annotations if first else {}) | gang.annotations)
        retries, chips, rank = self._retries[gang.key], chip_ids(pod), _rank(gang, pod)
        if retries is None or rank is None or chip not in chips:
            return False
        return retries.hides(rank * len(chips) + chips.index(chip), raised_ms, self._facts.now_ms)

    def of(self, pod: Pod | None) -> FaultFilters:
        """The filters of the job on a chip; none for an idle chip."""
        if pod is None:
            return _NO_FILTERS
        found = self._filters_of.get(pod.key)
        if found is None:
            found = self._filters_of[pod.key] = self._filters(pod)
        return found

    def switch_seen(self, view: NodeView) -> SwitchReport | None:
        """The node's switch without the faults that the filter of a job on the node hides; a fault without a time is
        never hidden.

        As in MindCluster, the filter of one job hides them from all jobs on the node.
        """
        switch = view.report.switch if view.report is not None else None
        if switch is None or not any(fault.time_ms for fault in switch.faults):
            return switch
        asked = [self._asked(pod, self._annotations(pod)) for pod in view.pods if pod.chips]
        left = tuple(fault for fault in switch.faults if not any(self._hides(one, fault) for one in asked))
        if len(left) == len(switch.faults):
            return switch
        levels = [fault.level or switch.level for fault in left]
        own = [_switch_rank(fault.level or switch.level) for fault in switch.faults]
        if left and _switch_rank(switch.level) > max(own):
            levels.append(switch.level)  # cut off as a whole: worse than each of its links
        level = max(levels, key=_switch_rank, default=SwitchLevel.NOT_HANDLE.value)
        codes = tuple(sorted({fault.code for fault in left}))
        status = node_faults.status_of(level)
        return msgspec.structs.replace(switch, level=level, node_status=status, codes=codes, faults=left)

    def _hides(self, filters: FaultFilters, fault: SwitchFault) -> bool:
        tolerance = filters.tolerance(fault.code, fault.level) if fault.time_ms > 0 else None
        now = self._facts.now_ms
        return bool(tolerance) and now - moment(fault.time_ms, now) <= (tolerance or 0)

    def _annotations(self, pod: Pod) -> dict[str, str]:
        gang = self._gangs.get(self._gangs.of_pod.get(pod.key, ""))
        return (gang.annotations if gang else {}) | pod.annotations

    def _asked(self, pod: Pod, annotations: Mapping[str, str]) -> FaultFilters:
        """The filters that a job asks for, and those of a MindIE server that hears of faults, whatever its recovery
        strategy.
        """
        parsed = parse_filters(annotations.get(FILTER_FAULT_CODE, ""), annotations.get(FILTER_FAULT_LEVEL, ""))
        service = _mindie_service(pod)
        if not service or not self._facts.observed.fault_subscriptions.covers(service, self._facts.now_ms):
            return parsed
        return FaultFilters(parsed.codes, {RESTART_REQUEST: TOLERANCE_MS} | parsed.levels)

    def _filters(self, pod: Pod) -> FaultFilters:
        gang = self._gangs.get(self._gangs.of_pod.get(pod.key, ""))
        annotations = self._annotations(pod)
        asked = self._asked(pod, annotations)
        codes, levels = dict(asked.codes), dict(asked.levels)
        strategies = _strategies(annotations)
        if "retry" in strategies:
            for code in RETRY_CODES:
                codes.setdefault(code_key(code), RETRY_MS)
        if gang is not None and "recover-in-place" in strategies and self._restart_heals(gang, pod):
            levels = _IN_PLACE | levels
            if in_place_restart(self._facts, gang, pod) is not None:
                levels |= dict.fromkeys(_IN_PLACE, _ALWAYS)
        return FaultFilters(codes, levels) if codes or levels else _NO_FILTERS

    def _restart_heals(self, gang: Gang, pod: Pod) -> bool:
        """Whether restarting processes heals every fault on the pod and on the pod of rank 0."""
        first = _first(self._facts, gang)
        light = {NOT_HANDLE, *_IN_PLACE} | ({SUB_HEALTH} if restart_scope.strategy(gang) == "ignore" else set())
        return all(self._levels(one) <= light for one in (pod, first) if one is not None)

    def _levels(self, pod: Pod) -> set[str]:
        """Levels of the codes on the pod's chips; codes of the network plane do not matter to a process."""
        view = self._nodes.get(pod.node)
        chips = set(chip_ids(pod))
        faults: list[ChipFault] = [f for f in view.report.faults if f.chip in chips] if view and view.report else []
        if view is None or not faults:
            return set()
        rules = self.fault_rules.of(view, use_of(pod)).rules
        return {level_of(rules, f.kind, f.code, f.level)[0] if f.code else f.level for f in faults if f.kind != NETWORK}


def _switch_rank(level: str) -> int:
    return _SWITCH_RANK.get(level, len(_SWITCH_RANK))


def in_place_restart(facts: Facts, gang: Gang, pod: Pod) -> RecoveryProgress | None:
    """The recovery that restarts the pod's processes in place, or may still decide to; None without one.

    Valid only while its record is current: the server that runs it moves it on at its time limit.
    """
    found = facts.observed.recoveries.get(gang.uid)
    if found is None or not found.in_place_open(facts.now_ms) or gang.options.process_recovery == "pause":
        return None
    rank, each = _rank(gang, pod), max(1, len(chip_ids(pod)))
    hit = rank is not None and any(number // each == rank for number in rank_numbers(found.ranks))
    return found if hit else None


def diagnose(facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs) -> None:
    """Report the pods that stay on faulty chips because their processes are being restarted in place."""
    _diagnose_subscriptions(facts, draft)
    now = facts.now_ms
    under_way = {uid: one for uid, one in facts.observed.recoveries.items() if one.in_place_open(now)}
    for gang in [one for one in gangs.values() if one.uid in under_way] if under_way else ():
        for pod in [facts.observed.pods[key] for key in gang.pods]:
            view = nodes.get(pod.node)
            if view is None or not view.chip_level:
                continue
            bad = [f"{view.chip(c)} {view.chip_level[c]}" for c in chip_ids(pod) if _withheld(view, c)]
            found = in_place_restart(facts, gang, pod) if bad else None
            if found is not None:
                text = (
                    f"stays on node {pod.node} despite {', '.join(bad)}: its processes are being restarted in place "
                    f"({found.state.value} since {rfc3339(found.since / 1000)}); without progress the pod is evicted "
                    f"after {rfc3339(found.until / 1000)}"
                )
                draft.diagnostics.append(Diagnostic("info", f"Pod/{pod.key}", "", 0, 0, "", text, PassCode.STAYS))


def _diagnose_subscriptions(facts: Facts, draft: Draft) -> None:
    """Report an old record of subscribers, where MindIE servers lose their minute by it."""
    record = facts.observed.fault_subscriptions
    if not record.services or not record.is_old(facts.now_ms):
        return
    lost = {_mindie_service(pod) for pod in facts.observed.pods.values()} & record.services
    if lost:
        text = (
            f"{record.source_sentence()}, which serves no more: the MindIE servers of {len(lost)} inference "
            "services are rescheduled at once by a RestartRequest, as if their controllers were not subscribed, until "
            "a belay server serves gRPC again and the controllers connect to it"
        )
        where = f"ConfigMap/{SYSTEM}/{FAULT_SUBSCRIBERS}"
        draft.diagnostics.append(Diagnostic("info", where, "", 0, 0, "data", text, PassCode.SUBSCRIPTIONS_LOST))


def _mindie_service(pod: Pod) -> str:
    """The inference service of a MindIE server; empty for other pods."""
    return pod.labels.get(SERVICE_JOB_ID, "") if pod.labels.get(APP_LABEL) == MINDIE_SERVER else ""


def _withheld(view: NodeView, chip: int) -> bool:
    return view.chip_state.get(chip) == ChipHealth.SUSPECT and view.chip_level.get(chip) in _IN_PLACE


def _strategies(annotations: Mapping[str, str]) -> set[str]:
    """The job's strategies for process recovery, without those that the choice by cost ruled out."""
    return set(narrowed(read_strategies(annotations), annotations.get(RECOVERY_LEVEL, "")))


def _first(facts: Facts, gang: Gang) -> Pod | None:
    """The pod of rank 0."""
    pods = (facts.observed.pods.get(key) for key in gang.pods)
    return next((pod for pod in pods if pod is not None and declared_rank(pod) == 0), None)


def _rank(gang: Gang, pod: Pod) -> int | None:
    """The pod's declared rank, else its position in the gang."""
    declared = declared_rank(pod)
    if declared is not None:
        return declared
    return next((i for i, key in enumerate(gang.pods) if key == pod.key), None)
