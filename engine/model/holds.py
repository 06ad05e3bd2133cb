"""What holds a chip or a node, for people: the row of a plan."""

from __future__ import annotations

import msgspec

from belay.engine.model.causes import Cause
from belay.engine.model.history import Hold
from belay.engine.model.last_changes import Place
from belay.engine.model.rules import RuleKind, rule_kind
from belay.engine.model.times import rfc3339


class Held(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One hold. ``chip`` is empty if the whole node is held.

    ``kind`` is a ``HoldKind``, ``rule`` the code, list or document that holds, ``policy`` the rule of a FaultPolicy or
    table behind a code. ``until`` is RFC 3339, empty where only a person ends it. ``cause`` is the document behind it,
    with its reason, author and place; None if no document of the repository is.
    """

    node: str
    chip: str
    kind: str
    rule: str = ""
    policy: str = ""
    level: str = ""
    until: str = ""
    cause: Cause | None = None

    @classmethod
    def of(cls, node: str, chip: str, hold: Hold, cause: Cause | None) -> Held:
        """A chip's hold with its cause."""
        until = rfc3339(hold.until / 1000) if hold.until else ""
        return cls(node, chip, hold.kind, hold.rule, hold.policy, hold.level, until, cause)

    @property
    def by(self) -> str:
        """The code, list or document that holds, and the document behind it with reason, place and author."""
        cause = self.cause
        if cause is None:
            return f"{self.rule} of {self.policy}" if self.policy else self.rule

        place = Place(cause.file, cause.line, cause.commit, cause.author).text
        if rule_kind(self.rule) is RuleKind.ISOLATION:
            return f"{self.rule}{_in_brackets(cause.detail, place)}"
        # the codes of a policy's hold stand before it already
        rule = f"#{cause.rule}" if cause.rule else ""
        return f"{self.rule} of {cause.subject}{rule}{_in_brackets(place)}"


def _in_brackets(*parts: str) -> str:
    said = ", ".join(part for part in parts if part)
    return f" ({said})" if said else ""
