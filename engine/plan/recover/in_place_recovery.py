"""In-place recovery: chips healed under their jobs (graceful fault tolerance), where a policy says ``tolerate``.

Instead of rescheduling, ``reset-config-<job>`` asks the job's training managers to stop the ranks on the ring; the
node's agent waits until nothing runs there, lets the fault heal or resets the ring under the pod; the ranks start
again. An episode has one order per ring, each under a new epoch. A second fault, a refusal, a missing answer or an
evicted pod ends the episode, and the job is rescheduled as if its fault had not been tolerated.
Sources: component/ascend-device-plugin/pkg/device/ascend910.go, ascendtolerance.go (until v26.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.documents.fault_policy import TRAINING
from belay.engine.gangs.forming import declared_rank
from belay.engine.model import in_place_recovery
from belay.engine.model.actions import (
    Evidence,
    Preconditions,
    RankStatus,
    ResetChips,
    SignalJob,
)
from belay.engine.model.chip_masks import ids_of, mask_of
from belay.engine.model.cluster import InPlaceReset, Pod
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.history import Healing, NodeMemory
from belay.engine.model.jobs import Gang
from belay.engine.model.levels import NORMAL
from belay.engine.model.reasons import ActionReason
from belay.engine.model.wording import counted
from belay.engine.plan import restart_scope, roles
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.grouping import PassGangs
from belay.engine.plan.health import reset
from belay.engine.plan.health.chips import device_names
from belay.engine.plan.node_agents import taking_orders
from belay.engine.plan.node_view import NodeView, PassNodes
from belay.engine.plan.rules import fault_tables
from belay.engine.plan.rules.fault_rules import FaultRules, use_of
from belay.engine.plan.views import chip_ids
from belay.engine.wire import resetinfo
from belay.engine.wire.errors import WireError

#: How long an episode may last (ms): the life of its order.
LIMIT_MS: Final = 900_000
REASON: Final = ActionReason.ONLINE_RESET
RULE: Final = "actions.tolerate"
_OK, _FAILED = "ok", "failed"
#: Stages of the agent, by initial policy, in which that policy has become a reset
#: (``belay.agents.node.in_place_recovery``).
_UPGRADED: Final = {
    in_place_recovery.RESTART_REQUEST: frozenset({"processes", "healing", "resetting"}),
    in_place_recovery.RESTART: frozenset({"resetting"}),
}


def heal_in_place(facts: Facts, draft: Draft, nodes: PassNodes, gangs: PassGangs, rules: FaultRules | None) -> None:
    """Start, follow and end episodes; faults that are not tolerated are left to ``recover``."""
    if not roles.plays(facts, "schedule"):
        return  # the component that schedules also reschedules
    bad = _tolerated_chips(nodes, gangs)
    under_way = {key for key, memory in draft.memory.jobs.items() if memory.healing is not None}
    for key in sorted({*bad, *under_way}):
        gang = gangs.get(key)
        if gang is None:
            continue
        chips = bad.get(key, {})
        healing = restart_scope.memory_of(draft, gang).healing
        if healing is None:
            why = _start(facts, draft, nodes, rules, gang, chips)
            if why:
                _give_up(draft, nodes, gang, chips, why)
        else:
            _continue(facts, draft, nodes, gang, healing, chips)
    _evict_without_gang(nodes, gangs)


def _tolerated_chips(nodes: PassNodes, gangs: PassGangs) -> dict[str, dict[str, int]]:
    """Masks of chips with a tolerated fault, by gang and node."""
    out: dict[str, dict[str, int]] = {}
    for name, view in nodes.unassessed_views():
        for chip in ids_of(view.tolerated):
            gang = gangs.of_pod.get(view.used_by.get(chip, ""))
            if gang is not None:
                masks = out.setdefault(gang, {})
                masks[name] = masks.get(name, 0) | 1 << chip
    return out


def _evict_without_gang(nodes: PassNodes, gangs: PassGangs) -> None:
    """Evict pods without a gang: no training manager could stop their ranks."""
    for name, view in nodes.unassessed_views():
        alone = [chip for chip in ids_of(view.tolerated) if view.used_by.get(chip, "") not in gangs.of_pod]
        if alone:
            _mark_hit(nodes, name, mask_of(alone))


def _mark_hit(nodes: PassNodes, node: str, mask: int) -> None:
    """Faults of these chips take the pods on them away."""
    nodes.change(node, hit=nodes[node].hit | mask)


def _give_up(draft: Draft, nodes: PassNodes, gang: Gang, chips: Mapping[str, int], why: str) -> None:
    """Have the job rescheduled as usual, and report why."""
    for name, mask in chips.items():
        _mark_hit(nodes, name, mask)
    text = f"{gang.key}: its chips are not healed under it, so it is rescheduled: {why}"
    about = f"{gang.kind}/{gang.namespace}/{gang.name}"
    draft.diagnostics.append(Diagnostic("info", about, "", 0, 0, "", text, PassCode.NOT_HEALED))


# ---- start


def _start(
    facts: Facts, draft: Draft, nodes: PassNodes, rules: FaultRules | None, gang: Gang, chips: Mapping[str, int]
) -> str:
    """Start an episode: order its resets. Returns why it cannot start, empty when it did or must wait."""
    if len(chips) != 1:
        return "chips of several nodes are faulty"
    ((name, mask),) = chips.items()
    view = nodes[name]
    if view.resetting & mask or view.recovering & mask:
        return ""  # the result of the last order is not known yet
    pods = _pods(facts, gang)
    why = _obstacle(facts, draft, gang, view, pods)
    if why:
        return why
    pod = next(pod for pod in pods if pod.key == view.used_by[ids_of(mask)[0]])
    held = mask_of(list(chip_ids(pod)))
    groups = [group for group in view.groups if group & mask]
    if mask & ~held or any(group & ~held for group in groups):
        return f"pod {pod.key} does not hold every chip that resets together with the faulty ones"
    if declared_rank(pod) is None:
        return f"pod {pod.key} has no rank"
    policy = in_place_recovery.gravest(
        in_place_recovery.policy_of(view.chip_level.get(chip, NORMAL)) for chip in ids_of(held)
    )
    if policy not in in_place_recovery.ACTING:
        return f"pod {pod.key} has a chip that no reset under it heals"
    for group in groups:
        why = reset.exhausted(facts, draft, rules, view, group)
        if why:
            return why
    if _deferred_too_long(facts, draft, view, mask):
        return "budgets or maintenance windows have kept its reset back for too long"
    for group in groups:
        _order(facts, draft, rules, gang, view, pod, group, policy)
    return ""


def _deferred_too_long(facts: Facts, draft: Draft, view: NodeView, mask: int) -> bool:
    """Whether faulty chips were out of service for too long without an order, so that the job must not wait on."""
    memory = draft.memory.nodes.get(view.node.name, NodeMemory())
    out = [memory.chips[chip].isolated for chip in ids_of(mask) if chip in memory.chips]
    return any(since and facts.now_ms - since > LIMIT_MS for since in out)


def _obstacle(facts: Facts, draft: Draft, gang: Gang, view: NodeView, pods: Sequence[Pod]) -> str:
    """Why the job cannot be healed in place now; empty when it can."""
    if facts.observed.ledger_broken or not view.fresh or view.down or view.suspended or not view.node.ready:
        return f"node {view.node.name} takes no orders now"
    if taking_orders(facts, view) is None:
        return f"node {view.node.name} has no live agent"
    if view.contradiction:
        return f"node {view.node.name} reports {view.contradiction}, which its product does not have"
    if _config(facts, gang) is None:
        return f"there is no ConfigMap {gang.namespace}/{resetinfo.PREFIX}{gang.name} with label reset=true"
    if gang.options.process_recovery in ("on", "pause"):
        return "process recovery and resets under a job do not go together"
    if any(pod.deleting is not None or pod.phase != "Running" for pod in pods):
        return "not all of its pods run"
    if any(use_of(pod) != TRAINING for pod in pods):
        return "it does not train"
    if restart_scope.memory_of(draft, gang).evicted:
        return "it is being rescheduled"
    return ""


def _order(
    facts: Facts, draft: Draft, rules: FaultRules | None, gang: Gang, view: NodeView, pod: Pod, group: int, policy: str
) -> None:
    grace = fault_tables.grace(facts.observed, facts.cache)
    members = ids_of(group)
    last = reset.attempts(facts, draft, rules, view, members)[0]
    what = ", ".join(
        f"{view.chip(c)} {view.chip_level[c]}" for c in members if view.tolerated >> c & 1 and c in view.chip_level
    )
    codes = tuple(sorted({code for c in members for code in view.chip_codes.get(c, ())}))
    report = view.report.resource_version if view.report else ""
    rule = view.product.spec.reset if view.product else None
    draft.actions.append(
        ResetChips(
            node=view.node.name,
            chips=device_names(view, members),
            epoch=last + 1,
            out_of_band=bool(rule and rule.out_of_band),
            reason=REASON,
            message=f"node {view.node.name}: {what} is healed under pod {pod.key} ({policy}): "
            f"its ranks on {counted(len(members), 'chip')} stop, and start again",
            evidence=Evidence(
                rule=RULE,
                codes=codes,
                reports=(f"kube-system/mindx-dl-deviceinfo-{view.node.name}@{report}",),
                revision=facts.desired.revision,
            ),
            preconditions=Preconditions(epoch_above=last, idle=False),
            job=gang.key,
            not_before=facts.now_ms + grace.read * 1000,
            online=InPlaceReset(pod.key, pod.uid, policy, grace.heal, grace.boot),
        )
    )  # fmt: skip


def record_order(facts: Facts, draft: Draft, gangs: PassGangs, action: ResetChips) -> None:
    """Record the episode of an order that safety admitted."""
    wanted = action.online
    gang = gangs.get(action.job or "")
    if wanted is None or gang is None:
        return
    before = restart_scope.memory_of(draft, gang)
    chips = tuple(int(name.rpartition("-")[2]) for name in action.chips)
    old = before.healing
    if old is not None and old.since == facts.now_ms:  # another ring of the same episode
        chips = tuple(sorted({*old.chips, *chips}))
    epochs = {**(old.epochs if old is not None and old.since == facts.now_ms else {})}
    epochs |= dict.fromkeys((str(c) for c in chips if str(c) not in epochs), action.epoch)
    policy = wanted.policy
    healing = Healing(
        node=action.node, pod=wanted.uid, chips=chips, epochs=epochs, initial=policy, policy=policy,
        since=facts.now_ms, codes=action.evidence.codes,
    )  # fmt: skip
    draft.memory.jobs[gang.key] = msgspec.structs.replace(before, uid=gang.uid or before.uid, healing=healing)


# ---- go on


def _continue(
    facts: Facts, draft: Draft, nodes: PassNodes, gang: Gang, healing: Healing, chips: Mapping[str, int]
) -> None:
    pods = _pods(facts, gang)
    pod = next((p for p in pods if p.uid == healing.pod and p.deleting is None), None)
    if pod is None:
        _pod_gone(facts, draft, nodes, gang, healing, pods, chips)
        return
    if not healing.ended:
        healing = _with_progress(facts, nodes, gang, healing, chips)
    view = nodes.get(healing.node)
    if healing.ended == _FAILED:
        # the ranks were given up, whatever the state of the chips is now
        if view is not None:
            ring = mask_of(list(healing.chips))
            _mark_hit(nodes, healing.node, ring & (view.tolerated | view.unhealthy) or ring)
        for name, mask in chips.items():
            _mark_hit(nodes, name, mask)
    up_to_date = _write_status(facts, draft, nodes, gang, pod, healing)
    if healing.ended == _OK and up_to_date and _clean(view, healing):
        _remember(draft, gang, None)
        return
    if healing.ended == _OK and facts.now_ms - healing.at > LIMIT_MS:
        _remember(draft, gang, None)  # the fault persists or returned: assess it as a new one
        return
    _remember(draft, gang, healing)


def _with_progress(facts: Facts, nodes: PassNodes, gang: Gang, healing: Healing, chips: Mapping[str, int]) -> Healing:
    """The episode after the newest answers and faults."""
    own = mask_of(list(healing.chips))
    elsewhere = any(mask & ~(own if name == healing.node else 0) for name, mask in chips.items())
    view = nodes.get(healing.node)
    if elsewhere or view is None or view.down or _hit_otherwise(facts, nodes, gang):
        return _ended(facts, healing, _FAILED)
    agent = facts.observed.agents.get(healing.node)
    rows = {chip: agent.chips[chip] for chip in healing.chips if agent and chip in agent.chips}
    answers = [
        rows[chip].reset_result
        for chip in healing.chips
        if chip in rows and rows[chip].reset_epoch_done >= healing.epochs.get(str(chip), 0)
    ]
    if any(not answer.startswith(_OK) for answer in answers):
        return _ended(facts, healing, _FAILED)
    if len(answers) == len(healing.chips):
        return _ended(facts, healing, _OK)
    if facts.now_ms - healing.since > LIMIT_MS:
        return _ended(facts, healing, _FAILED)
    stages = {row.reset_stage for row in rows.values()}
    if stages & _UPGRADED.get(healing.initial, frozenset()) and healing.policy != in_place_recovery.RESET:
        return msgspec.structs.replace(healing, policy=in_place_recovery.RESET)
    return healing


def _hit_otherwise(facts: Facts, nodes: PassNodes, gang: Gang) -> bool:
    """Whether another fault evicts the job anyway."""
    for pod in _pods(facts, gang):
        view = nodes.get(pod.node)
        if view is not None and view.hit & mask_of(list(chip_ids(pod))):
            return True
    return False


def _ended(facts: Facts, healing: Healing, how: str) -> Healing:
    policy = in_place_recovery.ISOLATE if how == _FAILED else healing.policy
    return msgspec.structs.replace(healing, ended=how, at=facts.now_ms, policy=policy)


def _pod_gone(
    facts: Facts,
    draft: Draft,
    nodes: PassNodes,
    gang: Gang,
    healing: Healing,
    pods: Sequence[Pod],
    chips: Mapping[str, int],
) -> None:
    """End the episode of a pod that terminates or is gone; once it is gone, clear the ConfigMap for its successors."""
    if any(pod.uid == healing.pod for pod in pods):
        for name, mask in chips.items():
            _mark_hit(nodes, name, mask)
        _remember(draft, gang, healing)
        return
    if _ranks(facts, gang):
        draft.actions.append(
            SignalJob(
                namespace=gang.namespace,
                name=gang.name,
                signal="clear",
                ranks=(),
                reason=REASON,
                message=f"{gang.key}: the pod whose chips were to be healed is gone, new ones may run",
                evidence=Evidence(rule=RULE),
            )
        )
        _remember(draft, gang, healing)
        return
    _remember(draft, gang, None)
    for name, mask in chips.items():
        _mark_hit(nodes, name, mask)


def _clean(view: NodeView | None, healing: Healing) -> bool:
    """Whether a report newer than the answer shows the chips healthy."""
    own = mask_of(list(healing.chips))
    return view is None or (view.fresh and not (view.tolerated | view.resetting | view.recovering) & own)


def _remember(draft: Draft, gang: Gang, healing: Healing | None) -> None:
    before = restart_scope.memory_of(draft, gang)
    if before.healing != healing:
        draft.memory.jobs[gang.key] = msgspec.structs.replace(before, healing=healing)


# ---- status for the training managers


def _write_status(facts: Facts, draft: Draft, nodes: PassNodes, gang: Gang, pod: Pod, healing: Healing) -> bool:
    """Write the status of the ranks to ``reset-config-<job>``. Returns whether it was up to date."""
    status = {"": in_place_recovery.UNRECOVERED, _OK: in_place_recovery.RECOVERED, _FAILED: in_place_recovery.FAILED}[
        healing.ended
    ]
    wanted = [
        resetinfo.rank(
            rank, logic, status=status, policy=healing.policy, initial=healing.initial, codes=_codes(healing)
        )
        for rank, logic in _members(nodes, pod, healing)
    ]
    if _ranks(facts, gang) == wanted or _config(facts, gang) is None:
        return True
    draft.actions.append(
        SignalJob(
            namespace=gang.namespace,
            name=gang.name,
            signal=status,
            ranks=tuple(row["RankId"] for row in wanted),
            reason=REASON,
            message=f"{gang.key}: {counted(len(wanted), 'rank')} get status {status} ({healing.policy})",
            evidence=Evidence(rule=RULE, codes=healing.codes),
            rank_list=msgspec.convert(wanted, tuple[RankStatus, ...]),
        )
    )
    return False


def _codes(healing: Healing) -> tuple[str, ...]:
    return () if healing.ended == _OK else healing.codes


def _members(nodes: PassNodes, pod: Pod, healing: Healing) -> Iterator[tuple[int, int]]:
    """Rank and logic id of each chip of the ring that the pod uses; rank = pod rank × chips per pod + position."""
    rank, view = declared_rank(pod) or 0, nodes.get(healing.node)
    logic = {chip: _logic_id(view, chip) for chip in chip_ids(pod)}
    order = sorted(logic, key=lambda chip: logic[chip])
    for position, chip in enumerate(order):
        if chip in healing.chips:
            yield rank * len(order) + position, logic[chip]


def _logic_id(view: NodeView | None, chip: int) -> int:
    device: Any = view.node.base_devices.get(view.chip(chip)) if view is not None else None
    number = device.get("DeviceID") if isinstance(device, Mapping) else None
    return number if isinstance(number, int) else chip


def _ranks(facts: Facts, gang: Gang) -> list[dict[str, Any]]:
    """The ranks that the ConfigMap names now; empty when it cannot be read."""
    raw = _config(facts, gang)
    if raw is None:
        return []
    try:
        ranks: list[dict[str, Any]] = resetinfo.read(raw)["RankList"]
    except WireError:
        return []
    return ranks


def _config(facts: Facts, gang: Gang) -> dict[str, Any] | None:
    """The job's reset ConfigMap; None when its owner made none."""
    raw = facts.observed.objects.get(ObjectKey("v1", "ConfigMap", gang.namespace, f"{resetinfo.PREFIX}{gang.name}"))
    labelled = raw is not None and ((raw.get("metadata") or {}).get("labels") or {}).get("reset") == "true"
    return dict(raw) if raw is not None and labelled else None


def _pods(facts: Facts, gang: Gang) -> list[Pod]:
    """The job's pods that are not finished."""
    found = (facts.observed.pods.get(key) for key in gang.pods)
    return [pod for pod in found if pod is not None and not pod.finished]


__all__ = ["LIMIT_MS", "REASON", "record_order", "heal_in_place"]
