"""The rules that apply to a chip: the fault policies in scope over the shipped tables, compiled once per scope.

Only policies in ``mode: enforce`` apply; what a shadow policy would change is a diagnostic. Shipped policies come
first, then the repository's by name; a later one wins over earlier ones, and every policy over the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple, assert_never

import msgspec

from belay.engine.documents import Declared, Desired, DurationRule, FaultPolicy, FaultTable, FrequencyRule
from belay.engine.documents.fault_policy import IDLE, INFERENCE, TRAINING, ConditionRule
from belay.engine.model.actions import Evidence
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import Origin
from belay.engine.model.faults import CodeRules, Duration, Frequency, Unlisted, code_key
from belay.engine.model.labels import APP_LABEL
from belay.engine.model.levels import TO_CHIP, FaultAction, FaultLevel
from belay.engine.model.repeat_offenders import RepeatOffenderRules
from belay.engine.model.rules import RuleKind, document_and_part, rule_kind
from belay.engine.plan.node_view import NodeView

#: Owner kinds of inference jobs; all others train (docs/zh/scheduling: inference jobs are Deployments and sets).
SERVING: Final = frozenset(
    {"Deployment", "ReplicaSet", "StatefulSet", "InferService", "InferServiceSet", "InstanceSet"}
)


class LevelAction(NamedTuple):
    """Actions of one level on chips used by training or inference and on idle ones (``FaultPolicy.spec.actions``)."""

    training: FaultAction
    inference: FaultAction
    idle: FaultAction

    def of(self, use: str) -> FaultAction:
        """The action for ``training``, ``inference`` or ``idle``."""
        return self.idle if use == IDLE else self.inference if use == INFERENCE else self.training


_IGNORED = LevelAction(FaultAction.IGNORE, FaultAction.IGNORE, FaultAction.IGNORE)
_SUB_HEALTHY = LevelAction(FaultAction.STRATEGY, FaultAction.STRATEGY, FaultAction.IGNORE)
_RESET = LevelAction(FaultAction.RESCHEDULE, FaultAction.RESCHEDULE, FaultAction.RESET)
_SPARED = LevelAction(FaultAction.KEEP, FaultAction.KEEP, FaultAction.ISOLATE)
_SEPARATED = LevelAction(FaultAction.RESCHEDULE, FaultAction.RESCHEDULE, FaultAction.ISOLATE)


def _default_action(level: FaultLevel) -> LevelAction:
    match level:
        case FaultLevel.NORMAL | FaultLevel.NOT_HANDLE:
            return _IGNORED
        case FaultLevel.SUB_HEALTH:
            return _SUB_HEALTHY
        case FaultLevel.RESTART_REQUEST | FaultLevel.RESTART_BUSINESS | FaultLevel.FREE_RESTART | FaultLevel.RESTART:
            return _RESET
        case FaultLevel.PRE_SEPARATE:
            return _SPARED
        case FaultLevel.SEPARATE | FaultLevel.MANUALLY_SEPARATE:
            return _SEPARATED
        case _:
            assert_never(level)


#: MindCluster's behaviour per level.
DEFAULT_ACTIONS: Final[dict[str, LevelAction]] = {level.value: _default_action(level) for level in FaultLevel}

DEFAULT_ATTEMPTS: Final = (3, 6 * 3600 * 1000)


class ConditionJudgement(NamedTuple):
    """A rule about a condition of Nodes, and its name in its policy."""

    rule: ConditionRule
    name: str


class ChipRules(NamedTuple):
    """The compiled rules of one scope: codes, actions per level, attempts as (maximum, window in ms), conditions.

    ``repeat_offenders`` is None when failures are not counted.
    """

    rules: CodeRules
    actions: dict[str, LevelAction]
    reset_attempts: tuple[int, int]
    reschedule_attempts: tuple[int, int]
    repeat_offenders: RepeatOffenderRules | None = RepeatOffenderRules()
    conditions: Mapping[str, tuple[ConditionJudgement, ...]] = MappingProxyType({})

    def action(self, level: str, use: str) -> FaultAction:
        """The action of a level on a chip with this use; an unknown level acts as SeparateNPU."""
        return self.actions.get(level, _SEPARATED).of(use)


class FaultRules:
    """Compiles the rules of every scope, once per combination of policies."""

    def __init__(self, desired: Desired, policies: Iterable[Declared[FaultPolicy]]) -> None:
        self._policies = tuple(policies)
        self._desired = desired
        self._known: dict[tuple[int, ...], ChipRules] = {}

    @cached_property
    def _base(self) -> CodeRules:
        """The shipped rules; compiled on first use, since most passes see no fault."""
        return _shipped(self._desired)

    @cached_property
    def network_codes(self) -> frozenset[str]:
        """Codes of the parameter and UB planes."""
        return _network_codes(self._desired)

    def of(self, view: NodeView, use: str) -> ChipRules:
        """The rules for a node's chips with this use."""
        return self._compiled(self._in_scope(view, use, "enforce"))

    def for_pool(self, pool: str, product: str) -> ChipRules:
        """The rules for a whole pool, which its agents apply while the engine is away.

        Policies for single nodes or workloads are left out.
        """
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

    def shadows(self, view: NodeView, use: str) -> list[tuple[str, ChipRules]]:
        """Each shadow policy in scope by name, with the rules as if it were enforced."""
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
        """Where in Git the policy named at the start of a rule is written; None for rules of no policy."""
        if rule_kind(rule) is not RuleKind.FAULT_POLICY:
            return None

        document, _ = document_and_part(rule)
        name = RuleKind.FAULT_POLICY.name_in(document)
        return next((item.origin for item in self._policies if item.document.name == name), None)

    def evidence(self, rule: str, codes: tuple[str, ...], reports: tuple[str, ...], revision: str) -> Evidence:
        """Evidence of a decision by a rule; holds the policy's place in Git when a policy decided."""
        origin = self.origin(rule)
        return Evidence(
            rule=rule,
            file=origin.file if origin else "",
            line=origin.line if origin else 0,
            revision=revision if origin else "",
            codes=codes,
            reports=reports,
        )

    def memory(self, view: NodeView) -> CodeRules:
        """The rules that decide what to remember of a node's chips.

        They cover every use: a chip that becomes idle must not lose the history of its use before.
        """
        return self._compiled(self._in_scope(view, None, "enforce")).rules

    def _in_scope(self, view: NodeView, use: str | None, mode: str) -> tuple[int, ...]:
        return tuple(
            i
            for i, item in enumerate(self._policies)
            if item.document.spec.mode == mode and _covers(item.document, view, use)
        )

    def _compiled(self, which: tuple[int, ...]) -> ChipRules:
        found = self._known.get(which)
        if found is None:
            found = self._known[which] = self._compile([self._policies[i].document for i in which])
        return found

    def _compile(self, policies: list[FaultPolicy]) -> ChipRules:
        overrides: dict[str, tuple[str, str]] = {}
        frequency, duration = dict(self._base.frequency), dict(self._base.duration)
        actions = dict(DEFAULT_ACTIONS)
        reset = reschedule = DEFAULT_ATTEMPTS
        offenders: RepeatOffenderRules | None = RepeatOffenderRules()
        conditions: dict[str, tuple[ConditionJudgement, ...]] = {}
        for policy in policies:
            spec, name = policy.spec, RuleKind.FAULT_POLICY.named(policy.name)
            overrides |= {
                code_key(code): (TO_CHIP.get(level, level), f"{name}#levels.{code}")
                for code, level in spec.levels.items()
            }
            conditions |= _conditions(spec.conditions, f"{name}#conditions")
            frequency |= _frequencies(spec.frequency, f"{name}#frequency")
            duration |= _durations(spec.duration, f"{name}#duration")
            for level, given in spec.actions.items():
                base = actions.get(level, _SEPARATED)
                actions[level] = LevelAction(
                    FaultAction(given.training) if given.training else base.training,
                    FaultAction(given.inference) if given.inference else base.inference,
                    FaultAction(given.idle) if given.idle else base.idle,
                )
            if spec.attempts.reset:
                reset = (spec.attempts.reset.max, round(spec.attempts.reset.window * 1000))
            if spec.attempts.reschedule:
                reschedule = (spec.attempts.reschedule.max, round(spec.attempts.reschedule.window * 1000))
            if (settings := spec.lemons) is not None:
                half_life, least = round(settings.half_life * 1000), settings.threshold
                offenders = RepeatOffenderRules(half_life, least) if settings.mode == "avoid" else None
        rules = msgspec.structs.replace(self._base, overrides=overrides, frequency=frequency, duration=duration)
        return ChipRules(rules, actions, reset, reschedule, offenders, conditions)


