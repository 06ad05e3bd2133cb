"""``belay-map-<shard>-<n>`` and ``belay-chips-<shard>-<n>``: where every node stands, and how every chip is.

The map changes only when nodes come, go or are labelled otherwise; the chips' states are apart from it, so that a fault
rewrites little. Both are cut into parts at the same nodes, by the size of the map. Nodes are columns: one list per
property, all of the same length. A node whose chips are all healthy is not in the chips' part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from belay.engine.documents import Desired
from belay.engine.model.cluster import NodeReport, Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.history import HoldKind, NodeMemory
from belay.engine.model.holds import Held
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.plan import ChipState, NodeState, Plan, takes_no_pods
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache
from belay.engine.model.states import OUT_OF_SERVICE, ChipHealth, NodeHealth
from belay.engine.model.times import rfc3339
from belay.engine.status.bodies import bounded_list, config_map, text
from belay.engine.wire import names, switches
from belay.engine.wire.clustermap import (
    BOARDS_KEY,
    COLUMNS,
    CUTS_KEY,
    FAULTS_KEY,
    HELD_KEY,
    HOLDS,
    HOLDS_KEY,
    NODES_KEY,
    PARTS_KEY,
    STATES,
    STATES_KEY,
)
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import MAIN_SHARD

_PART_BYTES: Final = 300 * 1024
_LIST_BYTES: Final = 150 * 1024
_FAULT: Final = HOLDS.index("fault")
_NODE: Final = HOLDS.index("node")
_UNKNOWN: Final = STATES.index("unknown")
_HEALTHY: Final = ChipHealth.HEALTHY
_HEALTHY_NODES: Final = (NodeHealth.HEALTHY, NodeHealth.SUB_HEALTHY)
_SWITCHES: Final = ObjectKey("v1", "ConfigMap", switches.NAMESPACE, switches.NAME)

_Row = tuple[str, str, str, int, str, str, str, str, int, int, int]
#: Parts of the map while no node of them changes, by shard and number; addresses of leaf switches by their ConfigMap.
_CUTS: Final = CacheKey("cuts of the map", Memo[tuple[tuple[_Row, ...], ...]], limit=16)
_PARTS: Final = CacheKey("parts of the map", Memo[dict[str, Any]], limit=256)
_LEAVES: Final = CacheKey("leaf switches of addresses", Memo[dict[str, str]], limit=4)


def map_bodies(
    plan: Plan, observed: Observed, desired: Desired, shard: str = MAIN_SHARD, cache: PlanCache | None = None
) -> list[dict[str, Any]]:
    """The ConfigMaps of one shard's nodes, at least one of each kind."""
    cache = cache or PlanCache()
    rows = tuple(_rows(plan, observed, desired, cache))
    parts = cache[_CUTS].of(shard, rows, lambda: tuple(_parts(rows)))
    by_node: dict[str, list[ChipState]] = {}
    for chip in plan.chips:
        if chip.state is not _HEALTHY or chip.codes:  # a chip that is only in use stands with its job
            by_node.setdefault(chip.node, []).append(chip)
    states = {state.node: state for state in plan.nodes}
    held: dict[str, list[dict[str, Any]]] = {}
    for hold in plan.holds:
        held.setdefault(hold.node, []).append(_holder(hold))
    bodies = []
    for number, part in enumerate(parts):
        body = cache[_PARTS].of(
            (shard, number), (part, len(parts)), partial(_map_part, shard, number, part, len(parts))
        )
        holders = [row for at in part for row in held.get(at[0], ())]
        bodies += [body, _chips_part(shard, number, part, len(parts), plan, observed, by_node, states, holders)]
    return bodies


