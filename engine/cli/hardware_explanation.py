"""Answers of `belay explain chip` and `belay explain node`: faults, holds, orders, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from belay.engine.cli import coming
from belay.engine.cli.answers import chip_names, chip_row
from belay.engine.cli.explained_rows import actions_on, hold_row, slow_findings, suggestion
from belay.engine.cli.holders import holders_of
from belay.engine.cli.vnpus import vnpus_of
from belay.engine.cli.whys import Whys
from belay.engine.errors import InputError
from belay.engine.model.chip_masks import ids_of
from belay.engine.model.cluster import AgentReport, ChipFault, Observed, Orders
from belay.engine.model.history import ChipMemory, History
from belay.engine.model.log_codes import BMC, CHIP, meaning_of
from belay.engine.model.plan import Plan, ServerChips
from belay.engine.model.times import rfc3339


def explain_chip(name: str, plan: Plan, observed: Observed, whys: Whys) -> dict[str, Any]:
    """Answer for a chip by its name, ``NODE/CHIP``.

    Raises:
        InputError: the chip does not exist, or its name lacks the node.
    """
    node, slash, given = name.rpartition("/")
    if not slash:
        raise InputError(f"chip {name!r} is not named in full", hint="Write NODE/CHIP, such as node-1/Ascend910-0.")
    report, server = observed.reports.get(node), plan.servers.get(node)
    if report is None or server is None:
        known = sorted(observed.reports)
        raise InputError(
            f"there is no report of a node {node!r}", hint=suggestion(node, known, "nodes"), code="NoSuchObject"
        )
    chip_name, chip = _find_chip(node, given, server)

    state = next((row for row in plan.chips if (row.node, row.chip) == (node, chip_name)), None)
    body = chip_row(node, chip_name, state, server)
    if len(holders := holders_of(observed, node, chip_name)) > 1:
        body["holders"] = holders
    body["faults"] = [_fault_row(fault) for fault in report.faults if fault.chip == chip]
    body |= _failures(node, chip_name, plan)

    holds = [held for held in plan.holds if held.node == node and held.chip in (chip_name, "")]
    if holds or _chip_memory(plan.history, node, chip) is not None:
        body["holds"] = [hold_row(held, whys) for held in holds]
    body |= _recorded(node, chip, plan, observed)
    body |= _ordered_and_done(node, chip, observed)
    if parts := vnpus_of(chip, observed.agents.get(node), observed.orders.get(node)):
        body["vnpus"] = parts

    def concerns(action: Any) -> bool:
        chips = (*getattr(action, "chips", ()), getattr(action, "chip", ""))
        return getattr(action, "node", None) == node and chip_name in chips

    body["coming"] = coming.of_chip(node, chip, state, holds, plan, observed)
    body |= slow_findings(observed, lambda row: chip in row["nodes"].get(node, ()))
    body["next"] = actions_on(plan, concerns)
    return body


def _find_chip(node: str, given: str, server: ServerChips) -> tuple[str, int]:
    """The device name and id of a chip that is named in full (``Ascend910-4``) or by its id alone."""
    ids = dict(zip(chip_names(server), ids_of(server.base), strict=True))
    name = given if given in ids else f"{server.prefix}{given}"
    if name not in ids:
        raise InputError(f"node {node} has no chip {given!r}", hint=f"Its chips are {', '.join(ids) or 'none'}.")
    return name, ids[name]


def _fault_row(fault: ChipFault) -> dict[str, Any]:
    since = rfc3339(fault.time_ms / 1000) if fault.time_ms else None
    row: dict[str, Any] = {"code": fault.code, "kind": fault.kind, "level": fault.level, "since": since}
    meaning = _meaning(f"{CHIP}{fault.code}")
    return row | {"what": meaning} if meaning is not None else row


def _meaning(code: str) -> str | None:
    """What the code of a fault says; None where that is not known."""
    meaning = meaning_of(code)
    return meaning.en if meaning is not None else None


def _failures(node: str, chip_name: str, plan: Plan) -> dict[str, Any]:
    """How often a chip has failed of late, if it is a repeat offender."""
    for offender in plan.repeat_offenders:
        if (offender.node, offender.chip) == (node, chip_name):
            rate = {"rate": offender.failures, "threshold": offender.threshold, "avoided": offender.avoided}
            return {"failures": rate}
    return {}


def _chip_memory(history: History, node: str, chip: int) -> ChipMemory | None:
    memory = history.nodes.get(node)
    return memory.chips.get(chip) if memory is not None else None


def _recorded(node: str, chip: int, plan: Plan, observed: Observed) -> dict[str, Any]:
    """What the cluster's own records say of a chip, and apart from it what only this answer's plan would add."""
    before, after = _chip_memory(observed.history, node, chip), _chip_memory(plan.history, node, chip)
    if before is None and after is None:
        return {}

    recorded = before or ChipMemory()
    body: dict[str, Any] = {
        "resets": [rfc3339(ms / 1000) for ms in recorded.resets],
        "history": [f"{rfc3339(ms / 1000)} {what}" for ms, what in recorded.timeline],
    }
    planned = after.timeline if after is not None else ()
    if decided := [what for ms, what in planned if (ms, what) not in recorded.timeline]:
        body["decided"] = decided
    return body


def _ordered_and_done(node: str, chip: int, observed: Observed) -> dict[str, Any]:
    """The newest reset that the node's orders hold, and the newest that its agent reports."""
    orders, agent = observed.orders.get(node), observed.agents.get(node)
    order = orders.resets.get(chip) if orders is not None else None
    reported = agent.chips.get(chip) if agent is not None else None

    body: dict[str, Any] = {}
    if order is not None:
        body["ordered"] = f"reset epoch {order.epoch} ({order.reason})"
    if reported is not None and reported.reset_epoch_done:
        body["done"] = f"reset epoch {reported.reset_epoch_done}: {reported.reset_result}"
    return body


