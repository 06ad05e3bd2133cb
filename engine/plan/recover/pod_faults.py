"""Which fault hits which pod, and what caused it: the first test that matches wins."""

from __future__ import annotations

from belay.engine.gangs.job_status import ended
from belay.engine.model import relations
from belay.engine.model.causes import Cause, CauseKind
from belay.engine.model.chip_masks import ids_of, mask_of
from belay.engine.model.cluster import Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.disruption import awaits_its_deletion
from belay.engine.model.faults import HEARTBEAT
from belay.engine.model.jobs import Gang
from belay.engine.model.levels import FaultAction, NodeLevel, SwitchLevel
from belay.engine.model.pod_options import fault_type, has_handed_over
from belay.engine.plan import causes, restart_scope, roles
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.health import node_faults
from belay.engine.plan.health.assessment import Health
from belay.engine.plan.node_view import MAINTENANCE, NodeView, PassNodes
from belay.engine.plan.recover import maintenance
from belay.engine.plan.recover.decisions import CARD, FAILED, NODE, PROCESS, RELATION, SUB, PodFault
from belay.engine.plan.rules.fault_rules import FaultRules, use_of
from belay.engine.plan.views import chip_ids
from belay.engine.wire.names import MAIN_SHARD


def pod_faults(facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, health: Health) -> dict[str, PodFault]:
    """Every pod of a job with rescheduling that a fault hits."""
    found: dict[str, PodFault] = {}
    moved = {key: gang for key, gang in gangs.items() if gang.fault_scheduling != "off"}
    if not moved:
        return found
    missing, mass = node_faults.missing_nodes(facts)
    for key, name in gangs.of_pod.items():
        gang, pod = moved.get(name), facts.observed.pods[key]
        if gang is None or not pod.owner_kind:
            continue  # no controller would replace a bare pod
        if not roles.schedules(facts, pod):
            continue  # its own scheduler moves it
        view = nodes.get(pod.node)
        if view is not None and view.suspended:
            continue
        hit = _fault_of(facts, draft, nodes, gangs, health, gang, pod, view, pod.node in missing and not mass)
        if hit is not None and not ended(facts.observed.objects.get(owner_of(gang))):
            found[key] = hit  # an ended job has nothing to run elsewhere, and its pods keep their logs
    return found


def _fault_of(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    gangs: PassGangs,
    health: Health,
    gang: Gang,
    pod: Pod,
    view: NodeView | None,
    lost: bool,
) -> PodFault | None:
    """The first fault that hits a pod."""
    if pod.holds_chips and view is not None and (view.down or view.hit):
        bad = mask_of(list(chip_ids(pod))) & view.hit
        whole = _of_whole_node(facts, nodes, health.rules, gang, pod, view, bad)
        if whole is not None:
            return whole
        if bad:
            return _chip_fault(facts, draft, health.rules, view, bad, CARD)
    if lost and pod.holds_chips and (gang.options.shard or MAIN_SHARD) == facts.shard:
        gone = causes.of_missing_node(pod.node)
        return PodFault(NODE, (HEARTBEAT,), f"node {pod.node} does not exist any more", gone)
    if maintenance.drained_by_others(facts, draft, gang, pod, view):
        drained = causes.of_pod(pod.key, "deleted from a node that others cordoned or tainted")
        text = f"pod {pod.key} is evicted from node {pod.node}, which others drain"
        return PodFault(MAINTENANCE, (), text, drained)
    if maintenance.ended_by_shutdown(gang, pod):
        return _shutdown(gangs, gang, pod)
    if (
        restart_scope.failed(pod)
        and restart_scope.retries_left(facts, draft, gang) > 0
        and _counts_as_retry(draft, gang, pod)
    ):
        return PodFault(FAILED, (), f"pod {pod.key} failed", causes.of_pod(pod.key, "Failed"))
    label = relations.worse(fault_type(pod), health.blamed.get(pod.key, ""))
    if label == "Separate":
        return _relation_fault(draft, health, gang, pod, RELATION) or PodFault(
            RELATION, (), f"pod {pod.key} carries fault-type=Separate", causes.of_mark(pod.key, "fault-type=Separate")
        )
    if pod.holds_chips and _strategy_applies(gang, pod):
        bad = mask_of(list(chip_ids(pod))) & view.sub_healthy if view is not None else 0
        if bad and view is not None:
            return _chip_fault(facts, draft, health.rules, view, bad, SUB)
        if label == "SubHealth" or (view is not None and view.switch_sub_healthy):
            codes = view.codes if view is not None else ()
            text = f"pod {pod.key} is on sub-healthy hardware of node {pod.node}"
            marked = causes.of_mark(pod.key, "fault-type=SubHealth")
            weak = marked if label == "SubHealth" else causes.of_codes(pod.node, codes)
            return _relation_fault(draft, health, gang, pod, SUB) or PodFault(SUB, codes, text, weak)
    if label == "software" and restart_scope.pod_level(gang):
        marked = causes.of_mark(pod.key, "fault-type=software")
        return PodFault(PROCESS, (), f"pod {pod.key} carries fault-type=software", marked)
    return None


