"""By which rules a chip is judged: the fault policies in scope over the shipped tables, compiled once per scope.

A policy that is not ``enforce`` judges nothing; what it would change is told as a diagnostic. Shipped policies come
first, then the repository's by name; a later one wins over earlier ones, and every policy over the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from engine.documents import Declared, Desired, DurationRule, FaultPolicy, FaultTable, FrequencyRule
from engine.model.actions import Evidence
from engine.model.cluster import Pod
from engine.model.diagnostics import Origin
from engine.model.faults import Duration, Frequency, Rules, Unlisted, code_key
from engine.model.lemons import LemonRules
from engine.model.levels import (
    FREE_RESTART,
    MANUALLY_SEPARATE,
    NORMAL,
    NOT_HANDLE,
    PRE_SEPARATE,
    RESTART,
    RESTART_BUSINESS,
    RESTART_REQUEST,
    SEPARATE,
    SUB_HEALTH,
)
from engine.plan.scope import NodeView

TRAINING: Final = "training"
INFERENCE: Final = "inference"
IDLE: Final = "idle"

#: Owners that serve requests; every other owner trains (docs/zh/scheduling: inference jobs are Deployments and sets).
SERVING: Final = frozenset(
    {"Deployment", "ReplicaSet", "StatefulSet", "InferService", "InferServiceSet", "InstanceSet"}
)


class LevelAction(NamedTuple):
    """What a level does to a chip in use by either class of work, and to an idle one (``FaultPolicy.spec.actions``)."""

    training: str
    inference: str
    idle: str

    def of(self, use: str) -> str:
        """The action for ``training``, ``inference`` or ``idle``."""
        return self.idle if use == IDLE else self.inference if use == INFERENCE else self.training


_RESET = LevelAction("reschedule", "reschedule", "reset")
_SEPARATED = LevelAction("reschedule", "reschedule", "isolate")
#: The reference's behaviour per level.
DEFAULT_ACTIONS: Final[dict[str, LevelAction]] = {
    NORMAL: LevelAction("ignore", "ignore", "ignore"),
    NOT_HANDLE: LevelAction("ignore", "ignore", "ignore"),
    SUB_HEALTH: LevelAction("strategy", "strategy", "ignore"),
    RESTART_REQUEST: _RESET,
    RESTART_BUSINESS: _RESET,
    FREE_RESTART: _RESET,
    RESTART: _RESET,
    PRE_SEPARATE: LevelAction("keep", "keep", "isolate"),
    SEPARATE: _SEPARATED,
    MANUALLY_SEPARATE: _SEPARATED,
}

#: What the switch and node tables call a chip level, and the other way round.
TO_NODE: Final[dict[str, str]] = {
    PRE_SEPARATE: "PreSeparateFault",
    SEPARATE: "SeparateFault",
    MANUALLY_SEPARATE: "SeparateFault",
    "PreSeparateFault": "PreSeparateFault",
    "SeparateFault": "SeparateFault",
}
TO_CHIP: Final[dict[str, str]] = {
    "RestartRequestFault": RESTART_REQUEST,
    "PreSeparateFault": PRE_SEPARATE,
    "SeparateFault": SEPARATE,
}

DEFAULT_ATTEMPTS: Final = (3, 6 * 3600 * 1000)


class Judgement(NamedTuple):
    """The compiled rules of one scope: codes, actions per level, attempts as (most, window in ms).

    ``lemons`` None: failures are not remembered.
    """

    rules: Rules
    actions: dict[str, LevelAction]
    reset_attempts: tuple[int, int]
    reschedule_attempts: tuple[int, int]
    lemons: LemonRules | None = LemonRules()

    def action(self, level: str, use: str) -> str:
        """What the level does to a chip that is used so; an unknown level acts as SeparateNPU."""
        return self.actions.get(level, _SEPARATED).of(use)


class Judge:
    """Compiles judgements; remembers them per combination of policies."""

    def __init__(self, desired: Desired, policies: Iterable[Declared[FaultPolicy]]) -> None:
        self._policies = tuple(policies)
        self._desired = desired
        self._known: dict[tuple[int, ...], Judgement] = {}

    @cached_property
    def _base(self) -> Rules:
        """The shipped rules; compiled on first use, since most passes see no fault."""
        return _shipped(self._desired)

    @cached_property
    def network_codes(self) -> frozenset[str]:
        """Codes of the parameter and UB planes."""
        return _network_codes(self._desired)

    def of(self, view: NodeView, use: str) -> Judgement:
        """The judgement for a node's chips that are used so."""
        return self._compiled(self._in_scope(view, use, "enforce"))

    def for_pool(self, pool: str, product: str) -> Judgement:
        """The judgement for all of a pool, which its agents use when they are alone: policies for single nodes or
        workloads are left out."""
        covering = tuple(
            i
            for i, item in enumerate(self._policies)
            if (spec := item.document.spec).mode == "enforce"
            and (not spec.scope.pools or pool in spec.scope.pools)
            and (not spec.scope.products or product in spec.scope.products)
            and not spec.scope.nodes
            and not spec.scope.workloads
        )
        return self._compiled(covering)

    def shadows(self, view: NodeView, use: str) -> list[tuple[str, Judgement]]:
        """What each shadow policy in scope would make of it: its name, and the judgement with it in force."""
        enforced = self._in_scope(view, use, "enforce")
        return [
            (self._policies[i].document.name, self._compiled(tuple(sorted((*enforced, i)))))
            for i in self._in_scope(view, use, "shadow")
        ]

    def table_level(self, plane: str, code: str) -> str | None:
        """The shipped level of a node or switch code."""
        table = self._desired.tables.get(plane)
        return table.level_of(code) if table else None

    def origin(self, rule: str) -> Origin | None:
        """Where the policy that a rule's name begins with is written."""
        name = rule.removeprefix("FaultPolicy/").partition("#")[0]
        if not rule.startswith("FaultPolicy/"):
            return None
        return next((item.origin for item in self._policies if item.document.name == name), None)

    def evidence(self, rule: str, codes: tuple[str, ...], reports: tuple[str, ...], revision: str) -> Evidence:
        """Evidence of a decision by a rule, with the policy's place in Git when a policy decided."""
        origin = self.origin(rule)
        return Evidence(
            rule=rule,
            file=origin.file if origin else "",
            line=origin.line if origin else 0,
            revision=revision if origin else "",
            codes=codes,
            reports=reports,
        )

    def memory(self, view: NodeView) -> Rules:
        """The rules by which the past of a node's chips is kept: those for any use, since a chip that work has left
        is idle, and what it did before must not be forgotten for that."""
        return self._compiled(self._in_scope(view, None, "enforce")).rules

    def _in_scope(self, view: NodeView, use: str | None, mode: str) -> tuple[int, ...]:
        return tuple(
            i
            for i, item in enumerate(self._policies)
            if item.document.spec.mode == mode and _covers(item.document, view, use)
        )

    def _compiled(self, which: tuple[int, ...]) -> Judgement:
        found = self._known.get(which)
        if found is None:
            found = self._known[which] = self._compile([self._policies[i].document for i in which])
        return found

    def _compile(self, policies: list[FaultPolicy]) -> Judgement:
        overrides: dict[str, tuple[str, str]] = {}
        frequency, duration = dict(self._base.frequency), dict(self._base.duration)
        actions = dict(DEFAULT_ACTIONS)
        reset = reschedule = DEFAULT_ATTEMPTS
        offenders: LemonRules | None = LemonRules()
        for policy in policies:
            spec, name = policy.spec, f"FaultPolicy/{policy.name}"
            overrides |= {
                code_key(code): (TO_CHIP.get(level, level), f"{name}#levels.{code}")
                for code, level in spec.levels.items()
            }
            frequency |= _frequencies(spec.frequency, f"{name}#frequency")
            duration |= _durations(spec.duration, f"{name}#duration")
            for level, given in spec.actions.items():
                base = actions.get(level, _SEPARATED)
                actions[level] = LevelAction(
                    given.training or base.training, given.inference or base.inference, given.idle or base.idle
                )
            if spec.attempts.reset:
                reset = (spec.attempts.reset.max, round(spec.attempts.reset.window * 1000))
            if spec.attempts.reschedule:
                reschedule = (spec.attempts.reschedule.max, round(spec.attempts.reschedule.window * 1000))
            if (given_lemons := spec.lemons) is not None:
                half_life, least = round(given_lemons.half_life * 1000), given_lemons.threshold
                offenders = LemonRules(half_life, least) if given_lemons.mode == "avoid" else None
        rules = msgspec.structs.replace(self._base, overrides=overrides, frequency=frequency, duration=duration)
        return Judgement(rules, actions, reset, reschedule, offenders)