def explain_node(name: str, plan: Plan, observed: Observed, whys: Whys) -> dict[str, Any]:
    """Answer for a node by its name.

    Raises:
        InputError: the node does not exist.
    """
    state = next((row for row in plan.nodes if row.node == name), None)
    if state is None:
        raise InputError(f"node {name!r} is unknown", hint=suggestion(name, [row.node for row in plan.nodes], "nodes"))

    body: dict[str, Any] = msgspec.to_builtins(state)
    if faults := _known_faults(state.codes):
        body["faults"] = faults
    node, report = observed.nodes.get(name), observed.reports.get(name)
    body["cordoned"] = node is not None and node.unschedulable
    body["problem"] = observed.problems.get(name)
    body["report"] = rfc3339(report.update_time) if report is not None else None
    body["chips"] = [msgspec.to_builtins(chip) for chip in plan.chips if chip.node == name]

    memory = plan.history.nodes.get(name)
    if memory is not None and memory.reboot[0]:
        body["rebootRequested"] = rfc3339(memory.reboot[0] / 1000)
    body |= slow_findings(observed, lambda row: name in row["nodes"])
    body["orders"] = _open_orders(name, observed)
    body["pods"] = sorted(pod.key for pod in observed.pods.values() if pod.node == name and not pod.finished)
    if holds := [held for held in plan.holds if held.node == name and not held.chip]:
        body["holds"] = [hold_row(held, whys) for held in holds]

    body["coming"] = coming.of_node(state, plan, observed)
    body["next"] = actions_on(plan, lambda action: getattr(action, "node", None) == name)
    return body


def _known_faults(codes: Sequence[str]) -> list[str]:
    """Fault codes of a node whose meaning is known, with it."""
    meanings = {code: _meaning(f"{BMC}{code}") for code in codes}
    return [f"{code}: {text}" for code, text in meanings.items() if text]


def _open_orders(node: str, observed: Observed) -> list[str]:
    """Return orders that the agent of the node has not carried out yet, and the errors it reports."""
    orders, agent, report = observed.orders.get(node), observed.agents.get(node), observed.reports.get(node)
    if orders is None:
        return []

    prefix = report.prefix if report is not None else ""
    lines = _open_resets(orders, agent, prefix)
    cut = agent.vnpu_epoch_done if agent is not None else 0
    if orders.vnpu_layout and orders.vnpu_epoch > cut:
        chips = ", ".join(f"{prefix}{chip}" for chip in sorted(orders.vnpu_layout))
        lines.append(f"partition {chips}: epoch {orders.vnpu_epoch}")

    errors = agent.errors if agent is not None else ()
    return [*lines, *(f"the agent says: {error}" for error in errors)]


def _open_resets(orders: Orders, agent: AgentReport | None, prefix: str) -> list[str]:
    """Resets that the agent does not report as done: one line for chips that share an epoch and its reason."""
    reported = agent.chips if agent is not None else {}
    chips_by_order: dict[str, list[str]] = {}
    for chip, reset in sorted(orders.resets.items()):
        done = reported[chip].reset_epoch_done if chip in reported else 0
        if reset.epoch > done:
            chips_by_order.setdefault(f"epoch {reset.epoch} ({reset.reason})", []).append(f"{prefix}{chip}")
    return [f"reset {', '.join(chips)}: {order}" for order, chips in chips_by_order.items()]
