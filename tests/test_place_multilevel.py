"""Topology trees: groups of nodes at every level, least fragments, reserves, refusals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations, permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from belay.engine.model.cluster import Node
from belay.engine.model.history import History, JobMemory
from belay.engine.plan.place.families.multilevel import Level, read_group_sizes, read_trees, select
from belay.engine.plan.place.gangs.trees import _RunningTreeJob, unit
from belay.engine.plan.place.handler import JobRequest, Refusal
from tests import placing, worlds
from tests.placing import POLICY, gang, nodes_of, scope_of

SP, GROUP = "huawei.com/topotree.superpodid", "huawei.com/topotree.groupid"
TREES = {"default": (Level(SP), Level(GROUP))}
CONFIG = f'{{"default": {{"level1": {{"label": "{SP}"}}, "level2": {{"label": "{GROUP}"}}}}}}'


def _nodes(layout: dict[str, dict[str, int]]) -> list[Node]:
    """Nodes by group, super pod and number."""
    return [
        worlds.node(f"{group}-{pod}-{i}", labels={**worlds.A2_LABELS, SP: pod, GROUP: group})
        for group, pods in layout.items()
        for pod, count in pods.items()
        for i in range(count)
    ]


def _units(found: tuple[str, ...] | Refusal) -> list[str]:
    assert not isinstance(found, Refusal), found
    return [name.rpartition("-")[0] for name in found]


def test_groups_lie_in_one_unit_at_every_level() -> None:
    units = _units(select(_nodes({"g1": {"a": 2, "b": 2}, "g2": {"c": 4}}), TREES, (2, 4), 8))
    assert all(units[i] == units[i + 1] for i in range(0, 8, 2))
    assert [unit[:2] for unit in units] == ["g1"] * 4 + ["g2"] * 4


def test_the_tightest_unit_is_used_first() -> None:
    nodes = _nodes({"g1": {"a": 3, "b": 2, "c": 4}})
    assert _units(select(nodes, TREES, (2,), 2)) == ["g1-b", "g1-b"]
    assert {unit[:2] for unit in _units(select(_nodes({"g1": {"a": 4}, "g2": {"b": 2}}), TREES, (2,), 2))} == {"g2"}


def test_level1_only_jobs_stay_in_one_level2_unit_when_they_can() -> None:
    nodes = _nodes({"g1": {"a": 2}, "g2": {"b": 2, "c": 2}})
    assert {unit[:2] for unit in _units(select(nodes, TREES, (2,), 4))} == {"g2"}
    spread = _units(select(_nodes({"g1": {"a": 2}, "g2": {"b": 2}}), TREES, (2,), 4))
    assert sorted(spread) == ["g1-a", "g1-a", "g2-b", "g2-b"]


def test_fragments_inside_a_unit_count_tenfold() -> None:
    """An odd node inside a super pod (10) counts more than a whole super pod left over (2)."""
    nodes = _nodes({"g1": {"a": 3, "b": 2}, "g2": {"c": 2, "d": 2, "e": 2}})
    assert {unit[:2] for unit in _units(select(nodes, TREES, (2, 4), 4))} == {"g2"}


def test_the_smallest_of_the_units_that_must_be_split_is_split() -> None:
    trees = {"default": (Level(SP),)}
    assert _units(select(_nodes({"g": {"a": 6, "b": 5}}), trees, (2,), 2)) == ["g-b", "g-b"]


def test_a_tree_without_room_is_refused() -> None:
    found = select(_nodes({"g1": {"a": 3, "b": 1}}), TREES, (2,), 4)
    assert isinstance(found, Refusal) and found.reason == "TopologyNotMet"


def test_reserved_nodes_are_used_only_when_nothing_else_is_left() -> None:
    trees = {"default": (Level(SP, 1),)}
    nodes = _nodes({"g": {"a": 3, "b": 2}})
    assert _units(select(nodes, trees, (2,), 2)) == ["g-a", "g-a"]
    assert sorted(_units(select(nodes, trees, (2,), 4))) == ["g-a", "g-a", "g-b", "g-b"]


@pytest.mark.parametrize(
    "text", [None, "{", '{"t": {"level2": {"label": "x"}}}', '{"t": {"level1": {"label": ""}}}', '["a"]']
)
def test_invalid_trees_are_refused(text: str | None) -> None:
    assert isinstance(read_trees(text), Refusal)


def test_reserve_counts_on_level1_only() -> None:
    text = '{"t": {"level1": {"label": "x", "reservedNode": 1}, "level2": {"label": "y", "reservedNode": 3}}}'
    assert read_trees(text) == {"t": (Level("x", 1), Level("y", 0))}


@pytest.mark.parametrize(
    ("text", "pods", "answer"),
    [
        ("level1=2,level2=4", 8, (2, 4)),
        ("level1=2", 8, (2,)),
        ("level2=2", 8, None),
        ("level1=2,level2=3", 12, None),
        ("level1=3", 8, None),
        pytest.param("level1=" + "9" * 5000, 8, None, id="too long"),
        ("", 8, None),
    ],
)
def test_group_sizes_are_read_or_refused(text: str, pods: int, answer: tuple[int, ...] | None) -> None:
    found = read_group_sizes(JobRequest("j", 0, pods, (), {}, {"huawei.com/affinity-config": text}))
    assert found == answer if answer else isinstance(found, Refusal)


def _observed(pods: Any, group: Any, nodes: list[Node], config: str = CONFIG, **report: Any) -> Any:
    reports = [worlds.report(node.name, **report) for node in nodes]
    return worlds.observed(nodes, reports, pods, objects=[group], init_params={"resource-level-config": config})


ML = {POLICY: "multilevel", "huawei.com/affinity-config": "level1=2,level2=4"}


def test_a_job_on_a_tree() -> None:
    pods, group = gang(4, 8, annotations=ML)
    scope = scope_of(_observed(pods, group, _nodes({"g1": {"a": 1, "b": 3}, "g2": {"c": 2, "d": 2}})))
    placed = nodes_of(scope)
    assert {name[:2] for name in placed.values()} == {"g2"}
    assert placed["case-0"][:4] == placed["case-1"][:4] != placed["case-2"][:4]
    assert scope.scores["train/case-0"][placed["case-0"]] == 100_000_000


def test_labels_of_topograph_are_a_tree() -> None:
    """The configuration of docs/kubernetes.md."""
    page = (Path(__file__).parent.parent / "docs/kubernetes.md").read_text()
    config = re.search(r"resource-level-config: '(\{.*\})'", page)
    assert config is not None
    leaf, spine = (f"fabric.topograph.run/tier-{tier}" for tier in range(2))
    nodes = [
        worlds.node(f"{up}-{down}-{i}", labels={**worlds.A2_LABELS, leaf: down, spine: up})
        for up, leaves in {"g1": {"a": 1, "b": 3}, "g2": {"c": 2, "d": 2}}.items()
        for down, count in leaves.items()
        for i in range(count)
    ]
    pods, group = gang(4, 8, annotations=ML)
    placed = nodes_of(scope_of(_observed(pods, group, nodes, config=config[1])))
    assert {name[:2] for name in placed.values()} == {"g2"}
    assert placed["case-0"][:4] == placed["case-1"][:4] != placed["case-2"][:4]


def test_pods_take_whole_nodes_only() -> None:
    pods, group = gang(4, 4, annotations=ML)
    scope = scope_of(_observed(pods, group, _nodes({"g": {"a": 2, "b": 2}})))
    assert scope.pending[0].reason == "TopologyNotMet" and scope.pending[0].nodes == {"TopologyNotMet": 4}


def test_missing_labels_and_configuration() -> None:
    pods, group = gang(4, 8, annotations=ML)
    plain = [worlds.node(f"n{i}") for i in range(4)]
    assert scope_of(_observed(pods, group, plain)).pending[0].nodes == {"TopologyLabelMissing": 4}
    without = scope_of(_observed(pods, group, plain, config=""))
    assert without.pending[0].reason == "InvalidRequest" and "resource-level-config" in without.pending[0].message


def test_a_running_job_is_completed_in_its_groups() -> None:
    pods, group = gang(4, 8, annotations=ML)
    running = [
        worlds.pod(f"case-{i}", node=node, chips=range(8), rank=i, annotations=dict(pods[i].annotations))
        for i, node in ((0, "g1-a-0"), (2, "g1-b-0"), (3, "g1-b-1"))
    ]
    scope = scope_of(_observed([*running, pods[1]], group, _nodes({"g0": {"z": 4}, "g1": {"a": 2, "b": 2}})))
    assert nodes_of(scope) == {"case-1": "g1-a-1"}
    assert placing.bindings(scope)["case-1"].evidence.rule == "place/multilevel"


def test_a_group_that_is_missing_whole_gets_a_unit_with_room_for_all_of_it() -> None:
    """The first free node by name is alone in its super pod."""
    pods, group = gang(4, 8, annotations=ML)
    running = [
        worlds.pod(f"case-{i}", node=f"g1-a-{i}", chips=range(8), rank=i, annotations=dict(pods[i].annotations))
        for i in (0, 1)
    ]
    scope = scope_of(_observed([*running, *pods[2:]], group, _nodes({"g0": {"z": 4}, "g1": {"a": 3, "b": 2}})))
    assert nodes_of(scope) == {"case-2": "g1-b-0", "case-3": "g1-b-1"}


@pytest.mark.parametrize(
    ("layout", "where"),
    [({"g1": {"a": 1, "b": 2}, "g2": {"c": 2, "d": 2}}, {"case-0": "g2-c-0"}), ({"g1": {"a": 3}, "g2": {"c": 2}}, {})],
)
def test_a_pod_that_its_queue_admits_alone_goes_where_its_whole_group_has_room(layout: Any, where: Any) -> None:
    """The queue has chips left for one pod of a gang that may start with one."""
    pods, group = gang(4, 8, annotations=ML, least=1)
    limit = placing.with_settings(queues=[placing.capacity_queue("default", **{"huawei.com/Ascend910": 8})])
    assert nodes_of(scope_of(_observed(pods, group, _nodes(layout)), desired=limit)) == where


def test_a_running_job_uses_a_failed_node_last() -> None:
    pods, group = gang(4, 8, annotations=ML)
    running = [
        worlds.pod(f"case-{i}", node=node, chips=range(8), rank=i, annotations=dict(pods[i].annotations))
        for i, node in ((0, "g1-a-0"), (2, "g1-b-0"), (3, "g1-b-1"))
    ]
    memory = JobMemory(uid="u-case", nodes={"1": "g1-a-1"}, fault_nodes=("g1-a-1",))
    history = History(nodes={}, jobs={"train/PodGroup/case": memory})
    for free, node in ((3, "g1-a-2"), (2, "g1-a-1")):
        observed = _observed([*running, pods[1]], group, _nodes({"g1": {"a": free, "b": 2}}))
        scope = scope_of(msgspec.structs.replace(observed, history=history))
        assert nodes_of(scope) == {"case-1": node}


@pytest.mark.parametrize("group_sizes", [(2, 4), (2,), (1, 2), (4,)])
@pytest.mark.parametrize(
    "layout", [{"x": {"a": 3, "b": 2}, "y": {"c": 2}}, {"x": {"a": 2, "b": 3}, "y": {"c": 1, "d": 1}}]
)
def test_a_job_is_completed_exactly_when_that_can_be_done(group_sizes: tuple[int, ...], layout: Any) -> None:
    """All ways in which some of four ranks run, with every subset of ranks missing; each answer is legal."""
    nodes = {node.name: node for node in _nodes(layout)}
    state: Any = SimpleNamespace(views={n: SimpleNamespace(node=node) for n, node in nodes.items()}, trees=TREES)

    def legal(placed: Mapping[int, str]) -> bool:
        return all(
            unit(state, placed[one], depth) == unit(state, placed[other], depth)
            for depth, size in enumerate(group_sizes, 1)
            for one, other in combinations(placed, 2)
            if one // size == other // size
        )

    ways = [placed for names in permutations(nodes, 4) if legal(placed := dict(enumerate(names)))]
    for missing in (m for count in (1, 2, 3) for m in combinations(range(4), count)):
        staying = {tuple(sorted((r, n) for r, n in placed.items() if r not in missing)) for placed in ways}
        for rows in sorted(staying):
            runs = dict(rows)
            free = {name: node for name, node in nodes.items() if name not in runs.values()}
            for gone in ("", *list(free)[:2]):
                left = {name: node for name, node in free.items() if name != gone}
                rest = permutations(left, len(missing))
                can = any(legal(runs | dict(zip(missing, names, strict=True))) for names in rest)
                found = _RunningTreeJob(state, group_sizes, runs, left, ()).slots(
                    [(rank, f"r{rank}") for rank in missing]
                )
                assert isinstance(found, Refusal) != can, (runs, missing, sorted(left))
                if not isinstance(found, Refusal):
                    assert legal(runs | {rank: found[f"r{rank}"].node for rank in missing})
                    assert len({slot.node for slot in found.values()} & set(left)) == len(missing)