def _rows(plan: Plan, observed: Observed, desired: Desired, cache: PlanCache) -> Iterator[_Row]:
    raw = observed.objects.get(_SWITCHES)
    leaves = cache[_LEAVES].of("leaves", raw, lambda: _leaves(raw)) if raw is not None else {}
    pools = desired.pool_index
    for state in plan.nodes:
        node, server, report = (
            observed.nodes.get(state.node),
            plan.servers.get(state.node),
            observed.reports.get(state.node),
        )
        pool = pools.get(state.pool)
        declared = desired.products.get(pool.document.spec.product) if pool and pool.document.spec.product else None
        product = declared.document if declared else desired.product_of(node.labels) if node else None
        yield (
            state.node,
            state.pool,
            product.name if product else "",
            report.super_pod_id if report and report.super_pod_id >= 0 else -1,
            str(report.rack_id) if report and report.rack_id >= 0 else "",
            leaves.get(node.internal_ip, "") if node else "",
            server.prefix if server else "",
            format(server.base, "x") if server else "0",
            (product.spec.placement.ring_size or 0) if product else 0,
            int(node is not None and node.unschedulable),
            int(takes_no_pods(server, node)),
        )


def _leaves(raw: Mapping[str, Any]) -> dict[str, str]:
    """The address of the leaf switch of each node's address; empty if the imported switches cannot be read."""
    try:
        found = switches.parse(raw)
    except WireError:
        return {}  # the plan's diagnostics report it
    return {server.address: switch.address for switch in found.switches for server in switch.servers}


def _parts(rows: Iterable[_Row]) -> Iterator[tuple[_Row, ...]]:
    part: list[_Row] = []
    size = 0
    for row in rows:
        # the numbers, quotes and commas of a row take less than 64 bytes
        own = 64 + len(row[0]) + len(row[1]) + len(row[2]) + len(row[4]) + len(row[5]) + len(row[6]) + len(row[7])
        if part and size + own > _PART_BYTES:
            yield tuple(part)
            part, size = [], 0
        part.append(row)
        size += own
    yield tuple(part)


def _map_part(shard: str, number: int, rows: Sequence[_Row], parts: int) -> dict[str, Any]:
    columns = {name: [row[at] for row in rows] for at, name in enumerate(COLUMNS)}
    data = {NODES_KEY: text(columns), PARTS_KEY: str(parts)}
    name = names.bounded(f"{names.MAP_PREFIX}{shard}-{number}")
    return config_map(names.SYSTEM, name, data, {ABOUT_LABEL: "map"})


