"""Every key of `init-params` that changes where pods go: one cluster, two values, two plans; and products as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belay.engine.model.history import JobMemory
from belay.engine.wire import history, names
from tests import listing
from tests.listing import Item, job, node, params, report


def _super_pods(*sizes: int) -> list[Item]:
    named = [(f"s{home}-{i}", home) for home, size in enumerate(sizes) for i in range(size)]
    nodes = [node(name, chips=16) for name, _ in named]
    return nodes + [report(name, chips=16, super_pod=home) for name, home in named]


def _blocks(pods: int, block: int) -> list[Item]:
    return job("j", pods, 16, policy="chip2-node16-sp", notes={"sp-block": str(block * 16)})


@pytest.mark.parametrize(
    ("size", "bound"), [("2", False), ("4", True), ("0", True), ("-1", True), ("****", True), (None, True)]
)
def test_super_pod_size_limits_a_block(size: str | None, bound: bool, tmp_path: Path) -> None:
    settings = [params(super_pod_size=size, reserve_nodes="1")] if size else []
    assert bool(listing.plan([*_super_pods(4), *settings, *_blocks(4, 4)], tmp_path).bound) is bound


@pytest.mark.parametrize(
    ("reserve", "home"),
    [("1", "s0"), ("2", "s1"), ("0", "s1"), ("-1", "s1"), ("x", "s1"), (None, "s1"), ("60", "s1")],
)
def test_reserve_nodes_spare_a_super_pod(reserve: str | None, home: str, tmp_path: Path) -> None:
    settings = [params(reserve_nodes=reserve)] if reserve else []
    found = listing.plan([*_super_pods(3, 4), *settings, *_blocks(2, 2)], tmp_path)
    assert {name[:2] for name in found.nodes.values()} == {home}


@pytest.mark.parametrize(("value", "chips"), [("true", [0, 1]), ("false", [2, 3]), ("no", [2, 3]), (None, [0, 1])])
def test_free_chips_are_counted_by_the_engine_or_read_from_the_report(
    value: str | None, chips: list[int], tmp_path: Path
) -> None:
    settings = [params(self_maintain_available_card=value)] if value else []
    items = [node("n0"), report("n0", busy=[0, 1]), *settings, *job("j", 1, 2, policy="chip8-node8")]
    assert listing.plan(items, tmp_path).chips("j-0") == chips


@pytest.mark.parametrize(
    ("settings", "home"),
    [
        pytest.param([params(prefer_previous_node="true")], "n1", id="true"),
        pytest.param([params(prefer_previous_node="false")], "n0", id="false"),
        pytest.param([params(prefer_previous_node="TRUE")], "n0", id="TRUE"),
        pytest.param([], "n1", id="no configuration"),
        pytest.param([params()], "n0", id="a configuration without arguments"),
        pytest.param([params(shared_tor_num="2")], "n0", id="a configuration that leaves it out"),
    ],
)
def test_previous_nodes_are_preferred_unless_volcano_differs(settings: list[Item], home: str, tmp_path: Path) -> None:
    data = history.job_data("train/PodGroup/j", JobMemory(uid="u-j", nodes={"0": "n1"}))
    memory = listing.config_map("belay-system", names.job_config_map("train", "PodGroup", "j"), data)
    nodes = [item for own in ("n0", "n1") for item in (node(own), report(own))]
    items = [*nodes, *settings, memory, *job("j", 1, 2, policy="chip8-node8")]
    assert listing.plan(items, tmp_path).nodes == {"j-0": home}


@pytest.mark.parametrize(
    ("config", "bound"),
    [
        ('{"default":{"level1":{"label":"rack"}}}', True),
        ('{"default":{"level2":{"label":"rack"}}}', False),
        ('{"default":{"level1":{"label":"absent"}}}', False),
        ('{"other":{"level1":{"label":"rack"}}}', False),
        ("{", False),
        (None, False),
    ],
)
def test_resource_level_config_makes_trees(config: str | None, bound: bool, tmp_path: Path) -> None:
    settings = [params(resource_level_config=config)] if config else []
    notes = {"huawei.com/affinity-config": "level1=2"}
    nodes = [item for name in ("n0", "n1") for item in (node(name, labels={"rack": "a"}), report(name))]
    found = listing.plan([*nodes, *settings, *job("j", 2, 8, policy="multilevel", notes=notes)], tmp_path)
    assert bool(found.bound) is bound


def test_settings_of_the_repository_hold_until_the_cluster_says_otherwise(tmp_path: Path) -> None:
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "own.yaml").write_text(
        "apiVersion: belay.dev/v1alpha1\nkind: SchedulingSettings\nmetadata: {name: own}\n"
        "spec: {initParams: {super-pod-size: 2}}\n"
    )
    world = [*_super_pods(4), *_blocks(4, 4)]
    options = ("--policies", str(policies))
    assert not listing.plan(world, tmp_path, *options).bound
    assert listing.plan([*world, params(super_pod_size="4")], tmp_path, *options).bound


MODEL = """\
apiVersion: belay.dev/v1alpha1
kind: Product
metadata: {name: atlas-next}
spec:
  title: A server that did not exist when this was written
  resource: huawei.com/npu
  devicePrefix: npu-
  chipsPerNode: 12
  nodeLabels: [{accelerator-type: next-12}]
  schedulePolicies: [chip4-node12]
  acceleratorTypes: [next-12]
  placement: {handler: mesh4, max: 12, networkAware: true, single: "1-4,8,12", distributed: "4,8,12", ringSize: 4}
  reset: {groups: ["0-3", "4-7", "8-11"]}
