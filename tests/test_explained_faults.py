"""`belay explain 80C98001`: what a fault code says, its level and who sets it, what Belay does, and who has it now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from belay.engine.cli import main
from belay.engine.cli.codes import canonical_fault
from tests.bench.clusters import cluster, device

POLICIES = """\
apiVersion: belay.dev/v1alpha1
kind: FaultPolicy
metadata: {name: lenient}
spec: {scope: {pools: [old]}, levels: {"80c98001": NotHandleFault}}
---
apiVersion: belay.dev/v1alpha1
kind: FaultPolicy
metadata: {name: trial}
spec: {mode: shadow, levels: {"80C98001": SeparateNPU}}
---
apiVersion: belay.dev/v1alpha1
kind: FaultPolicy
metadata: {name: rare}
spec: {levels: {"8ABCDEF0": RestartNPU}}
"""
POOLS = """\
apiVersion: belay.dev/v1alpha1
kind: NodePool
metadata: {name: old}
spec: {selector: {matchLabels: {kubernetes.io/hostname: node-00003}}}
"""


@pytest.fixture(scope="module")
def cluster_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four nodes, a job on two of them, and the fault under the job and on an idle node of another pool."""
    items = cluster(4, 1)
    items[1], items[7] = device("node-00000", faulty=5), device("node-00003", faulty=2)
    file = tmp_path_factory.mktemp("codes") / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return file


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    for path, text in (("policies/faults.yaml", POLICIES), ("desired/pools.yaml", POOLS)):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    return folder


def explain(*words: str) -> Result:
    return CliRunner().invoke(main, ["explain", *words], env={"KUBECONFIG": "/no/such/kubeconfig", "COLUMNS": "200"})


def document(*words: str) -> dict[str, Any]:
    result = explain(*words, "-o", "json")
    assert result.exit_code == 0, result.output
    body: dict[str, Any] = json.loads(result.stdout)
    return body


def test_levels_of_each_pool_with_who_sets_them_and_who_has_the_fault(cluster_file: Path, repository: Path) -> None:
    body = document("0x80c98001", "--cluster", str(cluster_file), "--desired", str(repository))
    assert body["code"] == "80C98001" and body["what"] == "AI Core: it could not be reset"
    by_pool = {one: row for row in body["levels"] for one in row["pools"]}
    assert by_pool["default"]["level"] == "RestartNPU" and by_pool["default"]["setBy"] == "FaultTable/chip"
    assert by_pool["default"]["idle"] == "no new work; reset" and "moved" in by_pool["default"]["in training"]
    old = by_pool["old"]
    assert (old["level"], old["setBy"]) == ("NotHandleFault", "FaultPolicy/lenient#levels.80c98001")
    assert old["place"] == "policies/faults.yaml:1" and old["idle"] == "nothing"
    assert body["elsewhere"] == ["FaultPolicy/trial would give (shadow) SeparateNPU: policies/faults.yaml:6"]
    assert {(row["node"], row["chip"], row["usedBy"]) for row in body["now"]} == {
        ("node-00000", "Ascend910-5", "train/job-00000-master-0"), ("node-00003", "Ascend910-2", None),
    }  # fmt: skip
    assert body["nextSteps"][0] == "belay explain chip node-00000/Ascend910-5"


def test_a_code_is_known_however_it_is_written_and_without_a_cluster() -> None:
    for written in ("80C98001", "80c98001", "0x80C98001", "0X80c98001"):
        assert canonical_fault(written) == "80C98001"
    for none in ("node", "facade", "TopologyNotMet", "80C9 8001", "0x", "80C98001" * 3):
        assert canonical_fault(none) == ""

    shipped = explain("81078603")
    assert shipped.exit_code == 0 and "no cluster answers" in shipped.stderr
    assert shipped.stdout.startswith("fault 81078603: RoCE/parameter-plane port link down")
    assert "5 times within 24h: ManuallySeparateNPU, for 48h" in shipped.stdout
    assert "longer than 20s: PreSeparateNPU until it is gone for 1m" in shipped.stdout

    node = document("0000001d")
    assert [(row["plane"], row["level"]) for row in node["levels"]] == [("node", "PreSeparateFault")]
    switch = document("[0x00f103b0, 155907, na, na]")
    assert [(row["plane"], row["level"]) for row in switch["levels"]] == [("switch", "SeparateFault")]
    assert "does not forward" in switch["summary"]
    assert "not ready" in document("HeartbeatTimeout")["summary"]


def test_a_code_that_nothing_lists_says_so_and_what_would_follow(repository: Path) -> None:
    body = document("8ABCDEF0")
    assert body["summary"].startswith("no fault table and no policy lists it") and not body["now"]
    (row,) = body["levels"]
    assert row["level"] == "SeparateNPU" and "by the driver's severity" in row["setBy"]
    (given,) = document("8ABCDEF0", "--desired", str(repository))["levels"]
    assert given["setBy"] == "FaultPolicy/rare#levels.8ABCDEF0" and given["level"] == "RestartNPU"
    assert explain("80C98001", "node-1").exit_code == 2 and explain("80C98001", "--desired", "/no/such").exit_code == 2
