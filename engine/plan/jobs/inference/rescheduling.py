"""Instances that a fault hits start again as a whole, and pods on lost nodes go at once.

Sources: component/infer-operator/pkg/controller/rescheduling, pkg/controller/nodepodcleaner and
pkg/controller/workload/workload_common.go; docs/zh/scheduling 09_infer_operator_best_practice 03 and 04.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from belay.engine.model.actions import EvictPod, Evidence, Owner, Preconditions
from belay.engine.model.cluster import Pod
from belay.engine.model.labels import FAULT_RETRY_TIMES, FAULT_SCHEDULING
from belay.engine.model.pod_options import external_status
from belay.engine.model.quantities import whole_number
from belay.engine.model.reasons import ActionReason
from belay.engine.model.rules import RuleKind
from belay.engine.plan import roles as component_roles
from belay.engine.plan.facts import Facts
from belay.engine.plan.health import node_faults
from belay.engine.plan.jobs.inference import labels as names
from belay.engine.plan.jobs.inference.serving import ServingContext, ServingInstance, ServingRole, size_of
from belay.engine.plan.node_view import NodeView

RULE: Final = RuleKind.FAULT_SCHEDULING.value
NODE_RULE: Final = RuleKind.FAULT_SCHEDULING.named("node-not-ready")
#: Seconds that a kubelet has, after a pod's grace period, to end its processes before the pod is deleted by force.
SLACK: Final = 10.0
#: A pod created so long (s) after another of its gang has started replaces a lost one.
_LATER: Final = 2.0
_UNHEALTHY: Final = "Unhealthy"
_FAILED: Final = "pod-failed"


def restart_hit(serving: ServingContext, role: ServingRole) -> None:
    """Start again the instances of a role with an unhealthy pod, and gangs that lost one."""
    for one in role.instances.values():
        if not one.standing or not one.ours:
            continue
        sick = _unhealthy(serving, role, one)
        if sick is not None:
            mode = sick.labels[FAULT_SCHEDULING]
            text = f"{role.job.key}: instance {one.key.name} starts again, {sick.key} is {external_status(sick)}"
            _restart(serving, role, one, ActionReason.INSTANCE_UNHEALTHY, text, force=mode == names.EXTERNAL_FORCE)
        elif role.gang and (lost := _lost(serving, one)):
            text = f"{role.job.key}: instance {one.key.name} starts again as a whole, {lost}"
            _restart(serving, role, one, ActionReason.INSTANCE_INCOMPLETE, text, force=False)


def give_way(serving: ServingContext, roles: Sequence[ServingRole]) -> None:
    """Remove pending instances of lower priority while a role of higher priority needs room."""
    needy = [role for role in roles if role.priority is not None and role.ready < role.count and _needs_room(role)]
    first = min((role.priority for role in needy if role.priority is not None), default=None)
    if first is None:
        return
    name = next(role.name for role in needy if role.priority == first)
    for role in roles:
        if role.priority is None or role.priority <= first:
            continue
        for one in role.instances.values():
            if one.standing and one.ours and not one.ready and not one.placed:
                text = (
                    f"{role.job.key}: pending instance {one.key.name} (priority {role.priority}) makes room for "
                    f"role {name} (priority {first})"
                )
                serving.remove(role, one, ActionReason.GAVE_WAY, text, rule=RULE)


def turn_of(roles: Sequence[ServingRole]) -> int | None:
    """The priority that starts now, the smallest of a role that is not ready; None when all are ready."""
    waiting = [role.priority for role in roles if role.priority is not None and role.ready < role.count]
    return min(waiting, default=None)


def release_pods(serving: ServingContext) -> None:
    """Delete by force the pods on lost nodes, and those whose grace time is over.

    A controller replaces a StatefulSet's pod only after its object is gone, and a lost node's kubelet never removes it.
    """
    if not serving.pods:
        return

    facts, nodes = serving.context.facts, serving.context.nodes
    missing, mass = node_faults.missing_nodes(facts)
    outages = node_faults.mass_outages(nodes)
    for place in sorted(serving.pods):
        for pod in sorted(serving.pods[place], key=lambda pod: pod.name):
            if not pod.node or pod.key in serving.context.draft.evicting or not serving.decides(pod):
                continue
            view = nodes.get(pod.node)
            if view is not None and not view.node.ready and _is_lost(facts, view, outages):
                why = f"node {pod.node} is not ready"
                _force(serving, pod, ActionReason.NODE_UNHEALTHY, why, NODE_RULE)
            elif pod.node in missing and not mass:
                _force(serving, pod, ActionReason.NODE_UNHEALTHY, f"node {pod.node} does not exist any more", NODE_RULE)
            elif pod.deleting is not None and pod.labels.get(FAULT_SCHEDULING) in names.EXTERNAL:
                over = facts.now - pod.deleting
                if over > SLACK:
                    text = f"its grace time is over for {over:.0f} s"
                    _force(serving, pod, ActionReason.GRACE_TIME_EXCEEDED, text, RULE)
                elif _forced(pod):
                    _force(serving, pod, ActionReason.INSTANCE_UNHEALTHY, f"it is {external_status(pod)}", RULE)


def _is_lost(facts: Facts, view: NodeView, outages: Mapping[str, int]) -> bool:
    """Whether a node that is not ready stays so, alone: with half of its pool, the control plane is suspected."""
    return node_faults.past_debounce(facts, view) and view.pool not in outages


def _restart(
    serving: ServingContext, role: ServingRole, one: ServingInstance, reason: str, text: str, *, force: bool
) -> None:
    """Delete the instance's workload; with ``force`` its pods go without grace time.

    One that runs an earlier template under a paused change keeps its workload, so that it comes back as it was.
    """
    pods = [pod for pod in one.pods if not pod.finished]
    if role.paused and not one.current:
        one.going = True
        for pod in pods:
            if pod.deleting is None and pod.key not in serving.context.draft.evicting:
                _evict(serving, pod, reason, text, f"{RULE}={pod.labels.get(FAULT_SCHEDULING, '')}", one.unit, force)
        return
    serving.remove(role, one, reason, text, rule=RULE)
    for pod in pods if force else ():
        _evict(serving, pod, reason, text, RULE, one.unit, force=True)


def _unhealthy(serving: ServingContext, role: ServingRole, one: ServingInstance) -> Pod | None:
    """A pod for whose fault the instance starts again; a failed pod costs one retry of the instance."""
    memory = serving.context.memory(role.job)
    for pod in one.pods:
        if pod.deleting is not None or pod.labels.get(FAULT_SCHEDULING) not in names.EXTERNAL:
            continue
        if not external_status(pod).startswith(_UNHEALTHY):
            continue
        if external_status(pod).endswith(_FAILED):
            allowed = whole_number(pod.labels.get(FAULT_RETRY_TIMES, ""))
            if allowed is None:
                continue
            if pod.uid and pod.uid in memory.removed:
                return pod  # it has cost its retry: a budget holds the restart back
            left = memory.restarts.get(one.key.name, allowed)
            if left <= 0:
                continue
            restarts = {**memory.restarts, one.key.name: left - 1}
            present = {other.uid for every in role.instances.values() for other in every.pods}
            memory = msgspec.structs.replace(
                memory,
                restarts=dict(sorted(restarts.items())),
                removed=tuple(sorted({*present.intersection(memory.removed), pod.uid})),
            )
            serving.context.remember(role.job, memory)
        return pod
    return None


def _lost(serving: ServingContext, one: ServingInstance) -> str:
    """What a gang that ran has lost; empty while it is whole or has not started."""
    names_of = component_roles.names(serving.context.facts)
    pods = [pod for pod in one.pods if component_roles.is_ours(pod, names_of)]
    if one.ready or any(pod.key in serving.context.draft.evicting for pod in pods):
        return ""
    started = [pod for pod in pods if pod.holds_chips and pod.deleting is None and pod.started is not None]
    if not started:
        return ""
    leaving = next((pod for pod in pods if pod.deleting is not None), None)
    if leaving is not None:
        return f"its pod {leaving.name} is being deleted"
    wanted = size_of(one.live or {})
    if len(pods) < wanted:
        return f"{wanted - len(pods)} of its {wanted} pods are gone"
    first = min(pod.started for pod in started if pod.started is not None)
    newer = next((pod for pod in pods if pod.created > first + _LATER), None)
    return f"its pod {newer.name} replaces one that ran with the others" if newer is not None else ""


def _needs_room(role: ServingRole) -> bool:
    """Whether an instance of the role is missing or not placed yet."""
    return any(not one.standing or not (one.ready or one.placed) for one in role.declared)


def _forced(pod: Pod) -> bool:
    return pod.labels.get(FAULT_SCHEDULING) == names.EXTERNAL_FORCE and external_status(pod).startswith(_UNHEALTHY)


def _force(serving: ServingContext, pod: Pod, reason: str, why: str, rule: str) -> None:
    place = f"{pod.namespace}/{pod.owner_kind}/{pod.owner_name}"
    unit = serving.context.gangs.of_pod.get(pod.key, place)
    _evict(serving, pod, reason, f"pod {pod.key} of an inference service is deleted by force: {why}", rule, unit, True)


def _evict(serving: ServingContext, pod: Pod, reason: str, text: str, rule: str, unit: str, force: bool) -> None:
    draft = serving.context.draft
    draft.evicting.add(pod.key)
    action = EvictPod(
        reason=reason,
        message=text,
        evidence=Evidence(rule=rule),
        preconditions=Preconditions(uid=pod.uid, node=pod.node or None),
        namespace=pod.namespace,
        pod=pod.name,
        grace_period_seconds=0 if force else pod.grace_seconds,
        force=force,
        owner=Owner(pod.owner_kind, pod.owner_name) if pod.owner_kind else None,
        budget_unit=unit,
    )
    draft.actions.append(action)
