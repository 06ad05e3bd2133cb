"""The console's documents of the largest clusters: every node is there, and a change costs what changed."""

from __future__ import annotations

import json

import pytest

from belay.engine.serve.console import layout, patches
from belay.engine.serve.console.document import Builder
from belay.engine.serve.console.layout import Layout, map_texts
from belay.engine.serve.records.reading import StatusReading
from belay.engine.wire import names
from tests.bench import wide_status
from tests.bench.wide_status import NOW, PART, node_name

NODES = 4 * PART
FIRST = f"{names.MAP_PREFIX}main-0"
LAST = f"{names.MAP_PREFIX}main-3"


@pytest.fixture
def parts_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of the map that were read, in order."""
    found: list[str] = []
    read = layout.nodes_of

    def counted(part: str) -> list[layout.MapNode]:
        found.append(part)
        return read(part)

    monkeypatch.setattr(layout, "nodes_of", counted)
    monkeypatch.setattr("belay.engine.serve.records.reading.nodes_of", counted)
    return found


def test_more_than_50000_nodes_are_all_on_the_map() -> None:
    count = 50_001
    columns = {key: [value] * count for key, value in {"pool": "p", "product": "", "chips": "1", "ring": 0}.items()}
    columns |= {key: [""] * count for key in ("rack", "switch", "prefix")}
    columns |= {"superPod": [-1] * count, "cordoned": [0] * count}
    found = Layout([json.dumps(columns | {"name": [node_name(at) for at in range(count)]})])
    assert (len(found.names), found.chips, found.left_out) == (count, count, 0)
    assert layout.MOST_NODES >= 100_000


def test_a_cordoned_node_costs_the_part_of_the_map_that_it_is_in(parts_read: list[str]) -> None:
    found = wide_status.status(NODES, chips=1, jobs=20)
    builder = Builder()
    before = builder.build(found, time=NOW)
    assert len(parts_read) == 4
    changed = {**found, LAST: wide_status.with_cordon(found[LAST], 3)}
    after = builder.build(changed, time=NOW + 1)
    assert len(parts_read) == 5
    # the same chips stand at the same places, and are the same columns
    assert after.layout.chip_node is before.layout.chip_node and after.layout.index is before.layout.index
    assert patches.difference(before, after) == {"nodes": {"cordoned": {"i": [3 * PART + 3], "v": [1]}}}


def test_a_node_that_goes_costs_its_part_and_moves_those_behind_it(parts_read: list[str]) -> None:
    found = wide_status.status(NODES, chips=2)
    builder = Builder()
    before = builder.build(found, time=NOW)
    columns = json.loads(found[FIRST]["nodes.json"])
    less = {key: cells[1:] for key, cells in columns.items()}
    after = builder.build({**found, FIRST: {**found[FIRST], "nodes.json": json.dumps(less)}}, time=NOW + 1)
    assert len(parts_read) == 5
    assert not patches.same_places(before, after)
    fresh = Layout(map_texts({**found, FIRST: {**found[FIRST], "nodes.json": json.dumps(less)}}))
    for name in ("names", "ids", "index", "offsets", "chip_node", "chip_id", "chip_ring", "columns", "cordoned"):
        assert getattr(after.layout, name) == getattr(fresh, name), name


def test_the_history_reads_no_part_of_the_map_again_that_is_the_same(parts_read: list[str]) -> None:
    found = wide_status.status(NODES, chips=1, jobs=20)
    reading = StatusReading()
    seen = reading.read(found)
    assert len(parts_read) == 4
    assert len(seen.pools) == NODES and seen.pools[node_name(7)] == "pool-2"
    chips = f"{names.CHIPS_PREFIX}main-1"
    node = node_name(PART + 3)
    again = reading.read({**found, chips: wide_status.with_fault(found[chips], node, 0)})
    assert len(parts_read) == 4
    assert {fault.node for fault in again.faults} - {fault.node for fault in seen.faults} == {node}


def test_the_text_of_a_document_is_that_of_its_values() -> None:
    document = Builder().build(wide_status.status(50, jobs=9), time=NOW)
    assert document.text
    assert json.loads(document.encoded()) == json.loads(json.dumps(document.body()))


def test_findings_and_faults_beyond_the_bounds_are_counted() -> None:
    found = wide_status.status(50)
    finding = {"severity": "error", "file": "a.yaml", "line": 1, "column": 1, "message": "wrong"}
    found[names.SYNC] |= {"diagnostics.json": json.dumps([finding] * 700)}
    chips = f"{names.CHIPS_PREFIX}main-0"
    found[chips] |= {"faults.json": json.dumps([wide_status.fault(node_name(1), 1, NOW)] * 2_300)}
    sections = Builder().build(found, time=NOW).sections
    assert (len(sections["git"]["findings"]), len(sections["faults"])) == (500, 2_000)
    assert sections["leftOut"] == {"findings": 200, "faults": 300}


def test_chips_of_a_node_with_gaps_are_found_among_its_places() -> None:
    columns: dict[str, list[object]] = {key: [""] for key in ("pool", "product", "rack", "switch", "prefix")}
    columns |= {"name": ["a"], "superPod": [-1], "chips": ["2d"], "ring": [0], "cordoned": [0]}
    found = Layout([json.dumps(columns)])
    assert found.ids == [(0, 2, 3, 5)]
    assert found.places("a", (0, 1, 3, 5, 9)) == [0, 2, 3]
    assert found.places("b", (0,)) == []
