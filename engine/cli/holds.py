"""By what a chip or node is held, as a sentence."""

from __future__ import annotations

from typing import assert_never

from belay.engine.model.history import HOLD_KINDS, HoldKind
from belay.engine.model.holds import Held
from belay.engine.model.rules import RuleKind, rule_kind
from belay.engine.wire import manualinfo, names


def how_held(hold: Held) -> str:
    """By what a chip or node is held, who wrote that, until when, who ends it, and how."""
    return held_sentence(hold.node, hold.kind, hold.rule, hold.by, hold.until)


def held_sentence(node: str, kind: str, rule: str, by: str, until: str) -> str:
    """The same of the words that are published of a hold."""
    head = f"held ({kind}){f' by {by}' if rule else ''}"
    if until:
        return f"{head} until {until}; {_ends_early(node, kind, rule)}"
    return f"{head}: {_ends_early(node, kind, rule)}"


def _ends_early(node: str, kind: str, rule: str) -> str:
    known = HOLD_KINDS.get(kind)
    match known:
        case HoldKind.MANUAL if rule_kind(rule) is RuleKind.ISOLATION:
            return f"it ends when {rule} is deleted from Git"
        case HoldKind.MANUAL if rule_kind(rule) is RuleKind.MANUAL_LIST:
            return f"a person ends it: delete the chip from key {node} of {manualinfo.NAMESPACE}/{manualinfo.NAME}"
        case HoldKind.MANUAL:
            return "a person ends it"
        case HoldKind.FREQUENCY:
            return f"a person ends it: delete the chip from key {node} of ConfigMap {names.SYSTEM}/{names.MANUAL}"
        case HoldKind.BAD_BOOT:
            return "a newer report ends it"
        case HoldKind.ATTEMPT_BUDGET:
            return "a reset is tried again when the window of the attempts moves on; if none helps, replace the part"
        case HoldKind.NO_AGENT:
            return "it ends when the node's agent answers: look at its pod"
        case HoldKind.RESET_PENDING:
            return "it ends with the answer to the reset"
        case HoldKind.DURATION | None:
            return "it ends when the fault's time is over"
        case _:
            assert_never(known)
