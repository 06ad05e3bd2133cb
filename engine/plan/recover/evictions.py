"""The recover pass: which pods a fault hits, and which pods are evicted for it.

The tests and their order follow component/ascend-for-volcano/internal/rescheduling (first match wins); the job's
labels decide what is deleted. A gang is evicted as one unit unless it asks for single pods; pods of a Deployment are
always single. An eviction once decided is completed in later passes even when its cause is gone, and is counted once.
Budgets are checked by ``safety``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from belay.engine.gangs.forming import declared_rank
from belay.engine.model.actions import (
    EvictPod,
    Evidence,
    Owner,
    PatchObject,
    PatchType,
    Preconditions,
    SignalJob,
)
from belay.engine.model.causes import Cause, joined
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.history import JobMemory
from belay.engine.model.jobs import INDEPENDENT_KINDS, Gang
from belay.engine.model.labels import POD_STATUS_LABEL
from belay.engine.model.plan import Deferred
from belay.engine.model.pod_options import external_status
from belay.engine.model.reasons import ActionReason
from belay.engine.model.rules import RuleKind
from belay.engine.model.times import rfc3339
from belay.engine.plan import causes, restart_scope, roles
from belay.engine.plan.draft import Draft, Reschedule
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.health import tolerance
from belay.engine.plan.health.assessment import Health
from belay.engine.plan.node_view import MAINTENANCE, PassNodes
from belay.engine.plan.recover import costing, decisions
from belay.engine.plan.recover.avoided_nodes import avoid
from belay.engine.plan.recover.decisions import FAILED, NODE, REASONS, SUB, PodFault
from belay.engine.plan.recover.outcome import RecoveryOutcome
from belay.engine.plan.recover.pod_faults import owner_of, pod_faults
from belay.engine.plan.restart_scope import Victims
from belay.engine.plan.rules.fault_rules import FaultRules, use_of
from belay.engine.plan.views import init_params
from belay.engine.wire import resetinfo

ATTEMPTS: Final = "attempts:reschedule"


def evict_hit_pods(facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, health: Health) -> RecoveryOutcome:
    """Evict pods, mark pods for external controllers, and choose the nodes that a job avoids.

    A live Volcano that schedules also reschedules: then this pass evicts nothing.
    """
    recovery, rules = RecoveryOutcome(), health.rules
    if not roles.plays(facts, "schedule"):
        avoid(facts, draft, nodes, gangs, rules, recovery)
        return recovery

    hits = pod_faults(facts, draft, nodes, gangs, health)
    by_gang: dict[str, dict[str, PodFault]] = {}
    for key in sorted(hits):
        by_gang.setdefault(gangs.of_pod[key], {})[key] = hits[key]
    grace_over_time = float(init_params(facts.desired, facts.observed).grace_over_time)
    members = _members(draft, gangs, {*by_gang, *costing.open_recoveries(draft, gangs)})
    broken = {name: hits for name, hits in by_gang.items() if any(hit.kind != MAINTENANCE for hit in hits.values())}
    costing.choose_levels(facts, draft, nodes, gangs, recovery, broken, members)
    for name in sorted({*by_gang, *(k for k, m in draft.memory.jobs.items() if m.evicted and k in gangs)}):
        gang = gangs.get(name)
        if gang is None or gang.fault_scheduling == "off":
            continue
        if not gang.options.running_strategy:
            if name not in by_gang:
                _clear_exit(facts, draft, gang, members.get(name, []))
            _forget_finished(draft, gang, members.get(name, []))
            _reschedule(
                facts,
                draft,
                nodes,
                rules,
                recovery,
                gang,
                members.get(name, []),
                by_gang.get(name, {}),
                grace_over_time,
            )
    tolerance.diagnose(facts, draft, nodes, gangs)
    avoid(facts, draft, nodes, gangs, rules, recovery)
    return recovery


def _members(draft: Draft, gangs: PassGangs, hit: Iterable[str]) -> dict[str, list[Pod]]:
    """All pods of hit gangs and of gangs with open evictions, finished ones included; live ones in rank order."""
    concerned = {*hit, *(key for key, memory in draft.memory.jobs.items() if memory.evicted)}
    return {name: list(gangs.members[name]) for name in sorted(concerned) if name in gangs.members}


def _forget_finished(draft: Draft, gang: Gang, pods: list[Pod]) -> None:
    """Forget an eviction once its pods are gone and no pod that the job needs waits for a place.

    A job that runs with as many pods as it needs is not restarted again for the sake of the others.
    """
    memory = restart_scope.memory_of(draft, gang)
    standing = [p for p in pods if not p.finished]
    if not memory.evicted or any(p.uid in memory.evicted for p in standing):
        return

    placed = sum(1 for p in standing if p.node and p.deleting is None)
    if placed == len(standing) or (gang.kind not in INDEPENDENT_KINDS and placed >= gang.min_available > 0):
        draft.memory.jobs[gang.key] = msgspec.structs.replace(memory, evicted={})


def _reschedule(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    rules: FaultRules | None,
    recovery: RecoveryOutcome,
    gang: Gang,
    pods: list[Pod],
    hits: dict[str, PodFault],
    grace_over_time: float,
) -> None:
    """Evict, mark or keep the pods of one job."""
    memory = restart_scope.memory_of(draft, gang)
    kinds = frozenset(hit.kind for hit in hits.values())
    what = decisions.action_of(kinds or frozenset({FAILED}), gang.fault_scheduling, restart_scope.strategy(gang))
    if what == decisions.MARK:
        for pod in pods:
            if pod.key in hits and pod.deleting is None:
                _annotate_for_controller(facts, draft, gang, pod, hits[pod.key])
        return

    # an eviction answers the faults of its pods: while one of them terminates, its fault takes no pod made since
    owed = {pod.key for pod in pods if pod.uid in memory.evicted and not pod.finished}
    unanswered = {p.key for p in pods if p.key in hits and p.uid not in memory.evicted}
    reason = decisions.reason_of(kinds)
    force = what in (decisions.FORCE, decisions.SWITCH)
    ladder = restart_scope.choose(draft, nodes, gang, pods, unanswered, now=facts.now)
    chosen = costing.victims_of(recovery, gang, pods, unanswered, ladder)
    going = {p.key: p for p in pods if p.key in chosen.keys or p.key in owed}
    fresh = [p for p in going.values() if p.deleting is None]
    late = [
        p
        for p in going.values()
        if not force and p.deleting is not None and _overdue(facts, p, memory, grace_over_time)
    ]
    if not fresh and not late:
        return

    # widening an eviction that is under way is the same reschedule, another fault is another one
    new = any(p.uid not in memory.evicted for p in fresh)
    counted = new and (bool(unanswered) or not (chosen.whole and owed))
    text = "; ".join(dict.fromkeys(hits[key].text for key in sorted(hits))) or "an eviction begun earlier is finished"
    codes = tuple(sorted({code for hit in hits.values() for code in hit.codes}))
    fault_nodes = tuple(sorted({p.node for p in pods if p.key in hits and p.node and hits[p.key].kind != FAILED}))
    named = tuple((hits[p.key].kind, p.name, p.node, _rank(p)) for p in pods if p.key in hits)
    answered = tuple(p.key for p in pods if p.key in unanswered and p.deleting is not None)
    exits = what == decisions.EXIT
    why = EvictionDecision(
        reason, text, codes, fault_nodes, force, counted, exits, named[: len(REASONS) * 4], answered,
        joined(tuple(hits[key].cause for key in sorted(hits))),
    )  # fmt: skip
    _evict(facts, draft, nodes, rules, gang, fresh, late, chosen, why, memory)


def _rank(pod: Pod) -> str:
    rank = declared_rank(pod)
    return "" if rank is None else str(rank)


class EvictionDecision(NamedTuple):
    """Why and how the pods of a job are evicted.

    ``exits``: its agents end its processes first. ``hits``: fault type, name, node and rank of the hit pods.
    ``answered``: hit pods that others delete already.
    """

    reason: str
    text: str
    codes: tuple[str, ...]
    nodes: tuple[str, ...]
    force: bool
    counted: bool
    exits: bool = False
    hits: tuple[tuple[str, str, str, str], ...] = ()
    answered: tuple[str, ...] = ()
    cause: Cause | None = None


def _evict(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    rules: FaultRules | None,
    gang: Gang,
    fresh: list[Pod],
    late: list[Pod],
    chosen: Victims,
    why: EvictionDecision,
    memory: JobMemory,
) -> None:
    spends = why.counted and why.reason != MAINTENANCE  # work that people planned is no attempt to repair
    blocked, until = _attempts(facts, nodes, rules, gang, fresh or late, memory) if spends else (False, None)
    if why.exits and fresh and not blocked:
        _exit_gracefully(facts, draft, gang, gang.key if chosen.whole else fresh[0].key)
    elif why.counted and fresh and not blocked and not chosen.whole and restart_scope.pod_level(gang):
        _restart_processes(facts, draft, gang, fresh[0].key)
    for pod in [*fresh, *late]:
        overdue = pod.deleting is not None
        force = why.force or overdue
        unit = gang.key if chosen.whole else pod.key
        action = EvictPod(
            namespace=pod.namespace,
            pod=pod.name,
            grace_period_seconds=0 if force else pod.grace_seconds,
            force=force,
            owner=Owner(gang.kind, gang.name),
            budget_unit=unit,
            reason=ActionReason.GRACE_TIME_EXCEEDED if overdue else REASONS[why.reason],
            message=f"{why.text}; {chosen.text}" + ("; its grace time is over" if overdue else ""),
            evidence=causes.caused(
                _evidence(
                    facts,
                    gang,
                    RuleKind.FAULT_SCHEDULING.named(gang.fault_scheduling),
                    why.codes,
                    _reports(facts, why),
                ),
                why.cause or causes.of_pod(pod.key, "its eviction began earlier"),
            ),
            preconditions=Preconditions(uid=pod.uid, node=pod.node),
        )
        if blocked:
            draft.deferred.append(Deferred(action, ATTEMPTS, rfc3339(until) if until is not None else None))
            continue
        draft.actions.append(action)
        draft.evicting.add(pod.key)
        before = draft.reschedules.get(unit)
        draft.reschedules[unit] = Reschedule(
            gang=gang.key,
            reason=why.reason,
            pods=(*(before.pods if before else ()), pod.key),
            fault_nodes=why.nodes,
            counted=why.counted and (chosen.whole or pod.uid not in memory.evicted),
            spends=pod.uid not in memory.evicted or (before is not None and before.spends),
            answered=why.answered,
            planned=why.reason == MAINTENANCE,
            failed=why.counted and why.reason == FAILED,
            retries=restart_scope.retries_left(facts, draft, gang),
            hits=why.hits,
        )


def _evidence(facts: Facts, gang: Gang, rule: str, codes: tuple[str, ...], reports: tuple[str, ...]) -> Evidence:
    """Evidence of a decision by the job's labels, with the job's place in Git where it comes from Git."""
    manifest = facts.desired.manifest_index.get(owner_of(gang))
    return Evidence(
        rule=rule,
        file=manifest.origin.file if manifest else "",
        line=manifest.origin.line if manifest else 0,
        revision=facts.desired.revision,
        codes=codes,
        reports=reports,
    )


def _reports(facts: Facts, why: EvictionDecision) -> tuple[str, ...]:
    """The reports behind a decision; NodeD's, too, when the whole node is at fault."""
    found = [f"kube-system/mindx-dl-deviceinfo-{n}" for n in why.nodes if n in facts.observed.reports]
    if why.reason == NODE:
        found += [f"mindx-dl/mindx-dl-nodeinfo-{n}" for n in why.nodes if n in facts.observed.node_reports]
    return tuple(found)


