"""`belay inject` against an API server: what it writes, and whom it refuses to hurt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from belay.agents.drivers.simulated import Injected
from belay.engine.cli import main
from belay.engine.kube import CONFIGMAP, NODE
from belay.engine.sandbox.node_control import Control
from belay.engine.wire import names
from tests.loop_world import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("api"))
    for name, runtime in (("node-1", "belay-sandbox://0"), ("real-1", "containerd://1.7")):
        made.add_node(name)
        made.run(made.kube.patch_status(NODE, name, {"status": {"nodeInfo": {"containerRuntimeVersion": runtime}}}))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _healthy(cluster: Cluster) -> None:
    if cluster.get(CONFIGMAP, "belay-sim-node-1", names.NODES):
        cluster.run(cluster.kube.delete(CONFIGMAP, "belay-sim-node-1", names.NODES))


def inject(cluster: Cluster, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["inject", *arguments, "--kubeconfig", cluster.kubeconfig])


def said(cluster: Cluster, key: str = "faults.json") -> dict[str, Any]:
    found = cluster.get(CONFIGMAP, "belay-sim-node-1", names.NODES)
    text: str = ((found or {}).get("data") or {}).get(key, "{}")
    return dict(json.loads(text))


def test_faults_are_put_added_and_cleared(cluster: Cluster) -> None:
    first = inject(cluster, "fault", "node-1/Ascend910-3", "80c98001")
    assert first.exit_code == 0 and first.stdout == "node-1/Ascend910-3: has 80C98001\n"
    assert inject(cluster, "fault", "node-1/3", "80E01801", "80C98001").exit_code == 0
    assert inject(cluster, "fault", "node-1/3", "81078603", "--network").exit_code == 0
    assert inject(cluster, "fault", "node-1/4", "80C98001", "--reset-fails", "2").exit_code == 0
    assert said(cluster) == {
        "Ascend910-3": {"codes": ["80C98001", "80E01801"], "network": ["81078603"]},
        "Ascend910-4": {"codes": ["80C98001"]},
        "resetFails": 2,
    }
    cleared = inject(cluster, "fault", "node-1/3", "--clear")
    assert cleared.exit_code == 0 and "cleared" in cleared.stdout
    assert said(cluster) == {"Ascend910-4": {"codes": ["80C98001"]}, "resetFails": 2}


def test_the_simulated_driver_reads_what_is_written(cluster: Cluster) -> None:
    import msgspec

    inject(cluster, "fault", "node-1/3", "80C98001", "--network")
    inject(cluster, "fault", "node-1/3", "80E01801")
    found = msgspec.convert(said(cluster)["Ascend910-3"], Injected)
    assert (found.codes, found.network) == (("80E01801",), ("80C98001",))


def test_a_node_falls_silent_and_comes_back_with_its_faults_kept(cluster: Cluster) -> None:
    import msgspec

    inject(cluster, "fault", "node-1/3", "80C98001")
    assert inject(cluster, "node", "node-1", "not-ready").exit_code == 0
    assert msgspec.convert(said(cluster, "node.json"), Control).paused
    assert inject(cluster, "node", "node-1", "ready").exit_code == 0
    assert msgspec.convert(said(cluster, "node.json"), Control) == Control()
    assert said(cluster) == {"Ascend910-3": {"codes": ["80C98001"]}}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fault", "real-1/Ascend910-0", "80C98001"), ("real-1 is a real node", "sandbox")),
        (("node", "real-1", "not-ready"), ("real-1 is a real node",)),
        (("fault", "node-9/0", "80C98001"), ("no node 'node-9'", "belay get nodes")),
        (("fault", "node-1/8", "80C98001"), ("no chip '8'", "Ascend910-0 to Ascend910-7")),
        (("fault", "node-1", "80C98001"), ("no chip ''", "NODE/CHIP")),
        (("fault", "node-1/3", "overheated"), ("'overheated'", "hexadecimal")),
        (("fault", "node-1/3", "80C9800"), ("'80C9800'", "hexadecimal")),
        (("fault", "node-1/3"), ("nothing to inject",)),
    ],
)
def test_invalid_injections_are_rejected_without_a_change(
    cluster: Cluster, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = inject(cluster, *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    for word in words:
        assert word in result.stderr, result.stderr
    assert cluster.get(CONFIGMAP, "belay-sim-node-1", names.NODES) is None
    assert cluster.get(CONFIGMAP, "belay-sim-real-1", names.NODES) is None


def test_an_invalid_config_map_is_named(cluster: Cluster) -> None:
    metadata = {"name": "belay-sim-node-1", "namespace": names.NODES}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"faults.json": "{"}}
    cluster.create(CONFIGMAP, body)
    result = inject(cluster, "fault", "node-1/3", "80C98001")
    assert result.exit_code == 2 and "belay-nodes/belay-sim-node-1, key faults.json" in result.stderr


def test_without_a_cluster(cluster: Cluster) -> None:
    result = CliRunner().invoke(main, ["inject", "fault", "node-1/3", "80C98001", "--kubeconfig", "/no/such"])
    assert result.exit_code == 2 and "KUBECONFIG" in result.stderr
