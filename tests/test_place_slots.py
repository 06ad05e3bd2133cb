"""Gangs whose nodes are chosen together but whose pods ask for different things: each pod gets a node that fits it."""

from __future__ import annotations

import json
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest

from belay.engine.plan.place.gangs.slots import _matched
from tests import listing
from tests.listing import Item, job, node, params, report

SP, RACK, TREE = "chip2-node16-sp", "chip8-node8-ra64-sp", "multilevel"
MASTER = {"role": "master"}


def _super_pods(*sizes: int, marked: tuple[str, ...] = (), small: tuple[str, ...] = ()) -> list[Item]:
    items = [params(super_pod_size="10", reserve_nodes="2")]
    for home, size in enumerate(sizes):
        for i in range(size):
            name = f"s{home}n{i}"
            labels = MASTER if name in marked else {}
            items.append(node(name, chips=16, labels=labels, sizes={"cpu": "50"} if name in small else {}))
            items.append(report(name, chips=16, super_pod=home, index=i))
    return items


def _blocks(count: int, block: int, *, policy: str = SP, each: int = 16, kind: str = "Ascend910") -> list[Item]:
    return job("j", count, each, kind=kind, policy=policy, notes={"sp-block": str(block)})


def _asking(items: list[Item], rank: int, *, cpu: str = "", **spec: Any) -> list[Item]:
    """The pod of this rank asks for something that the others do not."""
    pod = items[1 + rank]
    pod["spec"] |= spec
    if cpu:
        resources = pod["spec"]["containers"][0]["resources"]
        resources["requests"] = {**resources["requests"], "cpu": cpu}
    return items


@pytest.mark.parametrize("rank", [0, 1])
def test_a_pod_bound_to_one_node_moves_its_block_there(tmp_path: Path, rank: int) -> None:
    """All other pods would choose the smaller super pod; the node that this pod selects is the last of the larger
    one.
    """
    items = [*_super_pods(2, 5, marked=("s1n4",)), *_asking(_blocks(2, 32), rank, nodeSelector=MASTER)]
    answer = listing.plan(items, tmp_path)
    other = f"j-{1 - rank}"
    assert answer.nodes == {f"j-{rank}": "s1n4", other: "s1n0" if rank else "s1n1"}
    assert {action["annotations"]["super-pod-id"] for action in answer.bound.values()} == {"1"}
    assert answer.scores(f"j-{rank}")["s1n4"] == 100_000_000
    assert set(answer.body["scores"]) == {"train/j-0", "train/j-1"}


def test_a_later_pod_that_needs_more_room_changes_places_with_the_first(tmp_path: Path) -> None:
    items = [*_super_pods(2, small=("s0n1",)), *_asking(_blocks(2, 32), 1, cpu="100")]
    assert listing.plan(items, tmp_path).nodes == {"j-0": "s0n1", "j-1": "s0n0"}


def test_nodes_that_fit_all_pods_are_enough(tmp_path: Path) -> None:
    """Block 0 would go where no node suits its second pod; another place has enough nodes for all."""
    items = [*_super_pods(4, 4, small=("s0n0", "s0n1", "s0n2", "s0n3")), *_asking(_blocks(4, 32), 1, cpu="100")]
    answer = listing.plan(items, tmp_path)
    assert sorted(answer.nodes.values()) == ["s1n0", "s1n1", "s1n2", "s1n3"]


def test_a_pod_that_fits_no_node_is_named(tmp_path: Path) -> None:
    items = [*_super_pods(3), *_asking(_blocks(2, 32), 1, nodeSelector=MASTER)]
    answer = listing.plan(items, tmp_path)
    assert not answer.bound and not answer.body["scores"]
    assert answer.pending["reason"] == "NodeSelectorMismatch" and "[pod j-1 of 2]" in answer.pending["message"]


def test_a_block_never_spans_two_super_pods(tmp_path: Path) -> None:
    """Both pods of block 0 select the marked nodes, but these are in two super pods."""
    items = [*_super_pods(2, 2, marked=("s0n1", "s1n1")), *_blocks(2, 32)]
    for rank in (0, 1):
        _asking(items[-3:], rank, nodeSelector=MASTER)
    answer = listing.plan(items, tmp_path)
    assert not answer.bound and answer.pending["reason"] == "TopologyNotMet"


