"""What comes next, as sentences: for whatever runs, waits or is held, with the time, who ends it and how.

They stand beside the actions of the next pass, which may well do nothing while a reset waits for idle chips.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from belay.engine.cli import last_words
from belay.engine.cli.holds import how_held
from belay.engine.cli.phrases import ranges
from belay.engine.gangs.grouping import group
from belay.engine.model.actions import PartitionChip, ResetChips
from belay.engine.model.cluster import Departure, Node, Observed, Orders, Pod, ResetOrder
from belay.engine.model.disruption import SETTLED, awaits_its_deletion
from belay.engine.model.holds import Held
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import CORDONED_ANNOTATION
from belay.engine.model.plan import CONTRADICTED, ChipState, NodeState, Plan
from belay.engine.model.states import ChipHealth, NodeHealth
from belay.engine.model.times import rfc3339
from belay.engine.model.wording import counted

_NOTHING_DUE: Final = "nothing is due"
_MOST_LINES: Final = 5


# chips


def of_chip(
    node: str, chip: int, state: ChipState | None, holds: Sequence[Held], plan: Plan, observed: Observed
) -> list[str]:
    """What becomes of a chip."""
    if state is None:
        return ["it is free for new work"]
    match state.state:
        case ChipHealth.RESETTING:
            return _resetting(node, chip, plan, observed)
        case ChipHealth.RECOVERING:
            return ["its reset is done: it takes work again with the next full report that is clean"]
        case ChipHealth.SUSPECT:
            return [f"{', '.join(state.codes) or 'its fault'} is watched: it counts once a rule's time is over"]
        case ChipHealth.ISOLATED | ChipHealth.MANUALLY_ISOLATED:
            held = [how_held(hold) for hold in holds] or [_isolated(state)]
            return _contradicted(state, plan) or held
        case ChipHealth.HEALTHY | ChipHealth.SUB_HEALTHY:
            held = [how_held(hold) for hold in holds]
            return held or [f"{state.used_by} runs on it: {_NOTHING_DUE}" if state.used_by else _NOTHING_DUE]
        case _:
            return [_NOTHING_DUE]


def _contradicted(state: ChipState, plan: Plan) -> list[str]:
    """Why the chip is neither reset nor cut although it should be: its node reports another product."""
    for deferred in plan.deferred:
        action = deferred.action
        if deferred.budget != CONTRADICTED or not isinstance(action, ResetChips | PartitionChip):
            continue
        if action.node == state.node and state.chip in _chips_of(action):
            return [action.message]
    return []


def _chips_of(action: ResetChips | PartitionChip) -> tuple[str, ...]:
    return action.chips if isinstance(action, ResetChips) else (action.chip,)


def _isolated(state: ChipState) -> str:
    reports = f"until a full report no longer names {', '.join(state.codes)}" if state.codes else "until a clean report"
    if state.used_by:
        return f"it takes no new work {reports}; {state.used_by} still holds it"
    return f"it takes no new work {reports}; a reset that may heal it is ordered once its group is idle"


def _resetting(node: str, chip: int, plan: Plan, observed: Observed) -> list[str]:
    orders, agent = observed.orders.get(node), observed.agents.get(node)
    if orders is None:
        return ["its order has been answered: the next pass decides"]
    server = plan.servers.get(node)
    prefix = server.prefix if server is not None else ""
    order = orders.resets.get(chip)
    done = agent.chips[chip].reset_epoch_done if agent is not None and chip in agent.chips else 0
    if order is not None and order.epoch > done:
        return [_reset(node, order, orders, prefix, plan.now, observed)]
    if chip in orders.vnpu_layout and orders.vnpu_epoch > (agent.vnpu_epoch_done if agent is not None else 0):
        cut = ", ".join(orders.vnpu_layout[chip]) or "a whole chip again"
        return [f"it is made into {cut} (epoch {orders.vnpu_epoch}) once it is idle"]
    return ["its order has been answered: the next pass decides"]


def _reset(node: str, order: ResetOrder, orders: Orders, prefix: str, now: float, observed: Observed) -> str:
    """How far a reset is: it waits for its agent, for processes, for the idle time, or it runs."""
    which = ranges(", ".join(f"{prefix}{number}" for number in order.group)) or "its group"
    agent = observed.agents.get(node)
    if agent is None or agent.orders_seen < orders.generation:
        end = f"; without an answer it is given up at {rfc3339(orders.not_after_ms / 1000)}" if agent is None else ""
        return f"the reset of {which} (epoch {order.epoch}) waits for the node's agent to read the order{end}"
    rows = [agent.chips[number] for number in order.group if number in agent.chips]
    if any(row.processes or row.idle_since_ms is None for row in rows):
        return f"the reset of {which} (epoch {order.epoch}) waits until no process uses them"
    idle = max((row.idle_since_ms or 0 for row in rows), default=0) / 1000
    begins = max(idle + agent.idle_wait, order.not_before_ms / 1000)
    if now < begins:
        text = (
            f"waits until {which} have been idle for {agent.idle_wait:g} s, then resets them, about {rfc3339(begins)}"
        )
        return f"{text} (epoch {order.epoch})"
    return f"the reset of {which} (epoch {order.epoch}) has run since about {rfc3339(begins)}; they answer once booted"


# nodes


def of_node(state: NodeState, plan: Plan, observed: Observed) -> list[str]:
    """What becomes of a node."""
    node = observed.nodes.get(state.node)
    jobs = sorted(pod.key for pod in observed.pods.values() if pod.node == state.node and pod.holds_chips)
    held = _hold_of(state.node, plan)
    if held is not None:
        return [_maintenance(held), *_leaving(jobs), *_cordon(node)]
    if node is not None and node.maintenance:
        return [f"it is in maintenance while its condition {node.maintenance} is true", *_leaving(jobs)]
    if node is not None and node.departure is not None:
        goes = _departing(jobs, node.departure, observed)
        return [f"it is about to be removed: {node.departure.text}; it takes no new work", *goes]
    found: list[str] = []
    match state.state:
        case NodeHealth.NOT_READY:
            found.append("its jobs move when it has not been ready for 40 s; it takes work again when kubelet answers")
        case NodeHealth.UNKNOWN:
            found.append("it takes no new work until its device report is renewed: look at the agent's pod")
        case NodeHealth.ISOLATED | NodeHealth.PRE_ISOLATED | NodeHealth.MANUALLY_ISOLATED:
            codes = f"no longer name {', '.join(state.codes)}" if state.codes else "are clean"
            found.append(f"it takes no new work until its reports {codes}")
        case NodeHealth.HEALTHY | NodeHealth.SUB_HEALTHY:
            pass
    if node is not None and node.unschedulable:
        found += _cordon(node)
    return found or [f"{counted(len(jobs), 'pod')} of jobs on it: {_NOTHING_DUE}"]


def _maintenance(held: Held) -> str:
    until = f"until {held.until}, or " if held.until else "until "
    return f"in maintenance by {held.by}, {until}the document is deleted from Git"


def _departing(jobs: Sequence[str], departure: Departure, observed: Observed) -> list[str]:
    """What becomes of the pods on a node that others remove."""
    if not departure.now:
        return ["its pods stay until others begin to evict them"]
    if not departure.waits:
        return _leaving(jobs)

    gangs, gang_of = group(observed)
    kept = [key for key in jobs if _kept(gangs.get(gang_of.get(key, "")), observed.pods[key], observed)]
    going = [key for key in jobs if key not in kept]
    lines = _leaving(going) if going or not kept else []
    if kept:
        keys = ", ".join(sorted(SETTLED))
        lines.append(f"kept on it until one of their pods is being deleted: {_some(kept)} ({keys})")
    return lines


def _kept(gang: Gang | None, pod: Pod, observed: Observed) -> bool:
    return gang is not None and awaits_its_deletion(gang, pod, observed.pods)


def _leaving(jobs: Sequence[str]) -> list[str]:
    if not jobs:
        return ["no pod of a job holds chips on it: it is empty"]
    return [f"still on it: {_some(jobs)}; they move within the budgets"]


def _some(jobs: Sequence[str]) -> str:
    more = f" and {len(jobs) - _MOST_LINES} more" if len(jobs) > _MOST_LINES else ""
    return f"{', '.join(jobs[:_MOST_LINES])}{more}"


def _cordon(node: Node | None) -> list[str]:
    if node is None or not node.unschedulable:
        return []
    if CORDONED_ANNOTATION in node.annotations:
        return ["Belay cordoned it, and uncordons it when the maintenance ends"]
    return [f"others cordoned it: `kubectl uncordon {node.name}` ends that, Belay does not"]


# pods and jobs


def of_pod(pod: Pod, waits: str, plan: Plan, observed: Observed, *, stays: bool = False) -> list[str]:
    """What becomes of a pod; ``waits``: the reason for which it waits for a place; ``stays``: it is left on hardware
    that is out of service.
    """
    if pod.deleting is not None:
        return [f"it ends: its grace time is over at {rfc3339(pod.deleting)}"]
    if pod.phase == "Failed":
        return _failed(pod, observed)
    if pod.phase == "Succeeded":
        return ["it has done its work"]
    if waits:
        return [f"it waits ({waits}), and every pass tries again: see the way out"]
    if not pod.node:
        return ["it waits for the scheduler named in it" if pod.scheduler else "it waits for a place"]
    if pod.phase == "Pending":
        return [*last_words.restarted(pod), f"it has its place: kubelet of {pod.node} starts it"]
    return [*last_words.restarted(pod), _while_it_runs(pod, plan, observed, stays=stays)]


def _while_it_runs(pod: Pod, plan: Plan, observed: Observed, *, stays: bool) -> str:
    if stays:
        return "it stays on hardware that is faulty or drained until it ends: see why it is not moved"
    node = observed.nodes.get(pod.node)
    if emptied := _why_emptied(pod.node, node, plan):
        return f"{_leaves(pod, node, plan, observed)}: {pod.node} {emptied}"
    if node is not None and node.unschedulable and CORDONED_ANNOTATION not in node.annotations:
        return f"it runs until it ends: {pod.node} is cordoned, which moves no pod and keeps new ones away"
    return f"it runs: {_NOTHING_DUE}"


def _why_emptied(name: str, node: Node | None, plan: Plan) -> str:
    """Why a node has to become empty; nothing where it has not."""
    held = _hold_of(name, plan)
    if held is not None:
        return f"is in maintenance by {held.by}"
    if node is not None and node.maintenance:
        return f"is in maintenance while its condition {node.maintenance} is true"
    return f"is about to be removed: {node.departure.text}" if node is not None and node.departure is not None else ""


def _leaves(pod: Pod, node: Node | None, plan: Plan, observed: Observed) -> str:
    """How a pod leaves a node that has to become empty."""
    gangs, gang_of = group(observed)
    gang = gangs.get(gang_of.get(pod.key, ""))
    server = plan.servers.get(pod.node)
    asks = gang is not None and bool(pod.owner_kind) and pod.holds_chips and gang.fault_scheduling != "off"
    if gang is None or not asks or (server is not None and server.suspended):
        return "it runs until it ends, and Belay does not move it"

    leaves_only = _hold_of(pod.node, plan) is None and node is not None and not node.maintenance
    departure = node.departure if node is not None and leaves_only else None
    if departure is not None and not departure.now:
        return "it runs until others begin to evict it"
    if departure is not None and departure.waits and _kept(gang, pod, observed):
        return "it runs until a pod of its job is being deleted"
    return "it moves with its job within the budgets"


def _hold_of(name: str, plan: Plan) -> Held | None:
    """What holds a whole node."""
    return next((one for one in plan.holds if one.node == name and not one.chip), None)


def _failed(pod: Pod, observed: Observed) -> list[str]:
    """Why a pod failed, where its last words are, and who makes it again."""
    codes = ", ".join(last_words.exit_codes(pod))
    lines = [f"it failed ({pod.reason or 'Error'}{f'; exit code of {codes}' if codes else ''})"]
    for one in observed.evidence.get(pod.node, ()):
        if (one.namespace, one.pod, one.uid) == (pod.namespace, pod.name, pod.uid):
            lines += [f"its logs say: {event.example}" for event in one.events[-_MOST_LINES:] if event.example]
    what = "the whole log" if last_words.last_lines(pod) else "read its last lines"
    lines += [f"{what}: `{command}`" for command in last_words.read_logs(pod)]
    if not pod.owner_kind:
        return [*lines, "nothing makes it again: delete it, and create another"]
    gangs, gang_of = group(observed)
    gang = gangs.get(gang_of.get(pod.key, ""))
    job = f"{gang.kind.partition('.')[0]} {gang.namespace}/{gang.name}" if gang is not None else pod.owner_kind
    way = f": `belay explain job {gang.namespace}/{gang.name}` names the way out" if gang is not None else ""
    return [*lines, f"{job} decides whether it is made again{way}"]


def of_job(
    pods: Sequence[Pod], waits: str, ended: str, suspended: str, recovering: str, *, stays: bool = False
) -> list[str]:
    """What becomes of a job; ``suspended``: who resumes it; ``recovering``: the sentence of its open recovery.

    ``stays``: pods of it are left on hardware that is out of service.
    """
    if suspended:
        return [f"it is suspended: {suspended}"]
    if ended:
        return [f"it has ended ({ended}): Belay starts it again only where its retries say so"]
    if recovering:
        return [f"it recovers: {recovering}"]
    if waits:
        return [f"it waits ({waits}), and every pass tries again: see the way out"]
    if any(pod.deleting is not None for pod in pods):
        return ["its pods end, and are made again"]
    starting = [pod for pod in pods if pod.phase == "Pending"]
    if starting:
        return [f"{counted(len(starting), 'pod')} of it start"]
    if stays:
        return ["it stays on hardware that is faulty or drained until its pods end: see why it is not moved"]
    return [f"it runs: {_NOTHING_DUE}"] if pods else ["its pods have not been made yet"]


__all__ = ["of_chip", "of_job", "of_node", "of_pod"]