def _chips_part(
    shard: str,
    number: int,
    rows: Sequence[_Row],
    parts: int,
    plan: Plan,
    observed: Observed,
    by_node: Mapping[str, Sequence[ChipState]],
    node_states: Mapping[str, NodeState],
    holders: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    states, holds, cuts = {}, {}, {}
    faults: list[dict[str, Any]] = []
    boards: list[dict[str, Any]] = []
    for row in rows:
        name, base = row[0], int(row[7], 16)
        node, chips, server = node_states[name], by_node.get(name, ()), plan.servers.get(name)
        memory, agent = plan.history.nodes.get(name), observed.agents.get(name)
        if chips or (server is not None and not server.reported) or node.state not in _HEALTHY_NODES:
            found = _digits(base, chips, memory, node.state, reported=server is None or server.reported)
            if found[0].strip("0"):
                states[name] = found[0]
            if found[1].strip("0"):
                holds[name] = found[1]
        if agent is not None and agent.vnpus:
            pieces: dict[str, list[str]] = {}
            for vnpu in agent.vnpus:
                pieces.setdefault(str(vnpu.chip), []).append(vnpu.template)
            cuts[name] = pieces
        faults += _faults(chips, memory)
        faults += [_fault(code, node.level, name, None, None, node.state) for code in node.codes]
        report = observed.reports.get(name)
        boards += _boards(observed.node_reports.get(name))
        if report is not None and report.switch is not None and report.switch.codes:
            boards.append(
                {"node": name, "device": "switch", "id": None, "codes": list(report.switch.codes[:32]),
                 "level": report.switch.level}
            )  # fmt: skip
    shown, left = bounded_list(faults, _LIST_BYTES)
    ill, more = bounded_list(boards, _LIST_BYTES)
    held, unnamed = bounded_list(list(holders), _LIST_BYTES)
    data = {
        STATES_KEY: text(states), HOLDS_KEY: text(holds), FAULTS_KEY: text(shown), PARTS_KEY: str(parts),
    }  # fmt: skip
    if cuts:
        data[CUTS_KEY] = text(cuts)
    if ill:
        data[BOARDS_KEY] = text(ill)
    if held:
        data[HELD_KEY] = text(held)
    if left or more or unnamed:
        data["leftOut"] = text({"faults": left, "boards": more, "holders": unnamed})
    name = names.bounded(f"{names.CHIPS_PREFIX}{shard}-{number}")
    return config_map(names.SYSTEM, name, data, {ABOUT_LABEL: "chips"})


def _digits(
    base: int, chips: Sequence[ChipState], memory: NodeMemory | None, node: NodeHealth, *, reported: bool
) -> tuple[str, str]:
    """One digit per chip id, lowest first: the states, and what holds the chips."""
    length = base.bit_length()
    states = [0 if reported else _UNKNOWN] * length
    holds = [0 if node in _HEALTHY_NODES else _NODE] * length
    for chip in chips:
        index = int(chip.chip.rpartition("-")[2])
        if index >= length:
            continue
        states[index] = STATES.index(chip.state)
        own = memory.chips.get(index) if memory is not None else None
        kinds = [HOLDS.index(hold.kind) for hold in own.holds if hold.kind in HOLDS] if own is not None else []
        if kinds:
            holds[index] = min(kinds)
        elif chip.state == ChipHealth.MANUALLY_ISOLATED:
            holds[index] = HOLDS.index(HoldKind.MANUAL)
        elif chip.state in OUT_OF_SERVICE and not holds[index]:
            holds[index] = _FAULT
    return "".join(map(str, states)), "".join(map(str, holds))


def _faults(chips: Sequence[ChipState], memory: NodeMemory | None) -> Iterator[dict[str, Any]]:
    for chip in chips:
        index = int(chip.chip.rpartition("-")[2])
        own = memory.chips.get(index) if memory is not None else None
        for code in chip.codes:
            known = own.codes.get(code) if own is not None else None
            since = known.first if known is not None else None
            row = _fault(code, chip.level, chip.node, index, since, chip.state)
            row["count"] = max(1, len(known.occurrences)) if known is not None else 1
            if own is not None:
                row["policy"] = next((hold.rule for hold in own.holds if hold.rule), "")
                row["isolated"] = rfc3339(own.isolated / 1000) if own.isolated else None
            yield row


def _fault(code: str, level: str, node: str, chip: int | None, since: int | None, state: str) -> dict[str, Any]:
    return {
        "code": code, "level": level, "node": node, "chip": chip, "since": rfc3339(since / 1000) if since else None,
        "count": 1, "policy": "", "action": str(state), "isolated": None,
    }  # fmt: skip


def _holder(hold: Held) -> dict[str, Any]:
    """What holds a chip, or with ``chip`` None a node, in words."""
    chip = int(hold.chip.rpartition("-")[2]) if hold.chip else None
    return {
        "node": hold.node,
        "chip": chip,
        "kind": hold.kind,
        "rule": hold.rule,
        "by": hold.by,
        "until": hold.until or None,
    }


def _boards(report: NodeReport | None) -> Iterator[dict[str, Any]]:
    """The boards of a node with fault codes, as NodeD reports them."""
    for device in report.devices if report is not None else ():
        if device.codes:
            yield {
                "node": report.node if report else "", "device": device.device_type, "id": device.device_id,
                "codes": list(device.codes[:32]), "level": device.level,
            }  # fmt: skip