def test_pods_of_a_rack_change_places_within_it(tmp_path: Path) -> None:
    items = [params(super_pod_size="64")]
    for rack, name in product((0, 1), ("a", "b", "c")):
        labels = MASTER if (rack, name) == (1, "c") else {}
        items.append(node(f"r{rack}{name}", kind="npu", labels=labels))
        items.append(report(f"r{rack}{name}", kind="npu", super_pod=0, rack=rack))
    gang = _asking(_blocks(2, 16, policy=RACK, each=8, kind="npu"), 1, nodeSelector=MASTER)
    answer = listing.plan([*items, *gang], tmp_path)
    assert answer.nodes == {"j-0": "r1a", "j-1": "r1c"}


def test_pods_on_a_tree_change_places_within_a_unit(tmp_path: Path) -> None:
    items = [params(resource_level_config='{"default":{"level1":{"label":"unit"}}}')]
    for unit, name in product("uv", "abc"):
        labels = {"unit": unit} | (MASTER if unit + name == "vb" else {})
        items += [node(unit + name, labels=labels), report(unit + name)]
    gang = job("j", 2, 8, policy=TREE, notes={"huawei.com/affinity-config": "level1=2"})
    answer = listing.plan([*items, *_asking(gang, 0, nodeSelector=MASTER)], tmp_path)
    assert answer.nodes == {"j-0": "vb", "j-1": "va"}


@pytest.mark.parametrize("policy", [SP, TREE])
@pytest.mark.parametrize("rule", ["anti-affinity", "spread"])
def test_pods_with_anti_affinity_take_other_nodes_of_their_domain(tmp_path: Path, policy: str, rule: str) -> None:
    """The first two nodes of each domain are in the same zone."""
    selector = {"labelSelector": {"matchLabels": {"app": "j"}}, "topologyKey": "zone"}
    apart: dict[str, Any] = {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [selector]}}
    }
    if rule == "spread":
        apart = {"topologySpreadConstraints": [{**selector, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}
    items = [params(resource_level_config='{"default":{"level1":{"label":"unit"}}}', super_pod_size="10")]
    for home, i in product((0, 1), range(4)):
        labels = {"zone": f"z{i // 2}", "unit": str(home)}
        items += [node(f"s{home}n{i}", chips=16, labels=labels)]
        items += [report(f"s{home}n{i}", chips=16, super_pod=home, index=i)]
    notes = {"sp-block": "32"} if policy == SP else {"huawei.com/affinity-config": "level1=2"}
    gang = job("j", 2, 16, policy=policy, notes=notes, spec=apart)
    for pod in gang[1:]:
        pod["metadata"]["labels"] = {"app": "j"}
    answer = listing.plan([*items, *gang], tmp_path)
    assert answer.nodes == {"j-0": "s0n0", "j-1": "s0n2"}
    assert answer.scores("j-1")["s0n2"] == 100_000_000


def test_switch_affinity_takes_nodes_that_fit_all_pods(tmp_path: Path) -> None:
    servers = [{"server_ip": f"10.9.0.{i}", "npu_count": 8, "slice_id": i} for i in range(4)]
    info = {"version": "1.0", "tor_count": 4, "server_list": [{"tor_id": 0, "tor_ip": "10.9.9.1", "server": servers}]}
    items = [
        listing.config_map(
            "kube-system", "basic-tor-node-cm", {"tor_info": json.dumps(info), "tor_level": "double_layer"}
        )
    ]
    for i in range(4):
        items += [node(f"n{i}", address=f"10.9.0.{i}", sizes={"cpu": "50"} if i < 2 else {}), report(f"n{i}")]
    gang = job("j", 2, 8, policy="chip8-node8", labels={"tor-affinity": "large-model-schema"})
    answer = listing.plan([*items, *_asking(gang, 1, cpu="100")], tmp_path)
    assert answer.nodes == {"j-0": "n2", "j-1": "n3"}


def test_every_match_that_exists_is_found() -> None:
    for rows, columns in ((2, 2), (2, 3), (3, 3)):
        for cells in product((False, True), repeat=rows * columns):
            table = [cells[row * columns : (row + 1) * columns] for row in range(rows)]
            ways = [way for way in permutations(range(columns), rows) if all(table[r][c] for r, c in enumerate(way))]
            found = _matched(table)
            assert (found is None) == (not ways)
            assert found is None or tuple(found) in ways
            if tuple(range(rows)) in ways:
                assert found == list(range(rows))
