"""Observing and planning take time in proportion to the lists of ConfigMaps and reports, and to the lists in them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import msgspec
import pytest

from belay.engine.load import load
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.wire import nodeinfo, publicinfo
from belay.engine.wire.orders import build_report
from tests import worlds
from tests.bench import clusters
from tests.listing import config_map

SIZES = (24, 48, 96)
EXPONENT = 1.2
"""Twice the entries may cost at most 2 to this power as many more lines of code."""
FEW_LINES = 100
"""A growth of fewer lines is none: the list is read by a library."""
NOW = clusters.NOW
Items = Sequence[dict[str, Any]]


def nodes(count: int) -> Items:
    names = [f"node-{n:05}" for n in range(count)]
    return [*(clusters.node(name, n) for n, name in enumerate(names)), *(clusters.device(name) for name in names)]


def device_reports(count: int) -> Items:
    """All of them with a fault."""
    names = [f"node-{n:05}" for n in range(count)]
    faulty = [clusters.device(name, faulty=n % 8) for n, name in enumerate(names)]
    return [*(clusters.node(name, n) for n, name in enumerate(names)), *faulty]


def agent_reports(count: int) -> Items:
    reports = [build_report(worlds.agent(f"node-{n:05}"), "Ascend910-", {}) for n in range(count)]
    return [*nodes(count), *reports]


def node_reports(count: int) -> Items:
    made = worlds.node_report("n").devices
    return [*nodes(count), *(nodeinfo.build(f"node-{n:05}", made, "UnHealthy", NOW) for n in range(count))]


def devices_of_a_node_report(count: int) -> Items:
    (one,) = worlds.node_report("n").devices
    made = [msgspec.structs.replace(one, device_id=n) for n in range(count)]
    return [*nodes(1), nodeinfo.build("node-00000", made, "UnHealthy", NOW)]


def plain_config_maps(count: int) -> Items:
    return [*nodes(2), *(config_map("team", f"settings-{n}", {"a": "b"}) for n in range(count))]


def keys_of_a_config_map(count: int) -> Items:
    return [*nodes(2), config_map("team", "settings", {f"key-{n}": "value" for n in range(count)})]


def message(number: int, nodes: int, faults: int = 1) -> dict[str, Any]:
    stamp = int(NOW * 1000) - 5000
    influence = [{"nodeName": f"node-{n:05}", "deviceIds": [0]} for n in range(nodes)]
    rows = [
        {
            "faultId": f"fault-{number:04}-{row:03}", "faultType": "NPU", "faultCode": "220001001", "faultTime": stamp,
            "assertion": "occur", "influence": influence,
        }
        for row in range(faults)
    ]  # fmt: skip
    return {"id": f"message-{number:04}", "timestamp": stamp, "version": "1.0", "resource": "CCAE", "faults": rows}


def public_faults(count: int) -> Items:
    return [*nodes(2), *(publicinfo.build("mindx-dl", f"fault-{n}", message(n, 1)) for n in range(count))]


def faults_of_a_message(count: int) -> Items:
    return [*nodes(2), publicinfo.build("mindx-dl", "fault", message(0, 1, count))]


def nodes_of_a_public_fault(count: int) -> Items:
    return [*nodes(count), publicinfo.build("mindx-dl", "fault", message(0, count))]


def refused_public_faults(count: int) -> Items:
    """Of as many namespaces, none of which is allowed."""
    return [*nodes(2), *(publicinfo.build(f"team-{n}", "fault", message(n, 1)) for n in range(count))]


def damaged_reports(count: int) -> Items:
    made = [clusters.device(f"node-{n:05}") for n in range(count)]
    for body in made:
        body["data"]["DeviceInfoCfg"] = json.dumps({"DeviceInfo": []})
    return [*nodes(2), *made]


CASES = [
    nodes, device_reports, agent_reports, node_reports, devices_of_a_node_report, plain_config_maps,
    keys_of_a_config_map, public_faults, faults_of_a_message, nodes_of_a_public_fault, refused_public_faults,
    damaged_reports,
]  # fmt: skip


def lines_of(work: Callable[[], object]) -> int:
    """Lines of Belay's code that the work runs."""
    count = 0

    def inside(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return inside

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        return inside if "/engine/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_pass_grows_with_the_length_of_a_list(case: Callable[[int], Items]) -> None:
    desired = load({}).desired
    made = [case(count) for count in SIZES]
    plan(desired, observe(made[0]), NOW)  # what is computed once
    costs = [lines_of(lambda items=items: plan(desired, observe(items), NOW)) for items in made]  # type: ignore[misc]
    first, second = costs[1] - costs[0], costs[2] - costs[1]
    exponent = math.log2(second / first) if first > FEW_LINES and second > 0 else 0.0
    assert first > FEW_LINES or second < 4 * FEW_LINES, f"{SIZES} entries cost {costs} lines"
    assert exponent <= EXPONENT, f"{SIZES} entries cost {costs} lines: they grow with exponent {exponent:.2f}"