def _of_whole_node(
    facts: Facts, nodes: PassNodes, rules: FaultRules | None, gang: Gang, pod: Pod, view: NodeView, bad: int
) -> PodFault | None:
    """The fault by which every pod of the node goes, None where this one stays; ``bad``: faulty chips that it holds."""
    if view.down == MAINTENANCE and view.waits and awaits_its_deletion(gang, pod, facts.observed.pods):
        return None
    if view.down == MAINTENANCE and not bad:
        text = f"node {pod.node} is in maintenance ({view.maintenance})"
        return PodFault(MAINTENANCE, (), text, causes.of_node(facts, nodes, view))
    silent_only = view.level == SwitchLevel.SEPARATE  # known faults come before a node that is not ready
    if view.down and not (bad and silent_only) and _node_fault_evicts(rules, view, pod):
        what = ", ".join(view.codes) or (view.closed[1] if view.closed else NODE)
        text = f"node {pod.node} is {view.state} ({what})"
        return PodFault(NODE, view.codes, text, causes.of_node(facts, nodes, view))
    return None


def _shutdown(gangs: PassGangs, gang: Gang, pod: Pod) -> PodFault | None:
    """The fault of a pod that ended as its node shut down; None where the job has all its pods again."""
    if not maintenance.lacked(gangs, gang, pod):
        return None
    shut = causes.of_pod(pod.key, f"{pod.reason}: its node shut down")
    return PodFault(MAINTENANCE, (), f"pod {pod.key} was ended by the shutdown of node {pod.node}", shut)


def _counts_as_retry(draft: Draft, gang: Gang, pod: Pod) -> bool:
    """Whether the failed pod counts for retries; reports a restartPolicy that rules retries out."""
    if restart_scope.retryable(gang, pod):
        return True
    text = f"kubelet restarts containers under {pod.restart_policy}: fault-retry-times needs Never and is not applied"
    field, code = "spec.restartPolicy", PassCode.RETRIES_NOT_COUNTED
    draft.diagnostics.append(Diagnostic("warning", f"Pod/{pod.key}", "", 0, 0, field, text, code))
    return False


def _node_fault_evicts(rules: FaultRules | None, view: NodeView, pod: Pod) -> bool:
    """Whether a fault of the whole node evicts the pod (``FaultPolicy.spec.actions.SeparateFault``)."""
    use = use_of(pod)
    if rules is None:
        return True
    return rules.of(view, use).action(NodeLevel.SEPARATE, use) is FaultAction.RESCHEDULE


def _chip_fault(facts: Facts, draft: Draft, rules: FaultRules | None, view: NodeView, bad: int, kind: str) -> PodFault:
    chips = ids_of(bad)
    codes = tuple(sorted({code for chip in chips for code in view.chip_codes.get(chip, ())}))
    what = ", ".join(f"{view.chip(c)} {view.chip_level.get(c, '')}".strip() for c in chips)
    cause = causes.of_chips(facts, draft, rules, view, chips) or causes.of_codes(view.node.name, codes)
    said = ", ".join(codes) or _said_by_people(cause)
    return PodFault(kind, codes, f"node {view.node.name}: {what}" + (f" ({said})" if said else ""), cause)


def _said_by_people(cause: Cause) -> str:
    """The document that holds chips without a fault code, and its reason."""
    if cause.kind is not CauseKind.DOCUMENT:
        return ""
    return f"{cause.subject}: {cause.detail}" if cause.detail else cause.subject


def _relation_fault(draft: Draft, health: Health, gang: Gang, pod: Pod, kind: str) -> PodFault | None:
    """The pod's relation fault with its codes; None when no relation fault names the pod's hardware."""
    if pod.key not in health.blamed:
        return None
    rows = restart_scope.memory_of(draft, gang).related
    blaming = {r.code for r in rows if r.node == pod.node and r.executed}
    codes = tuple(sorted(blaming | {r.code for r in rows if r.code in relations.TRIGGERS}))
    text = f"pod {pod.key} is on hardware that relation faults blame ({', '.join(codes)})"
    return PodFault(kind, codes, text, causes.of_codes(pod.node, codes))


def _strategy_applies(gang: Gang, pod: Pod) -> bool:
    strategy = restart_scope.strategy(gang)
    if strategy == "hotSwitch":
        return has_handed_over(pod)
    return strategy != "ignore"


def owner_of(gang: Gang) -> ObjectKey:
    """The key of the object that a gang belongs to."""
    return ObjectKey(gang.api_version, gang.kind, gang.namespace, gang.name)
