"""Assesses the chips of one node: codes → level per plane, withheld codes, holds, and the consequences.

The chip plane (``CardUnhealthy``, ``PublicFault``) and the network plane (``CardNetworkUnhealthy``) are assessed
separately: the network plane never takes a chip out of service. Sources:
component/clusterd/pkg/application/faultmanager,
component/ascend-device-plugin/pkg/device/ascendcommon.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, assert_never

import msgspec

from belay.engine.documents.fault_policy import IDLE
from belay.engine.model.cluster import ChipFault, Observed, Pod
from belay.engine.model.faults import (
    CARD,
    MAX_CODES,
    NETWORK,
    UCE_CODE,
    CodeRules,
    FaultFilters,
    absent,
    code_key,
    companion,
    level_of,
    lingering,
    moment,
    present,
    released,
    timed_out,
    too_often,
)
from belay.engine.model.hardware_faults import ManualPolicy
from belay.engine.model.history import (
    HOLD_KINDS,
    ChipMemory,
    CodeMemory,
    Hold,
    HoldKind,
)
from belay.engine.model.levels import (
    CHIP_LEVELS,
    HEALED_IN_PLACE,
    IN_SERVICE,
    MANUALLY_SEPARATE,
    NORMAL,
    NOT_HANDLE,
    PRE_SEPARATE,
    SEPARATE,
    SUB_HEALTH,
    FaultAction,
    rank,
    worst,
)
from belay.engine.model.rules import RuleKind, rule_kind
from belay.engine.model.states import ChipHealth
from belay.engine.plan.health.assessment import LIST_RULE, MANUAL_KEY, ChipAssessment, ManualHold
from belay.engine.plan.health.reset_progress import UNTAKEN_MS, ResetProgress
from belay.engine.plan.health.tolerance import Tolerance
from belay.engine.plan.node_view import NodeView
from belay.engine.plan.rules.fault_rules import ChipRules, FaultRules, use_of

#: Action of a policy that heals chips under their job.
TOLERATE: Final = FaultAction.TOLERATE
_AUTOFILL: Final = "AUTOFILLFAULTCODE"


class ChipContext:
    """What the assessment of one node's chips needs: its view, its memory, and the pods on its chips.

    ``listed`` are the chips of this node in Belay's list of frequency holds, None when there is no list; ``manual`` is
    ClusterD's rule for isolating failing hardware.
    """

    def __init__(
        self,
        fault_rules: FaultRules,
        observed: Observed,
        view: NodeView,
        progress: ResetProgress,
        held: Mapping[int, tuple[ManualHold, ...]],
        listed: Collection[int] | None,
        now_ms: int,
        *,
        tolerance: Tolerance | None = None,
        manual: ManualPolicy | None = None,
    ) -> None:
        self.fault_rules, self.observed, self.view = fault_rules, observed, view
        self.tolerance, self.manual = tolerance, manual
        self.progress, self.held, self.listed, self.now_ms = progress, held, listed, now_ms
        self.faults: dict[int, list[ChipFault]] = {}
        for fault in view.report.faults if view.report else ():
            if fault.chip >= 0:
                self.faults.setdefault(fault.chip, []).append(fault)
        self.withheld: dict[int, list[ChipFault]] = {}
        for fault in view.report.withheld if view.report else ():
            if fault.chip >= 0:
                self.withheld.setdefault(fault.chip, []).append(fault)

    def pod_on(self, chip: int) -> Pod | None:
        """The live pod that holds the chip."""
        key = self.view.used_by.get(chip)
        return self.observed.pods.get(key) if key else None

    def assessment(self, chip: int, before: ChipMemory) -> ChipAssessment:
        """Assess one chip; ``before`` is its memory."""
        pod = self.pod_on(chip)
        use = use_of(pod)
        chip_rules = self.fault_rules.of(self.view, use)
        assessment = ChipAssessment(memory=before)
        explained = self._codes(
            chip, assessment, chip_rules, self.tolerance.of(pod) if self.tolerance else FaultFilters()
        )
        explained |= self._upgrades(chip, assessment)
        self._holds(chip, assessment, chip_rules, self._manual(chip, assessment))
        self._lists(chip, assessment, explained)
        assessment.level = worst(assessment.level, assessment.effective, assessment.plane)
        self._consequences(chip, assessment, chip_rules, use)
        return assessment

    def _codes(self, chip: int, assessment: ChipAssessment, chip_rules: ChipRules, tolerated: FaultFilters) -> bool:
        """Assess every reported code. Returns whether codes of the chip plane explain the report's Unhealthy list."""
        rules, now = chip_rules.rules, self.now_ms
        faults = self.faults.get(chip, [])
        uce = tuple(f.time_ms for f in faults if code_key(f.code) == UCE_CODE)
        seen: dict[str, CodeMemory] = {}
        explained = False
        for fault in faults:
            network = fault.kind == NETWORK
            if not fault.code:
                assessment.types.add(fault.kind)
                assessment.raise_to(fault.level or SEPARATE, "report", network=network)
                explained |= not network and (fault.level or SEPARATE) not in IN_SERVICE
                continue
            fate = companion(fault.code, fault.time_ms, uce, now)
            if fate == "drop":
                explained = True
                continue
            assessment.codes.add(fault.code)
            assessment.types.add(fault.kind)
            level, source = level_of(rules, fault.kind, fault.code, fault.level)
            past = present(assessment.memory.codes.get(fault.code), fault.time_ms, now, rules, fault.code)
            tolerance = tolerated.tolerance(fault.code, level)
            raised = moment(fault.time_ms, now) if fault.time_ms else past.first
            hidden = tolerance is not None and now - raised <= tolerance
            if not hidden and self.tolerance is not None:
                hidden = self.tolerance.is_retried(self.pod_on(chip), chip, fault.code, raised)
            if fate == "wait" or hidden:
                assessment.suspect = explained = True
                assessment.level = worst(assessment.level, level if level in CHIP_LEVELS else SEPARATE)
                seen[fault.code] = past
                continue
            level, source, past = self._windows(assessment, chip_rules, fault, level, source, past)
            seen[fault.code] = past
            assessment.visible[fault.code] = level
            assessment.raise_to(level, source, network=network)
            explained |= not network and (level not in IN_SERVICE or rule_kind(source) is RuleKind.FAULT_POLICY)
        for fault in self.withheld.get(chip, ()):
            assessment.suspect = True
            assessment.codes.add(fault.code)
            assessment.types.add(fault.kind)
            level = level_of(rules, fault.kind, fault.code, fault.level)[0]
            assessment.level = worst(assessment.level, level if level in CHIP_LEVELS else SEPARATE)
        self._remember(assessment, seen)
        return explained

    def _windows(
        self,
        assessment: ChipAssessment,
        chip_rules: ChipRules,
        fault: ChipFault,
        level: str,
        source: str,
        past: CodeMemory,
    ) -> tuple[str, str, CodeMemory]:
        """Apply the code's duration and frequency rules to its base level."""
        key, now = code_key(fault.code), self.now_ms
        duration = chip_rules.rules.duration.get(key)
        if duration is not None and rank(duration.level) > rank(level):
            if timed_out(past, duration, now):
                level, source = duration.level, duration.rule
                if fault.kind == NETWORK:
                    assessment.raised[fault.code] = level
            else:
                assessment.suspect = True
                assessment.network |= fault.kind == NETWORK
        elif duration is not None and source == "report" and not past.held_by_reporter:
            past = msgspec.structs.replace(past, held_by_reporter=True)
        frequency = chip_rules.rules.frequency.get(key)
        if frequency is not None and too_often(past, frequency, now):
            until = now + frequency.release_ms if frequency.release_ms else 0
            hold = Hold(
                kind=HoldKind.FREQUENCY, level=frequency.level, since=now, until=until, rule=fault.code,
                policy=frequency.rule,
            )  # fmt: skip
            kept = tuple(h for h in assessment.memory.holds if h.key != (HoldKind.FREQUENCY, fault.code))
            assessment.memory = msgspec.structs.replace(assessment.memory, holds=(*kept, hold))
            past = msgspec.structs.replace(past, occurrences=())  # the next upgrade needs the full count again
        return level, source, past

    def _remember(self, assessment: ChipAssessment, seen: dict[str, CodeMemory]) -> None:
        """Update the codes in the memory from this report; drop absent codes that no rule needs any more."""
        before = assessment.memory.codes
        if not before and not seen:
            return
        rules, after = self.fault_rules.memory(self.view), dict(seen)
        for code, past in before.items():
            if code not in seen:
                kept = absent(past, self.now_ms, rules, code)
                if kept is None and any(h.key == (HoldKind.FREQUENCY, code) for h in assessment.memory.holds):
                    # the hold ends a fixed time after the recovery, so the recovery is remembered as long as the hold
                    gone = self.now_ms if past.present else past.recovered
                    kept = msgspec.structs.replace(past, present=False, recovered=gone)
                if kept is not None:
                    after[code] = kept
        if after != before:
            newest = sorted(after, key=lambda code: (not after[code].present, -after[code].last, code))[:MAX_CODES]
            assessment.memory = msgspec.structs.replace(
                assessment.memory, codes={code: after[code] for code in sorted(newest)}
            )

    def _upgrades(self, chip: int, assessment: ChipAssessment) -> bool:
        """Apply the upgrades that the device plugin holds (``UpgradeFaultReason``)."""
        explained = False
        for upgrade in self.view.report.upgrades if self.view.report else ():
            if upgrade.chip != chip or not upgrade.level:
                continue
            if upgrade.level == MANUALLY_SEPARATE and self.view.report and not self.view.report.manual >> chip & 1:
                continue  # a person removed the chip from the key, which deletes every such reason
            network = code_key(upgrade.code) in self.fault_rules.network_codes and upgrade.level != MANUALLY_SEPARATE
            if upgrade.code != _AUTOFILL:
                assessment.codes.add(upgrade.code)
            assessment.raise_to(upgrade.level, RuleKind.REPORT.named(upgrade.kind), network=network)
            assessment.types.add(NETWORK if network else CARD)
            explained |= not network and upgrade.level not in IN_SERVICE
        return explained

    def _manual(self, chip: int, assessment: ChipAssessment) -> list[Hold]:
        """Holds by people: the key ``ManuallySeparateNPU``, ClusterD's list and Isolation documents."""
        report = self.view.report
        wanted: list[tuple[str, int]] = []
        if report and report.manual >> chip & 1:
            assessment.raise_to(MANUALLY_SEPARATE, MANUAL_KEY)
            assessment.types.add(CARD)
            wanted.append((MANUAL_KEY, 0))
        for held in self.held.get(chip, ()):
            assessment.raise_to(MANUALLY_SEPARATE, held.rule)
            if held.rule_kind is RuleKind.MANUAL_LIST:
                assessment.types.add(CARD)
            wanted.append((held.rule, held.until_ms))
        since = {hold.rule: hold.since for hold in assessment.memory.holds if hold.kind == HoldKind.MANUAL}
        return [
            Hold(HoldKind.MANUAL, MANUALLY_SEPARATE, since.get(rule, self.now_ms), until, rule)
            for rule, until in wanted
        ]

    def _frequency(self, chip: int, hold: Hold, ended: bool, past: CodeMemory | None, rules: CodeRules) -> Hold | None:
        """The frequency hold as of now; None when it expired or a person ended it.

        A person ends it by removing the chip from the key or the list that named it.
        """
        listed = self.listed is not None and chip in self.listed
        if ended or (hold.told and self.listed is not None and not listed):
            return None
        if hold.rule_kind is RuleKind.HARDWARE:
            if self.manual is None or not self.manual.enabled:
                return None  # switching the rule off releases every chip it held
            until = hold.since + self.manual.release_ms if self.manual.release_ms else 0
            if until and self.now_ms >= until:
                return None
            return msgspec.structs.replace(hold, until=until, told=hold.told or listed)
        key = code_key(hold.rule)
        rule = rules.frequency.get(key) or self.fault_rules.memory(self.view).frequency.get(key)
        if rule is None:
            # the upgrades of a removed rule end, but a manually isolated chip stays so until a person ends it
            kept = hold.level == MANUALLY_SEPARATE
            return msgspec.structs.replace(hold, until=0, told=hold.told or listed) if kept else None
        if released(past, hold.since, rule, self.now_ms):
            return None
        until = max(hold.since, past.recovered) + rule.release_ms if past and not past.present else hold.until
        return msgspec.structs.replace(
            hold, level=rule.level, until=until if rule.release_ms else 0, told=hold.told or listed, policy=rule.rule
        )

    def _holds(self, chip: int, assessment: ChipAssessment, chip_rules: ChipRules, manual: list[Hold]) -> None:
        """Drop the holds that ended, apply the others, add those of duration rules."""
        rules, now, memory = chip_rules.rules, self.now_ms, assessment.memory
        before = {hold.rule for hold in memory.holds if hold.kind == HoldKind.MANUAL}
        ended = before & {MANUAL_KEY, LIST_RULE} - {hold.rule for hold in manual}
        kept = manual
        for hold in memory.holds:
            kind = HOLD_KINDS.get(hold.kind)
            match kind:
                case HoldKind.MANUAL | HoldKind.DURATION | HoldKind.BAD_BOOT:
                    continue  # derived again below
                case HoldKind.FREQUENCY:
                    standing = self._frequency(chip, hold, bool(ended), memory.codes.get(hold.rule), rules)
                    if standing is None:
                        continue
                    hold = standing
                case HoldKind.ATTEMPT_BUDGET | HoldKind.NO_AGENT | HoldKind.RESET_PENDING | None:
                    if hold.until and now >= hold.until:
                        continue
                case _:
                    assert_never(kind)
            kept.append(hold)
        for code, past in memory.codes.items():
            rule_for = rules.duration.get(code_key(code))
            if rule_for is not None and lingering(past, rule_for, now):
                until = past.recovered + rule_for.recover_ms
                kept.append(Hold(HoldKind.DURATION, rule_for.level, past.recovered, until, code, policy=rule_for.rule))
        if self.progress.failed >> chip & 1:
            # its group was reset and the reset failed: the chip waits for a report written afterwards
            since = next((hold.since for hold in memory.holds if hold.kind == HoldKind.BAD_BOOT), now)
            kept.append(Hold(HoldKind.BAD_BOOT, "", since=since, rule="resetResult"))
        if tuple(kept) != memory.holds:
            assessment.memory = msgspec.structs.replace(memory, holds=tuple(kept))
        for hold in kept:
            if hold.kind in (HoldKind.FREQUENCY, HoldKind.DURATION):
                network = code_key(hold.rule) in self.fault_rules.network_codes and hold.level != MANUALLY_SEPARATE
                assessment.raise_to(hold.level, RuleKind.HOLD.named(hold.kind), network=network)
                if network:
                    assessment.raised[hold.rule] = worst(assessment.raised.get(hold.rule, NORMAL), hold.level)
                if hold.rule_kind is not RuleKind.HARDWARE:  # the rule of failing hardware is no code
                    assessment.codes.add(hold.rule)
                assessment.types.add(NETWORK if network else CARD)

    def _lists(self, chip: int, assessment: ChipAssessment, explained: bool) -> None:
        """Apply the report's lists: a listed chip without a fault takes the level of its group, else SeparateNPU."""
        report, bit = self.view.report, 1 << chip
        if report is None:
            return
        in_reset = (report.recovering | self.progress.resetting | self.progress.recovering) & bit
        if report.unhealthy & bit and not explained and not in_reset and assessment.effective in IN_SERVICE:
            assessment.raise_to(self._level_of_group(chip), RuleKind.REPORT.named("Unhealthy"))
            assessment.types.add(CARD)
        elements = [f.kind == NETWORK for f in self.faults.get(chip, ())]
        assessment.lowered = explained and assessment.effective in IN_SERVICE and not assessment.suspect
        if not in_reset and (report.network_unhealthy or 0) & bit and not any(elements):
            assessment.raise_to(PRE_SEPARATE, RuleKind.REPORT.named("NetworkUnhealthy"), network=True)
            assessment.types.add(NETWORK)
        assessment.lowered_network = any(elements) and assessment.plane in (NORMAL, NOT_HANDLE)

    def _level_of_group(self, chip: int) -> str:
        """The worst level in the chip's group (300I Duo: chips of a card fail together), else SeparateNPU."""
        group = next((g for g in self.view.groups if g >> chip & 1), 0)
        levels = [
            f.level
            for other, faults in self.faults.items()
            if other != chip and group >> other & 1
            for f in faults
            if f.kind != NETWORK and f.level in CHIP_LEVELS and f.level not in IN_SERVICE
        ]
        return worst(*levels) if levels else SEPARATE

    def _consequences(self, chip: int, assessment: ChipAssessment, chip_rules: ChipRules, use: str) -> None:
        action = chip_rules.action(assessment.effective, use)
        match action:
            case FaultAction.IGNORE:
                assessment.out_of_service = False
            case FaultAction.STRATEGY:
                assessment.out_of_service, assessment.sub_healthy = False, True
            case FaultAction.RESCHEDULE:
                assessment.out_of_service = assessment.hit = True
            case FaultAction.TOLERATE:
                assessment.out_of_service, assessment.tolerated = True, assessment.effective in HEALED_IN_PLACE
            case FaultAction.KEEP | FaultAction.RESET | FaultAction.ISOLATE:
                assessment.out_of_service = True
            case _:
                assert_never(action)
        bit, progress = 1 << chip, self.progress
        recovering = bool((self.view.report.recovering if self.view.report else 0) & bit)
        blocked = any(hold.kind == HoldKind.NO_AGENT for hold in assessment.memory.holds)
        assessment.resettable = (
            chip_rules.action(assessment.effective, IDLE) is FaultAction.RESET
            and assessment.out_of_service
            and assessment.effective != MANUALLY_SEPARATE
            and not blocked
            and not recovering
            and not (progress.resetting | progress.recovering | progress.waiting) & bit
        )
        assessment.network |= assessment.plane not in (NORMAL, NOT_HANDLE)
        if progress.resetting & bit:
            assessment.state = ChipHealth.RESETTING
        elif recovering or progress.recovering & bit:
            assessment.state = ChipHealth.RECOVERING
        elif assessment.effective == MANUALLY_SEPARATE:
            assessment.state = ChipHealth.MANUALLY_ISOLATED
        elif assessment.out_of_service:
            assessment.state = ChipHealth.ISOLATED
        elif assessment.suspect:
            assessment.state = ChipHealth.SUSPECT
        elif (
            assessment.sub_healthy or assessment.effective == SUB_HEALTH or assessment.plane not in (NORMAL, NOT_HANDLE)
        ):
            assessment.state = ChipHealth.SUB_HEALTHY


def with_no_agent_hold(memory: ChipMemory, level: str, now_ms: int) -> ChipMemory:
    """Close a faulty chip's order that no agent took in time, and hold the chip for a while."""
    if any(hold.kind == HoldKind.NO_AGENT for hold in memory.holds):
        return msgspec.structs.replace(memory, ordered=0, recovering=0)
    hold = Hold(HoldKind.NO_AGENT, level, since=now_ms, until=now_ms + UNTAKEN_MS, rule="notAfter")
    return msgspec.structs.replace(memory, ordered=0, recovering=0, holds=(*memory.holds, hold))


def device_names(view: NodeView, chips: Iterable[int]) -> tuple[str, ...]:
    """Device names of chips in ascending order of their ids."""
    return tuple(view.chip(chip) for chip in sorted(chips))
