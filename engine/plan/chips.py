"""Judges the chips of one node: codes → levels per plane, what is withheld, what a hold keeps, and what follows.

Chip plane (``CardUnhealthy``, ``PublicFault``) and network plane (``CardNetworkUnhealthy``) are judged apart: the
network plane never takes a chip out of service. Sources: component/clusterd/pkg/application/faultmanager,
component/ascend-device-plugin/pkg/device/ascendcommon.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from engine.model.cluster import ChipFault, Observed, Pod
from engine.model.faults import (
    CARD,
    MAX_CODES,
    NETWORK,
    UCE_CODE,
    Filters,
    Rules,
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
from engine.model.hardware import PREFIX, ManualPolicy
from engine.model.history import ChipMemory, CodeSeen, Hold
from engine.model.levels import (
    CHIP_LEVELS,
    IN_SERVICE,
    MANUALLY_SEPARATE,
    NORMAL,
    NOT_HANDLE,
    PRE_SEPARATE,
    RESTART,
    RESTART_BUSINESS,
    RESTART_REQUEST,
    SEPARATE,
    SUB_HEALTH,
    rank,
    worst,
)
from engine.plan.judge import IDLE, Judge, Judgement, use_of
from engine.plan.progress import UNTAKEN_MS, Progress
from engine.plan.scope import NodeView
from engine.plan.tolerance import Tolerance
from engine.plan.verdict import LIST_RULE, MANUAL_KEY, Held, Verdict

BAD_BOOT: Final = "bad-boot"
#: What a policy says where a chip is to be healed under its job, and the levels that this can heal; a FreeRestartNPU
#: chip is kept until the job leaves it.
TOLERATE: Final = "tolerate"
HEALED_ONLINE: Final = frozenset({RESTART_REQUEST, RESTART_BUSINESS, RESTART})
_AUTOFILL: Final = "AUTOFILLFAULTCODE"


class Bench:
    """What the judgement of one node needs: its view, its past, and who is on its chips.

    ``told`` are the chips that Belay's own list of frequency holds names on this node, None when there is no list;
    ``manual`` is the rule of holds for failing hardware.
    """

    def __init__(
        self,
        judge: Judge,
        observed: Observed,
        view: NodeView,
        progress: Progress,
        held: Mapping[int, tuple[Held, ...]],
        told: Collection[int] | None,
        now_ms: int,
        *,
        tolerance: Tolerance | None = None,
        manual: ManualPolicy | None = None,
    ) -> None:
        self.judge, self.observed, self.view = judge, observed, view
        self.tolerance, self.manual = tolerance, manual
        self.progress, self.held, self.told, self.now_ms = progress, held, told, now_ms
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

    def verdict(self, chip: int, before: ChipMemory) -> Verdict:
        """The verdict on one chip."""
        pod = self.pod_on(chip)
        use = use_of(pod)
        judgement = self.judge.of(self.view, use)
        verdict = Verdict(memory=before)
        explained = self._codes(chip, verdict, judgement, self.tolerance.of(pod) if self.tolerance else Filters())
        explained |= self._upgrades(chip, verdict)
        self._holds(chip, verdict, judgement, self._manual(chip, verdict))
        self._lists(chip, verdict, explained)
        verdict.level = worst(verdict.level, verdict.effective, verdict.plane)
        self._consequences(chip, verdict, judgement, use)
        return verdict

    def _codes(self, chip: int, verdict: Verdict, judgement: Judgement, tolerated: Filters) -> bool:
        """Judge every reported code; returns whether the chip plane's elements explain the report's Unhealthy list."""
        rules, now = judgement.rules, self.now_ms
        faults = self.faults.get(chip, [])
        uce = tuple(f.time_ms for f in faults if code_key(f.code) == UCE_CODE)
        seen: dict[str, CodeSeen] = {}
        explained = False
        for fault in faults:
            network = fault.kind == NETWORK
            if not fault.code:
                verdict.types.add(fault.kind)
                verdict.raise_to(fault.level or SEPARATE, "report", network=network)
                explained |= not network and (fault.level or SEPARATE) not in IN_SERVICE
                continue
            fate = companion(fault.code, fault.time_ms, uce, now)
            if fate == "drop":
                explained = True
                continue
            verdict.codes.add(fault.code)
            verdict.types.add(fault.kind)
            level, source = level_of(rules, fault.kind, fault.code, fault.level)
            past = present(verdict.memory.codes.get(fault.code), fault.time_ms, now, rules, fault.code)
            tolerance = tolerated.tolerance(fault.code, level)
            raised = moment(fault.time_ms, now) if fault.time_ms else past.first
            hidden = tolerance is not None and now - raised <= tolerance
            if not hidden and self.tolerance is not None:
                hidden = self.tolerance.retried(self.pod_on(chip), chip, fault.code, raised)
            if fate == "wait" or hidden:
                verdict.suspect = explained = True
                verdict.level = worst(verdict.level, level if level in CHIP_LEVELS else SEPARATE)
                seen[fault.code] = past
                continue
            level, source, past = self._windows(verdict, judgement, fault, level, source, past)
            seen[fault.code] = past
            verdict.visible[fault.code] = level
            verdict.raise_to(level, source, network=network)
            explained |= not network and (level not in IN_SERVICE or source.startswith("FaultPolicy/"))
        for fault in self.withheld.get(chip, ()):
            verdict.suspect = True
            verdict.codes.add(fault.code)
            verdict.types.add(fault.kind)
            level = level_of(rules, fault.kind, fault.code, fault.level)[0]
            verdict.level = worst(verdict.level, level if level in CHIP_LEVELS else SEPARATE)
        self._remember(verdict, seen)
        return explained

    def _windows(
        self, verdict: Verdict, judgement: Judgement, fault: ChipFault, level: str, source: str, past: CodeSeen
    ) -> tuple[str, str, CodeSeen]:
        """Apply the code's duration and frequency rules to its base level."""
        key, now = code_key(fault.code), self.now_ms
        duration = judgement.rules.duration.get(key)
        if duration is not None and rank(duration.level) > rank(level):
            if timed_out(past, duration, now):
                level, source = duration.level, duration.rule
                if fault.kind == NETWORK:
                    verdict.raised[fault.code] = level
            else:
                verdict.suspect = True
                verdict.network |= fault.kind == NETWORK
        frequency = judgement.rules.frequency.get(key)
        if frequency is not None and too_often(past, frequency, now):
            until = now + frequency.release_ms if frequency.release_ms else 0
            hold = Hold(kind="frequency", level=frequency.level, since=now, until=until, rule=fault.code)
            kept = tuple(h for h in verdict.memory.holds if (h.kind, h.rule) != ("frequency", fault.code))
            verdict.memory = msgspec.structs.replace(verdict.memory, holds=(*kept, hold))
            past = msgspec.structs.replace(past, occurrences=())  # the next upgrade needs as many new occurrences
        return level, source, past

    def _remember(self, verdict: Verdict, seen: dict[str, CodeSeen]) -> None:
        """Bring the codes of the memory up to date with this report; entries of codes that went fade when unneeded."""
        before = verdict.memory.codes
        if not before and not seen:
            return
        rules, after = self.judge.memory(self.view), dict(seen)
        for code, past in before.items():
            if code not in seen:
                kept = absent(past, self.now_ms, rules, code)
                if kept is None and any((h.kind, h.rule) == ("frequency", code) for h in verdict.memory.holds):
                    # its hold ends so long after the recovery, so the recovery is remembered as long as the hold
                    gone = self.now_ms if past.present else past.recovered
                    kept = msgspec.structs.replace(past, present=False, recovered=gone)
                if kept is not None:
                    after[code] = kept
        if after != before:
            newest = sorted(after, key=lambda code: (not after[code].present, -after[code].last, code))[:MAX_CODES]
            verdict.memory = msgspec.structs.replace(
                verdict.memory, codes={code: after[code] for code in sorted(newest)}
            )

    def _upgrades(self, chip: int, verdict: Verdict) -> bool:
        """Upgrades that the device plugin itself holds (``UpgradeFaultReason``)."""
        explained = False
        for upgrade in self.view.report.upgrades if self.view.report else ():
            if upgrade.chip != chip or not upgrade.level:
                continue
            if upgrade.level == MANUALLY_SEPARATE and self.view.report and not self.view.report.manual >> chip & 1:
                continue  # a person took its name from the key, which deletes every such reason
            network = code_key(upgrade.code) in self.judge.network_codes and upgrade.level != MANUALLY_SEPARATE
            if upgrade.code != _AUTOFILL:
                verdict.codes.add(upgrade.code)
            verdict.raise_to(upgrade.level, f"report#{upgrade.kind}", network=network)
            verdict.types.add(NETWORK if network else CARD)
            explained |= not network and upgrade.level not in IN_SERVICE
        return explained

    def _manual(self, chip: int, verdict: Verdict) -> list[Hold]:
        """What people keep out: the key ``ManuallySeparateNPU``, ClusterD's list and Isolation documents, as holds."""
        report = self.view.report
        wanted: list[tuple[str, int]] = []
        if report and report.manual >> chip & 1:
            verdict.raise_to(MANUALLY_SEPARATE, MANUAL_KEY)
            verdict.types.add(CARD)
            wanted.append((MANUAL_KEY, 0))
        for held in self.held.get(chip, ()):
            verdict.raise_to(MANUALLY_SEPARATE, held.rule)
            if held.rule == LIST_RULE:
                verdict.types.add(CARD)
            wanted.append((held.rule, held.until_ms))
        since = {hold.rule: hold.since for hold in verdict.memory.holds if hold.kind == "manual"}
        return [Hold("manual", MANUALLY_SEPARATE, since.get(rule, self.now_ms), until, rule) for rule, until in wanted]

    def _frequency(self, chip: int, hold: Hold, ended: bool, past: CodeSeen | None, rules: Rules) -> Hold | None:
        """A frequency hold as it stands now; None when its time is over or a person ended it.

        A person ends it by taking the chip's name from the key or the list in which it stood.
        """
        told = self.told is not None and chip in self.told
        if ended or (hold.told and self.told is not None and not told):
            return None
        if hold.rule.startswith(PREFIX):
            if self.manual is None or not self.manual.enabled:
                return None  # switching the rule off gives back all that it took
            until = hold.since + self.manual.release_ms if self.manual.release_ms else 0
            if until and self.now_ms >= until:
                return None
            return msgspec.structs.replace(hold, until=until, told=hold.told or told)
        key = code_key(hold.rule)
        rule = rules.frequency.get(key) or self.judge.memory(self.view).frequency.get(key)
        if rule is None:
            # a rule that is gone takes its upgrades with it, but a chip isolated by hand stays until a person ends it
            kept = hold.level == MANUALLY_SEPARATE
            return msgspec.structs.replace(hold, until=0, told=hold.told or told) if kept else None
        if released(past, hold.since, rule, self.now_ms):
            return None
        until = max(hold.since, past.recovered) + rule.release_ms if past and not past.present else hold.until
        return msgspec.structs.replace(
            hold, level=rule.level, until=until if rule.release_ms else 0, told=hold.told or told
        )

    def _holds(self, chip: int, verdict: Verdict, judgement: Judgement, manual: list[Hold]) -> None:
        """Drop the holds that ended, apply the others, add those of duration rules."""
        rules, now, memory = judgement.rules, self.now_ms, verdict.memory
        before = {hold.rule for hold in memory.holds if hold.kind == "manual"}
        ended = before & {MANUAL_KEY, LIST_RULE} - {hold.rule for hold in manual}
        kept = manual
        for hold in memory.holds:
            if hold.kind == "manual":
                continue
            if hold.kind == "frequency":
                standing = self._frequency(chip, hold, bool(ended), memory.codes.get(hold.rule), rules)
                if standing is None:
                    continue
                hold = standing
            elif hold.kind in ("duration", BAD_BOOT) or (hold.until and now >= hold.until):
                continue
            kept.append(hold)
        for code, past in memory.codes.items():
            rule_for = rules.duration.get(code_key(code))
            if rule_for is not None and lingering(past, rule_for, now):
                until = past.recovered + rule_for.recover_ms
                kept.append(Hold("duration", rule_for.level, since=past.recovered, until=until, rule=code))
        if self.progress.failed >> chip & 1:
            # the reset took the chip with it and did not end well: it waits for a report of the time after
            since = next((hold.since for hold in memory.holds if hold.kind == BAD_BOOT), now)
            kept.append(Hold(BAD_BOOT, "", since=since, rule="resetResult"))
        if tuple(kept) != memory.holds:
            verdict.memory = msgspec.structs.replace(memory, holds=tuple(kept))
        for hold in kept:
            if hold.kind in ("frequency", "duration"):
                network = code_key(hold.rule) in self.judge.network_codes and hold.level != MANUALLY_SEPARATE
                verdict.raise_to(hold.level, f"hold:{hold.kind}", network=network)
                if network:
                    verdict.raised[hold.rule] = worst(verdict.raised.get(hold.rule, NORMAL), hold.level)
                if not hold.rule.startswith(PREFIX):  # failing hardware has no code of its own
                    verdict.codes.add(hold.rule)
                verdict.types.add(NETWORK if network else CARD)

    def _lists(self, chip: int, verdict: Verdict, explained: bool) -> None:
        """The report's own lists: what they name without an element is judged by its neighbours, else as unlisted."""
        report, bit = self.view.report, 1 << chip
        if report is None:
            return
        in_reset = (report.recovering | self.progress.resetting | self.progress.recovering) & bit
        if report.unhealthy & bit and not explained and not in_reset and verdict.effective in IN_SERVICE:
            verdict.raise_to(self._mates_level(chip), "report#Unhealthy")
            verdict.types.add(CARD)
        elements = [f.kind == NETWORK for f in self.faults.get(chip, ())]
        verdict.forgiven = explained and verdict.effective in IN_SERVICE and not verdict.suspect
        if not in_reset and (report.network_unhealthy or 0) & bit and not any(elements):
            verdict.raise_to(PRE_SEPARATE, "report#NetworkUnhealthy", network=True)
            verdict.types.add(NETWORK)
        verdict.forgiven_network = any(elements) and verdict.plane in (NORMAL, NOT_HANDLE)

    def _mates_level(self, chip: int) -> str:
        """A chip that is listed without a fault of its own shares its group's trouble (300I Duo); else SeparateNPU."""
        group = next((g for g in self.view.groups if g >> chip & 1), 0)
        levels = [
            f.level
            for mate, faults in self.faults.items()
            if mate != chip and group >> mate & 1
            for f in faults
            if f.kind != NETWORK and f.level in CHIP_LEVELS and f.level not in IN_SERVICE
        ]
        return worst(*levels) if levels else SEPARATE

    def _consequences(self, chip: int, verdict: Verdict, judgement: Judgement, use: str) -> None:
        action = judgement.action(verdict.effective, use)
        verdict.out = action not in ("ignore", "strategy")
        verdict.hit = action == "reschedule"
        verdict.sub = action == "strategy"
        verdict.tolerated = action == TOLERATE and verdict.effective in HEALED_ONLINE
        bit, progress = 1 << chip, self.progress
        recovering = bool((self.view.report.recovering if self.view.report else 0) & bit)
        blocked = any(hold.kind == "no-agent" for hold in verdict.memory.holds)
        verdict.reset = (
            judgement.action(verdict.effective, IDLE) == "reset"
            and verdict.out
            and verdict.effective != MANUALLY_SEPARATE
            and not blocked
            and not recovering
            and not (progress.resetting | progress.recovering | progress.waiting) & bit
        )
        verdict.network |= verdict.plane not in (NORMAL, NOT_HANDLE)
        if progress.resetting & bit:
            verdict.state = "resetting"
        elif recovering or progress.recovering & bit:
            verdict.state = "recovering"
        elif verdict.effective == MANUALLY_SEPARATE:
            verdict.state = "manually-isolated"
        elif verdict.out:
            verdict.state = "isolated"
        elif verdict.suspect:
            verdict.state = "suspect"
        elif verdict.sub or verdict.effective == SUB_HEALTH or verdict.plane not in (NORMAL, NOT_HANDLE):
            verdict.state = "sub-healthy"


def no_agent(memory: ChipMemory, level: str, now_ms: int) -> ChipMemory:
    """The memory of a faulty chip whose order nobody took in time: closed, and held for a while."""
    if any(hold.kind == "no-agent" for hold in memory.holds):
        return msgspec.structs.replace(memory, ordered=0, recovering=0)
    hold = Hold("no-agent", level, since=now_ms, until=now_ms + UNTAKEN_MS, rule="notAfter")
    return msgspec.structs.replace(memory, ordered=0, recovering=0, holds=(*memory.holds, hold))


def device_names(view: NodeView, chips: Iterable[int]) -> tuple[str, ...]:
    """Device names of chips in ascending order of their ids."""
    return tuple(view.chip(chip) for chip in sorted(chips))