def _conditions(rows: Iterable[ConditionRule], name: str) -> dict[str, tuple[ConditionJudgement, ...]]:
    """The rules of one policy by the condition's type: they replace those of earlier policies for it."""
    found: dict[str, tuple[ConditionJudgement, ...]] = {}
    for row in rows:
        found[row.type] = (*found.get(row.type, ()), ConditionJudgement(row, f"{name}.{row.type}"))
    return found


def use_of(pod: Pod | None) -> str:
    """How the pod on a chip uses it: ``training``, ``inference``, or ``idle`` without a pod."""
    if pod is None:
        return IDLE
    serving = pod.owner_kind in SERVING or pod.labels.get(APP_LABEL, "").startswith("mindie-ms")
    return INFERENCE if serving else TRAINING


def _covers(policy: FaultPolicy, view: NodeView, use: str | None) -> bool:
    """Whether a policy covers a node's chips with this use (None: with any use)."""
    scope = policy.spec.scope
    product = view.product.name if view.product else ""
    return (
        (not scope.pools or view.pool in scope.pools)
        and (not scope.products or product in scope.products)
        and (not scope.nodes or view.node.name in scope.nodes)
        and (not scope.workloads or use is None or use in scope.workloads)
    )


def _shipped(desired: Desired) -> CodeRules:
    levels: dict[str, str] = {}
    frequency: dict[str, Frequency] = {}
    duration: dict[str, Duration] = {}
    for plane in ("public", "chip"):
        table = desired.tables.get(plane)
        if table is None:
            continue
        levels |= {code_key(code): level for code, level in table.code_levels.items()}
        frequency |= _frequencies(table.spec.frequency, f"{RuleKind.FAULT_TABLE.named(table.name)}#frequency")
        duration |= _durations(table.spec.duration, f"{RuleKind.FAULT_TABLE.named(table.name)}#duration")
    planes = {plane: dict(desired.tables[plane].code_levels) for plane in ("node", "switch") if plane in desired.tables}
    beyond = _unlisted(desired.tables.get("chip"))
    return CodeRules(table=levels, frequency=frequency, duration=duration, planes=planes, unlisted=beyond)


def _unlisted(table: FaultTable | None) -> Unlisted:
    """The table's rule for codes that it does not list; the default where it has none."""
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
    """Frequency rules by code; the first of several rules for one code counts."""
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
