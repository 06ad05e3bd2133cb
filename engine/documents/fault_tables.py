"""Kind ``FaultTable``: fault codes with their levels, as MindCluster ships them.

Sources: component/ascend-device-plugin/build/{faultCode,SwitchFaultCode,faultCustomization}.json,
component/noded/build/NodeDConfiguration.json, component/clusterd/build/publicFaultConfiguration.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints, model_validator

from belay.engine.documents.fault_policy import DurationRule, FrequencyRule, Level
from belay.engine.documents.kinds import BelayDocument
from belay.engine.documents.scalars import Code, Document, Text

Plane = Literal["chip", "switch", "node", "public", "container"]


class CodeDetail(Document):
    """Details of a code; ``plane`` is ``network`` for the parameter plane and ``hyper`` for the UB plane."""

    plane: Literal["network", "hyper"] | None = None
    module: Text | None = None
    kind: Text | None = None
    description: Text | None = None


class UnlistedRule(Document):
    """What a code means that no list contains.

    ``level`` (plane ``chip``): its level follows from the event's severity, else ``otherwise``, and ``network`` on the
    parameter plane. ``reject`` (``public``): the message that contains it is refused. ``drop`` (the others): it is not
    reported.
    """

    rule: Literal["level", "drop", "reject"]
    by_severity: Mapping[Annotated[str, StringConstraints(pattern=r"^[0-9]$")], Level] = Field(default_factory=dict)
    otherwise: Level | None = None
    network: Level | None = None


class FaultTableSpec(Document):
    """``severity`` lists the levels from low to high; a code under two levels has the higher."""

    plane: Plane
    severity: Annotated[tuple[Level, ...], Field(min_length=1)]
    levels: Mapping[Level, tuple[Code, ...]]
    codes: Mapping[Code, CodeDetail] = Field(default_factory=dict)
    unlisted: UnlistedRule
    frequency: tuple[FrequencyRule, ...] = ()
    duration: tuple[DurationRule, ...] = ()
    senders: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _levels_are_ordered(self) -> FaultTableSpec:
        if len(set(self.severity)) != len(self.severity):
            raise ValueError("severity names a level twice")
        for level in self.levels:
            if level not in self.severity:
                raise ValueError(f"level {level} has no place in severity")
        return self

    @model_validator(mode="after")
    def _unlisted_fits_the_plane(self) -> FaultTableSpec:
        due = {"chip": "level", "public": "reject"}.get(self.plane, "drop")
        if self.unlisted.rule != due:
            raise ValueError(f"unlisted.rule of the plane {self.plane} can only be {due}")
        if due == "level" and self.unlisted.otherwise is None:
            raise ValueError("unlisted.otherwise is missing: a code that no list contains needs a level")
        return self


class FaultTable(BelayDocument):
    """The levels of one plane's codes."""

    KIND: ClassVar[str] = "FaultTable"
    kind: Literal["FaultTable"]
    spec: FaultTableSpec

    @cached_property
    def code_levels(self) -> Mapping[str, str]:
        """Levels of listed codes, by upper-case code."""
        return {code.upper(): level for level in self.spec.severity for code in self.spec.levels.get(level, ())}

    @cached_property
    def details(self) -> Mapping[str, CodeDetail]:
        """Details of codes, by upper-case code."""
        return {code.upper(): detail for code, detail in self.spec.codes.items()}

    @cached_property
    def frequency_rules(self) -> Mapping[str, FrequencyRule]:
        """The first frequency rule of each code, by upper-case code."""
        return {code.upper(): rule for rule in reversed(self.spec.frequency) for code in rule.codes}

    def level_of(self, code: str) -> str | None:
        """The level of a listed code (case-insensitive); ``None`` for others."""
        return self.code_levels.get(code.upper())
