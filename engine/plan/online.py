"""Online: chips healed under their jobs (graceful fault tolerance), where a policy says ``tolerate``.

Instead of rescheduling, the job's training managers are told through ``reset-config-<job>`` to stop the ranks on the
ring, the node's agent waits until nothing runs there, lets the fault heal or resets the ring under the pod, and the
ranks start again. An episode has one order per ring under one new epoch each; whatever goes wrong with it — a second
fault, a refusal, no answer, a pod that goes — ends it, and the job is rescheduled as if it had never been tolerated.
Sources: component/ascend-device-plugin/pkg/device/ascend910.go, ascendtolerance.go (until v26.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from engine.model import online
from engine.model.actions import Evidence, ResetChips, SignalJob
from engine.model.cluster import Pod, ids_of, mask_of
from engine.model.diagnostics import Diagnostic, ObjectKey
from engine.model.history import Healing, NodeMemory
from engine.model.jobs import Gang
from engine.plan import reset, roles, tables, victims
from engine.plan.chips import device_names
from engine.plan.gangs import declared_rank
from engine.plan.judge import TRAINING, use_of
from engine.plan.outages import AGENT_STALE_MS
from engine.plan.scope import NodeView, Scope
from engine.plan.views import chip_ids
from engine.wire import resetinfo
from engine.wire.errors import WireError

#: How long an episode may last before it is given up (ms): the life of its order.
LIMIT_MS: Final = 900_000
REASON: Final = "OnlineReset"
RULE: Final = "actions.tolerate"
_OK, _FAILED = "ok", "failed"
#: Stages of an agent's wait from which on a milder policy has become a reset (``agents.node.online``).
_UPGRADED: Final = {
    online.RESTART_REQUEST: frozenset({"processes", "healing", "resetting"}),
    online.RESTART: frozenset({"resetting"}),
}


def run(scope: Scope) -> None:
    """Begin, follow and end episodes; what is not tolerated is left to ``recover``."""
    if not roles.plays(scope, "schedule"):
        return  # whoever schedules also reschedules, at once
    bad = _bad(scope)
    under_way = {key for key, memory in scope.memory.jobs.items() if memory.healing is not None}
    for key in sorted({*bad, *under_way}):
        gang = scope.gangs.get(key)
        if gang is None:
            continue
        chips = bad.get(key, {})
        healing = victims.memory_of(scope, gang).healing
        if healing is None:
            why = _begin(scope, gang, chips)
            if why:
                _give_up(scope, gang, chips, why)
        else:
            _go_on(scope, gang, healing, chips)
    _strangers(scope)


def _bad(scope: Scope) -> dict[str, dict[str, int]]:
    """Chips with a tolerated fault under pods of each gang: per node a mask."""
    out: dict[str, dict[str, int]] = {}
    for name, view in scope.unsettled.items():
        for chip in ids_of(view.tolerated):
            gang = scope.gang_of.get(view.used_by.get(chip, ""))
            if gang is not None:
                masks = out.setdefault(gang, {})
                masks[name] = masks.get(name, 0) | 1 << chip
    return out


def _strangers(scope: Scope) -> None:
    """A tolerated fault under a pod of no gang has nobody who could be told."""
    for view in scope.unsettled.values():
        for chip in ids_of(view.tolerated):
            if view.used_by.get(chip, "") not in scope.gang_of:
                view.hit |= 1 << chip


def _give_up(scope: Scope, gang: Gang, chips: Mapping[str, int], why: str) -> None:
    """The job goes the ordinary way, and the plan says why."""
    for name, mask in chips.items():
        scope.own(name).hit |= mask
    text = f"{gang.key}: its chips are not healed under it, so it is rescheduled: {why}"
    scope.diagnostics.append(Diagnostic("info", f"{gang.kind}/{gang.namespace}/{gang.name}", "", 0, 0, "", text))


# ---- begin


def _begin(scope: Scope, gang: Gang, chips: Mapping[str, int]) -> str:
    """Order the resets of an episode. Returns why there is none, empty when it begins."""
    if len(chips) != 1:
        return "chips of several nodes are faulty"
    ((name, mask),) = chips.items()
    view = scope.nodes[name]
    if view.resetting & mask or view.recovering & mask:
        return ""  # the answer of the last order is still to be seen
    pods = _pods(scope, gang)
    why = _unable(scope, gang, view, pods)
    if why:
        return why
    pod = next(pod for pod in pods if pod.key == view.used_by[ids_of(mask)[0]])
    held = mask_of(list(chip_ids(pod)))
    groups = [group for group in view.groups if group & mask]
    if mask & ~held or any(group & ~held for group in groups):
        return f"pod {pod.key} does not hold every chip that resets together with the faulty ones"
    if declared_rank(pod) is None:
        return f"pod {pod.key} has no rank"
    policy = online.gravest(online.policy_of(view.chip_level.get(chip, "NormalNPU")) for chip in ids_of(held))
    if policy not in online.ACTING:
        return f"pod {pod.key} has a chip that no reset under it heals"
    for group in groups:
        why = reset.exhausted(scope, view, group)
        if why:
            return why
    if _waited(scope, view, mask):
        return "budgets or maintenance windows have kept its reset back for too long"
    for group in groups:
        _order(scope, gang, view, pod, group, policy)
    return ""


def _waited(scope: Scope, view: NodeView, mask: int) -> bool:
    """Whether faulty chips have been out of service for so long without an order that the job must not wait on."""
    memory = scope.memory.nodes.get(view.node.name, NodeMemory())
    out = [memory.chips[chip].isolated for chip in ids_of(mask) if chip in memory.chips]
    return any(since and scope.now_ms - since > LIMIT_MS for since in out)


def _unable(scope: Scope, gang: Gang, view: NodeView, pods: Sequence[Pod]) -> str:
    """Why a job, as it is now, cannot be healed in place; empty when it can."""
    if scope.observed.ledger_broken or not view.fresh or view.down or view.suspended or not view.node.ready:
        return f"node {view.node.name} cannot be ordered anything"
    agent = scope.observed.agents.get(view.node.name)
    if agent is None or scope.now_ms - agent.time_ms > AGENT_STALE_MS:
        return f"node {view.node.name} has no agent that could do it"
    if _config(scope, gang) is None:
        return f"there is no ConfigMap {gang.namespace}/{resetinfo.PREFIX}{gang.name} with label reset=true"
    if gang.labels.get("process-recover-enable") in ("on", "pause"):
        return "process recovery and resets under a job do not go together"
    if any(pod.deleting is not None or pod.phase != "Running" for pod in pods):
        return "not all of its pods run"
    if any(use_of(pod) != TRAINING for pod in pods):
        return "it does not train"
    if victims.memory_of(scope, gang).evicted:
        return "it is being rescheduled"
    return ""


def _order(scope: Scope, gang: Gang, view: NodeView, pod: Pod, group: int, policy: str) -> None:
    grace = tables.grace(scope.observed)
    members = ids_of(group)
    last = reset.past(scope, view, members)[0]
    what = ", ".join(
        f"{view.chip(c)} {view.chip_level[c]}" for c in members if view.tolerated >> c & 1 and c in view.chip_level
    )
    codes = tuple(sorted({code for c in members for code in view.chip_codes.get(c, ())}))
    report = view.report.resource_version if view.report else ""
    rule = view.product.spec.reset if view.product else None
    scope.actions.append(
        ResetChips(
            node=view.node.name,
            chips=device_names(view, members),
            epoch=last + 1,
            out_of_band=bool(rule and rule.out_of_band),
            reason=REASON,
            message=f"node {view.node.name}: {what} is healed under pod {pod.key} ({policy}): "
            f"its ranks on {len(members)} chips stop, and start again",
            evidence=Evidence(
                rule=RULE,
                codes=codes,
                reports=(f"kube-system/mindx-dl-deviceinfo-{view.node.name}@{report}",),
                revision=scope.desired.revision,
            ),
            preconditions={
                "epochAbove": last,
                "idle": False,
                "job": gang.key,
                "notBefore": scope.now_ms + grace.read * 1000,
                "online": {
                    "pod": pod.key, "uid": pod.uid, "policy": policy,
                    "healSeconds": grace.heal, "bootSeconds": grace.boot,
                },
            },
        )
    )  # fmt: skip


def passed(scope: Scope, action: ResetChips) -> None:
    """Remember an episode whose order safety let pass."""
    wanted: dict[str, Any] = action.preconditions.get("online") or {}
    gang = scope.gangs.get(str(action.preconditions.get("job", "")))
    if not wanted or gang is None:
        return
    before = victims.memory_of(scope, gang)
    chips = tuple(int(name.rpartition("-")[2]) for name in action.chips)
    old = before.healing
    if old is not None and old.since == scope.now_ms:  # another ring of the same episode
        chips = tuple(sorted({*old.chips, *chips}))
    epochs = {**(old.epochs if old is not None and old.since == scope.now_ms else {})}
    epochs |= dict.fromkeys((str(c) for c in chips if str(c) not in epochs), action.epoch)
    policy = str(wanted["policy"])
    healing = Healing(
        node=action.node, pod=str(wanted["uid"]), chips=chips, epochs=epochs, initial=policy, policy=policy,
        since=scope.now_ms, codes=action.evidence.codes,
    )  # fmt: skip
    scope.memory.jobs[gang.key] = msgspec.structs.replace(before, uid=gang.uid or before.uid, healing=healing)


# ---- go on


def _go_on(scope: Scope, gang: Gang, healing: Healing, chips: Mapping[str, int]) -> None:
    pods = _pods(scope, gang)
    pod = next((p for p in pods if p.uid == healing.pod and p.deleting is None), None)
    if pod is None:
        _over(scope, gang, healing, pods, chips)
        return
    if not healing.ended:
        healing = _followed(scope, gang, healing, chips)
    view = scope.nodes.get(healing.node)
    if healing.ended == _FAILED:
        # the ranks were told that they are given up, whatever the chips look like by now
        if view is not None:
            ring = mask_of(list(healing.chips))
            scope.own(healing.node).hit |= ring & (view.tolerated | view.unhealthy) or ring
        for name, mask in chips.items():
            scope.own(name).hit |= mask
    told = _tell(scope, gang, pod, healing)
    if healing.ended == _OK and told and _clean(view, healing):
        _remember(scope, gang, None)
        return
    if healing.ended == _OK and scope.now_ms - healing.at > LIMIT_MS:
        _remember(scope, gang, None)  # the fault is there again, or still: it is judged anew
        return
    _remember(scope, gang, healing)


def _followed(scope: Scope, gang: Gang, healing: Healing, chips: Mapping[str, int]) -> Healing:
    """How far the episode is."""
    own = mask_of(list(healing.chips))
    elsewhere = any(mask & ~(own if name == healing.node else 0) for name, mask in chips.items())
    view = scope.nodes.get(healing.node)
    if elsewhere or view is None or view.down or _hit(scope, gang):
        return _ended(scope, healing, _FAILED)
    agent = scope.observed.agents.get(healing.node)
    rows = {chip: agent.chips[chip] for chip in healing.chips if agent and chip in agent.chips}
    answers = [
        rows[chip].reset_result
        for chip in healing.chips
        if chip in rows and rows[chip].reset_epoch_done >= healing.epochs.get(str(chip), 0)
    ]
    if any(not answer.startswith(_OK) for answer in answers):
        return _ended(scope, healing, _FAILED)
    if len(answers) == len(healing.chips):
        return _ended(scope, healing, _OK)
    if scope.now_ms - healing.since > LIMIT_MS:
        return _ended(scope, healing, _FAILED)
    stages = {row.reset_stage for row in rows.values()}
    if stages & _UPGRADED.get(healing.initial, frozenset()) and healing.policy != online.RESET:
        return msgspec.structs.replace(healing, policy=online.RESET)
    return healing


def _hit(scope: Scope, gang: Gang) -> bool:
    """Whether another fault moves the job anyway."""
    for pod in _pods(scope, gang):
        view = scope.nodes.get(pod.node)
        if view is not None and view.hit & mask_of(list(chip_ids(pod))):
            return True
    return False


def _ended(scope: Scope, healing: Healing, how: str) -> Healing:
    policy = online.ISOLATE if how == _FAILED else healing.policy
    return msgspec.structs.replace(healing, ended=how, at=scope.now_ms, policy=policy)


def _over(scope: Scope, gang: Gang, healing: Healing, pods: Sequence[Pod], chips: Mapping[str, int]) -> None:
    """Its pod goes or is gone: once it is, the pods to come must not be told of it."""
    if any(pod.uid == healing.pod for pod in pods):
        for name, mask in chips.items():
            scope.own(name).hit |= mask
        _remember(scope, gang, healing)
        return
    if _ranks(scope, gang):
        scope.actions.append(
            SignalJob(
                namespace=gang.namespace,
                name=gang.name,
                signal="clear",
                ranks=(),
                reason=REASON,
                message=f"{gang.key}: the pod whose chips were to be healed is gone, new ones may run",
                evidence=Evidence(rule=RULE),
                preconditions={},
            )
        )
        _remember(scope, gang, healing)
        return
    _remember(scope, gang, None)
    for name, mask in chips.items():
        scope.own(name).hit |= mask


def _clean(view: NodeView | None, healing: Healing) -> bool:
    """Whether a report of the time after the answer shows the chips well."""
    own = mask_of(list(healing.chips))
    return view is None or (view.fresh and not (view.tolerated | view.resetting | view.recovering) & own)


def _remember(scope: Scope, gang: Gang, healing: Healing | None) -> None:
    before = victims.memory_of(scope, gang)
    if before.healing != healing:
        scope.memory.jobs[gang.key] = msgspec.structs.replace(before, healing=healing)


# ---- what the training managers are told


def _tell(scope: Scope, gang: Gang, pod: Pod, healing: Healing) -> bool:
    """Bring ``reset-config-<job>`` in line with the episode. Returns whether it is."""
    status = {"": online.UNRECOVERED, _OK: online.RECOVERED, _FAILED: online.FAILED}[healing.ended]
    wanted = [
        resetinfo.rank(
            rank, logic, status=status, policy=healing.policy, initial=healing.initial, codes=_codes(healing)
        )
        for rank, logic in _members(scope, pod, healing)
    ]
    if _ranks(scope, gang) == wanted or _config(scope, gang) is None:
        return True
    scope.actions.append(
        SignalJob(
            namespace=gang.namespace,
            name=gang.name,
            signal=status,
            ranks=tuple(row["RankId"] for row in wanted),
            reason=REASON,
            message=f"{gang.key}: {len(wanted)} ranks are told {status} ({healing.policy})",
            evidence=Evidence(rule=RULE, codes=healing.codes),
            preconditions={"rankList": wanted},
        )
    )
    return False


def _codes(healing: Healing) -> tuple[str, ...]:
    return () if healing.ended == _OK else healing.codes


def _members(scope: Scope, pod: Pod, healing: Healing) -> Iterator[tuple[int, int]]:
    """Rank and logic id of every chip of the ring that the pod uses: its rank times its chips, plus the position."""
    rank, view = declared_rank(pod) or 0, scope.nodes.get(healing.node)
    logic = {chip: _logic(view, chip) for chip in chip_ids(pod)}
    order = sorted(logic, key=lambda chip: logic[chip])
    for position, chip in enumerate(order):
        if chip in healing.chips:
            yield rank * len(order) + position, logic[chip]


def _logic(view: NodeView | None, chip: int) -> int:
    device: Any = view.node.base_devices.get(view.chip(chip)) if view is not None else None
    told = device.get("DeviceID") if isinstance(device, Mapping) else None
    return told if isinstance(told, int) else chip


def _ranks(scope: Scope, gang: Gang) -> list[dict[str, Any]]:
    """The ranks that the ConfigMap names now; none where it cannot be read."""
    raw = _config(scope, gang)
    if raw is None:
        return []
    try:
        ranks: list[dict[str, Any]] = resetinfo.read(raw)["RankList"]
    except WireError:
        return []
    return ranks


def _config(scope: Scope, gang: Gang) -> dict[str, Any] | None:
    """The job's reset ConfigMap, where its owner made one."""
    raw = scope.observed.objects.get(ObjectKey("v1", "ConfigMap", gang.namespace, f"{resetinfo.PREFIX}{gang.name}"))
    labelled = raw is not None and ((raw.get("metadata") or {}).get("labels") or {}).get("reset") == "true"
    return dict(raw) if raw is not None and labelled else None


def _pods(scope: Scope, gang: Gang) -> list[Pod]:
    """The job's pods that have not ended."""
    found = (scope.observed.pods.get(key) for key in gang.pods)
    return [pod for pod in found if pod is not None and not pod.finished]


__all__ = ["LIMIT_MS", "REASON", "passed", "run"]
