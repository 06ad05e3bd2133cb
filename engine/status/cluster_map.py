"""``belay-map-<shard>-<n>`` and ``belay-chips-<shard>-<n>``: where every node stands, and how every chip is.

The map changes only when nodes come, go or are labelled otherwise; the chips' states are apart from it, so that a fault
rewrites little. Both are cut into parts at the same nodes, by the size of the map. Nodes are columns: one list per
property, all of the same length. A node whose chips are all healthy is not in the chips' part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
#: Most codes of one board or switch.
_MAX_CODES: Final = 32
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
    facts = _facts(plan, observed)

    bodies = []
    for number, part in enumerate(parts):
        body = cache[_PARTS].of(
            (shard, number), (part, len(parts)), partial(_map_part, shard, number, part, len(parts))
        )
        bodies += [body, _chips_part(shard, number, part, len(parts), facts)]
    return bodies


@dataclass(frozen=True)
class _Facts:
    """A plan and its snapshot by node. ``chips`` are those that a reader looks at: one that is healthy and only in use
    stands with its job. ``holders`` are what holds chips or the node, in words.
    """

    plan: Plan
    observed: Observed
    states: Mapping[str, NodeState]
    chips: Mapping[str, Sequence[ChipState]]
    holders: Mapping[str, Sequence[dict[str, Any]]]

    def digits(self, node: str, base: int) -> tuple[str, str]:
        """The states of a node's chips and what holds them, a digit each; empty where all are healthy."""
        server, state = self.plan.servers.get(node), self.states[node].state
        chips = self.chips.get(node, ())
        reported = server is None or server.reported
        if reported and not chips and state in _HEALTHY_NODES:
            return "", ""
        return _digits(base, chips, self.plan.history.nodes.get(node), state, reported=reported)

    def templates(self, node: str) -> dict[str, list[str]]:
        """The templates into which chips of a node are cut, by chip."""
        agent = self.observed.agents.get(node)
        cut: dict[str, list[str]] = {}
        for vnpu in agent.vnpus if agent is not None else ():
            cut.setdefault(str(vnpu.chip), []).append(vnpu.template)
        return cut

    def faults(self, node: str) -> Iterator[dict[str, Any]]:
        """Faults of a node's chips, then its own."""
        yield from _faults(self.chips.get(node, ()), self.plan.history.nodes.get(node))
        state = self.states[node]
        for code in state.codes:
            yield _fault(code, state.level, node, None, None, state.state)

    def boards(self, node: str) -> Iterator[dict[str, Any]]:
        """Boards of a node with fault codes, then its switch."""
        yield from _boards(self.observed.node_reports.get(node))
        report = self.observed.reports.get(node)
        switch = report.switch if report is not None else None
        if switch is not None and switch.codes:
            codes = list(switch.codes[:_MAX_CODES])
            yield {"node": node, "device": "switch", "id": None, "codes": codes, "level": switch.level}


def _facts(plan: Plan, observed: Observed) -> _Facts:
    chips: dict[str, list[ChipState]] = {}
    for chip in plan.chips:
        if chip.state is not _HEALTHY or chip.codes:
            chips.setdefault(chip.node, []).append(chip)

    holders: dict[str, list[dict[str, Any]]] = {}
    for hold in plan.holds:
        holders.setdefault(hold.node, []).append(_holder(hold))
    return _Facts(plan, observed, {state.node: state for state in plan.nodes}, chips, holders)


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


def _chips_part(shard: str, number: int, rows: Sequence[_Row], parts: int, facts: _Facts) -> dict[str, Any]:
    states, holds, cuts = {}, {}, {}
    faults: list[dict[str, Any]] = []
    boards: list[dict[str, Any]] = []
    holders: list[dict[str, Any]] = []
    for row in rows:
        node, base = row[0], int(row[7], 16)
        state_digits, hold_digits = facts.digits(node, base)
        if state_digits.strip("0"):
            states[node] = state_digits
        if hold_digits.strip("0"):
            holds[node] = hold_digits
        if templates := facts.templates(node):
            cuts[node] = templates

        faults += facts.faults(node)
        boards += facts.boards(node)
        holders += facts.holders.get(node, ())

    shown_faults, more_faults = bounded_list(faults, _LIST_BYTES)
    shown_boards, more_boards = bounded_list(boards, _LIST_BYTES)
    shown_holders, more_holders = bounded_list(holders, _LIST_BYTES)
    data = {
        STATES_KEY: text(states),
        HOLDS_KEY: text(holds),
        FAULTS_KEY: text(shown_faults),
        PARTS_KEY: str(parts),
    }
    # what few clusters have takes no room in the others
    for key, found in ((CUTS_KEY, cuts), (BOARDS_KEY, shown_boards), (HELD_KEY, shown_holders)):
        if found:
            data[key] = text(found)
    if more_faults or more_boards or more_holders:
        data["leftOut"] = text({"faults": more_faults, "boards": more_boards, "holders": more_holders})

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
                "codes": list(device.codes[:_MAX_CODES]), "level": device.level,
            }  # fmt: skip
