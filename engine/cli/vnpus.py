"""Rows of `belay get vnpus`: what agents report of vNPUs, and what is ordered and not there yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from belay.engine.cli.selection import Answer
from belay.engine.model.cluster import AgentReport, Orders
from belay.engine.observe.report_checks import epoch_jump
from belay.engine.wire import names
from belay.engine.wire.errors import WireError
from belay.engine.wire.orders import parse_orders, parse_report


def vnpu_rows(agents: Mapping[str, AgentReport], orders: Mapping[str, Orders], prefixes: Mapping[str, str]) -> Answer:
    """Every vNPU by node and chip; ``prefixes`` are those of the names of a node's chips."""
    rows = []
    for name in sorted({*agents, *orders}):
        agent, ordered = agents.get(name), orders.get(name)
        chips = {vnpu.chip for vnpu in agent.vnpus} if agent is not None else set()
        chips |= set(ordered.vnpu_layout) if ordered is not None else set()
        for chip in sorted(chips):
            named = {"node": name, "chip": f"{prefixes.get(name, '')}{chip}"}
            rows += [named | row for row in vnpus_of(chip, agent, ordered)]
    return Answer(("node", "chip", "id", "template", "state", "usedBy"), rows)


def vnpus_of(chip: int, agent: AgentReport | None, orders: Orders | None) -> list[dict[str, Any]]:
    """The vNPUs of one chip; an ordered one has no id before its agent has made it."""
    there = [vnpu for vnpu in agent.vnpus if vnpu.chip == chip] if agent is not None else []
    rows = [
        {"id": one.id, "template": one.template, "state": "exists", "usedBy": one.used_by} for one in there
    ]  # fmt: skip
    if orders is None or (agent is not None and orders.vnpu_epoch <= agent.vnpu_epoch_done):
        return rows
    missing = Counter(orders.vnpu_layout.get(chip, ())) - Counter(one.template for one in there)
    return rows + [
        {"id": None, "template": template, "state": "ordered", "usedBy": ""} for template in sorted(missing.elements())
    ]


def published_rows(config_maps: Iterable[Mapping[str, Any]], prefixes: Mapping[str, str]) -> Answer:
    """The same of the ConfigMaps of reports and orders; what cannot be read is left out, as a pass leaves it."""
    agents: dict[str, AgentReport] = {}
    orders: dict[str, Orders] = {}
    for one in config_maps:
        name = str((one.get("metadata") or {}).get("name", ""))
        try:
            if name.startswith(names.REPORT_PREFIX):
                report = parse_report(one)
                agents[report.node] = report
            elif name.startswith(names.ORDERS_PREFIX):
                order = parse_orders(one)
                orders[order.node] = order
        except WireError:
            continue
    in_force = {node: report for node, report in agents.items() if not epoch_jump(report, orders.get(node))}
    return vnpu_rows(in_force, orders, prefixes)
