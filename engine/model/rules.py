"""Names of rules (``Evidence.rule``, ``Hold.rule``, ``ChipMemory.rule``): what kind of thing decided, and its name.

A rule is named in one line: the document and its part (``FaultPolicy/lab#levels``), the word of a pass (``sync``), or a
word and a value (``fault-scheduling=grace``). Plans, histories and recordings hold these lines, so they stay as they
are. Decisions ask for the kind (:func:`rule_kind`), never for the line.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from belay.engine.model import labels
from belay.engine.model.levels import MANUALLY_SEPARATE


class RuleKind(StrEnum):
    """What a rule's name begins with; ``OTHER`` is every rule by which nothing else is decided.

    ``MANUAL_KEY`` and ``MANUAL_LIST`` are chips that people took out: in a node's report, and in ClusterD's list.
    """

    ISOLATION = "Isolation"
    FAULT_POLICY = "FaultPolicy"
    FAULT_TABLE = "FaultTable"
    MANUAL_LIST = "ConfigMap"
    MANUAL_KEY = f"report#{MANUALLY_SEPARATE.value}"
    REPORT = "report"
    HOLD = "hold"
    HARDWARE = "hardware"
    SYNC = "sync"
    EXPANSION = "expand"
    FAULT_SCHEDULING = labels.FAULT_SCHEDULING
    OTHER = ""

    def named(self, name: object) -> str:
        """The name of a rule of this kind."""
        return f"{self.value}{_SEPARATORS[self]}{name}"

    def name_in(self, rule: str) -> str:
        """What :meth:`named` was given; a rule of another kind unchanged."""
        return rule.removeprefix(f"{self.value}{_SEPARATORS[self]}")


_SEPARATORS: Final[dict[RuleKind, str]] = {
    RuleKind.ISOLATION: "/",
    RuleKind.FAULT_POLICY: "/",
    RuleKind.FAULT_TABLE: "/",
    RuleKind.MANUAL_LIST: "/",
    RuleKind.REPORT: "#",
    RuleKind.HOLD: ":",
    RuleKind.HARDWARE: ":",
    RuleKind.FAULT_SCHEDULING: "=",
}
"""What stands between the word of a kind and the name; kinds without one are whole names."""

_WHOLE: Final[dict[str, RuleKind]] = {
    kind.value: kind
    for kind in (
        RuleKind.MANUAL_KEY,
        RuleKind.REPORT,
        RuleKind.SYNC,
        RuleKind.EXPANSION,
        RuleKind.FAULT_SCHEDULING,
    )
}
_HEADS: Final[dict[str, RuleKind]] = {f"{kind.value}{mark}": kind for kind, mark in _SEPARATORS.items()}

#: Kinds that are documents in Git by which people decide about chips.
DOCUMENTS: Final = frozenset({RuleKind.ISOLATION, RuleKind.FAULT_POLICY})
#: Kinds by which a chip is kept out whatever its report says: by people, or for a time.
KEEPING_OUT: Final = frozenset({RuleKind.HOLD, RuleKind.ISOLATION, RuleKind.MANUAL_KEY, RuleKind.MANUAL_LIST})


def rule_kind(rule: str) -> RuleKind:
    """The kind of a rule by its name."""
    whole = _WHOLE.get(rule)
    if whole is not None:
        return whole

    for head, kind in _HEADS.items():
        if rule.startswith(head):
            return kind
    return RuleKind.OTHER


def document_and_part(rule: str) -> tuple[str, str]:
    """The document of a rule (``FaultPolicy/lab``) and its part (``levels``); the part is empty if none is named."""
    document, _, part = rule.partition("#")
    return document, part