def use_of(pod: Pod | None) -> str:
    """How a chip is used by the pod on it: ``training``, ``inference``, or ``idle`` without one."""
    if pod is None:
        return IDLE
    serving = pod.owner_kind in SERVING or pod.labels.get("app", "").startswith("mindie-ms")
    return INFERENCE if serving else TRAINING


def _covers(policy: FaultPolicy, view: NodeView, use: str | None) -> bool:
    """Whether a policy holds for a node's chips that are used so (None: in any way)."""
    scope = policy.spec.scope
    product = view.product.name if view.product else ""
    return (
        (not scope.pools or view.pool in scope.pools)
        and (not scope.products or product in scope.products)
        and (not scope.nodes or view.node.name in scope.nodes)
        and (not scope.workloads or use is None or use in scope.workloads)
    )


def _shipped(desired: Desired) -> Rules:
    levels: dict[str, str] = {}
    frequency: dict[str, Frequency] = {}
    duration: dict[str, Duration] = {}
    for plane in ("public", "chip"):
        table = desired.tables.get(plane)
        if table is None:
            continue
        levels |= {code_key(code): level for code, level in table.code_levels.items()}
        frequency |= _frequencies(table.spec.frequency, f"FaultTable/{table.name}#frequency")
        duration |= _durations(table.spec.duration, f"FaultTable/{table.name}#duration")
    planes = {plane: dict(desired.tables[plane].code_levels) for plane in ("node", "switch") if plane in desired.tables}
    beyond = _unlisted(desired.tables.get("chip"))
    return Rules(table=levels, frequency=frequency, duration=duration, planes=planes, unlisted=beyond)


