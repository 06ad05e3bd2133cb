"""Kind ``FaultPolicy``: people's decisions about faults, which override the shipped tables.

Rule fields and ranges follow ``faultCustomization.json``
(docs/zh/scheduling/04_usage/04_resumable_training/03_configuration/01_configuring_fault_detection_levels.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from pydantic import Field, StrictInt, StringConstraints, model_validator

from belay.engine.documents.kinds import BelayDocument
from belay.engine.documents.scalars import Code, Count, Document, Duration, Flag, Name, Positive, Text
from belay.engine.model.cluster import JUDGED_OTHERWISE
from belay.engine.model.levels import (
    MANUALLY_SEPARATE,
    RESETTABLE,
    FaultLevel,
    NodeLevel,
    SwitchTableLevel,
)

if TYPE_CHECKING:
    Level = str
    NormalLevel = str
    OfNodes = str
else:
    Level = Literal[
        *(level.value for level in FaultLevel if level is not FaultLevel.NORMAL),
        SwitchTableLevel.RESTART_REQUEST.value, NodeLevel.PRE_SEPARATE.value, NodeLevel.SEPARATE.value,
    ]  # fmt: skip
    NormalLevel = Literal[FaultLevel.NORMAL.value]
    OfNodes = Literal[*(level.value for level in NodeLevel)]
"""Chip levels, then the words that only the switch and node tables use."""

TOLERABLE = tuple(level.value for level in FaultLevel if level in RESETTABLE)
"""Levels that can be healed under a job; a FreeRestartNPU chip waits until the job leaves it."""

#: How a chip is used by the pod on it.
TRAINING: Final = "training"
INFERENCE: Final = "inference"
IDLE: Final = "idle"

ConditionType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,314}[A-Za-z0-9])?$")]
Codes = Annotated[tuple[Code, ...], Field(min_length=1)]


class FrequencyRule(Document):
    """``times`` occurrences of one code within ``window`` raise the chip to ``level``.

    The upgrade is dropped after ``release_after`` seconds without the fault; ``None`` means a person releases it.
    """

    codes: Codes
    times: Annotated[StrictInt, Field(ge=1, le=100)]
    window: Duration
    level: Level
    release_after: Duration | None = None

    @model_validator(mode="after")
    def _in_range(self) -> FrequencyRule:
        if not 60 <= self.window <= 864_000:
            raise ValueError("window must be between 60s and 240h")
        if self.release_after is not None and not 60 <= self.release_after <= 2**32:
            raise ValueError("releaseAfter must be between 60s and 2^32 seconds")
        if self.release_after is None and self.level != MANUALLY_SEPARATE:
            raise ValueError(f"releaseAfter is required unless level is {MANUALLY_SEPARATE}")
        return self


class DurationRule(Document):
    """A fault present for longer than ``timeout`` has ``level`` until it is absent for longer than ``recover``."""

    codes: Codes
    timeout: Duration
    recover: Duration
    level: Level

    @model_validator(mode="after")
    def _in_range(self) -> DurationRule:
        if self.timeout > 600:
            raise ValueError("timeout must be at most 10m")
        if self.recover > 86_400:
            raise ValueError("recover must be at most 24h")
        if self.level == MANUALLY_SEPARATE:
            raise ValueError("a duration rule cannot isolate permanently: use a frequency rule")
        return self


class ConditionRule(Document):
    """A condition of a Node, as the Node Problem Detector and others set it, is a fault of the whole node.

    It is one while the condition has had ``status`` for at least ``lasting`` seconds, for one of ``reasons`` where any
    are given. A node is only ever kept from work for it: nothing is reset.
    """

    type: ConditionType
    status: Literal["True", "False", "Unknown"] = "True"
    reasons: tuple[Text, ...] = ()
    level: OfNodes
    lasting: Duration = 60.0

    @model_validator(mode="after")
    def _in_range(self) -> ConditionRule:
        if self.lasting > 86_400:
            raise ValueError("lasting must be at most 24h")
        if self.type in JUDGED_OTHERWISE:
            raise ValueError(f"Belay judges the condition {self.type} itself: remove this row")
        return self


class PolicyScope(Document):
    """Where a policy applies: every list must match; an empty one matches all."""

    pools: tuple[Name, ...] = ()
    products: tuple[Name, ...] = ()
    nodes: tuple[Name, ...] = ()
    workloads: tuple[Literal["training", "inference"], ...] = ()


class LevelActions(Document):
    """What a level does to a chip in use by training or by inference, and to an idle one.

    In use: ``ignore`` nothing; ``keep`` the pod stays, no new work; ``strategy`` what the job's ``subHealthyStrategy``
    says; ``reschedule`` the pod is evicted as its ``fault-scheduling`` label says; ``tolerate`` (training, levels
    RestartRequest to RestartNPU) the chip is healed under the pod where the job has ``reset-config-<job>`` and holds
    every chip that resets with it, else as ``reschedule``. Idle: ``ignore``; ``isolate`` no new
    work; ``reset`` isolate and reset.
    """

    training: Literal["ignore", "keep", "strategy", "reschedule", "tolerate"] | None = None
    inference: Literal["ignore", "keep", "strategy", "reschedule"] | None = None
    idle: Literal["ignore", "isolate", "reset"] | None = None


class Attempts(Document):
    """At most ``max`` tries within any ``window`` of time."""

    max: Count
    window: Duration


class AttemptBudgets(Document):
    """How often one chip group is reset and one job rescheduled."""

    reset: Attempts | None = None
    reschedule: Attempts | None = None


class RepeatOffenderSettings(Document):
    """Chips that fail again and again: each failure counts one and halves with every ``half_life`` (1m to 8760h).

    ``avoid``: from ``threshold`` failures on, placement takes such a chip only where no other is as good. ``off``:
    failures are not remembered.
    """

    mode: Literal["avoid", "off"] = "avoid"
    half_life: Duration = 604_800.0
    threshold: Annotated[float, Field(gt=0, le=64)] = 2.0

    @model_validator(mode="after")
    def _in_range(self) -> RepeatOffenderSettings:
        if not 60 <= self.half_life <= 31_536_000:
            raise ValueError("halfLife must be between 1m and 8760h")
        return self


class TimelineEvent(Document):
    """One event of a policy test, ``at`` seconds after its start.

    ``occur`` raises the code (again: a new occurrence), ``recover`` ends it, ``once`` is an event without a duration.
    ``use`` is what the chip is used for from then on (default: the first workload of the scope, else idle). Without
    ``node`` the event is on a server that the scope covers.
    """

    at: Duration
    code: Code
    assertion: Literal["occur", "recover", "once"] = "occur"
    node: Name = "node"
    chip: Count = 0
    use: Literal["training", "inference", "idle"] | None = None


class Expectation(Document):
    """What must hold ``at`` seconds after the start, events of that moment included; fields left out are not checked.

    ``level`` is the worst of the chip's planes. ``in_service``: new single-pod work may take it; ``distributed``: new
    work of several pods may, too (its parameter plane is healthy). ``action``: the action, in the words of
    ``spec.actions``; a broken parameter plane alone is ``ignore``.
    """

    at: Duration
    node: Name = "node"
    chip: Count = 0
    level: NormalLevel | Level | None = None
    in_service: Flag | None = None
    distributed: Flag | None = None
    action: Literal["ignore", "keep", "strategy", "reschedule", "tolerate", "isolate", "reset"] | None = None


class PolicyTest(Document):
    """A timeline of faults with expectations; ``belay validate`` plays it."""

    name: Text | None = None
    timeline: Annotated[tuple[TimelineEvent, ...], Field(min_length=1, max_length=10_000)]
    expect: Annotated[tuple[Expectation, ...], Field(min_length=1, max_length=10_000)]

    @model_validator(mode="after")
    def _in_order(self) -> PolicyTest:
        moments = [event.at for event in self.timeline]
        if moments != sorted(moments):
            raise ValueError("the timeline must be in order of time")
        return self


class FaultPolicySpec(Document):
    """Overrides of the shipped tables."""

    scope: PolicyScope = PolicyScope()
    mode: Literal["enforce", "shadow"] = "enforce"
    levels: Mapping[Code, Level] = Field(default_factory=dict)
    frequency: tuple[FrequencyRule, ...] = ()
    duration: tuple[DurationRule, ...] = ()
    conditions: Annotated[tuple[ConditionRule, ...], Field(max_length=256)] = ()
    actions: Mapping[Level, LevelActions] = Field(default_factory=dict)
    attempts: AttemptBudgets = AttemptBudgets()
    lemons: RepeatOffenderSettings | None = None
    tests: tuple[PolicyTest, ...] = ()

    @model_validator(mode="after")
    def _tolerable(self) -> FaultPolicySpec:
        for level, actions in self.actions.items():
            if actions.training == "tolerate" and level not in TOLERABLE:
                raise ValueError(f"actions.{level}.training: tolerate is for {', '.join(TOLERABLE)}")
        return self


class FaultPolicy(BelayDocument):
    """Levels of fault codes, and actions of levels."""

    KIND: ClassVar[str] = "FaultPolicy"
    kind: Literal["FaultPolicy"]
    spec: FaultPolicySpec

    @cached_property
    def code_levels(self) -> Mapping[str, str]:
        """Levels of overridden codes, by upper-case code."""
        return {code.upper(): level for code, level in self.spec.levels.items()}

    def level_of(self, code: str) -> str | None:
        """The level that this policy gives a code (case-insensitive); ``None`` leaves it to the tables."""
        return self.code_levels.get(code.upper())


__all__ = [
    "AttemptBudgets", "Attempts", "Codes", "ConditionRule", "DurationRule", "Expectation", "FaultPolicy",
    "FaultPolicySpec", "FrequencyRule", "Level", "LevelActions", "PolicyScope", "PolicyTest", "Positive",
    "RepeatOffenderSettings", "TimelineEvent",
]  # fmt: skip
