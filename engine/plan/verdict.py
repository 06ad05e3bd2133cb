"""What the judgement of a chip comes to, and who may have taken it out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from engine.model.history import ChipMemory
from engine.model.levels import CHIP_LEVELS, NORMAL, SEPARATE, rank, worst
from engine.wire import manualinfo

#: The rule that holds a chip which its agent names in the report.
MANUAL_KEY: Final = "report#ManuallySeparateNPU"
#: The rule that holds a chip which the list of holds for failing too often names.
LIST_RULE: Final = f"ConfigMap/{manualinfo.NAMESPACE}/{manualinfo.NAME}#Total"


class Held(NamedTuple):
    """A chip taken out by hand: the rule of the Isolation document or of ClusterD's list, and its end (0: open)."""

    rule: str
    until_ms: int


@dataclass(slots=True)
class Verdict:
    """What is known and decided about one chip.

    ``level`` is the worst over both planes and withheld codes (what people see); ``effective`` the chip plane's
    alone (what acts). ``out``: takes no new work; ``hit``: the task on it must go; ``sub``: sub-health strategies
    apply; ``tolerated``: it may be healed under its job; ``reset``: a reset may heal it once its group is idle;
    ``network``: its parameter plane is broken; ``forgiven``/``forgiven_network``: a policy lowered all that the
    report's lists name it for. ``visible`` are the codes that nothing hides, with their levels; ``raised`` the levels
    of network codes that rules or holds give.
    """

    level: str = NORMAL
    effective: str = NORMAL
    plane: str = NORMAL
    codes: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    state: str = "healthy"
    out: bool = False
    hit: bool = False
    sub: bool = False
    tolerated: bool = False
    reset: bool = False
    network: bool = False
    suspect: bool = False
    forgiven: bool = False
    forgiven_network: bool = False
    rule: str = ""
    message: str = ""
    memory: ChipMemory = field(default_factory=ChipMemory)
    visible: dict[str, str] = field(default_factory=dict)
    raised: dict[str, str] = field(default_factory=dict)

    def raise_to(self, level: str, rule: str, *, network: bool = False) -> None:
        """Take a level into account, with the rule that gave it; a word that nobody knows counts as SeparateNPU."""
        level = level if level in CHIP_LEVELS else SEPARATE
        if network:
            self.plane = worst(self.plane, level)
        elif rank(level) > rank(self.effective):
            self.effective, self.rule = level, rule


__all__ = ["LIST_RULE", "MANUAL_KEY", "Held", "Verdict"]