def _unlisted(table: FaultTable | None) -> Unlisted:
    """What the chips' table says of codes that it does not list; as shipped where it does not say."""
    said = table.spec.unlisted if table is not None else None
    if said is None or said.otherwise is None:
        return Unlisted()
    return Unlisted(
        by_severity={severity: TO_CHIP.get(level, level) for severity, level in sorted(said.by_severity.items())},
        otherwise=TO_CHIP.get(said.otherwise, said.otherwise),
        network=TO_CHIP.get(said.network, said.network) if said.network else Unlisted().network,
    )


def _network_codes(desired: Desired) -> frozenset[str]:
    table = desired.tables.get("chip")
    details = table.details if table else {}
    return frozenset(code_key(code) for code, detail in details.items() if detail.plane is not None)


def _frequencies(rules: Iterable[FrequencyRule], rule_name: str) -> dict[str, Frequency]:
    """By code; of several rules for one code the first counts."""
    return {
        code_key(code): Frequency(
            times=rule.times,
            window_ms=round(rule.window * 1000),
            level=TO_CHIP.get(rule.level, rule.level),
            release_ms=round((rule.release_after or 0) * 1000),
            rule=f"{rule_name}.{code}",
        )
        for rule in reversed(tuple(rules))
        for code in rule.codes
    }


def _durations(rules: Iterable[DurationRule], rule_name: str) -> dict[str, Duration]:
    return {
        code_key(code): Duration(
            timeout_ms=round(rule.timeout * 1000),
            recover_ms=round(rule.recover * 1000),
            level=TO_CHIP.get(rule.level, rule.level),
            rule=f"{rule_name}.{code}",
        )
        for rule in reversed(tuple(rules))
        for code in rule.codes
    }
