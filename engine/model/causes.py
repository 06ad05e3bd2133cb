"""What an action is taken for: the one thing in the world without which it would not be planned.

The revision in force is no cause: it says which text was read, and is beside it in the evidence.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from belay.engine.model.last_changes import Place


class CauseKind(StrEnum):
    """What kind of thing a cause is, and so what ends it.

    ``report``: what agents say of hardware. ``condition``: a Node or Pod as Kubernetes sees it. ``document``: a
    document in Git, with the rule in it. ``annotation``: a mark that a person or another program put on an object.
    ``object``: an object that is there, or is as it is. ``decision``: another job's claim by queue or priority.
    """

    REPORT = "report"
    CONDITION = "condition"
    DOCUMENT = "document"
    ANNOTATION = "annotation"
    OBJECT = "object"
    DECISION = "decision"


class Cause(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """One cause. ``subject`` is ``Kind/namespace/name`` or ``Kind/name`` of the object that is the cause.

    ``rule`` is the part of a document, or the rule in Belay, that made it one; ``detail`` what of the subject counts
    (codes, a condition, a label). ``file`` and ``line`` say where a document stands in Git, ``commit`` and ``author``
    which commit changed that file last, and who; ``until`` when a document ends of itself (RFC 3339). ``also`` are
    further causes, each of which would have been enough.
    """

    kind: CauseKind
    subject: str
    rule: str = ""
    detail: str = ""
    file: str = ""
    line: int = 0
    commit: str = ""
    author: str = ""
    until: str = ""
    also: tuple[Cause, ...] = ()

    @property
    def text(self) -> str:
        """The cause for people, in one line."""
        place = Place(self.file, self.line, self.commit, self.author).text
        at = f"at {place}" if place else ""
        said = ", ".join(filter(None, (self.detail, f"until {self.until}" if self.until else "")))
        detail = f"({said})" if said else ""
        one = " ".join(part for part in (self.subject, self.rule, detail, at) if part)
        return "; ".join((one, *(other.text for other in self.also)))

    @property
    def text_without_end(self) -> str:
        """The same without ``until``, for sentences that say the end themselves."""
        return msgspec.structs.replace(self, until="").text


def joined(causes: tuple[Cause, ...]) -> Cause | None:
    """Several causes as one, each named once; None without any."""
    distinct = tuple(dict.fromkeys(causes))
    if not distinct:
        return None
    return msgspec.structs.replace(distinct[0], also=distinct[1:])
