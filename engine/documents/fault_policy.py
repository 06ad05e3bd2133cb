"""Kind ``FaultPolicy``: what people decide about faults, laid over the shipped tables.

Rule fields and ranges follow ``faultCustomization.json``
(docs/zh/scheduling/04_usage/04_resumable_training/03_configuration/01_configuring_fault_detection_levels.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictInt, model_validator

from engine.documents.kinds import BelayDocument
from engine.documents.scalars import Code, Count, Document, Duration, Flag, Name, Positive, Text

Level = Literal[
    "NotHandleFault", "SubHealthFault", "RestartRequest", "RestartBusiness", "FreeRestartNPU", "RestartNPU",
    "PreSeparateNPU", "SeparateNPU", "ManuallySeparateNPU", "RestartRequestFault", "PreSeparateFault", "SeparateFault",
]  # fmt: skip
"""Chip levels, then the words that only the switch and node tables use."""

TOLERABLE = ("RestartRequest", "RestartBusiness", "FreeRestartNPU", "RestartNPU")
"""Levels that can be healed under a job; a FreeRestartNPU chip waits until the job leaves it."""

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
        if self.release_after is None and self.level != "ManuallySeparateNPU":
            raise ValueError("releaseAfter is required unless level is ManuallySeparateNPU")
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
        if self.level == "ManuallySeparateNPU":
            raise ValueError("a duration rule cannot isolate for good: use a frequency rule")
        return self


class Scope(Document):
    """Where a policy holds: every list that is given must match, an empty one matches all."""

    pools: tuple[Name, ...] = ()
    products: tuple[Name, ...] = ()
    nodes: tuple[Name, ...] = ()
    workloads: tuple[Literal["training", "inference"], ...] = ()


class LevelActions(Document):
    """What a level does to a chip in use by training or by inference, and to an idle one.

    In use: ``ignore`` nothing; ``keep`` the pod stays, no new work; ``strategy`` what the job's ``subHealthyStrategy``
    says; ``reschedule`` the pod goes as its ``fault-scheduling`` label says; ``tolerate`` (training, levels
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


class LemonSettings(Document):
    """Chips that fail again and again: each failure counts one and halves with every ``half_life`` (1m to 8760h).

    ``avoid``: from ``threshold`` failures on, placement takes such a chip only where no other is as good; ``off``:
    failures are neither remembered nor avoided.
    """

    mode: Literal["avoid", "off"] = "avoid"
    half_life: Duration = 604_800.0
    threshold: Annotated[float, Field(gt=0, le=64)] = 2.0

    @model_validator(mode="after")
    def _in_range(self) -> LemonSettings:
        if not 60 <= self.half_life <= 31_536_000:
            raise ValueError("halfLife must be between 1m and 8760h")
        return self


class TimelineEvent(Document):
    """One thing that happens in a policy test, ``at`` seconds after its start.

    ``occur`` raises the code (again: a new occurrence), ``recover`` ends it, ``once`` is an event without a duration.
    ``use`` is what the chip is used for from now on (default: the first workload of the scope, else idle). ``node``
    left out is a server that the scope covers.
    """

    at: Duration
    code: Code
    assertion: Literal["occur", "recover", "once"] = "occur"
    node: Name = "node"
    chip: Count = 0
    use: Literal["training", "inference", "idle"] | None = None


class Expectation(Document):
    """What must hold ``at`` seconds after the start, events of that moment included; fields left out are not looked at.

    ``level`` is the worst of the chip's planes. ``in_service``: new single-pod work may take it; ``distributed``: new
    work of several pods may, too (its parameter plane is well). ``action``: what becomes of it, in the words of
    ``spec.actions``; a broken parameter plane alone is ``ignore``.
    """

    at: Duration
    node: Name = "node"
    chip: Count = 0
    level: Literal["NormalNPU"] | Level | None = None
    in_service: Flag | None = None
    distributed: Flag | None = None
    action: Literal["ignore", "keep", "strategy", "reschedule", "tolerate", "isolate", "reset"] | None = None


class PolicyTest(Document):
    """A story with its expected ends; ``belay validate`` plays it."""

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
    """Overrides; whatever is left out stays as the shipped tables say."""

    scope: Scope = Scope()
    mode: Literal["enforce", "shadow"] = "enforce"
    levels: Mapping[Code, Level] = Field(default_factory=dict)
    frequency: tuple[FrequencyRule, ...] = ()
    duration: tuple[DurationRule, ...] = ()
    actions: Mapping[Level, LevelActions] = Field(default_factory=dict)
    attempts: AttemptBudgets = AttemptBudgets()
    lemons: LemonSettings | None = None
    tests: tuple[PolicyTest, ...] = ()

    @model_validator(mode="after")
    def _tolerable(self) -> FaultPolicySpec:
        for level, actions in self.actions.items():
            if actions.training == "tolerate" and level not in TOLERABLE:
                raise ValueError(f"actions.{level}.training: tolerate is for {', '.join(TOLERABLE)}")
        return self


class FaultPolicy(BelayDocument):
    """What a fault code means here, and what follows from its level."""

    KIND: ClassVar[str] = "FaultPolicy"
    kind: Literal["FaultPolicy"]
    spec: FaultPolicySpec

    @cached_property
    def code_levels(self) -> Mapping[str, str]:
        """Overridden codes in upper case with their level."""
        return {code.upper(): level for code, level in self.spec.levels.items()}

    def level_of(self, code: str) -> str | None:
        """The level this policy gives a code, whatever its case; ``None`` leaves it to the tables."""
        return self.code_levels.get(code.upper())


__all__ = [
    "AttemptBudgets", "Attempts", "Codes", "DurationRule", "Expectation", "FaultPolicy", "FaultPolicySpec",
    "FrequencyRule", "LemonSettings", "Level", "LevelActions", "PolicyTest", "Positive", "Scope", "TimelineEvent",
]  # fmt: skip