def _attempts(
    facts: Facts, nodes: PassNodes, rules: FaultRules | None, gang: Gang, pods: list[Pod], memory: JobMemory
) -> tuple[bool, float | None]:
    """Whether the job has used up its reschedules, and when the window frees one."""
    view = next((nodes[p.node] for p in pods if p.node in nodes), None)
    most, window = restart_scope.DEFAULT_ATTEMPTS
    if rules is not None and view is not None:
        most, window = rules.of(view, use_of(pods[0])).reschedule_attempts
    if gang.kind in INDEPENDENT_KINDS:
        most *= max(1, gang.replicas)  # each replica is a job of its own
    recent = sorted(t for t in memory.reschedules if t > facts.now_ms - window)
    if len(recent) < most:
        return False, None
    return True, (recent[len(recent) - most] + window) / 1000 if most else None


def _overdue(facts: Facts, pod: Pod, memory: JobMemory, grace_over_time: float) -> bool:
    """Whether a graceful deletion has lasted longer than ``grace-over-time``; a forced one restarts the time."""
    asked = abs(memory.evicted.get(pod.uid, 0)) / 1000
    if not asked and pod.deleting is not None:
        asked = pod.deleting - pod.grace_seconds
    return facts.now - asked > grace_over_time


def _annotate_for_controller(facts: Facts, draft: Draft, gang: Gang, pod: Pod, hit: PodFault) -> None:
    """Annotate the pod for the external controller that deletes it."""
    value = f"Unhealthy-{hit.kind}"
    if external_status(pod) == value:
        return
    draft.actions.append(
        PatchObject(
            api_version="v1",
            object_kind="Pod",
            namespace=pod.namespace,
            name=pod.name,
            patch={"metadata": {"annotations": {POD_STATUS_LABEL: value}}},
            reason=REASONS[hit.kind],
            message=f"{hit.text}; fault-scheduling={gang.fault_scheduling} leaves the deletion to another controller",
            evidence=causes.caused(
                _evidence(facts, gang, RuleKind.FAULT_SCHEDULING.named(gang.fault_scheduling), hit.codes, ()), hit.cause
            ),
            patch_type=PatchType.MERGE,
            preconditions=Preconditions(uid=pod.uid),
        )
    )


