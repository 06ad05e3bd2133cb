"""Kind ``DiagnosisRules``: what lines of logs mean, and what to do.

Rules compare plain texts and no regular expressions, so that no rule makes an agent slow. What the codes mean is
stated in our own words after public documents: CANN's "Troubleshooting" and "HCCL User Guide", MindCluster's "Fault
Diagnosis".
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints, field_validator

from belay.engine.documents.kinds import BelayDocument
from belay.engine.documents.scalars import Document
from belay.engine.model.log_evidence import MAX_ALTERNATIVES, MAX_RULES, MAX_TEXTS, EventRole, LogRule, LogSource

Fragment = Annotated[str, StringConstraints(min_length=3, max_length=200)]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=600)]
EventCode = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{1,62}$")]


class LocalText(Document):
    """A text in English and Chinese; without ``zh`` the English one is shown."""

    en: Sentence
    zh: Sentence | None = None

    def of(self, language: str) -> str:
        """The text in a language, ``en`` or ``zh``."""
        return self.zh if language == "zh" and self.zh else self.en


class DiagnosisRule(Document):
    """A line is an event ``code`` when it holds every text of one alternative in ``match``.

    ``role``: ``cause`` may be the root of a failure, ``collective`` says that the rank waited for others, ``symptom``
    follows from something else. Without ``sources`` it looks at all logs. ``priority``: of two causes at about the same
    time the higher one is shown as the root.
    """

    code: EventCode
    role: Literal["cause", "collective", "symptom"]
    match: Annotated[
        tuple[Annotated[tuple[Fragment, ...], Field(min_length=1, max_length=MAX_TEXTS)], ...],
        Field(min_length=1, max_length=MAX_ALTERNATIVES),
    ]
    sources: tuple[
        Literal["training", "plog", "device", "inference", "host", "component", "bmc", "switch", "check"], ...
    ] = ()
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    title: LocalText
    advice: LocalText
    reference: Annotated[str, StringConstraints(max_length=300)] | None = None

    def log_rule(self) -> LogRule:
        """What an agent needs of it."""
        return LogRule(self.code, EventRole(self.role), self.match, tuple(LogSource(name) for name in self.sources))


class DiagnosisRulesSpec(Document):
    """Rules by code; the first line of a document that matches several rules counts for each."""

    rules: Annotated[tuple[DiagnosisRule, ...], Field(min_length=1, max_length=MAX_RULES)]

    @field_validator("rules")
    @classmethod
    def _unique(cls, rules: tuple[DiagnosisRule, ...]) -> tuple[DiagnosisRule, ...]:
        seen: set[str] = set()
        for rule in rules:
            if rule.code in seen:
                raise ValueError(f"code {rule.code} is there twice")
            seen.add(rule.code)
        return rules


class DiagnosisRules(BelayDocument):
    """Rules about lines of logs. A repository's rule replaces the shipped one of its code."""

    KIND: ClassVar[str] = "DiagnosisRules"
    kind: Literal["DiagnosisRules"]
    spec: DiagnosisRulesSpec