"""


def _next(count: int, each: int, tmp_path: Path, with_model: bool = True, **busy: Any) -> listing.Answer:
    policies = tmp_path / "models"
    policies.mkdir(exist_ok=True)
    (policies / "next.yaml").write_text(MODEL)
    labels = {"accelerator-type": "next-12"}
    nodes = [node(name, kind="npu", chips=12, labels=labels) for name in ("n0", "n1")]
    reports = [report(name, kind="npu", chips=12, unhealthy=busy.get(name, ())) for name in ("n0", "n1")]
    items = [*nodes, *reports]
    options = ("--policies", str(policies)) if with_model else ()
    return listing.plan([*items, *job("j", count, each, kind="npu", policy="chip4-node12")], tmp_path, *options)


def test_a_new_server_model_is_a_file_and_nothing_else(tmp_path: Path) -> None:
    assert _next(1, 8, tmp_path, with_model=False).pending["reason"] == "NotSupportPolicy"
    assert _next(1, 8, tmp_path, n0=[1]).chips("j-0") == [4, 5, 6, 7, 8, 9, 10, 11]
    assert len(_next(6, 4, tmp_path).bound) == 6
    assert _next(7, 4, tmp_path).pending["reason"] in ("NPUResourceShortage", "TopologyNotMet")
    assert "req npu num should be one of 1, 2, 3, 4, 8, 12" in _next(1, 5, tmp_path).pending["message"]
    assert "should be one of 4, 8, 12" in _next(2, 2, tmp_path).pending["message"]
    assert _next(1, 12, tmp_path, n0=[1], n1=[9]).pending["nodes"] == {"NPUResourceShortage": 2}


def test_values_that_cannot_be_read_are_named_and_what_holds_instead(tmp_path: Path) -> None:
    settings = params(
        super_pod_size="****", reserve_nodes="3", nslb_version="3.0", resource_level_config="{bad", forceEnqueue="1"
    )
    rows = listing.plan([node("n0"), report("n0"), settings], tmp_path).body["diagnostics"]
    messages = {row["field"].rpartition(".")[2]: row["message"] for row in rows}
    assert {row["severity"] for row in rows} == {"warning"}
    assert {row["object"] for row in rows} == {"ConfigMap/volcano-system/volcano-scheduler-configmap"}
    assert sorted(messages) == ["forceEnqueue", "nslb-version", "resource-level-config", "super-pod-size"]
    assert (
        "counts as false" in messages["forceEnqueue"]
        and "the default holds: not JSON" in messages["resource-level-config"]
    )
