"""The reset pass: one order per reset group that is idle and has a fault that a reset may heal.

A group is idle when its chips have no live pod (terminating ones count), no claim, no binding in this plan, and no
process in the report of the node's agent. Nothing is ordered where no agent lives. Placement runs first and may use
the healthy peers of a faulty chip, as in MindCluster; the reset then waits for them. A group is reset at most as often
as its attempt budget allows, under an epoch that only grows. Sources:
component/ascend-device-plugin/pkg/server/hot_reset_manager.go, token_bucket.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from belay.engine.documents.fault_policy import IDLE
from belay.engine.model.actions import (
    BindPod,
    EvictPod,
    Evidence,
    PatchObject,
    PatchType,
    Preconditions,
    ResetChips,
)
from belay.engine.model.chip_masks import ids_of, mask_of
from belay.engine.model.cluster import AgentReport
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.history import (
    ChipMemory,
    Hold,
    HoldKind,
    NodeMemory,
)
from belay.engine.model.labels import REBOOT_REQUESTED
from belay.engine.model.plan import CONTRADICTED, Deferred
from belay.engine.model.reasons import ActionReason
from belay.engine.model.resets import said_by_driver
from belay.engine.model.times import rfc3339
from belay.engine.plan import causes
from belay.engine.plan.draft import Draft
from belay.engine.plan.facts import Facts
from belay.engine.plan.health.assessment import Health
from belay.engine.plan.health.chips import device_names
from belay.engine.plan.node_agents import taking_orders
from belay.engine.plan.node_view import NodeView, PassNodes
from belay.engine.plan.products import withheld
from belay.engine.plan.rules.fault_rules import DEFAULT_ATTEMPTS, FaultRules
from belay.engine.plan.views import device_id

#: Maximum reset times remembered per chip.
MAX_RESETS: Final = 20
#: Budget name of a reset whose group has used up its attempts.
ATTEMPTS: Final = "attempts:reset"
_EMPTY_CHIP: Final = ChipMemory()


def order_resets(facts: Facts, draft: Draft, nodes: PassNodes, health: Health) -> None:
    """Order resets, and hold the groups whose attempts are used up."""
    if facts.observed.ledger_broken:
        return  # it is unknown which chips are claimed
    taken = _chips_in_use_by_plan(facts, draft, nodes)
    remembered = draft.memory.nodes
    # settled nodes have no resettable chip
    for name in sorted(nodes.keys() & {*nodes.unassessed, *remembered}):
        view = nodes[name]
        if name in remembered:
            _withdraw_reboot_request(draft, view)
        if not view.resettable or not view.fresh or view.suspended or not view.node.ready:
            continue
        if name in facts.observed.problems:
            continue  # the newest report was refused; the one in force is too old to base a reset on
        agent = taking_orders(facts, view)
        if agent is None:
            continue  # the device plugin there resets by its own rules, and its report shows it
        for group in view.groups:
            if group & view.resettable and (view.contradiction or _idle(view, agent, group, taken.get(name, 0))):
                _order(facts, draft, health, view, group)


def _chips_in_use_by_plan(facts: Facts, draft: Draft, nodes: PassNodes) -> dict[str, int]:
    """Masks of the chips that this plan binds, and of those of pods that it evicts, by node."""
    out: dict[str, int] = {}
    for action in draft.actions:
        if isinstance(action, BindPod):
            ids = [chip for chip in map(device_id, action.chips) if chip is not None]
            out[action.node] = out.get(action.node, 0) | mask_of(ids)
        elif isinstance(action, EvictPod):
            pod = facts.observed.pods.get(f"{action.namespace}/{action.pod}")
            view = nodes.get(pod.node) if pod else None
            if view is not None:
                held = mask_of([chip for chip, key in view.used_by.items() if pod and key == pod.key])
                out[view.node.name] = out.get(view.node.name, 0) | held
    return out


def _idle(view: NodeView, agent: AgentReport, group: int, taken: int) -> bool:
    """Whether no chip of the group is used or about to be used."""
    if group & (view.used | taken | view.resetting | view.recovering):
        return False
    if view.report and group & view.report.recovering:
        return False
    if any(pod.count and not pod.chips for pod in view.pods):
        return False  # a pod without recorded chips may be on any of them
    busy = {vnpu.chip for vnpu in agent.vnpus if vnpu.used_by}
    busy |= {chip for chip, row in agent.chips.items() if row.processes > 0}
    return not group & mask_of(sorted(busy))


def attempts(
    facts: Facts, draft: Draft, rules: FaultRules | None, view: NodeView, members: Sequence[int]
) -> tuple[int, list[int], int, int]:
    """Past resets of chips that reset together.

    Returns:
        The highest known epoch, the times of resets within the window (Unix ms), the attempts allowed in it, and its
        length (ms).
    """
    name = view.node.name
    memory = draft.memory.nodes.get(name, NodeMemory())
    most, window = rules.of(view, IDLE).reset_attempts if rules else DEFAULT_ATTEMPTS
    spent = sorted({t for c in members for t in memory.chips.get(c, _EMPTY_CHIP).resets if t > facts.now_ms - window})
    standing, agent = facts.observed.orders.get(name), facts.observed.agents.get(name)
    epochs = [memory.chips.get(c, _EMPTY_CHIP).epoch for c in members]
    epochs += [standing.resets[c].epoch for c in members if standing and c in standing.resets]
    epochs += [agent.chips[c].reset_epoch_done for c in members if agent and c in agent.chips]
    return max(epochs, default=0), spent, most, window


def exhausted(facts: Facts, draft: Draft, rules: FaultRules | None, view: NodeView, group: int) -> str:
    """Why a group may not be reset again, empty when it may."""
    _, spent, most, window = attempts(facts, draft, rules, view, ids_of(group))
    return f"its chips were reset {len(spent)} times in {window // 3_600_000} h" if len(spent) >= most else ""


def _order(facts: Facts, draft: Draft, health: Health, view: NodeView, group: int) -> None:
    name, members = view.node.name, ids_of(group)
    last, spent, most, window = attempts(facts, draft, health.rules, view, members)
    faulty = ids_of(group & view.resettable)
    codes = tuple(sorted({code for c in faulty for code in view.chip_codes.get(c, ())}))
    rule = view.product.spec.reset if view.product else None
    planes = health.planes.get(name, {})  # a reset heals the chip plane, not the network plane
    what = ", ".join(f"{view.chip(c)} {planes[c].chip if c in planes else view.chip_level[c]}" for c in faulty)
    with_peers = f"; {len(members)} chips reset together" if len(members) > 1 else ""
    action = ResetChips(
        node=name,
        chips=device_names(view, members),
        epoch=last + 1,
        out_of_band=bool(rule and rule.out_of_band),
        reason=ActionReason.CHIP_FAULT,
        message=f"node {name}: {what} may be healed by a reset and its group is idle{with_peers}",
        evidence=Evidence(
            rule=_rule(facts, view),
            codes=codes,
            reports=(f"kube-system/mindx-dl-deviceinfo-{name}@{view.report.resource_version if view.report else ''}",),
            revision=facts.desired.revision,
            cause=causes.of_chips(facts, draft, health.rules, view, faulty) or msgspec.UNSET,
        ),
        preconditions=Preconditions(epoch_above=last, idle=True),
    )
    if view.contradiction:
        held = msgspec.structs.replace(
            action, message=f"node {name}: {what} may be healed by a reset; {withheld(view)}"
        )
        draft.deferred.append(Deferred(held, CONTRADICTED, None))
        return
    if len(spent) >= most:
        until = spent[len(spent) - most] + window if most else 0
        _hold(facts, draft, view, group, until, f"reset:{most} in {window // 1000}s")
        if most:
            _request_reboot(facts, draft, view, what, most, action.evidence)
        draft.deferred.append(Deferred(action, ATTEMPTS, rfc3339(until / 1000) if until else None))
        return
    draft.actions.append(action)


def _rule(facts: Facts, view: NodeView) -> str:
    """What says which chips reset together."""
    if view.product is not None:
        return f"Product/{view.product.name}#reset"
    agent = facts.observed.agents.get(view.node.name)
    said = agent is not None and view.groups == said_by_driver(agent.reset_groups, view.base)
    return "reset:unknown product, groups of the driver" if said else "reset:unknown product, whole node"


def _request_reboot(facts: Facts, draft: Draft, view: NodeView, what: str, most: int, evidence: Evidence) -> None:
    """Request a reboot when resets did not help; after a reboot without effect, report that a person is needed.

    Belay reboots no node: the request is an annotation of the Node, for the operator or tool that reboots nodes.
    """
    name = view.node.name
    memory = draft.memory.nodes.get(name, NodeMemory())
    agent = facts.observed.agents.get(name)
    tried = agent is not None and any(
        (row := agent.chips.get(chip)) is not None and row.reset_result.startswith(("failed", "ok"))
        for chip in ids_of(view.resettable)
    )
    if not tried:
        return  # no reset was carried out yet, so a reboot would be premature
    boot = agent.boot if agent is not None else ""
    asked, before = memory.reboot
    if asked and (not boot or boot == before):
        return  # requested, not done yet
    if asked:
        text = f"node {name}: {what} is still there after {most} resets and a reboot; a person must look at it"
        draft.diagnostics.append(Diagnostic("warning", f"Node/{name}", "", 0, 0, "", text, PassCode.RESETS_IN_VAIN))
        return
    text = f"node {name}: {what} is still there after {most} resets; rebooting the node may heal it"
    draft.memory.nodes[name] = msgspec.structs.replace(memory, reboot=(facts.now_ms, boot))
    draft.actions.append(_annotate(view, f"{rfc3339(facts.now)} {what}", ActionReason.RESETS_FAILED, text, evidence))


def _withdraw_reboot_request(draft: Draft, view: NodeView) -> None:
    """Withdraw the request once the fault is gone."""
    memory = draft.memory.nodes.get(view.node.name)
    if memory is None or not memory.reboot[0] or view.suspended or not view.fresh or view.resettable:
        return
    if view.resetting | view.recovering:
        return  # the result of the last reset is not known yet
    draft.memory.nodes[view.node.name] = msgspec.structs.replace(memory, reboot=(0, ""))
    text = f"node {view.node.name}: nothing needs a reboot any more"
    draft.actions.append(_annotate(view, None, ActionReason.REPORT_CLEAN, text, Evidence(rule="reset")))


def _annotate(view: NodeView, value: str | None, reason: str, text: str, evidence: Evidence) -> PatchObject:
    return PatchObject(
        api_version="v1",
        object_kind="Node",
        namespace="",
        name=view.node.name,
        patch={"metadata": {"annotations": {REBOOT_REQUESTED: value}}},
        reason=reason,
        message=text,
        evidence=evidence,
        patch_type=PatchType.MERGE,
        preconditions=Preconditions(uid=view.node.uid),
    )


def _hold(facts: Facts, draft: Draft, view: NodeView, group: int, until: int, rule: str) -> None:
    """Hold the faulty chips of a group without attempts until the window frees one."""
    name = view.node.name
    memory = draft.memory.nodes.get(name, NodeMemory())
    rows = dict(memory.chips)
    for chip in ids_of(group & view.resettable):
        before = rows.get(chip, _EMPTY_CHIP)
        level = view.chip_level.get(chip, "")
        hold = Hold(HoldKind.ATTEMPT_BUDGET, level, since=facts.now_ms, until=until, rule=rule)
        if not any(h.kind == HoldKind.ATTEMPT_BUDGET for h in before.holds):
            rows[chip] = msgspec.structs.replace(before, holds=(*before.holds, hold))
    if rows != memory.chips:
        draft.memory.nodes[name] = msgspec.structs.replace(memory, chips=dict(sorted(rows.items())))
