"""Every code that reaches people, in words: `belay explain CODE` and docs/reference/codes.md say what stands here.

A code is a CamelCase word that stays: the reason of a condition, an Event or a waiting job where there is one, else
that of an error or a finding. Why a job waits stands in ``pending_reasons`` alone; its rows are put into words here.
"""

from __future__ import annotations

import difflib
from typing import Final

from belay.engine.model.codes.actions import ACTIONS, EVENTS, NOTICES
from belay.engine.model.codes.alerts import ALERTS
from belay.engine.model.codes.conditions import CONDITIONS, TYPES
from belay.engine.model.codes.failures import FAILURES, SOURCE
from belay.engine.model.codes.findings import FINDINGS
from belay.engine.model.codes.levels import KINDS_OF_ACTION, LEVELS
from belay.engine.model.codes.passes import PASSES
from belay.engine.model.codes.rows import CodeGroup, ExplainedCode
from belay.engine.model.pending_reasons import INSUFFICIENT, REASONS

PAGE: Final = "reference/codes.md"
_NEAR: Final = 3


def _pending() -> dict[str, ExplainedCode]:
    rows = {}
    for reason, row in REASONS.items():
        meaning = f"{'A node' if row.of_node else 'The job'} {row.state}."
        way_out = f"{row.way_out[:1].upper()}{row.way_out[1:]}."
        rows[reason] = ExplainedCode(meaning, "", way_out, "reference/pending.md")
    return rows


GROUPS: Final = (
    CodeGroup("Commands that fail", "in brackets at the end of the message", FAILURES),
    CodeGroup("Findings in documents", "in brackets behind each finding of belay validate", FINDINGS),
    CodeGroup("Findings of a pass", "in brackets behind each finding of belay status and belay plan", PASSES),
    CodeGroup("The repository", "as the reason of a condition of the source, and of a file that is left out", SOURCE),
    CodeGroup("Types of conditions", "as the type of a condition", TYPES),
    CodeGroup("Conditions", "as the reason of a condition", CONDITIONS),
    CodeGroup("Why a job waits", "as the reason of a waiting job", _pending()),
    CodeGroup("Levels of faults", "as the level of a chip, a node or a switch", LEVELS),
    CodeGroup("Kinds of actions", "as an action of a plan", KINDS_OF_ACTION),
    CodeGroup("Reasons of actions", "as the reason of an action of a plan and of its Event", ACTIONS),
    CodeGroup("Events", "as the reason of an Event", EVENTS),
    CodeGroup("Notifications", "as an event of a NotificationPolicy", NOTICES),
    CodeGroup("Alerts", "as the name of an alert in Prometheus and Alertmanager", ALERTS),
)


def explained(code: str) -> list[tuple[CodeGroup, ExplainedCode]]:
    """What a code means wherever it is met, however it is capitalised; nothing for what is no code."""
    name = canonical(code)
    return [(group, group.rows[name]) for group in GROUPS if name in group.rows]


def canonical(code: str) -> str:
    """The code as it is written in the table; ``InsufficientCpu`` and the like share a row. Empty where it is none."""
    by_lower = {name.lower(): str(name) for name in codes()}
    lower = code.lower()
    if lower not in by_lower and lower.startswith(INSUFFICIENT.lower()):
        return INSUFFICIENT
    return by_lower.get(lower, "")


def codes() -> list[str]:
    """Every code, once, in the order of the alphabet."""
    return sorted({str(name) for group in GROUPS for name in group.rows})


def near(code: str) -> list[str]:
    """Codes that were probably meant."""
    by_lower = {name.lower(): name for name in codes()}
    return [by_lower[one] for one in difflib.get_close_matches(code.lower(), list(by_lower), n=_NEAR, cutoff=0.6)]


__all__ = ["GROUPS", "PAGE", "CodeGroup", "ExplainedCode", "canonical", "codes", "explained", "near"]