def _exit_gracefully(facts: Facts, draft: Draft, gang: Gang, unit: str) -> None:
    """Ask the job's agents to end its processes, where it has a reset ConfigMap and no process recovery."""
    if gang.options.recovers_processes:
        return
    if _exit_requested(facts, gang) is False:
        text = f"{gang.key}: its processes end before its pods go (subHealthyStrategy=graceExit)"
        _signal(facts, draft, gang, "gracefulExit", text, unit)


def _restart_processes(facts: Facts, draft: Draft, gang: Gang, unit: str) -> None:
    """Ask the pods that stay to restart their processes with the new ones; process recovery does that otherwise."""
    if not gang.options.recovers_processes and _exit_requested(facts, gang) is not None:
        text = f"{gang.key}: pods are rescheduled one by one, so the processes of the others start again"
        _signal(facts, draft, gang, "podReschedule", text, unit, rule="pod-rescheduling=on")


def _clear_exit(facts: Facts, draft: Draft, gang: Gang, pods: list[Pod]) -> None:
    """Clear the request to exit once the evicted pods are gone, so that their replacements do not exit."""
    evicted = restart_scope.memory_of(draft, gang).evicted
    if _exit_requested(facts, gang) and not any(p.uid in evicted and not p.finished for p in pods):
        _signal(facts, draft, gang, "clear", f"{gang.key}: the pods asked to exit are gone, new ones may run", None)


def _exit_requested(facts: Facts, gang: Gang) -> bool | None:
    """Whether the job's reset ConfigMap asks its agents to exit; None without a ConfigMap."""
    raw = facts.observed.objects.get(ObjectKey("v1", "ConfigMap", gang.namespace, f"reset-config-{gang.name}"))
    if raw is None:
        return None
    return resetinfo.asks_to_exit(raw)


def _signal(
    facts: Facts,
    draft: Draft,
    gang: Gang,
    signal: str,
    text: str,
    budget_unit: str | None,
    *,
    rule: str = "subHealthyStrategy=graceExit",
) -> None:
    draft.actions.append(
        SignalJob(
            namespace=gang.namespace,
            name=gang.name,
            signal=signal,
            ranks=(),
            reason=REASONS[SUB] if signal != "podReschedule" else ActionReason.POD_RESCHEDULE,
            message=text,
            evidence=_evidence(facts, gang, rule, (), ()),
            budget_unit=budget_unit,
        )
    )
