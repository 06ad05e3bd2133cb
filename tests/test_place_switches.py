"""Switch affinity: the imported switches, the rules of both versions, and what users see."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from belay.engine.model.history import JobMemory
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.plan.place.gangs import nslb
from belay.engine.plan.place.gangs.nslb import (
    EXCLUSIVE,
    FREE,
    LARGE,
    NORMAL,
    SHARED,
    LeafSwitch,
    NodeGroup,
    SwitchRequest,
)
from belay.engine.plan.place.handler import Refusal
from belay.engine.status.switches import share_bodies
from belay.engine.wire import history, names
from belay.engine.wire.errors import WireError
from belay.engine.wire.switches import parse
from tests import listing, placing, worlds

# the imported ConfigMap


def _info(**changes: Any) -> dict[str, Any]:
    body = {
        "version": "1.0",
        "tor_count": 2,
        "server_list": [
            {
                "tor_id": tor,
                "tor_ip": f"1.0.0.{tor}",
                "server": [{"server_ip": f"10.0.{tor}.{slot}", "npu_count": 8, "slice_id": slot} for slot in range(2)],
            }
            for tor in range(2)
        ],
    }
    return body | changes


def _config(body: Any, level: str | None = None) -> dict[str, Any]:
    data = {"tor_info": body if isinstance(body, str) else json.dumps(body)}
    return listing.config_map("kube-system", "basic-tor-node-cm", data | ({"tor_level": level} if level else {}))


def test_switches_are_read_whole() -> None:
    found = parse(_config(_info()))
    assert (found.width, found.single_layer, [s.id for s in found.switches]) == (2, False, [0, 1])
    assert [(s.address, s.slice, s.chips) for s in found.switches[1].servers] == [
        ("10.0.1.0", 0, 8),
        ("10.0.1.1", 1, 8),
    ]
    assert parse(_config(_info(), "single_layer")).single_layer


def _edited(*path: Any, value: Any) -> dict[str, Any]:
    body = _info()
    part: Any = body
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return body


@pytest.mark.parametrize(
    ("body", "level", "field"),
    [
        ("{", None, "data.tor_info"),
        ("[]", None, "data.tor_info"),
        (_info(tor_count=0), None, "data.tor_info.tor_count"),
        (_info(tor_count=129), None, "data.tor_info.tor_count"),
        (_info(tor_count="4"), None, "data.tor_info.tor_count"),
        (_info(server_list=[]), None, "data.tor_info.server_list"),
        (_info(server_list={}), None, "data.tor_info.server_list"),
        (_edited("server_list", 1, "tor_id", value=-1), None, "data.tor_info.server_list[1].tor_id"),
        (_edited("server_list", 1, "tor_ip", value=""), None, "data.tor_info.server_list[1].tor_ip"),
        (_edited("server_list", 1, "tor_id", value=0), None, "data.tor_info"),
        (_edited("server_list", 0, "server", value="x"), None, "data.tor_info.server_list[0].server"),
        (_edited("server_list", 0, "server", 1, "slice_id", value=2), None, "server[1].slice_id"),
        (_edited("server_list", 0, "server", 1, "slice_id", value=0), None, "data.tor_info.server_list[0]"),
        (_edited("server_list", 0, "server", 1, "server_ip", value="10.0.1.1"), None, "data.tor_info"),
        (_edited("server_list", 0, "server", 1, "npu_count", value=True), None, "server[1].npu_count"),
        (_info(), "triple_layer", "data.tor_level"),
    ],
)
def test_invalid_switches_are_named_by_field(body: Any, level: str | None, field: str) -> None:
    with pytest.raises(WireError) as error:
        parse(_config(body, level))
    assert error.value.field.endswith(field) and error.value.object == "ConfigMap/kube-system/basic-tor-node-cm"


def test_a_missing_key_is_named() -> None:
    with pytest.raises(WireError, match="key is missing"):
        parse(listing.config_map("kube-system", "basic-tor-node-cm", {}))


# the rules


def _leaf(number: int, slots: Any, **more: Any) -> LeafSwitch:
    return LeafSwitch(number, f"1.0.0.{number}", {slot: f"n{number}{slot}" for slot in slots}, **more)


def _wish(pods: int, schema: str = LARGE, total: int | None = None) -> SwitchRequest:
    return SwitchRequest(pods, schema, pods if total is None else total)


def _nodes(parts: list[NodeGroup] | Refusal) -> list[str]:
    assert not isinstance(parts, Refusal), parts
    return [node for part in parts for node in part.nodes]


#: The published sample: three whole switches and one with two usable servers.
SAMPLE = [_leaf(0, range(4)), _leaf(1, range(4)), _leaf(2, range(4)), _leaf(3, (0, 1))]


@pytest.mark.parametrize(
    ("pods", "schema", "nodes"),
    [
        (2, LARGE, ["n30", "n31"]),
        (3, LARGE, ["n00", "n01", "n02"]),
        (4, LARGE, ["n00", "n01", "n02", "n03"]),
        (6, LARGE, ["n00", "n01", "n02", "n03", "n10", "n11"]),
        (12, NORMAL, [f"n{tor}{slot}" for tor in range(3) for slot in range(4)]),
        (13, NORMAL, [f"n{tor}{slot}" for tor in range(3) for slot in range(4)] + ["n30"]),
        (14, LARGE, [f"n{tor}{slot}" for tor in range(3) for slot in range(4)] + ["n30", "n31"]),
        (15, NORMAL, None),
        (15, LARGE, None),
    ],
)
def test_published_results_of_version_1(pods: int, schema: str, nodes: list[str] | None) -> None:
    found = nslb.version_1(SAMPLE, 4, _wish(pods, schema))
    assert isinstance(found, Refusal) if nodes is None else _nodes(found) == nodes


def test_a_fill_job_never_leaves_its_switch_and_a_normal_job_takes_what_there_is() -> None:
    scattered = [_leaf(0, (0,)), _leaf(1, (0,)), _leaf(2, (0,))]
    refused = nslb.version_1(scattered, 4, _wish(3, LARGE))
    assert isinstance(refused, Refusal) and "not enough resource for fill job, required 3" in refused.message
    assert isinstance(nslb.version_1(scattered, 2, _wish(3, LARGE)), Refusal)
    assert isinstance(nslb.version_1(scattered, 2, _wish(3, LARGE, 8)), Refusal)
    assert _nodes(nslb.version_1(scattered, 4, _wish(3, NORMAL))) == ["n00", "n10", "n20"]


def test_a_job_across_switches_takes_the_same_positions_under_each() -> None:
    leaves = [_leaf(0, (0, 1, 3)), _leaf(1, (0, 1, 3)), _leaf(2, (1, 3))]
    found = nslb.version_1(leaves, 4, _wish(5, LARGE, 8))
    assert isinstance(found, Refusal)  # a fourth position is missing under every switch
    assert _nodes(nslb.version_1([*leaves, _leaf(3, (2,))], 4, _wish(5, LARGE))) == ["n00", "n01", "n32", "n03", "n11"]


def test_as_many_pods_as_a_switch_has_servers_take_the_first_of_every_position() -> None:
    """Filling one position under many switches is for jobs that are smaller than a switch."""
    broken = [_leaf(0, (0,)), _leaf(1, (1,)), _leaf(2, (0,)), _leaf(3, (1,))]
    assert _nodes(nslb.version_1(broken, 2, _wish(2, NORMAL))) == ["n00", "n11"]


def test_a_large_job_takes_the_fullest_free_switches_for_itself_under_version_2() -> None:
    leaves = [_leaf(0, (0, 1, 2)), _leaf(1, range(4))]
    parts = nslb.version_2(leaves, 4, _wish(5), 2)
    assert not isinstance(parts, Refusal)
    assert [(part.nodes, part.kind) for part in parts] == [
        (("n10", "n11", "n12", "n13"), EXCLUSIVE),
        (("n00",), SHARED),
    ]


def _occupied(random: Random, width: int, count: int) -> list[LeafSwitch]:
    return [_leaf(tor, [slot for slot in range(width) if random.random() < 0.7]) for tor in range(count)]


@pytest.mark.parametrize("seed", range(60))
def test_version_1_against_every_set_of_nodes(seed: int) -> None:
    """A job across switches needs its pods spread evenly over the positions; nothing else makes uplinks conflict."""
    random = Random(seed)
    width = random.choice((2, 3, 4))
    leaves = _occupied(random, width, 3)
    everything = [(leaf.id, slot) for leaf in leaves for slot in leaf.nodes]
    for pods in range(1, len(everything) + 2):
        row, last = divmod(pods - 1, width)
        even = sorted([row + 1] * (last + 1) + [row] * (width - last - 1))

        def balanced(chosen: Any, even: list[int] = even, width: int = width) -> bool:
            counts = Counter(slot for _, slot in chosen)
            return sorted(counts.get(slot, 0) for slot in range(width)) == even

        exists = any(balanced(chosen) for chosen in combinations(everything, pods))
        large = nslb.version_1(leaves, width, _wish(pods, LARGE, 99))
        assert exists == (not isinstance(large, Refusal)), (pods, leaves)
        if not isinstance(large, Refusal):
            chosen = [(int(node[1]), int(node[2])) for node in _nodes(large)]
            assert balanced(chosen) and len(set(chosen)) == pods
            tight = [leaf.room for leaf in leaves if leaf.room >= pods]
            if pods < width and tight:
                assert len({tor for tor, _ in chosen}) == 1
                assert next(leaf.room for leaf in leaves if leaf.id == chosen[0][0]) == min(tight)
        normal = nslb.version_1(leaves, width, _wish(pods, NORMAL))
        assert (pods <= len(everything)) == (not isinstance(normal, Refusal))
        fill = nslb.version_1(leaves, width, _wish(pods, LARGE, 3))
        assert any(leaf.room >= pods for leaf in leaves) == (not isinstance(fill, Refusal))


def test_a_small_job_under_version_2_takes_what_others_cannot_use() -> None:
    leaves = [
        _leaf(0, range(4)),
        _leaf(1, range(2), kind=SHARED),
        _leaf(2, range(3), kind=SHARED, unhealthy=True),
        _leaf(3, range(2), kind=EXCLUSIVE),
    ]
    for gone, node in ((4, "n30"), (3, "n20"), (2, "n10"), (1, "n00")):
        (part,) = _parts(nslb.version_2(leaves[:gone], 4, _wish(2), 2))
        assert part.nodes[0] == node
    assert isinstance(nslb.version_2(leaves[1:], 8, _wish(4, LARGE, 3), 2), Refusal)


def _parts(found: list[NodeGroup] | Refusal) -> list[NodeGroup]:
    assert not isinstance(found, Refusal), found
    return found


def _told(found: list[NodeGroup] | Refusal) -> list[tuple[int, int, int, bool]]:
    return [(part.leaf.id, len(part.nodes), part.kind, part.unhealthy) for part in _parts(found) if part.leaf]


@pytest.mark.parametrize(
    ("pods", "shared", "answer"),
    [
        (4, 2, [(0, 4, EXCLUSIVE, False)]),
        (8, 2, [(0, 4, EXCLUSIVE, False), (1, 4, EXCLUSIVE, False)]),
        (9, 2, [(0, 4, EXCLUSIVE, False), (1, 4, EXCLUSIVE, False), (2, 1, SHARED, False)]),
        (11, 2, [(0, 4, EXCLUSIVE, False), (1, 4, EXCLUSIVE, False), (3, 3, SHARED, False)]),
        (12, 2, [(0, 4, EXCLUSIVE, False), (1, 4, EXCLUSIVE, False), (2, 1, SHARED, False), (3, 3, SHARED, False)]),
        (12, 1, None),
        (13, 2, None),
    ],
)
def test_large_jobs_under_version_2(pods: int, shared: int, answer: Any) -> None:
    leaves = [
        _leaf(0, range(4)),
        _leaf(1, range(4)),
        _leaf(2, range(1), kind=SHARED),
        _leaf(3, range(3), kind=SHARED),
        _leaf(4, range(4), kind=EXCLUSIVE),
        _leaf(5, range(4), kind=SHARED, unhealthy=True),
    ]
    found = nslb.version_2(leaves, 4, _wish(pods), shared)
    if answer is None:
        assert isinstance(found, Refusal) and found.message.startswith("set tor failed by not enough nodes")
    else:
        assert _told(found) == answer


def test_a_part_of_a_free_switch_becomes_shared() -> None:
    assert _told(nslb.version_2([_leaf(0, range(4)), _leaf(1, range(4))], 4, _wish(6), 2)) == [
        (0, 4, EXCLUSIVE, False), (1, 2, SHARED, False),
    ]  # fmt: skip


def test_normal_jobs_beyond_that_make_shared_switches_unhealthy() -> None:
    leaves = [
        _leaf(0, range(4)),
        _leaf(1, range(2), kind=SHARED, unhealthy=True),
        _leaf(2, range(2), kind=SHARED),
        _leaf(3, range(3), kind=EXCLUSIVE),
        _leaf(4, range(4), kind=EXCLUSIVE, large=True),
    ]
    assert _told(nslb.version_2(leaves, 4, _wish(10, NORMAL), 2)) == [
        (0, 4, EXCLUSIVE, False), (1, 2, SHARED, True), (2, 2, SHARED, True), (3, 2, SHARED, True),
    ]  # fmt: skip
    refused = nslb.version_2(leaves, 4, _wish(12, NORMAL), 2)
    assert isinstance(refused, Refusal) and "not enough node for normal job to schedule" in refused.message


@pytest.mark.parametrize("seed", range(60))
def test_version_2_against_every_distribution(seed: int) -> None:
    """Free switches whole but for one, healthy shared ones up to the limit, no others: all counts are tried."""
    random = Random(1000 + seed)
    leaves = _occupied(random, 4, 4)
    for leaf in leaves:
        leaf.kind, leaf.unhealthy = random.choice(((FREE, False), (SHARED, False), (SHARED, True), (EXCLUSIVE, False)))
    most = random.choice((1, 2))
    usable = [leaf for leaf in leaves if leaf.kind in (FREE, SHARED) and not leaf.unhealthy]

    def legal(counts: Any) -> bool:
        used = [(leaf, count) for leaf, count in zip(usable, counts, strict=True) if count]
        shared = sum(1 for leaf, _ in used if leaf.kind == SHARED)
        broken = sum(1 for leaf, count in used if leaf.kind == FREE and count < leaf.room)
        return shared <= most and broken <= 1 and not (shared and broken)

    totals = {sum(c) for c in product(*(range(leaf.room + 1) for leaf in usable)) if legal(c)}
    for pods in range(4, 17):
        found = nslb.version_2(leaves, 4, _wish(pods), most)
        assert (pods in totals) == (not isinstance(found, Refusal)), (pods, leaves)
        if not isinstance(found, Refusal):
            taken = {part.leaf.id: len(part.nodes) for part in found if part.leaf}
            assert sum(taken.values()) == pods == len(set(_nodes(found)))
            by_id = {leaf.id: leaf for leaf in usable}
            assert sum(1 for key in taken if by_id[key].kind == SHARED) <= most


def test_completing_a_job_under_version_2() -> None:
    used = [_leaf(0, (3,), kind=EXCLUSIVE), _leaf(1, (), kind=SHARED)]
    others = [_leaf(2, range(4)), _leaf(3, range(2), kind=SHARED)]
    assert _told(nslb.complete(used, others, _wish(1, LARGE, 8), 2)) == [(0, 1, EXCLUSIVE, False)]
    assert _told(nslb.complete(used, others, _wish(3, LARGE, 8), 2)) == [
        (0, 1, EXCLUSIVE, False), (3, 2, SHARED, False),
    ]  # fmt: skip
    assert _told(nslb.complete(used, others, _wish(3, LARGE, 8), 1)) == [
        (0, 1, EXCLUSIVE, False), (2, 2, EXCLUSIVE, False),
    ]  # fmt: skip
    assert isinstance(nslb.complete([_leaf(1, (), kind=SHARED)] * 3, others, _wish(1, LARGE, 8), 2), Refusal)
    assert isinstance(nslb.complete(used, [], _wish(2, LARGE, 8), 2), Refusal)
    assert isinstance(nslb.complete(used, others, _wish(2, LARGE, 3), 2), Refusal)


def test_a_single_layer_keeps_a_job_under_the_fullest_switch() -> None:
    leaves = [_leaf(0, range(4)), _leaf(1, range(3)), _leaf(2, range(2))]
    assert _nodes(nslb.single_layer(leaves, 4, _wish(3, NORMAL))) == ["n10", "n11", "n12"]
    assert isinstance(nslb.single_layer(leaves[1:], 4, _wish(4, NORMAL)), Refusal)
    refused = nslb.single_layer(leaves, 4, _wish(5, NORMAL))
    assert isinstance(refused, Refusal) and "bigger than torCount" in refused.message


# what users see


def test_the_share_of_every_switch_is_shown() -> None:
    running = _running("old", ["a-0-0", "a-1-0"], LARGE, isSharedTor="1", isHealthy="0")
    items = [*_cluster(2, 1, 1, width=2), SECOND, *running, *_job("new", 2, LARGE)]
    observed = observe(items)
    planned = plan(placing.shipped(), observed, worlds.NOW)
    (body,) = share_bodies(planned, observed)
    assert (body["metadata"]["namespace"], body["metadata"]["name"]) == ("volcano-system", "tor-share-cm")
    shown = json.loads(body["data"]["global-tor-info"])
    assert {key: (row["IsSharedTor"], row["IsHealthy"]) for key, row in shown.items()} == {
        "1.0.0.0": (1, 0), "1.0.0.1": (1, 0), "1.0.0.2": (0, 0),
    }  # fmt: skip
    assert shown["1.0.0.0"]["nodes"] == [
        {"NodeIp": "10.0.0.0", "NodeName": "a-0-0", "JobName": ["train/old"]},
        {"NodeIp": "10.0.0.1", "NodeName": "a-0-1", "JobName": []},
    ]
    foreign = listing.config_map("volcano-system", "tor-share-cm", {})
    assert share_bodies(planned, observe([*items, foreign])) == []
    silent = observe([*_cluster(2, 1), *_job("new", 2, LARGE)])
    assert share_bodies(plan(placing.shipped(), silent, worlds.NOW), silent) == []


def _cluster(*sizes: int, width: int = 4, level: str = "double_layer") -> list[dict[str, Any]]:
    """Switches with so many nodes; ``a-0-1`` is under switch 0 at position 1."""
    names = [(tor, slot) for tor, size in enumerate(sizes) for slot in range(size)]
    places = {name: f"a-{name[0]}-{name[1]}" for name in names}
    servers = [
        {
            "tor_id": tor,
            "tor_ip": f"1.0.0.{tor}",
            "server": [{"server_ip": f"10.0.{tor}.{slot}", "npu_count": 8, "slice_id": slot} for slot in range(size)],
        }
        for tor, size in enumerate(sizes)
    ]
    body = {"version": "1.0", "tor_count": width, "server_list": servers}
    labels = {"accelerator-type": "module-910b-8"}
    nodes = [listing.node(places[name], address=f"10.0.{name[0]}.{name[1]}", labels=labels) for name in names]
    return [*nodes, *(listing.report(name) for name in places.values()), _config(body, level)]


def _job(name: str, pods: int, schema: str, **more: Any) -> list[dict[str, Any]]:
    return listing.job(name, pods, 8, policy="chip8-node8", labels={"tor-affinity": schema}, **more)


def _running(name: str, nodes: list[str], schema: str, missing: int = 0, **notes: str) -> list[dict[str, Any]]:
    """A job with a pod on each of the nodes, and ``missing`` waiting pods."""
    items = _job(name, len(nodes) + missing, schema)
    for rank, node in enumerate(nodes):
        annotations = {"hccl/rankIndex": str(rank), "volcano.sh/task-spec": "worker", **notes}
        items[1 + rank] = listing.pod(f"{name}-{rank}", on=node, chips=range(8), group=name, notes=annotations)
    return items


def test_ranks_ascend_in_slices_with_published_scores(tmp_path: Path) -> None:
    found = listing.plan([*_cluster(4, 4, 2), *_job("big", 6, LARGE)], tmp_path)
    assert [found.nodes[f"big-{rank}"] for rank in range(6)] == ["a-0-0", "a-0-1", "a-0-2", "a-0-3", "a-1-0", "a-1-1"]
    assert found.scores("big-0") == {
        "a-0-0": 200, "a-0-1": 100, "a-0-2": 100, "a-0-3": 100, "a-1-0": 100, "a-1-1": 100, "a-1-2": 0, "a-1-3": 0,
        "a-2-0": 0, "a-2-1": 0,
    }  # fmt: skip
    assert "a-0-0" not in found.scores("big-1") and found.scores("big-1")["a-0-1"] == 200
    assert "isSharedTor" not in found.bound["big-0"]["annotations"]


def test_a_fill_job_takes_the_fullest_switch(tmp_path: Path) -> None:
    found = listing.plan([*_cluster(4, 4, 2), *_job("fill", 2, LARGE)], tmp_path)
    assert set(found.nodes.values()) == {"a-2-0", "a-2-1"}


@pytest.mark.parametrize(
    ("schema", "config", "words"),
    [
        ("tight", True, "job tor affinity label check failed,tor-affinity label value is tight"),
        (LARGE, False, "job tor affinity check failed, cluster basic-tor-node-cm is not imported"),
    ],
)
def test_jobs_are_refused_with_the_reason(schema: str, config: bool, words: str, tmp_path: Path) -> None:
    cluster = _cluster(4)
    found = listing.plan([*(cluster if config else cluster[:-1]), *_job("big", 4, schema)], tmp_path)
    assert not found.bound and words in found.pending["message"]
    assert found.pending["reason"] == ("InvalidRequest" if config else "SwitchTopologyUnknown")
    assert ("write tor-affinity: large-model-schema" if config else "import the switches") in found.pending["unblock"]


def test_unusable_switches_are_an_error_with_object_and_field(tmp_path: Path) -> None:
    items = [*_cluster(4)[:-1], _config(_info(tor_count=0)), *_job("big", 4, LARGE)]
    found = listing.plan(items, tmp_path)
    (error,) = [row for row in found.body["diagnostics"] if row["severity"] == "error"]
    assert error["object"] == "ConfigMap/kube-system/basic-tor-node-cm" and error["field"] == "data.tor_info.tor_count"
    assert "cluster basic-tor-node-cm cannot be used: data.tor_info.tor_count" in found.pending["message"]


def test_no_label_and_null_mean_no_affinity(tmp_path: Path) -> None:
    for schema in ("null", ""):
        items = [*_cluster(1, 1, 1)[:-1], *_job("any", 3, schema)]
        if not schema:
            del items[6]["metadata"]["labels"]["tor-affinity"]
        assert len(listing.plan(items, tmp_path).bound) == 3


def test_switches_of_jobs_across_switches_are_closed(tmp_path: Path) -> None:
    crossing = _running("old", ["a-0-3", "a-1-3"], LARGE)
    items = [*_cluster(4, 4, 4), *crossing]
    large = listing.plan([*items, *_job("new", 5, LARGE)], tmp_path)
    assert not large.bound and large.pending["reason"] == "TopologyNotMet"
    assert "under switches that no other job crosses" in large.pending["unblock"]
    assert large.pending["nodes"] == {"NPUResourceShortage": 2, "TopologyNotMet": 10}
    normal = listing.plan([*items, *_job("new", 5, NORMAL)], tmp_path)
    assert not normal.bound
    one = listing.plan([*items, *_job("new", 4, LARGE)], tmp_path)
    assert {node[:3] for node in one.nodes.values()} == {"a-2"}
    friendly = [*_cluster(4, 4, 4), *_running("old", ["a-0-3", "a-1-3"], NORMAL)]
    assert len(listing.plan([*friendly, *_job("new", 5, NORMAL)], tmp_path).bound) == 5
    assert not listing.plan([*friendly, *_job("new", 5, LARGE)], tmp_path).bound


def test_jobs_placed_in_the_same_pass_close_switches_too(tmp_path: Path) -> None:
    items = [*_cluster(4, 4), *_job("one", 5, LARGE), *_job("two", 3, NORMAL)]
    found = listing.plan(items, tmp_path)
    assert len(found.bound) == 8  # three fit under one switch, which is no crossing
    found = listing.plan([*_cluster(4, 4, 1), *_job("one", 5, LARGE), *_job("two", 4, NORMAL)], tmp_path)
    assert {name.split("-")[0] for name in found.bound} == {"one"}


def test_a_missing_pod_returns_to_its_slice(tmp_path: Path) -> None:
    held = ["a-0-0", "a-0-1", "a-0-2", "a-0-3", "a-1-0", "a-1-1", "a-1-2"]
    items = [*_cluster(4, 4, 4), *_running("big", held, LARGE, missing=1)]
    assert listing.plan(items, tmp_path).nodes == {"big-7": "a-1-3"}
    without = [item for item in items if item["metadata"]["name"] not in ("a-1-3",)]
    found = listing.plan(without, tmp_path)
    assert found.nodes == {"big-7": "a-2-3"} and set(found.scores("big-7").values()) == {0}
    closed = [*without, *_running("old", ["a-2-0", "a-3-0"], LARGE), listing.node("a-3-0"), listing.report("a-3-0")]
    assert "node sliceId is not meet task require" in listing.plan(closed, tmp_path).pending["message"]


def test_nodes_where_a_job_failed_come_last(tmp_path: Path) -> None:
    data = history.job_data("train/PodGroup/fill", JobMemory(uid="u-fill", fault_nodes=("a-1-0",)))
    memory = listing.config_map("belay-system", names.job_config_map("train", "PodGroup", "fill"), data)
    found = listing.plan([*_cluster(4, 2), memory, *_job("fill", 2, LARGE)], tmp_path)
    assert set(found.nodes.values()) == {"a-0-0", "a-0-1"} and found.scores("fill-0")["a-1-0"] == 0
    assert set(listing.plan([*_cluster(1, 2), memory, *_job("fill", 2, LARGE)], tmp_path).nodes) == {"fill-0", "fill-1"}


def test_a_fill_job_is_completed_under_its_switch(tmp_path: Path) -> None:
    items = [*_cluster(3, 4), *_running("fill", ["a-0-0", "a-0-1"], LARGE, missing=1)]
    assert listing.plan(items, tmp_path).nodes == {"fill-2": "a-0-2"}
    full = [*_cluster(2, 4), *_running("fill", ["a-0-0", "a-0-1"], LARGE, missing=1)]
    assert "large model job can not over tor" in listing.plan(full, tmp_path).pending["message"]


SECOND = listing.params(nslb_version="2.0", shared_tor_num="2")


def test_a_job_that_lacks_a_pod_of_a_task_reports_it(tmp_path: Path) -> None:
    """All its pods have nodes, but a task with a minimum has none."""
    items = _job("big", 2, LARGE, least=2)
    items[0]["spec"]["minTaskMember"] = {"worker": 1, "master": 1}
    found = listing.plan([*_cluster(4, 4), *items], tmp_path)
    assert not found.bound and found.pending["reason"] == "GangIncomplete"
    assert found.pending["pods"] == ["big-0", "big-1"] and "minimum" in found.pending["message"]


def test_version_2_annotates_pods_with_the_state_of_their_switch(tmp_path: Path) -> None:
    found = listing.plan([*_cluster(4, 4), SECOND, *_job("big", 6, LARGE)], tmp_path)
    states = [
        [found.bound[f"big-{rank}"]["annotations"].get(key) for key in ("isSharedTor", "isHealthy", "sharedTorIp")]
        for rank in range(6)
    ]
    assert states == [["2", "0", None]] * 4 + [["1", "0", "1.0.0.1"]] * 2
    assert found.scores("big-0")["a-0-0"] == 200 and found.scores("big-0")["a-1-0"] == 99
    alone = listing.plan([*_cluster(4, 4), SECOND, *_job("fill", 2, LARGE)], tmp_path)
    notes = alone.bound["fill-0"]["annotations"]
    assert (notes["isSharedTor"], notes["isHealthy"], "sharedTorIp" in notes) == ("0", "0", False)


def test_version_2_reads_the_annotations_of_running_pods(tmp_path: Path) -> None:
    own = _running("old", ["a-0-0", "a-1-0"], LARGE, isSharedTor="2", isHealthy="0")
    found = listing.plan([*_cluster(4, 4, 4), SECOND, *own, *_job("big", 5, LARGE)], tmp_path)
    assert "; set tor failed by not enough nodes" in found.pending["message"]
    shared = _running("old", ["a-0-0", "a-1-0"], LARGE, isSharedTor="1", isHealthy="0")
    found = listing.plan([*_cluster(4, 4, 4), SECOND, *shared, *_job("big", 5, LARGE)], tmp_path)
    assert sorted(found.nodes.values()) == ["a-0-1", "a-2-0", "a-2-1", "a-2-2", "a-2-3"]
    sick = _running("old", ["a-0-0", "a-1-0"], NORMAL, isSharedTor="1", isHealthy="1")
    found = listing.plan([*_cluster(4, 4), SECOND, *sick, *_job("big", 5, NORMAL)], tmp_path)
    assert {action["annotations"]["isHealthy"] for action in found.bound.values()} == {"1"}
    limit = listing.params(nslb_version="2.0", shared_tor_num="1")
    found = listing.plan([*_cluster(4, 4), limit, *shared, *_job("big", 5, LARGE)], tmp_path)
    assert not found.bound


def test_version_2_completes_a_job_first_under_its_own_switches(tmp_path: Path) -> None:
    running = _running("big", ["a-0-0", "a-0-1", "a-1-0", "a-1-1"], LARGE, missing=1, isSharedTor="2", isHealthy="0")
    found = listing.plan([*_cluster(3, 3, 4), SECOND, *running], tmp_path)
    assert found.nodes == {"big-4": "a-0-2"} and found.bound["big-4"]["annotations"]["isSharedTor"] == "2"
    single = _running("fill", ["a-0-0", "a-0-1"], LARGE, missing=1, isSharedTor="0", isHealthy="0")
    found = listing.plan([*_cluster(2, 4), SECOND, *single], tmp_path)
    assert "tor check failed node by nslb2.0" in found.pending["message"]


def test_single_layer(tmp_path: Path) -> None:
    cluster = _cluster(4, 3, level="single_layer")
    found = listing.plan([*cluster, *_job("infer", 3, NORMAL)], tmp_path)
    assert {node[:3] for node in found.nodes.values()} == {"a-1"}
    assert not listing.plan([*cluster, *_job("infer", 5, NORMAL)], tmp_path).bound


def test_switch_affinity_is_for_whole_chips_without_other_topology(tmp_path: Path) -> None:
    items = _cluster(4)
    labels = {"tor-affinity": LARGE}
    mixed = listing.job("big", 2, 16, policy="chip2-node16-sp", labels=labels, notes={"sp-block": "32"})
    assert listing.plan([*items, *mixed], tmp_path).pending["reason"] == "NotSupportPolicy"
    cut = listing.job("cut", 1, 1, kind="Ascend910-2c", labels=labels)
    pinned = listing.node("v", kind="Ascend910-2c", chips=4)
    assert listing.plan([pinned, *cut], tmp_path).nodes == {"cut-0": "v"}
