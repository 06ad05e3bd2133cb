"""The assessment of a chip, and the holds that people placed on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from belay.engine.model.cluster import SwitchReport
from belay.engine.model.history import ChipMemory
from belay.engine.model.levels import (
    CHIP_LEVELS,
    NORMAL,
    SEPARATE,
    rank,
    worst,
)
from belay.engine.model.plan import ChipState, PlaneLevels, RepeatOffender
from belay.engine.model.rules import RuleKind, rule_kind
from belay.engine.model.states import ChipHealth
from belay.engine.plan.rules.fault_rules import FaultRules
from belay.engine.wire import manualinfo

#: Rule of a hold by the key ``ManuallySeparateNPU`` of the report.
MANUAL_KEY: Final = RuleKind.MANUAL_KEY.value
#: Rule of a hold by ClusterD's list of chips isolated for failing too often.
LIST_RULE: Final = f"{RuleKind.MANUAL_LIST.named(manualinfo.NAMESPACE)}/{manualinfo.NAME}#Total"


class ManualHold(NamedTuple):
    """A chip taken out by a person: the rule (Isolation document or ClusterD's list) and the end (Unix ms; 0: open)."""

    rule: str
    until_ms: int

    @property
    def rule_kind(self) -> RuleKind:
        """What kind of rule holds the chip: a document or the list."""
        return rule_kind(self.rule)


@dataclass(slots=True)
class ChipAssessment:
    """Level, state and consequences of one chip.

    ``level`` is the worst level over both planes and withheld codes (shown to people); ``effective`` is the level of
    the chip plane alone (the planner acts on it). ``out_of_service``: takes no new work; ``hit``: the task on it must
    go; ``sub_healthy``: sub-health strategies apply; ``tolerated``: may be healed under its job; ``resettable``: a
    reset may heal it once its group is idle; ``network``: its parameter plane is broken; ``lowered`` and
    ``lowered_network``: a policy lowered every fault for which the report lists the chip. ``visible`` maps each code
    that no filter hides to its level; ``raised`` maps network codes to the levels that rules or holds give them.
    """

    level: str = NORMAL
    effective: str = NORMAL
    plane: str = NORMAL
    codes: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    state: ChipHealth = ChipHealth.HEALTHY
    out_of_service: bool = False
    hit: bool = False
    sub_healthy: bool = False
    tolerated: bool = False
    resettable: bool = False
    network: bool = False
    suspect: bool = False
    lowered: bool = False
    lowered_network: bool = False
    rule: str = ""
    message: str = ""
    memory: ChipMemory = field(default_factory=ChipMemory)
    visible: dict[str, str] = field(default_factory=dict)
    raised: dict[str, str] = field(default_factory=dict)

    def raise_to(self, level: str, rule: str, *, network: bool = False) -> None:
        """Raise the level of a plane, and remember the rule; an unknown word counts as SeparateNPU."""
        level = level if level in CHIP_LEVELS else SEPARATE
        if network:
            self.plane = worst(self.plane, level)
        elif rank(level) > rank(self.effective):
            self.effective, self.rule = level, rule

    @property
    def rule_kind(self) -> RuleKind:
        """What kind of rule set the level of the chip plane."""
        return rule_kind(self.rule)


@dataclass(frozen=True, slots=True)
class Health:
    """What the health pass found in the whole shard, beside the views of nodes and the draft.

    ``rules`` are the fault policies in force. ``chips`` are the rows of the plan's chips, in the order of nodes.
    ``blamed`` maps a pod's key to the strategy of relation faults for it (Separate or SubHealth). ``planes`` are the
    levels of assessed chips, by node. ``switches`` are reports of switches with other levels than the nodes reported.
    """

    rules: FaultRules | None = None
    chips: list[ChipState] = field(default_factory=list)
    blamed: dict[str, str] = field(default_factory=dict)
    planes: dict[str, dict[int, PlaneLevels]] = field(default_factory=dict)
    switches: dict[str, SwitchReport] = field(default_factory=dict)
    repeat_offenders: list[RepeatOffender] = field(default_factory=list)


__all__ = ["LIST_RULE", "MANUAL_KEY", "ManualHold", "ChipAssessment"]
